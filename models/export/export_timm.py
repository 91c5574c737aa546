#!/usr/bin/env python3
"""Exports a timm (pytorch-image-models) classifier into a model folder for lensd.

    export_timm.py mobilenetv3_large_100.ra_in1k ./mobilenetv3
    export_timm.py hf-hub:timm/eca_nfnet_l0 ./eca_nfnet_l0          # from the Hugging Face hub
    export_timm.py resnet50d ./mine --checkpoint mine.pth --classes 7 --labels mine.txt
    export_timm.py resnet50d ./seeded --weights none                # seeded weights, for tests

Size, crop_pct, crop_mode, interpolation, mean and std come from the model's pretrained_cfg, which is
also kept as config.json. Written for timm >= 0.9.
"""

import argparse
import math
import os

from model_folder import (because, export_onnx, need, report, stop, write_json, write_labels,
                          write_preprocessor)

INSTALL = "pip install timm onnx"


def create(timm, name, weights, checkpoint, classes):
    """The module in eval mode, with layers that trace well."""
    arguments = {"pretrained": weights != "none" and not checkpoint, "exportable": True}
    if checkpoint:
        arguments["checkpoint_path"] = checkpoint
    if classes:
        arguments["num_classes"] = classes
    try:
        model = timm.create_model(name, **arguments).eval()
    except Exception as reason:  # of the network, the hub, or a file
        stop(f"timm could not create '{name}': {because(reason)}")
    if not model.num_classes:
        stop(f"'{name}' has no classes: it is a feature extractor; give --classes and "
             "--checkpoint, or choose a model with a classifier's head")
    return model


def find_labels(timm, model, path):
    """One label a class: from a file, from the model's own configuration, or ImageNet's."""
    if path:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    config = model.pretrained_cfg
    names = config.get("label_names")
    if names:
        described = config.get("label_descriptions") or {}
        names = [names[str(i)] for i in range(len(names))] if isinstance(names, dict) else names
        return [described.get(name, name) for name in names]
    subset = timm.data.infer_imagenet_subset(model)
    if subset is None:
        return [f"class {index}" for index in range(model.num_classes)]
    return timm.data.ImageNetInfo(subset).label_descriptions()


def write_transform(folder, data):
    """data: what timm.data.resolve_model_data_config() returns."""
    channels, height, width = data["input_size"]
    if channels != 3:
        stop(f"the model takes {channels} channels; lensd gives 3 (RGB)")
    scaled = (math.floor(height / data["crop_pct"]), math.floor(width / data["crop_pct"]))
    resize = {"squash": {"exact": scaled}, "center": {"shortest_edge": scaled[0]}}
    if data["crop_mode"] not in resize or (data["crop_mode"] == "center" and height != width):
        stop(f"crop mode '{data['crop_mode']}' with {width}x{height} pixels cannot be written as a "
             "resize and a centre crop; use a model with crop mode center (square) or squash")
    interpolation = data["interpolation"]
    if interpolation == "random":  # timm's evaluation takes bilinear then
        interpolation = "bilinear"
    write_preprocessor(folder, mean=data["mean"], std=data["std"], resample=interpolation,
                       crop=(height, width), **resize[data["crop_mode"]])


def write_config(folder, name, model):
    """config.json as timm writes it for the hub: the architecture and its pretrained_cfg."""
    kept = {}
    for key, value in model.pretrained_cfg.items():
        if isinstance(value, (str, int, float, bool, list, tuple)) and key not in ("file", "url"):
            kept[key] = value
    write_json(folder, "config.json", {
        "architecture": kept.get("architecture", name), "num_classes": model.num_classes,
        "num_features": getattr(model, "num_features", None), "pretrained_cfg": kept})


def export(name, folder, weights="pretrained", checkpoint=None, classes=None, labels=None, opset=0, seed=0):
    """Writes the folder; returns (module in eval mode, timm's data configuration)."""
    torch = need("torch", INSTALL)
    timm = need("timm", INSTALL)
    torch.manual_seed(seed)
    model = create(timm, name, weights, checkpoint, classes)
    data = timm.data.resolve_model_data_config(model)
    names = find_labels(timm, model, labels)
    if len(names) != model.num_classes:
        stop(f"{len(names)} labels for {model.num_classes} classes; give --labels a file with one "
             "label a line")
    os.makedirs(folder, exist_ok=True)
    write_transform(folder, data)
    if weights == "none" and not checkpoint:
        from random_weights import calibrate
        calibrate(model, model.num_classes, *data["input_size"][1:], data["mean"], data["std"], seed)
    export_onnx(model, torch.zeros(2, *data["input_size"]), os.path.join(folder, "model.onnx"), opset)
    write_config(folder, name, model)
    write_labels(folder, names)
    return model, data


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="timm's name of the model, or hf-hub:OWNER/MODEL")
    parser.add_argument("outdir", help="the model folder to write; made if it is not there")
    parser.add_argument("--weights", choices=["pretrained", "none"], default="pretrained")
    parser.add_argument("--checkpoint", help="a .pth or .safetensors file of your own weights")
    parser.add_argument("--classes", type=int, help="how many classes the checkpoint has")
    parser.add_argument("--labels", help="a file with one label a line, for your own classes")
    parser.add_argument("--opset", type=int, default=0, help="ONNX opset (default: 18)")
    parser.add_argument("--seed", type=int, default=0, help="for --weights none (default: 0)")
    options = parser.parse_args()
    export(options.name, options.outdir, options.weights, options.checkpoint, options.classes,
           options.labels, options.opset, options.seed)
    report(options.outdir)


if __name__ == "__main__":
    main()
