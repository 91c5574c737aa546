"""Texts: models with two halves, embeddings of texts, words as labels. Expected numbers are transformers' own
(tests/data/text_models/make_text_models.py)."""

import base64
import hashlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

from harness import PATIENCE, ServedCase, Server, multipart, png, run_lensd
from small_onnx import blob, constant, integer, ints, node, number, tensor_info, value, write

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "text_models")
SEVEN = os.path.join(DATA, "..", "digits", "drawn", "7_paper.png")
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
        cls.write_models(folder)
        return Server("--models", folder.name, "--precision", "fp32", *cls.arguments)

    @classmethod
    def write_models(cls, folder):
        for name in ("clip", "siglip"):
            shutil.copytree(os.path.join(DATA, name), os.path.join(folder.name, name))
        shutil.copytree(os.path.join(DATA, "clip"), os.path.join(folder.name, "photos"))
        os.rename(os.path.join(folder.name, "photos", "visual", "model.onnx"), os.path.join(folder.name, "photos", "model.onnx"))
        for name in ("visual", "textual"):
            shutil.rmtree(os.path.join(folder.name, "photos", name))
        for name in ("visual", "textual"):
            shutil.copytree(os.path.join(DATA, "clip", name), os.path.join(folder.name, "wordless", name))

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
    arguments = ("--threads", "1")  # with more, a CPU may run texts side by side instead of in one pass

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

    def test_instances_of_v1(self):
        wanted = EXPECTED["clip"]
        for form in (lambda text: text, lambda text: {"data": text}):
            answer = self.post("/v1/models/clip.text:predict", {"instances": [form(text) for text in wanted["texts"]]})
            norms = [sum(v * v for v in vector) ** .5 for vector in answer["predictions"]]
            for vector, norm, whole in zip(answer["predictions"], norms, wanted["vectors"]):
                scale = sum(v * v for v in whole) ** .5 / norm
                self.assert_near([v * scale for v in vector], whole)
        for wrong, word in (([{"b65": 1}], "instance 0 is not a text"), ([" dog" * 500], "tokens"), ([], "empty"), (["a", 7], "instance 1")):
            self.assertIn(word, json.dumps(self.post("/v1/models/clip.text:predict", {"instances": wrong}, 400)))

    def test_torchserve(self):
        """A body or a form's `data` is a text, as TorchServe's text classifier takes it."""
        wanted = EXPECTED["clip"]
        plain = {"Content-Type": "text/plain; charset=utf-8"}

        def ask(path, body, headers=None, method="POST", status=200):
            answer = self.server.request(method, "/predictions/" + path, body, headers or {})
            self.assertEqual(answer.status, status, answer.body)
            return answer.json()
        for text, vector in zip(wanted["texts"], wanted["vectors"]):
            body = text.encode()
            self.assert_near(ask("clip", body, plain), vector)
            self.assert_near(ask("clip.text", body), vector)
            self.assert_near(ask("clip.text/1", body, method="PUT"), vector)
            for file_name in (None, "sample.txt"):
                kind, form = multipart([("data", file_name, body)])
                self.assert_near(ask("clip", form, {"Content-Type": kind}), vector)
            form = urllib.parse.urlencode({"top": "1", "data": text}).encode()
            for path in ("clip", "clip.text"):
                self.assert_near(ask(path, form, {"Content-Type": "application/x-www-form-urlencoded"}), vector)
        self.assert_near(ask("clip", PHOTO, plain), wanted["photo"])
        unit = ask("clip?normalize=true", wanted["texts"][0].encode(), plain)
        self.assertAlmostEqual(sum(v * v for v in unit), 1, places=4)
        self.assertIn("tokens", ask("clip", b"dog " * 60, plain, status=400)["error"])
        self.assertEqual(len(ask("clip?truncate=true", b"dog " * 60, plain)), len(unit))
        self.assertIn("UTF-8", ask("clip", b"dog \xff", plain, status=400)["error"])
        self.assertIn("empty", ask("clip", b"", plain, status=400)["error"])
        ask("photos", b"a dog", plain, status=415)
        ask("clip", b"a dog", status=415)
        data = ("data", None, b"a dog")
        for parts, word in (([data, data], "several texts"), ([data, ("photo", "a.png", PHOTO)], "a text and images"),
                            ([("text", None, b"a dog")], "field 'text'")):
            kind, form = multipart(parts)
            self.assertIn(word, ask("clip", form, {"Content-Type": kind}, status=400)["error"])

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
        self.refuse("a", "'wordless.text' takes no texts; put its tokenizer (tokenizer.json", model="wordless")
        self.server.wait_log("takes tokens, but its folder has no tokenizer")
        self.refuse("a", "no model", model="nobody", status=404)
        self.refuse(["a"] * 65, "--max-images", status=413)
        broken = self.server.request("POST", "/v1/embeddings", b'{"model": "clip", "input": "\xff\xfe"}')
        self.assertEqual(broken.status, 400, broken.body)

    def test_requests_share_passes(self):
        def ask(model):
            """Passes of 128 rows; until the first load of a model is replaced, each has one."""
            before = self.server.get(f"/v2/models/{model}.text/stats").json()["model_stats"][0]
            answers = []
            threads = [threading.Thread(target=lambda: answers.append(self.embed(EXPECTED[model]["texts"] * 8, model)))
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            after = self.server.get(f"/v2/models/{model}.text/stats").json()["model_stats"][0]
            rows = after["inference_count"] - before["inference_count"]
            self.assertEqual(rows, 128)
            for answer in answers:
                for entry, vector in zip(answer["data"], EXPECTED[model]["vectors"] * 8):
                    self.assert_near(entry["embedding"], vector)
            return after["execution_count"] - before["execution_count"]
        for model in ("clip", "siglip"):  # transformers' CLIP gathers rows from the tokens of all texts
            deadline = time.monotonic() + PATIENCE
            while ask(model) == 128:
                self.assertLess(time.monotonic(), deadline, model)
                time.sleep(0.05)  # the first load is replaced while no request keeps the server busy

    def test_photos_to_the_half_of_texts(self):
        answer = self.server.request("POST", "/predict?model=clip.text", PHOTO)
        self.assert_error(answer, 400, "invalid_request", "takes texts", "/v1/embeddings")


class Labels(TextCase):
    """Words as labels: probabilities of transformers' own pipeline."""

    def ask(self, model, labels, status=200, body=PHOTO, headers=None, **query):
        query = urllib.parse.urlencode({"model": model, "labels": labels, **query})
        answer = self.server.request("POST", "/predict?" + query, body, headers or {})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def assert_labels(self, predictions, wanted, score="probability"):
        self.assertEqual([p["label"] for p in predictions], sorted(wanted, key=wanted.get, reverse=True))
        for prediction in predictions:
            self.assertAlmostEqual(prediction[score], wanted[prediction["label"]], delta=1e-4)

    def test_probabilities_are_those_of_transformers(self):
        for model in ("clip", "siglip"):
            wanted = EXPECTED[model]
            for _ in range(2):  # the second time the vectors are kept
                answer = self.ask(model, ",".join(wanted["labels"]))
                self.assertEqual(answer["model"], model)
                self.assert_labels(answer["predictions"], wanted["labels"])
            answer = self.ask(model, " , ".join(wanted["labels_alone"]), prompt="{}")
            self.assert_labels(answer["predictions"], wanted["labels_alone"])

    def test_vectors_are_kept(self):
        def passes():
            return self.server.get("/v2/models/siglip.text/stats").json()["model_stats"][0]["inference_count"]
        self.ask("siglip", "one,two")
        before = passes()
        self.ask("siglip", "two,one")
        self.assertEqual(passes(), before)
        self.ask("siglip", "two,three")
        self.assertEqual(passes(), before + 1)

    def test_forms(self):
        wanted = EXPECTED["clip"]["labels"]
        encoded = base64.b64encode(PHOTO).decode()
        answer = self.post("/predict", {"model": "clip", "image": {"b64": encoded}, "labels": list(wanted)})
        self.assert_labels(answer["predictions"], wanted)
        kind, body = multipart([("image", "a.png", PHOTO), ("labels", None, ",".join(wanted).encode())])
        answer = self.server.request("POST", "/predict?model=clip", body, {"Content-Type": kind}).json()
        self.assert_labels(answer["predictions"], wanted)
        kind, body = multipart([("image", "a.png", PHOTO), ("image", "b.png", PHOTO)])
        for result in self.ask("clip", ",".join(wanted), body=body, headers={"Content-Type": kind})["results"]:
            self.assert_labels(result["predictions"], wanted)
        self.assertEqual(len(self.ask("clip", ",".join(wanted), top_k=1)["predictions"]), 1)
        self.assertEqual(self.ask("clip", "a dog")["predictions"], [{"label": "a dog", "index": 0, "probability": 1}])
        many = ",".join(f"thing {i}" for i in range(40))
        self.assertEqual(len(self.ask("clip", many)["predictions"]), 40)
        lines = self.server.request("POST", "/predict?model=clip&labels=a,b", PHOTO, {"Accept": "text/plain"})
        self.assertEqual(len(lines.body.splitlines()), 2)

    def test_commas(self):
        wanted = ["a dog, asleep", "C:\\dir\\", "a, b, c"]
        body = {"model": "clip", "image": {"b64": base64.b64encode(PHOTO).decode()}, "labels": wanted}
        found = self.post("/predict", body)["predictions"]
        self.assertEqual(sorted(p["label"] for p in found), sorted(wanted))
        self.assertEqual(found, self.ask("clip", ",".join(w.replace("\\", "\\\\").replace(",", "\\,") for w in wanted))["predictions"])
        long = [f"label {i} " + "x" * 40 for i in range(100)]
        self.assertEqual(len(self.post("/predict", {**body, "labels": long, "truncate": True})["predictions"]), 100)
        self.assertIn("the limit is 65536", self.post("/predict", {**body, "labels": ["y" * 65537]}, 400)["error"])

    def test_hugging_face(self):
        for name, template in (("labels", {}), ("labels_alone", {"hypothesis_template": "{}"})):
            wanted = EXPECTED["siglip"][name]
            answer = self.post("/models/siglip", {"inputs": base64.b64encode(PHOTO).decode(),
                                                  "parameters": {"candidate_labels": list(wanted), **template}})
            self.assert_labels(answer, wanted, "score")

    def test_refusals(self):
        for labels, query, words in (("", {}, "is empty"), ("a,,b", {}, "label 1 is empty"), ("a", {"prompt": "no hole"}, "{}"),
                                     (",".join("a" for _ in range(257)), {}, "256"), ("dog " * 60, {}, "tokens"),
                                     ("a", {"slices": 32}, "slices"), ("a", {"confidence": .5}, "confidence has no effect")):
            self.assertIn(words, self.ask("clip", labels, 400, **query)["error"])
        self.assertIn("takes no texts", self.ask("photos", "a", 400)["error"])
        self.assertIn("labels need a model for photos and texts", self.ask("clip.text", "a", 400)["error"])
        self.assertEqual(len(self.ask("clip", "dog " * 60, truncate="true")["predictions"]), 1)
        bad = self.server.request("POST", "/predict?model=clip&labels=%ff", PHOTO)
        self.assert_error(bad, 400, "invalid_request", "UTF-8")
        broken = self.server.request("POST", "/predict?model=clip&labels=a", b"no picture")
        self.assertEqual(broken.status, 415, broken.body)

    def test_clients_that_leave(self):
        for _ in range(10):
            connection = self.server.client(5)
            connection.request("POST", "/predict?model=clip&labels=" + ",".join(f"x{os.urandom(4).hex()}" for _ in range(15)), PHOTO)
            connection.close()
        self.assertEqual(len(self.ask("clip", "a,b")["predictions"]), 2)


class Lazy(TextCase):
    """Both halves are loaded by the request that needs them."""

    arguments = ("--load", "lazy")

    def test_labels_load_both_halves(self):
        states = {m["name"]: m["state"] for m in self.server.request("POST", "/v2/repository/index", b"{}").json()}
        self.assertEqual({states["clip"], states["clip.text"]}, {"UNAVAILABLE"})
        answer = self.server.request("POST", "/predict?model=clip&labels=a%20dog,a%20red%20car,the%20sea%20at%20night", PHOTO)
        self.assertEqual(answer.status, 200, answer.body)
        for found in answer.json()["predictions"]:
            self.assertAlmostEqual(found["probability"], EXPECTED["clip"]["labels"][found["label"]], delta=1e-4)
        self.assertEqual(len(self.embed("a dog", "siglip")["data"]), 1)


class Idle(TextCase):
    """A half for texts that was unloaded comes back with the next text."""

    arguments = ("--load", "lazy", "--idle-unload", "300ms")

    def unload(self):
        def states():
            return {m["name"]: m["state"] for m in self.server.get("/health").json()["models"]}
        self.server.wait_for(lambda: {states()["clip"], states()["clip.text"]} == {"unloaded"}, "the unload")

    def test_texts_load_their_half_again(self):
        wanted = EXPECTED["clip"]["labels"]
        before = self.embed("a dog")["data"]
        for labels in (list(wanted), list(wanted), [*wanted, "snow"]):
            self.unload()
            answer = self.server.request("POST", "/predict?model=clip&" + urllib.parse.urlencode({"labels": ",".join(labels)}), PHOTO)
            self.assertEqual(answer.status, 200, answer.body)
            found = {p["label"]: p["probability"] for p in answer.json()["predictions"]}
            self.assertEqual(set(found), set(labels))
            share = sum(found[label] for label in wanted)
            for label in wanted:
                self.assertAlmostEqual(found[label] / share, wanted[label], delta=1e-4)
            self.unload()
            self.assertEqual(self.embed("a dog")["data"], before)


class Whole(TextCase):
    """One file takes photos and texts: it is served as its halves, and scores as its graph says."""

    @classmethod
    def write_models(cls, folder):
        for name in ("clip", "siglip"):
            to = os.path.join(folder.name, name)
            shutil.copytree(os.path.join(DATA, name), to, ignore=shutil.ignore_patterns("visual", "textual", "zero_shot.json"))
            os.rename(os.path.join(to, "whole.onnx"), os.path.join(to, "model.onnx"))

    def test_both_halves_are_those_of_transformers(self):
        for model in ("clip", "siglip"):
            wanted = EXPECTED[model]

            def direction(vector):
                return [v / sum(v * v for v in vector) ** .5 for v in vector]
            for entry, vector in zip(self.embed(wanted["texts"], model)["data"], wanted["vectors"]):
                self.assert_near(entry["embedding"], direction(vector))
            self.assert_near(self.embed(URI, model)["data"][0]["embedding"], direction(wanted["photo"]))
            labels = urllib.parse.quote(",".join(wanted["labels"]))
            for _ in range(2):
                answer = self.server.request("POST", f"/predict?model={model}&labels={labels}", PHOTO)
                self.assertEqual(answer.status, 200, answer.body)
                found = {p["label"]: p["probability"] for p in answer.json()["predictions"]}
                self.assertEqual(set(found), set(wanted["labels"]))
                for label, score in wanted["labels"].items():
                    self.assertAlmostEqual(found[label], score, delta=1e-4)

    def test_names(self):
        models = self.server.request("POST", "/v2/repository/index", b"{}").json()
        self.assertEqual({m["name"] for m in models}, {"clip", "clip.text", "siglip", "siglip.text"})

    def test_inspect(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-texts-")
        self.addCleanup(folder.cleanup)
        self.write_models(folder)
        path = os.path.join(folder.name, "clip")
        whole = json.loads(run_lensd("inspect", path, "--json").stdout)
        self.assertEqual([i["name"] for i in whole["inputs"]], ["pixel_values"])
        self.assertEqual(whole["text_half"], os.path.join(path, "model.onnx.text"))
        texts = json.loads(run_lensd("inspect", whole["text_half"], "--json").stdout)
        self.assertEqual((texts["name"], texts["text_inputs"]), ("clip.text", ["input_ids", "attention_mask"]))
        made = run_lensd("predict", path, "--precision", "fp32", "--text", EXPECTED["clip"]["texts"][0])
        self.assertEqual(made.returncode, 0, made.stderr)
        for name in ("tokenizer.json", "vocab.json"):
            os.remove(os.path.join(path, name))
        without = json.loads(run_lensd("inspect", path, "--json").stdout)
        self.assertEqual(len(without["inputs"]), 3)
        self.assertNotIn("text_half", without)
        sentence = "its folder has no tokenizer: put tokenizer.json, or vocab.json and merges.txt, into it"
        self.assertIn(sentence, without["problem"])
        self.assertIn(sentence, without["warning"])
        self.assertNotIn("lensd.json", without["warning"])
        for arguments in (["serve", "--port", "0", path], ["predict", path, os.path.join(DATA, "words.png")]):
            ended = run_lensd(*arguments)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(sentence, ended.stderr.splitlines()[-1])


class Words(TextCase):
    """Words as boxes: those that transformers' own processors find (tests/data/text_models/make_word_models.py)."""

    with open(os.path.join(DATA, "words.json"), encoding="utf-8") as file:
        WANTED = json.load(file)
    with open(os.path.join(DATA, "words.png"), "rb") as file:
        WORDS_PHOTO = file.read()

    @classmethod
    def write_models(cls, folder):
        for name in ("owl", "grounding", "world", "owlv2"):
            shutil.copytree(os.path.join(DATA, name), os.path.join(folder.name, name))
        shutil.copytree(os.path.join(DATA, "clip", "textual"), os.path.join(folder.name, "world", "textual"))
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            for model in ("world", "owlv2"):
                shutil.copyfile(os.path.join(DATA, "clip", name), os.path.join(folder.name, model, name))

    def ask(self, model, labels, status=200, photo=WORDS_PHOTO, **query):
        query = urllib.parse.urlencode({"model": model, "labels": ",".join(labels), **query})
        answer = self.server.request("POST", "/predict?" + query, photo)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def assert_boxes(self, found, wanted, side=64):
        self.assertEqual(len(found), len(wanted))
        self.assertTrue(wanted)
        rest = list(found)
        for box in wanted:
            near = [p for p in rest if p["label"] == box["label"] and abs(p["score"] - box["score"]) < 1e-3 and
                    all(abs(p["box"][name] - min(max(v, 0), side)) < .5 for name, v in zip(("x1", "y1", "x2", "y2"), box["box"]))]
            self.assertTrue(near, (box, found))
            rest.remove(near[0])

    def test_boxes_are_those_of_transformers(self):
        for model, wanted in self.WANTED["found"].items():
            for _ in range(2):
                answer = self.ask(model, self.WANTED["labels"])
                self.assert_boxes(answer["predictions"], wanted)
                self.assertEqual(answer["model"], model)

    def test_photos_that_are_padded_blurred_and_resized(self):
        """As OWLv2's processor has them (make_owlv2.py)."""
        with open(os.path.join(DATA, "squares.json"), encoding="utf-8") as file:
            squares = json.load(file)
        for name, wanted in squares["found"].items():
            with open(os.path.join(DATA, f"squares_{name}.png"), "rb") as file:
                answer = self.ask("owlv2", squares["labels"], photo=file.read())
            self.assert_boxes(answer["predictions"], wanted, 150)

    def test_other_words(self):
        """The order of the words does not matter, and each request has its own."""
        labels = self.WANTED["labels"]
        for model in ("owl", "world"):
            self.assert_boxes(self.ask(model, labels[::-1])["predictions"], self.WANTED["found"][model])
        answers = {}

        def run(model, label):
            answers[model, label] = self.ask(model, [label], confidence=0.01)["predictions"]
        alone = {}
        for model in self.WANTED["found"]:
            for label in labels:
                run(model, label)
        alone, answers = answers, {}
        threads = [threading.Thread(target=run, args=key) for key in alone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for (model, label), found in answers.items():
            self.assertEqual({p["label"] for p in found} | {label}, {label})
            self.assert_boxes(found, [{"label": label, "score": p["score"], "box": list(p["box"].values())}
                                      for p in alone[model, label]])

    def test_forms(self):
        labels = self.WANTED["labels"]
        drawn = self.server.request("POST", "/predict?format=png&model=owl&labels=" + urllib.parse.quote(",".join(labels)), self.WORDS_PHOTO)
        self.assertEqual((drawn.status, drawn.body[:4]), (200, b"\x89PNG"))
        body = {"model": "grounding", "image": {"b64": base64.b64encode(self.WORDS_PHOTO).decode()}, "labels": labels}
        self.assert_boxes(self.post("/predict", body)["predictions"], self.WANTED["found"]["grounding"])

    def test_classes(self):
        """They choose among the request's labels, by name or number."""
        labels = self.WANTED["labels"]
        for model, wanted in self.WANTED["found"].items():
            label = wanted[0]["label"]
            for classes in (label, labels.index(label)):
                self.assert_boxes(self.ask(model, labels, classes=classes)["predictions"],
                                  [box for box in wanted if box["label"] == label])

    def test_slices(self):
        """Words are looked for in each slice."""
        label = self.WANTED["labels"][0]
        for model in self.WANTED["found"]:
            found = self.ask(model, [label], slices=32, confidence=0.01)["predictions"]
            self.assertEqual({p["label"] for p in found}, {label}, model)

    def test_refusals(self):
        for model in self.WANTED["found"]:
            answer = self.server.request("POST", "/predict?model=" + model, self.WORDS_PHOTO)
            self.assert_error(answer, 400, "invalid_request", "labels=")
        self.assertIn("at most 64", self.ask("owl", [f"a{i}" for i in range(65)], 400)["error"])
        self.assertIn("'a cap' is neither a number nor one of the request's labels",
                      self.ask("owl", ["a dog", "a cat"], 400, classes="a cap")["error"])
        self.assertIn("32 tokens", self.ask("grounding", ["a dog"] * 12, 400)["error"])


class HostileWords(unittest.TestCase):
    """Detectors whose files ask for more than a request can fill."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-texts-")
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "owl")
        shutil.copytree(os.path.join(DATA, "owl"), self.path)

    def edit_graph(self, edit):
        """Rewrites the parts (number, content) of the model's graph."""
        def read_varint(data, at):
            made, shift = 0, 0
            while True:
                made |= (data[at] & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if data[at - 1] < 0x80:
                    return made, at

        def parts(data):
            at, found = 0, []
            while at < len(data):
                key, at = read_varint(data, at)
                size, at = read_varint(data, at)
                if key & 7 == 2:
                    found.append((key >> 3, data[at:at + size]))
                    at += size
                else:
                    found.append((key >> 3, size))
            return found

        def join(found):
            return b"".join(number(field, part) if isinstance(part, int) else blob(field, part) for field, part in found)
        file = os.path.join(self.path, "model.onnx")
        with open(file, "rb") as source:
            model = parts(source.read())
        model = [(field, join(edit(parts(part))) if field == 7 else part) for field, part in model]
        with open(file, "wb") as target:
            target.write(join(model))

    def parameters(self):
        return json.loads(run_lensd("inspect", self.path, "--json").stdout)["parameters"]

    def test_more_inputs_of_vectors(self):
        """A request has labels for one of them."""
        extra = [(11, tensor_info(f"more{i}", 1, 1, 4)) for i in range(40)]
        self.edit_graph(lambda parts: parts + extra)
        server = Server("--model", self.path, "--device", "cpu", "--precision", "fp32")
        self.addCleanup(server.stop)
        answer = server.request("POST", "/predict?labels=a+dog", Words.WORDS_PHOTO)
        self.assertEqual(answer.status, 400, answer.body)
        self.assertIn("labels", answer.json()["error"])
        self.assertEqual(server.get("/readyz").status, 200)

    def test_very_many_tokens(self):
        """What takes their place is no constant of the file's size."""
        tokens = {name: value(name, 7, "texts", 100_000) for name in ("input_ids", "attention_mask")}
        self.edit_graph(lambda parts: [(field, next((v for k, v in tokens.items() if field == 11 and k.encode() in part), part))
                                       for field, part in parts])
        self.assertLess(self.parameters(), 100_000)

    def test_very_large_mask(self):
        """A mask of pixels is as large as the photo, whatever the file says."""
        write(os.path.join(self.path, "model.onnx"),
              [node("GlobalAveragePool", ["image"], ["mean"]), node("Flatten", ["mean"], ["flat"]),
               node("ReduceMean", ["pixel_mask"], ["one"], integer("keepdims", 0)), node("Mul", ["flat", "one"], ["scores"])],
              [], [tensor_info("image", "N", 3, 64, 64), tensor_info("pixel_mask", 1, 2000, 1000)], [tensor_info("scores", "N", 3)])
        self.assertLess(self.parameters(), 1000)

    def test_very_many_sizes(self):
        """Sizes of photos are filled for the images of a batch, not for millions."""
        write(os.path.join(self.path, "model.onnx"),
              [node("GlobalAveragePool", ["image"], ["mean"]), node("Flatten", ["mean"], ["flat"]),
               node("ReduceMean", ["orig_target_sizes"], ["one"], integer("keepdims", 0)), node("Mul", ["flat", "one"], ["scores"])],
              [], [tensor_info("image", "N", 3, 64, 64), tensor_info("orig_target_sizes", 1_000_000, 2)], [tensor_info("scores", "N", 3)])
        self.assertLess(self.parameters(), 1000)


class LongWords(TextCase):
    """Each box has the label that a client sent, which may be long."""

    arguments = ("--max-body", "1M", "--max-upload-memory", "4M")

    @classmethod
    def write_models(cls, folder):
        Words.write_models(folder)

    def test_labels_have_a_budget(self):
        for label, status in (("x" * 60, 200), ("\1" * 60000, 413)):
            kind, body = multipart([("image", "a.png", Words.WORDS_PHOTO), ("labels", None, label.encode())])
            answer = self.server.request("POST", "/predict?model=world&truncate=true&confidence=0&iou=1", body, {"Content-Type": kind})
            self.assertEqual(answer.status, status, answer.body[:200])
        self.assertIn("--max-upload-memory", answer.json()["error"])


class Lengths(TextCase):
    """A model of texts whose padding is masked runs short ones in short rows. `sentences` is a BERT
    (tests/data/text_models/make_sentence_model.py); `mask` answers the mean of its mask, and so tells the length of the row.
    `ids` has no mask, so it may read the padding; it answers the share of ids above 0, which are no padding."""

    with open(os.path.join(DATA, "sentences.json"), encoding="utf-8") as file:
        WANTED = json.load(file)

    @classmethod
    def write_models(cls, folder):
        shutil.copytree(os.path.join(DATA, "sentences"), os.path.join(folder.name, "sentences"))
        for name, tensors in (("mask", ("input_ids", "attention_mask")), ("ids", ("input_ids",))):
            path = os.path.join(folder.name, name)
            os.mkdir(path)
            for file in ("vocab.txt", "tokenizer_config.json"):
                shutil.copyfile(os.path.join(DATA, "sentences", file), os.path.join(path, file))
            write(os.path.join(path, "model.onnx"),
                  [node("Cast", [tensors[-1]], ["numbers"], integer("to", 1)), node("Min", ["numbers", "one"], ["ones"]),
                   node("ReduceMean", ["ones"], ["mean"], ints("axes", [1])),
                   node("Concat", ["mean", "mean"], ["sentence_embedding"], integer("axis", 1))],
                  [constant("one", 1.0, 1)], [value(tensor, 7, "N", "L") for tensor in tensors],
                  [tensor_info("sentence_embedding", "N", 2)])

    def row_length(self, text, tokens, model):
        mean = self.embed(text, model)["data"][0]["embedding"][0]
        return round(tokens / mean)

    def test_vectors_are_those_of_transformers(self):
        """With any padding: at first of the full length, then of each shorter one."""
        texts, vectors = self.WANTED["texts"], self.WANTED["vectors"]
        while True:
            for text, vector in zip(texts, vectors):
                self.assert_near(self.embed(text, "sentences")["data"][0]["embedding"], vector)
            for first in range(len(texts)):
                for entry in self.embed(texts[first:], "sentences")["data"]:
                    self.assert_near(entry["embedding"], vectors[first + entry["index"]])
            if all(re.search(f" size compiled .*model=sentences .*width={n} ", self.server.log_so_far()) for n in (16, 32, 64)):
                break
        for size in (2, 3):
            threads = [threading.Thread(target=lambda i=i: results.append((i, self.embed(texts[i:i + size], "sentences"))))
                       for i in range(len(texts) - size + 1)]
            results = []
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(len(results), len(threads))
            for first, answer in results:
                for entry in answer["data"]:
                    self.assert_near(entry["embedding"], vectors[first + entry["index"]])

    def test_rows_are_short(self):
        for text, tokens in zip(self.WANTED["texts"], self.WANTED["tokens"]):
            length = next(n for n in (16, 32, 64, 128) if n >= tokens)
            self.server.wait_for(lambda: self.row_length(text, tokens, "mask") == length, f"rows of {length} tokens")
            self.assertEqual(self.row_length(text, tokens, "ids"), 128)
        both = [self.WANTED["texts"][0], self.WANTED["texts"][4]]  # 3 and 32 tokens
        means = [entry["embedding"][0] for entry in self.embed(both, "mask")["data"]]
        self.assert_near(means, [3 / 32, 1])
        self.assertEqual([self.row_length("a dog", 4, "mask") for _ in range(20)], [16] * 20)

    def test_tensors_have_the_full_length(self):
        tensors = self.server.get("/v2/models/sentences").json()["inputs"]
        self.assertEqual({tuple(tensor["shape"]) for tensor in tensors}, {(-1, 128)})


class Reload(TextCase):
    """While the half for texts is replaced, the labels of a request are all encoded by the old one or all by the new one."""

    @classmethod
    def write_models(cls, folder):
        cls.folder = os.path.join(folder.name, "siglip")
        shutil.copytree(os.path.join(DATA, "siglip"), cls.folder)
        keys = os.path.join(folder.name, "keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write(f"admin sha256:{hashlib.sha256(b'secret').hexdigest()}\n")
        cls.arguments = ("--admin-key-file", keys)

    def ask(self, labels):
        path = "/predict?model=siglip&labels=" + urllib.parse.quote(",".join(labels))
        answer = self.server.request("POST", path, PHOTO)
        self.assertEqual(answer.status, 200, answer.body)
        return {p["label"]: p["probability"] for p in answer.json()["predictions"]}

    def load(self, half):
        """Both halves for texts make 16 numbers; their weights differ."""
        new = os.path.join(self.folder, "new")
        shutil.copyfile(os.path.join(DATA, half, "textual", "model.onnx"), new)
        os.replace(new, os.path.join(self.folder, "textual", "model.onnx"))
        answer = self.server.request("POST", "/v2/repository/models/siglip.text/load", b"{}", {"Authorization": "Bearer secret"})
        self.assertEqual(answer.status, 200, answer.body)

    def test_labels_of_one_load(self):
        labels = [f"thing {i}" for i in range(40)]
        wanted = []
        for half in ("clip", "siglip"):
            self.load(half)
            wanted.append(self.ask(labels))
        self.assertTrue(all(abs(wanted[0][label] - wanted[1][label]) > 1e-3 for label in labels[:5]))
        found, stop = [], threading.Event()

        def run(seed):
            chosen = random.Random(seed)
            while not stop.is_set():
                found.append(self.ask(chosen.sample(labels, 6)))
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for half in ("clip", "siglip") * 4:
            self.load(half)
        stop.set()
        for thread in threads:
            thread.join()
        for scores in found:
            self.assertTrue(any(all(abs(scores[label] - one[label]) < 1e-3 for label in scores) for one in wanted), scores)


class OpenInference(TextCase):
    """Texts over V2: BYTES to the input of token ids."""

    def infer(self, data, model="clip.text", status=200, name="input_ids", **members):
        tensor = {"name": name, "datatype": "BYTES", "shape": [len(data)], "data": data, **members}
        return self.post(f"/v2/models/{model}/infer", {"inputs": [tensor]}, status)

    def test_vectors(self):
        wanted = EXPECTED["siglip"]
        (output,) = self.infer(wanted["texts"], "siglip.text")["outputs"]
        self.assertEqual((output["name"], output["shape"]), ("text_embeds", [4, 16]))
        self.assert_near(output["data"], sum(wanted["vectors"], []))
        wanted = EXPECTED["clip"]
        ids = [wanted["tokens"][0] + [662] * (24 - len(wanted["tokens"][0]))]
        tensor = {"name": "input_ids", "datatype": "INT64", "shape": [1, 24], "data": ids}
        (output,) = self.post("/v2/models/clip.text/infer", {"inputs": [tensor]})["outputs"]
        self.assert_near(output["data"], wanted["vectors"][0])

    def test_binary(self):
        text = EXPECTED["siglip"]["texts"][0].encode()
        head = json.dumps({"inputs": [{"name": "input_ids", "datatype": "BYTES", "shape": [1],
                                       "parameters": {"binary_data_size": 4 + len(text)}}]}).encode()
        answer = self.server.request("POST", "/v2/models/siglip.text/infer", head + struct.pack("<I", len(text)) + text,
                                     {"Inference-Header-Content-Length": str(len(head))})
        self.assertEqual(answer.status, 200, answer.body)
        self.assert_near(answer.json()["outputs"][0]["data"], EXPECTED["siglip"]["vectors"][0])

    def test_refusals(self):
        self.assertIn("empty", self.infer([""], status=400)["error"])
        self.assertIn("24", self.infer(["dog " * 60], status=400)["error"])
        self.assertIn("no input 'text'", self.infer(["a"], status=400, name="text")["error"])
        self.assertIn("--max-images", self.infer(["a"] * 65, status=413)["error"])
        self.infer(["a"], model="clip", name="pixel_values", status=415)


class Commands(unittest.TestCase):
    def test_predict_text(self):
        for model, path in (("clip", "clip"), ("siglip", os.path.join("siglip", "textual", "model.onnx"))):
            made = run_lensd("predict", os.path.join(DATA, path), "--precision", "fp32", "--text", EXPECTED[model]["texts"][0])
            self.assertEqual(made.returncode, 0, made.stderr)
            for found, wanted in zip(json.loads(made.stdout)["embedding"], EXPECTED[model]["vectors"][0]):
                self.assertAlmostEqual(found, wanted, delta=1e-3)
        for arguments, words in ((["digits", "--text", "a"], "takes no texts"), ([os.path.join(DATA, "clip"), "--text", ""], "empty"),
                                 ([os.path.join(DATA, "clip"), "--text", "dog " * 60], "24"),
                                 ([os.path.join(DATA, "clip"), "a.jpg", "--text", "a"], "cannot be combined with a photo")):
            made = run_lensd("predict", *arguments)
            self.assertNotEqual(made.returncode, 0)
            self.assertIn(words, made.stderr)

    def test_embed(self):
        with tempfile.TemporaryDirectory(prefix="lensd-texts-") as folder:
            photos = [os.path.join(folder, name) for name in ("a.png", "b.png")]
            for photo in photos:
                shutil.copy(SEVEN, photo)
            clip = os.path.join(DATA, "clip")
            made = run_lensd("embed", clip, folder, "--precision", "fp32")
            self.assertEqual(made.returncode, 0, made.stderr)
            lines = [json.loads(line) for line in made.stdout.splitlines()]
            self.assertEqual([line["name"] for line in lines], photos)
            asked = run_lensd("predict", clip, photos[0], "--precision", "fp32", "--jsonl")
            for line in lines:
                self.assertEqual(line["embedding"], json.loads(asked.stdout)["embedding"])
        made = run_lensd("embed", clip, "--precision", "fp32", "--text", EXPECTED["clip"]["texts"][0])
        for found, wanted in zip(json.loads(made.stdout)["embedding"], EXPECTED["clip"]["vectors"][0], strict=True):
            self.assertAlmostEqual(found, wanted, delta=1e-3)
        for arguments, words in ((["digits", SEVEN], "returns no vectors"), ([clip], "lensd embed MODEL PHOTO"),
                                 ([clip, SEVEN, "--top-k", "3"], "--top-k")):
            made = run_lensd("embed", *arguments)
            self.assertEqual(made.returncode, 2, made.stderr)
            self.assertIn(words, made.stderr)

    def test_photos_as_open_clip_prepares_them(self):
        with tempfile.TemporaryDirectory(prefix="lensd-texts-") as folder:
            root = os.path.join(folder, "clip")
            shutil.copytree(os.path.join(DATA, "clip"), root)
            with open(os.path.join(root, "preprocessor_config.json"), encoding="utf-8") as file:
                own = json.load(file)
            os.remove(os.path.join(root, "preprocessor_config.json"))
            cfg = {"size": [32, 32], "mode": "RGB", "mean": own["image_mean"], "std": own["image_std"],
                   "interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}
            with open(os.path.join(root, "visual", "preprocess_cfg.json"), "w", encoding="utf-8") as file:
                json.dump(cfg, file)
            with open(os.path.join(folder, "photo.png"), "wb") as file:
                file.write(PHOTO)
            made = run_lensd("predict", root, os.path.join(folder, "photo.png"), "--precision", "fp32", "--json")
            for found, wanted in zip(json.loads(made.stdout)["results"][0]["embedding"], EXPECTED["clip"]["photo"]):
                self.assertAlmostEqual(found, wanted, delta=2e-3)
            self.assertIn("preprocess_cfg.json", run_lensd("inspect", root).stdout)
            with open(os.path.join(root, "visual", "preprocess_cfg.json"), "w", encoding="utf-8") as file:
                json.dump({**cfg, "resize_mode": "longest"}, file)
            self.assertIn("resize_mode", run_lensd("inspect", root).stderr)


class Search(TextCase):
    """The program in docs/search.md, as it stands there."""

    def test_search(self):
        with open(os.path.join(DATA, "..", "..", "..", "docs", "search.md"), encoding="utf-8") as file:
            code = file.read().split("```python\n")[1].split("```")[0]
        self.assertLessEqual(len(code.strip().splitlines()), 40)
        code = code.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{self.server.port}")
        with tempfile.TemporaryDirectory(prefix="lensd-texts-") as folder:
            for i in range(3):
                with open(os.path.join(folder, f"{i}.png"), "wb") as file:
                    file.write(PHOTO if i == 1 else png(40, 40, i))
            for _ in range(2):  # the second time no photo is new
                made = subprocess.run([sys.executable, "-c", code, folder, "a red car"], cwd=folder, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
                self.assertEqual(made.returncode, 0, made.stderr)
                lines = [line.split() for line in made.stdout.splitlines()]
                self.assertEqual(len(lines), 3)
                nears = {os.path.basename(path): float(near) for near, path in lines}
                self.assertEqual(list(nears.values()), sorted(nears.values(), reverse=True))
                text, photo = (self.embed(value, normalize=True)["data"][0]["embedding"] for value in ("a red car", URI))
                self.assertAlmostEqual(nears["1.png"], sum(a * b for a, b in zip(text, photo)), delta=2e-3)


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
