"""The log: a line a request with everything in it and nothing secret, traces, levels at run time."""

import json
import os
import re
import signal
import subprocess
import tempfile
import unittest

import harness
from harness import FolderCase, ServedCase, Server, multipart, seven, drawn

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class LoggedCase(ServedCase):
    def line(self, request_id):
        return self.server.wait_log(request_id)[0]


class Json(LoggedCase):
    arguments = ("--log-format", "json")

    def entry(self, request_id):
        return json.loads(self.line(request_id))

    def test_a_prediction(self):
        answer = self.server.predict(seven(), "/predict?top_k=2", {"X-Request-Id": "one"})
        entry = self.entry("one")
        self.assertEqual({**entry, "time": 0, "ms": 0, "decode_ms": 0, "preprocess_ms": 0, "queue_ms": 0,
                          "forward_ms": 0},
                         {"time": 0, "level": "info", "event": "request", "client": "127.0.0.1", "id": "one",
                          "method": "POST", "path": "/predict", "status": 200, "outcome": "answered",
                          "model": "digits", "images": 1, "bytes_in": len(seven()), "bytes_out": len(answer.body),
                          "ms": 0, "decode_ms": 0, "preprocess_ms": 0, "queue_ms": 0, "forward_ms": 0})
        self.assertRegex(entry["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        timing = answer.json()["timing_ms"]
        for phase in ("decode", "preprocess", "queue", "forward"):
            self.assertAlmostEqual(entry[phase + "_ms"], timing[phase], places=3)
        self.assertGreater(entry["ms"], entry["decode_ms"] + entry["forward_ms"])

    def test_an_error(self):
        self.server.predict(b"no image", headers={"X-Request-Id": "two"})
        entry = self.entry("two")
        self.assertEqual((entry["status"], entry["code"]), (415, "unsupported_media_type"))
        self.server.request("GET", "/nowhere?secret=1", headers={"X-Request-Id": "three"})
        entry = self.entry("three")
        self.assertEqual((entry["status"], entry["path"], "forward_ms" in entry), (404, "/nowhere", False))

    def test_several_images(self):
        kind, body = multipart([("image", "a.png", drawn(i)) for i in range(4)])
        self.server.predict(body, headers={"Content-Type": kind, "X-Request-Id": "four"})
        self.assertEqual(self.entry("four")["images"], 4)

    def test_traces(self):
        given = f"00-{TRACE}-{SPAN}-01"
        answer = self.server.request("GET", "/v2", headers={"traceparent": given, "X-Request-Id": "five"})
        version, trace, span, flags = answer.headers["traceparent"].split("-")
        self.assertEqual((version, trace, flags), ("00", TRACE, "01"))
        self.assertRegex(span, "^[0-9a-f]{16}$")
        self.assertNotEqual(span, SPAN)
        entry = self.entry("five")
        self.assertEqual((entry["trace"], entry["span"], entry["parent"]), (TRACE, span, SPAN))
        # One more has a span of its own; a version to come is read as far as it is known.
        other = self.server.request("GET", "/livez", headers={"traceparent": f"01-{TRACE}-{SPAN}-00-more"})
        self.assertTrue(other.headers["traceparent"].startswith(f"00-{TRACE}-"))
        self.assertNotEqual(other.headers["traceparent"].split("-")[2], span)

    def test_a_refusal_carries_the_trace(self):
        answer = self.server.request("GET", "/nowhere", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
        self.assertIn(TRACE, answer.headers["traceparent"])

    def test_traces_that_are_none(self):
        for given in ("", "x", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-0", f"00-{TRACE}-{SPAN}-01-more",
                      f"ff-{TRACE}-{SPAN}-01", f"00-{TRACE.upper()}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01",
                      f"00-{TRACE}-{'0' * 16}-01", f"00_{TRACE}_{SPAN}_01", f"00-{TRACE[:-1]}-{SPAN}-011",
                      f"00-{TRACE}-{SPAN}-0g", "00-" + "a" * 5000):
            answer = self.server.request("GET", "/livez", headers={"traceparent": given})
            self.assertEqual((answer.status, answer.headers["traceparent"]), (200, None), given)


class Ids(LoggedCase):
    def test_kept_or_made(self):
        for given, kept in (("abc-1.2:3/4+5=@_", True), ("a" * 128, True), ("a" * 129, False), ("a b", False),
                            ("a\tb", False), ('"', False), ("", False)):
            answer = self.server.request("GET", "/livez", headers={"X-Request-Id": given})
            echoed = answer.headers["X-Request-Id"]
            self.assertEqual(echoed == given, kept, given)
            if not kept:
                self.assertRegex(echoed, "^[0-9a-f]{16}$")

    def test_text(self):
        self.server.predict(seven(), headers={"X-Request-Id": "six", "traceparent": f"00-{TRACE}-{SPAN}-01"})
        self.assertRegex(self.line("six"), (
            r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d info  request client=127\.0\.0\.1 id=six trace=" + TRACE +
            r" span=[0-9a-f]{16} parent=" + SPAN + r" method=POST path=/predict status=200 outcome=answered "
            r"model=digits images=1 bytes_in=\d+ bytes_out=\d+ decode_ms=[\d.]+ preprocess_ms=[\d.]+ "
            r"queue_ms=[\d.]+ forward_ms=[\d.]+ ms=[\d.]+$"))


class Levels(unittest.TestCase):
    def setUp(self):
        self.admins = tempfile.NamedTemporaryFile("w")
        self.addCleanup(self.admins.close)
        made = harness.run_lensd("key", "root")
        self.admins.write(made.stdout)
        self.admins.flush()
        self.key = {"X-API-Key": made.stderr.split("\n\n    ")[1].split("\n")[0]}
        self.server = Server("--admin-key-file", self.admins.name)
        self.addCleanup(lambda: self.assertEqual(self.server.stop()[0], 0))

    def settings(self, body=None, status=200):
        answer = self.server.request("POST" if body is not None else "GET", "/v2/logging", body, self.key)
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def ask(self, request_id):
        self.server.request("GET", "/v2", headers={"X-Request-Id": request_id})

    def assert_logged(self, request_id):
        self.ask(request_id)
        self.server.wait_log(f"id={request_id} ")

    def ask_in_silence(self, request_id):
        """Its line would be written behind the answer, before its connection is closed."""
        self.ask(request_id)
        self.server.wait_for(lambda: self.server.metric("lensd_http_connections") == 1, "only this connection")

    def assert_silence(self, request_id):
        """Lines keep their order: when a later request has its line, an earlier one without a line never gets one."""
        self.assertNotIn(f"id={request_id} ", self.server.log_so_far())

    def test_the_endpoint(self):
        default = {"log_file": "", "log_info": True, "log_warning": True, "log_error": True,
                   "log_verbose_level": 0, "log_format": "default"}
        self.assertEqual(self.settings(), default)
        self.assert_logged("a")
        self.assertEqual(self.settings('{"log_info": false}'), {**default, "log_info": False})
        self.ask_in_silence("b")
        self.assertEqual(self.settings('{"log_info": true, "log_verbose_level": 1}'),
                         {**default, "log_verbose_level": 1})
        self.assert_logged("after-b")
        self.assert_silence("b")
        self.assertEqual(self.settings('{"log_verbose_level": 0, "log_format": "json"}'),
                         {**default, "log_format": "json"})
        self.server.request("GET", "/v2", headers={"X-Request-Id": "c"})
        self.server.wait_entries(id="c")
        self.assertEqual(self.settings('{"log_format": "default"}'), default)
        self.server.wait_log(" info  log level=warn format=text by=root\n")

    def test_wrong_settings(self):
        for body, word in (('{"log_file": "/etc/passwd"}', "log_file"), ('{"log_colour": 1}', "unknown setting"),
                           ('{"log_info": 1}', "true or false"), ('{"log_verbose_level": -1}', "0 or more"),
                           ('{"log_format": "xml"}', "log_format"), ("[]", "one JSON object"), ("{", "JSON"),
                           ("", "JSON"), ('{"log_info": false, "log_error": 3}', "log_error")):
            self.assertIn(word, self.settings(body, 400)["error"])
        self.assertTrue(self.settings()["log_info"])

    def test_only_admins(self):
        # Reading it is no secret, as in Triton; only changing it is an admin's.
        self.assertEqual(self.server.get("/v2/logging").status, 200)
        self.assertEqual(self.server.request("POST", "/v2/logging", "{}").status, 401)
        answer = self.server.request("POST", "/v2/logging", '{"log_info": false}', {"X-API-Key": "wrong"})
        self.assertEqual(answer.status, 401)
        nobody = Server()
        try:
            answer = nobody.request("POST", "/v2/logging", '{"log_info": false}')
            self.assertEqual((answer.status, answer.json()["code"]), (403, "forbidden"))
        finally:
            self.assertEqual(nobody.stop()[0], 0)

    def test_signals(self):
        send = self.server.signal_logged
        send(signal.SIGUSR1, "log level=debug")
        self.assertEqual(self.settings()["log_verbose_level"], 1)
        self.server.signal(signal.SIGUSR1)  # there is no more
        send(signal.SIGUSR2, "log level=info")
        send(signal.SIGUSR2, "log level=warn")
        self.ask_in_silence("d")
        send(signal.SIGUSR1, "log level=info")
        self.assert_logged("e")
        self.assert_silence("d")


class Probes(LoggedCase):
    def ask(self, path):
        self.server.request("GET", path, headers={"X-Request-Id": path.strip("/") + "-asked"})
        return path.strip("/") + "-asked"

    def test_answers_to_probes_and_scrapes_are_debug(self):
        quiet = [self.ask(path) for path in ("/livez", "/readyz", "/health", "/metrics", "/v2/health/ready", "/v2/models/none/ready",
                                              "/v1/models/none", "/v1/status/ping")]
        loud = [self.ask(path) for path in ("/v2", "/v2/models/none")]
        for name in loud:
            self.assertIn(" info  request ", self.line(name))
        self.server.wait_metric("lensd_http_connections", 1)
        log = self.server.whole_log()
        for name in quiet:
            self.assertNotIn(name, log)
        self.server.signal_logged(signal.SIGUSR1, " log level=debug")
        self.assertIn(" debug request ", self.line(self.ask("/livez")))
        self.server.signal_logged(signal.SIGUSR2, " log level=info")


class Draining(FolderCase):
    def test_probes_that_are_told_to_wait_are_debug(self):
        server = self.serve("--drain-delay", "300")
        server.signal()
        server.wait_for(lambda: server.request("GET", "/readyz", headers={"X-Request-Id": "probe"}).status == 503, "the drain")
        for path, status in (("/v2/health/ready", 503), ("/health", 503), ("/ping", 503), ("/livez", 200), ("/v2/health/live", 200)):
            self.assertEqual(server.request("GET", path, headers={"X-Request-Id": "probe"}).status, status, path)
        self.assertEqual(server.predict(seven(), headers={"X-Request-Id": "photo"}).status, 200)
        server.wait_log(" id=photo ")
        server.signal(signal.SIGINT)
        server.wait()
        self.assertNotIn(" id=probe ", server.log())


class Journal(FolderCase):
    """Standard error is a file that JOURNAL_STREAM names, as systemd does with its stream."""

    def setUp(self):
        super().setUp()
        self.file = open(self.path("journal"), "w+b")
        self.addCleanup(self.file.close)
        info = os.fstat(self.file.fileno())
        self.environment = {"JOURNAL_STREAM": f"{info.st_dev}:{info.st_ino}", "LENSD_XYZZY_QUUX": "4"}

    def log_of(self, *arguments, stream=None):
        environment = {**self.environment, **({"JOURNAL_STREAM": stream} if stream else {})}
        server = self.serve(*arguments, environment=environment, stderr=self.file.fileno())
        server.predict(b"no image")
        server.wait_for(lambda: re.search(rb"\bready\b", harness.read(self.path("journal"))), "the line after the start")
        server.stop()
        return harness.read(self.path("journal")).decode().splitlines()

    def test_text(self):
        lines = self.log_of()
        for start in ("<4>warn  environment ", "<6>info  ready ", "<6>info  request client=", "<6>info  stopped "):
            self.assertTrue([line for line in lines if line.startswith(start)], (start, lines))
        self.assertEqual([line for line in lines if not re.match("<[3467]>[a-z]+ ", line)], [])

    def test_json(self):
        for line in self.log_of("--log-format", "json"):
            self.assertRegex(line, r'^<[3467]>\{"time":"')
            self.assertEqual(json.loads(line[3:])["level"], {"<4>": "warn", "<6>": "info"}[line[:3]])

    def test_the_journal_of_another_process(self):
        self.assertRegex(self.log_of(stream="1:1")[0], r"^\d{4}-\d\d-\d\dT")

    def test_an_error_at_start(self):
        for arguments in (["serve", "--no-such-option"], ["serve", "--port", "0", "/no/such/model"]):
            subprocess.run([harness.BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.file,
                           env={**os.environ, **self.environment}, check=False, timeout=harness.PATIENCE)
            self.assertTrue(harness.read(self.path("journal")).decode().splitlines()[-1].startswith("<3>lensd: "))


class StalledReader(FolderCase):
    """Nobody reads what lensd writes, and a pipe holds 64 KiB."""

    def pipe(self):
        """Buffered to read from; a descriptor to write to."""
        reader, writer = os.pipe()
        reader = open(reader, "rb")
        self.addCleanup(reader.close)
        return reader, writer

    def serve_stalled(self, *arguments):
        """A server that has lost lines."""
        reader, writer = self.pipe()
        server = self.serve(*arguments, stderr=writer)
        os.close(writer)
        sent = 0
        while server.metric("lensd_log_lines_lost_total") == 0:
            for _ in range(100):
                server.request("GET", "/" + "x" * 1000, headers={"X-Request-Id": f"number-{sent}"})
                sent += 1
        return server, reader

    def test_requests_and_the_end_do_not_wait(self):
        server, reader = self.serve_stalled()
        self.assertEqual(server.get("/livez").status, 200)
        self.assertEqual(server.predict(seven()).status, 200)
        self.assert_ended(server)
        self.assertIn(b" info  ready model=digits ", reader.read())

    def test_a_second_signal_does_not_wait(self):
        server, _ = self.serve_stalled("--drain-delay", "300")
        server.signal()
        server.wait_for(lambda: server.get("/readyz").status == 503, "the drain")
        server.signal(signal.SIGINT)
        self.assertEqual(server.wait(), 128 + signal.SIGINT)

    def test_a_reader_that_wakes(self):
        """The oldest lines come in their order, then the number of those that are missing, then new lines."""
        server, reader = self.serve_stalled()
        seen, line = [], b""
        while b" warn  log lines lost lines=" not in line:
            line = reader.readline()
            seen += re.findall(rb" id=number-(\d+) ", line)
        self.assertGreater(len(seen), 200)
        self.assertEqual(seen, [b"%d" % i for i in range(len(seen))])
        told = int(re.search(rb" lines=(\d+) ", line)[1])
        self.assertEqual(server.metric("lensd_log_lines_lost_total"), told)
        server.predict(seven(), headers={"X-Request-Id": "later"})
        self.assert_ended(server)
        rest = reader.read()
        self.assertIn(b" id=later ", rest)
        self.assertNotIn(b" lost ", rest)
        self.assertRegex(rest.splitlines()[-1], rb" info  stopped all_answered=true$")

    def test_standard_output(self):
        """The log goes on without the start message."""
        _, writer = self.pipe()
        os.set_blocking(writer, False)
        os.write(writer, bytes(1 << 20))
        os.set_blocking(writer, True)
        server = self.serve(stdout=writer)
        os.close(writer)
        server.wait_log(" info  ready model=digits ")
        server.wait_log(" warn  log lines lost lines=1 ")
        self.assertEqual(server.predict(seven()).status, 200)
        self.assert_ended(server)


class Environment(unittest.TestCase):
    def log_of(self, environment, *arguments):
        server = Server(*arguments, environment=environment)
        code, log = server.stop()
        self.assertEqual(code, 0, log)
        return log

    def test_a_slip_of_the_finger(self):
        log = self.log_of({"LENSD_MAX_BACTH": "4"})
        self.assertIn("variables that lensd does not know: LENSD_MAX_BACTH (did you mean LENSD_MAX_BATCH?)", log)
        log = self.log_of({"LENSD_XYZZY_QUUX": "4", "LENSD_PROT": "1", "LENSD_CUDA_TUNING": "off", "LENSD_CUDA_GRAPHS": "off"})
        for name in ("LENSD_XYZZY_QUUX", "LENSD_PROT (did you mean LENSD_PORT?)"):
            self.assertIn(name, log)
        self.assertNotIn("LENSD_CUDA", log)

    def test_settings_without_effect(self):
        log = self.log_of({}, "--watch", "--ready", "strict")
        self.assertIn("--watch has no effect: the built-in model has no files", log)
        self.assertIn("--ready strict has no effect without --models", log)

    def test_what_kubernetes_says_of_a_service_called_lensd(self):
        log = self.log_of({"LENSD_SERVICE_HOST": "10.0.0.1", "LENSD_SERVICE_PORT": "80",
                           "LENSD_PORT": "tcp://10.0.0.1:80", "LENSD_PORT_80_TCP_ADDR": "10.0.0.1"})
        self.assertNotIn("does not know", log)

    def test_forms(self):
        self.assertTrue(self.log_of({"LENSD_LOG_FORMAT": "json"}).startswith("{"))
        self.assertTrue(self.log_of({"LENSD_LOG": "json"}).startswith("{"))
        self.assertTrue(self.log_of({}, "--log-format", "auto").startswith("{"))
        self.assertFalse(self.log_of({}).startswith("{"))


if __name__ == "__main__":
    unittest.main()
