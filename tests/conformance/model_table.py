#!/usr/bin/env python3
"""Exports model families, runs them with lensd and with ONNX Runtime, and writes docs/models.md.

    model_table.py CACHE --run BUILD/tests/conformance/lensd_run           # everything
    model_table.py CACHE --run … --only resnet,'hf *' --keep               # some, files kept
    model_table.py CACHE --run … --write docs/models.md                    # and the document

Each model is built with seeded random weights, exported, run by ONNX Runtime on structured images
and by lensd as a compiled session, batch 3 where the export allows batches. Results are kept in
CACHE/results.json: a model that is there is not run again unless --again. Exported files are
removed after their run unless --keep. Exits 1 when a model that exports does not agree.

Needs Python packages that are no part of lensd: torch, torchvision, onnx, onnxruntime, and for
their rows timm, transformers, ultralytics, onnxscript, onnxconverter-common. What is missing is
said, and its rows are left out.
"""

import argparse
import fnmatch
import importlib.util
import json
import logging
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "models"))

import needs  # noqa: E402,F401
import numpy  # noqa: E402

import model_catalogue as catalogue  # noqa: E402

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 6e-2, "int8": 5e-2}
PACKAGES = {"torchvision": ["torchvision"], "timm": ["timm"], "transformers": ["transformers"],
            "ultralytics": ["ultralytics"], "torch": [], "dynamo": ["onnxscript"],
            "float16": ["onnxconverter_common"]}
HALVES = {"bfloat16": "bfloat16", "float16 module": "float16"}
EXPORT_SECONDS, RUN_SECONDS = 420, 180


# ---------------------------------------------------------------------------------- exporting ----

def export(entry, example, path):
    import torch
    inputs = tuple(torch.from_numpy(array) for array in example.inputs)
    names = [f"input{i}" for i in range(len(inputs))]
    dynamic = entry.dynamic and example.batched
    if not dynamic and example.batched:
        inputs = tuple(tensor[:1] for tensor in inputs)
    options = {"opset_version": entry.opset, "input_names": names}
    if entry.exporter == "script":
        options["dynamo"] = False
        if dynamic:
            options["dynamic_axes"] = {name: {0: "batch"} for name in names}
    else:
        options.update(dynamo=True, optimize="not optimised" not in entry.exporter)
        if dynamic:
            options["dynamic_shapes"] = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    # MultiheadAttention's fused path has no ONNX form; the plain one is taken with gradients on.
    for parameter in example.module.parameters():
        parameter.requires_grad_(True)
    torch.onnx.export(example.module, inputs, path, **options)


class Reader:
    """Calibration data for onnxruntime.quantization: seeded images, one at a time."""

    def __init__(self, name, side):
        from random_weights import normalise, structured_images
        batch = normalise(structured_images(4, side, side, 99), catalogue.MEAN, catalogue.STD)
        self.feeds = iter([{name: batch[i:i + 1]} for i in range(len(batch))])

    def get_next(self):
        return next(self.feeds, None)


def quantize(source, target, side, how):
    from onnxruntime import quantization as q
    prepared = target + ".prepared.onnx"
    q.quant_pre_process(source, prepared, skip_symbolic_shape=True)
    if how == "dynamic int8":
        q.quantize_dynamic(prepared, target, weight_type=q.QuantType.QInt8)
        return
    import onnx
    name = onnx.load(prepared, load_external_data=False).graph.input[0].name
    unsigned = "uint8" in how or "QOperator" in how
    q.quantize_static(
        prepared, target, Reader(name, side), per_channel="channel" in how,
        quant_format=q.QuantFormat.QOperator if "QOperator" in how else q.QuantFormat.QDQ,
        activation_type=q.QuantType.QUInt8 if unsigned else q.QuantType.QInt8,
        weight_type=q.QuantType.QUInt8 if "uint8" in how else q.QuantType.QInt8)


def convert_float16(source, target, keep):
    import onnx
    from onnxconverter_common import float16
    model = float16.convert_float_to_float16(onnx.load(source), keep_io_types=keep)
    onnx.save(model, target)


def convert(entry, example, source, target):
    """The conversion `entry.convert` names, from one exported file to another."""
    if "float16, float32" in entry.convert:
        convert_float16(source, target, True)
    elif entry.convert == "float16":
        convert_float16(source, target, False)
    else:
        quantize(source, target, example.inputs[0].shape[-1], entry.convert)


