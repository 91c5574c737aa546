#!/usr/bin/python3
"""Allocations fail while lensd does what the tests of tests/http ask of it. Those tests run as always. Before their servers
stop, these are asked the same again, and one allocation after the other fails: one for each list of callers that no request
before had.

    test_replay.py           some modules, a sample of their allocations
    test_replay.py --whole   all modules, every list of callers; also: names of modules
"""

import argparse
import contextlib
import ctypes
import importlib
import io
import os
import re
import signal
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
sys.path[:0] = [os.path.dirname(os.path.realpath(__file__))]

import sweep  # noqa: E402
from sweep import CALLS, FAILED, Broken, FaultyServer, Job  # noqa: E402

import harness  # noqa: E402

QUICK = ("dialects", "others", "predict", "slices")
COMMANDS = ("commands", "quantize")  # their servers do not matter here
ALL = (*QUICK, *COMMANDS, "apps", "cache", "content", "doors", "faces", "immich", "paddle", "pipelines", "sam", "tasks", "texts", "tracks", "v2")
SAMPLE = 8  # allocations of a request that fail
WHOLE = False
SEEN = set()
PROBLEMS = []
NO_RANDOM_ADDRESSES = 0x40000  # ADDR_NO_RANDOMIZE of personality(2)
VOLATILE = re.compile(r"(?i)time|ms$|(inference|detection)_id|uuid")


def keep_addresses():
    """So that callers have the same addresses in each process. Where that is forbidden, more allocations are new."""
    ctypes.CDLL(None).personality(NO_RANDOM_ADDRESSES)


def lasting(value):
    """Without the members of answers that differ each time."""
    if isinstance(value, dict):
        return {name: lasting(member) for name, member in value.items() if not VOLATILE.search(name)}
    if isinstance(value, str):  # "0.731:3:three", a class of V2: its number depends on the batch
        return re.sub(r"^-?\d+\.\d+:", "", value)
    return [lasting(member) for member in value] if isinstance(value, list) else value


class Asked(Job):
    """A request of a test."""

    def learn(self, server):
        """Returns whether it is still answered. What two answers in a row have in common must be in the later ones."""
        first, second = self.ask(server), self.ask(server)
        if first.status >= 400 or second.status >= 400:
            return False
        good = self.read(first) if self.method != "GET" else None
        self.good = good if good is not None and sweep.same_answer(good, self.read(second), False) else None
        return True

    @staticmethod
    def read(answer):
        is_json = answer.headers["Content-Type"] == "application/json" and "Content-Encoding" not in answer.headers
        return lasting(answer.json()) if is_json else None

    def is_good(self, answer, may_fail):
        """The result of a stage may be missing where its error is told."""
        return (may_fail and b'"code":"out_of_memory"' in answer.body) or super().is_good(answer, may_fail)

    @staticmethod
    def sentence(error):
        """Each API has its own form of an error."""
        inner = error.get("error")
        return inner.get("message") if isinstance(inner, dict) else inner or error.get("message") or error.get("detail")

    def check(self, server):
        answer = self.ask(server)
        if answer.status >= 400 or not self.is_good(answer, False):
            raise Broken(f"afterwards {self.name} is answered {answer.status} {answer.body[:300]}")


