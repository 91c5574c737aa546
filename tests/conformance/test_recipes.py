#!/usr/bin/env python3
"""The recipes of models/export with seeded weights: the documents' own examples export and load, and
what cannot be exported ends with a sentence. Skips what needs a package that is not installed.

    PYTHON tests/conformance/test_recipes.py [Recipes.test_timm …]       # minutes; LENSD: the program
"""

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORT = ROOT / "models" / "export"
LENSD = os.environ.get("LENSD", str(ROOT / "build" / "server" / "lensd"))


def is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor the package it is a part of
        return False


def needs(*packages):
    missing = [name for name in packages if not is_there(name)]
    return unittest.skipIf(missing, f"{', '.join(missing)} not installed")


class Base(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = os.path.join(self.folder.name, "out")

    def recipe(self, name, *arguments):
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, str(EXPORT / f"export_{name}.py"), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                              env=environment, timeout=900)

    def loads(self, name, *arguments):
        done = self.recipe(name, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        return self.inspects()

    def inspects(self):
        seen = subprocess.run([LENSD, "inspect", self.out], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False, timeout=300)
        self.assertEqual(seen.returncode, 0, seen.stdout[-1000:])
        self.assertIn("lensd can run this model.", seen.stdout)
        return seen.stdout

    def refuses(self, words, name, *arguments):
        done = self.recipe(name, *arguments)
        self.assertEqual(done.returncode, 2, done.stderr[-2000:])
        self.assertNotIn("Traceback", done.stderr)
        self.assertIn(words, done.stderr)

    def saved(self, model, processor):
        folder = os.path.join(self.folder.name, "saved")
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder


class Recipes(Base):
    @needs("torch", "torchvision")
    def test_torchvision(self):
        self.loads("torchvision", "vit_b_16", self.out, "--weights", "none")
        self.refuses("has no classifier called", "torchvision", "vit_b_17", self.out)

    @needs("torch", "timm")
    def test_timm(self):
        self.loads("timm", "eca_nfnet_l0", self.out, "--weights", "none")
        self.refuses("could not create", "timm", "hf-hub:timm/eca_nfnet_l0", self.out)
        self.refuses("feature extractor", "timm", "vit_small_patch14_dinov2", self.out, "--weights", "none")

    @needs("torch", "transformers")
    def test_huggingface(self):
        import torch
        import transformers
        torch.manual_seed(0)
        # The window of its pool is hidden_dim x hidden_dim, over 2 x 2 pixels.
        config = transformers.EfficientNetConfig(
            image_size=64, hidden_dim=640, num_labels=5, width_coefficient=0.5, depth_coefficient=0.1)
        model = transformers.EfficientNetForImageClassification(config)
        size = {"height": 64, "width": 64}
        folder = self.saved(model, transformers.EfficientNetImageProcessor(size=size, crop_size=size))
        self.loads("huggingface", folder, self.out)

    @needs("torch", "transformers")
    def test_huggingface_refuses(self):
        import transformers
        config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                        intermediate_size=8, image_size=32)
        folder = self.saved(transformers.ViTModel(config), transformers.ViTImageProcessor())
        self.refuses("no weights of a classifier's head", "huggingface", folder, self.out)
        config = transformers.GLPNConfig()
        config.save_pretrained(folder)
        self.refuses("transformers has no image classifier of that type", "huggingface", folder, self.out)
        self.refuses("could not be loaded", "huggingface", "nobody/nothing", self.out)


def documented():
    """(recipe, arguments) of every command in the README and in the recipes' own words, once each."""
    texts = [(ROOT / "README.md").read_text()] + [path.read_text() for path in sorted(EXPORT.glob("export_*.py"))]
    found = re.findall(r"^(?:    |python3 models/export/)export_([a-z]+)\.py ([^#\n]+)", "\n".join(texts), re.M)
    return sorted({(recipe, tuple(shlex.split(words))) for recipe, words in found})


