#!/usr/bin/env python3
"""Makes owl/, grounding/ and world/, tiny detectors of what words name, with seeded weights, and words.json: the boxes that
transformers' own processors find. world/ has no transformers model: it is a net of YOLO-World's inputs and outputs
(a photo and vectors of texts; boxes and a score for each text), and its boxes are those of torch and torchvision.

    make_word_models.py [FOLDER]      needs torch, torchvision, transformers, tokenizers, Pillow

owl's and world's texts are encoded by the tokenizers beside make_text_models.py's models; grounding/ has a vocab.txt of its own.
"""

import json
import os
import shutil
import sys

import numpy
import onnx
import torch
import torchvision
import transformers
from transformers.models.grounding_dino import modeling_grounding_dino as grounding

import make_text_models

HERE = make_text_models.HERE
LABELS = ["a dog", "a red car", "the sea at night"]
SIDE = 64
WORDS = ("[PAD] [UNK] [CLS] [SEP] [MASK] . , a the dog cat red car sea at night bird house ##s two of in rain").split()


def photo():
    y, x = numpy.mgrid[0:SIDE, 0:SIDE]
    return numpy.stack([x * 4 % 256, y * 5 % 256, (x * x + y * 3) % 256], -1).astype(numpy.uint8)


def plain_convolutions(model):
    """"valid" is no padding, in a word that older exporters lack."""
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d) and module.padding == "valid":
            module.padding = (0, 0)
            module._reversed_padding_repeated_twice = [0, 0, 0, 0]


def grow(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are so small that all boxes look alike
            if parameter.dim() > 1:
                parameter.mul_(factor)


def save(folder, name, content):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)


def shorten(path):
    """Gives nodes and values short names: those of the exporter are half of the file."""
    model = onnx.load(path)
    graph = model.graph
    names = {value.name: value.name for value in [*graph.input, *graph.output]}
    names[""] = ""
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, f"w{len(names)}")
    for node in graph.node:
        node.name = node.doc_string = ""
        node.input[:] = [names.setdefault(name, f"v{len(names)}") for name in node.input]
        node.output[:] = [names.setdefault(name, f"v{len(names)}") for name in node.output]
    del graph.value_info[:]
    onnx.save(model, path)


def boxes_of(found, names):
    order = found["scores"].argsort(descending=True)
    return [{"label": names(found, int(i)), "score": float(found["scores"][i]), "box": found["boxes"][i].tolist()} for i in order]


