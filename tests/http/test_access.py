"""API keys: who is let in, who is not, how often, and what the log says about it."""

import hashlib
import http.client
import json
import os
import signal
import socket
import tempfile
import time
import unittest

import harness
from harness import ServedCase, Server, post, read_answer, read_to_end, run_lensd, seven

ALICE, BOB, ROOT = "alice-key-" + "a" * 40, "bob-key-" + "b" * 40, "root-key-" + "r" * 40
ERIN = "erin-key-" + "e" * 40


def line(name, key, limits=""):
    return f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()} {limits}\n"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


# However slow the machine is, no token comes back while a test runs.
BOBS_RATE = "rate=0.0001 burst=3"


class WithKeys(ServedCase):
    extra = ()

    @classmethod
    def setUpClass(cls):
        cls.keys = tempfile.NamedTemporaryFile("w", suffix=".keys")
        cls.admins = tempfile.NamedTemporaryFile("w", suffix=".admins")
        cls.write(cls.keys, "# who may ask\n\n", line("alice", ALICE), line("bob", BOB, BOBS_RATE),
                  line("erin", ERIN, "rate=1 burst=1"))
        cls.write(cls.admins, line("root", ROOT))
        cls.arguments = ("--api-keys", cls.keys.name, "--admin-key-file", cls.admins.name, *cls.extra)
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.keys.close()
        cls.admins.close()

    @staticmethod
    def write(file, *lines):
        file.seek(0)
        file.truncate()
        file.write("".join(lines))
        file.flush()


