#!/usr/bin/env python3
"""Writes the half for texts of CLIP ViT-B/32 with seeded weights, for peers.py: FOLDER/clip_text/model.onnx, input_ids
[batch, 77] in, text_embeds [batch, 512] out. Needs transformers.

    make_text_tower.py FOLDER
    ./dev bench peers --families FOLDER --peers onnxruntime,openvino --batch 1,32 clip_text
"""

import os
import sys

import torch
import transformers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "export"))
from model_folder import export_onnx  # noqa: E402


class Textual(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(attn_implementation="eager")).eval()

    def forward(self, input_ids):
        return self.model(input_ids=input_ids).text_embeds


folder = os.path.join(sys.argv[1], "clip_text")
os.makedirs(folder, exist_ok=True)
export_onnx(Textual().eval(), torch.zeros(2, 77, dtype=torch.int64), os.path.join(folder, "model.onnx"), 0, "input_ids", "text_embeds")
