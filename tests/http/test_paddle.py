"""Boxes of PaddleDetection's exports, beside what its own way of decoding finds (tests/data/paddle)."""

import json
import os
import shutil
import unittest

from harness import ROOT, FolderCase, multipart, read, run_lensd

DATA = os.path.join(ROOT, "tests", "data", "paddle")
# Nearest pixels, as the reference takes them: nothing is rounded.
PHOTO = {"do_resize": True, "size": {"height": 48, "width": 64}, "resample": 0, "do_rescale": True, "do_normalize": False}
ASK = "/predict?confidence=0.25"


class Paddle(FolderCase):
    def setUp(self):
        super().setUp()
        self.wanted = json.loads(read(os.path.join(DATA, "boxes.json")))
        self.photos = [read(os.path.join(DATA, f"photo{i}.png")) for i in range(3)]

    def start(self, name):
        os.makedirs(self.path("net"))
        shutil.copy(os.path.join(DATA, f"{name}.onnx"), self.path("net/model.onnx"))
        with open(self.path("net/preprocessor_config.json"), "w", encoding="utf-8") as file:
            json.dump(PHOTO, file)
        self.server = self.serve(self.path("net"), "--device", "cpu", "--precision", "fp32")
        inspected = json.loads(run_lensd("inspect", self.path("net"), "--json").stdout)
        self.assertEqual((inspected["task"], inspected["task_evidence"]),
                         ("detection", "outputs of boxes with 6 numbers each and of their number, as PaddleDetection's"))

    def check(self, found, wanted):
        self.assertEqual(len(found), len(wanted))
        for box, (index, score, *corners) in zip(found, wanted):
            self.assertEqual(box["index"], index)
            self.assertAlmostEqual(box["score"], score, delta=1e-4)
            for key, corner in zip(("x1", "y1", "x2", "y2"), corners):
                self.assertAlmostEqual(box["box"][key], corner, delta=.01)

    def ask(self, *photos):
        kind, body = multipart([("image", f"{i}.png", photo) for i, photo in enumerate(photos)])
        answer = self.server.predict(body, ASK, {"Content-Type": kind})
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def batched(self):
        return self.server.get("/devices").json()["devices"][0]["models"][0]["batched"]

    def test_boxes_that_the_graph_suppressed(self):
        """PP-YOLOE's and PicoDet's form: the count of rows depends on the photo."""
        self.start("suppressed")
        for photo, wanted in zip(self.photos, self.wanted["suppressed"]):
            self.check(self.ask(photo)["predictions"], wanted)
        several = self.ask(*self.photos)["results"]
        for one, wanted in zip(several, self.wanted["suppressed"]):
            self.check(one["predictions"], wanted)
        self.assertFalse(self.batched())

    def test_boxes_of_queries(self):
        """RT-DETR's form: the rows of all photos in one list, which share a pass."""
        self.start("queries")
        self.server.wait_for(self.batched, "batches")
        pixels = {"name": "image", "shape": [2, 3, 48, 64], "datatype": "FP32", "data": [0] * (2 * 3 * 48 * 64)}
        raw = self.server.request("POST", "/v2/models/net/infer", json.dumps({"inputs": [pixels]})).json()
        self.assertEqual([(out["name"], out["shape"]) for out in raw["outputs"]], [("rows", [2, 20, 6]), ("bbox_num", [2])])
        several = self.ask(*self.photos * 4)["results"]
        self.assertEqual(len(several), 12)
        for one, wanted in zip(several, self.wanted["queries"] * 4):
            self.check(one["predictions"], wanted)


if __name__ == "__main__":
    unittest.main()
