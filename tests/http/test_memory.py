"""Memory of the process: models load and large photos are decoded within its limit or are refused in words instead of
getting it killed, and what a burst has taken is given back. LENSD_MEMORY_SWEEP=1 tries all limits from 100 MiB to 1000
MiB, also with the models of LENSD_FAMILIES (./dev families resnet50 mobilenet_v3_large vit_b_32)."""

import collections
import io
import itertools
import json
import os
import re
import resource
import tempfile
import time
import unittest
import zlib

from PIL import Image

import harness
import small_onnx
from harness import SANITIZED, Server, png_chunk, png_header, post, read_answer, seven, together

ROOT = "/sys/fs/cgroup"
MIB = 2**20
numbers = itertools.count()


def flat_photo(width, height):
    """A PNG of one colour: small as a file."""
    rows = zlib.compressobj(1)
    row = b"\0" + b"\x80" * 3 * width
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    return png_header(width, height) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def flat_jpeg(width, height):
    data = io.BytesIO()
    Image.new("RGB", (width, height), (128, 128, 128)).save(data, "JPEG")
    return data.getvalue()


def make_group(limit):
    """The folder of a new cgroup with this limit of memory, or None."""
    for line in harness.read("/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        parent = os.path.join(ROOT, controllers, path.lstrip("/"))
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = os.path.join(parent, f"lensd-test-{os.getpid()}-{next(numbers)}")
        if not os.path.exists(os.path.join(parent, "cgroup.procs")):
            continue  # beside version 1, version 2 lies elsewhere
        try:
            os.mkdir(group)
        except OSError:
            continue
        try:
            with open(os.path.join(group, name), "w", encoding="ascii") as file:
                file.write(str(limit))
            return group
        except OSError:
            os.rmdir(group)
    return None


def remove_group(group):
    """The kernel counts a process a little longer than its parent."""
    end = time.monotonic() + harness.PATIENCE
    while True:
        try:
            return os.rmdir(group)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@unittest.skipIf(SANITIZED, "a sanitizer's own memory does not fit")
class Limit(unittest.TestCase):
    def serve(self, limit, *arguments):
        group = make_group(limit)
        if not group:
            self.skipTest("no cgroup with a memory limit can be made here")
        self.addCleanup(remove_group, group)
        procs = os.path.join(group, "cgroup.procs")

        def enter():
            with open(procs, "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        server = Server("--precision", "fp32", "--max-queue-ms", "0", "--body-timeout", "0", *arguments, prepare=enter)
        self.addCleanup(lambda: server.log_file.closed or server.stop())
        return server

    def test_large_photos_wait_for_each_other(self):
        """Eight of 137 MiB would take twice the limit."""
        server = self.serve(512 * MIB, "--workers", "8")
        photo = flat_photo(8000, 6000)
        answers = together(8, lambda _: server.predict(photo, timeout=2 * harness.PATIENCE))
        self.assertEqual([answer.status for answer in answers], [200] * 8)
        self.assertEqual(server.stop()[0], 0)

    def test_many_large_uploads(self):
        """40 clients, each with a JPEG of 48 megapixels in a body of 10 MiB: bodies and pixels would take ten times the
        limit. Clients that get no answer are refused with a sentence."""
        server = self.serve(512 * MIB, "--workers", "4")
        body = flat_jpeg(8000, 6000) + bytes(10 * MIB)  # bytes behind the end do no harm
        answers = together(40, lambda _: server.predict(body, timeout=2 * harness.PATIENCE))
        statuses = collections.Counter(answer.status for answer in answers)
        self.assertLessEqual(set(statuses), {200, 503}, statuses)
        self.assertGreater(statuses[200], 0)
        for answer in answers:
            if answer.status == 503:
                self.assertEqual(answer.json()["code"], "overloaded")
                self.assertRegex(answer.json()["error"], "try again|raise the limit")
                self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertEqual(server.predict(seven()).status, 200)
        self.assertEqual(server.stop()[0], 0)

    def test_a_photo_that_never_fits(self):
        server = self.serve(170 * MIB, "--workers", "1")
        answer = server.predict(flat_photo(8000, 6000))
        self.assertEqual((answer.status, answer.json()["code"]), (413, "too_large"))
        self.assertRegex(answer.json()["error"], r"decoding this picture takes 137\.3 MiB, but the models leave \d+\.\d MiB")
        self.assertEqual(server.predict(seven()).status, 200)
        self.assertEqual(server.stop()[0], 0)

    def infer(self, server, *numbers, **headers):
        inputs = [{"name": "n", "datatype": "INT64", "shape": [len(numbers)], "data": numbers}]
        outputs = [{"name": "y", "parameters": {"binary_data": True}}]
        return server.request("POST", "/v2/models/m/infer", json.dumps({"inputs": inputs, "outputs": outputs}).encode(),
                              headers, timeout=2 * harness.PATIENCE)

    def serve_shapes(self, limit):
        """Requests of 100 bytes make tensors of the shape that they hold."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "m.onnx")
        small_onnx.operator(path, "ConstantOfShape", 13, [("n", 7, [2])])
        return self.serve(limit, path)

    def peak(self, server):
        status = harness.read(f"/proc/{server.process.pid}/status").decode()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024

    def test_a_small_request_for_a_large_tensor(self):
        """1.5 GiB, twenty-two at once: refused, and the others are answered."""
        server = self.serve_shapes(512 * MIB)
        def ask(i):
            return self.infer(server, *([2**14, 24576] if i % 2 else [1, 3]))
        for i, answer in enumerate(together(44, ask)):
            self.assertEqual(answer.status, 400 if i % 2 else 200, answer.body[:300])
            if i % 2:
                self.assertEqual(answer.json()["code"], "invalid_request")
                self.assertRegex(answer.json()["error"], r"1536\.0 MiB in addition to 0\.0 MiB, but a forward pass may take 64\.0 MiB")
        self.assertLess(self.peak(server), 256 * MIB)
        self.assertEqual(server.stop()[0], 0)

    def test_many_tensors_that_may_be_had(self):
        """Twenty-two of 10 MiB at once: answers share a limit of their own, and some are refused for now."""
        server = self.serve_shapes(512 * MIB)
        answers = together(22, lambda _: self.infer(server, 10, 2**18))
        statuses = collections.Counter(answer.status for answer in answers)
        self.assertLessEqual(set(statuses), {200, 503}, statuses)
        self.assertGreater(statuses[200], 0)
        for answer in answers:
            if answer.status == 200:
                self.assertGreater(len(answer.body), 10 * MIB)
            else:
                self.assertIn(answer.json()["code"], ("insufficient_memory", "overloaded"))
                self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        self.assertLess(self.peak(server), 400 * MIB)
        self.assertEqual(self.infer(server, 2, 3).status, 200)
        self.assertEqual(server.stop()[0], 0)


SWEEP = os.environ.get("LENSD_MEMORY_SWEEP")
FAMILIES = os.environ.get("LENSD_FAMILIES", os.path.join(harness.ROOT, ".cache", "families"))


@unittest.skipIf(SANITIZED, "a sanitizer's own memory does not fit")
@harness.needs("speed")
class Load(unittest.TestCase):
    """Loading a model and completing it within a limit: it serves, or says in words what is missing."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "model.onnx")

    def start(self, limit, model):
        """A server in a cgroup with the limit, or where none can be made, with --memory."""
        group = make_group(limit * MIB)
        self.group = group
        if not group:
            return Server(model, "--memory", f"{limit}M", wait_ready=False)

        def enter():
            with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
                file.write(str(os.getpid()))
        return Server(model, wait_ready=False, prepare=enter)

    words = r"\d (?:bytes|KiB|MiB|GiB)\b.*\b(?:missing|\d+ in use)"

    def serves(self, limit, model):
        """Whether it serves, to the end of all that follows a start; otherwise it has refused in words."""
        server = None
        try:
            server = self.start(limit, model)
            self.check_served(server, limit)
            return True
        except AssertionError as error:
            self.assertRegex(str(error), "(?s)lensd ended with 1 while .*" + self.words, f"{limit} MiB")
            return False
        finally:
            if server and not server.log_file.closed:
                server.process.kill()
                server.stop()
            if self.group:
                remove_group(self.group)

    def check_served(self, server, limit):
        def has_settled():
            try:
                devices = server.get("/devices")
                return server.get("/readyz").status == 200 and b'"pending"' not in devices.body
            except OSError:  # it ends; wait_for() says how
                return False
        server.wait_for(has_settled, "the end of all loading")
        answer = server.predict(seven())
        code, log = server.stop()
        self.assertEqual((answer.status, code), (200, 0), f"{limit} MiB: {log}")
        self.assertLessEqual(log.count("smaller batches"), 1, f"{limit} MiB: {log}")

    def sweep(self, model, coarse, least, most):
        """Below `least` MiB it refuses, from `most` on it serves, and between them it changes once."""
        limits = range(100, 1001, 25) if SWEEP else coarse
        served = [self.serves(limit, model) for limit in limits]
        self.assertEqual(served, sorted(served), dict(zip(limits, served)))
        for limit, is_served in zip(limits, served):
            if limit < least or limit >= most:
                self.assertEqual(is_served, limit >= most, limit)

    def test_weights_that_are_folded(self):
        """72 MiB of weights, in memory twice while they are packed."""
        small_onnx.normalised_convolutions(self.path, 9, 512)
        self.sweep(self.path, (100, 200, 300, 400), 130, 400)

    def test_large_products(self):
        """112 MiB of weights."""
        small_onnx.perceptron(self.path, 4096, 4096)
        self.sweep(self.path, (100, 250, 400), 130, 400)

    def test_a_small_model(self):
        self.sweep("digits", (100, 150), 0, 100)

    def test_families(self):
        """Real networks with seeded weights."""
        if not SWEEP:
            self.skipTest("LENSD_MEMORY_SWEEP=1 runs it")
        for name, least, most in (("resnet50", 150, 500), ("mobilenet_v3_large", 0, 200), ("vit_b_32", 300, 900)):
            model = os.path.join(FAMILIES, name)
            with self.subTest(name):
                if not os.path.exists(model):
                    self.skipTest(f"./dev families {name} writes it")
                self.sweep(model, (), least, most)


@unittest.skipIf(SANITIZED, "a sanitizer keeps freed memory")
class Returned(unittest.TestCase):
    def start(self, *arguments):
        """The server, and a function that reads a number of bytes from its status."""
        server = Server("--precision", "fp32", *arguments)
        self.addCleanup(lambda: server.log_file.closed or server.stop())

        def resident(name):
            lines = harness.read(f"/proc/{server.process.pid}/status").decode().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024
        return server, resident

    def test_memory_of_an_idle_model(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "wide.onnx")
            small_onnx.convolutions(model, 3, side=512)  # 32 MiB a layer
            server, resident = self.start("--max-batch", "1", model)
            answer = server.predict(seven())
            self.assertEqual(answer.status, 200)
            busy = resident("VmRSS:")
            server.wait_for(lambda: resident("VmRSS:") < busy - 48 * MIB, "the activations to be given back")
            self.assertEqual(server.predict(seven()).json()["predictions"], answer.json()["predictions"])
            self.assertEqual(server.stop()[0], 0)

    def test_idle_connections(self):
        """They take little memory once they have had an answer, and no CPU time."""
        count = 2000
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < count + 200:
            self.skipTest(f"the hard limit of open files (ulimit -Hn) is {hard}, below {count + 200}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        server, resident = self.start("--max-connections", str(count + 50), "--max-connections-per-address", str(count + 50),
                                      "--idle-timeout", "3600")
        self.assertEqual(server.predict(seven()).status, 200)
        before = resident("RssAnon:")
        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            self.addCleanup(connection.close)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)
        server.wait_for(lambda: resident("RssAnon:") < before + count * 20_000, "the memory of connections to be given back")

        def wake_ups():
            folder = f"/proc/{server.process.pid}/task"
            return sum(int(line.split()[1]) for task in os.listdir(folder)
                       for line in harness.read(f"{folder}/{task}/status").decode().splitlines()
                       if line.startswith("voluntary_ctxt_switches"))

        def sleeps():
            wakes = wake_ups()
            time.sleep(1)
            return wake_ups() == wakes
        server.wait_for(sleeps, "a second in which no thread wakes")
        for connection in connections[::100]:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)
        self.assertEqual(server.stop()[0], 0)

    def test_memory_of_a_burst(self):
        server, resident = self.start("--workers", "4")
        photo = flat_photo(4000, 3000)  # 34 MiB
        together(8, lambda _: self.assertEqual(server.predict(seven()).status, 200))
        before = resident("VmRSS:")
        body = photo + bytes(4 * MIB)  # bytes behind the end do no harm
        connections = [server.connect(2 * harness.PATIENCE) for _ in range(16)]
        for connection in connections:
            connection.sendall(post("/predict", body)[:-1])
        server.wait_for(lambda: server.metric("lensd_http_upload_bytes") >= 64 * MIB, "all bodies")
        for connection in connections:
            connection.sendall(body[-1:])
            self.assertEqual(read_answer(connection)[0].status, 200)
            connection.close()
        self.assertGreater(resident("VmHWM:"), before + 60 * MIB, "the burst takes too little to show anything")
        server.wait_for(lambda: resident("VmRSS:") < before + 24 * MIB, "what the burst took to be given back")
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
