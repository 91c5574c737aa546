"""APIs of other servers: Roboflow Inference, DeepStack, Hugging Face, TorchServe's detector, OpenAI's embeddings.

tests/clients/test_clients.py sends the same with the real clients."""

import base64
import json
import os
import shutil
import struct
import tempfile
import unittest

import small_onnx
import test_tasks
from harness import ServedCase, Server, multipart, png
from test_tasks import DETECT, LABELS

PHOTO = png(64, 64)


def b64(data=PHOTO):
    return base64.b64encode(data).decode()


def uri(data=PHOTO):
    return "data:image/png;base64," + b64(data)


class Dialects(ServedCase):
    """One server with a model for each task."""

    @classmethod
    def start(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-dialects-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        embedding = json.dumps({"architecture": "vit_small_patch14_dinov2", "num_classes": 0})
        for name, make, files in (
                ("detect", lambda path: small_onnx.always(path, DETECT), {"labels.txt": LABELS}),
                ("pose", test_tasks.Pose.make, {}), ("masks", test_tasks.Instances.make, test_tasks.Instances.files),
                ("areas", lambda path: small_onnx.always(path, [("map", (2, 2, 2), [1, 0, 1, 0, 0, 1, 0, 1])]),
                 {"labels.txt": LABELS}),
                ("embed", lambda path: small_onnx.always(path, [("output", (4,), [3, 0, 0, -4])]), {"config.json": embedding}),
                ("classes", lambda path: small_onnx.always(path, [("probabilities", (3,), [0.2, 0.7, 0.1])]),
                 {"labels.txt": "red\ngreen\nblue\n"})):
            folder = os.path.join(cls.folder, name, "1")
            os.makedirs(folder)
            make(os.path.join(folder, "model.onnx"))
            for file_name, text in files.items():
                with open(os.path.join(folder, file_name), "w", encoding="utf-8") as file:
                    file.write(text)
        return Server("--models", cls.folder, "--device", "cpu", "--precision", "fp32", "--max-images", "3")

    def post(self, path, body, headers=None, status=200):
        if isinstance(body, (dict, list)):
            body, headers = json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        answer = self.server.request("POST", path, body, headers)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def form(self, path, *fields, status=200):
        kind, body = multipart(list(fields))
        return self.post(path, body, {"Content-Type": kind}, status)


class Roboflow(Dialects):
    def infer(self, task, status=200, **members):
        return self.post(f"/infer/{task}", {"api_key": None, "image": {"type": "base64", "value": b64()}, **members}, status=status)

    def test_boxes(self):
        answer = self.infer("object_detection", model_id="detect/1")
        self.assertEqual(answer["image"], {"width": 64, "height": 64})
        self.assertTrue(answer["inference_id"])
        self.assertGreaterEqual(answer["time"], 0)
        first = answer["predictions"][0]
        self.assertEqual([first[k] for k in ("x", "y", "width", "height", "class", "class_id")], [32, 32, 16, 24, "a dog", 1])
        self.assertEqual([round(p["confidence"], 3) for p in answer["predictions"]], [.9, .55, .5])
        self.assertEqual(len({p["detection_id"] for p in answer["predictions"]}), 3)

    def test_parameters(self):
        def scores(**members):
            return [round(p["confidence"], 2) for p in self.infer("object_detection", model_id="detect", **members)["predictions"]]
        self.assertEqual(scores(confidence=0.56), [.9])
        self.assertEqual(scores(iou_threshold=0.95), [.9, .6, .55, .5])
        self.assertEqual(scores(max_detections=1, class_filter=None, id="x", usage_billable=True), [.9])
        self.assertEqual(scores(class_filter=["a cat"]), [.55])
        self.assertEqual(scores(class_agnostic_nms=True), [.9, .55])

    def test_legacy(self):
        body = b64()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self.post("/detect/1?api_key=x&confidence=56&overlap=30", body, kind)
        self.assertEqual(len(answer["predictions"]), 1)
        self.assertEqual(len(self.post("/detect/1?confidence=0.56", uri(), kind)["predictions"]), 1)
        self.assertEqual(len(self.post("/detect/1", body, {"Content-Type": "application/json"})["predictions"]), 3,
                         "inference-sdk calls its base64 JSON")
        self.assertEqual(len(self.form("/detect/1", ("file", "a.png", PHOTO))["predictions"]), 3)
        answer = self.server.request("POST", "/detect/1?format=image", body, kind)
        self.assertEqual((answer.status, answer.headers["Content-Type"], answer.body[:3]), (200, "image/jpeg", b"\xff\xd8\xff"))
        self.assertEqual(self.post("/detect/7", body, kind, 404)["code"], "not_found")
        self.assertEqual(self.server.get("/nothing/here").status, 404, "only numbers are versions")

    def test_lists(self):
        answer = self.infer("object_detection", model_id="detect/1", image=[{"type": "base64", "value": b64()}] * 2)
        self.assertEqual([len(one["predictions"]) for one in answer], [3, 3])
        answer = self.infer("object_detection", model_id="detect/1", image=[{"value": b64()}, {"value": b64(b"no picture")}])
        self.assertIn("message", answer[1])
        self.infer("object_detection", model_id="detect/1", image=[{"value": b64()}] * 4, status=413)

    def test_other_tasks(self):
        (found,) = self.infer("instance_segmentation", model_id="masks/1")["predictions"]
        self.assertEqual(found["points"], [{"x": 16, "y": 16}, {"x": 32, "y": 16}, {"x": 32, "y": 48}, {"x": 16, "y": 48}])
        (found,) = self.infer("keypoints_detection", model_id="pose/1")["predictions"]
        nose = found["keypoints"][0]
        self.assertEqual((nose["x"], nose["y"], nose["class"], nose["class_id"]), (34, 20, "nose", 0))
        answer = self.infer("classification", model_id="classes/1")
        self.assertEqual((answer["top"], answer["predictions"][0]["class_id"]), ("green", 1))
        self.assertEqual(answer["confidence"], answer["predictions"][0]["confidence"])

    def test_registry(self):
        models = {m["model_id"]: m["task_type"] for m in self.server.get("/model/registry").json()["models"]}
        wanted = {"detect": "object-detection", "pose": "keypoint-detection", "masks": "instance-segmentation",
                  "classes": "classification"}
        self.assertEqual(models, {**wanted, **{f"{name}/1": task for name, task in wanted.items()}})
        # A client that loads a model before it asks gets the same list; a model without its version is found.
        added = self.server.request("POST", "/model/add", json.dumps({"model_id": "detect", "api_key": "x"})).json()
        self.assertEqual({m["model_id"]: m["task_type"] for m in added["models"]}, models)
        self.assertEqual(self.infer("object_detection", model_id="detect")["predictions"][0]["class"], "a dog")
        for path in ("/model/remove", "/model/clear"):
            answer = self.server.request("POST", path, b"{}")
            self.assertEqual(answer.status, 501)
            self.assertIn("/v2/repository/models/NAME/unload", answer.json()["message"])
        info = self.server.get("/info").json()
        self.assertEqual((info["name"], set(info)), ("lensd", {"name", "version", "uuid"}))

    def test_hostile(self):
        for members, word in (({"image": {"type": "url", "value": "http://169.254.169.254/x.jpg"}}, "does not fetch"),
                              ({"image": {"type": "numpy", "value": "gASV"}}, "looks like"), ({"image": {}}, "base64"),
                              ({"image": 7}, "base64"), ({"image": []}, "no picture"), ({"image": [[]]}, "base64"),
                              ({"model_id": 5}, "model_id"), ({"confidence": {}}, "confidence"), ({"confidence": 1e300}, "confidence"),
                              ({"visualize_predictions": True}, "format=image")):
            with self.subTest(members):
                answer = self.server.request("POST", "/infer/object_detection",
                                             json.dumps({"model_id": "detect/1", "image": {"value": b64()}, **members}))
                self.assertIn(answer.status, (400, 415), answer.body)
                self.assertIn(word, answer.json()["message"])
        self.assertIn("message", self.post("/infer/object_detection", b'{"image": ', {"Content-Type": "application/json"}, 400))
        self.assertIn("is for embedding", self.post("/infer/object_detection", {"model_id": "embed", "image": b64()}, status=400)["message"])


class DeepStack(Dialects):
    def test_detection(self):
        answer = self.form("/v1/vision/custom/detect", ("image", "a.png", PHOTO), ("api_key", None, b""), ("min_confidence", None, b"0.15"))
        self.assertEqual((answer["success"], answer["count"], answer["code"]), (True, 4, 200))
        scores = [p["confidence"] for p in answer["predictions"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual({k: v for k, v in answer["predictions"][0].items() if k != "confidence"},
                         {"label": "a dog", "x_min": 24, "y_min": 20, "x_max": 40, "y_max": 44})
        self.assertLessEqual(answer["inferenceMs"], answer["processMs"])
        self.assertEqual(self.form("/v1/vision/custom/detect", ("image", "a.png", PHOTO))["count"], 3, "0.4")

    def test_list(self):
        answer = self.post("/v1/vision/custom/list", b"")
        self.assertEqual((answer["success"], sorted(answer["models"])), (True, ["detect", "masks", "pose"]))

    def test_hostile(self):
        for path, fields, status in (("detect", [("image", "a.png", b"no picture")], 415), ("nobody", [("image", "a.png", PHOTO)], 404),
                                     ("classes", [("image", "a.png", PHOTO)], 400),
                                     ("detect", [("image", "a.png", PHOTO), ("min_confidence", None, b"nan")], 400),
                                     ("detect", [("image", "a.png", PHOTO), ("image", "b.png", PHOTO)], 400),
                                     ("detect", [("min_confidence", None, b"0.4")], 400)):
            with self.subTest(path=path, fields=fields):
                answer = self.form(f"/v1/vision/custom/{path}", *fields, status=status)
                self.assertEqual((answer["success"], answer["code"]), (False, status))
                self.assertGreater(len(answer["error"]), 20)
        self.assertEqual(self.server.get("/v1/vision/detection").json()["success"], False)


class HuggingFace(Dialects):
    def test_tasks(self):
        found = self.post("/models/detect", PHOTO)
        self.assertEqual([(f["label"], f["box"]) for f in found],
                         [("a dog", {"xmin": 24, "ymin": 20, "xmax": 40, "ymax": 44}), ("a cat", {"xmin": 45, "ymin": 15, "xmax": 55, "ymax": 25})])
        body = {"inputs": b64(), "parameters": {"threshold": 0.56, "anything": {"else": 1}}}
        self.assertEqual(len(self.post("/models/detect", body)), 1)
        found = self.post("/models/classes", {"inputs": b64(), "parameters": {"top_k": 2}})
        self.assertEqual([f["label"] for f in found], ["green", "red"])
        for name, count in (("masks", 1), ("areas", 2)):
            found = self.post(f"/models/{name}", png(40, 20))
            self.assertEqual(len(found), count)
            mask = base64.b64decode(found[0]["mask"], validate=True)
            self.assertEqual(struct.unpack(">II", mask[16:24]), (40, 20), "a mask has the size of the photo")

    def test_hostile(self):
        self.assertIn("does not fetch", self.post("/models/detect", {"inputs": "https://example.org/a.jpg"}, status=400)["error"])
        self.assertIn("Hugging Face", self.post("/models/embed", PHOTO, status=400)["error"])
        self.assertIn("one picture", self.post("/models/detect", {"inputs": [b64()] * 2}, status=400)["error"])
        self.post("/models/detect", {"inputs": {"text": "a cat"}}, status=400)
        self.post("/models/detect", {"inputs": b64(), "parameters": {"threshold": "high"}}, status=400)
        for parameters in ([1], "high", 0.5, True):
            error = self.post("/models/detect", {"inputs": b64(), "parameters": parameters}, status=400)["error"]
            self.assertIn('"parameters" must be an object', error)
        self.post("/models/detect", {"inputs": b64(), "parameters": None})
        self.post("/models/detect", b"%PDF-1.7 no picture", status=400)


class TorchServe(Dialects):
    def test_detector(self):
        found = self.post("/predictions/detect", PHOTO)
        self.assertEqual([set(f) for f in found], [{"a dog", "score"}, {"a cat", "score"}])
        self.assertEqual(found[0]["a dog"], [24, 20, 40, 44])
        self.assertEqual(len(self.post("/predictions/detect?confidence=0.4", PHOTO)), 3)
        self.assertIn("unknown parameter", self.post("/predictions/detect?min_confidence=0.4", PHOTO, status=400)["error"])


class OpenAi(Dialects):
    def test_embeddings(self):
        answer = self.post("/v1/embeddings", {"model": "embed", "input": [uri(), uri()], "encoding_format": "float", "user": "me"})
        self.assertEqual((answer["object"], answer["model"]), ("list", "embed"))
        self.assertEqual(answer["data"], [{"object": "embedding", "index": i, "embedding": [3, 0, 0, -4]} for i in range(2)])
        self.assertEqual(answer["usage"], {"prompt_tokens": 0, "total_tokens": 0})
        answer = self.post("/v1/embeddings", {"model": "embed", "input": uri(), "encoding_format": "base64"})
        self.assertEqual(struct.unpack("<4f", base64.b64decode(answer["data"][0]["embedding"])), (3, 0, 0, -4))
        content = [{"type": "image_url", "image_url": {"url": uri()}}, {"type": "text", "text": "Represent the given image."}]
        answer = self.post("/v1/embeddings", {"model": "embed", "messages": [{"role": "user", "content": content}]})
        self.assertEqual(answer["data"][0]["embedding"], [3, 0, 0, -4])

    def test_hostile(self):
        for members, status, word in (({"input": "a text"}, 400, "'embed' takes no texts"), ({"input": "https://example.org/a.jpg"}, 400, "does not fetch"),
                                      ({"input": [[1, 2]]}, 400, "takes no texts"), ({"input": []}, 400, "no picture"), ({}, 400, "no picture"),
                                      ({"input": uri(), "encoding_format": "hex"}, 400, "encoding_format"),
                                      ({"input": uri(), "dimensions": 5}, 400, "dimensions is 5"), ({"input": [uri()] * 4}, 413, "--max-images"),
                                      ({"input": uri(), "model": "detect"}, 400, "embeds pictures"), ({"input": uri(), "model": "gpt"}, 404, "gpt"),
                                      ({"messages": {"content": 3}}, 400, "no picture"), ({"messages": [[], 3, {"content": "x"}]}, 400, "no picture"),
                                      ({"input": [uri(), uri(b"no picture")]}, 415, "looks like")):
            with self.subTest(members):
                error = self.post("/v1/embeddings", {"model": "embed", **members}, status=status)["error"]
                self.assertIn(word, error["message"])
                self.assertEqual((error["type"], error["param"]), ("invalid_request_error", None))


if __name__ == "__main__":
    unittest.main()
