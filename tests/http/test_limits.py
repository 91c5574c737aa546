"""Limits in bytes, time and connections: named in the error they cause, cheap to run into."""

import gzip
import random
import re
import resource
import select
import socket
import time
import unittest

import harness
import small_onnx
from harness import HeldCase, ServedCase, ServedModelCase, drip, hang_up, multipart, png, post, read_answer, read_to_end, seven


def chunked(pieces):
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CHUNKED = (b"POST /predict?top_k=1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")


@harness.needs("address space")
class SmallMemory(unittest.TestCase):
    @unittest.skipIf(harness.SANITIZED, "a sanitizer's own memory does not fit")
    def test_bodies_take_an_eighth_of_the_memory(self):
        """The default is an eighth of 400 MiB, which is 50 MiB: two bodies of 30 MiB do not fit at once."""
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, before[1]))
        try:
            server = harness.Server("--max-body", "40M", wait_ready=False)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        self.addCleanup(server.stop)
        server.wait_ready()
        body = seven() + bytes(30 * 2**20 - len(seven()))
        with server.connect() as connection:
            connection.sendall(post("/predict", body)[:-1])
            server.wait_for(lambda: server.metric("lensd_http_upload_bytes") >= 30 * 2**20 - 9, "the first body")
            answer = server.predict(body)
            self.assertEqual(answer.status, 503, answer.body)
            self.assertIn("--max-upload-memory", answer.json()["error"])
            connection.sendall(body[-1:])
            self.assertEqual(read_answer(connection)[0].status, 200)


class Bodies(ServedCase):
    arguments = ("--max-body", "3M", "--max-upload-memory", "8M", "--max-header", "4K")

    def test_exactly_the_limit_and_one_more(self):
        limit = 3 * 2**20
        image = seven()
        # Bytes behind the end of a PNG do no harm.
        answer = self.server.predict(image + bytes(limit - len(image)))
        self.assertEqual(answer.status, 200, answer.body)
        answer = self.server.predict(image + bytes(limit + 1 - len(image)))
        self.assert_error(answer, 413, "too_large", str(limit + 1), str(limit), "--max-body")

    def test_too_long_is_refused_before_it_is_read(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n")
            answer, _ = read_answer(connection)
            self.assert_error(answer, 413, "too_large", "4000000", "--max-body")
            self.assertEqual(answer.headers["connection"], "close")
            self.assertEqual(read_to_end(connection), b"")

    def test_the_refusal_reaches_a_client_that_is_still_sending(self):
        data = post("/predict", bytes(8000000))
        for _ in range(20):
            with self.server.connect() as connection:
                self.send_in_time(connection, [data])
                answer, _ = read_answer(connection)
                self.assert_error(answer, 413, "too_large")

    def send_in_time(self, connection, pieces):
        """A refused client may go on sending for two seconds. That suffices unless the machine is busy."""
        begun = time.monotonic()
        try:
            for piece in pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            self.assertGreater(time.monotonic() - begun, 2, "the connection was reset before the answer could be read")

    def test_a_chunked_body_is_bounded_as_it_grows(self):
        with self.server.connect() as connection:
            connection.sendall(CHUNKED)
            self.send_in_time(connection, [b"10000\r\n" + bytes(65536) + b"\r\n"] * 64)
            answer, _ = read_answer(connection)
            self.assert_error(answer, 413, "too_large", str(3 * 2**20), "--max-body")

    def test_chunks(self):
        image = seven()
        for pieces in ([image], [image[:1], image[1:]], [image[i:i + 7] for i in range(0, len(image), 7)]):
            answer = self.server.raw(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") +
                                     chunked(pieces))
            self.assertIn(b'"label":"7"', answer)

    def test_65536_chunks_of_one_byte(self):
        image = seven()
        image += bytes(65536 - len(image))
        body = chunked([image[i:i + 1] for i in range(len(image))])
        before = self.server.cpu_seconds()
        with self.server.connect() as connection:
            connection.sendall(CHUNKED + body)
            answer, _ = read_answer(connection)
        self.assertEqual(answer.status, 200, answer.body)
        self.assertLess(self.server.cpu_seconds() - before, 10)

    def test_all_bodies_together_are_bounded(self):
        """Three bodies of 3 MiB do not fit into 6 MiB, what one address gets of 8; when two are gone, they do. Other
        addresses get the rest meanwhile."""
        body = seven() + bytes(3 * 2**20 - len(seven()) - 1)
        held = []
        try:
            for _ in range(2):
                connection = self.server.connect()
                held.append(connection)
                connection.sendall(post("/predict", body)[:-1])
            self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") > 6 * 2**20 - 9,
                                 "both bodies")
            answer = self.server.predict(body)
            self.assert_error(answer, 503, "overloaded", "--max-upload-memory")
            self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
            # Small ones are refused, too: there is nothing left at all.
            self.assertEqual(self.server.predict(seven()).status, 503)
            with socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, ("127.0.0.2", 0)) as other:
                other.sendall(post("/predict", seven()))
                self.assertEqual(read_answer(other)[0].status, 200)
            for connection in held:
                connection.sendall(body[-1:])
                self.assertEqual(read_answer(connection)[0].status, 200)
            self.assertEqual(self.server.predict(body).status, 200)
        finally:
            for connection in held:
                connection.close()
        self.server.wait_metric("lensd_http_upload_bytes", 0)

    def test_long_headers(self):
        answer = self.server.get("/livez")
        self.assertEqual(answer.status, 200)
        answer = self.server.request("GET", "/livez", headers={"X-Long": "x" * 5000})
        self.assert_error(answer, 431, "header_too_large", "4096", "--max-header")
        answer = self.server.request("GET", "/livez", headers={"X-Long": "x" * 3000})
        self.assertEqual(answer.status, 200)
        # Far beyond: the library cuts it off itself.
        answer = self.server.raw(b"GET /livez HTTP/1.1\r\nX: " + b"x" * 200000)
        self.assertNotIn(b" 200 ", answer)

    def test_a_body_where_none_belongs(self):
        with self.server.connect() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
                               b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            answer, rest = read_answer(connection)
            self.assertEqual(answer.json(), {"status": "live"})
            answer, _ = read_answer(connection, rest)
            self.assertEqual(answer.json(), {"status": "ready"})
        answer = self.server.request("GET", "/livez", bytes(2 * 2**20))
        self.assert_error(answer, 413, "too_large")


