"""A disk that is full: nothing that lensd writes is worth a request, let alone the process.

A limit on the size of files (RLIMIT_FSIZE) stands for the disk: writes beyond it fail, or end in the
middle of a line, as they do there, and raising it is what somebody does who makes room."""

import functools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import harness
from harness import Server, seven

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
import small_onnx  # noqa: E402

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def limited(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@functools.cache
def nothing_fits():
    """What is to be done before lensd starts, for no byte to go into any file. ThreadSanitizer's
    runtime writes a file of its own before main(), which ends the process by SIGXFSZ, a signal that
    lensd itself ignores: only there it is ignored from the start."""
    ended = subprocess.run([harness.BINARY, "--version"], stdin=subprocess.DEVNULL, capture_output=True, check=False,
                           timeout=harness.PATIENCE, preexec_fn=limited(0))
    if ended.returncode != -signal.SIGXFSZ:
        return limited(0)

    def ignoring():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limited(0)()
    return ignoring


class FullDisk(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-full-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def serve(self):
        server = Server("--precision", "fp32")
        self.addCleanup(server.stop)
        return server

    def test_the_log(self):
        """Requests go on; once there is room, so does the log, on a line of its own, and says what is missing."""
        server = self.serve()
        server.wait_log(" ready model=")  # which may come behind the answer that says it is ready
        server.wait_metric("lensd_http_connections", 1)
        server.log_file.flush()
        full = os.path.getsize(server.log_path) + 40  # within the next line
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
        for _ in range(5):
            self.assertEqual(server.predict(seven()).status, 200)
        server.wait_for(lambda: os.path.getsize(server.log_path) == full, "the log that is full")
        server.wait_for(lambda: server.metric("lensd_log_lines_lost_total") > 0, "the write that finds it full")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, UNLIMITED)
        self.assertEqual(server.predict(seven()).status, 200)
        server.wait_log("log lines lost")
        lines = server.log_so_far().splitlines()
        said = next(i for i, line in enumerate(lines) if "log lines lost" in line)
        # Behind the first line that went through, which is the last request's, or the one's before.
        self.assertRegex(lines[said - 1], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d info +request .* status=200 ")
        self.assertRegex(lines[said], r" warn +log lines lost lines=[1-5] ")
        self.assertIn(server.metric("lensd_log_lines_lost_total"), range(1, 6))

    def test_streams(self):
        """Neither the banner nor the log has anywhere to go."""
        port = self.path("port")
        with open("/dev/full", "wb") as full:
            process = subprocess.Popen([harness.BINARY, "serve", "--port", "0", "--port-file", port],
                                       stdin=subprocess.DEVNULL, stdout=full, stderr=full)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        end = time.monotonic() + harness.PATIENCE
        while not os.path.exists(port) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(os.path.exists(port))
        health = [harness.BINARY, "health", "--port", harness.read(port).decode().strip()]
        while subprocess.run(health, capture_output=True, check=False).returncode and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(subprocess.run(health, capture_output=True, check=False).returncode, 0)
        process.terminate()
        self.assertEqual(process.wait(harness.PATIENCE), 0)

    def test_number_files(self):
        """What somebody waits for is an error at start, and leaves nothing half written."""
        for option in ("--port-file", "--pid-file"):
            ended = subprocess.run([harness.BINARY, "serve", "--port", "0", option, self.path("number")],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                   timeout=harness.PATIENCE, preexec_fn=nothing_fits())
            self.assertEqual((ended.returncode, os.listdir(self.folder)), (2, []), ended.stderr)
            self.assertIn(f"cannot write {option} '{self.path('number')}': File too large", ended.stderr)

    def test_the_cache(self):
        """What was measured is used all the same, and no half of it is kept."""
        model, cache = self.path("model.onnx"), self.path("cache")
        small_onnx.classifier(model, sharpness=5.0, offset=4096.0)
        command = [harness.BINARY, "inspect", model, "--profile", "--cache", cache]
        kept = []
        for prepare in (nothing_fits(), None):
            ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                   timeout=4 * harness.PATIENCE, preexec_fn=prepare)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("precision", ended.stdout)
            kept.append(os.listdir(cache))
        self.assertEqual(kept[0], [])
        self.assertNotEqual(kept[1], [], "nothing is ever kept: the test shows nothing")


if __name__ == "__main__":
    unittest.main()
