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
            for path in PHOTOS:
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
            print(f"{self.id().split('.')[-1]}: {found} boxes in {len(PHOTOS)} photos, {differing} differ",
                  file=sys.stderr)
            self.assertLessEqual(differing, 0.01 * found)

    def compare_masks(self, reference, query=""):
        """`reference(outputs, width, height)`: lists of ((class, score, x1, y1, x2, y2), mask)."""
        from pycocotools import mask
        with contextlib.closing(Serving(self)):
            found, differing, unlike, outlined = 0, 0, 0, 0
            for path in PHOTOS:
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
            print(f"{self.id().split('.')[-1]}: {found} masks in {len(PHOTOS)} photos, {differing} boxes differ, {unlike} "
                  f"masks overlap by less than 0.99, {outlined} outlines by less than 0.9", file=sys.stderr)
            self.assertGreater(found, 20, "too few masks to say anything")
            self.assertLessEqual(differing, 0.01 * found)
            self.assertLessEqual(unlike, 0.01 * found)
            self.assertLessEqual(outlined, 0.05 * found, "random masks have holes, which outlines leave out")

    def match(self, boxes, wanted, name):
        """How many boxes of either list are not in the other; each is printed."""
        left, missing = list(boxes), []
        for box in wanted:
            near = [b for b in left if b[0] == box[0] and abs(b[1] - box[1]) <= 1e-3
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
    def export(self, name, nms=False):
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
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                path = model.export(format="onnx", imgsz=SIDE, nms=nms, simplify=False, opset=17)
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
            boxes = self.suppressed(outputs, width, height, nc=1, end2end=outputs["output0"].shape[-1] == 57)
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


# ---- Hugging Face ----

@unittest.skipUnless(has("transformers", "torch", "onnxscript"), "the package transformers, torch or onnxscript is not installed")
class HuggingFace(Parity):
    """Small models of the real classes; reference: their image processors."""

    def export(self, model, config, head, names=("logits", "pred_boxes")):
        import torch
        picture = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(7))
        model = model.eval()
        if head:
            spread_logits(model, [head(model)], picture, wanted=10, confidence=0.5)

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, pixel_values):
                found = self.model(pixel_values)
                return tuple(found[name] for name in names)

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
