"""Models whose file leaves height and width free: each size is compiled when it is asked for, a few are kept, and
the answers are those of a file that fixes the size."""

import base64
import json
import os
import select
import shutil
import struct
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import small_onnx  # noqa: E402
from harness import PATIENCE, SANITIZED, Server, flat_png, hang_up, multipart, png, post, read_answer, run_lensd  # noqa: E402

PLAIN = ("--precision", "fp32", "--max-batch", "4", "--workers", "1", "--threads", "1")
KEPT = 4


def segmenter(path, height, width, more=0):
    """[N, 3, height, width] -> scores of 4 classes for each pixel; with so many layers more."""
    nodes = [small_onnx.node("Conv", ["image", "a"], ["wide"], small_onnx.ints("pads", [1, 1, 1, 1])),
             small_onnx.node("Relu", ["wide"], ["positive0"])]
    for i in range(more):
        nodes += [small_onnx.node("Conv", [f"positive{i}", "c"], [f"wide{i}"], small_onnx.ints("pads", [1, 1, 1, 1])),
                  small_onnx.node("Relu", [f"wide{i}"], [f"positive{i + 1}"])]
    nodes.append(small_onnx.node("Conv", [f"positive{more}", "b"], ["scores"]))
    tensors = [small_onnx.noise("a", 1, 0.3, 8, 3, 3, 3), small_onnx.noise("b", 2, 0.5, 4, 8, 1, 1)]
    tensors += [small_onnx.noise("c", 4, 0.1, 8, 8, 3, 3)] if more else []
    small_onnx.write(path, nodes, tensors, [small_onnx.tensor_info("image", "N", 3, height, width)],
                     [small_onnx.tensor_info("scores", "N", 4, height, width)])


def detector(path, height, width):
    """[N, 3, height, width] -> [N, 7, boxes] as YOLOv8's: a box for each 8 x 8 pixels."""
    nodes = [small_onnx.node("Conv", ["image", "a"], ["cells"], small_onnx.ints("kernel_shape", [8, 8]),
                             small_onnx.ints("strides", [8, 8])),
             small_onnx.node("Sigmoid", ["cells"], ["numbers"]),
             small_onnx.node("Reshape", ["numbers", "flat"], ["boxes"]),
             small_onnx.node("Mul", ["boxes", "scale"], ["output0"])]
    tensors = [small_onnx.noise("a", 3, 0.2, 7, 3, 8, 8), small_onnx.integers("flat", [0, 7, -1]),
               small_onnx.floats("scale", [7, 1], [40.0] * 4 + [1.0] * 3)]
    small_onnx.write(path, nodes, tensors, [small_onnx.tensor_info("image", "N", 3, height, width)],
                     [small_onnx.tensor_info("output0", "N", 7, "boxes")],
                     [("task", "detect"), ("names", "{0: 'a', 1: 'b', 2: 'c'}"), ("stride", "8")])


def recogniser(path, height, width):
    """As a text recogniser: [N, 3, 32, width] -> [N, width / 4, 6], scores of 6 characters for each 4 columns, through
    a Reshape whose target is computed from the picture's shape."""
    nodes = [small_onnx.node("Conv", ["image", "a"], ["columns"], small_onnx.ints("kernel_shape", [32, 4]),
                             small_onnx.ints("strides", [32, 4])),
             small_onnx.node("Shape", ["columns"], ["shape"]), small_onnx.node("Gather", ["shape", "kept"], ["sides"]),
             small_onnx.node("Reshape", ["columns", "sides"], ["rows"]),
             small_onnx.node("Transpose", ["rows"], ["turned"], small_onnx.ints("perm", [0, 2, 1])),
             small_onnx.node("MatMul", ["turned", "b"], ["mixed"]), small_onnx.node("Softmax", ["mixed"], ["characters"])]
    tensors = [small_onnx.noise("a", 5, 0.05, 8, 3, 32, 4), small_onnx.noise("b", 6, 0.5, 8, 6),
               small_onnx.integers("kept", [0, 1, 3])]
    small_onnx.write(path, nodes, tensors, [small_onnx.tensor_info("image", "N", 3, height, width)],
                     [small_onnx.tensor_info("characters", "N", "T", 6)])


