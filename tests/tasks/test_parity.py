"""What /predict answers, beside the frameworks that the models come from: `./dev test tasks`.

Models have seeded random weights. A photo's outputs come from lensd as tensors; the framework's own
postprocessing of these tensors must be what /predict answers for the same photo. So the forward pass and
the resize are the same on both sides, and every box counts: 0.5 pixels, 1e-3 of score, the same set.

Random weights give scores that hardly differ, and none of them passes a threshold. So the last layer that
makes class scores is made stronger, until the candidates' best logits deviate by 2, and its biases are
shifted until 200 candidates of one photo pass (spread_logits()). The same set means 99 % of it: two boxes with
an overlap at the threshold, or with equal scores, may fall either way, since the references compute overlaps of
boxes that they move apart by 7680 pixels for each class. What differs is printed.
"""

import contextlib
import glob
import importlib.util
import io
import json
import math
import os
import shutil
import sys
import tempfile
import unittest
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "http"))
from harness import ROOT, SHARED, Server, read  # noqa: E402
sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import totals  # noqa: E402

os.environ.update(YOLO_OFFLINE="true", YOLO_AUTOINSTALL="false", HF_HUB_OFFLINE="1")
SIDE = 320
PHOTOS = (sorted(glob.glob(os.path.join(SHARED, "models", "squeezenet-imagenet", "photos", "*")))
          + [os.path.join(ROOT, "tests", "data", "images", name) for name in ("exif_6.jpg", "exif_long.jpg")])
NUMBERS = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4"}


def has(*names):
    return all(importlib.util.find_spec(name) for name in names)


def upright(path):
    from PIL import Image, ImageOps
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


class Parity(unittest.TestCase):
    """A model of a test in a folder of its own, its server, and the comparison."""

    def setUp(self):
        self.photos, self.score_tolerance = PHOTOS, 1e-3
        self.folder = tempfile.mkdtemp(prefix="lensd-tasks-")
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, content):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(content)

    def outputs(self, photo):
        """The model's outputs for a photo, by name, as torch tensors."""
        import numpy
        import torch
        answer = self.server.request("POST", f"/v2/models/{self.name}/infer", photo,
                                     {"Inference-Header-Content-Length": "0"})
        self.assertEqual(answer.status, 200, answer.body[:300])
        size = int(answer.headers["Inference-Header-Content-Length"])
        at, tensors = size, {}
        for output in json.loads(answer.body[:size])["outputs"]:
            end = at + output["parameters"]["binary_data_size"]
            data = numpy.frombuffer(answer.body[at:end], NUMBERS[output["datatype"]])
            tensors[output["name"]] = torch.from_numpy(data.reshape(output["shape"]).copy())
            at = end
        return tensors

    def compare(self, reference, query="", rest=lambda p: [p["box"][k] for k in ("x1", "y1", "x2", "y2")]):
        """`reference(outputs, width, height)`: lists of (class, score, x1, y1, x2, y2), or what `rest` makes of an
        answer. All but class and score are compared as pixels."""
        with contextlib.closing(Serving(self)):
            found, differing = 0, 0
            for path in self.photos:
                photo = read(path)
                width, height = upright(path).size
                answer = self.server.request("POST", f"/predict{query}", photo)
                self.assertEqual(answer.status, 200, answer.body[:300])
                self.assertEqual(answer.json()["image"], {"width": width, "height": height})
                boxes = [(p["index"], p["score"], *rest(p)) for p in answer.json()["predictions"]]
                self.assertEqual(boxes, sorted(boxes, key=lambda box: -box[1]), "best first")
                wanted = reference(self.outputs(photo), width, height)
                differing += self.match(boxes, wanted, os.path.basename(path))
                found += len(boxes)
            self.assertGreater(found, 20, "too few boxes to say anything")
            print(f"{self.id().split('.')[-1]}: {found} boxes in {len(self.photos)} photos, {differing} differ",
                  file=sys.stderr)
            self.assertLessEqual(differing, 0.01 * found)

    def compare_masks(self, reference, query=""):
        """`reference(outputs, width, height)`: lists of ((class, score, x1, y1, x2, y2), mask)."""
        from pycocotools import mask
        with contextlib.closing(Serving(self)):
            found, differing, unlike, outlined = 0, 0, 0, 0
            for path in self.photos:
                photo, name = read(path), os.path.basename(path)
                width, height = upright(path).size
                answer = self.server.request("POST", f"/predict{query}", photo)
                self.assertEqual(answer.status, 200, answer.body[:300])
                seen = [((p["index"], p["score"], *(p["box"][k] for k in ("x1", "y1", "x2", "y2"))), p["rle"], p["area"])
                        for p in answer.json()["predictions"]]
                wanted = reference(self.outputs(photo), width, height)
                differing += self.match([s[0] for s in seen], [w[0] for w in wanted], name)
                polygons = [p["polygons"] for p in self.server.request(
                    "POST", f"/predict{query}{'&' if query else '?'}masks=polygon", photo).json()["predictions"]]
                for (box, rle, area), outlines in zip(seen, polygons):
                    self.assertEqual(int(mask.area(rle)), area)
                    inside = mask.decode(rle).astype(bool)
                    near = [w for b, w in wanted if b[0] == box[0] and abs(b[1] - box[1]) <= 1e-3
                            and all(abs(p - q) <= 0.5 for p, q in zip(b[2:], box[2:]))]
                    overlaps = [(inside & w.astype(bool)).sum() / (inside | w.astype(bool)).sum() for w in near]
                    if near and max(overlaps) < 0.99:
                        unlike += 1
                        print(f"{name}: mask of {area} pixels: {max(overlaps):.4f}", file=sys.stderr)
                    found += 1
                    if area >= 1000 and outlines:
                        again = mask.decode(mask.merge(mask.frPyObjects(outlines, height, width))).astype(bool)
                        outlined += (inside & again).sum() / (inside | again).sum() < 0.9
            print(f"{self.id().split('.')[-1]}: {found} masks in {len(self.photos)} photos, {differing} boxes differ, {unlike} "
                  f"masks overlap by less than 0.99, {outlined} outlines by less than 0.9", file=sys.stderr)
            self.assertGreater(found, 20, "too few masks to say anything")
            self.assertLessEqual(differing, 0.01 * found)
            self.assertLessEqual(unlike, 0.01 * found)
            self.assertLessEqual(outlined, 0.05 * found, "random masks have holes, which outlines leave out")

    def match(self, boxes, wanted, name):
        """How many boxes of either list are not in the other; each is printed."""
        left, missing = list(boxes), []
        for box in wanted:
            near = [b for b in left if b[0] == box[0] and abs(b[1] - box[1]) <= self.score_tolerance
                    and all(abs(p - q) <= 0.5 for p, q in zip(b[2:], box[2:]))]
            if near:
                left.remove(near[0])
            else:
                missing.append(box)
        for what, some in (("missing", missing), ("too many", left)):
            for box in some:
                print(f"{name}: {what}: {box}", file=sys.stderr)
        return len(missing) + len(left)


class Serving:
    def __init__(self, test):
        test.server = self.server = Server(test.folder, "--precision", "fp32", "--device", "cpu")
        test.name = os.path.basename(test.folder)

    def close(self):
        self.server.stop()


# ---- Ultralytics ----

def letterboxed():
    import numpy
    import torch
    from ultralytics.data.augment import LetterBox
    pixels = LetterBox((SIDE, SIDE), auto=False)(image=numpy.asarray(upright(PHOTOS[0])))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float() / 255


