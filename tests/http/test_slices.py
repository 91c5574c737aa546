"""Detection in slices: /predict?slices=… against the same parts sent one by one, merged here by SAHI's rules."""

import os
import shutil
import tempfile
import unittest

import small_onnx
from harness import Server, multipart, png, seven
from test_tasks import DETECT, LABELS


def plan(width, height, side, overlap):
    """sahi.slicing.get_slice_bboxes()."""
    found, shared, top, bottom = [], int(overlap * side), 0, 0
    while bottom < height:
        left = right = 0
        bottom = top + side
        while right < width:
            right = left + side
            if bottom > height or right > width:
                right, bottom = min(width, right), min(height, bottom)
                left, top = max(0, right - side), max(0, bottom - side)
            found.append((left, top, right, bottom))
            left = right - shared
        top = bottom - shared
    return found


def overlap_of(a, b, rule):
    shared = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    of = min(areas) if rule == "nmm" else sum(areas) - shared
    return shared / of if of else 0


def merged(boxes, rule, agnostic=False):
    """[(box, score, class)]: sahi.postprocess.combine's GREEDYNMM with IOS, or NMS with IOU; both from 0.5."""
    boxes = sorted(boxes, key=lambda b: (-b[1], *b[0]))
    kept = []
    while boxes:
        box, score, index = boxes[0]
        matching = [b for b in boxes[1:] if (agnostic or b[2] == index) and overlap_of(box, b[0], rule) >= 0.5]
        boxes = [b for b in boxes[1:] if b not in matching]
        for other, _, _ in matching if rule == "nmm" else ():
            if overlap_of(box, other, rule) >= 0.5:
                box = (min(box[0], other[0]), min(box[1], other[1]), max(box[2], other[2]), max(box[3], other[3]))
        kept.append((box, score, index))
    return kept


def boxes_of(answer):
    return [(tuple(p["box"][k] for k in ("x1", "y1", "x2", "y2")), p["score"], p["index"]) for p in answer["predictions"]]


class Slices(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-slices-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        small_onnx.always(os.path.join(cls.folder, "model.onnx"), DETECT)
        with open(os.path.join(cls.folder, "labels.txt"), "w", encoding="utf-8") as file:
            file.write(LABELS)
        cls.server = Server(cls.folder, "--device", "cpu", "--precision", "fp32", "--max-images", "20")
        cls.addClassCleanup(cls.server.stop)

    def ask(self, query="", photo=None, status=200, headers=None):
        answer = self.server.request("POST", f"/predict{query}", photo or png(400, 300), headers)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def parts(self, width, height, side, overlap, query=""):
        """What each slice and the whole photo answer on their own, moved to their place."""
        found = []
        for left, top, right, bottom in [*plan(width, height, side, overlap), (0, 0, width, height)]:
            for box, score, index in boxes_of(self.ask(query, png(right - left, bottom - top))):
                found.append(((box[0] + left, box[1] + top, box[2] + left, box[3] + top), score, index))
        return found

    def assert_boxes(self, found, wanted):
        self.assertEqual([(score, index) for _, score, index in found], [(score, index) for _, score, index in wanted])
        for (box, _, _), (other, _, _) in zip(found, wanted):
            for a, b in zip(box, other):
                self.assertAlmostEqual(a, b, delta=0.02)

    def test_slices_answer_like_parts_sent_one_by_one(self):
        for size, side, overlap in (((400, 300), 200, .2), ((401, 299), 130, .2), ((400, 64), 100, 0), ((90, 300), 128, .5)):
            photo = png(*size)
            for rule in ("nmm", "nms"):
                for agnostic in (False, True):
                    with self.subTest(size=size, rule=rule, agnostic=agnostic):
                        own = f"?confidence=0.15&agnostic={str(agnostic).lower()}"
                        answer = self.ask(f"{own}&slices={side}&overlap={overlap}&merge={rule}", photo)
                        self.assertEqual(answer["image"], {"width": size[0], "height": size[1]})
                        wanted = merged(self.parts(*size, side, overlap, own), rule, agnostic)
                        found = sorted(boxes_of(answer), key=lambda b: (-b[1], *b[0]))
                        self.assert_boxes(found, sorted(wanted, key=lambda b: (-b[1], *b[0])))

    def test_defaults(self):
        explicit = self.ask("?slices=160&overlap=0.2&merge=nmm")["predictions"]
        self.assertEqual(self.ask("?slices=160")["predictions"], explicit)
        self.assertGreater(len(explicit), len(self.ask()["predictions"]))
        self.assertEqual(self.ask("?slices=160&max_detections=4")["predictions"], explicit[:4])

    def test_one_slice_is_no_slice(self):
        self.assertEqual(self.ask("?slices=400")["predictions"], self.ask()["predictions"])

    def test_every_slice_is_an_image_and_the_request_is_one(self):
        names = ["lensd_images_total", "nv_inference_request_success"]
        before = [self.server.metric(name) for name in names]
        self.ask("?slices=200&overlap=0")
        self.assertEqual([self.server.metric(name) for name in names], [before[0] + 5, before[1] + 1])

    def test_other_forms(self):
        kind, body = multipart([("image", "a.png", png(400, 300)), ("slices", None, b"160")])
        wanted = self.ask("?slices=160")["predictions"]
        self.assertEqual(self.ask("", body, headers={"Content-Type": kind})["predictions"], wanted)
        picture = self.server.request("POST", "/predict?slices=160&format=png", png(400, 300))
        self.assertEqual((picture.status, picture.headers["Content-Type"]), (200, "image/png"))

    def test_wrong_parameters(self):
        for query, words in (("slices=0", "slices is '0'"), ("slices=31", "32"), ("slices=1e9", "slices"),
                             ("slices=640x", "slices"), ("slices=-640", "slices"), ("slices=64.5", "slices"),
                             ("slices=", "slices"), ("slices=" + "9" * 40, "slices"),
                             ("slices=100&overlap=0.95", "0 to 0.9"), ("slices=100&overlap=nan", "overlap"),
                             ("slices=100&merge=soft", "nmm"), ("overlap=0.2", "needs slices"),
                             ("merge=nms", "needs slices"), ("slices=32", "--max-images")):
            with self.subTest(query):
                answer = self.ask("?" + query, status=400)
                self.assertIn(words, answer["error"])
        kind, body = multipart([("image", f"{i}.png", png(400, 300)) for i in range(2)])
        self.assertIn("one photo", self.ask("?slices=160", body, 400, {"Content-Type": kind})["error"])

    def test_a_photo_that_cannot_be_read(self):
        self.assertEqual(self.ask("?slices=160", b"no photo", 415)["code"], "unsupported_media_type")
        self.assertEqual(self.ask("?slices=160", png(400, 300)[:-40], 400)["code"], "bad_image")

    def test_a_time_limit_holds_for_the_slices(self):
        answer = self.server.request("POST", "/predict?slices=160", png(400, 300), {"X-Request-Timeout-Ms": "1"})
        self.assertIn(answer.status, (200, 503, 504), answer.body)


class Classifier(unittest.TestCase):
    def test_slices_are_for_detectors(self):
        server = Server()
        self.addCleanup(server.stop)
        answer = server.predict(png(400, 300), "/predict?slices=160")
        self.assertEqual(answer.status, 400)
        self.assertIn("slices are for detectors", answer.json()["error"])
        self.assertEqual(server.predict(seven()).status, 200)


if __name__ == "__main__":
    unittest.main()
