"""Writes docs/models.md from the results of model_table.py."""

import importlib.metadata
import os
import re
import sys

import model_table as table

sys.path.insert(0, os.path.join(table.HERE, "..", "bench"))

PACKAGES = ["torch", "torchvision", "timm", "transformers", "ultralytics", "onnx", "onnxruntime",
            "onnxscript", "onnxconverter-common"]

HEAD = """# Models that were checked

[Recipes](recipes.md) say where to get a model of each kind, what belongs in its folder, and what it answers.

Each row is a model as its exporter writes it. lensd runs it as a compiled session, and ONNX Runtime runs it on the same structured
images. The tables are written by

    python tests/conformance/model_table.py CACHE --run BUILD/tests/conformance/lensd_run \\
        --write docs/models.md

in a virtual environment with {packages}.

- Weights are random with a fixed seed. BatchNormalization's statistics are measured and the head is scaled, so that logits have the
  size of a trained model's. Models exported with a symbolic batch run {images} images as one batch.
- **agrees** means: float32 is within 1e-4 (the maximum difference of an output over its maximum magnitude; the worst output is shown) and
  the best class of every image is equal; float16 is within 1e-2, bfloat16 within 6e-2. int8 is within 5e-2 or, if that is more, within twice
  the change of ONNX Runtime's own answer when ten input values change by 1/255 of their range: a value at the border between two
  quantization steps can flip with the order of a sum, and a deep network with random weights amplifies that.
- int8 answers are compared with ONNX Runtime without its fusions, answers of bfloat16 files with PyTorch, answers of float16 modules (as
  Optimum's `--dtype fp16` exports them) with PyTorch in float32 with the rounded weights. If the graph itself ranks detections (RT-DETR),
  each one is compared with the nearest of ONNX Runtime's, within 1e-4 or, if that is more, twice the distance that ONNX Runtime's detections move when the
  last bit of the image changes. If ONNX Runtime with and without its fusions disagrees, PyTorch decides, and the row is marked (¹).
- **Opsets**: 7 to 25 are supported; 26 to 28 run if their operators have not changed; later ones are refused. Operators of opset 1 to 6 keep the
  meaning that they had then (`axis` and `broadcast`, `is_test`, `spatial`, slopes along the channels). The
  experimental operators ImageScaler, Crop, Affine and ThresholdedRelu of opset 1 to 9 are supported, too. Features that lensd lacks (BatchNormalization
  without `is_test = 1`, Split-1 with its lengths as an operand …) are refused by name;
  `onnx.version_converter` converts the file to a newer opset.
- **Attention** (with masks, grouped heads, caches, windows), RMSNormalization and RotaryEmbedding, which exporters write for
  transformers from opset 23 on, run as fast as the operators they consist of. A `softmax_precision` below float32 is ignored:
  scores are float32 or wider.
- **LSTM, GRU and RNN** run in every direction and layout, with `sequence_lens`, initial states, peepholes, `clip` and all of ONNX's
  activations. ThresholdedRelu without an alpha uses ONNX's default (1); ONNX Runtime uses another. The product of all steps with the
  input weights is one MatMul, also on a GPU. The recurrence runs with packed weights on a CPU, except with the activations Affine, ThresholdedRelu,
  ScaledTanh, Softsign and Softplus, for which the reference kernel computes it. With a GPU the reference kernel computes the recurrence on the host.
- **DynamicQuantizeLSTM** of com.microsoft runs as the float32 LSTM of its weights: input and states are not quantized.
- **Constants of 4 and 2 bits and 8-bit floats** (int4, uint4, int2, uint2, float4e2m1, the four float8 types) run where
  DequantizeLinear (per tensor, by axis, by block) or Cast reads them. They are unpacked to 8-bit integers or float32 when
  the file is read, so they save space on disk, not in memory. Inputs, outputs and tensors that a run computes cannot have these types;
  such a file is refused, with the type's name.
- **bf16** compares lensd's `--precision bf16` with the float32 answer. The column gives the number of images whose best class is equal or, for models that do not
  classify, the maximum difference. Random weights have no margin between classes; trained weights do. For models that do not classify, a
  difference of 1 or more usually means another order of nearly equal boxes ("—": another number of boxes).
- **ms** is for one image and {threads}, the median of the warm-up runs. {busy}

Measured on:

{machine}

## From Hugging Face's hub

    lensd pull hf:ORG/REPO                        # model.onnx, onnx/model.onnx or the only .onnx file
    lensd pull hf:ORG/REPO:onnx/model_int8.onnx   # this file
    lensd pull hf:ORG/REPO@REVISION --models models -o models/name

This creates the folder `REPO` in `--models` (default: the current folder), with the `.onnx` file, its external data, and the `.json` and `.txt`
files at the top of the repository, which hold labels, preprocessing and tokenizers. A repository without an ONNX file must be exported
first. All files are of one commit; lensd checks each against the hub's hash. It downloads into `.REPO.FILE.COMMIT.pull`; a repeated pull continues
where the last one stopped, and removes what interrupted pulls of other commits left behind. The folder gets its name when it is complete, so a server
with `--watch` never sees a part of it. lensd does not
replace an existing folder.

`HF_ENDPOINT` names another hub or a mirror. lensd sends `HF_TOKEN` to its address only, never to the host of a redirect and never
without TLS. With `HF_HUB_OFFLINE=1` it fetches nothing. `SSL_CERT_FILE` names certificates to trust. lensd uses proxies (`https_proxy`). It needs
libcurl (Debian 12: `libcurl3-gnutls`, Debian 13: `libcurl3t64-gnutls`), which the container images and the archive of `./dev tarball` do
not contain.
"""


