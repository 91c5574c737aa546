#!/usr/bin/env python3
"""Requests per second over HTTP: one JPEG posted to /predict by loadgen on the same machine.

    http_bench.py [--build build] [--model PATH] [--image FILE] [--seconds 8] [-- lensd options]

Prints, for each concurrency, requests/s, latency, and answers that were not 200; beside them, from
the same run, what the image costs before the model (bench_image, one core) and the requests/s which
that alone would allow: cores x 1000 / (decode ms + preprocess ms + 0.1 for HTTP). The costs are
measured before and after the load, as machines change their pace; the quicker is used, so that
the bound is the stricter one. Without --image a made-up 500 x 375 photo of about 50 kB is sent.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import common  # noqa: E402

HTTP_MS = 0.1


def image_costs(build, image):
    """Median milliseconds (decode, libjpeg-turbo alone, preprocess) on one core; alone is None for a
    PNG."""
    text = subprocess.run([os.path.join(build, "tests", "bench", "bench_image"), "-n", "200", image],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {name.strip(): float(ms) for name, ms in
             re.findall(r"^ +([a-z][a-z -]+?) +[\d.]+ ms best +([\d.]+) ms median", text, re.M)}
    return found["decode"], found.get("libjpeg-turbo alone"), found["preprocess"]


def measure(options, image):
    cores = len(os.sched_getaffinity(0))
    bad = 0
    before = image_costs(options.build, image)
    with common.Daemon(options.build, options.model, options.lensd) as daemon:
        with open(image, "rb") as file:
            status, answer, _ = daemon.post(file.read())
        if status != 200:
            raise RuntimeError(f"/predict answers {status}: {answer.decode(errors='replace')}")
        forward = json.loads(answer).get("timing_ms", {}).get("forward")
        common.closed_loop(options.build, daemon.url, image, 4, 2)
        print(f"{common.model_name(options.model)} over HTTP, loadgen on the same {cores} cores, "
              f"{os.path.getsize(image)} bytes of JPEG; first forward pass {forward} ms")
        print(f"{'concurrency':>12} {'requests/s':>11} {'p50 ms':>9} {'p99 ms':>9} {'requests':>9} "
              f"{'not 200':>8} {'no answer':>14}")
        best = 0.0
        for concurrency in options.concurrency:
            got = common.closed_loop(options.build, daemon.url, image, concurrency, options.seconds)
            count = got["good"] + got["refused"] + got["broken"]
            print(f"{concurrency:12d} {got['rate']:11.1f} {got['p50']:9.2f} {got['p99']:9.2f} {count:9d} "
                  f"{got['refused']:8d} {got['broken']:14d}", flush=True)
            best = max(best, got["rate"])
            bad += got["refused"] + got["broken"]
    after = image_costs(options.build, image)
    decode, alone, preprocess = min(before, after, key=lambda costs: costs[0] + costs[2])
    bound = cores * 1000 / (decode + preprocess + HTTP_MS)
    print(f"one image on one core: decode {decode:.3f} ms"
          + (f" (libjpeg-turbo alone {alone:.3f})" if alone else "")
          + f", preprocess {preprocess:.3f} ms; that allows {cores * 1000:.0f} / "
          f"({decode:.3f} + {preprocess:.3f} + {HTTP_MS}) = {bound:.0f} requests/s; "
          f"reached {best:.0f} = {best / bound * 100:.0f} %")
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--model", help="default: the embedded digits")
    parser.add_argument("--image", help="the JPEG or PNG to post")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--concurrency", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 8, 32], help="default: 1,8,32")
    parser.add_argument("lensd", nargs="*", help="options for lensd serve, after --")
    options = parser.parse_args()
    if options.image:
        return measure(options, options.image)
    with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
        file.write(common.photo())
        file.flush()
        return measure(options, file.name)


if __name__ == "__main__":
    sys.exit(main())
