#!/usr/bin/python3
"""Scripts that are run where a Python package is missing say so in one sentence (models/needs.py)."""

import os
import subprocess
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SCRIPTS = ("tests/bench/make_models.py", "tests/conformance/model_table.py", "tests/data/make_images.py",
           "models/digits/draw.py", "models/digits/evaluate.py", "models/digits/train.py")
BENCHES = ("batches", "bench", "cold_start", "http_bench", "http_cost", "overhead", "peers", "peers_http", "quantize")


class Needs(unittest.TestCase):
    def ended(self, *arguments):
        # -S: without the packages that are installed, whichever there are.
        return subprocess.run([sys.executable, "-S", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)

    def assert_said(self, ended, name):
        self.assertNotEqual(ended.returncode, 0)
        self.assertEqual(ended.stderr.count("\n"), 1, ended.stderr)
        self.assertIn(f"the Python package {name} is missing for {sys.executable}", ended.stderr)
        self.assertIn("python3-" + name, ended.stderr)

    def test_scripts(self):
        for script in SCRIPTS:
            with self.subTest(script=script):
                ended = self.ended(script, "/none")
                self.assert_said(ended, "numpy")
                self.assertTrue(ended.stderr.startswith(os.path.basename(script) + ": "), ended.stderr)

    def test_benches_that_import_late(self):
        for bench in BENCHES:
            with self.subTest(bench=bench):
                self.assert_said(self.ended("-c", f"import sys; sys.path.insert(0, 'tests/bench'); import {bench}; "
                                                  "import onnx.helper"), "onnx")

    def test_other_errors_keep_their_traceback(self):
        code = "import sys; sys.path.insert(0, 'models'); import needs; "
        ended = self.ended("-c", code + "None.x")
        self.assertIn("Traceback", ended.stderr)
        ended = self.ended("-c", code + "import onnxruntime")
        self.assertIn("-m pip install onnxruntime", ended.stderr)


if __name__ == "__main__":
    unittest.main()