class Replayed(FaultyServer):
    """Remembers what it is asked. Before it stops it is asked so again."""

    def __init__(self, *arguments, **options):
        self.asked, self.is_replay, self.problems = {}, False, []
        self.outcomes = {"good": 0, "error": 0, "lost": 0}
        # A precision that changes between two requests changes the answer. A test's own --precision is stronger.
        environment = {"LENSD_PRECISION": "fp32", **(options.pop("environment", None) or {})}
        super().__init__(*arguments, prepare=keep_addresses, environment=environment, **options)

    def request(self, method, path, body=None, headers=None, timeout=harness.PATIENCE):
        answer = super().request(method, path, body, headers, timeout)
        if not self.is_replay and answer.status < 400 and path not in ("/livez", "/readyz", "/metrics"):
            key = (method, path, body, tuple(sorted((headers or {}).items())))
            self.asked.setdefault(key, Asked(f"{method} {path}", method, path, body, headers))
        return answer

    def new_allocations(self, job):
        self.faults.set("memory", CALLS, 0)
        self.faults.record()
        job.check(self)
        self.faults.record(False)
        return sweep.spread(self.faults.recorded("memory", seen=SEEN), None if WHOLE else SAMPLE)

    def replay(self, job):
        def may_lose():
            return self.faults.get("memory", FAILED) > 0 and self.may_lose("memory")
        for n in self.new_allocations(job):
            self.faults.fail("memory", n)
            self.outcomes[job.outcome(self, may_lose)] += 1
            self.faults.stop()
            job.check(self)

    def stop(self):
        self.is_replay = True
        for job in self.asked.values():
            try:
                if self.process.poll() is None and job.learn(self):
                    self.replay(job)
            except (Broken, OSError) as cause:
                self.problems.append(sweep.explain("memory", job.name, self, cause)[:1000])
                self.faults.stop()
        code, log = super().stop()
        if code < 0 and code != -signal.SIGKILL:
            self.problems.append(f"lensd ended with {code}")
        if self.problems:
            raise Broken("\n\n".join(self.problems))
        if WHOLE:
            print(f"{len(self.asked)} requests: {self.outcomes}", file=sys.stderr, flush=True)
        return code, log


def run_replayed(*arguments, environment=None, timeout=harness.PATIENCE):
    """In the place of run_lensd(). Returns how the command ended at first. Later it may fail, with a sentence, or do the same."""
    run, environment = harness.run_lensd, environment or {}
    if not {"predict", "inspect", "quantize", "key", "devices"} & {*arguments}:
        return run(*arguments, environment=environment, timeout=timeout)
    with tempfile.TemporaryDirectory(prefix="lensd-faults-") as folder:
        faults = sweep.Faults(folder)
        environment = {**environment, **faults.environment()}
        faults.record()
        good = run(*arguments, environment=environment, timeout=timeout)
        faults.record(False)
        for n in sweep.spread(faults.recorded("memory", seen=SEEN), None if WHOLE else SAMPLE):
            faults.set("memory", CALLS, 0)
            faults.fail("memory", n)
            ended = run(*arguments, environment=environment, timeout=timeout)
            is_right = without_numbers(ended.stdout) == without_numbers(good.stdout) if ended.returncode == 0 else \
                ended.returncode in (1, 2) and sweep.sentence_of(ended.stderr)
            if not is_right:
                PROBLEMS.append(f"{arguments}, allocation {n} at {faults.where('memory')}: {ended}")
    return good


def without_numbers(text):
    return re.sub(r"\b[0-9a-f.]+\b", "#", text)


def end(server):
    """In the place of FolderCase.end(), which kills what a test has left behind."""
    if not server.log_file.closed:
        server.stop()


class Replay(unittest.TestCase):
    modules = QUICK

    def replay(self, module):
        out = io.StringIO()
        with contextlib.ExitStack() as patches:
            patches.enter_context(unittest.mock.patch.object(harness.FolderCase, "end", staticmethod(end)))
            names = {"run_lensd": run_replayed}
            if module.__name__[len("test_"):] not in COMMANDS:
                names["Server"] = Replayed
                patches.enter_context(unittest.mock.patch.object(harness, "Server", Replayed))
            for name in names:
                if hasattr(module, name):
                    patches.enter_context(unittest.mock.patch.object(module, name, names[name]))
            result = unittest.TextTestRunner(out).run(unittest.defaultTestLoader.loadTestsFromModule(module))
        self.assertGreater(result.testsRun, 0)
        self.assertTrue(result.wasSuccessful(), out.getvalue())
        self.assertEqual(PROBLEMS, [])

    def test_memory(self):
        for name in self.modules:
            with self.subTest(name):
                self.replay(importlib.import_module("test_" + name))
        self.assertGreater(len(SEEN), 100, "hardly an allocation has failed")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="let every call fail in turn")
    parser.add_argument("modules", nargs="*", help=f"of {' '.join(ALL)}")
    options = parser.parse_args()
    WHOLE = options.whole
    Replay.modules = options.modules or (ALL if WHOLE else QUICK)
    unittest.main(argv=sys.argv[:1])
