"""Content: compressed bodies and answers, the forms of an answer, what OPTIONS, CORS and ETags say."""

import gzip
import json
import random
import struct
import unittest
import zlib

from harness import ServedCase, drawn, multipart, read_answer, run_lensd, seven


def deflate_raw(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


class CompressedBodies(ServedCase):
    arguments = ("--max-body", "3M", "--max-inflate-ratio", "50")

    def predict_as(self, coding, body, **headers):
        return self.server.predict(body, "/predict?top_k=1", {"Content-Encoding": coding, **headers})

    def assert_seven(self, answer):
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.json()["predictions"][0]["label"], "7")

    def test_codings(self):
        image = seven()
        halves = gzip.compress(image[:700]) + gzip.compress(image[700:])
        for coding, body in (("gzip", gzip.compress(image)), ("x-gzip", gzip.compress(image)), ("GZIP", halves),
                             ("deflate", zlib.compress(image)), ("deflate", deflate_raw(image)),
                             ("identity", image), ("", image), (" gzip ", gzip.compress(image))):
            with self.subTest(coding=coding):
                self.assert_seven(self.predict_as(coding, body))

    def test_forms_inside(self):
        kind, body = multipart([("image", "a.png", seven())])
        self.assert_seven(self.predict_as("gzip", gzip.compress(body), **{"Content-Type": kind}))

    def test_byte_by_byte_and_chunked(self):
        for packed, coding in ((gzip.compress(seven()), "gzip"), (zlib.compress(seven()), "deflate"),
                               (deflate_raw(seven()), "deflate")):
            chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in packed) + b"0\r\n\r\n"
            with self.server.connect() as connection:
                connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                                   b"Content-Encoding: " + coding.encode() + b"\r\n\r\n" + chunks)
                self.assert_seven(read_answer(connection)[0])

    def test_exactly_the_limit_and_one_more(self):
        image = seven() + random.Random(1).randbytes(400000)
        image += bytes(3 * 2**20 - len(image))
        self.assert_seven(self.predict_as("gzip", gzip.compress(image)))
        self.assert_error(self.predict_as("gzip", gzip.compress(image + b"x")), 413, "too_large", "--max-body")

    def test_bombs(self):
        packer = zlib.compressobj(9, wbits=-15)
        block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
        gigabyte = block * 1024 + b"\x03\0"  # an empty last block
        for coding, bomb in (("gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + gigabyte), ("deflate", b"\x78\x9c" + gigabyte),
                             ("deflate", gigabyte), ("gzip", gzip.compress(bytes(3 * 2**20), 9))):
            answer = self.predict_as(coding, bomb)
            self.assert_error(answer, 413, "too_large", "50 times", "--max-inflate-ratio")
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        with open(f"/proc/{self.server.process.pid}/status") as status:
            peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        self.assertLess(peak, 1000 * 1024)

    def test_zeros_that_are_small_are_no_bomb(self):
        answer = self.predict_as("gzip", gzip.compress(bytes(602112)))
        self.assert_error(answer, 415, "unsupported_media_type")

    def test_broken(self):
        packed = gzip.compress(seven())
        wrong_sum = packed[:-8] + b"\0\0\0\0" + packed[-4:]
        for coding, body, word in (("gzip", seven(), "incorrect header check"), ("gzip", packed[:-3], "in the middle"),
                                   ("gzip", packed[:300], "in the middle"), ("gzip", b"\x1f", "in the middle"),
                                   ("gzip", wrong_sum, "incorrect data check"), ("gzip", packed + b"xy", "gzip"),
                                   ("deflate", zlib.compress(seven()) + b"x", "after its end"),
                                   ("deflate", b"x", "in the middle"), ("deflate", seven(), "deflate")):
            with self.subTest(coding=coding, word=word):
                self.assert_error(self.predict_as(coding, body), 400, "invalid_request", word)
        self.assert_error(self.predict_as("gzip", b""), 400, "invalid_request", "the body is empty")

    def test_unknown_codings(self):
        for coding in ("br", "zstd", "gzip, gzip", "gzip,deflate", "gzipp"):
            answer = self.predict_as(coding, gzip.compress(seven()))
            self.assert_error(answer, 415, "unsupported_media_type", "gzip, deflate or none")
            self.assertEqual(answer.headers["Accept-Encoding"], "gzip, deflate")
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n"
                               b"Content-Encoding: br\r\nExpect: 100-continue\r\n\r\n")
            self.assert_error(read_answer(connection)[0], 415, "unsupported_media_type")


