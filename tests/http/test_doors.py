"""What DOODS' client of Home Assistant, PhotoPrism, CVAT and Plate Recognizer's clients send, byte for byte, and what they read of
the answers. tests/clients/test_clients.py runs the real client of DOODS."""

import base64
import gzip
import hashlib
import json
import os
import shutil
import unittest

import small_onnx
import test_sam
import test_tasks
from harness import png, read, read_answer
from test_apps import Apps
from test_tasks import DETECT, LABELS

PHOTO = png(64, 64)
B64 = base64.b64encode(PHOTO).decode()
NSFW = "drawings\nhentai\nneutral\nporn\nsexy\n"


class Doors(Apps):
    keys = None

    def setUp(self):
        super().setUp()
        for name, make in (("masks", test_tasks.Instances.make), ("turned", test_tasks.Oriented.make), ("pose", test_tasks.Pose.make),
                           ("areas", lambda path: small_onnx.always(path, [("map", (2, 2, 2), [1, 0, 1, 0, 0, 1, 0, 1])])),
                           ("vector", lambda path: small_onnx.always(path, [("output", (4,), [3, 0, 0, -4])])),
                           ("unsafe", lambda path: small_onnx.always(path, [("probabilities", (5,), [.1, .2, .05, .5, .15])])),
                           ("binary", lambda path: small_onnx.always(path, [("probabilities", (2,), [.75, .25])]))):
            make(self.put(name))
        self.write("masks/labels.txt", LABELS)
        self.write("areas/labels.txt", LABELS)
        self.write("vector/lensd.json", '{"task": "embedding"}')
        self.write("unsafe/labels.txt", NSFW)
        self.write("binary/labels.txt", "nsfw\nnormal\n")
        keys = ("--api-keys", self.path("keys")) if self.keys else ()
        if self.keys:
            with open(self.path("keys"), "w", encoding="utf-8") as file:
                file.write(self.keys)
            os.chmod(self.path("keys"), 0o600)
        self.server = self.serve("--models", self.path("models"), "--default-model", "ipcam-general", "--device", "cpu", "--precision",
                                 "fp32", "--max-images", "4", *keys)

    def send(self, data, status=200):
        with self.server.connect() as connection:
            connection.sendall(data)
            answer, _ = read_answer(connection)
        self.assertEqual(answer.status, status, answer.body)
        return json.loads(gzip.decompress(answer.body) if answer.headers.get("content-encoding") == "gzip" else answer.body)

    def python(self, method, path, body=None, *headers, status=200):
        """A request of the Python package requests: json=body."""
        lines = [f"{method} {path} HTTP/1.1", "Host: lensd:8080", "User-Agent: python-requests/2.34.0", "Accept-Encoding: gzip, deflate",
                 "Accept: */*", "Connection: keep-alive", *headers]
        data = b"" if body is None else json.dumps(body, allow_nan=False).encode()
        if body is not None:
            lines += [f"Content-Length: {len(data)}", "Content-Type: application/json"]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data, status)


