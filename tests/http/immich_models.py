"""A folder as Immich's cache of models: seeded networks of the same form, small ones. The pictures and texts that
tests/data/immich/make_golden.py computes expected answers for."""

import json
import math
import os
import random
import shutil
import zlib

import small_onnx
from harness import ROOT, png_chunk, png_header
from small_onnx import floats, ints, node, noise, tensor_info, value

CLIP, FACES = "tiny__seeded", "buffalo_t"
TEXTS = ["two  birds on\tthe roof ", "A red CAR at night!"]
# Models whose config.json has texts cleaned, and that know languages; a client's language and the text.
CLEANED, LANGUAGES = "cleaned__seeded", "nllb-tiny__seeded"
CODES = {"de": "deu_Latn", "pt-BR": "por_Latn", "zh-TW": "zho_Hant", "ja": "jpn_Hira", "xx-YY": "eng_Latn"}
SPOKEN = [(CLEANED, None, "A  Photo, of_the ÉCHO -- (bird's) </s>!"), (CLEANED, "de", "birds"), (LANGUAGES, None, "A photo of the  birds"),
          *((LANGUAGES, language, "a  photo, of the birds") for language in CODES)]
PICTURES = [(400, 300), (225, 371)]
PAGES = [(1104, 828), (828, 1104)]
OCR, SHADES = "LATIN__tiny_ocr", [4, 13, 22, 31, 40]
LEAST = .7  # Immich's minScore for faces
SIDE, LENGTH, VECTOR, CELL = 32, 16, 16, 4
STRIDES = (8, 16, 32)


