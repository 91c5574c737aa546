"""POST /predict: the forms of a request, and what comes back."""

import base64
import json
import os
import unittest

import harness
from harness import DIGITS, SHARED, ServedCase, drawn, multipart, post, read, read_answer, seven


class OneImage(ServedCase):
    def assert_seven(self, answer):
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.headers["Content-Type"], "application/json")
        result = answer.json()
        self.assertEqual(result["predictions"][0]["label"], "7")
        return result

    def test_a_raw_body_under_any_content_type(self):
        for content_type in ("image/png", "image/jpeg", "application/octet-stream", "text/plain",
                             "application/json", "application/x-www-form-urlencoded", "", None):
            headers = {} if content_type is None else {"Content-Type": content_type}
            with self.subTest(content_type=content_type):
                self.assert_seven(self.server.predict(seven(), headers=headers))

    def test_the_whole_answer(self):
        result = self.assert_seven(self.server.predict(seven()))
        self.assertEqual(set(result), {"model", "device", "predictions", "image", "batch",
                                       "timing_ms"})
        self.assertEqual((result["model"], result["device"], result["batch"]), ("digits", "cpu", 1))
        self.assertEqual(result["image"], {"width": 280, "height": 280})
        self.assertEqual(set(result["timing_ms"]),
                         {"decode", "preprocess", "queue", "forward", "total"})
        times = result["timing_ms"]
        self.assertGreater(times["decode"], 0)
        self.assertGreater(times["forward"], 0)
        self.assertGreaterEqual(times["total"] + 0.01, sum(times.values()) - times["total"])
        predictions = result["predictions"]
        self.assertEqual(len(predictions), 5)
        for prediction in predictions:
            self.assertEqual(prediction["label"], str(prediction["index"]))
        probabilities = [prediction["probability"] for prediction in predictions]
        self.assertEqual(probabilities, sorted(probabilities, reverse=True))
        self.assertGreater(probabilities[0], 0.5)
        self.assertLessEqual(sum(probabilities), 1.0001)

    def test_top_k(self):
        for top_k, count in (("1", 1), ("10", 10), ("1000", 10), ("007", 7)):
            result = self.assert_seven(self.server.predict(seven(), f"/predict?top_k={top_k}"))
            self.assertEqual(len(result["predictions"]), count)
        every = self.server.predict(seven(), "/predict?top_k=10").json()["predictions"]
        self.assertAlmostEqual(sum(p["probability"] for p in every), 1.0, places=4)
        for wrong in ("0", "1001", "-1", "+3", "5x", "", "1e1", "%00", "99999999999999999999", "٣"):
            with self.subTest(top_k=wrong):
                path = "/predict?top_k=" + wrong.encode().hex("%") if wrong == "٣" \
                    else "/predict?top_k=" + wrong
                answer = self.server.predict(seven(), path)
                self.assert_error(answer, 400, "invalid_request")

    def test_the_model_by_name(self):
        self.assert_seven(self.server.predict(seven(), "/predict?model=digits"))
        self.assert_seven(self.server.predict(seven(), "/predict?model=d%69gits&top_k=2"))
        self.assert_error(self.server.predict(seven(), "/predict?model=cats"), 404, "not_found",
                          "cats", "digits")

    def test_parameters_nobody_knows(self):
        self.assert_error(self.server.predict(seven(), "/predict?topk=3"), 400, "invalid_request",
                          "'topk'", "top_k")
        self.assert_error(self.server.predict(seven(), "/predict?top_k=3&top_k=4"), 400,
                          "invalid_request", "twice")
        for value, words in ((b"3", ("unknown parameter 'topk'", "did you mean 'top_k'?")), (b"", ("unknown parameter",)),
                             (b"photo.jpg", ("is text, not a file", "-F topk=@photo.jpg"))):
            content_type, body = multipart([("image", "a.png", seven()), ("topk", None, value)])
            self.assert_error(self.server.predict(body, headers={"Content-Type": content_type}), 400, "invalid_request", *words)

    def test_multipart_with_any_field_name(self):
        for name in ("image", "data", "file", "x y", ""):
            content_type, body = multipart([(name, "a.png", seven())])
            with self.subTest(name=name):
                self.assert_seven(self.server.predict(body, headers={"Content-Type": content_type}))
        # Without a file name it is an image all the same.
        content_type, body = multipart([("data", None, seven())])
        self.assert_seven(self.server.predict(body, headers={"Content-Type": content_type}))

    def test_multipart_with_parameters(self):
        content_type, body = multipart([("top_k", None, b"2"), ("image", "a.png", seven()),
                                        ("model", None, b"digits")])
        result = self.assert_seven(self.server.predict(body, headers={"Content-Type": content_type}))
        self.assertEqual(len(result["predictions"]), 2)

    def test_multipart_boundaries_as_clients_write_them(self):
        for boundary in ("a", "-" * 30 + "735323031399963166993862150", "x" * 70, "a b"):
            quoted = f'"{boundary}"'
            content_type, body = multipart([("image", "a.png", seven())], boundary)
            with self.subTest(boundary=boundary):
                self.assert_seven(self.server.predict(body, headers={
                    "Content-Type": f"Multipart/Form-Data; charset=utf-8; Boundary={quoted}"}))

    def test_base64(self):
        text = base64.b64encode(seven()).decode()
        wrapped = base64.encodebytes(seven()).decode()
        self.assert_seven(self.server.predict(json.dumps({"image": "data:image/png;base64," + text})))
        self.assertEqual(len(self.server.predict(json.dumps({"images": [text, {"b64": text}]})).json()["results"]), 2)
        for b64 in (text, wrapped, text.rstrip("="), text.replace("+", "-").replace("/", "_")):
            body = json.dumps({"image": {"b64": b64}, "top_k": 3})
            for headers in ({"Content-Type": "application/json"}, {}):
                result = self.assert_seven(self.server.predict(body, headers=headers))
                self.assertEqual(len(result["predictions"]), 3)

    def test_request_ids(self):
        answer = self.server.predict(seven(), headers={"X-Request-Id": "abc-123_x.Y:z"})
        self.assertEqual(answer.headers["X-Request-Id"], "abc-123_x.Y:z")
        made = {self.server.get("/livez").headers["X-Request-Id"] for _ in range(20)}
        self.assertEqual(len(made), 20)
        for odd in ("x" * 129, "a b", "<script>"):
            answer = self.server.predict(seven(), headers={"X-Request-Id": odd})
            self.assertRegex(answer.headers["X-Request-Id"], "^[0-9a-f]{16}$")
        self.server.wait_log("id=abc-123_x.Y:z")