class Sizes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-sizes-")
        for build, task in ((segmenter, {"task": "segmentation"}), (detector, {"task": "detection", "layout": "yolov8"})):
            for name, sides in (("free", ("H", "W")), ("fixed", (48, 64))):
                os.makedirs(cls.path(build, name))
                build(os.path.join(cls.path(build, name), "model.onnx"), *sides)
                with open(os.path.join(cls.path(build, name), "lensd.json"), "w", encoding="utf-8") as file:
                    json.dump(task, file)
        for name, width in (("free", "W"), ("fixed", 96)):
            os.makedirs(cls.path(recogniser, name))
            recogniser(os.path.join(cls.path(recogniser, name), "model.onnx"), 32, width)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def path(cls, build, name):
        return os.path.join(cls.folder, f"{build.__name__}-{name}")

    def serve(self, build, name, *arguments):
        server = Server(self.path(build, name), *PLAIN, *arguments)
        self.addCleanup(server.stop)
        return server

    def ask(self, send):
        """The answer of send() once the size is compiled, and whether it was not at first."""
        waited, end = False, time.monotonic() + PATIENCE
        while True:
            answer = send()
            if answer.status != 503 or time.monotonic() > end:
                return answer, waited
            self.assertIn("is being compiled for", answer.json()["error"])
            self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
            waited = True
            time.sleep(0.02)

    def test_photos_are_answered_as_by_a_file_of_that_size(self):
        photo = png(200, 120)
        for build, part in ((segmenter, "segments"), (detector, "predictions")):
            with self.subTest(build=build.__name__):
                free, fixed = self.serve(build, "free"), self.serve(build, "fixed")
                query = "?confidence=0.01&max_detections=50" if build is detector else "?"
                expected = fixed.predict(photo, "/predict" + query).json()
                answer, waited = self.ask(lambda: free.predict(photo, f"/predict{query}&size=64x48"))
                self.assertEqual((answer.status, waited), (200, True), answer.body)
                self.assertEqual(json.dumps(answer.json()[part]), json.dumps(expected[part]))
                self.assertTrue(expected[part])
                own = free.predict(photo, "/predict" + query).json()
                self.assertNotEqual(json.dumps(own[part]), json.dumps(expected[part]))
                again, waited = self.ask(lambda: free.predict(photo, f"/predict{query}&size=64x48"))
                self.assertEqual((again.status, waited), (200, False))

    def infer(self, server, height, width, count=1):
        values = [((i * 37) % 101) / 50 - 1 for i in range(count * 3 * height * width)]
        body = json.dumps({"inputs": [{"name": "image", "shape": [count, 3, height, width], "datatype": "FP32",
                                       "data": values}]}).encode()
        return server.request("POST", "/v2/models/" + server.name + "/infer", body)

    def test_a_tensor_tells_its_size(self):
        free, fixed = self.serve(segmenter, "free"), self.serve(segmenter, "fixed")
        free.name, fixed.name = "segmenter-free", "segmenter-fixed"
        answer, _ = self.ask(lambda: self.infer(free, 48, 64, 3))
        expected = self.infer(fixed, 48, 64, 3)
        self.assertEqual((answer.status, expected.status), (200, 200), answer.body[:300])
        self.assertEqual(answer.json()["outputs"], expected.json()["outputs"])
        self.assertEqual(answer.json()["outputs"][0]["shape"], [3, 4, 48, 64])
        refused = self.infer(fixed, 64, 48)
        self.assertEqual(refused.status, 400)
        self.assertIn("a file exported with free height and width takes other sizes", refused.json()["error"])

    def test_one_side_may_be_free(self):
        free, fixed = self.serve(recogniser, "free"), self.serve(recogniser, "fixed")
        free.name, fixed.name = "recogniser-free", "recogniser-fixed"
        answer, waited = self.ask(lambda: self.infer(free, 32, 96, 2))
        expected = self.infer(fixed, 32, 96, 2)
        self.assertEqual((answer.status, waited, expected.status), (200, True, 200), answer.body[:300])
        self.assertEqual(answer.json()["outputs"], expected.json()["outputs"])
        self.assertEqual(answer.json()["outputs"][0]["shape"], [2, 24, 6])
        answer, _ = self.ask(lambda: self.infer(free, 32, 160))
        self.assertEqual(answer.json()["outputs"][0]["shape"], [1, 40, 6])
        self.assertEqual(self.infer(free, 48, 96).status, 400)
        answer = free.predict(png(40, 40), "/predict?size=96x48")
        self.assertEqual(answer.status, 400)
        self.assertIn("of which its file fixes the height", answer.json()["error"])

    def test_predict_takes_a_size(self):
        photo = os.path.join(self.folder, "photo.png")
        with open(photo, "wb") as file:
            file.write(png(200, 120))

        def segments(name, *arguments):
            ended = run_lensd("predict", self.path(segmenter, name), photo, "--json", "--precision", "fp32", *arguments)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            return json.loads(ended.stdout)["results"][0]["segments"]
        self.assertEqual(segments("free", "--size", "64x48"), segments("fixed"))
        self.assertNotEqual(segments("free"), segments("fixed"))
        for size, words in (("32x32", "takes 64 x 48 pixels, which its file fixes"), ("64x", "such as 640x480")):
            ended = run_lensd("predict", self.path(segmenter, "fixed"), photo, "--size", size)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(words, ended.stderr)

    def test_the_least_recently_used_size_is_replaced(self):
        server = self.serve(segmenter, "free", "--log-level", "info")
        sizes = [(16 * i, 16) for i in range(1, KEPT + 2)]
        photo = png(40, 40)

        def ask(width, height):
            answer, waited = self.ask(lambda: server.predict(photo, f"/predict?size={width}x{height}"))
            self.assertEqual(answer.status, 200, answer.body)
            return waited
        for size in sizes[:KEPT]:
            self.assertTrue(ask(*size))
        self.assertFalse(ask(*sizes[0]))
        self.assertTrue(ask(*sizes[KEPT]))  # takes the place of the second
        self.assertFalse(ask(*sizes[0]))
        self.assertTrue(ask(*sizes[1]))
        self.assertEqual(server.whole_log().count(" size compiled "), KEPT + 2)
        # The nearest that is compiled: none is made.
        answer = server.predict(photo, f"/predict?size=~{sizes[0][0] + 2}x17")
        self.assertEqual(answer.status, 200, answer.body)
        expected = server.predict(photo, f"/predict?size={sizes[0][0]}x{sizes[0][1]}")
        self.assertEqual(answer.json()["segments"], expected.json()["segments"])
        self.assertEqual(server.whole_log().count(" size compiled "), KEPT + 2)
        memory = server.get("/devices").json()["devices"][0]["memory"]
        self.assertGreater(memory["used_by_lensd_bytes"], 0)

    @unittest.skipIf(SANITIZED, "a sanitizer keeps freed memory")
    def test_sizes_share_weights_and_memory(self):
        weights, widths = 512 * 16384 * 4, range(240, 240 + 12 * 16, 16)
        folder = os.path.join(self.folder, "heavy")
        os.makedirs(folder)
        nodes = [small_onnx.node("Conv", ["image", "a"], ["columns"], small_onnx.ints("kernel_shape", [32, 4]),
                                 small_onnx.ints("strides", [32, 4])),
                 small_onnx.node("GlobalAveragePool", ["columns"], ["means"]), small_onnx.node("Flatten", ["means"], ["row"]),
                 small_onnx.node("MatMul", ["row", "b"], ["scores"])]
        small_onnx.write(os.path.join(folder, "model.onnx"), nodes,
                         [small_onnx.noise("a", 5, 0.05, 512, 3, 32, 4), small_onnx.weights("b", 512, 16384)],
                         [small_onnx.tensor_info("image", "N", 3, 32, "W")], [small_onnx.tensor_info("scores", "N", 16384)])
        server = Server(folder, *PLAIN)
        self.addCleanup(server.stop)
        photo = png(40, 40)

        def resident():
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) << 10
        self.assertEqual(server.predict(photo, "/predict").status, 200)
        before = resident()
        self.assertGreater(before, weights)
        for width in widths:
            answer, waited = self.ask(lambda width=width: server.predict(photo, f"/predict?size={width}x32"))
            self.assertEqual((answer.status, waited), (200, True), answer.body)
        # Four sizes are kept: with weights of their own they would take four times as much more.
        server.wait_for(lambda: resident() < before + 2 * weights, "what compiling took to be given back")

    def test_weights_that_differ_in_one_number(self):
        """Each layer has its own, though a look at some of their numbers does not tell them apart."""
        side, layers, product = 64, 24, 1.0
        folder = os.path.join(self.folder, "alike")
        os.makedirs(folder)
        nodes, tensors = [], []
        for i in range(layers):
            numbers = [float(row == column) for row in range(side) for column in range(side)]
            numbers[-1] += i / 64
            product *= numbers[-1]
            tensors.append(small_onnx.number(1, side) * 2 + small_onnx.number(2, 1) + small_onnx.blob(8, f"w{i}") +
                           small_onnx.blob(9, struct.pack(f"<{side * side}f", *numbers)))
            nodes += [small_onnx.node("MatMul", [f"x{i}", f"w{i}"], [f"p{i}"]), small_onnx.node("Relu", [f"p{i}"], [f"x{i + 1}"])]
        small_onnx.write(os.path.join(folder, "model.onnx"), nodes, tensors, [small_onnx.tensor_info("x0", "N", side)],
                         [small_onnx.tensor_info(f"x{layers}", "N", side)])
        server = Server(folder, *PLAIN)
        self.addCleanup(server.stop)
        body = {"inputs": [{"name": "x0", "datatype": "FP32", "shape": [1, side], "data": [1] * side}]}
        answer = server.request("POST", "/v2/models/alike/infer", json.dumps(body).encode())
        self.assertEqual(answer.status, 200, answer.body)
        *ones, last = answer.json()["outputs"][0]["data"]
        self.assertEqual(set(ones), {1})
        self.assertAlmostEqual(last / product, 1, delta=1e-4)

    def test_impossible_sizes(self):
        free, fixed = self.serve(detector, "free"), self.serve(segmenter, "fixed")
        photo = png(40, 40)
        for size in ("64", "64x", "x64", "0x64", "64x5000", "64x48x2", "6.4x48", "99999999999x1"):
            answer = free.predict(photo, "/predict?size=" + size)
            self.assertEqual(answer.status, 400, size)
            self.assertIn("such as 640x480", answer.json()["error"])
        answer = fixed.predict(photo, "/predict?size=32x32")
        self.assertEqual(answer.status, 400)
        self.assertIn("takes 64 x 48 pixels, which its file fixes", answer.json()["error"])
        self.assertEqual(fixed.predict(photo, "/predict?size=64x48").status, 200)
        answer, _ = self.ask(lambda: free.predict(photo, "/predict?size=4x4"))  # smaller than the window
        self.assertEqual(answer.status, 400)
        self.assertIn("does not work with 4 x 4 pixels: ", answer.json()["error"])
        self.assertEqual(free.predict(photo).status, 200)

    def test_each_size_has_its_own_queue(self):
        """A full queue of the model's own size refuses photos of this size only, wherever a request names its size."""
        folder = os.path.join(self.folder, "held")
        os.makedirs(folder)
        small_onnx.loops_when_light(folder, 0.5, side="S")
        with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
            json.dump({"size": {"height": 8, "width": 8}, "do_normalize": False}, file)
        server = Server(folder, *PLAIN, "--max-queue", "4")
        self.addCleanup(server.stop)
        dark, light = flat_png(0), flat_png(255)
        answer, _ = self.ask(lambda: server.predict(dark, "/predict?size=16x16"))
        self.assertEqual(answer.status, 200, answer.body)
        admitted, connections = server.admitted(), []

        def send(*request):
            """Whether it was let in."""
            connection = server.connect()
            connection.sendall(post(*request))
            connections.append(connection)
            answered = server.wait_for(lambda: select.select([connection], [], [], 0)[0] or server.admitted() > admitted,
                                       "an answer, or admission")
            if answered is not True:
                answer, _ = read_answer(connection)
                self.assertEqual(answer.status, 503, answer.body)
            return answered is True

        def fill(*requests):
            nonlocal admitted
            for request in requests:
                self.assertTrue(send(*request), request[0])
                admitted += 1

        fill(*[("/predict", light)] * 4)
        form, body = multipart([("size", None, b"16x16"), ("photo", "photo.png", dark)])
        text = json.dumps({"image": {"b64": base64.b64encode(dark).decode()}, "size": "16x16"}).encode()
        tensor = json.dumps({"inputs": [{"name": "image", "shape": [1, 3, 16, 16], "datatype": "FP32",
                                         "data": [0] * 768}]}).encode()
        self.assertFalse(send("/predict", dark))
        self.assertFalse(send("/predict?size=8x8", dark))
        fill(("/predict?size=16x16", dark), ("/predict", body, f"Content-Type: {form}"),
             ("/predict", text, "Content-Type: application/json"), ("/v2/models/held/infer", tensor))
        self.assertFalse(send("/predict", text, "Content-Type: application/json"), "now both are full")
        for connection in connections:
            hang_up(connection)

    def test_jobs_of_admins_go_before_a_size(self):
        made = run_lensd("key", "root")
        key = next(word for word in made.stderr.split() if word.startswith("lensd-"))
        path = os.path.join(self.folder, "admin-keys")
        with open(path, "w", encoding="utf-8") as file:
            file.write(made.stdout)
        os.chmod(path, 0o600)
        folder = os.path.join(self.folder, "deep")
        os.makedirs(folder)
        segmenter(os.path.join(folder, "model.onnx"), "H", "W", more=40)  # a pass of this size computes for a second or so
        with open(os.path.join(folder, "lensd.json"), "w", encoding="utf-8") as file:
            json.dump({"task": "segmentation"}, file)
        server = Server(folder, *PLAIN, "--admin-key-file", path)
        self.addCleanup(server.stop)
        photo, before = png(40, 40), server.cpu_seconds()
        self.assertEqual(server.predict(photo, "/predict?size=1024x1024").status, 503)
        server.wait_for(lambda: server.cpu_seconds() > before + 0.3, "the compilation")
        answer = server.request("POST", "/v2/repository/models/nothing/load", b"{}", {"Authorization": f"Bearer {key}"})
        self.assertEqual(answer.status, 404, answer.body)
        # The size was given up for the job, and is compiled from the start: no failure is kept.
        self.assertEqual(server.predict(photo, "/predict?size=1024x1024").status, 503)

    def test_many_clients_and_the_end(self):
        server = Server(self.path(segmenter, "free"), *PLAIN)
        photo, statuses = png(40, 40), []

        def client(i):
            for k in range(6):
                side = 16 * (1 + (i + k) % (KEPT + 1))
                answer, _ = self.ask(lambda side=side: server.predict(photo, f"/predict?size={side}x32"))
                statuses.append(answer.status)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(statuses, [200] * 24)
        code, log = server.stop()
        self.assertEqual(code, 0, log[-2000:])


if __name__ == "__main__":
    unittest.main()
