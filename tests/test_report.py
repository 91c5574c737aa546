#!/usr/bin/env python3
"""The numbers in "N passed, N failed, N skipped" are the cases' own."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

import report  # noqa: E402


def result(verdict, stdout="", stderr="", code=0):
    return {"name": "example", "result": verdict, "stdout": stdout, "stderr": stderr,
            "returncode": code}


class Count(unittest.TestCase):
    def test_tap(self):
        text = "TAP version 13\n1..4\nok - a::b (0.1s)\nnot ok - c\nok 3 # SKIP no model\nok\n"
        self.assertEqual(report.count(result("FAIL", text)), (2, 1, 1))

    def test_indented_tap_lines_are_subtests(self):
        self.assertEqual(report.count(result("OK", "    not ok 1\nok 1 - group\n")), (1, 0, 0))

    def test_plain_program(self):
        self.assertEqual(report.count(result("OK", "okay then\n")), (1, 0, 0))
        self.assertEqual(report.count(result("FAIL", code=1)), (0, 1, 0))
        self.assertEqual(report.count(result("SKIP", code=77)), (0, 0, 1))
        self.assertEqual(report.count(result("TIMEOUT", code=-15)), (0, 1, 0))

    def test_a_crash_after_good_cases_is_a_failure(self):
        self.assertEqual(report.count(result("ERROR", "1..2\nok 1\nok 2\n", code=1)), (2, 1, 0))

    def test_unittest(self):
        text = ("....\nRan 9 tests in 1.2s\n\nFAILED (failures=1, errors=1, skipped=2)\n")
        self.assertEqual(report.count(result("FAIL", stderr=text, code=1)), (5, 2, 2))
        self.assertEqual(report.count(result("OK", stderr="Ran 3 tests in 0.1s\n\nOK\n")), (3, 0, 0))


class Failures(unittest.TestCase):
    UNITTEST = """F.E
======================================================================
ERROR: test_b (__main__.Two.test_b)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "x.py", line 3, in test_b
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
harness.Broken: lensd ended with -6
2026-11-22T22:43:56 info request
======================================================================
FAIL: test_a (__main__.One.test_a) [2]
What it shows.
----------------------------------------------------------------------
AssertionError: no queue within 12 s; the end of lensd's log:
2026-11-22T22:43:56 info request

----------------------------------------------------------------------
Ran 3 tests in 1.2s

FAILED (failures=1, errors=1)
"""

    def test_unittest(self):
        self.assertEqual(report.failures(self.UNITTEST),
                         [("test_b (__main__.Two.test_b)", "harness.Broken: lensd ended with -6"),
                          ("test_a (__main__.One.test_a) [2]",
                           "AssertionError: no queue within 12 s; the end of lensd's log:")])

    def test_tap(self):
        text = ("ok - a::b\nnot ok - a::c  (0.1s)\n  test_a.c:12: Assertion failed: x\n  test_a.c:13: other\nok - a::d\n"
                "not ok - a::e # SKIP none\nthread_a.c:7: test_f: failed: y == 1\n")
        self.assertEqual(report.failures(text), [("a::c  (0.1s)", "test_a.c:12: Assertion failed: x"),
                                                 ("", "thread_a.c:7: test_f: failed: y == 1")])

    def test_all_of_a_log(self):
        with tempfile.NamedTemporaryFile("w") as file:
            for text, lines in ((self.UNITTEST, 2), ("failed: a: b\n" + self.UNITTEST, 1), ("a.c:1: error: no\nb\n", 1),
                                ("a\n" * 99, 40)):
                file.seek(0)
                file.truncate()
                file.write(text)
                file.flush()
                self.assertEqual(len(report.failures_of_log(file.name)), lines)


class Select(unittest.TestCase):
    def setUp(self):
        tests = [("a", ["unit"]), ("b", ["unit", "thread"]), ("c", ["http"]), ("d", ["slow"])]
        build = os.path.realpath("/build")
        known = {"--tests": [{"name": name, "suite": ["lensd:" + suite for suite in suites],
                              "cmd": ["/usr/bin/python3", "c.py"] if name == "c" else [f"{build}/tests/{name}"],
                              "depends": ["the program"] if name == "c" else []} for name, suites in tests],
                 "--targets": [{"id": "the program", "filename": [f"{build}/server/lensd"]},
                               *({"id": name, "filename": [f"{build}/tests/{name}"]} for name in "abd")]}
        real, report.introspection = report.introspection, lambda what, build: known[what]
        self.addCleanup(setattr, report, "introspection", real)

    def test_names_and_suites(self):
        self.assertEqual(report.select("/build", []), ["a", "b", "c"])
        self.assertEqual(report.select("/build", ["thread", "c"]), ["b", "c"])
        self.assertEqual(report.select("/build", ["slow"]), ["d"])
        self.assertRaises(SystemExit, report.select, "/build", ["unit", "e"])

    def test_one_can_be_left_out(self):
        self.assertEqual(report.select("/build", ["-unit"]), ["c"])
        self.assertEqual(report.select("/build", ["unit", "-b"]), ["a"])

    def test_targets_are_those_of_the_tests_that_are_named(self):
        self.assertEqual(report.targets("/build", ["thread", "c"]), ["server/lensd", "tests/b"])
        self.assertEqual(report.targets("/build", []), [])
        self.assertEqual(report.targets("/build", ["-unit"]), [])


class Summary(unittest.TestCase):
    def run_summary(self, results, status=0, reports=()):
        with tempfile.TemporaryDirectory() as build:
            os.mkdir(os.path.join(build, "meson-logs"))
            with open(os.path.join(build, "meson-logs", "testlog.json"), "w") as file:
                file.writelines(json.dumps(each) + "\n" for each in results)
            folder = os.path.join(build, "reports")
            os.mkdir(folder)
            for name in reports:
                with open(os.path.join(folder, name), "w") as file:
                    file.write("ERROR: LeakSanitizer: detected memory leaks\n")
            done = subprocess.run([sys.executable, os.path.join(HERE, "report.py"), "summary", build,
                                   str(status), folder], stdout=subprocess.PIPE, text=True)
            return done.returncode, done.stdout.splitlines()

    def test_adds_up(self):
        code, lines = self.run_summary([result("OK", "ok 1\nok 2 # SKIP none\n"), result("OK")])
        self.assertEqual((code, lines[-1]), (0, "2 passed, 0 failed, 1 skipped"))

    def test_failure(self):
        code, lines = self.run_summary([result("FAIL", "not ok 1 - sum\n", "expected 4\n", 1)], 1)
        self.assertEqual((code, lines[-1]), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertIn("expected 4", lines)
        self.assertEqual(lines[-2], "failed: example: 1 - sum")
        code, lines = self.run_summary([result("TIMEOUT", "", "begun\n", -15)], 1)
        self.assertEqual(lines[-2], "failed: example: TIMEOUT, exit -15: begun")

    def test_no_result_is_a_failure(self):
        self.assertEqual(self.run_summary([])[0], 1)

    def test_a_sanitizer_report_is_a_failure(self):
        code, lines = self.run_summary([result("OK", "ok 1\n")], reports=["report.12"])
        self.assertEqual(lines[-2], "failed: sanitizer report report.12: ERROR: LeakSanitizer: detected memory leaks")
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))

    def test_meson_ended_badly(self):
        code, lines = self.run_summary([result("OK")], status=2)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))


if __name__ == "__main__":
    unittest.main()
