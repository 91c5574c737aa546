#!/usr/bin/env python3
"""CPU seconds of loading a model again, in a lensd that runs (--load lazy), beside a new session of ONNX Runtime in a
process that runs, in turns.

    reload.py --peer-python VENV/bin/python [--build build] [--times 7] [--precision fp32] FOLDER NAME ...

lensd's column is one request that finds the model unloaded, its answer and the unload (?keep_alive=0), of all threads.
ONNX Runtime's is InferenceSession(), a run of one image, and its end, with as many threads. Both have loaded the model
before. A figure is the mean of five loads, and the least of all turns.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
import common  # noqa: E402

PEER = """
import gc, sys, time, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[1])
image = numpy.zeros((1, 3, 224, 224), "float32")
for path in map(str.strip, sys.stdin):
    before = time.process_time()
    for _ in range(5):
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: image})
        del session
        gc.collect()
    print((time.process_time() - before) / 5, flush=True)
"""


class Lensd(common.Daemon):
    def ask(self, name, body, keep_alive):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/predict?model={name}&keep_alive={keep_alive}", body)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            sys.exit(f"{name}: /predict answers {response.status}: {text!r}")

    def wait_until(self, path, condition):
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                if condition(answer.read()):
                    return
            time.sleep(0.05)

    def loads(self, name, body, count):
        """CPU seconds of one of `count` loads with an answer and an unload each."""
        before = self.cpu_seconds()
        for _ in range(count):
            self.ask(name, body, "0")
            self.wait_until("/health", lambda text: all(model["state"] == "unloaded" for model in json.loads(text)["models"]))
        return (self.cpu_seconds() - before) / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--times", type=int, default=7)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("folder", help="of models")
    parser.add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args()
    body, threads = common.photo(), len(os.sched_getaffinity(0))
    print(common.machine())
    peer = subprocess.Popen([options.peer_python, "-c", PEER, str(threads)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
    print(f"{'model':24} answered  ONNX Runtime   ratio")
    with tempfile.TemporaryDirectory(prefix="lensd-reload-") as cache:
        arguments = ("--load", "lazy", "--models", options.folder, "--cache", cache, "--precision", options.precision)
        with Lensd(options.build, None, arguments) as daemon:
            for name in options.names:
                daemon.loads(name, body, 2)
                rows = []
                for _ in range(options.times):
                    peer.stdin.write(os.path.join(options.folder, name, "model.onnx") + "\n")
                    peer.stdin.flush()
                    rows.append((daemon.loads(name, body, 5), float(peer.stdout.readline())))
                answered, other = map(min, zip(*rows))
                print(f"{name:24} {answered:8.3f} {other:13.3f} {answered / other:7.2f}", flush=True)
    peer.stdin.close()
    peer.wait()


if __name__ == "__main__":
    main()
