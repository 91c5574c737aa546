"""From the first moment to the last: loading, draining, signals, what may go wrong at the start."""

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import tempfile
import termios
import threading
import time
import unittest

import harness
import small_onnx
from harness import (FolderCase, HeldCase, hang_up, multipart, png, post, read_answer, read_to_end,
                     run_lensd, seven)


class Lifecycle(FolderCase):
    def never_loaded(self, name):
        """The folder of a model whose first pass never ends."""
        path = self.path(name)
        os.makedirs(path)
        small_onnx.loops_when_light(path, -1000)
        return path

    def slow_to_run(self):
        """Some ten milliseconds an image."""
        path = self.path("run.onnx")
        small_onnx.convolutions(path, 6)
        return path


class Start(Lifecycle):
    def test_the_port_is_open_before_the_model_is_loaded(self):
        server = self.serve(self.never_loaded("slow"), "--precision", "fp32", wait_ready=False)
        self.assertEqual(server.get("/livez").status, 200)
        answer = server.get("/health")
        self.assertEqual(answer.status, 503)
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        health = answer.json()
        self.assertEqual((health["status"], health["ready"]), ("loading", False))
        (model,) = health["models"]
        self.assertEqual((model["name"], model["state"]), ("slow", "loading"))
        self.assertTrue(0 <= model["progress"] < 1)
        self.assertIn(model["phase"], ("waiting", "reading", "optimising", "compiling", "measuring"))
        self.assertGreaterEqual(model["seconds_left"], 1)
        for path, word in (("/readyz", "loading"), ("/ping", "Unhealthy")):
            answer = server.get(path)
            self.assertEqual((answer.status, answer.json()["status"]), (503, word))
        answer = server.predict(seven())
        self.assertEqual((answer.status, answer.json()["code"]), (503, "not_ready"))
        self.assertIn("Retry-After", answer.headers)
        self.assertEqual(server.get("/devices").status, 200)
        self.assertEqual(server.get("/").status, 200)
        # Before it takes the body, if the client asks.
        with server.connect() as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                               b"Expect: 100-continue\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 503)
        for method, path in (("POST", "/predict"), ("POST", "/v2/models/slow/infer"), ("GET", "/v2/models/slow/stats")):
            answer = server.request(method, path, seven() if method == "POST" else None)
            self.assertEqual(answer.status, 503)  # every protocol says how long
            self.assertIn(f"try again in {answer.headers['Retry-After']} s", answer.json()["error"], path)
        self.assertNotIn(" ready ", self.assert_ended(server))

    def test_progress_only_rises(self):
        path, seen = self.path("slow.onnx"), []
        small_onnx.convolutions(path, 10, side=224)
        server = self.serve(path, "--precision", "fp32", "--max-batch", "8", wait_ready=False)

        def is_ready():
            answer = server.get("/health")
            seen.append(answer.json()["models"][0]["progress"])
            return answer.status == 200
        server.wait_for(is_ready, "readiness")
        self.assertEqual((seen, seen[-1]), (sorted(seen), 1))
        self.assert_ended(server)

    def test_a_model_that_is_ready_answers_while_another_is_loading(self):
        folder = self.path("models")
        os.makedirs(os.path.join(folder, "a"))
        small_onnx.classifier(os.path.join(folder, "a", "model.onnx"), layers=1, side=16, channels=4)
        self.never_loaded("models/z")
        server = self.serve("--models", folder, "--precision", "fp32", wait_ready=False)
        def answer_of_a():
            statuses.append(server.get("/readyz").status)
            return server.request("POST", "/predict?model=a", seven()).status
        statuses = []
        server.wait_for(lambda: answer_of_a() == 200, "the answer of a model that is ready")
        self.assertEqual(set(statuses), {503})
        self.assertIn("'z' is still loading", server.request("POST", "/predict?model=z", seven()).json()["error"])
        self.assert_ended(server)

    def test_a_pipeline_says_how_long_its_stage_takes_to_load(self):
        self.never_loaded("models/z")
        os.makedirs(self.path("models/a"))
        with open(self.path("models/a/pipeline.json"), "w", encoding="utf-8") as file:
            json.dump({"stages": [{"model": "z"}, {"model": "z"}]}, file)
        server = self.serve("--models", self.path("models"), "--precision", "fp32", wait_ready=False)
        # Its estimate grows.
        server.wait_for(lambda: int(server.get("/v2/models/z/stats").headers["Retry-After"]) > 1, "an estimate")
        for path in ("/predict?model=a", "/v2/models/a/infer"):
            answer = server.request("POST", path, seven())
            error = answer.json()["error"]
            self.assertIn("stage 1 of pipeline 'a': model 'z' is still loading", error, path)
            self.assertIn(f"try again in {answer.headers['Retry-After']} s", error, path)
        self.assert_ended(server)

    def test_one_friendly_line(self):
        server = self.serve()
        server.wait_log(" ready ")  # follows readiness
        self.assert_ended(server)
        url = f"http://127.0.0.1:{server.port}"
        first, second = server.output.splitlines()
        self.assertRegex(first, rf"^lensd serves digits at {url} on cpu with \d+ threads?; try it:$")
        self.assertEqual(second, f"  curl --data-binary @photo.jpg {url}/predict")

    def test_start_message_of_a_tensor_model(self):
        path = self.path("sum.onnx")
        small_onnx.sum_and_difference(path)
        server = self.serve(path)
        server.wait_log(" ready ")
        page = server.get("/").body.decode()
        url = f"http://127.0.0.1:{server.port}"
        answer = server.get("/v2/models/sum")
        log = self.assert_ended(server)
        first, second = server.output.splitlines()
        self.assertRegex(first, r"; list the model's input tensors:$")
        self.assertEqual((second, answer.status), (f"  curl {url}/v2/models/sum", 200))
        self.assertIn(f"{url}/v2/models/sum/infer", page)
        self.assertNotIn("@photo.jpg", page)
        self.assertNotIn("photos are prepared", log)

    def test_assumed_defaults_are_logged(self):
        path = self.path("plain.onnx")
        small_onnx.classifier(path, layers=1, side=16, channels=4)
        log = self.assert_ended(self.serve(path))
        self.assertRegex(log, r" warn +model model=plain text=\"no file says how to prepare photos, so lensd uses "
                              r"ImageNet defaults; put preprocessor_config.json")
        self.assertRegex(log, r" warn +model model=plain text=\"the model has no labels")
        folder = self.path("told")
        os.makedirs(folder)
        shutil.copy(path, os.path.join(folder, "model.onnx"))
        with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="utf-8") as file:
            json.dump({"size": {"height": 16, "width": 16}}, file)
        with open(os.path.join(folder, "labels.txt"), "w", encoding="utf-8") as file:
            file.write("".join(f"label {i}\n" for i in range(10)))
        self.assertNotIn(" warn ", self.assert_ended(self.serve(folder)))

    def test_logs_as_json(self):
        server = self.serve("--log", "json")
        server.request("GET", "/v2", headers={"X-Request-Id": "me"})
        server.wait_entries(event="ready")
        log = self.assert_ended(server)
        lines = [json.loads(line) for line in log.splitlines()]
        (request,) = [line for line in lines if line.get("id") == "me"]
        self.assertEqual((request["event"], request["path"], request["status"], request["client"]),
                         ("request", "/v2", 200, "127.0.0.1"))
        self.assertEqual([line["event"] for line in lines if line["event"] in ("ready", "stopped")],
                         ["ready", "stopped"])

    def test_quiet_logs(self):
        server = self.serve("--log-level", "warn")
        server.get("/livez")
        self.assertEqual(self.assert_ended(server), "")

    def test_options_from_environment_and_file(self):
        config = self.path("lensd.json")
        with open(config, "w", encoding="ascii") as file:
            json.dump({"max-body": 1000, "top_k": 3, "max-images": 2, "host": "127.0.0.1"}, file)
        server = self.serve("--top-k", "1", environment={"LENSD_CONFIG": config, "LENSD_TOP_K": "2",
                                                         "LENSD_MAX_IMAGES": "7"})
        self.assertEqual(len(server.predict(seven()).json()["predictions"]), 1)
        self.assertIn("the limit is 1000 ", server.predict(bytes(1001)).json()["error"])
        body = json.dumps({"images": [{"b64": ""}] * 8})
        self.assertIn("more than 7 images in one request", server.predict(body).json()["error"])
        self.assert_ended(server)

    def test_http_threads_follow_the_cores(self):
        quota = harness.read("/sys/fs/cgroup/cpu.max") if os.path.exists("/sys/fs/cgroup/cpu.max") else b"max"
        if not quota.startswith(b"max"):
            self.skipTest("a cgroup limits the CPU time")
        for arguments, count in (((), (len(os.sched_getaffinity(0)) + 7) // 8), (("--http-threads", "2"), 2)):
            server = self.serve(*arguments)
            folder = f"/proc/{server.process.pid}/task"
            names = [harness.read(f"{folder}/{task}/comm") for task in os.listdir(folder)]
            self.assertEqual(names.count(b"http\n"), count)
            self.assert_ended(server)

    def test_two_threads_for_http(self):
        server = self.serve("--http-threads", "3")
        def client(_):
            return [server.predict(seven()).status for _ in range(5)]
        self.assertEqual(harness.together(8, client), [[200] * 5] * 8)
        self.assert_ended(server)

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            self.skipTest("this machine has no IPv6")
        server = self.serve("--host", "::1", wait_ready=False)
        with socket.create_connection(("::1", server.port), timeout=harness.PATIENCE) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertEqual(read_answer(connection)[0].status, 200)
        server.wait_log(" ready ")
        self.assert_ended(server)
        self.assertIn(f"http://[::1]:{server.port}", server.output)


class WrongStarts(Lifecycle):
    def assert_refused(self, *arguments, words=(), environment=None, status=2):
        ended = run_lensd(*arguments, environment=environment)
        self.assertEqual(ended.returncode, status, ended.stderr)
        last = ended.stderr.splitlines()[-1]
        self.assertTrue(last.startswith("lensd: "), ended.stderr)
        for word in words:
            self.assertIn(word, last)
        return ended

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.assert_refused("serve", "--port", port, words=(port, "in use", "--port"), status=1)

    def test_a_second_server_on_the_same_port(self):
        server = self.serve()
        self.assert_refused("serve", "--port", str(server.port), words=("in use",), status=1)
        self.assertEqual(server.get("/livez").status, 200)
        self.assert_ended(server)

    def test_bad_options(self):
        table = (
            (("serve", "--prot", "1"), ("'--prot'", "'--port'")),
            (("serve", "--max-bdoy", "1"), ("--max-body",)),
            (("serve", "-p", "1"), ("-p", "--help")),
            (("serve", "--port"), ("--port", "needs a value")),
            (("serve", "--port", "http"), ("--port", "http", "65535")),
            (("serve", "--port", "65536"), ("65536",)),
            (("serve", "--port", "-1"), ("-1",)),
            (("serve", "--port", "0x50"), ("0x50",)),
            (("serve", "--port", " 80"), ("--port",)),
            (("serve", "--port", "99999999999999999999"), ("--port",)),
            (("serve", "--port="), ("--port",)),
            (("serve", "--host", ""), ("--host", "empty")),
            (("serve", "--host", "no.such.host.invalid", "--port", "0"), ("no.such.host.invalid",)),
            (("serve", "--threads", "1.5"), ("--threads", "1.5")),
            (("serve", "--max-body", "lots"), ("--max-body", "16M")),
            (("serve", "--max-body", "0"), ("--max-body",)),
            (("serve", "--max-body", "1M", "--max-upload-memory", "1000"), ("--max-upload-memory",)),
            (("serve", "--grace", "soon"), ("--grace", "seconds")),
            (("serve", "--grace", "nan"), ("--grace",)),
            (("serve", "--log", "xml"), ("--log-format", "text|json|auto")),
            (("serve", "--precision", "fp8"), ("--precision", "fp32|tf32|bf16")),
            (("serve", "--device", "mps"), ("mps", "cpu")),
            (("serve", "--device", "gpu"), ("gpu", "auto")),
            (("serve", "--config", "/nowhere.json"), ("/nowhere.json",)),
            (("serve", "a.onnx", "b.onnx"), ("b.onnx",)),
            (("serve", "--port-file", "/nowhere/port", "--port", "0"), ("/nowhere/port",)),
            (("predict",), ("PHOTO",)),
            (("predict", "digits"), ("PHOTO",)),
            (("predict", "digits", "x.png", "--port", "1"), ("--port",)),
            (("inspect",), ("MODEL",)),
            (("devices", "all"), ("all",)),
            (("sreve",), ("'serve'",)),
            (("--port", "80"), ("--port", "serve")),
        )
        for arguments, words in table:
            with self.subTest(arguments=arguments):
                ended = self.assert_refused(*arguments, words=words)
                self.assertEqual(len([line for line in ended.stderr.splitlines()
                                      if line.startswith("lensd:")]), 1)
                self.assertEqual(ended.stdout, "")

    def test_an_empty_model(self):
        """What `lensd serve "$M"` is without M is not the built-in model."""
        for arguments, name in ((("serve", ""), "MODEL"), (("serve", "--models", ""), "--models"),
                                (("serve", "--model-name", ""), "--model-name"),
                                (("serve", "--api-keys="), "--api-keys"), (("inspect", ""), "MODEL"),
                                (("predict", "", "7.png"), "MODEL")):
            self.assert_refused(*arguments, words=(name + " is empty; leave it out",))
        for name in ("LENSD_MODEL", "LENSD_MODELS"):
            self.assert_refused("serve", "--check", environment={name: ""}, words=(name + " is empty",))
            for arguments in (("digits",), ()):  # another names one
                other = {} if arguments else {"LENSD_MODEL" if name == "LENSD_MODELS" else "LENSD_MODELS":
                                              os.path.dirname(harness.DIGITS) + "/none"}
                ended = run_lensd("serve", "--check", *arguments, environment={name: "", **other})
                self.assertNotIn("is empty", ended.stderr)

    def test_bad_environment_and_file(self):
        self.assert_refused("serve", environment={"LENSD_PORT": "8o80"}, words=("LENSD_PORT", "8o80"))
        config = self.path("bad.json")
        for text, word in (("{", "byte"), ("[]", "object"), ('{"prot":1}', 'did you mean "port"? lensd serve --help lists the settings'),
                           ('{"xyzzyquux":1}', 'unknown setting "xyzzyquux"; lensd serve --help lists'),
                           ('{"port":null}', "port"), ('{"port":1,"port":2}', "twice"),
                           ('{"port":"x"}', "port"), ('{"config":"x"}', "config")):
            with open(config, "w", encoding="ascii") as file:
                file.write(text)
            with self.subTest(text=text):
                self.assert_refused("serve", "--config", config, words=("bad.json", word))

    def test_models_that_cannot_be_served(self):
        def file(name, data):
            with open(self.path(name), "wb") as out:
                out.write(data)
            return self.path(name)
        small_onnx.unknown_operator(self.path("odd.onnx"))
        for model, words in (("https://host.example/a.onnx", ("https://host.example", "download it first")),
                             (file("text.onnx", b"this is not a model"), ("text.onnx",)),
                             (file("none.onnx", b""), ("none.onnx",)),
                             (self.path("odd.onnx"), ("odd.onnx", "Frobnicate"))):
            with self.subTest(model=model):
                self.assert_refused("serve", model, "--port", "0", words=words)


class Drain(Lifecycle):
    def test_idle(self):
        server = self.serve("--grace", "1000")
        with server.connect() as idle:
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            read_answer(idle)
            server.signal()
            self.assertEqual(read_to_end(idle), b"")
        self.assertEqual(server.wait(), 0)
        self.assertIn("all_answered=true", server.log())

    def test_a_server_without_requests_takes_no_cpu(self):
        """Who waits sleeps: after a burst of requests nothing spins or polls."""
        server = self.serve("--precision", "fp32", "--threads", "2", "--workers", "2")
        for _ in range(20):
            self.assertEqual(server.predict(harness.seven()).status, 200)

        def has_slept():
            before = server.cpu_seconds()
            time.sleep(1.5)
            return server.cpu_seconds() - before < 0.06
        server.wait_for(has_slept, "a second and a half without work")
        server.signal()
        self.assertEqual(server.wait(), 0)

    def test_interrupt_ends_as_well(self):
        server = self.serve("--precision", "fp32")
        server.wait_log(" ready ")
        server.signal(signal.SIGINT)
        self.assertEqual(server.wait(), 0)
        self.assertIn("cause=SIGINT", server.log())
        self.assertIn(" precision=fp32 ", server.log())

    def test_a_closed_terminal_ends_it(self):
        """The kernel's SIGHUP is not that of an operator, which reloads."""
        process, log = self.close_terminal(signal.SIG_DFL)
        try:
            self.assertEqual(process.wait(harness.PATIENCE), 0)
        finally:
            process.kill()
            process.wait()
            log.close()
        self.assertIn(b"cause=SIGHUP", harness.read(log.name))

    def test_under_nohup_it_reloads_and_outlives_the_terminal(self):
        process, log = self.close_terminal(signal.SIG_IGN)
        try:
            end = time.monotonic() + harness.PATIENCE
            while harness.read(log.name).count(b" reloaded ") < 2 and time.monotonic() < end:
                process.send_signal(signal.SIGHUP)  # again: one that meets the kernel's is lost in it
                time.sleep(0.05)
            self.assertGreaterEqual(harness.read(log.name).count(b" reloaded "), 2)
            self.assertIsNone(process.poll())
        finally:
            process.kill()
            process.wait()
            log.close()

    def close_terminal(self, hangup):
        """Starts lensd in a terminal with SIGHUP as `hangup`, reloads it, closes the terminal."""
        master, slave = pty.openpty()
        port_file = self.path("port")
        log = open(self.path("log"), "wb")
        process = subprocess.Popen(
            [harness.BINARY, "serve", "--port", "0", "--port-file", port_file], stdin=slave,
            stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
            preexec_fn=lambda: (signal.signal(signal.SIGHUP, hangup), fcntl.ioctl(0, termios.TIOCSCTTY, 0)))
        os.close(slave)
        end = time.monotonic() + harness.PATIENCE
        while not os.path.exists(port_file) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGHUP)
        while b" reloaded " not in harness.read(log.name) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertIsNone(process.poll())
        os.close(master)
        return process, log

    def test_a_changed_config_needs_a_restart(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"top-k": 2}')
            file.flush()
            server = self.serve("--config", file.name)
            server.signal(signal.SIGHUP)
            self.assertIn("restart lensd", server.wait_log(f" warn  config file={file.name} ")[0])

    def test_delay_before_the_end_of_accepting(self):
        """The delay is longer than this test: nothing here depends on how quickly it asks."""
        server = self.serve("--drain-delay", "60")
        server.signal()
        server.wait_for(lambda: server.get("/readyz").status == 503, "the drain")
        health = server.get("/health")
        self.assertEqual((health.status, health.json()["status"]), (503, "draining"))
        self.assertEqual(server.get("/livez").status, 200)
        # Load balancers have not noticed yet: it still serves, and ends each connection.
        answer = server.predict(seven())
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.headers["Connection"], "close")
        server.process.kill()

    def test_the_delay_ends(self):
        server = self.serve("--drain-delay", "300ms")
        start = time.monotonic()
        server.signal()
        self.assertEqual(server.wait(), 0)
        self.assertGreaterEqual(time.monotonic() - start, 0.3)

    def test_an_upload_under_way_is_answered(self):
        server = self.serve()
        data = post("/predict", seven())
        with server.connect() as connection:
            connection.sendall(data[:500])
            server.wait_for(lambda: server.metric("lensd_http_upload_bytes") > 0, "the upload")
            server.signal()
            server.wait_for(lambda: self.is_closed_to_others(server), "the end of accepting")
            connection.sendall(data[500:])
            answer, _ = read_answer(connection)
            self.assertEqual((answer.status, answer.headers["connection"]), (200, "close"))
        self.assertEqual(server.wait(), 0)

    @staticmethod
    def is_closed_to_others(server):
        """Whether a new client is turned away: refused, or, while the door closes, not heard."""
        try:
            server.connect(0.2).close()
            return False
        except OSError:
            return True

    def test_grace_ends(self):
        server = self.serve("--grace", "500ms", "--body-timeout", "1000")
        with server.connect() as connection:
            connection.sendall(post("/predict", seven())[:-5])
            server.wait_for(lambda: server.metric("lensd_http_upload_bytes") > 0, "the upload")
            server.signal()
            self.assertEqual(server.wait(), 0)
        self.assertIn("all_answered=false", server.log())

    def test_a_second_signal_ends_it_at_once(self):
        end = time.monotonic() + harness.PATIENCE
        while not self.outlives_a_repeated_signal():
            self.assertLess(time.monotonic(), end, "a repeated signal always ends it")

    def outlives_a_repeated_signal(self):
        """False on a machine that is too busy: only within a second is the same signal taken for one sent twice."""
        server = self.serve("--grace", "1000", "--body-timeout", "1000")
        with server.connect() as connection:
            connection.sendall(post("/predict", seven())[:-5])
            server.wait_for(lambda: server.metric("lensd_http_upload_bytes") > 0, "the upload")
            server.signal()
            server.wait_log("draining")
            server.signal()  # the first one again, as timeout(1) sends it
            time.sleep(1.2)
            if server.process.poll() is not None:
                return False
            server.signal()
            self.assertEqual(server.wait(), 128 + signal.SIGTERM)
        self.assertIn("second signal: exiting at once", server.log())
        return True

    def test_no_answer_is_lost_under_load(self):
        """Clients that open connections, keep them, and send as fast as they can while the server
        ends. A request that has been sent gets its answer, or its connection was never taken. A connection that sends
        nothing for 200 ms is closed, so a client that a busy machine stops for longer may lose its first request."""
        server = self.serve(self.slow_to_run(), "--precision", "fp32", "--max-queue", "64", "--grace", "3600")
        image, stop = seven(), threading.Event()
        counts = {"answered": 0, "refused": 0}
        lost, guard = [], threading.Lock()

        def count(what):
            with guard:
                counts[what] += 1

        def client(keep_alive):
            while not stop.is_set():
                start, sent = time.monotonic(), None
                try:
                    connection = server.connect()
                except OSError:
                    count("refused")
                    return
                with connection:
                    fresh = True
                    while not stop.is_set():
                        try:
                            connection.sendall(post("/predict", image))
                            sent = sent or time.monotonic()
                            answer, _ = read_answer(connection)
                        except (AssertionError, OSError) as error:
                            if fresh and (sent or time.monotonic()) - start > 0.1:
                                return
                            with guard:
                                lost.append((fresh, repr(error)))
                            return
                        self.assertIn(answer.status, (200, 503))
                        if answer.status == 503:
                            self.assertIn("retry-after", answer.headers)
                        count("answered")
                        fresh = False
                        if not keep_alive or answer.headers.get("connection") == "close":
                            break

        threads = [threading.Thread(target=client, args=(i % 2 == 0,), daemon=True)
                   for i in range(16)]
        for thread in threads:
            thread.start()
        server.wait_for(lambda: counts["answered"] > 40, "load")
        server.signal()
        try:
            self.assertEqual(server.wait(), 0)
        finally:
            stop.set()
        for thread in threads:
            thread.join(harness.PATIENCE)
        self.assertEqual(lost, [])
        self.assertIn("all_answered=true", server.log())

    def test_what_is_queued_is_answered(self):
        server = self.serve(self.slow_to_run(), "--precision", "fp32", "--max-queue", "200", "--max-queue-ms", "0",
                            "--grace", "3600")
        content_type, body = multipart([("image", "a.png", png(64, 64, i)) for i in range(24)])
        connections = [server.connect() for _ in range(3)]
        for connection in connections:
            connection.sendall(post("/predict", body, f"Content-Type: {content_type}"))
        server.wait_admitted(3)
        server.signal()
        for connection in connections:
            with connection:
                answer, _ = read_answer(connection)
                self.assertEqual(answer.status, 200)
                self.assertNotIn(b'"error"', answer.body)
        self.assertEqual(server.wait(), 0)


class Overload(HeldCase):
    arguments = ("--max-queue", "8", "--max-queue-ms", "0")

    def test_beyond_the_queue_is_refused_at_once(self):
        """Of eight places the last is not for a client that has all the others."""
        held = self.hold()
        inside = [self.send([self.DARK]) for _ in range(6)]
        answer = self.server.predict(self.DARK)
        self.assert_error(answer, 503, "overloaded")
        self.assertGreaterEqual(int(answer.headers["Retry-After"]), 1)
        inside.append(self.send([self.DARK], source="127.0.0.2"))
        self.assertFalse(any(self.is_answered(connection) for connection in inside))
        hang_up(held)
        for connection in inside:
            answer, _ = read_answer(connection)
            self.assertEqual((answer.status, answer.headers.get("retry-after")), (200, None))


if __name__ == "__main__":
    unittest.main()
