#!/usr/bin/env python3
"""Writes models/folder/processors.json: the default values of transformers' image processors for keys
that a model's preprocessor_config.json leaves out.

    processor_table.py lensd_prepare PHOTOS            # compares every class on the photos
    processor_table.py lensd_prepare PHOTOS --write    # and writes the table

A row has the keys of a class that differ from what lensd does without any. Where a class does
something that its own keys do not say, SPECIAL says it in lensd's keys. Every class is then run on
the photos by its own defaults, with the backend of torchvision and with that of Pillow, and by lensd
for a model whose input is as large as what came out. A class is in the table if it comes out equal
within TOLERANCE, or if INEXACT says what is different, which lensd says when it loads such a model.
The others are left out: they make patches, tiles, pairs or frames of a photo, or draw on it. Exits 1
where the table is another than the committed one.
Needs transformers, torch and torchvision."""

import importlib
import json
import pathlib
import sys
import tempfile
import warnings

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy  # noqa: E402

from check_photos import opened, prepared  # noqa: E402

TABLE = HERE.parents[1] / "models" / "folder" / "processors.json"
# Steps of 1/255 of a pixel. torchvision resizes bytes with weights of 16 bits, Pillow with 22; Pillow 13
# does the vertical pass first for some sizes.
TOLERANCE = {"torchvision": 2.01, "pil": 1.01}

# What lensd does without a key.
PLAIN = {"do_resize": True, "do_center_crop": False, "do_rescale": True, "do_normalize": True,
         "resample": 2, "rescale_factor": 1 / 255, "default_to_square": True, "do_pad": False,
         "do_flip_channel_order": False, "do_convert_grayscale": False, "rescale_offset": False,
         "include_top": False, "crop_pct": None, "size": None, "crop_size": None, "pad_size": None,
         "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

SPECIAL = {
    "ConvNext": {"squash_from": 384},
    "DepthPro": {"antialias": False},
    "Eomt": {"pad_value": 0},
    "LayoutLMv2": {"do_flip_channel_order": True},
    "Levit": {"crop_pct": 0.875},
    "Mask2Former": {"size_divisor": 32},
    "MaskFormer": {"size_divisor": 32},
    "PPLCNet": {"do_flip_channel_order": True, "flip_last": True, "size": {"shortest_edge": 256}},
    "PPOCRV5ServerDet": {"do_flip_channel_order": True, "flip_last": True},
    "Owlv2": {"antialias": "gaussian"},
    "Perceiver": {"crop_first": True},
    "RfDetr": {"antialias": False},
    "VitPose": {"do_affine_transform": True},
}
# They ask for boxes, too: tests/http/test_poses.py compares them.
TAKE_BOXES = {"VitPose"}
INEXACT = {
    "BridgeTower": "rounds sides to multiples of 32 before it crops, which lensd does not",
    "CHMv2": "pads to multiples of 16, which lensd does not",
    "Donut": "pads the page it has made smaller, which lensd does not",
    "Nougat": "cuts off a page's margin, which lensd does not",
    "PPDocLayoutV2": "resizes without antialiasing, lensd with it",
    "PPDocLayoutV3": "resizes without antialiasing, lensd with it",
    "PPDocLayoutV4": "resizes without antialiasing, lensd with it",
    "PPFormulaNet": "cuts off a page's margin, which lensd does not",
    "PPLCNet": "rounds the long side up, lensd down: a crop may be one pixel off",
    "PPOCRV5ServerRec": "pads a line to the right, which lensd stretches",
    "PPOCRV6SmallRec": "pads a line to the right, which lensd stretches",
    "SLANeXt": "pads to a square, which lensd does not",
    "Swin2SR": "mirrors the edges at the right and below, where lensd pads with zeros",
    "TextNet": "rounds sides up to multiples of 32, which lensd does only for a model of that size",
    "UVDoc": "aligns corners when it resizes, which lensd does not",
    "Vilt": "rounds sides to multiples of 32, which lensd does only for a model of that size",
    "ZoeDepth": "mirrors the edges before it resizes, which lensd does not",
}
def classes():
    """{"CLIP": [CLIPImageProcessor, CLIPImageProcessorPil], …}"""
    import transformers
    from transformers.image_processing_utils import BaseImageProcessor
    found = {}
    for path in sorted(pathlib.Path(transformers.__file__).parent.glob("models/*/image_proc*.py")):
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, BaseImageProcessor) and \
                    value.__module__ == module.__name__ and "ImageProcessor" in name:
                found.setdefault(name.split("ImageProcessor")[0], []).append(value)
    del found["TimmWrapper"]  # writes timm's keys
    return found


