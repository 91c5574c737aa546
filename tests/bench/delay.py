#!/usr/bin/env python3
"""What --max-delay-us does for few closed-loop clients: two servers that differ in it alone.

    delay.py --model PATH [--build build] [--image FILE] [--seconds 2] [--rounds 12] [-- lensd options]

Both servers run at once, but only one is asked at a time: each round asks both in turns, in changing
order. A ratio is that of two neighbouring turns, 2000 us over 0; printed are medians over the rounds. CPU
is the server's CPU time for an answer, which a busy machine disturbs least; images are those of a pass.
"""

import argparse
import http.client
import os
import re
import statistics
import sys
import tempfile

sys.dont_write_bytecode = True
import common  # noqa: E402
import http_bench  # noqa: E402

DELAYS = (0, 2000)


def passes(server):
    """(images, forward passes) so far."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return [sum(float(value) for value in re.findall(rf"^lensd_batch_size_{part}(?:{{.*}})? (\S+)$", text, re.M))
            for part in ("sum", "count")]


def cpu(server):
    """CPU seconds of all threads so far."""
    tasks = f"/proc/{server.process.pid}/task"
    return sum(int(common.read(f"{tasks}/{task}/schedstat", "0").split()[0]) for task in os.listdir(tasks)) / 1e9


def ask(server, image, clients, seconds):
    """(requests/s, p50 ms, p99 ms, CPU ms an answer, images a pass, failures)"""
    images, count = passes(server)
    begin = cpu(server)
    rate, p50, p99, requests, refused, broken = http_bench.load(server.port, image, clients, seconds)
    used = cpu(server) - begin
    images_after, count_after = passes(server)
    return rate, p50, p99, used * 1e3 / max(1, requests), \
        (images_after - images) / max(1, count_after - count), refused + broken


def median_ratio(turns, column):
    return statistics.median(with_delay[column] / without[column] for without, with_delay in turns if without[0] and with_delay[0])


def measure(options, image):
    print("\n".join(common.machine()))
    print(f"{common.model_name(options.model)}, {options.rounds} rounds of {options.seconds} s a turn\n"
          f"{'':>8} {'requests/s':>17} {'p50 ms':>17} {'p99 ms':>17} {'CPU ms':>17} {'images':>17}   ratio\n"
          f"{'clients':>8} " + f"{'0':>8} {'2000':>8} " * 5 + f"  {'req/s':>7} {'p50':>7} {'p99':>7} {'CPU':>7}")
    with common.Daemon(options.build, options.model, ["--max-delay-us", str(DELAYS[0])] + options.lensd) as without, \
         common.Daemon(options.build, options.model, ["--max-delay-us", str(DELAYS[1])] + options.lensd) as with_delay:
        servers = [without, with_delay]
        for server in servers:
            http_bench.load(server.port, image, 4, 2)
        for clients in options.clients:
            turns = []
            for number in range(options.rounds):
                turn = [None, None]
                for which in (0, 1) if number % 2 == 0 else (1, 0):
                    turn[which] = ask(servers[which], image, clients, options.seconds)
                turns.append(turn)
            medians = [statistics.median(turn[which][column] for turn in turns)
                       for column in range(5) for which in (0, 1)]
            bad = sum(turn[which][5] for turn in turns for which in (0, 1))
            spread = sorted(two[0] / one[0] for one, two in turns if one[0])
            print(f"{clients:8} " + "".join(f"{value:8.1f} " for value in medians) + "  "
                  + " ".join(f"{median_ratio(turns, column):7.3f}" for column in range(4))
                  + f"   req/s quartiles {spread[len(spread) // 4]:.3f} … {spread[len(spread) * 3 // 4]:.3f}"
                  + (f"   {bad:.0f} failed" if bad else ""), flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--image", help="default: a made-up photo of 500 x 375")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4, 8])
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
