"""Runs servers of which chosen calls fail (faults.c), and checks what they do."""

import contextlib
import mmap
import os
import struct
import sys
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "http")]
sys.dont_write_bytecode = True

import harness  # noqa: E402
from test_tls import TlsServer  # noqa: E402

LIBRARY = os.environ.get("FAULTS_LIBRARY", os.path.join(harness.ROOT, "build", "tests", "faults", "libfaults.so"))
KINDS = ("memory", "read", "write", "accept", "thread", "disk", "stuck")  # as in faults.c

# struct fault_control of faults.c. Numbers are written whole ("@q"), because the server reads them meanwhile.
WHERE_BYTES, STACKS = 1000, 1 << 17
FAULT_BYTES = 5 * 8 + WHERE_BYTES
CALLS, FIRST, LAST, FAILED, ERROR, WHERE = range(0, 48, 8)
CLOCK = FAULT_BYTES * len(KINDS)
THREAD, RECORDS, RECORDED = CLOCK + 8, CLOCK + 16, CLOCK + 24


class Faults:
    """The control file of a process: which calls fail, and the counters."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "faults")
        with open(self.path, "wb") as file:
            file.truncate(RECORDED + 4 * STACKS * len(KINDS))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)

    def environment(self):
        return {"LD_PRELOAD": LIBRARY, "FAULTS_CONTROL": self.path}

    def get(self, kind, field):
        return struct.unpack_from("@q", self.map, KINDS.index(kind) * FAULT_BYTES + field)[0]

    def set(self, kind, field, value):
        struct.pack_into("@q", self.map, KINDS.index(kind) * FAULT_BYTES + field, value)

    def only(self, thread):
        """From now on calls of this thread alone are counted and fail."""
        struct.pack_into("@q", self.map, THREAD, thread)

    def fail(self, kind, n, count=1, error=0):
        """Lets `count` calls fail, from the n-th call from now on."""
        self.set(kind, FIRST, 0)
        self.set(kind, ERROR, error)
        self.set(kind, FAILED, 0)
        first = self.get(kind, CALLS) + n
        self.set(kind, LAST, first + count - 1)
        self.set(kind, FIRST, first)

    def stop(self):
        """Nothing fails any more. Returns how many calls have."""
        failed = 0
        for kind in KINDS:
            self.set(kind, FIRST, 0)
            failed += self.get(kind, FAILED)
            self.set(kind, FAILED, 0)
        return failed

    def where(self, kind):
        at = KINDS.index(kind) * FAULT_BYTES + WHERE
        return self.map[at:at + WHERE_BYTES].split(b"\0")[0].decode(errors="replace")

    def record(self, on=True):
        struct.pack_into("@q", self.map, RECORDS, on)

    def recorded(self, kind, begin=0, seen=None):
        """Of the calls behind number `begin`: the numbers of those that were the first with their callers, which are added to
        `seen`."""
        count = min(self.get(kind, CALLS), STACKS)
        stacks = struct.unpack_from(f"<{count}I", self.map, RECORDED + 4 * STACKS * KINDS.index(kind))
        seen, firsts = set() if seen is None else seen, []
        for i in range(begin, count):
            if stacks[i] not in seen:
                seen.add(stacks[i])
                firsts.append(i + 1)
        return firsts

    def set_clock(self, seconds):
        struct.pack_into("@q", self.map, CLOCK, int(seconds * 1e9))


class Broken(AssertionError):
    """The server did what no fault may cause."""


def sentence_of(stderr):
    """The sentence that a failed start ends with."""
    lines = [line for line in stderr.splitlines() if line.startswith("lensd: ")]
    return lines[-1] if lines and len(lines[-1]) > len("lensd: ") + 8 else None


class FaultyServer(harness.Server):
    """A server with faults.c in it. It may have ended before it was ready: `ended` is then its exit status."""

    def __init__(self, *arguments, plan=lambda faults: None, **options):
        self.control = tempfile.TemporaryDirectory(prefix="lensd-faults-")
        self.faults = Faults(self.control.name)
        self.ended = None
        plan(self.faults)
        environment = {**self.faults.environment(), **options.pop("environment", {})}
        try:
            super().__init__(*arguments, environment=environment, **options)
        except AssertionError:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
                raise
            self.ended = self.process.returncode

    def may_lose(self, kind):
        """Whether the call that failed was one without which nothing can be sent."""
        return kind in ("read", "write", "accept") or is_lost_below(self.faults.where(kind))

    def stop(self):
        try:
            return super().stop()
        finally:
            self.control.cleanup()


class FaultyTlsServer(TlsServer, FaultyServer):
    def may_lose(self, kind):
        return True  # an answer without memory cannot be encrypted


@contextlib.contextmanager
def serving(*arguments, kind=FaultyServer, **options):
    server = kind(*arguments, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        if not server.log_file.closed:
            server.stop()


def same_answer(found, good, may_fail):
    """Equal but for times, and for numbers that differ in their last digits. `may_fail`: some of several images may have
    an error instead."""
    if isinstance(good, dict):
        if may_fail and isinstance(found, dict) and found.get("error") and found.get("code"):
            return True
        keys = set(good) - {"id", "batch", "timing_ms"}
        return isinstance(found, dict) and all(k in found and same_answer(found[k], good[k], may_fail) for k in keys)
    if isinstance(good, list):
        return isinstance(found, list) and len(found) == len(good) and \
            all(same_answer(a, b, may_fail) for a, b in zip(found, good))
    if isinstance(good, float):
        return isinstance(found, (int, float)) and abs(found - good) <= 1e-3 * max(1.0, abs(good))
    return found == good


class Job:
    """A request, and its answer from a sound server."""

    def __init__(self, name, method, path, body=None, headers=None):
        self.name, self.method, self.path, self.body, self.headers = name, method, path, body, headers or {}
        self.good = None

    def ask(self, server):
        return server.request(self.method, self.path, self.body, self.headers)

    def learn(self, server):
        answer = self.ask(server)
        if answer.status != 200:
            raise AssertionError(f"{self.name}: {answer.status} {answer.body[:300]}")
        self.good = self.read(answer)

    @staticmethod
    def read(answer):
        return answer.json() if answer.headers["Content-Type"] == "application/json" else None

    def check(self, server):
        """Without any fault."""
        answer = self.ask(server)
        if answer.status != 200 or not self.is_good(answer, False):
            raise Broken(f"afterwards {self.name} is answered {answer.status} {answer.body[:300]}")

    @staticmethod
    def sentence(error):
        return error.get("error")

    def is_good(self, answer, may_fail):
        return self.good is None or same_answer(self.read(answer), self.good, may_fail)

    def outcome(self, server, may_lose):
        """Asks while a call fails: "good", "error" or "lost"; raises Broken for anything else."""
        try:
            answer = self.ask(server)
        except TimeoutError as error:
            raise Broken(f"{self.name} is never answered") from error
        except (OSError, harness.http.client.HTTPException) as error:
            if server.process.poll() is not None:
                raise Broken(f"lensd ended with {server.process.returncode}") from error
            if may_lose():
                return "lost"
            raise Broken(f"{self.name} is not answered: {error!r}") from error
        if answer.status < 400:
            try:
                good = self.is_good(answer, True)
            except ValueError as error:
                raise Broken(f"{self.name}: {error}: {answer.body[:300]}") from error
            if not good:
                raise Broken(f"{self.name} is answered wrongly: {answer.body[:300]}")
            return "good"
        if self.method == "HEAD" and answer.status >= 500:
            return "error"
        try:
            error = answer.json()
        except ValueError as cause:
            raise Broken(f"{self.name}: {answer.status} without JSON: {answer.body[:300]}") from cause
        if answer.status < 500 or not self.sentence(error):
            raise Broken(f"{self.name}: {answer.status} {answer.body[:300]}")
        return "error"


def is_lost_below(where):
    """Whether libmicrohttpd failed, which can only close the connection."""
    names = [frame.rsplit("+", 1)[0] for frame in where.split() if not frame.startswith("libc.so")]
    return bool(names) and names[0].startswith("libmicrohttpd")


def spread(numbers, most):
    """At most that many of them, evenly spaced."""
    if most is None or len(numbers) <= most:
        return numbers
    return [numbers[i * len(numbers) // most] for i in range(most)]


def explain(kind, n, server, error):
    return (f"{kind} {n}: {error}\n  failed in: {server.faults.where(kind)}\n"
            f"{server.log_so_far()[-3000:] if not server.log_file.closed else ''}")


def has_refused(server, kind="memory"):
    """Whether it has ended instead of getting ready, with a sentence and an exit status."""
    if server.ended is None:
        return False
    # Debian 13's libtiff brings libstdc++ along, whose clean-up at the end of a process allocates thread-local data; where
    # memory fails even then, the loader aborts after lensd's own sentence.
    if server.ended not in (1, 2) and not (server.ended == 127 and "memory for thread-local data: ABORT" in server.log()):
        raise Broken(f"the start ended with {server.ended}: {server.log()[-3000:]}")
    if not sentence_of(server.log()):
        raise Broken(f"the start failed without a sentence: {server.log()[-3000:]}")
    return True


def start_once(kind, n, arguments, jobs, count=1):
    """A start during which the n-th call fails, or `count` of them from there. Returns "ready" or "refused"."""
    with serving(*arguments, plan=lambda faults: faults.fail(kind, n, count)) as server:
        try:
            if has_refused(server, kind):
                return "refused"
            server.faults.stop()
            for job in jobs:
                job.check(server)
            code, log = server.stop()
            if code != 0:
                raise Broken(f"lensd ended with {code} on SIGTERM: {log[-3000:]}")
            return "ready"
        except (Broken, OSError) as error:
            raise Broken(explain(kind, n, server, error)) from error


def start_numbers(kind, arguments):
    """The calls of a start, one for each list of callers."""
    with serving(*arguments, plan=Faults.record) as server:
        if server.ended is not None:
            raise AssertionError(f"lensd ended with {server.ended}: {server.log()}")
        return server.faults.recorded(kind)


def request_sweep(server, kind, job, most=None, error=0):
    """Repeats a request; each time another of the calls that it needs fails. Returns how many requests were answered
    well, with an error, and not at all."""
    outcomes = {"good": 0, "error": 0, "lost": 0}
    faults = server.faults
    before = faults.get(kind, CALLS)
    job.check(server)
    needed = faults.get(kind, CALLS) - before
    for n in spread(list(range(1, needed + 10)), most):
        faults.fail(kind, n, error=error)
        def may_lose():
            return faults.get(kind, FAILED) > 0 and server.may_lose(kind)
        try:
            outcomes[job.outcome(server, may_lose)] += 1
            faults.stop()
            job.check(server)
        except (Broken, OSError) as cause:
            raise Broken(explain(kind, f"{job.name} {n}", server, cause)) from cause
    return outcomes
