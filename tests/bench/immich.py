#!/usr/bin/env python3
"""Memory of `lensd serve --immich` with all five default kinds of model, seeded networks of their sizes.

    immich.py make FOLDER       writes them as Immich's cache has them: ViT-B-32's halves (open_clip), a detector of faces and an
                                ArcFace of 50 layers, and the detector and the reader of lines that rapidocr carries
    immich.py memory FOLDER     starts lensd ($LENSD) with fp32 and with --precision auto, asks each kind three times, and prints
                                resident MB with all models loaded, and when all have been idle
    immich.py rate FOLDER PYTHON [ROUNDS]
                                requests a second for CLIP's halves and for faces, in turns with FastAPI over ONNX Runtime
                                (peer_servers/fastapi_immich.py, run by PYTHON)

`make` needs torch, open_clip and rapidocr's models ($RAPIDOCR: their folder), `rate` numpy and Pillow."""

import glob
import http.client
import json
import os
import shutil
import signal
import socket
import statistics
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "http"), os.path.join(HERE, "..", "..", "models", "export")]

CLIP, FACES, OCR = "ViT-B-32__openai", "buffalo_l", "PP-OCRv5_mobile"


def make(folder):
    import open_clip
    import torch
    from export_clip import write_open_clip
    torch.manual_seed(1)
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.body = nn.Sequential(nn.BatchNorm2d(before), nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
                                      nn.PReLU(after), nn.Conv2d(after, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after))
            self.side = nn.Conv2d(before, after, 1, stride, bias=False) if stride > 1 else nn.Identity()

        def forward(self, x):
            return self.body(x) + self.side(x)

    def layers(before, widths, counts):
        blocks = []
        for width, count in zip(widths, counts):
            blocks += [Block(before if i == 0 else width, width, 2 if i == 0 else 1) for i in range(count)]
            before = width
        return blocks

    class Arcface(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.PReLU(64), *layers(64, (64, 128, 256, 512), (3, 4, 14, 3)),
                                      nn.Flatten(), nn.Linear(512 * 7 * 7, 512))

        def forward(self, x):
            return self.body(x)

    class Scrfd(nn.Module):
        """Three strides with scores, distances and points. Scores stay below Immich's bound but for a few places."""
        def __init__(self):
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 48, 3, 2, 1), nn.ReLU(), *layers(48, (64,), (3,)))
            self.steps = nn.ModuleList([nn.Sequential(*layers(a, (b,), (3,))) for a, b in ((64, 128), (128, 160), (160, 256))])
            self.heads = nn.ModuleList([nn.ModuleList([nn.Conv2d(width, 2 * n, 3, 1, 1) for n in (1, 4, 10)]) for width in (128, 160, 256)])

        def forward(self, x):
            x, outputs = self.stem(x), [[], [], []]
            for step, heads in zip(self.steps, self.heads):
                x = step(x)
                for k, (head, n) in enumerate(zip(heads, (1, 4, 10))):
                    y = head(x).permute(0, 2, 3, 1).reshape(1, -1, n)
                    outputs[k].append(torch.sigmoid(y * 4) if k == 0 else torch.relu(y) + 2 if k == 1 else y)
            return tuple(y for kind in outputs for y in kind)

    def write(module, pixels, path, axes):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.onnx.export(module.eval(), pixels, path, input_names=["input.1"], opset_version=13, dynamic_axes=axes)

    clip = os.path.join(folder, "clip", CLIP)
    write_open_clip(open_clip, open_clip.create_model("ViT-B-32").eval(), open_clip.get_tokenizer("ViT-B-32"), clip, 0, torch)
    people = os.path.join(folder, "facial-recognition", FACES)
    write(Scrfd(), torch.zeros(1, 3, 640, 640), os.path.join(people, "detection", "model.onnx"), {"input.1": {2: "h", 3: "w"}})
    write(Arcface(), torch.zeros(1, 3, 112, 112), os.path.join(people, "recognition", "model.onnx"), {"input.1": {0: "n"}})
    for part, name in (("detection", "*_det_*.onnx"), ("recognition", "*_rec_*.onnx")):
        os.makedirs(os.path.join(folder, "ocr", OCR, part), exist_ok=True)
        shutil.copy(glob.glob(os.path.join(os.environ["RAPIDOCR"], name))[0], os.path.join(folder, "ocr", OCR, part, "model.onnx"))


def file_bytes(folder):
    return sum(os.path.getsize(path) for path in glob.glob(os.path.join(folder, "**", "*.onnx*"), recursive=True))


