"""lensd quantize: the folder that it makes, its report, and what it refuses without leaving anything."""

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness
import small_onnx
from harness import DIGITS, run_lensd

MODEL = os.path.join(harness.ROOT, "models", "digits")
DRAWN = os.path.join(DIGITS, "drawn")


class Quantize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-quantize-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "out")
        self.photos = os.path.join(self.folder, "photos")
        os.mkdir(self.photos)

    def add_photos(self, count):
        for name in sorted(os.listdir(DRAWN))[:count]:
            shutil.copy(os.path.join(DRAWN, name), self.photos)

    def quantize(self, *options, model=MODEL):
        return run_lensd("quantize", model, "--calibrate", self.photos, "-o", self.out, *options)

    def refused(self, ended, *words):
        self.assertNotEqual(ended.returncode, 0, ended.stdout)
        self.assertEqual(ended.stdout, "")
        *progress, why = ended.stderr.splitlines()
        for line in progress:
            self.assertRegex(line, r"^lensd: [a-z ]+, \d+ %$")
        for word in words:
            self.assertIn(word, why)
        self.assertEqual(os.listdir(self.folder), ["photos"])

    def test_a_folder_that_serves_as_before(self):
        self.add_photos(20)
        with open(os.path.join(self.photos, "broken.png"), "wb") as file:
            file.write(b"no picture")
        ended = self.quantize("--json", "--threads", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        with open(os.path.join(self.out, "report.json"), encoding="utf-8") as file:
            text = file.read()
        self.assertEqual(json.loads(text), report)
        self.assertIn('\n\t"photos":\t{\n', text)  # a member a line
        self.assertEqual(report["photos"], {"calibrated": 16, "held_out": 4, "unreadable": 1})
        self.assertEqual(report["agreement"]["images"], 4)
        self.assertEqual(report["agreement"]["same_best_class"], 4)
        self.assertGreater(report["agreement"]["correlation"], 0.99)
        self.assertLess(report["bytes"]["int8"], report["bytes"]["fp32"])
        self.assertEqual(sorted(os.listdir(self.out)),
                         ["labels.txt", "model.onnx", "preprocessor_config.json", "report.json"])
        said = json.loads(run_lensd("predict", self.out, os.path.join(DRAWN, "7_canvas.png"), "--precision", "int8",
                                    "--json").stdout)
        self.assertEqual(said["results"][0]["predictions"][0]["label"], "7")
        self.assertEqual(report["target"], "vnni")
        # What is made is not made again, neither over itself nor from itself.
        ended = self.quantize()
        self.assertEqual(ended.returncode, 2)
        self.assertIn("exists already", ended.stderr)
        ended = run_lensd("quantize", self.out, "--calibrate", self.photos)
        self.assertEqual(ended.returncode, 2)
        self.assertIn("quantized already", ended.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), ["out", "photos"])

    def test_what_is_not_faster_is_said(self):
        self.add_photos(4)
        ended = self.quantize("--threads", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        with open(os.path.join(self.out, "report.json"), encoding="utf-8") as file:
            report = json.load(file)
        ms = report["milliseconds"]
        self.assertTrue(0 < ms["int8"] and 0 < ms["fp32"], report)
        self.assertEqual("Not faster than float32" in ended.stdout, not report["faster"], ended.stdout)
        if abs(ms["fp32"] - 1.05 * ms["int8"]) > 0.002:  # they are rounded
            self.assertEqual(report["faster"], ms["fp32"] > 1.05 * ms["int8"], report)
        # A log gets a line of each phase.
        phases = re.findall(r"^lensd: ([a-z ]+), \d+ %$", ended.stderr, re.M)
        self.assertLessEqual({"reading photos", "calibrating", "quantizing", "measuring"}, {*phases}, ended.stderr)
        self.assertRegex(ended.stdout, r"(?m)^in int8 +all \d+ layers$")
        # One photo is held out: it proves nothing.
        self.assertEqual(report["photos"]["held_out"], 1)
        self.assertFalse(report["within_bounds"])
        self.assertRegex(ended.stdout, "but one image proves nothing, .*Give more photos")

    def test_a_file_for_cpus_without_vnni(self):
        self.add_photos(10)
        ended = self.quantize("--json", "--threads", "1", "--target", "avx2")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        self.assertEqual(report["target"], "avx2")
        self.assertEqual(report["agreement"]["same_best_class"], report["agreement"]["images"])
        ended = self.quantize("--target", "sse2")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("vnni|avx2", ended.stderr)

    def test_an_lstm_stays_in_float32(self):
        """Sessions split an LSTM; the file that is written must still have ONNX's operator."""
        self.add_photos(20)
        model = os.path.join(self.folder, "photos", "model.onnx")
        small_onnx.recurrent(model)
        ended = self.quantize("--json", "--threads", "1", model=model)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertLess(json.loads(ended.stdout)["error"], 0.02)
        shown = run_lensd("inspect", self.out, "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn(("LSTM", 1), [(o["name"], o["count"]) for o in json.loads(shown.stdout)["operators"]])

    def test_sensitive_layers_stay_in_float32(self):
        """The offset takes the range of what each layer makes: in 8 bits alone the bounds do not hold."""
        self.add_photos(20)
        model = os.path.join(self.folder, "photos", "model.onnx")
        small_onnx.classifier(model, layers=6, side=32, channels=16, offset=4)
        ended = self.quantize("--json", "--threads", "1", model=model)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        kept = [layer for layer in report["layers"] if layer["precision"] == "fp32"]
        self.assertTrue(0 < len(kept) < len(report["layers"]), report)
        self.assertTrue(0 < report["fp32_share"] <= 1 / 3, report)
        self.assertTrue(all(layer["error_alone"] > 0 for layer in report["layers"]), report)
        # Both on the held-out photos; 0.02 is the bound of 16 photos and more.
        self.assertEqual(report["error"], report["agreement"]["mean"])
        self.assertLess(report["error"], 0.02)
        self.assertGreater(report["all_int8"]["error"], 0.02)

    def test_four_photos_keep_half_of_the_bound(self):
        self.add_photos(20)
        model = os.path.join(self.folder, "photos", "model.onnx")
        for layers, offset, advice in ((6, 40, "Give more photos."), (3, 400, "The model loses accuracy; see report.json.")):
            small_onnx.classifier(model, layers=layers, side=32, channels=16, offset=offset)
            ended = self.quantize("--threads", "1", model=model)
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertRegex(ended.stdout, r"\(limit 0\.01\), measured on 4 held-out photos\. " + re.escape(advice))
            shutil.rmtree(self.out)

    def test_boxes_are_compared(self):
        self.add_photos(6)
        detector = os.path.join(self.folder, "photos", "detector.onnx")
        rows = [[20, 44, 60], [20, 40, 10], [16, 8, 8], [16, 12, 8], [.9, .1, .1], [.1, .8, .1]]
        small_onnx.always(detector, [("output0", (6, 84), [v for row in rows for v in row + [0.0] * 81])],
                          metadata=[("author", "Ultralytics"), ("task", "detect"), ("names", "{0: 'cat', 1: 'dog'}")])
        ended = self.quantize("--json", model=detector)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        boxes = json.loads(ended.stdout)["boxes"]
        self.assertEqual((boxes["fp32"], boxes["int8"], boxes["pairs"]), (2, 2, 2))
        self.assertGreater(boxes["mean_iou"], 0.99)

    def reader(self, best):
        """A model that reads the same line in every photo: the best of a blank, two characters and a space at each place."""
        folder = os.path.join(self.folder, "reader")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "characters.txt"), "w", encoding="utf-8") as file:
            file.write("a\n字\n")
        small_onnx.always(os.path.join(folder, "model.onnx"), [("text", (len(best), 4), [c == k for k in best for c in range(4)])])
        return folder

    def test_text_is_compared(self):
        self.add_photos(10)
        ended = self.quantize("--json", model=self.reader([1, 0, 2, 3, 1]))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        report = json.loads(ended.stdout)
        held_out = report["photos"]["held_out"]
        self.assertEqual(report["text"], {"lines": held_out, "same": held_out, "characters": 4 * held_out, "edits": 0})

    def test_nothing_to_compare_is_said(self):
        self.add_photos(10)
        ended = self.quantize(model=self.reader([0, 0, 0]))
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("0 of 0 lines", ended.stdout)
        self.assertIn("the model finds nothing in the held-out photos", ended.stdout)
        self.assertNotIn("relative error", ended.stdout)

    def test_files_beside_the_model_are_copied(self):
        """A tokenizer in any of its forms, and the characters of a model that reads text."""
        self.add_photos(10)
        names = ("characters.txt", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json", "tokenizer.json", "vocab.json",
                 "vocab.txt")
        model = os.path.join(self.folder, "model")
        shutil.copytree(MODEL, model)
        for name in names:
            with open(os.path.join(model, name), "w", encoding="utf-8") as file:
                file.write("{}")
        ended = self.quantize(model=model)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertLessEqual(set(names), set(os.listdir(self.out)))

    def test_folders_and_formats(self):
        images = os.path.join(harness.ROOT, "tests", "data", "images")
        for path in ("a/one.bmp", "a/two.BMP", "b/c/three.gif", "four.png", ".hidden/five.png", "b/.six.png", "b/notes.txt"):
            os.makedirs(os.path.dirname(os.path.join(self.photos, path)), exist_ok=True)
            kind = path.rsplit(".", 1)[1].lower()
            source = {"bmp": os.path.join(images, "bmp_24.bmp"), "gif": os.path.join(images, "gif_16.gif"),
                      "png": os.path.join(DRAWN, sorted(os.listdir(DRAWN))[0]), "txt": __file__}[kind]
            if not os.path.basename(path).startswith("five"):
                shutil.copy(source, os.path.join(self.photos, path))
        os.symlink("..", os.path.join(self.photos, "b", "up"))  # is not followed
        ended = self.quantize("--json", "--threads", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(json.loads(ended.stdout)["photos"], {"calibrated": 3, "held_out": 1, "unreadable": 0})

    def test_photos_of_all_classes(self):
        """The first folders alone could fill what is used."""
        for place in range(4):
            os.mkdir(os.path.join(self.photos, f"class{place}"))
            for i in range(70):
                with open(os.path.join(self.photos, f"class{place}", f"{i:03}.png"), "wb") as file:
                    file.write(b"no picture" if place == 3 else harness.flat_png(i))
        ended = self.quantize("--json", "--threads", "1")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual(json.loads(ended.stdout)["photos"]["unreadable"], 64)  # a quarter of 256

    def test_too_few_photos(self):
        self.refused(self.quantize(), "no photos", "give at least 2")
        self.add_photos(1)
        self.refused(self.quantize(), "one photo", "give at least 2")
        with open(os.path.join(self.photos, "broken.png"), "wb") as file:
            file.write(b"no picture")
        self.refused(self.quantize(), "of the 2 photos", "1 can be read", "JPEG or PNG")
        photos, self.photos = self.photos, os.path.join(self.photos, "broken.png")
        self.refused(self.quantize(), "Not a directory")
        self.photos = os.path.join(photos, "absent")
        self.refused(self.quantize(), "No such file")

    def test_numbers_that_are_not_finite(self):
        self.add_photos(2)
        model = os.path.join(self.folder, "photos", "model.onnx")
        nodes = [small_onnx.node("Sub", ["image", "image"], ["zeros"]),
                 small_onnx.node("Log", ["zeros"], ["logs"]),
                 small_onnx.node("Conv", ["logs", "w"], ["c"]),
                 small_onnx.node("GlobalAveragePool", ["c"], ["mean"]),
                 small_onnx.node("Flatten", ["mean"], ["scores"])]
        small_onnx.write(model, nodes, [small_onnx.weights("w", 4, 3, 3, 3)],
                         [small_onnx.tensor_info("image", "N", 3, 16, 16)],
                         [small_onnx.tensor_info("scores", "N", 4)])
        self.refused(self.quantize(model=model), "no Conv, Gemm or MatMul can be quantized", "not finite")

    def test_weights_that_are_not_finite(self):
        self.add_photos(2)
        model = os.path.join(self.folder, "photos", "model.onnx")
        for value, word in ((float("nan"), "NaN"), (float("-inf"), "infinite")):
            small_onnx.write(model, [small_onnx.node("Conv", ["image", "stem.weight"], ["c"]),
                                     small_onnx.node("GlobalAveragePool", ["c"], ["mean"]),
                                     small_onnx.node("Flatten", ["mean"], ["scores"])],
                             [small_onnx.constant("stem.weight", value, 4, 3, 3, 3)],
                             [small_onnx.tensor_info("image", "N", 3, 16, 16)],
                             [small_onnx.tensor_info("scores", "N", 4)])
            self.refused(self.quantize(model=model), "number 0 of the weight 'stem.weight' is " + word, "export")

    def test_a_constant_output(self):
        """Its shape in the file has a name, its numbers are known."""
        self.add_photos(2)
        model = os.path.join(self.folder, "photos", "model.onnx")
        nodes = [small_onnx.node("Conv", ["image", "w"], ["c"]),
                 small_onnx.node("GlobalAveragePool", ["c"], ["mean"]),
                 small_onnx.node("Flatten", ["mean"], ["scores"]),
                 small_onnx.node("Add", ["b", "b"], ["twice"])]
        small_onnx.write(model, nodes, [small_onnx.weights("w", 4, 3, 3, 3), small_onnx.constant("b", 1, 4)],
                         [small_onnx.tensor_info("image", "N", 3, 16, 16)],
                         [small_onnx.tensor_info("scores", "N", 4), small_onnx.tensor_info("twice", "K")])
        ended = self.quantize(model=model)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def test_arguments(self):
        for arguments, words in ((("quantize",), "no model given"), (("quantize", MODEL), "no photos given"),
                                 (("quantize", "digits", "--calibrate", DRAWN), "built-in model"),
                                 (("quantize", MODEL, "--calibrate", DRAWN, "-o"), "needs a value")):
            ended = run_lensd(*arguments)
            self.assertEqual((ended.returncode, ended.stdout), (2, ""))
            self.assertIn(words, ended.stderr)

    def test_a_target_that_cannot_be_made(self):
        self.add_photos(2)
        out, self.out = self.out, "/proc/out"
        self.refused(self.quantize(), "cannot make the folder '/proc/out'")
        self.out = os.path.join(out, "deeper")
        self.refused(self.quantize(), "No such file")

    def test_a_full_disk(self):
        self.add_photos(4)
        ended = subprocess.run(
            [harness.BINARY, "quantize", MODEL, "--calibrate", self.photos, "-o", self.out, "--threads", "1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
            timeout=harness.PATIENCE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY)))
        self.refused(ended, "cannot write it: File too large")

    def test_a_terminal(self):
        """It gets a bar, and the report beside it."""
        self.add_photos(4)
        master, slave = pty.openpty()
        with subprocess.Popen([harness.BINARY, "quantize", MODEL, "--calibrate", self.photos, "-o", self.out, "--threads", "1"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave) as process:
            os.close(slave)
            seen = b""
            try:
                while piece := os.read(master, 4096):
                    seen += piece
            except OSError:  # the other end is closed
                pass
            os.close(master)
            self.assertIn(b"in int8", process.stdout.read())
            self.assertEqual(process.wait(harness.PATIENCE), 0, seen)
        self.assertRegex(seen, rb"\rcalibrating +\[#*\.*\] +\d+ %")
        self.assertNotIn(b"lensd:", seen)

    def test_interrupted(self):
        self.add_photos(20)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process = subprocess.Popen(
                [harness.BINARY, "quantize", MODEL, "--calibrate", self.photos, "-o", self.out, "--threads", "1"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            end = time.monotonic() + harness.PATIENCE
            while len(os.listdir(self.folder)) == 1 and process.poll() is None and time.monotonic() < end:
                time.sleep(0.001)
            process.send_signal(number)
            said, wrong = process.communicate(timeout=harness.PATIENCE)
            if process.returncode == 0:  # it was quicker
                shutil.rmtree(self.out)
                continue
            self.assertEqual((process.returncode, said), (1, ""), wrong)
            self.assertIn("cancelled", wrong)
            self.assertEqual(os.listdir(self.folder), ["photos"])


if __name__ == "__main__":
    unittest.main()
