#!/usr/bin/env python3
"""Writes tests/data/batches/*.onnx: what PyTorch's exporters make of patterns in which each image reads or
writes itself by number or place, reduced from detectors and segmenters, and answers.json: what ONNX Runtime
answers to three images. Needs torch >= 2.9 with onnxscript, and onnxruntime: tests/data/make_batches.py"""

import json
import os

import numpy
import onnx
import onnxruntime
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "batches")


class InPlace(torch.nn.Module):
    """As Deformable DETR's boxes: delta[..., :2] += reference."""

    def forward(self, image):
        t = image.flatten(2).transpose(1, 2) * 2
        t[..., :2] += image.mean((2, 3))[:, None, :2]
        return t.flatten(1)


class OwnRows(torch.nn.Module):
    """As queries are selected: features[torch.arange(batch)[:, None], best]."""

    def forward(self, image):
        f = image.flatten(2).transpose(1, 2)
        best = f.sum(-1).topk(5, dim=1).indices
        return f[torch.arange(f.shape[0])[:, None], best].flatten(1)


class NextRows(torch.nn.Module):
    """The rows after the best ones. A Mod makes the row numbers, and lensd does not prove that they are below 64."""

    def forward(self, image):
        f = image.flatten(2).transpose(1, 2)
        best = (f.sum(-1).topk(5, dim=1).indices + 1) % 64
        return f[torch.arange(f.shape[0])[:, None], best].flatten(1)


class Bins(torch.nn.Module):
    """As D-FINE's distances: the mean of the bins, weighted by their probabilities. One vector of bins for all images."""

    def forward(self, image):
        return image.flatten(2).reshape(-1, 64).softmax(1).matmul(torch.linspace(0, 1, 64)).reshape(-1, 3)


class Queries(torch.nn.Module):
    """As Mask2Former's first masks: the product of each image's pixels with queries that are the same for all images and repeated."""

    def __init__(self):
        super().__init__()
        self.queries = torch.nn.Parameter(torch.linspace(-1, 1, 15).reshape(5, 3))

    def forward(self, image):
        queries = self.queries.unsqueeze(1).repeat(1, image.shape[0], 1).transpose(0, 1)
        return torch.einsum("bqc, bchw -> bqhw", queries.tanh(), image).flatten(1)


class OddPool(torch.nn.Module):
    """8 x 8 to 3 x 3: windows that overlap."""

    def forward(self, image):
        return torch.nn.functional.adaptive_avg_pool2d(image, (3, 3)).flatten(1)


class MaskedRows(torch.nn.Module):
    """As Mask2Former's attention: mask[torch.where(mask.sum(-1) == mask.shape[-1])] = False."""

    def forward(self, image):
        mask = image.flatten(2) > 0.5
        mask[torch.where(mask.sum(-1) > 32)] = False
        return (image.flatten(2) * mask).flatten(1)


class Filled(torch.nn.Module):
    """A mask of three dimensions sets numbers: x[x.nonzero(as_tuple=True)] = -1, without masked_fill."""

    def forward(self, image):
        x = image.flatten(2) * 1
        x[torch.where(x > 0.5)] = -1
        return x.flatten(1)


class TimeMajor(torch.nn.Module):
    """[steps, batch, classes], as CTC's loss wants it: the images of the output are on axis 1."""

    def forward(self, image):
        return image.mean(2).permute(2, 0, 1).softmax(-1)


def export(module, name, dynamo):
    path = os.path.join(HERE, name + ".onnx")
    image = torch.rand(2, 3, 8, 8)
    names = {"input_names": ["image"], "output_names": ["out"]}
    if dynamo:
        batch = torch.export.Dim("N", min=1, max=64)
        torch.onnx.export(module, (image,), path, dynamo=True, external_data=False, verbose=False,
                          dynamic_shapes=({0: batch},), **names)
    else:
        torch.onnx.export(module, (image,), path, dynamo=False,
                          dynamic_axes={"image": {0: "N"}, "out": {0: "N"}}, **names)
    model = onnx.load(path)
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    for node in model.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    onnx.save(model, path)


os.makedirs(HERE, exist_ok=True)
for module in InPlace, OwnRows, OddPool, MaskedRows, Filled, TimeMajor:
    export(module().eval(), module.__name__.lower(), True)
for module in InPlace, OwnRows, NextRows, Bins, Queries, MaskedRows, Filled:
    export(module().eval(), module.__name__.lower() + "_traced", False)
images = (numpy.arange(3 * 3 * 8 * 8) * 37 % 101 / 101).astype("f").reshape(3, 3, 8, 8)
answers = {}
for name in sorted(os.listdir(HERE)):
    if name.endswith(".onnx"):
        session = onnxruntime.InferenceSession(os.path.join(HERE, name))
        out = session.run(None, {"image": images})[0]
        out = out.swapaxes(0, 1) if "timemajor" in name else out
        answers[name[:-5]] = [[float(f"{v:.6g}") for v in row.ravel()] for row in out]
with open(os.path.join(HERE, "answers.json"), "w", encoding="ascii") as file:
    json.dump(answers, file)
