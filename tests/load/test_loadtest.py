#!/usr/bin/env python3
"""The load test tested: its generators against a server whose behaviour is known, its search against a
model with a known answer, the whole against lensd. LOADGEN and LENSD name the programs."""

import asyncio
import contextlib
import csv
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "http"))
import generators  # noqa: E402
import harness  # noqa: E402
import small_onnx  # noqa: E402
import slo  # noqa: E402
import target as targets  # noqa: E402

LOADGEN = os.environ.get("LOADGEN", "")
DRAWN = os.path.join(harness.DIGITS, "drawn")
BOUND = 120


class KnownServer:
    """HTTP/1.1 with kept connections, in a thread. Answers at once, but for what a test asks for:
    stall: (seconds after the first request, how long) in which nothing is answered;
    delay: seconds before each answer; status: of the n-th request."""

    def __init__(self, stall=None, delay=0.0, status=lambda n: 200):
        self.stall, self.delay, self.status = stall, delay, status
        self.arrivals, self.seen, self.connections, self.peers = [], [], 0, set()
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(ready,), daemon=True)
        self.thread.start()
        assert ready.wait(BOUND)

    def run(self, ready):
        async def begin():
            self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0,
                                                     backlog=1024)
            self.port = self.server.sockets[0].getsockname()[1]
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(begin())
        ready.set()
        self.loop.run_forever()
        self.server.close()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.close()

    async def serve(self, reader, writer):
        self.connections += 1
        self.peers.add(writer.get_extra_info("peername")[0])
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                headers = {name.lower(): value for name, value in
                           (line.split(": ", 1) for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(first, headers, body, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, first, headers, body, writer):
        now = time.monotonic()
        n = len(self.arrivals)
        self.arrivals.append(now)
        self.seen.append((first, headers, body))
        if self.stall:
            begin, length = self.stall
            wait = self.arrivals[0] + begin + length - now
            if 0 < wait <= length:
                await asyncio.sleep(wait)
        if self.delay:
            await asyncio.sleep(self.delay)
        text = b'{"ok":true}'
        writer.write(f"HTTP/1.1 {self.status(n)} X\r\nContent-Length: {len(text)}\r\n\r\n".encode()
                     + text)
        await writer.drain()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/predict"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(BOUND)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lensd-load-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.manifest = os.path.join(self.folder, "manifest")
        body = os.path.join(self.folder, "body")
        with open(body, "wb") as file:
            file.write(b"x" * 1000)
        with open(self.manifest, "w", encoding="utf-8") as file:
            file.write(f"{body}\tContent-Type: image/jpeg\n")


@unittest.skipUnless(LOADGEN, "loadgen was not built: libcurl4-openssl-dev is missing")
class Loadgen(Folder):
    def loadgen(self, url, *arguments):
        ended = subprocess.run([LOADGEN, "--url", url, "--manifest", self.manifest, *arguments],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               timeout=BOUND)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        self.assertIn("result", lines[-1])
        self.progress = [line["progress"] for line in lines[:-1]]
        return lines[-1]["result"]

    def share(self, result, name, share):
        return generators.quantile(result[name]["buckets"], share)

    def waited(self, result, share):
        """The same from the intended time; what was given up has waited longer than any."""
        value = generators.quantile(result["latency"]["buckets"], share, sum(result["errors"].values()))
        return float("inf") if value is None else value

    def test_from_another_address(self):
        with KnownServer() as server:
            result = self.loadgen(server.url, "--concurrency", "2", "--seconds", "50", "--warmup", "0", "--requests", "8",
                                  "--from", "127.0.0.3")
            self.assertEqual(set(result["statuses"]), {"200"})
            self.assertEqual(server.peers, {"127.0.0.3"})

    def test_rate_is_kept_and_random(self):
        with KnownServer() as server:
            result = self.loadgen(server.url, "--rate", "300", "--seconds", "3", "--warmup", "0.5")
            # A Poisson number of arrivals: 900 give or take 4 x 30.
            self.assertTrue(780 <= result["sent"] <= 1020, result["sent"])
            self.assertEqual(result["statuses"], {"200": result["sent"]})
            self.assertEqual(result["sent_bytes"], 1000 * result["sent"])
            self.assertTrue(780 <= len(server.arrivals) - 150 <= 1040, len(server.arrivals))
            gaps = [b - a for a, b in zip(server.arrivals, server.arrivals[1:])]
            # Exponential gaps vary as much as they are long; a metronome's would not vary.
            variation = statistics.stdev(gaps) / statistics.mean(gaps)
            self.assertGreater(variation, 0.6)
            self.assertGreaterEqual(len(self.progress), 4)

    def test_even_arrivals_are_a_metronome(self):
        with KnownServer() as server:
            # Random arrivals would be 40 give or take 6.
            for seed in "12345":
                result = self.loadgen(server.url, "--rate", "100", "--even", "--seconds", "0.4", "--warmup", "0", "--seed", seed)
                self.assertIn(result["sent"], (39, 40))

    def test_seed_repeats_the_load(self):
        with KnownServer() as server:
            counts = {self.loadgen(server.url, "--rate", "200", "--seconds", "0.5", "--warmup", "0",
                                   "--seed", seed)["sent"] for seed in ("7", "7")}
            self.assertEqual(len(counts), 1)

    def test_stall_shows_in_the_open_loop(self):
        with KnownServer(stall=(1.0, 0.8)) as server:
            result = self.loadgen(server.url, "--rate", "200", "--seconds", "2.5", "--warmup", "0")
        # 0.8 of 2.5 s stand still: a third of the requests waits, up to 0.8 s.
        self.assertGreater(self.waited(result, 0.9), 400)
        self.assertGreater(self.waited(result, 0.99), 600)
        self.assertEqual(result["good"], result["sent"], result["errors"])
        self.assertGreater(result["most_running"], 20)

    def test_stall_counts_for_what_waits_for_a_connection(self):
        with KnownServer(stall=(1.0, 0.8)) as server:
            result = self.loadgen(server.url, "--rate", "200", "--seconds", "2.2", "--warmup", "0",
                                  "--connections", "4")
        self.assertGreater(self.waited(result, 0.9), 400)
        # Only four requests were under way while it stood still: counted from when they were really
        # sent, the stall is almost invisible. That is what must not be reported.
        self.assertLess(self.share(result, "service", 0.9), self.waited(result, 0.9) / 2)
        self.assertGreater(result["most_waiting"], 20)

    def test_closed_loop_hides_the_stall(self):
        with KnownServer(stall=(0.5, 0.8)) as server:
            result = self.loadgen(server.url, "--concurrency", "1", "--seconds", "2", "--warmup", "0")
        self.assertGreater(result["latency"]["max_us"], 400000)
        self.assertLess(self.share(result, "latency", 0.8), result["latency"]["max_us"] / 2e3)

    def test_closed_loop_keeps_its_connections(self):
        with KnownServer(delay=0.02) as server:
            result = self.loadgen(server.url, "--concurrency", "4", "--seconds", "50", "--warmup", "0", "--requests", "60")
            self.assertEqual(server.connections, 4)
        self.assertEqual(result["good"], 60)
        self.assertGreaterEqual(self.share(result, "latency", 0.5), 20)

    def test_goodput_counts_answers_that_end_in_the_window(self):
        with KnownServer(delay=0.6) as server:
            result = self.loadgen(server.url, "--concurrency", "4", "--seconds", "0.3", "--warmup", "0")
            self.assertEqual((result["good"], result["goodput"]), (result["sent"], 0))  # asked in time, answered too late
            result = self.loadgen(server.url, "--concurrency", "4", "--seconds", "50", "--warmup", "0.3", "--requests", "4")
            self.assertEqual(result["goodput"], 4 / 50)  # asked before it

    def test_statuses_and_timeouts(self):
        with KnownServer(status=lambda n: 503 if n % 4 == 0 else 200) as server:
            result = self.loadgen(server.url, "--concurrency", "1", "--seconds", "50", "--warmup", "0",
                                  "--requests", "400")
        self.assertEqual(result["statuses"], {"200": 300, "503": 100})
        self.assertEqual(result["latency"]["count"], 300)
        self.assertEqual(result["refused"]["count"], 100)
        with KnownServer(delay=BOUND) as server:
            result = self.loadgen(server.url, "--rate", "40", "--seconds", "0.5", "--warmup", "0",
                                  "--timeout", "0.2")
        self.assertEqual(result["good"], 0)
        self.assertEqual(result["errors"]["timeout"], result["sent"])

    def test_nobody_listens(self):
        with KnownServer() as server:
            url = server.url
            closed = threading.Event()
            server.loop.call_soon_threadsafe(lambda: (server.server.close(), closed.set()))
            self.assertTrue(closed.wait(BOUND))
            result = self.loadgen(url, "--rate", "40", "--seconds", "0.5", "--warmup", "0")
        self.assertEqual(result["errors"]["connect"], result["sent"])

    def test_bad_options(self):
        for arguments in (["--rate", "0"], ["--rate", "5x"], ["--rate", "5", "--concurrency", "2"], [],
                          ["--rate", "5", "--seconds", "nan"]):
            ended = subprocess.run([LOADGEN, "--url", "http://127.0.0.1:1/", "--manifest",
                                    self.manifest, *arguments], stderr=subprocess.PIPE, timeout=BOUND)
            self.assertEqual(ended.returncode, 2, arguments)
            self.assertTrue(ended.stderr)


class Overload(unittest.TestCase):
    """Its judgement of figures that were made up; it starts and loads its own server."""

    def setUp(self):
        loader = importlib.machinery.SourceFileLoader("overload", os.path.join(HERE, "overload"))
        self.overload = importlib.util.module_from_spec(importlib.util.spec_from_loader("overload", loader))
        loader.exec_module(self.overload)
        probes = {"/livez": {"p50": 1.0, "p99": 2.0, "max": 49.0, "count": 9}}
        run = {"answers_per_s": 100.0, "p50_ms": 10.0, "p99_ms": 29.0, "statuses": {"200": 1}}
        self.round = {"8 clients": {**run, "probes": probes, "probes_failed": 0},
                      "256 clients": {**run, "probes": probes, "probes_failed": 0}, "polite alone": run,
                      "polite beside 64 greedy, same": run}

    def judge(self, apart=False, **changes):
        found = json.loads(json.dumps(self.round))
        for name, values in changes.items():
            found[name.replace("_", " ")].update(values)
        with contextlib.redirect_stdout(io.StringIO()):
            return self.overload.judge(types.SimpleNamespace(apart=apart), [found], 10.0)

    def test_bars(self):
        self.assertEqual(self.judge(), [])
        self.assertEqual(self.judge(**{"256 clients": {"answers_per_s": 86.0}}), [])
        self.assertEqual(self.judge(apart=True, **{"256 clients": {"answers_per_s": 86.0}}), ["goodput"])
        self.assertEqual(self.judge(**{"256 clients": {"probes_failed": 1}}), ["probes failed"])
        self.assertEqual(self.judge(**{"polite beside 64 greedy, same": {"p99_ms": 31.0}}), ["polite beside 64 greedy, same"])
        self.assertEqual(self.judge(**{"polite beside 64 greedy, same": {"p99_ms": None}}), ["polite beside 64 greedy, same"])
        self.round["256 clients"]["probes"] = {"/livez": {"p50": 1.0, "p99": 2.0, "max": 51.0, "count": 9}}
        self.assertEqual(self.judge(), ["/livez"])


class Search(unittest.TestCase):
    """The search against servers whose p99 is a formula of the rate."""

    def result(self, rate, p99, bad=0):
        result = generators.Result("open", rate)
        result.seconds, result.good = 10, 10000
        result.buckets = [[int(p99 * 1e3), result.good]]
        result.statuses = {200: result.good, 503: bad}
        return result

    def search(self, first, behave, out_of_time=lambda: False):
        def run(rate):
            return behave(rate)
        return slo.search(slo.Objective("50ms@p99"), first, run, run, out_of_time)

    def queue(self, capacity):
        """M/M/1-like: 10 ms of service, growing towards the capacity."""
        def behave(rate):
            return self.result(rate, 10 / max(1e-3, 1 - rate / capacity))
        return behave

    def test_finds_the_knee(self):
        for capacity in (7, 130, 2400, 100000):
            for first in (capacity * 0.05, capacity * 0.7, capacity * 3):
                best, tried = self.search(first, self.queue(capacity))
                # 50 ms are met up to 0.8 of the capacity.
                self.assertLessEqual(best.asked, 0.8 * capacity)
                self.assertGreaterEqual(best.asked, 0.8 * capacity / 1.09)
                self.assertLessEqual(len(tried), slo.PROBES + 4)

    def test_failures_count_as_missed(self):
        best, _ = self.search(100, lambda rate: self.result(rate, 1, bad=200 if rate > 60 else 0))
        self.assertLessEqual(best.asked, 60)
        self.assertGreaterEqual(best.asked, 55)

    def test_nothing_holds(self):
        best, tried = self.search(100, lambda rate: self.result(rate, 80))
        self.assertIsNone(best)
        self.assertLessEqual(len(tried), slo.PROBES)

    def test_a_lucky_probe_is_not_believed(self):
        calls = []

        def behave(rate):
            calls.append(rate)
            lucky = len(calls) == 1
            return self.result(rate, 10 if lucky or rate < 90 else 80)
        best, _ = self.search(100, behave)
        self.assertTrue(best is None or best.asked < 100, best and best.asked)

    def test_time_ends_it(self):
        best, tried = self.search(100, self.queue(1000), out_of_time=lambda: True)
        self.assertIsNone(best)
        self.assertEqual(tried, [])

    def test_objectives(self):
        self.assertEqual(str(slo.Objective("0.05s@p99.9")), "50 ms at p99.9")
        for text in ("50ms", "50@p99", "ms@p99", "50ms@p100", "0ms@p50", "50ms@p0", "50ms@p99x"):
            with self.assertRaises(ValueError, msg=text):
                slo.Objective(text)


class Pieces(unittest.TestCase):
    def test_quantiles_with_missing(self):
        buckets = [[1000, 90], [2000, 10]]
        self.assertEqual(generators.quantile(buckets, 0.9), 1)
        self.assertEqual(generators.quantile(buckets, 0.91), 2)
        self.assertEqual(generators.quantile(buckets, 0.9, missing=10), 2)
        self.assertIsNone(generators.quantile(buckets, 0.99, missing=10))
        self.assertIsNone(generators.quantile([], 0.5))

    def test_targets(self):
        self.assertEqual(targets.Target("localhost:81/a?b=1").base, "http://localhost:81")
        self.assertEqual(targets.Target("http://[::1]:80/x").path, "/x")
        for text, loopback in (("127.4.5.6", True), ("http://[::1]", True), ("localhost", True),
                               ("10.0.0.1", False), ("localhost.example.org", False)):
            self.assertEqual(targets.Target(text).is_loopback(), loopback, text)
        for text in ("ftp://127.0.0.1", "http://", "http://127.0.0.1:99999"):
            with self.assertRaises(targets.Refusal, msg=text):
                targets.Target(text)


@unittest.skipUnless(LOADGEN, "loadgen was not built: libcurl4-openssl-dev is missing")
class Loadtest(Folder):
    def loadtest(self, url, place, *arguments):
        self.out = os.path.join(self.folder, "out")
        return subprocess.run([sys.executable, os.path.join(HERE, "loadtest"), url, place, "--out",
                               self.out, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=2 * BOUND)

    def report(self):
        with open(os.path.join(self.out, "results.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_lensd(self):
        server = harness.Server("--max-queue", "100000", "--max-queue-ms", "0")
        self.addCleanup(server.stop)
        url = f"http://127.0.0.1:{server.port}"
        ended = self.loadtest(url, DRAWN, "--seconds", "1", "--warmup", "0.3", "--closed", "1,4",
                              "--open", "50,100", "--mode", "multipart", "--images", "3")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(sorted(os.listdir(self.out)), ["closed.svg", "latency.svg", "report.html",
                                                        "results.csv", "results.json"])
        runs = self.report()["runs"]
        self.assertEqual([run["loop"] for run in runs], ["closed", "closed", "open", "open"])
        for run in runs:
            self.assertEqual(run["statuses"], {"200": run["good"]})
            self.assertAlmostEqual(run["images_per_s"], 3 * run["requests_per_s"], delta=0.01)
        # The server counts what the client counts.
        self.assertGreaterEqual(server.metric("lensd_images_total"), 3 * sum(r["good"] for r in runs))
        with open(os.path.join(self.out, "results.csv"), encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([row["good"] for row in rows], [str(run["good"]) for run in runs])
        for name in ("latency.svg", "closed.svg"):
            xml.etree.ElementTree.parse(os.path.join(self.out, name))
        page = harness.read(os.path.join(self.out, "report.html")).decode()
        self.assertIn("<svg", page)
        self.assertNotIn("://", page.replace("http://127.0.0.1", "").replace("http://www.w3.org", ""))

    def test_boxes_of_a_detector(self):
        boxes = [10, 20, 30, 60, .7, 3, 1, 2, 3, 4, .65, 2] + [0] * 6
        small_onnx.always(os.path.join(self.folder, "model.onnx"), [("o", (3, 6), boxes)])
        server = harness.Server(self.folder)
        self.addCleanup(server.stop)
        ended = self.loadtest(f"http://127.0.0.1:{server.port}", DRAWN, "--seconds", "0.5", "--warmup", "0", "--closed", "2",
                              "--open", "none")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        found = int(server.metric("lensd_detections_total{")) - 2  # of the request before the load
        self.assertIn(f"\n{found} boxes were found", ended.stdout)
        self.assertGreaterEqual(found, 2 * sum(run["good"] for run in self.report()["runs"]))
        self.assertEqual(self.report()["facts"][0].split()[0], str(found))

    def test_lensd_v2(self):
        server = harness.Server()
        self.addCleanup(server.stop)
        ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN, "--seconds", "0.5", "--warmup", "0",
                              "--closed", "2", "--open", "none", "--mode", "v2", "--images", "2")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("/v2/models/digits/infer", ended.stdout)
        run, = self.report()["runs"]
        self.assertEqual(run["statuses"], {"200": run["good"]})

    def test_objective(self):
        with KnownServer(delay=0.01) as server:
            ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN, "--slo", "2s@p90", "--seconds",
                                  "0.2", "--warmup", "0", "--max-seconds", "2", "--timeout-ms", "2500",
                                  "--header", "Authorization: Bearer one")
            self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
            self.assertEqual({headers["x-request-timeout-ms"] for _, headers, _ in server.seen},
                             {"2500"})
            self.assertEqual({headers["authorization"] for _, headers, _ in server.seen},
                             {"Bearer one"})
        self.assertGreater(self.report()["highest_rate"], 0)
        self.assertIn("2000 ms at p90 is met up to", ended.stdout)
        with KnownServer(delay=0.05) as server:
            ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN, "--slo", "1ms@p50", "--seconds",
                                  "0.2", "--warmup", "0", "--max-seconds", "2")
        self.assertEqual(ended.returncode, 1, ended.stdout + ended.stderr)

    def test_a_server_that_goes_away(self):
        server = harness.Server()
        self.addCleanup(server.stop)

        def kill():
            server.wait_for(lambda: server.metric("lensd_images_total{") > 3, "the load")
            server.process.kill()
        threading.Thread(target=kill, daemon=True).start()
        ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN, "--closed", "2", "--open", "none",
                              "--seconds", "5", "--warmup", "0")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("the server went away during the load", ended.stderr)

    def test_refusals_are_counted_and_it_ends_where_it_is_told(self):
        with KnownServer(status=lambda n: 503 if n % 3 == 2 else 200) as server:
            ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN, "--closed", "2", "--open", "none",
                                  "--seconds", "50", "--warmup", "0", "--max-requests", "100")
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertLessEqual(len(server.arrivals), 110)
            run = self.report()["runs"][0]
            self.assertAlmostEqual(run["statuses"]["503"] / run["statuses"]["200"], 0.5, delta=0.1)

    def test_sentences(self):
        for words, arguments in (
                ("--allow-remote", ["http://192.0.2.1", DRAWN]),
                ("Is the server running", ["127.0.0.1:1", DRAWN]),
                ("no JPEG or PNG file", ["127.0.0.1:1", HERE]),
                ("there is no folder", ["127.0.0.1:1", "/nowhere/at/all"]),
                ("one image", ["127.0.0.1:1", DRAWN, "--images", "2"]),
                ("50ms@p99", ["127.0.0.1:1", DRAWN, "--slo", "fast"]),
                ("leave nothing", ["127.0.0.1:1", DRAWN, "--closed", "none", "--open", "none"])):
            ended = self.loadtest(*arguments)
            self.assertEqual(ended.returncode, 2, ended.stdout)
            self.assertIn(words, ended.stderr)
        with KnownServer(status=lambda n: 401) as server:
            ended = self.loadtest(f"127.0.0.1:{server.port}", DRAWN)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("Authorization", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
