#!/usr/bin/env python3
"""Hours of mixed traffic against one real server on the loopback: photos good and bad, tensors, the paths of
TorchServe and KServe, scrapes, SIGHUP, models that are replaced, slow clients, clients that hang up, bursts beyond
the queue.

It runs in laps. At the end of each all clients stop; once the server is at rest its counters must equal the clients'
exactly (requests by status, images that were answered, clients that left, reloads), and memory, descriptors and
threads are measured. At the end none of the three may grow over the last half of the laps: see drift.py. They grow
if Mann and Kendall's z exceeds 3, the median slope makes 8 MiB or 4 % of the memory, a descriptor or a thread, and it
is not one step: both halves of that half grow."""

import argparse
import base64
import collections
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "http")]
sys.dont_write_bytecode = True

import drift  # noqa: E402
import harness  # noqa: E402
import small_onnx  # noqa: E402
from harness import drawn, flat_png, hang_up, multipart, png, png_header, read, read_answer  # noqa: E402
from test_hostile_answers import LazyClient, rows_request, wide_rows  # noqa: E402
from test_metrics import samples  # noqa: E402

MIB = 2**20
IMAGES = os.path.join(harness.ROOT, "tests", "data", "images")
# Statuses that this traffic must never cause; 503 is the answer to a burst.
UNEXPECTED = ("500", "501", "502", "504", "lost")
SERVER = ("--watch", "--precision", "fp32", "--max-queue", "24", "--max-images", "16", "--max-pixels", "4000000",
          "--log-level", "warn")


class Tally:
    """What the clients saw."""

    def __init__(self):
        self.lock = threading.Lock()
        self.requests, self.events = collections.Counter(), collections.Counter()
        self.surprises = []

    def request(self, status, images=0):
        with self.lock:
            self.requests[str(status)] += 1
            self.events["images"] += images
            self.events["timeouts"] += status == 408

    def event(self, name, count=1):
        with self.lock:
            self.events[name] += count

    def surprise(self, sentence):
        with self.lock:
            if len(self.surprises) < 20:
                self.surprises.append(sentence)


def differences(what, seen, counted):
    """A sentence for each key whose count is not the same on both sides."""
    return [f"{what} {key}: the clients saw {seen.get(key, 0):.0f}, the server counted {counted.get(key, 0):.0f}"
            for key in sorted(set(seen) | set(counted)) if seen.get(key, 0) != counted.get(key, 0)]


def leaks(gauges):
    """A sentence for each gauge that grows."""
    floors = {"rss": max(8 * MIB, 0.04 * statistics.median(gauges["rss"])), "fds": 1, "threads": 1}
    found = {name: drift.grows(values, floors[name]) for name, values in gauges.items()}
    return [f"{name} {sentence}" for name, sentence in found.items() if sentence]


class Client:
    """One connection that stays open, with what it sees counted."""

    def __init__(self, soak):
        self.soak = soak
        self.connection = http.client.HTTPConnection("127.0.0.1", soak.server.port, timeout=harness.PATIENCE)

    def ask(self, method, path, body=None, headers=None, images=0, expect=None):
        """Sends a request; `images` of it count if the answer is 200, `expect` are the statuses it may have."""
        try:
            self.connection.request(method, path, body, headers or {})
            response = self.connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.soak.tally.request("lost")
            self.soak.tally.surprise(f"{method} {path}: no answer: {error!r}")
            self.connection.close()
            return None, b""
        if response.status == 200 and callable(images):
            images = images(text)
        self.soak.tally.request(response.status, images if response.status == 200 else 0)
        # A burst of others may fill the queue at any time, and a busy machine may delay any client.
        if expect and response.status not in (*expect, 408, 503):
            self.soak.tally.surprise(f"{method} {path}: {response.status} {text[:200]!r}, not {expect}")
        return response.status, text

    def close(self):
        self.connection.close()


def results_ok(text):
    return sum("code" not in result for result in json.loads(text)["results"])


def b64(data):
    return base64.b64encode(data).decode()


