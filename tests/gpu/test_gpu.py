#!/usr/bin/env python3
"""The logic of `./dev gpu`, on the stand-in for CUDA: that wrong answers are seen, that late and broken parts
do not stop the others, what is reported and what is resumed. BUILD names the build folder."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[1:1] = [HERE, os.path.join(HERE, os.pardir)]
import totals  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "../../build")))
SCRATCH = tempfile.mkdtemp(prefix="lensd-gpu-test-")
BUNDLE = os.path.join(SCRATCH, "bundle")


def setUpModule():
    subprocess.run([sys.executable, os.path.join(HERE, "bundle.py"), "--build", BUILD, "--photos", "2",
                    "--no-archive", "--stand-in", BUNDLE], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def tearDownModule():
    shutil.rmtree(SCRATCH)


def gpu(*words, script=os.path.join(HERE, "gpu.py"), timeout=300):
    return subprocess.run([sys.executable, script, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout)


def report_of(out):
    with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
        return json.load(file)


class Whole(unittest.TestCase):
    """Every part once, as a user runs them."""

    @classmethod
    def setUpClass(cls):
        cls.out = os.path.join(SCRATCH, "whole")
        cls.ended = gpu("--bundle", BUNDLE, "--device", "fake", "--quick", "--seed", "7", "--out", cls.out)
        cls.report = report_of(cls.out)

    def test_it_ends_well(self):
        self.assertEqual(self.ended.returncode, 0, self.ended.stdout)
        self.assertEqual({name: part["status"] for name, part in self.report["parts"].items()},
                         {name: "done" for name in self.report["parts"]})

    def test_nobody_can_take_it_for_a_gpu(self):
        self.assertIs(self.report["gpu"], False)
        self.assertIn("NOT A RESULT OF A GPU", self.ended.stdout)
        with open(os.path.join(self.out, "report.md"), encoding="utf-8") as file:
            page = file.read()
        self.assertIn("NOT A RESULT OF A GPU", page)
        self.assertTrue(page.startswith("# Rehearsal"))
        self.assertIn("none; instead of one: Fake GPU", page)

    def test_answers_were_compared(self):
        rows = self.report["parts"]["families"]["results"]["rows"]
        self.assertEqual({row["family"] for row in rows}, {"digits"})
        by_precision = {row["precision"]: row for row in rows}
        self.assertLess(by_precision["fp32"]["difference"], 1e-4)
        self.assertGreater(by_precision["fp32"]["rows"], 9)
        self.assertGreater(by_precision["bf16"]["difference"], 1e-5)  # it really was another precision
        graphs = self.report["parts"]["operators"]["results"]["graphs_fp32"]
        self.assertEqual((graphs["passed"], graphs["failed"]), (3, 0))
        alone = self.report["parts"]["operators"]["results"]["operators_fp32"]
        self.assertGreater(alone["passed"], 0)
        self.assertEqual(alone["failed"], 0)

    def test_speed_and_serving_have_numbers(self):
        parts = self.report["parts"]
        self.assertGreater(parts["forward"]["results"]["rows"][0]["ms"]["lensd"], 0)
        losses = parts["profile"]["results"]["digits_1"]["losses"]
        self.assertEqual(losses, sorted(losses, key=lambda step: -step["ms"]))
        _, full = parts["serve"]["results"]["rounds"][-1]
        self.assertGreater(full["rate"], 0)
        self.assertEqual((full["other"], full["broken"]), (0, 0))
        self.assertGreaterEqual(full["mean_batch"], 1)
        self.assertTrue(0 < full["device_busy"] < 1.5, full)

    def test_resumed_parts_are_not_run_again(self):
        out = os.path.join(SCRATCH, "resumed")
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--quick", "--out", out, "--only", "correctness",
                    "--resume", os.path.join(self.out, "report.json"))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("[operators] taken over", ended.stdout)
        self.assertNotIn("[operators] met", ended.stdout)
        again = report_of(out)
        self.assertEqual(again["parts"]["families"], self.report["parts"]["families"])
        self.assertEqual(again["parts"]["serve"], self.report["parts"]["serve"])

    def test_a_report_of_other_programs_is_refused(self):
        other = os.path.join(SCRATCH, "other.json")
        with open(other, "w", encoding="utf-8") as file:
            json.dump(dict(self.report, programs_sha256="0" * 64), file)
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--quick", "--out", SCRATCH, "--resume", other)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("is of other programs", ended.stdout)


class Supervisor(unittest.TestCase):
    """Parts that misbehave: the command with parts of this test's own."""

    def run_parts(self, parts, *words):
        script = os.path.join(SCRATCH, self._testMethodName + ".py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("import os, subprocess, sys, time\n"
                       f"sys.path[:0] = [{HERE!r}]\n"
                       "import gpu\n" + textwrap.dedent(parts)
                       + "\ngpu.SELF = os.path.realpath(__file__)\nsys.exit(gpu.main())\n")
        out = os.path.join(SCRATCH, self._testMethodName)
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--out", out, *words, script=script)
        return ended, report_of(out)

    def test_late_and_broken_parts_do_not_stop_the_others(self):
        child = os.path.join(SCRATCH, "child")
        ended, report = self.run_parts(f"""
            def late(part):
                part.bar("half of it", "2", "1", True)
                away = subprocess.Popen(["sleep", "600"], start_new_session=True)
                with open({child!r}, "w") as file:
                    file.write(str(away.pid))
                time.sleep(600)
            def broken(part):
                part.put("number", 5)
                raise RuntimeError("the card is gone")
            def killed(part):
                os.kill(os.getpid(), 9)
            def good(part):
                part.bar("it", "1", "1", True)
            gpu.PARTS = {{"late": ("bench", late, 2, 2), "broken": ("bench", broken, 20, 20),
                         "killed": ("bench", killed, 20, 20), "good": ("bench", good, 20, 20)}}
        """)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        parts = report["parts"]
        self.assertEqual({name: part["status"] for name, part in parts.items()},
                         {"late": "out of time", "broken": "failed", "killed": "failed", "good": "done"})
        self.assertEqual(parts["late"]["bars"][0]["got"], "1")
        self.assertEqual(parts["broken"]["results"], {"number": 5})
        self.assertIn("the card is gone", parts["broken"]["reason"])
        self.assertIn("2 bars met, 0 missed", ended.stdout)
        with open(child, encoding="ascii") as file:
            pid = int(file.read())
        end = time.monotonic() + 10
        while self.is_running(pid):
            self.assertLess(time.monotonic(), end, "what the late part started is still running")
            time.sleep(0.05)

    @staticmethod
    def is_running(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def test_a_machine_that_is_wanted_back(self):
        ended, report = self.run_parts("""
            import signal
            def first(part):
                part.bar("it", "1", "1", True)
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(60)
            gpu.PARTS = {"first": ("bench", first, 50, 50),
                         "last": ("bench", lambda part: part.note("ran"), 20, 20)}
        """)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertEqual([part["status"] for part in report["parts"].values()], ["out of time", "left out"])
        self.assertIn("1 bars met, 0 missed", ended.stdout)

    def test_no_time_is_left_for_the_last_part(self):
        _, report = self.run_parts("""
            gpu.PARTS = {"first": ("bench", lambda part: time.sleep(2), 20, 20),
                         "last": ("bench", lambda part: part.note("ran"), 20, 20)}
        """, "--minutes", "0.1")
        self.assertEqual(report["parts"]["first"]["status"], "done")
        self.assertEqual(report["parts"]["last"]["status"], "left out")

    def test_a_missed_bar_is_an_exit_status(self):
        ended, _ = self.run_parts("""
            gpu.PARTS = {"one": ("bench", lambda part: part.bar("it", ">= 2", "1", False), 20, 20)}
        """)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("MISSED it", ended.stdout)


class Words(unittest.TestCase):
    def test_without_a_gpu_it_says_so(self):
        ended = gpu("--bundle", BUNDLE, "--device", "cuda:77", "--out", SCRATCH)
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("gpu: cuda:77 cannot be used:", ended.stdout)
        self.assertIn("needs an NVIDIA GPU with its driver", ended.stdout)

    def test_what_is_asked_wrongly(self):
        for words, sentence in ((["--bundle", SCRATCH], "is no bundle"),
                                (["--bundle", BUNDLE, "--device", "mps"], "a GPU has a name such as cuda:0"),
                                (["--bundle", BUNDLE, "--only", "fun"], "invalid choice")):
            ended = gpu(*words)
            self.assertEqual((ended.returncode, sentence in ended.stdout), (2, True), ended.stdout)


class Judgement(unittest.TestCase):
    """That the comparisons can fail."""

    def setUp(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        self.numpy = numpy
        import checks
        import speed
        self.checks, self.speed = checks, speed

    def test_nan_is_never_right(self):
        expected = self.numpy.float32([[1, 2, 3], [3, 2, 1]])
        got = expected.copy()
        self.assertEqual(self.checks.agreement(got, expected), 1.0)
        got[0, 0] = self.numpy.nan
        self.assertEqual(self.checks.agreement(got, expected), 0.5)
        self.assertFalse(self.checks.difference(got, expected) <= 1e9)

    def test_difference_is_relative_to_the_greatest(self):
        expected = self.numpy.float32([[0, 10]])
        self.assertAlmostEqual(self.checks.difference(self.numpy.float32([[0.5, 10]]), expected), 0.05)

    def test_a_wrong_answer_of_the_device_is_seen(self):
        """The reference is bent by a thousandth: the bar is missed, for one row out of many."""
        import programs
        bars = []

        class Part:
            bundle, seed = programs.Bundle(BUNDLE, "fake"), 3

            def left(self):
                return 120

            def bar(self, what, wanted, got, met):
                bars.append(met)

        class Bent:
            word, own = "a bent reference", {}

        import networks
        folder = os.path.join(BUNDLE, "models", "digits")
        images = networks.pictures(6, folder, 3)
        with programs.scratch_folder() as scratch:
            with programs.Forward(Part.bundle, folder, "fp32", [3], device="cpu") as forward:
                Bent.logits = self.checks.in_batches(forward, images, 3, scratch)
            for bend in (0, 1e-3):
                Bent.logits[4, 2] += bend * abs(Bent.logits).max()
                self.checks.judge(Part(), self.checks.check_precision(Part(), "digits", folder, "fp32", images,
                                                                      Bent, scratch))
        self.assertEqual(bars, [True, False])

    def test_ratios_are_of_the_same_round(self):
        found = {"lensd": [1.0, 2.0, 10.0], "eager": [2.0, 4.0, 15.0]}
        self.assertEqual(self.speed.ratio(found, "eager"), 2.0)
        self.assertEqual(self.speed.passes_for(0.1), 200)
        self.assertEqual(self.speed.passes_for(100), 1)

    def test_losses_are_against_the_roofline(self):
        ceilings = {"fp16_tflops": 500.0, "copy_gbs": 4000.0}
        products = {"ms": 2.0, "gflop": 500.0, "bytes": 4000, "kernel": "k", "name": "products"}
        copies = {"ms": 1.5, "gflop": 0.0, "bytes": 4_000_000_000, "kernel": "k", "name": "copies"}
        rows = self.speed.losses([copies, products], ceilings, "fp16")
        self.assertEqual([row["name"] for row in rows], ["products", "copies"])
        self.assertAlmostEqual(rows[0]["ideal_ms"], 1.0)
        self.assertAlmostEqual(rows[1]["ideal_ms"], 1.0)

    def test_a_program_that_ends_says_why(self):
        import programs
        bundle = programs.Bundle(BUNDLE, "fake")
        with self.assertRaisesRegex(programs.Broken, "no-such-model"):
            programs.Forward(bundle, "/no-such-model", "fp32", [1])
        with programs.Forward(bundle, os.path.join(BUNDLE, "models", "digits"), "fp32", [1], device="cpu") as one:
            self.assertEqual(one.shape(), ([32, 32, 3], 10))
            with self.assertRaisesRegex(programs.Broken, "expected run"):
                one.run_ms(5, 1)


class Page(unittest.TestCase):
    def test_a_whole_report_becomes_a_page(self):
        import page
        bar = {"what": "a | b", "wanted": ">= 1 x", "got": "2 x", "met": True}
        row = {"family": "resnet50", "batch": 64, "precision": "fp16", "ms": {"lensd": 2.0, "eager": 3.0},
               "host_ms": 2.5}
        part = {"status": "done", "seconds": 3, "bars": [bar], "notes": ["n"], "results": {}}
        report = {"gpu": True, "command": "./dev gpu", "began": "then", "machine": {"gpu": "NVIDIA H200"}, "parts": {
            "forward": dict(part, results={"rows": [row]}),
            "profile": dict(part, status="failed", reason="why", results={"resnet50_256": {
                "family": "resnet50", "batch": 256, "precision": "fp16", "ms": 9.0, "steps": 2, "share": 0.4,
                "losses": [{"name": "n", "kernel": "k", "ms": 1.0, "ideal_ms": 0.5, "gflop": 1, "bytes": 9}]}})}}
        text = page.markdown(report)
        for words in ("# On a GPU: NVIDIA H200", "a \\| b", "| resnet50 | 64 | fp16 | 2.000 | 3.000 | 32000 | 2.500 |",
                      "Not finished: profile: failed (why).", "40.0% of the roofline", "| n | k | 1.0000 | 0.5000 |"):
            self.assertIn(words, text)
        self.assertNotIn("NOT A RESULT", text)
        self.assertIn("2 bars met, 0 missed", page.table(report))


if __name__ == "__main__":
    reason = None
    if not shutil.which("patchelf"):
        reason = "patchelf is not installed"
    elif not os.path.exists(os.path.join(BUILD, "tests", "fake_cuda", "lensd_fake_cuda.so")):
        reason = "this build has no stand-in for CUDA"
    totals.main(reason)
