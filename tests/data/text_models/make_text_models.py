#!/usr/bin/env python3
"""Makes clip/ and siglip/, tiny models for photos and texts with seeded weights, and expected.json, what transformers
makes of them: token ids, vectors, and the probabilities of its own zero-shot pipeline.

    make_text_models.py [FOLDER]      needs torch, transformers, tokenizers, Pillow

Tokenizers are trained on the sentences below. tests/http/test_texts.py compares lensd with the expected numbers.
"""

import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "models", "export"))

import numpy
import tokenizers
import torch
import transformers
from PIL import Image
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import export_clip

WORDS = ("a photo of a dog. a photo of a cat. this is a photo of two birds on the roof of a red house near the sea. "
         "the quick brown fox jumps over the lazy dog. children play in the green park under a blue sky. "
         "an old car, a bus and a bicycle in the rain at night. mountains, snow, trees and a river in the morning. "
         "people eat bread, fruit and cheese at a table in the kitchen. this is a picture of a boat. photos of food").split(". ")
TEXTS = ["a dog", "Two CATS on a roof, at night!", "a red car & a bus in the rain", "naïve café 🙂"]
LABELS = ["a dog", "a red car", "the sea at night"]
VECTOR = 16


def clip_tokenizer(folder):
    """The parts of CLIP's tokenizer, with few merges: CLIPTokenizerFast from vocab.json and merges.txt."""
    tokenizer = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix="", unk_token=None))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(WORDS, trainers.BpeTrainer(vocab_size=420, end_of_word_suffix="</w>",
                                                             initial_alphabet=alphabet, show_progress=False))
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    pairs = [m.split(" ") if isinstance(m, str) else m for m in merges]
    vocabulary = alphabet + [letter + "</w>" for letter in alphabet]
    known = set(vocabulary)
    kept = []
    for first, second in pairs:
        if first in known and second in known and first + second not in known:
            vocabulary.append(first + second)
            known.add(first + second)
            kept.append((first, second))
    vocabulary += ["<|startoftext|>", "<|endoftext|>"]
    with open(os.path.join(folder, "vocab.json"), "w", encoding="utf-8") as file:
        json.dump({token: i for i, token in enumerate(vocabulary)}, file, ensure_ascii=False)
    with open(os.path.join(folder, "merges.txt"), "w", encoding="utf-8") as file:
        file.write("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in kept))
    return transformers.CLIPTokenizerFast(os.path.join(folder, "vocab.json"), os.path.join(folder, "merges.txt"),
                                          model_max_length=24)


def siglip_tokenizer():
    """A Unigram tokenizer as SigLIP's: </s> at the end, and as padding up to the full length."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(WORDS, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "</s>"],
                                                                 unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="</s>",
                                                pad_token="</s>", model_max_length=32, model_input_names=["input_ids"])


def clip_model(tokenizer):
    text = {"vocab_size": len(tokenizer), "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 24, "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id, "projection_dim": VECTOR}
    vision = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8, "projection_dim": VECTOR}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=VECTOR)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    return transformers.CLIPModel(config), processor


def siglip_model(tokenizer):
    text = {"vocab_size": len(tokenizer), "hidden_size": VECTOR, "intermediate_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 32}
    vision = {"hidden_size": VECTOR, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8}
    config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    return transformers.SiglipModel(config), transformers.SiglipImageProcessor(size={"height": 32, "width": 32})


def photo():
    y, x = numpy.mgrid[0:48, 0:64]
    return Image.fromarray(numpy.stack([x * 4 % 256, y * 5 % 256, (x + y) * 7 % 256], -1).astype(numpy.uint8))


def expect(model, tokenizer, processor, picture, pads):
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    padded = tokenizer(TEXTS, padding="max_length", return_tensors="pt")["input_ids"]
    pixels = processor(picture, return_tensors="pt")["pixel_values"]
    pipeline = transformers.pipeline("zero-shot-image-classification", model=model, tokenizer=tokenizer,
                                     image_processor=processor)
    with torch.no_grad():
        found = pipeline(picture, candidate_labels=LABELS)
        other = pipeline(picture, candidate_labels=LABELS, hypothesis_template="{}")
        return {"texts": TEXTS, "tokens": tokens, "vectors": model.get_text_features(input_ids=padded).tolist(),
                "photo": model.get_image_features(pixel_values=pixels)[0].tolist(),
                "labels": {entry["label"]: entry["score"] for entry in found},
                "labels_alone": {entry["label"]: entry["score"] for entry in other}}


def seeded_model(name, tokenizer):
    torch.manual_seed(31)
    model, processor = (clip_model if name == "clip" else siglip_model)(tokenizer)
    model.eval()
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are so small that all texts look alike
            if parameter.dim() > 1:
                parameter.mul_(6 if name == "clip" else 3)
        model.logit_scale.fill_(1.5)
        if name == "siglip":
            model.logit_bias.fill_(-1.25)
    return model, processor


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else HERE
    picture = photo()
    picture.save(os.path.join(out, "photo.png"))
    expected = {}
    for name in ("clip", "siglip"):
        folder = os.path.join(out, name)
        with tempfile.TemporaryDirectory() as room:
            tokenizer = clip_tokenizer(room) if name == "clip" else siglip_tokenizer()
        model, processor = seeded_model(name, tokenizer)
        export_clip.write_transformers(model, tokenizer, processor, folder)
        expected[name] = expect(model, tokenizer, processor, picture, name == "siglip")
    with open(os.path.join(out, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, ensure_ascii=False, indent=0)


if __name__ == "__main__":
    main()
