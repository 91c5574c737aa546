#!/usr/bin/env python3
"""Exports a torchvision classifier into a model folder for lensd.

    export_torchvision.py resnet50 ./resnet50                  # pretrained weights (downloads them)
    export_torchvision.py resnet50 ./resnet50 --weights IMAGENET1K_V1
    export_torchvision.py resnet50 ./resnet50 --weights none   # seeded weights, for tests and benches

Resize, crop, interpolation, mean and std come from the weights' own transforms, the labels from
their categories. Written for torchvision >= 0.14 (Debian 12: python3-torchvision).
"""

import argparse
import os
import warnings

from model_folder import (because, export_onnx, need, report, stop, write_labels, write_preprocessor)

INSTALL = "apt-get install python3-torchvision (Debian 12), or pip install torch torchvision onnx"


def find_weights(models, name, wanted):
    """The weights entry called `wanted`, and the entry whose transforms and categories to use.

    With "none" the first is None and the second is the default entry: it is only read, not
    downloaded."""
    if name not in models.list_models(module=models):
        stop(f"torchvision has no classifier called '{name}'; it has: "
             + ", ".join(models.list_models(module=models)))
    entries = models.get_model_weights(name)
    if wanted.lower() == "none":
        return None, entries.DEFAULT
    try:
        entry = getattr(entries, wanted) if wanted == "DEFAULT" else entries[wanted]
    except (KeyError, AttributeError):
        stop(f"{name} has no weights called '{wanted}'; it has: none, DEFAULT, "
             + ", ".join(e.name for e in entries))
    return entry, entry


def build(models, name, weights):
    """The module in eval mode, its training-only branches removed."""
    options = {}
    if weights is None and name in ("googlenet", "inception_v3"):
        # As the pretrained ones come out: no auxiliary heads, input re-scaled inside the graph.
        options = {"aux_logits": False, "transform_input": True, "init_weights": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return models.get_model(name, weights=weights, **options).eval()
        except OSError as reason:  # the download
            stop(f"the weights of {name} could not be loaded: {because(reason)}; --weights none "
                 "uses random weights with a fixed seed")


def first(value):
    """torchvision writes sizes as [224]."""
    return value[0] if isinstance(value, (list, tuple)) else value


def prepare(name, weights="DEFAULT", seed=0):
    """Returns (module in eval mode, transforms, categories); transforms has crop_size, resize_size,
    mean, std, interpolation of torchvision's ImageClassification preset."""
    torch = need("torch", INSTALL)
    models = need("torchvision.models", INSTALL)
    entry, described = find_weights(models, name, weights)
    transforms = described.transforms()
    torch.manual_seed(seed)
    model = build(models, name, entry)
    categories = described.meta["categories"]
    if entry is None:
        from random_weights import calibrate
        crop = first(transforms.crop_size)
        calibrate(model, len(categories), crop, crop, transforms.mean, transforms.std, seed)
    return model, transforms, categories


def write_transform(folder, transforms):
    """transforms: torchvision's ImageClassification preset."""
    crop = first(transforms.crop_size)
    write_preprocessor(folder, mean=transforms.mean, std=transforms.std,
                       resample=transforms.interpolation.value,
                       shortest_edge=first(transforms.resize_size), crop=(crop, crop))


def export(name, folder, weights="DEFAULT", opset=0, seed=0):
    """Writes the folder; returns prepare()'s triple."""
    torch = need("torch", INSTALL)
    model, transforms, categories = prepare(name, weights, seed)
    os.makedirs(folder, exist_ok=True)
    crop = first(transforms.crop_size)
    export_onnx(model, torch.zeros(2, 3, crop, crop), os.path.join(folder, "model.onnx"), opset)
    write_transform(folder, transforms)
    write_labels(folder, categories)
    return model, transforms, categories


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="torchvision's name of the model, for example resnet50")
    parser.add_argument("outdir", help="the model folder to write; made if it is not there")
    parser.add_argument("--weights", default="DEFAULT",
                        help="DEFAULT, a name such as IMAGENET1K_V2, or none (default: DEFAULT)")
    parser.add_argument("--opset", type=int, default=0, help="ONNX opset (default: 18)")
    parser.add_argument("--seed", type=int, default=0, help="for --weights none (default: 0)")
    options = parser.parse_args()
    export(options.name, options.outdir, options.weights, options.opset, options.seed)
    report(options.outdir)


if __name__ == "__main__":
    main()
