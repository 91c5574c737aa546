#!/usr/bin/env python3
"""Writes the model families that tests and benches measure with, and their reference answers.

    make_models.py CACHE                                  # all families
    make_models.py CACHE --families resnet50,vgg11 --opset 17

For each family CACHE/NAME becomes a model folder (models/export/export_torchvision.py, seeded
weights, dynamic batch) with two files more, both float32 and C-contiguous:

    input.npy     [3, 3, H, W]   three different seeded images, normalised as the model wants them
    logits.npy    [3, classes]   what PyTorch computes for them in float32

A family whose files are all there is left alone (--force writes it again). Needs Debian's
python3-torch, python3-torchvision and python3-onnx.
"""

import argparse
import json
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "models", "export"))
sys.path.append(os.path.join(HERE, "..", "..", "models"))

import needs  # noqa: E402,F401
import numpy  # noqa: E402
import torch  # noqa: E402

import export_torchvision  # noqa: E402
from random_weights import normalise, structured_images  # noqa: E402

FAMILIES = ["resnet50", "resnet18", "mobilenet_v3_large", "mobilenet_v2", "efficientnet_b0",
            "densenet121", "squeezenet1_1", "vgg11", "googlenet", "shufflenet_v2_x1_0"]
FILES = ["model.onnx", "preprocessor_config.json", "labels.txt", "input.npy", "logits.npy",
         "recipe.json"]
INPUT_SEED = 4711  # not the calibration's, so the reference images are new to the model


def is_complete(folder, recipe):
    if not all(os.path.exists(os.path.join(folder, name)) for name in FILES):
        return False
    with open(os.path.join(folder, "recipe.json"), encoding="utf-8") as file:
        return json.load(file) == recipe


def write(name, folder, opset, seed):
    """Fills `folder`; returns the reference logits."""
    model, transforms, _ = export_torchvision.export(name, folder, "none", opset, seed)
    side = export_torchvision.first(transforms.crop_size)
    images = normalise(structured_images(3, side, side, INPUT_SEED), transforms.mean, transforms.std)
    with torch.no_grad():
        logits = model(torch.from_numpy(images)).numpy().astype(numpy.float32)
    numpy.save(os.path.join(folder, "input.npy"), images)
    numpy.save(os.path.join(folder, "logits.npy"), numpy.ascontiguousarray(logits))
    with open(os.path.join(folder, "recipe.json"), "w", encoding="utf-8") as file:
        json.dump(recipe_of(name, opset, seed), file)
    return logits


def make(name, folder, opset, seed):
    """Writes a sibling folder and renames it, so that a reader never sees half a model."""
    partial = f"{folder}.part{os.getpid()}"
    try:
        logits = write(name, partial, opset, seed)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return logits


def recipe_of(name, opset, seed):
    return {"family": name, "opset": opset, "seed": seed, "torch": torch.__version__, "version": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="the folder that gets one model folder per family")
    parser.add_argument("--families", default=",".join(FAMILIES),
                        help="torchvision names, separated by commas (default: %(default)s)")
    parser.add_argument("--opset", type=int, default=13)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2, help="torch's threads (default: 2)")
    parser.add_argument("--force", action="store_true", help="write again what is there")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.makedirs(options.cache, exist_ok=True)
    for name in filter(None, options.families.split(",")):
        folder = os.path.join(options.cache, name)
        if not options.force and is_complete(folder, recipe_of(name, options.opset, options.seed)):
            print(f"{name}: there already")
            continue
        start = time.monotonic()
        logits = make(name, folder, options.opset, options.seed)
        size = os.path.getsize(os.path.join(folder, "model.onnx"))
        print(f"{name}: {size / 1e6:.1f} MB, logits {logits.min():.2f} to {logits.max():.2f}, classes "
              f"{logits.argmax(1).tolist()}, {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
