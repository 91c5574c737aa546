"""What was published as a vulnerability of other model servers, tried here. SECURITY.md names each, with its
source; those that older tests cover are named there, too."""

import json
import os
import pickle
import re
import socket
import tempfile
import unittest

import small_onnx
from harness import ServedCase, Server, multipart, png, post, png_header, read_answer, run_lensd, seven

ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")


class Opener:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Requests(ServedCase):
    def test_no_address_in_a_request_is_fetched(self):
        """CVE-2023-43654 (TorchServe), CVE-2025-6242 (vLLM), CVE-2025-54381 (BentoML)."""
        with socket.create_server(("127.0.0.1", 0)) as trap:
            trap.settimeout(0)
            url = f"http://127.0.0.1:{trap.getsockname()[1]}/cat.jpg"
            kind, form = multipart([("image", None, url.encode()), ("url", None, url.encode())])
            text = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [url]}
            asked = (("/predict", json.dumps({"image": {"url": url}}), {}),
                     ("/predict", json.dumps({"image": {"b64": url}}), {}),
                     ("/predict", form, {"Content-Type": kind}), ("/predict", url, {}),
                     (f"/predict?url={url}", b"", {}), ("/predictions/digits", url, {}),
                     ("/predictions/digits", form, {"Content-Type": kind}),
                     ("/v1/models/digits:predict", json.dumps({"instances": [{"url": url}]}), {}),
                     ("/v1/models/digits:predict", json.dumps({"instances": [{"image_url": {"url": url}}]}), {}),
                     ("/v2/models/digits/infer", json.dumps({"inputs": [text]}), {}),
                     (f"/models?url={url}", b"", {}), (f"/workflows?url={url}", b"", {}))
            for path, body, headers in asked:
                answer = self.server.request("POST", path, body, headers)
                with self.subTest(path=path, body=body[:80]):
                    if answer.status == 200:  # a form is answered as a whole
                        self.assertTrue(all("code" in result for result in answer.json()["results"]), answer.body)
                    else:
                        self.assertIn(answer.status, (400, 404, 415), answer.body)
            with self.assertRaises(BlockingIOError):
                trap.accept()

    def test_half_a_million_chunks(self):
        """CVE-2025-23310 and 23311 (Triton): 16 bytes of stack for each chunk of one byte."""
        chunks = b"1\r\nA\r\n" * 500000 + b"0\r\n\r\n"
        for path, status in (("/v2/models/digits/infer", 400), ("/predict", 415)):
            with self.server.connect() as connection:
                connection.sendall(post(path, b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"") +
                                   chunks)
                answer, _ = read_answer(connection)
            self.assertEqual(answer.status, status, answer.body)

    def test_nothing_is_unpickled(self):
        """CVE-2025-27520 (BentoML) and CVE-2025-47277 (vLLM)."""
        with tempfile.TemporaryDirectory(prefix="lensd-http-") as folder:
            made = os.path.join(folder, "made")
            body = pickle.dumps(Opener(made))
            pickle.loads(body).close()
            self.assertTrue(os.path.exists(made))
            os.remove(made)
            for path in ("/predict", "/predictions/digits", "/v2/models/digits/infer", "/v1/models/digits:predict"):
                for kind in ("application/vnd.bentoml+pickle", "application/octet-stream"):
                    headers = {"Content-Type": kind, "Payload-Container": "NdarrayContainer", "Args-Number": "1"}
                    answer = self.server.request("POST", path, body, headers)
                    self.assertIn(answer.status, (400, 415), answer.body)
            self.assertEqual(os.listdir(folder), [])

    def test_no_error_tells_an_address(self):
        """CVE-2026-22778 (vLLM): the decoder's message had one of the heap's."""
        image = seven()
        for body in (image[:100], image[:-20], png_header(8, 8), b"\xff\xd8\xff\xe0" + bytes(100), b"GIF89a" + bytes(9)):
            answer = self.server.predict(body)
            self.assertIn(answer.status, (400, 415))
            self.assertIsNone(ADDRESS.search(answer.body), answer.body)

    def test_very_many_outputs(self):
        """CVE-2026-24146 (Triton)."""
        element = {"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0] * 3072}
        for name in ("logits", "other"):
            for count in (2, 1000, 20000):
                body = {"inputs": [element], "outputs": [{"name": name}] * count}
                answer = self.server.request("POST", "/v2/models/digits/infer", json.dumps(body))
                self.assertEqual(answer.status, 400, (name, count, answer.body[:200]))

    def test_tiny_and_thin_pictures(self):
        """CVE-2026-22773 (vLLM): a picture of one pixel ended the server."""
        for width, height in ((1, 1), (1, 2), (3, 1), (1, 3), (4000, 1), (1, 4000)):
            answer = self.server.predict(png(width, height))
            self.assertEqual(answer.status, 200, (width, height, answer.body))


class ModelNames(unittest.TestCase):
    def test_names_are_no_paths_and_no_commands(self):
        """CVE-2025-23316, CVE-2026-24208 and 24209 (Triton), with an admin's key."""
        with tempfile.TemporaryDirectory(prefix="lensd-http-") as folder:
            root = os.path.join(folder, "models")
            os.makedirs(os.path.join(root, "m"))
            os.makedirs(os.path.join(folder, "outside"))
            for path in ("models/m", "outside"):
                small_onnx.doubled_image(os.path.join(folder, path, "model.onnx"), 2)
            made = run_lensd("key", "root")
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="ascii") as file:
                file.write(made.stdout)
            os.chmod(keys, 0o600)
            key = next(word for word in made.stderr.split() if word.startswith("lensd-"))
            server = Server("--models", root, "--admin-key-file", keys, "--precision", "fp32")
            self.addCleanup(server.stop)
            before = sorted(os.listdir(folder))
            for name in ("..%2Foutside", "%2E%2E%2Foutside", "m%2F..%2F..%2Foutside", "..", ".",
                         os.path.join(folder, "outside").replace("/", "%2F"), "m%00", "m%3Btouch%20made", "%24(touch%20made)"):
                for body in (b"", b"{}"):
                    answer = server.request("POST", f"/v2/repository/models/{name}/load", body, {"X-API-Key": key})
                    self.assertIn(answer.status, (400, 404), (name, answer.body))
            file = {"parameters": {"config": "{}", "file:../../made": "AAAA"}}
            answer = server.request("POST", "/v2/repository/models/m/load", json.dumps(file), {"X-API-Key": key})
            self.assertEqual(answer.status, 400, answer.body)
            self.assertEqual(sorted(os.listdir(folder)), before)
            self.assertEqual(os.listdir(root), ["m"])
            (model,) = server.request("POST", "/v2/repository/index").json()
            self.assertEqual((model["name"], model["state"]), ("m", "READY"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
