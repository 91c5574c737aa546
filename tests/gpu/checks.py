"""Is it right? Operators, network families, and NVIDIA's own checkers."""

import copy
import json
import os
import re
import shutil
import time

import networks
from programs import PATIENCE, Broken, Forward, last_words, run_group, said, scratch_folder

FP32_BAR = 1e-4
OWN_SHARE = 1.5  # of what PyTorch's own rounding makes of the same images
LEAST_RMS = 1e-4
TOP1_BAR = 0.95  # where PyTorch has no such precision to compare with
BATCHES = [1, 3, 8, 64]
MARGIN = 3       # seconds that a part keeps to say how it ended
LEAST = 5        # seconds of a checker, which starts slowly
CHECKER_S = 30   # seconds of a checker at most


def json_line(text):
    """The object on the last line of what a program printed."""
    return json.loads(text.strip().splitlines()[-1])


def operators(part):
    """Each operator by itself, and quantized graphs, against the reference kernels in each precision."""
    each = json_line(part.bundle.run("lensd_graphs", "--operators", "--seconds", 0, timeout=PATIENCE))["asked"]
    alone, drawn = (each, 80) if part.bundle.on_gpu else (9, 6)
    in_turn(part, [(f"operators, {word}", f"operators_{word}", word, ["--operators"], 1, alone)
                   for word in float_precisions(part)]
            + [("quantized graphs, int8", "graphs_int8", "int8", [], part.seed % 1000000 + 1, drawn)])


def random_graphs(part):
    """Chains of random operators, likewise."""
    in_turn(part, [(f"random graphs, {word}", f"graphs_{word}", word, [], part.seed % 1000000 + 1,
                    100 if part.bundle.on_gpu else 3) for word in float_precisions(part)])


def float_precisions(part):
    return [word for word in part.bundle.precisions() if word != "int8"]


def in_turn(part, todo):
    """(what, key, precision, words, first, count): what one leaves of its time is the others'."""
    for number, (what, key, precision, words, first, count) in enumerate(todo):
        seconds = (part.left() - MARGIN) / (len(todo) - number)
        words = ["--precision", precision, *words, *([] if part.bundle.on_gpu else ["--small"])]
        graphs(part, what, key, words, range(first, first + count), seconds)


def graphs(part, what, key, words, seeds, seconds):
    """A graph that ends its program or breaks the device is named, and a new process goes on behind it."""
    total = {"passed": 0, "failed": 0, "skipped": 0, "asked": len(seeds), "worst": 0.0, "sensitive": 0,
             "failures": []}
    end, following, breaks = time.monotonic() + max(2, seconds), seeds.start, 0
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
        following, breaks = got["next"], breaks + 1
        if not got["broken"] or breaks == 20:
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
                 bundle.path("tests", "conformance", "baseline.txt"), "-v"]
        words += [] if bundle.on_gpu else ["--op", "Softmax"]
        found = some_cases(part, words)
        part.put(f"conformance_{name}", found)
        reached = f", {found['ended']}" if found["ended"] else ""
        part.bar(f"conformance cases, {name}", "none fails, none worse than on the CPU",
                 f"{found['pass']} pass, {found['FAIL']} fail, {len(found['worse'])} are worse{reached}",
                 False if found["FAIL"] or found["worse"] else None if found["ended"] or not found["pass"] else True)


def some_cases(part, words):
    """A case that ends its process, or hangs, counts as failed, and another process goes on behind it."""
    found = {"pass": 0, "FAIL": 0, "unsupported": 0, "worse": [], "failures": [], "ended": ""}
    after, breaks = [], 0
    while part.left() > MARGIN + 1:
        text, problem = "", None
        try:
            text = part.bundle.run(*words, *after, timeout=min(PATIENCE, part.left() - MARGIN), accepted=(0, 1))
        except Broken as error:
            text, problem = error.output, error
        cases = re.findall(r"^(\S+) … (pass|FAIL|unsupported)?(.*)$", text, re.M)
        for name, result, rest in cases:
            found[result or "FAIL"] += bool(result)
            found["failures"] += [f"{name}{rest}"[:300]] if result == "FAIL" else []
        found["worse"] += re.findall(r"^REGRESSION (\S+)", text, re.M)
        if problem is None:
            return found
        if not cases:
            found["ended"] = str(problem)[:300]
            return found
        # Out of time in the middle of cases that take no time is no case's fault.
        last = cases[-1]
        if "did not end" not in str(problem) or len(cases) == 1:
            found["FAIL"] += not last[1]
            found["failures"] += [] if last[1] else [f"{last[0]}: {problem}"[:300]]
            breaks += 1
            after = ["--after", last[0]]
        else:
            whole = [name for name, result, _ in cases if result]
            after = ["--after", whole[-1]] if whole else ["--after", last[0]]
        if breaks == 20:
            break
    found["ended"] = "not all reached"
    return found


# ------------------------------------------------------------------------------- families ----


