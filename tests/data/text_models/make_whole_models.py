#!/usr/bin/env python3
"""Makes whole.onnx in clip/ and siglip/: photos and texts in one file, with the inputs and outputs that optimum exports,
and the weights of the halves beside it (make_text_models.py), so that expected.json holds for it as well.

    make_whole_models.py [FOLDER]      needs torch, transformers, Pillow
"""

import os
import sys

import torch
import transformers

import make_text_models


class Whole(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values, attention_mask=None):
        made = self.model(input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
        return made.logits_per_image, made.logits_per_text, made.text_embeds, made.image_embeds


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else make_text_models.HERE
    for name in ("clip", "siglip"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(make_text_models.HERE, name))
        model = make_text_models.seeded_model(name, tokenizer)[0]
        ids = torch.ones(2, tokenizer.model_max_length, dtype=torch.int64)
        example = (ids, torch.zeros(3, 3, 32, 32), torch.ones_like(ids))[:3 if name == "clip" else 2]  # SigLIP reads padding, too
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d) and module.padding == "valid":
                module.padding = (0, 0)
                module._reversed_padding_repeated_twice = [0, 0, 0, 0]
        texts, photos = {0: "text_batch_size", 1: "sequence_length"}, {0: "image_batch_size"}
        torch.onnx.export(
            Whole(model).eval(), example, os.path.join(out, name, "whole.onnx"), opset_version=14,
            input_names=["input_ids", "pixel_values", "attention_mask"][:len(example)],
            output_names=["logits_per_image", "logits_per_text", "text_embeds", "image_embeds"],
            dynamic_axes={"input_ids": texts, "attention_mask": texts, "pixel_values": photos,
                          "logits_per_image": {0: "image_batch_size", 1: "text_batch_size"},
                          "logits_per_text": {0: "text_batch_size", 1: "image_batch_size"},
                          "text_embeds": {0: "text_batch_size"}, "image_embeds": {0: "image_batch_size"}})


if __name__ == "__main__":
    main()