class CompressedBodies(ServedCase):
    """Both forms count while a body is inflated."""
    arguments = ("--max-body", "3M", "--max-upload-memory", "4M") # one request alone may take all

    def inflate(self, noise, zeros):
        body = seven() + random.Random(5).randbytes(noise) + bytes(zeros)
        return self.server.predict(gzip.compress(body, 1), headers={"Content-Encoding": "gzip"})

    def test_what_never_fits_is_not_asked_for_again(self):
        self.assert_error(self.inflate(2500000, 0), 413, "too_large", "4194304", "--max-upload-memory")

    def test_what_just_fits(self):
        answer = self.inflate(1500000, 800000)
        self.assertEqual(answer.status, 200, answer.body)


class ExpectContinue(ServedCase):
    arguments = ("--max-body", "1M")

    def head(self, path, size, expect="100-continue"):
        return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
                f"Expect: {expect}\r\n\r\n").encode()

    def test_continue_and_then_the_answer(self):
        with self.server.connect() as connection:
            connection.sendall(self.head("/predict", len(seven())))
            self.assertEqual(connection.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            connection.sendall(seven())
            answer, _ = read_answer(connection)
            self.assertEqual(answer.json()["predictions"][0]["label"], "7")

    def test_refused_before_the_body(self):
        for path, size, status in (("/predict", 5000000, 413), ("/nope", 500, 404),
                                   ("/health", 500, 405)):
            with self.server.connect() as connection, self.subTest(path=path):
                connection.sendall(self.head(path, size))
                answer, _ = read_answer(connection)
                self.assertEqual(answer.status, status)
                self.assertEqual(answer.headers["connection"].lower(), "close")
                self.assertEqual(read_to_end(connection), b"")

    def test_other_expectations(self):
        with self.server.connect() as connection:
            connection.sendall(self.head("/predict", 10, "miracles"))
            answer, _ = read_answer(connection)
            self.assert_error(answer, 417, "expectation_failed", "miracles")


class Times(ServedCase):
    arguments = ("--header-timeout", "1.5", "--body-timeout", "1.7")

    def test_headers_that_drip_are_cut_off(self):
        with self.server.connect() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
            answer = drip(connection, [b"X-Slow: y\r\n"])
        self.assertIn(b" 408 ", answer)
        self.assertIn(b" within 1.5 s", answer)
        self.assertIn(b"--header-timeout", answer)

    def test_headers_that_drip_on_a_used_connection(self):
        with self.server.connect() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            answer, _ = read_answer(connection)
            self.assertEqual(answer.status, 200)
            time.sleep(0.3)
            self.assertIn(b" 408 ", drip(connection, [b"G"]))

    def test_bytes_that_never_become_a_request(self):
        answer = self.server.raw(b"\0\0\0\0\r\n\r\n")
        # libmicrohttpd 1.0 closes the connection at once.
        self.assertTrue(answer == b"" or b" 408 " in answer, answer)

    def test_bodies_that_drip_are_cut_off(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n")
            answer = drip(connection, [b"x"])
        self.assertIn(b" 408 ", answer)
        self.assertIn(b" within 1.7 s", answer)
        self.assertIn(b'"code":"request_timeout"', answer)
        self.assertIn(b"--body-timeout", answer)

    def test_a_refused_client_that_goes_on_sending_is_cut_off(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n")
            answer, _ = read_answer(connection)
            self.assertEqual(answer.status, 413)
            start = time.monotonic()
            with self.assertRaises((BrokenPipeError, ConnectionResetError)):
                while time.monotonic() - start < harness.PATIENCE:
                    connection.sendall(bytes(1000))
                    time.sleep(0.01)


class JsonTensors(ServedModelCase):
    """Numbers take more memory than their digits did: they are charged as bodies are."""

    arguments = ("--max-body", "8M", "--max-upload-memory", "16M", "--max-queue", "10000")

    @staticmethod
    def write_model(path):
        small_onnx.doubled_image(path, 16)

    def body(self, rows, digits):
        numbers = b",".join([digits] * (rows * 3 * 16 * 16))
        return b'{"inputs":[{"name":"image","datatype":"FP32","shape":[%d,3,16,16],"data":[%s]}]}' % (rows, numbers)

    def test_numbers_are_charged(self):
        # A megabyte of digits becomes two of numbers; 7.5 become 15, and both are there for a while.
        for rows, status in ((650, 200), (5100, 413)):
            body = self.body(rows, b"0")
            self.assertLess(len(body), 8 << 20)
            answer = self.server.predict(body, "/v2/models/served/infer")
            self.assertEqual(answer.status, status, answer.body[:300])
            if status == 413:
                self.assert_error(answer, 413, "too_large", "--max-upload-memory")
            v1 = b'{"instances":[%s]}' % b",".join([b"[%s]" % b",".join([b"0"] * 768)] * rows)
            self.assertEqual(self.server.predict(v1, "/v1/models/served:predict").status, status)
        self.server.wait_metric("lensd_http_upload_bytes", 0)


class Idle(ServedCase):
    arguments = ("--idle-timeout", "2")

    def test_silence_is_closed(self):
        start = time.monotonic()
        with self.server.connect() as quiet, self.server.connect() as used:
            used.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            read_answer(used)
            self.assertEqual(read_to_end(quiet), b"")
            self.assertEqual(read_to_end(used), b"")
        self.assertGreater(time.monotonic() - start, 1.0)


class SlowUploads(ServedCase):
    """A body may take longer than a head; however slow the machine, this one is in time."""

    arguments = ("--header-timeout", "3", "--body-timeout", "3600")

    def test_a_slow_upload_in_time_is_fine(self):
        head, body = post("/predict", seven()).split(b"\r\n\r\n", 1)
        with self.server.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(head + b"\r\n\r\n")
            step = len(body) // 20 + 1
            for start in range(0, len(body), step):
                connection.sendall(body[start:start + step])
                time.sleep(0.17)
            answer, _ = read_answer(connection)
        self.assertEqual(answer.json()["predictions"][0]["label"], "7")


class Connections(ServedCase):
    arguments = ("--max-connections-per-address", "8")

    def test_per_address(self):
        held = []
        try:
            for _ in range(7):
                connection = self.server.connect()
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(read_answer(connection)[0].status, 200)
                held.append(connection)
            held.append(self.server.connect())
            with self.server.connect() as one_more:
                answer, _ = read_answer(one_more)
                self.assert_error(answer, 429, "too_many_connections", "8",
                                  "--max-connections-per-address")
                self.assertEqual(read_to_end(one_more), b"")
            held[0].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(held[0])[0].status, 200)
        finally:
            for connection in held:
                connection.close()
        self.server.wait_for(self.server.answers, "room for a connection")


class TotalConnections(ServedCase):
    arguments = ("--max-connections", "8", "--body-timeout", "3600")

    def hold(self, data):
        connection = self.server.connect()
        self.addCleanup(connection.close)
        connection.sendall(data)
        return connection

    def test_the_oldest_idle_one_makes_room(self):
        shed = self.server.metric("lensd_http_connections_shed_total")
        held = []
        for _ in range(24):
            held.append(self.hold(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))
            self.assertEqual(read_answer(held[-1])[0].status, 200)
        self.assertEqual(read_to_end(held[0]), b"")
        held[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(read_answer(held[-1])[0].status, 200)
        self.assertGreaterEqual(self.server.metric("lensd_http_connections_shed_total") - shed, 24 - 8)
        self.server.wait_log("connections full")

    def test_the_address_with_most_connections_loses_one(self):
        """However old the idle connections of others are."""
        def opened(source):
            connection = socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, (source, 0))
            self.addCleanup(connection.close)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)
            return connection

        polite = [opened("127.0.0.2") for _ in range(2)]
        greedy = [opened("127.0.0.3") for _ in range(24)]
        self.assertEqual(read_to_end(greedy[0]), b"")
        for connection in polite:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)

    def test_probes_have_a_reserve(self):
        held = [self.hold(post("/predict", seven())[:-1]) for _ in range(8)]
        self.server.wait_for(lambda: self.server.get("/livez").headers["Connection"] == "close", "all to be busy")
        for path in ("/livez", "/readyz", "/health", "/metrics"):
            self.assertEqual(self.server.get(path).status, 200)
        health = harness.run_lensd("health", "--port", str(self.server.port))
        self.assertEqual(health.returncode, 0, health.stderr)
        answer = self.server.predict(seven())
        self.assert_error(answer, 503, "too_many_connections", "--max-connections")
        self.assertEqual((answer.headers["Connection"], answer.headers["Retry-After"]), ("close", "1"))
        for connection in held:
            connection.sendall(seven()[-1:])
            self.assertEqual(read_answer(connection)[0].status, 200)
        self.assertEqual(self.server.predict(seven()).status, 200)

    def test_lensd_health_of_a_server_that_does_not_answer(self):
        with self.server.stopped():
            health = harness.run_lensd("health", "--port", str(self.server.port))
        self.assertEqual(health.returncode, 1)
        self.assertIn("stopped or overloaded", health.stderr)


