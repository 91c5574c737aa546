"""HTTPS: what is spoken, limits and refusals as without it, certificates that come and go."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import warnings

import harness
from harness import Server, drip, post, read_answer, read_to_end, run_lensd, seven, together

OPENSSL = shutil.which("openssl")


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA = ("-newkey", "rsa:2048")


def make_certificate(folder, name, days=365, kind=EC):
    cert, key = os.path.join(folder, name + ".pem"), os.path.join(folder, name + ".key")
    subprocess.run([OPENSSL, "req", "-x509", *kind, "-nodes", "-keyout", key, "-out", cert, "-days", str(days),
                    "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    # Python 3.13 asks it of a certificate that signs others.
                    "-addext", "keyUsage=digitalSignature,keyEncipherment,keyCertSign"],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=harness.PATIENCE)
    os.chmod(key, 0o600)
    return cert, key


class TlsServer(Server):
    """A Server whose clients trust one certificate."""

    def __init__(self, cert, key, *arguments, **options):
        self.trusted = cert
        super().__init__("--tls-cert", cert, "--tls-key", key, *arguments, **options)

    def context(self, minimum=None, maximum=None):
        context = ssl.create_default_context(cafile=self.trusted)
        if minimum:
            context.minimum_version = minimum
        if maximum:
            context.maximum_version = maximum
        return context

    def client(self, timeout):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.context())

    def plain(self, timeout=harness.PATIENCE):
        return super().connect(timeout)

    def connect(self, timeout=harness.PATIENCE, context=None):
        return (context or self.context()).wrap_socket(self.plain(timeout), server_hostname="127.0.0.1")


def serial_shown(server, cert):
    """The certificate that a new connection gets, as DER; `cert` is the one that is trusted."""
    with server.connect(context=ssl.create_default_context(cafile=cert)) as connection:
        return connection.getpeercert(binary_form=True)


def der(cert):
    return ssl.PEM_cert_to_DER_cert(harness.read(cert).decode())


@unittest.skipUnless(OPENSSL, "openssl is not installed")
class TlsCase(harness.ServedCase):
    kind = EC

    @classmethod
    def start(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.cert, cls.key = make_certificate(cls.folder, "localhost", kind=cls.kind)
        return TlsServer(cls.cert, cls.key, *cls.arguments)


class Talk(TlsCase):
    arguments = ("--max-body", "3M")

    def test_versions(self):
        for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            with self.server.connect(context=self.server.context(version, version)) as connection:
                self.assertEqual(connection.version(), name)
                connection.sendall(post("/predict", seven()))
                self.assertEqual(read_answer(connection)[0].status, 200)
                self.assertIn("GCM", connection.cipher()[0])

    def test_old_versions_are_refused(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
                context = self.server.context(version, version)
                context.set_ciphers("ALL:@SECLEVEL=0")
                with self.assertRaises((ssl.SSLError, ConnectionError)):
                    self.server.connect(context=context).close()

    def test_a_client_that_speaks_plain_http(self):
        with self.server.plain() as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertNotIn(b"200 OK", read_to_end(connection))

    def test_many_at_once_and_pipelined(self):
        def client(_):
            with self.server.connect() as connection:
                connection.sendall(post("/predict", seven()) * 8)
                rest = b""
                for _ in range(8):
                    answer, rest = read_answer(connection, rest)
                    self.assertEqual(answer.json()["predictions"][0]["label"], "7")
                return rest
        self.assertEqual(together(16, client), [b""] * 16)

    def test_a_large_body(self):
        answer = self.server.predict(seven() + bytes(2900000))
        self.assertEqual(answer.status, 200)

    def test_the_refusal_reaches_a_client_that_is_still_sending(self):
        for _ in range(10):
            with self.server.connect() as connection:
                connection.sendall(post("/predict", bytes(4000000)))
                answer, _ = read_answer(connection)
                self.assert_error(answer, 413, "too_large", "--max-body")
                self.assertEqual(read_to_end(connection), b"")

    def test_a_chunked_body_is_bounded_as_it_grows(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(60):
                connection.sendall(b"10000\r\n" + bytes(65536) + b"\r\n")
            answer, _ = read_answer(connection)
            self.assert_error(answer, 413, "too_large")

    def test_expect_continue(self):
        with self.server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n"
                               b"Expect: 100-continue\r\n\r\n")
            self.assert_error(read_answer(connection)[0], 413, "too_large")

    def test_noise_instead_of_a_handshake(self):
        for seed in range(20):
            with self.server.plain() as connection:
                try:
                    connection.sendall(bytes((seed * 37 + i * i * 13) & 0xFF for i in range(600)))
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    continue  # it has had enough already
                read_to_end(connection)

    def test_health_command(self):
        asked = run_lensd("health", "--port", str(self.server.port))
        self.assertEqual((asked.returncode, asked.stdout), (1, ""))
        self.assertIn("--tls-cert FILE", asked.stderr)
        asked = run_lensd("health", "--port", str(self.server.port), "--tls-cert", self.cert)
        self.assertEqual((asked.returncode, asked.stdout), (0, '{"status":"ready"}\n'), asked.stderr)


class Late(TlsCase):
    arguments = ("--header-timeout", "2", "--body-timeout", "2")

    def test_what_drips_or_stops_is_cut_off(self):
        body = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
        header = b"GET /livez HTTP/1.1\r\nX: "

        def said_to(case):
            sent, drips = case
            with self.server.connect() as connection:
                connection.sendall(sent)
                return drip(connection, [b"x"]) if drips else read_to_end(connection)
        cases = [(sent, drips) for sent in (body, header) for drips in (True, False)]
        for (sent, _), said in zip(cases, together(len(cases), lambda i: said_to(cases[i]))):
            self.assertIn(b"HTTP/1.1 408 ", said)
            self.assertIn(b" within 2 s", said)
            self.assertIn(b"--body-timeout" if sent == body else b"--header-timeout", said)

    def test_a_handshake_is_no_request(self):
        """A handshake that stops, or one that has ended, does not count as a request with late headers."""
        self.server.wait_metric("lensd_http_connections", 1)  # after which no line of another test comes
        timeouts = self.server.metric("lensd_http_timeouts_total")
        late = self.server.metric("lensd_tls_handshake_timeouts_total")
        lines = self.server.whole_log().count("status=408")
        with self.server.connect() as idle, self.server.plain() as one, self.server.plain() as other:
            for connection in (one, other):
                connection.sendall(b"\x16\x03\x01")
            for connection in (one, other):
                self.assertEqual(read_to_end(connection), b"")
            self.server.wait_metric("lensd_tls_handshake_timeouts_total", late + 2)
            time.sleep(1)
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(idle)[0].status, 200)
        self.server.wait_metric("lensd_http_connections", 1)
        self.assertEqual(self.server.metric("lensd_http_timeouts_total"), timeouts)
        self.assertEqual(self.server.whole_log().count("status=408"), lines)

    def test_a_kept_connection_is_no_late_request(self):
        """A request that comes right behind the handshake, and silence after it for longer than --header-timeout."""
        get = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
        timeouts = self.server.metric("lensd_http_timeouts_total")
        held = []
        for _ in range(8):  # most are done before the watcher looks
            held.append(self.server.connect())
            self.addCleanup(held[-1].close)
            held[-1].sendall(get)
            self.assertEqual(read_answer(held[-1])[0].status, 200)
        time.sleep(2.5)
        for connection in held:
            connection.sendall(get)
            self.assertEqual(read_answer(connection)[0].status, 200)
        self.assertEqual(self.server.metric("lensd_http_timeouts_total"), timeouts)

    def test_a_handshake_that_drips_is_cut_off(self):
        begun = (b"\x16", b"\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + b"r" * 4000)

        def cut_off(i):
            with self.server.plain() as connection:
                connection.sendall(begun[0])
                drip(connection, [bytes([byte]) for byte in begun[1]] if i else [b"\x03"])
        together(2, cut_off)


@unittest.skipIf(harness.SANITIZED, "a sanitizer keeps freed memory")
class IdleConnections(TlsCase):
    arguments = ("--idle-timeout", "3600")

    def test_they_take_little_memory(self):
        def resident():
            lines = harness.read(f"/proc/{self.server.process.pid}/status").decode().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024

        def open_some(count):
            for _ in range(count):
                connection = self.server.connect(context=context)
                self.addCleanup(connection.close)
                connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                self.assertEqual(read_answer(connection)[0].status, 200)
        context = self.server.context()
        open_some(20)
        before = resident()
        open_some(200)
        self.server.wait_for(lambda: resident() < before + 200 * 20_000, "the memory of connections to be given back")


class ProxyProtocol(TlsCase):
    arguments = ("--trusted-proxies", "127.0.0.2", "--proxy-protocol", "--header-timeout", "2")

    def test_a_header_before_the_handshake(self):
        """Its bytes do not count as a request: a silent connection is idle, not late."""
        plain = socket.create_connection(("127.0.0.1", self.server.port), harness.PATIENCE, ("127.0.0.2", 0))
        plain.sendall(b"PROXY TCP4 192.0.2.7 192.0.2.8 4711 443\r\n")
        with self.server.context().wrap_socket(plain, server_hostname="localhost") as connection:
            for pause in (2.5, 2.5, 0):
                connection.sendall(post("/predict", seven()))
                self.assertEqual(read_answer(connection)[0].status, 200)
                time.sleep(pause)
        self.server.wait_log("client=192.0.2.7")
        self.assertEqual(self.server.metric("lensd_http_timeouts_total"), 0)
        # Others speak TLS at once.
        self.assertEqual(self.server.predict(seven()).status, 200)


class PerAddress(TlsCase):
    arguments = ("--max-connections-per-address", "3")

    def test_one_too_many(self):
        held = [self.server.connect() for _ in range(3)]
        try:
            with self.assertRaises((ssl.SSLError, OSError)):
                self.server.connect().close()
        finally:
            for connection in held:
                connection.close()
        self.server.wait_for(self.server.answers, "an end of the others")


class Reload(TlsCase):
    def reload(self, event):
        return self.server.signal_logged(signal.SIGHUP, f" {event} ")

    def test_a_new_certificate(self):
        old = harness.read(self.cert), harness.read(self.key)
        cert, key = make_certificate(self.folder, "renewed", kind=RSA)
        self.assertEqual(serial_shown(self.server, self.cert), der(self.cert))
        with self.server.connect() as held:
            held.sendall(post("/predict", seven())[:-1])
            self.server.wait_for(lambda: self.server.metric("lensd_http_upload_bytes") > 0, "the upload")
            shutil.copy(cert, self.cert)
            shutil.copy(key, self.key)
            self.reload("reloaded")
            self.assertEqual(serial_shown(self.server, cert), der(cert))
            held.sendall(seven()[-1:])
            self.assertEqual(read_answer(held)[0].status, 200)
            held.sendall(post("/predict", seven()))
            self.assertEqual(read_answer(held)[0].status, 200)
        # A key that is another's: the certificate stays.
        with open(self.key, "wb") as file:
            file.write(old[1])
        self.reload("not reloaded")
        self.server.wait_log("is not the key of the certificate")
        self.assertEqual(serial_shown(self.server, cert), der(cert))
        with open(self.cert, "wb") as file:
            file.write(old[0])
        self.reload("reloaded")
        self.assertEqual(serial_shown(self.server, self.cert), der(self.cert))

    def test_metric(self):
        expires = self.server.metric("lensd_tls_certificate_expires_seconds")
        self.assertAlmostEqual(expires, time.time() + 365 * 86400, delta=3 * 86400)


@unittest.skipUnless(OPENSSL, "openssl is not installed")
class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-tls-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_sentences(self):
        cert, key = make_certificate(self.folder, "one")
        _, other = make_certificate(self.folder, "two")
        locked = os.path.join(self.folder, "locked.key")
        subprocess.run([OPENSSL, "pkey", "-in", key, "-aes128", "-passout", "pass:x", "-out", locked], check=True,
                       timeout=harness.PATIENCE)
        empty, text = self.file("empty", ""), self.file("text", "no PEM\n")
        pipe = os.path.join(self.folder, "pipe")
        os.mkfifo(pipe)
        cases = (((cert, other), ("two.key", "is not the key of the certificate")),
                 ((cert, locked), ("locked.key", "is encrypted", "openssl pkey")),
                 ((empty, key), ("--tls-cert", "is empty")),
                 ((text, key), ("--tls-cert", "no certificate in PEM format")),
                 ((cert, text), ("--tls-key", "no private key in PEM format")),
                 ((key, cert), ("--tls-cert", "no certificate in PEM format")),
                 (("/no/such", key), ("--tls-cert '/no/such'", "No such file")),
                 ((cert, "/no/such"), ("--tls-key '/no/such'", "No such file")),
                 ((cert, pipe), (f"--tls-key '{pipe}'", "not a regular file")))
        for (one, two), words in cases:
            with self.subTest(words=words):
                ended = run_lensd("serve", "--port", "0", "--tls-cert", one, "--tls-key", two)
                self.assertEqual((ended.returncode, len(ended.stderr.splitlines())), (2, 1), ended.stderr)
                for word in words:
                    self.assertIn(word, ended.stderr)
        ended = run_lensd("serve", "--tls-cert", cert)
        self.assertIn("--tls-cert and --tls-key belong together; give --tls-key as well", ended.stderr)

    def warned(self, cert, key):
        server = Server("--tls-cert", cert, "--tls-key", key, wait_ready=False)
        try:
            server.wait_log(" ready ")
        finally:
            code, log = server.stop()
        self.assertEqual(code, 0, log)
        return log

    def dated(self, name, start, end):
        """A certificate of another time, which only `openssl ca` makes."""
        cert, key = os.path.join(self.folder, name + ".pem"), os.path.join(self.folder, name + ".key")
        config = self.file(name + ".cnf", f"""[ca]\ndefault_ca=d\n[d]\ndatabase={self.file(name + ".db", "")}
