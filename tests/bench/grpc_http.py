#!/usr/bin/env python3
"""Inference of the same tensors over gRPC and over HTTP (V2, binary), in turns.

    LENSD=build/server/lensd grpc_http.py [--rounds 10] [--requests 300] [--images 1,16]

One client on one connection each asks the built-in digit classifier. A line for each number of images in a request:
CPU milliseconds of lensd and milliseconds on a clock for a request, and the median over the rounds of HTTP's time
divided by gRPC's.
"""

import argparse
import http.client
import json
import os
import statistics
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "http"))
import http2  # noqa: E402
from small_onnx import blob, varint  # noqa: E402

PIXELS = 3 * 32 * 32


def over_http(server, images):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    data = struct.pack("<f", 0.5) * (images * PIXELS)
    head = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": [images, 3, 32, 32],
                                   "parameters": {"binary_data_size": len(data)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}

    def ask():
        connection.request("POST", "/v2/models/digits/infer", head + data, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    return ask


def over_grpc(server, images):
    connection = http2.connect(server)
    data = struct.pack("<f", 0.5) * (images * PIXELS)
    shape = b"".join(varint(side) for side in (images, 3, 32, 32))
    request = blob(1, "digits") + blob(5, blob(1, "image") + blob(2, "FP32") + blob(3, shape)) + blob(7, data)

    def ask():
        reply = connection.call("ModelInfer", request)
        assert reply.status == 0, (reply.status, reply.sentence)
    return ask


def turn(server, ask, requests):
    """CPU milliseconds of lensd and milliseconds on a clock, for a request."""
    def used():
        threads, total = f"/proc/{server.process.pid}/task", 0
        for thread in os.listdir(threads):
            with open(f"{threads}/{thread}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
        return total * 1e-6

    cpu, start = used(), time.monotonic()
    for _ in range(requests):
        ask()
    return (used() - cpu) / requests, (time.monotonic() - start) * 1000 / requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--images", default="1,16")
    options = parser.parse_args()
    server = http2.serve("--log-level", "warn")
    try:
        print("| images | HTTP CPU ms | gRPC CPU ms | HTTP : gRPC | HTTP ms | gRPC ms | HTTP : gRPC |")
        print("|--:|--:|--:|--:|--:|--:|--:|")
        for images in map(int, options.images.split(",")):
            asks = (over_http(server, images), over_grpc(server, images))
            for ask in asks:
                turn(server, ask, 20)
            rounds = [[turn(server, ask, options.requests) for ask in asks] for _ in range(options.rounds)]
            cells = []
            for at in (0, 1):
                cells += [f"{statistics.median(pair[which][at] for pair in rounds):.3f}" for which in (0, 1)]
                cells.append(f"{statistics.median(pair[0][at] / pair[1][at] for pair in rounds):.2f}")
            print(f"| {images} | " + " | ".join(cells) + " |")
    finally:
        server.process.terminate()
        server.process.wait(30)


if __name__ == "__main__":
    main()