class Every(Doors):
    """What holds for every path of another server's API: it is described, needs a key, is counted, and has the limits of all paths."""

    keys = f"camera sha256:{hashlib.sha256(b'secret-of-the-camera').hexdigest()}\n"
    DOORS = {"torchserve", "v1", "deepstack", "huggingface", "openai", "llama.cpp", "roboflow", "doods", "photoprism", "cvat", "platerecognizer"}
    OPEN = ("/v1/status/ping", "/ping")

    def paths(self):
        document = self.server.get("/openapi.json").json()
        for path, item in document["paths"].items():
            for method, operation in item.items():
                if method in ("get", "post") and self.DOORS & set(operation["tags"]) and not path.startswith(self.OPEN):
                    yield path, method.upper()

    def test_doors(self):
        self.server = self.serve("--models", self.path("models"), "--default-model", "ipcam-general", "--device", "cpu", "--precision",
                                 "fp32", "--faces", self.file, "--api-keys", self.path("keys"), "--max-body", "4096")
        key = {"Authorization": "Bearer secret-of-the-camera", "x-nuclio-function-name": "masks"}
        paths = list(self.paths())
        self.assertLessEqual({"/v1/vision/detection", "/v1/vision/custom/{model}", "/v1/vision/face/register", "/v1/vision/alpr", "/detect",
                              "/api/v1/vision/labels", "/api/function_invocations", "/v1/plate-reader/", "/embeddings", "/v1/embeddings",
                              "/models/{model}", "/infer/object_detection", "/predictions/{model}"}, {path for path, _ in paths})
        for path, method in paths:
            with self.subTest(path=path, method=method):
                address = path.replace("{model}", "masks").replace("{version}", "1").replace("{number}", "1")
                if address.startswith("/v1/models") and method == "GET" and address != "/v1/models":
                    continue  # readiness, as for probes
                self.assertEqual(self.server.request(method, address, b"{}" if method == "POST" else None).status, 401)
                if method == "POST":
                    self.assertEqual(self.server.request(method, address, bytes(4097), key).status, 413)
                self.server.wait_for(lambda path=path: self.server.metric(f'lensd_http_path_requests_total{{path="{path}",status="4xx"}}') > 0,
                                     "the request to be counted")


class Doods(Doors):
    def detect(self, status=200, **members):
        return self.python("POST", "/detect", {"data": B64, "detector_name": "ipcam-general", "detect": {"*": 40}, "id": "", **members},
                           status=status)

    def test_detectors(self):
        found = {one["name"]: one for one in self.python("GET", "/detectors")["detectors"]}
        self.assertEqual(found["ipcam-general"], {"name": "ipcam-general", "type": "onnx", "model": "ipcam-general",
                                                  "labels": ["a cat", "a dog"], "width": 64, "height": 64})
        self.assertIn("masks", found)
        self.assertNotIn("scene", found)
        self.assertNotIn("plates", found, "a pipeline")

    def test_detect(self):
        answer = self.detect()
        self.assertEqual(answer["id"], "")
        first = answer["detections"][0]
        self.assertAlmostEqual(first.pop("confidence"), 90, places=4)
        self.assertEqual(first, {"top": 20 / 64, "left": 24 / 64, "bottom": 44 / 64, "right": 40 / 64, "label": "a dog"})
        self.assertEqual([one["label"] for one in answer["detections"]], ["a dog", "a cat", "a dog"])

    def test_thresholds(self):
        def labels(**members):
            return [one["label"] for one in self.detect(**members)["detections"]]
        self.assertEqual(labels(detect={"a dog": 40}), ["a dog", "a dog"])
        self.assertEqual(labels(detect={"a dog": 60, "*": 40}), ["a dog", "a cat"], "a label's own threshold goes first")
        self.assertEqual(labels(detect={"a dog": 90}), ["a dog"])
        self.assertEqual(labels(detect={}), [])
        self.assertEqual(len(labels(detect={"*": 0})), 6 - 2, "those of this model that NMS leaves")
        region = {"top": 0, "left": .7, "bottom": .5, "right": 1, "detect": {"a cat": 40}}
        self.assertEqual(labels(detect={}, regions=[region]), ["a cat"])
        self.assertEqual(labels(detect={}, regions=[{**region, "left": .75, "covers": True}]), [])
        self.assertEqual(labels(detect={}, regions=[{**region, "covers": True}]), ["a cat"])
        self.assertEqual(labels(detect={"a dog": 60}, regions=[region]), ["a dog", "a cat"])

    def test_default_model(self):
        for name in ("default", ""):
            self.assertEqual(len(self.detect(detector_name=name)["detections"]), 3)

    def test_hostile(self):
        for members, status, word in (({"detector_name": "nobody"}, 404, "nobody"), ({"detector_name": 7}, 400, "detector_name"),
                                      ({"data": "http://169.254.169.254/a.jpg"}, 400, "does not fetch"), ({"data": "####"}, 400, "base64"),
                                      ({"data": [B64] * 2}, 400, "one picture"), ({"detect": [1]}, 400, "detect"),
                                      ({"detect": {"*": "x"}}, 400, "percentage"), ({"detect": {"*": 1e300}}, 400, "percentage"),
                                      ({"regions": [7]}, 400, "left"), ({"regions": [{"left": 0, "top": 0, "right": 1}]}, 400, "bottom"),
                                      ({"preprocess": ["grayscale"]}, 400, "preprocess"), ({"image": ".jpg"}, 400, "image"),
                                      ({"detector_name": "scene"}, 400, "a detector"), ({"detector_name": "plates"}, 400, "pipeline")):
            with self.subTest(members):
                self.assertIn(word, self.detect(status=status, **members)["error"])
        self.detect(confidence={"not": "a parameter here"})


