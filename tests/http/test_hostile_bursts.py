"""Many clients at once, and clients that come back at once although they were refused."""

import collections
import hashlib
import json
import os
import socket
import tempfile
import time
import unittest

import harness
from harness import Server, post, read_answer, read_to_end, seven

# What libmicrohttpd takes from the kernel at a time.
EVENTS = 128


class Bursts(unittest.TestCase):
    """Requests that all lie in their sockets when the server looks."""

    def burst(self, count, *arguments):
        server = Server("--max-queue", str(2 * count), "--max-queue-ms", "0", "--max-connections", str(count),
                        "--idle-timeout", "3600", *arguments)
        self.addCleanup(server.stop)
        connections = [server.connect() for _ in range(count)]
        for connection in connections:
            self.addCleanup(connection.close)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        for connection in connections:
            self.assertEqual(read_answer(connection)[0].status, 200)
        with server.stopped():
            for connection in connections:
                connection.sendall(post("/predict?top_k=1", seven()))
        return collections.Counter(read_answer(connection)[0].status for connection in connections)

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
        server = Server("--header-timeout", "2", "--body-timeout", "2", "--log-format", "json")
        self.addCleanup(server.stop)
        begun = [b"P", b"POST /predict HTTP/1.1\r\n", b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-",
                 post("/predict", seven())[:-1]]
        for answer in harness.together(len(begun), lambda i: server.raw(begun[i])):
            self.assertIn(b" 408 ", answer)
        server.wait_metric('lensd_http_requests_total{status="408"}', len(begun))
        late = server.wait_entries(len(begun), status=408)
        self.assertEqual(len(late), len(begun))
        for line in late:
            self.assertEqual((line["event"], line["client"], line["outcome"]),
                             ("request", "127.0.0.1", "refused"))
            self.assertGreaterEqual(line["ms"], 2000)


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

    def refused_in_a_row(self, connection, count=6, *headers):
        """Requests that lie in the socket at once: the waits are 50, 100, 200, 400, 400 … ms unless the server is too
        busy to look for as long."""
        for i in range(count):
            self.send(connection, *(headers if i + 1 == count else ()))
        rest = b""
        for _ in range(count):
            answer, rest = read_answer(connection, rest)
            self.assertEqual(answer.status, 429)

    def test_who_comes_back_at_once_waits(self):
        connection = self.connect()

        def some_waited():
            self.refused_in_a_row(connection)
            return self.delayed() >= 5
        self.server.wait_for(some_waited, "five requests to wait")

        def longest():
            return max([json.loads(line)["ms"] for line in self.server.log_so_far().splitlines() if '"status":429' in line] or [0])
        self.server.wait_for(lambda: longest() >= 50, "a line that tells of a wait")

    def wait_again(self, come_back, *headers):
        """Until a request that came in another connection, at once behind a refusal, has waited."""
        def has_waited():
            old = self.connect()
            self.refused_in_a_row(old, 6, *headers)
            before = self.delayed()
            come_back(old)
            return self.delayed() > before
        self.server.wait_for(has_waited, "a request of a new connection to wait")

    def test_a_new_connection_that_comes_before_the_end_of_the_old_one(self):
        """The server finds both when it looks."""
        def come_back(old):
            with self.connect() as new:
                new.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(read_answer(new)[0].status, 200)
                with self.server.stopped():
                    old.close()
                    self.send(new)
                self.assertEqual(read_answer(new)[0].status, 429)
        self.wait_again(come_back)

    def reconnect(self, *headers):
        def come_back(old):
            old.close()
            with self.connect() as new:
                self.assertEqual(self.ask(new), 429)
        self.wait_again(come_back, *headers)

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
        """Connections whose requests wait for a penalty, over up to 12 s. A busy server may read all of them too late for one to
        wait; then more are sent."""
        refused = 'lensd_http_requests_total{status="429"}'
        connections, delayed, sent = [self.connect() for _ in range(count)], self.delayed(), self.server.metric(refused)

        def some_wait():
            nonlocal sent
            if self.server.metric(refused) >= sent:
                for connection in connections:
                    for _ in range(32):
                        self.send(connection)
                sent += 32 * count
            return self.delayed() >= delayed + count
        self.server.wait_for(some_wait, "requests to wait")
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
        def some_have_gone():
            for connection in self.greedy(20):
                connection.close()
            # The one that asks is open.
            self.server.wait_metric("lensd_http_connections", 1)
            return self.server.metric("lensd_http_clients_gone_total") > 0
        self.server.wait_for(some_have_gone, "one who waited to be counted")

    def test_who_sends_no_more_while_it_waits_is_answered(self):
        def has_waited():
            with self.connect() as connection:
                self.refused_in_a_row(connection)
                before = self.delayed()
                self.send(connection)
                connection.shutdown(socket.SHUT_WR)
                answer = read_to_end(connection).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.assertTrue(answer.startswith(b"HTTP/1.1 429 "), answer)
                return self.delayed() > before
        self.server.wait_for(has_waited, "such a client to wait")

    def test_the_log_has_a_sample_of_refusals(self):
        """As many as a second may have are written, the others counted: here they come at once, for as many rounds as a
        busy machine needs."""
        refused = 0

        def lines():
            return [json.loads(line) for line in self.server.log_so_far().splitlines()]

        def left_out():
            return sum(line["requests"] for line in lines() if line["event"] == "refusals not logged")

        def written():
            return sum(line.get("status") == 429 for line in lines())

        while not left_out():
            connections = [self.connect() for _ in range(200)]
            with self.server.stopped():
                for connection in connections:
                    self.send(connection)
            for connection in connections:
                self.assertEqual(read_answer(connection)[0].status, 429)
                connection.close()
            refused += len(connections)
            self.server.wait_metric('lensd_http_requests_total{status="429"}', refused)
            self.server.wait_for(lambda: written() + left_out() == refused, "all refusals in the log")
        self.assertGreaterEqual(written(), 20)


if __name__ == "__main__":
    unittest.main()