def picture(width, height):
    """A PNG with shades, edges and a fine pattern."""
    rows = []
    for y in range(height):
        row = bytearray(b"\0")
        for x in range(width):
            block = (x // 37 * 5 + y // 29 * 3) % 7 * 30
            row += bytes(((x * 3 + y) % 256, (block + x * y // 64) % 256, (x * x // 9 + 2 * y) % 256))
        rows.append(bytes(row))
    return png_header(width, height) + png_chunk(b"IDAT", zlib.compress(b"".join(rows), 1)) + png_chunk(b"IEND", b"")


def normalised(name):
    return [node("ReduceL2", [name], ["length"], ints("axes", [1])), node("Div", [name, "length"], ["embedding"])]


def visual(path):
    small_onnx.write(path, [
        node("Conv", ["image", "w"], ["c"], ints("strides", [2, 2])), node("Relu", ["c"], ["r"]), node("Flatten", ["r"], ["flat"]),
        node("MatMul", ["flat", "head"], ["vector"]), *normalised("vector")],
        [noise("w", 1, .3, 6, 3, 5, 5), noise("head", 2, .1, 6 * 14 * 14, VECTOR)],
        [tensor_info("image", 1, 3, SIDE, SIDE)], [tensor_info("embedding", 1, VECTOR)])


def textual(path, words):
    """Every place counts, padding too."""
    small_onnx.write(path, [
        node("Gather", ["table", "text"], ["rows"]), node("Mul", ["rows", "places"], ["weighed"]),
        node("ReduceMean", ["weighed"], ["vector"], ints("axes", [1]), small_onnx.integer("keepdims", 0)), *normalised("vector")],
        [noise("table", 3, 1, words, VECTOR), noise("places", 4, 1, LENGTH, 1)],
        [value("text", 6, 1, LENGTH)], [tensor_info("embedding", 1, VECTOR)])


def balanced(name, seed, scale, rows, *shape):
    """Noise whose rows have sums of 0: what is black gets no score but the bias."""
    generator, size, values = random.Random(seed), math.prod(shape), []
    for _ in range(rows):
        row = [generator.gauss(0, scale) for _ in range(size)]
        values += [v - sum(row) / size for v in row]
    return floats(name, (rows, *shape), values)


def scrfd(path):
    """Nine outputs for any size: scores, distances, points. Points have the form of a face, so that they can be aligned."""
    face = [-.8, -.7, .8, -.7, 0, 0, -.6, .8, .6, .8]
    kinds = (("scores", 1, 1.6, [-1.6]), ("boxes", 4, .5, [2.2, 2.2, 2.4, 2.4]), ("points", 10, .3, face))
    nodes, tensors, outputs = [node("AveragePool", ["input.1"], ["cells"], ints("kernel_shape", [CELL, CELL]),
                                    ints("strides", [CELL, CELL]))], [], []
    for kind, width, gain, bias in kinds:
        for stride in STRIDES:
            k, name = stride // CELL, f"{kind}{stride}"
            tensors += [balanced(f"w{name}", stride + width, gain / k, 2 * width, 3, k, k), floats(f"b{name}", (2 * width,), 2 * bias)]
            nodes += [node("Conv", ["cells", f"w{name}", f"b{name}"], [f"c{name}"], ints("strides", [k, k])),
                      node("Transpose", [f"c{name}"], [f"t{name}"], ints("perm", [0, 2, 3, 1])),
                      node("Reshape", [f"t{name}", f"shape{width}"], [f"r{name}"])]
            last = {"scores": "Sigmoid", "boxes": "Relu", "points": "Identity"}[kind]
            nodes.append(node(last, [f"r{name}"], [name]))
            outputs.append(tensor_info(name, 1, "anchors" + str(stride), width))
        tensors.append(small_onnx.integers(f"shape{width}", [1, -1, width]))
    small_onnx.write(path, nodes, tensors, [tensor_info("input.1", 1, 3, "height", "width")], outputs)


def arcface(path):
    small_onnx.write(path, [
        node("Conv", ["input.1", "w"], ["c"], ints("strides", [5, 5])), node("Relu", ["c"], ["r"]),
        node("AveragePool", ["r"], ["p"], ints("kernel_shape", [2, 2]), ints("strides", [2, 2])), node("Flatten", ["p"], ["flat"]),
        node("MatMul", ["flat", "head"], ["683"])],
        [noise("w", 5, .2, 4, 3, 5, 5), noise("head", 6, .3, 4 * 11 * 11, 24)],
        [tensor_info("input.1", "N", 3, 112, 112)], [tensor_info("683", "N", 24)])


def page(width, height):
    """A white PNG with bars for lines of text: pieces of five shades with white between them."""
    rows, letters = [b"\0" + b"\xf8" * 3 * width] * height, random.Random(9)
    for top in range(60, height - 60, 110):
        row = bytearray(rows[top])
        for left in (50, width // 2 + 30) if top < 300 else (90,):
            for i in range(letters.randint(3, 6)):
                at, shade = left + 60 * i, SHADES[letters.randrange(5)]
                row[1 + 3 * at:1 + 3 * (at + 44)] = bytes([shade] * 3 * 44)
        rows[top:top + 36] = [bytes(row)] * 36
    return png_header(width, height) + png_chunk(b"IDAT", zlib.compress(b"".join(rows), 1)) + png_chunk(b"IEND", b"")


def text_detector(path):
    """The probability of text: how dark the neighbourhood is."""
    small_onnx.write(path, [
        node("Conv", ["x", "w", "b"], ["c"], ints("pads", [1, 12, 1, 12])), node("Sigmoid", ["c"], ["map"])],
        [floats("w", (1, 3, 3, 25), [-6 / 225] * 225), floats("b", (1,), [2])],
        [tensor_info("x", 1, 3, "height", "width")], [tensor_info("map", 1, 1, "height", "width")])


def text_reader(path):
    """The lightest point of each column, between its rows 16 and 32, becomes a character: five, and the blank for lighter ones."""
    shades = [-.5, *(s / 127.5 - 1 for s in SHADES)]
    small_onnx.write(path, [
        node("Slice", ["x", "from", "to", "axis"], ["middle"]),
        node("MaxPool", ["middle"], ["columns"], ints("kernel_shape", [16, 8]), ints("strides", [16, 8])),
        node("Conv", ["columns", "w", "b"], ["c"]), node("Squeeze", ["c", "axis"], ["s"]),
        node("Transpose", ["s"], ["t"], ints("perm", [0, 2, 1])), node("Softmax", ["t"], ["text"])],
        [floats("w", (6, 3, 1, 1), [2 * 2000 * s / 3 for s in shades for _ in range(3)]),
         floats("b", (6,), [-2000 * s * s for s in shades]),
         *(small_onnx.integers(name, [number]) for name, number in (("from", 16), ("to", 32), ("axis", 2)))],
        [tensor_info("x", "N", 3, 48, "width")], [tensor_info("text", "N", "steps", 6)],
        metadata=[("character", "a\nb\nc\nd\ne")])


def put(folder, *names):
    path = os.path.join(folder, *names)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return path


def write(folder, *names, text):
    with open(put(folder, *names), "w", encoding="utf-8") as file:
        file.write(text)


def make_spoken(cache):
    """SigLIP's tokenizer without lower case; one with languages as added tokens, of which the Japanese one is none, as in NLLB's."""
    from_folder = os.path.join(ROOT, "tests", "data", "text_models", "siglip")
    with open(os.path.join(from_folder, "tokenizer.json"), encoding="utf-8") as file:
        tokenizer = json.load(file)
    tokenizer["normalizer"] = {"type": "NFKC"}
    words = len(tokenizer["model"]["vocab"])
    for name, kwargs in ((CLEANED, {"clean": "canonicalize"}), (LANGUAGES, {})):
        visual(put(cache, "clip", name, "visual", "model.onnx"))
        textual(put(cache, "clip", name, "textual", "model.onnx"), words + len(CODES))
        write(cache, "clip", name, "textual", "tokenizer.json", text=json.dumps(tokenizer))
        shutil.copy(os.path.join(from_folder, "tokenizer_config.json"), put(cache, "clip", name, "textual", "tokenizer_config.json"))
        write(cache, "clip", name, "config.json", text=json.dumps({
            "embed_dim": VECTOR, "text_cfg": {"context_length": LENGTH, "tokenizer_kwargs": kwargs}}))
        codes = sorted(set(CODES.values()) - {"jpn_Hira"})
        tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": words + i, "content": code} for i, code in enumerate(codes)]


def make(cache):
    tokenizer = os.path.join(ROOT, "tests", "data", "text_models", "clip")
    with open(os.path.join(tokenizer, "tokenizer.json"), encoding="utf-8") as file:
        words = len(json.load(file)["model"]["vocab"])
    visual(put(cache, "clip", CLIP, "visual", "model.onnx"))
    textual(put(cache, "clip", CLIP, "textual", "model.onnx"), words)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), put(cache, "clip", CLIP, "textual", name))
    write(cache, "clip", CLIP, "config.json", text=json.dumps({"embed_dim": VECTOR, "text_cfg": {"context_length": LENGTH}}))
    write(cache, "clip", CLIP, "visual", "preprocess_cfg.json", text=json.dumps({
        "size": [SIDE, SIDE], "mode": "RGB", "mean": [.48, .46, .41], "std": [.27, .26, .28], "interpolation": "bicubic",
        "resize_mode": "squash", "fill_color": 0}))
    scrfd(put(cache, "facial-recognition", FACES, "detection", "model.onnx"))
    arcface(put(cache, "facial-recognition", FACES, "recognition", "model.onnx"))
    text_detector(put(cache, "ocr", OCR.rpartition("__")[2], "detection", "model.onnx"))  # the language is the reader's
    text_reader(put(cache, "ocr", OCR, "recognition", "model.onnx"))