class CompressedAnswers(ServedCase):
    def get(self, accept, path="/metrics", method="GET"):
        return self.server.request(method, path, headers={"Accept-Encoding": accept} if accept else {})

    def test_what_the_client_likes(self):
        for accept, coding in (("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate, br", "gzip"),
                               ("gzip;q=0.2, deflate;q=0.8", "deflate"), ("*", "gzip"), ("gzip;q=0, *", "deflate"),
                               ("br", None), ("", None), ("identity", None), ("gzip;q=0", None),
                               ("identity, gzip;q=0.5", None), ("gzip;q=x", None), ("gzip;q= 1", None)):
            with self.subTest(accept=accept):
                answer = self.get(accept)
                self.assertEqual(answer.headers["Content-Encoding"], coding)
                self.assertEqual(answer.headers["Vary"], "Accept-Encoding")
                text = zlib.decompress(answer.body, 47) if coding else answer.body
                self.assertIn(b"# TYPE lensd_http_requests_total counter\n", text)
                self.assertEqual(int(answer.headers["Content-Length"]), len(answer.body))
        plain = self.server.get("/metrics")
        self.assertIsNone(plain.headers["Content-Encoding"])
        self.assertLess(len(self.get("gzip").body), len(plain.body) / 3)

    def test_small_answers_are_left_alone(self):
        answer = self.get("gzip", "/livez")
        self.assertEqual((answer.headers["Content-Encoding"], answer.json()), (None, {"status": "live"}))

    def test_head(self):
        answer = self.get("gzip", "/", "HEAD")
        self.assertEqual((answer.headers["Content-Encoding"], answer.body), ("gzip", b""))
        self.assertEqual(answer.headers["Content-Length"], self.get("gzip", "/").headers["Content-Length"])

    def test_many_predictions(self):
        kind, body = multipart([("image", f"{i}.png", drawn(i % 10)) for i in range(30)])
        answer = self.server.predict(body, headers={"Content-Type": kind, "Accept-Encoding": "gzip"})
        results = json.loads(gzip.decompress(answer.body))["results"]
        self.assertEqual([result["predictions"][0]["label"] for result in results], [str(i % 10) for i in range(30)])


