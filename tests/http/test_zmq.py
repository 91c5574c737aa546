"""Frigate's detector of type zmq: a client that sends what frigate/detectors/plugins/zmq_ipc.py sends, through pyzmq."""

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import tempfile
import unittest

import numpy

import harness
import small_onnx
from harness import ROOT, ServedCase, Server, hang_up, read, run_lensd
from test_apps import commands

try:
    import zmq
except ImportError:
    zmq = None

ZEROS = bytes(480)


def small(folder, name, *arguments, make=small_onnx.always):
    os.mkdir(os.path.join(folder, name))
    make(os.path.join(folder, name, "model.onnx"), *arguments)


def rows_of_data(path, side=8):
    """[N, 3, side, side] -> the same numbers as rows of six, the output of YOLO models that do their own suppression."""
    small_onnx.write(path, [small_onnx.node("Reshape", ["image", "shape"], ["boxes"])], [small_onnx.integers("shape", [-1, side * side // 2, 6])],
                     [small_onnx.tensor_info("image", "N", 3, side, side)], [small_onnx.tensor_info("boxes", "N", side * side // 2, 6)])


def tensor_of(*boxes):
    """For rows_of_data: boxes of (x1, y1, x2, y2, score, class)."""
    rows = numpy.zeros((32, 6), numpy.float32)
    for row, box in zip(rows, boxes):
        row[:] = box
    return rows.reshape(1, 3, 8, 8)


def wanted_of(tensor, threshold=0.25):
    """The first 20 rows whose score is above the threshold, best first, as Frigate wants them."""
    rows = tensor.astype(numpy.float64).reshape(-1, 6)
    rows = rows[rows[:, 4] > threshold]
    rows = rows[numpy.argsort(-rows[:, 4], kind="stable")][:20]
    wanted = numpy.zeros((20, 6))
    for place, (x1, y1, x2, y2, score, kind) in enumerate(rows):
        wanted[place] = int(kind), score, *(min(max(side / 8, 0), 1) for side in (y1, x1, y2, x2))
    return wanted


class Client:
    """A detector of Frigate's: REQ, time limits, no waiting for unsent messages."""

    def __init__(self, endpoint, timeout_ms=int(1000 * harness.PATIENCE), kind="REQ"):
        self.context = zmq.Context()
        self.socket = self.context.socket(getattr(zmq, kind))
        self.socket.setsockopt(zmq.RCVTIMEO, timeout_ms)
        self.socket.setsockopt(zmq.SNDTIMEO, timeout_ms)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)

    def close(self):
        self.socket.close(linger=0)
        self.context.term()

    def ask(self, *frames):
        self.socket.send_multipart(frames)
        return self.socket.recv_multipart()

    def model(self, name):
        (answer,) = self.ask(json.dumps({"model_request": True, "model_name": name}).encode("utf-8"))
        return json.loads(answer)

    def send(self, tensor):
        header = {"shape": list(tensor.shape), "dtype": str(tensor.dtype.name), "model_type": "yologeneric"}
        self.socket.send_multipart([json.dumps(header).encode("utf-8"), memoryview(tensor.tobytes(order="C"))])

    def receive(self):
        (answer,) = self.socket.recv_multipart()
        return numpy.frombuffer(answer, dtype=numpy.float32).reshape((20, 6))

    def detect(self, tensor):
        self.send(tensor)
        return self.receive()


@unittest.skipIf(zmq is None, "pyzmq is not installed (Debian: python3-zmq)")
class ZmqCase(ServedCase):
    arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-zmq-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        super().setUpClass()
        cls.endpoint = cls.endpoint_of(cls.server)

    @classmethod
    def start(cls):
        cls.write_models(cls.folder)
        return cls.serve_models(cls.folder, *cls.arguments)

    @staticmethod
    def serve_models(folder, *arguments, **options):
        return Server("--models", folder, "--precision", "fp32", "--zmq-port", "127.0.0.1:0", *arguments, **options)

    @staticmethod
    def endpoint_of(server):
        return re.search(r"(?:tcp|ipc)://[^\s\"]+", server.wait_log("zmq port")[0])[0]

    def client(self, model=None, endpoint=None, **options):
        client = Client(endpoint or self.endpoint, **options)
        self.addCleanup(client.close)
        if model:
            self.assertEqual(client.model(model), {"model_available": True, "model_loaded": True})
        return client

    def count(self, path, status, server=None):
        return (server or self.server).metric(f'lensd_http_path_requests_total{{path="{path}",status="{status}"}}')

    def assert_rows(self, found, wanted):
        numpy.testing.assert_allclose(found, wanted, atol=1e-5)


class Detector(ZmqCase):
    arguments = ("--zmq-timeout", "0")

    @classmethod
    def write_models(cls, folder):
        small(folder, "rows", make=rows_of_data)
        small(folder, "yolox", [("o", (84, 7), [2, 2, 0, 0, .9, 1, 0] + [0] * 7 * 83)])
        candidates = [(32, 32, 16, 24, .05, .9), (50, 20, 10, 10, .55, 0)] + [(5, 5, 2, 2, 0, 0)] * 82
        small(folder, "yolov8", [("found", (6, 84), [c[line] for line in range(6) for c in candidates])])
        small(folder, "classes", [("scores", (3,), [1, 2, 3])])
        small(folder, "d-fine", make=lambda path: shutil.copy(os.path.join(ROOT, "tests", "data", "lists", "model.onnx"), path))
        with open(os.path.join(folder, "d-fine", "lensd.json"), "w", encoding="ascii") as file:
            file.write('{"confidence": 0, "max_detections": 10}')

    def test_boxes(self):
        client = self.client("rows.onnx")
        tensor = tensor_of((1, 2, 5, 6, .5, 3), (0, 0, 8, 8, .9, 1), (2, 2, 3, 3, .2, 1))
        self.assert_rows(client.detect(tensor), wanted_of(tensor))
        self.assert_rows(client.detect(tensor_of()), numpy.zeros((20, 6)))
        many = tensor_of(*((0, 0, 1 + i / 8, 2, .3 + i / 64, i) for i in range(32)))
        self.assert_rows(client.detect(many), wanted_of(many))
        self.server.wait_for(lambda: self.count("/zmq/detect", "2xx") >= 3, "the requests to be counted")

    def test_pixels(self):
        """Frigate's defaults, uint8 and [1, height, width, 3]: prepared as a photo, for a detector as x / 255."""
        client = self.client("rows.onnx")
        pixels = numpy.random.default_rng(5).integers(0, 256, (1, 8, 8, 3), numpy.uint8)
        self.assert_rows(client.detect(pixels), wanted_of(pixels.transpose(0, 3, 1, 2) / 255))

    def test_layouts(self):
        """Models with other output layouts, which lensd's decoders know. Half a pixel of error is allowed."""
        image = numpy.zeros((1, 3, 64, 64), numpy.float32)
        self.assert_rows(self.client("yolox.onnx").detect(image)[:2], [(0, .9, 12 / 64, 12 / 64, 20 / 64, 20 / 64), (0,) * 6])
        self.assert_rows(self.client("yolov8.onnx").detect(image)[:3],
                         [(1, .9, 20 / 64, 24 / 64, 44 / 64, 40 / 64), (0, .55, 15 / 64, 45 / 64, 25 / 64, 55 / 64), (0,) * 6])

    def test_d_fine(self):
        """Its own export: lensd fills orig_target_sizes. The boxes are ONNX Runtime's (tests/data/make_lists.py)."""
        client = self.client("d-fine.onnx")
        with open(os.path.join(ROOT, "tests", "data", "lists", "answers.json"), encoding="utf-8") as file:
            answers = json.load(file)
        for answer in answers:
            found = client.detect(numpy.full((1, 3, 32, 32), answer["shade"] / 255, numpy.float32))
            for row, box, score, label in zip(found, answer["boxes"], answer["scores"], answer["labels"]):
                x1, y1, x2, y2 = (min(max(v / s, 0), 1) for v, s in zip(box, [answer["width"], answer["height"]] * 2))
                numpy.testing.assert_allclose(row, (label, score, y1, x1, y2, x2), atol=2e-4)

    def test_the_console_knows_it(self):
        self.assertEqual(self.server.get("/console.json").json()["zmq"], "127.0.0.1:0")

    def test_models(self):
        client = self.client()
        self.assertEqual(client.model("absent.onnx"), {"model_available": False, "model_loaded": False})
        (answer,) = client.ask(json.dumps({"model_data": True, "model_name": "absent.onnx"}).encode(), b"onnx" * 100)
        self.assertEqual(json.loads(answer), {"model_saved": False, "model_loaded": False})
        self.assertEqual(client.model("classes.onnx"), {"model_available": True, "model_loaded": False})
        self.assertEqual(client.model("rows"), {"model_available": True, "model_loaded": True})
        self.server.wait_log("zmq failure")

    def test_without_a_model_there_is_no_answer(self):
        """A client that has not named its model, as after a restart of lensd: Frigate then begins anew."""
        before = self.count("/zmq/detect", "4xx")
        client = self.client()
        client.send(tensor_of())
        self.server.wait_for(lambda: self.count("/zmq/detect", "4xx") > before, "the refusal")
        self.assertFalse(client.socket.poll(0))
        self.client("rows.onnx").detect(tensor_of())

    def test_hostile(self):
        client = self.client("rows.onnx")
        header = {"shape": [1, 3, 8, 8], "dtype": "float32"}
        data = bytes(768)
        before = self.count("/zmq/detect", "4xx")
        messages = [(b"", data), (b"{", data), (b"\xff" * 40, data), (b"[1]", data), (b"[" * 100000, data), (b"7", b""),
                    (json.dumps(header).encode(), data[1:]), (json.dumps(header).encode(), b"")]
        for changed in ({"shape": [1, 3, 8]}, {"shape": [1, 3, 8, -8]}, {"shape": [1, 3, 8, 2**40]}, {"shape": [2**31 - 1] * 4},
                        {"shape": "1388"}, {"shape": [1, 3, 8, 8.5]}, {"dtype": "object"}, {"dtype": None}, {"shape": [1, 8, 8, 3]},
                        {"shape": [3, 1, 8, 8]}, {"dtype": "int32"}, {"model_request": True, "model_name": "rows.onnx"}):
            messages.append((json.dumps({**header, **changed}).encode(), data))
        for header in (b"{}", b"", b'{"model_request": true}', b'{"model_request": true, "model_name": ""}',
                       json.dumps({"model_request": True, "model_name": "x" * 500}).encode()):
            self.assertEqual(client.ask(header), [ZEROS], header)
        for message in messages:
            self.assertEqual(client.ask(*message), [ZEROS], message[0][:60])
        self.assertEqual(client.ask(b"{}", b"", b"", b"", b""), [ZEROS])
        self.server.wait_for(lambda: self.count("/zmq/detect", "4xx") >= before + len(messages) + 1, "them to be counted")
        tensor = tensor_of((1, 2, 5, 6, .5, 3))
        self.assert_rows(client.detect(tensor), wanted_of(tensor))
        self.server.wait_log("zmq failure")
        self.assertEqual(self.server.whole_log().count("zmq failure"), 1)

    def test_other_sockets(self):
        """A message that is not from a REQ socket gets no answer; a very long frame ends the connection."""
        dealer = self.client(kind="DEALER")
        dealer.socket.send_multipart([b"no delimiter", b"x"])
        self.server.wait_for(lambda: self.server.metric("lensd_zmq_dropped_total") >= 1, "it to be dropped")
        dealer.socket.send_multipart([b"", json.dumps({"model_request": True, "model_name": "rows.onnx"}).encode()])
        self.assertEqual(len(dealer.socket.recv_multipart()), 2)
        with contextlib.suppress(zmq.ZMQError):
            self.client().socket.send_multipart([bytes(65 << 20)])
        self.client("rows.onnx").detect(tensor_of())

    def test_a_client_that_sends_is_remembered(self):
        """The models of 256 clients are kept: those that sent last, however long ago they named one."""
        client = self.client("rows.onnx")
        for count in range(300):
            self.client("rows.onnx").close()
            if count % 100 == 0:
                client.detect(tensor_of())
        client.detect(tensor_of())

    def test_many_clients(self):
        """Each gets its own boxes."""
        clients = [self.client("rows.onnx") for _ in range(8)]

        def work(i):
            for turn in range(10):
                tensor = tensor_of((turn, i, 7, 8, .3 + i / 16, 10 * i + turn))
                self.assert_rows(clients[i].detect(tensor), wanted_of(tensor))
        harness.together(8, work)


class Held(ZmqCase):
    """Another model holds the device until its client leaves, so that nothing is answered too early."""

    arguments = ("--zmq-timeout", "0", "--workers", "1", "--max-queue", "8")

    @classmethod
    def write_models(cls, folder):
        small(folder, "rows", make=rows_of_data)
        os.mkdir(os.path.join(folder, "loop"))
        small_onnx.loops_when_light(os.path.join(folder, "loop"), 0.9)

    def hold(self, server=None):
        server = server or self.server
        connection = server.connect()
        self.addCleanup(connection.close)
        connection.sendall(harness.post("/predict?model=loop", harness.flat_png(255), "Content-Type: image/png"))
        server.wait_for(lambda: server.metric('lensd_in_flight_images{model="loop"') > 0, "a photo past its worker")
        used = server.cpu_seconds()  # nothing but its pass uses any
        server.wait_for(lambda: server.cpu_seconds() > used + 0.3, "its forward pass")
        return connection

    def test_batches_across_sockets_and_a_full_queue(self):
        """Of nine tensors for a queue of eight one is refused, or two if the last place is kept for others; the rest runs together."""
        clients = [self.client("rows.onnx") for _ in range(9)]
        holder = self.hold()
        tensors = [tensor_of((0, 0, i + 1, 8, .5, i)) for i in range(9)]
        before = self.server.metric('lensd_batch_size_count{model="rows"')
        for client, tensor in zip(clients, tensors):
            client.send(tensor)
        self.server.wait_for(lambda: self.count("/zmq/detect", "5xx") + self.server.metric('lensd_in_flight_images{model="rows"') == 9,
                             "nine that are refused or wait")
        hang_up(holder)
        found = [client.receive() for client in clients]
        refused = {i for i, rows in enumerate(found) if not rows.any()}
        self.assertIn(len(refused), (1, 2))
        for i in {*range(9)} - refused:
            self.assert_rows(found[i], wanted_of(tensors[i]))
        self.server.wait_for(lambda: self.count("/zmq/detect", "2xx") == 9 - len(refused), "them to be counted")
        self.assertLess(self.server.metric('lensd_batch_size_count{model="rows"') - before, 5)

    def test_a_drain_answers(self):
        server = self.serve_models(self.folder, *self.arguments)
        self.addCleanup(server.stop)
        client = self.client("rows.onnx", self.endpoint_of(server))
        holder = self.hold(server)
        tensor = tensor_of((1, 2, 5, 6, .5, 3))
        client.send(tensor)
        server.wait_for(lambda: server.metric('lensd_in_flight_images{model="rows"') == 1, "a tensor that waits")
        server.signal()
        server.wait_log("draining")
        hang_up(holder)
        self.assert_rows(client.receive(), wanted_of(tensor))
        self.assertEqual(server.wait(), 0)


class Late(ZmqCase):
    """A pass that does not end: zeros in time, and the next one is answered."""

    arguments = ("--zmq-timeout", "1")

    @classmethod
    def write_models(cls, folder):
        os.mkdir(os.path.join(folder, "slow"))
        small_onnx.loops_when_light(os.path.join(folder, "slow"), 0.9, finds_boxes=True)
        with open(os.path.join(folder, "slow", "lensd.json"), "w", encoding="ascii") as file:
            file.write('{"layout": "yolo-final"}')

    def test_zeros(self):
        client = self.client("slow.onnx")
        self.assert_rows(client.detect(numpy.ones((1, 3, 8, 8), numpy.float32)), numpy.zeros((20, 6)))
        self.server.wait_log("zmq failure")  # of this thread or of the model's, whichever saw it first
        self.server.wait_for(lambda: self.count("/zmq/detect", "5xx") == 1, "it to be counted")
        self.server.wait_for(lambda: self.server.metric("lensd_in_flight_images") == 0, "the pass to end")


@unittest.skipIf(zmq is None, "pyzmq is not installed (Debian: python3-zmq)")
class Start(ZmqCase):
    """Servers of their own."""

    @classmethod
    def start(cls):
        small(cls.folder, "rows", make=rows_of_data)
        path = os.path.join(cls.folder, "socket")
        return Server("--models", cls.folder, "--precision", "fp32", "--zmq-port", f"ipc://{path}", "--zmq-timeout", "0",
                      "--load", "lazy", "--idle-unload", "1")

    def test_ipc_and_a_model_on_demand(self):
        client = self.client("rows.onnx")
        tensor = tensor_of((1, 2, 5, 6, .5, 3))
        for _ in range(2):
            self.assert_rows(client.detect(tensor), wanted_of(tensor))
            self.server.wait_for(lambda: self.server.get("/health").json()["models"][0]["state"] == "unloaded", "the model to be unloaded")

    def test_a_path_in_use(self):
        """Another file stays, and so does a socket with a listener; one that a crash has left is replaced."""
        path = os.path.join(self.folder, "other")
        with open(path, "w", encoding="ascii") as file:
            file.write("precious")
        taken = self.endpoint
        for endpoint, words in (("ipc://" + path, "exists and is not a socket"), (taken, "another program listens on")):
            made = run_lensd("serve", "--models", self.folder, "--port", "0", "--zmq-port", endpoint)
            self.assertNotEqual(made.returncode, 0)
            self.assertIn(words, made.stderr)
            self.assertIn("--zmq-port", made.stderr)
        for endpoint, words in (("ipc://" + path, "exists and is not a socket"), (f"ipc://{self.folder}/none/s", "cannot listen on --zmq-port"),
                                ("ipc:///" + "x" * 200, "has 201 bytes"), (taken, "")):
            made = run_lensd("serve", "--models", self.folder, "--port", "0", "--check", "--zmq-port", endpoint)
            self.assertEqual(made.returncode != 0, bool(words), made.stderr)
            self.assertIn(words, made.stderr)
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "precious")
        os.unlink(path)
        self.client("rows.onnx")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        server = Server("--models", self.folder, "--precision", "fp32", "--zmq-port", "ipc://" + path)
        self.addCleanup(server.stop)
        self.client("rows.onnx", self.endpoint_of(server))

    def test_questions_for_a_model_that_loads_leave_room(self):
        """Some wait, the others fail at once; tensors of a model that is loaded are answered."""
        folder = tempfile.TemporaryDirectory(prefix="lensd-zmq-")
        self.addCleanup(folder.cleanup)
        small(folder.name, "rows", make=rows_of_data)
        os.mkdir(os.path.join(folder.name, "never"))
        small_onnx.loops_when_light(os.path.join(folder.name, "never"), -1000)  # its first pass does not end
        server = self.serve_models(folder.name, "--zmq-timeout", "0", "--load", "lazy")
        self.addCleanup(server.stop)
        endpoint = self.endpoint_of(server)
        client, many = self.client("rows.onnx", endpoint), self.client(endpoint=endpoint, kind="DEALER")
        question = json.dumps({"model_request": True, "model_name": "never.onnx"}).encode()
        many.socket.send_multipart([b"", question.ljust(5000)])
        server.wait_for(lambda: self.count("/zmq/model", "4xx", server) == 1, "a header that is too long")
        for _ in range(400):
            many.socket.send_multipart([b"", question])
        server.wait_for(lambda: self.count("/zmq/model", "5xx", server) == 400 - 128, "those that are too many")
        tensor = tensor_of((1, 2, 5, 6, .5, 3))
        self.assert_rows(client.detect(tensor), wanted_of(tensor))

    def test_while_models_load(self):
        server = self.serve_models(self.folder, wait_ready=False)
        self.addCleanup(server.stop)
        self.client("rows.onnx", self.endpoint_of(server))

    def test_page(self):
        """The command of docs/apps/frigate.md, with a small model."""
        page = os.path.join(ROOT, "docs", "apps", "frigate.md")
        (command,) = (line for line in commands(page) if "--zmq-port" in line)
        words = shlex.split(command)
        self.assertEqual((words[:3], words[-1]), (["lensd", "serve", "models/yolo.onnx"], "0.0.0.0:5555"))
        folder = tempfile.TemporaryDirectory(prefix="lensd-zmq-")
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "yolo.onnx")
        rows_of_data(path)
        server = Server(path, *words[3:-1], "127.0.0.1:0", "--zmq-timeout", "0")
        self.addCleanup(server.stop)
        client = self.client("yolo.onnx", self.endpoint_of(server))
        tensor = tensor_of((1, 2, 5, 6, .5, 3))
        self.assert_rows(client.detect(tensor), wanted_of(tensor))
        self.assertIn('lensd_http_path_requests_total{path="/zmq/detect",status="2xx"}', read(page).decode())
        server.wait_for(lambda: self.count("/zmq/detect", "2xx", server) == 1, "it to be counted")

    def test_refused(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", encoding="ascii") as file:
            file.write(f"user sha256:{'0' * 64}\n")
        os.chmod(keys, 0o600)
        for arguments, words in ((("--zmq-port", "udp://1.2.3.4:5"), "ipc:///PATH"), (("--check", "--zmq-port", "127.0.0.1:99999"), "ADDRESS:PORT"), (("--check", "--zmq-port", "70000"), "ADDRESS:PORT"),
                                 (("--zmq-port", "0.0.0.0:0", "--api-keys", keys), "API key"),
                                 (("--zmq-port", "ipc://" + "x" * 400), "--zmq-port"), (("--zmq-port", "x" * 400 + "://"), "--zmq-port"), (("--zmq-timeout", "61"), "--zmq-timeout")):
            made = run_lensd("serve", *arguments)
            self.assertEqual(made.returncode, 2, made.stderr)
            self.assertIn(words, made.stderr)
        with open(os.path.join(self.folder, "libzmq.so.5"), "wb") as file:
            file.write(b"no library")
        made = run_lensd("serve", "--check", "--zmq-port", "5555", environment={"LD_LIBRARY_PATH": self.folder})
        self.assertEqual(made.returncode, 2, made.stderr)
        self.assertIn("install libzmq5", made.stderr)
        self.assertEqual(run_lensd("serve", "--check", "--zmq-port", "5555").returncode, 0)


if __name__ == "__main__":
    unittest.main()
