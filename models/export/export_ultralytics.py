#!/usr/bin/env python3
"""Exports an Ultralytics YOLO model into a model folder for lensd.

    export_ultralytics.py yolo11n-cls.pt ./yolo11n-cls          # a classifier
    export_ultralytics.py runs/classify/train/weights/best.pt ./mine --size 224
    export_ultralytics.py yolo11n.pt ./yolo11n                  # a detector

The ONNX file carries Ultralytics' own metadata (task, names, imgsz, stride). A classifier also gets
preprocessor_config.json: short side to imgsz, centre crop, x / 255. A detector's letterbox has no
words there and follows from the metadata. A classifier's output is probabilities, not logits.

Ultralytics and its weights are under AGPL-3.0 or a commercial licence: mind it when you ship them.
"""

import argparse
import os
import shutil

from model_folder import because, need, report, stop, write_labels, write_preprocessor

INSTALL = "pip install ultralytics onnx"
TASKS = ("classify", "detect", "segment", "pose", "obb")


def side_lengths(size):
    """(height, width) of what export() was given as imgsz."""
    return (size, size) if isinstance(size, int) else tuple(size)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a .pt file, or a name that Ultralytics downloads")
    parser.add_argument("outdir", help="the model folder to write; made if it is not there")
    parser.add_argument("--size", type=int,
                        help="input side in pixels (default: what the model was trained with)")
    parser.add_argument("--opset", type=int, default=18, help="ONNX opset (default: 18)")
    parser.add_argument("--batch", type=int, default=0, metavar="N",
                        help="a fixed batch of N and fixed sides instead of free ones")
    parser.add_argument("--nms", action="store_true",
                        help="detectors: put non-maximum suppression into the graph; fixes the batch, "
                             "to 1 unless --batch says more")
    options = parser.parse_args()
    # Ultralytics installs missing packages on its own; a recipe says what is missing instead.
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    ultralytics = need("ultralytics", INSTALL)
    need("onnx", INSTALL)

    try:
        model = ultralytics.YOLO(options.weights)
    except Exception as reason:  # of the network or a file
        stop(f"Ultralytics could not open '{options.weights}': {because(reason)}")
    if model.task not in TASKS:
        stop(f"'{options.weights}' is for the task '{model.task}'; this recipe exports "
             + ", ".join(TASKS))
    if options.nms and model.task == "classify":
        stop("--nms is for detectors; a classifier has no boxes")
    size = options.size or model.overrides.get("imgsz") or (224 if model.task == "classify" else 640)
    if options.batch or options.nms:  # suppression is written for a fixed number of pictures
        shape = {"batch": options.batch or 1, "dynamic": False}
    else:
        shape = {"batch": 1, "dynamic": True}
    written = model.export(format="onnx", imgsz=size, opset=options.opset, simplify=False,
                           nms=options.nms, device="cpu", **shape)

    os.makedirs(options.outdir, exist_ok=True)
    shutil.move(str(written), os.path.join(options.outdir, "model.onnx"))
    names = model.names
    write_labels(options.outdir, [names[index] for index in range(len(names))])
    if model.task == "classify":
        height, width = side_lengths(size)
        resize = {"shortest_edge": height} if height == width else {"exact": (height, width)}
        write_preprocessor(options.outdir, mean=(0, 0, 0), std=(1, 1, 1), resample="bilinear",
                           crop=(height, width), **resize)
    report(options.outdir)


if __name__ == "__main__":
    main()
