#!/usr/bin/env python3
"""The logic of `./dev gpu`, on the stand-in for CUDA: that wrong answers are seen, that late and broken parts
do not stop the others, what is reported and what is resumed. BUILD names the build folder."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[1:1] = [HERE, os.path.join(HERE, os.pardir), os.path.join(HERE, os.pardir, "bench")]
import totals  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "../../build")))
SCRATCH = tempfile.mkdtemp(prefix="lensd-gpu-test-")
BUNDLE = os.path.join(SCRATCH, "bundle")


def setUpModule():
    global PLANS
    subprocess.run([sys.executable, os.path.join(HERE, "bundle.py"), "--build", BUILD, "--photos", "2",
                    "--no-archive", "--stand-in", BUNDLE], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    # Beside the tests of parts, most of which only wait.
    PLANS = concurrent.futures.ThreadPoolExecutor(1).submit(run_plans)


def tearDownModule():
    PLANS.exception()
    shutil.rmtree(SCRATCH)


def gpu(*words, script=os.path.join(HERE, "gpu.py"), timeout=300):
    words = [*words, *([] if "--work" in words else ["--work", os.path.join(SCRATCH, "work")])]
    return subprocess.run([sys.executable, script, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=timeout)


def report_of(out):
    with open(os.path.join(out, "report.json"), encoding="utf-8") as file:
        return json.load(file)


def run_plans():
    """Every plan with its limits, one after the other, as a user runs them on four machines: (folder, run) of each."""
    found, before = [], []
    for number in (1, 2, 3, 4):
        out = os.path.join(SCRATCH, f"plan{number}")
        found.append((out, gpu("--bundle", BUNDLE, "--device", "fake", "--plan", str(number), "--seed", "7", "--out", out,
                               "--work", os.path.join(SCRATCH, "plans"), *before, timeout=600)))
        before = ["--resume", os.path.join(out, "report.json")]
    return found


class Whole(unittest.TestCase):
    """What the plans left."""

    @classmethod
    def setUpClass(cls):
        cls.outs, cls.runs = zip(*PLANS.result())
        cls.out, cls.ended = cls.outs[-1], cls.runs[-1]
        cls.report = report_of(cls.out)

    def test_it_ends_well(self):
        for ended in self.runs:
            self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual({name: part["status"] for name, part in self.report["parts"].items()},
                         {name: "done" for name in self.report["parts"]})

    def test_every_plan_is_useful_alone(self):
        import gpu as command
        for number, out in enumerate(self.outs, 1):
            own = {name for name, part in report_of(out)["parts"].items() if not part.get("taken_over")}
            self.assertEqual(own, {name for name, (plans, *_) in command.PARTS.items() if number in plans})
            self.assertLessEqual(len(os.listdir(out)), 8)  # as many files come back from a borrowed machine
        # What a plan may take, but for what runs beside: no plan exceeds ten minutes.
        self.assertLess(command.PLAN_MINUTES, 9)

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
        self.assertEqual(by_precision["fp32"]["rows"], 5)  # of two batch sizes
        self.assertGreater(by_precision["bf16"]["difference"], 1e-5)  # it really was another precision
        graphs = self.report["parts"]["graphs"]["results"]["graphs_fp32"]
        self.assertEqual((graphs["passed"], graphs["failed"]), (3, 0))
        alone = self.report["parts"]["operators"]["results"]["operators_fp32"]
        self.assertGreater(alone["passed"], 0)
        self.assertEqual(alone["failed"], 0)
        integers = self.report["parts"]["operators"]["results"]["graphs_int8"]
        self.assertEqual((integers["passed"], integers["failed"]), (6, 0))

    def test_speed_and_serving_have_numbers(self):
        parts = self.report["parts"]
        self.assertGreater(parts["forward"]["results"]["rows"][0]["ms"]["lensd"], 0)
        losses = parts["profile"]["results"]["digits_1"]["losses"]
        self.assertEqual(losses, sorted(losses, key=lambda step: -step["ms"]))
        _, full = parts["serve"]["results"]["rounds"][-1]
        self.assertGreater(full["rate"], 0)
        self.assertEqual(parts["memory"]["results"]["sigterm"]["exit"], 0)
        for counts in parts["memory"]["results"]["two_models"].values():
            self.assertEqual(set(counts), {"200"})
        self.assertEqual((full["other"], full["broken"]), (0, 0))
        self.assertGreaterEqual(full["mean_batch"], 1)
        self.assertTrue(0 < full["device_busy"] < 1.5, full)

    def test_resumed_parts_are_not_run_again(self):
        out = os.path.join(SCRATCH, "resumed")
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--out", out, "--plan", "1",
                    "--resume", os.path.join(self.out, "report.json"))
        self.assertEqual(ended.returncode, 0, ended.stdout)
        self.assertIn("[operators] taken over", ended.stdout)
        self.assertNotIn("[operators] met", ended.stdout)
        again = report_of(out)
        for name in ("families", "serve"):
            self.assertEqual(again["parts"][name], dict(self.report["parts"][name], taken_over=True))
        with open(os.path.join(out, "report.md"), encoding="utf-8") as file:
            self.assertIn(f"the part families is of an earlier run, {self.report['began'][:13]}", file.read())

    def test_a_report_of_another_card_is_refused(self):
        other = os.path.join(SCRATCH, "card.json")
        with open(other, "w", encoding="utf-8") as file:
            json.dump(dict(self.report, card="NVIDIA H100"), file)
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--out", SCRATCH, "--resume", other)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("is of other GPU: NVIDIA H100, here Fake GPU 0", ended.stdout)

    def test_what_found_nothing_to_do_is_done_again(self):
        import gpu as command
        report = dict(self.report, parts={"sanitizer": dict(self.report["parts"]["families"], bars=[], results={}),
                                          "families": self.report["parts"]["families"],
                                          "forward": dict(self.report["parts"]["families"], status="out of time")})
        other = os.path.join(SCRATCH, "nothing.json")
        with open(other, "w", encoding="utf-8") as file:
            json.dump(report, file)
        options = mock.Mock(resume=other, device="fake", work=os.path.join(SCRATCH, "nothing"))
        bundle = mock.Mock(about={"programs_sha256": self.report["programs_sha256"]})
        self.assertEqual(list(command.taken_over(options, bundle, "Fake GPU 0")), ["families"])
        self.assertEqual(command.read_json(command.earlier_file(options.work, "forward"))["results"],
                         self.report["parts"]["families"]["results"])
        with mock.patch.object(command, "version_of", return_value="9.9"), \
                self.assertRaisesRegex(SystemExit, "is of other PyTorch"):
            command.taken_over(options, bundle, "Fake GPU 0")

    def test_a_report_of_other_programs_is_refused(self):
        other = os.path.join(SCRATCH, "other.json")
        with open(other, "w", encoding="utf-8") as file:
            json.dump(dict(self.report, programs_sha256="0" * 64), file)
        ended = gpu("--bundle", BUNDLE, "--device", "fake", "--out", SCRATCH, "--resume", other)
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
            def odd(part):
                part.put("number", 6)
                len(7)
            def killed(part):
                os.kill(os.getpid(), 9)
            def good(part):
                part.bar("it", "1", "1", True)
            gpu.PARTS = {{"late": ((1,), late, 2), "broken": ((1,), broken, 20),
                         "odd": ((1,), odd, 20), "killed": ((1,), killed, 20), "good": ((1,), good, 20)}}
        """)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        parts = report["parts"]
        self.assertEqual({name: part["status"] for name, part in parts.items()},
                         {"late": "out of time", "broken": "failed", "odd": "failed", "killed": "failed",
                          "good": "done"})
        self.assertIn("TypeError", parts["odd"]["reason"])
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
            gpu.PARTS = {"first": ((1,), first, 50),
                         "last": ((1,), lambda part: part.note("ran"), 20)}
        """)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertEqual([part["status"] for part in report["parts"].values()], ["out of time", "left out"])
        self.assertIn("1 bars met, 0 missed", ended.stdout)

    def test_what_is_measured_is_in_the_report_at_once(self):
        """The command itself is killed, without a chance to say anything."""
        ended, report = self.run_parts("""
            def first(part):
                part.bar("it", "1", "1", True)
                report = os.path.join(part.options.out, "report.json")
                while not os.path.exists(report) or '"it"' not in open(report).read():
                    time.sleep(0.05)
                os.kill(os.getppid(), 9)
                os.kill(os.getpid(), 9)
            gpu.PARTS = {"first": ((1,), first, 60)}
        """)
        self.assertEqual(ended.returncode, -9)
        self.assertEqual([bar["what"] for bar in report["parts"]["first"]["bars"]], ["it"])

    def test_exports_run_beside_the_others(self):
        _, report = self.run_parts("""
            def exports(part):
                folder = os.path.join(part.networks_folder(), "one")
                os.makedirs(folder, exist_ok=True)
                time.sleep(1)
                for name in ("model.onnx", "preprocessor_config.json", "weights.pt"):
                    open(os.path.join(folder, name), "w").close()
                part.put("two", {"seconds": None, "problem": "no"})
                time.sleep(60)
            def waits(part):
                part.put("found", [part.network("one"), part.network("two")])
            gpu.PARTS = {"export": ((1,), exports, 50), "waits": ((1,), waits, 50)}
        """)
        found = report["parts"]["waits"]["results"]["found"]
        self.assertEqual((os.path.basename(found[0]), found[1]), ("one", None))
        self.assertEqual(report["parts"]["export"]["status"], "done")  # nobody waits for the rest

    def test_no_time_is_left_for_the_last_part(self):
        _, report = self.run_parts("""
            gpu.PARTS = {"first": ((1,), lambda part: time.sleep(2), 20),
                         "last": ((1,), lambda part: part.note("ran"), 20)}
        """, "--minutes", "0.1")
        self.assertEqual(report["parts"]["first"]["status"], "done")
        self.assertEqual(report["parts"]["last"]["status"], "left out")

    def test_a_part_knows_what_was_asked_for(self):
        _, report = self.run_parts("""
            gpu.PARTS = {"one": ((1,), lambda part: part.put("cases", part.options.cases), 20)}
        """, "--cases", BUNDLE, "--cases", HERE)
        self.assertEqual(report["parts"]["one"]["results"]["cases"], [BUNDLE, HERE])

    def test_a_missed_bar_is_an_exit_status(self):
        ended, _ = self.run_parts("""
            gpu.PARTS = {"one": ((1,), lambda part: part.bar("it", ">= 2", "1", False), 20)}
        """)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("MISSED it", ended.stdout)


class OneBundle:
    """A bundle on a GPU whose programs are this test's own shell scripts."""

    def __init__(self, name, **programs):
        import programs as real
        self.folder = tempfile.mkdtemp(prefix=f"{name}-", dir=SCRATCH)
        with open(os.path.join(self.folder, "bundle.json"), "w", encoding="utf-8") as file:
            json.dump({"version": "1", "commit": None, "made": "now"}, file)
        for program, text in programs.items():
            path = os.path.join(self.folder, program)
            with open(path, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n" + textwrap.dedent(text))
            os.chmod(path, 0o755)
        self.bundle = real.Bundle(self.folder, "cuda:0")


class OnePart:
    """What a part's function is given; what it does with it."""

    def __init__(self, bundle, seconds=60, torch=None):
        self.bundle, self.seed, self.argument, self.before = bundle, 5, ("resnet50", 64), {}
        self.end, self.results, self.bars, self.notes = time.monotonic() + seconds, {}, [], []
        self.given_torch = torch

    def left(self):
        return max(1.0, self.end - time.monotonic())

    def put(self, key, value):
        self.results[key] = value

    def bar(self, what, wanted, got, met):
        self.bars.append((what, got, met))

    def note(self, text):
        self.notes.append(text)

    def say(self, text):
        pass

    def torch(self):
        return self.given_torch, None

    def network(self, name):
        return name


GRAPHS = """
    while [ $# -gt 0 ]; do
        case $1 in --first) first=$2;; --count) count=$2;; esac
        shift
    done
    last=$((first + count - 1))
    end() {
        echo "{\\"passed\\": $1, \\"failed\\": $2, \\"skipped\\": 0, \\"asked\\": $count, \\"next\\": $3, \\"broken\\": $4," \\
            "\\"worst\\": 0.001, \\"mean\\": 0, \\"tolerance\\": 0.1}"
        exit $5
    }
"""


class Sensitivity(unittest.TestCase):
    """Graphs that make much of the last bit, and those that do not, on the stand-in."""

    def graphs(self, precision, first, count, *words):
        program = os.path.join(BUILD, "tests", "gpu", "lensd_graphs")
        got = subprocess.run([program, "--device", "cuda:0", "--precision", precision, "--small", "--first", str(first),
                              "--count", str(count), *words], stdout=subprocess.PIPE, text=True, timeout=120,
                             env=dict(os.environ, LENSD_CUDA_MODULE=os.path.join(BUILD, "tests", "fake_cuda", "lensd_fake_cuda.so")))
        return json.loads(got.stdout.splitlines()[-1])

    def test_a_sound_device_passes(self):
        for precision, seed in (("bf16", 59280), ("fp16", 67401), ("fp16", 7011), ("fp16", 67642), ("int8", 199080)):
            with self.subTest(precision=precision, seed=seed):
                got = self.graphs(precision, seed, 1)
                self.assertEqual((got["passed"], got["sensitive"]), (1, 1))

    def test_stored_numbers_agree_exactly(self):
        got = self.graphs("int8", 199058, 1)
        self.assertEqual((got["passed"], got["sensitive"], got["worst"] < 1e-6), (1, 0, True))

    def test_what_is_off_is_noticed(self):
        for precision, off in (("fp16", 0.025), ("bf16", 0.1), ("int8", 0.12)):
            with self.subTest(precision=precision):
                got = self.graphs(precision, 1, 12, "--off", str(off))
                self.assertGreaterEqual(got["failed"], 11)


class Graphs(unittest.TestCase):
    """What lensd_graphs may do on a GPU, by scripts in its place."""

    def judge(self, script, seconds=20, **constants):
        import checks
        for name, value in constants.items():
            self.addCleanup(setattr, checks, name, getattr(checks, name))
            setattr(checks, name, value)
        part = OnePart(OneBundle(self._testMethodName, lensd_graphs=GRAPHS + script).bundle)
        checks.graphs(part, "graphs", "key", [], range(1, 11), seconds)
        (_, got, met), = part.bars
        return part.results["key"], got, met

    def test_a_crash_is_named_and_the_rest_still_runs(self):
        result, got, met = self.judge("""
            if [ $first = 1 ]; then
                echo RUN conv 1; echo RUN conv 2; echo FAIL conv 2: other; echo RUN pool 3; echo bad >&2; kill -SEGV $$
            fi
            end $count 0 11 false 0
        """)
        self.assertEqual((result["passed"], result["failed"], met), (8, 2, False))
        self.assertEqual(result["failures"][0], "FAIL conv 2: other")
        self.assertRegex(result["failures"][1], "FAIL pool 3: lensd_graphs ended with -11: bad")
        self.assertIn("conv 2", got)

    def test_after_a_broken_device_a_new_process_goes_on(self):
        result, _, met = self.judge("""
            [ $first != 1 ] || { echo RUN conv 1; echo FAIL conv 1: illegal address; end 0 1 2 true 3; }
            end $count 0 11 false 0
        """)
        self.assertEqual((result["passed"], result["failed"], met), (9, 1, False))

    def test_a_hang_is_named(self):
        result, got, met = self.judge("echo RUN conv 1; exec sleep 60\n", 1, PATIENCE=0)
        self.assertIs(met, False)
        self.assertRegex(got, "conv 1: lensd_graphs did not end within")
        self.assertEqual(result["failed"], 1)

    def test_a_fraction_is_not_all(self):
        self.assertEqual(self.judge("end 4 0 5 false 0")[1:], ("4 of 10, worst 0.001, 6 not reached", None))

    def test_a_program_that_does_not_start(self):
        _, got, met = self.judge("echo no driver >&2; exit 2")
        self.assertRegex(got, "ended with 2: no driver")
        self.assertIs(met, False)


class Cases(unittest.TestCase):
    """Conformance cases that end their process, by a script in its place."""

    def found(self, script, **constants):
        import checks
        for name, value in constants.items():
            self.addCleanup(setattr, checks, name, getattr(checks, name))
            setattr(checks, name, value)
        part = OnePart(OneBundle(self._testMethodName, lensd_conformance=script).bundle)
        return checks.some_cases(part, ["lensd_conformance", "folder"])

    def test_another_process_goes_on_behind_a_crash(self):
        found = self.found("""
            case "$*" in
            *"--after b"*) echo "c … pass (0.1 s)"; echo "REGRESSION d passed before";;
            *) echo "a … pass (0.1 s)"; printf "b … "; kill -SEGV $$;;
            esac
        """)
        self.assertEqual((found["pass"], found["FAIL"], found["worse"], found["ended"]), (2, 1, ["d"], ""))
        self.assertRegex(found["failures"][0], "^b: lensd_conformance ended with -11")

    def test_a_case_that_hangs_is_tried_alone(self):
        """Behind others it may only have been the last of many."""
        found = self.found("""
            case "$*" in
            *"--after b"*) echo "c … FAIL (0.1 s): wrong";;
            *"--after a"*) printf "b … "; exec sleep 60;;
            *) echo "a … pass (0.1 s)"; printf "b … "; exec sleep 60;;
            esac
        """, PATIENCE=1)
        self.assertEqual((found["pass"], found["FAIL"]), (1, 2))
        self.assertEqual(found["failures"][1], "c (0.1 s): wrong")

    def test_a_program_that_does_not_start(self):
        self.assertRegex(self.found("echo no driver >&2; exit 2")["ended"], "no driver")


class Loads(unittest.TestCase):
    def test_a_late_load_begins_again_with_what_it_has_measured(self):
        import programs
        tries = os.path.join(SCRATCH, "tries")
        one = OneBundle("loads", bench_forward=f"echo >> {tries}; [ $(wc -l < {tries}) = 3 ] || exec sleep 60; echo ready; cat")
        one.bundle.cache = SCRATCH
        with programs.Forward(one.bundle, "model", "fp16", [1], patience=1) as forward:
            self.assertEqual(forward.ask("hello"), "hello")


class Layers(unittest.TestCase):
    """The table of layers."""

    def test_layers_find_their_steps(self):
        import layers
        steps = [{"name": "/a/Conv", "gflop": 1.0, "ms": 2.0, "kernel": "k"}, {"name": "/b/Conv", "gflop": 1.0, "ms": 4.0, "kernel": "k"},
                 {"name": "/c/MatMul_3", "gflop": 5.0, "ms": 9.0, "kernel": "k"}, {"name": "pool", "gflop": 0.0, "ms": 1.0, "kernel": "k"}]
        given = [("b", "3x3", 1.001, None), ("a", "1x1", 1.0, None), ("c.in_proj", "[5]", 5.01, None), ("d", "7x7", 3.0, None)]
        pairs = layers.paired(steps, given)
        self.assertEqual([(layer[0], step["name"]) for layer, step in pairs],
                         [("b", "/b/Conv"), ("a", "/a/Conv"), ("c.in_proj", "/c/MatMul_3")])
        rows = layers.rows_of(pairs, {"3x3": 1.0, "1x1": 3.0, "[5]": 9.0})
        self.assertEqual([row["geometry"] for row in rows], ["3x3", "[5]", "1x1"])


class OnlyOnAGpu(unittest.TestCase):
    """What a rehearsal leaves out, over stubs: names and arguments of this code are right."""

    def torch(self):
        return mock.MagicMock()

    def test_sanitizer(self):
        import checks
        said = os.path.join(SCRATCH, "sanitized")
        one = OneBundle("sanitizer", lensd="echo '  --precision auto|fp32|bf16|fp16|int8'", tool=f"""
            echo "$LENSD_CUDA_TUNING $LENSD_CUDA_GRAPHS $*" >> {said}
            echo '{{"passed": 9, "failed": 0}}'
            case "$*" in *racecheck*int8*) echo "RACECHECK SUMMARY: 1 hazard"; exit 9;; esac
            echo "========= ERROR SUMMARY: 0 errors"
        """)
        part = OnePart(one.bundle)
        with mock.patch.object(checks, "sanitizer_tool", return_value=one.bundle.path("tool")):
            checks.sanitizer(part)
        self.assertEqual([met for _, _, met in part.bars], [True, True, True, False, True, True])
        self.assertIn("1 hazard", part.bars[3][1])
        with open(said, encoding="utf-8") as file:
            lines = file.read().splitlines()
        self.assertRegex(lines[0], r"^1 off --tool memcheck .*lensd_graphs .*--precision fp16")
        self.assertRegex(lines[3], r"^4 off --tool racecheck .*--precision int8")
        self.assertIn("--no-poison", lines[4])

    def test_a_sanitizer_that_does_not_end(self):
        import checks
        one = OneBundle("late", tool="echo RUN conv 1; sleep 60 & wait")
        part = OnePart(one.bundle)
        with mock.patch.object(checks, "LEAST", 1):
            checks.sanitize(part, one.bundle.path("tool"), "memcheck", "int8", 0, 0.5)
        self.assertRegex(part.bars[0][1], "did not end within 1 s: RUN conv 1")
        self.assertIsNone(part.bars[0][2])

    def contenders(self, function):
        """Runs it with PyTorch, its networks and lensd's side replaced."""
        import networks
        import speed
        lensd, torch = mock.MagicMock(), self.torch()
        lensd.__enter__.return_value = lensd
        lensd.time_ms.return_value = [1e-4] * 5  # what stands for PyTorch always takes longer
        lensd.run_ms.return_value = [0.3] * 5
        lensd.profile.return_value = ([{"ms": 4.0, "gflop": 2048.0, "bytes": 8_000_000_000, "kernel": "k", "name": "n"},
                                       {"ms": 1.0, "gflop": 0.0, "bytes": 4_000_000_000, "kernel": "k", "name": "moved"}],
                                      256)
        part = OnePart(OneBundle(self._testMethodName, lensd="echo '  --precision auto|fp32|fp16'").bundle, torch=torch)
        part.speed, part.profiled = lambda: [("resnet50", [1])], lambda: [("resnet50", 256)]
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(speed, "Forward", return_value=lensd), \
                mock.patch.object(networks, "module"), mock.patch.object(speed, "compare"), mock.patch.object(networks, "image_size", return_value=(9, 9)):
            function(part)
        return part, torch

    def test_beside_eager(self):
        import speed
        part, _ = self.contenders(speed.forward)
        self.assertEqual([met for _, _, met in part.bars], [True, True])
        self.assertEqual(set(part.results["rows"][0]["ms"]), {"lensd", "eager"})

    def test_the_share_of_the_roofline(self):
        """Of the higher of two looks at the ceilings: 2048 GFLOP at 1000 TFLOP/s are 2.048 ms, 8 GB at 4 TB/s 2 ms, and
        4 GB that are only moved 1 ms; the whole takes 0.0001 ms here."""
        import speed
        looks = [{"bf16_tflops": 1000.0, "fp16_tflops": 900.0, "fp32_tflops": 50.0, "copy_gbs": 3000.0},
                 {"bf16_tflops": 700.0, "fp16_tflops": 800.0, "fp32_tflops": 50.0, "copy_gbs": 4000.0}]
        for gflop, least, met in ((8.0, 2.048, True), (4.0, 2.048 / 2, False)):
            with mock.patch.object(speed, "ceilings", side_effect=looks), \
                    mock.patch.object(speed, "gflop_by_pytorch", return_value=gflop):
                part, _ = self.contenders(speed.profile)
            got = part.results["resnet50_256"]
            self.assertAlmostEqual(got["share"], least / 1e-4)
            self.assertAlmostEqual(got["share_of_all"], 3.048 / 1e-4)
            self.assertEqual(part.bars[0][2], met)
            self.assertEqual([loss["name"] for loss in got["losses"]], ["n", "moved"])

    def test_what_nvidia_smi_says(self):
        import programs
        text = "98, 1980, 3201, 612.30, 55\n100, 1755, 3201, [N/A], 57\nUnable to determine the device handle\n"
        rows = programs.card_rows(text)
        self.assertEqual(rows["clocks.sm"], (1755, 1867.5, 1980))
        self.assertEqual(rows["power.draw"], (612.3, 612.3, 612.3))
        self.assertEqual(programs.card_rows("No devices were found\n"), {})

    def test_beside_torch_compile(self):
        import speed
        part, torch = self.contenders(speed.compiled)
        torch.compile.assert_called_once_with(mock.ANY, mode="max-autotune", fullgraph=True)
        self.assertEqual(set(part.results["row"]["ms"]), {"lensd", "eager", "compiled"})
        self.assertEqual([met for _, _, met in part.bars], [True])

    def test_a_network_that_raises_does_not_end_the_others(self):
        import checks
        import networks
        part = OnePart(OneBundle("raises", lensd="echo '  --precision fp32'").bundle)
        part.families = lambda: ["resnet50", "resnet18"]
        with mock.patch.object(networks, "pictures", side_effect=RuntimeError("CUDA out of memory")):
            checks.families(part)
        self.assertEqual([(what, met) for what, _, met in part.bars], [("resnet50", False), ("resnet18", False)])
        self.assertIn("RuntimeError: CUDA out of memory", part.bars[0][1])

    def test_a_co_process_that_is_gone_says_why(self):
        import programs
        one = OneBundle("gone", bench_forward="echo ready; echo the card is gone >&2; exit 3")
        with self.assertRaisesRegex(programs.Broken, "ended with 3: the card is gone"):
            with programs.Forward(one.bundle, "model", "fp32", [1]) as forward:
                forward.process.wait(20)
                forward.shape()


class Words(unittest.TestCase):
    def test_without_a_gpu_it_says_so(self):
        ended = gpu("--bundle", BUNDLE, "--device", "cuda:77", "--out", SCRATCH)
        self.assertEqual(ended.returncode, 2, ended.stdout)
        self.assertIn("gpu: cuda:77 cannot be used:", ended.stdout)
        self.assertIn("needs an NVIDIA GPU with its driver", ended.stdout)

    def test_what_is_asked_wrongly(self):
        for words, sentence in ((["--bundle", SCRATCH], "is no bundle"),
                                (["--bundle", BUNDLE, "--device", "mps"], "a GPU has a name such as cuda:0"),
                                (["--bundle", BUNDLE, "--plan", "9"], "is not a list of plans")):
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
        self.checks = checks

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
            word, own, exact = "a bent reference", {}, None

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

    def test_rounded_precisions_are_judged_by_pytorchs_own(self):
        """Random weights flip classes, in PyTorch's formats, too."""
        row = {"family": "n", "precision": "bf16", "reference": "PyTorch fp32", "rows": 100, "difference": 0.1, "rms": 0.014,
               "top1": 0.96, "pytorch_rms": 0.01, "pytorch_top1": 0.97}
        for rms, met in ((0.014, True), (0.016, False), (float("nan"), False)):
            part = OnePart(mock.Mock())
            self.checks.judge(part, dict(row, rms=rms))
            self.assertEqual(part.bars[0][2], met)
        fp32 = {"family": "n", "precision": "fp32", "reference": "PyTorch fp32", "rows": 9, "difference": 5e-4,
                "pytorch_against_float64": 4e-4}
        for exact, met in ((9e-5, True), (7e-4, True), (9e-4, False)):  # cuDNN's own error is no bar
            part = OnePart(mock.Mock())
            self.checks.judge(part, dict(fp32, against_float64=exact))
            self.assertEqual(part.bars[0][2], met)

    def test_what_an_unfinished_part_has_compared_is_not_compared_again(self):
        bundle = OneBundle("before", lensd="echo '  --precision fp32|fp16'").bundle
        part = OnePart(bundle)
        row = {"family": "resnet18", "reference": "PyTorch fp32", "rows": 9, "difference": 5e-5, "top1": 1.0}
        part.families, part.before = lambda: ["resnet18"], {"rows": [dict(row, precision="fp32"), dict(row, precision="fp16")]}
        part.network = mock.Mock(side_effect=AssertionError("it was compared"))
        self.checks.families(part)
        self.assertEqual([met for _, _, met in part.bars], [True, True])

    def test_a_program_that_ends_says_why(self):
        import programs
        bundle = programs.Bundle(BUNDLE, "fake")
        with self.assertRaisesRegex(programs.Broken, "no-such-model"):
            programs.Forward(bundle, "/no-such-model", "fp32", [1])
        with programs.Forward(bundle, os.path.join(BUNDLE, "models", "digits"), "fp32", [1], device="cpu") as one:
            self.assertEqual(one.shape(), ([32, 32, 3], 10))
            with self.assertRaisesRegex(programs.Broken, "expected run"):
                one.run_ms(5, 1)


if __name__ == "__main__":
    reason = None
    if not shutil.which("patchelf"):
        reason = "patchelf is not installed"
    elif not os.path.exists(os.path.join(BUILD, "tests", "fake_cuda", "lensd_fake_cuda.so")):
        reason = "this build has no stand-in for CUDA"
    totals.main(reason)
