"""pipeline.json: a detector, crops of its boxes, and the models that get them."""

import hashlib
import json
import math
import os
import pty
import re
import select
import socket
import subprocess
import unittest
import zlib

import small_onnx
from harness import BINARY, PATIENCE, FolderCase, flat_png, hang_up, multipart, png, png_chunk, png_header, post, read_answer, run_lensd
from test_tasks import CANDIDATES, DETECT, LABELS

SIDE = 64  # of photos: what the detector sees, so that its boxes are in whole pixels
# All that `lensd predict` says of these models.
DOUBT = re.compile(r"\Alensd: model 'found': no file says how to prepare photos, .*\n\Z")
PLAIN = {"image_mean": [0, 0, 0], "image_std": [1, 1, 1]}


def painted(width, height, color):
    """A PNG of what color(x, y) says."""
    rows = b"".join(b"\0" + b"".join(bytes(color(x, y)) for x in range(width)) for y in range(height))
    return png_header(width, height) + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")


def colors(x, y):
    return x * 3 & 255, y * 3 & 255, x * y & 255


def detector(boxes):
    """YOLOv8's output for these (x1, y1, x2, y2, score of a cat, score of a dog)."""
    found = [((a + c) / 2, (b + d) / 2, c - a, d - b, cat, dog) for a, b, c, d, cat, dog in boxes]
    found += CANDIDATES[5:][:84 - len(found)]
    found += [(5, 5, 2, 2, 0, 0)] * (84 - len(found))
    return [("found", (6, 84), [c[line] for line in range(6) for c in found])]


class Pipelines(FolderCase):
    """DIR/found, a detector of `boxes`; DIR/mean, a classifier by the mean of each channel; DIR/both, a pipeline."""

    boxes = [(8, 8, 24, 40, .1, .9), (40, 16, 56, 32, .8, .1), (2, 50, 12, 60, .05, .7)]
    second = {}

    def setUp(self):
        super().setUp()
        small_onnx.always(self.put("found"), detector(self.boxes))
        self.write("found/labels.txt", LABELS)
        self.add_means("mean")
        self.pipeline("both", [{"model": "found"}, {"model": "mean", **self.second}])

    def put(self, name):
        os.makedirs(self.path(name), exist_ok=True)
        return self.path(f"{name}/model.onnx")

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def add_means(self, name, **processor):
        small_onnx.not_finite_when_dark(self.put(name))
        self.write(f"{name}/preprocessor_config.json", json.dumps(
            {"size": {"height": 16, "width": 16}, **PLAIN, **processor}))
        self.write(f"{name}/labels.txt", "red\ngreen\nblue\n")

    def pipeline(self, name, stages):
        os.makedirs(self.path(name), exist_ok=True)
        self.write(f"{name}/pipeline.json", json.dumps({"stages": stages}))

    def start(self, *arguments, **options):
        self.server = self.serve("--models", self.folder, "--device", "cpu", "--precision", "fp32", *arguments, **options)
        return self.server

    def ask(self, query="model=both", photo=None, status=200, headers=None):
        answer = self.server.predict(photo or painted(SIDE, SIDE, colors), f"/predict?{query}", headers)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def alone(self, left, top, right, bottom, model="mean", color=colors):
        """What a model answers to that part of the picture, sent as a photo."""
        answer = self.ask(f"model={model}", painted(right - left, bottom - top, lambda x, y: color(x + left, y + top)))
        return {key: answer[key] for key in ("predictions", "image")}

    def crops(self, answer):
        return [p.get("crop") for p in answer["predictions"]]


