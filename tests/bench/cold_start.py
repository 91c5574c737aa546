#!/usr/bin/env python3
"""How long lensd takes from exec to ready, and what memory it then holds.

    cold_start.py [--build build] [--against BUILD] [--first] [--times 5] [MODEL ...]
                                                        default: the embedded digits

Ready is the first 200 of /readyz, asked every 2 ms. The models take turns. Memory is read when ready
and again after 32 answered requests: VmRSS is all of it, RssAnon what lensd itself wrote (weights,
activations), the rest mapped files and libraries. Times are with a warm page cache. CPU s is the CPU
time until then, of all threads: on a machine that does other things, too, the figure to compare.
--against BUILD: another build of lensd takes turns with it. Each keeps its choices in a folder of its
own and starts once before the first start that counts; --first: nothing is known at any start.
"""

import argparse
import os
import statistics
import sys
import tempfile

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


def start(build, model, body, cache):
    """(seconds, CPU seconds until ready, bytes of memory …) of one start."""
    with common.Daemon(build, model, ("--cache", cache)) as daemon:
        row = (daemon.started, daemon.cpu_seconds(), daemon.memory("VmRSS"),
               daemon.memory("RssAnon"))
        for _ in range(32):
            status, answer, _ = daemon.post(body)
            if status != 200:
                sys.exit(f"/predict answers {status}: {answer!r}")
        return (*row, daemon.memory("VmRSS"), daemon.memory("RssAnon"), daemon.memory("VmHWM"))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--against", metavar="BUILD")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    models = [None if model == "digits" else model for model in options.models] or [None]
    builds = [options.build] + ([options.against] if options.against else [])
    body = common.photo()
    seen = {(build, model): [] for build in builds for model in models}
    with tempfile.TemporaryDirectory(prefix="lensd-cold-") as caches:
        for turn in range(options.times + (not options.first)):
            for number, (build, model) in enumerate(seen):
                cache = "none" if options.first else os.path.join(caches, str(number))
                row = start(build, model, body, cache)
                if turn > 0 or options.first:
                    seen[build, model].append(row)
    print(f"{'model':22} {'ready s':>8} {'worst s':>8} {'CPU s':>6} {'file MB':>8} {'RSS MB':>8} "
          f"{'anon MB':>8} {'served':>8} {'anon':>8} {'peak':>8} {'RSS / file':>10}")
    for (build, model), rows in seen.items():
        size = file_bytes(model)
        middle = [statistics.median(column) for column in zip(*rows)]
        megabytes = [number / 1e6 for number in middle[2:]]
        print(f"{common.model_name(model):22} {middle[0]:8.3f} {max(row[0] for row in rows):8.3f} "
              f"{middle[1]:6.2f} {size / 1e6:8.1f} "
              + " ".join(f"{number:8.1f}" for number in megabytes)
              + (f" {megabytes[2] / (size / 1e6):10.2f}" if size else f" {'-':>10}")
              + (f"  {build}" if options.against else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
