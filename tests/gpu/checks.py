"""Is it right? Operators, network families, and NVIDIA's own checkers."""

import copy
import json
import os
import re
import shutil
import time

import networks
from programs import Broken, Forward, last_words, run_group, said, scratch_folder

FP32_BAR = 1e-4
TOP1_BAR = 0.99
BATCHES = [1, 3, 8, 64]
MARGIN = 3     # seconds that a part keeps to say how it ended
LEAST = 5      # seconds of a checker, which starts slowly
PATIENCE = 20  # seconds for a graph that began when its time was over, and for the device to start


def json_line(text):
    """The object on the last line of what a program printed."""
    return json.loads(text.strip().splitlines()[-1])


def operators(part):
    """Each operator by itself, quantised graphs, then random graphs, against the reference kernels in each
    precision."""
    bundle = part.bundle
    floats = [word for word in bundle.precisions() if word != "int8"]
    each = json_line(bundle.run("lensd_graphs", "--operators", "--seconds", 0, timeout=60))["asked"]
    alone, drawn = (9, 3) if not bundle.on_gpu else (each, 40) if part.quick else (6 * each, 400)
    fresh = part.seed % 1000000 + 1
    todo = [(2, f"operators, {word}", f"operators_{word}", word, ["--operators"], 1, alone) for word in floats]
    todo += [(2, "quantised graphs, int8", "graphs_int8", "int8", [], fresh, 2 * drawn)]
    todo += [(1, f"random graphs, {word}", f"graphs_{word}", word, [], fresh, drawn) for word in floats]
    for number, (share, what, key, precision, words, first, count) in enumerate(todo):
        # What one leaves of its time is the others'.
        seconds = (part.left() - MARGIN) * share / sum(row[0] for row in todo[number:])
        words = ["--precision", precision, *words, *([] if bundle.on_gpu else ["--small"])]
        graphs(part, what, key, words, range(first, first + count), seconds)


def graphs(part, what, key, words, seeds, seconds):
    """A graph that ends its program or breaks the device is named, and a new process goes on behind it."""
    total = {"passed": 0, "failed": 0, "skipped": 0, "asked": len(seeds), "worst": 0.0, "sensitive": 0,
             "failures": []}
    end, following = time.monotonic() + max(2, seconds), seeds.start
    while following < seeds.stop and (left := min(end - time.monotonic(), part.left() - MARGIN)) >= 1:
        got = some_graphs(part, [*words, "--first", following, "--count", seeds.stop - following, "--seconds",
                                 int(left)], min(left + PATIENCE, max(2, part.left() - MARGIN)), following)
        for name in ("passed", "failed", "skipped"):
            total[name] += got[name]
        total["sensitive"] += got.get("sensitive", 0)
        total["worst"] = max(total["worst"], got["worst"])
        total["tolerance"] = got.get("tolerance", total.get("tolerance"))
        total["mean"] = got.get("mean")
        total["failures"] = (total["failures"] + got["failures"])[:20]
        part.put(key, total)
        following = got["next"]
        if not got["broken"]:
            break
    judge_graphs(part, what, total)


def some_graphs(part, words, timeout, first):
    """What one run of lensd_graphs says; `broken`: another one may go on with the seed `next`."""
    try:
        text = part.bundle.run("lensd_graphs", "--device", part.bundle.device, *words, timeout=timeout,
                               accepted=(0, 1, 3))
        return dict(json_line(text), failures=failures_of(text))
    except (Broken, ValueError, IndexError) as error:
        text = getattr(error, "output", "")
        ran = re.findall(r"^RUN (\S+) (\d+)$", text, re.M)
        if not ran:
            return {"passed": 0, "failed": 1, "skipped": 0, "worst": 0.0, "failures": [str(error)], "broken": False,
                    "next": first}
        name, seed = ran[-1][0], int(ran[-1][1])
        failed = {line.split(":")[0].split(",")[0] for line in failures_of(text)} | {f"FAIL {name} {seed}"}
        return {"passed": len(ran) - len(failed), "failed": len(failed), "skipped": seed + 1 - first - len(ran),
                "worst": 0.0, "failures": [*failures_of(text), f"FAIL {name} {seed}: {error}"], "broken": True,
                "next": seed + 1}


