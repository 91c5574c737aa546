"""Tools that people use against servers, run as they are: curl, openssl, h2load, wrk, slowhttptest.

Each skips with a message where it is not installed.
"""

import os
import re
import shutil
import subprocess
import tempfile
import unittest

import harness
from harness import DIGITS, ServedCase, Server
from test_tls import OPENSSL, RSA, TlsCase, TlsServer, make_certificate

SEVEN = os.path.join(DIGITS, "drawn", "7_canvas.png")


def need(tool):
    return unittest.skipUnless(shutil.which(tool), f"{tool} is not installed")


def run(*command, timeout=harness.PATIENCE, environment=None):
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=timeout, env={**os.environ, **(environment or {})})


@need("curl")
class Curl(ServedCase):
    """The status matrix as curl sees it; what the README shows works."""

    arguments = ("--max-body", "2M")

    def curl(self, *arguments, path="/predict"):
        done = run("curl", "-sS", "-i", "--max-time", "120", *arguments, f"http://127.0.0.1:{self.server.port}{path}")
        return done.returncode, done.stdout

    def test_the_readme(self):
        for arguments in (("--data-binary", f"@{SEVEN}"), ("-F", f"image=@{SEVEN}"), ("-T", SEVEN, "-X", "POST"),
                          ("--http1.0", "--data-binary", f"@{SEVEN}"),
                          ("-H", "Transfer-Encoding: chunked", "--data-binary", f"@{SEVEN}")):
            code, said = self.curl(*arguments)
            self.assertEqual(code, 0, said)
            self.assertIn(b'"label":"7"', said, arguments)

    def test_compressed_both_ways(self):
        code, said = self.curl("--compressed", path="/metrics")
        self.assertEqual(code, 0)
        self.assertIn(b"Content-Encoding: gzip", said)
        self.assertIn(b"# TYPE lensd_http_requests_total counter", said)

    def test_big_bodies_are_refused_with_the_reason(self):
        with tempfile.NamedTemporaryFile() as big:
            big.write(bytes(40 << 20))
            big.flush()
            for arguments in (("--data-binary", f"@{big.name}"), ("-F", f"image=@{big.name}"),
                              ("-H", "Expect:", "--data-binary", f"@{big.name}"),
                              ("-H", "Transfer-Encoding: chunked", "-H", "Expect:", "--data-binary", f"@{big.name}")):
                code, said = self.curl(*arguments)
                # 55, 56: curl went on sending after it had the answer.
                self.assertIn(code, (0, 55, 56), said)
                self.assertIn(b" 413 ", said, arguments)
                self.assertIn(b"--max-body", said, arguments)

    def test_statuses(self):
        for arguments, path, status in ((("-X", "GET"), "/predict", 405), (("-X", "POST"), "/predict", 411),
                                        (("-d", "x"), "/nowhere", 404), (("-d", "{"), "/predict", 400),
                                        (("-d", "plain"), "/predict", 415), (("-I",), "/health", 200),
                                        (("-X", "OPTIONS"), "/predict", 204),
                                        (("-H", "Accept: text/html", "-d", "x"), "/predict", 406),
                                        (("-H", "Content-Encoding: br", "-d", "x"), "/predict", 415),
                                        (("-H", "Expect: tea", "-d", "x"), "/predict", 417),
                                        (("-H", "X: " + "x" * 20000,), "/health", 431),
                                        (("-d", "{}"), "/v2/logging", 403)):
            code, said = self.curl(*arguments, path=path)
            self.assertEqual((code, int(said.split(b" ")[1])), (0, status), (arguments, said))


class Load(ServedCase):
    """Load generators: every answer is a 2xx."""

    @need("h2load")
    def test_h2load(self):
        done = run("h2load", "--h1", "-n", "400", "-c", "16", "-d", SEVEN, f"http://127.0.0.1:{self.server.port}/predict")
        text = done.stdout.decode()
        self.assertRegex(text, r"400 succeeded, 0 failed, 0 errored, 0 timeout", text)
        self.assertIn("status codes: 400 2xx, 0 3xx, 0 4xx, 0 5xx", text)

    @need("wrk")
    def test_wrk(self):
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
            script.write(f'local file = io.open("{SEVEN}", "rb")\nwrk.method = "POST"\nwrk.body = file:read("*a")\n')
            script.flush()
            done = run("wrk", "-t1", "-c8", "-d1s", "--timeout", "100s", "-s", script.name, f"http://127.0.0.1:{self.server.port}/predict")
        text = done.stdout.decode()
        self.assertGreater(int(re.search(r"(\d+) requests in", text).group(1)), 0, text)
        self.assertNotIn("Non-2xx", text)
        self.assertNotIn("Socket errors", text)


