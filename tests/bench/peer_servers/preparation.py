"""What the Python servers on ONNX Runtime share: Pillow and NumPy as torchvision's transforms do it."""

import io
import os

import numpy
import onnxruntime
from PIL import Image

MEAN = numpy.array([0.485, 0.456, 0.406], numpy.float32)
STD = numpy.array([0.229, 0.224, 0.225], numpy.float32)
THREADS = len(os.sched_getaffinity(0))


def session(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def prepared(data):
    """A photo's bytes to [3, 224, 224] float32: short side 256, centre crop, normalised."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    width, height = image.size
    short = min(width, height)
    image = image.resize((width * 256 // short, height * 256 // short), Image.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    image = image.crop((left, top, left + 224, top + 224))
    values = (numpy.asarray(image, numpy.float32) / 255 - MEAN) / STD
    return values.transpose(2, 0, 1)


def prepared_whole(data, side):
    """A photo's bytes to [3, side, side] float32 as a detector takes it: scaled to fit, grey around it, 0 to 1."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    scale = side / max(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.BILINEAR)
    canvas = Image.new("RGB", (side, side), (114, 114, 114))
    canvas.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return (numpy.asarray(canvas, numpy.float32) / 255).transpose(2, 0, 1)


def boxes(rows, least=0.25):
    """[rows, 6]: x0, y0, x1, y1, score, class."""
    return {"predictions": [{"box": row[:4].tolist(), "score": float(row[4]), "index": int(row[5])}
                            for row in rows if row[4] >= least]}


def answer(scores, k=5):
    exponentials = numpy.exp(scores - scores.max())
    probabilities = exponentials / exponentials.sum()
    best = numpy.argsort(-probabilities)[:k]
    return {"predictions": [{"index": int(i), "probability": float(probabilities[i])} for i in best]}