def spread_logits(net, layers, picture, wanted=200, confidence=0.25):
    """Makes the layers' logits differ, and shifts their biases until `wanted` of the best pass."""
    import torch
    seen = []
    with torch.no_grad():
        for layer in layers:
            layer.bias.zero_()
        hooks = [layer.register_forward_hook(lambda _module, _input, output: seen.append(output))
                 for layer in layers]
        net.eval()(picture)
        for hook in hooks:
            hook.remove()
        best = torch.cat([s.flatten(2).amax(1).flatten() if s.dim() == 4 else s.amax(-1).flatten()
                          for s in seen]).sort(descending=True).values
        factor = 2 / best.std().item()
        shift = math.log(confidence / (1 - confidence)) - best[wanted].item() * factor
        for layer in layers:
            layer.weight.mul_(factor)
            layer.bias.fill_(shift)


@unittest.skipUnless(has("ultralytics", "onnx"), "the package ultralytics or onnx is not installed")
class Ultralytics(Parity):
    def export(self, name, nms=False, dynamic=False):
        import torch
        import ultralytics
        torch.manual_seed(7)
        is_rtdetr = name.startswith("rtdetr")
        model = (ultralytics.RTDETR if is_rtdetr else ultralytics.YOLO)(name + ".yaml")
        if not is_rtdetr:
            head = model.model.model[-1]
            branches = [b for b in (getattr(head, n, None) for n in ("cv3", "one2one_cv3")) if b is not None]
            spread_logits(model.model, [level[-1] for level in branches[-1]], letterboxed())
            for level, shifted in zip(branches[0], branches[-1]):
                level[-1].load_state_dict(shifted[-1].state_dict())
        if name == "yolo11n-seg":  # all of its masks would be empty: each prototype gets a factor of its own
            with torch.no_grad():
                for level in head.cv4:
                    level[-1].bias.normal_()
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                path = model.export(format="onnx", imgsz=SIDE, nms=nms, dynamic=dynamic, simplify=False, opset=17)
            os.rename(path, "model.onnx")
        finally:
            os.chdir(here)

    def suppressed(self, outputs, width, height, **options):
        from ultralytics.utils.nms import non_max_suppression
        from ultralytics.utils.ops import scale_boxes
        settings = {"conf_thres": 0.25, "iou_thres": 0.7, "max_det": 300, **options}
        (found,) = non_max_suppression(outputs["output0"].clone(), **settings)
        scale_boxes((SIDE, SIDE), found[:, :4], (height, width))
        self.extras = found[:, 6:]
        return [(int(f[5]), f[4].item(), *f[:4].tolist()) for f in found]

    def check(self, name, nms=False):
        self.export(name, nms)
        self.compare(self.suppressed)

    def check_pose(self, name, nms=False):
        """A point's score counts 500 times, so that half a pixel is 1e-3 of it."""
        def reference(outputs, width, height):
            from ultralytics.utils import ops
            is_final = outputs["output0"].shape[-1] == 57
            boxes = self.suppressed(outputs, width, height, nc=1 if is_final else outputs["output0"].shape[1] - 4 - 51,
                                    end2end=is_final)
            points = ops.scale_coords((SIDE, SIDE), self.extras.reshape(-1, 17, 3).clone(), (height, width))
            points[..., 2] *= 500
            return [(*box, *point.flatten().tolist()) for box, point in zip(boxes, points)]

        self.export(name, nms)
        self.compare(reference, rest=lambda p: [p["box"][k] for k in ("x1", "y1", "x2", "y2")]
                     + [v for k in p["keypoints"] for v in (k["x"], k["y"], 500 * k["score"])])

    def check_obb(self, name, nms=False):
        """Centre, size and corners."""
        def reference(outputs, width, height):
            import torch
            from ultralytics.utils import ops
            from ultralytics.utils.nms import non_max_suppression
            output = outputs["output0"].clone()
            (found,) = non_max_suppression(output, 0.25, 0.7, nc=output.shape[1] - 5, rotated=True,
                                           end2end=output.shape[-1] == 7)
            boxes = torch.cat([found[:, :4], found[:, -1:]], -1)
            boxes[:, :4] = ops.scale_boxes((SIDE, SIDE), boxes[:, :4], (height, width), xywh=True)
            corners = ops.xywhr2xyxyxyxy(boxes)
            return [(int(f[5]), f[4].item(), *b[:4].tolist(), *c.flatten().tolist())
                    for f, b, c in zip(found, boxes, corners)]

        self.export(name, nms)
        self.compare(reference, rest=lambda p: [p["oriented_box"][k] for k in ("x", "y", "width", "height")]
                     + [v for corner in p["oriented_box"]["corners"] for v in corner])

    def check_masks(self, name, nms=False):
        """Masks are compared where the boxes are the same: an intersection over union of 0.99."""
        def reference(outputs, width, height):
            from ultralytics.utils import ops
            is_final = outputs["output0"].shape[-1] == 38
            boxes = self.suppressed(outputs, width, height, nc=80, end2end=is_final)
            boxes_in_photo = torch.tensor([box[2:] for box in boxes]).reshape(-1, 4)
            masks = ops.process_mask_native(outputs["output1"][0], self.extras, boxes_in_photo, (height, width))
            return [(box, mask.numpy()) for box, mask in zip(boxes, masks) if mask.any()]

        import torch
        self.export(name, nms)
        self.compare_masks(reference)

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_yolov8_seg(self):
        self.check_masks("yolov8n-seg")

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_yolo11_seg(self):
        self.check_masks("yolo11n-seg")

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_yolo26_seg(self):
        self.check_masks("yolo26n-seg")

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_seg_nms_in_the_graph(self):
        self.check_masks("yolov8n-seg", nms=True)

    def test_yolov8_pose(self):
        self.check_pose("yolov8n-pose")

    def test_yolo11_pose(self):
        self.check_pose("yolo11n-pose")

    def test_yolo26_pose(self):
        self.check_pose("yolo26n-pose")

    def test_pose_nms_in_the_graph(self):
        self.check_pose("yolov8n-pose", nms=True)

    def test_yolov8_obb(self):
        self.check_obb("yolov8n-obb")

    def test_yolo11_obb(self):
        self.check_obb("yolo11n-obb")

    def test_yolo26_obb(self):
        self.check_obb("yolo26n-obb")

    def test_obb_nms_in_the_graph(self):
        self.check_obb("yolov8n-obb", nms=True)

    def test_yolov8(self):
        self.check("yolov8n")

    def test_yolov8_options(self):
        self.export("yolov8n")
        self.compare(lambda *a: self.suppressed(*a, conf_thres=0.2, iou_thres=0.3, agnostic=True, max_det=9),
                     query="?confidence=0.2&iou=0.3&agnostic=true&max_detections=9")

    def test_yolov9(self):
        self.check("yolov9t")

    def test_yolo11(self):
        self.check("yolo11n")

    def test_yolo12(self):
        self.check("yolo12n")

    def test_yolov10_end_to_end(self):
        self.check("yolov10n")

    def test_yolo26_end_to_end(self):
        self.check("yolo26n")

    @unittest.skipUnless(has("onnxruntime"), "the package onnxruntime is not installed")
    def test_rectangles(self):
        """An export with free sides: ?size= of what LetterBox(auto=True) makes of a photo, beside the predictor with
        rect=True. It runs the net itself, with ONNX Runtime."""
        import numpy
        import time
        import ultralytics
        self.export("yolov8n", dynamic=True)
        model = ultralytics.YOLO(os.path.join(self.folder, "model.onnx"), task="detect")
        with contextlib.closing(Serving(self)):
            differing, found = 0, 0
            for path in PHOTOS[:3]:
                pixels = numpy.asarray(upright(path))
                height, width = pixels.shape[:2]
                share = min(SIDE / height, SIDE / width)
                sides = [-(-round(side * share) // 32) * 32 for side in (width, height)]
                query = f"?size={sides[0]}x{sides[1]}"
                answer = self.server.request("POST", f"/predict{query}", read(path))
                for _ in range(600):
                    if answer.status != 503:
                        break
                    time.sleep(0.5)
                    answer = self.server.request("POST", f"/predict{query}", read(path))
                self.assertEqual(answer.status, 200, answer.body[:300])
                boxes = [(p["index"], p["score"], *(p["box"][k] for k in ("x1", "y1", "x2", "y2")))
                         for p in answer.json()["predictions"]]
                with contextlib.redirect_stdout(io.StringIO()):
                    (wanted,) = model.predict(numpy.ascontiguousarray(pixels[..., ::-1]), imgsz=SIDE, rect=True, conf=0.25,
                                              iou=0.7, device="cpu", verbose=False)
                differing += self.match(boxes, [(int(c), s.item(), *b.tolist()) for b, s, c in zip(
                    wanted.boxes.xyxy, wanted.boxes.conf, wanted.boxes.cls)], f"{os.path.basename(path)} {sides}")
                found += len(boxes)
            print(f"test_rectangles: {found} boxes in 3 photos, {differing} differ", file=sys.stderr)
            self.assertGreater(found, 20)
            self.assertLessEqual(differing, 0.01 * found)

    def test_nms_in_the_graph(self):
        self.check("yolov8n", nms=True)

    @unittest.skipUnless(has("sahi"), "the package sahi is not installed")
    def test_slices(self):
        """Slices and merging are SAHI's; what each slice answers comes from lensd, as a photo of its own."""
        from sahi.postprocess.combine import GreedyNMMPostprocess, NMSPostprocess
        from sahi.prediction import ObjectPrediction
        from sahi.slicing import get_slice_bboxes
        self.export("yolov8n")
        count = differing = 0
        with contextlib.closing(Serving(self)):
            for photo in PHOTOS[:4]:
                picture = upright(photo)
                whole = (0, 0, *picture.size)
                slices = get_slice_bboxes(picture.height, picture.width, 160, 160, False, 0.2, 0.2)
                found = [self.slice_answer(picture, place, ObjectPrediction) for place in [*slices, whole]]
                for rule, postprocess in (("nmm", GreedyNMMPostprocess(0.5, "IOS", False)),
                                          ("nms", NMSPostprocess(0.5, "IOU", False))):
                    wanted = [(p.category.id, p.score.value, *p.bbox.to_xyxy())
                              for p in postprocess(sum(found, []))]
                    body = io.BytesIO()
                    picture.save(body, "png")
                    answer = self.server.request("POST", f"/predict?slices=160&merge={rule}&max_detections=1000",
                                                 body.getvalue())
                    boxes = [(p["index"], p["score"], *(p["box"][k] for k in ("x1", "y1", "x2", "y2")))
                             for p in answer.json()["predictions"]]
                    count += len(wanted)
                    differing += self.match(boxes, wanted, f"{os.path.basename(photo)} {rule}")
        print(f"test_slices: {count} boxes, {differing} differ", file=sys.stderr)
        self.assertGreater(count, 100)
        self.assertLessEqual(differing, 0.01 * count, "answers are rounded to 0.001 pixels before SAHI merges them")

    def slice_answer(self, picture, place, prediction):
        body = io.BytesIO()
        picture.crop(place).save(body, "png")
        answer = self.server.request("POST", "/predict", body.getvalue()).json()
        return [prediction(bbox=[p["box"]["x1"] + place[0], p["box"]["y1"] + place[1], p["box"]["x2"] + place[0],
                                 p["box"]["y2"] + place[1]], category_id=p["index"], score=p["score"])
                for p in answer["predictions"]]

    def test_rtdetr(self):
        """Scores of random weights are below 0.25: the threshold is lowered instead of the biases."""
        self.export("rtdetr-l")

        def reference(outputs, width, height):
            import torch
            from ultralytics.utils import ops
            boxes, scores, labels = outputs["output0"][0].split((4, 1, 1), dim=-1)
            keep = scores[:, 0] > 0.01
            boxes = ops.xywh2xyxy(boxes[keep]) * torch.tensor([width, height, width, height])
            boxes[:, 0::2] = boxes[:, 0::2].clamp(0, width)
            boxes[:, 1::2] = boxes[:, 1::2].clamp(0, height)
            return [(int(l), s.item(), *b.tolist())
                    for b, s, l in zip(boxes, scores[keep, 0], labels[keep, 0])]

        self.compare(reference, query="?confidence=0.01")


@unittest.skipUnless(has("ultralytics", "transformers", "onnx"), "the package ultralytics, transformers or onnx is not installed")
class UltralyticsWords(Parity):
    """YOLO-World and YOLOE with vectors of texts as an input: `labels` is the prompt. Letterbox, forward pass and suppression
    are Ultralytics', the vectors those of transformers' CLIP."""
    LABELS = ["a dog", "a red car", "the sea at night"]
    MOST_LABELS = 64

    def export(self, folder, module, inputs, names, output):
        import torch
        os.mkdir(os.path.join(self.folder, folder))
        torch.onnx.export(module, inputs, os.path.join(self.folder, folder, "model.onnx"), opset_version=17, dynamo=False,
                          input_names=names, output_names=[output], dynamic_axes={name: {0: "batch"} for name in [*names, output]})

    def texts(self):
        """Writes the half for texts, a CLIP of 512 numbers, and returns the labels' vectors."""
        import torch
        import transformers
        clip = os.path.join(ROOT, "tests", "data", "text_models", "clip")
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            shutil.copyfile(os.path.join(clip, name), os.path.join(self.folder, name))
        tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
        torch.manual_seed(5)
        model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=24, projection_dim=512, bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, attn_implementation="eager")).eval()

        class Vectors(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, input_ids):
                return self.model(input_ids=input_ids).text_embeds

        ids = tokenizer(self.LABELS, padding="max_length", max_length=24, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(5 if parameter.dim() > 1 else 1)  # fresh weights make all texts alike
            vectors = torch.nn.functional.normalize(Vectors()(ids), dim=-1)[None]
        self.export("textual", Vectors(), (ids,), ["input_ids"], "text_embeds")
        return vectors

    @staticmethod
    def calibrate(model, forward, confidence=0.25):
        """Fresh weights would make all scores equal: normalisations get the photos' statistics, the head a scale and a bias
        with which 30 boxes of a photo pass."""
        import torch
        for norm in model.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.reset_running_stats()
                norm.momentum = None
                norm.train()
        forward()
        model.eval()
        head = model.model[-1]
        for level in head.cv4:
            level.bias.zero_()
            level.logit_scale.fill_(-4)  # no score is rounded to 1
        for level in head.cv2:
            level[-1].weight.mul_(8)
        best = torch.logit(forward()[:, 4:].amax(1).flatten()).sort(descending=True).values
        factor = 1.5 / best.std().item()
        for level in head.cv4:
            level.logit_scale.add_(math.log(factor))
            level.bias.fill_(math.log(confidence / (1 - confidence)) - best[30 * len(PHOTOS)].item() * factor)

    def check(self, kind, name, argument):
        import numpy
        import torch
        from ultralytics.data.augment import LetterBox
        from ultralytics.nn import tasks
        from ultralytics.utils.nms import non_max_suppression
        from ultralytics.utils.ops import scale_boxes
        vectors = self.texts()
        torch.manual_seed(3)
        model = getattr(tasks, kind)(name + ".yaml", nc=self.MOST_LABELS, verbose=False).eval()
        head = model.model[-1]
        head.export, head.format = True, "onnx"

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, images, txt_feats):
                made = self.model.predict(images, **{argument: head.get_tpe(txt_feats) if argument == "tpe" else txt_feats})
                return made[0] if isinstance(made, (tuple, list)) else made

        letterbox = LetterBox((SIDE, SIDE), auto=False)
        pictures = torch.cat([torch.from_numpy(letterbox(image=numpy.asarray(upright(path))).copy()).permute(2, 0, 1)[None]
                              for path in PHOTOS]).float() / 255
        net, head.nc = Net(), len(self.LABELS)
        with torch.no_grad():
            self.calibrate(model, lambda: net(pictures, vectors.expand(len(PHOTOS), -1, -1)))
            made = net(pictures, vectors.expand(len(PHOTOS), -1, -1))
        head.nc = self.MOST_LABELS
        self.export("visual", net.eval(), (pictures[:2], torch.randn(2, self.MOST_LABELS, 512)), ["images", "txt_feats"], "output0")
        self.write("lensd.json", json.dumps({"layout": "yolov8"}))
        rows = iter(non_max_suppression(made, 0.25, 0.7, nc=len(self.LABELS), max_det=300))

        def reference(_outputs, width, height):
            found = next(rows)
            scale_boxes((SIDE, SIDE), found[:, :4], (height, width))
            return [(int(f[5]), f[4].item(), *f[:4].tolist()) for f in found]

        self.outputs = lambda _photo: None
        self.compare(reference, "?" + urllib.parse.urlencode({"labels": ",".join(self.LABELS)}))

    def test_yolo_world(self):
        self.check("WorldModel", "yolov8n-worldv2", "txt_feats")

    def test_yoloe(self):
        self.check("YOLOEModel", "yoloe-v8n", "tpe")


