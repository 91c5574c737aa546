"""What every recipe in this folder shares: writing a model folder that lensd serves as it is.

    OUTDIR/model.onnx                  shapes, names and opset are read from the file
    OUTDIR/preprocessor_config.json    Hugging Face's words for resize, crop, rescale, normalise
    OUTDIR/labels.txt                  one class a line, line 1 is class 0

Nothing here needs more than the standard library until a function says so.
"""

import importlib
import inspect
import json
import os
import sys

# Pillow's numbers, which is what Hugging Face writes as "resample".
RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}


def stop(message):
    """Ends the recipe with one sentence on standard error and exit status 2."""
    print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    raise SystemExit(2)


def need(module, install):
    """Imports `module`, or stops with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as reason:
        stop(f"this recipe needs {module}, and importing it failed ({reason}); "
             f"install it with: {install}")


def because(reason):
    """An exception in one line: libraries raise whatever their network or parser raised."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return f"{type(reason).__name__}: {lines[0] if lines else 'no reason given'}"


def write_labels(folder, labels):
    """labels.txt: a label may hold commas and spaces, but a line break would shift every class."""
    with open(os.path.join(folder, "labels.txt"), "w", encoding="utf-8") as file:
        for label in labels:
            file.write(" ".join(str(label).split()) + "\n")


def write_preprocessor(folder, *, mean, std, resample, shortest_edge=None, exact=None, crop=None,
                       rescale=1.0 / 255.0):
    """preprocessor_config.json. Sizes are pixels; `exact` and `crop` are (height, width).

    shortest_edge: resize the short side to this, aspect kept. exact: resize to this, aspect not
    kept. Neither: no resize. crop: centre crop after it, or None. mean, std: three numbers each,
    RGB, of pixels that were multiplied by `rescale` first.
    """
    config = {"do_convert_rgb": True, "do_resize": bool(shortest_edge or exact)}
    if shortest_edge:
        config["size"] = {"shortest_edge": int(shortest_edge)}
    elif exact:
        config["size"] = {"height": int(exact[0]), "width": int(exact[1])}
    config["resample"] = RESAMPLE[resample]
    config["do_center_crop"] = crop is not None
    if crop is not None:
        config["crop_size"] = {"height": int(crop[0]), "width": int(crop[1])}
        config["crop_rounding"] = "even"  # torchvision's, which timm and Ultralytics use as well
    config.update({"do_rescale": True, "rescale_factor": rescale, "do_normalize": True,
                   "image_mean": [float(v) for v in mean], "image_std": [float(v) for v in std]})
    write_json(folder, "preprocessor_config.json", config)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def export_onnx(model, example, path, opset, input_name="input", output_name="logits"):
    """Writes `model` (a torch module, eval mode) as ONNX with a free batch axis.

    example: [N, C, H, W] float32. opset 0: 18, or 17 with a torch that has no more. The TorchScript
    exporter is asked first: it reaches down to opset 7 and is the one these recipes are tested with.
    What it cannot trace, torch.export may.
    """
    torch = importlib.import_module("torch")
    axes = {input_name: {0: "batch"}, output_name: {0: "batch"}}
    has_two = "dynamo" in inspect.signature(torch.onnx.export).parameters
    options = {"opset_version": opset or (18 if has_two else 17), "input_names": [input_name],
               "output_names": [output_name]}
    # MultiheadAttention's fused eval path has no ONNX form; torch leaves it when gradients are on.
    with torch.enable_grad():
        try:
            torch.onnx.export(model, example, path, dynamic_axes=axes, do_constant_folding=True,
                              **options, **({"dynamo": False} if has_two else {}))
        except Exception as reason:
            if not has_two:
                stop(f"torch could not export the model: {because(reason)}")
            try:
                torch.onnx.export(model, (example,), path, dynamo=True, external_data=False,
                                  dynamic_shapes=({0: torch.export.Dim("batch")},), **options)
            except Exception as again:
                stop(f"torch could not export the model: {because(reason)}; and through "
                     f"torch.export: {because(again)}")


def report(folder):
    """Says on standard output what was written and how to serve it."""
    for name in sorted(os.listdir(folder)):
        print(f"{os.path.join(folder, name)}  {os.path.getsize(os.path.join(folder, name)):,} bytes")
    print(f"serve it: lensd serve {folder}")