class Owl(torch.nn.Module):
    """The inputs and outputs that optimum exports."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, pixel_values, attention_mask):
        made = self.model(input_ids=input_ids, pixel_values=pixel_values, attention_mask=attention_mask)
        return made.logits, made.pred_boxes, made.text_embeds


def make_owl(out):
    folder = os.path.join(out, "owl")
    os.makedirs(folder, exist_ok=True)
    clip = os.path.join(HERE, "clip")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copyfile(os.path.join(clip, name), os.path.join(folder, name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    torch.manual_seed(7)
    text = {"vocab_size": len(tokenizer), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 24, "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": SIDE, "patch_size": 16}
    config = transformers.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.OwlViTForObjectDetection(config).eval()
    grow(model, 2.5)
    plain_convolutions(model)
    processor = transformers.OwlViTImageProcessor(size={"height": SIDE, "width": SIDE})
    processor.save_pretrained(folder)
    tokens = tokenizer(LABELS, padding="max_length", return_tensors="pt")
    pixels = processor(photo(), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        made = model(**tokens, pixel_values=pixels)
        found = processor.post_process_object_detection(made, threshold=0.1, target_sizes=[(SIDE, SIDE)])[0]
    texts = {0: "text_batch_size", 1: "sequence_length"}
    torch.onnx.export(Owl(model).eval(), (tokens["input_ids"], pixels, tokens["attention_mask"]),
                      os.path.join(folder, "model.onnx"), opset_version=14,
                      input_names=["input_ids", "pixel_values", "attention_mask"], output_names=["logits", "pred_boxes", "text_embeds"],
                      dynamic_axes={"input_ids": texts, "attention_mask": texts, "pixel_values": {0: "image_batch_size"},
                                    "logits": {0: "image_batch_size", 2: "num_queries"}, "pred_boxes": {0: "image_batch_size"},
                                    "text_embeds": {0: "text_batch_size", 1: "max_text_queries"}})
    return boxes_of(found, lambda found, i: LABELS[found["labels"][i]])


class Grounding(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values, input_ids, token_type_ids, attention_mask, pixel_mask):
        made = self.model(pixel_values=pixel_values, input_ids=input_ids, token_type_ids=token_type_ids,
                          attention_mask=attention_mask, pixel_mask=pixel_mask)
        return made.logits, made.pred_boxes


def masks_without_loop(input_ids):
    """transformers' loop over the special tokens, which a trace cannot follow, as comparisons: a token sees those that end
    with the same special token."""
    special = torch.zeros_like(input_ids, dtype=torch.bool)
    for token in grounding.SPECIAL_TOKENS:
        special = special | (input_ids == token)
    ended = torch.cumsum(special.to(torch.int64), 1)
    part = ended - special.to(torch.int64)
    is_closed = part < ended[:, -1:]
    same = (part[:, :, None] == part[:, None, :]) & is_closed[:, :, None]
    count = input_ids.shape[1]
    before = torch.ones(count, count).tril(-1)
    position = (same.to(torch.float32) * before[None]).sum(-1).to(torch.int64)
    return same | torch.eye(count).to(torch.bool)[None], position


def make_grounding(out):
    folder = os.path.join(out, "grounding")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("".join(word + "\n" for word in WORDS))
    save(folder, "tokenizer_config.json", {"do_lower_case": True, "model_max_length": 32, "tokenizer_class": "BertTokenizer"})
    tokenizer = transformers.BertTokenizerFast(os.path.join(folder, "vocab.txt"))
    grounding.SPECIAL_TOKENS = [WORDS.index(word) for word in ("[CLS]", "[SEP]", ".")]
    torch.manual_seed(5)
    config = transformers.GroundingDinoConfig(
        backbone_config=transformers.SwinConfig(image_size=SIDE, embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2],
                                                window_size=4, out_features=["stage2", "stage3", "stage4"]),
        text_config=transformers.BertConfig(vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                            intermediate_size=24, max_position_embeddings=32),
        num_queries=20, encoder_layers=1, encoder_ffn_dim=24, encoder_attention_heads=2, decoder_layers=2, decoder_ffn_dim=24,
        decoder_attention_heads=2, d_model=32, max_text_len=32, encoder_n_points=2, decoder_n_points=2,
        num_feature_levels=3, disable_custom_kernels=True, query_dim=4)
    model = transformers.GroundingDinoForObjectDetection(config).eval()
    grow(model, 1.25)
    with torch.no_grad():
        model.model.decoder.layer_norm.weight.mul_(0.1)  # else all scores are 1
    plain_convolutions(model)
    images = transformers.GroundingDinoImageProcessor(size={"height": SIDE, "width": SIDE}, do_pad=False)
    images.save_pretrained(folder)
    processor = transformers.GroundingDinoProcessor(images, tokenizer)
    text = " ".join(label + "." for label in LABELS)
    tokens = tokenizer(text, return_tensors="pt")
    pixels = images(photo(), return_tensors="pt")["pixel_values"]
    ones = torch.ones(1, SIDE, SIDE, dtype=torch.int64)
    with torch.no_grad():
        made = model(pixel_values=pixels, pixel_mask=ones, **tokens)
        grounding.generate_masks_with_special_tokens_and_transfer_map = masks_without_loop
        again = model(pixel_values=pixels, pixel_mask=ones, **tokens)
    assert torch.allclose(made.logits, again.logits) and torch.allclose(made.pred_boxes, again.pred_boxes)
    found = processor.post_process_grounded_object_detection(made, tokens["input_ids"], box_threshold=0.25, text_threshold=0.25,
                                                             target_sizes=[(SIDE, SIDE)])[0]
    scores = made.logits[0].sigmoid()
    kept = scores.max(-1).values > 0.25
    # The processor's phrase is all tokens above a threshold; the word is that of the best token.
    ids = tokens["input_ids"][0].tolist()
    owner, word = [], 0
    for token in ids:
        owner.append(-1 if token in grounding.SPECIAL_TOKENS else word)
        word += token == WORDS.index(".")
    columns = [i for i, o in enumerate(owner) if o >= 0]
    best = [owner[columns[int(row[columns].argmax())]] for row in scores[kept]]
    found["labels"] = best
    texts = {0: "batch_size", 1: "sequence_length"}
    example = (pixels, *(tokenizer(text, padding="max_length", max_length=24, return_tensors="pt")[name]
                         for name in ("input_ids", "token_type_ids", "attention_mask")), ones)
    torch.onnx.export(Grounding(model).eval(), example, os.path.join(folder, "model.onnx"), opset_version=16,
                      input_names=["pixel_values", "input_ids", "token_type_ids", "attention_mask", "pixel_mask"],
                      output_names=["logits", "pred_boxes"],
                      dynamic_axes={"input_ids": texts, "token_type_ids": texts, "attention_mask": texts,
                                    "pixel_values": {0: "batch_size"}, "pixel_mask": {0: "batch_size", 1: "height", 2: "width"},
                                    "logits": {0: "batch_size"}, "pred_boxes": {0: "batch_size"}})
    return boxes_of(found, lambda found, i: LABELS[found["labels"][i]])


class World(torch.nn.Module):
    """Vectors of texts decide the scores of cells, and how the features are weighed (the best of all texts), as in
    YOLO-World's max-sigmoid attention and contrastive head."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 8, 8)
        self.guide = torch.nn.Linear(16, 8)
        self.embed = torch.nn.Conv2d(8, 16, 3, padding=1)
        self.boxes = torch.nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, images, txt_feats):
        x = torch.relu(self.stem(images))
        attention = torch.einsum("bchw,bnc->bhwn", x, self.guide(txt_feats)).max(-1)[0]
        x = x * torch.sigmoid(attention)[:, None]
        embedded = torch.nn.functional.normalize(self.embed(x), dim=1)
        scores = torch.sigmoid(4 * torch.einsum("bchw,bnc->bnhw", embedded, txt_feats) - 0.5)
        side = torch.arange(8, dtype=torch.float32) * 8 + 4
        offsets = torch.tanh(self.boxes(x)) * 16
        x_at, y_at = side[None, None, None, :] + offsets[:, :1], side[None, None, :, None] + offsets[:, 1:2]
        boxes = torch.cat([x_at, y_at, 20 + offsets[:, 2:]], 1)
        return torch.cat([boxes, scores], 1).flatten(2)


