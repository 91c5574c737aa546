#!/usr/bin/env python3
"""Compares photos prepared by lensd with photos prepared by the frameworks' own pipelines.

    check_photos.py BUILD/tests/conformance/lensd_prepare PHOTOS [torchvision|timm|ultralytics|rfdetr …]

PHOTOS is a folder of JPEG files. For every classifier of torchvision and timm the recipe of
models/export writes its preprocessor_config.json; no weights are needed. Prints the worst
difference of each source in steps of 1/255 of a pixel (numbers times std, times 255) and exits 1
where one is greater than TOLERANCE. Needs torch and the packages of the sources."""

import collections
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parents[1] / "models"), str(HERE.parents[1] / "models" / "export")]

import needs  # noqa: E402,F401
import numpy  # noqa: E402
from PIL import Image, ImageOps  # noqa: E402

# Steps of 1/255. A pixel more or less at the crop's edge is worth many.
TOLERANCE = {"rfdetr": 1.01, "torchvision": 1.01, "timm": 1.01, "ultralytics": 0.01}


def prepared(tool, config, size, photos):
    """lensd's numbers, [C, H, W] for each photo; `size` is the model's (height, width) or None."""
    height, width = size or (0, 0)
    done = subprocess.run([tool, str(config), str(width), str(height), *map(str, photos)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip())
    data, arrays = done.stdout, []
    while data:
        head, data = data.split(b"\n", 1)
        width, height, channels = map(int, head.split())
        count = width * height * channels
        array = numpy.frombuffer(data[:4 * count], numpy.float32).reshape(height, width, channels)
        arrays.append(array.transpose(2, 0, 1))
        data = data[4 * count:]
    return arrays


def opened(path):
    return ImageOps.exif_transpose(Image.open(path)).convert("RGB")


def worst(got, expected, std):
    """The greatest difference in steps of 1/255, and where the shapes differ, that."""
    steps = 0.0
    for mine, theirs in zip(got, expected, strict=True):
        theirs = numpy.asarray(theirs)
        if mine.shape != theirs.shape:
            return f"{mine.shape} instead of {theirs.shape}"
        difference = numpy.abs(mine - theirs) * numpy.float32(std).reshape(-1, 1, 1) * 255
        steps = max(steps, float(difference.max()))
    return steps


def torchvision_cases(folder):
    """(name, (height, width), std, function from a picture to [C, H, W]) of every classifier."""
    from torchvision import models
    import export_torchvision
    for name in models.list_models(module=models):
        for weights in models.get_model_weights(name):
            transforms = weights.transforms()
            export_torchvision.write_transform(folder, transforms)
            yield f"{name} {weights.name}", None, transforms.std, transforms


def timm_cases(folder):
    import timm
    import export_timm
    seen = set()
    for name in timm.list_models(pretrained=True):
        config = timm.get_pretrained_cfg(name)
        data = timm.data.resolve_data_config(pretrained_cfg=config.to_dict())
        key = str([data[k] for k in ("input_size", "crop_pct", "crop_mode", "interpolation")])
        if key in seen or not config.num_classes or data["input_size"][1] > 600:
            continue  # the same preparation again, or a feature extractor
        seen.add(key)
        export_timm.write_transform(folder, data)
        yield name, None, data["std"], timm.data.create_transform(**data, is_training=False)


def ultralytics_cases(folder):
    from ultralytics.data.augment import LetterBox

    def letterbox(height, width):
        box = LetterBox((height, width), auto=False)
        return lambda picture: box(image=numpy.asarray(picture)).transpose(2, 0, 1) / 255
    for height, width in (640, 640), (480, 640), (320, 320), (416, 608), (1280, 1280), (96, 1024):
        yield f"[{height}, {width}]", None, (1, 1, 1), letterbox(height, width)


def rfdetr_cases(folder):
    """RF-DETR's own: floats, resized without antialiasing."""
    from torchvision.transforms import functional
    from model_folder import write_json
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def pipeline(picture, side):
        tensor = functional.normalize(functional.to_tensor(picture), mean, std)
        return functional.resize(tensor, (side, side), antialias=False)
    for side in 384, 560, 1000:
        write_json(folder, "preprocessor_config.json",
                   {"size": {"height": side, "width": side}, "antialias": False})
        yield f"RF-DETR {side}", None, std, lambda picture, side=side: pipeline(picture, side)


SOURCES = {"rfdetr": rfdetr_cases, "torchvision": torchvision_cases, "timm": timm_cases,
           "ultralytics": ultralytics_cases}


def check(source, tool, paths):
    """Prints a line for each case that differs and one that counts; whether none does."""
    pictures = [opened(path) for path in paths]
    counts = collections.Counter()
    greatest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, size, std, pipeline in SOURCES[source](folder):
            config = name if name.startswith("[") else f"{folder}/preprocessor_config.json"
            try:
                steps = worst(prepared(tool, config, size, paths), map(pipeline, pictures), std)
            except RuntimeError as reason:
                steps = str(reason)
            good = isinstance(steps, float) and steps <= TOLERANCE[source]
            counts[good] += 1
            greatest = max(greatest, steps) if isinstance(steps, float) else greatest
            if not good:
                print(f"{source}: {name}: {steps}")
    print(f"{source}: {counts[True]} of {counts[True] + counts[False]} equal; "
          f"greatest difference {greatest:.3f} steps of 1/255")
    return not counts[False]


def main():
    tool, photos, *sources = sys.argv[1:]
    paths = sorted(pathlib.Path(photos).glob("*.jpeg"))
    return 0 if all([check(source, tool, paths) for source in sources or SOURCES]) else 1


if __name__ == "__main__":
    sys.exit(main())
