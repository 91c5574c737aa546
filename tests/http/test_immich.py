"""The requests of Immich's server, byte for byte as Node's fetch sends a FormData, against a folder as Immich's cache. Expected
answers are ONNX Runtime's (tests/data/immich/make_golden.py)."""

import difflib
import gzip
import json
import os
import shlex
import shutil
import subprocess
import unittest

import immich_models
import small_onnx
from harness import PATIENCE, ROOT, FolderCase, flat_png, multipart, png, run_lensd
from test_apps import commands

with open(os.path.join(ROOT, "tests", "data", "immich", "expected.json"), encoding="utf-8") as golden:
    EXPECTED = json.load(golden)
CLIP, FACES = immich_models.CLIP, immich_models.FACES
BOUNDARY = "----formdata-undici-0123456789"


def transcript(entries, image=None, text=None):
    """What undici 6 and 7 (Node 20 to 24) write: the parts in the order of append(), a Blob as a file named blob, and a line
    after the last boundary."""
    parts = [f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="entries"\r\n\r\n{entries}\r\n'.encode()]
    if image is not None:
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="blob"\r\n'
                     "Content-Type: application/octet-stream\r\n\r\n".encode() + image + b"\r\n")
    if text is not None:
        parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="text"\r\n\r\n{text}\r\n'.encode())
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def clip(kind="visual", name=CLIP, **options):
    return {"clip": {kind: {"modelName": name, **({"options": options} if options else {})}}}


def pair(task, name, least=None, second=None):
    return {task: {"detection": {"modelName": name, "options": {} if least is None else {"minScore": least}},
                   "recognition": {"modelName": second or name}}}


def faces(least=immich_models.LEAST, name=FACES):
    return pair("facial-recognition", name, least)


def lines(least=.5):
    task = pair("ocr", immich_models.OCR, .5)
    task["ocr"]["detection"]["options"]["maxResolution"] = 736
    task["ocr"]["recognition"]["options"] = {"minScore": least}
    return task


class ImmichCase(FolderCase):
    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        immich_models.make(self.cache)

    def start(self, *arguments, **options):
        self.server = self.serve("--immich", self.cache, "--device", "cpu", "--precision", "fp32", *arguments, **options)
        return self.server

    def send(self, entries, image=None, text=None):
        entries = entries if isinstance(entries, str) else json.dumps(entries, separators=(",", ":"))
        return self.server.request("POST", "/predict", transcript(entries, image, text), {
            "Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Accept": "*/*", "Accept-Language": "*",
            "Sec-Fetch-Mode": "cors", "User-Agent": "node", "Accept-Encoding": "gzip, deflate"})

    def ask(self, entries, image=None, text=None):
        answer = self.send(entries, image, text)
        self.assertEqual(answer.status, 200, answer.body)
        if answer.headers["Content-Encoding"] == "gzip":
            answer.body = gzip.decompress(answer.body)
        self.assertTrue(answer.headers["Content-Type"].startswith("application/json"))
        return answer.json()

    def refuse(self, status, words, entries, image=None, text=None):
        answer = self.send(entries, image, text)
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual(list(answer.json()), ["detail"])
        self.assertIn(words, answer.json()["detail"])

    def assert_same(self, text, wanted, least=.9999):
        """A text with a vector in it, and its cosine with another."""
        self.assertIsInstance(text, str)
        found = json.loads(text)
        self.assertEqual(len(found), len(wanted))
        dot, a, b = (sum(x * y for x, y in zip(p, q)) for p, q in ((found, wanted), (found, found), (wanted, wanted)))
        self.assertGreaterEqual(dot / (a * b) ** .5, least)
        self.assertAlmostEqual((a / b) ** .5, 1, places=3)  # as long: raw vectors stay raw


