#!/usr/bin/env python3
"""Memory and CPU time of idle connections, and the CPU time of an upload.

    connections.py [--build build] [--against BUILD] [--connections 1000] [--rounds 5]

Memory is the growth of anonymous memory by kept connections that have had one answer, two seconds later, over HTTP and
over TLS; CPU time is what all threads then take in five seconds. An upload is one body that is no picture; builds take
turns, and the least of the rounds is printed.
"""

import argparse
import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = os.path.join(HERE, "..", "..", "models", "digits")
SIZES = (20_000, 100_000, 600_000)


@contextlib.contextmanager
def daemon(build, *options):
    """(process id, port) of a daemon that serves digits."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "port")
        process = subprocess.Popen([os.path.join(build, "server", "lensd"), "serve", MODEL, "--port", "0", "--port-file",
                                    path, "--log-level", "error", *options], stdout=subprocess.DEVNULL)
        try:
            while not os.path.exists(path) or not os.path.getsize(path):
                if process.poll() is not None:
                    raise RuntimeError("lensd ended")
                time.sleep(0.05)
            time.sleep(1)  # kernels are tried
            with open(path, encoding="ascii") as file:
                yield process.pid, int(file.read())
        finally:
            process.terminate()
            process.wait()


def answer(connection, request):
    """Sends `request` and reads one whole answer."""
    connection.sendall(request)
    got = b""
    while True:
        data = connection.recv(65536)
        if not data:
            raise RuntimeError(f"closed after {got!r}")
        got += data
        head, end, body = got.partition(b"\r\n\r\n")
        if end and len(body) >= int(head.lower().split(b"content-length:")[1].split()[0]):
            return


def anonymous_kib(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))


def cpu_us(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1000


def idle_cost(build, count, tls):
    """KiB for a connection, and microseconds of CPU time for a second of all of them."""
    limits = ("--idle-timeout", "3600", "--max-connections", str(count + 100), "--max-connections-per-address", str(count + 100))
    with daemon(build, *limits, *tls) as (pid, port), contextlib.ExitStack() as kept:
        def open_one():
            connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            if tls:
                connection = ssl._create_unverified_context().wrap_socket(connection)  # its own certificate
            kept.enter_context(connection)
            answer(connection, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(50):
            open_one()
        before = anonymous_kib(pid)
        for _ in range(count):
            open_one()
        time.sleep(2)
        kib, spent = (anonymous_kib(pid) - before) / count, cpu_us(pid)
        time.sleep(5)
        return kib, (cpu_us(pid) - spent) / 5


def upload_us(build, size, times=300):
    request = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % size + bytes(size)
    with daemon(build) as (pid, port), socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for _ in range(50):
            answer(connection, request)
        before = cpu_us(pid)
        for _ in range(times):
            answer(connection, request)
        return (cpu_us(pid) - before) / times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build"))
    parser.add_argument("--against", metavar="BUILD")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    builds = [options.build] + ([options.against] if options.against else [])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * options.connections + 200), hard))
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                        key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"], check=True, stderr=subprocess.DEVNULL)
        for name, tls in (("HTTP", ()), ("TLS", ("--tls-cert", certificate, "--tls-key", key))):
            costs = [idle_cost(build, options.connections, tls) for build in builds]
            print(f"{name}: KiB for a connection:", "  ".join(f"{kib:.1f}" for kib, _ in costs))
            print(f"{name}: us of CPU time a second for {options.connections} connections:",
                  "  ".join(f"{us:.0f}" for _, us in costs))
    for size in SIZES:
        rounds = [[upload_us(build, size) for build in builds] for _ in range(options.rounds)]
        print(f"{size} bytes: us of CPU time:", "  ".join(f"{min(column):.0f}" for column in zip(*rounds)))


if __name__ == "__main__":
    main()
