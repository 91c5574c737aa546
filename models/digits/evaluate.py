#!/usr/bin/python3
"""Measures a digit model on PNGs: file, Pillow's decoder and resize, ONNX forward pass.

    evaluate.py                         # the held-out digits
    evaluate.py --images tests/data/digits/drawn --verbose
    evaluate.py --model DIR             # a folder with model.onnx and preprocessor_config.json

The class is what stands before the first "_" of a file's name. ONNX Runtime computes when it is
installed, otherwise PyTorch does, operator by operator. Ends with status 1 below --at-least.
"""

import argparse
import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import needs  # noqa: E402,F401
import numpy
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))


def read_image(path, config):
    """[3, H, W] float32 as preprocessor_config.json says."""
    image = Image.open(path).convert("RGB")
    image = image.resize((config["size"]["width"], config["size"]["height"]), config["resample"])
    scaled = numpy.asarray(image, numpy.float32) * numpy.float32(config["rescale_factor"])
    scaled = (scaled - numpy.float32(config["image_mean"])) / numpy.float32(config["image_std"])
    return scaled.transpose(2, 0, 1)


def forward_with_onnxruntime(path):
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def forward_with_torch(path):
    """Only the operators that train.py's network exports to; another one is named and refused."""
    import onnx
    import torch
    import torch.nn.functional as functional
    from onnx import numpy_helper
    graph = onnx.load(path).graph
    weights = {w.name: torch.from_numpy(numpy_helper.to_array(w).copy()) for w in graph.initializer}

    def symmetric(pads):
        half = len(pads) // 2
        if pads[:half] != pads[half:]:
            raise SystemExit(f"{path}: pads {pads} differ between begin and end, not supported here")
        return pads[:half]

    def conv(a, x, w, b=None):
        return functional.conv2d(x, w, b, a["strides"], symmetric(a["pads"]), a["dilations"], a["group"])

    operators = {
        "Conv": conv,
        "Relu": lambda a, x: x.relu(),
        "MaxPool": lambda a, x: functional.max_pool2d(x, a["kernel_shape"], a["strides"],
                                                      symmetric(a["pads"])),
        "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True),
        "Flatten": lambda a, x: x.flatten(1),
        "Gemm": lambda a, x, w, b: functional.linear(x, w if a["transB"] else w.T, b),
    }
    for node in graph.node:
        if node.op_type not in operators:
            raise SystemExit(f"{path}: operator {node.op_type} needs onnxruntime; install it")

    @torch.no_grad()
    def forward(images):
        values = dict(weights)
        values[graph.input[0].name] = torch.from_numpy(images)
        for node in graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            values[node.output[0]] = operators[node.op_type](attributes,
                                                             *(values[n] for n in node.input))
        return values[graph.output[0].name].numpy()

    return forward


def open_model(path):
    try:
        return forward_with_onnxruntime(path), "onnxruntime"
    except ImportError:
        return forward_with_torch(path), "torch"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=HERE, help="the model folder (default: this one)")
    parser.add_argument("--images", default=os.path.join(HERE, "../../tests/data/digits/held_out"))
    parser.add_argument("--at-least", type=float, default=0.98, metavar="SHARE")
    parser.add_argument("--verbose", action="store_true", help="a line for each image")
    options = parser.parse_args()
    with open(os.path.join(options.model, "preprocessor_config.json"), encoding="utf-8") as file:
        config = json.load(file)
    names = sorted(n for n in os.listdir(options.images) if n.endswith(".png"))
    if not names:
        sys.exit(f"{options.images}: no .png files")
    truth = numpy.array([int(n.split("_")[0]) for n in names])
    images = numpy.stack([read_image(os.path.join(options.images, n), config) for n in names])
    forward, engine = open_model(os.path.join(options.model, "model.onnx"))
    logits = forward(images)
    odds = numpy.exp(logits - logits.max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    answers = logits.argmax(1)

    for name, is_, said, p in zip(names, truth, answers, odds):
        if options.verbose or is_ != said:
            print(f"{name}: {said} ({p[said]:.3f})" + ("" if is_ == said else "   WRONG"))
    table = numpy.zeros((10, 10), int)
    numpy.add.at(table, (truth, answers), 1)
    print("rows: what it is, columns: what the model says")
    print("     " + "".join(f"{d:4d}" for d in range(10)))
    for digit, row in enumerate(table):
        print(f"{digit:4d} " + "".join(f"{n:4d}" if n else "   ." for n in row))
    share = (truth == answers).mean()
    print(f"{(truth == answers).sum()} of {len(names)} right ({100 * share:.2f} %), {engine}")
    sys.exit(0 if share >= options.at_least else 1)


if __name__ == "__main__":
    main()