class SeveralImages(ServedCase):
    def predict_parts(self, parts, path="/predict"):
        content_type, body = multipart(parts)
        return self.server.predict(body, path, {"Content-Type": content_type})

    def test_one_result_for_each_in_order(self):
        parts = [("image", f"{digit}.png", drawn(digit)) for digit in (3, 1, 4, 1, 5, 9, 2, 6)]
        answer = self.predict_parts(parts, "/predict?top_k=1")
        self.assertEqual(answer.status, 200)
        result = answer.json()
        self.assertEqual(set(result), {"model", "device", "results", "timing_ms"})
        self.assertEqual([entry["name"] for entry in result["results"]],
                         ["3.png", "1.png", "4.png", "1.png", "5.png", "9.png", "2.png", "6.png"])
        self.assertEqual([entry["predictions"][0]["label"] for entry in result["results"]],
                         ["3", "1", "4", "1", "5", "9", "2", "6"])
        for entry in result["results"]:
            self.assertEqual(set(entry["timing_ms"]), {"decode", "preprocess", "queue", "forward"})

    def test_a_bad_one_fails_alone(self):
        answer = self.predict_parts([("a", "good.png", seven()), ("b", "notes.jpg", b"hello there"),
                                     ("c", "cut.png", seven()[:300]), ("d", "empty.png", b"")])
        self.assertEqual(answer.status, 200)
        good, text, cut, empty = answer.json()["results"]
        self.assertEqual(good["predictions"][0]["label"], "7")
        self.assertEqual((text["code"], text["name"]), ("unsupported_media_type", "notes.jpg"))
        self.assertEqual(cut["code"], "bad_image")
        self.assertEqual(empty["code"], "bad_image")
        for bad in (text, cut, empty):
            self.assertNotIn("predictions", bad)
            self.assertGreater(len(bad["error"]), 10)

    def test_json_images(self):
        good = base64.b64encode(seven()).decode()
        body = json.dumps({"images": [{"b64": good, "name": "a"}, {"b64": "!!!"}, {"b64": good}]})
        answer = self.server.predict(body, "/predict?top_k=1")
        self.assertEqual(answer.status, 200, answer.body)
        first, second, third = answer.json()["results"]
        self.assertEqual((first["name"], first["predictions"][0]["label"]), ("a", "7"))
        self.assertEqual(second["code"], "invalid_request")
        self.assertIn("base64", second["error"])
        self.assertNotIn("name", third)
        # "images" with one entry is a list, too.
        answer = self.server.predict(json.dumps({"images": [{"b64": good}]}))
        self.assertEqual(len(answer.json()["results"]), 1)

    def test_names_from_hostile_clients(self):
        names = ['"><script>', "../../etc/passwd", "caf\u00e9.png", "\xff\xfe.png"]
        parts = b""
        for name in names:
            encoded = name.encode("latin-1" if "\xff" in name else "utf-8").replace(b'"', b'\\"')
            parts += (b'--B\r\nContent-Disposition: form-data; name="i"; filename="' + encoded +
                      b'"\r\n\r\n' + seven() + b"\r\n")
        answer = self.server.predict(parts + b"--B--", headers={
            "Content-Type": "multipart/form-data; boundary=B"})
        self.assertEqual([entry["name"] for entry in answer.json()["results"]],
                         ['"><script>', "../../etc/passwd", "caf\u00e9.png", "??.png"])

    def test_the_number_of_images_is_bounded(self):
        answer = self.predict_parts([("image", "a.png", seven())] * 65)
        self.assert_error(answer, 413, "too_large", "65 images", "64", "--max-images")
        answer = self.predict_parts([("image", "a.png", seven())] * 80)
        self.assert_error(answer, 413, "too_large", "--max-images")
        answer = self.predict_parts([("image", "a.png", seven())] * 64)
        self.assertEqual(answer.status, 200)
        body = json.dumps({"images": [{"b64": ""}] * 65})
        self.assert_error(self.server.predict(body), 413, "too_large", "64 images")