class Documented(Base):
    """Each documented command with seeded weights in the place of those that it would download."""

    def test_commands_are_found(self):
        self.assertEqual({recipe for recipe, _ in documented()}, {"torchvision", "timm", "huggingface", "ultralytics"})

    def seeded(self, recipe):
        made = set()
        for of, arguments in documented():
            if of != recipe:
                continue
            with self.subTest(command=" ".join(arguments)):
                name, _, *rest = arguments
                command = tuple(getattr(self, "seeded_" + recipe)(name, rest))
                if command not in made:
                    self.loads(recipe, *command)
                made.add(command)

    def seeded_torchvision(self, name, rest):
        return name, self.out, "--weights", "none"

    def seeded_timm(self, name, rest):
        name = name.rsplit("/", 1)[-1]
        if "--checkpoint" not in rest:
            return name, self.out, "--weights", "none"
        import timm
        import torch
        file = os.path.join(self.folder.name, "mine")
        torch.save(timm.create_model(name, num_classes=7).state_dict(), file + ".pth")
        with open(file + ".txt", "w", encoding="utf-8") as labels:
            labels.write("".join(f"label {i}\n" for i in range(7)))
        return name, self.out, *(word.replace("mine.", file + ".") for word in rest)

    def seeded_huggingface(self, name, rest):
        import transformers
        config = transformers.ViTConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                                        intermediate_size=96, num_labels=5)
        folder = self.saved(transformers.ViTForImageClassification(config), transformers.ViTImageProcessor())
        return folder, self.out, *rest

    def seeded_ultralytics(self, name, rest):
        import ultralytics
        base = os.path.basename(name)
        file = os.path.join(self.folder.name, base)
        ultralytics.YOLO((base if base.startswith("yolo") else "yolo11n-cls.pt").replace(".pt", ".yaml")).save(file)
        return file, self.out, *rest

    @needs("torch", "torchvision")
    def test_torchvision(self):
        self.seeded("torchvision")

    @needs("torch", "timm")
    def test_timm(self):
        self.seeded("timm")

    @needs("torch", "transformers")
    def test_huggingface(self):
        self.seeded("huggingface")

    @needs("ultralytics")
    def test_ultralytics(self):
        self.seeded("ultralytics")

    @needs("torch", "optimum.exporters.onnx")
    def test_optimum(self):
        texts = [(ROOT / "README.md").read_text()] + [path.read_text() for path in sorted(EXPORT.glob("*.*"))]
        commands = set(re.findall(r"optimum-cli( export onnx --model [^`\"\n]+)", "\n".join(texts)))
        self.assertTrue(commands)
        folder, _, *_ = self.seeded_huggingface("", [])
        program = os.path.join(os.path.dirname(sys.executable), "optimum-cli")
        for command in commands:
            with self.subTest(command=command):
                seeded = re.sub(r"--model \S+", f"--model {folder}", command).replace(" TASK ", " image-classification ")
                arguments = seeded.split()[:-1] + [self.out]
                done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      check=False, timeout=900, env={**os.environ, "HF_HUB_OFFLINE": "1"})
                self.assertEqual(done.returncode, 0, done.stderr[-2000:])
                self.inspects()

    @needs("torch", "torchvision", "onnxscript")
    def test_the_readme_exports_a_module(self):
        block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
        self.assertIn('weights="DEFAULT"', block)
        code = block.replace('weights="DEFAULT"', "weights=None")
        done = subprocess.run([sys.executable, "-c", code], cwd=self.folder.name, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, check=False, timeout=900)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        seen = subprocess.run([LENSD, "inspect", os.path.join(self.folder.name, "resnet18.onnx")],
                              stdout=subprocess.PIPE, text=True, check=False, timeout=300)
        self.assertIn("lensd can run this model.", seen.stdout)


if __name__ == "__main__":
    unittest.main()
