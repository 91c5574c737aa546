#!/usr/bin/env python3
"""What does it gain to run the first layers of a batch as pieces, and the others whole?

    fronts.py [--build build] [--before BUILD] [--rounds 8] [--threads 2] [--precision fp32] [--batch 8] MODEL ...

Two processes take turns: one as lensd is, one (of another build, with --before) whose batches are either
run whole from the first layer to the last, or as pieces. Milliseconds of a pass, and of CPU time, which
other work on the machine changes less; the ratio is before : now, the median over the rounds. Ends with
1 when a model became slower by more than 1 % of CPU time and of wall clock.
"""

import argparse
import os
import statistics
import sys

sys.dont_write_bytecode = True
import batches  # noqa: E402
import common  # noqa: E402

WORSE = 0.99


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--before", help="a build to compare with, instead of this one without fronts")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    threads = ("--threads", str(options.threads))
    without = () if options.before else ("--no-fronts",)
    worse = []
    print(f"{'ms of a batch of ' + str(options.batch):24} {'before':>8} {'now':>8} {'ratio':>7} "
          f"{'CPU':>8} {'CPU':>8} {'ratio':>7}")
    for model in options.models:
        both = [batches.Forward(options.before or options.build, model, options.precision,
                                options.batch, *threads, *without),
                batches.Forward(options.build, model, options.precision, options.batch, *threads)]
        rounds = []
        for turn in range(options.rounds):
            row = [None, None]
            for i in ((0, 1) if turn % 2 else (1, 0)):
                row[i] = [number / options.passes
                          for number in both[i].run(options.batch, options.passes)]
            rounds.append(row)
        for forward in both:
            forward.stop()
        ratios, cells = [], []
        for kind in (0, 1):
            cells += [statistics.median(row[i][kind] for row in rounds) for i in (0, 1)]
            ratios.append(statistics.median(row[0][kind] / row[1][kind] for row in rounds))
        print(f"{common.model_name(model):24} {cells[0]:8.2f} {cells[1]:8.2f} {ratios[0]:7.3f} "
              f"{cells[2]:8.2f} {cells[3]:8.2f} {ratios[1]:7.3f}", flush=True)
        if max(ratios) < WORSE:
            worse.append(common.model_name(model))
    if worse:
        print(f"slower than before: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