class Crops(Pipelines):
    def test_each_box_has_the_answer_of_its_crop(self):
        server = self.start()
        before = [server.metric(f'lensd_images_total{{model="{name}"') for name in ("found", "mean")]
        answer = self.ask()
        self.assertEqual(answer["model"], "both")
        self.assertEqual(answer["image"], {"width": SIDE, "height": SIDE})
        self.assertEqual([p["label"] for p in answer["predictions"]], ["a dog", "a cat", "a dog"])
        after = [server.metric(f'lensd_images_total{{model="{name}"') for name in ("found", "mean")]
        self.assertEqual([b - a for a, b in zip(before, after)], [1, 3], "images of both models")
        self.assertEqual(self.crops(answer), [self.alone(8, 8, 24, 40), self.alone(40, 16, 56, 32),
                                              self.alone(2, 50, 12, 60)])
        alone = self.ask("model=found")
        for with_crop, without in zip(answer["predictions"], alone["predictions"]):
            self.assertEqual({k: v for k, v in with_crop.items() if k != "crop"}, without)

    def test_options(self):
        self.start()
        self.assertEqual(self.ask("model=both&confidence=0.99")["predictions"], [], "no box, no crop")
        self.assertEqual(len(self.ask("model=both&max_detections=1")["predictions"]), 1)
        for crop in self.crops(self.ask("model=both&top_k=1&classes=a+dog")):
            self.assertEqual(len(crop["predictions"]), 1)

    def test_lines_of_text(self):
        server = self.start()
        answer = self.ask()
        lines = server.predict(painted(SIDE, SIDE, colors), "/predict?model=both", {"Accept": "text/plain"}).body.decode()
        expected = ""
        for box in answer["predictions"]:
            places = " ".join(f"{box['box'][key]:.2f}" for key in ("x1", "y1", "x2", "y2"))
            expected += f"{box['score']:.6f} {places} {box['label']}\n"
            expected += "".join(f"  {p['probability']:.6f} {p['label']}\n" for p in box["crop"]["predictions"])
        self.assertEqual(lines, expected)

    def test_a_picture(self):
        server, photo = self.start(), flat_png(200, 1024)
        drawn = [server.predict(photo, f"/predict?model={name}&format=image") for name in ("both", "found")]
        self.assertEqual([answer.status for answer in drawn], [200, 200])
        self.assertTrue(drawn[0].body != drawn[1].body, "the labels do not say what is in the crops")

    def test_several_photos(self):
        self.start()
        kind, body = multipart([("a", "a.png", painted(SIDE, SIDE, colors)), ("b", "b.png", b"no photo"),
                                ("c", "c.png", flat_png(200, SIDE))])
        first, second, third = self.ask(photo=body, headers={"Content-Type": kind})["results"]
        self.assertEqual(self.crops(first), self.crops(self.ask()))
        self.assertEqual((second["name"], second["code"]), ("b.png", "unsupported_media_type"))
        self.assertEqual(self.crops(third), self.crops(self.ask(photo=flat_png(200, SIDE))))
        self.assertEqual(self.ask(photo=b"no photo", status=415)["code"], "unsupported_media_type")

    def test_more_crops_than_images_in_a_request(self):
        self.start("--max-images", "2")
        self.assertEqual([crop["image"]["width"] for crop in self.crops(self.ask())], [16, 16, 10])

    def test_more_crops_than_a_queue_takes(self):
        self.start("--max-queue", "2")
        self.assertEqual([crop["image"]["width"] for crop in self.crops(self.ask())], [16, 16, 10])

    def test_forms_without_crops_are_refused(self):
        server, photo = self.start(), painted(SIDE, SIDE, colors)
        self.assertEqual(server.get("/v2/models/both/ready").status, 200)
        self.assertEqual([m["name"] for m in server.get("/v2/models/stats").json()["model_stats"]], ["found", "mean"])
        asked = [("GET", f"/v2/models/both{path}", {}) for path in ("", "/config", "/stats", "/versions/1")]
        asked += [("POST", "/v2/models/both/infer", {}), ("POST", "/predictions/both", {}), ("POST", "/models/both", {}),
                  ("POST", "/predictions/both", {"Accept": "text/plain"}), ("POST", "/v1/vision/detection", {}),
                  ("POST", "/v1/vision/custom/both", {}), ("POST", "/both/1", {}), ("POST", "/both/1?format=image", {})]
        asked += [("POST", "/predict?model=both", {"Accept": "application/octet-stream"})]
        # A photo that is not larger than a slice, and one that is.
        asked += [("POST", f"/predict?model=both&{query}", {}) for query in (f"slices={SIDE}", "slices=32", "labels=a+dog,a+cat")]
        before = server.metric('lensd_images_total{model="found"')
        for method, path, headers in asked:
            with self.subTest(path=path, **headers):
                answer = server.request(method, path, photo if method == "POST" else None, headers)
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn("'both' is a pipeline of models; only POST /predict?model=both answers for it, as JSON, lines of "
                              "text or a picture, and without track, slices or labels; name one of its models here, such as 'found'", answer.body.decode())
        self.assertEqual(server.metric('lensd_images_total{model="found"'), before, "none was answered by the first model")

    def test_it_is_listed(self):
        server = self.start()
        models = {m["name"]: m for m in server.get("/health").json()["models"]}
        self.assertEqual((models["both"]["state"], models["both"]["stages"]), ("ready", ["found", "mean"]))
        self.assertNotIn("stages", models["found"])
        devices = server.get("/devices").json()
        self.assertEqual(devices["pipelines"], [{"name": "both", "stages": ["found", "mean"]}])
        self.assertEqual(sorted(m["name"] for m in devices["devices"][0]["models"]), ["found", "mean"])
        self.assertEqual(server.get("/").status, 200)
        index = server.request("POST", "/v2/repository/index", b"").json()
        self.assertIn(("both", "READY"), [(m["name"], m["state"]) for m in index])


class Choice(Pipelines):
    second = {"labels": ["a dog"]}

    def setUp(self):
        super().setUp()
        self.pipeline("number", [{"model": "found"}, {"model": "mean", "labels": [0]}])
        self.pipeline("sure", [{"model": "found"}, {"model": "mean", "min_score": .75}])
        self.pipeline("best", [{"model": "found"}, {"model": "mean", "max": 1}])
        self.pipeline("wide", [{"model": "found"}, {"model": "mean", "margin": .5}])
        self.start()

    def test_which_boxes_are_cropped(self):
        dog, cat, other = (8, 8, 24, 40), (40, 16, 56, 32), (2, 50, 12, 60)
        for name, wanted in (("both", [dog, None, other]), ("number", [None, cat, None]), ("sure", [dog, cat, None]),
                             ("best", [dog, None, None])):
            with self.subTest(name):
                self.assertEqual(self.crops(self.ask(f"model={name}")), [box and self.alone(*box) for box in wanted])

    def test_margin(self):
        """Half of a side on each side, as far as the photo goes."""
        self.assertEqual(self.crops(self.ask("model=wide")), [self.alone(0, 0, 32, 56), self.alone(32, 8, 64, 40),
                                                              self.alone(0, 45, 17, 64)])