def make_world(out):
    folder = os.path.join(out, "world")
    os.makedirs(os.path.join(folder, "visual"), exist_ok=True)
    save(folder, "lensd.json", {"layout": "yolov8"})
    tokenizer = transformers.AutoTokenizer.from_pretrained(os.path.join(HERE, "clip"))
    clip = make_text_models.seeded_model("clip", tokenizer)[0]
    tokens = tokenizer(LABELS, padding="max_length", return_tensors="pt")["input_ids"]
    torch.manual_seed(3)
    model = World().eval()
    grow(model, 1.5)
    with torch.no_grad():
        texts = torch.nn.functional.normalize(clip.get_text_features(input_ids=tokens), dim=-1)[None]
        pixels = torch.from_numpy(photo()).permute(2, 0, 1)[None].float() / 255
        made = model(pixels, texts)[0].T
    scores, labels = made[:, 4:].max(1)
    centre, size = made[:, :2], made[:, 2:4]
    boxes = torch.cat([centre - size / 2, centre + size / 2], 1)
    kept = scores > 0.25
    boxes, scores, labels = boxes[kept], scores[kept], labels[kept]
    order = torchvision.ops.batched_nms(boxes, scores, labels, 0.7)
    found = {"boxes": boxes[order].clamp(0, SIDE), "scores": scores[order], "labels": labels[order]}
    torch.onnx.export(model, (torch.zeros(2, 3, SIDE, SIDE), torch.zeros(2, 5, 16)), os.path.join(folder, "visual", "model.onnx"),
                      opset_version=14, input_names=["images", "txt_feats"], output_names=["output0"],
                      dynamic_axes={"images": {0: "batch"}, "txt_feats": {0: "batch", 1: "classes"}, "output0": {0: "batch"}})
    return boxes_of(found, lambda found, i: LABELS[found["labels"][i]])


def logit(x, eps=1e-6):
    x = x.clamp(eps, 1 - eps)
    return torch.log(x / (1 - x))


def main():
    torch.special.logit = torch.logit = logit  # older exporters lack it, too
    where = torch.where  # which makes a number float64 there
    torch.where = lambda condition, *both: where(
        condition, *(one if torch.is_tensor(one) else torch.tensor(one, dtype=both[1].dtype) for one in both))
    for opset in (14, 16):  # older exporters lack it
        torch.onnx.register_custom_op_symbolic(
            "aten::broadcast_to", lambda g, x, size: torch.onnx.symbolic_opset9.expand(g, x, size, None), opset)
    out = sys.argv[1] if len(sys.argv) > 1 else HERE
    found = {}
    for name, make in (("owl", make_owl), ("grounding", make_grounding), ("world", make_world)):
        found[name] = make(out)
        shorten(os.path.join(out, name, "visual" if name == "world" else "", "model.onnx"))
        print(name, len(found[name]), {b["label"] for b in found[name]}, [round(b["score"], 3) for b in found[name]][:8])
    make_text_models.Image.fromarray(photo()).save(os.path.join(out, "words.png"))
    save(out, "words.json", {"labels": LABELS, "found": found})


if __name__ == "__main__":
    main()