class PhotoPrism(Doors):
    def ask(self, path, model, *pictures, status=200, **members):
        """As Go's encoding/json and net/http write it."""
        body = {"id": "3487da77-246e-4b4c-9437-67507177bcd7", "model": model, "version": "latest", "suffix": "", "stream": False,
                "images": ["data:image/png;base64," + base64.b64encode(one).decode() for one in pictures or [PHOTO]], **members}
        data = json.dumps(body, separators=(",", ":")).encode()
        lines = [f"POST /api/v1/vision/{path} HTTP/1.1", "Host: lensd:8080", "User-Agent: Go-http-client/1.1",
                 f"Content-Length: {len(data)}", "Content-Type: application/json", "Accept-Encoding: gzip"]
        answer = self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data, status)
        self.assertEqual(answer["code"], status)
        return answer

    def test_labels(self):
        answer = self.ask("labels", "scene", PHOTO, PHOTO)
        self.assertEqual((answer["id"], answer["model"]),
                         ("3487da77-246e-4b4c-9437-67507177bcd7", {"type": "labels", "name": "scene"}))
        labels = answer["result"]["labels"]
        self.assertEqual([one["name"] for one in labels], ["kitchen", "beach", "street"], "each once")
        alone = self.server.predict(PHOTO, "/predict?model=scene").json()["predictions"]
        self.assertEqual([(one["confidence"], one["topicality"], one["source"]) for one in labels],
                         [(one["probability"], one["probability"], "image") for one in alone])

    def test_nsfw(self):
        (one,) = self.ask("nsfw", "unsafe")["result"]["nsfw"]
        alone = {p["label"]: p["probability"] for p in self.server.predict(PHOTO, "/predict?model=unsafe&top_k=5").json()["predictions"]}
        self.assertEqual(one, {"score": alone["porn"], "Drawing": alone["drawings"], "Hentai": alone["hentai"],
                               "Neutral": alone["neutral"], "Porn": alone["porn"], "Sexy": alone["sexy"]})
        one, two = self.ask("nsfw", "binary", PHOTO, PHOTO)["result"]["nsfw"]
        self.assertEqual(one, two)
        self.assertEqual((one["score"], one["Porn"], one["Neutral"] > 0), (one["Porn"], one["score"], True))

    def test_a_model_of_something_else(self):
        """PhotoPrism reads "code": zeros would clear a picture that nobody judged."""
        answer = self.server.request("POST", "/api/v1/vision/nsfw", json.dumps({"model": "scene", "images": [B64]})).json()
        self.assertEqual((answer["code"], answer["result"]), (400, {}))
        self.assertIn("vision.yml", answer["error"])

    def test_faces(self):
        result = self.ask("face", "vector", PHOTO, PHOTO)["result"]
        wanted = self.server.predict(PHOTO, "/predict?model=vector").json()["embedding"]
        self.assertEqual(result, {"embeddings": [[wanted], [wanted]]}, "a list of vectors for each crop")

    def test_hostile(self):
        for path, model, members, status, word in (
                ("labels", "nobody", {}, 404, "nobody"), ("labels", "vector", {}, 400, "a classifier"),
                ("face", "scene", {}, 400, "vectors"), ("labels", "scene", {"images": []}, 400, "no picture"),
                ("labels", "scene", {"images": ["https://example.org/a.jpg"]}, 400, "does not fetch"),
                ("labels", "scene", {"images": [B64] * 5}, 413, "--max-images"), ("labels", "scene", {"images": [B64, "AAAA"]}, 415, "supported image"),
                ("labels", 7, {}, 400, "model")):
            with self.subTest(path=path, model=model, members=members):
                answer = self.ask(path, model, status=status, **members)
                self.assertIn(word, answer["error"])
                self.assertEqual(answer["result"], {})


