#!/usr/bin/env python3
"""Is a batch of 32 as quick an image as a batch of 8?

    batches.py [--build build] [--rounds 5] [--precision fp32] [--batches 8,32] MODEL ...

Both sizes take turns in one process: as many passes of the smaller one as make up the larger. The
ratio is that of an image's time in the larger batch and in the smaller, the median over the rounds;
the CPU time of both beside it, which other work on the machine changes less. Ends with 1 when a
larger batch costs more than 5 % more CPU time an image.
"""

import argparse
import os
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True
import common  # noqa: E402

WORSE = 1.05


def cpu_seconds(pid):
    """Of all threads of the process, to a nanosecond where the kernel tells."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        line = common.read(f"/proc/{pid}/task/{task}/schedstat")
        total += int(line.split()[0]) if line else 0
    return total * 1e-9


class Forward:
    def __init__(self, build, model, precision, largest):
        command = [os.path.join(build, "tests", "bench", "bench_forward"), "--precision", precision,
                   "--batch", f"1,{largest}", "--serve", model]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        line = self.process.stdout.readline()
        if not line.startswith("ready"):
            sys.exit(f"bench_forward: {line.strip() or 'ended'}")

    def run(self, batch, times):
        """(milliseconds, CPU milliseconds) of `times` passes after one that is not counted."""
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write(f"run 0 {batch} {times}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line.startswith("error"):
            sys.exit(line.strip())
        used = (cpu_seconds(self.process.pid) - before) * 1e3
        return sum(float(word) for word in line.split()), used * times / (times + 1)

    def stop(self):
        self.process.stdin.close()
        self.process.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batches", default="8,32")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    small, large = (int(word) for word in options.batches.split(","))
    worse = []
    print(f"{'an image, ms':22} {f'of {small}':>8} {f'of {large}':>8} {'ratio':>7} "
          f"{'CPU':>8} {'CPU':>8} {'ratio':>7}")
    for model in options.models:
        forward = Forward(options.build, model, options.precision, large)
        rounds = []
        for _ in range(options.rounds):
            some, some_cpu = forward.run(small, large // small)
            all_, all_cpu = forward.run(large, 1)
            rounds.append([number / large for number in (some, all_, some_cpu, all_cpu)])
        forward.stop()
        some, all_, some_cpu, all_cpu = (statistics.median(column) for column in zip(*rounds))
        ratio = statistics.median(row[1] / row[0] for row in rounds)
        cpu = statistics.median(row[3] / row[2] for row in rounds)
        print(f"{common.model_name(model):22} {some:8.2f} {all_:8.2f} {ratio:7.3f} "
              f"{some_cpu:8.2f} {all_cpu:8.2f} {cpu:7.3f}", flush=True)
        if cpu > WORSE:
            worse.append(common.model_name(model))
    if worse:
        print(f"slower an image in a batch of {large} than of {small}: {', '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
