"""Answers by the model's task: boxes, areas and vectors, their parameters, and raw tensors."""

import base64
import json
import math
import os
import random
import shutil
import struct
import tempfile
import unittest
import zlib

import harness
import small_onnx
from harness import ROOT, Server, multipart, png, png_chunk, png_header, read, run_lensd

# Centre, size and the scores of two classes: two that overlap (IoU 0.88), one of each class on one place, one low.
CANDIDATES = [(32, 32, 16, 24, .05, .9), (33, 32, 16, 24, .05, .6), (50, 20, 10, 10, .55, 0), (50, 20, 10, 10, 0, .5),
              (10, 10, 8, 8, .1, .2)] + [(5, 5, 2, 2, 0, 0)] * 79
DETECT = [("found", (6, 84), [c[line] for line in range(6) for c in CANDIDATES])]
LABELS = "a cat\na dog\n"


def corners(prediction):
    return [prediction["box"][k] for k in ("x1", "y1", "x2", "y2")]


class Tasks(unittest.TestCase):
    arguments = ()
    files = {}

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-tasks-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.make(os.path.join(cls.folder, "model.onnx"))
        for name, text in cls.files.items():
            with open(os.path.join(cls.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        cls.server = Server(cls.folder, "--device", "cpu", "--precision", "fp32", *cls.arguments)
        cls.addClassCleanup(cls.server.stop)
        cls.name = os.path.basename(cls.folder)

    def ask(self, query="", photo=None, status=200, headers=None):
        answer = self.server.request("POST", f"/predict{query}", photo or png(400, 300), headers)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def task(self):
        models = self.server.get("/devices").json()["devices"][0]["models"]
        inspected = json.loads(run_lensd("inspect", self.folder, "--json").stdout)
        self.assertEqual(models[0]["task"], inspected["task"])
        self.assertEqual(models[0]["task_evidence"], inspected["task_evidence"])
        self.assertIn(inspected["task_evidence"], run_lensd("inspect", self.folder).stdout.replace("\n" + " " * 12, " "))
        return inspected["task"], inspected["task_evidence"]

    def inspected(self):
        return " ".join(run_lensd("inspect", self.folder).stdout.split())


class Detection(Tasks):
    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, DETECT)

    def test_boxes(self):
        """400 x 300 was letterboxed to 64 x 48, with 8 pixels above and below."""
        answer = self.ask()
        self.assertEqual(answer["image"], {"width": 400, "height": 300})
        predictions = answer["predictions"]
        self.assertEqual([(p["label"], p["index"], round(p["score"], 3)) for p in predictions],
                         [("a dog", 1, .9), ("a cat", 0, .55), ("a dog", 1, .5)])
        scale = 400 / 64
        for found, wanted in zip(corners(predictions[0]), (24 * scale, 12 * scale, 40 * scale, 36 * scale)):
            self.assertAlmostEqual(found, wanted, delta=0.01)
        self.assertEqual(self.task(), ("detection", "output 'found' has the shape [1, 6, 84], as yolov8 has it"))
        self.assertIn("letterbox into 64 x 64 (linear, not antialiased, padded with 114)", self.inspected())

    def test_parameters(self):
        scores = lambda query: [round(p["score"], 3) for p in self.ask(query)["predictions"]]
        self.assertEqual(scores("?confidence=0.56"), [.9])
        self.assertEqual(scores("?confidence=0.15"), [.9, .55, .5, .2])
        self.assertEqual(scores("?confidence=0.5"), [.9, .55], "strictly greater")
        self.assertEqual(scores("?iou=0.95"), [.9, .6, .55, .5])
        self.assertEqual(scores("?iou=1"), [.9, .6, .55, .5])
        self.assertEqual(scores("?agnostic=true"), [.9, .55])
        self.assertEqual(scores("?max_detections=2"), [.9, .55])
        self.assertEqual(scores("?classes=0"), [.55])
        self.assertEqual(scores("?classes=0,1&confidence=0.56"), [.9])
        self.assertEqual(scores("?classes=a%20cat"), [.55])
        self.assertEqual(scores("?classes=a+dog,0"), [.9, .55, .5])
        self.assertEqual(scores("?classes=7"), [])
        self.assertEqual(scores("?confidence=1"), [])

    def test_wrong_parameters(self):
        for query, name in (("confidence=1.5", "confidence"), ("confidence=-0", "confidence"),
                            ("confidence=nan", "confidence"), ("confidence=", "confidence"),
                            ("confidence=0x1", "confidence"), ("iou=a", "iou"), ("agnostic=yes", "agnostic"),
                            ("max_detections=0", "max_detections"), ("max_detections=1001", "max_detections"),
                            ("max_detections=9e9", "max_detections"), ("classes=", "classes"),
                            ("classes=1,", "classes"), ("classes=-1", "classes"), ("classes=dog", "'dog'"),
                            ("classes=1,a%20dogs", "'a dogs'"), ("classes=a%20dog,", "classes"),
                            ("classes=10000000000", "classes"),
                            ("classes=" + ",".join("1" * 65), "classes"), ("treshold=0.5", "treshold")):
            with self.subTest(query):
                answer = self.ask("?" + query, status=400)
                self.assertIn(name, answer["error"])
                self.assertEqual(answer["code"], "invalid_request")

    def test_counts(self):
        series = 'lensd_detections_total{model="' + self.name + '"}'
        before = self.server.metric(series)
        self.ask()
        self.ask("?confidence=0.56")
        self.assertEqual(self.server.metric(series), before + 4)

    def test_parameters_of_other_tasks(self):
        for query, name in (("normalize=true", "normalize"), ("masks=png", "masks"), ("top_k=3", "top_k"),
                            ("confidence=0.3&normalize=false", "normalize")):
            answer = self.ask("?" + query, status=400)
            self.assertEqual((answer["code"], answer["error"]), (
                "invalid_request", f"{name} has no effect on a model whose task is detection (its parameters: "
                "confidence, iou, max_detections, classes, agnostic, track); leave it out"))

    def test_several_images(self):
        kind, body = multipart([("image", "a.png", png(400, 300)), ("image", "b.png", b"no picture"),
                                ("image", "c.png", png(64, 64)), ("confidence", None, b"0.56")])
        answer = self.ask(photo=body, headers={"Content-Type": kind})
        self.assertEqual([r["name"] for r in answer["results"]], ["a.png", "b.png", "c.png"])
        self.assertEqual(len(answer["results"][0]["predictions"]), 1)
        self.assertEqual(answer["results"][1]["code"], "unsupported_media_type")
        self.assertEqual(corners(answer["results"][2]["predictions"][0]), [24, 20, 40, 44])

    def test_turned_photo(self):
        """Boxes are in pixels of the upright picture, and lie in it."""
        photo = read(os.path.join(ROOT, "tests", "data", "images", "exif_6.jpg"))
        answer = self.ask("?confidence=0.1", photo=photo)
        width, height = answer["image"]["width"], answer["image"]["height"]
        for prediction in answer["predictions"]:
            x1, y1, x2, y2 = corners(prediction)
            self.assertTrue(0 <= x1 <= x2 <= width and 0 <= y1 <= y2 <= height, prediction)

    def test_other_forms(self):
        lines = self.server.request("POST", "/predict", png(64, 64), {"Accept": "text/plain"}).body.decode()
        self.assertEqual(lines.splitlines()[0], "0.900000 24.00 20.00 40.00 44.00 a dog")
        numbers = self.server.request("POST", "/predict", png(64, 64), {"Accept": "application/octet-stream"}).body
        self.assertEqual(len(numbers), 4 + 3 * 24)
        served = self.server.request("POST", f"/predictions/{self.name}", png(64, 64)).json()
        self.assertEqual(served[0], {"a dog": [24, 20, 40, 44], "score": served[0]["score"]})

    def test_tensors_stay_tensors(self):
        answer = self.server.request("POST", f"/v2/models/{self.name}/infer", png(64, 64),
                                     {"Inference-Header-Content-Length": "0"})
        size = int(answer.headers["Inference-Header-Content-Length"])
        output = json.loads(answer.body[:size])["outputs"][0]
        self.assertEqual((output["name"], output["shape"]), ("found", [1, 6, 84]))

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        lines = run_lensd("predict", "--model", self.folder, path).stdout.splitlines()
        self.assertEqual(lines[1].strip(), "90.00 %  (24, 20) to (40, 44)  a dog  (class 1)")
        self.assertEqual(lines[-1].strip(), "3 boxes: 2 a dog, 1 a cat")
        with tempfile.TemporaryDirectory() as folder:
            self.make(os.path.join(folder, "model.onnx"))
            with open(os.path.join(folder, "labels.txt"), "w", encoding="utf-8") as file:
                file.write("a cat\na \x1b[2Jdog\n")
            self.assertIn("  a \\x1b[2Jdog  (class 1)", run_lensd("predict", "--model", folder, path).stdout)
        os.unlink(path)


    def test_json_bodies_take_parameters(self):
        image = {"b64": base64.b64encode(png(400, 300)).decode()}
        def scores(**more):
            answer = self.ask(photo=json.dumps({"image": image, **more}).encode(), headers={"Content-Type": "application/json"})
            return [round(p["score"], 3) for p in answer["predictions"]]
        self.assertEqual(scores(), [.9, .55, .5])
        self.assertEqual(scores(confidence=0.56), [.9])
        self.assertEqual(scores(iou=1), [.9, .6, .55, .5])
        self.assertEqual(scores(agnostic=True, max_detections=5), [.9, .55])
        self.assertEqual(scores(classes=["a cat"]), [.55])
        self.assertEqual(scores(classes=["a dog", 0]), [.9, .55, .5])
        self.assertEqual(scores(classes="0"), [.55])
        for more, what in (({"confidence": 2}, "confidence"), ({"confidence": "high"}, "confidence"),
                           ({"iou": None}, "iou"), ({"classes": ["a bird"]}, "'a bird'"), ({"classes": []}, "classes"),
                           ({"treshold": .5}, "unknown parameter 'treshold'"),
                           ({"confidense": .5}, "did you mean 'confidence'?"), ({"max_detections": 1.5}, "max_detections"),
                           ({f"p{i}": 1 for i in range(20)}, "more than 16 parameters")):
            with self.subTest(more):
                answer = self.ask(photo=json.dumps({"image": image, **more}).encode(), status=400,
                                  headers={"Content-Type": "application/json"})
                self.assertIn(what, answer["error"])


class Pictures(Tasks):
    """Answers as the photo, drawn on."""

    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, DETECT)

    def picture(self, query="", photo=None, headers=None):
        answer = self.server.request("POST", f"/predict{query}", photo or png(400, 300), headers)
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer

    def test_forms(self):
        for query, accept, kind in (("?format=image", None, "image/jpeg"), ("?format=jpeg", "text/plain", "image/jpeg"),
                                    ("", "image/jpeg", "image/jpeg"), ("", "image/png", "image/png"),
                                    ("?format=png", None, "image/png"), ("", "image/*;q=0.9, text/html", "image/jpeg"),
                                    ("?format=json", "image/png", "application/json"), ("", "*/*", "application/json")):
            with self.subTest(query=query, accept=accept):
                answer = self.picture(query, headers={"Accept": accept} if accept else None)
                self.assertEqual(answer.headers["Content-Type"], kind)
                begin = {"image/jpeg": b"\xff\xd8\xff", "image/png": b"\x89PNG\r\n\x1a\n", "application/json": b"{"}[kind]
                self.assertTrue(answer.body.startswith(begin), answer.body[:20])

    def test_what_is_drawn(self):
        """Of a black photo the boxes' outlines are what is not black."""
        blank = self.rows("?format=png&confidence=1")
        drawn = self.rows("?format=png&confidence=0.6")
        self.assertEqual((len(drawn), len(drawn[0])), (300, 1200))
        self.assertNotEqual(drawn, blank)
        # The box is (150, 75) to (250, 225): its sides differ from the photo, its inside and the rest do not.
        pixel = lambda rows, x, y: rows[y][3 * x:3 * x + 3]
        for x, y, differs in ((150, 150, True), (250, 150, True), (200, 225, True), (200, 150, False), (300, 150, False)):
            self.assertEqual(pixel(drawn, x, y) != pixel(blank, x, y), differs, (x, y))

    def rows(self, query):
        """The pixels of a PNG answer, row by row."""
        data = self.picture(query).body
        width, height = struct.unpack(">II", data[16:24])
        at, packed = 8, b""
        while at < len(data):
            size = struct.unpack(">I", data[at:at + 4])[0]
            if data[at + 4:at + 8] == b"IDAT":
                packed += data[at + 8:at + 8 + size]
            at += 12 + size
        raw, stride, rows = zlib.decompress(packed), 3 * width, []
        above = bytearray(stride)
        for y in range(height):
            kind, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
            for i in range(stride):
                a, b, c = line[i - 3] if i > 2 else 0, above[i], above[i - 3] if i > 2 else 0
                p = a + b - c
                paeth = min(((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c)))[2]
                line[i] = (line[i] + (0, a, b, (a + b) // 2, paeth)[kind]) & 255
            rows.append(bytes(line))
            above = line
        return rows

    def test_turned_photo(self):
        photo = read(os.path.join(ROOT, "tests", "data", "images", "exif_6.jpg"))
        size = self.ask(photo=photo)["image"]
        data = self.picture("?format=png", photo).body
        self.assertEqual(struct.unpack(">II", data[16:24]), (size["width"], size["height"]))

    def test_refusals(self):
        kind, body = multipart([("image", "a.png", png(9, 9)), ("image", "b.png", png(9, 9))])
        answer = self.ask("?format=image", body, 400, {"Content-Type": kind})
        self.assertIn("one photo", answer["error"])
        kind, body = multipart([("image", "a.png", png(9, 9)), ("format", None, b"png")])
        self.assertEqual(self.picture(photo=body, headers={"Content-Type": kind}).headers["Content-Type"], "image/png")
        self.assertIn("format", self.ask("?format=gif", status=400)["error"])
        answer = self.server.request("POST", "/predict?format=image", b"no picture")
        self.assertEqual((answer.status, answer.json()["code"]), (415, "unsupported_media_type"))

    def test_size(self):
        """A small file of many pixels: its picture in an answer has at most --max-body bytes."""
        side, noise = 640, random.Random(1)
        rows = b"".join(b"\0" + noise.randbytes(side // 8) for _ in range(side))
        photo = (b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)) +
                 png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b""))
        server = Server(self.folder, "--device", "cpu", "--max-body", "64K")
        self.addCleanup(server.stop)
        for form, advice in (("png", "a JPEG (format=image)"), ("image", "JSON")):
            size = len(self.picture(f"?format={form}", photo).body)
            self.assertGreater(size, 65536)
            answer = server.request("POST", f"/predict?format={form}", photo)
            self.assertEqual((answer.status, answer.json()["code"]), (413, "too_large"))
            self.assertIn(f"of {size} bytes, more than the limit of 65536 (--max-body)", answer.json()["error"])
            self.assertTrue(answer.json()["error"].endswith(f"or request {advice}"), answer.json()["error"])
        self.assertEqual(server.request("POST", "/predict", photo).status, 200)

    def test_command_line(self):
        paths = [os.path.join(self.folder, name) for name in ("one.png", "two.png")]
        for path in paths:
            with open(path, "wb") as file:
                file.write(png(64, 64))
        with tempfile.TemporaryDirectory() as out:
            self.assertEqual(run_lensd("predict", "--model", self.folder, *paths, "--annotate", out).returncode, 0)
            self.assertEqual(sorted(os.listdir(out)), ["one.jpg", "two.jpg"])
            one = os.path.join(out, "drawn.png")
            self.assertEqual(run_lensd("predict", "--model", self.folder, paths[0], "--annotate", one).returncode, 0)
            self.assertTrue(read(one).startswith(b"\x89PNG"))
            again = run_lensd("predict", "--model", self.folder, paths[0], "--annotate", paths[0])
            self.assertIn("there is such a file", again.stderr)
            self.assertEqual((again.returncode, read(paths[0])), (1, png(64, 64)))
            made = run_lensd("predict", "--model", self.folder, *paths, "--annotate", one)
            self.assertIn("name a folder", made.stderr)
            self.assertNotEqual(made.returncode, 0)
            made = run_lensd("predict", "--model", self.folder, *paths, "--annotate", os.path.join(out, "new"))
            self.assertEqual((made.returncode, sorted(os.listdir(os.path.join(out, "new")))),
                             (0, ["one.jpg", "two.jpg"]), made.stderr)
            made = run_lensd("predict", "--model", self.folder, paths[0], "--annotate", os.path.join(out, "no", "ne"))
            self.assertRegex(made.stderr, "cannot make the folder '.*/no/ne': No such file")
            self.assertNotEqual(made.returncode, 0)
            made = run_lensd("predict", "--model", self.folder, paths[0], "--annotate", os.path.join(out, "no", "ne.png"))
            self.assertIn("cannot write it", made.stderr)
            self.assertEqual(made.returncode, 1)
        for path in paths:
            os.unlink(path)


class PictureMemory(Tasks):
    """Pixels of answers count as their other bytes do."""

    arguments = ("--max-body", "100000", "--max-upload-memory", "200000")

    @classmethod
    def make(cls, path):
        small_onnx.always(path, DETECT)

    def test_too_large(self):
        self.ask(photo=png(400, 300))
        answer = self.ask("?format=image", png(400, 300), status=413)
        self.assertIn("--max-upload-memory", answer["error"])


class Yolox(Tasks):
    """Boxes in cells of grids; photos are in the upper left corner of the input."""

    @classmethod
    def make(cls, path):
        rows = [(2, 2, 0, 0, .9, 1, 0)] + [(0,) * 7] * 83
        small_onnx.always(path, [("o", (84, 7), [v for row in rows for v in row])])

    def test_boxes(self):
        (found,) = self.ask()["predictions"]
        self.assertEqual(corners(found), [75, 75, 125, 125])
        self.assertEqual(self.task(), ("detection", "output 'o' has the shape [1, 84, 7], as yolox has it"))
        self.assertIn("letterbox into 64 x 64 (linear, not antialiased, padded right and below with 114), BGR, x",
                      self.inspected())


class CropBeforeResize(Tasks):
    """The model sees the middle 150 x 150 of 400 x 300."""

    files = {"labels.txt": LABELS,
             "preprocessor_config.json": json.dumps({"image_processor_type": "PerceiverImageProcessor",
                                                     "size": {"height": 64, "width": 64},
                                                     "crop_size": {"height": 128, "width": 128}})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, DETECT)

    def test_boxes(self):
        self.assertEqual(corners(self.ask()["predictions"][0]), [181.25, 121.875, 218.75, 178.125])


class Folder(Tasks):
    """lensd.json: the task, its thresholds."""

    files = {"lensd.json": '{"task": "detection", "layout": "yolo-final", "confidence": 0.6, "classes": [3]}'}

    @classmethod
    def make(cls, path):
        rows = [(10, 20, 30, 60, .7, 3), (1, 2, 3, 4, .65, 2), (1, 2, 3, 4, .5, 3)] + [(0,) * 6] * 2
        small_onnx.always(path, [("o", (5, 6), [v for row in rows for v in row])])

    def test_boxes(self):
        answer = self.ask(photo=png(64, 64))
        self.assertEqual([corners(p) for p in answer["predictions"]], [[10, 20, 30, 60]])
        self.assertNotIn("label", answer["predictions"][0])
        self.assertEqual(len(self.ask("?confidence=0.4", photo=png(64, 64))["predictions"]), 2)
        self.assertEqual(self.task(), ("detection", "layout 'yolo-final' in lensd.json"))

    def test_wrong_files(self):
        for text, what in (('{"task": "poetry"}', '"poetry"'), ('{"layout": "yolov9000"}', "yolov8"),
                           ('{"confidence": 2}', '"confidence"'), ('{"classes": [1.5]}', '"classes"'), ('{"classes": ["a cat"]}', "'a cat' is not a label"),
                           ('{"treshold": 1}', '"treshold"'), ("[]", "object"), ('{"task": "classification"}', "score"),
                           ('{"max_detections": 0}', '"max_detections"')):
            with self.subTest(text), tempfile.TemporaryDirectory() as folder:
                shutil.copy(os.path.join(self.folder, "model.onnx"), folder)
                with open(os.path.join(folder, "lensd.json"), "w", encoding="utf-8") as file:
                    file.write(text)
                made = run_lensd("inspect", folder)
                self.assertNotEqual(made.returncode, 0)
                self.assertIn(what, made.stderr)
                self.assertIn("lensd.json", made.stderr)


class WrongLayout(Tasks):
    """lensd.json names a layout that the outputs do not have: a matter of the model, no failure of the server."""

    files = {"lensd.json": '{"layout": "yolox"}'}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("o", (5, 7), [1] * 35)])

    def test_says_so(self):
        answer = self.ask(status=400)
        self.assertIn("[5, 7]", answer["error"])
        self.assertIn("lensd.json", answer["error"])


