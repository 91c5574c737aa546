"""What devices give: memory and its limit."""

import os
import tempfile
import unittest

import small_onnx
from harness import Server, flat_png, run_lensd


class DevicesCase(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            code, log = server.stop()
            self.assertEqual(code, 0, log[-3000:])
        self.folder.cleanup()

    def serve(self, *arguments):
        server = Server(*arguments)
        self.servers.append(server)
        return server

    def model(self, name="small", side=64):
        path = os.path.join(self.folder.name, name + ".onnx")
        small_onnx.convolutions(path, 2, side=side, channels=8)
        return path


def cpu(server):
    return server.get("/devices").json()["devices"][0]


def sizes(model):
    return [batch["size"] for batch in model["batches"]]


class Memory(DevicesCase):
    def test_batches_are_as_large_as_the_memory_allows(self):
        path = self.model()
        free = cpu(self.serve(path, "--workers", "1"))
        self.assertEqual(sizes(free["models"][0]), [1, 2, 4, 8])
        used = free["memory"]["used_by_lensd_bytes"]
        self.assertLess(used, free["memory"]["limit_bytes"])

        server = self.serve(path, "--workers", "1", "--memory", str(used - 1))
        tight = cpu(server)
        self.assertEqual(sizes(tight["models"][0]), [1, 2, 4])
        self.assertIn("batches of at most 4", tight["models"][0]["note"])
        self.assertEqual(tight["memory"]["limit_bytes"], used - 1)
        self.assertLess(tight["memory"]["used_by_lensd_bytes"], used)
        self.assertEqual(server.predict(flat_png(9)).status, 200)

        exact = cpu(self.serve(path, "--workers", "1", "--memory", f"cpu={used}"))
        self.assertEqual(sizes(exact["models"][0]), [1, 2, 4, 8])

    def test_what_does_not_fit_says_what_is_missing(self):
        path = self.model()
        image = os.path.join(self.folder.name, "image.png")
        with open(image, "wb") as file:
            file.write(flat_png(9))
        used = cpu(self.serve(path, "--workers", "1"))["memory"]["used_by_lensd_bytes"]
        ended = run_lensd("predict", path, image, "--workers", "1", "--max-batch", "8",
                          "--memory", str(used - 1))
        self.assertEqual(ended.returncode, 2, ended.stdout)
        for words in ("batch of 8", "1 bytes are missing", "--max-batch 4", "--memory"):
            self.assertIn(words, ended.stderr)
        ended = run_lensd("predict", path, image, "--memory", "4K")
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("missing; raise --memory", ended.stderr)

    def test_limits_that_are_none(self):
        for text, words in (("lots", "must be bytes"), ("cuda:7=1G", "none of the devices"),
                            ("cpu=", "must be bytes"), ("-1", "must be bytes"),
                            ("cpu=1G,", "must be bytes")):
            ended = run_lensd("serve", "--device", "cpu", "--memory", text)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(words, ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
