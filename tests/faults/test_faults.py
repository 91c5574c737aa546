#!/usr/bin/python3
"""The n-th allocation, read, write, accept, thread creation or access to a file fails, for n = 1, 2, 3 …; the wall
clock jumps; descriptors and memory run out; the locale writes decimals with commas.

A start may end with a sentence and an exit status. A server that is ready answers a request rightly, or with an
error in JSON, or, where the connection itself is what failed, not at all; then it answers the next one rightly. It
never dies, never hangs, never answers wrongly.

    test_faults.py           a sample of the calls
    test_faults.py --whole   every one of them; also: --kind memory, and names of tests as unittest takes them
"""

import argparse
import contextlib
import errno
import gzip
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.dirname(os.path.realpath(__file__))]

import sweep  # noqa: E402
from sweep import CALLS, Broken, Job, serving  # noqa: E402

import harness  # noqa: E402
import small_onnx  # noqa: E402
from harness import drawn, multipart, read, seven  # noqa: E402
from test_tls import OPENSSL, make_certificate  # noqa: E402

WHOLE = False
KINDS = sweep.KINDS
KEY = "the-key-of-alice"
BEARER = {"Authorization": f"Bearer {KEY}"}
IMAGES = os.path.join(harness.ROOT, "tests", "data", "images")


def most(sample):
    """How many calls a sweep lets fail; None: all."""
    return None if WHOLE else sample


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-faults-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def keys(self):
        return self.write("keys", f"alice sha256:{hashlib.sha256(KEY.encode()).hexdigest()}\n")

    def model(self):
        path = self.path("model.onnx")
        small_onnx.classifier(path, layers=2, side=32, channels=16)
        return path

    def report(self, what, outcomes):
        if WHOLE:
            print(f"{self.id()}: {what}: {outcomes}", file=sys.stderr, flush=True)