# ---- Hugging Face ----

@unittest.skipUnless(has("transformers", "torch", "onnxscript"), "the package transformers, torch or onnxscript is not installed")
class HuggingFace(Parity):
    """Small models of the real classes; reference: their image processors."""

    def export(self, model, config, head, names=("logits", "pred_boxes"), added=None):
        """`added`: numbers that outputs get on top, by name."""
        import torch
        picture = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
        model = model.eval()
        if head:
            spread_logits(model, [head(model)], picture, wanted=10, confidence=0.5)

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model
                for name, numbers in (added or {}).items():
                    self.register_buffer(name, numbers)

            def forward(self, pixel_values):
                found = self.model(pixel_values)
                return tuple(found[name] + getattr(self, name) if name in (added or {}) else found[name]
                             for name in names)

        torch.onnx.export(Plain(), (picture,), os.path.join(self.folder, "model.onnx"), input_names=["pixel_values"],
                          output_names=list(names), opset_version=17, dynamo=False)
        self.write("config.json", json.dumps({"architectures": [type(model).__name__], "id2label": config.id2label}))
        self.write("preprocessor_config.json", json.dumps({"size": {"height": SIDE, "width": SIDE}}))

    def detected(self, processor, threshold=0.5):
        def reference(outputs, width, height):
            from types import SimpleNamespace
            (found,) = processor.post_process_object_detection(
                SimpleNamespace(logits=outputs["logits"], pred_boxes=outputs["pred_boxes"]),
                threshold=threshold, target_sizes=[(height, width)])
            boxes = found["boxes"].clone()
            boxes[:, 0::2] = boxes[:, 0::2].clamp(0, width)
            boxes[:, 1::2] = boxes[:, 1::2].clamp(0, height)
            return [(int(label), score.item(), *box.tolist())
                    for label, score, box in zip(found["labels"], found["scores"], boxes)]
        return reference

    def test_yolos(self):
        import torch
        from transformers import YolosConfig, YolosForObjectDetection, YolosImageProcessor
        torch.manual_seed(7)
        config = YolosConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
                             image_size=[SIDE, SIDE], num_detection_tokens=60, num_labels=9)
        model = YolosForObjectDetection(config)
        self.export(model, config, lambda m: m.class_labels_classifier.layers[-1])
        self.compare(self.detected(YolosImageProcessor(), 0.3), query="?confidence=0.3")

    def check_rt_detr(self, config_class, model_class, **more):
        import torch
        from transformers import RTDetrImageProcessor, RTDetrResNetConfig
        torch.manual_seed(7)
        config = config_class(
            backbone_config=RTDetrResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1],
                                               layer_type="basic", out_features=["stage2", "stage3", "stage4"]),
            encoder_in_channels=[24, 32, 40], encoder_hidden_dim=32, d_model=32, decoder_in_channels=[32, 32, 32],
            encoder_ffn_dim=64, decoder_ffn_dim=64, decoder_layers=2, num_queries=50, num_labels=9,
            use_pretrained_backbone=False, **more)
        self.export(model_class(config), config, None)
        # Scores of random weights lie close together: the threshold takes the place of shifted biases.
        self.compare(self.detected(RTDetrImageProcessor(), 0.015), query="?confidence=0.015")

    def test_rt_detr(self):
        from transformers import RTDetrConfig, RTDetrForObjectDetection
        self.check_rt_detr(RTDetrConfig, RTDetrForObjectDetection)

    def test_d_fine(self):
        from transformers import DFineConfig, DFineForObjectDetection
        self.check_rt_detr(DFineConfig, DFineForObjectDetection)

    def own_queries(self, model, boxes=True, masks=False):
        """Numbers on top of the outputs, which are alike for all queries of random weights: logits with a deviation of 2
        around -3, boxes that differ by up to 0.3 of a side, and masks of a few blobs."""
        import torch
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            shown = model.eval()(torch.rand(1, 3, SIDE, SIDE, generator=generator))
        added = {"logits": torch.zeros_like(shown.logits).normal_(-3, 2, generator=generator) - shown.logits.mean(),
                 "pred_boxes": torch.zeros_like(shown.pred_boxes).uniform_(-.3, .3, generator=generator)}
        if masks:
            blobs = torch.empty(*shown.pred_masks.shape[:2], 4, 4).normal_(-5, 6, generator=generator)
            added["pred_masks"] = torch.nn.functional.interpolate(blobs, shown.pred_masks.shape[2:], mode="bicubic")
        return added

    def rf_detr(self, model_class):
        import torch
        from transformers import RfDetrConfig
        torch.manual_seed(7)
        backbone = {"model_type": "rf_detr_dinov2", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                    "image_size": SIDE, "patch_size": 16, "num_windows": 2, "out_features": ["stage1", "stage2"],
                    "num_register_tokens": 0}
        model = model_class(RfDetrConfig(backbone_config=backbone, d_model=32, decoder_ffn_dim=64, decoder_layers=2,
                                         decoder_self_attention_heads=2, decoder_cross_attention_heads=2, num_queries=40,
                                         group_detr=1, c2f_num_blocks=1, num_labels=9, intermediate_size=64))
        # The positions are those of this size. Traced, they would be resized by an operator that ONNX lacks.
        for module in model.modules():
            if hasattr(module, "interpolate_pos_encoding"):
                module.interpolate_pos_encoding = lambda *_, own=module.position_embeddings: own
        return model

    def test_rf_detr(self):
        from transformers import RfDetrForObjectDetection, RfDetrImageProcessor
        model = self.rf_detr(RfDetrForObjectDetection)
        self.export(model, model.config, None, added=self.own_queries(model))
        self.compare(self.detected(RfDetrImageProcessor(), 0.5), query="?confidence=0.5")

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_rf_detr_seg(self):
        from types import SimpleNamespace
        from transformers import RfDetrForInstanceSegmentation, RfDetrImageProcessor
        model = self.rf_detr(RfDetrForInstanceSegmentation)
        self.export(model, model.config, None, ("logits", "pred_boxes", "pred_masks"), self.own_queries(model, masks=True))
        boxes = self.detected(RfDetrImageProcessor(), 0.5)

        def reference(outputs, width, height):
            (found,) = RfDetrImageProcessor().post_process_instance_segmentation(
                SimpleNamespace(**outputs), threshold=0.5, target_sizes=[(height, width)], return_binary_maps=True)
            of = {(s["label_id"], s["score"]): m.numpy() for s, m in zip(found["segments_info"], found["segmentation"])}
            return [(box, of[key]) for box in boxes(outputs, width, height) if (key := (box[0], round(box[1], 6))) in of]

        self.compare_masks(reference)

    def test_deformable_detr(self):
        import torch
        from transformers import (DeformableDetrConfig, DeformableDetrForObjectDetection, DeformableDetrImageProcessor,
                                  ResNetConfig)
        torch.manual_seed(7)
        backbone = ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1], layer_type="basic",
                                out_features=["stage2", "stage3", "stage4"])
        model = DeformableDetrForObjectDetection(DeformableDetrConfig(
            backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, d_model=32, encoder_layers=1,
            decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
            num_queries=120, num_labels=9, disable_custom_kernels=True))
        self.export(model, model.config, None, added=self.own_queries(model))
        self.compare(self.detected(DeformableDetrImageProcessor(), 0.5), query="?confidence=0.5")

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_segformer(self):
        """Class maps of the whole photo: 99.9 % of the pixels."""
        import torch
        from types import SimpleNamespace
        from pycocotools import mask
        from transformers import SegformerConfig, SegformerForSemanticSegmentation, SegformerImageProcessor
        torch.manual_seed(7)
        config = SegformerConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 1, 2, 2],
                                 decoder_hidden_size=16, num_labels=7)
        model = SegformerForSemanticSegmentation(config)
        with torch.no_grad():
            model.decode_head.classifier.weight.mul_(10)
        self.export(model, config, None, ("logits",))
        with contextlib.closing(Serving(self)):
            classes = set()
            for path in PHOTOS:
                photo = read(path)
                width, height = upright(path).size
                answer = self.server.request("POST", "/predict", photo)
                self.assertEqual(answer.status, 200, answer.body[:300])
                found = torch.full((height, width), -1)
                for segment in answer.json()["segments"]:
                    inside = torch.from_numpy(mask.decode(segment["rle"])).bool()
                    self.assertEqual(int(inside.sum()), segment["area"])
                    self.assertEqual(int(mask.area(segment["rle"])), segment["area"])
                    found[inside] = segment["index"]
                    classes.add(segment["index"])
                (wanted,) = SegformerImageProcessor().post_process_semantic_segmentation(
                    SimpleNamespace(logits=self.outputs(photo)["logits"]), target_sizes=[(height, width)])
                same = (found == wanted).float().mean().item()
                self.assertGreaterEqual(same, 0.999, os.path.basename(path))
            self.assertGreater(len(classes), 2, "too few classes to say anything")
            print(f"test_segformer: {len(classes)} classes in {len(PHOTOS)} photos", file=sys.stderr)

    def segments(self, found):
        """post_process_…_segmentation's answer as (class, score, box around the mask), mask; best first."""
        import torch
        boxes = []
        for segment in found["segments_info"]:
            mask = found["segmentation"] == segment["id"] if found["segmentation"].dim() == 2 else \
                found["segmentation"][len(boxes)].bool()
            y, x = torch.where(mask)
            boxes.append(((segment["label_id"], segment["score"], x.min().item(), y.min().item(),
                           x.max().item() + 1, y.max().item() + 1), mask.numpy()))
        return boxes

    def check_query_masks(self, processor, model, config, names, kind, threshold, **more):
        """With random weights all queries see the same. So each gets numbers of its own on top: logits with a deviation
        of 2, of which the last class has 2 less, and a mask of a few blobs."""
        import torch
        from types import SimpleNamespace
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            shown = model.eval()(torch.rand(1, 3, SIDE, SIDE, generator=generator))
        logits, masks = (torch.zeros_like(shown[name]) for name in (names[0], names[-1]))
        logits.normal_(0, 2, generator=generator)[..., -1] -= 2
        blobs = torch.empty(*masks.shape[:2], 4, 4).normal_(-5, 6, generator=generator)
        masks = torch.nn.functional.interpolate(blobs, masks.shape[2:], mode="bicubic")
        self.export(model, config, None, names, {names[0]: logits, names[-1]: masks})

        def reference(outputs, width, height):
            (found,) = getattr(processor, f"post_process_{kind}_segmentation")(
                SimpleNamespace(**{name: value.clone() for name, value in outputs.items()}), threshold=threshold,
                target_sizes=[(height, width)], **more)
            return self.segments(found)

        self.compare_masks(reference, query=f"?confidence={threshold}")

    def swin(self):
        from transformers import SwinConfig
        return SwinConfig(image_size=SIDE, embed_dim=12, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 4], window_size=5,
                          out_features=["stage1", "stage2", "stage3", "stage4"])

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_mask2former(self):
        import torch
        from transformers import (Mask2FormerConfig, Mask2FormerForUniversalSegmentation, Mask2FormerImageProcessor)
        torch.manual_seed(7)
        model = Mask2FormerForUniversalSegmentation(Mask2FormerConfig(
            backbone_config=self.swin(), num_labels=9, feature_size=32, mask_feature_size=32, hidden_dim=32,
            encoder_feedforward_dim=64, encoder_layers=1, decoder_layers=2, num_attention_heads=2, dim_feedforward=64,
            num_queries=20))
        self.check_query_masks(Mask2FormerImageProcessor(), model, model.config,
                               ("class_queries_logits", "masks_queries_logits"), "instance", 0.3, return_binary_maps=True)

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_maskformer(self):
        import torch
        from transformers import (DetrConfig, MaskFormerConfig, MaskFormerForInstanceSegmentation,
                                  MaskFormerImageProcessor)
        torch.manual_seed(7)
        config = MaskFormerConfig(
            backbone_config=self.swin(), decoder_config=DetrConfig(d_model=32, decoder_layers=2, decoder_attention_heads=2, decoder_ffn_dim=64,
                                      num_queries=20), fpn_feature_size=32, mask_feature_size=32, num_labels=9)
        model = MaskFormerForInstanceSegmentation(config)
        self.check_query_masks(MaskFormerImageProcessor(), model, config, ("class_queries_logits", "masks_queries_logits"),
                               "instance", 0.3, return_binary_maps=True)

    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_detr_segmentation(self):
        import torch
        from transformers import DetrConfig, DetrForSegmentation, DetrImageProcessor, ResNetConfig
        torch.manual_seed(7)
        config = DetrConfig(backbone_config=ResNetConfig(embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 1, 1],
                                                         layer_type="basic",
                                                         out_features=["stage1", "stage2", "stage3", "stage4"]),
                            use_timm_backbone=False, use_pretrained_backbone=False, d_model=32, encoder_layers=1,
                            decoder_layers=2, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=64,
                            decoder_ffn_dim=64, num_queries=30, num_labels=9)
        model = DetrForSegmentation(config)
        self.check_query_masks(DetrImageProcessor(), model, config, ("logits", "pred_masks"), "instance", 0.3)

    def check_zero_shot(self, config_class, model_class, activation, probabilities):
        """Probabilities of texts, of the whole model's own logits."""
        import torch
        from types import SimpleNamespace
        torch.manual_seed(7)
        half = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
        model = model_class(config_class(text_config={**half, "vocab_size": 99, "eos_token_id": 98},
                                         vision_config={**half, "image_size": 96, "patch_size": 16})).eval()

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, pixel_values):
                return self.model.get_image_features(pixel_values).pooler_output

        torch.onnx.export(Plain(), (torch.rand(1, 3, 96, 96),), os.path.join(self.folder, "model.onnx"),
                          input_names=["pixel_values"], output_names=["image_embeds"], opset_version=17, dynamo=False)
        texts = torch.randint(1, 98, (5, 8))
        texts[:, -1] = 98
        with torch.no_grad():
            vectors = model.get_text_features(input_ids=texts).pooler_output
            bias = model.logit_bias.item() if hasattr(model, "logit_bias") else 0
            scale = model.logit_scale.exp().item()
        self.write("zero_shot.json", json.dumps({
            "labels": [str(i) for i in range(5)], "vectors": vectors.tolist(), "activation": activation, "scale": scale,
            "bias": bias}))
        with contextlib.closing(Serving(self)):
            for path in PHOTOS:
                photo = read(path)
                predictions = self.server.request("POST", "/predict", photo).json()["predictions"]
                found = {p["index"]: p["probability"] for p in predictions}
                unit = torch.nn.functional.normalize
                image = self.outputs(photo)["image_embeds"]
                logits = unit(image, dim=-1) @ unit(vectors, dim=-1).T * scale + bias
                for index, wanted in enumerate(probabilities(logits)[0].tolist()):
                    self.assertAlmostEqual(found[index], wanted, delta=1e-3)

    def test_clip(self):
        from transformers import CLIPConfig, CLIPModel
        self.check_zero_shot(CLIPConfig, CLIPModel, "softmax", lambda logits: logits.softmax(-1))

    def test_siglip(self):
        from transformers import SiglipConfig, SiglipModel
        self.check_zero_shot(SiglipConfig, SiglipModel, "sigmoid", lambda logits: logits.sigmoid())

    def test_depth_anything(self):
        """The map of the whole photo: 1e-3 of its range."""
        import base64
        import numpy
        import torch
        from types import SimpleNamespace
        from PIL import Image
        from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config, DPTImageProcessor
        torch.manual_seed(7)
        backbone = Dinov2Config(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, image_size=SIDE - SIDE % 14,
                                patch_size=14, out_features=["stage1", "stage2", "stage3", "stage4"],
                                reshape_hidden_states=False, apply_layernorm=True)
        config = DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=32, patch_size=14,
                                     neck_hidden_sizes=[16, 16, 24, 32], fusion_hidden_size=16, head_hidden_size=8)
        side = SIDE - SIDE % 14
        model = DepthAnythingForDepthEstimation(config).eval()

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, pixel_values):
                return self.model(pixel_values).predicted_depth

        torch.onnx.export(Plain(), (torch.rand(1, 3, side, side),), os.path.join(self.folder, "model.onnx"),
                          input_names=["pixel_values"], output_names=["predicted_depth"], opset_version=17, dynamo=False)
        self.write("config.json", json.dumps({"architectures": [type(model).__name__]}))
        with contextlib.closing(Serving(self)):
            worst = 0
            for path in PHOTOS:
                photo = read(path)
                width, height = upright(path).size
                depth = self.server.request("POST", "/predict", photo).json()["depth"]
                pixels = numpy.asarray(Image.open(io.BytesIO(base64.b64decode(depth["png"]))), numpy.float32)
                found = depth["min"] + (depth["max"] - depth["min"]) * pixels / 65535
                (wanted,) = DPTImageProcessor().post_process_depth_estimation(
                    SimpleNamespace(predicted_depth=self.outputs(photo)["predicted_depth"]), [(height, width)])
                wanted = wanted["predicted_depth"].numpy()
                self.assertEqual(found.shape, wanted.shape)
                worst = max(worst, float(numpy.abs(found - wanted).max() / max(numpy.ptp(wanted), 1e-6)))
            print(f"test_depth_anything: at most {worst:.1e} of the range in {len(PHOTOS)} photos", file=sys.stderr)
            self.assertLessEqual(worst, 1e-3)

    def test_vit_embedding(self):
        import torch
        from transformers import ViTConfig, ViTModel
        torch.manual_seed(7)
        model = ViTModel(ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
                                   image_size=96, patch_size=16), add_pooling_layer=False)

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model.eval()

            def forward(self, pixel_values):
                return self.model(pixel_values).last_hidden_state

        torch.onnx.export(Plain(), (torch.rand(1, 3, 96, 96),), os.path.join(self.folder, "model.onnx"),
                          input_names=["pixel_values"], output_names=["last_hidden_state"], opset_version=17,
                          dynamo=False)
        self.write("config.json", json.dumps({"architectures": ["ViTModel"]}))
        with contextlib.closing(Serving(self)):
            for path in PHOTOS:
                photo = read(path)
                vector = self.server.request("POST", "/predict?normalize=true", photo).json()["embedding"]
                wanted = torch.nn.functional.normalize(self.outputs(photo)["last_hidden_state"][0, 0], dim=0)
                self.assertGreaterEqual(torch.dot(torch.tensor(vector), wanted).item(), 0.9999)


