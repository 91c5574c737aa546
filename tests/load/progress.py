"""The line that moves while load runs. Only on a terminal; a table follows in any case."""

import sys
import time

WIDTH = 24


class Progress:
    def __init__(self, quiet=False, out=sys.stderr):
        self.out = out
        self.live = not quiet and out.isatty()
        self.last = None
        self.length = 0

    def show(self, loop, label, share, good, bad, p50, p99):
        """good, bad: answers since the last call; p50, p99: of those, ms."""
        if not self.live:
            return
        now = time.monotonic()
        rate = good / (now - self.last) if self.last else None
        self.last = now
        full = int(min(share, 1) * WIDTH)
        text = f"{loop} {label:>18} [{'#' * full}{'.' * (WIDTH - full)}]"
        if rate is not None:
            text += f" {rate:8.1f} /s"
        text += f"  p50 {p50:.2f} ms  p99 {p99:.2f} ms"
        if bad:
            text += f"  {bad} failed"
        self.write(text)

    def write(self, text):
        self.out.write("\r" + text.ljust(self.length))
        self.out.flush()
        self.length = len(text)

    def clear(self):
        if self.live and self.length:
            self.out.write("\r" + " " * self.length + "\r")
            self.out.flush()
        self.length, self.last = 0, None
