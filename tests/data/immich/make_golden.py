#!/usr/bin/env python3
"""Writes expected.json: what ONNX Runtime, with the preprocessing and the decoding that Immich's service documents, makes of
the pictures and texts of tests/http/immich_models.py with its networks. tests/http/test_immich.py compares lensd with it.

    LENSD=… make_golden.py      needs onnxruntime, rapidocr, tokenizers, opencv-python-headless, Pillow 9, numpy
"""

import io
import json
import os
import string
import sys
import tempfile

import cv2
import numpy as np
import onnxruntime
from PIL import Image
from rapidocr.ch_ppocr_det.utils import DBPostProcess
from rapidocr.utils.process_img import get_rotate_crop_image
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "http"))

import immich_models as models

TEMPLATE = np.array([(38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041)])


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def clip_picture(folder, picture):
    with open(os.path.join(folder, "visual", "preprocess_cfg.json"), encoding="utf-8") as file:
        config = json.load(file)
    side, (width, height) = config["size"][0], picture.size
    scale = side / min(width, height)
    size = (side, int(scale * height)) if width < height else (int(scale * width), side)
    small = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = int(size[0] / 2 - side / 2), int(size[1] / 2 - side / 2)
    x = np.asarray(small.crop((left, top, left + side, top + side)), np.float32) / 255
    x = (x - np.float32(config["mean"])) / np.float32(config["std"])
    return session(os.path.join(folder, "visual", "model.onnx")).run(None, {"image": x.transpose(2, 0, 1)[None]})[0][0]


def clip_text(folder, text, language=None):
    tokenizer = Tokenizer.from_file(os.path.join(folder, "textual", "tokenizer.json"))
    with open(os.path.join(folder, "textual", "tokenizer_config.json"), encoding="utf-8") as file:
        pad = json.load(file)["pad_token"]
    pad = pad if isinstance(pad, str) else pad["content"]
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)["text_cfg"]
    length, text = config["context_length"], " ".join(text.split())
    if config.get("tokenizer_kwargs", {}).get("clean") == "canonicalize":
        text = "".join(c for c in text if c not in string.punctuation).lower()
    if language and "nllb" in folder:
        text = models.CODES[language] + text
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_token=pad, pad_id=tokenizer.token_to_id(pad))
    ids = np.array([tokenizer.encode(text).ids], np.int32)
    return session(os.path.join(folder, "textual", "model.onnx")).run(None, {"text": ids})[0][0]


def suppress(boxes, scores, threshold):
    kept, rest = [], list(np.argsort(-scores, kind="stable"))
    areas = (boxes[:, 2] - boxes[:, 0] + 1) * (boxes[:, 3] - boxes[:, 1] + 1)
    while rest:
        best = rest.pop(0)
        kept.append(best)

        def overlap(i):
            low, high = np.maximum(boxes[best, :2], boxes[i, :2]), np.minimum(boxes[best, 2:], boxes[i, 2:])
            shared = np.prod(np.maximum(high - low + 1, 0))
            return shared / (areas[best] + areas[i] - shared)
        rest = [i for i in rest if overlap(i) <= threshold]
    return kept


def align(points):
    """Umeyama's similarity transform onto the template, 2 x 3."""
    from_mean, to_mean = points.mean(0), TEMPLATE.mean(0)
    a, b = points - from_mean, TEMPLATE - to_mean
    u, s, v = np.linalg.svd(b.T @ a / len(a))
    d = np.array([1, np.sign(np.linalg.det(u) * np.linalg.det(v))])
    rotation = u @ np.diag(d) @ v
    scale = (s * d).sum() / a.var(0).sum()
    return np.hstack([scale * rotation, (to_mean - scale * rotation @ from_mean)[:, None]])


def faces(folder, picture, least, size=640):
    rgb = np.asarray(picture)
    height, width = rgb.shape[:2]
    scale = size / max(height, width)
    new = (size, int(height / width * size)) if width > height else (int(width / height * size), size)
    scale = new[1] / height
    canvas = np.zeros((size, size, 3), np.uint8)
    canvas[:new[1], :new[0]] = cv2.resize(rgb, new)
    x = (np.float32(canvas) - 127.5) / 128
    outputs = session(os.path.join(folder, "detection", "model.onnx")).run(None, {"input.1": x.transpose(2, 0, 1)[None]})
    found = []
    for i, stride in enumerate(models.STRIDES):
        scores, boxes, points = (outputs[i + 3 * k][0] for k in range(3))
        side = size // stride
        at = np.repeat(np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(-1, 2), 2, 0) * stride
        for k in np.flatnonzero(scores[:, 0] >= least):
            box, point = boxes[k] * stride, points[k].reshape(5, 2) * stride + at[k]
            found.append((scores[k, 0], [*(at[k] - box[:2]), *(at[k] + box[2:])], point))
    scores = np.array([f[0] for f in found])
    boxes, points = np.array([f[1] for f in found]) / scale, np.array([f[2] for f in found]) / scale
    recognition, answer = session(os.path.join(folder, "recognition", "model.onnx")), []
    for i in suppress(boxes, scores, .4):
        crop = cv2.warpAffine(rgb, align(points[i]), (112, 112), borderValue=0)
        x = (np.float32(crop) - 127.5) / 127.5
        vector = recognition.run(None, {"input.1": x.transpose(2, 0, 1)[None]})[0][0]
        answer.append({"box": [float(v) for v in boxes[i]], "score": float(scores[i]), "embedding": vector.tolist()})
    return answer