def save_inputs(folder, inputs, dtypes):
    for i, (array, dtype) in enumerate(zip(inputs, dtypes)):
        if dtype == "tensor(bfloat16)":
            import ml_dtypes
            array = array.astype(ml_dtypes.bfloat16).view("V2")
        elif dtype == "tensor(float16)":
            array = array.astype(numpy.float16)
        numpy.save(os.path.join(folder, f"in{i}.npy"), numpy.ascontiguousarray(array))


def ort_session(path, threads, optimise):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def reference(folder, path, inputs, threads):
    """ONNX Runtime's outputs and milliseconds of one image; also writes the inputs it was fed."""
    session = ort_session(path, threads, True)
    wanted = session.get_inputs()
    save_inputs(folder, inputs, [w.type for w in wanted])
    feed = {w.name: numpy.load(os.path.join(folder, f"in{i}.npy")) for i, w in enumerate(wanted)}
    outputs = session.run(None, feed)
    batched = all(isinstance(w.shape[0], str) for w in wanted)
    one = {k: v[:1] for k, v in feed.items()} if batched else feed
    times = []
    for _ in range(4):
        start = time.monotonic()
        session.run(None, one)
        times.append((time.monotonic() - start) * 1e3)
    return outputs, min(times)


def settle_dispute(folder, path, example, outputs, threads):
    """ONNX Runtime's outputs with its graph rewritten, as `outputs` are, and without may differ by
    more than rounding: some of its fusions are wrong (a Pad of zeros taken into a MaxPool, which
    pads with less than any number). PyTorch, which has the model itself, decides between the two.
    Returns the outputs to compare with and what they are."""
    session = ort_session(path, threads, False)
    feed = {w.name: numpy.load(os.path.join(folder, f"in{i}.npy"))
            for i, w in enumerate(session.get_inputs())}
    plain = session.run(None, feed)
    if max(map(difference, plain, outputs)) <= TOLERANCE["float32"]:
        return outputs, "ONNX Runtime"
    truth = torch_outputs(example.module, example.inputs)
    if max(map(difference, truth, plain)) <= TOLERANCE["float32"]:
        return plain, "ONNX Runtime without its fusions, one of which is wrong here: PyTorch agrees"
    return outputs, "ONNX Runtime"


def last_bit(folder, path, threads):
    """How far ONNX Runtime's own ranked detections move with the last bit of the image."""
    session = ort_session(path, threads, True)
    name = session.get_inputs()[0].name
    image = numpy.load(os.path.join(folder, "in0.npy"))
    random = numpy.random.default_rng(0)
    near = numpy.nextafter(image, image + random.choice([-1, 1], image.shape).astype(image.dtype))
    return max(matched_difference(a, b) for a, b in
               zip(session.run(None, {name: image}), session.run(None, {name: near})))


def torch_outputs(module, inputs):
    import torch
    with torch.no_grad():
        out = module(*[torch.from_numpy(a) for a in inputs])
    return [o.numpy() for o in (out if isinstance(out, (tuple, list)) else (out,))]


def as_written(folder, path, threads):
    """Of a quantized file: what ONNX Runtime computes without its fusions, which is what the file
    says, and how far its own outputs move (`difference`) when ten input values move by 1/255 of
    their range. A value on the edge between two steps flips with the order of a sum; a deep random
    network may make much of that, and no two correct implementations are closer to each other."""
    session = ort_session(path, threads, False)
    feed = {w.name: numpy.load(os.path.join(folder, f"in{i}.npy"))
            for i, w in enumerate(session.get_inputs())}
    plain = session.run(None, feed)
    moved = 0.0
    for seed in range(2):
        random = numpy.random.default_rng(seed)
        near = {}
        for name, array in feed.items():
            near[name] = array.copy()
            some = random.integers(0, array.size, 10)
            near[name].flat[some] += (array.max() - array.min()) / 255
        moved = max([moved] + [difference(a, b) for a, b in zip(plain, session.run(None, near))])
    return plain, moved


def torch_reference(folder, example, dtype):
    """For files ONNX Runtime's CPU does not have all kernels for: float16 and bfloat16 modules.
    float16 is what the weights and inputs were rounded to, computed on in float32: the rounding of
    every activation is the exporter's machine's, and a hundred times what is to be judged."""
    import torch
    save_inputs(folder, example.inputs, [f"tensor({dtype})"] * len(example.inputs))
    inputs = [torch.from_numpy(a).to(getattr(torch, dtype)) for a in example.inputs]
    if dtype == "float16":
        example.module.float()
        inputs = [tensor.float() for tensor in inputs]
    with torch.no_grad():
        out = example.module(*inputs)
    outputs = out if isinstance(out, tuple) else (out,)
    return [o.float().numpy() for o in outputs], None