class CommandLine(Tasks):
    """Options override lensd.json, and requests override options."""

    arguments = ("--confidence", "0.56", "--agnostic", "--classes", "a cat,1")
    files = {"labels.txt": LABELS, "lensd.json": '{"confidence": 0.8, "classes": ["a cat"]}'}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, DETECT)

    def test_order(self):
        self.assertEqual([p["index"] for p in self.ask()["predictions"]], [1])
        self.assertEqual([p["index"] for p in self.ask("?confidence=0.3")["predictions"]], [1, 0])
        self.assertEqual([p["index"] for p in self.ask("?confidence=0.3&agnostic=false")["predictions"]], [1, 0, 1])
        made = run_lensd("serve", self.folder, "--iou", "2")
        self.assertEqual(made.returncode, 2)
        self.assertIn("--iou is '2'; it must be a number from 0 to 1", made.stderr)

    def test_labels_of_the_folder(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        lines = run_lensd("predict", "--model", self.folder, "--confidence", "0.1", path).stdout.splitlines()
        self.assertEqual([line.split("  ")[-2] for line in lines[1:-1]], ["a cat"])
        self.assertEqual(lines[-1].strip(), "1 box: 1 a cat")
        made = run_lensd("predict", "--model", self.folder, "--classes", "a bird", path)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("'a bird' is neither a number nor a label", made.stderr)
        made = run_lensd("predict", "--model", self.folder, "--classes", "a cta", path)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("did you mean 'a cat'?", made.stderr)
        listed = run_lensd("inspect", self.folder, "--labels")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        self.assertIn("a cat", listed.stdout.splitlines())
        os.unlink(path)


class Pose(Tasks):
    """Ultralytics' pose models, by the file's metadata; COCO's names for 17 points."""

    NOSE = [34, 20, .9]

    @classmethod
    def make(cls, path):
        row = [24, 12, 40, 44, .8, 0, *cls.NOSE, *[0, 0, .1] * 16]
        small_onnx.always(path, [("output0", (2, 57), row + [0] * 57)],
                          metadata=[("author", "Ultralytics"), ("task", "pose"), ("names", "{0: 'person'}"),
                                    ("kpt_shape", "[17, 3]"), ("end2end", "True")])

    def test_points(self):
        (found,) = self.ask()["predictions"]
        self.assertEqual(found["label"], "person")
        self.assertEqual(len(found["keypoints"]), 17)
        nose = found["keypoints"][0]
        self.assertEqual((nose["name"], nose["x"], nose["y"], round(nose["score"], 3)), ("nose", 212.5, 75, .9))
        self.assertEqual(found["keypoints"][16], {"name": "right_ankle", "x": 0, "y": 0, "score": .1})
        self.assertEqual(self.task(), ("pose", "task 'pose' in the file's metadata, yolo-final"))

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        lines = run_lensd("predict", "--model", self.folder, path).stdout.splitlines()
        self.assertEqual(lines[1].strip(), "80.00 %  (24, 12) to (40, 44)  person  (class 0)")
        self.assertEqual(lines[2].strip(), "90.00 %  (34, 20)  nose")
        os.unlink(path)


class OwnPoints(Pose):
    """Points of another kind, without scores."""

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("output0", (2, 8), [24, 12, 40, 44, .8, 0, 34, 20] + [0] * 8)],
                          metadata=[("author", "Ultralytics"), ("task", "pose"), ("names", "{0: 'dog'}"),
                                    ("kpt_shape", "[1, 2]"), ("kpt_names", "{0: ['tail']}"), ("end2end", "True")])

    def test_points(self):
        (found,) = self.ask()["predictions"]
        self.assertEqual(found["keypoints"], [{"name": "tail", "x": 212.5, "y": 75}])

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        lines = run_lensd("predict", "--model", self.folder, path).stdout.splitlines()
        self.assertEqual(lines[2].strip(), "(34, 20)  tail")
        os.unlink(path)