def failures_of(text):
    return [line for line in text.splitlines() if line.startswith("FAIL")]


def judge_graphs(part, what, total):
    """All that were asked for agree; what was not reached in time is not judged."""
    reached = total["passed"] + total["failed"] + total["skipped"]
    got = f"{total['passed']} of {total['asked']}, worst {total['worst']:.2g}"
    got += f", {total['sensitive']} further off as the graph itself is sensitive" if total["sensitive"] else ""
    got += f", {total['skipped']} cannot be compared" if total["skipped"] else ""
    got += f", {total['asked'] - reached} not reached" if reached < total["asked"] else ""
    got += f"; {total['failed']} disagree: {total['failures'][0][:600]}" if total["failed"] else ""
    tolerance = total.get("tolerance")
    part.bar(what, "all agree" if tolerance is None else f"all within {tolerance:g}", got,
             False if total["failed"] else True if reached >= total["asked"] and total["passed"] else None)


def case_folders(part):
    """Folders of conformance cases: those asked for, the bundle's, or those beside the repository."""
    if part.options.cases:
        return part.options.cases
    if os.path.isdir(part.bundle.path("cases")):
        return [part.bundle.path("cases")]
    beside = os.path.join(os.environ.get("LENSD_SHARED", "/nonexistent"), "onnx-cases")
    # Whole networks take the stand-in minutes.
    names = ("public", "extra_public", "light") if part.bundle.on_gpu else ("public",)
    return [folder for folder in (os.path.join(beside, name) for name in names) if os.path.isdir(folder)]


def conformance(part):
    """ONNX's own cases, through sessions on the device."""
    bundle, folders = part.bundle, case_folders(part)
    if bundle.device == "cpu":
        return
    if not folders:
        part.note("ONNX's conformance cases are not in this bundle: --cases FOLDER names them, and ./dev bundle "
                  "--cases FOLDER takes them along")
    for folder in folders:
        name = os.path.basename(os.path.normpath(folder))
        words = ["lensd_conformance", folder, "--session", "--cuda", "--baseline",
                 bundle.path("tests", "conformance", "baseline.txt")]
        words += ["-v"]  # names a case before it runs: the last one is the one that hangs
        if not bundle.on_gpu:
            words += ["--op", "Softmax"]
        try:
            text = bundle.run(*words, timeout=part.left() - MARGIN, accepted=(0, 1))
            counts = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) unsupported$", text, re.M)[-1]
        except (Broken, IndexError) as error:
            part.put(f"conformance_{name}", {"last_lines": getattr(error, "output", "").splitlines()[-20:]})
            part.bar(f"conformance cases, {name}", "as on the CPU", str(error), False)
            continue
        worse = re.findall(r"^REGRESSION (\S+)", text, re.M)
        part.put(f"conformance_{name}", {"passed": int(counts[0]), "failed": int(counts[1]),
                                         "unsupported": int(counts[2]), "worse_than_cpu": worse[:50]})
        part.bar(f"conformance cases, {name}", "none fails, none worse than on the CPU",
                 f"{counts[0]} pass, {counts[1]} fail, {len(worse)} are worse", not worse and counts[1] == "0")


# ------------------------------------------------------------------------------- families ----