class Reference:
    """What PyTorch computes for a family: float32 without TF32, the first images in float64, and what its own
    rounding makes of the same images in the other precisions. Without PyTorch it is lensd's own CPU backend."""

    def __init__(self, part, name, folder, images, scratch):
        torch, _ = part.torch()
        self.own, self.exact = {}, None
        if torch is None or name == "digits":
            self.word = "lensd's CPU backend"
            with Forward(part.bundle, folder, "fp32", [min(64, len(images))], device="cpu") as forward:
                self.logits = in_batches(forward, images, min(64, len(images)), scratch)
            return
        self.word = "PyTorch fp32"
        device, on_gpu = part.bundle.device, part.bundle.on_gpu
        network = networks.module(name, folder, device)
        self.logits = self.run(torch, network, images, device, torch.float32)
        self.exact = self.run(torch, copy.deepcopy(network).double(), images[:64 if on_gpu else 2], device, torch.float64)
        if not on_gpu:
            return
        for word, dtype in (("tf32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)):
            self.own[word] = self.run(torch, copy.deepcopy(network).to(dtype), images, device, dtype, word == "tf32")

    @staticmethod
    def run(torch, network, images, device, dtype, tf32=False):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        parts = []
        with torch.inference_mode():
            for first in range(0, len(images), 64):
                x = torch.from_numpy(images[first:first + 64]).permute(0, 3, 1, 2).to(device, dtype)
                parts.append(network(x.contiguous(memory_format=torch.channels_last)).double().cpu())
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


def rms(got, expected):
    """The root of the mean square of differences, relative to that of the expected numbers."""
    import numpy
    return float(numpy.sqrt(numpy.mean((got - expected) ** 2) / max(1e-18, float(numpy.mean(expected ** 2)))))


def candidate_of(name, precision):
    """Of a layer's candidates: in fp16 the best guess, since what the tuner chooses is compared by the speed parts,
    in other precisions another one in each family, so that those are compared, too, that no network happens to
    choose. Nothing is measured."""
    if precision == "fp16" or name not in networks.FAMILIES:
        return 0
    return 1 + networks.FAMILIES.index(name)


def check_precision(part, name, folder, precision, images, reference, scratch):
    """One session on the device: all images in its largest batches, then the other sizes on fresh rows.
    Memory is filled with NaN before each run."""
    import numpy
    sizes = BATCHES if part.bundle.on_gpu else [1, 2]
    largest = sizes[-1]
    candidate = candidate_of(name, precision)
    with Forward(part.bundle, folder, precision, sizes, poison=True, candidate=candidate) as forward:
        got = in_batches(forward, images[:len(images) // largest * largest], largest, scratch)
        rows, places = [got], list(range(len(got)))
        offset = part.seed % max(1, len(images) - 16)
        for size in sizes[:-1]:
            rows.append(forward.answer(images[offset:offset + size], scratch))
            places += range(offset, offset + size)
        load_s = forward.load_s
    got, expected = numpy.concatenate(rows), reference.logits[places]
    row = {"family": name, "precision": precision, "rows": len(got), "batches": sizes, "load_s": load_s,
           "candidate": candidate, "difference": difference(got, expected), "rms": rms(got, expected),
           "top1": agreement(got, expected), "reference": reference.word}
    own = reference.own.get(precision)
    if own is not None:
        row.update(pytorch_rms=rms(own[places], expected), pytorch_top1=agreement(own[places], expected))
    if precision == "fp32" and reference.exact is not None:
        exact = reference.exact
        row.update(against_float64=difference(got[:len(exact)], exact[:len(got)]),
                   pytorch_against_float64=difference(reference.logits[:len(exact)], exact))
    return row


def judge(part, row):
    """fp32 by float64 where there is such: cuDNN may choose Winograd, whose own error is no bar. Rounded precisions by
    what PyTorch's rounding makes of the same images: random weights flip some classes."""
    label = f"{row['family']} {row['precision']} against {row['reference']}"
    if "against_float64" in row:
        bar = max(FP32_BAR, 2 * row["pytorch_against_float64"])
        part.bar(f"{row['family']} fp32 against PyTorch float64", f"<= {bar:.1e} of the greatest logit",
                 f"{row['against_float64']:.2e} (PyTorch fp32: {row['pytorch_against_float64']:.2e}; lensd against that "
                 f"{row['difference']:.2e})", row["against_float64"] <= bar)
    elif row["precision"] == "fp32":
        part.bar(label, f"<= {FP32_BAR:g} of the greatest logit", f"{row['difference']:.2e}",
                 row["difference"] <= FP32_BAR)
    elif "pytorch_rms" in row:
        bar = max(LEAST_RMS, OWN_SHARE * row["pytorch_rms"])
        part.bar(label, f"<= {bar:.1e} rms, {OWN_SHARE} x PyTorch's own",
                 f"{row['rms']:.2e}; best class equal for {row['top1']:.4f} of {row['rows']} (PyTorch's own: "
                 f"{row['pytorch_top1']:.4f})", row["rms"] <= bar)
    else:
        part.bar(label, f"best class equal for >= {TOP1_BAR:.0%}", f"{row['top1']:.4f} of {row['rows']}",
                 row["top1"] >= TOP1_BAR)


def families(part):
    """Those that an earlier run of this part has compared are not compared again."""
    precisions = [word for word in part.bundle.precisions() if word in ("fp32", "tf32", "fp16", "bf16")]
    if not part.families():
        part.note("without PyTorch here the digit classifier is all there is, and plan 1 compares it")
    rows, known = [], {(row["family"], row["precision"]): row for row in part.before.get("rows", [])}
    with scratch_folder() as scratch:
        for name in part.families():
            missing = [word for word in precisions if (name, word) not in known]
            for word in precisions:
                if word not in missing:
                    rows.append(known[name, word])
                    judge(part, rows[-1])
            folder = part.network(name) if missing else None
            if missing and folder is None:
                part.bar(name, "checked", "it was not exported", None)
            if folder is None:
                continue
            try:
                images = networks.pictures(512 if part.bundle.on_gpu else 5, folder, part.seed)
                reference = Reference(part, name, folder, images, scratch)
                cpu_agrees(part, name, folder, images, reference, scratch)
            except Exception as error:  # noqa: BLE001: PyTorch raises anything; the other networks go on
                part.bar(name, "a reference", said(error), False)
                continue
            for precision in missing:
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
        seconds = min(CHECKER_S, (part.left() - MARGIN) / (len(SANITIZED) - number))
        sanitize(part, tool, check, precision, number, seconds)


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
