#!/usr/bin/env python3
"""The README, run: every command in it does what it says, and every file and option it names exists.

Commands are the lines of ```sh blocks and the ```python blocks. They run in a copy of the places they
name: a server on a free port stands for 127.0.0.1:8080, a small model for the exported ones, few seconds
for `./dev load`. EXPORT_PYTHON names a Python that has timm, transformers and ultralytics; without it
those exports are skipped. Not run, and why: NOT_RUN below. LENSD and LOADGEN name the programs.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(HERE)
README = os.path.join(ROOT, "README.md")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(HERE, "http"))
import harness  # noqa: E402

BOUND = 300
PORT = "127.0.0.1:8080"
NOT_RUN = {
    "meson install": "tests/test_install.py installs into a prefix and a DESTDIR",
    "./dev test": "it is what runs this test",
    "docker ": "needs a container engine; ./dev docker builds and runs this image",
    "build/server/lensd pull ": "needs the network; tests/http/test_pull.py pulls from a hub of its own",
    "pip install": "needs a package registry; what it installs is used where EXPORT_PYTHON has it",
}
# What a README names and a test has to make smaller: trained weights that would be downloaded.
WITHOUT_DOWNLOAD = {
    'weights="DEFAULT"': "weights=None",
    "export_timm.py mobilenetv3_small_100": "export_timm.py mobilenetv3_small_100 --weights none",
    "google/vit-base-patch16-224": "./hub/vit",
    "yolo11n-cls.pt": "./hub/yolo11n-cls.pt",
}


def read_readme():
    with open(README, encoding="utf-8") as file:
        return file.read()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", read_readme(), re.M | re.S)


def commands():
    """Every command line, without its comment."""
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    return [re.sub(r"\s{2,}#.*$", "", line) for line in lines]


def has_modules(python, *names):
    code = "import " + ", ".join(names)
    try:
        return subprocess.run([python, "-c", code], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=BOUND).returncode == 0
    except OSError:
        return False


class Readme(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-readme-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        place = os.path.join
        os.makedirs(place(cls.folder, "build", "server"))
        os.makedirs(place(cls.folder, "photos"))
        os.symlink(harness.BINARY, place(cls.folder, "build", "server", "lensd"))
        for name in ("tests", "models", "dev"):
            os.symlink(place(ROOT, name), place(cls.folder, name))
        drawn = place(harness.DIGITS, "drawn")
        for name, source in (("cat.jpg", "7_canvas.png"), ("dog.png", "3_paper.png")):
            shutil.copy(place(drawn, source), place(cls.folder, name))
            shutil.copy(place(drawn, source), place(cls.folder, "photos", name))
        # As large as photos are, which as an argument of a command no system takes.
        with open(place(cls.folder, "cat.jpg"), "ab") as photo:
            photo.write(bytes(200_000))
        # The digits stand for models that other lines export.
        shutil.copy(place(ROOT, "models", "digits", "model.onnx"), place(cls.folder, "resnet18.onnx"))
        for name in ("mobilenet", "vit", "yolo"):
            shutil.copytree(place(ROOT, "models", "digits"), place(cls.folder, name),
                            ignore=shutil.ignore_patterns("*.py", "*.md"))
        shutil.copytree(place(ROOT, "tests", "data", "text_models", "clip"), place(cls.folder, "clip"))
        for folder, name in (("repository", "digits"), ("hub", "vit-base-patch16-224")):
            shutil.copytree(place(cls.folder, "vit"), place(cls.folder, folder, name))
        cls.server = harness.Server()
        cls.addClassCleanup(cls.server.stop)

    def shell(self, line, folder=None, path=None):
        line = line.replace(PORT, f"127.0.0.1:{self.server.port}").replace(
            "--port 8080", f"--port {self.server.port}")
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(path or {})}
        return subprocess.run(["bash", "-c", line], cwd=folder or self.folder, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=BOUND)

    def ok(self, line, **where):
        ended = self.shell(line, **where)
        self.assertEqual(ended.returncode, 0, f"{line}\n{ended.stdout[-800:]}\n{ended.stderr[-1600:]}")
        return ended.stdout

    def reason_not_to(self, line):
        return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)

    # ---- each kind of command ----

    def test_every_command_is_of_a_known_kind(self):
        """A new kind of command in the README needs a test here."""
        kinds = ("curl ", "{ printf ", "build/server/lensd ", "./dev run", "./dev load ", "python3 models/export/")
        found = commands()
        self.assertGreater(len(found), 15)
        for line in found:
            self.assertTrue(line.startswith(kinds) or self.reason_not_to(line), line)

    def test_curl(self):
        lines = [line for line in commands() if re.match(r"curl |\{ printf .*\| curl ", line)]
        self.assertGreater(len(lines), 4)
        for line in lines:
            with self.subTest(line):
                answer = self.ok(line.replace("curl ", "curl -fsS ", 1))
                if "/predict" in line:
                    answer = json.loads(answer)
                    self.assertTrue(answer.get("predictions") or answer["results"])

    def test_lensd(self):
        for line in commands():
            if line.startswith("build/server/lensd ") and not self.reason_not_to(line):
                with self.subTest(line):
                    quick = " --time 20ms" if " bench " in line else ""
                    self.assertTrue(self.ok(line + quick))

    def test_dev_run(self):
        """./dev run builds and becomes `lensd serve`: that is what is started here, with each model."""
        for line in commands():
            if line.startswith("./dev run"):
                with self.subTest(line):
                    words = shlex.split(line)[2:]
                    words = [word if word.startswith("--") else os.path.join(self.folder, word)
                             for word in words]
                    server = harness.Server(*words)
                    try:
                        self.assertEqual(server.predict(harness.seven()).status, 200)
                    finally:
                        self.assertEqual(server.stop()[0], 0)
        with open(os.path.join(ROOT, "dev"), encoding="utf-8") as file:
            self.assertIn('exec "$build/server/lensd" serve "$@"', file.read())

    @unittest.skipUnless(os.environ.get("LOADGEN"), "loadgen was not built: libcurl4-openssl-dev is missing")
    def test_dev_load(self):
        for line in commands():
            if line.startswith("./dev load "):
                with self.subTest(line):
                    quick = " --seconds 0.3 --warmup 0 --max-seconds 3"
                    quick += "" if "--slo" in line or "--open" in line else " --open 20"
                    quick += "" if "--slo" in line else " --closed 1,2"
                    out = os.path.join(self.folder, "out")
                    line = line.replace("./dev load", f"{sys.executable} tests/load/loadtest --out {out}")
                    # An objective may be missed on a machine that is busy: that is exit status 1.
                    ended = self.shell(line + quick)
                    self.assertIn(ended.returncode, (0, 1) if "--slo" in line else (0,),
                                  ended.stdout + ended.stderr)
                    self.assertTrue(os.path.exists(os.path.join(out, "report.html")))

    # ---- exports ----

    def exported(self, folder, model):
        answer = json.loads(self.ok(f"build/server/lensd inspect {shlex.quote(model)} --json",
                                    folder=folder))
        self.assertTrue(answer["supported"])
        self.assertTrue(answer["transform"])
        return answer

    def fresh(self):
        folder = tempfile.mkdtemp(prefix="export-", dir=self.folder)
        for name in ("tests", "models", "build"):
            os.symlink(os.path.join(self.folder, name), os.path.join(folder, name))
        return folder

    def test_export_pytorch(self):
        python = "/usr/bin/python3"
        if not has_modules(python, "torch", "torchvision"):
            self.skipTest("python3-torch and python3-torchvision are not installed")
        block, = blocks("python")
        self.assertEqual(len(block.splitlines()), 3)
        folder = self.fresh()
        for found, instead in WITHOUT_DOWNLOAD.items():
            block = block.replace(found, instead)
        with open(os.path.join(folder, "export.py"), "w", encoding="utf-8") as file:
            file.write(block)
        self.ok(f"{python} export.py", folder=folder)
        self.assertEqual(self.exported(folder, "resnet18.onnx")["classes"], 1000)

    def recipe(self, module, prepare=None):
        """Runs the README's own lines of one library, with weights that are not downloaded."""
        python = os.environ.get("EXPORT_PYTHON", "")
        if not python or not has_modules(python, module):
            self.skipTest(f"EXPORT_PYTHON names no Python with {module}")
        name = {"timm": "timm", "transformers": "huggingface", "ultralytics": "ultralytics"}[module]
        line, = [line for line in commands() if f"export_{name}.py" in line]
        folder = self.fresh()
        if prepare:
            os.makedirs(os.path.join(folder, "hub"))
            self.ok(f"{shlex.quote(python)} -c {shlex.quote(prepare)}", folder=folder)
        for found, instead in WITHOUT_DOWNLOAD.items():
            line = line.replace(found, instead)
        line = line.replace("python3 ", shlex.quote(python) + " ", 1)
        self.ok(line, folder=folder)
        out = shlex.split(line)[-1]
        self.assertEqual(self.exported(folder, out)["classes"], 1000)
        server = harness.Server(os.path.join(folder, out))
        try:
            self.assertEqual(server.predict(harness.seven()).status, 200)
        finally:
            server.stop()

    def test_export_timm(self):
        self.recipe("timm")

    def test_export_huggingface(self):
        self.recipe("transformers", """
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor
c = ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=1000)
ViTForImageClassification(c).save_pretrained('hub/vit')
ViTImageProcessor().save_pretrained('hub/vit')
""")

    def test_export_ultralytics(self):
        self.recipe("ultralytics", """
from ultralytics import YOLO
YOLO('yolo11n-cls.yaml').save('hub/yolo11n-cls.pt')
""")

    # ---- what is written ----

    def test_links_and_files(self):
        text = read_readme()
        for path in re.findall(r"\]\(([^)#:]+)\)", text):
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)
        for path in re.findall(r"`((?:models|tests|docs)/[\w/.]+)`", text):
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)

    def test_options_in_the_text_exist(self):
        programs = "".join(harness.run_lensd(name, "--help").stdout for name in
                           ("serve", "predict", "inspect", "bench", "devices", "health", "key"))
        loadtest = self.ok(f"{sys.executable} tests/load/loadtest --help")
        bench = self.ok("grep -ho -- '\"--[a-z0-9-]*\"' tests/bench/peers.py").replace('"', " ")
        curl = "--data-binary"
        known = set(re.findall(r"--[a-z][a-z0-9-]*", programs + loadtest + bench + curl)) | {"--help", "--rm"}
        for option in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", read_readme())):
            self.assertIn(option, known, "the README names an option that no program has")

    def test_paths_in_the_text_exist(self):
        for path in re.findall(r"`(?:GET |POST )?(/[a-z0-9/]*[a-z])`", read_readme()):
            status = self.server.request("GET", path).status
            self.assertNotEqual(status, 404, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
