"""/metrics: what it counts, that it adds up, and that Prometheus' own checker is content."""

import os
import re
import shutil
import subprocess
import time
import unittest

import small_onnx
from harness import FolderCase, PATIENCE, ServedCase, drawn, multipart, needs, run_lensd, seven

LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')

PHASES = {"read", "decode", "preprocess", "queue", "copy_in", "forward", "copy_out", "write"}


def samples(text):
    """{(name, frozenset of labels): value}"""
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = LINE.match(line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match.groups()
        key = (name, frozenset(LABEL.findall(labels or "")))
        assert key not in found, f"twice: {line!r}"
        found[key] = float(value)
    return found


class Metrics(ServedCase):
    # The test looks into /proc as another process: that must be allowed.
    arguments = ("--max-body", "1M", "--core-dumps")

    def read(self):
        answer = self.server.get("/metrics")
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
        return answer.body.decode()

    def value(self, name, **labels):
        return samples(self.read()).get((name, frozenset(labels.items())))

    def wait_value(self, expected, name, **labels):
        """Some are noted just after the answer has gone."""
        end = time.monotonic() + PATIENCE
        while self.value(name, **labels) != expected and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(self.value(name, **labels), expected)

    def test_phases_of_requests(self):
        def count(phase):
            labels = {"model": "digits", "phase": phase}
            if phase in ("copy_in", "forward", "copy_out"):
                labels["device"] = "cpu"
            return ("lensd_phase_seconds_count", labels)
        before = {phase: self.value(count(phase)[0], **count(phase)[1]) for phase in PHASES}
        kind, form = multipart([("a", "a.png", drawn(1)), ("b", "b.png", drawn(2))])
        self.assertEqual(self.server.predict(seven()).status, 200)
        self.assertEqual(self.server.predict(form, headers={"Content-Type": kind}).status, 200)
        for phase in PHASES:
            # Once a request, or once an image.
            more = 2 if phase in ("read", "write") else 3
            self.wait_value(before[phase] + more, count(phase)[0], **count(phase)[1])
        text = self.read()
        # One phase and all of them: the buckets are the same, and useful for a fast model.
        bounds = {line.split('le="')[1].split('"')[0] for line in text.splitlines()
                  if line.startswith("lensd_phase_seconds_bucket")}
        self.assertTrue({"1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10", "+Inf"} <= bounds)

    def test_requests_by_path(self):
        """Paths that clients make up are one series."""
        name = "lensd_http_path_requests_total"
        expected = {("/predict", "2xx"): 2, ("/predict", "4xx"): 1, ("other", "4xx"): 3, ("/v2/models/{model}", "2xx"): 1}
        before = {key: self.value(name, path=key[0], status=key[1]) or 0 for key in expected}
        for method, path, body in (("POST", "/predict", seven()), ("POST", "/predict?top_k=2", seven()), ("POST", "/predict", b"x"),
                                   ("GET", "/a", None), ("GET", "/b", None), ("GET", '/c"%0a', None),
                                   ("GET", "/v2/models/digits", None)):
            self.server.request(method, path, body)
        for key, more in expected.items():
            self.wait_value(before[key] + more, name, path=key[0], status=key[1])
        self.assertNotIn('path="/a"', self.read())

    def test_triton_names_add_up(self):
        labels = {"model": "digits", "version": "1"}
        names = ["request_success", "count", "exec_count", "request_duration_us",
                 "queue_duration_us", "compute_input_duration_us", "compute_infer_duration_us",
                 "compute_output_duration_us"]
        before = {name: self.value("nv_inference_" + name, **labels) for name in names}
        failed = self.value("nv_inference_request_failure", reason="OTHER", **labels)
        start = time.monotonic()
        for _ in range(10):
            self.assertEqual(self.server.predict(seven()).status, 200)
        spent_us = (time.monotonic() - start) * 1e6
        self.assertEqual(self.server.predict(b"no image").status, 415)
        self.wait_value(failed + 1, "nv_inference_request_failure", reason="OTHER", **labels)
        more = {name: self.value("nv_inference_" + name, **labels) - before[name] for name in names}
        self.assertEqual((more["request_success"], more["count"]), (10, 10))
        self.assertEqual(more["exec_count"], 10)
        parts = sum(more[name] for name in names[4:])
        self.assertGreater(more["compute_input_duration_us"], 0)
        self.assertGreater(more["compute_infer_duration_us"], 0)
        self.assertLessEqual(parts, more["request_duration_us"] * 1.001)
        self.assertLess(more["request_duration_us"], spent_us)
        for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
            self.assertIsNotNone(self.value("nv_inference_request_failure", reason=reason, **labels))
        self.wait_value(0, "nv_inference_pending_request_count", **labels)
        self.assertGreater(self.value("nv_model_load_duration_secs", **labels), 0)
        self.assertNotIn("nv_gpu_", self.read())  # there is none

    @needs("CPU time")
    def test_the_process_and_its_host(self):
        found = samples(self.read())
        none = frozenset()
        pid = self.server.process.pid
        self.assertLess(abs(found["process_start_time_seconds", none] - time.time()), 600)
        self.assertGreater(found["process_cpu_seconds_total", none], 0)
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.assertLess(abs(found["process_resident_memory_bytes", none] - resident), 64 << 20)
        self.assertGreater(found["process_virtual_memory_bytes", none], resident / 2)
        open_files = len(os.listdir(f"/proc/{pid}/fd"))
        self.assertLess(abs(found["process_open_fds", none] - open_files), 10)
        self.assertGreaterEqual(found["process_max_fds", none], open_files)
        self.assertGreater(found["process_threads", none], 2)
        self.assertTrue(0 <= found["nv_cpu_utilization", none] <= 1)
        version = run_lensd("--version").stdout.split()[-1]
        self.assertEqual(found["lensd_build_info", frozenset({("version", version)})], 1)
        self.assertLessEqual(found["nv_cpu_memory_used_bytes", none],
                             found["nv_cpu_memory_total_bytes", none])

    def test_histograms_are_whole(self):
        self.assertEqual(self.server.predict(seven()).status, 200)
        found = samples(self.read())
        for (name, labels), value in found.items():
            if not name.endswith("_bucket") or ("le", "+Inf") not in labels:
                continue
            family, rest = name[:-len("_bucket")], labels - {("le", "+Inf")}
            self.assertEqual(found[family + "_count", rest], value)
            buckets = sorted((float(dict(other)["le"]), number)
                             for (key, other), number in found.items()
                             if key == name and {l for l in other if l[0] != "le"} == rest)
            self.assertEqual([n for _, n in buckets], sorted(n for _, n in buckets), name)

    @unittest.skipUnless(shutil.which("promtool"), "promtool (Debian: prometheus) is not installed")
    def test_promtool_is_content(self):
        self.server.predict(seven())
        self.server.predict(b"no image")
        checked = subprocess.run(["promtool", "check", "metrics"], input=self.read(), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
        # 1: the text cannot be parsed; 3: only remarks about style, which Triton's names earn.
        self.assertIn(checked.returncode, (0, 3), checked.stdout)
        remarks = [line for line in checked.stdout.splitlines()
                   if line and not line.startswith("nv_")]
        self.assertEqual(remarks, [])


class FolderNames(FolderCase):
    def test_names_that_are_not_utf8(self):
        """Two of them stay apart."""
        names = [b"model\xff", b"model\xfe"]
        for name in names:
            path = os.path.join(self.folder, os.fsdecode(name))
            os.mkdir(path)
            small_onnx.doubled_image(os.path.join(path, "model.onnx"), 2)
        server = self.serve("--models", self.folder, "--precision", "fp32")
        found = samples(server.get("/metrics").body.decode())
        shown = {dict(labels)["model"] for _, labels in found if "model" in dict(labels)}
        self.assertEqual(shown, {r"model\\xff", r"model\\xfe"})
        self.assert_ended(server)


if __name__ == "__main__":
    unittest.main(verbosity=2)
