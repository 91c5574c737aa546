"""Memory of the process: large photos wait for each other or are refused instead of getting it killed, and what a
burst has taken is given back."""

import collections
import io
import os
import unittest
import zlib

from PIL import Image

import harness
from harness import Server, png_chunk, png_header, post, read_answer, seven, together

ROOT = "/sys/fs/cgroup"
MIB = 2**20
SANITIZED = b"__asan" in harness.read(harness.BINARY) or b"__tsan" in harness.read(harness.BINARY)


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
        group = os.path.join(ROOT, controllers, path.lstrip("/"), f"lensd-test-{os.getpid()}")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
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


@unittest.skipIf(SANITIZED, "a sanitizer's own memory does not fit")
class Limit(unittest.TestCase):
    def serve(self, limit, *arguments):
        group = make_group(limit)
        if not group:
            self.skipTest("no cgroup with a memory limit can be made here")
        self.addCleanup(os.rmdir, group)
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
        self.assertRegex(answer.json()["error"], r"decoding this picture takes 137\.3 MiB, and the models leave \d+\.\d MiB")
        self.assertEqual(server.predict(seven()).status, 200)
        self.assertEqual(server.stop()[0], 0)


@unittest.skipIf(SANITIZED, "a sanitizer keeps freed memory")
class Burst(unittest.TestCase):
    def test_its_memory_is_given_back(self):
        server = Server("--precision", "fp32", "--workers", "4")
        self.addCleanup(lambda: server.log_file.closed or server.stop())

        def resident(name):
            lines = harness.read(f"/proc/{server.process.pid}/status").decode().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

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
