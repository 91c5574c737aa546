"""What exporters make of patterns in which images read or write places that depend on them: images that run together
get what each gets alone. tests/data/make_batches.py made the models, and the answers with ONNX Runtime."""

import json
import os
import re
import shutil
import tempfile
import threading
import unittest

from harness import ROOT, Server

BATCHES = os.path.join(ROOT, "tests", "data", "batches")
IMAGES = [[(i * 37 % 101) / 101 for i in range(start, start + 192)] for start in (0, 192, 384)]
# Nothing proves that the rows which a Mod makes are the image's own.
SINGLE = {"nextrows_traced"}


class Batches(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="lensd-batches-")
        cls.addClassCleanup(shutil.rmtree, folder)
        with open(os.path.join(BATCHES, "answers.json"), encoding="ascii") as file:
            cls.answers = json.load(file)
        for name in cls.answers:
            os.mkdir(os.path.join(folder, name))
            shutil.copy(os.path.join(BATCHES, f"{name}.onnx"), os.path.join(folder, name, "model.onnx"))
        cls.server = Server("--models", folder, "--device", "cpu", "--precision", "fp32", "--max-batch", "8")
        cls.addClassCleanup(cls.server.stop)

    def ask(self, name, rows):
        body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [len(rows), 3, 8, 8],
                            "data": [v for row in rows for v in row]}]}
        answer = self.server.request("POST", f"/v2/models/{name}/infer", json.dumps(body).encode())
        self.assertEqual(answer.status, 200, answer.body)
        output, = answer.json()["outputs"]
        self.assertEqual(output["shape"][0], len(rows))
        each = len(output["data"]) // len(rows)
        return [output["data"][i * each:(i + 1) * each] for i in range(len(rows))]

    def test_rows_of_a_batch_are_those_of_single_images(self):
        for name, answers in self.answers.items():
            with self.subTest(name):
                alone = [self.ask(name, [image])[0] for image in IMAGES]
                for row, answer in zip(alone, answers):
                    self.assertEqual(len(row), len(answer))
                    self.assertLess(max(abs(a - b) for a, b in zip(row, answer)), 2e-5)
                if name not in SINGLE:
                    self.assertEqual(self.ask(name, IMAGES), alone)

    def test_many_requests_at_once(self):
        for name in self.answers:
            alone = [self.ask(name, [image])[0] for image in IMAGES]
            got = [None] * 30

            def one(i, name=name, got=got):
                got[i] = self.ask(name, [IMAGES[i % 3]])[0]

            threads = [threading.Thread(target=one, args=(i,)) for i in range(len(got))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(got, [alone[i % 3] for i in range(len(got))], name)

    def test_what_cannot_be_proven_is_said(self):
        """With the operator and its node; a request with three rows is told, too."""
        models = {m["name"]: m for m in self.server.get("/devices").json()["devices"][0]["models"]}
        for name, model in models.items():
            self.assertEqual(max(b["size"] for b in model["batches"]) == 1, name in SINGLE, name)
        for name in SINGLE:
            self.server.wait_log(re.compile(f"model={name} .*run one by one: .* not proven independent \\(Add '/Add_1'"))


if __name__ == "__main__":
    unittest.main()