# ---- OpenCV ----

@unittest.skipUnless(has("cv2", "torch", "onnxscript"), "the package opencv-python, torch or onnxscript is not installed")
class OpenCV(Parity):
    def test_yunet(self):
        """A net of random weights with YuNet's outputs. FaceDetectorYN has no part of its own for outputs: both run the
        net, on the same pixels."""
        import cv2
        import numpy
        import torch
        torch.manual_seed(7)

        class Faces(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 8, 8), torch.nn.ReLU())
                self.down = torch.nn.ModuleList([torch.nn.Conv2d(16, 16, 2, 2) for _ in range(2)])
                self.heads = torch.nn.ModuleList([torch.nn.Conv2d(16, 16, 1) for _ in range(3)])

            def forward(self, picture):
                features = [self.stem(picture / 64 - 2)]
                for down in self.down:
                    features.append(torch.relu(down(features[-1])))
                rows = [head(f).flatten(2).transpose(1, 2) for head, f in zip(self.heads, features)]
                return (*(torch.sigmoid(8 * r[..., :1]) for r in rows), *(torch.sigmoid(8 * r[..., 1:2]) for r in rows),
                        *(r[..., 2:6] for r in rows), *(r[..., 6:] for r in rows))

        names = [f"{what}_{stride}" for what in ("cls", "obj", "bbox", "kps") for stride in (8, 16, 32)]
        path = os.path.join(self.folder, "model.onnx")
        torch.onnx.export(Faces().eval(), (torch.rand(1, 3, SIDE, SIDE),), path, input_names=["input"], output_names=names,
                          opset_version=17, dynamo=False)
        detector = cv2.FaceDetectorYN.create(path, "", (SIDE, SIDE), 0.5, 0.3, 5000)

        def reference(photo, width, height):
            pixels = numpy.asarray(upright(photo))[..., ::-1]
            share = min(SIDE / width, SIDE / height)
            sides = [max(1, int(side * share + 0.5)) for side in (width, height)]
            padded = numpy.zeros((SIDE, SIDE, 3), numpy.uint8)
            padded[:sides[1], :sides[0]] = cv2.resize(pixels, sides, interpolation=cv2.INTER_LINEAR)
            found = []
            faces = detector.detect(padded)[1]
            for face in faces if faces is not None else []:
                x, y, w, h = face[:4]
                at = numpy.array([x, y, x + w, y + h, *face[4:14]], numpy.float64)
                for axis, side in enumerate((width, height)):
                    at[axis::2] = (at[axis::2] * side / sides[axis]).clip(0, side)
                found.append((0, float(face[14]), *at.tolist()))
            return sorted(found, key=lambda face: -face[1])[:300]

        photos = iter(PHOTOS)
        self.compare(lambda _outputs, width, height: reference(next(photos), width, height), query="?confidence=0.5",
                     rest=lambda p: [p["box"][k] for k in ("x1", "y1", "x2", "y2")]
                     + [v for k in p["keypoints"] for v in (k["x"], k["y"])])