class Oriented(Tasks):
    """Ultralytics' oriented boxes: centre, size and angle."""

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("output0", (2, 7), [32, 32, 16, 8, .8, 1, math.pi / 2] + [0] * 7)],
                          metadata=[("author", "Ultralytics"), ("task", "obb"), ("end2end", "True"),
                                    ("names", "{0: 'plane', 1: 'ship'}")])

    def test_boxes(self):
        (found,) = self.ask(photo=png(128, 128))["predictions"]
        self.assertEqual((found["label"], corners(found)), ("ship", [56, 48, 72, 80]))
        box = found["oriented_box"]
        self.assertEqual([box[k] for k in ("x", "y", "width", "height")], [64, 64, 32, 16])
        self.assertAlmostEqual(box["angle"], math.pi / 2, places=5)
        self.assertEqual(box["corners"], [[56, 80], [72, 80], [72, 48], [56, 48]])
        self.assertEqual(self.task(), ("oriented-boxes", "task 'obb' in the file's metadata, yolo-final"))

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        lines = run_lensd("predict", "--model", self.folder, path).stdout.splitlines()
        self.assertEqual(lines[1].strip(), "80.00 %  16 x 8 around (32, 32), rotated by 90.0 degrees  ship  (class 1)")
        os.unlink(path)