class Cvat(Doors):
    HEADERS = ("x-nuclio-project-name: cvat", "x-nuclio-function-namespace: nuclio", "x-nuclio-invoke-via: domain-name",
               "X-Nuclio-Invoke-Timeout: 120s")

    def invoke(self, name, status=200, headers=HEADERS, **members):
        return self.python("POST", "/api/function_invocations", {"image": B64, **members}, *headers,
                           *([f"x-nuclio-function-name: {name}", "x-nuclio-path: /"] if name else []), status=status)

    def test_functions(self):
        functions = self.python("GET", "/api/functions", None, *self.HEADERS)
        for name, function in functions.items():
            self.assertEqual((function["metadata"]["name"], function["metadata"]["annotations"]["type"]), (name, "detector"))
            self.assertTrue(function["spec"]["description"])
            self.assertEqual(function["status"]["state"], "ready")
        specs = {name: [(one["name"], one["type"]) for one in json.loads(one["metadata"]["annotations"]["spec"])]
                 for name, one in functions.items()}
        self.assertEqual(specs["masks"], [("a cat", "mask"), ("a dog", "mask")])
        self.assertEqual(specs["turned"], [("plane", "rectangle"), ("ship", "rectangle")])
        self.assertEqual(specs["scene"], [("beach", "tag"), ("kitchen", "tag"), ("street", "tag")])
        self.assertNotIn("vector", functions)
        self.assertNotIn("plates", functions, "a pipeline")
        self.assertEqual(self.python("GET", "/api/functions/masks", None, *self.HEADERS), functions["masks"])
        self.assertIn("nobody", self.python("GET", "/api/functions/nobody", None, *self.HEADERS, status=404)["error"])

    def test_labels_are_unique(self):
        """CVAT refuses a function whose labels repeat."""
        self.write("scene/labels.txt", "crane\ncrane\nboat\n")
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32")
        spec = json.loads(self.python("GET", "/api/functions/scene")["metadata"]["annotations"]["spec"])
        self.assertEqual(spec, [{"id": 0, "name": "boat", "type": "tag"}, {"id": 1, "name": "crane", "type": "tag"}])

    def test_rectangles(self):
        found = self.invoke("ipcam-general")
        self.assertEqual(found[0], {"confidence": "0.900000", "label": "a dog", "type": "rectangle", "points": [24, 20, 40, 44]})
        self.assertEqual(len(self.invoke("ipcam-general", threshold=.15)), 4)
        (turned,) = self.invoke("turned")
        self.assertEqual((turned["points"], turned["rotation"]), ([24, 28, 40, 36], 90))

    def test_masks(self):
        """CVAT makes run lengths of the pixels and cuts off the corners, which are inside."""
        (found,) = self.invoke("masks")
        self.assertEqual((found["type"], found["label"]), ("mask", "a dog"))
        self.assertEqual(found["mask"][-4:], [16, 16, 31, 47])
        self.assertEqual(found["mask"][:-4], [1] * (16 * 32))
        self.assertEqual(found["points"], [16, 16, 32, 16, 32, 48, 16, 48])
        cat, dog = self.invoke("areas")
        self.assertEqual((cat["mask"][-4:], sum(cat["mask"][:-4])), ([0, 0, 31, 63], 32 * 64))
        self.assertEqual((dog["mask"][-4:], sum(dog["mask"][:-4])), ([32, 0, 63, 63], 32 * 64))

    def test_odd_mask(self):
        """Row by row: the lower right corner of the part has none of it."""
        triangle = [1 if x + y < 16 else -1 for y in range(16) for x in range(16)]
        small_onnx.always(self.put("masks"), [("output0", (2, 7), [0, 0, 64, 64, .8, 1, 1] + [0] * 7), ("output1", (1, 16, 16), triangle)],
                          metadata=[("author", "Ultralytics"), ("task", "segment"), ("end2end", "True")])
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32")
        (found,) = self.invoke("masks")
        left, top, right, bottom = found["mask"][-4:]
        pixels, width = found["mask"][:-4], right - left + 1
        self.assertEqual(len(pixels), width * (bottom - top + 1))
        area = self.server.predict(PHOTO, "/predict?model=masks").json()["predictions"][0]["area"]
        self.assertEqual(sum(pixels), area)
        self.assertEqual((pixels[0], pixels[width - 1], pixels[-1]), (1, 1, 0))
        rows = [sum(pixels[i:i + width]) for i in range(0, len(pixels), width)]
        self.assertEqual(rows, sorted(rows, reverse=True))

    def test_tags(self):
        self.assertEqual([(one["label"], one["type"]) for one in self.invoke("scene")], [("kitchen", "tag")])
        self.assertEqual([one["label"] for one in self.invoke("scene", threshold=.1)], ["kitchen", "beach", "street"])

    def test_hostile(self):
        for name, members, status, word in ((None, {}, 400, "x-nuclio-function-name"), ("nobody", {}, 404, "nobody"),
                                            ("n" * 300, {}, 400, "x-nuclio-function-name"), ("vector", {}, 400, "CVAT needs"),
                                            ("plates", {}, 400, "pipeline"), ("masks", {"image": 7}, 400, "base64"),
                                            ("masks", {"threshold": {}}, 400, "threshold"), ("masks", {"threshold": 7}, 400, "confidence")):
            with self.subTest(name=name, members=members):
                self.assertIn(word, self.invoke(name, status=status, **members)["error"])

    def test_a_cache_keeps_functions_apart(self):
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", "--response-cache", "1M")
        for _ in range(2):
            self.assertEqual(self.invoke("scene")[0]["type"], "tag")
            self.assertEqual(self.invoke("masks")[0]["type"], "mask")

    def test_pixels_have_a_budget(self):
        """A mask of the whole photo is a number for each pixel."""
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", "--max-upload-memory", "1M",
                                 "--max-body", "1M")
        image = base64.b64encode(png(2000, 2000)).decode()
        self.assertIn("--max-upload-memory", self.invoke("areas", status=413, image=image)["error"])
        self.invoke("areas")

    def test_many_small_masks_have_a_budget(self):
        small_onnx.always(self.put("masks"), [("output0", (300, 7), [0, 0, 64, 64, .8, 1, 1] * 300), ("output1", (1, 16, 16), [1] * 256)],
                          metadata=[("author", "Ultralytics"), ("task", "segment"), ("end2end", "True")])
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", "--max-upload-memory", "1M",
                                 "--max-body", "1M")
        self.assertIn("--max-upload-memory", self.invoke("masks", status=413)["error"])
        self.invoke("areas")

    def test_long_lists_have_a_budget(self):
        self.write("ipcam-general/labels.txt", "\n".join(letter * 200000 for letter in "ab"))
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", "--max-upload-memory", "256K",
                                 "--max-body", "64K")
        for path in ("/detectors", "/api/functions", "/api/functions/ipcam-general"):
            self.assertIn("--max-upload-memory", self.python("GET", path, status=413)["error"])
        self.python("GET", "/api/functions/scene")


