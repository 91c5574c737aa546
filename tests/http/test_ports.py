"""Where lensd listens besides its port: --admin-port, and a socket that a supervisor has passed (LISTEN_FDS)."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

import harness
from harness import FolderCase, Server, free_port, post, read_answer, read_to_end, run_lensd, seven


def serve(*arguments, **options):
    """A server with an admin port. Another program may take that port before it does: then once more."""
    for _ in range(5):
        port = free_port()
        try:
            server = Server(*arguments, "--admin-port", str(port), **options)
            server.admin_port = port
            return server
        except AssertionError as error:
            if f"port {port} on " not in str(error):
                raise
    raise AssertionError("no free port")


class Start(FolderCase):
    def test_no_client_is_served_before_the_process_is_confined(self):
        file, ask = self.path("faces.db"), b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        with harness.held_start(file):
            server = serve("--faces", file, wait_ready=False)
            self.addCleanup(self.end, server)
            clients = [socket.create_connection(("127.0.0.1", port), harness.PATIENCE)
                       for port in (server.port, server.admin_port)]
            for client in clients:
                self.addCleanup(client.close)
                client.sendall(ask)
            self.assertEqual(select.select(clients, [], [], 1)[0], [])
        for client in clients:
            answer, _ = read_answer(client)
            self.assertIn("confinement", answer.json())


class AdminPort(unittest.TestCase):
    def setUp(self):
        self.server = serve("--max-connections", "4")
        self.addCleanup(self.server.stop)

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.server.admin_port), harness.PATIENCE)
        self.addCleanup(connection.close)
        return connection

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.admin_port, timeout=harness.PATIENCE)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def test_the_same_port_twice(self):
        port = str(free_port())
        made = run_lensd("serve", "--port", port, "--admin-port", port)
        self.assertEqual(made.returncode, 2)
        self.assertIn("choose two", made.stderr)

    def test_what_it_serves(self):
        for path in ("/livez", "/readyz", "/health", "/metrics", "/v2/health/live", "/ping", "/devices", "/console.json",
                     "/v2/models/stats", "/v2/models/digits/stats", "/v2/models/digits/versions/1/stats"):
            self.assertEqual(self.ask("GET", path)[0], 200, path)
        status, index = self.ask("POST", "/v2/repository/index")
        self.assertEqual((status, json.loads(index)[0]["name"]), (200, "digits"))
        for path in ("/predict", "/v2/models/digits/infer"):
            status, body = self.ask("POST", path, seven())
            self.assertEqual(status, 404, path)
            self.assertIn(b"--admin-port", body)
        # Without --admin-key-file nobody is an admin.
        self.assertEqual(self.ask("POST", "/v2/repository/models/digits/load", b"")[0], 403)
        self.assertEqual(self.ask("GET", "/nothing")[0], 404)
        health = run_lensd("health", "--port", str(self.server.admin_port))
        self.assertEqual(health.returncode, 0, health.stderr)

    def test_answers_when_the_other_port_is_full(self):
        held = []
        for _ in range(4 + 16):
            held.append(self.server.connect())
            self.addCleanup(held[-1].close)
            held[-1].sendall(post("/predict", seven())[:-1])  # an idle one would be closed for the next
        with self.connect() as one:
            one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(one)[0].status, 200)

        def open_connections():
            body = self.ask("GET", "/metrics")[1].decode()
            return next(float(line.split()[1]) for line in body.splitlines() if line.startswith("lensd_http_connections "))

        self.server.wait_for(lambda: open_connections() >= len(held), "all of them to be in")
        for path in ("/livez", "/metrics"):
            self.assertEqual(self.ask("GET", path)[0], 200)
        held[0].sendall(seven()[-1:])
        self.assertEqual(read_answer(held[0])[0].status, 200)

    def test_idle_connections_make_room_and_do_not_count_on_the_other_port(self):
        idle = []
        for _ in range(100):
            idle.append(self.connect())
            idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(idle[-1])[0].status, 200)
        self.assertEqual(read_to_end(idle[0]), b"")
        self.assertEqual(self.server.predict(seven()).status, 200)

    def test_answers_until_the_end_of_a_drain(self):
        with self.server.connect() as last, self.connect() as probe:
            last.sendall(post("/predict", seven())[:-1])
            probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(probe)[0].status, 200)
            self.server.signal()
            self.server.wait_for(lambda: self.ask("GET", "/readyz")[0] == 503, "the drain")
            self.assertEqual(self.ask("GET", "/livez")[0], 200)
            last.sendall(seven()[-1:])
            self.assertEqual(read_answer(last)[0].status, 200)
        self.assertEqual(self.server.wait(), 0)

    def test_a_port_in_use(self):
        done = run_lensd("serve", "--port", "0", "--admin-port", str(self.server.port))
        self.assertEqual(done.returncode, 1)
        self.assertIn("--admin-port", done.stderr)


# Started with a listening socket as descriptor 3, as systemd does.
LAUNCHER = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2], LISTEN_FDNAMES="lensd.socket")
os.execv(sys.argv[3], sys.argv[3:])
"""