class Stuck(Case):
    """An operator that does not return."""

    def serve(self, *arguments):
        path = self.path("stuck.onnx")
        small_onnx.write(path, [small_onnx.node("Erf", ["x"], ["y"])], [], [small_onnx.value("x", 11, "N", 4)],
                         [small_onnx.value("y", 11, "N", 4)])
        server = self.enterContext(serving(path, "--precision", "fp32", *arguments))
        body = json.dumps({"inputs": [{"name": "x", "datatype": "FP64", "shape": [1, 4], "data": [0, 0, 0, 0]}]})
        server.faults.fail("stuck", 1, count=1 << 40)
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.sendall(b"POST /v2/models/stuck/infer HTTP/1.1\r\nHost: x\r\nX-Request-Timeout-Ms: 100\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(body) + body.encode())
        server.wait_for(lambda: server.faults.get("stuck", sweep.FAILED), "the operator to be stuck")
        return server

    def test_it_is_not_ready(self):
        server = self.serve()
        server.wait_for(lambda: server.get("/readyz").json() == {"status": "stuck"}, "the stuck pass to be seen")
        self.assertEqual(server.get("/readyz").status, 503)
        self.assertIn("a pass has run far longer", server.get("/health").json()["models"][0]["quarantined"][0]["reason"])
        server.faults.stop()
        server.wait_ready()

    def test_a_drain_ends_without_it(self):
        server = self.serve("--grace", "0.1s")
        server.signal()
        self.assertEqual(server.wait(), 3, server.log())
        line = server.log().splitlines()[-1]
        self.assertIn("stuck", line)
        self.assertIn("lensd exits", line)


class Start(Case):
    """From main() until it is ready, and to its end."""

    def sweep(self, kind, sample, *arguments, count=1):
        job = Job("a photo", "POST", "/predict", seven(), BEARER)
        arguments = (*arguments, "--api-keys", self.keys(), "--pid-file", self.path("pid"), "--cache", self.path("cache"))
        with serving(*arguments) as server:
            job.learn(server)
        shutil.rmtree(self.path("cache"))
        numbers = sweep.start_numbers(kind, arguments)
        self.assertTrue(numbers, "nothing is counted")
        outcomes = {"ready": 0, "refused": 0}
        for n in sweep.spread(numbers, most(sample)):
            shutil.rmtree(self.path("cache"), ignore_errors=True)
            outcomes[sweep.start_once(kind, n, arguments, [job], count)] += 1
        self.report(f"{kind}, {len(numbers)} calls", outcomes)

    def test_memory(self):
        self.sweep("memory", 16, self.model(), "--precision", "fp32")

    def test_memory_for_long(self):
        """Many calls fail in a row."""
        self.sweep("memory", 8, self.model(), "--precision", "fp32", count=20)

    def test_memory_of_trials(self):
        self.sweep("memory", 4)

    def test_read(self):
        self.sweep("read", 4, self.model(), "--precision", "fp32")

    def test_write(self):
        self.sweep("write", 4, self.model(), "--precision", "fp32")

    def test_accept(self):
        self.sweep("accept", 1, self.model(), "--precision", "fp32")

    def test_threads(self):
        self.sweep("thread", 3, self.model(), "--precision", "fp32")

    def test_disk(self):
        self.sweep("disk", 4, self.model(), "--precision", "fp32")


class Requests(Case):
    """Of a server that is ready."""

    def jobs(self):
        tensor = {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.5] * 3072}]}
        form, parts = multipart([("image", "a.png", seven()), ("image", "b.png", drawn(3))])
        photo = read(os.path.join(IMAGES, "exif_6.jpg"))
        return [Job("a photo", "POST", "/predict", photo),
                Job("two photos", "POST", "/predict", parts, {"Content-Type": form}),
                Job("a compressed photo", "POST", "/predict", gzip.compress(seven()), {"Content-Encoding": "gzip"}),
                Job("a tensor", "POST", "/v2/models/digits/infer", json.dumps(tensor).encode()),
                Job("metrics", "GET", "/metrics"), Job("health", "GET", "/health"), Job("devices", "GET", "/devices")]

    def sweep(self, kind, sample, error=0):
        with serving("--precision", "fp32") as server:
            for job in self.jobs():
                job.learn(server)
                if job.method == "GET":
                    job.good = None
                self.report(f"{kind}, {job.name}", sweep.request_sweep(server, kind, job, most(sample), error))
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])

    def test_memory(self):
        self.sweep("memory", 12)

    def test_read(self):
        self.sweep("read", 4)

    def test_read_interrupted(self):
        self.sweep("read", 4, errno.EINTR)

    def test_write(self):
        self.sweep("write", 4)

    def test_write_interrupted(self):
        self.sweep("write", 4, errno.EINTR)

    def test_accept(self):
        self.sweep("accept", 2)

    @unittest.skipUnless(OPENSSL, "openssl is not installed")
    def test_memory_with_tls(self):
        job = self.jobs()[0]
        cert, key = make_certificate(self.folder, "localhost")
        with serving(cert, key, "--precision", "fp32", kind=sweep.FaultyTlsServer) as server:
            job.learn(server)
            self.report("memory, TLS", sweep.request_sweep(server, "memory", job, most(12)))
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])


