"""FastAPI and uvicorn over PyTorch: fastapi_torch.py FAMILY PORT

The module of torchvision, traced, frozen and optimised for inference, channels last."""

import io
import os
import sys

import torch
import torchvision
import torchvision.transforms as transforms
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from PIL import Image

THREADS = len(os.sched_getaffinity(0))
torch.set_num_threads(THREADS)
module = getattr(torchvision.models, sys.argv[1])(weights=None).eval()
module = module.to(memory_format=torch.channels_last)
prepare = transforms.Compose([
    transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
app = FastAPI()

with torch.no_grad():
    example = torch.rand(1, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    module = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(module, example)))
    for _ in range(3):
        module(example)


def infer(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    with torch.no_grad():
        torch.set_num_threads(THREADS)  # a setting of each thread
        scores = module(prepare(image)[None].contiguous(memory_format=torch.channels_last))
        values, indices = torch.softmax(scores, 1)[0].topk(5)
    return {"predictions": [{"index": int(i), "probability": float(v)}
                            for v, i in zip(values, indices)]}


@app.post("/predict")
async def predict(request: Request):
    return await run_in_threadpool(infer, await request.body())


@app.get("/readyz")
def readyz():
    return {"status": "ready"}


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", loop="uvloop",
            http="httptools")
