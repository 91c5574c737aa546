#!/usr/bin/env python3
"""Memory and CPU time of a pipeline that reads pages (docs/tasks.md, "Reading text"); --against: alternating with another build.

    pages.py [--build build] [--against BUILD] [--precision fp32] [--rounds 6] REPOSITORY [PHOTO ...]
    pages.py [--build build] [--precision fp32,auto] --minutes 28 REPOSITORY [PHOTO ...]

REPOSITORY has a pipeline `ocr`. The servers run at once, and each reads all photos in turn; without photos, six drawn pages. Megabytes
are those of /proc/PID/status: when ready and settled, at the end, and the peak. The first round does not count.
--minutes: runs that long and writes the memory of each server every minute.
"""

import argparse
import http.client
import io
import random
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


def draw_page(seed, width, height, lines):
    """JPEG bytes of a page: lines of one to nine words."""
    from PIL import Image, ImageDraw, ImageFont

    chance = random.Random(seed)
    words = "invoice total amount order number street delivery thank you the quick brown fox 2026-11 12.00 EUR No. 7788-A".split()
    page = Image.new("RGB", (width, height), (240, 238, 230))
    for line in range(lines):
        font = ImageFont.truetype("DejaVuSans.ttf", height // lines * chance.randint(35, 60) // 100)
        text = " ".join(chance.choice(words) for _ in range(chance.randint(1, 9)))
        ImageDraw.Draw(page).text((width // 20, 10 + line * (height - 20) // lines), text, (20, 20, 30), font)
    data = io.BytesIO()
    page.save(data, "JPEG", quality=92)
    return data.getvalue()


def hold(daemons, options, photos):
    """Reads the pages for that long. A row a minute: what each server has read, and its megabytes."""
    print("| minute | " + " | ".join(f"{name}: pages | MB" for name in daemons) + " |")
    print("|--:|" + "--:|--:|" * len(daemons))
    begin, minute, read = time.monotonic(), 0, 0
    while minute <= options.minutes:
        if time.monotonic() >= begin + 60 * minute:
            print(f"| {minute} | " + " | ".join(f"{read} | {daemon.memory('VmRSS') / 1e6:.0f}" for daemon in daemons.values()) + " |",
                  flush=True)
            minute += 1
        for daemon in daemons.values():
            read_page(daemon, options.model, photos[read % len(photos)])
        read += 1
    print("the most: " + ", ".join(f"{name} {daemon.memory('VmHWM') / 1e6:.0f} MB" for name, daemon in daemons.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--against")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--minutes", type=int)
    parser.add_argument("--threads", default="0")
    parser.add_argument("--model", default="ocr")
    parser.add_argument("repository")
    parser.add_argument("photos", nargs="*")
    options = parser.parse_args()
    photos = []
    for path in options.photos:
        with open(path, "rb") as file:
            photos.append(file.read())
    photos = photos or [draw_page(seed, *shape) for seed, shape in enumerate(
        ((600, 900, 12), (1440, 1080, 16), (1080, 1440, 24), (1440, 810, 10), (1754, 1240, 30), (720, 1440, 20)))]
    builds = [options.build] + ([options.against] if options.against else [])
    daemons = {}
    try:
        for build in builds:
            for precision in options.precision.split(","):
                name = build if precision == options.precision else precision
                daemons[name] = common.Daemon(build, None, ("--models", options.repository, "--precision", precision,
                                                            "--threads", options.threads))
        time.sleep(30)  # for the trials behind the start
        if options.minutes:
            hold(daemons, options, photos)
            return
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
