"""FastAPI and uvicorn over ONNX Runtime: fastapi_onnxruntime.py MODEL.onnx PORT"""

import sys

import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool

import preparation

session = preparation.session(sys.argv[1])
name = session.get_inputs()[0].name
# An end-to-end detector answers rows of boxes, a classifier one row of scores.
detector = len(session.get_outputs()[0].shape) == 3
side = session.get_inputs()[0].shape[2] if detector else 224
app = FastAPI()


def infer(data):
    if detector:
        return preparation.boxes(session.run(None, {name: preparation.prepared_whole(data, side)[None]})[0][0])
    return preparation.answer(session.run(None, {name: preparation.prepared(data)[None]})[0][0])


@app.post("/predict")
async def predict(request: Request):
    return await run_in_threadpool(infer, await request.body())


@app.get("/readyz")
def readyz():
    return {"status": "ready"}


infer_once = session.run(None, {name: preparation.numpy.zeros((1, 3, side, side), "float32")})
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning", loop="uvloop",
            http="httptools")
