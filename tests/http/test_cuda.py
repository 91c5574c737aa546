"""A server on GPUs that are the stand-in's (tests/fake_cuda): which devices are chosen, two of them
share one queue, one that is lost is set aside, memory, and what is said of all this."""

import contextlib
import glob
import http.client
import os
import re
import threading
import time
import unittest

import small_onnx
from harness import FolderCase, Server, flat_png, read, run_lensd, together

PLAIN = ("--precision", "fp32", "--workers", "2")


class CudaCase(FolderCase):
    def setUp(self):
        super().setUp()
        self.orders_path = self.path("orders")
        self.environment = {"FAKE_CUDA_ORDERS": self.orders_path}
        self.orders()

    def orders(self, *more, devices=2, memory=1 << 30):
        """What the fake does from now on."""
        with open(self.orders_path + ".new", "w") as file:
            file.write("\n".join((f"devices {devices}", f"memory {memory}", *more)) + "\n")
        os.replace(self.orders_path + ".new", self.orders_path)

    def serve(self, *arguments, environment=None):
        server = super().serve(*arguments, environment={**self.environment, **(environment or {})})
        self.addCleanup(self.assert_ended, server)
        return server

    def model(self, channels=8):
        path = self.path("small.onnx")
        small_onnx.convolutions(path, 1, side=16, channels=channels)
        return path


def device(server, name):
    return next(d for d in server.get("/devices").json()["devices"] if d["id"] == name)


def classes(answer):
    return [(p["index"], round(p["probability"], 5)) for p in answer.json()["predictions"]]


class Serving(CudaCase):
    def test_a_photo_has_the_labels_that_the_cpu_gives_it(self):
        path = self.model()
        cpu = self.serve(path, "--device", "cpu", *PLAIN)
        gpu = self.serve(path, "--device", "cuda", *PLAIN)
        for i in range(3):
            where = "/predict?top_k=3"
            answer = gpu.predict(flat_png(9 * i), path=where)
            wanted = classes(cpu.predict(flat_png(9 * i), path=where))
            self.assertEqual(answer.json()["device"], "cuda:0")
            for (index, p), (wanted_index, wanted_p) in zip(classes(answer), wanted):
                self.assertEqual(index, wanted_index)
                self.assertAlmostEqual(p, wanted_p, delta=2e-4)

    def test_auto_takes_the_gpu_and_all_takes_all(self):
        server = self.serve(self.model(), "--device", "auto", *PLAIN)
        self.assertEqual(server.predict(flat_png(99)).json()["device"], "cuda:0")
        server = self.serve(self.model(), "--device", "all", *PLAIN)
        answers = together(24, lambda i: server.predict(flat_png(99)))
        self.assertEqual({answer.status for answer in answers}, {200})
        self.assertEqual(len({str(classes(answer)) for answer in answers}), 1)
        for name in ("cuda:0", "cuda:1"):
            self.assertEqual(len(device(server, name)["models"]), 1)
        self.assertEqual(device(server, "cpu")["models"], [])

    def test_confinement_is_wider(self):
        server = self.serve(self.model(), "--device", "cuda", *PLAIN)
        self.assertEqual(server.predict(flat_png(99)).status, 200)
        self.assertIn("seccomp", server.get("/health").json()["confinement"])
        self.assertIn(" (wider, for CUDA)", server.get("/health").json()["confinement"])

    def test_devices_that_are_not_there(self):
        for name, words in (("cuda:2", "device 'cuda:2' is not available"),
                            ("mps", "no MPS (Apple Metal) backend"),
                            ("cuda:0,mps", "no MPS (Apple Metal) backend")):
            ended = run_lensd("serve", "--device", name, "--check", environment=self.environment)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(words, ended.stderr)
            self.assertIn("cpu, cuda:0, cuda:1", ended.stderr)