class Instances(Tasks):
    """YOLO's masks: a prototype that is positive in the left half, and its factor for each box."""

    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("output0", (2, 7), [16, 16, 48, 48, .8, 1, 1] + [0] * 7),
                                 ("output1", (1, 16, 16), ([1] * 8 + [-1] * 8) * 16)],
                          metadata=[("author", "Ultralytics"), ("task", "segment"), ("end2end", "True")])

    def test_picture(self):
        answer = self.server.request("POST", "/predict?format=image", png(64, 64))
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "image/jpeg"))

    def test_masks(self):
        (found,) = self.ask(photo=png(64, 64))["predictions"]
        self.assertEqual((found["label"], corners(found), found["area"]), ("a dog", [16, 16, 48, 48], 16 * 32))
        self.assertEqual(found["rle"]["size"], [64, 64])
        (again,) = self.ask("?masks=rle", photo=png(64, 64))["predictions"]
        self.assertEqual(again["rle"], found["rle"])
        self.assertEqual(self.task(), ("instance-segmentation", "task 'segment' in the file's metadata, yolo-final"))

    def test_forms(self):
        (found,) = self.ask("?masks=polygon", photo=png(64, 64))["predictions"]
        self.assertEqual(found["polygons"], [[16, 16, 32, 16, 32, 48, 16, 48]])
        self.assertNotIn("rle", found)
        (found,) = self.ask("?masks=png", photo=png(64, 64))["predictions"]
        mask = found["png"]
        self.assertEqual([mask[k] for k in ("x", "y", "width", "height")], [16, 16, 16, 32])
        data = base64.b64decode(mask["data"], validate=True)
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertEqual(struct.unpack(">IIBB", data[16:26]), (16, 32, 1, 0))
        for form in ("", "jpeg", "RLE"):
            self.assertIn("masks", self.ask(f"?masks={form}", status=400)["error"])

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        answer = json.loads(run_lensd("predict", "--model", self.folder, "--masks", "polygon", "--json", path).stdout)
        self.assertEqual(len(answer["results"][0]["predictions"][0]["polygons"]), 1)
        self.assertIn("512 pixels", run_lensd("predict", "--model", self.folder, path).stdout)
        os.unlink(path)