def plain(value):
    """A size as the file has it."""
    if isinstance(value, dict) or type(value).__name__ == "SizeDict":
        sides = value if isinstance(value, dict) else vars(value)
        return {key: side for key, side in sides.items() if side is not None}
    return list(value) if isinstance(value, tuple) else value


def row(name, kind):
    processor = kind(apply_ocr=False) if name.startswith("LayoutLM") else kind()
    keys = {key: plain(getattr(processor, key, None)) for key in PLAIN}
    for flag in ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_pad"):
        keys[flag] = bool(keys[flag])
    if not keys["do_center_crop"]:
        keys["crop_size"] = None
    keys.update(SPECIAL.get(name, {}))
    if name in INEXACT:
        keys["inexact"] = INEXACT[name]
    return processor, {key: value for key, value in keys.items()
                       if value is not None and value != PLAIN.get(key)}


def compare(tool, processor, keys, paths, pictures):
    """The greatest difference in steps of 1/255."""
    steps = 0.0
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "preprocessor_config.json")
        config.write_text(json.dumps({"image_processor_type": "none", **keys}))
        for path, picture in zip(paths, pictures, strict=True):
            out = processor(images=picture, return_tensors="np")
            if "pixel_values" not in out:
                raise ValueError(f"gives {list(out)}")
            theirs = numpy.asarray(out["pixel_values"])
            if theirs.ndim != 4 or theirs.shape[:2] != (1, 3):
                raise ValueError(f"gives {theirs.shape}")
            mine = prepared(tool, config, theirs.shape[2:], [path])[0]
            std = numpy.float32(keys.get("image_std", PLAIN["image_std"])
                                if keys.get("do_normalize", True) else 1)
            if keys.get("include_top") and keys.get("do_normalize", True):
                std = std * std
            scale = 255 if keys.get("do_rescale", True) else 1
            if keys.get("rescale_factor"):
                scale = 1 / keys["rescale_factor"]
            steps = max(steps, float((numpy.abs(mine - theirs[0]) *
                                      numpy.resize(std, 3).reshape(3, 1, 1)).max()) * scale)
    return steps


def main():
    warnings.simplefilter("ignore")
    tool, photos, *write = sys.argv[1:]
    paths = sorted(pathlib.Path(photos).glob("*.jpeg"))[:5]
    pictures = [opened(path) for path in paths]
    table = {}
    for name, kinds in sorted(classes().items()):
        results, good, keys = {}, True, {}
        for kind in sorted(kinds, key=lambda kind: kind.__name__.endswith("Pil")):
            try:
                processor, its_keys = row(name, kind)
                keys = keys or its_keys
                results[kind.__name__] = compare(tool, processor, keys, paths, pictures)
                good = good and results[kind.__name__] <= TOLERANCE[processor.backend]
            except Exception as reason:  # whatever a class objects to in a photo
                results[kind.__name__] = " ".join(f"{type(reason).__name__}: {reason}".split())[:90]
                good = False
        if good or name in INEXACT or name in TAKE_BOXES:
            table[name] = keys
        print("equal" if good else "INEXACT" if name in INEXACT else "left out", name, results,
              flush=True)
    rows = ",\n".join(f" {json.dumps(name)}: {json.dumps(table[name])}" for name in table)
    text = "{\n" + rows + "\n}\n"
    print(f"{len(table)} classes, of which {len(set(INEXACT) & set(table))} inexact")
    if write == ["--write"]:
        TABLE.write_text(text, encoding="utf-8")
    return 0 if TABLE.read_text(encoding="utf-8") == text else 1


if __name__ == "__main__":
    sys.exit(main())