class Reference:
    """What PyTorch computes for a family: float32 without TF32, and the 16-bit formats for comparison.
    Without PyTorch it is lensd's own CPU backend."""

    def __init__(self, part, name, folder, images, scratch):
        torch, _ = part.torch()
        self.own = {}
        if torch is None or name == "digits":
            self.word = "lensd's CPU backend"
            with Forward(part.bundle, folder, "fp32", [min(64, len(images))], device="cpu") as forward:
                self.logits = in_batches(forward, images, min(64, len(images)), scratch)
            return
        self.word = "PyTorch fp32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        device = part.bundle.device
        network = networks.module(name, folder, device)
        self.logits = self.run(torch, network, images, device, torch.float32)
        for word, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            if part.bundle.on_gpu:
                got = self.run(torch, copy.deepcopy(network).to(dtype), images, device, dtype)
                self.own[word] = agreement(got, self.logits)

    @staticmethod
    def run(torch, network, images, device, dtype):
        parts = []
        with torch.inference_mode():
            for first in range(0, len(images), 64):
                x = torch.from_numpy(images[first:first + 64]).permute(0, 3, 1, 2).to(device, dtype)
                parts.append(network(x.contiguous(memory_format=torch.channels_last)).float().cpu())
        return torch.cat(parts).numpy()


def in_batches(forward, images, batch, scratch):
    import numpy
    return numpy.concatenate([forward.answer(images[first:first + batch], scratch)
                              for first in range(0, len(images), batch)])


def agreement(got, expected):
    """The share of rows whose best class is the same; a NaN is never the same."""
    import numpy
    finite = numpy.isfinite(got).all(axis=1)
    return float((finite & (got.argmax(1) == expected.argmax(1))).mean())


def difference(got, expected):
    """The greatest difference, relative to the greatest expected number; NaN when there is one."""
    import numpy
    return float(numpy.abs(got - expected).max() / max(1e-9, float(numpy.abs(expected).max())))


def candidate_of(name, precision):
    """In bf16 each family takes another candidate of its layers than the quickest: those are compared, too, that no
    network of today happens to choose."""
    return 1 + networks.FAMILIES.index(name) if precision == "bf16" and name in networks.FAMILIES else None


