"""--precision auto: what is chosen, what it rests on, and that the choice is kept."""

import json
import os
import re
import shutil
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import harness  # noqa: E402
import small_onnx  # noqa: E402


def has_bf16():
    flags = harness.read("/proc/cpuinfo").decode().split("\n")
    flags = next((line for line in flags if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def store_in(cache):
    """The path of the file in the cache."""
    (name,) = os.listdir(cache)
    return os.path.join(cache, name)


def entries_in(cache, kind):
    return [line for line in harness.read(store_in(cache)).decode().splitlines()
            if re.match(kind + " [0-9a-f]{32} ", line)]


class Precision(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-precision-")
        cls.calm = os.path.join(cls.folder, "calm.onnx")
        cls.sharp = os.path.join(cls.folder, "sharp.onnx")
        small_onnx.classifier(cls.calm, sharpness=0.02)
        small_onnx.classifier(cls.sharp, sharpness=5.0, offset=4096.0)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def start(self, *arguments):
        """(the model's entry in /devices once its precisions have been compared, the log) of a server
        that is started and ended."""
        server = harness.Server(*arguments)
        try:
            model = server.wait_for(lambda: self.settled(server), "an end of the trials")
            health = server.get("/health").json()["models"][0]
            answer = server.predict(harness.png(64, 48))
        finally:
            code, log = server.stop()
        self.assertEqual((code, answer.status), (0, 200), log)
        self.assertEqual(health["precision"], model["precision"])
        return model, log

    @staticmethod
    def settled(server):
        model = server.get("/devices").json()["devices"][0]["models"][0]
        return None if model["precision_choice"]["origin"] == "pending" else model

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_fp32_serves_while_others_are_compared(self):
        server = harness.Server(self.calm, "--cache", "none")
        try:
            answers = []
            while not (model := self.settled(server)):
                answers.append(server.predict(harness.png(64, 48)).status)
            answers.append(server.predict(harness.png(64, 48)).status)
            if model["precision"] == "bf16":
                server.wait_log(" precision changed model=calm from=fp32 to=bf16 ")
        finally:
            code, log = server.stop()
        self.assertEqual((code, set(answers)), (0, {200}), log)
        changed = re.search(r" precision changed model=calm from=fp32 to=bf16 ", log)
        self.assertEqual(bool(changed), model["precision"] == "bf16", log)

    def check(self, model):
        """What is chosen follows from the trials that are shown; returns the first."""
        choice = model["precision_choice"]
        self.assertEqual([trial["precision"] for trial in choice["trials"]], ["bf16"])
        trial = choice["trials"][0]
        passed = trial["outcome"] == "passed"
        self.assertEqual(model["precision"], "bf16" if passed else "fp32")
        self.assertEqual(trial["difference_of"], "relative")  # neither labels nor a Softmax
        self.assertLessEqual(trial["mean_difference"], trial["greatest_difference"])
        self.assertLessEqual(trial["agreeing"], trial["clear"])
        self.assertLessEqual(trial["clear"], trial["images"])
        if passed:
            self.assertGreaterEqual(trial["images"], 8)  # 32, or as many as there was time for
            self.assertLessEqual(trial["mean_difference"], 0.02)
            self.assertGreater(trial["times_fp32"], 1.04)
        return trial

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_what_passes_is_used_and_kept(self):
        cache = os.path.join(self.folder, "cache", "deep")
        model, log = self.start(self.calm, "--cache", cache)
        trial = self.check(model)
        self.assertNotEqual(trial["outcome"], "differs")
        self.assertEqual(model["precision_choice"]["origin"], "measured")
        self.assertIn(" precision model=calm", log)
        self.assertEqual(len(entries_in(cache, "precision")), 1)
        again, said_again = self.start(self.calm, "--cache", cache)
        self.assertEqual(again["precision_choice"]["origin"], "cached")
        self.assertEqual(again["precision"], model["precision"])
        self.assertEqual(again["precision_choice"]["why"], model["precision_choice"]["why"])
        self.assertRegex(log, r" precision trials model=calm .*candidates=bf16 images_at_most=32 ")
        self.assertIn("--precision fp32 skips it", log)
        self.assertLess(log.index(" precision trials "), log.index(" precision model=calm"))
        self.assertNotIn(" precision trials ", said_again)
        narrow, _ = self.start(self.calm, "--cache", cache, "--max-batch", "4")  # of a trial, too
        self.assertEqual(narrow["precision_choice"]["origin"], "cached")
        # Other circumstances are another choice.
        if os.environ.get("LENSD_THREADS") == "1":
            return  # that is what it was made under
        other, _ = self.start(self.calm, "--cache", cache, "--threads", "1")
        self.assertEqual(other["precision_choice"]["origin"], "measured")
        self.assertEqual(len(entries_in(cache, "precision")), 2)

    def profile(self, *arguments):
        done = harness.run_lensd("inspect", *arguments, "--profile", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout), done.stderr

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_a_profile_shares_the_outcome(self):
        for name, model in (("calm", self.calm), ("sharp", self.sharp)):
            with self.subTest(model=name):
                cache = os.path.join(self.folder, "shared-" + name)
                served, _ = self.start(model, "--cache", cache)
                for arguments in ((), ("--profile-batch", "3")):
                    profile, said = self.profile(model, "--cache", cache, *arguments)
                    self.assertNotIn("precision trials", said)
                    self.assertEqual(profile["precision"], served["precision"])
                    self.assertEqual(profile["precision_why"], served["precision_choice"]["why"])
                self.assertEqual(len(entries_in(cache, "precision")), 1)
        cache = os.path.join(self.folder, "shared-from-profile")
        profile, said = self.profile(self.calm, "--cache", cache)
        self.assertIn("precision trials", said)
        served, _ = self.start(self.calm, "--cache", cache)
        self.assertEqual(served["precision_choice"]["origin"], "cached")
        self.assertEqual(profile["precision_why"], served["precision_choice"]["why"])
        # A profile of one image tries the batches of a server; who serves only single images tries those.
        served, _ = self.start(self.calm, "--cache", cache, "--max-batch", "1")
        self.assertEqual(served["precision_choice"]["origin"], "measured")

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_what_answers_differently_is_not_used(self):
        model, _ = self.start(self.sharp)
        trial = self.check(model)
        self.assertIn(trial["outcome"], ("differs", "slower"))
        self.assertEqual(model["precision"], "fp32")

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_a_spoilt_cache_costs_a_trial_only(self):
        cache = os.path.join(self.folder, "spoilt")
        self.start(self.calm, "--cache", cache)
        path = store_in(cache)
        whole = harness.read(path)
        for spoilt in (b"", whole[:len(whole) // 2], b"\xff" * 9000, whole.replace(b"lensd precision 3", b"lensd precision 2"),
                       whole.replace(b"precision bf16", b"precision fp8")):
            if spoilt == whole:
                continue
            with open(path, "wb") as file:
                file.write(spoilt)
            model, log = self.start(self.calm, "--cache", cache)
            self.assertEqual(model["precision_choice"]["origin"], "measured", spoilt[:40])
            self.assertRegex(log, "warn +cache .*is damaged")
            self.check(model)

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_a_cache_that_cannot_be_written_is_said(self):
        model, log = self.start(self.calm, "--cache", os.path.join(self.calm, "below-a-file"))
        self.assertEqual(model["precision_choice"]["origin"], "measured")
        self.assertRegex(log, "warn +cache .*every start repeats its trials")
        self.assertEqual(log.count("every start"), 1)

    @unittest.skipUnless(has_bf16(), "this CPU is not good at bfloat16")
    def test_calibration_images_are_used(self):
        folder = os.path.join(self.folder, "with-images")
        os.makedirs(os.path.join(folder, "calibration"))
        shutil.copy(self.calm, os.path.join(folder, "model.onnx"))
        for i in range(17):
            with open(os.path.join(folder, "calibration", f"{i:02}.png"), "wb") as file:
                file.write(harness.png(60 + i, 50, shade=i * 11))
        with open(os.path.join(folder, "calibration", "00.broken.png"), "wb") as file:
            file.write(b"\x89PNG\r\n\x1a\n and nothing more")
        os.mkfifo(os.path.join(folder, "calibration", "pipe.png"))  # is not waited for
        model, log = self.start(folder)
        choice = model["precision_choice"]
        self.assertEqual(choice["calibration_images"], 19)
        if choice["trials"][0]["outcome"] == "passed":
            self.assertIn(choice["trials"][0]["images"], range(8, 20))  # as many as its time allows
            self.assertIn("calibration image left out", log)

    def test_photos_to_calibrate_with_make_an_8_bit_form(self):
        folder, cache = os.path.join(self.folder, "calibrated"), os.path.join(self.folder, "cache-of-int8")
        os.makedirs(os.path.join(folder, "calibration"))
        shutil.copy(self.calm, os.path.join(folder, "model.onnx"))
        for i in range(17):
            with open(os.path.join(folder, "calibration", f"{i:02}.png"), "wb") as file:
                file.write(harness.png(60 + i, 50, shade=i * 11))
        model, log = self.start(folder, "--cache", cache)
        choice = model["precision_choice"]
        (trial,) = [trial for trial in choice["trials"] if trial["precision"] == "int8"]
        self.assertNotEqual(trial["outcome"], "failed", choice["why"])
        self.assertIn("int8 (calibrated with 14 photos of calibration/)", choice["why"])
        self.assertRegex(log, r" calibrated model=calibrated photos=14 ")
        (kept,) = [name for name in os.listdir(cache) if name.startswith("int8-")]
        again, said_again = self.start(folder, "--cache", cache)
        self.assertEqual(again["precision_choice"]["origin"], "cached")
        self.assertEqual((again["precision"], again["precision_choice"]["why"]), (model["precision"], choice["why"]))
        self.assertNotIn("calibrating", said_again)
        # What was made can be asked for by name.
        pinned, _ = self.start(folder, "--cache", cache, "--precision", "int8")
        self.assertEqual(pinned["precision"], "int8")
        os.remove(os.path.join(cache, kept))
        ended = harness.run_lensd("serve", folder, "--cache", cache, "--precision", "int8", "--port", "0")
        self.assertNotEqual(ended.returncode, 0)
        self.assertIn("needs a quantized file", ended.stderr)

    def test_photos_that_cannot_be_read(self):
        """The model is not said to be at fault, and the next start calibrates with better photos."""
        folder, cache = os.path.join(self.folder, "uncalibrated"), os.path.join(self.folder, "cache-of-none")
        os.makedirs(os.path.join(folder, "calibration"))
        shutil.copy(self.calm, os.path.join(folder, "model.onnx"))
        for i in range(3):
            with open(os.path.join(folder, "calibration", f"{i}.png"), "wb") as file:
                file.write(b"\x89PNG\r\n\x1a\n and nothing more")
        for _ in range(2):
            model, log = self.start(folder, "--cache", cache)
            choice = model["precision_choice"]
            self.assertIn("int8 was not compared, because its calibration failed: ", choice["why"])
            self.assertNotIn("cannot run", choice["why"])
            self.assertNotIn("int8", [trial["precision"] for trial in choice.get("trials", [])])
            self.assertIn("calibration failed", log)

    def test_pinned(self):
        model, _ = self.start(self.calm, "--precision", "fp32")
        self.assertEqual(model["precision"], "fp32")
        self.assertEqual(model["precision_choice"]["origin"], "pinned")

    def test_small_models_are_not_tried(self):
        small = os.path.join(self.folder, "small.onnx")  # under a sanitizer, too
        small_onnx.classifier(small, layers=1, side=8, channels=4)
        model, _ = self.start(small)
        self.assertEqual(model["precision"], "fp32")
        self.assertEqual(model["precision_choice"]["origin"], "only")
        if has_bf16():
            self.assertIn("the model is small", model["precision_choice"]["why"])
        self.assertNotIn("trials", model["precision_choice"])

    def test_predict_makes_no_trial(self):
        cache = os.path.join(self.folder, "of-predict")
        image = os.path.join(harness.DIGITS, "drawn", "7_paper.png")
        done = harness.run_lensd("predict", self.calm, image, "--cache", cache, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.exists(cache))


if __name__ == "__main__":
    unittest.main()
