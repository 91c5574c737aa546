#!/usr/bin/env python3
"""What logging, API keys and TLS cost: requests/s of the trivial model, in turns within one run.

    http_cost.py [--build build] [--rounds 5] [--seconds 2] [--concurrency 16] [--against BUILD]

A round measures each variant once, so that a machine that changes its pace does so for all of them:
`silent` writes no line a request, `plain` is lensd as it comes, `keys` asks for an API key, `tls`
speaks HTTPS. --against adds `plain` of another build. The ratio is the median over the rounds of
the quotient to `plain` within a round.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import common  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
IMAGE = os.path.join(HERE, "..", "data", "digits", "drawn", "7_canvas.png")


class TlsDaemon(common.Daemon):
    """Ready when it says so in the log: whether clients like its certificate is not the question."""

    def status(self, path):
        return 200 if " ready " in self.text() else 0


def load(scheme, port, options, key):
    got = common.closed_loop(options.build, f"{scheme}://127.0.0.1:{port}/predict", IMAGE, options.concurrency, options.seconds,
                             headers=[f"X-API-Key: {key}"] if key else [])
    if got["refused"] or got["broken"]:
        raise RuntimeError(f"{got['refused']} answers were not 200, {got['broken']} requests had none")
    return got["rate"]


def variants(options, folder):
    """{name: (build, lensd options, scheme, key)}"""
    keys, cert, private = (os.path.join(folder, name) for name in ("keys", "cert.pem", "key.pem"))
    made = subprocess.run([os.path.join(options.build, "server", "lensd"), "key", "bench"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=True)
    with open(keys, "w") as file:
        file.write(made.stdout)
    key = re.search(r"^    (lensd-\w+)$", made.stderr, re.M).group(1)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-keyout", private, "-out", cert, "-days", "1", "-subj", "/CN=localhost"], check=True,
                   stderr=subprocess.DEVNULL)
    found = {"plain": (options.build, (), "http", None),
             "silent": (options.build, ("--log-level", "warn"), "http", None),
             "keys": (options.build, ("--api-keys", keys), "http", key),
             "tls": (options.build, ("--tls-cert", cert, "--tls-key", private), "https", None)}
    if options.against:
        found["against"] = (options.against, (), "http", None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    parser.add_argument("--against", help="another build folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates = {}
        for _ in range(options.rounds):
            for name, (build, arguments, scheme, key) in variants(options, folder).items():
                kind = TlsDaemon if scheme == "https" else common.Daemon
                with kind(build, None, arguments) as daemon:
                    rates.setdefault(name, []).append(load(scheme, daemon.port, options, key))
    print(f"{'variant':>8} {'requests/s':>11} {'ratio':>6}   of {options.rounds} rounds of {options.seconds} s, "
          f"concurrency {options.concurrency}")
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, rates["plain"]))
        print(f"{name:>8} {statistics.median(found):11.0f} {ratio:6.3f}")


if __name__ == "__main__":
    main()
