"""LitServe over ONNX Runtime, with its own batching: litserve_onnxruntime.py MODEL.onnx PORT"""

import sys

import litserve
from fastapi import UploadFile

import preparation


class Api(litserve.LitAPI):
    def setup(self, device):
        self.session = preparation.session(sys.argv[1])
        self.name = self.session.get_inputs()[0].name

    def decode_request(self, request: UploadFile):
        return preparation.prepared(request.file.read())

    def batch(self, inputs):
        return preparation.numpy.stack(inputs)

    def predict(self, inputs):
        return self.session.run(None, {self.name: inputs})[0]

    def unbatch(self, outputs):
        return list(outputs)

    def encode_response(self, scores):
        return preparation.answer(scores)


if __name__ == "__main__":
    server = litserve.LitServer(Api(max_batch_size=8, batch_timeout=0.01), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="warning",
               generate_client_file=False)
