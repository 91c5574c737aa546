"""Models with endless loops and operators that clients make endless: signals, deadlines and disconnecting clients
stop them."""

import json
import math
import os
import tempfile
import unittest

import small_onnx
from harness import FolderCase, ServedCase, Server, flat_png, run_lensd


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
        for deadline in ("2000", "8000", "32000"):  # a busy lensd may predict that the answer comes too late
            answer = self.infer(server, tensors(**inputs, most=("INT64", [1], [count])),
                                **{"X-Request-Timeout-Ms": deadline})
            if answer.status != 503:
                break
        self.assertEqual((answer.status, answer.json()["code"]), (504, "deadline_exceeded"))
        answer = self.infer(server, tensors(**inputs, most=("INT64", [1], [1])))
        self.assertEqual((answer.status, answer.json()["outputs"][0]["shape"]), (200, [400, 3]))


class Values(ServedCase):
    """Operators whose outputs have the shapes that a client's integers choose: what they cannot take is the request's
    fault, whatever it would make is refused before it is made, and the model has not failed."""

    data = ("x", 1, [2, 3])
    huge = 2**40
    # name: (opset, inputs, attributes, integers that are taken, and lists of integers that are not, with words of why)
    operators = {
        "ConstantOfShape": (13, [("n", 7, [2])], [[2, 3]],
                            [([[2**20, 2**20]], "too large"), ([[-1, 2]], "-1"), ([[2**62, 2**62]], "too large")]),
        "Expand": (13, [("x", 1, [2, 1]), ("n", 7, [2])], [[2, 3]], [([[2, huge]], "too large"), ([[5, 3]], "broadcast")]),
        "Reshape": (13, [data, ("n", 7, [2])], [[3, 2]], [([[4, 2]], "reshaped"), ([[2**62, 2]], "new shape")]),
        "Tile": (13, [data, ("n", 7, [2])], [[1, 2]], [([[huge, 1]], "too large"), ([[-1, 1]], "-1 times")]),
        "Range": (13, [("a", 7, []), ("b", 7, []), ("c", 7, [])], [[0], [3], [1]],
                  [([[0], [huge], [1]], "too large"), ([[0], [3], [0]], "step")]),
        "OneHot": (13, [("n", 7, [2]), ("d", 7, []), ("x", 1, [2])], [[0, 1], [3]],
                   [([[0, 1], [huge]], "too large"), ([[0, 1], [-3]], "depth")]),
        "Pad": (13, [data, ("n", 7, [4])], [[0, 1, 0, 1]], [([[0, huge, 0, 0]], "too large"), ([[0, -9, 0, 0]], "padded")]),
        "Slice": (13, [data, ("a", 7, [1]), ("b", 7, [1]), ("c", 7, [1]), ("d", 7, [1])], [[0], [1], [0], [1]],
                  [([[0], [1], [0], [0]], "step"), ([[0], [1], [9], [1]], "axis 9")]),
        "TopK": (11, [data, ("n", 7, [1])], [[2]], [([[100]], "100"), ([[-1]], "-1")]),
        "Resize": (13, [("x", 1, [1, 1, 2, 2]), None, None, ("n", 7, [4])], [[1, 1, 4, 4]],
                   [([[1, 1, 2**22, 2**22]], "too large"), ([[1, 1, -1, 4]], "-1")]),
        "Split": (13, [data, ("n", 7, [1])], [[2]], [([[3]], "add up"), ([[-1]], "-1")]),
        "Squeeze": (13, [("x", 1, [1, 3]), ("n", 7, [1])], [[0]], [([[1]], "axis 1"), ([[7]], "axis 7")]),
        "Unsqueeze": (13, [data, ("n", 7, [1])], [[0]], [([[7]], "axis 7")]),
        "ReduceSum": (13, [data, ("n", 7, [1])], [[0]], [([[7]], "axis 7")]),
        "CumSum": (14, [data, ("n", 7, [])], [[0]], [([[7]], "axis 7")]),
        "Gather": (13, [data, ("n", 7, [1])], [[0]], [([[7]], "index 7")]),
        "GatherElements": (13, [data, ("n", 7, [1, 1])], [[0]], [([[7]], "7")]),
        "GatherND": (13, [data, ("n", 7, [1])], [[0]], [([[7]], "7")]),
        "ScatterND": (13, [data, ("n", 7, [1, 1]), ("u", 1, [1, 3])], [[0]], [([[7]], "index 7")]),
        "CenterCropPad": (18, [data, ("n", 7, [2])], [[2, 2]], [([[huge, 2]], "too large"), ([[-1, 2]], "-1")]),
        "Col2Im": (18, [("x", 1, [1, 1, 1]), ("a", 7, [2]), ("b", 7, [2])], [[1, 1], [1, 1]],
                   [([[huge, huge], [1, 1]], "too large"), ([[2, 2], [1, 1]], "")]),
        "AffineGrid": (20, [("x", 1, [1, 2, 3]), ("n", 7, [4])], [[1, 1, 2, 2]],
                       [([[1, 1, 2**22, 2**22]], "too large"), ([[1, 1, -1, 2]], "-1")]),
        "MaxUnpool": (13, [("x", 1, [1, 1, 1, 1]), ("a", 7, [1, 1, 1, 1]), ("b", 7, [4])], [[0], [1, 1, 2, 2]],
                      [([[0], [1, 1, 2**22, 2**22]], "too large"), ([[0], [1, 1, -2, 2]], "-2")]),
    }
    attributes = {"MaxUnpool": [small_onnx.ints("kernel_shape", [2, 2])]}

    @classmethod
    def start(cls):
        folder = tempfile.TemporaryDirectory(prefix="lensd-values-")
        cls.addClassCleanup(folder.cleanup)
        for name, (opset, inputs, *_) in cls.operators.items():
            os.makedirs(os.path.join(folder.name, name, "1"))
            small_onnx.operator(os.path.join(folder.name, name, "1", "model.onnx"), name, opset, inputs,
                                cls.attributes.get(name, ()), kind=7 if name == "Range" else 1)
        return Server("--models", folder.name, "--precision", "fp32")

    def infer(self, name, integers):
        integers = list(integers)
        inputs = {}
        for entry in filter(None, self.operators[name][1]):
            data = integers.pop(0) if entry[1] == 7 else [1] * math.prod(entry[2])
            inputs[entry[0]] = ("INT64" if entry[1] == 7 else "FP32", entry[2], data)
        return self.server.request("POST", f"/v2/models/{name}/infer", tensors(**inputs))

    def test_integers_that_cannot_be_taken(self):
        for name, (_, _, good, bad) in self.operators.items():
            for integers, words in bad:
                with self.subTest(name, integers=integers):
                    answer = self.infer(name, integers)
                    self.assert_error(answer, 400, "invalid_request", name, words)
            with self.subTest(name, integers=good):
                answer = self.infer(name, good)
                self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(self.server.metric("lensd_forward_failures_total"), 0)


if __name__ == "__main__":
    unittest.main()
