#!/usr/bin/env python3
"""Models that come and go: clients ask 40 models of mixed sizes at random, the first of them more often, under a --memory
that holds about eight of them. Clients hang up while a model loads, files change, the API unloads and loads, requests
bring keep_alive. It runs in laps; at the end of each the server's counters must equal the clients' (answers,
every load and unload), every answer must be right, and memory, descriptors and threads must not grow (drift.py). At
the end SIGTERM comes while clients wait for loads."""

import argparse
import itertools
import json
import os
import random
import signal
import socket
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "http")]
sys.dont_write_bytecode = True

import drift  # noqa: E402
import harness  # noqa: E402
import soak  # noqa: E402
import test_lazy  # noqa: E402
from test_metrics import samples  # noqa: E402

MODELS = 40
COLUMNS = [256 << i % 5 for i in range(MODELS)]  # of the weights: 1.7 to 27 MiB
BUDGET = 8 * sum(12 * test_lazy.SIDE ** 2 * columns for columns in COLUMNS) * 2 // MODELS  # a file, and its packed copy
OWN = ("--load", "lazy", "--idle-unload", "2s", "--watch", "--precision", "fp32", "--log-level", "warn")


class Demand(test_lazy.Memory):
    """The test case makes the folder and asks; it is run by Run, not by unittest."""

    def runTest(self):
        pass


def total(found, name, **labels):
    return sum(value for (key, has), value in found.items() if key == name and has >= set(labels.items()))