def prepare(entry, folder, threads):
    """Writes model.onnx, inputs and ref*.npy (and int8.onnx, ref-int8-*.npy); returns facts."""
    import torch
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    example = entry.build()
    path = os.path.join(folder, "model.onnx")
    facts = {"classes": example.classes, "shape": list(example.inputs[0].shape)}
    if not (entry.dynamic and example.batched) and example.batched:
        example.inputs = [array[:1] for array in example.inputs]
    if entry.convert in HALVES:
        import dataclasses
        dtype = HALVES[entry.convert]
        half = dataclasses.replace(example, module=example.module.to(getattr(torch, dtype)))
        export_half(entry, half, path, getattr(torch, dtype))
        outputs, facts["ort_ms"] = torch_reference(folder, half, dtype)
        facts["against"] = "PyTorch"
    else:
        export(entry, example, path)
        if entry.convert:
            plain = os.path.join(folder, "plain.onnx")
            os.rename(path, plain)
            convert(entry, example, plain, path)
        outputs, facts["ort_ms"] = reference(folder, path, example.inputs, threads)
        facts["against"] = "ONNX Runtime"
        if entry.ranked:
            facts["moved"] = last_bit(folder, path, threads)
        elif not entry.convert:
            outputs, facts["against"] = settle_dispute(folder, path, example, outputs, threads)
        if "int8" in entry.convert or entry.convert.startswith("Q"):
            outputs, facts["moved"] = as_written(folder, path, threads)
    save_outputs(folder, "ref", outputs)
    if entry.int8:
        int8 = os.path.join(folder, "int8.onnx")
        quantize(path, int8, example.inputs[0].shape[-1], "QDQ per channel")
        outputs, facts["ort_int8_ms"] = reference(folder, int8, example.inputs, threads)
        outputs, facts["moved_int8"] = as_written(folder, int8, threads)
        save_outputs(folder, "ref-int8-", outputs)
    facts["outputs"] = len(outputs)
    facts["bytes"] = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder)
                         if f.startswith("model.onnx"))
    return facts


def export_half(entry, example, path, dtype):
    """What `optimum-cli export onnx --dtype` does: the module itself is turned."""
    import torch
    inputs = tuple(torch.from_numpy(a).to(dtype) for a in example.inputs)
    if entry.convert == "bfloat16":  # the older exporter has no bfloat16 constants
        torch.onnx.export(example.module, inputs, path, dynamo=True, opset_version=18,
                          input_names=["input0"],
                          dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs))
    else:
        torch.onnx.export(example.module, inputs, path, dynamo=False, opset_version=entry.opset,
                          input_names=["input0"], dynamic_axes={"input0": {0: "batch"}})


def save_outputs(folder, name, outputs):
    for i, array in enumerate(outputs):
        numpy.save(os.path.join(folder, f"{name}{i}.npy"), array)


