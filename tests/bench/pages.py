#!/usr/bin/env python3
"""Memory and CPU time of a pipeline that reads pages (docs/tasks.md, "Reading text"), in turns with another build.

    pages.py [--build build] [--against BUILD] [--precision fp32] [--rounds 6] REPOSITORY PHOTO ...

The pipeline is the first of the folder REPOSITORY. Both servers run at once, and each reads all photos in turn. Megabytes are
those of /proc/PID/status: when ready and settled, at the end, and the most there were. The first round does not count.
"""

import argparse
import http.client
import statistics
import sys
import time

sys.dont_write_bytecode = True
import common  # noqa: E402


def read_page(daemon, name, photo):
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=300)
    connection.request("POST", f"/predict?model={name}", photo, {"Accept": "text/plain"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return body


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--against")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", default="ocr")
    parser.add_argument("repository")
    parser.add_argument("photos", nargs="+")
    options = parser.parse_args()
    photos = []
    for path in options.photos:
        with open(path, "rb") as file:
            photos.append(file.read())
    builds = [options.build] + ([options.against] if options.against else [])
    daemons = {build: common.Daemon(build, None, ("--models", options.repository, "--precision", options.precision))
               for build in builds}
    try:
        time.sleep(30)  # for the trials behind the start
        ready = {build: daemon.memory("VmRSS") for build, daemon in daemons.items()}
        cpu, wall, texts = {b: [] for b in builds}, {b: [] for b in builds}, {}
        for turn in range(options.rounds + 1):
            for build, daemon in daemons.items():
                begin, used = time.monotonic(), daemon.cpu_seconds()
                texts[build] = [read_page(daemon, options.model, photo) for photo in photos]
                if turn:
                    cpu[build].append((daemon.cpu_seconds() - used) / len(photos))
                    wall[build].append((time.monotonic() - begin) / len(photos))
        print("| build | ready MB | end MB | peak MB | CPU s a page, median | wall s a page, median |")
        print("|---|--:|--:|--:|--:|--:|")
        for build, daemon in daemons.items():
            print(f"| {build} | {ready[build] / 1e6:.0f} | {daemon.memory('VmRSS') / 1e6:.0f} | {daemon.memory('VmHWM') / 1e6:.0f} "
                  f"| {statistics.median(cpu[build]):.3f} | {statistics.median(wall[build]):.3f} |")
        if options.against:
            print("texts are equal:", texts[builds[0]] == texts[builds[1]])
    finally:
        for daemon in daemons.values():
            daemon.stop()


if __name__ == "__main__":
    main()
