"""Many clients at once, and clients that come back at once although they were refused."""

import collections
import hashlib
import json
import os
import signal
import tempfile
import time
import unittest

import harness
from harness import Server, post, read_answer, seven

# What libmicrohttpd takes from the kernel at a time.
EVENTS = 128


class Bursts(unittest.TestCase):
    """Requests that all lie in their sockets when the server looks."""

    def burst(self, count, *arguments):
        server = Server("--max-queue", str(2 * count), "--max-connections", str(count), *arguments)
        self.addCleanup(server.stop)
        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            self.addCleanup(connection.close)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        for connection in connections:
            self.assertEqual(read_answer(connection)[0].status, 200)
        server.signal(signal.SIGSTOP)
        try:
            server.wait_for(lambda: Bursts.state(server) == b"T", "the process to be stopped")
            for connection in connections:
                connection.sendall(post("/predict?top_k=1", seven()))
        finally:
            server.signal(signal.SIGCONT)
        return collections.Counter(read_answer(connection)[0].status for connection in connections)

    @staticmethod
    def state(server):
        return harness.read(f"/proc/{server.process.pid}/stat").rsplit(b") ", 1)[1][:1]

    def test_as_many_as_are_taken_at_a_time(self):
        self.assertEqual(self.burst(EVENTS), {200: EVENTS})

    def test_twice_as_many(self):
        self.assertEqual(self.burst(2 * EVENTS), {200: 2 * EVENTS})

    def test_as_many_on_each_of_two_threads(self):
        """Each thread takes half of --max-connections."""
        self.assertEqual(self.burst(2 * EVENTS, "--http-threads", "2"), {200: 2 * EVENTS})


class Late(unittest.TestCase):
    """What is refused because it was slow, wherever it stopped, is in the log and counted."""

    def test_each_408_is_logged_and_counted(self):
        server = Server("--header-timeout", "200ms", "--body-timeout", "200ms", "--log-format", "json")
        self.addCleanup(server.stop)
        begun = [b"P", b"POST /predict HTTP/1.1\r\n", b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-",
                 post("/predict", seven())[:-1]]
        for data in begun:
            self.assertIn(b" 408 ", server.raw(data))
        server.wait_metric('lensd_http_requests_total{status="408"}', len(begun))
        lines = [json.loads(line) for line in server.log().splitlines()]
        late = [line for line in lines if line.get("status") == 408]
        self.assertEqual(len(late), len(begun))
        for line in late:
            self.assertEqual((line["event"], line["client"], line["outcome"]),
                             ("request", "127.0.0.1", "refused"))
            self.assertGreaterEqual(line["ms"], 200)