class LargePictures(ServedCase):
    """A small picture is decoded while large ones keep the only worker busy."""

    arguments = ("--workers", "1")

    def test_a_small_picture_does_not_wait(self):
        """The server finds all of them at the same time; the log tells in which order they are done."""
        large, held = png(8000, 6000), []
        for i in range(3):
            held.append(socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, ("127.0.0.2", 0)))
            self.addCleanup(held[-1].close)
            held[-1].sendall(post("/predict", large, f"X-Request-Id: large-{i}")[:-1])
        self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") >= 3 * (len(large) - 1), "the large ones")
        with self.server.connect() as small:
            with self.server.stopped():
                for connection in held:
                    connection.sendall(large[-1:])
                small.sendall(post("/predict", seven(), "X-Request-Id: small"))
            for connection in (small, *held):
                self.assertEqual(read_answer(connection)[0].status, 200)
        for name in ("large-0", "large-1", "large-2", "small"):
            self.server.wait_log(f" id={name} ")
        order = re.findall(r" id=(large|small)", self.server.log_so_far())
        self.assertIn("small", order[:2], "at most one may be done while a busy machine brings the small one")


class ManyAtOnce(ServedCase):
    """libmicrohttpd accepts about ten connections in a run of its loop: more than three runs' worth."""
    arguments = ("--max-connections", "24")

    def test_requests_that_have_been_read_are_answered(self):
        """A moment after somebody was refused, the first request of a connection waits for the next run."""
        held = []
        for _ in range(24):
            held.append(self.server.connect())
            self.addCleanup(held[-1].close)
            held[-1].sendall(post("/predict", seven())[:-1])
        self.server.wait_for(lambda: self.server.get("/livez").headers["Connection"] == "close", "all to be busy")
        self.assertEqual(self.server.predict(seven()).status, 503)
        with self.server.stopped():
            for connection in held:
                connection.close()
            clients = []
            for _ in range(40):
                clients.append(self.server.connect())
                self.addCleanup(clients[-1].close)
                clients[-1].sendall(post("/predict", seven()))
        for client in clients:
            self.assertIn(read_answer(client)[0].status, (200, 503))


