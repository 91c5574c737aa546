"""Texts: models with two halves, embeddings of texts, words as labels. Expected numbers are transformers' own
(tests/data/text_models/make_text_models.py)."""

import base64
import json
import os
import shutil
import struct
import tempfile
import threading
import unittest

from harness import ServedCase, Server, run_lensd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "text_models")
with open(os.path.join(DATA, "expected.json"), encoding="utf-8") as file:
    EXPECTED = json.load(file)
with open(os.path.join(DATA, "photo.png"), "rb") as file:
    PHOTO = file.read()
URI = "data:image/png;base64," + base64.b64encode(PHOTO).decode()


class TextCase(ServedCase):
    """clip and siglip, and `photos`, which is clip's half of photos alone. They are served in float32."""

    @classmethod
    def start(cls):
        folder = tempfile.TemporaryDirectory(prefix="lensd-texts-")
        cls.addClassCleanup(folder.cleanup)
        for name in ("clip", "siglip"):
            shutil.copytree(os.path.join(DATA, name), os.path.join(folder.name, name))
        shutil.copytree(os.path.join(DATA, "clip"), os.path.join(folder.name, "photos"))
        os.rename(os.path.join(folder.name, "photos", "visual", "model.onnx"), os.path.join(folder.name, "photos", "model.onnx"))
        for name in ("visual", "textual"):
            shutil.rmtree(os.path.join(folder.name, "photos", name))
        return Server("--models", folder.name, "--precision", "fp32", *cls.arguments)

    def post(self, path, body, status=200):
        answer = self.server.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def embed(self, value, model="clip", **members):
        return self.post("/v1/embeddings", {"model": model, "input": value, **members})

    def refuse(self, value, *words, model="clip", status=400, **members):
        error = self.post("/v1/embeddings", {"model": model, "input": value, **members}, status)["error"]
        for word in words:
            self.assertIn(word, error["message"])

    def assert_near(self, found, wanted, delta=1e-4):
        self.assertEqual(len(found), len(wanted))
        for a, b in zip(found, wanted):
            self.assertAlmostEqual(a, b, delta=delta * max(1, abs(b)))


