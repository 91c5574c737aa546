#!/usr/bin/env python3
"""How far `lensd quantize` and ONNX Runtime's quantize_static agree with float32, on the same photos.

    quantize_agreement.py --calibrate PHOTOS --test PHOTOS [--out FOLDER] [--options "--target avx2"] MODEL ...

MODEL is a folder with a classifier's model.onnx (float32) and preprocessor_config.json. Both are
calibrated with the photos of one folder and run by ONNX Runtime on those of the other. A row says on
how many photos the best class is that of float32, on how many of those with a clear one (0.05 ahead
of the second), the mean change of its probability and the mean correlation of the scores. Needs
onnxruntime, onnx and numpy; build/tests/conformance/lensd_prepare prepares the photos.
"""

import argparse
import os
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402

LENSD = os.environ.get("LENSD", os.path.join(common.ROOT, "build", "server", "lensd"))
PREPARE = os.path.join(common.ROOT, "build", "tests", "conformance", "lensd_prepare")


def prepared(model, photos):
    """[count, 3, height, width] float32."""
    import numpy
    names = sorted(os.path.join(photos, name) for name in os.listdir(photos))
    config = os.path.join(model, "preprocessor_config.json")
    images = []
    for name in names:
        said = subprocess.run([PREPARE, config, "0", "0", name], check=True, stdout=subprocess.PIPE).stdout
        head, numbers = said.split(b"\n", 1)
        width, height, channels = map(int, head.split())
        image = numpy.frombuffer(numbers, numpy.float32).reshape(height, width, channels)
        images.append(image.transpose(2, 0, 1))
    return numpy.stack(images)


def scores(path, images):
    import numpy
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    first = session.get_inputs()[0]
    images = images.astype(numpy.float16 if first.type == "tensor(float16)" else numpy.float32)
    answers = [session.run(None, {first.name: image[None]})[0] for image in images]
    return numpy.concatenate([answer.reshape(1, -1) for answer in answers]).astype(numpy.float64)


def with_onnxruntime(model, images, out):
    from onnxruntime import quantization as q
    from onnxruntime.quantization.shape_inference import quant_pre_process
    import onnx
    import quantize
    source, ready = os.path.join(model, "model.onnx"), os.path.join(out, "prepared.onnx")
    os.makedirs(out)
    quant_pre_process(source, ready, skip_symbolic_shape=True)
    graph = onnx.load(ready, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}  # older files list them as inputs, too
    first = next(value for value in graph.input if value.name not in weights)
    images = images.astype(onnx.helper.tensor_dtype_to_np_dtype(first.type.tensor_type.elem_type))
    q.quantize_static(ready, os.path.join(out, "model.onnx"), quantize.Reader(first.name, images),
                      quant_format=q.QuantFormat.QDQ, per_channel=True, weight_type=q.QuantType.QInt8,
                      activation_type=q.QuantType.QUInt8)


def row(model, tool, real, stored):
    import numpy
    rows = numpy.arange(len(real))

    def softmax(x):
        e = numpy.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    if real.min() >= 0 and numpy.abs(real.sum(1) - 1).max() < 0.01:  # they are probabilities
        real, stored = numpy.log(numpy.maximum(real, 1e-7)), numpy.log(numpy.maximum(stored, 1e-7))
    p, best = softmax(real), real.argmax(1)
    two = numpy.sort(p, 1)[:, -2:]
    clear, same = two[:, 1] - two[:, 0] >= 0.05, stored.argmax(1) == best
    change = numpy.abs(softmax(stored)[rows, best] - p[rows, best]).mean()
    correlation = numpy.mean([numpy.corrcoef(a, b)[0, 1] for a, b in zip(real, stored)])
    print(f"| {model} | {tool} | {same.sum()} of {len(same)} | {same[clear].sum()} of {clear.sum()} | {change:.4f} "
          f"| {correlation:.5f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", required=True, metavar="PHOTOS")
    parser.add_argument("--test", required=True, metavar="PHOTOS")
    parser.add_argument("--out", default=os.path.join(common.ROOT, ".cache", "agreement"))
    parser.add_argument("--options", default="", help="further options of lensd quantize")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    print("| model | quantized by | best class | clear ones | change of probability | correlation |\n"
          "|---|---|--:|--:|--:|--:|")
    for model in options.models:
        name = os.path.basename(os.path.normpath(model))
        own, other = (os.path.join(options.out, f"{name}-{tool}") for tool in ("lensd", "onnxruntime"))
        for folder in (own, other):
            shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(options.out, exist_ok=True)
        subprocess.run([LENSD, "quantize", model, "--calibrate", options.calibrate, "-o", own,
                        *options.options.split()], check=True, stdout=subprocess.DEVNULL)
        with_onnxruntime(model, prepared(model, options.calibrate), other)
        images = prepared(model, options.test)
        real = scores(os.path.join(model, "model.onnx"), images)
        row(name, "lensd", real, scores(os.path.join(own, "model.onnx"), images))
        row(name, "ONNX Runtime", real, scores(os.path.join(other, "model.onnx"), images))


if __name__ == "__main__":
    main()