class Reloads(Case):
    """SIGHUP, and a model that is loaded again."""

    def loading(self, kind, sample):
        """Loads the model; each time another call fails. Until a load succeeds the old model answers."""
        root = self.path("models")
        os.makedirs(os.path.join(root, "m"))
        os.rename(self.model(), os.path.join(root, "m", "model.onnx"))
        job = Job("a photo", "POST", "/predict", seven())
        load = Job("load", "POST", "/v2/repository/models/m/load", b"{}", BEARER)
        with serving("--models", root, "--precision", "fp32", "--admin-key-file", self.keys()) as server:
            faults = server.faults
            job.learn(server)
            load.check(server)
            begin = faults.get(kind, CALLS)
            faults.record()
            load.check(server)
            faults.record(False)
            numbers = [n - begin for n in faults.recorded(kind, begin)]
            outcomes = {"good": 0, "error": 0, "lost": 0}
            for n in sweep.spread(numbers, most(sample)):
                faults.fail(kind, n)
                try:
                    outcomes[load.outcome(server, lambda: server.may_lose(kind))] += 1
                    faults.stop()
                    job.check(server)
                    if n % 16 == 0 or not WHOLE:
                        load.check(server)
                        job.check(server)
                except (Broken, OSError) as error:
                    raise Broken(sweep.explain(kind, n, server, error)) from error
            self.report(f"{kind}, {len(numbers)} calls", outcomes)
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])

    def test_load_without_memory(self):
        self.loading("memory", 12)

    def test_load_without_threads(self):
        self.loading("thread", 4)

    def test_load_without_files(self):
        self.loading("disk", 4)

    def test_load_without_reads(self):
        self.loading("read", 4)

    def test_hangup(self):
        """Keys and certificate are read again, or stay."""
        job = Job("a photo", "POST", "/predict", seven(), BEARER)
        with serving("--api-keys", self.keys(), "--precision", "fp32") as server:
            job.learn(server)
            faults = server.faults
            faults.only(server.process.pid)  # the main thread: others read from connections meanwhile

            def reload():
                server.signal_logged(signal.SIGHUP, " reloaded ")

            for kind in ("memory", "disk", "read"):
                counts = [faults.get(kind, CALLS)]
                for _ in range(3):
                    reload()
                    counts.append(faults.get(kind, CALLS))
                needed = min(b - a for a, b in itertools.pairwise(counts))  # one may end after its line is written
                self.assertGreater(needed, 0)
                for n in sweep.spread(list(range(1, needed + 1)), most(6)):
                    faults.fail(kind, n)
                    reload()
                    self.assertEqual(faults.stop(), 1, f"{kind} {n} of {needed}")
                    job.check(server)
                server.wait_log(" not reloaded ")


