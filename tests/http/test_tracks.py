"""/predict?track=NAME: photos that are posted one after the other have the tracks of Ultralytics' ByteTrack
(tests/data/make_tracks.py)."""

import base64
import json
import os
import struct
import unittest
import zlib

import small_onnx
from harness import ROOT, FolderCase, multipart, png_chunk, png_header, read, together
from test_access import bearer, line

SIDE = 240
FRAMES = json.loads(read(os.path.join(ROOT, "tests", "data", "tracks.json")))
KEY = "key-of-%s-with-enough-letters"


def photo(boxes, numbers=6):
    """A picture whose first line says these boxes to small_onnx.boxes_of_pixels()."""
    line = [v for box in boxes for v in box]
    assert all(len(box) == numbers for box in boxes) and len(line) <= SIDE
    first = b"\0" + b"".join(bytes((v, 0, 0)) for v in line + [0] * (SIDE - len(line)))
    rest = b"\0" * (1 + 3 * SIDE) * (SIDE - 1)
    return png_header(SIDE, SIDE) + png_chunk(b"IDAT", zlib.compress(first + rest, 1)) + png_chunk(b"IEND", b"")


def box_at(x, y=100, score=230, *more):
    return (x, y, x + 30, y + 30, score, 0, *more)


def ids(answer):
    return [box["track_id"] for box in answer["predictions"]]


