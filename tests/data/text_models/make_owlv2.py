#!/usr/bin/env python3
"""Makes owlv2/, a tiny OWLv2 with seeded weights, squares.json: the boxes that transformers' own processor finds in photos
that it pads to a square, blurs and resizes, and squares_wide.png … these photos.

    make_owlv2.py      needs torch, torchvision, transformers 5 (tried: 5.24), tokenizers, Pillow

The tokenizer is that of clip/. The heads' weights are small: lensd rounds a resized photo to bytes, the processor does not, and
with weights as they are fresh that alone moves boxes by pixels, as does the processor's other backend."""

import os

import numpy
import torch
import transformers
from PIL import Image

import make_word_models as words

HERE = words.HERE
SIDE = words.SIDE


def photos():
    y, x = numpy.mgrid[0:100, 0:150]
    wide = numpy.stack([x * 4 % 256, y * 5 % 256, (x * x + y * 3) % 256], -1).astype(numpy.uint8)
    return {"wide": wide, "high": wide.transpose(1, 0, 2).copy(), "small": wide[:40, :50].copy()}


def seeded(tokenizer):
    torch.manual_seed(7)
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 24, "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": SIDE, "patch_size": 16}
    config = transformers.Owlv2Config(text_config=text, vision_config=vision, projection_dim=16, attn_implementation="eager")
    model = transformers.Owlv2ForObjectDetection(config).eval()
    words.grow(model, 0.7)
    with torch.no_grad():
        model.box_head.dense2.weight.mul_(0.015)
        model.class_head.logit_scale.weight.mul_(0.1)
        model.class_head.logit_scale.bias.fill_(-1)  # logits are 0.4 times the cosines
        model.class_head.logit_shift.weight.mul_(0.1)
    words.plain_convolutions(model)
    return model


def main():
    folder = os.path.join(HERE, "owlv2")
    os.makedirs(folder, exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(HERE, "clip"))
    model = seeded(tokenizer)
    processor = transformers.Owlv2ImageProcessor(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    tokens = tokenizer(words.LABELS, padding="max_length", return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    found = {}
    for name, photo in photos().items():
        height, width = photo.shape[:2]
        pixels = processor(Image.fromarray(photo), return_tensors="pt")["pixel_values"]
        with torch.no_grad():
            made = model(**tokens, pixel_values=pixels)
        boxes = processor.post_process_object_detection(made, threshold=0.1, target_sizes=[(height, width)])[0]
        boxes["boxes"] = boxes["boxes"].clamp(min=0).minimum(torch.tensor([width, height, width, height]))
        found[name] = words.boxes_of(boxes, lambda found, i: words.LABELS[found["labels"][i]])
        Image.fromarray(photo).save(os.path.join(HERE, f"squares_{name}.png"))
        print(name, len(found[name]), [(b["label"], round(b["score"], 3)) for b in found[name]])
    texts = {0: "text_batch_size", 1: "sequence_length"}
    torch.onnx.export(words.Owl(model).eval(), (tokens["input_ids"], pixels, tokens["attention_mask"]),
                      os.path.join(folder, "model.onnx"), opset_version=16, dynamo=False,
                      input_names=["input_ids", "pixel_values", "attention_mask"], output_names=["logits", "pred_boxes", "text_embeds"],
                      dynamic_axes={"input_ids": texts, "attention_mask": texts, "pixel_values": {0: "image_batch_size"},
                                    "logits": {0: "image_batch_size", 2: "num_queries"}, "pred_boxes": {0: "image_batch_size"},
                                    "text_embeds": {0: "text_batch_size", 1: "max_text_queries"}})
    words.shorten(os.path.join(folder, "model.onnx"))
    words.save(HERE, "squares.json", {"labels": words.LABELS, "found": found})


if __name__ == "__main__":
    main()
