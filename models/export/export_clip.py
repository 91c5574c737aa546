#!/usr/bin/env python3
"""Exports a model for photos and texts (CLIP, SigLIP) into a model folder for lensd.

    export_clip.py openai/clip-vit-base-patch32 ./clip
    export_clip.py google/siglip-base-patch16-224 ./siglip
    export_clip.py open_clip:ViT-B-32/laion2b_s34b_b79k ./clip

The argument is a name on the hub or a folder that save_pretrained() wrote, or open_clip's name of a
model and its weights. The folder gets two halves:

    OUTDIR/visual/model.onnx           photos in, vectors out
    OUTDIR/textual/model.onnx          tokens in, vectors out
    OUTDIR/tokenizer.json              and tokenizer_config.json: how texts become tokens
    OUTDIR/preprocessor_config.json    how photos are prepared
    OUTDIR/zero_shot.json              scale, bias and activation of the scores

Needs transformers and torch, or open_clip_torch and transformers.
"""

import argparse
import os

from model_folder import because, export_onnx, need, report, stop, write_json, write_preprocessor

INSTALL = "pip install torch transformers onnx"


def halves(model):
    """Two torch modules: pixels [N, 3, H, W] to vectors [N, D], and tokens [N, L] to the same."""
    from torch import nn

    class Visual(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixel_values):
            return self.model.get_image_features(pixel_values=pixel_values)

    class Textual(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model.get_text_features(input_ids=input_ids)

    return Visual().eval(), Textual().eval()


def write_halves(folder, visual, textual, pixels, tokens, opset=0):
    """Exports both halves. `pixels`, `tokens`: an example of two rows each."""
    for name in ("visual", "textual"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    export_onnx(visual, pixels, os.path.join(folder, "visual", "model.onnx"), opset, "pixel_values", "image_embeds")
    export_onnx(textual, tokens, os.path.join(folder, "textual", "model.onnx"), opset, "input_ids", "text_embeds")


def write_scores(folder, scale, bias=0.0):
    """zero_shot.json. A bias is SigLIP's, whose probabilities are sigmoids."""
    scores = {"scale": float(scale), "activation": "sigmoid" if bias else "softmax"}
    if bias:
        scores["bias"] = float(bias)
    write_json(folder, "zero_shot.json", scores)


def write_transformers(model, tokenizer, processor, folder, opset=0):
    """Writes the folder of a transformers model, its fast tokenizer and its image processor."""
    import torch
    if not tokenizer.is_fast:
        stop(f"{type(tokenizer).__name__} has no tokenizer.json; lensd reads that of a fast tokenizer")
    length = getattr(model.config.text_config, "max_position_embeddings", 0)
    if not length:
        stop("the configuration has no max_position_embeddings, the number of tokens of a text")
    os.makedirs(folder, exist_ok=True)
    tokenizer.model_max_length = min(tokenizer.model_max_length, length)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)
    side = model.config.vision_config.image_size
    for module in model.modules():  # "valid" is no padding, in a word that older exporters lack
        if isinstance(module, torch.nn.Conv2d) and module.padding == "valid":
            module.padding = (0, 0)
            module._reversed_padding_repeated_twice = [0, 0, 0, 0]
    with torch.no_grad():
        visual, textual = halves(model)
        write_halves(folder, visual, textual, torch.zeros(2, 3, side, side), torch.ones(2, length, dtype=torch.int64),
                     opset)
    bias = getattr(model, "logit_bias", None)
    write_scores(folder, model.logit_scale.exp().item(), bias.item() if bias is not None else 0.0)


def from_transformers(name, folder, opset):
    transformers = need("transformers", INSTALL)
    need("torch", INSTALL)
    try:
        model = transformers.AutoModel.from_pretrained(name, attn_implementation="eager").eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        processor = transformers.AutoImageProcessor.from_pretrained(name)
    except Exception as reason:  # of the network, the hub, or a file
        stop(f"'{name}' could not be loaded: {because(reason)}")
    if not hasattr(model, "get_text_features") or not hasattr(model, "get_image_features"):
        stop(f"'{name}' is a {model.config.model_type} model, which has not both halves, photos and texts")
    write_transformers(model, tokenizer, processor, folder, opset)


def from_open_clip(name, folder, opset):
    open_clip, torch = need("open_clip", "pip install open_clip_torch transformers"), need("torch", INSTALL)
    architecture, _, weights = name.partition("/")
    try:
        model = open_clip.create_model(architecture, pretrained=weights or None).eval()
        tokenizer = open_clip.get_tokenizer(architecture)
    except Exception as reason:
        stop(f"open_clip cannot make '{name}': {because(reason)}")
    write_open_clip(open_clip, model, tokenizer, folder, opset, torch)


def write_open_clip(open_clip, model, tokenizer, folder, opset, torch):
    """Writes the folder of an open_clip model. Its own tokenizer is CLIP's, as vocab.json and merges.txt."""

    class Visual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixel_values):
            return self.model.encode_image(pixel_values)

    class Textual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model.encode_text(input_ids)

    os.makedirs(folder, exist_ok=True)
    if hasattr(tokenizer, "tokenizer"):  # Hugging Face's
        tokenizer.tokenizer.model_max_length = tokenizer.context_length
        tokenizer.tokenizer.save_pretrained(folder)
    else:
        write_clip_tokenizer(folder, tokenizer)
    cfg = open_clip.get_model_preprocess_cfg(model)
    size = cfg["size"] if isinstance(cfg["size"], (tuple, list)) else (cfg["size"], cfg["size"])
    shortest = cfg.get("resize_mode", "shortest") == "shortest"
    write_preprocessor(folder, mean=cfg["mean"], std=cfg["std"], resample=cfg["interpolation"],
                       shortest_edge=size[0] if shortest else None, exact=None if shortest else size,
                       crop=size if shortest else None)
    tokens = tokenizer(["a photo", "a photo"])
    with torch.no_grad():
        write_halves(folder, Visual().eval(), Textual().eval(), torch.zeros(2, 3, *size), tokens, opset)
    bias = getattr(model, "logit_bias", None)
    write_scores(folder, model.logit_scale.exp().item(), bias.item() if bias is not None else 0.0)


def write_clip_tokenizer(folder, tokenizer):
    """open_clip's SimpleTokenizer as transformers' CLIPTokenizerFast, which pads with 0 as open_clip does."""
    transformers = need("transformers", INSTALL)
    merges = sorted(tokenizer.bpe_ranks.items(), key=lambda pair: pair[1])
    write_json(folder, "vocab.json", {token.replace("<start_of_text>", "<|startoftext|>")
                                      .replace("<end_of_text>", "<|endoftext|>"): i
                                      for token, i in tokenizer.encoder.items()})
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for (a, b), _ in merges))
    fast = transformers.CLIPTokenizerFast(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt"),
                                          pad_token=None, model_max_length=tokenizer.context_length)
    fast.save_pretrained(folder)
    write_json(folder, "config.json", {"pad_token_id": 0})  # as a token of its own "!" would no longer end a word


def export(name, folder, opset=0):
    if name.startswith("open_clip:"):
        from_open_clip(name[len("open_clip:"):], folder, opset)
    else:
        from_transformers(name, folder, opset)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="name on the hub, folder, or open_clip:ARCHITECTURE/WEIGHTS")
    parser.add_argument("folder", help="where to write the model folder")
    parser.add_argument("--opset", type=int, default=0, help="ONNX opset (default: 18, or 17 with an older torch)")
    arguments = parser.parse_args()
    export(arguments.model, arguments.folder, arguments.opset)
    report(arguments.folder)


if __name__ == "__main__":
    main()
