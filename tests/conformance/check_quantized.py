#!/usr/bin/env python3
"""Quantized models (tests/bench/quantize.py) beside ONNX Runtime, on made-up pictures.

    check_quantized.py [--run build/tests/conformance/lensd_run] [--pictures 16] FOLDER ...

For each folder: the greatest difference of lensd's int8 logits from those of ONNX Runtime without its
fusions (which computes what the file says), of the greatest logit; on how many pictures the best class
is the same; and the same two figures for ONNX Runtime with all of its fusions, which is how far two
correct evaluations of the file lie apart. Exits with 1 where lensd is further away than twice that
and 0.05.
"""

import argparse
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(HERE, "..", "bench"))
import quantize  # noqa: E402


def with_onnxruntime(path, images, level):
    import numpy
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return numpy.concatenate([session.run(None, {name: image[None]})[0] for image in images]).astype(numpy.float32)


def in_type_of(path, images):
    """The images in float16 where the file's input is so."""
    import numpy
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    is_half = session.get_inputs()[0].type == "tensor(float16)"
    return [image.astype(numpy.float16 if is_half else numpy.float32) for image in images]


def with_lensd(run, path, images):
    import numpy
    answers = []
    with tempfile.TemporaryDirectory() as scratch:
        for image in images:
            source = os.path.join(scratch, "in.npy")
            numpy.save(source, image[None])
            precision = [] if "-dynamic" in path else ["--int8"]
            subprocess.run([run, path, "--out", scratch, *precision, "--threads", "1", source],
                           check=True, stdout=subprocess.DEVNULL)
            answers.append(numpy.load(os.path.join(scratch, "out0.npy")))
    return numpy.concatenate(answers).astype(numpy.float32)


def apart(a, b):
    import numpy
    same = int((a.argmax(1) == b.argmax(1)).sum())
    return float(numpy.abs(a - b).max() / numpy.abs(b).max()), same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default=os.path.join(ROOT, "build", "tests", "conformance", "lensd_run"))
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    options = parser.parse_args()
    import onnxruntime
    levels = onnxruntime.GraphOptimizationLevel
    failed = False
    print("| model | lensd | best class equal | ONNX Runtime with fusions | best class equal |")
    print("|---|--:|--:|--:|--:|")
    for folder in options.folders:
        path = os.path.join(folder, "model.onnx")
        images = in_type_of(path, quantize.pictures(folder, options.pictures, 5))
        written = with_onnxruntime(path, images, levels.ORT_DISABLE_ALL)
        error, same = apart(with_lensd(options.run, path, images), written)
        other, other_same = apart(with_onnxruntime(path, images, levels.ORT_ENABLE_ALL), written)
        failed = failed or not error <= max(2 * other, 0.05)
        print(f"| {os.path.basename(os.path.normpath(folder))} | {error:.4f} | {same} of {len(images)} "
              f"| {other:.4f} | {other_same} of {len(images)} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
