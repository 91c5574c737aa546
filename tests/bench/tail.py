#!/usr/bin/env python3
"""Latency at a share of what the server can do: the tail of random and of even arrivals.

    tail.py --model PATH [--build build] [--share 0.8] [--seconds 20] [--rounds 2] [--image FILE]
            [-- lensd options]

A closed loop of 8 connections shows what the server can do; then each round asks for a share of that,
with Poisson arrivals and with even ones. Latencies are the server's own (request line of the log).

A machine that is shared changes its speed under the server, and at 80 % of what it can do nothing makes
up for that: requests queue until it is fast again. So each half second, the CPU time that the
server took for an image is looked at: the same work at over 1.25 times the CPU time of the quickest tenth
is the machine's doing (a thread that waits for a core takes none). Beside the whole run stands the part
of it in which the machine kept its speed: without such moments, and what queued in them, which is
over when a request finds the device free again. Needs the load generator (./dev load builds it).
"""

import argparse
import os
import re
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
import common  # noqa: E402

STEP = 0.5     # seconds between looks at the CPU time
SLOW = 1.25    # times the usual CPU time of an image
LINE = re.compile(r"(\d\d):(\d\d):(\d\d\.\d+) .* path=/predict status=200 .* queue_ms=(\S+) .* ms=(\S+)$")


class Speed(threading.Thread):
    """(end, CPU seconds) of each step, until stop()."""

    def __init__(self, daemon):
        super().__init__()
        self.daemon_process, self.steps, self.ended = daemon.process, [], threading.Event()

    def cpu(self):
        tasks = f"/proc/{self.daemon_process.pid}/task"
        return sum(int(common.read(f"{tasks}/{task}/schedstat", "0").split()[0])
                   for task in os.listdir(tasks)) / 1e9

    def run(self):
        before = self.cpu()
        while not self.ended.wait(STEP):
            now = self.cpu()
            self.steps.append((time.time(), now - before))
            before = now

    def stop(self):
        self.ended.set()
        self.join()


def answered(daemon, begin):
    """[(time of the answer, milliseconds in the queue, milliseconds in all)] of the log since `begin`."""
    rows = []
    midnight = begin - begin % 86400  # the log's clock is UTC
    daemon.log.seek(0)
    for line in daemon.log.read().decode(errors="replace").splitlines():
        found = LINE.match(line)
        if found:
            hours, minutes, seconds, queued, ms = (float(word) for word in found.groups())
            at = midnight + hours * 3600 + minutes * 60 + seconds
            at += 86400 if at < begin - 43200 else 0
            if at >= begin:
                rows.append((at, queued, ms))
    return rows


def steady(rows, steps):
    """The rows in which the machine kept its speed, and the share of the time that it did not."""
    images = [sum(end - STEP <= row[0] < end for row in rows) for end, _ in steps]
    costs = sorted(cpu / count for (_, cpu), count in zip(steps, images) if count)
    usual = costs[len(costs) // 10]
    # An image that began in the step before, or ends in the next, is half counted.
    slow = [end for (end, cpu), count in zip(steps, images) if cpu > SLOW * usual * (count + 0.5)]
    kept, queued = [], False
    for at, queue_ms, ms in sorted(rows):
        # A step's first requests may have been computed in the step before, and its last in the next.
        if any(end - 2 * STEP <= at < end + STEP for end in slow):
            queued = True
        elif queue_ms < 1:
            queued = False
        if not queued:
            kept.append((at, queue_ms, ms))
    return kept, len(slow) / len(steps)


def spread(rows):
    if len(rows) < 100:
        return f"{len(rows):6} {'too few':>26}"
    ms = sorted(row[2] for row in rows)
    p50, p99 = ms[len(ms) // 2], ms[len(ms) * 99 // 100]
    return f"{len(ms):6} {p50:8.1f} {p99:8.1f} {p99 / p50:8.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--image", help="default: a made-up photo of 500 x 375")
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("lensd", nargs="*", help="options for lensd serve, after --")
    options = parser.parse_args()
    print("\n".join(common.machine()))
    with tempfile.TemporaryDirectory(prefix="lensd-tail-") as folder:
        manifest = common.write_manifest(folder, options.image)
        with common.Daemon(options.build, options.model, options.lensd) as daemon:
            found = common.load(options.build, daemon.url, manifest, "--concurrency", "8", "--seconds", "8")
            rate = options.share * found["good"] / found["seconds"]
            print(f"{common.model_name(options.model)}: 8 connections {found['good'] / found['seconds']:.1f} "
                  f"requests/s; asked for {rate:.1f}\n{'':26} {'images':>6} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>8}")
            for _ in range(options.rounds):
                for name, more in (("Poisson", ()), ("even", ("--even",))):
                    speed, begin = Speed(daemon), time.time()
                    speed.start()
                    common.load(options.build, daemon.url, manifest, "--rate", f"{rate:.6g}", "--seconds",
                         f"{options.seconds:g}", "--warmup", "1", *more)
                    speed.stop()
                    rows = [row for row in answered(daemon, begin) if row[0] >= begin + 1]
                    kept, slow = steady(rows, [step for step in speed.steps if step[0] >= begin + 1])
                    print(f"{name:26} {spread(rows)}\n{f'  but {slow:.0%} slow':26} {spread(kept)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
