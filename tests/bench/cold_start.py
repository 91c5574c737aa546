#!/usr/bin/env python3
"""How long lensd takes from exec to ready, and what memory it then holds.

    cold_start.py [--build build] [--times 5] [MODEL ...]       default: the embedded digits

Ready is the first 200 of /readyz, asked every 2 ms. The models take turns. Memory is read when ready
and again after 32 answered requests: VmRSS is all of it, RssAnon what lensd itself wrote (weights,
activations), the rest mapped files and libraries. Times are with a warm page cache.
"""

import argparse
import os
import statistics
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402


def file_bytes(model):
    if not model:
        return 0
    if os.path.isfile(model):
        return os.path.getsize(model)
    return sum(os.path.getsize(os.path.join(folder, name))
               for folder, _, names in os.walk(model) for name in names
               if name.endswith((".onnx", ".onnx_data", ".data", ".bin")))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    models = [None if model == "digits" else model for model in options.models] or [None]
    body = common.photo()
    seen = {model: [] for model in models}
    for _ in range(options.times):
        for model in models:
            with common.Daemon(options.build, model) as daemon:
                ready = (daemon.memory("VmRSS"), daemon.memory("RssAnon"))
                for _ in range(32):
                    status, answer, _ = daemon.post(body)
                    if status != 200:
                        sys.exit(f"/predict answers {status}: {answer!r}")
                seen[model].append((daemon.started, *ready, daemon.memory("VmRSS"),
                                    daemon.memory("RssAnon"), daemon.memory("VmHWM")))
    print(f"{'model':22} {'ready s':>8} {'worst s':>8} {'file MB':>8} {'RSS MB':>8} {'anon MB':>8} "
          f"{'served':>8} {'anon':>8} {'peak':>8} {'RSS / file':>10}")
    for model in models:
        rows = seen[model]
        size = file_bytes(model)
        middle = [statistics.median(column) for column in zip(*rows)]
        megabytes = [number / 1e6 for number in middle[1:]]
        print(f"{common.model_name(model):22} {middle[0]:8.3f} {max(row[0] for row in rows):8.3f} "
              f"{size / 1e6:8.1f} " + " ".join(f"{number:8.1f}" for number in megabytes)
              + (f" {megabytes[2] / (size / 1e6):10.2f}" if size else f" {'-':>10}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