class Faults(CudaCase):
    def test_a_lost_gpu_is_set_aside_and_the_other_one_goes_on(self):
        server = self.serve(self.model(), "--device", "all", *PLAIN)
        self.assertEqual(server.predict(flat_png(99)).status, 200)
        self.orders("break 1 700")

        def lost_devices():
            answers = together(8, lambda i: server.predict(flat_png(99)))
            self.assertEqual({answer.status for answer in answers}, {200})
            return server.get("/health").json()["models"][0].get("quarantined")
        (lost,) = server.wait_for(lost_devices, "a device to be set aside")
        self.assertEqual(lost["device"], "cuda:1")
        self.assertIn("an illegal memory access was encountered", lost["reason"])
        self.assertIn("restart lensd", lost["reason"])
        gpu = device(server, "cuda:1")
        self.assertFalse(gpu["usable"])
        self.assertIn("restart lensd", gpu["reason"])
        self.assertIn("illegal", gpu["models"][0]["quarantined"])
        self.assertEqual(server.get("/readyz").status, 200)
        self.assertEqual(server.metric(
            'lensd_device_quarantined{model="small",device="cuda:1"}'), 1)

    def test_with_no_gpu_left_there_is_503(self):
        server = self.serve(self.model(), "--device", "cuda", *PLAIN)
        self.orders("break 0 214")
        answer = server.predict(flat_png(99))
        self.assertEqual(answer.status, 503)
        self.assertIn("ECC", answer.json()["error"])
        self.assertEqual(server.predict(flat_png(99)).status, 503)
        self.assertEqual(server.get("/readyz").status, 503)
        self.assertEqual(server.get("/livez").status, 200)

    def test_a_gpu_that_works_again_is_taken_back(self):
        server = self.serve(self.model(), "--device", "cuda", *PLAIN)
        self.orders("fail 0 999")
        self.assertEqual(server.predict(flat_png(99)).status, 503)
        self.orders()
        server.wait_for(lambda: server.predict(flat_png(99)).status == 200, "the device")
        self.assertNotIn("quarantined", server.get("/health").json()["models"][0])


    def test_an_error_that_should_last_and_does_not(self):
        """A launch timeout: CUDA wants a new process, but if a pass works the GPU is taken back as it is."""
        server = self.serve(self.model(), "--device", "cuda:0", *PLAIN)
        expected = classes(server.predict(flat_png(99)))
        self.orders("fail 0 702")
        self.assertEqual(server.predict(flat_png(99)).status, 503)
        gpu = device(server, "cuda:0")
        self.assertFalse(gpu["usable"])
        self.assertIn("restart lensd", gpu["reason"])
        self.orders()
        server.wait_for(lambda: server.predict(flat_png(99)).status == 200, "the device")
        self.assertEqual(classes(server.predict(flat_png(99))), expected)
        self.assertTrue(device(server, "cuda:0")["usable"])
        self.assertEqual(server.metric('lensd_device_quarantined{model="small",device="cuda:0"}'), 0)

    def lost_under_load(self, server, error):
        """Statuses of 48 photos that are under way when cuda:0 breaks."""
        broken = threading.Timer(0.15, self.orders, (f"break 0 {error}", "delay 4000"))
        broken.start()
        answers = together(48, lambda i: server.predict(flat_png(i), path="/predict?top_k=1"))
        broken.join()
        return answers

    def test_a_gpu_lost_between_two_batches_leaves_no_request_unanswered(self):
        self.orders("delay 4000")  # so that copies, passes and answers of several batches overlap
        server = self.serve(self.model(), "--device", "all", *PLAIN)
        expected = [classes(server.predict(flat_png(i), path="/predict?top_k=1")) for i in range(48)]
        answers = self.lost_under_load(server, 700)
        self.assertEqual({answer.status for answer in answers}, {200})
        self.assertEqual([classes(answer) for answer in answers], expected)
        self.assertEqual(server.get("/readyz").status, 200)

    def test_the_only_gpu_lost_between_two_batches(self):
        self.orders("delay 4000")
        server = self.serve(self.model(), "--device", "cuda:0", *PLAIN)
        answers = self.lost_under_load(server, 719)
        self.assertLessEqual({answer.status for answer in answers}, {200, 503})
        self.assertEqual(server.predict(flat_png(1)).status, 503)
        self.assertEqual(server.get("/livez").status, 200)

    def test_time_of_batches_that_overlap_is_counted_once(self):
        self.orders("delay 3000")
        server = self.serve(self.model(), "--device", "cuda", *PLAIN)
        name = 'lensd_device_seconds_total{model="small",device="cuda:0"}'
        before, began = server.metric(name), time.monotonic()
        together(64, lambda i: server.predict(flat_png(i)))
        self.assertLessEqual(server.metric(name) - before, time.monotonic() - began)
        self.assertGreater(server.metric(name), before)