class Aligned(Pipelines):
    """Two faces: the points of the first are the template's, 8 and 20 pixels further; the other's are at one place."""

    points = [(4, 5), (12, 5), (8, 8), (5, 12), (11, 12)]

    def setUp(self):
        super().setUp()
        small_onnx.faces(self.put("faces"), [(.9, 6, 18, 26, 38, [v + move for p in self.points for v, move in zip(p, (8, 20))]),
                                             (.8, 40, 40, 60, 60, [50] * 10)])
        self.pipeline("aligned", [{"model": "faces"}, {"model": "mean", "align": {"size": "16x16", "points": self.points}}])

    def test_points_come_to_their_places(self):
        self.start()
        first, second = self.crops(self.ask("model=aligned"))
        self.assertEqual(first, self.alone(8, 20, 24, 36))
        self.assertEqual((second["code"], second["error"]), ("invalid_request", "all points of the box are at the same place"))

    def test_what_has_no_such_points(self):
        self.pipeline("pointless", [{"model": "found"}, {"model": "mean", "align": "arcface"}])
        self.start()
        self.assertIn("the next stage aligns 5 points, and the boxes of model 'found' have 0",
                      self.ask("model=pointless", status=500)["error"])


class Turned(Pipelines):
    """DIR/way classifies whether the lower half is lighter (label 180). DIR/corners returns the brightness of the four quarters."""

    boxes = [(8, 8, 24, 40, .1, .9), (40, 16, 56, 32, .8, .1), (2, 50, 12, 60, .05, .7), (20, 20, 20, 30, .6, 0)]

    def setUp(self):
        super().setUp()
        small_onnx.linear(self.put("way"), 2, lambda k, y, x: .02 if k == y // 8 else 0)
        small_onnx.linear(self.put("corners"), 4, lambda k, y, x: .01 if k == y // 8 * 2 + x // 8 else 0)
        for name, labels in ("way", "0\n180_degree\n"), ("corners", "a\nb\nc\nd\n"):
            self.write(f"{name}/labels.txt", labels)
            self.write(f"{name}/preprocessor_config.json", json.dumps({"size": {"height": 16, "width": 16}, **PLAIN}))
        self.pipeline("turning", [{"model": "found"}, {"model": "way", "turn": .9}, {"model": "corners"}])
        self.pipeline("plain", [{"model": "found"}, {"model": "corners"}])

    @staticmethod
    def light(x, y):
        """The first box is lighter below, the second above, the third hardly below."""
        level = 6 * y if x < 24 and y < 40 else 255 - 6 * y if y < 40 else 100 + y
        return min(level + x, 255), level, level

    def test_crops_are_turned_over(self):
        server = self.start()
        photo = painted(SIDE, SIDE, self.light)
        way = [c["predictions"][0] for c in (self.alone(*box[:4], "way", self.light) for box in self.boxes[:3])]
        self.assertEqual([p["label"] for p in way], ["180_degree", "0", "180_degree"])
        self.assertGreater(way[0]["probability"], .9)
        self.assertLess(way[2]["probability"], .9)
        counters = [f'lensd_images_total{{model="{name}"' for name in ("way", "corners")]
        wanted = [server.metric(counter) + 4 for counter in counters]
        turned, lighter, unsure, gone = self.crops(self.ask("model=turning", photo))
        for counter, count in zip(counters, wanted):
            server.wait_metric(counter, count)
        plain = self.crops(self.ask("model=plain", photo))
        self.assertEqual(turned, self.alone(0, 0, 16, 32, "corners", lambda x, y: self.light(23 - x, 39 - y)))
        self.assertNotEqual(turned, plain[0])
        self.assertEqual([lighter, unsure], plain[1:3])
        self.assertIn("no pixel", gone["error"])

    def test_the_crops_keys_are_the_classifiers(self):
        self.pipeline("few", [{"model": "found"}, {"model": "way", "turn": .9, "labels": ["a dog"], "max": 1}, {"model": "corners"}])
        self.start()
        photo = painted(SIDE, SIDE, self.light)
        first, *others = self.crops(self.ask("model=few", photo))
        self.assertEqual(first, self.crops(self.ask("model=turning", photo))[0])
        self.assertEqual(others, [None] * 3)
        shown = run_lensd("inspect", self.path("few")).stdout
        self.assertIn("those with label 180 above 0.9 are turned by 180 degrees", shown)
        told = json.loads(run_lensd("inspect", self.path("few"), "--json").stdout)
        self.assertEqual(told["stage_details"][1]["turn"], .9)

    def test_what_cannot_turn(self):
        for name, model in ("seven", "mean"), ("boxes", "found"):
            self.pipeline(name, [{"model": "found"}, {"model": model, "turn": .9}, {"model": "corners"}])
        self.start()
        for name in "seven", "boxes":
            self.assertIn("\"turn\" needs a classifier that has a label with 180",
                          self.ask(f"model={name}", status=500)["error"])


class Failures(Pipelines):
    def test_a_crop_that_fails_has_its_error(self):
        """Dark crops have negative numbers, whose square roots are no numbers."""
        self.add_means("mean", image_mean=[.5, .5, .5])
        self.start()
        answer = self.ask(photo=painted(SIDE, SIDE, lambda x, y: (0, 0, 0) if x < 32 else (255, 255, 255)))
        codes = [crop.get("code") for crop in self.crops(answer)]
        self.assertEqual(codes, ["not_finite", None, "not_finite"])
        self.assertIn("is not a number", self.crops(answer)[0]["error"])

    def test_a_box_without_pixels(self):
        small_onnx.always(self.put("found"), detector([(20, 20, 20, 30, .9, 0), (8, 8, 24, 40, 0, .8)]))
        self.start()
        failed, whole = self.crops(self.ask())
        self.assertEqual(failed["code"], "invalid_request")
        self.assertIn("no pixel", failed["error"])
        self.assertEqual(whole, self.alone(8, 8, 24, 40))
        with open(self.path("photo.png"), "wb") as file:
            file.write(painted(SIDE, SIDE, colors))
        shown = run_lensd("predict", "--model", self.path("both"), "--device", "cpu", self.path("photo.png")).stdout
        self.assertRegex(shown, r"\n    .*a cat.*\n      crop: error: .*no pixel")
        self.assertNotIn("crop of 0 x 0", shown)

    def test_stages_that_cannot_be(self):
        """Each is said at start, the others serve."""
        cases = {"lost": ([{"model": "found"}, {"model": "nobody"}], "stage 2 names the model 'nobody', which does not exist"),
                 "self": ([{"model": "found"}, {"model": "self"}], "stage 2 is the pipeline 'self' itself"),
                 "deep": ([{"model": "both"}, {"model": "mean"}], "stage 1 names 'both', which is a pipeline, too"),
                 "slip": ([{"model": "found"}, {"model": "mean", "label": ["a dog"]}], 'unknown key "label"'),
                 "two": ([{"model": "found"}, {"model": "mean"}], "there are both pipeline.json and model.onnx"),
                 "one": ([{"model": "found"}], "a pipeline has 2 or 3 stages")}
        for name, (stages, _) in cases.items():
            self.pipeline(name, stages)
        small_onnx.not_finite_when_dark(self.put("two"))
        server = self.start(wait_ready=False)
        server.wait_for(lambda: server.get("/readyz").status == 200, "readiness")
        failures = {m["name"]: m.get("error", "") for m in server.get("/health").json()["models"]}
        for name, (_, words) in cases.items():
            with self.subTest(name):
                self.assertIn(words, failures[name])
                self.assertIn(words, self.ask(f"model={name}", status=503)["error"])
        self.assertEqual(len(self.crops(self.ask())), 3)

    def test_stages_that_do_not_fit(self):
        """Said when all is loaded, by --check, and to a client, whose mistake it is not."""
        small_onnx.always(self.put("odd"), [("what", (2, 3, 5, 7), [0] * 210)])
        cases = {"blind": ([{"model": "mean"}, {"model": "mean"}], "the next stage needs boxes"),
                 "horse": ([{"model": "found"}, {"model": "mean", "labels": ["a horse"]}],
                           "stage 1 of pipeline 'horse': the next stage names the label 'a horse'"),
                 "many": ([{"model": "found"}, {"model": "mean", "labels": [2]}], "the next stage names class 2, but model 'found'"),
                 "wide": ([{"model": "found"}, {"model": "mean", "sizes": ["64x32"]}],
                          "stage 2 of pipeline 'wide': \"sizes\" names 64x32: model 'mean' takes"),
                 "vague": ([{"model": "odd"}, {"model": "mean"}], "model 'odd' cannot answer a photo")}
        for name, (stages, _) in cases.items():
            self.pipeline(name, stages)
        server = self.start()
        for name, (_, words) in cases.items():
            with self.subTest(name):
                (line,) = server.wait_log(re.compile(f"pipeline cannot answer .*model={name} "))
                self.assertIn(words, line.replace('\\"', '"'))
                self.assertIn(words, self.ask(f"model={name}", status=500)["error"])
                checked = run_lensd("serve", "--check", self.path(name))
                self.assertNotEqual(checked.returncode, 0)
                self.assertIn(words, " ".join(checked.stderr.split()).replace('\\"', '"'))
        self.assertNotIn("pipeline cannot answer model=both ", server.whole_log())
        self.assertEqual(run_lensd("serve", "--check", self.path("both")).returncode, 0)

    def test_a_stage_that_is_unloaded_and_loaded_again(self):
        key = "a-key-for-the-admin-of-this-test"
        self.write(".admin", f"admin sha256:{hashlib.sha256(key.encode()).hexdigest()}\n")
        os.chmod(self.path(".admin"), 0o600)
        self.start("--admin-key-file", self.path(".admin"))
        admin = {"Authorization": f"Bearer {key}"}
        wanted = self.crops(self.ask())
        for stage, name in enumerate(("found", "mean"), 1):
            path = f"/v2/repository/models/{name}"
            self.assertEqual(self.server.request("POST", f"{path}/unload", b"", admin).status, 200)
            error = self.ask(status=503)
            self.assertEqual(error["code"], "not_ready")
            self.assertIn(f"stage {stage} of pipeline 'both': model '{name}' has been unloaded", error["error"])
            self.assertEqual(self.server.request("POST", f"{path}/load", b"", admin).status, 200)
            self.assertEqual(self.crops(self.ask()), wanted)
        self.assertEqual(self.server.request("POST", "/v2/repository/models/both/unload", b"", admin).status, 200)
        self.assertIn("model 'both' has been unloaded", self.ask(status=503)["error"])
        self.assertEqual(self.server.request("POST", "/v2/repository/models/both/load", b"", admin).status, 200)
        self.assertEqual(self.crops(self.ask()), wanted)

    def test_files_that_change(self):
        self.pipeline("late", [{"model": "found"}, {"model": "other"}])
        server = self.start("--watch", wait_ready=False)
        server.wait_for(lambda: server.predict(painted(SIDE, SIDE, colors), "/predict?model=both").status == 200, "an answer")
        self.assertIn("'other'", self.ask("model=late", status=503)["error"])
        self.add_means("other")
        server.wait_for(lambda: server.predict(painted(SIDE, SIDE, colors), "/predict?model=late").status == 200,
                        "the pipeline whose model has come")
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "labels": [0]}])
        server.wait_for(lambda: self.crops(self.ask()).count(None) == 2, "the new stages")
        os.unlink(self.path("both/pipeline.json"))
        os.rmdir(self.path("both"))
        server.wait_for(lambda: server.predict(painted(8, 8, colors), "/predict?model=both").status == 404, "its end")


