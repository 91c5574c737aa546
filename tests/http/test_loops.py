"""Models with endless loops: signals, deadlines and disconnecting clients stop them."""

import tempfile
import unittest

import small_onnx
from harness import Server, flat_png, run_lensd


class Loops(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-loops-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def serve(self, threshold, *arguments, **options):
        small_onnx.loops_when_light(self.folder, threshold)
        server = Server(self.folder, "--precision", "fp32", *arguments, **options)

        def end():
            if not server.log_file.closed:
                server.process.kill()
                server.stop()

        self.addCleanup(end)
        return server

    def start_loop(self, server):
        """Sends an image that loops for ever, waits until its forward pass runs, and returns the connection."""
        image = flat_png(255)
        connection = server.connect()
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n"
                           b"Content-Length: %d\r\n\r\n" % len(image) + image)
        server.wait_for(lambda: server.metric("lensd_in_flight_images") == 1, "a forward pass")
        return connection

    def test_sigterm_while_loading(self):
        server = self.serve(-1000, wait_ready=False)
        server.wait_for(lambda: server.get("/health").json()["models"][0]["progress"] > 0.5,
                        "the first pass")
        server.signal()
        self.assertEqual(server.wait(), 0, server.log())

    def test_a_deadline(self):
        server = self.serve(0.9)
        answer = server.predict(flat_png(255), headers={"X-Request-Timeout-Ms": "500"})
        self.assertEqual((answer.status, answer.json()["code"]), (504, "deadline_exceeded"))
        self.assertEqual(server.predict(flat_png(9)).status, 200)
        self.assertEqual(server.metric("lensd_forward_failures_total"), 0)

    def test_a_client_that_leaves(self):
        server = self.serve(0.9)
        self.start_loop(server).close()
        self.assertEqual(server.predict(flat_png(9)).status, 200)

    def test_the_end_of_the_grace_time(self):
        server = self.serve(0.9, "--grace", "0.1s")
        with self.start_loop(server):
            server.signal()
            server.wait()

    def test_inspect_does_not_run_the_model(self):
        small_onnx.loops_when_light(self.folder, -1000)
        done = run_lensd("inspect", self.folder)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