class Tracks(FolderCase):
    def setUp(self):
        super().setUp()
        self.add("cars", 6, task="detection", layout="yolo-final")

    def add(self, name, numbers, metadata=(), **config):
        os.makedirs(self.path(f"models/{name}"))
        small_onnx.boxes_of_pixels(self.path(f"models/{name}/model.onnx"), numbers, SIDE, metadata)
        self.write(f"models/{name}/lensd.json", json.dumps(config))
        self.write(f"models/{name}/preprocessor_config.json", json.dumps({"size": SIDE, "do_normalize": False}))

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="ascii") as file:
            file.write(text)

    def start(self, *arguments):
        self.server = self.serve("--models", self.path("models"), "--device", "cpu", "--precision", "fp32", "--default-model",
                                 "cars", *arguments)

    def post(self, boxes, query, headers=None, numbers=6):
        answer = self.server.predict(photo(boxes, numbers), f"/predict?{query}", headers)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def refused(self, query, *words, body=None, status=400):
        answer = self.server.predict(body or photo([box_at(10)]), f"/predict?{query}")
        self.assertEqual(answer.status, status, answer.body)
        for word in words:
            self.assertIn(word, answer.json()["error"])

    def test_a_camera(self):
        """Each frame's boxes have the reference's numbers, and lie where its filter places them."""
        self.start()
        for number, frame in enumerate(FRAMES, 1):
            answer = self.post(frame["boxes"], "track=door")
            self.assertEqual(answer["frame"], number)
            wanted = {tuple(frame["boxes"][place][4:]): (track, box) for place, track, *box in frame["tracks"]}
            found = {(round(box["score"] * 255), box["index"]): box for box in answer["predictions"]}
            self.assertEqual({key: box["track_id"] for key, box in found.items()},
                             {key: track for key, (track, _) in wanted.items()}, f"frame {number}")
            for key, box in found.items():
                for side, want in zip(("x1", "y1", "x2", "y2"), wanted[key][1]):
                    self.assertAlmostEqual(box["box"][side], min(max(want, 0), SIDE), delta=.1, msg=f"frame {number}")

    def test_boxes_of_low_scores_continue_tracks(self):
        """The model's own threshold does not cut them; a client's cuts the answer alone."""
        self.write("models/cars/lensd.json", json.dumps({"task": "detection", "layout": "yolo-final", "confidence": .6}))
        self.start("--confidence", "0.7")
        for x, score, found in ((10, 230, [1]), (12, 40, [1]), (14, 30, [1]), (16, 24, []), (18, 90, [1]), (20, 64, [1])):
            self.assertEqual(ids(self.post([box_at(x, 100, score)], "track=a")), found, score)
            self.assertEqual(ids(self.post([box_at(x, 100, score)], "track=b&confidence=0.5")), found * (score > 127), score)
        self.assertEqual(self.post([box_at(22, 100, 170)], "track=a")["predictions"][0]["track_id"], 1)
        self.assertEqual(self.post([box_at(22, 100, 170)], "model=cars")["predictions"], [], "without a track it does")
        self.assertNotIn("frame", self.post([box_at(22)], "model=cars"))
        self.assertNotIn("track_id", self.post([box_at(22)], "model=cars")["predictions"][0])

    def test_names(self):
        """Another camera, another state; a name is a field of a form or of JSON as well as of the query."""
        self.start()
        self.assertEqual(self.post([box_at(10)], "track=front-door_1.a:b/c@d")["frame"], 1)
        self.assertEqual(self.post([box_at(10)], "track=yard")["frame"], 1)
        body = photo([box_at(12)])
        kind, form = multipart([("image", "a.png", body), ("track", None, b"yard")])
        self.assertEqual(self.server.predict(form, headers={"Content-Type": kind}).json()["frame"], 2)
        text = json.dumps({"image": {"b64": base64.b64encode(body).decode()}, "track": "yard"})
        self.assertEqual(self.server.predict(text, headers={"Content-Type": "application/json"}).json()["frame"], 3)
        self.assertEqual(self.post([], "track=" + "n" * 64)["predictions"], [])
        for name in ("", "a%20b", "n" * 65, "caf%C3%A9", "%2B"):
            self.refused(f"track={name}", "track is '", "name of 1 to 64 letters")
        kind, form = multipart([("image", "a.png", body)])
        for path in ("/v1/vision/detection", "/v1/vision/custom/cars"):
            answer = self.server.predict(form, path + "?track=yard", {"Content-Type": kind})
            self.assertEqual(answer.status, 400, path)
            self.assertIn("have no track_id; POST the photo to /predict", str(answer.json()))
        for track in (1.5, 7, True, ["yard"]):
            answer = self.server.predict(json.dumps({"image": {"b64": base64.b64encode(body).decode()}, "track": track}),
                                         headers={"Content-Type": "application/json"})
            self.assertEqual((answer.status, answer.json()["error"]), (400, '"track" must be a string, a camera\'s name'))

    def test_other_apis_refuse_it_in_their_json(self):
        self.start()
        picture = base64.b64encode(photo([box_at(12)])).decode()
        tensor = {"name": "images", "datatype": "BYTES", "shape": [1], "data": [picture]}
        for path, body in (("/v2/models/cars/infer", {"inputs": [tensor], "parameters": {"track": "yard"}}),
                           ("/v1/models/cars:predict", {"instances": [{"b64": picture}], "track": "yard"}),
                           ("/models/cars", {"inputs": picture, "parameters": {"track": "yard"}}),
                           ("/models/cars", {"inputs": picture, "track": 7}),
                           ("/infer/object_detection", {"model_id": "cars", "image": {"type": "base64", "value": picture}, "track": "yard"}),
                           ("/v1/embeddings", {"model": "cars", "input": "data:image/png;base64," + picture, "track": "yard"}),
                           ("/detect", {"detector_name": "cars", "data": picture, "detect": {"*": 1}, "track": "yard"}),
                           ("/api/v1/vision/labels", {"model": "cars", "images": [picture], "track": ["yard"]})):
            with self.subTest(path, body=body.keys()):
                answer = self.server.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                self.assertEqual(answer.status, 400, answer.body)
                self.assertIn("have no track_id; POST the photo to /predict", str(answer.json()))
                for members in (body, body.get("parameters", {})):
                    members.pop("track", None)
                answer = self.server.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                self.assertNotIn("track_id", answer.body.decode())

    def test_photos_of_a_request_are_frames_in_their_order(self):
        self.start()
        kind, form = multipart([("a", "1.png", photo([box_at(10)])), ("b", "2.png", b"no photo"),
                                ("c", "3.png", photo([box_at(13), box_at(150)])), ("d", "4.png", photo([box_at(16), box_at(151)]))])
        answer = self.server.predict(form, "/predict?track=yard", {"Content-Type": kind})
        first, bad, second, third = answer.json()["results"]
        self.assertEqual([r["frame"] for r in (first, second, third)], [1, 2, 3])
        self.assertIn("error", bad)
        self.assertNotIn("frame", bad)
        self.assertEqual([sorted(ids(r)) for r in (first, second, third)], [[1], [1], [1, 2]])
        self.refused("track=yard", body=b"no photo", status=415)
        self.assertEqual(self.post([box_at(19)], "track=yard")["frame"], 4)

    def test_other_forms_of_answers(self):
        self.start()
        for x in (10, 12):
            self.post([box_at(x), box_at(150)], "track=yard")
        lines = self.server.predict(photo([box_at(14)]), "/predict?track=yard", {"Accept": "text/plain"})
        self.assertRegex(lines.body.decode(), r"^0\.901961 1\d\.\d\d \d+\.\d\d 4\d\.\d\d 1\d\d\.\d\d #1 0\n$")
        numbers = self.server.predict(photo([box_at(16)]), "/predict?track=yard", {"Accept": "application/octet-stream"}).body
        count, index, score, *_, track = struct.unpack("<IIfffffI", numbers)
        self.assertEqual((count, index, round(score * 255), track), (1, 0, 230, 1))
        plain = self.server.predict(photo([box_at(18)]), "/predict?format=png").body
        drawn = self.server.predict(photo([box_at(18)]), "/predict?track=yard&format=png").body
        self.assertEqual(drawn[:4], b"\x89PNG")
        self.assertNotEqual(drawn, plain, "the label has the number")

    def test_keys_share_no_state(self):
        self.write("keys", line("ann", KEY % "ann") + line("bob", KEY % "bob"))
        self.start("--api-keys", self.path("keys"))
        for who, frame in (("ann", 1), ("ann", 2), ("bob", 1), ("ann", 3), ("bob", 2)):
            found = self.post([box_at(10)], "track=yard", bearer(KEY % who))
            self.assertEqual(found["frame"], frame, who)

    def test_the_response_cache_keeps_no_frame(self):
        self.start("--response-cache", "8M")
        for frame in (1, 2, 3):
            self.assertEqual(self.post([box_at(10)], "track=yard")["frame"], frame)

    def test_frames_at_once(self):
        """Each has a number of its own, and the state stays whole."""
        self.start()
        answers = together(12, lambda i: self.post([box_at(100 + i % 3), box_at(20)], "track=yard"))
        self.assertEqual(sorted(answer["frame"] for answer in answers), list(range(1, 13)))
        self.assertEqual({track for answer in answers for track in ids(answer)}, {1, 2})
        self.assertEqual(self.post([box_at(101), box_at(20)], "track=yard")["frame"], 13)

    def test_slices(self):
        """Boxes of slices are merged before they are tracked."""
        self.start()
        for frame in (1, 2):
            found = self.post([box_at(20, 20)], "track=yard&slices=200")
            self.assertEqual(found["frame"], frame)
            self.assertIn(1, ids(found))

    def test_what_has_no_tracks(self):
        self.add("turned", 7, task="oriented-boxes", layout="yolo-final")
        os.makedirs(self.path("models/mean"))
        small_onnx.not_finite_when_dark(self.path("models/mean/model.onnx"))
        self.write("models/both/pipeline.json", json.dumps({"stages": [{"model": "cars"}, {"model": "mean"}]}))
        self.start()
        self.refused("model=turned&track=yard", "track has no effect on a model whose task is")
        self.refused("model=mean&track=yard", "track has no effect on a model whose task is")
        self.refused("model=both&track=yard", "'both' is a pipeline of models", "without track")
        self.assertEqual(self.post([box_at(10)], "track=yard")["frame"], 1)

    def test_key_points_go_with_their_boxes(self):
        self.add("people", 8, [("kpt_shape", "[1, 2]")], task="pose", layout="yolo-final")
        self.start()
        self.post([box_at(10, 10, 230, 11, 12)], "model=people&track=yard", numbers=8)
        for frame in (2, 3):
            found = self.post([box_at(150, 10, 250, 151, 152), box_at(10, 10, 230, 11, 12)], "model=people&track=yard", numbers=8)
            self.assertEqual(found["frame"], frame)
            points = {box["track_id"]: (box["keypoints"][0]["x"], box["keypoints"][0]["y"]) for box in found["predictions"]}
            self.assertEqual(points, {1: (11, 12)} if frame == 2 else {1: (11, 12), 2: (151, 152)})

    def test_a_state_outlives_a_reload_of_the_version(self):
        """And another model has another one."""
        self.add("boats", 6, task="detection", layout="yolo-final")
        self.write("admins", line("root", KEY % "root"))
        self.start("--admin-key-file", self.path("admins"))
        self.assertEqual(self.post([box_at(10)], "track=yard")["frame"], 1)
        self.assertEqual(self.post([box_at(10)], "model=boats&track=yard")["frame"], 1)
        loaded = self.server.request("POST", "/v2/repository/models/cars/load", b"", bearer(KEY % "root"))
        self.assertEqual(loaded.status, 200, loaded.body)
        self.assertEqual(self.post([box_at(10)], "model=cars&track=yard")["frame"], 2)


if __name__ == "__main__":
    unittest.main()
