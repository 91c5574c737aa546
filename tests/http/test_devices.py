"""What devices give: memory and its limit; several lanes."""

import unittest

import small_onnx
from harness import FolderCase, flat_png, multipart, run_lensd, together


# What else is chosen by measured times would take other memory from run to run.
PLAIN = ("--workers", "1", "--threads", "1", "--precision", "fp32")


class DevicesCase(FolderCase):
    def serve(self, *arguments):
        server = super().serve(*arguments)
        self.addCleanup(self.assert_ended, server)
        return server

    def plain_model(self):
        """Without convolutions, whose kernels, and with them their memory, follow measured times."""
        path = self.path("plain.onnx")
        small_onnx.not_finite_when_dark(path, side=64)
        return path

    def model(self, name="small", side=64):
        path = self.path(name + ".onnx")
        small_onnx.convolutions(path, 2, side=side, channels=8)
        return path


def cpu(server):
    return server.get("/devices").json()["devices"][0]


def sizes(model):
    return [batch["size"] for batch in model["batches"]]


class Memory(DevicesCase):
    def test_batches_are_as_large_as_the_memory_allows(self):
        path = self.plain_model()
        unlimited = self.serve(path, *PLAIN)
        self.assertEqual(sizes(cpu(unlimited)["models"][0]), [1, 2, 4, 8])
        memory = cpu(unlimited)["memory"]
        used = memory["used_by_lensd_bytes"]
        self.assertLess(used, memory["limit_bytes"])
        server = self.serve(path, *PLAIN, "--memory", str(used - 1))
        tight = cpu(server)
        self.assertEqual(sizes(tight["models"][0]), [1, 2, 4])
        self.assertIn("batches have at most 4 images", tight["models"][0]["note"])
        server.wait_for(lambda: server.get("/v2/models/plain/config").json()["max_batch_size"] == 4, "the config of what fits")
        self.assertEqual(server.get("/v2/models/plain").json()["inputs"][0]["shape"][0], -1)
        self.assertEqual(tight["memory"]["limit_bytes"], used - 1)
        self.assertLess(tight["memory"]["used_by_lensd_bytes"], used)
        self.assertEqual(server.predict(flat_png(255)).status, 200)

        exact = cpu(self.serve(path, *PLAIN, "--memory", f"cpu={used}"))
        self.assertEqual(sizes(exact["models"][0]), [1, 2, 4, 8])

    def test_what_does_not_fit_says_what_is_missing(self):
        path = self.plain_model()
        image = self.path("image.png")
        with open(image, "wb") as file:
            file.write(flat_png(9))
        used = cpu(self.serve(path, *PLAIN))["memory"]["used_by_lensd_bytes"]
        ended = run_lensd("predict", path, image, *PLAIN, "--max-batch", "8", "--memory", str(used - 1))
        self.assertEqual(ended.returncode, 1, ended.stdout)
        for words in ("batch of 8", "1 bytes are missing", "--max-batch 4", "--memory"):
            self.assertIn(words, ended.stderr)
        ended = run_lensd("predict", path, image, "--memory", "4K")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("missing; raise --memory", ended.stderr)

    def test_limits_that_are_none(self):
        for text, words in (("lots", "must be bytes"), ("gpu:7=1G", "which is not a device"),
                            ("cpu=", "must be bytes"), ("-1", "must be bytes"),
                            ("cpu=1G,", "must be bytes")):
            ended = run_lensd("serve", "--device", "cpu", "--memory", text)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(words, ended.stderr)


class SeveralLanes(DevicesCase):
    def test_two_lanes_on_the_cpu_share_its_cores(self):
        server = self.serve(self.model(side=96), "--device", "cpu,cpu", "--max-queue-ms", "0")
        device = cpu(server)
        lanes = device["models"]
        self.assertEqual(len(lanes), 2)
        self.assertEqual([lane["threads"] for lane in lanes], [max(1, device["threads"] // 2)] * 2)
        self.assertLessEqual(sum(lane["threads"] for lane in lanes), max(2, device["threads"]))
        answers = together(32, lambda i: server.predict(flat_png(7 * i)))
        self.assertEqual({answer.status for answer in answers}, {200})
        # One image gives one answer, whichever lane it came from.
        alone = [server.predict(flat_png(7 * i)).json()["predictions"][0]["index"] for i in range(32)]
        self.assertEqual([answer.json()["predictions"][0]["index"] for answer in answers], alone)
        # A request of many images is one answer from both lanes.
        kind, form = multipart([("i", f"{i}.png", flat_png(7 * i)) for i in range(32)])
        answer = server.predict(form, headers={"Content-Type": kind})
        self.assertEqual([result["predictions"][0]["index"] for result in answer.json()["results"]],
                         alone)
        health = server.get("/health").json()
        self.assertNotIn("quarantined", health["models"][0])


if __name__ == "__main__":
    unittest.main(verbosity=2)