class Answers(ImmichCase):
    def assert_faces(self, found, wanted, width, height):
        self.assertEqual(len(found), len(wanted))
        for face, want in zip(found, wanted):
            self.assertEqual(list(face), ["boundingBox", "embedding", "score"])
            for value, corner in zip(face["boundingBox"].values(), want["box"]):
                self.assertEqual(value, int(value))
                # Immich's service does not cut boxes off at the edge of the picture.
                limit = width if face["boundingBox"]["x1"] == value or face["boundingBox"]["x2"] == value else height
                self.assertAlmostEqual(value, min(max(corner, 0), max(limit, value)), delta=.51)
            self.assertAlmostEqual(face["score"], want["score"], places=4)
            self.assert_same(face["embedding"], want["embedding"])

    def assert_lines(self, found, wanted, width, height):
        self.assertEqual(list(found), ["text", "box", "boxScore", "textScore"])
        self.assertEqual(len(found["text"]), len(wanted), found)
        # Columns at the edge of a piece of shade read otherwise where a line is a pixel wider.
        alike = [difflib.SequenceMatcher(None, text, line["text"]).ratio() for text, line in zip(found["text"], wanted)]
        self.assertGreater(min(alike), .6, found["text"])
        self.assertGreater(alike.count(1), len(alike) / 2, found["text"])
        for k, line in enumerate(wanted):
            for value, want, side in zip(found["box"][8 * k:8 * k + 8], line["box"], (width, height) * 4):
                self.assertAlmostEqual(value * side, want * side, delta=2.5)
            self.assertAlmostEqual(found["boxScore"][k], line["boxScore"], delta=.01)
            self.assertAlmostEqual(found["textScore"][k], line["textScore"], delta=.05)

    def test_clip(self):
        self.start()
        for size, wanted in EXPECTED["clip"].items():
            width, height = map(int, size.split("x"))
            answer = self.ask(clip(), immich_models.picture(width, height))
            self.assertEqual(list(answer), ["clip", "imageHeight", "imageWidth"])
            self.assertEqual((answer["imageHeight"], answer["imageWidth"]), (height, width))
            self.assert_same(answer["clip"], wanted)
        for text, wanted in EXPECTED["text"].items():
            answer = self.ask(clip("textual", language="de"), text=text)
            self.assertEqual(list(answer), ["clip"])
            self.assert_same(answer["clip"], wanted)
        long = self.ask(clip("textual"), text="two birds " * 500)["clip"]
        self.assertEqual(len(json.loads(long)), immich_models.VECTOR, "a long text is cut")

    def test_clean_and_language(self):
        immich_models.make_spoken(self.cache)
        self.start()
        for (name, language, text), wanted in zip(immich_models.SPOKEN, EXPECTED["spoken"]):
            self.assert_same(self.ask(clip("textual", name, **({"language": language} if language else {})), text=text)["clip"], wanted)
        self.ask(clip("textual", immich_models.LANGUAGES, language=None), text="birds")
        self.ask(clip("textual", immich_models.LANGUAGES, language="-" * 300), text="birds")
        self.refuse(400, "empty", clip("textual", immich_models.LANGUAGES, language="de"), text=" ")

    def test_faces(self):
        self.start()
        for size, wanted in EXPECTED["faces"].items():
            width, height = map(int, size.split("x"))
            answer = self.ask(faces(), immich_models.picture(width, height))
            self.assertEqual((answer["imageHeight"], answer["imageWidth"]), (height, width))
            self.assert_faces(answer["facial-recognition"], wanted, width, height)
        self.assertEqual(self.ask(faces(.999), png(64, 64))["facial-recognition"], [])
        first = EXPECTED["faces"]["400x300"]
        between = (first[1]["score"] + first[2]["score"]) / 2
        self.assertEqual(len(self.ask(faces(between), immich_models.picture(400, 300))["facial-recognition"]), 2)

    def test_text(self):
        self.start()
        task = lines()
        for size, wanted in EXPECTED["ocr"].items():
            width, height = map(int, size.split("x"))
            answer = self.ask(task, immich_models.page(width, height))
            self.assertEqual((list(answer), answer["imageHeight"], answer["imageWidth"]),
                             (["ocr", "imageHeight", "imageWidth"], height, width))
            self.assert_lines(answer["ocr"], wanted, width, height)
        best = sorted(line["textScore"] for line in wanted)
        fewer = self.ask(lines((best[-1] + best[0]) / 2), immich_models.page(width, height))["ocr"]
        self.assertLess(len(fewer["text"]), len(wanted))
        self.assertEqual([len(fewer[k]) // n for k, n in (("text", 1), ("box", 8), ("boxScore", 1), ("textScore", 1))],
                         [len(fewer["text"])] * 4)
        self.assertEqual(self.ask(task, flat_png(255, 64))["ocr"], {"text": [], "box": [], "boxScore": [], "textScore": []})

    def test_detection_alone(self):
        """The service's own form of a detector's answer: pixels, and points of faces; of text without the picture."""
        self.start()
        photo, page = immich_models.picture(640, 480), immich_models.page(1000, 736)
        for task, picture, points in ((faces(), photo, "landmarks"), (lines(), page, "boxes")):
            (name, types), = task.items()
            both = self.ask(task, picture)[name]
            answer = self.ask({name: {"detection": types["detection"]}}, picture)
            found = answer[name]
            self.assertEqual((answer["imageHeight"], len(found["boxes"])), (480 if name != "ocr" else 736, len(found["scores"])))
            self.assertEqual({len(place) for place in found[points]}, {5 if points == "landmarks" else 4})
            if points == "landmarks":
                self.assertEqual(sorted(found), ["boxes", "landmarks", "scores"])
                self.assertEqual(found["boxes"], [list(face["boundingBox"].values()) for face in both])
                self.assertEqual(found["scores"], [face["score"] for face in both])
            else:
                self.assertEqual(sorted(found), ["boxes", "scores"])
                flat = [v / side for box in found["boxes"] for point in box for v, side in zip(point, (1000, 736))]
                self.assertTrue({round(v, 5) for v in both["box"]} <= {round(v, 5) for v in flat})
        for others in (clip(), lines()):
            self.refuse(400, "cannot be combined", {**others, "facial-recognition": {"detection": {"modelName": FACES}}}, photo)

    def test_several_tasks(self):
        """Immich's service runs all tasks of a form on its picture, and answers them in one object."""
        self.start("--response-cache", "8M")
        every = {**clip(), **faces(), **lines()}
        for size, wanted in EXPECTED["clip"].items():
            width, height = map(int, size.split("x"))
            picture = immich_models.picture(width, height)
            for tasks in (every, {**faces(), **clip()}, {**lines(), **clip()}):
                answer = self.ask(tasks, picture)
                self.assertEqual(set(answer), {*tasks, "imageHeight", "imageWidth"})
                self.assertEqual((answer["imageHeight"], answer["imageWidth"]), (height, width))
                self.assert_same(answer["clip"], wanted)
                if "facial-recognition" in tasks:
                    self.assert_faces(answer["facial-recognition"], EXPECTED["faces"][size], width, height)
        size, wanted = next(iter(EXPECTED["ocr"].items()))
        width, height = map(int, size.split("x"))
        answer = self.ask({**faces(.999), **lines()}, immich_models.page(width, height))
        self.assert_lines(answer["ocr"], wanted, width, height)
        self.assertEqual(answer["facial-recognition"], [])
        answer = self.send({**every, **faces(.999)}, flat_png(255, 64))
        self.assertRegex(answer.body.decode(), r'\A{"facial-recognition":\[\],"ocr":{"text":\[\],"box":\[\],"boxScore":\[\],'
                         r'"textScore":\[\]},"clip":"\[[-+.,e\d]*\]","imageHeight":64,"imageWidth":64}\n\Z')

    def test_a_detector_is_no_pipeline(self):
        """It is refused: an answer with no faces, and without the other tasks, would be taken for whole."""
        os.makedirs(self.path("models/squares"))
        small_onnx.boxes_of_pixels(self.path("models/squares/model.onnx"), 6, 64)
        for name, config in (("lensd", {"task": "detection", "layout": "yolo-final"}), ("preprocessor_config", {"size": 64})):
            with open(self.path(f"models/squares/{name}.json"), "w", encoding="ascii") as file:
                json.dump(config, file)
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32")
        for task in ("facial-recognition", "ocr"):
            for others in ({}, clip(name="squares")):
                self.refuse(400, f"for detection, but Immich needs for {task} a pipeline", {**pair(task, "squares"), **others}, png(64, 64))

    def test_one_decode(self):
        """The tasks of a form share the pixels of its picture, and each is counted as a request to its model."""
        self.start()
        self.assertEqual(self.ask({**clip(), **faces(.999)}, flat_png(255, 64))["facial-recognition"], [])
        for model in (CLIP, FACES + ".detection"):
            self.server.wait_metric(f'lensd_images_total{{model="{model}",result="ok"}}', 1)

    def test_names(self):
        """Names are cleaned as those of the folders in the cache are."""
        self.start()
        for name in (f"immich-app/{CLIP}", "tiny.__seeded", CLIP):
            self.ask(clip(name=name), png(40, 40))

    def test_small_talk(self):
        self.start()
        answer = self.server.get("/ping")
        self.assertEqual((answer.status, answer.body, answer.headers["Content-Type"]), (200, b"pong", "text/plain; charset=utf-8"))
        self.assertEqual(self.server.get("/").json(), {"message": "Immich ML"})
        page = self.server.request("GET", "/", headers={"Accept": "text/html,*/*"})
        self.assertIn(b"<html", page.body)

    def test_beside_other_forms(self):
        """The same path takes lensd's own forms, and its models have their own names."""
        self.start()
        answer = self.server.predict(png(64, 64), f"/predict?model={FACES}.detection")
        self.assertEqual((answer.status, answer.json()["model"]), (200, f"{FACES}.detection"))
        kind, body = multipart([("image", "a.png", png(64, 64)), ("model", None, CLIP.encode())])
        answer = self.server.request("POST", "/predict", body, {"Content-Type": kind})
        self.assertEqual((answer.status, len(answer.json()["embedding"])), (200, immich_models.VECTOR))
        names = {m["name"] for m in self.server.get("/health").json()["models"]}
        ocr, detector = immich_models.OCR, immich_models.OCR.rpartition("__")[2] + ".detection"
        self.assertEqual(names, {CLIP, CLIP + ".text", FACES, FACES + ".detection", FACES + ".recognition", ocr,
                                 ocr + ".recognition", detector})


class Errors(ImmichCase):
    def test_refused(self):
        self.start()
        picture = png(64, 64)
        for entries in ("", "no JSON", "[1]", "{}", '{"clip": 1}', '{"nsfw": {"visual": {"modelName": "a"}}}', '{"clip": {}}',
                        '{"clip": {"visual": {}}}', '{"clip": {"visual": {"modelName": 3}}}', '{"clip": {"visual": {"modelName": "."}}}',
                        json.dumps(clip(name="x" * 200)), json.dumps(faces(7)), json.dumps(faces("high")),
                        json.dumps({**clip(), "nsfw": clip()["clip"]}), json.dumps({**faces(), "clip": 1}),
                        '{"clip": {"visual": {"modelName": "a"}}, "clip": {"visual": {"modelName": "a"}}}', "[" * 600 + "]" * 600):
            self.refuse(422, "Invalid request format.", entries, picture)
        self.refuse(400, "Either image or text must be provided", clip())
        self.refuse(400, "takes an `image`", clip(), text="a dog")
        self.refuse(400, "takes a `text`", clip("textual"), picture)
        self.refuse(400, "depends on the output of detection",
                    {"facial-recognition": {"recognition": {"modelName": FACES}}}, picture)
        self.refuse(400, "the same model", pair("facial-recognition", FACES, second="another"), picture)
        self.refuse(400, "combined with another type", {"clip": {**clip()["clip"], **clip("textual")["clip"]}}, picture)
        self.refuse(404, "no-such-model", clip(name="no-such-model"), picture)
        self.refuse(400, "pipeline", clip(name=FACES), picture)
        self.refuse(400, "Immich needs for facial-recognition", faces(name=CLIP), picture)
        for several in ({**faces(), **clip(name="no-such-model")}, {**pair("ocr", "no-such-model"), **faces()}):
            self.refuse(404, "no-such-model", several, picture)
        self.refuse(400, "combined with another type or task", {**clip("textual"), **faces()}, text="a dog")
        self.refuse(400, "takes an `image`", {**clip(), **faces()}, text="a dog")
        self.refuse(400, "the same model", {**clip(), **pair("ocr", FACES, second="another")}, picture)
        self.refuse(415, "", {**clip(), **faces()}, b"no picture")
        self.refuse(415, "", clip(), b"no picture")
        self.refuse(400, "", clip(), picture[:60])
        self.refuse(400, "empty", clip("textual"), text=" \n")

    def test_keys_and_limits(self):
        made = run_lensd("key", "immich")
        with open(self.path("keys"), "w", encoding="utf-8") as file:
            file.write(made.stdout)
        os.chmod(self.path("keys"), 0o600)
        self.start("--api-keys", self.path("keys"), "--max-body", "64K")
        self.assertEqual(self.send(clip(), png(64, 64)).status, 401)
        self.assertEqual(self.server.get("/ping").status, 200)
        self.assertIn(self.send(clip(), b"x" * 100000).status, (401, 413))


class Life(ImmichCase):
    def test_lazy_and_variables(self):
        server = self.start("--log-level", "info", environment={
            "MACHINE_LEARNING_MODEL_TTL": "1", "MACHINE_LEARNING_PRELOAD__FACIAL_RECOGNITION__DETECTION": FACES,
            "IMMICH_LOG_LEVEL": "verbose", "IMMICH_HOST": "127.0.0.1", "MACHINE_LEARNING_REQUEST_THREADS": "1"})
        self.assertEqual(server.get("/ping").status, 200)
        self.ask(faces(), png(64, 64))
        self.ask(clip(), png(64, 64))
        loads = [f'lensd_model_loads_total{{model="{m}",version="1"}}' for m in (CLIP, CLIP + ".text")]
        states = {m["name"]: m["state"] for m in server.get("/health").json()["models"]}
        self.assertEqual(states[CLIP + ".text"], "unloaded", "nobody has asked for it")
        self.assertTrue(loads)

    def test_settings_that_are_wrong(self):
        for arguments, environment, words in (
                (("--models", "x"), {}, "--immich excludes"), (("x",), {}, "--immich excludes"),
                ((), {"MACHINE_LEARNING_PRELOAD__OCR__DETECTION": "absent"}, "absent.detection"),
                ((), {"IMMICH_HOST": "[::zz]"}, "'::zz'"),
                ((), {"MACHINE_LEARNING_MODEL_TTL": "soon"}, "MACHINE_LEARNING_MODEL_TTL")):
            run = run_lensd("serve", "--immich", self.cache, "--check", *arguments, environment=environment)
            self.assertEqual(run.returncode, 2, run.stderr)
            self.assertIn(words, run.stderr)
        self.assertEqual(run_lensd("serve", "--immich", self.path("absent"), "--check").returncode, 1)

    def test_folders_that_lack_something(self):
        immich_models.make_spoken(self.cache)
        shutil.rmtree(os.path.join(self.cache, "facial-recognition", FACES, "recognition"))
        os.makedirs(os.path.join(self.cache, "ocr", "empty"))
        self.start()
        self.ask(clip(), png(64, 64))
        os.remove(os.path.join(self.cache, "clip", immich_models.CLEANED, "textual", "model.onnx"))
        self.refuse(503, f"{FACES}/recognition/model.onnx is missing", faces(), png(64, 64))
        self.refuse(503, "there is visual/model.onnx, but no textual/model.onnx", clip(name=immich_models.CLEANED), png(64, 64))
        run = run_lensd("serve", "--immich", self.path(""), "--check")
        self.assertEqual((run.returncode, "clip/NAME, facial-recognition/NAME, ocr/NAME" in run.stderr), (1, True), run.stderr)


class Page(ImmichCase):
    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_page(self):
        """The commands of docs/apps/immich.md."""
        shutil.move(os.path.join(self.cache, "ocr", "tiny_ocr", "detection"), os.path.join(self.cache, "ocr", immich_models.OCR))
        for task, ours, name in (("clip", CLIP, "ViT-B-32__openai"), ("facial-recognition", FACES, "buffalo_l"),
                                 ("ocr", immich_models.OCR, "PP-OCRv5_mobile")):
            os.rename(os.path.join(self.cache, task, ours), os.path.join(self.cache, task, name))
        with open(self.path("photo.jpg"), "wb") as file:
            file.write(png(64, 64))
        answers = []
        for command in commands(os.path.join(ROOT, "docs", "apps", "immich.md")):
            words = shlex.split(command)
            if words[0] == "lensd":
                local = {"0.0.0.0": "127.0.0.1", "3003": "0", "cache": self.cache}
                self.server = self.serve(*(local.get(word, word) for word in words[2:]), "--device", "cpu")
                continue
            run = subprocess.run([word.replace("localhost:3003", f"127.0.0.1:{self.server.port}") for word in words] + ["-sSf"],
                                 cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((run.returncode, run.stderr), (0, ""), command)
            answers.append(run.stdout)
        self.assertEqual(answers[0], "pong")
        self.assertEqual([sorted(json.loads(answer)) for answer in answers[1:]], [
            ["clip", "imageHeight", "imageWidth"], ["clip"], ["facial-recognition", "imageHeight", "imageWidth"],
            ["imageHeight", "imageWidth", "ocr"], ["clip", "facial-recognition", "imageHeight", "imageWidth"]])


if __name__ == "__main__":
    unittest.main()
