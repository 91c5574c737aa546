#!/usr/bin/env python3
"""Exports Ultralytics detectors with seeded weights for peers.py: FOLDER/NAME/model.onnx, any batch of 640 x 640 pictures.
Needs ultralytics and onnx.

    make_yolo.py FOLDER yolo26n yolo26s yolo26m
    ./dev bench peers --families FOLDER --peers onnxruntime,openvino --batch 1,8 yolo26n yolo26s yolo26m
"""

import json
import os
import sys

import onnx
import torch
import ultralytics

SIDE = 640

for name in sys.argv[2:]:
    torch.manual_seed(1)
    network = ultralytics.YOLO(name + ".yaml")
    with torch.no_grad():  # noise gives the normalisations statistics that keep activations in their range
        network.model.train()(torch.rand(2, 3, SIDE, SIDE))
    network.model.eval()
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder, exist_ok=True)
    written = network.export(format="onnx", imgsz=SIDE, dynamic=True, simplify=False, opset=17)
    model = onnx.load(written)
    for side in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        side.dim_value = SIDE
    onnx.save(model, os.path.join(folder, "model.onnx"))
    os.remove(written)
    size = {"height": SIDE, "width": SIDE}
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
        json.dump({"size": size, "crop_size": size}, file)