class MaskLists(Tasks):
    """torchvision's Mask R-CNN: probabilities in pixels of the input; lensd.json chooses the form."""

    files = {"lensd.json": '{"masks": "polygon"}'}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("boxes", ("n", 4), [0, 0, 4, 2, 0, 0, 1, 1]), ("labels", ("n",), [5, 1], 7),
                                 ("scores", ("n",), [.75, .1]), ("masks", ("n", 1, 4, 4), [1, 1, 0, 0] * 4 + [0] * 16)],
                          batch=1, side=4)

    def test_masks(self):
        (found,) = self.ask(photo=png(4, 4))["predictions"]
        self.assertEqual((found["index"], found["area"], found["polygons"]), (5, 8, [[0, 0, 2, 0, 2, 4, 0, 4]]))
        self.assertEqual(self.task()[0], "instance-segmentation")


class QueryMasks(Tasks):
    """Mask2Former: two queries whose masks are the halves of the picture."""

    files = {"config.json": json.dumps({"architectures": ["Mask2FormerForUniversalSegmentation"],
                                        "id2label": {"0": "cat", "1": "dog"}})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("class_queries_logits", (2, 3), [9, 0, 0, 0, 8, 0]),
                                 ("masks_queries_logits", (2, 2, 2), [9, -9, 9, -9, -8, 8, -8, 8])])

    def test_masks(self):
        found = self.ask(photo=png(64, 32))["predictions"]
        self.assertEqual([(p["label"], corners(p), p["area"]) for p in found],
                         [("cat", [0, 0, 32, 32], 32 * 32), ("dog", [32, 0, 64, 32], 32 * 32)])
        self.assertEqual(self.task(), ("instance-segmentation", "Mask2FormerForUniversalSegmentation in config.json"))
        self.assertIn("iou has no effect", self.ask("?iou=0.5", status=400)["error"])


class Faces(Tasks):
    """YuNet: 64, 16 and 4 cells of a picture of 64 x 64; one face in the second row of the second grid."""

    @classmethod
    def make(cls, path):
        outputs, cells = [], {8: 64, 16: 16, 32: 4}
        face = {"cls": [1], "obj": [.81], "bbox": [.5, .5, 0, 0], "kps": [0, 0, 1, 0, .5, .5, 0, 1, 1, 1]}
        for name, numbers in face.items():
            for stride, count in cells.items():
                rows = [[0] * len(numbers)] * count
                if stride == 16:
                    rows = rows[:5] + [numbers] + rows[6:]
                outputs.append((f"{name}_{stride}", (count, len(numbers)), [v for row in rows for v in row]))
        small_onnx.always(path, outputs)

    def test_faces(self):
        (face,) = self.ask("?confidence=0.8", photo=png(128, 64))["predictions"]
        self.assertEqual((face["index"], round(face["score"], 3), corners(face)), (0, .9, [32, 32, 64, 64]))
        self.assertEqual([(p["name"], p["x"], p["y"]) for p in face["keypoints"]],
                         [("right_eye", 32, 32), ("left_eye", 64, 32), ("nose", 48, 48), ("right_mouth_corner", 32, 64),
                          ("left_mouth_corner", 64, 64)])
        self.assertEqual(self.task(), ("pose", "outputs 'cls_8' to 'kps_32', as YuNet's"))
        self.assertIn("letterbox into 64 x 64 (linear, not antialiased, padded right and below with 0), BGR, x",
                      self.inspected())


class Scrfd(Tasks):
    """InsightFace's form without a batch, and names that say nothing: one face in the third cell of the grid of 16."""

    has_batch = False

    @classmethod
    def make(cls, path):
        outputs = []
        for numbers in ([.75], [1, .5, 2, 1], [-.5, 0, .5, 0, 0, .5, -.5, 1, .5, 1]):
            for stride, count in ((8, 128), (16, 32), (32, 8)):
                rows = [[0] * len(numbers)] * count
                if stride == 16:
                    rows = rows[:5] + [numbers] + rows[6:]
                shape = (count, len(numbers)) if cls.has_batch else ("n", len(numbers))
                outputs.append((str(448 + len(outputs)), shape, [v for row in rows for v in row]))
        small_onnx.always(path, outputs, batch="N" if cls.has_batch else 1)

    def test_faces(self):
        """The second anchor of the cell at (32, 0); 128 x 64 is halved."""
        (face,) = self.ask("?confidence=0.7", photo=png(128, 64))["predictions"]
        self.assertEqual((face["index"], face["score"], corners(face)), (0, .75, [32, 0, 128, 32]))
        self.assertEqual([(p["name"], p["x"], p["y"]) for p in face["keypoints"]],
                         [("right_eye", 48, 0), ("left_eye", 80, 0), ("nose", 64, 16), ("right_mouth_corner", 48, 32),
                          ("left_mouth_corner", 80, 32)])
        self.assertEqual(self.task(), ("pose", "nine outputs of scores, boxes and points, as SCRFD's"))
        self.assertIn("letterbox into 64 x 64 (linear, not antialiased, padded right and below with 0), RGB, x, "
                      "mean 127.5 127.5 127.5, std 128 128 128", self.inspected())
        kind, body = multipart([("image", "a.png", png(64, 64))] * 3)
        results = self.ask(photo=body, headers={"Content-Type": kind})["results"]
        self.assertEqual([len(result["predictions"]) for result in results], [1, 1, 1])


class ScrfdOfBatches(Scrfd):
    has_batch = True


class Anomaly(Tasks):
    """anomalib: the right half is unusual."""

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("pred_score", (1,), [.75]), ("pred_label", (1,), [1], 9),
                                 ("anomaly_map", (1, 2, 2), [.25, 1, .25, 1]), ("pred_mask", (1, 2, 2), [0, 1, 0, 1], 9)])

    def test_answer(self):
        answer = self.ask(photo=png(40, 20))
        self.assertEqual(answer["anomaly"], {"score": .75, "anomalous": True})
        self.assertNotIn("predictions", answer)
        self.assertEqual((answer["mask"]["area"], answer["mask"]["rle"]["size"]), (20 * 20, [20, 40]))
        self.assertLess(answer["map"]["min"], .26)
        self.assertGreater(answer["map"]["max"], .99)
        self.assertEqual(base64.b64decode(answer["map"]["png"])[16:24], struct.pack(">2I", 40, 20))
        self.assertEqual(self.task(), ("anomaly", "output 'pred_score', as anomalib's"))
        self.assertIn("resize to 64 x 64", self.inspected())

    def test_forms(self):
        self.assertEqual(self.ask("?masks=polygon", photo=png(40, 20))["mask"]["polygons"], [[20, 0, 40, 0, 40, 20, 20, 20]])
        lines = self.server.request("POST", "/predict", png(40, 20), {"Accept": "text/plain"})
        self.assertEqual(lines.body.splitlines()[0], b"0.750000 anomalous")
        self.assertEqual(self.server.request("POST", "/predict?format=png", png(40, 20)).status, 200)
        self.assertIn("anomaly (its parameters: masks)", self.ask("?confidence=0.5", status=400)["error"])
        printed = run_lensd("predict", self.folder, os.path.join(ROOT, "tests", "data", "images", "exif_6.jpg")).stdout
        self.assertIn("75.00 %  anomalous", printed)


class AnomalyScore(Tasks):
    """A model that has no label, map or mask."""

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("pred_score", (1,), [.25])])

    def test_answer(self):
        answer = self.ask(photo=png(40, 20))
        self.assertEqual(answer["anomaly"], {"score": .25, "anomalous": False})
        self.assertTrue({"map", "mask"}.isdisjoint(answer))


