"""The pages of docs/apps: their commands, on small models."""

import glob
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import unittest

import small_onnx
from harness import PATIENCE, ROOT, multipart, png
from test_faces import FaceCase
from test_tasks import DETECT, LABELS


def commands(page):
    """The lines of a page's blocks for a shell."""
    with open(page, encoding="utf-8") as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


class Apps(FaceCase):
    def setUp(self):
        """The folder of models that docs/apps/codeprojectai.md draws."""
        super().setUp()
        for name in ("ipcam-general", "plate-detector"):
            small_onnx.always(self.put(name), DETECT)
            self.write(f"{name}/labels.txt", LABELS)
        small_onnx.always(self.put("scene"), [("probabilities", (3,), [.2, .7, .1])])
        self.write("scene/labels.txt", "beach\nkitchen\nstreet\n")
        small_onnx.always(self.put("det"), [("map", (1, 64, 64), [
            .9 if 10 <= y < 20 and 4 <= x < 50 else .1 for y in range(64) for x in range(64)])])
        self.write("det/lensd.json", '{"task": "text-detection"}')
        best = [1, 1, 0, 2, 3, 4]  # "ab-7", where 0 is between characters
        small_onnx.always(self.put("rec"), [("text", (6, 6), [.9 if c == k else 0 for k in best for c in range(6)])])
        self.write("rec/characters.txt", "a\nb\n-\n7\n")
        small_onnx.always(self.put("nsfw"), [("probabilities", (2,), [.75, .25])])
        self.write("nsfw/labels.txt", "nsfw\nnormal\n")
        small_onnx.always(self.put("facenet"), [("output", (4,), [3, 0, 0, -4])])
        self.write("facenet/lensd.json", '{"task": "embedding"}')
        self.write("plates/pipeline.json", json.dumps({"stages": [{"model": "plate-detector"}, {"model": "rec"}]}))
        self.write("ocr/pipeline.json", json.dumps({"stages": [{"model": "det"}, {"model": "rec", "max": 300}]}))

    def post(self, path, *fields, status=200):
        kind, body = multipart(list(fields))
        answer = self.server.request("POST", f"/v1/vision/{path}", body, {"Content-Type": kind})
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()