class PassedSocket(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lensd-ports-")
        self.addCleanup(self.folder.cleanup)
        self.listening = socket.socket()
        self.addCleanup(self.listening.close)
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen(512)
        self.port = self.listening.getsockname()[1]

    def start(self, *arguments, fd=None, count="1", wait=True):
        """One more process that serves the socket; with `wait`, once it does."""
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(self.listening.fileno() if fd is None else fd), count, harness.BINARY,
             "serve", *arguments],
            pass_fds=(self.listening.fileno() if fd is None else fd,), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, "LENSD_ALLOWED_HOSTS": "*"})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        if wait:
            self.assertIn(f"http://127.0.0.1:{self.port}", process.stdout.readline() + process.stdout.readline())
        return process

    def predict(self, connection):
        connection.request("POST", "/predict", seven())
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def test_clients_wait_while_nobody_serves(self):
        with socket.create_connection(("127.0.0.1", self.port), harness.PATIENCE) as early:
            early.sendall(post("/predict", seven()))
            first = self.start()
            self.assertEqual(read_answer(early)[0].status, 200)
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(harness.PATIENCE), 0)
        with socket.create_connection(("127.0.0.1", self.port), harness.PATIENCE) as late:
            late.sendall(post("/predict", seven()))
            self.start()
            self.assertEqual(read_answer(late)[0].status, 200)

    def test_an_upgrade_loses_no_request(self):
        """Two processes share the socket while one takes over from the other, under load."""
        serving = self.start()
        stop, counts, failures = threading.Event(), [0] * 6, []

        def new_connections(i):
            while not stop.is_set():
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.PATIENCE)
                status = self.predict(connection)
                if status != 200:
                    failures.append(status)
                counts[i] += 1
                connection.close()

        def kept_connection(i):
            connection, used = http.client.HTTPConnection("127.0.0.1", self.port, timeout=harness.PATIENCE), False
            while not stop.is_set():
                try:
                    status = self.predict(connection)
                except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                    # It was idle for long enough to be closed; every client asks again then (RFC 9112, section 9.3.1).
                    if not used:
                        raise
                    connection.close()
                    used = False
                    continue
                if status != 200:
                    failures.append(status)
                counts[i] += 1
                used = connection.sock is not None  # None: the answer ended the connection
            connection.close()

        def run(i):
            try:
                (new_connections if i % 2 else kept_connection)(i)
            except Exception as error:  # noqa: B902 - the thread's own
                failures.append(repr(error))

        def wait_for_more():
            """Until every client has been answered twice more."""
            before = list(counts)
            waiting = threading.Event()
            for _ in range(int(harness.PATIENCE / 0.02)):
                if failures or all(now >= then + 2 for now, then in zip(counts, before)):
                    return
                waiting.wait(0.02)
            self.fail("the clients are not answered any more")

        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(counts))]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                wait_for_more()
                successor = self.start()
                serving.send_signal(signal.SIGTERM)
                self.assertEqual(serving.wait(harness.PATIENCE), 0)
                serving = successor
            wait_for_more()
        finally:
            stop.set()
            for thread in threads:
                thread.join(harness.PATIENCE)
        self.assertEqual(failures, [])

    def test_invalid_sockets(self):
        with socket.socket() as plain, open(os.devnull, "rb") as file:
            for fd in (plain.fileno(), file.fileno()):
                self.assertEqual(self.start(fd=fd, wait=False).wait(harness.PATIENCE), 2)
        self.assertEqual(self.start(count="2", wait=False).wait(harness.PATIENCE), 2)

    def test_variables_for_another_process_are_ignored(self):
        server = Server(environment={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
        self.addCleanup(server.stop)
        self.assertEqual(server.predict(seven()).status, 200)

    def test_a_unix_socket(self):
        path = os.path.join(self.folder.name, "socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(16)
            process = self.start(fd=listening.fileno(), wait=False)
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(harness.PATIENCE)
                connection.connect(path)
                connection.sendall(post("/predict", seven()))
                self.assertEqual(read_answer(connection)[0].status, 200)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(harness.PATIENCE), 0)
        self.assertTrue(os.path.exists(path), "it is the supervisor's")


if __name__ == "__main__":
    unittest.main()