def ocr(folder, picture, least_box, least_text, resolution=736):
    """rapidocr's parts with Immich's parameters."""
    rgb = np.asarray(picture)
    height, width = rgb.shape[:2]
    ratio = min(resolution / min(height, width), 1)
    size = [max(round(side * ratio / 32), 1) * 32 for side in (width, height)]
    x = np.asarray(picture.resize(size, Image.Resampling.LANCZOS), np.float32)[:, :, ::-1]
    x = ((x / 255 - .5) / .5).transpose(2, 0, 1)[None]
    detector = os.path.join(folder, models.OCR.rpartition("__")[2], "detection", "model.onnx")
    boxes, scores = DBPostProcess(.3, least_box, 1000, 1.6, "fast", True)(session(detector).run(None, {"x": x})[0], (height, width))
    boxes, scores = np.array(boxes, np.float32), np.array(scores)
    rows = np.argsort(boxes[:, 0, 1], kind="stable")
    lines = np.cumsum(np.append(False, np.diff(boxes[rows, 0, 1]) >= 10))
    reader = session(os.path.join(folder, models.OCR, "recognition", "model.onnx"))
    characters, answer = [*reader.get_modelmeta().custom_metadata_map["character"].splitlines(), " "], []
    for i in rows[np.lexsort((boxes[rows, 0, 0], lines))]:
        crop = get_rotate_crop_image(np.ascontiguousarray(rgb[:, :, ::-1]), boxes[i].copy())
        wide = int(np.ceil(48 * crop.shape[1] / crop.shape[0]))
        x = np.zeros((1, 3, 48, max(wide, 320)), np.float32)
        x[0, :, :, :wide] = ((np.float32(cv2.resize(crop, (wide, 48))) / 255 - .5) / .5).transpose(2, 0, 1)
        steps = reader.run(None, {"x": x})[0][0]
        best = steps.argmax(1)
        kept = [k for k, c in enumerate(best) if c and (k == 0 or best[k - 1] != c)]
        score = float(np.mean([steps[k].max() for k in kept])) if kept else 0
        if score > least_text:
            answer.append({"text": "".join(characters[best[k] - 1] for k in kept), "box": (boxes[i] / (width, height)).ravel().tolist(),
                           "boxScore": float(scores[i]), "textScore": score})
    return answer


def main():
    expected = {"clip": {}, "text": {}, "spoken": [], "faces": {}, "ocr": {}}
    with tempfile.TemporaryDirectory() as cache:
        models.make(cache)
        clip = os.path.join(cache, "clip", models.CLIP)
        people = os.path.join(cache, "facial-recognition", models.FACES)
        for width, height in models.PICTURES:
            picture = Image.open(io.BytesIO(models.picture(width, height))).convert("RGB")
            expected["clip"][f"{width}x{height}"] = clip_picture(clip, picture).tolist()
            expected["faces"][f"{width}x{height}"] = faces(people, picture, models.LEAST)
        for text in models.TEXTS:
            expected["text"][text] = clip_text(clip, text).tolist()
        models.make_spoken(cache)
        for name, language, text in models.SPOKEN:
            expected["spoken"].append(clip_text(os.path.join(cache, "clip", name), text, language).tolist())
        for width, height in models.PAGES:
            picture = Image.open(io.BytesIO(models.page(width, height))).convert("RGB")
            expected["ocr"][f"{width}x{height}"] = ocr(os.path.join(cache, "ocr"), picture, .5, .5)
    print([[(line["text"], round(line["boxScore"], 3), round(line["textScore"], 3)) for line in v] for v in expected["ocr"].values()])
    print({k: len(v) for k, v in expected["faces"].items()}, [[round(f["score"], 3) for f in v[:40]] for v in expected["faces"].values()])
    with open(os.path.join(HERE, "expected.json"), "w", encoding="utf-8") as file:
        json.dump(json.loads(json.dumps(expected), parse_float=lambda t: round(float(t), 6)), file, ensure_ascii=False, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