class Soak:
    def __init__(self, seconds, out=sys.stdout):
        self.seconds, self.out = seconds, out
        self.lap_seconds = min(60.0, seconds / 60)
        # Unfinished heads, bodies and answers are cut after this long, so that slow clients fit into a lap.
        slow = str(max(3.0, min(10.0, self.lap_seconds / 4)))
        self.tally = Tally()
        self.gauges = {"rss": [], "fds": [], "threads": []}
        self.failures = []
        self.scale = 2
        self.root = tempfile.mkdtemp(prefix="lensd-soak-")
        self.photos = [drawn(digit) for digit in range(10)] + [png(200, 150), flat_png(99)] + [
            read(os.path.join(IMAGES, name)) for name in ("jpeg_rgb.jpg", "jpeg_gray.jpg", "exif_6.jpg")]
        self.put("photos", lambda path: small_onnx.classifier(path, layers=3, side=64, channels=16))
        os.makedirs(os.path.join(self.root, "loops"))
        small_onnx.loops_when_light(os.path.join(self.root, "loops"), 0.9)
        self.put("served", wide_rows)
        self.swap()
        keys = os.path.join(self.root, ".keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write(harness.run_lensd("key", "admin").stdout)
        os.chmod(keys, 0o600)
        self.server = harness.Server("--models", self.root, "--admin-key-file", keys, *SERVER, "--header-timeout", slow,
                                     "--body-timeout", slow, "--answer-timeout", slow, wait_ready=False)

    def put(self, name, write):
        """A model, put in place at once."""
        os.makedirs(os.path.join(self.root, name), exist_ok=True)
        draft = os.path.join(self.root, ".draft.onnx")
        write(draft)
        os.rename(draft, os.path.join(self.root, name, "model.onnx"))

    def swap(self):
        self.put("swap", lambda path: small_onnx.doubled_image(path, 2, self.scale))

    # ---- clients: each runs until the end of the lap ----

    def good(self, client, pick):
        photos = [pick.choice(self.photos) for _ in range(4)]
        kind, form = multipart([("image", f"{i}", photo) for i, photo in enumerate(photos)])
        client.ask("POST", "/predict?model=photos", photos[0], images=1, expect=(200,))
        client.ask("POST", "/predict?model=photos&top_k=2", form, {"Content-Type": kind}, results_ok, (200,))
        body = json.dumps({"model": "photos", "images": [{"b64": b64(photo)} for photo in photos[:2]]})
        client.ask("POST", "/predict", body, {"Content-Type": "application/json"}, results_ok, (200,))
        client.ask("POST", "/predictions/photos", photos[1], images=1, expect=(200,))
        body = json.dumps({"instances": [{"b64": b64(photo)} for photo in photos[:2]]})
        client.ask("POST", "/v1/models/photos:predict", body, images=2, expect=(200,))

    def bad(self, client, pick):
        photo = pick.choice(self.photos)
        for body in (b"", b"no image", photo[:len(photo) // 2], png_header(30000, 30000), os.urandom(500)):
            client.ask("POST", "/predict?model=photos", body, expect=(200, 400, 413, 415),
                       images=1)  # half a photo may be whole enough
        kind, form = multipart([("image", "a", photo), ("image", "b", b"no image"), ("image", "c", b"\xff\xd8\xff")])
        client.ask("POST", "/predict?model=photos", form, {"Content-Type": kind}, results_ok, (200,))
        client.ask("POST", "/predict?model=nobody", photo, expect=(404,))
        client.ask("POST", "/predict", b'{"images": [', {"Content-Type": "application/json"}, expect=(400,))
        client.ask("GET", "/no/such/path", expect=(404,))
        client.ask("DELETE", "/predict", expect=(405,))
        client.ask("POST", "/v2/repository/models/photos/load", b"{}", expect=(403, 401))
        client.ask("POST", "/v2/models/swap/infer", b'{"inputs": []}', expect=(400,))

    def tensors(self, client, pick):
        number = pick.randrange(1, 100)
        answer = {"inputs": [{"name": "image", "shape": [1, 3, 2, 2], "datatype": "FP32", "data": [number] * 12}]}
        scales = {self.scale}
        status, text = client.ask("POST", "/v2/models/swap/infer", json.dumps(answer), images=1, expect=(200,))
        scales |= {self.scale, self.scale - 1}  # the model may have been replaced meanwhile
        if status == 200 and json.loads(text)["outputs"][0]["data"][0] not in {number * s for s in scales}:
            self.tally.surprise(f"a tensor times {sorted(scales)} is {text[:300]!r}")
        photo = pick.choice(self.photos)
        client.ask("POST", "/v2/models/photos/infer", struct.pack("<I", len(photo)) + photo,
                   {"Inference-Header-Content-Length": "0"}, images=1, expect=(200,))
        client.ask("POST", "/v2/models/served/infer", rows_request(1), images=1, expect=(200,))
        client.ask("GET", "/v2/models/photos", expect=(200,))

    def scrapes(self, client, _):
        for path in ("/metrics", "/health", "/livez", "/v2/health/ready", "/devices", "/v2/models/stats", "/"):
            client.ask("GET", path, expect=(200,))
        client.ask("POST", "/v2/repository/index", expect=(200,))
        time.sleep(0.05)

    # ---- clients that come once a lap ----

    def seen(self, connection, images=0):
        """Counts the one answer on this connection."""
        answer, _ = read_answer(connection)
        self.tally.request(answer.status, images if answer.status == 200 else 0)
        return answer.status

    def slow(self):
        """Half a body, then nothing; half a head, then nothing; the head of 8 MiB, and nothing more is read."""
        connections = [self.server.connect(), self.server.connect()]
        connections[0].sendall(harness.post("/predict?model=photos", self.photos[0])[:-9])
        connections[1].sendall(b"POST /predict HTTP/1.1\r\nHos")
        for connection in connections:
            if self.seen(connection) != 408:
                self.tally.surprise("a request that never ended got no 408")
            connection.close()
        reader = LazyClient(self.server, rows_request(2))
        self.tally.request(reader.status, 2 if reader.status == 200 else 0)
        if reader.status == 200:
            self.tally.event("timeouts")
            self.wait(lambda found: found["timeouts"] >= found["events"]["timeouts"], "a slow reader to be cut off")
        reader.close()

    def left(self, connection):
        """Hangs up on a request that the server has begun to take."""
        self.tally.event("gone")
        self.tally.request(499)
        hang_up(connection)

    def hang_up_sending(self):
        """Leaves within a body that the server has begun to take."""
        connection = self.server.connect()
        connection.sendall(b"POST /predict?model=photos HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
                           b"Expect: 100-continue\r\n\r\n")
        head = connection.recv(4096)
        if head.startswith(b"HTTP/1.1 100 "):
            connection.sendall(b"x" * 100)
            self.left(connection)
            return
        self.tally.request(int(head.split()[1]))
        connection.close()

    def hang_up_waiting(self):
        """Leaves while its image is in a loop that never ends, so that no answer can cross its leaving."""
        connection = self.server.connect()
        connection.sendall(harness.post("/predict?model=loops", flat_png(255)))
        busy = 'lensd_in_flight_images{model="loops"}'
        while True:
            connection.settimeout(0.02)
            try:
                if connection.recv(1, socket.MSG_PEEK):  # refused: the queue is full
                    connection.settimeout(harness.PATIENCE)
                    self.seen(connection)
                    connection.close()
                    return
            except TimeoutError:
                pass
            if any(line.startswith(busy) and not line.endswith(" 0") for line in self.scrape().splitlines()):
                break
        self.left(connection)

    def burst(self):
        """More images at once than the queue takes: each client is answered or refused."""
        kind, form = multipart([("image", f"{i}", self.photos[i % len(self.photos)]) for i in range(8)])

        def one():
            client = Client(self)
            for _ in range(4):
                client.ask("POST", "/predict?model=photos", form, {"Content-Type": kind}, results_ok, (200,))
            client.close()

        self.together([one] * 24)

    def reload(self):
        self.server.signal(signal.SIGHUP)
        self.tally.event("reloads")
        self.wait(lambda metrics: metrics["reloads"] >= self.tally.events["reloads"], "the keys to be read again")

    def replace(self):
        """Another model in the place of one that clients are using."""
        self.scale += 1
        self.swap()
        body = json.dumps({"inputs": [{"name": "image", "shape": [1, 3, 2, 2], "datatype": "FP32", "data": [1] * 12}]})
        client = Client(self)
        end = time.monotonic() + harness.PATIENCE
        while time.monotonic() < end:
            status, text = client.ask("POST", "/v2/models/swap/infer", body, images=1, expect=(200,))
            if status == 200 and json.loads(text)["outputs"][0]["data"][0] == self.scale:
                break
            time.sleep(0.05)
        else:
            self.tally.surprise("a model that was replaced did not come into use")
        client.close()

    # ---- the server's side ----

    def scrape(self):
        answer = self.server.get("/metrics")
        self.tally.request(answer.status)
        return answer.body.decode()

    def counted(self):
        """The server's counters as of now, the scrape that asks for them not included."""
        with self.tally.lock:
            requests, events = self.tally.requests.copy(), self.tally.events.copy()
        found = samples(self.scrape())

        def total(name, **labels):
            return sum(value for (key, have), value in found.items() if key == name and set(labels.items()) <= have)

        statuses = {dict(labels)["status"]: value for (key, labels), value in found.items()
                    if key == "lensd_http_requests_total"}
        return {"requests": statuses, "images": total("lensd_images_total", result="ok"),
                "gone": total("lensd_http_clients_gone_total"), "timeouts": total("lensd_http_timeouts_total"),
                "reloads": total("lensd_reloads_total", result="ok"), "connections": total("lensd_http_connections"),
                "held": total("lensd_http_upload_bytes") + total("lensd_in_flight_images") +
                total("lensd_queue_images"),
                "rss": total("process_resident_memory_bytes"), "fds": total("process_open_fds"),
                "threads": total("process_threads"), "seen": requests, "events": events}

    def wait(self, condition, what):
        end = time.monotonic() + harness.PATIENCE
        while True:
            found = self.counted()
            if condition(found):
                return found
            if time.monotonic() > end:
                self.tally.surprise(f"waited for {what} in vain")
                return found
            time.sleep(0.05)

    def unequal(self, found):
        events = {name: found["events"][name] for name in ("images", "gone", "timeouts", "reloads")}
        return (differences("requests", {k: v for k, v in found["seen"].items() if k != "lost"}, found["requests"]) +
                differences("counter", events, {name: found[name] for name in events}))

    # ---- laps ----

    def together(self, works):
        def guarded(work):
            try:
                work()
            except Exception as error:  # noqa: B902 - whatever it is, it fails the run
                self.tally.surprise(f"{getattr(work, '__name__', 'a client')}: {error!r}")

        threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(4 * harness.PATIENCE)
        if any(thread.is_alive() for thread in threads):
            self.tally.surprise("a client still waits for an answer")

    def lap(self, number):
        end = time.monotonic() + self.lap_seconds

        def steadily(work, seed):
            def run():
                client, pick = Client(self), random.Random(seed)
                while time.monotonic() < end:
                    work(client, pick)
                client.close()
            run.__name__ = work.__name__
            return run

        def in_turn():
            for work in (self.reload, self.hang_up_sending, self.hang_up_waiting, self.burst):
                work()

        self.together([steadily(work, number * 10 + i) for i, work in enumerate(
            (self.good, self.good, self.bad, self.tensors, self.scrapes))] +
            [in_turn, self.replace] + [self.slow] * (number % 3 == 0))
        # Loading a model gives the allocator's free memory back: what is measured now is in use.
        self.replace()
        found = self.wait(lambda metrics: metrics["connections"] <= 1 and metrics["held"] == 0 and
                          not self.unequal(metrics), "the server to be at rest with the clients' counts")
        self.failures += [f"lap {number}: {sentence}" for sentence in self.unequal(found)]
        for name, values in self.gauges.items():
            values.append(found[name])
        return found

    def say(self, found, number, seconds):
        statuses = " ".join(f"{status}:{count:.0f}" for status, count in sorted(found["requests"].items()))
        print(f"{seconds / 60:6.1f} min  lap {number}  {statuses}  images {found['images']:.0f}  "
              f"gone {found['gone']:.0f}  rss {found['rss'] / MIB:.1f} MiB  fds {found['fds']:.0f}  "
              f"threads {found['threads']:.0f}", file=self.out, flush=True)

    def run(self):
        """Returns the sentences that make it a failure."""
        begin = said = time.monotonic()
        try:
            self.server.wait_for(lambda: self.server.process.poll() is not None or
                                 self.ready(), "readiness")
            number = 0
            # Enough laps for drift.py, however short the time.
            while time.monotonic() - begin < self.seconds or number < 2 * drift.FEWEST:
                found = self.lap(number)
                number += 1
                now = time.monotonic()
                if number == 1 or now - said >= 60:
                    said = now
                    self.say(found, number, now - begin)
                if self.failures or len(self.tally.surprises) >= 20 or self.server.process.poll() is not None:
                    break
            else:
                self.say(found, number, time.monotonic() - begin)
                self.failures += leaks(self.gauges)
        finally:
            code, log = self.server.stop()
            shutil.rmtree(self.root, ignore_errors=True)
        if code != 0:
            self.failures.append(f"the server ended with {code}: {log[-2000:]}")
        self.failures += [f"{self.tally.requests[status]} answers were {status}" for status in UNEXPECTED
                          if self.tally.requests[status]]
        return self.failures + self.tally.surprises

    def ready(self):
        answer = self.server.get("/readyz")
        self.tally.request(answer.status)
        return answer.status == 200


def duration(text):
    """"2h", "3m", "90s"; a bare number is hours."""
    unit = {"h": 3600, "m": 60, "s": 1}.get(text[-1:], 0)
    seconds = float(text[:-1]) * unit if unit else float(text) * 3600
    if not 0 < seconds <= 48 * 3600:
        raise ValueError(text)
    return seconds


def main():
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("time", nargs="?", type=duration, default="2h", help="how long, at most 48h: 2h (default), 3m, 90s")
    seconds = parser.parse_args().time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is stopped first
    failures = Soak(seconds).run()
    for sentence in failures:
        print(f"soak: {sentence}")
    print("soak: failed" if failures else
          "soak: passed: every counter equal after each lap; memory, descriptors and threads do not grow")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