class Run:
    def __init__(self, seconds, out=sys.stdout):
        self.seconds, self.out = seconds, out
        self.lap_seconds = min(60.0, seconds / 40)
        self.case = Demand()
        self.case.setUp()
        self.scale = [i + 2 for i in range(MODELS)]
        self.lock = threading.Lock()
        self.statuses, self.surprises, self.failures = {}, [], []
        self.left = self.scrapes = 0
        self.gauges = {"rss": [], "fds": [], "threads": []}
        for i in range(MODELS):
            self.put(i)
        self.server = self.case.serve(*OWN, "--memory", f"cpu={BUDGET >> 20}M")
        # Those that the start of the server took; the scrape itself is counted after it.
        self.before = total(samples(self.server.get("/metrics").body.decode()), "lensd_http_requests_total") + 1

    def name(self, i):
        return f"m{i:02}"

    def put(self, i):
        # Beside the folder first: the watcher reads what stands under a model's name.
        aside = os.path.join(self.case.root, f".{self.name(i)}.onnx")
        folder = os.path.join(self.case.root, self.name(i))
        os.makedirs(folder, exist_ok=True)
        test_lazy.weighty(aside, test_lazy.SIDE, self.scale[i], COLUMNS[i])
        os.replace(aside, os.path.join(folder, "model.onnx"))

    def count(self, status):
        with self.lock:
            self.statuses[str(status)] = self.statuses.get(str(status), 0) + 1

    def surprise(self, sentence):
        with self.lock:
            self.surprises.append(sentence)

    def request(self, *arguments, **keywords):
        answer = self.server.request(*arguments, **keywords)
        self.count(answer.status)
        return answer

    # ---- clients ----

    BODY = json.dumps({"inputs": [{"name": "image", "shape": [1, 3, test_lazy.SIDE, test_lazy.SIDE], "datatype": "FP32",
                                   "data": [1] * 3 * test_lazy.SIDE ** 2}], "outputs": [{"name": "scaled"}]}).encode()

    def ask(self, pick):
        # The last four change their files and are unloaded by the API; see swap().
        i = min(pick.randrange(MODELS), pick.randrange(MODELS))
        query = pick.choice(["", "", "", "?keep_alive=0", "?keep_alive=1s"])
        answer = self.request("POST", f"/v2/models/{self.name(i)}/infer{query}", self.BODY)
        if answer.status == 200:
            # The files that it had before may answer until the new one is loaded.
            value = answer.json()["outputs"][0]["data"][0]
            if value > self.scale[i] or (self.scale[i] - value) % MODELS != 0:
                self.surprise(f"{self.name(i)} answered {value}, not {self.scale[i]}")
        elif answer.status != 503:  # 503: every other model is in use, or unloaded by the API
            self.surprise(f"{self.name(i)}: {answer.status} {answer.body[:200]!r}")

    def hang_up(self, pick):
        """Sends a request and leaves; the server counts it as 499, or with the status of an answer that was ready."""
        i = pick.randrange(MODELS)
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=harness.PATIENCE) as client:
            client.sendall(b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" %
                           (self.name(i).encode(), len(self.BODY)) + self.BODY)
            time.sleep(pick.random() / 10)
        time.sleep(pick.random() / 4)

    def swap(self, pick):
        """A new file, or an unload and a load through the API, of the last models."""
        i = MODELS - 1 - pick.randrange(4)
        if pick.randrange(2):
            with self.lock:
                self.scale[i] += MODELS
            self.put(i)
        else:
            for job in ("unload", "load"):
                answer = self.case.admin(self.server, self.name(i), job)
                self.count(answer.status)
                if answer.status not in (200, 503):
                    self.surprise(f"{job} {self.name(i)}: {answer.status} {answer.body[:200]!r}")
        time.sleep(pick.random())

    # ---- laps ----

    def at_rest(self):
        """Waits until no connection but ours is there and nothing is loaded; returns the metrics."""
        def rests():
            self.scrapes += 1
            found = samples(self.server.get("/metrics").body.decode())
            return found if total(found, "lensd_model_loaded") == 0 and total(found, "lensd_http_connections") <= 1 else None
        return self.server.wait_for(rests, "the server to be at rest")

    def check(self, number, found):
        loads, unloads = total(found, "lensd_model_loads_total"), total(found, "lensd_model_unloads_total")
        if loads != unloads:
            self.failures.append(f"lap {number}: {loads:.0f} loads, {unloads:.0f} unloads, and nothing is loaded")
        # Requests of clients that left may have any status, or none if they left before it was read. The last scrape has
        # not been counted yet.
        seen = self.before + sum(self.statuses.values()) + self.scrapes - 1
        counted = total(found, "lensd_http_requests_total")
        if not seen <= counted <= seen + self.left:
            self.failures.append(f"lap {number}: the clients saw {seen:.0f} answers, and {self.left} left; the server "
                                 f"counted {counted:.0f}")
        for status in ("500", "501", "502", "504"):
            if total(found, "lensd_http_requests_total", status=status):
                self.failures.append(f"lap {number}: answers were {status}")
        process = self.server.process.pid
        self.gauges["rss"].append(test_lazy.process(self.server, "VmRSS") << 10)
        self.gauges["threads"].append(test_lazy.process(self.server, "Threads"))
        self.gauges["fds"].append(len(os.listdir(f"/proc/{process}/fd")))
        return loads, total(found, "lensd_model_unloads_total", cause="memory")

    def lap(self, number):
        end = time.monotonic() + self.lap_seconds

        def steadily(work, seed):
            pick = random.Random(seed)
            try:
                while time.monotonic() < end:
                    work(pick)
                    if work == self.hang_up:
                        self.left += 1
            except Exception as error:  # noqa: B902 - whatever it is, it fails the run
                self.surprise(f"{work.__name__}: {error!r}")
        works = [self.ask] * 6 + [self.hang_up, self.swap]
        threads = [threading.Thread(target=steadily, args=(work, number * 10 + i), daemon=True)
                   for i, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * harness.PATIENCE)
        self.at_rest()
        for i in range(MODELS - 4, MODELS):
            value = self.case.ask(self.server, self.name(i))
            self.count(200)
            if value != self.scale[i]:
                self.surprise(f"{self.name(i)} answers {value} after its file changed, not {self.scale[i]}")
        return self.check(number, self.at_rest())

    def run(self):
        begin = said = time.monotonic()
        for number in itertools.count():
            if time.monotonic() - begin >= self.seconds and number >= 2 * drift.FEWEST:
                break
            loads, evicted = self.lap(number)
            if number == 0 or time.monotonic() - said >= 60:
                said = time.monotonic()
                print(f"{(said - begin) / 60:6.1f} min  lap {number}  answers {self.statuses}  left {self.left}  loads {loads:.0f}  "
                      f"for memory {evicted:.0f}  rss {self.gauges['rss'][-1] / soak.MIB:.1f} MiB  "
                      f"fds {self.gauges['fds'][-1]}  threads {self.gauges['threads'][-1]}", file=self.out, flush=True)
            if self.failures or self.surprises:
                break
        else:
            self.failures.append("no lap")
        self.failures += soak.leaks(self.gauges) if not self.failures else []
        waiting = [threading.Thread(target=self.last, args=(i,), daemon=True) for i in range(8)]
        for thread in waiting:
            thread.start()
        time.sleep(0.2)
        code, log = self.server.stop()
        if code != 0:
            self.failures.append(f"the server ended with {code}: {log[-2000:]}")
        for thread in waiting:
            thread.join(harness.PATIENCE)
        self.case.doCleanups()
        return self.failures + self.surprises

    def last(self, i):
        """A request that SIGTERM finds: it is answered, refused, or not accepted any more."""
        try:
            answer = self.server.request("POST", f"/v2/models/{self.name(i * 5)}/infer", self.BODY)
            if answer.status not in (200, 503):
                self.surprise(f"at SIGTERM: {answer.status} {answer.body[:200]!r}")
        except OSError:
            pass


def main():
    parser = argparse.ArgumentParser(prog="./dev soak --models", description=__doc__)
    parser.add_argument("time", nargs="?", type=soak.duration, default="30m", help="how long: 30m (default), 3m, 90s")
    seconds = parser.parse_args().time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failures = Run(seconds).run()
    for sentence in failures:
        print(f"soak: {sentence}")
    print("soak: failed" if failures else
          "soak: passed: counters equal after each lap, answers right; memory, descriptors and threads do not grow")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
