#!/usr/bin/env python3
"""Requests per second end to end beside Python servers, in one run, taking turns: A B C A B C …

    peers_http.py [--build build] [--python PYTHON] [--families FOLDER] [--family resnet50]
                  [--concurrency 1,8,32] [--seconds 4] [--rounds 3] [--quantized MODEL] [--write FILE]

All servers are there at the same time, but stopped (SIGSTOP) between their turns: some poll, and threads spin on
after a request. loadgen posts one JPEG of 500 x 375 on the same cores, for a second that is not counted
and then for the turn. The peers, each in its usual fast setting, are in peer_servers/: FastAPI over PyTorch
(traced, frozen, channels last), FastAPI over ONNX Runtime, LitServe over ONNX Runtime with its own
batching. PYTHON is an interpreter that has what they need (fastapi, uvicorn, httptools, uvloop,
python-multipart, torch, torchvision, onnxruntime, litserve, Pillow, numpy); a peer that does not start
is left out and named. lensd runs as it comes (--precision auto), and pinned to bf16 where the CPU has
it. --quantized adds lensd and FastAPI over ONNX Runtime on an 8-bit file of the family. A ratio is the
median over the rounds of the quotient within a round.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
os.environ.pop("OPENBLAS_CORETYPE", None)
import common  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SERVERS = os.path.join(HERE, "peer_servers")
PATIENCE_S = 120


class Peer:
    """A Python server as a child process."""

    def __init__(self, python, script, model, form_field=None):
        self.port = common.free_port()
        self.form_field = form_field
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [python, os.path.join(SERVERS, script), model, str(self.port)], stdout=self.log,
            stderr=self.log, start_new_session=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})

    def wait(self, build, image):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and self.process.poll() is None:
            if load(build, self, image, 1, 1)["good"] > 0:
                return
            time.sleep(0.5)
        self.log.seek(0)
        tail = self.log.read().decode(errors="replace").strip().splitlines()[-1:]
        raise RuntimeError(tail[0] if tail else "it does not answer")

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait()
        self.log.close()


def load(build, server, image, concurrency, seconds):
    return common.closed_loop(build, f"http://127.0.0.1:{server.port}/predict", image, concurrency, seconds,
                              form_field=getattr(server, "form_field", None))


def turn(build, server, image, concurrency, seconds):
    server.signal(signal.SIGCONT)
    try:
        load(build, server, image, concurrency, 1)
        return load(build, server, image, concurrency, seconds)
    finally:
        server.signal(signal.SIGSTOP)


def has_bf16():
    flags = common.cpuinfo("flags").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def start(options, image):
    """{name: server}"""
    folder = os.path.join(options.families, options.family)
    onnx = os.path.join(folder, "model.onnx")
    servers = {}
    quiet = ["--log-level", "warn"]
    ours = [("lensd", folder, [])]
    if has_bf16():
        ours.append(("lensd bf16", folder, ["--precision", "bf16"]))
    if options.quantized:
        ours.append(("lensd int8", options.quantized, ["--precision", "int8"]))
    for name, model, more in ours:
        servers[name] = common.Daemon(options.build, model, quiet + more)
        servers[name].signal(signal.SIGSTOP)
    theirs = [("FastAPI + PyTorch", "fastapi_torch.py", options.family, None),
              ("FastAPI + ONNX Runtime", "fastapi_onnxruntime.py", onnx, None),
              ("LitServe + ONNX Runtime", "litserve_onnxruntime.py", onnx, "request")]
    if options.quantized:
        theirs.append(("FastAPI + ONNX Runtime int8", "fastapi_onnxruntime.py",
                       os.path.join(options.quantized, "model.onnx"), None))
    for name, script, model, field in theirs:
        peer = Peer(options.python, script, model, field)
        try:
            peer.wait(options.build, image)
            peer.signal(signal.SIGSTOP)
            servers[name] = peer
        except RuntimeError as error:
            print(f"peers_http: without {name}: {error}", file=sys.stderr)
            peer.stop()
    return servers


def table(options, servers, results):
    lines = [f"{options.family}, JPEG of 500 x 375, loadgen on the same {len(os.sched_getaffinity(0))} "
             f"cores, {options.rounds} rounds of {options.seconds} s in turns", "",
             "| concurrency | " + " | ".join(servers) + " |", "|--:" + "|--:" * len(servers) + "|"]
    for concurrency in options.concurrency:
        cells = []
        for name in servers:
            rows = results[concurrency, name]
            cell = (f"{statistics.median(row['rate'] for row in rows):.1f} req/s, "
                    f"{statistics.median(row['p50'] for row in rows):.0f} / "
                    f"{statistics.median(row['p99'] for row in rows):.0f} ms")
            bad = sum(row["refused"] + row["broken"] for row in rows)
            cells.append(cell + (f", {bad} failed" if bad else ""))
        lines.append(f"| {concurrency} | " + " | ".join(cells) + " |")
    peers = [name for name in servers if not name.startswith("lensd")]
    ours = [name for name in servers if name.startswith("lensd")]
    pairs = [(our, peer) for our in ours for peer in peers]
    lines += ["", "| ratio of req/s | " + " | ".join(f"{o} : {p}" for o, p in pairs) + " |",
              "|--:" + "|--:" * len(pairs) + "|"]
    for concurrency in options.concurrency:
        cells = []
        for our, peer in pairs:
            quotients = [a["rate"] / b["rate"] for a, b in
                         zip(results[concurrency, our], results[concurrency, peer]) if b["rate"]]
            cells.append(f"{statistics.median(quotients):.2f}" if quotients else "-")
        lines.append(f"| {concurrency} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measure(options, image):
    servers = start(options, image)
    try:
        results = {(c, name): [] for c in options.concurrency for name in servers}
        print("peers_http: all are ready", file=sys.stderr, flush=True)
        for _ in range(options.rounds):
            for concurrency in options.concurrency:
                for name, server in servers.items():
                    results[concurrency, name].append(
                        turn(options.build, server, image, concurrency, options.seconds))
        text = table(options, servers, results)
    finally:
        for server in servers.values():
            server.stop()
    print(text)
    if options.write:
        with open(options.write, "w") as file:
            file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--families", default=os.environ.get("LENSD_FAMILIES", os.path.join(common.ROOT, ".cache", "families")))
    parser.add_argument("--family", default="resnet50")
    parser.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 8, 32])
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quantized", metavar="MODEL",
                        help="the family with 8-bit weights (QDQ or QOperator): lensd and ONNX Runtime serve it")
    parser.add_argument("--write")
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        file.write(common.photo())
        file.flush()
        measure(options, file.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
