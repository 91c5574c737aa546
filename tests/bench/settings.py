#!/usr/bin/env python3
"""Settings of `lensd serve` against each other: requests/s, and the CPU time of an image.

    settings.py --model PATH [--build build] [--concurrency 1,8] [--seconds 3] [--rounds 3]
                [--image FILE] [--against BUILD] "--device cpu" "--device cpu,cpu" …

Starts a server for each set of options, with --against also one from another build folder. The servers take
turns; meanwhile the others are stopped. Behind the rate, for each kind of the server's threads: CPU milliseconds
of an image, and in brackets how long the threads were ready to run and waited for a core. The last lines are the median rates, and their ratio to the first settings'.
Needs the load generator (./dev load builds it).
"""

import argparse
import collections
import contextlib
import os
import signal
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
import common  # noqa: E402

WARMUP = 0.3  # seconds


def times(daemon):
    """{name of threads: [milliseconds on a core, milliseconds in a run queue]}"""
    found = collections.defaultdict(lambda: [0, 0])
    tasks = f"/proc/{daemon.process.pid}/task"
    for task in os.listdir(tasks):
        name = common.read(f"{tasks}/{task}/comm").split("-")[0]
        for i, value in enumerate(common.read(f"{tasks}/{task}/schedstat", "0 0").split()[:2]):
            found[name][i] += int(value) / 1e6
    return found


def turn(build, daemon, manifest, concurrency, seconds):
    """(requests/s, text of CPU times)"""
    before = times(daemon)
    result = common.load(build, daemon.url, manifest, "--concurrency", str(concurrency), "--seconds", f"{seconds:g}",
                         "--warmup", f"{WARMUP:g}")
    after = times(daemon)
    rate = result["good"] / result["seconds"]
    images = rate * (seconds + WARMUP)
    spent = {name: [(after[name][i] - before[name][i]) / images for i in (0, 1)] for name in after}
    return rate, ", ".join(f"{name} {run:.2f} ({wait:.2f})" for name, (run, wait) in sorted(spent.items())
                           if run > 0.01)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--image", help="default: a made-up photo of 500 x 375")
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", metavar="BUILD", help="compare with the lensd of another build folder")
    parser.add_argument("settings", nargs="+", metavar="OPTIONS", help="one word each: quote them")
    # argparse takes a word that begins with two dashes for an option of its own, unless it has a space
    options = parser.parse_args([" " + word if word.startswith("--") and " " in word else word
                                 for word in sys.argv[1:]])
    builds = [build for build in (options.against, options.build) if build]
    settings = [(build, words.strip()) for words in options.settings for build in builds]
    print("\n".join(common.machine()))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lensd-settings-"))
        manifest = common.write_manifest(folder, options.image)
        daemons = []
        for build, words in settings:
            daemons.append(stack.enter_context(common.Daemon(
                build, options.model, words.split() + ["--log-level", "warn"])))
            daemons[-1].signal(signal.SIGSTOP)
        rates = collections.defaultdict(list)
        for _ in range(options.rounds):
            for (build, words), daemon in zip(settings, daemons):
                daemon.signal(signal.SIGCONT)
                for concurrency in map(int, options.concurrency.split(",")):
                    rate, text = turn(options.build, daemon, manifest, concurrency, options.seconds)
                    rates[concurrency, (build, words)].append(rate)
                    print(f"{build} {words}, concurrency {concurrency}: {rate:.1f}/s; {text}", flush=True)
                daemon.signal(signal.SIGSTOP)
        for (concurrency, (build, words)), found in sorted(rates.items(), key=lambda item: item[0][0]):
            first = rates[concurrency, settings[0]]
            ratio = statistics.median(b / a for a, b in zip(first, found))
            print(f"concurrency {concurrency:3}: {statistics.median(found):8.1f}/s  {ratio:5.2f}  {build} {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
