#!/usr/bin/env python3
"""Writes tests/data/batches/*.onnx: what PyTorch's exporters make of patterns in which each image reads or
writes itself by number or place, reduced from detectors and segmenters. Needs torch >= 2.9 with onnxscript:
tests/data/make_batches.py"""

import os

import onnx
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
for module in InPlace, OwnRows, OddPool, MaskedRows, TimeMajor:
    export(module().eval(), module.__name__.lower(), True)
export(InPlace().eval(), "inplace_traced", False)