class Pages(Apps):
    def setUp(self):
        super().setUp()
        shutil.copytree(os.path.join(ROOT, "tests", "data", "sam", "sam"), self.path("models/sam"))
        with open(self.path("photo.jpg"), "wb") as file:
            file.write(png(64, 64))

    def run_page(self, page):
        curls = 0
        for command in commands(page):
            words = shlex.split(command)
            if words[:2] == ["mkdir", "-p"]:
                os.makedirs(self.path(words[2]), exist_ok=True)
                continue
            if words[:2] == ["lensd", "serve"]:
                port = words[words.index("--port") + 1]
                local = {"0.0.0.0": "127.0.0.1", port: "0", "models": self.path("models"),
                         "faces/faces.db": self.path("faces/faces.db")}
                self.server = self.serve(*(local.get(word, word) for word in words[2:]), "--device", "cpu", "--precision", "fp32")
                continue
            if words[0] == "printf":  # writes a file for the next line
                subprocess.run(["bash", "-c", command], cwd=self.folder, check=True, timeout=PATIENCE)
                continue
            self.assertEqual(words[0], "curl")
            address = f"http://127.0.0.1:{self.server.port}"
            run = subprocess.run([word.replace(f"http://localhost:{port}", address) for word in words] + ["-sS"],
                                 cwd=self.folder, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((run.returncode, run.stderr), (0, ""), command)
            answer = json.loads(run.stdout)
            if "/v1/vision/" in command and "/api/" not in command or "/v1/status/" in command:
                self.assertIs(answer["success"], True, (command, answer))
            if "/api/v1/vision/" in command:  # PhotoPrism's
                self.assertEqual((answer["code"], len(answer["result"])), (200, 1), (command, answer))
            if "/plate-reader/" in command:
                self.assertTrue(answer["results"], command)
            self.assertTrue(answer and not set(answer) & {"error", "detail"} if isinstance(answer, dict) else answer, (command, answer))
            curls += 1
        self.assertGreaterEqual(curls, 3, page)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_pages(self):
        others = ("frigate.md", "immich.md")  # test_frigate.py, test_immich.py
        pages = sorted(glob.glob(os.path.join(ROOT, "docs", "apps", "*.md")))
        self.assertGreaterEqual(len(pages), 10)
        for page in (page for page in pages if os.path.basename(page) not in others):
            with self.subTest(os.path.basename(page)):
                self.run_page(page)
                self.server.stop()


class Answers(Apps):
    IMAGE = ("image", "a.png", png(64, 64))

    def test_plates(self):
        self.start()
        answer = self.post("alpr", self.IMAGE)
        kind, body = multipart([self.IMAGE])
        older = self.server.request("POST", "/v1/image/alpr", body, {"Content-Type": kind})  # Viseron's path
        self.assertEqual((older.status, older.json()["predictions"]), (200, answer["predictions"]))
        self.assertEqual((answer["success"], answer["count"], answer["command"], answer["code"]), (True, 3, "alpr", 200))
        first = answer["predictions"][0]
        self.assertAlmostEqual(first.pop("confidence"), .9, places=5)
        self.assertEqual(first, {"label": "Plate: AB7", "plate": "AB7", "characters": 3, "x_min": 24, "y_min": 20, "x_max": 40,
                                 "y_max": 44})
        self.assertEqual(self.post("alpr", self.IMAGE, ("min_confidence", None, b"0.56"))["count"], 1)

    def test_plates_of_cars(self):
        """Corners are those of the photo: the car's box begins at (24, 20); the plate's, in the car's 16 x 24, at (4.5, 7.5)."""
        self.write("plates/pipeline.json", json.dumps({"stages": [
            {"model": "ipcam-general"}, {"model": "plate-detector", "max": 1}, {"model": "rec", "max": 1}]}))
        self.start()
        alone = self.server.predict(png(16, 24), "/predict?model=plate-detector&max_detections=1").json()["predictions"][0]["box"]
        (plate,) = self.post("alpr", self.IMAGE)["predictions"]
        self.assertEqual([plate[k] for k in ("x_min", "y_min", "x_max", "y_max")],
                         [round(alone["x1"] + 24), round(alone["y1"] + 20), round(alone["x2"] + 24), round(alone["y2"] + 20)])

    def test_text_and_scenes(self):
        self.start()
        answer = self.post("ocr", self.IMAGE)
        self.assertEqual([(p["label"], p["x_min"] < 10) for p in answer["predictions"]], [("ab-7", True)])
        answer = self.post("scene", self.IMAGE)
        self.assertEqual((answer["success"], answer["label"]), (True, "kitchen"))
        self.assertAlmostEqual(answer["confidence"], math.exp(.7) / sum(map(math.exp, (.2, .7, .1))), places=5)

    def test_common_members(self):
        self.start()
        for path, command in (("custom/ipcam-general", "custom"), ("face", "detect"), ("scene", "detectScene")):
            answer = self.post(path, self.IMAGE)
            self.assertEqual((answer["command"], answer["moduleId"], answer["executionProvider"], answer["canUseGPU"]),
                             (command, "lensd", "CPU", False))
            for member in ("inferenceMs", "processMs", "analysisRoundTripMs"):
                self.assertIsInstance(answer[member], int)
            self.assertRegex(answer["timestampUTC"], r"^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(self.post("custom/ipcam-general", self.IMAGE)["message"], "Found a dog, a cat, a dog")
        self.assertEqual(self.post("custom/ipcam-general", self.IMAGE, ("min_confidence", None, b"0.99"))["message"],
                         "No objects found")
        models = self.post("custom/list")
        self.assertIn("ipcam-general", models["models"])
        self.assertEqual(models["command"], "list")
        self.assertEqual(self.server.get("/v1/status/ping").json()["success"], True)
        update = self.server.get("/v1/status/updateavailable").json()
        self.assertEqual((update["updateAvailable"], update["current"]["major"]), (False, 0))

    def test_models_that_do_not_fit(self):
        for name in ("scene", "plates", "ocr"):
            shutil.move(self.path(f"models/{name}"), self.path(name))
        shutil.copytree(self.path("models/ipcam-general"), self.path("models/scene"))
        self.start(registry=False)
        for path, status, words in (("scene", 400, "a classifier"), ("alpr", 404, "'plates'"), ("ocr", 404, "'ocr'")):
            answer = self.post(path, self.IMAGE, status=status)
            self.assertEqual(answer["success"], False)
            self.assertIn(words, answer["error"])
        for body in (b"", b"no form"):
            self.assertEqual(self.server.request("POST", "/v1/vision/face/delete", body).status, 404, "no --faces")


if __name__ == "__main__":
    unittest.main()
