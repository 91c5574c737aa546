"""FastAPI and uvicorn over ONNX Runtime, which answer Immich's requests for CLIP's halves and for faces:

    fastapi_immich.py CACHE PORT

CACHE is laid out as Immich's. Needs tokenizers beside what the other peers need."""

import glob
import io
import json
import os
import sys

import numpy
import tokenizers
import uvicorn
from fastapi import FastAPI, File, Form
from fastapi.concurrency import run_in_threadpool
from PIL import Image

import preparation

MEAN = numpy.array([0.48145466, 0.4578275, 0.40821073], numpy.float32)
STD = numpy.array([0.26862954, 0.26130258, 0.27577711], numpy.float32)
FACE = numpy.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]])
SIDE, STRIDES = 640, (8, 16, 32)


def load(*parts):
    return preparation.session(glob.glob(os.path.join(sys.argv[1], *parts, "model.onnx"))[0])


visual, textual = load("clip", "*", "visual"), load("clip", "*", "textual")
detector, recognizer = load("facial-recognition", "*", "detection"), load("facial-recognition", "*", "recognition")
tokenizer = tokenizers.Tokenizer.from_file(glob.glob(os.path.join(sys.argv[1], "clip", "*", "tokenizer.json"))[0])
tokenizer.enable_padding(length=77)
tokenizer.enable_truncation(77)
app = FastAPI()


def run(session, values):
    return session.run(None, {session.get_inputs()[0].name: values})


def vector(numbers):
    return json.dumps([float(n) for n in numbers])


def embed_picture(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = 224 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BICUBIC)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    values = (numpy.asarray(image.crop((left, top, left + 224, top + 224)), numpy.float32) / 255 - MEAN) / STD
    return {"clip": vector(run(visual, values.transpose(2, 0, 1)[None])[0][0])}


def embed_text(text):
    ids = numpy.array([tokenizer.encode(text).ids], textual.get_inputs()[0].type.count("64") and numpy.int64 or numpy.int32)
    return {"clip": vector(run(textual, ids)[0][0])}


def centres(stride):
    y, x = numpy.mgrid[:SIDE // stride, :SIDE // stride].astype(numpy.float32) * stride
    return numpy.stack([x, y], -1).reshape(-1, 2).repeat(2, 0)


def suppressed(boxes, scores, least=.4):
    order, kept = scores.argsort()[::-1], []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    while order.size:
        first, order = order[0], order[1:]
        kept.append(first)
        low, high = numpy.maximum(boxes[first, :2], boxes[order, :2]), numpy.minimum(boxes[first, 2:], boxes[order, 2:])
        common = numpy.prod(numpy.clip(high - low, 0, None), 1)
        order = order[common / (areas[first] + areas[order] - common) <= least]
    return kept


def aligned(image, points):
    """The similarity transform from five points to the template (Umeyama, 1991), by Pillow."""
    a, b = points - points.mean(0), FACE - FACE.mean(0)
    u, s, v = numpy.linalg.svd(b.T @ a)
    signs = numpy.array([1, numpy.sign(numpy.linalg.det(u @ v))])
    turn = (u * signs) @ v * (s @ signs) / (a ** 2).sum()
    back = numpy.linalg.inv(turn)
    shift = points.mean(0) - back @ FACE.mean(0)
    return image.transform((112, 112), Image.AFFINE, (*back[0], shift[0], *back[1], shift[1]), Image.BILINEAR)


def faces(data, least):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = SIDE / max(image.size)
    small = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
    canvas = Image.new("RGB", (SIDE, SIDE))
    canvas.paste(small)
    outputs = run(detector, ((numpy.asarray(canvas, numpy.float32) - 127.5) / 128).transpose(2, 0, 1)[None])
    rows = []
    for i, stride in enumerate(STRIDES):
        scores, sides, points = (outputs[i + 3 * k].reshape(-1, n) for k, n in enumerate((1, 4, 10)))
        good = scores[:, 0] >= least
        at = centres(stride)[good]
        sides, points = sides[good] * stride, points[good].reshape(-1, 5, 2) * stride + at[:, None]
        rows.append((scores[good, 0], numpy.concatenate([at - sides[:, :2], at + sides[:, 2:]], 1) / scale, points / scale))
    scores, boxes, points = (numpy.concatenate(kind) for kind in zip(*rows))
    kept = suppressed(boxes, scores)
    if not kept:
        return {"facial-recognition": []}
    crops = numpy.stack([numpy.asarray(aligned(image, points[k]), numpy.float32) for k in kept])
    vectors = run(recognizer, ((crops - 127.5) / 127.5).transpose(0, 3, 1, 2))[0]
    return {"facial-recognition": [
        {"boundingBox": dict(zip(("x1", "y1", "x2", "y2"), boxes[k].tolist())), "score": float(scores[k]), "embedding": vector(v)}
        for k, v in zip(kept, vectors)]}


def infer(entries, image, text):
    if "facial-recognition" in entries:
        return faces(image, entries["facial-recognition"]["detection"]["options"]["minScore"])
    return embed_text(text) if text is not None else embed_picture(image)


@app.post("/predict")
async def predict(entries: str = Form(), image: bytes = File(None), text: str = Form(None)):
    return await run_in_threadpool(infer, json.loads(entries), image, text)


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", loop="uvloop", http="httptools")