class YoloNas(Tasks):
    """The list that SuperGradients' graph makes: number of the image, corners, score, class."""

    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("graph2_flat_predictions", ("n", 7), [0, 8, 16, 24, 48, .9, 1, 0, 0, 0, 8, 24, .5, 0])],
                          batch=1)

    def test_boxes(self):
        found = self.ask(photo=png(64, 64))["predictions"]
        self.assertEqual([(p["label"], round(p["score"], 3), corners(p)) for p in found],
                         [("a dog", .9, [8, 16, 24, 48]), ("a cat", .5, [0, 0, 8, 24])])
        self.assertEqual(self.task(), ("detection", "output 'graph2_flat_predictions', as YOLO-NAS has it"))


class YoloNasScores(Tasks):
    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("boxes", (84, 4), [8, 16, 24, 48] * 84), ("scores", (84, 2), [.5, .9] + [0, .3] * 83)])

    def test_boxes(self):
        """Both classes of a box are found; the rest of the same place is suppressed."""
        found = self.ask(photo=png(64, 64))["predictions"]
        self.assertEqual([(p["label"], round(p["score"], 3)) for p in found], [("a dog", .9), ("a cat", .5)])
        self.assertEqual(self.task(), ("detection", "output 'boxes' of boxes, and one of scores, as YOLO-NAS has it"))


class TextBoxes(Tasks):
    """PP-OCR's detector: a bar of text in a map of 32 x 32."""

    files = {"lensd.json": '{"task": "text-detection"}'}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("map", (1, 32, 32), [.9 if 4 <= x < 25 and 8 <= y < 14 else .1
                                                       for y in range(32) for x in range(32)])])

    def test_boxes(self):
        """20 x 5 from the middle of the first pixel to that of the last; moved outwards by 1.5 * 100 / 50."""
        (text,) = self.ask(photo=png(64, 64))["predictions"]
        self.assertAlmostEqual(text["score"], .9, places=5)
        self.assertEqual(text["corners"], [[2, 10], [54, 10], [54, 32], [2, 32]])
        self.assertEqual(corners(text), [2, 10, 54, 32])
        self.assertNotIn("keypoints", text)
        self.assertEqual(self.ask("?confidence=0.91", photo=png(64, 64))["predictions"], [])
        self.assertEqual(self.task(), ("text-detection", "task 'text-detection' in lensd.json"))
        self.assertEqual(self.server.request("POST", "/predict?format=image", png(64, 64)).status, 200)
        self.assertIn("classes has no effect", self.ask("?classes=0", status=400)["error"])


class TextBoxesOnWholePoints(TextBoxes):
    """The same, grown by a pixel to the right and below, and moved outwards as pyclipper does."""

    files = {"lensd.json": '{"task": "text-detection", "unclip_ratio": 1.6, "use_dilation": true}'}

    def test_boxes(self):
        """21 x 6 from the middle of the first pixel to that of the last; moved outwards by 1.6 * 126 / 54 = 3.73."""
        (text,) = self.ask("?confidence=0.5", photo=png(64, 64))["predictions"]
        self.assertAlmostEqual(text["score"], (126 * .9 + 28 * .1) / 154, places=5)
        self.assertEqual(text["corners"], [[0, 8], [58, 8], [58, 36], [0, 36]])

    def test_wrong_settings(self):
        for setting, words in (('"unclip_ratio": 0', "a number from 0.1 to 10"), ('"use_dilation": 1', "true or false")):
            with tempfile.TemporaryDirectory() as folder:
                self.make(os.path.join(folder, "model.onnx"))
                with open(os.path.join(folder, "lensd.json"), "w", encoding="utf-8") as file:
                    file.write('{"task": "text-detection", %s}' % setting)
                self.assertIn(words, run_lensd("inspect", folder).stderr)


class TextLine(Tasks):
    """PP-OCR's recognition: a blank, four characters of characters.txt and a space, at six positions."""

    files = {"characters.txt": "a\nb\nß\n字\n"}

    @classmethod
    def make(cls, path):
        best = [(1, .9), (1, .8), (0, 1), (1, .7), (5, .5), (4, .6)]
        small_onnx.always(path, [("text", (6, 6), [p if c == k else 0 for k, p in best for c in range(6)])])

    def test_text(self):
        answer = self.ask()
        self.assertEqual(answer["text"], "aa 字")
        self.assertAlmostEqual(answer["score"], (.9 + .7 + .5 + .6) / 4, places=5)
        self.assertNotIn("predictions", answer)
        self.assertEqual(self.task(), ("text-recognition", "a list of 4 characters, output 'text'"))
        self.assertNotIn("photos are prepared", self.server.whole_log())
        lines = self.server.request("POST", "/predict", png(9, 9), {"Accept": "text/plain"}).body.decode()
        self.assertEqual(lines, "0.675000 aa 字\n")
        numbers = self.server.request("POST", "/predict", png(9, 9), {"Accept": "application/octet-stream"}).body
        self.assertEqual(struct.unpack("<I", numbers[:4])[0], len(numbers) - 8)
        self.assertEqual(numbers[8:].decode(), "aa 字")
        self.assertEqual(self.server.request("POST", f"/predictions/{self.name}", png(9, 9)).json()["text"], "aa 字")
        self.assertIn("texts", self.ask("?format=image", status=400)["error"])
        self.assertIn("text-recognition; leave it out", self.ask("?top_k=1", status=400)["error"])

    def test_command_line(self):
        path = os.path.join(self.folder, "photo.png")
        with open(path, "wb") as file:
            file.write(png(64, 64))
        self.assertIn("67.50 %  aa 字", run_lensd("predict", "--model", self.folder, path).stdout)
        os.unlink(path)

    def test_list_of_another_length(self):
        with tempfile.TemporaryDirectory() as folder:
            self.make(os.path.join(folder, "model.onnx"))
            with open(os.path.join(folder, "characters.txt"), "w", encoding="utf-8") as file:
                file.write("a\nb\n")
            self.assertIn("the model's list has 2 characters, but no output has the shape [batch, positions, 3 or 4]",
                          " ".join(run_lensd("inspect", folder).stdout.split()))


class TimeMajorLine(Tasks):
    """[positions, batch, 1 + characters], as CTC's loss wants it, with scores that no softmax has seen: a captcha."""

    files = {"characters.txt": "a\nb\nc\nd\n"}
    repeats = 1

    @classmethod
    def make(cls, path):
        rows = [[0, 6, 0, 0, 1], [6, 0, 0, 0, 1], [0, 6, 0, 0, 1], [0, 0, 0, 0, 9]]
        small_onnx.always(path, [("row", (4, 5), [v for row in rows for v in row])], transposed="row", repeats=cls.repeats)

    def test_text(self):
        answer = self.ask()
        self.assertEqual(answer["text"], "aad")
        each = [math.exp(6) / (math.exp(6) + 3 + math.e)] * 2 + [math.exp(9) / (math.exp(9) + 4)]
        self.assertAlmostEqual(answer["score"], sum(each) / 3, places=5)
        self.server.wait_log("lensd returns it as [batch, steps, classes]")
        outputs = self.server.get(f"/v2/models/{self.name}").json()["outputs"]
        self.assertEqual([(output["name"], output["shape"]) for output in outputs], [("row", [-1, 4, 5])] * self.repeats)