@need("slowhttptest")
class Slow(unittest.TestCase):
    """A hundred slow clients: others are served meanwhile, the slow ones are sent away."""

    def attack(self, server, url, *arguments):
        command = ("slowhttptest", "-c", "100", "-r", "200", "-l", "240", "-i", "1", "-p", "2", "-u", url, *arguments)
        with open(os.devnull, "wb") as null:
            attack = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=null, stderr=null)
        try:
            server.wait_for(lambda: server.metric("lensd_http_timeouts_total") > 10, "slow clients")
            for _ in range(10):
                self.assertEqual(server.predict(harness.seven()).status, 200)
            server.wait_for(lambda: server.metric("lensd_http_timeouts_total") > 60, "an end of most of them")
            server.wait_for(lambda: server.metric("lensd_http_connections") < 10, "an end of the slow ones")
        finally:
            attack.kill()
            attack.wait(harness.PATIENCE)

    def serve(self, *arguments):
        server = Server("--header-timeout", "2", "--body-timeout", "2", *arguments)
        self.addCleanup(lambda: self.assertEqual(server.stop()[0], 0))
        return server

    def test_slow_headers(self):
        server = self.serve()
        self.attack(server, f"http://127.0.0.1:{server.port}/livez", "-H")

    def test_slow_bodies(self):
        server = self.serve()
        self.attack(server, f"http://127.0.0.1:{server.port}/predict", "-B")

    @unittest.skipUnless(OPENSSL, "openssl is not installed")
    def test_slow_headers_under_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            cert, key = make_certificate(folder, "slow")
            server = TlsServer(cert, key, "--header-timeout", "2", "--body-timeout", "2")
            try:
                self.attack(server, f"https://127.0.0.1:{server.port}/livez", "-H")
            finally:
                self.assertEqual(server.stop()[0], 0)


@unittest.skipUnless(OPENSSL, "openssl is not installed")
class Tls(TlsCase):
    kind = RSA

    def s_client(self, *arguments):
        return run(OPENSSL, "s_client", "-connect", f"127.0.0.1:{self.server.port}", "-CAfile", self.cert,
                   *arguments).stdout.decode(errors="replace")

    def test_openssl_s_client(self):
        for version, cipher in (("-tls1_2", "ECDHE-RSA-AES256-GCM-SHA384"), ("-tls1_3", "TLS_AES_256_GCM_SHA384")):
            said = self.s_client(version)
            self.assertIn("Verify return code: 0 (ok)", said)
            self.assertIn(cipher, said)
        for old in ("-tls1", "-tls1_1"):
            self.assertIn("Cipher is (NONE)", self.s_client(old, "-cipher", "ALL:@SECLEVEL=0"))
        for weak in ("AES128-SHA", "ECDHE-RSA-AES128-SHA", "AES256-GCM-SHA384", "NULL-SHA256:@SECLEVEL=0"):
            self.assertIn("Cipher is (NONE)", self.s_client("-tls1_2", "-cipher", weak), weak)

    @need("curl")
    def test_curl(self):
        done = run("curl", "-sS", "--cacert", self.cert, "--data-binary", f"@{SEVEN}",
                   f"https://127.0.0.1:{self.server.port}/predict")
        self.assertIn(b'"label":"7"', done.stdout)
        done = run("curl", "-sS", f"https://127.0.0.1:{self.server.port}/livez")
        self.assertNotEqual(done.returncode, 0, "nobody vouches for this certificate")

    @need("h2load")
    def test_h2load(self):
        done = run("h2load", "--h1", "-n", "100", "-c", "8", "-d", SEVEN, f"https://127.0.0.1:{self.server.port}/predict")
        self.assertIn("100 succeeded, 0 failed", done.stdout.decode())


if __name__ == "__main__":
    unittest.main()