class CvatInteractor(Doors):
    """SAM: what CVAT's page sends for clicks and a box, and what it reads of the answer."""
    HEADERS, invoke = Cvat.HEADERS, Cvat.invoke

    def setUp(self):
        super().setUp()
        for form in test_sam.FORMS:
            shutil.copytree(os.path.join(test_sam.DATA, form), self.path(f"models/{form}"))
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32")

    def interact(self, name, size, inside=(), outside=(), box=None, **how):
        return self.invoke(name, image=base64.b64encode(test_sam.photo(size)).decode(), pos_points=[list(p) for p in inside],
                           neg_points=[list(p) for p in outside], obj_bbox=box, **how)

    def test_interactors(self):
        functions = self.python("GET", "/api/functions", None, *self.HEADERS)
        self.assertNotIn("sam.decoder", functions)
        for name, least, box in (("sam", 0, True), ("sam2", 0, True), ("hf", 1, False)):
            found = functions[name]["metadata"]["annotations"]
            # As CVAT reads them: any text of startswith_box is true there.
            self.assertEqual((found["type"], json.loads(found["spec"]), int(found["version"]), int(found["min_pos_points"]),
                              int(found["min_neg_points"]), bool(found.get("startswith_box", False)),
                              bool(found.get("startswith_box_optional", False))), ("interactor", [], 2, least, 0, False, box))
            self.assertTrue(found["help_message"])
        self.assertNotIn("version", functions["masks"]["metadata"]["annotations"])

    def test_masks_of_prompts(self):
        """The best mask of the frameworks, as rows of its part of the picture (tests/data/make_sam.py)."""
        for form in test_sam.FORMS:
            for case in json.loads(read(os.path.join(test_sam.DATA, form, "answers.json"))):
                width, height = case["photo"]
                box = [case["box"][:2], case["box"][2:]] if case["box"] else None
                answer = self.interact(form, (width, height), [p[:2] for p in case["points"] if p[2]],
                                       [p[:2] for p in case["points"] if not p[2]], box)
                self.assertEqual(set(answer), {"mask", "bounds"})
                left, top, right, bottom = answer["bounds"]
                rows = answer["mask"]
                self.assertEqual((len(rows), {len(row) for row in rows}), (bottom - top + 1, {right - left + 1}))
                wanted = test_sam.spread(case["masks"][0])  # column by column
                found = [rows[y - top][x - left] if left <= x <= right and top <= y <= bottom else 0
                         for x in range(width) for y in range(height)]
                with self.subTest(form=form, points=case["points"], box=case["box"]):
                    self.assertGreaterEqual(test_sam.iou(found, wanted), 0.999)
                    self.assertTrue(any(found))

    def test_a_box_that_is_not_drawn(self):
        """CVAT says null, or an empty list."""
        plain = self.interact("sam", (200, 150), [(60.25, 50)])
        self.assertEqual(self.interact("sam", (200, 150), [(60.25, 50)], box=[]), plain)
        self.assertNotEqual(self.interact("sam", (200, 150), [(60.25, 50)], [(150, 100.5)]), plain)

    def test_prompts_that_are_refused(self):
        size = (200, 150)
        for words, how in (("points=", {}), ("at most 30", {"inside": [(1, 1)] * 31}), ("at most 30", {"inside": [(1, 1)] * 20, "outside": [(1, 1)] * 11}),
                           ("outside the photo", {"inside": [(201, 1)]}), ("neg_points must be", {"outside": [(1, 1, 1)]}),
                           ("box is", {"box": [[5, 2], [1, 4]]}), ("box is", {"box": [[5, 2]]}),
                           ("pos_points must be", {"inside": [(1, 1e300)]})):
            with self.subTest(how=how):
                self.assertIn(words, self.interact("sam", size, status=400, **how)["error"])
        for value in ("x", {}, [{}], [[[1, 1]]], [["a", "b"]], True):
            with self.subTest(value=value):
                self.invoke("sam", status=400, pos_points=value, neg_points=[])
        self.assertIn("no box", self.interact("hf", size, status=400, box=[[1, 1], [9, 9]])["error"])
        self.assertIn("such as SAM", self.interact("masks", size, status=400, inside=[(1, 1)])["error"])
        many = [[1, 1]] * 20000
        self.invoke("sam", status=400, pos_points=many, neg_points=many)

    def test_torchserve_has_no_masks(self):
        for query in ("points=60,50,1", "box=1,1,90,90"):
            answer = self.server.request("POST", f"/predictions/sam?{query}", test_sam.photo((200, 150)))
            self.assertEqual(answer.status, 400, answer.body)
            self.assertIn("/predict", answer.json()["error"])


