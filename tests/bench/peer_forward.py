#!/usr/bin/env python3
"""Another framework's forward pass as a co-process, for peers.py; one framework a process, so that it
can be stopped while others have their turn, and each may have a Python of its own.

    peer_forward.py KIND THREADS BATCHES FOLDER ...       KIND: one of those in KINDS

Speaks as bench_forward --serve does: "ready VERSION", then for each line "run INDEX BATCH TIMES" the
milliseconds of TIMES runs after one that is not counted. What cannot be imported ends it with status 3
and a sentence. Every framework is set as its own users would set it for speed.
"""

import json
import os
import sys
import time

sys.dont_write_bytecode = True
# Set by some images to make runs comparable; it halves what PyTorch's matrix products can do.
os.environ.pop("OPENBLAS_CORETYPE", None)
NOT_INSTALLED = 3


def side_of(folder):
    """The side of the square image that the family takes, from its preprocessor file."""
    with open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8") as file:
        return json.load(file)["crop_size"]["height"]


def noise(folder, batch):
    """Pixels; or for a family without photos (make_text_tower.py) CLIP's 77 token ids, zeros as bench_forward has them."""
    import numpy
    if not os.path.exists(os.path.join(folder, "preprocessor_config.json")):
        return numpy.zeros((batch, 77), numpy.int64)
    side = side_of(folder)
    return numpy.random.default_rng(1).random((batch, 3, side, side), dtype=numpy.float32)


class Torch:
    """mode: frozen (traced, frozen, optimize_for_inference), compiled (torch.compile), or bf16 (eager
    under autocast, which goes with neither of the two). Channels last throughout."""

    def __init__(self, mode, threads, folders, batches):
        import torch
        import torchvision
        self.torch, self.mode = torch, mode
        self.version = f"torch {torch.__version__}"
        torch.set_num_threads(threads)
        self.runs = {}
        for folder in folders:
            name = os.path.basename(os.path.normpath(folder))
            options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
            module = getattr(torchvision.models, name)(weights=None, **options).eval()
            module = module.to(memory_format=torch.channels_last)
            for batch in batches:
                x = torch.from_numpy(noise(folder, batch))
                x = x.contiguous(memory_format=torch.channels_last)
                with torch.no_grad():
                    self.runs[folder, batch] = (self.prepare(module, x), x)

    def prepare(self, module, x):
        if self.mode == "frozen":
            traced = self.torch.jit.freeze(self.torch.jit.trace(module, x))
            module = self.torch.jit.optimize_for_inference(traced)
        elif self.mode == "compiled":
            module = self.torch.compile(module)
        for _ in range(3):
            self.forward(module, x)
        return module

    def forward(self, module, x):
        if self.mode == "bf16":
            with self.torch.autocast("cpu", dtype=self.torch.bfloat16):
                return module(x)
        return module(x)

    def run(self, folder, batch):
        with self.torch.no_grad():
            self.forward(*self.runs[folder, batch])


class OnnxRuntime:
    def __init__(self, threads, folders, batches):
        import onnxruntime
        self.version = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.sessions = {folder: onnxruntime.InferenceSession(
            os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
            for folder in folders}
        self.inputs = {(f, b): {self.sessions[f].get_inputs()[0].name: noise(f, b)}
                       for f in folders for b in batches}

    def run(self, folder, batch):
        self.sessions[folder].run(None, self.inputs[folder, batch])


class OpenVino:
    def __init__(self, precision, threads, folders, batches):
        import openvino
        self.version = f"openvino {openvino.__version__.split('-')[0]}"
        core = openvino.Core()
        self.requests = {}
        for folder in folders:
            for batch in batches:
                model = core.read_model(os.path.join(folder, "model.onnx"))
                x = noise(folder, batch)
                model.reshape(list(x.shape))
                compiled = core.compile_model(model, "CPU", {
                    "INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY",
                    "INFERENCE_NUM_THREADS": threads})
                request = compiled.create_infer_request()
                request.set_input_tensor(openvino.Tensor(x))
                self.requests[folder, batch] = (request, x)

    def run(self, folder, batch):
        self.requests[folder, batch][0].infer()


KINDS = {
    "torch": lambda *rest: Torch("frozen", *rest),
    "torch-compile": lambda *rest: Torch("compiled", *rest),
    "torch-bf16": lambda *rest: Torch("bf16", *rest),
    "onnxruntime": OnnxRuntime,
    "openvino": lambda *rest: OpenVino("f32", *rest),
    "openvino-bf16": lambda *rest: OpenVino("bf16", *rest),
}


def serve(peer, folders):
    print(f"ready {peer.version}", flush=True)
    for line in sys.stdin:
        _, index, batch, times = line.split()
        folder, batch, taken = folders[int(index)], int(batch), []
        peer.run(folder, batch)
        for _ in range(int(times)):
            begin = time.perf_counter()
            peer.run(folder, batch)
            taken.append(f"{(time.perf_counter() - begin) * 1e3:.4f}")
        print(*taken, flush=True)


def main():
    kind, threads, batches, *folders = sys.argv[1:]
    try:
        peer = KINDS[kind](int(threads), folders, [int(n) for n in batches.split(",")])
    except ImportError as error:
        print(f"peer_forward: {error}", file=sys.stderr)
        return NOT_INSTALLED
    serve(peer, folders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
