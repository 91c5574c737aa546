"""Models with endless loops and operators that clients make endless: signals, deadlines and disconnecting clients
stop them."""

import json
import tempfile
import unittest

import small_onnx
from harness import FolderCase, Server, flat_png, run_lensd


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


def tensors(**inputs):
    """The body of a V2 request: each input is (datatype, shape, data)."""
    return json.dumps({"inputs": [{"name": name, "datatype": kind, "shape": shape, "data": data}
                                  for name, (kind, shape, data) in inputs.items()]}).encode()


class Operators(FolderCase):
    def serve_model(self, write, *sizes):
        write(self.path("m.onnx"), *sizes)
        return self.serve(self.path("m.onnx"), "--precision", "fp32")

    @staticmethod
    def infer(server, body, **headers):
        return server.request("POST", "/v2/models/m/infer", body, headers)

    def test_a_region_as_large_as_numbers_go(self):
        """Next to -2^54 a double does not change by adding 1."""
        server = self.serve_model(small_onnx.regions)
        box = [-2.0 ** 54, -2.0 ** 54, 5 * 2.0 ** 54, 5 * 2.0 ** 54]
        answer = self.infer(server, tensors(image=("FP32", [1, 1, 4, 4], [1] * 16), boxes=("FP32", [1, 4], box),
                                            which=("INT64", [1], [0])))
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.json()["outputs"][0]["data"], [0])

    def test_a_deadline_within_an_operator(self):
        """Each of 400 times 16,384 boxes is compared with those before it: minutes."""
        count = 16384
        server = self.serve_model(small_onnx.suppression, count, 400)
        boxes = [number for i in range(count) for number in (i, i, i + 1, i + 1)]
        inputs = {"boxes": ("FP32", [1, count, 4], boxes), "scores": ("FP32", [1, 1, count], [1] * count)}
        answer = self.infer(server, tensors(**inputs, most=("INT64", [1], [count])), **{"X-Request-Timeout-Ms": "2000"})
        self.assertEqual((answer.status, answer.json()["code"]), (504, "deadline_exceeded"))
        answer = self.infer(server, tensors(**inputs, most=("INT64", [1], [1])))
        self.assertEqual((answer.status, answer.json()["outputs"][0]["shape"]), (200, [400, 3]))


if __name__ == "__main__":
    unittest.main()