new_certs_dir={self.folder}\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied
[req]\ndistinguished_name=n\n[n]\n""")
        request = os.path.join(self.folder, name + ".csr")
        for command in (("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key,
                         "-out", request, "-subj", f"/CN={name}", "-config", config),
                        ("ca", "-batch", "-notext", "-selfsign", "-config", config, "-in", request, "-keyfile", key,
                         "-startdate", start, "-enddate", end, "-out", cert)):
            subprocess.run([OPENSSL, *command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           timeout=harness.PATIENCE)
        os.chmod(key, 0o600)
        return cert, key

    def test_warnings(self):
        self.assertIn("will expire on", self.warned(*make_certificate(self.folder, "soon", days=3)))
        self.assertIn("expired on", self.warned(*self.dated("expired", "20200101000000Z", "20210101000000Z")))
        self.assertIn("not valid before", self.warned(*self.dated("early", "20900101000000Z", "20910101000000Z")))
        cert, key = make_certificate(self.folder, "open")
        os.chmod(key, 0o644)
        self.assertIn("every user of this machine can read", self.warned(cert, key))

    def test_a_broken_certificate_brings_no_warning_of_the_one_in_use(self):
        cert, key = make_certificate(self.folder, "soon", days=3)
        server = Server("--tls-cert", cert, "--tls-key", key, wait_ready=False)
        try:
            server.wait_log(" ready ")
            self.file("soon.pem", "no PEM\n")
            self.assertEqual(cert, os.path.join(self.folder, "soon.pem"))
            server.signal_logged(signal.SIGHUP, " not reloaded ")
        finally:
            code, log = server.stop()
        self.assertEqual((code, log.count("will expire on")), (0, 1), log)

    def test_a_chain_in_the_wrong_order(self):
        root, root_key = make_certificate(self.folder, "root")
        request, key = os.path.join(self.folder, "leaf.csr"), os.path.join(self.folder, "leaf.key")
        leaf = os.path.join(self.folder, "leaf.pem")
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": harness.PATIENCE}
        subprocess.run([OPENSSL, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj",
                        "/CN=leaf"], **quiet)
        extensions = self.file("ext", "subjectAltName=IP:127.0.0.1\n")
        subprocess.run([OPENSSL, "x509", "-req", "-in", request, "-CA", root, "-CAkey", root_key, "-CAcreateserial",
                        "-extfile", extensions, "-days", "90", "-out", leaf], **quiet)
        chain = self.file("chain.pem", harness.read(leaf).decode() + harness.read(root).decode())
        server = TlsServer(chain, key)
        try:
            server.trusted = root
            self.assertEqual(server.predict(seven()).status, 200)
        finally:
            self.assertEqual(server.stop()[0], 0)


if __name__ == "__main__":
    unittest.main()