class Keys(WithKeys):
    def test_with_a_key(self):
        for headers in (bearer(ALICE), {"X-API-Key": ALICE}, {"Authorization": f"bearer  {ALICE}"},
                        {"Authorization": "Basic eDp5", "X-API-Key": ALICE}, bearer(ROOT)):
            answer = self.server.predict(seven(), headers=headers)
            self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(self.server.request("GET", "/devices", headers=bearer(ALICE)).status, 200)

    def test_without_a_key(self):
        answer = self.server.predict(seven())
        self.assert_error(answer, 401, "unauthorized", "/predict", "Authorization: Bearer")
        self.assertEqual(answer.headers["WWW-Authenticate"], 'Bearer realm="lensd"')
        self.assertEqual(self.server.get("/devices").status, 401)
        for header in ({"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
            self.assertEqual(self.server.predict(seven(), headers=header).status, 401)

    def test_with_a_wrong_key(self):
        hash_of_alice = hashlib.sha256(ALICE.encode()).hexdigest()
        for key in (ALICE[:-1], ALICE + "x", "x", "alice", "y" * 5000, "\xe9", hash_of_alice,
                    "sha256:" + hash_of_alice):
            answer = self.server.predict(seven(), headers={"X-API-Key": key})
            self.assert_error(answer, 401, "unauthorized", "unknown API key")
            self.assertIn('error="invalid_token"', answer.headers["WWW-Authenticate"])

    def test_health_and_metrics_are_open(self):
        for path in ("/health", "/livez", "/readyz", "/ping", "/metrics", "/", "/v2/health/live", "/v2/health/ready",
                     "/v1/models/digits", "/v2/models/digits/ready"):
            self.assertEqual(self.server.get(path).status, 200, path)
            # A probe's own credentials are nobody's business.
            self.assertEqual(self.server.request("GET", path, headers=bearer("wrong")).status, 200, path)

    def test_refused_before_the_body(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n"
                               b"Expect: 100-continue\r\n\r\n")
            answer, _ = read_answer(connection)
            self.assert_error(answer, 401, "unauthorized")
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5000000\r\n\r\n")
            answer, _ = read_answer(connection)
            self.assert_error(answer, 401, "unauthorized")
            self.assertIn("www-authenticate", answer.headers)
            self.assertEqual(read_to_end(connection), b"")

    def test_rate(self):
        def counted(result):
            return self.server.metric(f'lensd_key_requests_total{{key="bob",result="{result}"}}')

        before = counted("granted"), counted("limited")
        answers = [self.server.predict(seven(), headers=bearer(BOB)) for _ in range(4)]
        self.assertEqual((counted("granted"), counted("limited")), (before[0] + 3, before[1] + 1))
        self.assertEqual([answer.status for answer in answers[:3]], [200] * 3)
        self.assert_error(answers[3], 429, "rate_limited", "bob")
        self.assertIn(int(answers[3].headers["Retry-After"]), range(1, 10001))
        # Another's rate is another's; and a reload gives nothing back.
        self.assertEqual(self.server.predict(seven(), headers=bearer(ALICE)).status, 200)
        self.reload()
        self.assertEqual(self.server.predict(seven(), headers=bearer(BOB)).status, 429)

    def test_a_rate_next_to_zero(self):
        """The seconds to wait, more than an int holds, are still a positive number."""
        with open(self.keys.name, encoding="ascii") as file:
            before = file.read()
        try:
            self.write(self.keys, before, line("carol", "carol-may-ask-once", "rate=1e-300"))
            self.reload()
            answers = [self.server.predict(seven(), headers=bearer("carol-may-ask-once")) for _ in range(2)]
            self.assertEqual([answer.status for answer in answers], [200, 429])
            self.assertEqual(answers[1].headers["Retry-After"], str(2**31 - 1))
        finally:
            self.write(self.keys, before)
            self.reload()

    def test_who_waits_as_told_is_answered(self):
        def refused():  # by one a second: several come within one, however slow the machine is
            answers = harness.together(8, lambda _: self.server.predict(seven(), headers=bearer(ERIN)))
            return [answer for answer in answers if answer.status == 429]
        answer = self.server.wait_for(refused, "a refusal")[-1]
        time.sleep(int(answer.headers["Retry-After"]))
        self.assertEqual(self.server.predict(seven(), headers=bearer(ERIN)).status, 200)

    def test_the_log_has_names_and_no_keys(self):
        self.server.predict(seven(), headers={**bearer(ALICE), "X-Request-Id": "named"})
        self.assertIn(" key=alice ", self.server.wait_log("id=named")[0])
        log = self.server.whole_log()
        for key in (ALICE, BOB, ROOT):
            self.assertNotIn(key, log)

    def reload(self, event="reloaded"):
        return self.server.signal_logged(signal.SIGHUP, f" {event} ")

    def test_admin_calls_leave_a_trace(self):
        """Admin calls are logged at every level but error, refused ones as well."""
        for key, level, status in ((ROOT, 0, 200), (ALICE, 1, 403), (ROOT, 1, 200)):
            body = f'{{"log_info":{"true" if level else "false"}}}'.encode()
            answer = self.server.request("POST", "/v2/logging", body, {**bearer(key), "X-Request-Id": f"a{level}{status}"})
            self.assertEqual(answer.status, status, answer.body)
        for name, key, status in (("a0200", "root", 200), ("a1403", "alice", 403), ("a1200", "root", 200)):
            self.server.wait_log(f" warn  admin client=127.0.0.1 key={key} id={name} method=POST path=/v2/logging status={status}\n")
        self.server.request("GET", "/v2/logging", headers={**bearer(ALICE), "X-Request-Id": "reads"})
        self.server.wait_log(" id=reads ")
        self.assertNotIn(" admin client=127.0.0.1 key=alice id=reads", self.server.whole_log())

    def test_reload(self):
        carol = "carol-key"
        counts = [self.server.metric(f'lensd_reloads_total{{result="{result}"}}') for result in ("ok", "failed")]
        self.assertEqual(self.server.predict(seven(), headers=bearer(carol)).status, 401)
        held = self.server.connect()
        head = (f"Authorization: Bearer {ALICE}", "Expect: 100-continue")
        body = len(seven())
        held.sendall(post("/predict", seven(), *head)[:-body])
        try:
            # Let in before the keys change: nothing else tells that the head was read.
            self.assertEqual(held.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            self.write(self.keys, line("carol", carol), line("bob", BOB, BOBS_RATE))
            self.reload()
            self.assertEqual(self.server.predict(seven(), headers=bearer(carol)).status, 200)
            self.assertEqual(self.server.predict(seven(), headers=bearer(ALICE)).status, 401)
            # Who was let in is answered, on the connection that was there.
            held.sendall(seven())
            self.assertEqual(read_answer(held)[0].status, 200)
            # A broken file changes nothing.
            self.write(self.keys, line("carol", carol), "dave its-plain-key\n")
            self.reload("not reloaded")
            self.server.wait_log("line 2: write sha256: and 64 hexadecimal digits after 'dave'")
            self.server.wait_metric('lensd_reloads_total{result="ok"}', counts[0] + 1)
            self.server.wait_metric('lensd_reloads_total{result="failed"}', counts[1] + 1)
            self.assertEqual(self.server.predict(seven(), headers=bearer(carol)).status, 200)
        finally:
            held.close()
            self.write(self.keys, line("alice", ALICE), line("bob", BOB, BOBS_RATE),
                       line("erin", ERIN, "rate=1 burst=1"))
            self.reload()


class Proxies(ServedCase):
    arguments = ("--trusted-proxies", "127.0.0.1,10.0.0.0/8")

    def client(self, forwarded, source="127.0.0.1"):
        """The client that the log names for a request with these headers, sent from an address."""
        with socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, (source, 0)) as connection:
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + f"p{self.count}".encode() + b"\r\n" +
                               b"".join(b"X-Forwarded-For: %s\r\n" % value for value in forwarded) + b"\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)
        line = self.server.wait_log(f" id=p{self.count} ")[0]
        self.count += 1
        return line.split(" client=")[1].split(" ")[0]

    def test_who_is_the_client(self):
        self.count = 0
        for forwarded, client in (([], "127.0.0.1"), ([b"192.0.2.7"], "192.0.2.7"), ([b"198.51.100.1, 192.0.2.7"], "192.0.2.7"),
                                  ([b"192.0.2.7 ,\t10.1.2.3"], "192.0.2.7"), ([b"10.1.2.3"], "10.1.2.3"),
                                  ([b"198.51.100.1", b"192.0.2.7"], "192.0.2.7"), ([b"2001:DB8::0:1"], "2001:db8::1"),
                                  ([b"192.0.2.7, ::ffff:10.1.2.3"], "192.0.2.7"), ([b"::ffff:192.0.2.7"], "192.0.2.7"),
                                  ([b"nonsense"], "127.0.0.1"), ([b"192.0.2.7, nonsense, 10.0.0.1"], "10.0.0.1"),
                                  ([b"192.0.2.7:4711"], "192.0.2.7"), ([b"[2001:db8::1]:4711"], "2001:db8::1"),
                                  ([b"[2001:db8::1]"], "2001:db8::1"), ([b"192.0.2.7, 10.1.2.3:80"], "192.0.2.7"),
                                  ([b"192.0.2.7:"], "127.0.0.1"), ([b"192.0.2.7:x"], "127.0.0.1"), ([b"[192.0.2.7]:1"], "127.0.0.1"),
                                  ([b"[2001:db8::1]4711"], "127.0.0.1"), ([b"[2001:db8::1"], "127.0.0.1"), ([b"[]:1"], "127.0.0.1"),
                                  ([b""], "127.0.0.1"), ([b","], "127.0.0.1"), ([b"1" * 5000], "127.0.0.1")):
            self.assertEqual(self.client(forwarded), client, forwarded)
        self.assertEqual(self.client([b"192.0.2.7"], "127.0.0.2"), "127.0.0.2")

    def test_invalid_lists(self):
        for text in ("x", "10.0.0.0/33", "::1/129", "10.0.0.0/", "10.0.0.0/-1", "1.2.3.4,,5.6.7.8"):
            done = run_lensd("serve", "--trusted-proxies", text, "--check")
            self.assertEqual(done.returncode, 2)
            self.assertIn("--trusted-proxies has '", done.stderr)


class ProxyProtocol(ServedCase):
    """A proxy names its client in bytes before the first request."""

    arguments = ("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--header-timeout", "3600", "--log-format", "json")
    SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
    V4 = SIGNATURE + b"\x21\x11\0\x0c" + bytes([192, 0, 2, 7, 192, 0, 2, 8, 0x12, 0x67, 0, 80])

    @classmethod
    def start(cls):
        cls.count = 0
        # The harness asks without a header, from an address that is not trusted.
        return OtherAddress(*cls.arguments)

    def client(self, data, source="127.0.0.1", pieces=1):
        """The client that the log names for a request after these bytes."""
        ProxyProtocol.count += 1
        mark = f"proxied-{self.count}"
        request = data + f"GET /v2 HTTP/1.1\r\nHost: x\r\nX-Request-Id: {mark}\r\n\r\n".encode()

        def is_answered():
            start = time.monotonic()
            with self.connect(source) as connection:
                try:
                    for i in range(pieces):
                        connection.sendall(request[i * len(request) // pieces:(i + 1) * len(request) // pieces])
                    self.assertEqual(read_answer(connection)[0].status, 200)
                except (AssertionError, OSError):
                    if time.monotonic() - start < 1:
                        raise
                    return False  # a busy machine sent it for longer than the 3 s that a header may take
            return True
        self.server.wait_for(is_answered, "a header that is sent in time")
        return self.server.wait_entries(id=mark)[0]["client"]

    def connect(self, source="127.0.0.1"):
        connection = socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, (source, 0))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def test_a_drain_does_not_wait_for_a_header(self):
        """Without a time limit for headers the drain waited until the end of --grace."""
        server = OtherAddress("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--header-timeout", "0",
                              "--grace", "60")
        with socket.create_connection(("127.0.0.1", server.port), harness.PATIENCE):
            server.predict(seven())  # so the one before has been accepted
            code, log = server.stop()
        self.assertEqual(code, 0, log)
        self.assertIn("all_answered=true", log)

    def test_both_versions(self):
        for data, client in ((b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n", "192.0.2.7"),
                             (b"PROXY TCP6 2001:db8::7 ::1 4711 80\r\n", "2001:db8::7"),
                             (b"PROXY TCP6 ::ffff:192.0.2.7 ::1 4711 80\r\n", "192.0.2.7"),
                             (b"PROXY UNKNOWN\r\n", "127.0.0.1"), (self.V4, "192.0.2.7"),
                             (self.SIGNATURE + b"\x20\0\0\0", "127.0.0.1")):
            for pieces in (1, 5, len(data)):
                self.assertEqual(self.client(data, pieces=pieces), client, data)

    def test_connections_without_a_header_are_closed(self):
        invalid = self.server.metric("lensd_proxy_headers_invalid_total")
        request = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        hostile = (b"", b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\n", b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 99999\r\n",
                   b"PROXY " + b"x" * 5000, self.SIGNATURE + b"\x21\x11\xff\xff" + bytes(4000), self.V4[:13] + b"\x51\0\0",
                   b"\0" * 16, b"\x16\x03\x01\x02\0")
        for data in hostile:
            with self.connect() as connection:
                connection.sendall(data + request)
                self.assertEqual(read_to_end(connection), b"", data)
        self.server.wait_metric("lensd_proxy_headers_invalid_total", invalid + len(hostile))

    def test_half_a_header_times_out(self):
        """After 3 s, whatever --header-timeout says."""
        with self.connect() as silent, self.connect() as half:
            half.sendall(self.V4[:20])
            self.assertEqual(read_to_end(half), b"")
            self.assertEqual(read_to_end(silent), b"")

    def test_the_server_may_be_late(self):
        """A header that came in time is read after a pause of the whole process."""
        server = OtherAddress("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--http-threads", "1")
        self.addCleanup(server.stop)
        with socket.create_connection(("127.0.0.1", server.port), harness.PATIENCE) as connection:
            self.assertEqual(server.get("/livez").status, 200)  # so the one before has been accepted
            with server.stopped():
                connection.sendall(self.V4 + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                time.sleep(3.1)
            self.assertEqual(read_answer(connection)[0].status, 200)

    def test_a_connection_may_be_silent_after_a_header(self):
        """The header's bytes do not start the time limit of a request, which is 2 s here."""
        server = OtherAddress("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--header-timeout", "2")
        self.addCleanup(server.stop)
        with socket.create_connection(("127.0.0.1", server.port), harness.PATIENCE) as connection:
            connection.sendall(self.V4)
            time.sleep(3)
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)

    def test_a_second_header_is_part_of_a_request(self):
        with self.connect() as connection:
            connection.sendall(2 * b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 80\r\n" + b"GET / HTTP/1.1\r\n\r\n")
            # libmicrohttpd 1.0 closes without an answer, since PROXY is no method.
            self.assertIn(read_to_end(connection)[8:13], (b" 400 ", b""))

    def test_only_trusted_proxies_can_name_a_client(self):
        self.assertEqual(self.client(b"", "127.0.0.2"), "127.0.0.2")
        with self.connect("127.0.0.2") as connection:
            connection.sendall(self.V4 + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertNotIn(b" 200 ", read_to_end(connection))

    def test_silent_connections_do_not_block_others(self):
        silent = [self.connect() for _ in range(300)]
        try:
            self.assertEqual(self.client(self.V4), "192.0.2.7")
        finally:
            for connection in silent:
                connection.close()

    def test_silent_connections_are_no_connections(self):
        """They filled --max-connections until --header-timeout."""
        server = OtherAddress("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--header-timeout", "3600",
                              "--max-connections", "8")
        self.addCleanup(server.stop)

        def connect(data):
            connection = socket.create_connection(("127.0.0.1", server.port), harness.PATIENCE)
            self.addCleanup(connection.close)
            connection.sendall(data)
            return connection
        silent = [connect(self.V4[:i % 2]) for i in range(40)]
        self.assertEqual(read_answer(connect(self.V4 + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))[0].status, 200)
        for connection in silent:
            self.assertEqual(read_to_end(connection), b"")
        # More headers at once than there is room for: idle connections give way.
        held = [connect(self.V4 + b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(60)]
        self.assertEqual([read_answer(connection)[0].status for connection in held], [200] * 60)

    def test_limits_count_the_client(self):
        server = OtherAddress("--trusted-proxies", "127.0.0.1", "--proxy-protocol", "--max-connections-per-address", "2")
        self.addCleanup(server.stop)
        held = []
        for i, status in enumerate((200, 200, 429, 200)):
            connection = socket.create_connection(("127.0.0.1", server.port), harness.PATIENCE)
            self.addCleanup(connection.close)
            held.append(connection)
            connection.sendall(b"PROXY TCP6 2001:db8:0:%d::%d ::1 1 1\r\n" % (i // 3, i) +
                               b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, status, i)

    def test_proxy_protocol_needs_trusted_proxies(self):
        done = run_lensd("serve", "--proxy-protocol", "--check")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--proxy-protocol needs --trusted-proxies", done.stderr)


class OtherAddress(Server):
    """Asked from 127.0.0.2."""

    def client(self, timeout):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout, source_address=("127.0.0.2", 0))


class Hosts(ServedCase):
    """A page whose name was made to resolve to 127.0.0.1 must not read what lensd answers."""
    arguments = ("--allowed-hosts", "lensd.example,photos.example")
    listed = 200

    def ask(self, host, path="/livez"):
        answer = self.server.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return int(answer.split()[1])

    def test_names(self):
        for host in ("127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "localhost", "LocalHost:1", "192.0.2.7:80"):
            self.assertEqual(self.ask(host), 200, host)
        for host in ("rebound.example", "rebound.example:8080", "127.0.0.1.example", "localhost.example", "[x]", "",
                     "lensd.example.net", "lensd", "127.0.0.1 x", "*"):
            for path in ("/livez", "/devices", "/"):
                self.assertEqual(self.ask(host, path), 403, host)
        for host in ("lensd.example", "photos.EXAMPLE:8080"):
            self.assertEqual(self.ask(host), self.listed, host)
        answer = self.server.request("POST", "/predict", seven(), {"Host": "rebound.example"})
        self.assert_error(answer, 403, "forbidden", "rebound.example", "--allowed-hosts")
        self.assertIn(b" 200 ", self.server.raw(b"GET /livez HTTP/1.0\r\n\r\n"))


class HostNames(unittest.TestCase):
    def test_invalid_lists(self):
        for text in ("http://lensd.example", "lensd.example:8080", "lensd example", "a.example,,b.example", ",", "*,a.example", "a.example,",
                     "*.example", "a.example/"):
            done = run_lensd("serve", "--allowed-hosts", text, "--check")
            self.assertEqual(done.returncode, 2, text)
            self.assertIn("--allowed-hosts has '", done.stderr)
        for text in ("*", "a.example", "a.example, b-2.example,C_3"):
            done = run_lensd("serve", "--port", "0", "--allowed-hosts", text, "--check")
            self.assertEqual(done.returncode, 0, done.stderr)


class HostsByDefault(Hosts):
    arguments, listed = (), 403

    @classmethod
    def start(cls):
        return Server(environment={"LENSD_ALLOWED_HOSTS": None})


class HostsForOtherMachines(ServedCase):
    arguments = ("--host", "0.0.0.0")

    @classmethod
    def start(cls):
        return Server(*cls.arguments, environment={"LENSD_ALLOWED_HOSTS": None})

    def test_any_name(self):
        self.assertEqual(self.server.request("GET", "/livez", headers={"Host": "vision.example"}).status, 200)


class Protected(WithKeys):
    extra = ("--protect-health",)

    @classmethod
    def setUpClass(cls):
        patched = Server.get
        cls.plain_get = patched
        Server.get = lambda self, path: self.request("GET", path, headers=bearer(ALICE))
        super().setUpClass()

    @classmethod
    def tearDownClass(cls):
        Server.get = cls.plain_get
        super().tearDownClass()

    def test_everything_needs_a_key(self):
        for path in ("/health", "/livez", "/readyz", "/ping", "/metrics", "/", "/devices"):
            self.assertEqual(self.server.request("GET", path).status, 401, path)
            self.assertEqual(self.server.get(path).status, 200, path)

    def test_lensd_health_has_a_key(self):
        port = str(self.server.port)
        with tempfile.NamedTemporaryFile("w", suffix=".key") as file:
            for text, code, out, err in (
                    (ALICE, 0, "ready", ""), (ALICE + "\r\n", 0, "ready", ""),
                    ("unknown" * 9, 1, "", "unauthorized"), ("", 1, "", "must hold one API key"),
                    (ALICE + "\n" + BOB, 1, "", "must hold one API key"),
                    ("k" * 256, 1, "", "unauthorized"), ("k" * 257, 1, "", "must hold one API key"),
                    ("k" * 9999, 1, "", "must hold one API key")):
                WithKeys.write(file, text)
                for arguments, variable in ((("--api-key-file", file.name), {}),
                                            ((), {"LENSD_API_KEY_FILE": file.name})):
                    ended = run_lensd("health", "--port", port, *arguments,
                                      environment=variable)
                    with self.subTest(text=text[:20], arguments=arguments):
                        self.assertEqual(ended.returncode, code)
                        self.assertIn(out, ended.stdout)
                        self.assertIn(err, ended.stderr)
                        self.assertNotIn(text.strip() or "no key", ended.stderr)
        self.assertEqual(run_lensd("health", "--port", port).returncode, 1)
        ended = run_lensd("health", "--port", port, "--api-key-file", "/nonexistent/keys")
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertIn("No such file", ended.stderr)


class AdminOnly(ServedCase):
    """An admin's key alone guards nothing else."""

    @classmethod
    def setUpClass(cls):
        cls.admins = tempfile.NamedTemporaryFile("w")
        WithKeys.write(cls.admins, line("root", ROOT))
        cls.arguments = ("--admin-key-file", cls.admins.name)
        super().setUpClass()

    def test_everybody_may_ask(self):
        self.assertEqual(self.server.predict(seven()).status, 200)
        self.assertEqual(self.server.predict(seven(), headers=bearer("unknown")).status, 200)


class KeyCommand(unittest.TestCase):
    def test_a_key_that_works(self):
        made = run_lensd("key", "carol", "--rate", "5", "--burst", "7")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertRegex(made.stdout, r"^carol sha256:[0-9a-f]{64} rate=5 burst=7\n$")
        key = made.stderr.split("\n\n    ")[1].split("\n")[0]
        self.assertNotIn(key, made.stdout)
        self.assertNotEqual(made.stdout, run_lensd("key", "carol", "--rate", "5", "--burst", "7").stdout)
        self.assertRegex(run_lensd("key", "carol", "--rate", "0.01").stdout, r" rate=0\.01\n$")
        with tempfile.NamedTemporaryFile("w") as keys:
            WithKeys.write(keys, made.stdout)
            server = Server("--api-keys", keys.name)
            try:
                self.assertEqual(server.predict(seven(), headers=bearer(key)).status, 200)
            finally:
                self.assertEqual(server.stop()[0], 0)

    def test_wrong_use(self):
        for arguments, words in ((("key",), ("one NAME",)), (("key", "a b"), ("'a b'", "letters")),
                                 (("key", "a", "b"), ("one NAME",)), (("key", "x" * 64), ("63",)),
                                 (("key", "a", "--burst", "3"), ("--rate",)), (("key", "a", "--rate", "0"), ("leave them out",)),
                                 (("key", "a", "--rate", "5x"), ("0.1",)), (("key", "a", "--rate", "5", "--burst", ".5"), ("at least 1",))):
            made = run_lensd(*arguments)
            self.assertEqual(made.returncode, 2)
            for word in words:
                self.assertIn(word, made.stderr)


class BadFiles(unittest.TestCase):
    def test_sentences(self):
        good = line("alice", ALICE)
        cases = (("", ("has no key", "lensd key NAME")),
                 ("alice secret\n", ("line 1", "sha256:", "never the key itself")),
                 ("alice\n", ("line 1", "sha256:")),
                 ("al/ice sha256:00\n", ("line 1", "letters", "lensd key NAME")),
                 (good + good, ("line 2", "'alice' is used twice")),
                 (good + line("bob", ALICE), ("'alice' and 'bob' have the same key",)),
                 (line("alice", ALICE, "rate=0"), ("'rate=0'", "rate=N")),
                 (line("alice", ALICE, "rate=x"), ("'rate=x'",)),
                 (line("alice", ALICE, "burst=3"), ("no rate",)),
                 ("#" * 2000 + "\n", ("has no key",)),
                 (good + "\0" + good, ("contains a NUL byte",)),
                 (good + "\xff\n", ("line 2",)))
        for text, words in cases:
            with self.subTest(text=text[:40]), tempfile.NamedTemporaryFile("w", encoding="latin-1") as keys:
                WithKeys.write(keys, text)
                ended = run_lensd("serve", "--port", "0", "--api-keys", keys.name)
                self.assertEqual(ended.returncode, 2, ended.stderr)
                self.assertEqual(len(ended.stderr.splitlines()), 1, ended.stderr)
                for word in (keys.name, *words):
                    self.assertIn(word, ended.stderr)
        ended = run_lensd("serve", "--port", "0", "--api-keys", "/no/such/file")
        self.assertIn("--api-keys '/no/such/file': No such file", ended.stderr)

    def test_pipes_are_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            for option in ("--api-keys", "--admin-key-file", "--config"):
                with self.subTest(option=option):
                    ended = run_lensd("serve", "--port", "0", option, pipe)
                    self.assertEqual(ended.returncode, 2, ended.stderr)
                    self.assertIn("not a regular file", ended.stderr)
            ended = run_lensd("health", "--api-key-file", pipe)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn("not a regular file", ended.stderr)


if __name__ == "__main__":
    unittest.main()