class TimeMajorLineListedTwice(TimeMajorLine):
    repeats = 2


class Queries(Tasks):
    """Hugging Face's DETR, by config.json."""

    files = {"config.json": json.dumps({"architectures": ["DetrForObjectDetection"],
                                        "id2label": {"0": "cat", "1": "dog"}})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("logits", (2, 3), [0, 9, 0, 0, 0, 9]),
                                 ("pred_boxes", (2, 4), [.5, .5, .25, .5, .1, .1, .1, .1])])

    def test_boxes(self):
        (found,) = self.ask()["predictions"]
        self.assertEqual(found["label"], "dog")
        self.assertEqual(corners(found), [150, 75, 250, 225])
        self.assertEqual(self.task(), ("detection", "DetrForObjectDetection in config.json"))


class Lists(Tasks):
    """torchvision's: how many boxes there are depends on the picture."""

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("boxes", ("n", 4), [1, 2, 11, 22, 0, 0, 1, 1]), ("labels", ("n",), [5, 1], 7),
                                 ("scores", ("n",), [.75, .1])], batch=1)

    def test_boxes(self):
        (found,) = self.ask(photo=png(128, 64))["predictions"]
        self.assertEqual((found["index"], found["score"], corners(found)), (5, .75, [2, 2, 22, 22]))
        self.assertEqual(self.task()[0], "detection")
        kind, body = multipart([("image", f"{i}.png", png(64, 64, i)) for i in range(3)])
        results = self.ask(photo=body, headers={"Content-Type": kind})["results"]
        self.assertEqual([len(r["predictions"]) for r in results], [1, 1, 1])


class Embedding(Tasks):
    files = {"config.json": json.dumps({"architecture": "vit_small_patch14_dinov2", "num_classes": 0})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("output", (4,), [3, 0, 0, -4])])

    def test_vector(self):
        answer = self.ask()
        self.assertEqual(answer["embedding"], [3, 0, 0, -4])
        self.assertNotIn("predictions", answer)
        for found, wanted in zip(self.ask("?normalize=true")["embedding"], [.6, 0, 0, -.8]):
            self.assertAlmostEqual(found, wanted, delta=1e-6)
        self.assertIn("normalize", self.ask("?normalize=maybe", status=400)["error"])
        self.assertEqual(self.task(), ("embedding", "\"num_classes\": 0 in config.json, output 'output'"))
        self.assertEqual(self.server.request("POST", f"/predictions/{self.name}", png(9, 9)).json(), [3, 0, 0, -4])


    def test_picture(self):
        self.assertIn("vectors", self.ask("?format=image", status=400)["error"])
        self.assertIn("confidence has no effect on a model whose task is embedding (its parameters: normalize, dimensions);",
                      self.ask("?confidence=0.5", status=400)["error"])


class Segmentation(Tasks):
    """A map of 2 x 2 points: the right half is class 1."""

    files = {"labels.txt": LABELS}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("map", (2, 2, 2), [1, 0, 1, 0, 0, 1, 0, 1])])

    def test_areas(self):
        answer = self.ask(photo=png(4, 2))
        self.assertEqual(answer["segments"], [
            {"label": "a cat", "index": 0, "area": 4, "rle": {"size": [2, 4], "counts": "044"}},
            {"label": "a dog", "index": 1, "area": 4, "rle": {"size": [2, 4], "counts": "44"}}])
        self.assertNotIn("predictions", answer)
        outlines = self.ask("?masks=polygon", photo=png(4, 2))["segments"]
        self.assertEqual([s["polygons"] for s in outlines], [[[0, 0, 2, 0, 2, 2, 0, 2]], [[2, 0, 4, 0, 4, 2, 2, 2]]])
        self.assertEqual([s["index"] for s in self.ask("?classes=1")["segments"]], [1])
        self.assertEqual(self.task(), ("segmentation", "output 'map' has a map for each of the 2 labels"))
        self.assertEqual(self.server.request("POST", "/predict", png(40, 20), {"Accept": "image/png"}).status, 200)
        lines = self.server.request("POST", "/predict", png(4, 2), {"Accept": "text/plain"}).body.decode()
        self.assertEqual(lines, "0.500000 a cat\n0.500000 a dog\n")


class ZeroShot(Tasks):
    """Vectors of texts beside an embedding model: CLIP's softmax."""

    TEXTS = {"labels": ["a cat", "a dog", "a fish"], "vectors": [[0, 0, 0, -2], [1, 0, 0, 0], [3, 0, 0, -4]]}
    files = {"zero_shot.json": json.dumps({**TEXTS, "scale": 10})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("image_embeds", (4,), [3, 0, 0, -4])])

    def test_probabilities(self):
        predictions = self.ask("?top_k=3")["predictions"]
        scores = [10, 8, 6]
        for found, label, score in zip(predictions, ("a fish", "a cat", "a dog"), scores):
            self.assertEqual(found["label"], label)
            self.assertAlmostEqual(found["probability"], math.exp(score) / sum(map(math.exp, scores)), places=5)
        self.assertEqual(self.task(), ("zero-shot", "vectors of texts in zero_shot.json, output 'image_embeds'"))
        self.assertEqual(self.server.request("POST", "/predict?format=image", png(64, 64)).status, 200)

    def load(self, **texts):
        with tempfile.TemporaryDirectory() as folder:
            self.make(os.path.join(folder, "model.onnx"))
            with open(os.path.join(folder, "zero_shot.json"), "w", encoding="utf-8") as file:
                json.dump({**self.TEXTS, **texts}, file)
            path = os.path.join(folder, "photo.png")
            with open(path, "wb") as file:
                file.write(png(64, 64))
            return run_lensd("predict", "--model", folder, "--json", path)

    def test_sigmoid(self):
        answer = json.loads(self.load(scale=10, bias=-8, activation="sigmoid").stdout)
        for found, score in zip(answer["results"][0]["predictions"], (2, 0, -2)):
            self.assertAlmostEqual(found["probability"], 1 / (1 + math.exp(-score)), places=5)

    def test_wrong_files(self):
        for texts, what in (({"labels": ["a"]}, "1 labels, but 3 vectors"), ({"vectors": []}, '"vectors"'),
                            ({"vectors": [[1], [1, 2], [1]]}, '"vectors"'), ({"vectors": [[0], [1], [1]]}, '"vectors"'),
                            ({"scale": "x"}, '"scale"'), ({"activation": "relu"}, '"activation"'), ({"labels": 3}, "zero_shot.json"),
                            ({"treshold": 1}, '"treshold"')):
            with self.subTest(texts):
                made = self.load(**texts)
                self.assertNotEqual(made.returncode, 0)
                self.assertIn(what, made.stderr)
                self.assertIn("zero_shot.json", made.stderr)
        made = self.load(vectors=[[1], [1], [1]])
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("zero_shot.json have 1 numbers, but output 'image_embeds' has 4", made.stderr)


