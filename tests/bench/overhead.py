#!/usr/bin/env python3
"""What a request costs beside its decode, preparation and forward pass, at concurrency 1.

    overhead.py [--build build] [--model PATH] [--image FILE] [--requests 2000] [-- lensd options]

One keep-alive connection; the client's clock from the first byte sent to the last received, less what
the answer's timing_ms says of decode, preprocess and forward. What is left: both ends' sockets,
parsing, the hand-overs between threads, writing JSON. Median and 99th percentile; beside them the
same for GET /livez, which is the sockets and the parsing alone.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time

sys.dont_write_bytecode = True
import common  # noqa: E402


def read_answer(connection):
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n")
                  if line.startswith(b"content-length"))
    while len(body) < length:
        body += connection.recv(65536)
    return body


def ask(connection, request):
    """(milliseconds, body)"""
    begin = time.perf_counter()
    connection.sendall(request)
    body = read_answer(connection)
    return (time.perf_counter() - begin) * 1e3, body


def spread(values):
    values = sorted(values)
    return (f"{statistics.median(values):8.3f} {values[len(values) // 10]:8.3f} "
            f"{values[len(values) * 99 // 100]:8.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--model", help="default: the embedded digits")
    parser.add_argument("--image", help="default: a made-up photo of 500 x 375")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("lensd", nargs="*", help="options for lensd serve, after --")
    options = parser.parse_args()
    if options.image:
        with open(options.image, "rb") as file:
            photo = file.read()
    else:
        photo = common.photo()
    predict = (f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/jpeg\r\n"
               f"Content-Length: {len(photo)}\r\n\r\n").encode() + photo
    alive = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    rows = {"request": [], "decode": [], "preprocess": [], "queue": [], "forward": [], "overhead": [],
            "GET /livez": []}
    with common.Daemon(options.build, options.model, options.lensd) as daemon:
        with socket.create_connection(("127.0.0.1", daemon.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(options.requests + 50):
                ms, body = ask(connection, predict)
                livez, _ = ask(connection, alive)
                if i < 50:
                    continue
                timing = json.loads(body)["timing_ms"]
                rows["request"].append(ms)
                for phase in ("decode", "preprocess", "queue", "forward"):
                    rows[phase].append(timing[phase])
                rows["overhead"].append(ms - timing["decode"] - timing["preprocess"]
                                        - timing["forward"])
                rows["GET /livez"].append(livez)
    print(f"{common.model_name(options.model)}, {len(photo)} bytes of JPEG, {options.requests} "
          f"requests\n{'ms':12} {'median':>8} {'p10':>8} {'p99':>8}")
    for name, values in rows.items():
        print(f"{name:12} {spread(values)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
