#!/usr/bin/env python3
"""Makes sentences/, a tiny BERT with seeded weights that embeds texts of up to 128 tokens as sentence-transformers does (the mean of
the tokens that are no padding), and sentences.json: the vectors of transformers, whose tokenizer pads to the longest text.

    make_sentence_model.py [FOLDER]      needs torch, transformers, tokenizers, onnx
"""

import os
import sys

import torch
import transformers

import make_word_models

LENGTH = 128
WORDS = make_word_models.WORDS
NOUNS = [word for word in WORDS[7:] if not word.startswith("##")]
COUNTS = (1, 2, 14, 15, 30, 31, 62, 63, 100, 126)  # words; [CLS] and [SEP] are added
TEXTS = [" ".join((NOUNS * 10)[count % 7:count % 7 + count]) for count in COUNTS]


class Sentences(torch.nn.Module):
    """The inputs and outputs that optimum exports of a sentence-transformers model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        states = self.model(input_ids, attention_mask, token_type_ids).last_hidden_state
        mask = attention_mask[:, :, None].to(states.dtype)
        return states, (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else make_word_models.HERE
    folder = os.path.join(out, "sentences")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as file:
        file.write("".join(word + "\n" for word in WORDS))
    make_word_models.save(folder, "tokenizer_config.json",
                          {"do_lower_case": True, "model_max_length": LENGTH, "tokenizer_class": "BertTokenizer"})
    tokenizer = transformers.BertTokenizerFast(os.path.join(folder, "vocab.txt"))
    torch.manual_seed(31)
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=LENGTH), add_pooling_layer=False).eval()
    make_word_models.grow(model, 8)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    with torch.no_grad():
        tokens = tokenizer(TEXTS, padding=True, return_tensors="pt")
        vectors = Sentences(model)(*(tokens[name] for name in names))[1]
    axes = {name: {0: "batch_size", 1: "sequence_length"} for name in [*names, "token_embeddings"]}
    path = os.path.join(folder, "model.onnx")
    torch.onnx.export(Sentences(model).eval(), tuple(tokens[name] for name in names), path, opset_version=14, input_names=names,
                      output_names=["token_embeddings", "sentence_embedding"],
                      dynamic_axes={**axes, "sentence_embedding": {0: "batch_size"}})
    make_word_models.shorten(path)
    make_word_models.save(out, "sentences.json", {"texts": TEXTS, "tokens": tokens["attention_mask"].sum(1).tolist(),
                                                  "vectors": vectors.tolist()})


if __name__ == "__main__":
    main()