class ManyClients(ServedCase):
    def test_64_in_parallel(self):
        def client(i):
            digit = i % 10
            with self.server.connect() as connection:
                for _ in range(5):
                    connection.sendall(post("/predict?top_k=1", drawn(digit)))
                    answer, _ = read_answer(connection)
                    self.assertEqual(answer.status, 200, answer.body)
                    self.assertEqual(answer.json()["predictions"][0]["label"], str(digit))
            return True

        self.assertEqual(harness.together(64, client), [True] * 64)

    def test_pipelined_requests_are_answered_in_order(self):
        with self.server.connect() as connection:
            requests = b"".join(post("/predict?top_k=1", drawn(digit)) for digit in range(10))
            requests += b"GET /livez HTTP/1.1\r\nHost: lensd\r\n\r\n"
            connection.sendall(requests)
            rest = b""
            for digit in range(10):
                answer, rest = read_answer(connection, rest)
                self.assertEqual(answer.json()["predictions"][0]["label"], str(digit))
            answer, rest = read_answer(connection, rest)
            self.assertEqual(answer.json(), {"status": "live"})
            self.assertEqual(rest, b"")


class HeldOutDigits(ServedCase):
    def test_accuracy_over_http(self):
        folder = os.path.join(DIGITS, "held_out")
        if not os.path.isdir(folder):
            self.skipTest(f"{folder} is not there")
        names = sorted(name for name in os.listdir(folder) if name.endswith(".png"))
        self.assertGreaterEqual(len(names), 100)
        right = 0
        for start in range(0, len(names), 32):
            batch = names[start:start + 32]
            content_type, body = multipart(
                [("image", name, read(os.path.join(folder, name))) for name in batch])
            answer = self.server.predict(body, "/predict?top_k=1", {"Content-Type": content_type})
            self.assertEqual(answer.status, 200, answer.body)
            for name, entry in zip(batch, answer.json()["results"]):
                right += entry["predictions"][0]["label"] == name.split("_")[0]
        self.assertGreaterEqual(right / len(names), 0.98, f"{right} of {len(names)}")


class SqueezeNet(unittest.TestCase):
    def test_real_photos(self):
        folder = os.path.join(SHARED, "models", "squeezenet-imagenet")
        if not os.path.isdir(folder):
            self.skipTest(f"{folder} is not there")
        server = harness.Server(folder)
        first = 0
        photos = sorted(os.listdir(os.path.join(folder, "photos")))
        try:
            for photo in photos:
                wanted = os.path.splitext(photo)[0].replace("_", " ").replace("-", " ").lower()
                answer = server.predict(read(os.path.join(folder, "photos", photo)),
                                        "/predict?top_k=3")
                self.assertEqual(answer.status, 200, answer.body)
                found = [p["label"].lower() for p in answer.json()["predictions"]]
                ranks = [rank for rank, label in enumerate(found) if wanted in label]
                self.assertTrue(ranks, f"{photo}: {found}")
                first += ranks[0] == 0
        finally:
            code, log = server.stop()
        self.assertEqual(code, 0, log)
        self.assertGreaterEqual(first, 0.6 * len(photos))


if __name__ == "__main__":
    unittest.main()