class Refused(unittest.TestCase):
    """Clients that are refused each time: their key's rate is used up by the first request."""

    KEY = "greedy-key-" + "g" * 40

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        self.addCleanup(folder.cleanup)
        keys = os.path.join(folder.name, "keys")
        with open(keys, "w") as file:
            file.write(f"greedy sha256:{hashlib.sha256(self.KEY.encode()).hexdigest()} rate=0.0001 burst=1\n")
        # Several threads: the one that a new connection comes to may not be the one that had the old one.
        self.server = Server("--api-keys", keys, "--log-format", "json", "--trusted-proxies", "127.0.0.1,10.0.0.0/8",
                             "--http-threads", "4")
        self.addCleanup(self.server.stop)
        with self.connect() as connection:
            self.assertEqual(self.ask(connection), 200)

    def connect(self):
        connection = self.server.connect()
        self.addCleanup(connection.close)
        return connection

    def send(self, connection, *headers):
        connection.sendall(post("/predict", seven(), f"X-API-Key: {self.KEY}", *headers))

    def ask(self, connection, *headers):
        self.send(connection, *headers)
        return read_answer(connection)[0].status

    def delayed(self):
        return self.server.metric("lensd_http_delayed_total")

    def test_who_comes_back_at_once_waits(self):
        """The waits are 50, 100, 200, 400, 400 … ms: 3.15 s for ten, which an idle server answers in 1 ms.
        A machine that is busy elsewhere may spend a part of them between the requests."""
        connection = self.connect()
        began = time.monotonic()
        for _ in range(11):
            self.send(connection)
        rest = b""
        for _ in range(11):
            answer, rest = read_answer(connection, rest)
            self.assertEqual(answer.status, 429)
        self.assertGreater(time.monotonic() - began, 1)
        self.assertGreater(self.delayed(), 0)

    def stop(self):
        self.server.signal(signal.SIGSTOP)
        self.server.wait_for(lambda: Bursts.state(self.server) == b"T", "the process to be stopped")

    def test_a_new_connection_that_comes_before_the_end_of_the_old_one(self):
        """The server finds both when it looks. The waits soon are 400 ms; a machine that is busy for half of that tells
        nothing."""
        told = 0
        for i in range(15):
            old = self.connect()
            self.assertEqual(self.ask(old), 429)
            began = time.monotonic()
            with self.connect() as new:
                new.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(read_answer(new)[0].status, 200)
                self.stop()
                before = time.monotonic() - began
                old.close()
                self.send(new)
                self.server.signal(signal.SIGCONT)
                self.assertEqual(read_answer(new)[0].status, 429)
            if i >= 4 and before < 0.2:
                self.assertGreater(time.monotonic() - began, 0.3)
                told += 1
        if not told:
            self.skipTest("the machine is too busy")

    def reconnect(self, *headers):
        """Without penalties none would be delayed."""
        for _ in range(20):
            for _ in range(11):
                with self.connect() as connection:
                    self.assertEqual(self.ask(connection, *headers), 429)
            if self.delayed() >= 5:
                return
        self.fail(f"only {self.delayed()} of 220 connections waited")

    def test_a_new_connection_does_not_help(self):
        self.reconnect()

    def test_nor_when_the_server_closes_the_old_one(self):
        self.reconnect("Connection: close")

    def wait_delayed(self, connection, *headers):
        """Asks without a pause until a request of this client has waited."""
        def once():
            self.assertEqual(self.ask(connection, *headers), 429)
            return self.delayed()

        return self.server.wait_for(once, "a request to wait")

    def test_who_waits_himself_is_answered_at_once(self):
        """Also from the same address, beside one who does not wait."""
        kept, greedy = self.connect(), self.connect()
        waited = self.wait_delayed(greedy)
        for _ in range(4):
            self.assertEqual(self.ask(kept), 429)
            self.assertEqual(self.ask(self.connect()), 429)
            time.sleep(0.06)
        self.assertEqual(self.delayed(), waited)

    def test_clients_of_a_proxy_do_not_wait_for_each_other(self):
        connection = self.connect()
        for client in range(5):
            self.assertEqual(self.ask(connection, f"X-Forwarded-For: 192.0.2.{client}"), 429)
        self.assertEqual(self.delayed(), 0)
        self.wait_delayed(connection, "X-Forwarded-For: 192.0.2.4")

    def test_probes_never_wait(self):
        connection = self.connect()
        self.assertEqual(self.ask(connection), 429)
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(read_answer(connection)[0].status, 200)
        self.assertEqual(self.delayed(), 0)

    def greedy(self, count):
        """Connections that each have a request that waits, and 12 s of them to come."""
        connections = [self.connect() for _ in range(count)]
        for connection in connections:
            for _ in range(32):
                self.send(connection)
        self.server.wait_for(lambda: self.delayed() >= count, "requests to wait")
        return connections

    def test_the_end_of_the_server_is_the_end_of_waiting(self):
        connections = self.greedy(20)
        self.server.signal()
        for connection in connections:
            answer, rest = read_answer(connection)
            while answer.headers.get("connection") != "close":
                answer, rest = read_answer(connection, rest)
            self.assertEqual(answer.status, 429)
        self.assertEqual(self.server.wait(), 0)

    def test_who_hangs_up_while_it_waits_is_forgotten(self):
        for connection in self.greedy(20):
            connection.close()
        # The one that asks is open.
        self.server.wait_metric("lensd_http_connections", 1)
        self.assertGreater(self.server.metric("lensd_http_clients_gone_total"), 0)

    def test_the_log_has_a_sample_of_refusals(self):
        count = 200
        connections = [self.connect() for _ in range(count)]
        for connection in connections:
            self.send(connection)
        for connection in connections:
            self.assertEqual(read_answer(connection)[0].status, 429)
        self.server.wait_metric('lensd_http_requests_total{status="429"}', count)

        def lines():
            return [json.loads(line) for line in self.server.log().splitlines()]

        def left_out():
            return sum(line["requests"] for line in lines() if line["event"] == "refusals not logged")

        def written():
            return sum(line.get("status") == 429 for line in lines())

        self.server.wait_for(lambda: written() + left_out() == count, "all refusals in the log")
        self.assertGreater(left_out(), 0)
        self.assertGreaterEqual(written(), 20)


if __name__ == "__main__":
    unittest.main()
