"""A socket with a name instead of a port: who may connect, what becomes of its file, the same limits."""

import http.client
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import unittest

import harness
from harness import Answer, Server, post, read_answer, run_lensd, seven, together


class UnixServer(Server):
    """A Server on a socket file; says nothing about a port."""

    def __init__(self, *arguments, wait_ready=True, prefix=()):
        self.folder = tempfile.mkdtemp(prefix="lensd-unix-")
        self.prefix = prefix
        self.path = os.path.join(self.folder, "s")
        self.start(*arguments, wait_ready=wait_ready)

    def start(self, *arguments, wait_ready=True):
        self.log_path = os.path.join(self.folder, "log")
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen([*self.prefix, harness.BINARY, "serve", "--unix", self.path, *arguments],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log_file)
        if wait_ready:
            self.wait_for(self.answers, "an answer")
            self.wait_ready()

    def answers(self):
        try:
            return self.get("/livez").status == 200
        except OSError:
            return False

    def connect(self, timeout=harness.PATIENCE):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            raise
        return connection

    def request(self, method, path, body=None, headers=None, timeout=harness.PATIENCE):
        client = http.client.HTTPConnection("localhost", timeout=timeout)
        client.sock = self.connect(timeout)
        return harness.exchange(client, method, path, body, headers)