class Memory(CudaCase):
    def test_out_of_memory_for_a_while(self):
        self.orders("delay 2000")
        server = self.serve(self.model(), "--device", "cuda", *PLAIN)
        expected = [classes(server.predict(flat_png(i), path="/predict?top_k=2")) for i in range(24)]
        failures = 'lensd_forward_failures_total{model="small",device="cuda:0"}'

        def ask():
            answers = together(24, lambda i: server.predict(flat_png(i), path="/predict?top_k=2"))
            for answer, wanted in zip(answers, expected):
                if answer.status == 200:
                    self.assertEqual(classes(answer), wanted)
                else:
                    self.assertEqual(answer.status, 503, answer.body)
                    self.assertIn("out of memory", answer.json()["error"])
            return {answer.status for answer in answers}
        self.assertEqual(ask(), {200})
        self.orders("fail 0 2", "delay 2000")
        server.wait_for(lambda: ask() and server.metric(failures) > 0, "a failure")
        self.orders("delay 2000")
        server.wait_for(lambda: ask() == {200}, "an end of the failures")
        self.assertEqual(server.get("/readyz").status, 200)

    def test_a_limit_for_every_gpu(self):
        path = self.model(channels=32)
        free = device(self.serve(path, "--device", "cuda", *PLAIN), "cuda:0")
        self.assertEqual([b["size"] for b in free["models"][0]["batches"]], [1, 2, 4, 8])
        used = free["memory"]["used_by_lensd_bytes"]
        # As the device itself counts it.
        self.assertAlmostEqual(free["memory"]["total_bytes"] - free["memory"]["free_bytes"], used,
                               delta=8192)
        tight = device(self.serve(path, "--device", "cuda", *PLAIN, "--gpu-memory", str(used - 1)),
                       "cuda:0")
        self.assertEqual(tight["memory"]["limit_bytes"], used - 1)
        self.assertEqual([b["size"] for b in tight["models"][0]["batches"]], [1, 2, 4])
        self.assertIn("batches have at most 4 images", tight["models"][0]["note"])

    def test_what_others_have_taken_counts(self):
        path = self.model(channels=32)
        used = device(self.serve(path, "--device", "cuda", *PLAIN),
                      "cuda:0")["memory"]["used_by_lensd_bytes"]
        self.orders(memory=used + 4096 - used // 8)
        small = device(self.serve(path, "--device", "cuda", *PLAIN, "--memory", "8G"), "cuda:0")
        self.assertLess(small["models"][0]["batches"][-1]["size"], 8)
        ended = run_lensd("serve", path, "--device", "cuda", *PLAIN, "--max-batch", "8",
                          "--memory", "8G", "--check", environment=self.environment)
        self.assertNotEqual(ended.returncode, 0, ended.stdout)
        for words in ("a batch of 8 takes", "are missing", "--max-batch 4"):
            self.assertIn(words, ended.stderr)


class SharedCard(CudaCase):
    """Models of one GPU come, change and go while it serves. They lie beside the orders: of other folders a confined
    server can read none."""

    def put(self, name, channels):
        path = self.path(name + ".onnx")
        small_onnx.convolutions(path + ".new", 1, side=16, channels=channels)
        os.replace(path + ".new", path)

    def start(self, *more):
        return self.serve("--models", self.folder, "--device", "cuda:0", *PLAIN, *more)

    @staticmethod
    def ask(server, name):
        return server.predict(flat_png(99), path=f"/predict?model={name}&top_k=3")

    @contextlib.contextmanager
    def clients(self, server, names):
        """Clients of each model, until the end of the block or of the server; yields {name: [status, ...]}."""
        over, seen = threading.Event(), {name: [] for name in names}

        def client(name):
            while not over.is_set():
                try:
                    seen[name].append(self.ask(server, name).status)
                except (OSError, http.client.HTTPException):
                    if server.process.poll() is None and not over.is_set():
                        continue  # it drains: it accepts no connection any more
                    return

        threads = [threading.Thread(target=client, args=(name,)) for name in names for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            server.wait_for(lambda: all(len(each) > 5 for each in seen.values()), "answers")
            yield seen
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def test_two_models_share_it(self):
        self.put("one", 8)
        self.put("two", 16)
        server = self.start()
        expected = {name: classes(self.ask(server, name)) for name in ("one", "two")}
        self.assertNotEqual(expected["one"], expected["two"])
        names = ["one", "two"] * 12
        answers = together(24, lambda i: self.ask(server, names[i]))
        self.assertEqual([classes(answer) for answer in answers], [expected[name] for name in names])
        self.assertEqual(len(device(server, "cuda:0")["models"]), 2)

    def test_a_reload_under_load(self):
        self.put("one", 8)
        self.put("two", 16)
        server = self.start("--watch")
        used = device(server, "cuda:0")["memory"]["used_by_lensd_bytes"]
        first = classes(self.ask(server, "one"))
        with self.clients(server, ["one", "two"]) as seen:
            self.put("one", 24)
            server.wait_for(lambda: classes(self.ask(server, "one")) != first, "the new version")
            self.put("one", 8)
            server.wait_for(lambda: classes(self.ask(server, "one")) == first, "the old one again")
        self.assertEqual({status for each in seen.values() for status in each}, {200})
        server.wait_for(lambda: device(server, "cuda:0")["memory"]["used_by_lensd_bytes"] == used,
                        "the memory of what was replaced")

    def test_a_model_that_comes_to_a_full_card(self):
        self.put("one", 8)
        server = self.start("--watch")
        memory = device(server, "cuda:0")["memory"]
        self.orders(memory=memory["total_bytes"] - memory["free_bytes"] + 4096)
        with self.clients(server, ["one"]) as seen:
            self.put("two", 128)
            server.wait_log(re.compile("model not loaded.*(out of memory|are missing)"))
            self.assertEqual(self.ask(server, "two").status, 503)
            self.orders()
            self.put("two", 96)
            server.wait_for(lambda: self.ask(server, "two").status == 200, "the model, when there is room")
        self.assertEqual(set(seen["one"]), {200})

    def test_sigterm_under_load(self):
        self.orders("delay 3000")
        self.put("one", 8)
        self.put("two", 16)
        server = self.start()
        with self.clients(server, ["one", "two"]) as seen:
            server.signal()
            self.assertEqual(server.wait(), 0)
        self.assertLessEqual({status for each in seen.values() for status in each}, {200, 503})


class Tunings(CudaCase):
    """What is found out about a GPU's layers is kept for the next start."""

    def start(self, cache):
        """The lines of GPU layers in the cache of a server that was started and ended; its log."""
        server = Server(self.model(channels=64), "--device", "cuda", "--precision", "fp16",
                        "--max-batch", "1", environment={**self.environment, "LENSD_CACHE": cache})
        self.assertEqual(server.predict(flat_png(99)).status, 200)
        code, log = server.stop()
        self.assertEqual(code, 0, log[-3000:])
        lines = [line for path in self.files() for line in read(path).decode().splitlines()]
        return [line for line in lines if line.startswith("cuda ")], log

    def files(self):
        return glob.glob(os.path.join(self.folder, "cache", "tunings-*"))

    def test_a_second_start_knows(self):
        cache = self.path("cache")
        first, _ = self.start(cache)
        self.assertTrue(first)
        for line in first:
            self.assertRegex(line, r"^cuda [0-9a-f]{32} \d \d+ \d+$")
        second, log = self.start(cache)
        self.assertEqual(sorted(second), sorted(first))
        self.assertNotIn("warn  cache", log)

    def test_a_damaged_file_is_as_good_as_none(self):
        cache = self.path("cache")
        first, _ = self.start(cache)
        (path,) = self.files()
        with open(path, "rb") as file:
            whole = file.read()
        for damaged in (whole[:-3], whole.replace(b"tunings 1", b"tunings 2")):
            with open(path, "wb") as file:
                file.write(damaged)
            again, log = self.start(cache)
            self.assertEqual(sorted(line[:37] for line in again), sorted(line[:37] for line in first))
            self.assertRegex(log, "warn +cache .*is damaged")

    def test_nothing_is_kept_when_that_is_asked(self):
        self.start("none")
        self.assertEqual(self.files(), [])


class Metrics(CudaCase):
    def test_memory_of_gpus_that_are_not_used_is_the_drivers_word(self):
        folder = os.path.dirname(os.environ["FAKE_NVML"])
        self.orders(memory=8000000000)
        server = self.serve(self.model(), "--device", "cuda:0", *PLAIN,
                            environment={"LD_LIBRARY_PATH": folder})
        other = device(server, "cuda:1")["memory"]
        self.assertEqual(other["total_bytes"] - other["free_bytes"], 2000000000)

    def test_what_the_management_library_knows(self):
        folder = os.path.dirname(os.environ["FAKE_NVML"])
        server = self.serve(self.model(), "--device", "cuda", *PLAIN, environment={"LD_LIBRARY_PATH": folder})
        for name, value in (('nv_gpu_utilization{gpu_uuid="GPU-0"}', 0.37),
                            ('nv_gpu_utilization{gpu_uuid="GPU-1"}', 0.38),
                            ('nv_gpu_memory_total_bytes{gpu_uuid="GPU-0"}', 8e9),
                            ('nv_gpu_memory_used_bytes{gpu_uuid="GPU-1"}', 2e9),
                            ('nv_gpu_power_usage{gpu_uuid="GPU-0"}', 123.456),
                            ('nv_gpu_power_limit{gpu_uuid="GPU-0"}', 700),
                            ('nv_energy_consumption{gpu_uuid="GPU-0"}', 5000.5)):
            self.assertAlmostEqual(server.metric(name), value, places=3, msg=name)
        self.assertNotIn('nv_gpu_power_usage{gpu_uuid="GPU-1"}', server.get("/metrics").body.decode())

    def test_without_it_there_is_nothing(self):
        server = self.serve(self.model(), "--device", "cuda", *PLAIN,
                            environment={"LD_LIBRARY_PATH": ""})
        has_gpus = 'gpu_uuid="GPU-0"' in server.get("/metrics").body.decode()
        self.assertFalse(has_gpus, "the stand-in's GPUs are shown")


if __name__ == "__main__":
    unittest.main(verbosity=2)
