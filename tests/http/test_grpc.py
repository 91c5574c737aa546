"""gRPC on --grpc-port: the Open Inference Protocol with messages, its limits, and published attacks on HTTP/2."""

import http.client
import json
import select
import signal
import socket
import ssl
import struct
import sys
import tempfile
import unittest
import unittest.mock

import harness
import http2
import small_onnx
from harness import PATIENCE, FolderCase, ServedCase, drawn, flat_png, run_lensd, seven
from http2 import CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE
from http2 import connect, frame, literal, message
from small_onnx import blob, number, varint
from test_access import ALICE, ROOT, line
from test_tls import OPENSSL, make_certificate

OK, CANCELLED, INVALID, DEADLINE, NOT_FOUND, DENIED, EXHAUSTED = 0, 1, 3, 4, 5, 7, 8
UNIMPLEMENTED, UNAVAILABLE, UNAUTHENTICATED = 12, 14, 16

IS_ABSENT = "has no gRPC" in run_lensd("serve", "--check", "--grpc-port", "1").stderr


def fields(data):
    """A message as [(number, int or bytes)]."""
    found, at = [], 0

    def read():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if not byte & 128:
                return value

    while at < len(data):
        tag = read()
        value = read()
        if tag & 7 == 2:
            value, at = data[at:at + value], at + value
        found.append((tag >> 3, value))
    return found


def all_of(data, wanted):
    return [value for field, value in fields(data) if field == wanted]


def one_of(data, wanted):
    return (all_of(data, wanted) or [None])[-1]


def tensor(name, datatype, shape, contents=None, parameters=b""):
    """An entry of ModelInferRequest.inputs."""
    dims = b"".join(varint(dim) for dim in shape)
    return blob(5, blob(1, name) + blob(2, datatype) + blob(3, dims) + parameters +
                (blob(5, contents) if contents is not None else b""))


def request(model, *parts, raw=()):
    return blob(1, model) + b"".join(parts) + b"".join(blob(7, data) for data in raw)


def parameter(field, key, kind, value):
    return blob(field, blob(1, key) + blob(2, number(kind, value)))


def element(data):
    return struct.pack("<I", len(data)) + data


def photos(*images, model="digits", **more):
    return request(model, tensor("image", "BYTES", [len(images)]), raw=[b"".join(map(element, images))], **more)


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


@unittest.skipIf(IS_ABSENT, "this build has no gRPC")
class GrpcCase(ServedCase):
    @classmethod
    def start(cls):
        return http2.serve(*cls.arguments)

    def connect(self, *arguments, **options):
        connection = connect(self.server, *arguments, **options)
        self.addCleanup(connection.close)
        return connection

    def call(self, method, payload=b"", headers=()):
        return self.connect().call(method, payload, headers)

    def tearDown(self):
        self.assertEqual(self.call("ServerLive").status, OK)

    def assert_refused(self, reply, status, *words):
        self.assertEqual(reply.status, status, reply.sentence)
        for word in words:
            self.assertIn(word, reply.sentence)