def check_precision(part, name, folder, precision, images, reference, scratch):
    """One session on the device: all images in its largest batches, then the other sizes on fresh rows.
    Memory is filled with NaN before each run."""
    import numpy
    sizes = BATCHES if part.bundle.on_gpu else [1, 3]
    largest = sizes[-1]
    candidate = candidate_of(name, precision)
    with Forward(part.bundle, folder, precision, sizes, poison=True, patience=part.left(),
                 candidate=candidate) as forward:
        got = in_batches(forward, images[:len(images) // largest * largest], largest, scratch)
        rows, first = [got], len(got)
        expected = [reference.logits[:first]]
        offset = part.seed % max(1, len(images) - 16)
        for size in sizes[:-1]:
            rows.append(forward.answer(images[offset:offset + size], scratch))
            expected.append(reference.logits[offset:offset + size])
        load_s = forward.load_s
    got, expected = numpy.concatenate(rows), numpy.concatenate(expected)
    return {"family": name, "precision": precision, "rows": len(got), "batches": sizes, "load_s": load_s,
            "candidate": candidate, "difference": difference(got, expected), "top1": agreement(got, expected),
            "reference": reference.word, "pytorch_top1": reference.own.get(precision)}


def judge(part, row):
    label = f"{row['family']} {row['precision']} against {row['reference']}"
    if row["precision"] == "fp32":
        part.bar(label, f"<= {FP32_BAR:g} of the greatest logit", f"{row['difference']:.2e}",
                 row["difference"] <= FP32_BAR)
        return
    own = f" (PyTorch's own: {row['pytorch_top1']:.4f})" if row["pytorch_top1"] is not None else ""
    part.bar(label, f"best class equal for >= {TOP1_BAR:.0%}", f"{row['top1']:.4f} of {row['rows']}{own}",
             row["top1"] >= TOP1_BAR)


def families(part):
    names = part.families()
    precisions = ["fp32"] + [word for word in part.bundle.precisions() if word in ("fp16", "bf16")]
    rows = []
    with scratch_folder() as scratch:
        for name in names:
            folder = part.network(name)
            if folder is None:
                part.bar(name, "checked", "it was not exported", None)
                continue
            try:
                images = networks.pictures(512 if part.bundle.on_gpu else 9, folder, part.seed)
                reference = Reference(part, name, folder, images, scratch)
                cpu_agrees(part, name, folder, images, reference, scratch)
            except Exception as error:  # noqa: BLE001: PyTorch raises anything; the other networks go on
                part.bar(name, "a reference", said(error), False)
                continue
            for precision in precisions:
                try:
                    rows.append(check_precision(part, name, folder, precision, images, reference, scratch))
                    judge(part, rows[-1])
                except Exception as error:  # noqa: BLE001
                    part.bar(f"{name} {precision}", "runs", said(error), False)
                part.put("rows", rows)


def cpu_agrees(part, name, folder, images, reference, scratch):
    """lensd's own CPU backend on a few of the images: tells a fault of the import from one of the device."""
    if reference.word != "PyTorch fp32":
        return
    with Forward(part.bundle, folder, "fp32", [8], device="cpu") as forward:
        got = difference(forward.answer(images[:8], scratch), reference.logits[:8])
    part.put(f"cpu_{name}", got)
    if not got <= FP32_BAR:
        part.bar(f"{name} fp32 on the CPU", f"<= {FP32_BAR:g}", f"{got:.2e}", False)


# ------------------------------------------------------------------------------ sanitizer ----


# Where asynchronous copies and tensor cores are comes first.
SANITIZED = [("memcheck", "half"), ("racecheck", "half"), ("memcheck", "int8"), ("racecheck", "int8"),
             ("initcheck", "half"), ("memcheck", "fp32")]


def sanitizer_tool():
    places = ("/usr/local/cuda/bin/compute-sanitizer", "/usr/local/cuda/compute-sanitizer/compute-sanitizer")
    return shutil.which("compute-sanitizer") or next((path for path in places if os.path.exists(path)), None)


def sanitizer(part):
    """NVIDIA's compute-sanitizer over small runs; where it is missing or refuses the device, that is said."""
    tool = sanitizer_tool()
    if tool is None or not part.bundle.on_gpu:
        part.note("compute-sanitizer checks GPUs only" if tool else "compute-sanitizer is not installed here")
        return
    for number, (check, precision) in enumerate(SANITIZED):
        precision = part.bundle.half() if precision == "half" else precision
        sanitize(part, tool, check, precision, number, (part.left() - MARGIN) / (len(SANITIZED) - number))


def sanitize(part, tool, check, precision, number, seconds):
    """One checker over graphs of one precision. No tuning of layers, which may choose otherwise on each run, and no
    CUDA graphs: what it finds has the name of a kernel."""
    what = f"compute-sanitizer {check}, {precision}"
    words = [tool, "--tool", check, "--target-processes", "all", "--error-exitcode", "9",
             part.bundle.path("lensd_graphs"), "--device", part.bundle.device, "--precision", precision, "--small",
             "--first", str(part.seed % 1000000 + 1), "--count", "9", "--seconds", str(int(seconds / 2) + 1)]
    words += ["--no-poison"] if check == "initcheck" else []
    try:
        status, text = run_group(words, dict(part.bundle.environment, LENSD_CUDA_TUNING=str(number + 1),
                                             LENSD_CUDA_GRAPHS="off"), max(LEAST, seconds))
    except Broken as error:
        part.bar(what, "0 errors", f"{error}: {last_words(error.output, '')}", None)
        return
    if "Device not supported" in text or "error 999" in text:
        part.note(f"{what}: this machine does not allow it: {text.strip().splitlines()[0][:200]}")
        return
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
    summary = found.group(0) if found else None
    passed = sum(int(count) for count in re.findall(r'^{"passed": (\d+)', text, re.M))
    part.put(f"{check}_{precision}", {"exit": status, "summary": summary, "graphs": passed,
                                      "tail": text[-2000:] if status else ""})
    part.bar(what, "0 errors", f"{summary or f'exit {status}: {text.strip()[-200:]}'}, {passed} graphs",
             False if status else True if passed else None)
