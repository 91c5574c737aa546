"""The networks that are compared: exported where the GPU is, from PyTorch's own modules, with seeded
weights that behave like trained ones (models/export/random_weights.py).

The module and the file of a family come from one object, so that PyTorch and lensd compute the same thing.
Without torch and torchvision there is one network, the digit classifier of the repository.
"""

import functools
import importlib
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(1, os.path.realpath(os.path.join(HERE, "..", "..", "models", "export")))

# For correctness, the most telling first; a run that has little time ends somewhere in this list.
FAMILIES = ["resnet50", "vit_b_16", "convnext_tiny", "mobilenet_v3_large", "efficientnet_b0", "densenet121", "resnet18",
             "squeezenet1_1", "swin_t", "regnet_y_400mf", "shufflenet_v2_x1_0", "googlenet",
            "inception_v3", "mnasnet1_0", "mobilenet_v2", "efficientnet_v2_s"]
FIRST = 4  # of them in the first plan
# For speed: (family, batch sizes).
SPEED = [("resnet50", [1, 8, 64, 256]), ("vit_b_16", [1, 8, 64, 256]), ("convnext_tiny", [1, 64]),
         ("efficientnet_b0", [1, 64]), ("densenet121", [1, 64])]
# Those that torch.compile is measured on, too: it takes minutes for each.
COMPILED = [("resnet50", 64), ("vit_b_16", 64)]
OPSET = 17
SEED = 0


def torch_or_reason():
    """(torch, None), or (None, why there is no PyTorch to compare with)."""
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torchvision")
        importlib.import_module("onnx")
    except Exception as error:  # noqa: BLE001: a broken installation raises anything
        return None, f"PyTorch cannot be used here: {error}"
    return torch, None


def is_there(folder):
    return all(os.path.exists(os.path.join(folder, name))
               for name in ("model.onnx", "preprocessor_config.json", "weights.pt"))


def export(name, folder):
    """One family, in a process of its own; returns seconds."""
    began = time.monotonic()
    import torch
    import export_torchvision
    torch.set_num_threads(4)
    partial = folder + ".part"
    model, _, _ = export_torchvision.export(name, partial, "none", OPSET, SEED)
    torch.save(model.state_dict(), os.path.join(partial, "weights.pt"))
    os.rename(partial, folder)
    return time.monotonic() - began


def export_all(names, parent, done):
    """Exports what is missing, several at a time; done(name, seconds or None, reason) after each."""
    os.makedirs(parent, exist_ok=True)
    missing = [name for name in names if not is_there(os.path.join(parent, name))]
    workers = max(1, min(len(missing), len(os.sched_getaffinity(0)) // 4 - 1))  # four are the other parts'
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(export, name, os.path.join(parent, name)): name for name in missing}
        for job in as_completed(jobs):
            try:
                done(jobs[job], job.result(), None)
            except (Exception, SystemExit) as error:  # noqa: BLE001: one family must not stop the others
                done(jobs[job], None, f"{type(error).__name__}: {error}")


def export_decode_only(folder, like):
    """A network that does next to nothing, with the preparation of photos of the family `like`: what
    serving it costs is reading, decoding and resizing."""
    import shutil
    import torch
    import model_folder
    os.makedirs(folder, exist_ok=True)
    network = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 1000))
    height, width = image_size(like)
    model_folder.export_onnx(network.eval(), torch.zeros(2, 3, height, width),
                             os.path.join(folder, "model.onnx"), OPSET)
    for name in ("preprocessor_config.json", "labels.txt"):
        shutil.copy(os.path.join(like, name), folder)


def configuration(folder):
    with open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8") as file:
        return json.load(file)


def image_size(folder):
    config = configuration(folder)
    size = config.get("crop_size") if config.get("do_center_crop") else config["size"]
    return size["height"], size["width"]


def module(name, folder, device):
    """PyTorch's network with the weights of the file, in eval mode, float32."""
    import torch
    import torchvision.models
    import export_torchvision
    network = export_torchvision.build(torchvision.models, name, None)
    network.load_state_dict(torch.load(os.path.join(folder, "weights.pt"), map_location="cpu"))
    return network.to(device).eval()


@functools.lru_cache(maxsize=4)
def raw_pictures(count, height, width, seed):
    """count images [N, H, W, 3] uint8 with gradients, edges, texture and noise; None without torch, beside
    which their maker lives."""
    import numpy
    try:
        from random_weights import structured_images
    except ImportError:
        return None
    chunks = [(min(16, count - first), height, width, seed * 1000 + first) for first in range(0, count, 16)]
    workers = min(len(chunks), len(os.sched_getaffinity(0)))
    if workers > 2:
        with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
            return numpy.concatenate(list(pool.map(structured_images, *zip(*chunks))))
    return numpy.concatenate([structured_images(*chunk) for chunk in chunks])


def pictures(count, folder, seed):
    """count images as the network takes them, [N, H, W, C] float32; noise where there is no torch."""
    import numpy
    height, width = image_size(folder)
    config = configuration(folder)
    raw = raw_pictures(count, height, width, seed)
    if raw is None:
        return numpy.random.default_rng(seed).normal(0, 1, (count, height, width, 3)).astype(numpy.float32)
    return (raw.astype(numpy.float32) / 255 - numpy.float32(config["image_mean"])) \
        / numpy.float32(config["image_std"])