class Depth(Tasks):
    files = {"config.json": json.dumps({"architectures": ["DPTForDepthEstimation"]})}

    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("predicted_depth", (2, 2), [1, 3, 1, 3])])

    def test_map(self):
        depth = self.ask(photo=png(40, 20))["depth"]
        self.assertTrue(.5 < depth["min"] < 1.01 and 2.99 < depth["max"] < 3.5, depth)
        data = base64.b64decode(depth["png"], validate=True)
        self.assertEqual(struct.unpack(">IIBB", data[16:26]), (40, 20, 16, 0))
        self.assertEqual(self.task(), ("depth", "DPTForDepthEstimation in config.json"))
        picture = self.server.request("POST", "/predict?format=png", png(40, 20)).body
        self.assertEqual(struct.unpack(">IIBB", picture[16:26]), (40, 20, 8, 2))
        lines = self.server.request("POST", "/predict", png(4, 2), {"Accept": "text/plain"}).body.decode()
        self.assertEqual(len(lines.split()), 2)


class Unknown(Tasks):
    @classmethod
    def make(cls, path):
        small_onnx.always(path, [("things", (6, 8), range(48))])

    def test_says_why(self):
        answer = self.ask(status=400)
        for part in ("'things'", "[1, 6, 8]", "lensd.json", "/v2/models/"):
            self.assertIn(part, answer["error"])
        self.assertEqual(self.task()[0], "unknown")


class FilledInputs(Tasks):
    """An export of RT-DETR's or D-FINE's own code: the second input is the size of the photo. The answers are ONNX
    Runtime's with that size (tests/data/make_lists.py)."""

    @classmethod
    def make(cls, path):
        shutil.copy(os.path.join(ROOT, "tests", "data", "lists", "model.onnx"), path)

    @staticmethod
    def flat(shade, width, height):
        rows = (b"\0" + bytes([shade]) * (3 * width)) * height
        return png_header(width, height) + png_chunk(b"IDAT", zlib.compress(rows, 1)) + png_chunk(b"IEND", b"")

    def expect(self, wanted, predictions):
        self.assertEqual([p["index"] for p in predictions], wanted["labels"])
        for prediction, box, score in zip(predictions, wanted["boxes"], wanted["scores"]):
            self.assertAlmostEqual(prediction["score"], score, delta=1e-4)
            limits = [wanted["width"], wanted["height"]] * 2
            for got, number, limit in zip(corners(prediction), box, limits):
                self.assertAlmostEqual(got, min(max(number, 0), limit), delta=0.02)

    def test_boxes_are_those_of_the_photo(self):
        self.assertEqual(self.task(), ("detection", "outputs of boxes, labels and scores, as RT-DETR's own code exports them"))
        self.assertIn("orig_target_sizes", self.inspected())
        self.assertIn("lensd can run this model.", self.inspected())
        self.assertTrue(self.server.get("/devices").json()["devices"][0]["models"][0]["batched"])
        with open(os.path.join(ROOT, "tests", "data", "lists", "answers.json"), encoding="utf-8") as file:
            answers = json.load(file)
        photos = [self.flat(a["shade"], a["width"], a["height"]) for a in answers]
        for wanted, photo in zip(answers, photos):
            self.expect(wanted, self.ask("?confidence=0&max_detections=10", photo)["predictions"])
        together = harness.together(30, lambda i: self.ask("?confidence=0&max_detections=10", photos[i % 3]))
        for i, answer in enumerate(together):
            self.expect(answers[i % 3], answer["predictions"])


class NamedInputs(unittest.TestCase):
    """Inputs that lensd.json names, and those that nobody knows."""

    def make(self, settings, name="bias", dims=()):
        folder = tempfile.mkdtemp(prefix="lensd-tasks-")
        self.addCleanup(shutil.rmtree, folder)
        nodes = [small_onnx.node("GlobalAveragePool", ["image"], ["mean"]), small_onnx.node("Flatten", ["mean"], ["flat"]),
                 small_onnx.node("Mul", ["flat", name], ["logits"])]
        small_onnx.write(os.path.join(folder, "model.onnx"), nodes, [],
                         [small_onnx.tensor_info("image", "N", 3, 8, 8), small_onnx.tensor_info(name, *dims)],
                         [small_onnx.tensor_info("logits", "N", 3)])
        if settings is not None:
            with open(os.path.join(folder, "lensd.json"), "w", encoding="utf-8") as file:
                json.dump(settings, file)
        return folder

    def serve(self, folder):
        server = Server(folder, "--device", "cpu", "--precision", "fp32")
        self.addCleanup(server.stop)
        return server

    def test_a_model_without_a_photo(self):
        folder = tempfile.mkdtemp(prefix="lensd-tasks-")
        self.addCleanup(shutil.rmtree, folder)
        small_onnx.write(os.path.join(folder, "model.onnx"), [small_onnx.node("Relu", ["x"], ["y"])], [],
                         [small_onnx.tensor_info("x", "N", 4)], [small_onnx.tensor_info("y", "N", 4)])
        with open(os.path.join(folder, "lensd.json"), "w", encoding="utf-8") as file:
            json.dump({"inputs": {"x": [1, 2, 3, 4]}}, file)
        done = run_lensd("inspect", folder)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn('"inputs" is for inputs beside a photo', done.stderr)

    def test_numbers_of_lensd_json(self):
        for dims, numbers in ((), 0), (("N", 3), [0, 0, 0]):
            with self.subTest(dims=dims):
                folder = self.make({"inputs": {"bias": numbers}}, dims=dims)
                server = self.serve(folder)
                self.assertIn("lensd can run this model.", run_lensd("inspect", folder).stdout)
                answer = server.predict(png(8, 8)).json()["predictions"]
                for prediction in answer:
                    self.assertAlmostEqual(prediction["probability"], 1 / 3, places=5)
                self.assertEqual(len(server.get(f"/v2/models/{os.path.basename(folder)}").json()["inputs"]), 1)

    def test_a_threshold_is_filled_by_its_name(self):
        folder = self.make(None, "score_threshold", (1,))
        self.assertEqual(self.serve(folder).predict(png(8, 8)).status, 200)

    def test_what_nobody_knows_is_named_by_inspect_and_serve(self):
        folder = self.make(None)
        inspected = " ".join(run_lensd("inspect", folder).stdout.split())
        self.assertIn("input 'bias' is not a photo", inspected)
        self.assertIn("/predict refuses photos", inspected)
        server = self.serve(folder)
        server.wait_log("input 'bias' is not a photo")
        answer = server.predict(png(8, 8))
        self.assertEqual(answer.status, 400)
        self.assertIn("""its input 'bias': write the numbers into lensd.json, {"inputs": {"bias": …}}""", answer.json()["error"])
        # Nothing is taken from clients that send tensors, also where lensd would know the input.
        folder = self.make({"task": "tensors"}, "score_threshold", (1,))
        inputs = json.loads(run_lensd("inspect", folder, "--json").stdout)["inputs"]
        self.assertEqual(len(inputs), 2)

    def test_wrong_settings(self):
        for settings, words in (({"bais": 1}, "no such input"), ({"bias": [1, 2]}, "2 numbers, but the input's shape is []"),
                                ({"image": 1}, "no such input"), ([], "is not an object"),
                                ({"bias": "1"}, "is not an object"), ({"bias": []}, "is not an object"),
                                ({"bias": [0] * 17}, "is not an object"), ({str(i): 0 for i in range(9)}, "at most 8")):
            with self.subTest(settings=settings):
                result = run_lensd("inspect", self.make({"inputs": settings}))
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(words, result.stderr)


del Tasks  # it has no model of its own


if __name__ == "__main__":
    unittest.main()