class Sizes(Pipelines):
    """The second model leaves its sides free."""

    def setUp(self):
        super().setUp()
        small_onnx.write(self.put("mean"), [small_onnx.node("GlobalAveragePool", ["image"], ["mean"]),
                                            small_onnx.node("Flatten", ["mean"], ["scores"])], [],
                         [small_onnx.tensor_info("image", "N", 3, "height", "width")],
                         [small_onnx.tensor_info("scores", "N", 3)])

    def test_sizes_are_compiled_before_they_are_asked_for(self):
        """Each crop takes the size that it is most like."""
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["8x16", "24x16"]}])
        self.start()
        self.assertEqual(self.compiled(), 2)
        # The log says what is being compiled, and how many sizes are left; /health says it until there are none.
        left = re.findall(r" compiling size model=mean width=\d+ height=\d+ sizes_left=(\d+)", self.server.whole_log())
        self.assertEqual(left, ["2", "1"])
        self.assertNotIn("sizes_left", self.server.get("/health").json())
        boxes = (8, 8, 24, 40), (40, 16, 56, 32), (2, 50, 12, 60)
        for crop, (left, top, right, bottom), size in zip(self.crops(self.ask()), boxes, ("8x16", "24x16", "24x16")):
            part = painted(right - left, bottom - top, lambda x, y, at=(left, top): colors(x + at[0], y + at[1]))
            self.assertEqual(crop["predictions"], self.ask(f"model=mean&size={size}", part)["predictions"])

    def size(self, size):
        """Whether ?size= of the second model is possible, once it is compiled."""
        def ask():
            answer = self.server.predict(flat_png(9), f"/predict?model=mean&size={size}")
            return answer.status != 503 and answer
        answer = self.server.wait_for(ask, size)
        if answer.status == 400:
            self.assertIn("keeps 4 sizes besides its own, and pipelines name all of them", answer.json()["error"])
        return answer.status == 200

    def compiled(self):
        return self.server.whole_log().count("size compiled")

    def test_command_line_is_quiet(self):
        """Compiling sizes is a matter of the server's log; a terminal gets a bar."""
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["8x16", "24x16"]}])
        with open(self.path("photo.png"), "wb") as file:
            file.write(painted(SIDE, SIDE, colors))
        command = ["predict", "--model", self.path("both"), self.path("photo.png")]
        self.assertRegex(run_lensd(*command).stderr, DOUBT)
        terminal, end = pty.openpty()
        try:
            subprocess.run([BINARY, *command], stdout=subprocess.DEVNULL, stderr=end, timeout=PATIENCE, check=True)
            shown = os.read(terminal, 65536).decode()
        finally:
            os.close(terminal)
            os.close(end)
        self.assertIn("compiling sizes", shown)
        self.assertNotIn(" info ", shown)

    def test_sizes_of_a_pipeline_stay_while_clients_ask_for_others(self):
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["8x16", "24x16"]}])
        self.start()
        self.assertEqual(self.compiled(), 2)
        for width in range(32, 37):
            self.assertTrue(self.size(f"{width}x8"))
        before = self.compiled()
        self.assertEqual(len(self.crops(self.ask())), 3)
        self.assertEqual(self.compiled(), before)

    def test_sizes_of_pipelines_may_be_all(self):
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["8x16", "24x16", "9x9", "10x10"]}])
        self.start()
        self.assertEqual(self.compiled(), 4)
        self.assertFalse(self.size("32x8"))
        self.assertTrue(self.size("24x16"))
        self.assertTrue(self.size("~32x8"))
        self.assertEqual(self.compiled(), 4)

    def test_batches_shrink_before_a_size_is_left_out(self):
        """Batches of eight of the first size would leave no memory for a single image of the second."""
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["512x512", "8x640"]}])
        small = self.memory_of_sizes()
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["512x512", "640x640"]}])
        self.start("--memory", "100M", "--workers", "2")
        self.assertEqual(self.compiled(), 2, self.server.log_so_far())
        self.assertEqual([len(crop["predictions"]) for crop in self.crops(self.ask())], [3, 3, 3])
        self.assertGreater(small, 75 << 20, "the first size is too small to show anything")

    def memory_of_sizes(self):
        """What is booked where there is enough."""
        server = self.start("--workers", "2")
        devices = server.get("/devices").json()["devices"]
        server.stop()
        return next(device for device in devices if device["id"] == "cpu")["memory"]["used_by_lensd_bytes"]

    def test_a_size_that_memory_has_no_room_for(self):
        """Crops take the nearest compiled size; who asks for exactly this one is told what is missing."""
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["8x16", "1600x1600"]}])
        self.start("--memory", "24M", "--workers", "1")
        self.assertEqual(self.compiled(), 1)
        (line,) = self.server.wait_log("size not compiled")
        self.assertRegex(line, r"width=1600 height=1600 .*MiB are missing")
        self.assertEqual([len(crop["predictions"]) for crop in self.crops(self.ask())], [3, 3, 3])
        error = self.ask("model=mean&size=1600x1600", status=503)
        self.assertEqual(error["code"], "insufficient_memory")
        self.assertRegex(error["error"], r"no room for model 'mean' at 1600 x 1600 pixels: .*MiB are missing")
        self.ask("model=mean&size=~1600x1600")

    def test_more_sizes_than_a_model_keeps(self):
        self.pipeline("both", [{"model": "found"}, {"model": "mean", "sizes": ["16x16", "8x8", "8x16", "16x8"]}])
        self.pipeline("more", [{"model": "found"}, {"model": "mean", "sizes": ["8x8", "24x8", "24x16"]}])
        self.start()
        (line,) = self.server.wait_log("too many sizes")
        self.assertIn("stage 2 of pipeline 'more' names 24x16 for model 'mean', which can keep only 4 sizes besides its own", line)