class Unix(unittest.TestCase):
    def serve(self, *arguments, **options):
        server = UnixServer(*arguments, **options)
        self.addCleanup(shutil.rmtree, server.folder, True)
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def mode(self, path):
        return stat.S_IMODE(os.stat(path).st_mode)

    def test_from_the_first_to_the_last(self):
        server = self.serve()
        self.assertEqual(self.mode(server.path), 0o660)
        self.assertEqual(server.predict(seven()).json()["predictions"][0]["label"], "7")

        def client(_):
            with server.connect() as connection:
                connection.sendall(post("/predict", seven()) * 4)
                rest = b""
                for _ in range(4):
                    answer, rest = read_answer(connection, rest)
                    self.assertEqual(answer.status, 200)
        together(16, client)
        answer = server.predict(bytes(70000000))
        self.assertEqual(answer.status, 413)
        self.assertEqual(run_lensd("health", "--unix", server.path).stdout, '{"status":"ready"}\n')
        path = server.path
        code, log = server.stop()
        self.assertEqual(code, 0)
        self.assertIn(f"client=uid:{os.getuid()} ", log)
        self.assertIn(f"at unix:{path} on cpu", server.output)
        self.assertIn(f"curl --unix-socket {path} --data-binary", server.output)
        self.assertFalse(os.path.exists(path))

    def test_clients_of_another_container(self):
        """Their process ids mean nothing to the server."""
        prefix = ("unshare", "--pid", "--fork", "--kill-child")
        if not shutil.which("unshare") or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no namespaces may be made here")
        server = self.serve("--trusted-proxies", "unix", prefix=prefix)
        self.assertEqual(server.request("GET", "/v2", headers={"X-Request-Id": "own"}).status, 200)
        forwarded = {"X-Request-Id": "forwarded", "X-Forwarded-For": "192.0.2.7"}
        self.assertEqual(server.request("GET", "/v2", headers=forwarded).status, 200)
        for name, client in (("own", f"uid:{os.getuid()}"), ("forwarded", "192.0.2.7")):
            self.assertIn(f" client={client} ", server.wait_log(f" id={name} ")[0])
        server.signal(signal.SIGKILL)
        server.wait()
        server.process.stdout.close()
        server.log_file.close()

    def test_permissions(self):
        umask = os.umask(0o077)
        try:
            server = self.serve("--unix-mode", "0666")
        finally:
            os.umask(umask)
        self.assertEqual(self.mode(server.path), 0o666)
        self.assertEqual(server.stop()[0], 0)
        for mode in ("", "8", "rw", "1777", "0"):
            ended = run_lensd("serve", "--unix", "/tmp/x", f"--unix-mode={mode}")
            self.assertEqual(ended.returncode, 2)
            self.assertIn("--unix-mode", ended.stderr)

    def test_a_stale_socket_is_replaced(self):
        server = self.serve()
        server.signal(signal.SIGKILL)
        server.wait()
        server.process.stdout.close()
        server.log_file.close()
        self.assertTrue(os.path.exists(server.path))
        server.start()
        self.assertEqual(server.predict(seven()).status, 200)
        self.assertEqual(server.stop()[0], 0)

    def test_what_is_another_s(self):
        server = self.serve()
        ended = run_lensd("serve", "--unix", server.path)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("another program listens on", ended.stderr)
        self.assertEqual(server.predict(seven()).status, 200)
        plain = os.path.join(server.folder, "plain")
        with open(plain, "w") as file:
            file.write("kept")
        ended = run_lensd("serve", "--unix", plain)
        self.assertIn("exists and is not a socket", ended.stderr)
        self.assertEqual(harness.read(plain), b"kept")
        # A name that somebody else has taken meanwhile is not ours to remove.
        os.unlink(server.path)
        with open(server.path, "w") as file:
            file.write("another's")
        path = server.path
        server.signal()
        self.assertEqual(server.wait(), 0)
        self.assertEqual(harness.read(path), b"another's")
        server.process.stdout.close()
        server.log_file.close()

    def test_check_looks_at_the_path(self):
        folder = tempfile.mkdtemp(prefix="lensd-unix-")
        self.addCleanup(shutil.rmtree, folder)
        plain = os.path.join(folder, "plain")
        with open(plain, "w") as file:
            file.write("kept")
        for path, word in ((plain, "exists and is not a socket"), (folder, "exists and is not a socket"),
                           (os.path.join(folder, "no", "s"), "No such file"), ("/tmp/" + "x" * 200, "at most 107")):
            ended = run_lensd("serve", "--unix", path, "--check")
            self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1), ended.stderr)
            self.assertIn(word, ended.stderr)
        self.assertEqual(harness.read(plain), b"kept")
        # A server may be asked about itself while it runs.
        server = self.serve()
        for path in (server.path, os.path.join(folder, "new")):
            ended = run_lensd("serve", "--unix", path, "--check")
            self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(server.stop()[0], 0)

    def test_wrong_paths(self):
        for path, word in (("/no/such/folder/s", "No such file"), ("/tmp/" + "x" * 200, "at most 107")):
            ended = run_lensd("serve", "--unix", path)
            self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1), ended.stderr)
            self.assertIn(word, ended.stderr)
        ended = run_lensd("serve", "--unix", "/tmp/x", "--port-file", "/tmp/y")
        self.assertIn("--port-file and --unix exclude each other", ended.stderr)
        # Kubernetes has variables that begin with LENSD_PORT_, too.
        ended = run_lensd("serve", "--unix", "/tmp/no/x", environment={"LENSD_PORT_FILE": "/tmp/y"})
        self.assertIn("--port-file and --unix exclude each other", ended.stderr)

    def test_one_place_to_listen(self):
        """A port and a path of one source contradict each other; of two sources the stronger one decides."""
        folder = tempfile.mkdtemp(prefix="lensd-unix-")
        self.addCleanup(shutil.rmtree, folder)
        path, config = os.path.join(folder, "s"), os.path.join(folder, "config.json")
        with open(config, "w", encoding="ascii") as file:
            json.dump({"unix": path, "port": 9000}, file)
        for arguments, environment in ((("--unix", path, "--port", "0"), {}),
                                       (("--host", "127.0.0.1", "--unix", path), {}),
                                       ((), {"LENSD_UNIX": path, "LENSD_PORT": "0"}),
                                       (("--config", config), {})):
            for command in ("serve", "health"):
                ended = run_lensd(command, *arguments, environment=environment)
                self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1), ended.stderr)
                self.assertIn("--unix and --" + ("host" if "--host" in arguments else "port") + " exclude each other", ended.stderr)
        self.assertFalse(os.path.exists(path))
        # Flag over environment over file, whichever of the two it names.
        for arguments, environment, place in (
                (("--unix", path, "--config", config), {"LENSD_PORT": "9000", "LENSD_HOST": "0.0.0.0"}, path),
                (("--port", "1"), {"LENSD_UNIX": path}, "127.0.0.1 port 1"),
                (("--config", config), {"LENSD_PORT": "1"}, "127.0.0.1 port 1")):
            ended = run_lensd("health", *arguments, environment=environment)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn(place, ended.stderr)

    def test_a_drain_loses_nobody(self):
        server = self.serve("--drain-delay", "300ms")
        path = server.path
        with server.connect() as connection:
            data = post("/predict", seven())
            connection.sendall(data[:500])
            server.wait_for(lambda: server.metric("lensd_http_upload_bytes") > 0, "the upload")
            server.signal()
            server.wait_for(lambda: not os.path.exists(path), "the end of accepting")
            connection.sendall(data[500:])
            self.assertEqual(read_answer(connection)[0].status, 200)
        server.wait()  # stop() would send a second signal, which ends the drain
        self.assertEqual(server.stop()[0], 0)

    def test_headers_that_drip_are_cut_off(self):
        server = self.serve("--header-timeout", "1", "--idle-timeout", "3600")
        with server.connect() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
            self.assertIn(b" 408 ", harness.drip(connection, [b"y"]))
        self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