def in_child(function, *arguments):
    """Runs in a forked process, so that memory, crashes and patched modules end with it."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(False)

    def child():
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            send.send((True, function(*arguments)))
        except BaseException as reason:  # a SystemExit of a library is a failed export too
            send.send((False, f"{type(reason).__name__}: {reason}"))

    process = context.Process(target=child)
    process.start()
    send.close()
    try:
        result = receive.recv() if receive.poll(EXPORT_SECONDS) else (False, "took too long")
    except EOFError:
        result = (False, "the exporting process died")
    process.terminate()
    process.join()
    return result


# ------------------------------------------------------------------------------------ running ----

def lensd_run(options, model, folder, name, flags):
    """lensd_run's report, or {"error": sentence}."""
    out = os.path.join(folder, name)
    os.makedirs(out, exist_ok=True)
    arrays = sorted(f for f in os.listdir(folder) if f.startswith("in") and f.endswith(".npy"))
    command = [options.run, model, "--out", out, "--threads", str(options.threads)] + flags + \
        [os.path.join(folder, f) for f in arrays]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=RUN_SECONDS, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)))
    except subprocess.TimeoutExpired:
        return {"error": f"took longer than {RUN_SECONDS} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-300:] or f"ended with {done.returncode}"}
    report = json.loads(done.stdout)
    return report


def load(path):
    array = numpy.load(path)
    if array.dtype.kind == "V":
        import ml_dtypes
        array = array.view(ml_dtypes.bfloat16)
    return array


def difference(expected, actual):
    """Greatest difference over the greatest magnitude; inf for shapes or infinities that differ,
    and for integers that are not equal."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind in "biu":
        return 0.0 if numpy.array_equal(expected, actual) else float("inf")
    expected, actual = expected.astype(numpy.float64), actual.astype(numpy.float64)
    finite = numpy.isfinite(expected)
    same = numpy.array_equal(expected[~finite], actual[~finite], equal_nan=True)
    if not same or not numpy.isfinite(actual[finite]).all():
        return float("inf")
    largest = max(abs(expected[finite]).max(initial=0), 1e-9)
    return float(abs(expected[finite] - actual[finite]).max(initial=0) / largest)


def matched_difference(expected, actual):
    """As difference(), for [images, detections, numbers] in the order of their scores: of two whose
    scores differ in the last bit either may come first, so each detection is compared with the
    nearest one of the other side, in both directions."""
    if expected.shape != actual.shape or expected.ndim != 3:
        return float("inf")
    if not numpy.isfinite(actual).all():
        return float("inf")
    worst = 0.0
    for a, b in zip(expected.astype(numpy.float64), actual.astype(numpy.float64)):
        apart = abs(a[:, None] - b[None]).max(-1)
        worst = max(worst, apart.min(0).max(), apart.min(1).max())
    return float(worst / max(abs(expected).max(), 1e-9))


def judge(report, folder, reference_name, out, count, classes, compare=difference):
    """Adds error (greatest over the outputs) and top1 (agreeing, of) to the report."""
    errors = []
    for i in range(count):
        expected = load(os.path.join(folder, f"{reference_name}{i}.npy"))
        actual = load(os.path.join(folder, out, f"out{i}.npy"))
        errors.append(compare(expected, actual))
        if expected.shape != actual.shape:
            report["shapes"] = f"output {i}: {actual.shape}, expected {expected.shape}"
        elif i == 0 and classes:
            same = expected.argmax(-1) == actual.argmax(-1)
            report["top1"] = [int(same.sum()), int(same.size)]
    report["errors"] = errors
    report["error_max"] = max(errors)


def run_entry(entry, options):
    folder = os.path.join(options.cache, key_of(entry).replace("/", "_").replace(" ", "_"))
    facts_path = os.path.join(folder, "facts.json")
    if options.export_again or not os.path.exists(facts_path):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        ok, facts = in_child(prepare, entry, folder, options.threads)
        if not ok:
            shutil.rmtree(folder, ignore_errors=True)
            return {"not_exported": " ".join(facts.split())[:300]}
        with open(facts_path, "w", encoding="utf-8") as file:
            json.dump(facts, file)
    with open(facts_path, encoding="utf-8") as file:
        facts = json.load(file)
    result = {"facts": facts}
    model = os.path.join(folder, "model.onnx")
    runs = [("fp32", model, "ref", ["--batch"])]
    if not entry.convert and options.bf16:
        runs.append(("bf16", model, "ref", ["--batch", "--bf16"]))
    if entry.int8:
        runs.append(("int8", os.path.join(folder, "int8.onnx"), "ref-int8-", ["--batch"]))
    for name, path, expected, flags in runs:
        report = lensd_run(options, path, folder, name, flags)
        if "error" not in report:
            judge(report, folder, expected, name, facts["outputs"], facts["classes"],
                  matched_difference if entry.ranked else difference)
        result[name] = report
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return result


# ------------------------------------------------------------------------------------ judging ----

def key_of(entry):
    return "/".join([entry.source, entry.name, entry.exporter, str(entry.opset),
                     "dynamic" if entry.dynamic else "static", entry.convert or "float32"])


def tolerance_of(entry, facts):
    for word in ("bfloat16", "float16"):
        if entry.convert.startswith(word):
            return TOLERANCE[word]
    if entry.convert:
        return max(TOLERANCE["int8"], 2 * facts["moved"])
    if entry.ranked:
        return max(TOLERANCE["float32"], 2 * facts["moved"])
    return TOLERANCE["float32"]


def agrees(report, tolerance, strict):
    if "error" in report or report["error_max"] > tolerance:
        return False
    return not strict or "top1" not in report or report["top1"][0] == report["top1"][1]


def verdict(entry, result):
    """"ok", "FAIL" or "not exported"."""
    if "not_exported" in result:
        return "not exported"
    strict = not entry.convert
    ok = agrees(result["fp32"], tolerance_of(entry, result["facts"]), strict)
    if "int8" in result:
        tolerance = max(TOLERANCE["int8"], 2 * result["facts"]["moved_int8"])
        ok = ok and agrees(result["int8"], tolerance, False)
    if "bf16" in result:
        ok = ok and "error" not in result["bf16"]
    return "ok" if ok else "FAIL"


def brief(result):
    parts = []
    if "not_exported" in result:
        return result["not_exported"][:160]
    for name in ("fp32", "bf16", "int8"):
        report = result.get(name)
        if not report:
            continue
        if "error" in report:
            parts.append(f"{name}: {report['error']}")
            continue
        top1 = " top1 {}/{}".format(*report["top1"]) if "top1" in report else ""
        parts.append(f"{name} {report['error_max']:.1e}{top1} {report['one_ms']:.1f} ms"
                     + (f" [{report['shapes']}]" if "shapes" in report else ""))
    parts.append(f"load {result['fp32'].get('load_ms', 0) / 1e3:.1f} s, "
                 f"{result['fp32'].get('max_rss_mb', 0):.0f} MB")
    if result["facts"].get("ort_ms"):
        parts.append(f"ONNX Runtime {result['facts']['ort_ms']:.1f} ms")
    return "; ".join(parts)


# --------------------------------------------------------------------------------------- main ----

def missing_for(entry):
    wanted = list(PACKAGES[entry.source])
    if entry.exporter != "script" or entry.convert == "bfloat16":
        wanted += PACKAGES["dynamo"]
    if entry.convert.startswith("float16") and entry.convert not in HALVES:
        wanted += PACKAGES["float16"]
    return [name for name in wanted if importlib.util.find_spec(name) is None]


def selected(options):
    groups = {"classification": catalogue.classification, "dense": catalogue.dense,
              "variants": catalogue.variants}
    patterns = [p for p in options.only.split(",") if p]
    for group, entries in groups.items():
        if group not in options.groups.split(","):
            continue
        for entry in entries():
            if not patterns or any(fnmatch.fnmatch(entry.name, p) or fnmatch.fnmatch(
                    key_of(entry), p) for p in patterns):
                yield group, entry


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", help="folder for results.json and exported files")
    parser.add_argument("--run", required=True, help="the lensd_run of a build")
    parser.add_argument("--only", default="", help="names or patterns, separated by commas")
    parser.add_argument("--groups", default="classification,dense,variants")
    parser.add_argument("--threads", type=int, default=1,
                        help="of both forward passes (default: 1, which other load disturbs least)")
    parser.add_argument("--keep", action="store_true", help="keep exported files, use them again")
    parser.add_argument("--again", action="store_true", help="run models that have a result")
    parser.add_argument("--export-again", action="store_true", help="do not use kept files")
    parser.add_argument("--write", metavar="FILE", help="write the document from all results")
    return parser.parse_args()


def main():
    options = parse_arguments()
    for package in ("torch", "onnx", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            print(f"model_table.py needs the Python package {package}; install torch torchvision "
                  "onnx onnxruntime onnxscript onnxconverter-common timm transformers ultralytics "
                  "in a virtual environment")
            return 2
    import torch  # noqa: F401: once, before the forks
    import onnxruntime  # noqa: F401
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        options.bf16 = "avx512_bf16" in file.read()
    os.makedirs(options.cache, exist_ok=True)
    path = os.path.join(options.cache, "results.json")
    results = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
    counts = {"ok": 0, "FAIL": 0, "not exported": 0}
    absent = set()
    for _, entry in selected(options):
        key = key_of(entry)
        missing = missing_for(entry)
        if missing:
            absent.update(missing)
            continue
        if options.again or key not in results:
            start = time.monotonic()
            results[key] = run_entry(entry, options)
            with open(path, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=1)
            word = verdict(entry, results[key])
            print(f"{word:12} {key:64} {brief(results[key])} ({time.monotonic() - start:.0f} s)",
                  flush=True)
        counts[verdict(entry, results[key])] += 1
    for package in sorted(absent):
        print(f"left out: the rows that need the Python package {package}")
    if options.write:
        import model_document
        model_document.write(options.write, results, selected(options), options.threads)
    print(f"{counts['ok']} agree, {counts['FAIL']} do not, {counts['not exported']} not exported")
    return counts["FAIL"] != 0


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    sys.exit(main())