class Surroundings(Case):
    def test_a_library_whose_constructor_aborts(self):
        """lensd starts without the formats that libheif would read, and says why."""
        shutil.copy(sweep.LIBRARY, self.path("libheif.so.1"))
        with harness_server("--precision", "fp32", "--old-libheif",
                            environment={"LD_LIBRARY_PATH": self.folder, "FAULTS_ABORT": "1"}) as server:
            answer = server.predict(read(os.path.join(IMAGES, "avif_444.avif")))
            self.assertEqual((answer.status, answer.json()["code"]), (415, "unsupported_media_type"))
            self.assertIn("a libheif that can be loaded", answer.json()["error"])
            formats = server.get("/health").json()["formats"]
            self.assertFalse({"AVIF", "HEIC"} & {*formats}, formats)
            self.assertEqual(server.predict(seven()).status, 200)
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])

    def test_few_descriptors(self):
        """A limit of 20: clients beyond it wait or are closed, and those that come later are answered."""
        with harness_server("--precision", "fp32", wait_ready=False) as server:
            resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (20, 20))
            server.wait_ready()
            held = [server.connect() for _ in range(40)]
            for connection in held:
                with contextlib.suppress(OSError):
                    connection.sendall(harness.post("/predict", seven()))
            self.assertEqual(harness.read_answer(held[0])[0].status, 200)

            def has_slept():  # a loop that spins on accept() never does
                before = server.cpu_seconds()
                time.sleep(1)
                return server.cpu_seconds() - before < 0.1
            server.wait_for(has_slept, "a second without work")
            for connection in held:
                connection.close()
            server.wait_for(server.answers, "an end of the others")
            self.assertEqual(server.predict(seven()).status, 200)
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])

    def test_little_address_space(self):
        """ulimit -v: a sentence, or a server that answers."""
        model = self.path("large.onnx")
        small_onnx.classifier(model, layers=6, side=224, channels=64)
        outcomes = set()
        for mib in range(60, 640, 4) if WHOLE else range(100, 600, 96):
            def limit(size=mib << 20):
                resource.setrlimit(resource.RLIMIT_AS, (size, size))
            with serving(model, "--max-batch", "1", "--precision", "fp32", prepare=limit) as server:
                refused = sweep.has_refused(server)
                outcomes.add(refused)
                if refused:
                    continue
                answers = harness.together(8, lambda _: server.predict(seven()))
                self.assertLessEqual({answer.status for answer in answers}, {200, 500, 503}, f"{mib} MiB")
                code, log = server.stop()
                self.assertEqual(code, 0, f"{mib} MiB: {log[-3000:]}")
        self.assertEqual(outcomes, {True, False})

    def test_the_clock_jumps(self):
        """Deadlines, rates and idle connections do not follow the wall clock."""
        job = Job("a photo", "POST", "/predict", seven(), {"X-Request-Timeout-Ms": "600000"})
        with serving("--precision", "fp32") as server:
            job.learn(server)
            held = server.client(harness.PATIENCE)
            for seconds in (3600, -3600, 86400 * 365, -86400 * 365 * 20, 0.5, 0):
                server.faults.set_clock(seconds)
                job.check(server)
                held.request("POST", "/predict", seven())
                answer = held.getresponse()
                self.assertEqual((answer.status, bool(answer.read())), (200, True))
                self.assertEqual(server.get("/readyz").status, 200)
            held.close()
            server.faults.set_clock(-7200)
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])

    def test_decimal_commas(self):
        """A locale that writes 0,5: numbers in JSON, metrics, options and files keep their points."""
        parts = ("CTYPE", "COLLATE", "TIME", "MONETARY", "MESSAGES", "PAPER", "NAME", "ADDRESS", "TELEPHONE", "MEASUREMENT",
                 "IDENTIFICATION")
        source = "".join(f'LC_{part}\ncopy "POSIX"\nEND LC_{part}\n' for part in parts)
        source += 'LC_NUMERIC\ndecimal_point ","\nthousands_sep "."\ngrouping 3;3\nEND LC_NUMERIC\n'
        localedef = shutil.which("localedef")
        if localedef:
            subprocess.run([localedef, "-c", "-i", self.write("commas", source), "-f", "UTF-8", self.path("de_DE.UTF-8")],
                           capture_output=True, check=False, timeout=harness.PATIENCE)
        if not os.path.exists(self.path("de_DE.UTF-8/LC_NUMERIC")):
            self.skipTest("localedef cannot make a locale")
        spoken = subprocess.run([sys.executable, "-c", "import locale; locale.setlocale(locale.LC_ALL, ''); "
                                 "print(locale.localeconv()['decimal_point'])"], capture_output=True, text=True, check=True,
                                env={**os.environ, "LC_ALL": "de_DE.UTF-8", "LOCPATH": self.folder}).stdout.strip()
        self.assertEqual(spoken, ",", "the locale shows nothing")
        job = Job("a photo", "POST", "/predict", seven())
        with harness_server("--precision", "fp32") as server:
            job.learn(server)
        with harness_server("--precision", "fp32", environment={"LC_ALL": "de_DE.UTF-8", "LOCPATH": self.folder}) as server:
            job.check(server)
            text = server.get("/metrics").body.decode()
            self.assertNotRegex(text, r"(?m)^[^#].* \S*,\S*$")
            for line in server.wait_log(" path=/predict "):
                self.assertNotRegex(line, r"_ms=\d+,\d")


@contextlib.contextmanager
def harness_server(*arguments, **options):
    """Without faults.c."""
    server = harness.Server(*arguments, **options)
    try:
        yield server
    finally:
        if not server.log_file.closed:
            server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="let every call fail in turn")
    options, rest = parser.parse_known_args()
    WHOLE = options.whole
    unittest.main(argv=[sys.argv[0], *rest])
