#!/usr/bin/env python3
"""Quantizes exported families with ONNX Runtime's own tools, for peers.py --quantized and for checks.

    quantize.py [--families FOLDER] [--out FOLDER] [--kinds QDQ,QOperator,…] FAMILY ...

Writes OUT/FAMILY-KIND/model.onnx with the family's labels and preprocessor file beside it. KIND is
QDQ or QOperator (weights int8 a channel, activations uint8), the same with -tensor (one scale for all
weights) or -signed (activations int8), or dynamic (quantize_dynamic). Calibrated on made-up pictures:
smooth colours with detail, normalised as the family's preprocessor file says. Needs onnxruntime, onnx
and numpy.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
import common  # noqa: E402

KINDS = ["QDQ", "QOperator", "QDQ-tensor", "QOperator-tensor", "QDQ-signed", "QOperator-signed", "dynamic"]


def settings(folder):
    with open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8") as file:
        return json.load(file)


def pictures(folder, count, seed):
    """[count, 3, side, side] float32, as the model takes them."""
    import numpy
    config = settings(folder)
    side = config["crop_size"]["height"]
    random = numpy.random.default_rng(seed)
    made = numpy.zeros((count, 3, side, side), numpy.float32)
    across = numpy.linspace(0, 1, side, dtype=numpy.float32)
    for picture in made:
        for channel in range(3):
            for wave in (1, 3, 9, 27):
                a, b, c = random.normal(0, 1, 3)
                picture[channel] += numpy.sin(
                    6.28 * wave * (a * across[:, None] + b * across[None, :]) + 6.28 * c) / wave ** 0.5
        picture += random.normal(0, 0.1, picture.shape)
        low, high = picture.min(), picture.max()
        picture -= low
        picture /= high - low
    mean = numpy.array(config["image_mean"], numpy.float32).reshape(3, 1, 1)
    std = numpy.array(config["image_std"], numpy.float32).reshape(3, 1, 1)
    return (made - mean) / std


class Reader:
    def __init__(self, name, images):
        self.left = [{name: image[None]} for image in images]

    def get_next(self):
        return self.left.pop(0) if self.left else None


def quantize(folder, out, kind):
    import onnx
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process
    source = os.path.join(folder, "model.onnx")
    os.makedirs(out, exist_ok=True)
    target = os.path.join(out, "model.onnx")
    for name in ("labels.txt", "preprocessor_config.json"):
        if os.path.exists(os.path.join(folder, name)):
            shutil.copy(os.path.join(folder, name), out)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = os.path.join(scratch, "prepared.onnx")
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        if kind == "dynamic":
            q.quantize_dynamic(prepared, target, weight_type=q.QuantType.QInt8)
            return
        name = onnx.load(prepared, load_external_data=False).graph.input[0].name
        q.quantize_static(
            prepared, target, Reader(name, pictures(folder, 4, 11)),
            quant_format=q.QuantFormat.QDQ if kind.startswith("QDQ") else q.QuantFormat.QOperator,
            per_channel="-tensor" not in kind, weight_type=q.QuantType.QInt8,
            activation_type=q.QuantType.QInt8 if "-signed" in kind else q.QuantType.QUInt8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=os.path.join(common.ROOT, ".cache", "families"))
    parser.add_argument("--out", default=os.path.join(common.ROOT, ".cache", "quantized"))
    parser.add_argument("--kinds", default="QDQ")
    parser.add_argument("names", nargs="+", metavar="FAMILY")
    options = parser.parse_args()
    for kind in options.kinds.split(","):
        if kind not in KINDS:
            sys.exit(f"quantize: no kind '{kind}'; there are {', '.join(KINDS)}")
        for name in options.names:
            out = os.path.join(options.out, f"{common.model_name(name)}-{kind}")
            if not os.path.exists(os.path.join(out, "model.onnx")):
                quantize(os.path.join(options.families, name), out, kind)
            print(out, flush=True)


if __name__ == "__main__":
    main()
