#!/usr/bin/python3
"""Frigate's detector over ZeroMQ at a fixed rate: how long a client waits, beside the forward pass.

    LENSD=build/server/lensd zmq_detector.py [--rate 100] [--seconds 20] [--side 320] [--clients 4]

Each client is one of Frigate's detectors: it sends a float32 tensor, waits for the rows, and sends the next when its time
has come. A wait is counted from when the tensor was due. Needs python3-zmq and python3-numpy."""

import argparse
import os
import sys
import tempfile
import threading
import time

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, os.pardir, "http"))
import small_onnx  # noqa: E402
from harness import Server  # noqa: E402
from test_zmq import Client, ZmqCase  # noqa: E402


def run(client, tensor, first, every, end, waits, zeros):
    due = first
    while due < end:
        time.sleep(max(0, due - time.monotonic()))
        zeros.append(not client.detect(tensor).any())
        waits.append(time.monotonic() - due)
        due += every


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rate", 100), ("seconds", 20), ("side", 320), ("clients", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "yolo.onnx")
        boxes = [32, 32, 16, 24, .9, 0] + [0] * 6 * 2099
        small_onnx.always(path, [("found", (6, 2100), [boxes[6 * c + line] for line in range(6) for c in range(2100)])], side=options.side)
        server = Server(path, "--precision", "fp32", "--zmq-port", "127.0.0.1:0", "--zmq-timeout", "0")
        try:
            clients = [Client(ZmqCase.endpoint_of(server)) for _ in range(options.clients)]
            tensor = numpy.full((1, 3, options.side, options.side), .5, numpy.float32)
            for client in clients:
                client.model("yolo.onnx")
                client.detect(tensor)
            waits, zeros, every, now = [], [], options.clients / options.rate, time.monotonic() + 1
            forward = lambda part: server.metric(f'lensd_phase_seconds_{part}{{model="yolo",device="cpu",phase="forward"')
            before = forward("sum"), forward("count")
            threads = [threading.Thread(target=run, args=(client, tensor, now + i / options.rate, every, now + options.seconds, waits, zeros))
                       for i, client in enumerate(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            passes = forward("count") - before[1]
            waits.sort()
            at = lambda part: 1000 * waits[int(part * (len(waits) - 1))]
            print(f"{len(waits)} tensors of {tensor.nbytes} bytes at {options.rate}/s, {sum(zeros)} zeros: "
                  f"p50 {at(.5):.2f} ms, p99 {at(.99):.2f} ms, most {at(1):.2f} ms; forward pass {1000 * (forward('sum') - before[0]) / passes:.2f} ms")
            for client in clients:
                client.close()
        finally:
            server.stop()


main()
