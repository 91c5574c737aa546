#!/usr/bin/env python3
"""Writes tests/data/lists: a detector that ends as RT-DETR's and D-FINE's own exports do, with a second input
for the size of the photo, and ONNX Runtime's boxes for photos of one shade. Needs torch, onnx, onnxruntime:
tests/data/make_lists.py"""

import json
import os

import numpy
import onnx
import onnxruntime
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lists")
QUERIES, CLASSES, TOP, SIDE = 12, 5, 10, 32
PHOTOS = [(20, 128, 96), (90, 60, 80), (200, 64, 64)]  # shade, width, height


class Detector(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(33)
        self.features = torch.nn.Conv2d(3, 8, 8, stride=8)
        self.logits = torch.nn.Linear(8 * 16, QUERIES * CLASSES)
        self.boxes = torch.nn.Linear(8 * 16, QUERIES * 4)

    def forward(self, images, orig_target_sizes):
        x = torch.tanh(self.features(images)).flatten(1)
        scores = torch.sigmoid(4 * self.logits(x).view(-1, QUERIES, CLASSES))
        cx, cy, w, h = torch.sigmoid(3 * self.boxes(x).view(-1, QUERIES, 4)).unbind(-1)
        boxes = torch.stack([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2], -1)
        boxes = boxes * orig_target_sizes.repeat(1, 2).unsqueeze(1)
        scores, best = torch.topk(scores.flatten(1), TOP, dim=-1)
        labels = best % CLASSES
        boxes = boxes.gather(1, (best // CLASSES).unsqueeze(-1).repeat(1, 1, 4))
        return labels, boxes, scores


os.makedirs(HERE, exist_ok=True)
path = os.path.join(HERE, "model.onnx")
names = ["images", "orig_target_sizes"], ["labels", "boxes", "scores"]
torch.onnx.export(Detector().eval(), (torch.rand(2, 3, SIDE, SIDE), torch.tensor([[64, 64], [64, 64]])), path,
                  dynamo=False, input_names=names[0], output_names=names[1],
                  dynamic_axes={name: {0: "N"} for name in names[0] + names[1]})
session = onnxruntime.InferenceSession(path)
answers = []
for shade, width, height in PHOTOS:
    image = numpy.full((1, 3, SIDE, SIDE), shade / 255, numpy.float32)
    labels, boxes, scores = session.run(None, {"images": image,
                                               "orig_target_sizes": numpy.array([[width, height]])})
    answers.append({"shade": shade, "width": width, "height": height, "labels": labels[0].tolist(),
                    "boxes": numpy.round(boxes[0], 4).tolist(), "scores": numpy.round(scores[0], 6).tolist()})
with open(os.path.join(HERE, "answers.json"), "w") as file:
    json.dump(answers, file, indent=1)
    file.write("\n")