class GoneClients(ServedCase):
    arguments = ("--workers", "1", "--max-queue", "1000", "--max-queue-ms", "0", "--max-inflate-ratio", "2000")

    def test_gone_in_the_middle_of_the_upload(self):
        for cut in (10, 200, 700):
            for _ in range(10):
                with self.server.connect() as connection:
                    connection.sendall(post("/predict", seven())[:cut])
        self.assertEqual(self.server.predict(seven()).status, 200)

    def test_a_client_that_only_sends_no_more_is_answered(self):
        """A client that closes its sending side, as nc -N does, is answered; a long request gets 100 Continue first."""
        content_type, long = multipart([("image", "a.png", png(3000, 3000))] * 12)
        gone = self.server.metric("lensd_http_clients_gone_total")
        for data in (post("/predict", seven()), post("/predict", long, f"Content-Type: {content_type}")):
            with self.server.connect() as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = read_to_end(connection)
            while answer.startswith(b"HTTP/1.1 100 "):
                answer = answer.split(b"\r\n\r\n", 1)[1]
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)
        with self.server.connect() as connection:
            connection.sendall(post("/predict", long, f"Content-Type: {content_type}").replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            connection.shutdown(socket.SHUT_WR)
            self.assertIn(b" 200 ", read_to_end(connection)[:20])
        self.assertEqual(self.server.metric("lensd_http_clients_gone_total"), gone)

    def test_bodies_of_the_gone_are_not_inflated(self):
        """Long bodies queue for one thread; a body whose client has disconnected meanwhile is dropped."""
        body = gzip.compress(bytes(60 * 2**20), 6)
        gone = self.server.metric("lensd_http_clients_gone_total")
        lines = self.server.whole_log().count("status=499")
        def disconnect_while_they_wait():
            connections = [self.server.connect() for _ in range(24)]
            for connection in connections:
                connection.sendall(post("/predict", body, "Content-Encoding: gzip", "Content-Type: application/json"))
            # One is being inflated; or the server was quicker, and has answered some.
            while self.server.metric("lensd_http_upload_bytes") <= 2**20 and not select.select(connections, [], [], 0)[0]:
                pass
            for connection in connections:
                hang_up(connection)
            self.server.wait_metric("lensd_http_connections", 1)
            self.server.wait_metric("lensd_http_upload_bytes", 0)
            return self.server.metric("lensd_http_clients_gone_total") > gone
        self.server.wait_for(disconnect_while_they_wait, "a body whose client has gone")
        self.server.wait_log("status=499", lines + 1)

    def test_reset_in_the_middle_of_the_upload(self):
        def all_closed():
            return self.server.metric("lensd_http_connections") <= 2
        self.server.wait_for(all_closed, "the clients of other tests to be counted")
        gone = self.server.metric("lensd_http_clients_gone_total")
        for _ in range(5):
            connection = self.server.connect()
            connection.sendall(post("/predict", seven(), "X-Request-Id: is-reset")[:-1])
            self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") > 0, "its beginning")
            hang_up(connection)
            self.server.wait_metric("lensd_http_upload_bytes", 0)
        self.assertEqual(self.server.predict(seven()).status, 200)
        self.server.wait_for(all_closed, "all closed")

        def lines():
            return sum("id=is-reset" in line and "outcome=client_gone" in line for line in self.server.log_so_far().splitlines())
        self.server.wait_for(lambda: gone < self.server.metric("lensd_http_clients_gone_total") == gone + lines(),
                             "a line for each that is counted")


class GoneFromTheQueue(HeldCase):
    arguments = ("--max-queue-ms", "0")

    def test_work_for_the_gone_is_dropped(self):
        """The lane is held: none of forty images can be answered before its client leaves."""
        gone = self.server.metric("lensd_http_clients_gone_total")
        held = self.hold()
        for _ in range(5):
            hang_up(self.send([self.DARK] * 8))
        hang_up(held)
        self.server.wait_metric('lensd_images_total{model="served",result="cancelled"}', 41)
        self.assertEqual(self.server.metric("lensd_images_total{"), 41)
        self.server.wait_metric("lensd_http_clients_gone_total", gone + 6)
        self.server.wait_log("outcome=client_gone", 6)


if __name__ == "__main__":
    unittest.main()
