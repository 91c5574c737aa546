"""TorchServe's and KServe V1's endpoints over a real socket."""

import base64
import json
import os
import shutil
import tempfile
import unittest

import small_onnx
from harness import ServedCase, Server, drawn, multipart, seven


def b64(data):
    return base64.b64encode(data).decode()


class TorchServe(ServedCase):
    def best(self, answer):
        self.assertEqual(answer.status, 200, answer.body)
        labels = answer.json()
        self.assertEqual(list(labels.values()), sorted(labels.values(), reverse=True))
        return next(iter(labels))

    def test_raw_and_form(self):
        expected = self.server.predict(seven()).json()["predictions"]
        answer = self.server.request("POST", "/predictions/digits", seven())
        self.assertEqual(self.best(answer), "7")
        self.assertEqual(len(answer.json()), len(expected))
        self.assertAlmostEqual(answer.json()["7"], expected[0]["probability"], places=4)
        kind, body = multipart([("data", "kitten.jpg", drawn(3))])
        headers = {"Content-Type": kind}
        self.assertEqual(self.best(self.server.request("POST", "/predictions/digits", body, headers)),
                         "3")
        self.assertEqual(
            self.best(self.server.request("POST", "/predictions/digits/1?top_k=2", seven())), "7")

    def test_put_is_post(self):
        """curl -T kitten.jpg http://…/predictions/M"""
        for path in ("/predictions/digits", "/predictions/digits/1"):
            posted = self.server.request("POST", path, seven())
            put = self.server.request("PUT", path, seven())
            self.assertEqual((put.status, put.json()), (200, posted.json()))
        self.assertEqual(self.server.request("PUT", "/predictions/nobody", seven()).status, 404)
        self.assertEqual(self.server.request("PUT", "/predictions/digits", b"x").status, 415)
        answer = self.server.request("DELETE", "/predictions/digits")
        self.assertEqual((answer.status, answer.headers["Allow"]), (405, "POST, PUT, OPTIONS"))

    def test_errors(self):
        for path, status in (("/predictions/nobody", 404), ("/predictions/digits/2", 404),
                             ("/predictions/digits/1/2", 404)):
            answer = self.server.request("POST", path, seven())
            self.assertEqual(answer.status, status, path)
            self.assertTrue(answer.json()["error"] and answer.json()["code"])
        answer = self.server.request("POST", "/predictions/digits", b"\xff\xd8\xff broken")
        self.assertEqual((answer.status, answer.json()["code"]), (400, "bad_image"))
        self.assertEqual(self.server.get("/predictions/digits").status, 405)

    def test_ping_and_description(self):
        self.assertEqual(self.server.get("/ping").json(), {"status": "Healthy"})


class KServe(ServedCase):
    def predict(self, body, path="/v1/models/digits:predict", server=None):
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return (server or self.server).request("POST", path, text)

    def test_images(self):
        for wrap in (lambda t: {"b64": t}, lambda t: {"image_bytes": {"b64": t}},
                     lambda t: {"data": t}, lambda t: t):
            body = {"instances": [wrap(b64(drawn(d))) for d in (7, 3)]}
            answer = self.predict(body)
            self.assertEqual(answer.status, 200, answer.body)
            rows = answer.json()["predictions"]
            self.assertEqual([row["classes"][0] for row in rows], ["7", "3"])
            self.assertEqual([row["indices"][0] for row in rows], [7, 3])
            self.assertGreater(rows[0]["probabilities"][0], 0.5)
        self.assertEqual(self.predict({"instances": [{"b64": b64(seven())}]},
                                      "/v1/models/digits/versions/1:predict").status, 200)

    def test_numbers(self):
        image = [[[0.25] * 32] * 32] * 3
        answer = self.predict({"instances": [image, image]})
        self.assertEqual(answer.status, 200, answer.body)
        rows = answer.json()["predictions"]
        self.assertEqual([len(row) for row in rows], [10, 10])
        v2 = self.server.request("POST", "/v2/models/digits/infer", json.dumps(
            {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32",
                         "data": image}]}).encode()).json()["outputs"][0]["data"]
        for a, b in zip(rows[0], v2):
            self.assertAlmostEqual(a, b, places=4)

    def test_documents(self):
        self.assertEqual(self.server.get("/v1/models").json()["models"], ["digits"])  # the rest is for OpenAI's clients
        model = self.server.get("/v1/models/digits").json()
        self.assertEqual((model["name"], model["ready"]), ("digits", True))
        self.assertEqual(model["model_version_status"][0]["state"], "AVAILABLE")
        self.assertEqual(self.server.get("/v1/models/nobody").status, 404)
        self.assertEqual(self.server.get("/v1/models/digits/versions/7").status, 404)

    def test_refusals(self):
        for body in (b"", b"{}", b"[]", b"{", {"instances": []}, {"instances": 5},
                     {"instances": [{}]}, {"instances": [{"b64": 5}]}, {"instances": [{"b64": "*"}]},
                     {"instances": [[1, 2, 3]]}, {"instances": [[0.0] * 3073]}, {"instances": [1]},
                     b'{"instances":[[1,2}', b'{"instances":[{"b64":"x"}', {"instances": [[]]},
                     {"instances": [[None]]}):
            answer = self.predict(body)
            self.assertEqual(answer.status, 400, body)
            self.assertTrue(answer.json()["error"], body)
        self.assertIn("the 3072 elements need more than the 9 bytes of its data",
                      self.predict(b'{"instances":[[1,2,3]]}').json()["error"])
        self.assertEqual(self.predict({"instances": [{"b64": b64(b"no image")}]}).status, 415)
        self.assertEqual(self.predict({"instances": [{"b64": b64(seven())}] * 65}).status, 413)
        self.assertEqual(self.predict({}, "/v1/models/nobody:predict").status, 404)
        self.assertEqual(self.server.get("/v1/models/digits:predict").status, 405)
        answer = self.predict({}, "/v1/models/digits:explain")
        self.assertEqual(answer.status, 501)
        self.assertIn("lensd has no explainer", answer.json()["error"])
        self.assertEqual(self.server.get("/v1/models/digits:explain").status, 405)

    def test_outputs_of_other_models(self):
        folder = tempfile.mkdtemp(prefix="lensd-v1-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "m.onnx")
        small_onnx.doubled_image(path, side=2)
        server = Server("--model", path)
        self.addCleanup(server.stop)
        image = [[[1, 2], [3, 4]], [[5, 6], [7, 8]], [[9, 10], [11, 12]]]
        rows = self.predict({"instances": [image]}, "/v1/models/m:predict", server).json()
        self.assertEqual(rows["predictions"], [[[[2 * v for v in r] for r in c] for c in image]])
        rows = self.predict({"instances": [{"b64": b64(seven())}]}, "/v1/models/m:predict",
                            server).json()["predictions"]
        self.assertEqual((len(rows[0]), len(rows[0][0]), len(rows[0][0][0])), (3, 2, 2))


if __name__ == "__main__":
    unittest.main()
