#!/usr/bin/env python3
"""Does --precision auto choose the same at every start, beside other work?

    precision_starts.py [--build build] [--starts 10] [--busy 1] MODEL ...

Each start of `lensd serve` has nothing kept (--cache none), so that it makes its trials anew, while
--busy processes keep a core each; the models take turns. A line for each model: what was chosen how
often, and the range of what the starts found: the gain, clear best classes that agree, the mean change
of the best class's probability (or the mean relative error). Ends with 1 where a model with a gain of
1.1 or more at every start was not given the same precision at all of them.
"""

import argparse
import collections
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request

sys.dont_write_bytecode = True
import common  # noqa: E402

SAFE_GAIN = 1.1


@contextlib.contextmanager
def neighbours(count):
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def model_of(daemon):
    """The model's entry in /devices, once its precisions have been compared."""
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/devices", timeout=30) as answer:
            model = json.load(answer)["devices"][0]["models"][0]
        if model["precision_choice"]["origin"] != "pending":
            return model
        time.sleep(0.05)


def span(values, digits):
    ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " - ".join(ends)


def report(model, answers):
    """Prints a model's lines; false where the choice differs though the gain is safe."""
    chosen = collections.Counter(answer["precision"] for answer in answers)
    words = ", ".join(f"{precision} {count}" for precision, count in chosen.most_common())
    trials = collections.defaultdict(list)
    for answer in answers:
        for trial in answer["precision_choice"].get("trials", []):
            trials[trial["precision"]].append(trial)
    if not trials:
        print(f"{common.model_name(model):22} {words}: {answers[0]['precision_choice']['why']}")
    for precision, rows in trials.items():
        gains = [row["times_fp32"] for row in rows]
        agreeing = sorted({f"{row['agreeing']}/{row['clear']}" for row in rows})
        print(f"{common.model_name(model):22} {words:18} {precision}: {span(gains, 2)} times fp32, "
              f"classes {' '.join(agreeing)}, {rows[0]['difference_of']} "
              f"{span([row['mean_difference'] for row in rows], 4)}", flush=True)
    gains = [row["times_fp32"] for rows in trials.values() for row in rows]
    return len(chosen) == 1 or min(gains, default=0) < SAFE_GAIN


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--busy", type=int, default=1)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    seen = {model: [] for model in options.models}
    with neighbours(options.busy):
        for start in range(options.starts):
            for model, answers in seen.items():
                with common.Daemon(options.build, model, ("--cache", "none")) as daemon:
                    answers.append(model_of(daemon))
                print(f"start {start + 1} in {daemon.started:.1f} s: {common.model_name(model)} "
                      f"{answers[-1]['precision']} ({answers[-1]['precision_choice']['why']})",
                      file=sys.stderr, flush=True)
    good = [report(model, answers) for model, answers in seen.items()]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
