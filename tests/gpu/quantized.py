"""Quantized networks: 8-bit integers beside the 16-bit float file of the same network, in turns, and their
answers beside lensd's CPU backend and ONNX Runtime on the same file. ONNX Runtime's tools quantize."""

import os
import statistics
import sys

import networks
import speed
from checks import agreement, difference, in_batches
from programs import Forward, said, scratch_folder

HERE = os.path.dirname(os.path.realpath(__file__))
BAR = 0.05  # of the greatest logit; two correct evaluations of a quantized file lie about half as far apart
KIND = "QDQ"
TABLE = [("resnet50", [1, 64]), ("efficientnet_b0", [64])]


def tools():
    """(quantize.py, onnxruntime), or (None, why not)."""
    sys.path.insert(1, os.path.join(HERE, "..", "bench"))
    try:
        import onnxruntime
        import quantize
    except ImportError as error:
        return None, f"networks are quantized by ONNX Runtime's tools: {error}"
    return quantize, onnxruntime


def with_onnxruntime(onnxruntime, path, images):
    """What the file says, without fusions."""
    import numpy
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    rows = numpy.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(numpy.float32)
    return numpy.concatenate([session.run(None, {name: row[None]})[0] for row in rows])


def compare(part, label, folder, forward, batch, onnxruntime, scratch):
    """Answers on fresh pictures against two evaluations of the same file."""
    images = networks.pictures(64 if part.bundle.on_gpu else 4, folder, part.seed)
    got = in_batches(forward, images[:len(images) // batch * batch], batch, scratch)
    images = images[:len(got)]
    with Forward(part.bundle, folder, "int8", [1], device="cpu") as cpu:
        references = {"the CPU backend": in_batches(cpu, images, 1, scratch)}
    few = images[:8]
    references["ONNX Runtime"] = with_onnxruntime(onnxruntime, os.path.join(folder, "model.onnx"), few)
    for word, expected in references.items():
        found = difference(got[:len(expected)], expected)
        part.put(f"{label} {word}", {"difference": found, "top1": agreement(got[:len(expected)], expected),
                                     "rows": len(expected)})
        part.bar(f"{label} against {word} on the same file", f"<= {BAR:g} of the greatest logit",
                 f"{found:.3f}", found <= BAR)


def measure(part, name, batches, folder, onnxruntime):
    half, label = part.bundle.half(), f"{name} {KIND} int8"
    with Forward(part.bundle, folder, "int8", batches) as int8, \
            Forward(part.bundle, part.network(name), half, batches) as wide, \
            scratch_folder() as scratch:
        compare(part, label, folder, int8, batches[-1], onnxruntime, scratch)
        for batch in batches:
            found = speed.in_turns(part, {"lensd": int8, half: wide}, batch)
            ms = {who: statistics.median(times) for who, times in found.items()}
            part.put(f"{label} {batch}", {"rounds_ms": found, "ms": ms})
            part.bar(f"{label} batch {batch} against lensd's {half}", "measured",
                     f"{speed.ratio(found, half):.2f} x, {ms['lensd']:.3f} ms", None)


def quantized(part):
    torch, reason = part.torch()
    quantize, runtime = tools()
    if torch is None or quantize is None:
        part.note(reason if torch is None else runtime)
        return
    table = TABLE if part.bundle.on_gpu else [(name, [1, 2]) for name in part.families()[:1]]
    for name, batches in part.only_these_rows(table):
        if part.network(name) is None:
            part.bar(f"{name} int8", "measured", "it was not exported", None)
            continue
        folder = os.path.join(part.networks_folder(), f"{name}-{KIND}")
        try:
            if not os.path.exists(os.path.join(folder, "model.onnx")):
                quantize.quantize(part.network(name), folder, KIND)
            measure(part, name, batches, folder, runtime)
        except Exception as error:  # noqa: BLE001: the others go on
            part.bar(f"{name} {KIND} int8", "runs", said(error), False)