class Depth(Pipelines):
    def test_three_stages(self):
        """The middle stage finds its boxes in the crops of the first."""
        small_onnx.always(self.put("parts"), detector([(16, 16, 48, 48, .6, 0)]))
        self.write("parts/preprocessor_config.json", json.dumps({"size": {"height": SIDE, "width": SIDE}, **PLAIN}))
        self.pipeline("all", [{"model": "found"}, {"model": "parts", "labels": ["a dog"]}, {"model": "mean", "max": 1}])
        self.start()
        answer = self.ask("model=all")
        dog, cat, other = answer["predictions"]
        self.assertNotIn("crop", cat)
        for box, (left, top, right, bottom) in ((dog, (8, 8, 24, 40)), (other, (2, 50, 12, 60))):
            self.assertEqual(box["crop"]["image"], {"width": right - left, "height": bottom - top})
            (part,) = box["crop"]["predictions"]
            inner = [part["box"][k] for k in ("x1", "y1", "x2", "y2")]
            wanted = self.alone(math.floor(left + inner[0]), math.floor(top + inner[1]), math.ceil(left + inner[2]),
                                math.ceil(top + inner[3]))
            self.assertEqual(part["crop"], wanted)


class Ends(Pipelines):
    """The second stage runs for ever on light crops."""

    def setUp(self):
        super().setUp()
        self.put("mean")
        small_onnx.loops_when_light(self.path("mean"), 0.5)
        self.write("mean/preprocessor_config.json", json.dumps({"size": {"height": 8, "width": 8}, **PLAIN}))
        self.start()

    def test_one_time_limit_for_all_stages(self):
        error = self.ask(photo=flat_png(255, SIDE), status=504, headers={"X-Request-Timeout-Ms": "1500"})
        self.assertEqual(error["code"], "deadline_exceeded")
        self.assertEqual([crop["image"]["width"] for crop in self.crops(self.ask(photo=flat_png(9, SIDE)))], [16, 16, 10])

    def test_a_client_that_leaves(self):
        with self.server.connect() as client:
            client.sendall(post("/predict?model=both", flat_png(255, SIDE)))
            self.server.wait_for(lambda: self.in_flight("mean") > 0, "crops in the second model")
            client.shutdown(socket.SHUT_RDWR)
        self.server.wait_for(lambda: self.in_flight("mean") == 0, "the end of the crops")
        self.assertEqual(len(self.crops(self.ask(photo=flat_png(9, SIDE)))), 3)

    def test_a_full_queue_refuses_before_the_detector_runs(self):
        """The client that fills it, not the others."""
        self.server.stop()
        self.start("--max-queue", "32", "--max-batch", "1")
        kind, body = multipart([(f"{i}", f"{i}.png", flat_png(255, 8)) for i in range(32)])
        with self.server.connect() as client, socket.socket() as other:
            client.sendall(post("/predict?model=mean", body, f"Content-Type: {kind}"))
            self.server.wait_for(lambda: self.in_flight("mean") == 32, "a full queue")
            before = self.server.metric('lensd_images_total{model="found"')
            self.assertIn("stage 2 of pipeline 'both': model 'mean' has 32 of at most 32", self.ask(status=503)["error"])
            self.assertEqual(self.server.metric('lensd_images_total{model="found"'), before)
            admitted = self.server.admitted()
            other.bind(("127.0.0.2", 0))
            other.connect(("127.0.0.1", self.server.port))
            other.sendall(post("/predict?model=both", flat_png(9, SIDE)))
            self.server.wait_for(lambda: self.server.admitted() > admitted or select.select([other], [], [], 0)[0],
                                 "the other client's photo to be let in")
            hang_up(client)
            answer, _ = read_answer(other)
            self.assertEqual(answer.status, 200, answer.body)
            self.assertEqual(len(self.crops(answer.json())), 3)

    def in_flight(self, name):
        return sum(m["in_flight"] + m["queued"] for m in self.server.get("/health").json()["models"] if m["name"] == name)


