"""Graphs as today's exporters write them, with seeded weights (golden.py), through the real binary: the outputs are
those that ONNX Runtime gave."""

import json
import os
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "http"), HERE]
import golden  # noqa: E402
from harness import Server  # noqa: E402

BOUND = 1e-4  # of the greatest number


class Golden(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.data = golden.numbers()
        cls.folder = tempfile.TemporaryDirectory(prefix="lensd-golden-")
        numbers = os.path.join(cls.folder.name, "numbers")
        with open(numbers, "wb") as file:
            file.write(cls.data)
        with zipfile.ZipFile(golden.ZIP) as file:
            cls.expected = json.loads(file.read("golden.json"))
            for name in cls.expected:
                folder = os.path.join(cls.folder.name, "models", name)
                os.makedirs(folder)
                os.link(numbers, os.path.join(folder, "numbers"))
                with open(os.path.join(folder, "model.onnx"), "wb") as model:
                    model.write(file.read(f"{name}.onnx"))
        cls.server = Server("--models", os.path.join(cls.folder.name, "models"), "--precision", "fp32", "--max-batch", "4")

    @classmethod
    def tearDownClass(cls):
        code, log = cls.server.stop()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"lensd ended with {code}:\n{log[-4000:]}")

    def scores(self, name, pixels, shape):
        head = json.dumps({"inputs": [{"name": "image", "shape": shape, "datatype": "FP32",
                                       "parameters": {"binary_data_size": len(pixels)}}]}).encode()
        answer = self.server.request("POST", f"/v2/models/{name}/infer", head + pixels,
                                     {"Inference-Header-Content-Length": str(len(head)),
                                      "Content-Type": "application/octet-stream"})
        self.assertEqual(answer.status, 200, answer.body[:300])
        return answer.json()["outputs"][0]["data"]

    def test_the_answers_are_onnx_runtimes(self):
        self.assertEqual(len(self.expected), 20)
        for name, model in self.expected.items():
            side, rows = model["side"], model["scores"]
            pixels = golden.pixels(side, side, self.data)
            one = len(pixels) // len(rows)
            expected = [x for row in rows for x in row]
            greatest = max(abs(x) for x in expected)
            # Together, in a batch that is padded, and one by one.
            together = self.scores(name, pixels, [len(rows), 3, side, side])
            alone = [x for i in range(len(rows)) for x in self.scores(name, pixels[i * one:(i + 1) * one], [1, 3, side, side])]
            for got in together, alone:
                with self.subTest(model=name, batch=len(rows) if got is together else 1):
                    self.assertEqual(len(got), len(expected))
                    self.assertLessEqual(max(abs(a - b) for a, b in zip(got, expected)) / greatest, BOUND)

    def test_all_run_in_batches(self):
        models = self.server.get("/devices").json()["devices"][0]["models"]
        self.assertEqual({model["name"] for model in models if model["batched"]}, set(self.expected))


if __name__ == "__main__":
    unittest.main()
