"""Poses from heatmaps: VitPose's, beside what Transformers finds (tests/data/poses)."""

import json
import os
import shutil
import unittest

import small_onnx
from harness import ROOT, FolderCase, read
from test_pipelines import detector

POSES = os.path.join(ROOT, "tests", "data", "poses")
SIDE = 64


class Poses(FolderCase):
    def setUp(self):
        super().setUp()
        *self.wanted, self.ready = json.loads(read(os.path.join(POSES, "poses.json")))
        os.makedirs(self.path("pose"))
        for name in ("model.onnx", "config.json", "preprocessor_config.json"):
            shutil.copy(os.path.join(POSES, name), self.path(f"pose/{name}"))
        os.makedirs(self.path("found"))
        boxes = [(*pose["box"], .9 - i / 10, .1) for i, pose in enumerate(self.wanted[1:])]
        small_onnx.always(self.path("found/model.onnx"), detector(boxes))
        os.makedirs(self.path("people"))
        self.write("people/pipeline.json", {"stages": [{"model": "found"}, {"model": "pose", "max": 20}]})
        self.write("found/lensd.json", {"layout": "yolov8", "task": "detection"})
        self.photo = read(os.path.join(POSES, "photo.png"))

    def write(self, name, value):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(value, file)

    def start(self):
        self.server = self.serve("--models", self.folder, "--device", "cpu", "--precision", "fp32")

    def ask(self, query, photo=None, status=200):
        answer = self.server.predict(photo or self.photo, f"/predict?{query}")
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def check(self, found, wanted, delta=.05, score_delta=1e-3, width=SIDE):
        self.assertEqual(len(found["keypoints"]), len(wanted["points"]))
        for i, (point, (x, y), score) in enumerate(zip(found["keypoints"], wanted["points"], wanted["scores"])):
            self.assertEqual(point["name"], f"point {i}")
            self.assertAlmostEqual(point["x"], min(max(x, 0), width), delta=delta, msg=str((wanted["box"], i)))
            self.assertAlmostEqual(point["y"], min(max(y, 0), SIDE), delta=delta, msg=str((wanted["box"], i)))
            self.assertAlmostEqual(point["score"], min(score, 1), delta=score_delta)
        mean = sum(min(max(score, 0), 1) for score in wanted["scores"]) / len(wanted["scores"])
        self.assertAlmostEqual(found["score"], mean, delta=1e-3)

    def test_a_photo(self):
        self.start()
        answer = self.ask("model=pose")
        (found,) = answer["predictions"]
        self.check(found, self.wanted[0])
        self.assertEqual(found["box"], {"x1": 0, "y1": 0, "x2": SIDE, "y2": SIDE})
        self.assertNotIn("label", found)
        self.assertEqual(self.ask("model=pose&confidence=0.99")["predictions"], [])

    def test_a_picture_of_the_models_size_stays_as_it_is(self):
        """Nothing rounds pixels, so the numbers are those of the reference."""
        self.start()
        answer = self.ask("model=pose", read(os.path.join(POSES, "ready.png")))
        self.check(answer["predictions"][0], self.ready, .01, 1e-3, 48)

    def test_a_box_after_a_detector(self):
        """A box's surroundings are seen, too, and points are pixels of the photo."""
        self.start()
        found = self.ask("model=people")["predictions"]
        self.assertEqual(len(found), len(self.wanted) - 1)
        for box, wanted in zip(found, self.wanted[1:]):
            self.assertEqual(box["crop"]["image"], {"width": SIDE, "height": SIDE})
            (body,) = box["crop"]["predictions"]
            self.assertEqual(body["box"], box["box"])
            self.check(body, wanted)

    def test_a_stage_after_poses(self):
        """Its crops are cut where the answer's boxes lie: the same pose is found again."""
        os.makedirs(self.path("again"))
        self.write("again/pipeline.json", {"stages": [{"model": "found"}, {"model": "pose", "max": 20}, {"model": "pose"}]})
        self.start()
        found = self.ask("model=again")["predictions"]
        self.assertEqual(len(found), len(self.wanted) - 1)
        for box, wanted in zip(found, self.wanted[1:]):
            (body,) = box["crop"]["predictions"]
            (again,) = body["crop"]["predictions"]
            self.assertEqual(again["box"], body["box"])
            self.check(again, wanted)

    def test_the_layout_may_be_configured(self):
        os.remove(self.path("pose/config.json"))
        self.write("pose/lensd.json", {"task": "pose", "layout": "heatmaps"})
        self.start()
        (found,) = self.ask("model=pose")["predictions"]
        self.assertEqual([p.get("name") for p in found["keypoints"]], [None] * 6)
        self.assertAlmostEqual(found["keypoints"][4]["x"], self.wanted[0]["points"][4][0], delta=.05)


if __name__ == "__main__":
    unittest.main()