def write_page(folder):
    """FOLDER/det finds four bars of text; FOLDER/rec reads each as "aa 字"; FOLDER/page does both."""
    bars = [(2, 4), (2, 36), (12, 4), (40, 4)]
    best = [(1, .9), (1, .8), (0, 1), (1, .7), (5, .5), (4, .6)]
    texts = {"det/lensd.json": '{"task": "text-detection"}', "rec/characters.txt": "a\nb\nß\n字\n",
             "page/pipeline.json": json.dumps({"stages": [{"model": "det"}, {"model": "rec"}]})}
    for name, text in texts.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)))
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    small_onnx.always(os.path.join(folder, "det", "model.onnx"), [("map", (1, 64, 64), [
        .9 if any(top <= y < top + 5 and left <= x < left + 22 for top, left in bars) else .1
        for y in range(64) for x in range(64)])])
    small_onnx.always(os.path.join(folder, "rec", "model.onnx"),
                      [("text", (6, 6), [p if c == k else 0 for k, p in best for c in range(6)])])


class Page(Pipelines):
    """Four bars of text, two of them side by side, and one further below; every line reads "aa 字"."""

    def setUp(self):
        super().setUp()
        write_page(self.folder)
        self.page = "aa 字 aa 字\naa 字\n\naa 字"

    def test_text(self):
        server = self.start()
        answer = self.ask("model=page", png(128, 128))
        self.assertEqual([p["crop"]["text"] for p in answer["predictions"]], ["aa 字"] * 4)
        self.assertEqual(answer["text"], self.page)
        self.assertNotIn("score", answer)
        self.assertNotIn("text", self.ask("model=det", png(128, 128)))
        lines = server.predict(png(128, 128), "/predict?model=page", {"Accept": "text/plain"})
        self.assertEqual(lines.body.decode(), self.page + "\n")
        self.assertEqual(server.predict(png(128, 128), "/predict?model=page&format=image").status, 200)

    def test_command_line(self):
        with open(self.path("photo.png"), "wb") as file:
            file.write(png(128, 128))
        shown = run_lensd("predict", "--model", self.path("page"), self.path("photo.png"))
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual("".join(line.removeprefix("    ") for line in shown.stdout.splitlines(True)[1:]),
                         self.page + "\n")

    def test_the_command_line_shows_a_long_text_whole(self):
        self.write("rec/characters.txt", "a" * 4000 + "\x1b\nb\nß\n字\n")
        with open(self.path("photo.png"), "wb") as file:
            file.write(png(128, 128))
        for model, text in (("page", self.page), ("rec", "aa 字")):
            with self.subTest(model):
                shown = run_lensd("predict", "--model", self.path(model), self.path("photo.png"))
                self.assertEqual(shown.returncode, 0, shown.stderr)
                for line, wanted in zip(shown.stdout.splitlines()[1:], text.splitlines(), strict=True):
                    wanted = wanted.replace("a", "a" * 4000 + r"\x1b")
                    self.assertEqual(line[-len(wanted):] if wanted else line, wanted)

    def test_a_crop_of_a_crop_that_memory_has_no_room_for(self):
        """An answer without its text would be taken for whole."""
        small_onnx.always(self.put("found"), detector([(0, 0, SIDE, SIDE, .1, .9)]))
        self.pipeline("plates", [{"model": "found"}, {"model": "det"}, {"model": "rec"}])
        plates = "/v1/vision/alpr"
        server = self.start("--max-upload-memory", "4M", "--max-body", "1M")
        kind, body = multipart([("upload", "a.png", flat_png(9, 128))])
        self.assertEqual(server.predict(body, plates, {"Content-Type": kind}).status, 200)
        kind, body = multipart([("upload", "a.png", flat_png(9, 1100))])
        answer = server.predict(body, plates, {"Content-Type": kind})
        self.assertEqual(answer.status, 413, answer.body)
        self.assertIn("--max-upload-memory", answer.json()["error"])