class Embeddings(TextCase):
    def test_vectors_are_those_of_transformers(self):
        for model in ("clip", "siglip"):
            wanted = EXPECTED[model]
            answer = self.embed(wanted["texts"], model)
            self.assertEqual((answer["object"], answer["model"]), ("list", model))
            for i, entry in enumerate(answer["data"]):
                self.assertEqual((entry["object"], entry["index"]), ("embedding", i))
                self.assert_near(entry["embedding"], wanted["vectors"][i])
            tokens = sum(len(ids) for ids in wanted["tokens"])
            self.assertEqual(answer["usage"], {"prompt_tokens": tokens, "total_tokens": tokens})
            photo = self.embed(URI, model)
            self.assert_near(photo["data"][0]["embedding"], wanted["photo"])
            self.assertEqual(photo["usage"]["total_tokens"], 0)

    def test_forms_of_input(self):
        wanted = EXPECTED["clip"]
        (one,) = self.embed(wanted["texts"][1])["data"]
        self.assert_near(one["embedding"], wanted["vectors"][1])
        self.assertEqual(self.embed(wanted["tokens"][1])["data"], [one])
        answer = self.embed(wanted["tokens"][:2], encoding_format="base64")
        for entry, vector in zip(answer["data"], wanted["vectors"]):
            self.assert_near(struct.unpack("<16f", base64.b64decode(entry["embedding"])), vector)
        self.assertEqual(answer["usage"]["prompt_tokens"], len(wanted["tokens"][0]) + len(wanted["tokens"][1]))
        self.assertEqual(self.embed(wanted["texts"][1], "clip.text")["data"], [one])

    def test_dimensions(self):
        (whole,) = self.embed("a dog")["data"]
        (part,) = self.embed("a dog", dimensions=5)["data"]
        norm = sum(v * v for v in whole["embedding"][:5]) ** .5
        self.assert_near(part["embedding"], [v / norm for v in whole["embedding"][:5]], 1e-6)
        self.refuse("a dog", "dimensions is 17", "16", dimensions=17)
        self.refuse("a dog", "dimensions", dimensions=0)
        (scaled,) = self.embed("a dog", normalize=True)["data"]
        self.assertAlmostEqual(sum(v * v for v in scaled["embedding"]), 1, delta=1e-5)

    def test_long_texts(self):
        long = "a dog " * 40
        self.refuse(long, "tokens", "24", model="clip")
        self.refuse(["a dog", long], "text 1", "24")
        self.refuse([661] * 30, "30 tokens", "24", "truncate")
        cut = self.embed(long, truncate=True)
        self.assertEqual(cut["usage"]["prompt_tokens"], 24)
        self.assertEqual(self.embed([661] * 30, truncate=True)["usage"]["prompt_tokens"], 24)
        self.refuse("a", "truncate", truncate="maybe")

    def test_refusals(self):
        self.refuse("", "empty")
        self.refuse(["a", ""], "text 1", "empty")
        self.refuse([], "no picture or text")
        self.refuse({}, "image")
        self.refuse(3, "must be a text")
        self.refuse([["a"]], "must be a text")
        self.refuse([1.5], "whole number")
        self.refuse([-1], "whole number")
        self.refuse([100000], "vocabulary")
        self.refuse([[1], ["a"]], "must be a text")
        self.refuse(["a", URI], "two requests")
        self.refuse([URI, "a"], "two requests")
        self.refuse("a", "'photos' takes no texts", model="photos")
        self.refuse("a", "no model", model="nobody", status=404)
        self.refuse(["a"] * 65, "--max-images", status=413)
        broken = self.server.request("POST", "/v1/embeddings", b'{"model": "clip", "input": "\xff\xfe"}')
        self.assertEqual(broken.status, 400, broken.body)

    def test_requests_share_passes(self):
        before = self.server.get("/v2/models/siglip.text/stats").json()["model_stats"][0]
        threads = [threading.Thread(target=self.embed, args=(EXPECTED["siglip"]["texts"] * 8, "siglip")) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = self.server.get("/v2/models/siglip.text/stats").json()["model_stats"][0]
        rows = after["inference_count"] - before["inference_count"]
        self.assertEqual(rows, 128)
        self.assertLess(after["execution_count"] - before["execution_count"], 128)

    def test_photos_to_the_half_of_texts(self):
        answer = self.server.request("POST", "/predict?model=clip.text", PHOTO)
        self.assert_error(answer, 400, "invalid_request", "takes texts", "/v1/embeddings")


class Layouts(unittest.TestCase):
    """The halves as transformers.js and optimum lay them out; and alone as the one model, which is then the default."""

    def make(self, *names):
        folder = tempfile.TemporaryDirectory(prefix="lensd-texts-")
        self.addCleanup(folder.cleanup)
        root = os.path.join(folder.name, "model")
        shutil.copytree(os.path.join(DATA, "clip"), root)
        for half, name in zip(("visual", "textual"), names):
            target = os.path.join(root, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.move(os.path.join(root, half, "model.onnx"), target)
            shutil.rmtree(os.path.join(root, half))
        return root

    def test_layouts(self):
        for names in (("onnx/vision_model.onnx", "onnx/text_model.onnx"), ("vision_model.onnx", "text_model.onnx")):
            root = self.make(*names)
            server = Server(root, "--precision", "fp32")
            try:
                body = json.dumps({"input": EXPECTED["clip"]["texts"][0]}).encode()
                answer = server.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
                self.assertEqual(answer.status, 200, answer.body)
                for found, wanted in zip(answer.json()["data"][0]["embedding"], EXPECTED["clip"]["vectors"][0]):
                    self.assertAlmostEqual(found, wanted, delta=1e-3)
                found = server.request("POST", "/predict", PHOTO).json()
                self.assertEqual((found["model"], len(found["embedding"])), ("model", 16))
            finally:
                self.assertEqual(server.stop()[0], 0)

    def test_inspect(self):
        root = self.make("vision_model.onnx", "text_model.onnx")
        found = json.loads(run_lensd("inspect", "--json", root).stdout)
        self.assertEqual((found["task"], found["text_half"]), ("embedding", os.path.join(root, "text_model.onnx")))
        found = json.loads(run_lensd("inspect", "--json", os.path.join(root, "text_model.onnx")).stdout)
        self.assertEqual((found["name"], found["task"], found["text_inputs"]), ("model.text", "embedding", ["input_ids"]))
        self.assertIn("BPE", found["tokenizer"])
        self.assertIn("texts", run_lensd("inspect", root).stdout)

    def test_damaged_tokenizer(self):
        root = self.make("vision_model.onnx", "text_model.onnx")
        with open(os.path.join(root, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write("{")
        made = run_lensd("inspect", os.path.join(root, "text_model.onnx"))
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("tokenizer.json", made.stderr)


if __name__ == "__main__":
    unittest.main()