class Forms(ServedCase):
    def predict_as(self, accept, body=None, headers=None, path="/predict?top_k=3"):
        return self.server.predict(body or seven(), path, {"Accept": accept, **(headers or {})})

    def test_text(self):
        answer = self.predict_as("text/plain")
        self.assertEqual(answer.headers["Content-Type"], "text/plain; charset=utf-8")
        lines = answer.body.decode().splitlines()
        self.assertEqual(len(lines), 3)
        self.assertEqual(lines[0].split()[1], "7")
        wanted = self.predict_as("application/json").json()["predictions"]
        for line, prediction in zip(lines, wanted):
            self.assertEqual(line, f"{prediction['probability']:.6f} {prediction['label']}")

    def test_numbers(self):
        answer = self.predict_as("application/octet-stream")
        self.assertEqual(answer.headers["Content-Type"], "application/octet-stream")
        wanted = self.predict_as("application/json").json()["predictions"]
        self.assertEqual(len(answer.body), 4 + 3 * 8)
        self.assertEqual(struct.unpack("<I", answer.body[:4]), (3,))
        for i, prediction in enumerate(wanted):
            index, probability = struct.unpack_from("<If", answer.body, 4 + 8 * i)
            self.assertEqual(index, prediction["index"])
            self.assertAlmostEqual(probability, prediction["probability"], places=7)

    def test_several_with_a_bad_one(self):
        kind, body = multipart([("image", "a.png", drawn(1)), ("image", "b.png", b"\x89PNG\r\n\x1a\nno"),
                                ("image", "c.png", drawn(3))])
        text = self.predict_as("text/plain", body, {"Content-Type": kind}).body.decode()
        one, two, three = text.split("\n\n")
        self.assertTrue(one.split("\n")[0].endswith(" 1"), text)
        self.assertTrue(two.startswith("error bad_image: "), text)
        self.assertTrue(three.split("\n")[0].endswith(" 3"), text)
        data = self.predict_as("application/octet-stream", body, {"Content-Type": kind}).body
        self.assertEqual(len(data), 28 + 4 + 28)
        self.assertEqual(struct.unpack_from("<I", data, 28), (0xFFFFFFFF,))
        self.assertEqual(struct.unpack_from("<II", data, 32), (3, 3))

    def test_which_one(self):
        json_type, text, numbers = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
        for accept, wanted in (("*/*", json_type), ("text/*", text), ("application/*", json_type), ("", json_type),
                               ("application/json;q=0.5, text/plain", text), ("text/html, */*;q=0.1", json_type),
                               ("text/plain;q=0, */*", json_type), ("application/json;q=0, */*", text),
                               ("application/octet-stream;q=1.0,application/json;q=0.9", numbers),
                               ("TEXT/PLAIN", text), ("text/plain;charset=utf-8;q=0.3", text)):
            with self.subTest(accept=accept):
                self.assertEqual(self.predict_as(accept).headers["Content-Type"], wanted)

    def test_none_of_them(self):
        for accept in ("text/html", "image/webp", "application/json;q=0", "*/*;q=0", "nonsense"):
            answer = self.predict_as(accept)
            self.assert_error(answer, 406, "not_acceptable",
                              "application/json, text/plain, application/octet-stream, image/jpeg or image/png")
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n"
                               b"Accept: text/html\r\nExpect: 100-continue\r\n\r\n")
            self.assert_error(read_answer(connection)[0], 406, "not_acceptable")

    def test_errors_are_json(self):
        self.assert_error(self.predict_as("text/plain", b"no image"), 415, "unsupported_media_type")

    def test_no_length(self):
        answer, _ = read_answer_to(self.server, b"POST /predict HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assert_error(answer, 411, "length_required", "curl --data-binary")


def read_answer_to(server, data):
    with server.connect() as connection:
        connection.sendall(data)
        return read_answer(connection)


class Options(ServedCase):
    def test_every_route_says_what_it_takes(self):
        for path, allow in (("/predict", "POST, OPTIONS"), ("/health", "GET, HEAD, OPTIONS"),
                            ("/metrics", "GET, HEAD, OPTIONS"), ("/devices", "GET, HEAD, OPTIONS")):
            answer = self.server.request("OPTIONS", path)
            self.assertEqual((answer.status, answer.headers["Allow"], answer.body), (204, allow, b""))
            self.assertIsNone(answer.headers["Content-Type"])
        answer, _ = read_answer_to(self.server, b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual((answer.status, answer.headers["allow"]), (204, "GET, HEAD, POST, OPTIONS"))
        self.assertEqual(self.server.request("OPTIONS", "/nowhere").status, 404)

    def test_origins_that_no_browser_sends(self):
        for origin in ("app.example", "https://app.example/", "https://a.example/x", "https://a.example,*", "https://",
                       "https://a.example ,https://b.example", "https://*.example"):
            ended = run_lensd("serve", "--check", "--port", "0", "--cors-origin", origin)
            self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1), ended.stderr)
            self.assertIn("--cors-origin has '", ended.stderr)
        for origin in ("*", "null", "https://a.example, http://localhost:3000"):
            ended = run_lensd("serve", "--check", "--port", "0", "--cors-origin", origin)
            self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_no_cors_unless_asked(self):
        answer = self.server.request("OPTIONS", "/predict", headers={
            "Origin": "https://app.example", "Access-Control-Request-Method": "POST"})
        self.assertEqual([name for name in answer.headers if name.startswith("Access-Control")], [])

    def test_etags(self):
        page = self.server.get("/")
        etag = page.headers["ETag"]
        self.assertRegex(etag, r'^W/"[0-9a-f]{16}"$')
        self.assertEqual(page.headers["Cache-Control"], "no-cache")
        for known in (etag, etag[2:], f'"other", {etag}', "*", f'"a,b",{etag}'):
            answer = self.server.request("GET", "/", headers={"If-None-Match": known})
            self.assertEqual((answer.status, answer.body, answer.headers["ETag"]), (304, b"", etag), known)
        for other in ('"other"', etag[:-2] + '0"' if etag[-2] != "0" else etag[:-2] + '1"', ""):
            self.assertEqual(self.server.request("GET", "/", headers={"If-None-Match": other}).status, 200)
        self.assertEqual(self.server.get("/health").headers["Cache-Control"], "no-store")
        # The connection goes on behind an answer that has a length and no body.
        with self.server.connect() as connection:
            request = b"GET / HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n"
            connection.sendall(request + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer, rest = read_answer(connection, head=True)
            self.assertEqual(answer.status, 304)
            self.assertEqual(read_answer(connection, rest)[0].json(), {"status": "live"})


class Cors(ServedCase):
    arguments = ("--cors-origin", "https://app.example,http://localhost:3000")

    def test_preflight(self):
        for origin in ("https://app.example", "http://localhost:3000"):
            answer = self.server.request("OPTIONS", "/predict", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization"})
            self.assertEqual(answer.status, 204)
            self.assertEqual(answer.headers["Access-Control-Allow-Origin"], origin)
            self.assertEqual(answer.headers["Access-Control-Allow-Methods"], "POST, OPTIONS")
            allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
            self.assertLessEqual({"Authorization", "X-API-Key", "X-Request-Timeout-Ms", "X-Priority"}, set(allowed))
            self.assertIn("Origin", answer.headers.get_all("Vary"))

    def test_answers_and_errors_can_be_read(self):
        for path, status in (("/livez", 200), ("/predict", 405)):
            answer = self.server.request("GET", path, headers={"Origin": "https://app.example"})
            self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]),
                             (status, "https://app.example"))
            self.assertIn("X-Request-Id", answer.headers["Access-Control-Expose-Headers"])

    def test_others(self):
        for origin in ("https://evil.example", "https://app.example.evil", "http://app.example", "null",
                       "https://app.exampl", "x" * 500):
            answer = self.server.request("GET", "/livez", headers={"Origin": origin})
            self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (200, None))


class AnyOrigin(ServedCase):
    arguments = ("--cors-origin", "*")

    def test_all(self):
        answer = self.server.request("GET", "/livez", headers={"Origin": "https://anybody.example"})
        self.assertEqual(answer.headers["Access-Control-Allow-Origin"], "*")
        # Without an Origin nobody asks, but caches must not give the answer without the header away.
        self.assertEqual(self.server.get("/livez").status, 200)


if __name__ == "__main__":
    unittest.main()