class Alone(Pipelines):
    """`lensd COMMAND FOLDER` of a pipeline takes the models that lie beside it."""

    def test_serve(self):
        self.server = self.serve(self.path("both"), "--device", "cpu", "--precision", "fp32")
        self.assertEqual(self.ask("", painted(SIDE, SIDE, colors))["model"], "both")
        self.assertEqual(len([crop for crop in self.crops(self.ask("")) if crop["predictions"]]), 3)
        self.assertEqual([m["name"] for m in self.server.get("/health").json()["models"] if m["default"]], ["both"])
        (ready,) = self.server.wait_log(re.compile(" info +ready "))
        self.assertNotRegex(ready, "device=|precision=|threads=")
        self.server.stop()
        self.assertIn("; requests that name no model go to both (stage models found, mean); try it:", self.server.output)

    def admin(self, model, what):
        path = f"/v2/repository/models/{model}/{what}"
        self.assertEqual(self.server.request("POST", path, b"{}", {"X-API-Key": self.key}).status, 200)

    def write_key(self):
        made = run_lensd("key", "root")
        self.key = next(word for word in made.stderr.split() if word.startswith("lensd-"))
        self.write(".keys", made.stdout)
        os.chmod(self.path(".keys"), 0o600)
        return self.path(".keys")

    def test_ready_while_it_can_answer(self):
        self.server = self.serve(self.path("both"), "--admin-key-file", self.write_key(), "--precision", "fp32")
        for name in ("mean", "found", "both"):
            self.assertEqual(self.server.get("/readyz").status, 200)
            self.admin(name, "unload")
            answer = self.server.get("/readyz")
            self.assertEqual((answer.status, answer.json()["status"]), (503, "unloaded"), name)
            self.admin(name, "load")
        self.assertEqual(self.server.get("/readyz").status, 200)

    def test_it_is_the_default_if_its_stages_are_all_others(self):
        self.start("--watch", "--admin-key-file", self.write_key())
        self.assertEqual(self.ask("")["model"], "both")
        self.admin("both", "unload")
        self.assertEqual(self.ask("", status=503)["error"], "model 'both' has been unloaded")
        self.admin("both", "load")
        self.assertEqual(self.ask("")["model"], "both")
        self.add_means("another")
        self.server.wait_for(lambda: self.server.predict(painted(8, 8, colors)).status == 400, "several models")
        names = self.ask("", status=400)["error"].split("several: ")[1].split(";")[0].split(", ")
        self.assertEqual(sorted(names), ["another", "both", "found", "mean"])

    def test_a_model_that_is_not_there(self):
        self.pipeline("both", [{"model": "found"}, {"model": "nobody"}])
        for command in (["serve"], ["inspect"], ["predict", "--model"]):
            photo = [self.path("photo.png")] if command[0] == "predict" else []
            run = run_lensd(*command, self.path("both"), *photo)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("stage 2 names the model 'nobody'", " ".join((run.stdout + run.stderr).split()), command)

    def test_a_model_in_the_same_folder(self):
        small_onnx.not_finite_when_dark(self.put("both"))
        for command in (["serve"], ["serve", "--check"], ["inspect"], ["predict", "--model"]):
            photo = [self.path("photo.png")] if command[0] == "predict" else []
            run = run_lensd(*command, self.path("both"), *photo)
            self.assertNotEqual(run.returncode, 0)
            self.assertIn("there are both pipeline.json and model.onnx", " ".join((run.stdout + run.stderr).split()), command)

    def test_predict_and_inspect(self):
        with open(self.path("photo.png"), "wb") as file:
            file.write(painted(SIDE, SIDE, colors))
        shown = run_lensd("predict", "--model", self.path("both"), "--device", "cpu", self.path("photo.png"))
        self.assertEqual(shown.returncode, 0)
        self.assertRegex(shown.stderr, DOUBT)
        self.assertIn("the crop of 16 x 32", shown.stdout)
        told = json.loads(run_lensd("predict", "--json", "--model", self.path("both"), self.path("photo.png")).stdout)
        self.start()
        self.assertEqual(told["model"], "both")
        for mine, theirs in zip(self.crops(told["results"][0]), self.crops(self.ask())):
            self.assertEqual([p["label"] for p in mine["predictions"]], [p["label"] for p in theirs["predictions"]])
        inspected = run_lensd("inspect", self.path("both"))
        self.assertEqual(inspected.returncode, 0)
        self.assertIn("stage 2     mean, which gets crops", inspected.stdout)
        self.pipeline("many", [{"model": "found"}, {"model": "mean", "labels": ["a dog", 1], "min_score": .25, "margin": .5,
                                                    "max": 7, "sizes": ["16x16"]}])
        told = json.loads(run_lensd("inspect", self.path("many"), "--json").stdout)
        self.assertEqual(told["stages"], ["found", "mean"])
        self.assertEqual(told["stage_details"], [
            {"model": "found", "sizes": []},
            {"model": "mean", "labels": ["a dog", "1"], "min_score": .25, "margin": .5, "max": 7, "sizes": ["16x16"]}])
        self.assertIn("name one of its models", run_lensd("bench", self.path("both")).stderr)


if __name__ == "__main__":
    unittest.main()
