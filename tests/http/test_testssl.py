"""What testssl finds in our TLS; it takes a minute."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest

from test_tls import OPENSSL, TlsServer, make_certificate


@unittest.skipUnless(OPENSSL and shutil.which("testssl"), "openssl or testssl.sh is not installed")
class TestSsl(unittest.TestCase):
    def test_findings(self):
        """None above low in protocols, kinds of ciphers, and forward secrecy."""
        with tempfile.TemporaryDirectory(prefix="lensd-testssl-") as folder:
            server = TlsServer(*make_certificate(folder, "testssl", kind=("-newkey", "rsa:2048")))
            report = os.path.join(folder, "report.json")
            try:
                subprocess.run(("testssl", "--quiet", "--color", "0", "--warnings", "off", "--ip", "one", "-p", "-s",
                                "-f", "--jsonfile", report, f"127.0.0.1:{server.port}"), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=250)
                with open(report) as file:
                    found = {entry["id"]: entry for entry in json.load(file)}
            finally:
                self.assertEqual(server.stop()[0], 0)
        for version in ("TLS1_2", "TLS1_3", "SSLv2", "SSLv3"):
            self.assertEqual(found[version]["severity"], "OK", found[version])
        for version in ("TLS1", "TLS1_1"):
            self.assertIn("not offered", found[version]["finding"])
        self.assertIn("offered", (found.get("FS") or found["PFS"])["finding"])  # its name has changed
        bad = [entry for entry in found.values() if entry["severity"] in ("MEDIUM", "HIGH", "CRITICAL")]
        self.assertEqual(bad, [])


if __name__ == "__main__":
    unittest.main()
