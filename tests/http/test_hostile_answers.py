"""Small requests for large answers, from clients that read them slowly or not at all: memory stays within
--max-upload-memory, and who takes too long is cut off."""

import json
import os
import re
import socket
import struct
import tempfile
import threading
import time
import unittest

import harness
import small_onnx
from harness import ServedCase, ServedModelCase, Server, post, read

MIB = 2**20
ROW = 4 * MIB  # bytes of output for each number of input
INFER = "/v2/models/served/infer"


def wide_rows(path):
    """[N, 1] -> [N, a million]: four bytes in, 4 MiB out."""
    small_onnx.write(path, [small_onnx.node("Mul", ["x", "factor"], ["y"])],
                     [small_onnx.weights("factor", 1, ROW // 4)],
                     [small_onnx.tensor_info("x", "N", 1)], [small_onnx.tensor_info("y", "N", ROW // 4)])


def rows_request(rows, binary=True):
    """The bytes of a request for `rows` rows of a wide model's output."""
    output = {"name": "y", "parameters": {"binary_data": binary}}
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": [1] * rows}],
                       "outputs": [output]}).encode()
    return body


def status_of(head):
    return int(head.split()[1])


class LazyClient:
    """Asks, reads the head of the answer, and then only what it is told to."""

    def __init__(self, server, body, buffer=4096):
        self.socket = socket.socket()
        self.socket.settimeout(harness.PATIENCE)
        if buffer:  # before connecting: the kernel is not to take the answer instead of us
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.connect(("127.0.0.1", server.port))
        self.socket.sendall(post(INFER, body))
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(4096)
            if not piece:
                raise AssertionError(f"closed within the head of an answer: {data!r}")
            data += piece
        self.head, self.body = data.split(b"\r\n\r\n", 1)
        self.size = int(re.search(rb"(?im)^content-length: (\d+)", self.head).group(1))
        self.taken = len(self.body)
        self.status = status_of(self.head)

    def take(self, most):
        """Reads up to so many bytes; False: there are no more."""
        try:
            piece = self.socket.recv(most)
        except (ConnectionResetError, BrokenPipeError):
            return False
        self.taken += len(piece)
        return len(piece) > 0

    def rest(self):
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, MIB)
        while len(self.body) < self.size:
            piece = self.socket.recv(65536)
            if not piece:
                raise AssertionError(f"closed after {len(self.body)} of {self.size} bytes")
            self.body += piece
        return self.body

    def close(self):
        self.socket.close()


class Memory(ServedModelCase):
    BUDGET = 72 * MIB  # a client gets 54 of them
    arguments = ("--max-upload-memory", str(BUDGET), "--max-body", "1M", "--precision", "fp32", "--max-batch", "2",
                 "--answer-timeout", "3600")
    write_model = staticmethod(wide_rows)

    def rss_peak(self):
        status = read(f"/proc/{self.server.process.pid}/status").decode()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024

    def answer_of(self, rows, binary=True):
        return self.server.predict(rows_request(rows, binary), INFER)

    def test_answers_that_nobody_reads(self):
        """24 clients ask for 16 MiB each, which takes 32 while it is written, and read only its head."""
        self.assertEqual(self.answer_of(4).status, 200)
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        before = self.rss_peak()
        clients = []
        try:
            for _ in range(24):
                clients.append(LazyClient(self.server, rows_request(4)))
            statuses = [client.status for client in clients]
            self.assertEqual(set(statuses), {200, 503}, statuses)
            self.assertGreaterEqual(statuses.count(200), 2)
            self.assertLessEqual(statuses.count(200) * 4 * ROW, self.BUDGET)
            refused = clients[statuses.index(503)]
            self.assertIn(b"Retry-After: ", refused.head)
            error = json.loads(refused.rest())
            self.assertEqual(error["code"], "overloaded")
            self.assertIn("--max-upload-memory", error["error"])
            held = self.server.metric("lensd_http_upload_bytes")
            self.assertGreaterEqual(held, statuses.count(200) * 4 * ROW)
            self.assertLessEqual(held, self.BUDGET)
            # All of them together would take 384 MiB or more. Four times the budget leaves room for the batch's own
            # buffers, allocators, and what a sanitizer keeps of freed memory.
            self.assertLess(self.rss_peak() - before, 4 * self.BUDGET)
            # Who asks for what still fits is served.
            self.assertEqual(len(self.answer_of(1).body) // MIB, 4)
            # One who begins to read gets all of it.
            good = clients[statuses.index(200)]
            size = int(re.search(rb"Inference-Header-Content-Length: (\d+)", good.head).group(1))
            numbers = good.rest()[size:]
            self.assertEqual(len(numbers), 4 * ROW)
            self.assertEqual(numbers[:ROW], numbers[3 * ROW:])
            self.server.wait_for(lambda: self.answer_of(4).status == 200, "what it has taken to be free again")
        finally:
            for client in clients:
                client.close()
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        self.assertEqual(self.answer_of(4).status, 200)

    def test_answers_that_never_fit(self):
        for path, body in ((INFER, rows_request(16)), (INFER, rows_request(4, binary=False)),
                           ("/v1/models/served:predict", b'{"instances":[[1],[1],[1],[1]]}')):
            answer = self.server.predict(body, path)
            self.assertEqual(answer.status, 413, answer.body[:300])
            self.assert_error(answer, 413, "too_large", "--max-upload-memory", "72.0 MiB")
        # The same with fewer rows.
        answer = self.answer_of(1, binary=False)
        self.assertEqual(answer.status, 200)
        self.assertEqual(len(answer.json()["outputs"][0]["data"]), ROW // 4)
        answer = self.server.predict(b'{"instances":[[2]]}', "/v1/models/served:predict")
        self.assertEqual(len(answer.json()["predictions"][0]), ROW // 4)
        self.server.wait_metric("lensd_http_upload_bytes", 0)


class KeptAnswers(ServedModelCase):
    """Copies from the response cache count as answers that are computed do."""

    BUDGET = 72 * MIB
    arguments = ("--max-upload-memory", str(BUDGET), "--max-body", "1M", "--precision", "fp32", "--response-cache",
                 "64M")
    write_model = staticmethod(wide_rows)

    def test_answers_that_nobody_reads(self):
        answer = self.server.predict(rows_request(4), INFER)
        self.assertEqual((answer.status, answer.headers["X-Cache"]), (200, "miss"))
        clients = []
        try:
            for _ in range(8):
                clients.append(LazyClient(self.server, rows_request(4)))
            statuses = [client.status for client in clients]
            self.assertEqual(set(statuses), {200, 503}, statuses)
            for client in clients:
                self.assertEqual(b"X-Cache: hit" in client.head, client.status == 200)
            held = self.server.metric("lensd_http_upload_bytes")
            self.assertGreaterEqual(held, statuses.count(200) * 4 * ROW)
            self.assertLessEqual(held, self.BUDGET)
        finally:
            for client in clients:
                client.close()
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        again = self.server.predict(rows_request(4), INFER)
        self.assertEqual((again.body == answer.body, again.headers["X-Cache"]), (True, "hit"))


class Unforeseen(ServedModelCase):
    """How large an output that depends on data is, only its run tells."""

    arguments = ("--max-upload-memory", "3M", "--max-body", "1M", "--precision", "fp32")
    SIDE = 128

    @staticmethod
    def write_model(path):
        small_onnx.places_of_light(path, side=Unforeseen.SIDE)

    def answer_of(self, lit):
        """For an image with so many numbers that are not 0."""
        count = 3 * self.SIDE**2
        header = json.dumps({"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, self.SIDE, self.SIDE],
                                         "parameters": {"binary_data_size": 4 * count}}]}).encode()
        image = struct.pack(f"<{count}f", *([1.0] * lit + [0.0] * (count - lit)))
        return self.server.request("POST", INFER, header + image,
                                   {"Inference-Header-Content-Length": str(len(header))})

    def test_is_counted_when_it_is_there(self):
        for _ in range(3):
            answer = self.answer_of(3 * self.SIDE**2)
            self.assertEqual(answer.status, 413, answer.body[:300])
            self.assert_error(answer, 413, "too_large", "--max-upload-memory")
            answer = self.answer_of(5000)
            self.assertEqual(answer.status, 200)
            self.assertEqual(answer.json()["outputs"][0]["shape"], [5000, 4])
        self.server.wait_metric("lensd_http_upload_bytes", 0)


class LongLabels(ServedCase):
    """Labels count as memory of an answer: here 1,000 of 2 KiB for each row of four bytes."""

    CLASSES, LABEL = 1000, 2048
    arguments = ("--max-upload-memory", "16M", "--max-body", "1M", "--precision", "fp32")

    @classmethod
    def start(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        cls.addClassCleanup(cls.folder.cleanup)
        small_onnx.write(os.path.join(cls.folder.name, "served.onnx"), [small_onnx.node("Mul", ["x", "factor"], ["y"])],
                         [small_onnx.weights("factor", 1, cls.CLASSES)], [small_onnx.tensor_info("x", "N", 1)],
                         [small_onnx.tensor_info("y", "N", cls.CLASSES)])
        with open(os.path.join(cls.folder.name, "labels.txt"), "w", encoding="ascii") as file:
            file.writelines("x" * cls.LABEL + "\n" for _ in range(cls.CLASSES))
        return Server(cls.folder.name, "--model-name", "served", *cls.arguments)

    def answer_of(self, rows):
        request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": [1] * rows}],
                   "outputs": [{"name": "y", "parameters": {"classification": self.CLASSES}}]}
        return self.server.predict(json.dumps(request).encode(), INFER)

    def test_answers_that_do_not_fit_are_refused(self):
        answer = self.answer_of(16)
        self.assertEqual(answer.status, 413, answer.body[:300])
        self.assert_error(answer, 413, "too_large", "--max-upload-memory")
        answer = self.answer_of(3)
        self.assertEqual(answer.status, 200)
        self.assertGreater(len(answer.body), 3 * self.CLASSES * self.LABEL)
        self.server.wait_metric("lensd_http_upload_bytes", 0)


@harness.needs("byte counts")
class SlowReaders(ServedModelCase):
    """Three who ask for 16 MiB: one reads nothing more, one 2.5 KiB a second, one some hundred KiB a second,
    for longer than two limits."""

    arguments = ("--max-upload-memory", "256M", "--max-body", "1M", "--precision", "fp32", "--max-batch", "2",
                 "--answer-timeout", "4")
    write_model = staticmethod(wide_rows)

    def take_slowly(self, client, bytes_each, pause, seconds, stalls):
        """Takes a little at a time for so many seconds, then the rest as it comes; notes the longest pause."""
        start = last = time.monotonic()
        while client.taken < client.size and client.take(bytes_each):
            if time.monotonic() - start < seconds:
                time.sleep(pause)
            stalls[client] = max(stalls[client], time.monotonic() - last)
            last = time.monotonic()

    def test_are_cut_off(self):
        end = time.monotonic() + harness.PATIENCE
        while not self.tells_slow_from_steady():
            self.assertLess(time.monotonic(), end, "the machine is too busy to read steadily")

    def tells_slow_from_steady(self):
        """False if this machine kept the steady reader from reading for so long that nobody can tell the two apart."""
        before = self.server.metric("lensd_http_timeouts_total")
        clients = [LazyClient(self.server, rows_request(4), buffer) for buffer in (4096, 4096, None)]
        silent, slow, steady = clients
        stalls = dict.fromkeys(clients, 0)
        threads = [threading.Thread(target=self.take_slowly, args=arguments, daemon=True) for arguments in (
            (slow, 256, 0.1, harness.PATIENCE, stalls), (steady, 65536, 0.05, 10, stalls))]
        for thread in threads:
            thread.start()
        try:
            self.server.wait_for(lambda: self.server.metric("lensd_http_timeouts_total") >= before + 2,
                                 "two slow readers to be cut off")
            self.server.wait_log("outcome=timeout", 2)
            # Meanwhile everybody else is served.
            self.assertEqual(self.server.predict(rows_request(1), INFER).status, 200)
            for thread in threads:
                thread.join(harness.PATIENCE)
            if steady.taken < steady.size and stalls[steady] > 1:
                return False
            self.assertEqual(steady.taken, steady.size)
            self.assertLess(slow.taken, slow.size)
            while silent.take(65536):
                pass
            self.assertLess(silent.taken, silent.size)
        finally:
            for client in clients:
                client.close()
        self.assertEqual(self.server.metric("lensd_http_timeouts_total"), before + 2)
        self.server.wait_metric("lensd_http_upload_bytes", 0)
        return True


if __name__ == "__main__":
    unittest.main()