def pictures():
    import io

    import numpy
    from PIL import Image, ImageDraw
    page = Image.fromarray(numpy.random.default_rng(3).integers(150, 255, (960, 1440, 3)).astype(numpy.uint8)).resize((1440, 960))
    draw = ImageDraw.Draw(page)
    for y in range(60, 900, 70):
        draw.rectangle((50, y - 4, 700, y + 40), fill="white")
        draw.text((60, y), "A line of text with numbers 0123456789", fill="black")
    out = io.BytesIO()
    page.save(out, "JPEG", quality=90)
    return out.getvalue()


def requests():
    """{name: entries, picture, text}"""
    import test_immich
    picture = pictures()
    return {
        "visual": ({"clip": {"visual": {"modelName": CLIP}}}, picture, None),
        "textual": ({"clip": {"textual": {"modelName": CLIP}}}, None, "a dog"),
        "faces": (test_immich.pair("facial-recognition", FACES, .7), picture, None),
        "ocr": (test_immich.pair("ocr", OCR, .5), picture, None)}


def body_of(entries, picture, text):
    import test_immich
    return test_immich.transcript(json.dumps(entries), picture, text), {
        "Content-Type": f"multipart/form-data; boundary={test_immich.BOUNDARY}"}


def memory(folder, precision):
    import harness
    server = harness.Server("--immich", folder, "--precision", precision, "--idle-unload", "40")
    try:
        for _ in range(3):
            for asked in requests().values():
                answer = server.request("POST", "/predict", *body_of(*asked))
                assert answer.status == 200, answer.body
        loaded = resident(server.process.pid, 15)  # trials of precisions end
        server.wait_for(lambda: all(m["state"] == "unloaded" or m.get("stages") for m in server.get("/health").json()["models"]),
                        "every model to be unloaded")
        idle = resident(server.process.pid, 2)
    finally:
        server.stop()
    return loaded, idle


def resident(pid, seconds):
    time.sleep(seconds)
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        lines = dict(line.split(":", 1) for line in status)
    return int(lines["VmRSS"].split()[0]) * 1.024 / 1000


def ask_for(port, seconds, concurrency, body, headers):
    """Answers a second."""
    ends, counts = time.monotonic() + seconds, []

    def client():
        connection, count = http.client.HTTPConnection("127.0.0.1", port), 0
        while time.monotonic() < ends:
            connection.request("POST", "/predict", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            count += time.monotonic() < ends
        counts.append(count)

    clients = [threading.Thread(target=client) for _ in range(concurrency)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert len(counts) == concurrency, "a request has failed"
    return sum(counts) / seconds


def rate(folder, python, rounds=5, seconds=6):
    import harness
    from peers_http import Peer
    peer = Peer(python, "fastapi_immich.py", folder)
    servers = {p: harness.Server("--immich", folder, "--precision", p, "--log-level", "warn") for p in ("fp32", "auto")}
    ports = {"fp32": servers["fp32"].port, "auto": servers["auto"].port, "peer": peer.port}
    send = {name: server.process.send_signal for name, server in servers.items()} | {"peer": peer.signal}
    asked = {name: body_of(*one) for name, one in requests().items() if name != "ocr"}
    try:
        end = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", peer.port)).close()
                break
            except OSError:
                assert time.monotonic() < end, "the peer does not answer"
                time.sleep(.5)
        for name in ("fp32", "auto"):
            for one in asked.values():
                ask_for(ports[name], 10, 1, *one)  # loads, and tries kernels and precisions
        for stop in send.values():
            stop(signal.SIGSTOP)
        print("| request | at a time | fp32 | auto | FastAPI | ratio, fp32 | ratio, auto |\n|---|--:|--:|--:|--:|--:|--:|")
        for kind, one in asked.items():
            for concurrency in (1, 8):
                turns = {name: [] for name in ports}
                for _ in range(rounds):
                    for name, port in ports.items():
                        send[name](signal.SIGCONT)
                        ask_for(port, 1, concurrency, *one)
                        turns[name].append(ask_for(port, seconds, concurrency, *one))
                        send[name](signal.SIGSTOP)
                ratios = [statistics.median(a / b for a, b in zip(turns[p], turns["peer"])) for p in servers]
                cells = [f"{statistics.median(turns[name]):.1f}" for name in ports] + [f"{ratio:.2f}" for ratio in ratios]
                print(f"| {kind} | {concurrency} | " + " | ".join(cells) + " |", flush=True)
    finally:
        for start in send.values():
            start(signal.SIGCONT)
        peer.stop()
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    command, folder, *more = sys.argv[1:]
    if command == "make":
        make(folder)
    elif command == "rate":
        rate(folder, more[0], *map(int, more[1:]))
    else:
        size = file_bytes(folder) / 1e6
        for precision in ("fp32", "auto"):
            loaded, idle = memory(folder, precision)
            print(f"{precision}: files {size:.0f} MB, loaded {loaded:.0f} MB ({loaded / size:.2f} x), idle {idle:.0f} MB", flush=True)