class Methods(GrpcCase):
    def test_health(self):
        connection = self.connect()
        for method, payload, good in (("ServerLive", b"", True), ("ServerReady", b"", True),
                                      ("ModelReady", blob(1, "digits"), True), ("ModelReady", blob(1, "none"), False),
                                      ("ModelReady", blob(1, "digits") + blob(2, "1"), True)):
            with self.subTest(method, payload=payload):
                reply = connection.call(method, payload)
                self.assertEqual(reply.status, OK)
                self.assertEqual(one_of(reply.messages[0], 1), 1 if good else None)

    def test_documents_say_what_json_says(self):
        connection = self.connect()
        reply = connection.call("ServerMetadata")
        extensions = self.server.get("/v2").json()["extensions"]
        self.assertEqual([text.decode() for text in all_of(reply.messages[0], 3)], extensions)
        metadata = self.server.get("/v2/models/digits").json()
        reply = connection.call("ModelMetadata", blob(1, "digits"))
        for field, kind in ((4, "inputs"), (5, "outputs")):
            made, = all_of(reply.messages[0], field)
            self.assertEqual(one_of(made, 1).decode(), metadata[kind][0]["name"])
            self.assertEqual(one_of(made, 2).decode(), metadata[kind][0]["datatype"])
            dims = b"".join(number(1, dim & 2**64 - 1)[1:] for dim in metadata[kind][0]["shape"])
            self.assertEqual(one_of(made, 3), dims)
        config = self.server.get("/v2/models/digits/config").json()
        reply = connection.call("ModelConfig", blob(1, "digits"))
        made = one_of(reply.messages[0], 1)
        self.assertEqual(one_of(made, 4), config["max_batch_size"])
        self.assertEqual(one_of(one_of(made, 5), 1).decode(), config["input"][0]["name"])
        self.assertEqual(one_of(one_of(made, 5), 2), 11)  # TYPE_FP32
        reply = connection.call("RepositoryIndex")
        self.assertEqual(one_of(one_of(reply.messages[0], 1), 3), b"READY")
        self.assertEqual(connection.call("ModelStatistics", blob(1, "none")).status, NOT_FOUND)
        connection.call("ModelInfer", photos(seven()))
        stats = one_of(connection.call("ModelStatistics", blob(1, "digits")).messages[0], 1)
        self.assertEqual(one_of(stats, 1), b"digits")
        self.assertGreaterEqual(one_of(stats, 4), 1)
        self.assertGreaterEqual(one_of(one_of(one_of(stats, 6), 1), 1), 1)

    def test_inference_is_that_of_http(self):
        values = [i % 7 / 7 for i in range(3 * 32 * 32)]
        wanted = self.server.request("POST", "/v2/models/digits/infer", json.dumps(
            {"inputs": [{"name": "image", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": values}]})).json()
        raw = struct.pack(f"<{len(values)}f", *values)
        for name, payload in (
                ("raw", request("digits", blob(3, "mine"), tensor("image", "FP32", [1, 3, 32, 32]), raw=[raw])),
                ("contents", request("digits", blob(3, "mine"),
                                     tensor("image", "FP32", [1, 3, 32, 32], blob(6, raw))))):
            with self.subTest(name):
                reply = self.call("ModelInfer", payload)
                self.assertEqual(reply.status, OK, reply.sentence)
                made = reply.messages[0]
                self.assertEqual((one_of(made, 1), one_of(made, 2), one_of(made, 3)), (b"digits", b"1", b"mine"))
                self.assertEqual(one_of(one_of(made, 5), 3), bytes([1, 10]))
                got = floats(one_of(made, 6))
                for one, other in zip(got, wanted["outputs"][0]["data"], strict=True):
                    self.assertAlmostEqual(one, other, places=4)

    def test_photos(self):
        best = parameter(2, "classification", 2, 1)
        for name, payload in (
                ("raw", photos(seven(), drawn(3))),
                ("contents", request("digits", tensor("image", "BYTES", [2], blob(8, seven()) + blob(8, drawn(3)))))):
            with self.subTest(name):
                reply = self.call("ModelInfer", payload + blob(6, blob(1, "logits") + best))
                self.assertEqual(reply.status, OK, reply.sentence)
                texts = one_of(reply.messages[0], 6)
                self.assertRegex(texts[4:].decode(errors="replace"), r":7:7.*:3:3")

    def test_what_it_refuses(self):
        raw = bytes(4 * 3 * 32 * 32)
        image = tensor("image", "FP32", [1, 3, 32, 32])
        for payload, status, words in (
                (request("none", image, raw=[raw]), NOT_FOUND, ("no model 'none'",)),
                (request("digits" * 40, image, raw=[raw]), NOT_FOUND, ("no model",)),
                (request("digits", image, raw=[raw, raw]), INVALID, ("2 raw_input_contents for 1",)),
                (request("digits", image, raw=[raw[4:]]), INVALID, ("raw_input_contents", "12288")),
                (request("digits", image), INVALID, ("0 elements", "3072")),
                (request("digits", tensor("image", "FP16", [1, 3, 32, 32], b"")), INVALID, ("FP16", "raw_input")),
                (request("digits", tensor("image", "FP99", [1]), raw=[b""]), INVALID, ("unknown datatype 'FP99'",)),
                (request("digits", tensor("image", "FP32", [1, 2**40]), raw=[b""]), INVALID, ("dimension",)),
                (request("digits", tensor("image", "FP32", [2**31 - 1] * 8), raw=[b""]), INVALID, ("too large",)),
                (request("digits", tensor("image", "FP32", [1] * 9), raw=[b""]), INVALID, ("dimensions",)),
                (request("digits", tensor("image", "FP32", [0, 3, 32, 32]), raw=[b""]), INVALID, ("image",)),
                (request("digits", tensor("other", "FP32", [1]), raw=[b"1234"]), INVALID, ("no input 'other'",)),
                (request("digits", image, parameter(4, "priority", 2, 99), raw=[raw]), INVALID, ("priority",)),
                (request("digits", image, parameter(4, "timeout", 1, 1), raw=[raw]), INVALID, ("'timeout'",)),
                (request("digits", image, parameter(4, "track", 1, 1), raw=[raw]), INVALID, ("no track_id", "/predict")),
                (request("digits", tensor("image", "FP32", [1, 3, 32, 32],
                                          parameters=parameter(4, "shared_memory_region", 2, 1))), INVALID, ("shared",)),
                (request("digits", tensor("image", "BYTES", [2], blob(8, seven()))), INVALID, ("1 elements", "2")),
                (photos(b"no photo"), INVALID, ()), (b"", NOT_FOUND, ("names no model (model_name", "digits")), (b"\x0a\xff", INVALID, ("malformed",)),
                (b"\x2a" * 1000, INVALID, ("malformed",))):
            with self.subTest(words, payload=payload[:60]):
                self.assert_refused(self.call("ModelInfer", payload), status, *words)

    def test_other_calls(self):
        self.assert_refused(self.call("Nothing"), UNIMPLEMENTED, "Nothing")
        self.assert_refused(self.call("/predict"), UNIMPLEMENTED)
        self.assert_refused(self.call("RepositoryModelLoad", blob(2, "digits")), DENIED, "admin")
        reply = self.call("ServerLive", headers=[("content-type", "application/json")])
        self.assertEqual(reply.headers[":status"], "415")
        self.assertEqual(self.server.request("POST", http2.SERVICE + "ServerLive", b"").status, 404)

    def test_deadlines(self):
        for timeout, status in (("1n", DEADLINE), ("1u", DEADLINE), ("0S", DEADLINE), ("99999999H", OK), ("60S", OK), ("5x", INVALID),
                                ("S", INVALID), ("123456789S", INVALID)):
            with self.subTest(timeout):
                payload = photos(seven())
                if status == DEADLINE:  # rounded up to a millisecond, in which an answer may come
                    payload += parameter(4, "timeout", 2, 1)
                self.assert_refused(self.call("ModelInfer", payload, [("grpc-timeout", timeout)]), status)

    def test_a_message_in_small_pieces(self):
        connection = self.connect()
        stream = connection.begin("ModelInfer")
        whole = message(photos(seven()))
        for at in range(len(whole)):
            connection.send(frame(DATA, 0, stream, whole[at:at + 1]))
        connection.send(frame(DATA, END_STREAM, stream))
        self.assertEqual(connection.answer(stream).status, OK)

    def test_many_calls_at_once(self):
        connection = self.connect()
        streams = [connection.begin("ModelInfer") for _ in range(60)]
        for stream in streams:
            connection.data(stream, message(photos(drawn(stream // 2 % 10))))
        for stream in streams:
            reply = connection.answer(stream)
            self.assertEqual(reply.status, OK, reply.sentence)
            got = floats(one_of(reply.messages[0], 6))
            self.assertEqual(max(range(10), key=got.__getitem__), stream // 2 % 10)

    def test_headers_about_bodies_are_metadata(self):
        for headers in ([("expect", "miracles")], [("content-encoding", "br")], [("content-encoding", "gzip")]):
            with self.subTest(headers):
                self.assertEqual(self.call("ServerLive", b"", headers).status, OK)

    def test_ids_and_the_log(self):
        reply = self.call("ModelInfer", photos(seven()), [("x-request-id", "grpc-mine-1")])
        self.assertEqual(reply.headers["x-request-id"], "grpc-mine-1")
        self.server.wait_log("id=grpc-mine-1 method=POST path=/inference.GRPCInferenceService/ModelInfer status=200")
        reply = self.call("ModelInfer", photos(seven()),
                          [("traceparent", "00-" + "ab" * 16 + "-" + "cd" * 8 + "-00")])
        self.assertIn("ab" * 16, reply.headers["traceparent"])

    def test_the_same_port_twice(self):
        made = run_lensd("serve", "--port", "18081", "--grpc-port", "18081")
        self.assertEqual(made.returncode, 2)
        self.assertIn("--grpc-port", made.stderr)


@unittest.skipIf(IS_ABSENT, "this build has no gRPC")
class Start(FolderCase):
    def test_no_client_is_served_before_the_process_is_confined(self):
        file = self.path("faces.db")
        with harness.held_start(file):
            server = http2.serve("--faces", file, wait_ready=False)
            self.addCleanup(self.end, server)
            client = socket.create_connection(("127.0.0.1", server.grpc_port), PATIENCE)
            self.addCleanup(client.close)
            client.sendall(http2.PREFACE + frame(SETTINGS))
            self.assertEqual(select.select([client], [], [], 1)[0], [])
        self.assertTrue(client.recv(9), "the server's SETTINGS")


@unittest.skipIf(IS_ABSENT, "this build has no gRPC")
class Datatypes(FolderCase):
    def test_typed_contents(self):
        # name: (number of TensorProto.DataType, struct format, field of InferTensorContents, values, one beyond)
        for word, kind, code, field, values, beyond in (
                ("INT8", 3, "b", 2, [-60, 60, 0, 1], 128), ("UINT8", 2, "B", 4, [0, 100, 50, 7], 256),
                ("INT32", 6, "i", 2, [-2**30, 7, 0, 2**30], None), ("INT64", 7, "q", 3, [-2**62, 5, 0, 2**62], None),
                ("FP64", 11, "d", 7, [0.1, -2.5, 1e300, 3], None)):
            with self.subTest(word):
                small_onnx.sum_and_difference(self.path(word + ".onnx"), kind)
                server = http2.serve(self.path(word + ".onnx"), "--model-name", "m")
                try:
                    connection = connect(server)
                    pack = (lambda value: struct.pack("<d", value)) if word == "FP64" else lambda value: varint(value & 2**64 - 1)
                    contents = blob(field, b"".join(map(pack, values)))
                    reply = connection.call("ModelInfer", request("m", *(tensor(name, word, [1, 4], contents) for name in "ab")))
                    self.assertEqual(reply.status, OK, reply.sentence)
                    self.assertEqual(all_of(reply.messages[0], 6)[1], struct.pack("<4" + code, *values))
                    if beyond:
                        contents = blob(field, b"".join(map(pack, [beyond, 0, 0, 0])))
                        reply = connection.call("ModelInfer", request("m", tensor("a", word, [1, 4], contents)))
                        self.assertEqual(reply.status, INVALID)
                        self.assertIn(f"{beyond} does not fit {word}", reply.sentence)
                    connection.close()
                finally:
                    self.assert_ended(server)


class Values(FolderCase):
    def test_a_shape_that_cannot_be_had(self):
        """The client's integers choose it."""
        small_onnx.operator(self.path("m.onnx"), "ConstantOfShape", 13, [("n", 7, [2])])
        server = http2.serve(self.path("m.onnx"))
        self.addCleanup(self.end, server)
        connection = connect(server)
        self.addCleanup(connection.close)
        for shape, words in (([2**20, 2**20], "too large"), ([2**62, 2**62], "too large"), ([-1, 2], "is -1")):
            reply = connection.call("ModelInfer", request("m", tensor("n", "INT64", [2]), raw=[struct.pack("<2q", *shape)]))
            self.assertEqual(reply.status, INVALID, reply.sentence)
            self.assertIn(words, reply.sentence)
        reply = connection.call("ModelInfer", request("m", tensor("n", "INT64", [2]), raw=[struct.pack("<2q", 2, 3)]))
        self.assertEqual((reply.status, len(all_of(reply.messages[0], 6)[0])), (OK, 24))
        self.assert_ended(server)


class Streams(GrpcCase):
    def test_answers_come_in_order_and_errors_do_not_end_it(self):
        connection = self.connect()
        stream = connection.begin("ModelStreamInfer")
        payloads = [photos(drawn(digit)) for digit in range(10)]
        payloads[4] = request("none")
        connection.data(stream, b"".join(map(message, payloads)))
        reply = connection.answer(stream)
        self.assertEqual((reply.status, len(reply.messages)), (OK, 10))
        for digit, made in enumerate(reply.messages):
            if digit == 4:
                self.assertIn(b"no model 'none'", one_of(made, 1))
                continue
            got = floats(one_of(one_of(made, 2), 6))
            self.assertEqual(max(range(10), key=got.__getitem__), digit)

    def test_a_conversation(self):
        connection = self.connect()
        stream = connection.begin("ModelStreamInfer")
        reply = connection.replies[stream]
        for turn in range(3):
            connection.data(stream, message(photos(seven())), end=False)
            connection.read_until(lambda: len(reply.messages) == turn + 1)
        self.assertFalse(reply.is_over)
        connection.data(stream, b"")
        self.assertEqual(connection.answer(stream).status, OK)

    def test_a_stream_without_messages(self):
        connection = self.connect()
        stream = connection.begin("ModelStreamInfer")
        connection.data(stream, b"")
        reply = connection.answer(stream)
        self.assertEqual((reply.status, reply.data), (OK, b""))

    def test_broken_framing_ends_it(self):
        for payload, status in ((message(b"", compressed=1), UNIMPLEMENTED), (message(b"", size=2**32 - 1), EXHAUSTED),
                                (message(photos(seven()))[:-1], INVALID), (b"\0\0", INVALID)):
            with self.subTest(payload[:5]):
                connection = self.connect()
                stream = connection.begin("ModelStreamInfer")
                connection.data(stream, message(photos(seven())), end=False)
                connection.data(stream, payload)
                reply = connection.answer(stream)
                self.assertEqual((reply.status, len(reply.messages)), (status, 1), reply.sentence)


class Keys(GrpcCase):
    @classmethod
    def setUpClass(cls):
        cls.keys, cls.admins = (tempfile.NamedTemporaryFile("w") for _ in range(2))
        for file, text in ((cls.keys, line("alice", ALICE) + line("slow", "slow-key", "rate=0.01 burst=1")),
                           (cls.admins, line("root", ROOT))):
            file.write(text)
            file.flush()
        cls.arguments = ("--api-keys", cls.keys.name, "--admin-key-file", cls.admins.name)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.keys.close()
        cls.admins.close()

    def test_keys(self):
        for headers, status in (((), UNAUTHENTICATED), ([("authorization", "Bearer wrong")], UNAUTHENTICATED),
                                ([("authorization", f"Bearer {ALICE}")], OK), ([("x-api-key", ALICE)], OK)):
            with self.subTest(headers):
                self.assertEqual(self.call("ModelInfer", photos(seven()), headers).status, status)

    def test_refused_before_the_message(self):
        connection = self.connect()
        stream = connection.begin("ModelInfer")
        reply = connection.answer(stream)  # nothing else was sent
        self.assertEqual((reply.status, reply.reset), (UNAUTHENTICATED, None))
        connection.read_until(lambda: reply.reset is not None)
        self.assertEqual(reply.reset, http2.NO_ERROR)

    def test_rate(self):
        connection = self.connect()
        self.assertEqual(connection.call("ModelInfer", photos(seven()), [("x-api-key", "slow-key")]).status, OK)
        reply = connection.call("ModelInfer", photos(seven()), [("x-api-key", "slow-key")])
        self.assertEqual(reply.status, EXHAUSTED)
        self.assertGreater(int(reply.headers["grpc-retry-pushback-ms"]), 0)
        # A client that was refused waits before it is refused again; its message waits as well.
        reply = connection.call("ModelInfer", photos(seven()), [("x-api-key", "slow-key")])
        self.assertEqual(reply.status, EXHAUSTED)

    def test_admins(self):
        key = [("x-api-key", ALICE)]
        self.assert_refused(self.call("RepositoryModelLoad", blob(2, "digits"), key), DENIED)
        key = [("x-api-key", ROOT)]
        reply = self.call("RepositoryModelLoad", blob(2, "digits") + blob(3, blob(1, "config")), key)
        self.assert_refused(reply, INVALID, "config")
        self.assertEqual(self.call("RepositoryModelLoad", blob(2, "digits"), key).status, OK)
        self.assertEqual(self.call("RepositoryModelLoad", blob(2, "none"), key).status, NOT_FOUND)
        self.assertEqual(self.call("RepositoryIndex", number(2, 1), key).status, OK)


class Messages(GrpcCase):
    """Lies about messages."""

    arguments = ("--max-body", "300k", "--max-upload-memory", "8m")

    def send(self, payload, method="ModelInfer"):
        connection = self.connect()
        stream = connection.begin(method)
        connection.data(stream, payload)
        return connection.answer(stream)

    def test_lengths(self):
        good = photos(seven())
        for payload, status in ((message(good, size=2**32 - 1), EXHAUSTED), (message(good, size=300 * 1024 + 1), EXHAUSTED),
                                (message(good, size=len(good) + 1), INVALID), (message(good, size=len(good) - 1), INVALID),
                                (message(good)[:3], INVALID), (b"", INVALID), (message(b""), NOT_FOUND),
                                (message(bytes(300 * 1024)), INVALID), (message(good) + b"more" * 1000, OK)):
            with self.subTest(payload[:5], size=len(payload)):
                self.assertEqual(self.send(payload).status, status)

    def test_methods_without_tensors(self):
        for method, size in (("ServerLive", 5000), ("ServerMetadata", 200 * 1024)):
            with self.subTest(method):
                self.assertEqual(self.send(message(bytes(size)), method).status, EXHAUSTED)

    def test_trailers_change_nothing(self):
        connection = self.connect()
        stream = connection.begin("ModelInfer")
        connection.data(stream, message(photos(seven())), end=False)
        trailers = literal("grpc-timeout", "never") + literal("x", "y" * 3000)
        connection.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, trailers))
        self.assertEqual(connection.answer(stream).status, OK)

    def test_paths_with_escapes(self):
        connection = self.connect()
        for method in ("%53erverLive", "ServerLive?x=1"):
            self.assertEqual(connection.call(method).status, UNIMPLEMENTED)

    def test_the_compressed_flag(self):
        for flag in (1, 2, 255):
            self.assert_refused(self.send(message(photos(seven()), flag)), UNIMPLEMENTED, "compressed")

    def test_few_bytes_that_unpack_to_many(self):
        """Two bytes each, which protobuf-c makes structures of."""
        for name, part in (("inputs", b"\x2a\0"), ("outputs", b"\x32\0"), ("parameters", b"\x22\0"), ("raw", b"\x3a\0"),
                           ("unknown", b"\xf8\x7f\0"), ("contents", blob(5, blob(5, b"\x42\0" * 100000)))):
            with self.subTest(name):
                reply = self.send(message(blob(1, "digits") + part * (250000 // len(part) or 1)))
                # UNAVAILABLE: it found the memory in use, by the message before it or by its own.
                self.assertIn(reply.status, (EXHAUSTED, INVALID, UNAVAILABLE), reply.sentence)
                self.server.wait_metric("lensd_http_upload_bytes", 0)

    def test_small_messages_that_are_large(self):
        self.assertEqual(self.send(message(b"\x0a\0" * 100000), "ModelReady").status, EXHAUSTED)

    def test_the_budget_is_given_back(self):
        connection = self.connect()
        streams = [connection.begin("ModelInfer") for _ in range(20)]
        for stream in streams:
            connection.data(stream, message(bytes(200000), size=250000), end=False)
        connection.send(b"".join(frame(RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL)) for stream in streams))
        connection.close()
        self.server.wait_metric("lensd_http_upload_bytes", 0)


class Attacks(GrpcCase):
    """Published attacks on HTTP/2, by name."""

    arguments = ("--max-header", "4k")

    def assert_calmed(self, connection):
        self.assertEqual(connection.read_to_end(), http2.CALM)

    def test_continuation_flood(self):
        """CVE-2024-27316 and its family: a header block without end."""
        block = b"".join(literal(f"x-{i}", "y" * 100) for i in range(20))
        for name, part in (("headers", block), ("one header, little by little", b"\0"), ("nothing", b"")):
            with self.subTest(name):
                connection = self.connect()
                connection.send(frame(HEADERS, 0, 1, connection.head("ServerLive")))
                connection.send_until_closed(frame(CONTINUATION, 0, 1, part), 100000 if len(part) < 2 else 2000)
                # The library may be the first to end it, with a code of its own.
                self.assertIn(connection.read_to_end(), (None, http2.CALM, http2.PROTOCOL_ERROR, http2.INTERNAL_ERROR))

    def test_rapid_reset(self):
        """CVE-2023-44487: calls that are cancelled at once."""
        connection = self.connect()
        head = connection.head("ModelInfer")
        flood = b"".join(frame(HEADERS, END_HEADERS, stream, head) +
                         frame(RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL)) for stream in range(1, 4001, 2))
        connection.send_until_closed(flood, 1)
        self.assert_calmed(connection)

    def test_reset_of_working_calls(self):
        """The same with whole messages: exchanges work although their streams are closed."""
        connection = self.connect()
        head, body = connection.head("ModelInfer"), message(photos(seven()))
        flood = b"".join(frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, END_STREAM, stream, body) +
                         frame(RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL)) for stream in range(1, 4001, 2))
        connection.send_until_closed(flood, 1)
        self.assert_calmed(connection)
        self.server.wait_metric("lensd_http_upload_bytes", 0)

    def test_calls_that_work_may_be_cancelled(self):
        """By hedging clients, many a second."""
        folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        self.addCleanup(folder.cleanup)
        small_onnx.loops_when_light(folder.name, 0.9)
        server = http2.serve(folder.name, "--model-name", "served", "--precision", "fp32")
        self.addCleanup(server.stop)
        connection = connect(server)
        self.addCleanup(connection.close)

        def inside():
            (model,) = server.get("/health").json()["models"]
            return model["queued"] + model["in_flight"]
        for _ in range(5):
            streams = [connection.begin("ModelInfer") for _ in range(100)]
            for stream in streams:
                connection.data(stream, message(photos(flat_png(255), model="served")))
            server.wait_for(lambda: inside() == 100, "all calls")
            for stream in streams:
                connection.send(frame(RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL)))
            server.wait_for(lambda: inside() == 0, "their end")
        self.assertEqual(connection.call("ServerLive").status, OK)

    def test_made_you_reset(self):
        """CVE-2025-8671: the client makes the server reset, by frames that break the stream."""
        connection = self.connect()
        head = connection.head("ModelInfer")
        flood = b"".join(frame(HEADERS, END_HEADERS, stream, head) + frame(WINDOW_UPDATE, 0, stream, bytes(4))
                         for stream in range(1, 8001, 2))
        connection.send_until_closed(flood, 1)
        self.assertIn(connection.read_to_end(), (http2.CALM, http2.PROTOCOL_ERROR, http2.INTERNAL_ERROR, None))

    def test_floods_of_frames(self):
        """CVE-2019-9512 (PING), 9515 (SETTINGS), 9518 (empty frames), 9513 (PRIORITY)."""
        for name, flood in (("PING", frame(PING, 0, 0, bytes(8))), ("SETTINGS", frame(SETTINGS)),
                            ("WINDOW_UPDATE", frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))),
                            ("PRIORITY", frame(PRIORITY, 0, 7, struct.pack(">IB", 0, 1))),
                            ("empty DATA", frame(DATA, 0, 1))):
            for reads in (False, True):
                with self.subTest(name, reads=reads):
                    connection = self.connect()
                    connection.begin("ModelInfer")
                    for _ in range(30):
                        connection.send_until_closed(flood * 1000, 1)
                        if reads:
                            try:
                                connection.read_frame()
                            except http2.Closed:
                                break
                    self.assertIn(connection.read_to_end(), (http2.CALM, None))

    def test_flood_of_unknown_frames(self):
        connection = self.connect()
        connection.send_until_closed(frame(99, 0, 0, b"x") * 1000, 20000)
        self.assertIn(connection.read_to_end(), (http2.CALM, None))

    def test_pings_in_between_are_answered(self):
        connection = self.connect()
        for turn in range(50):
            connection.send(frame(PING, 0, 0, bytes(8)))
            connection.read_until(lambda: connection.pongs == turn + 1)
        self.assertEqual(connection.call("ServerLive").status, OK)

    def test_hpack_bomb(self):
        """An entry of 4 KB in the dynamic table, referred to by single bytes."""
        connection = self.connect()
        block = connection.head("ServerLive") + literal("x", "y" * 3900, kind=0x40) + b"\xbe" * 10000
        connection.send(frame(HEADERS, END_HEADERS, 1, block))
        self.assert_calmed(connection)

    def test_headers_too_large(self):
        reply = self.call("ServerLive", headers=[(f"x-{i}", "y" * 500) for i in range(10)])
        self.assert_refused(reply, EXHAUSTED, "--max-header")

    def test_more_calls_than_allowed(self):
        connection = self.connect()
        connection.read_until(lambda: connection.settings is not None)
        self.assertEqual(connection.settings[3], 100)
        streams = [connection.begin("ModelInfer") for _ in range(100)]
        connection.data(streams[0], message(photos(seven())))
        self.assertEqual(connection.answer(streams[0]).status, OK)
        connection.begin("ModelInfer")
        connection.begin("ModelInfer")
        self.assertEqual(connection.read_to_end(), http2.PROTOCOL_ERROR)

    def test_windows(self):
        """An increment that overflows; more data than the window has."""
        connection = self.connect()
        for _ in range(2):
            connection.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)))
        self.assertEqual(connection.read_to_end(), http2.FLOW_CONTROL_ERROR)
        connection = self.connect()
        connection.send_until_closed(frame(DATA, 0, 1, b"x"), 1)  # of a stream that is idle
        self.assertEqual(connection.read_to_end(), http2.PROTOCOL_ERROR)

    def test_not_http2(self):
        for data in (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" * 50, bytes(1000)):
            with self.subTest(data[:10]):
                connection = self.connect()
                connection.socket.close()
                plain = self.connect()
                plain.socket.close()
                with unittest.mock.patch.object(http2, "PREFACE", data):
                    plain = self.connect()
                plain.read_to_end()


    def test_http1_gets_a_sentence(self):
        request = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
        for first in (1, 2, 4, len(request)):  # HTTP/2's preface also begins with a P, but not with PO
            with self.subTest(first), socket.create_connection(self.connect().socket.getpeername(), PATIENCE) as client:
                client.sendall(request[:first])
                if first == 1:
                    self.assertFalse(select.select([client], [], [], 0.2)[0])
                    client.sendall(request[first:])
                answer = http.client.HTTPResponse(client)
                answer.begin()
                self.assertEqual(answer.status, 400)
                self.assertIn("gRPC over HTTP/2 (--grpc-port)", json.loads(answer.read())["error"])


@unittest.skipIf(IS_ABSENT, "this build has no gRPC")
class Cached(GrpcCase):
    arguments = ("--response-cache", "1m")

    def test_what_a_call_says_is_checked_before_the_cache(self):
        payload = photos(seven())
        self.assertEqual(self.call("ModelInfer", payload).status, OK)
        self.assertEqual(self.call("ModelInfer", payload, [("x-priority", "1"), ("grpc-timeout", "9S")]).status, OK)
        self.assertIn('cache_hit', self.server.get("/v2/models/digits/stats").body.decode())
        for header in (("x-priority", "soon"), ("x-priority", "99"), ("grpc-timeout", "never"), ("grpc-timeout", "1")):
            with self.subTest(header):
                self.assert_refused(self.call("ModelInfer", payload, [header]), INVALID, header[1])


@unittest.skipIf(IS_ABSENT, "this build has no gRPC")
class Slow(FolderCase):
    """Clients that take their time, with short time limits."""

    def serve(self, *arguments):
        server = http2.serve(*arguments)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def connect(self, server, *arguments, **options):
        connection = connect(server, *arguments, **options)
        self.addCleanup(connection.close)
        return connection

    def test_a_window_of_zero(self):
        """CVE-2019-9511, CVE-2019-9517: a client that never opens its window does not keep its answer."""
        server = self.serve("--answer-timeout", "1", "--idle-timeout", "600")
        connection = self.connect(server, [(http2.WINDOW_SIZE, 0)], is_slow=True)
        stream = connection.begin("ModelInfer")
        connection.data(stream, message(photos(*[seven()] * 20)))
        reply = connection.answer(stream)
        self.assertEqual((reply.reset, reply.data), (http2.CANCEL, b""))
        server.wait_metric("lensd_http_timeouts_total", 1)
        server.wait_metric("lensd_http_upload_bytes", 0)
        server.wait_log("outcome=timeout")
        self.assert_ended(server)

    def test_a_stream_whose_end_waits_for_a_window(self):
        """One answer fills the window, so that the trailers behind it could wait for ever."""
        server = self.serve("--answer-timeout", "1", "--idle-timeout", "600")
        connection = self.connect(server)
        stream = connection.begin("ModelStreamInfer")
        connection.data(stream, message(photos(seven())))
        size = len(connection.answer(stream).data)
        connection = self.connect(server, [(http2.WINDOW_SIZE, size)], is_slow=True)
        stream = connection.begin("ModelStreamInfer")
        connection.data(stream, message(photos(seven())))
        connection.read_until(lambda: len(connection.replies[stream].data) == size)
        self.assertEqual(connection.answer(stream).reset, http2.CANCEL)
        self.assert_ended(server)

    def test_a_spare_connection_is_given_up(self):
        server = self.serve("--max-connections", "4", "--idle-timeout", "600")
        spare = self.connect(server)
        for _ in range(10):  # connections of HTTP may count for a moment
            if spare.call("ServerMetadata").status == UNAVAILABLE:
                break
            spare.begin("ServerLive")  # holds it: it is not closed to make room
            spare = self.connect(server)
        self.assertEqual(spare.read_to_end(), http2.NO_ERROR)

    def test_messages_and_heads_that_drip(self):
        server = self.serve("--body-timeout", "1", "--header-timeout", "5", "--idle-timeout", "600")
        connection = self.connect(server)
        stream = connection.begin("ModelInfer")
        connection.data(stream, b"\0\0", end=False)
        reply = connection.answer(stream)
        self.assertEqual(reply.status, DEADLINE)
        self.assertIn("--body-timeout", reply.sentence)
        connection.send(frame(HEADERS, 0, 99, b"\0"))
        connection.read_to_end()
        silent = self.connect(server)
        silent.socket.close()
        with unittest.mock.patch.object(http2, "PREFACE", b""):
            silent = self.connect(server)
        silent.read_to_end()
        self.assert_ended(server)

    def test_idle_connections_and_streams_end(self):
        server = self.serve("--idle-timeout", "1")
        connection = self.connect(server)
        stream = connection.begin("ModelStreamInfer")
        self.assertEqual(connection.answer(stream).status, UNAVAILABLE)
        self.assertEqual(connection.read_to_end(), http2.NO_ERROR)
        self.assert_ended(server)

    def slow_model(self):
        small_onnx.loops_when_light(self.folder, 0.9, trips=50, side=224)
        return self.serve(self.folder, "--model-name", "slow", "--precision", "fp32")

    def slow_call(self, shade=0.0):
        """Runs for a moment, or, with the shade 1, until its client leaves."""
        return request("slow", tensor("image", "FP32", [1, 3, 224, 224]), raw=[struct.pack("<f", shade) * 3 * 224 * 224])

    @harness.needs("speed")
    def test_a_client_that_hangs_up_is_cancelled(self):
        server = self.slow_model()
        for how in ("reset", "close"):
            with self.subTest(how):
                connection = self.connect(server)
                stream = connection.begin("ModelInfer")
                before = server.admitted()
                gone = server.metric("lensd_http_clients_gone_total")
                connection.data(stream, message(self.slow_call(1.0)))
                server.wait_admitted(before + 1)
                if how == "reset":
                    connection.send(frame(RST_STREAM, 0, stream, struct.pack(">I", http2.CANCEL)))
                else:
                    connection.close()
                server.wait_metric("lensd_http_clients_gone_total", gone + 1)
        server.wait_log("status=499 outcome=client_gone")
        self.assert_ended(server)

    @harness.needs("speed")
    def test_a_drain_answers_what_has_begun(self):
        server = self.slow_model()
        connection = self.connect(server)
        stream = connection.begin("ModelInfer")
        connection.data(stream, message(self.slow_call()))
        server.wait_admitted(1)
        server.signal(signal.SIGTERM)
        self.assertEqual(connection.answer(stream).status, OK)
        self.assertEqual(connection.read_to_end(), http2.NO_ERROR)
        server.wait()  # a second signal would end it at once
        log = self.assert_ended(server)
        self.assertIn("all_answered=true", log)

    @harness.needs("speed")
    def test_what_comes_meanwhile_is_held_within_the_window(self):
        """A stream works on one message at a time: the others fill its window, which stays closed."""
        server = self.slow_model()
        connection = self.connect(server)
        stream = connection.begin("ModelStreamInfer")
        body = message(self.slow_call())
        connection.data(stream, body, end=False)
        server.wait_admitted(1)
        pieces = [body[at:at + 16384] for at in range(0, len(body), 16384)]
        connection.send(b"".join(frame(DATA, 0, stream, piece) for piece in pieces))
        connection.data(stream, b"")
        reply = connection.answer(stream)
        self.assertEqual((reply.status, len(reply.messages)), (OK, 2))
        stream = connection.begin("ModelStreamInfer")
        connection.data(stream, message(self.slow_call(1.0)), end=False)
        server.wait_admitted(3)
        connection.send_until_closed(b"".join(frame(DATA, 0, stream, piece) for piece in pieces) * 3, 1)
        try:
            connection.read_until(lambda: connection.replies[stream].is_over or connection.goaway is not None)
        except http2.Closed:
            pass
        self.assertTrue(connection.goaway == http2.FLOW_CONTROL_ERROR or
                        connection.replies[stream].reset == http2.FLOW_CONTROL_ERROR)
        self.assert_ended(server)

    def test_connections_count_with_the_others(self):
        server = self.serve("--max-connections-per-address", "8")
        held = []
        with self.assertRaises((http2.Closed, ConnectionError)):
            for _ in range(9):
                held.append(self.connect(server))
                self.assertEqual(held[-1].call("ServerLive").status, OK)
        for connection in held:
            connection.close()
        server.wait_for(server.answers, "room")
        self.assert_ended(server)


@unittest.skipIf(IS_ABSENT or not OPENSSL, "this build has no gRPC, or openssl is not installed")
class Tls(unittest.TestCase):
    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = make_certificate(folder, "grpc")
            server = http2.serve("--tls-cert", cert, "--tls-key", key, wait_ready=False)
            context = ssl.create_default_context(cafile=cert)
            context.set_alpn_protocols(["h2"])
            server.wait_log(" ready ")
            connection = connect(server, wrap=lambda plain: context.wrap_socket(plain, server_hostname="127.0.0.1"))
            self.assertEqual(connection.socket.selected_alpn_protocol(), "h2")
            self.assertEqual(connection.call("ModelInfer", photos(*[seven()] * 50)).status, OK)
            connection.close()
            context.set_alpn_protocols(["http/1.1"])
            with socket.create_connection(("127.0.0.1", server.grpc_port), PATIENCE) as other, self.assertRaises(ssl.SSLError) as refused:
                context.wrap_socket(other, server_hostname="127.0.0.1")
            self.assertRegex(str(refused.exception), "(?i)alert.no.application.protocol")
            plain = connect(server)  # without TLS
            plain.read_to_end()
            plain.close()
            self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