def versions():
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found)


def number(value):
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def small(value):
    return "0" if value == 0 else "—" if value == float("inf") else f"{value:.1e}"


def sentence(text, most=160):
    """Of an error: without the folders of the machine it came from, and without colours."""
    text = re.sub(r"\x1b?\[\d+m", "", " ".join(text.split()))
    return re.sub(r"\S*/(?=\S+\.onnx)", "", text)[:most]


def agreement(report):
    """"3/3" of a classifier, else the greatest difference."""
    if not report or "error" in report:
        return ""
    if "top1" in report:
        return "{}/{}".format(*report["top1"])
    return small(report["error_max"])


def how(entry):
    exporter = {"script": "TorchScript"}.get(entry.exporter, entry.exporter.replace(
        "dynamo", "torch.export"))
    return f"{exporter} {entry.opset}" + ("" if entry.dynamic else ", fixed batch")


def row(entry, result):
    """The cells of one line."""
    facts, report = result["facts"], result["fp32"]
    shape = "×".join(str(n) for n in facts["shape"][-2:])
    if "error" in report:
        return [entry.name, shape, how(entry), "no: " + sentence(report["error"]), "", "", "", "", "", ""]
    bf16, int8 = result.get("bf16", {}), result.get("int8", {})
    verdict = {"ok": "yes", "FAIL": "**no**"}[table.verdict(entry, result)]
    if "without" in facts["against"]:
        verdict += " ¹"
    return [entry.name, shape, how(entry), verdict, small(report["error_max"]),
            number(report.get("one_ms")), number(bf16.get("one_ms")), agreement(bf16),
            number(int8.get("one_ms")), small(int8["error_max"]) if "error_max" in int8 else ""]


def lines_of(header, rows):
    yield "| " + " | ".join(header) + " |"
    yield "|" + "|".join("---" if i < 3 else "--:" for i in range(len(header))) + "|"
    for cells in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def family_section(title, entries, results):
    header = ["model", "image", "exported by", "agrees", "greatest error", "fp32 ms", "bf16 ms",
              "bf16 agrees", "int8 ms", "int8 error"]
    rows = [row(entry, results[table.key_of(entry)]) for entry in entries
            if "facts" in results.get(table.key_of(entry), {})]
    if not rows:
        return []
    return ["", f"## {title}", ""] + list(lines_of(header, rows))


def variant_section(entries, results):
    header = ["model", "exported by", "converted to", "agrees", "greatest error", "ms"]
    rows = []
    for entry in entries:
        result = results.get(table.key_of(entry), {})
        if "facts" not in result:
            continue
        report = result["fp32"]
        verdict = {"ok": "yes", "FAIL": "**no**"}[table.verdict(entry, result)]
        rows.append([entry.name, how(entry), entry.convert or "", verdict,
                     small(report["error_max"]) if "error_max" in report else sentence(report["error"]),
                     number(report.get("one_ms"))])
    return ["", "## Exporters, opsets, precisions, quantizers", ""] + list(lines_of(header, rows)) \
        if rows else []


def failed_section(entries, results):
    rows = [(entry, results[table.key_of(entry)]["not_exported"]) for entry in entries
            if "not_exported" in results.get(table.key_of(entry), {})]
    if not rows:
        return []
    lines = ["", "## Not exported", "",
             "The exporter, the converter or ONNX Runtime refused these; lensd never saw them.", ""]
    return lines + list(lines_of(["model", "exported by", "reason"], [
        [entry.name, how(entry) + (f", {entry.convert}" if entry.convert else ""),
         sentence(reason)] for entry, reason in rows]))


def write(path, results, selected, threads):
    import common
    groups = {}
    for group, entry in selected:
        groups.setdefault(group, []).append(entry)
    classifiers = groups.get("classification", [])
    busy = os.getloadavg()[1] > 1.5
    lines = [HEAD.format(
        packages=versions(), images=table.catalogue.IMAGES,
        threads="one thread" if threads == 1 else f"{threads} threads",
        busy="The machine was shared and busy while this was measured: read the milliseconds as an "
             "upper bound, and compare only rows far apart." if busy else "",
        machine="\n".join(f"- {line}" for line in common.machine())).rstrip()]
    titles = {"torchvision": "Classification: torchvision", "timm": "Classification: timm",
              "transformers": "Classification and more: Hugging Face transformers"}
    for source, title in titles.items():
        lines += family_section(title, [e for e in classifiers if e.source == source], results)
    dense = groups.get("dense", [])
    lines += family_section("Segmentation and detection", dense, results)
    lines += variant_section(groups.get("variants", []), results)
    lines += failed_section(sum(groups.values(), []), results)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
