"""The commands without a server: predict, devices, inspect, help."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import harness
import small_onnx
from harness import DIGITS, run_lensd

SEVEN = os.path.join(DIGITS, "drawn", "7_canvas.png")
THREE = os.path.join(DIGITS, "drawn", "3_paper.png")


class Commands(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        self.addCleanup(self.folder.cleanup)

    def file(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as out:
            out.write(data)
        return path

    def run_ok(self, *arguments):
        ended = run_lensd(*arguments)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        # Whether there is something to try is the machine's affair; that it is said there is no fault.
        told = [line for line in ended.stderr.splitlines() if " info  precision trials " not in line]
        self.assertEqual(told, [])
        return ended.stdout


class Descriptors(harness.FolderCase):
    @harness.needs("closed descriptors")
    def test_closed_ones_do_not_become_others(self):
        def close():
            for fd in (0, 1):
                os.close(fd)
        server = self.serve("--core-dumps", prepare=close)  # which lets other users than root see its descriptors
        for fd in (0, 1):
            self.assertEqual(os.readlink(f"/proc/{server.process.pid}/fd/{fd}"), "/dev/null")
        self.assertEqual(server.predict(harness.seven()).status, 200)
        self.assert_ended(server)

    def test_an_answer_to_a_closed_one_is_an_error(self):
        ended = subprocess.run([harness.BINARY, "predict", "digits", SEVEN], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               preexec_fn=lambda: os.close(1), timeout=harness.PATIENCE, check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn(b"cannot write the output: Bad file descriptor", ended.stderr)


class Predict(Commands):
    def test_who_reads_has_seen_enough(self):
        """As `lensd serve --help | head`: no complaint, but no success either."""
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "wb") as closed:
            ended = subprocess.run([harness.BINARY, "serve", "--help"], stdin=subprocess.DEVNULL, stdout=closed,
                                   stderr=subprocess.PIPE, timeout=harness.PATIENCE, check=False)
        self.assertEqual((ended.returncode, ended.stderr), (1, b""))

    def test_table(self):
        lines = self.run_ok("predict", "digits", SEVEN, THREE, "--top-k", "2").splitlines()
        self.assertEqual(len(lines), 6)
        self.assertRegex(lines[0], r"7_canvas\.png  \(280 x 280; cpu, forward \d+\.\d+ ms\)$")
        self.assertRegex(lines[1], r"^ +9\d\.\d\d %  7  \(class 7\)$")
        self.assertRegex(lines[4], r"^ +\d\d\.\d\d %  3  \(class 3\)$")

    def test_json(self):
        result = json.loads(self.run_ok("predict", "digits", SEVEN, "--json"))
        (entry,) = result["results"]
        self.assertEqual((result["model"], entry["name"]), ("digits", SEVEN))
        self.assertEqual(entry["predictions"][0]["label"], "7")
        self.assertEqual(entry["precision"], "fp32")

    def test_an_image_that_fails(self):
        text = self.file("notes.jpg", b"hello, this is text")
        missing = os.path.join(self.folder.name, "missing.png")
        ended = run_lensd("predict", "digits", text, SEVEN, missing, "/dev/null")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("error: this is not a supported image", ended.stdout)
        self.assertIn("error: cannot read it: No such file", ended.stdout)
        self.assertIn("error: cannot read it: not a regular file", ended.stdout)
        self.assertIn("%  7  (class 7)", ended.stdout)
        ended = run_lensd("predict", "digits", text, SEVEN, "--json")
        self.assertEqual(ended.returncode, 1)
        bad, good = json.loads(ended.stdout)["results"]
        self.assertEqual(bad["code"], "unsupported_media_type")
        self.assertEqual(good["predictions"][0]["label"], "7")

    def test_more_images_than_the_queue_holds(self):
        images = [SEVEN] * 40
        result = json.loads(self.run_ok("predict", "digits", *images, "--max-queue", "3", "--json"))
        self.assertEqual([r["predictions"][0]["label"] for r in result["results"]], ["7"] * 40)

    def test_folders_patterns_and_standard_input(self):
        os.makedirs(os.path.join(self.folder.name, "more", ".hidden"))
        with open(SEVEN, "rb") as seven, open(THREE, "rb") as three:
            pictures = seven.read(), three.read()
        for name, picture in (("b.png", 0), ("a.PNG", 1), ("notes.txt", 0), ("more/c.png", 0), ("more/.hidden/d.png", 0)):
            self.file(name, pictures[picture])
        lines = self.run_ok("predict", "digits", self.folder.name, "--jsonl").splitlines()
        found = [(os.path.relpath(line["name"], self.folder.name), line["predictions"][0]["label"])
                 for line in map(json.loads, lines)]
        self.assertEqual(found, [("a.PNG", "3"), ("b.png", "7"), ("more/c.png", "7")])
        shown = self.run_ok("predict", "digits", os.path.join(self.folder.name, "*.[pP]*"), "--top-k", "1")
        self.assertEqual([line.split()[2] for line in shown.splitlines()[1::2]], ["3", "7"])
        ended = subprocess.run([harness.BINARY, "predict", "digits", "-", SEVEN, "--jsonl"], input=pictures[1],
                               capture_output=True, timeout=harness.PATIENCE, check=True)
        self.assertEqual([json.loads(line)["name"] for line in ended.stdout.splitlines()], ["-", SEVEN])
        os.makedirs(os.path.join(self.folder.name, "empty"))
        ended = run_lensd("predict", "digits", os.path.join(self.folder.name, "empty"))
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertIn("empty' has no photos", ended.stderr)

    def test_an_answer_is_printed_before_the_next_photo_is_read(self):
        """Ctrl-C keeps what is printed."""
        reading, writing = os.pipe()
        with subprocess.Popen([harness.BINARY, "predict", "digits", SEVEN, *[THREE] * 40, "-", "--jsonl"], stdin=reading,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
            os.close(reading)
            first = json.loads(run.stdout.readline())
            run.send_signal(signal.SIGINT)
            os.close(writing)
            out, err = run.communicate(timeout=harness.PATIENCE)
        self.assertEqual(first["predictions"][0]["label"], "7")
        self.assertEqual(run.returncode, 130, err)
        told = [json.loads(line) for line in out.splitlines()]
        self.assertRegex(err.decode(), rf"^lensd: interrupted after {1 + len(told)} of 42 photos$")

    def test_pictures_that_annotate_cannot_write(self):
        for name in ("out.webp", "out.gif", "out.HEIC"):
            ended = run_lensd("predict", "digits", SEVEN, "--annotate", os.path.join(self.folder.name, name))
            self.assertEqual(ended.returncode, 2)
            self.assertIn("lensd draws into JPEG and PNG only", ended.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_no_model(self):
        ended = run_lensd("predict", "nowhere.onnx", SEVEN)
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertEqual(ended.stderr, "lensd: nowhere.onnx: there is no such file or folder; check the path\n")

    def test_a_model_of_a_hub(self):
        ended = run_lensd("predict", "hf:owner/name", SEVEN)
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertIn("download it first with lensd pull hf:owner/name,", ended.stderr)

    def test_an_unknown_variable(self):
        ended = run_lensd("predict", "digits", SEVEN, environment={"LENSD_THREDS": "1", "LENSD_PORT": "1"})
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stderr, "lensd: the environment has variables that lensd does not know: "
                                       "LENSD_THREDS (did you mean LENSD_THREADS?)\n")

    def test_an_image_in_the_place_of_the_model(self):
        ended = run_lensd("predict", SEVEN, "digits")
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(ended.stderr, f"lensd: the model comes before the photos: lensd predict digits {SEVEN}\n")
        ended = run_lensd("predict", SEVEN)
        self.assertEqual(ended.returncode, 2)
        self.assertEqual(ended.stderr, "lensd: no model given; for the built-in one: "
                                       f"lensd predict digits {SEVEN}\n")

    def test_a_model_without_labels(self):
        path = os.path.join(self.folder.name, "small.onnx")
        small_onnx.convolutions(path, 2, side=32, channels=4)
        ended = run_lensd("predict", path, SEVEN, SEVEN)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(ended.stderr.count("labels.txt"), 1, ended.stderr)
        self.assertEqual(ended.stderr.count("lensd: model 'small': no file says how to prepare photos, so lensd uses "
                                            "ImageNet defaults; put preprocessor_config.json"), 1, ended.stderr)
        # What serve logs at level info is not said.
        self.assertEqual(len(ended.stderr.splitlines()), 2, ended.stderr)

    def test_words_that_start_with_a_dash(self):
        image = self.file("-odd.png", harness.seven())
        ended = run_lensd("predict", "digits", "--json", "--", image)
        self.assertEqual(ended.returncode, 0, ended.stderr)


class Inspect(Commands):
    def test_the_embedded_model(self):
        text = self.run_ok("inspect", "digits")
        for word in ("digits", "opset", "inputs", "float32 [batch, 3, 32, 32]", "outputs", "parameters",
                     "photos", "resize to 32 x 32", "labels", "labels      0\n            1\n", "… and 5 more", "Conv  (opset",
                     "lensd can run this model."):
            self.assertIn(word, text)
        self.assertLessEqual(max(len(line) for line in text.splitlines()), 80)

    def test_a_file(self):
        path = os.path.join(self.folder.name, "small.onnx")
        small_onnx.convolutions(path, 2, side=32, channels=4)
        result = json.loads(self.run_ok("inspect", path, "--json"))
        self.assertEqual((result["name"], result["opset"], result["producer"], result["supported"]),
                         ("small", 13, "small_onnx.py", True))
        self.assertEqual(result["inputs"],
                         [{"name": "image", "dtype": "float32", "shape": "[N, 3, 32, 32]"}])
        self.assertEqual(result["outputs"],
                         [{"name": "scores", "dtype": "float32", "shape": "[N, 4]"}])
        self.assertEqual(result["parameters"], 4 * 3 * 9 + 4 * 4 * 9)
        self.assertEqual({op["name"]: op["count"] for op in result["operators"]},
                         {"Conv": 2, "Relu": 2, "GlobalAveragePool": 1, "Flatten": 1})
        self.assertEqual(result["classes"], 4)

    def test_what_an_author_wrote_does_not_control_the_terminal(self):
        labels = self.file("index_to_name.json", b'{"0": "\\u001b[2Jred", "1": "\\u009b31m", "2": "\\u00fc\\u007f\\u202e"}')
        path = os.path.join(os.path.dirname(labels), "model.onnx")
        small_onnx.write(path, [small_onnx.node("GlobalAveragePool", ["image"], ["mean"]),
                                small_onnx.node("Flatten", ["mean"], ["scores"])], [],
                         [small_onnx.tensor_info("image", "\x1b[31mN", 3, 8, 8)],
                         [small_onnx.tensor_info("scores", "N", 3)])
        text = self.run_ok("inspect", path)
        for word in ("\\x1b[2Jred", "\\xc2\\x9b31m", "\u00fc\\x7f\\xe2\\x80\\xae", "[\\x1b[31mN, 3, 8, 8]"):
            self.assertIn(word, text)
        answered = run_lensd("predict", path, THREE)
        self.assertEqual(answered.returncode, 0, answered.stderr)
        text += answered.stdout + answered.stderr
        text += run_lensd("inspect", "/none/\x1b[2J\u202e\u009b").stderr
        self.assertIn("/none/?[2J", text)
        self.assertEqual([c for c in text if c < " " and c != "\n" or "\x7f" <= c < "\xa0" or c == "\u202e"], [])

    def test_an_operator_lensd_does_not_have(self):
        path = os.path.join(self.folder.name, "odd.onnx")
        small_onnx.unknown_operator(path)
        ended = run_lensd("inspect", path)
        self.assertEqual((ended.returncode, ended.stderr), (1, ""))
        self.assertIn("Frobnicate  (opset 13)  NOT SUPPORTED", ended.stdout)
        self.assertIn("lensd cannot run this model", ended.stdout)
        ended = run_lensd("inspect", path, "--json")
        self.assertEqual(ended.returncode, 1)
        result = json.loads(ended.stdout)
        self.assertFalse(result["supported"])
        self.assertIn("Frobnicate", result["problem"])

    def test_a_graph_that_does_not_compile(self):
        """Each operator is known, but a window of 9 pixels does not fit into 8."""
        path = os.path.join(self.folder.name, "window.onnx")
        nodes = [small_onnx.node("AveragePool", ["image"], ["mean"], small_onnx.ints("kernel_shape", [9, 9])),
                 small_onnx.node("Flatten", ["mean"], ["scores"])]
        small_onnx.write(path, nodes, [], [small_onnx.tensor_info("image", "N", 3, 8, 8)],
                         [small_onnx.tensor_info("scores", "N", 3)])
        ended = run_lensd("inspect", path)
        self.assertEqual((ended.returncode, ended.stderr), (1, ""))
        self.assertIn("lensd cannot run this model: ", ended.stdout)
        self.assertIn("does not fit", ended.stdout)
        self.assertNotIn("warning", ended.stdout)  # the same fault twice
        self.assertFalse(json.loads(run_lensd("inspect", path, "--json").stdout)["supported"])

    def test_a_model_that_answers_no_photo(self):
        path = os.path.join(self.folder.name, "doubled.onnx")
        small_onnx.doubled_image(path)
        self.assertIn("\nlensd can run this model on tensors (/v2/models/NAME/infer); /predict refuses photos.",
                      self.run_ok("inspect", path))

    def test_what_is_no_model(self):
        for path in (self.file("text.onnx", b"hello hello"), os.path.join(self.folder.name, "no"),
                     self.folder.name):
            with self.subTest(path=path):
                ended = run_lensd("inspect", path)
                self.assertEqual((ended.returncode, ended.stdout), (2, ""))
                self.assertEqual(len(ended.stderr.splitlines()), 1)
                self.assertTrue(ended.stderr.startswith("lensd: "))

    def test_a_profile(self):
        profile = json.loads(self.run_ok("inspect", "digits", "--profile", "--precision", "fp32", "--sort", "time",
                                         "--json"))
        layers, total = profile["layers"], profile["total"]
        self.assertEqual(profile["batch"], 1)
        self.assertGreater(profile["peak"]["gflops"], 0)
        times = [layer["ms"] for layer in layers]
        self.assertEqual(times, sorted(times, reverse=True))
        self.assertAlmostEqual(sum(times), total["ms"], delta=total["ms"] * 0.01)
        self.assertAlmostEqual(sum(layer["gflop"] for layer in layers), total["gflop"],
                               delta=total["gflop"] * 0.01)
        convolutions = [layer for layer in layers if "Conv" in layer["name"]]
        self.assertEqual(len(convolutions), 5)
        for layer in convolutions:
            self.assertAlmostEqual(layer["gflops"], layer["gflop"] / layer["ms"] * 1e3,
                                   delta=layer["gflops"] * 0.01)
            self.assertGreater(layer["of_peak"], 0)
            self.assertEqual(layer["precision"], "fp32")
        path = os.path.join(self.folder.name, "wide.onnx")
        small_onnx.convolutions(path, 3, side=64, channels=64)
        for arguments in (("--json",), ()):
            text = self.run_ok("inspect", path, "--profile", "--precision", "fp32", *arguments)
            # Whether that kernel is taken is the machine's affair; that it is explained is not.
            self.assertEqual("they may exceed 100 % of the peak" in text.replace("\n", " "),
                             "winograd" in text, text)
        narrow = json.loads(self.run_ok("inspect", path, "--profile", "--precision", "bf16", "--json"))
        # A layer is compared with the peak of its own precision, whose figure another precision's would differ from.
        by_precision = {layer["precision"]: layer for layer in narrow["layers"] if layer["gflop"]}
        self.assertIn("bf16", by_precision)
        layer = by_precision["bf16"]
        self.assertAlmostEqual(layer["of_peak"], layer["gflops"] / narrow["peak"]["gflops"], delta=0.002)
        # The table adds up to the pass that its heading names, and the other figure says what it is.
        lines = {line.split()[0]: line for line in text.splitlines() if line}
        total = next(line.split()[0] for line in text.splitlines() if line.endswith("total"))
        self.assertTrue(lines["layers"].split("layers")[1].strip().startswith(total + " ms: the quickest of 5"), text)
        # Always of one image; a machine on which a larger batch takes long does not measure it.
        self.assertIn("without timing the layers", lines["batch"])
        self.assertIn("batch 4", self.run_ok("inspect", "digits", "--profile", "--profile-batch", "4"))
        # A layer has no precision if no layer in that precision computes.
        path = os.path.join(self.folder.name, "still.onnx")
        small_onnx.write(path, [small_onnx.node("Transpose", ["image"], ["turned"],
                                                small_onnx.ints("perm", [0, 1, 3, 2]))], [],
                         [small_onnx.tensor_info("image", "N", 3, 8, 8)],
                         [small_onnx.tensor_info("turned", "N", 3, 8, 8)])
        still = json.loads(self.run_ok("inspect", path, "--profile", "--precision", "fp32", "--json"))
        self.assertEqual(["precision" in layer for layer in still["layers"]], [False])


class Threads(unittest.TestCase):
    def test_more_threads_than_cores(self):
        """One line at the start, whatever the machine has; the options are taken all the same."""
        core = min(os.sched_getaffinity(0))
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # which the command inherits
        try:
            for arguments, words in ((("--threads", "2", "--workers", "5", "--http-threads", "5"),
                                      ("--threads is 2, --workers is 5, --http-threads is 5", "1 core ")),
                                     (("--threads", "1", "--workers", "4", "--http-threads", "2"), ()),
                                     (("--threads", "1", "--device", "cpu,cpu"), ()),
                                     (("--threads", "2", "--device", "cpu,cpu"), ("each of 2 passes",))):
                ended = run_lensd("serve", "--check", "--precision", "fp32", "--port", "0", *arguments)
                self.assertEqual((ended.returncode, ended.stderr.count("threads text=")), (0, bool(words)), ended.stderr)
                for word in words:
                    self.assertIn(word, ended.stderr)
            ended = run_lensd("predict", "digits", DIGITS + "/drawn/7_paper.png", "--threads", "2")
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn("lensd: --threads is 2, but", ended.stderr)
        finally:
            os.sched_setaffinity(0, before)


class Bench(Commands):
    def test_table(self):
        # which precision is quicker is the machine's affair
        lines = self.run_ok("bench", "--batch", "1,3", "--time", "20ms", "--device", "cpu",
                            "--precision", "fp32").splitlines()
        head = next(i for i, line in enumerate(lines) if line.startswith("device"))
        self.assertEqual(lines[head].split()[-1], "speed-up")
        rows = [line.split() for line in lines[head + 1:]]
        self.assertEqual([row[:3] for row in rows], [["cpu", "fp32", "1"], ["cpu", "fp32", "3"]])
        for row in rows:
            self.assertEqual(row[6], "1.00")
            self.assertAlmostEqual(float(row[5]), int(row[2]) * 1e3 / float(row[3]),
                                   delta=0.02 * float(row[5]) + 1)

    def test_missing_devices_are_rows(self):
        ended = run_lensd("bench", "--batch", "2", "--time", "10ms", "--json", "--device",
                          "cpu,cuda:31,mps")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        devices = json.loads(ended.stdout)["devices"]
        self.assertEqual([device["id"] for device in devices], ["cpu", "cuda:31", "mps"])
        batch, = devices[0]["batches"]
        self.assertEqual((batch["size"], batch["speed_up"]), (2, 1))
        self.assertGreaterEqual(batch["runs"], 9)
        self.assertLessEqual(batch["best_milliseconds"], batch["milliseconds"])
        for device in devices[1:]:
            self.assertIn("device", device["error"])
        ended = run_lensd("bench", "--device", "mps")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("mps       not measured: ", ended.stdout)

    def test_a_fixed_batch_is_run_in_several_passes(self):
        model = os.path.join(self.folder.name, "fixed.onnx")
        small_onnx.write(model, [small_onnx.node("GlobalAveragePool", ["image"], ["mean"]),
                                 small_onnx.node("Reshape", ["mean", "one"], ["scores"])],
                         [small_onnx.number(1, 2) + small_onnx.number(2, 7) + small_onnx.blob(8, "one")
                          + small_onnx.blob(9, (1).to_bytes(8, "little") + (3).to_bytes(8, "little"))],
                         [small_onnx.tensor_info("image", 1, 3, 16, 16)],
                         [small_onnx.tensor_info("scores", 1, 3)])
        ended = run_lensd("bench", model, "--batch", "5", "--time", "10ms", "--json")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(json.loads(ended.stdout)["devices"][0]["batches"][0]["size"], 5)

    def test_bad_batches(self):
        for text in ("0", "x", "1,,2", "1,", "1025", "-1", ",".join(["1"] * 17)):
            ended = run_lensd("bench", "--batch", text)
            self.assertEqual(ended.returncode, 2, text)
            self.assertIn("--batch is", ended.stderr)


class Devices(Commands):
    def test_table_and_json(self):
        text = self.run_ok("devices")
        self.assertTrue(text.startswith("cpu "), text)
        self.assertIn("memory", text)
        result = json.loads(self.run_ok("devices", "--json"))
        self.assertEqual((result["devices"][0]["id"], result["devices"][0]["models"]), ("cpu", []))


class Health(Commands):
    def ask(self, *arguments):
        ended = run_lensd("health", *arguments)
        return ended.returncode, ended.stdout, ended.stderr

    def test_ready_and_draining(self):
        server = harness.Server("--drain-delay", "3600")
        try:
            port = str(server.port)
            code, out, err = self.ask("--port", port)
            self.assertEqual((code, err, json.loads(out)), (0, "", {"status": "ready"}))
            # Where the daemon listens on every address, the question goes to the loopback.
            self.assertEqual(self.ask("--host", "0.0.0.0", "--rest_port", port)[0], 0)
            server.signal()
            server.wait_for(lambda: server.get("/readyz").status == 503, "draining")
            code, out, err = self.ask("--port", port)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("draining", err)
        finally:
            server.signal(signal.SIGINT)  # SIGTERM again within a second would be ignored
            server.stop()

    def test_nobody_there(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
        code, out, err = self.ask("--port", port)
        self.assertEqual((code, out), (1, ""))
        self.assertEqual(err, f"lensd: nothing answers on 127.0.0.1 port {port}: Connection refused\n")

    def test_something_else_there(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            def answer():
                connection, _ = listener.accept()
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.close()
            thread = threading.Thread(target=answer)
            thread.start()
            code, out, err = self.ask("--port", str(listener.getsockname()[1]))
            thread.join()
        self.assertEqual((code, out), (1, ""))
        self.assertIn("gave no HTTP answer", err)


class Output(Commands):
    def test_a_full_disk(self):
        for arguments in (("--help",), ("--version",), ("predict", "digits", SEVEN), ("devices",),
                          ("inspect", "digits"), ("devices", "--json"), ("serve", "--help")):
            with self.subTest(arguments=arguments), open("/dev/full", "wb") as full:
                ended = subprocess.run([harness.BINARY, *arguments], stdout=full, text=True,
                                       stderr=subprocess.PIPE, timeout=harness.PATIENCE)
                self.assertEqual((ended.returncode, ended.stderr),
                                 (1, "lensd: cannot write the output: No space left on device\n"))


class Help(Commands):
    def test_a_path_instead_of_a_command(self):
        ended = run_lensd(self.folder.name)
        self.assertEqual(ended.returncode, 2)
        self.assertIn(f"lensd serve {self.folder.name}\n", ended.stderr)

    def test_version(self):
        self.assertRegex(self.run_ok("--version"), r"^lensd \d+\.\d+\.\d+\n$")

    def test_without_a_command(self):
        ended = run_lensd()
        self.assertEqual((ended.returncode, ended.stdout), (2, ""))
        self.assertIn("Usage: lensd COMMAND", ended.stderr)

    def test_help_fits_the_screen(self):
        for arguments in (("--help",), ("help",), ("-h",), ("serve", "--help"), ("predict", "-h"),
                          ("devices", "--help"), ("inspect", "--help"), ("health", "--help"),
                          ("serve", "--port", "1", "--help")):
            text = self.run_ok(*arguments)
            with self.subTest(arguments=arguments):
                self.assertIn("Usage: lensd", text)
                self.assertIn("Examples:", text)
                self.assertLessEqual(max(len(line) for line in text.splitlines()), 80)

    def test_help_of_serve_has_every_option(self):
        text = self.run_ok("serve", "--help")
        for word in ("--device", "--precision fp32|tf32|bf16", "--threads", "--max-batch", "--host", "--port",
                     "--log-format text|json|auto", "--config", "--max-body", "--grace", "(default 8080)",
                     "LENSD_TOP_K", "Limits", "Times", "curl"):
            self.assertIn(word, text)
        self.assertNotIn("--json", text)

    def test_help_of_health_is_about_a_client(self):
        text = self.run_ok("health", "--help")
        self.assertIn("port of the server (default 8080)", text)
        for word in ("listen on;", "to listen", "any free", "rereads", "serve HTTPS", "top-k", "TOP_K"):
            self.assertNotIn(word, text)


if __name__ == "__main__":
    unittest.main()
