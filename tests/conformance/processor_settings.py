#!/usr/bin/env python3
"""Writes tests/data/processors.json: settings of preprocessor_config.json, and what transformers' image processors
make of a photo by them.

    processor_settings.py

The photo is `photo()`, in numbers that tests/conformance/test_processors.py makes, too. A row has the settings, the
size of what came out, which is the model's, and 24 of its numbers. Made with transformers 5.24 and torchvision 0.29;
needs both."""

import json
import pathlib
import random
import warnings

import numpy
import transformers
from PIL import Image

from test_processors import HEIGHT, WIDTH, pixel

TABLE = pathlib.Path(__file__).resolve().parents[1] / "data" / "processors.json"
SAMPLES = 24
SHORT = {"shortest_edge": 40, "longest_edge": 40}
SIDES = {"shortest_edge": 30, "longest_edge": 60}
SETTINGS = [
    ("CLIP", {}), ("CLIP", {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}),
    ("CLIP", {"size": 64, "crop_size": 48}), ("CLIP", {"do_center_crop": False, "size": {"height": 40, "width": 48}}),
    ("CLIP", {"do_resize": False, "crop_size": 40}), ("CLIP", {"do_normalize": False}), ("CLIP", {"do_rescale": False}),
    ("CLIP", {"resample": 0}), ("CLIP", {"resample": 2}), ("CLIP", {"rescale_factor": 0.00784}),
    ("ViT", {}), ("ViT", {"size": 64}), ("ViT", {"size": {"height": 32, "width": 64}}), ("DeiT", {}), ("Beit", {}),
    ("Beit", {"do_center_crop": False, "size": {"height": 64, "width": 64}}), ("Bit", {}), ("BLIP", {}), ("Blip", {}),
    ("ConvNext", {}), ("ConvNext", {"size": {"shortest_edge": 384}}),
    ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.95}), ("Siglip", {}), ("Siglip", {"size": 96}),
    ("EfficientNet", {}), ("EfficientNet", {"include_top": False}), ("Levit", {}), ("LevIt", {}), ("MobileNetV1", {}),
    ("MobileNetV2", {}), ("MobileViT", {}), ("MobileViT", {"size": {"shortest_edge": 64}, "crop_size": 56}),
    ("PoolFormer", {}), ("PoolFormer", {"crop_pct": 0.9}), ("Pvt", {}), ("Segformer", {"size": 96}),
    ("Perceiver", {}), ("Perceiver", {"size": 64, "crop_size": 80}), ("Flava", {}), ("ChineseCLIP", {}),
    ("Detr", {"size": SIDES, "do_pad": True}), ("Mask2Former", {"size": SHORT, "do_pad": True}),
    ("LayoutLMv3", {"apply_ocr": False}), ("GLPN", {}), ("OwlViT", {"size": 96}), ("Owlv2", {"size": 96}),
    ("Nougat", {"size": {"height": 96, "width": 64}}), ("Donut", {"size": {"height": 96, "width": 64}}),
    ("Detr", {"size": SIDES}), ("Detr", {"size": SIDES, "do_pad": False}), ("Detr", {"size": SHORT}),
    ("Detr", {"size": SHORT, "pad_size": {"height": 40, "width": 40}}), ("Yolos", {"size": SIDES}),
    ("DeformableDetr", {"size": SIDES}), ("ConditionalDetr", {"size": SIDES}), ("GroundingDino", {"size": SIDES}),
    ("RTDetr", {"size": SHORT, "do_pad": True}), ("RTDetr", {"size": {"height": 32, "width": 48}}),
    ("RTDetr", {"size": SHORT, "do_pad": True, "pad_size": {"height": 48, "width": 48}}),
    ("Mask2Former", {"size": {"height": 48, "width": 48}}), ("Mask2Former", {"size": SIDES}),
    ("Mask2Former", {"size": SHORT, "size_divisor": 32}), ("Mask2Former", {"size": SIDES, "size_divisor": 32}),
    ("MaskFormer", {"size": SIDES, "size_divisor": 32}), ("MaskFormer", {"size": SHORT, "size_divisor": 0}),
    ("Eomt", {}), ("Eomt", {"size": SHORT, "do_pad": True}), ("Eomt", {"size": SHORT, "do_pad": False}),
     ("DPT", {"size": 64, "keep_aspect_ratio": True, "ensure_multiple_of": 14}),
    ("DPT", {"size": 60, "ensure_multiple_of": 14}), ("DPT", {"size": 64, "keep_aspect_ratio": True}),
    ("DPT", {"size": 64, "keep_aspect_ratio": True, "ensure_multiple_of": 32, "resample": 2}),
    ("DPT", {"size": 64, "do_pad": True, "size_divisor": 48}),
    ("ZoeDepth", {"size": 96}), ("ZoeDepth", {"size": 96, "do_pad": False}), ("DepthPro", {"size": 96}), 
    ("TextNet", {"size": {"shortest_edge": 50}, "size_divisor": 32}),
    ("TextNet", {"size": {"shortest_edge": 64}, "do_center_crop": True, "crop_size": 48}),
    ("ViTHybrid", {}), ("Swin2SR", {}), 
    ("Sam", {"size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}}),
    ("Vilt", {"size": {"shortest_edge": 64}}), ("BridgeTower", {}),
]


def made(name, settings):
    kind = getattr(transformers, f"{name}ImageProcessor")
    out = kind(**settings)(images=photo(), return_tensors="np")
    return numpy.asarray(out["pixel_values"], numpy.float32)


def photo():
    rows = [[pixel(x, y) for x in range(WIDTH)] for y in range(HEIGHT)]
    return Image.fromarray(numpy.array(rows, numpy.uint8))


def main():
    warnings.simplefilter("ignore")
    choose, table = random.Random(5), []
    for name, settings in SETTINGS:
        if not hasattr(transformers, f"{name}ImageProcessor"):
            continue
        try:
            values = made(name, settings)
        except Exception as reason:  # whatever a class objects to
            print(name, settings, type(reason).__name__, str(reason)[:80])
            continue
        if values.ndim != 4 or values.shape[:2] != (1, 3):
            print(name, settings, "gives", values.shape)
            continue
        height, width = values.shape[2:]
        places = [(choose.randrange(width), choose.randrange(height), choose.randrange(3)) for _ in range(SAMPLES)]
        table.append({"settings": {"image_processor_type": f"{name}ImageProcessor", **settings},
                      "width": width, "height": height,
                      "samples": [[x, y, c, round(float(values[0, c, y, x]), 5)] for x, y, c in places]})
    TABLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in table) + "\n]\n", encoding="ascii")


main()
