"""Is it right? Operators, network families, and NVIDIA's own checkers."""

import copy
import json
import os
import re
import shutil
import subprocess

import networks
from programs import Broken, Forward, scratch_folder

FP32_BAR = 1e-4
TOP1_BAR = 0.99
BATCHES = [1, 3, 8, 64]


def json_line(text):
    """The object on the last line of what a program printed."""
    return json.loads(text.strip().splitlines()[-1])


def operators(part):
    """Each operator by itself, then random graphs, against the reference kernels in each precision."""
    bundle = part.bundle
    precisions = bundle.precisions()
    floats = [word for word in precisions if word != "int8"]  # which only quantised graphs are computed in
    count = 3 if not bundle.on_gpu else 60 if part.quick else 400
    small = [] if bundle.on_gpu else ["--small"]
    alone = ["--count", 9] if not bundle.on_gpu else [] if part.quick else ["--count", 270]
    for word, key, share, these, words in (
            ("operators", "operators", 0.3, floats, ["--operators", *alone]),
            ("random graphs", "graphs", 0.6, precisions, ["--first", part.seed % 1000000 + 1, "--count", count])):
        for precision in these:
            graphs(part, f"{word}, {precision}", f"{key}_{precision}",
                   ["--precision", precision, *words, "--seconds",
                    max(2, int(part.left() * share / len(these))), *small])


def graphs(part, what, key, words):
    bundle = part.bundle
    try:
        text = bundle.run("lensd_graphs", "--device", bundle.device, *words, timeout=part.left(), check=False)
        got = json_line(text)
    except (Broken, ValueError, IndexError) as error:
        part.bar(what, "all agree", str(error), False)
        return
    part.put(key, dict(got, failures=[line for line in text.splitlines() if line.startswith("FAIL")][:20]))
    part.bar(what, f"all within {got['tolerance']:g}",
             f"{got['passed']} of {got['passed'] + got['failed']}, worst {got['worst']:.2g}",
             got["failed"] == 0 and got["passed"] > 0)


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
    if folders and not os.path.exists(bundle.path("lensd_conformance")):
        part.note("this bundle has no lensd_conformance: ./dev bundle --cases FOLDER takes it along")
        return
    if not folders:
        part.note("ONNX's conformance cases are not in this bundle: --cases FOLDER names them, and ./dev bundle "
                  "--cases FOLDER takes them along")
    for folder in folders:
        name = os.path.basename(os.path.normpath(folder))
        words = ["lensd_conformance", folder, "--session", "--cuda", "--baseline",
                 bundle.path("tests", "conformance", "baseline.txt")]
        if not bundle.on_gpu:
            words += ["--op", "Softmax"]
        try:
            text = bundle.run(*words, timeout=part.left(), check=False)
            counts = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) unsupported$", text, re.M)[-1]
        except (Broken, IndexError) as error:
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


def way_of(name, precision):
    """In bf16 each family takes another way of its layers than the quickest: those are compared, too, that no
    network of today happens to choose."""
    return 1 + networks.FAMILIES.index(name) if precision == "bf16" and name in networks.FAMILIES else None


def check_precision(part, name, folder, precision, images, reference, scratch):
    """One session on the device: all images in its largest batches, then the other sizes on fresh rows.
    Memory is filled with NaN before each run."""
    import numpy
    sizes = BATCHES if part.bundle.on_gpu else [1, 3]
    largest = sizes[-1]
    way = way_of(name, precision)
    with Forward(part.bundle, folder, precision, sizes, poison=True, patience=part.left(), way=way) as forward:
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
            "way": way, "difference": difference(got, expected), "top1": agreement(got, expected),
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
            except Broken as error:
                part.bar(name, "a reference", str(error), False)
                continue
            for precision in precisions:
                try:
                    rows.append(check_precision(part, name, folder, precision, images, reference, scratch))
                    judge(part, rows[-1])
                except Broken as error:
                    part.bar(f"{name} {precision}", "runs", str(error), False)
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


def sanitizer(part):
    """NVIDIA's compute-sanitizer over small runs; where it is missing or refuses the device, that is said."""
    tool = shutil.which("compute-sanitizer") or next(
        (path for path in ("/usr/local/cuda/bin/compute-sanitizer",
                           "/usr/local/cuda/compute-sanitizer/compute-sanitizer") if os.path.exists(path)), None)
    if tool is None or not part.bundle.on_gpu:
        part.note("compute-sanitizer checks GPUs only" if tool else "compute-sanitizer is not installed here")
        return
    for number, check in enumerate(("memcheck", "racecheck", "initcheck")):
        words = [tool, "--tool", check, "--target-processes", "all", "--error-exitcode", "9",
                 part.bundle.path("lensd_graphs"), "--device", part.bundle.device, "--count", "9",
                 "--seconds", str(int(part.left() / (3 - number) / 2) + 1)]
        words += ["--no-poison"] if check == "initcheck" else []
        try:
            ended = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=part.bundle.environment,
                                   timeout=max(5, part.left() / (3 - number)))
        except subprocess.TimeoutExpired:
            part.bar(f"compute-sanitizer {check}", "0 errors", "did not end in its time", None)
            continue
        text = ended.stdout
        if "Device not supported" in text or "error 999" in text:
            part.note(f"compute-sanitizer {check}: this machine does not allow it: "
                      + text.strip().splitlines()[0][:200])
            continue
        found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
        part.put(check, {"exit": ended.returncode, "summary": found.group(0) if found else None,
                         "tail": text[-2000:] if ended.returncode else ""})
        part.bar(f"compute-sanitizer {check}", "0 errors",
                 found.group(0) if found else f"exit {ended.returncode}: {text.strip()[-200:]}",
                 ended.returncode == 0)