class PlateRecognizer(Doors):
    keys = f"camera sha256:{hashlib.sha256(b'secret-of-the-camera').hexdigest()}\n"

    def ask(self, data, *headers, status=200):
        """As requests writes files=dict(upload=…), data=dict(regions=…)."""
        mark = "c3be9b5e6c0ef4d6a1f9ed4eb53a1c5a"
        body = (f'--{mark}\r\nContent-Disposition: form-data; name="regions"\r\n\r\ngb\r\n--{mark}\r\n'
                'Content-Disposition: form-data; name="upload"'.encode() + data + f"\r\n--{mark}--\r\n".encode())
        lines = ["POST /v1/plate-reader/ HTTP/1.1", "Host: lensd:8080", "User-Agent: python-requests/2.34.0",
                 "Accept-Encoding: gzip, deflate", "Accept: */*", "Connection: keep-alive", *headers, f"Content-Length: {len(body)}",
                 f"Content-Type: multipart/form-data; boundary={mark}"]
        return self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body, status)

    KEY = "Authorization: Token secret-of-the-camera"
    FILE = b'; filename="car.jpg"\r\n\r\n' + PHOTO

    def test_plates(self):
        answer = self.ask(self.FILE, self.KEY)
        self.assertEqual((answer["filename"], answer["version"], answer["camera_id"]), ("car.jpg", 1, None))
        self.assertRegex(answer["timestamp"], r"^20\d\d-\d\d-\d\dT")
        self.assertGreater(answer["processing_time"], 0)
        self.assertEqual(len(answer["results"]), 3)
        first = answer["results"][0]
        self.assertAlmostEqual(first["score"], .9, places=5)
        self.assertAlmostEqual(first["dscore"], .9, places=5)
        self.assertEqual((first["plate"], first["box"]), ("ab7", {"xmin": 24, "ymin": 20, "xmax": 40, "ymax": 44}))
        self.assertEqual(first["candidates"], [{"score": first["score"], "plate": "ab7"}])
        self.assertEqual((first["region"]["code"], first["vehicle"]), ("", {"score": 0, "type": "Unknown"}))

    def test_base64(self):
        self.assertEqual(self.ask(b"\r\n\r\n" + B64.encode(), self.KEY)["results"][0]["plate"], "ab7")
        self.assertIn("base64", self.ask(b"\r\n\r\n####", self.KEY, status=400)["detail"])

    def test_cars(self):
        self.write("plates/pipeline.json", json.dumps({"stages": [
            {"model": "ipcam-general"}, {"model": "plate-detector", "max": 1}, {"model": "rec", "max": 1}]}))
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32")
        (plate,) = self.ask(self.FILE)["results"]
        self.assertEqual((plate["vehicle"]["type"], plate["vehicle"]["box"]), ("a dog", {"xmin": 24, "ymin": 20, "xmax": 40, "ymax": 44}))

    def test_refusals(self):
        for data, headers, status in ((self.FILE, (), 401), (self.FILE, ("Authorization: Token wrong",), 401),
                                      (b'; filename="a"\r\n\r\nno picture', (self.KEY,), 415)):
            answer = self.ask(data, *headers, status=status)
            self.assertEqual(answer["status_code"], status)
            self.assertGreater(len(answer["detail"]), 20)

    def test_a_key_of_doods(self):
        self.python("GET", "/detectors", None, "doods-auth-key: secret-of-the-camera")
        self.python("GET", "/detectors", status=401)


if __name__ == "__main__":
    unittest.main()
