#!/usr/bin/env python3
"""`./dev bench`: the machine, the forward pass per batch size, requests/s over HTTP, cold start.

    bench.py [--build build] [--families FOLDER] [--precision fp32|bf16] [--batch 1,8,32]
             [--seconds 3] [--http-seconds 8] [MODEL ...]

MODEL is an .onnx file, a model folder, `digits`, or the name of a family that
`./dev families` has exported. Without MODEL: digits, and every family that is there.
"""

import argparse
import os
import subprocess
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def find_models(names, families):
    there = sorted(name for name in os.listdir(families)
                   if os.path.exists(os.path.join(families, name, "model.onnx"))) \
        if os.path.isdir(families) else []
    if not names:
        return ["digits"] + [os.path.join(families, name) for name in there]
    models = []
    for name in names:
        if name == "digits" or os.path.exists(name):
            models.append(name)
        elif name in there:
            models.append(os.path.join(families, name))
        else:
            sys.exit(f"dev bench: '{name}' is neither a file, a folder, nor an exported family "
                     f"(there are: {', '.join(there) or 'none'}; ./dev families {name} makes one)")
    return models


def run(program, *arguments):
    """Runs a bench; a bad end is reported and counted, and does not stop the others."""
    sys.stdout.flush()
    status = subprocess.run([program, *arguments], check=False).returncode
    print(flush=True)
    return 1 if status else 0


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--families", default=os.path.join(common.ROOT, ".cache", "families"))
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--seconds", default="3", help="for each model and batch size")
    parser.add_argument("--http-seconds", default="8", help="for each model and concurrency")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    options = parser.parse_args()
    models = find_models(options.models, options.families)
    print("\n".join(common.machine()) + "\n")
    bad = run(os.path.join(options.build, "tests", "bench", "bench_forward"), "--precision",
              options.precision, "--batch", options.batch, "--seconds", options.seconds, *models)
    for model in models:
        served = [] if model == "digits" else ["--model", model]
        bad += run(sys.executable, os.path.join(HERE, "http_bench.py"), "--build", options.build,
                   "--seconds", options.http_seconds, *served, "--", "--precision",
                   options.precision)
    bad += run(sys.executable, os.path.join(HERE, "cold_start.py"), "--build", options.build,
               "--times", "3", *models)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
