"""Many clients at once."""

import collections
import json
import signal
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
            server.wait_for(lambda: self.state(server) == b"T", "the process to be stopped")
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


if __name__ == "__main__":
    unittest.main()