# ---- PP-OCR ----

@unittest.skipUnless(has("rapidocr", "transformers", "cv2", "PIL"), "the package rapidocr, transformers or opencv-python is not installed")
class PaddleOCR(Parity):
    """The trained nets that the package rapidocr carries, and the postprocessing of Transformers' PP-OCR classes."""

    LINES = ("Invoice 2026-11", "Total: 1,234.50 EUR", "lensd reads", "Hello, world!", "Straße 7", "PIN 0000")

    def copy(self, name):
        folder = os.path.join(os.path.dirname(importlib.util.find_spec("rapidocr").origin), "models")
        shutil.copy(os.path.join(folder, name), os.path.join(self.folder, "model.onnx"))

    def draw(self, lines, size, angle):
        """A picture of some lines of text, rotated."""
        from PIL import Image, ImageDraw, ImageFont
        picture = Image.new("RGB", size, (250, 250, 240))
        draw = ImageDraw.Draw(picture)
        for i, line in enumerate(lines):
            draw.text((size[0] // 8, size[1] * (i + 1) // (len(lines) + 2)), line, fill=(20, 20, 60),
                      font=ImageFont.load_default(28 + 4 * (i % 3)))
        path = os.path.join(self.folder, f"{len(self.photos)}.png")
        picture.rotate(angle, fillcolor=(250, 250, 240)).save(path)
        self.photos.append(path)

    def test_detection(self):
        import torch
        from types import SimpleNamespace
        from transformers import PPOCRV5ServerDetImageProcessor
        self.copy("PP-OCRv6_det_small.onnx")
        self.write("lensd.json", json.dumps({"task": "text-detection"}))
        # A rectangle's corners on whole pixels are 231.99997 in OpenCV's float32, and lose a row of the score's pixels.
        self.photos, self.score_tolerance = [], 0.03
        for angle, size in ((0, (800, 600)), (7, (640, 640)), (-20, (600, 900)), (33, (900, 900)), (90, (500, 700))):
            self.draw(self.LINES, size, angle)
        processor = PPOCRV5ServerDetImageProcessor()
        FINE = 8  # the reference rounds to whole pixels: of a photo eight times as large

        def reference(outputs, width, height):
            (map,) = outputs.values()
            share = min(map.shape[3] / width, map.shape[2] / height)
            sides = [int(side * share + 0.5) for side in (width, height)]
            large = [FINE * width * map.shape[3] / sides[0], FINE * height * map.shape[2] / sides[1]]
            (found,) = processor.post_process_object_detection(
                SimpleNamespace(last_hidden_state=map), 0.3, torch.tensor([[large[1], large[0]]]))
            boxes = []
            for score, corners in zip(found["scores"], found["boxes"]):
                at = (corners.double() / FINE).reshape(4, 2)
                at[:, 0].clamp_(0, width)
                at[:, 1].clamp_(0, height)
                boxes.append((0, score.item(), *at.flatten().tolist()))
            return boxes

        self.compare(reference, rest=lambda p: [v for corner in p["corners"] for v in corner])

    def test_recognition(self):
        import onnx
        from types import SimpleNamespace
        from transformers import PPOCRV5ServerRecImageProcessor
        self.copy("PP-OCRv6_rec_small.onnx")
        metadata = {p.key: p.value for p in onnx.load(os.path.join(self.folder, "model.onnx")).metadata_props}
        processor = SimpleNamespace(character_list=["", *metadata["character"].splitlines(), " "])
        from PIL import Image, ImageDraw, ImageFont
        with contextlib.closing(Serving(self)):
            read_right = 0
            for i, line in enumerate(self.LINES):
                picture = Image.new("RGB", (300, 48), (250, 250, 240))
                ImageDraw.Draw(picture).text((6, 4), line, fill=(20, 20, 60), font=ImageFont.load_default(24 + i % 3))
                data = io.BytesIO()
                picture.save(data, "PNG")
                answer = self.server.request("POST", "/predict", data.getvalue()).json()
                (scores,) = self.outputs(data.getvalue()).values()
                (wanted,) = PPOCRV5ServerRecImageProcessor.post_process_text_recognition(
                    processor, SimpleNamespace(last_hidden_state=scores))
                self.assertEqual(answer["text"], wanted["text"])
                self.assertAlmostEqual(answer["score"], wanted["score"], delta=1e-3)
                read_right += answer["text"] == line
            print(f"test_recognition: {len(self.LINES)} lines, {read_right} read as drawn", file=sys.stderr)
            self.assertGreaterEqual(read_right, len(self.LINES) - 2)


def edits(a, b):
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        before, row[0] = row[0], i + 1
        for j, y in enumerate(b):
            before, row[j + 1] = row[j + 1], min(before + (x != y), row[j] + 1, row[j + 1] + 1)
    return row[-1]


@unittest.skipUnless(has("rapidocr", "cv2", "onnxruntime", "PIL"), "the package rapidocr, onnxruntime or opencv-python is not installed")
class RapidOCR(PaddleOCR):
    """A pipeline of rapidocr's two nets beside rapidocr itself, without its classifier of angles: drawn pictures, and those
    of its own tests, python/tests/test_files of its repository, where RAPIDOCR_PICTURES names that folder."""

    test_detection = test_recognition = None
    SIZES = ["736x992", "960x736", "1024x736", "1280x736", "1696x736"]  # what rapidocr makes of the pictures below
    OWN = ("text_det.jpg", "check_return_word_len.jpeg", "issue_170.png", "return_word_debug.jpg", "japan.jpg",
           "img_exif_orientation.jpg")

    def put(self, name, net, **files):
        folder = os.path.join(os.path.dirname(importlib.util.find_spec("rapidocr").origin), "models")
        os.makedirs(os.path.join(self.folder, name))
        if net:
            shutil.copy(os.path.join(folder, net), os.path.join(self.folder, name, "model.onnx"))
        for file, content in files.items():
            self.write(f"{name}/{file}.json", json.dumps(content))

    def lines(self, photo):
        """(text, corners) of lensd's answer, chosen as rapidocr does."""
        self.server.wait_for(lambda: self.server.predict(photo, "/predict?model=ocr").status != 503, "compiled sizes")
        found = self.server.predict(photo, "/predict?model=ocr").json()["predictions"]
        return [(p["crop"]["text"], p["corners"]) for p in found if p["crop"]["score"] >= .5 and p["crop"]["text"].strip()]

    def put_nets(self, classifies):
        half = {"image_mean": [.5] * 3, "image_std": [.5] * 3}
        opencv = {"do_flip_channel_order": True, "resample": 2, "antialias": False, **half}
        self.put("det", "PP-OCRv6_det_small.onnx",
                 lensd={"task": "text-detection", "confidence": .5, "unclip_ratio": 1.6, "use_dilation": True},
                 preprocessor_config={"size": {"height": 992, "width": 736}, **opencv})
        self.put("rec", "PP-OCRv6_rec_small.onnx")
        stages = [{"model": "det", "sizes": self.SIZES},
                  {"model": "rec", "max": 1000, "sizes": ["320x48", "480x48", "640x48", "960x48", "1280x48"]}]
        if classifies:
            self.put("cls", "ch_ppocr_mobile_v2.0_cls_mobile.onnx", preprocessor_config={
                "size": {"max_height": 48, "max_width": 192}, "do_pad": True, "pad_size": {"height": 48, "width": 192}, **opencv})
            self.write("cls/labels.txt", "0\n180\n")
            del stages[1]["max"]
            stages.insert(1, {"model": "cls", "turn": .9, "max": 1000, "sizes": ["192x48", "320x48", "480x48", "640x48", "960x48"]})
        self.put("ocr", None, pipeline={"stages": stages})

    def error(self, found):
        """The share of drawn characters that are misread. Each line is compared with the nearest of the lines not yet used."""
        found, wrong = list(found), 0
        for line in self.LINES:
            far = {other: edits(line, other) for other in found}
            best = min(far, key=far.get, default="")
            wrong += min(far.get(best, len(line)), len(line))
            found = found[:found.index(best)] + found[found.index(best) + 1:] if best in found else found
        return wrong / sum(map(len, self.LINES))

    def test_turned_pages(self):
        """With the classifier of angles, beside rapidocr's."""
        from PIL import Image
        from rapidocr import RapidOCR as Reference
        self.put_nets(True)
        self.photos = []
        for size in (600, 800), (800, 600):
            self.draw(self.LINES, size, 0)
        self.server = Server("--models", self.folder, "--precision", "fp32", "--device", "cpu")
        self.addCleanup(self.server.stop)
        reference = Reference(params={"Global.log_level": "error"})
        for angle in 0, 90, 180, 270:
            mine, theirs = [], []
            for path in self.photos:
                turned = os.path.join(self.folder, "turned.png")
                Image.open(path).rotate(angle, expand=True).save(turned)
                mine.append(self.error(text for text, _ in self.lines(read(turned))))
                theirs.append(self.error(reference(turned).txts or ()))
            print(f"test_turned_pages: {angle} degrees: character error {max(mine):.3f}, rapidocr's {max(theirs):.3f}", file=sys.stderr)
            self.assertLessEqual(max(mine), max(theirs) + .02)

    def test_pipeline(self):
        from rapidocr import RapidOCR as Reference
        self.put_nets(False)
        self.photos = []
        for angle, size in ((0, (600, 800)), (5, (800, 600)), (-8, (900, 500))):
            self.draw(self.LINES, size, angle)
        own = os.environ.get("RAPIDOCR_PICTURES")
        self.photos += [os.path.join(own, name) for name in self.OWN] if own else []
        options = {"Global.use_cls": False, "Global.log_level": "error"}
        # Its text may depend on the width that a batch is padded to: what it reads alike is clear.
        references = [Reference(params={**options, "Rec.rec_batch_num": size}) for size in (6, 1)]
        self.server = Server("--models", self.folder, "--precision", "fp32", "--device", "cpu")
        self.addCleanup(self.server.stop)
        clear = unclear = differing = 0
        for path in self.photos:
            first, second = (reference(path) for reference in references)
            found = self.lines(read(path))
            self.assertEqual(len(found), len(first.txts), path)
            for text, other, box in zip(first.txts, second.txts, first.boxes):
                nearest = min(found, key=lambda line: sum(math.dist(a, b) for a, b in zip(line[1], box)))
                unclear += text != other
                clear += text == other
                if text == other and nearest[0] != text:
                    differing += 1
                    print(f"{os.path.basename(path)}: {text!r}, lensd {nearest[0]!r}", file=sys.stderr)
        print(f"test_pipeline: {clear} clear lines in {len(self.photos)} pictures, {differing} differ; {unclear} unclear",
              file=sys.stderr)
        self.assertGreater(clear, 12)
        self.assertLessEqual(differing, 0.1 * clear)


# ---- torchvision ----

@unittest.skipUnless(has("torchvision", "onnxscript"), "the package torchvision or onnxscript is not installed")
class TorchVision(Parity):
    """The reference is the outputs themselves: all is done in the graph."""

    def check(self, name, **settings):
        import torch
        import torchvision
        torch.manual_seed(7)
        model = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, **settings).eval()
        torch.onnx.export(model, (torch.rand(1, 3, SIDE, SIDE),), os.path.join(self.folder, "model.onnx"),
                          input_names=["image"], output_names=["boxes", "labels", "scores"]
                          if name.startswith("fasterrcnn") else ["boxes", "scores", "labels"],
                          dynamic_axes={n: {0: "n"} for n in ("boxes", "labels", "scores")},
                          opset_version=17, dynamo=False)
        def reference(outputs, width, height):
            import torch
            boxes = outputs["boxes"] * torch.tensor([width, height, width, height]) / SIDE
            keep = outputs["scores"] > 0.001
            return [(int(label), score.item(), *box.tolist()) for box, label, score in
                    zip(boxes[keep], outputs["labels"][keep], outputs["scores"][keep])]

        self.compare(reference, query="?confidence=0.001")

    def test_ssdlite(self):
        self.check("ssdlite320_mobilenet_v3_large", num_classes=5, score_thresh=0.001)

    def test_faster_rcnn(self):
        self.check("fasterrcnn_mobilenet_v3_large_320_fpn", num_classes=5, box_score_thresh=0.001)


    @unittest.skipUnless(has("pycocotools"), "the package pycocotools is not installed")
    def test_mask_rcnn(self):
        import torch
        import torchvision
        torch.manual_seed(7)
        model = torchvision.models.detection.maskrcnn_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=5, box_score_thresh=0.001, min_size=SIDE, max_size=SIDE,
            box_detections_per_img=20).eval()
        names = ["boxes", "labels", "scores", "masks"]
        torch.onnx.export(model, (torch.rand(1, 3, SIDE, SIDE),), os.path.join(self.folder, "model.onnx"),
                          input_names=["image"], output_names=names, dynamic_axes={n: {0: "n"} for n in names},
                          opset_version=17, dynamo=False)

        def reference(outputs, width, height):
            boxes = outputs["boxes"] * torch.tensor([width, height, width, height]) / SIDE
            masks = torch.nn.functional.interpolate(outputs["masks"], (height, width), mode="bilinear") > 0.5
            return [((int(label), score.item(), *box.tolist()), mask[0].numpy()) for box, label, score, mask in
                    zip(boxes, outputs["labels"], outputs["scores"], masks) if score > 0.001]

        self.compare_masks(reference, query="?confidence=0.001")


if __name__ == "__main__":
    totals.main()
