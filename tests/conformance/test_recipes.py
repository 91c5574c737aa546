#!/usr/bin/env python3
"""The recipes of models/export with seeded weights: the documents' own examples export and load, and
what cannot be exported ends with a sentence. Skips what needs a package that is not installed.

    PYTHON tests/conformance/test_recipes.py [Recipes.test_timm …]       # minutes; LENSD: the program
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXPORT = ROOT / "models" / "export"
LENSD = os.environ.get("LENSD", str(ROOT / "build" / "server" / "lensd"))


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"{', '.join(missing)} not installed")


class Recipes(unittest.TestCase):
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

    @needs("torch", "torchvision")
    def test_torchvision(self):
        self.loads("torchvision", "vit_b_16", self.out, "--weights", "none")
        self.refuses("has no classifier called", "torchvision", "vit_b_17", self.out)

    @needs("torch", "timm")
    def test_timm(self):
        self.loads("timm", "eca_nfnet_l0", self.out, "--weights", "none")
        self.refuses("could not create", "timm", "hf-hub:timm/eca_nfnet_l0", self.out)
        self.refuses("feature extractor", "timm", "vit_small_patch14_dinov2", self.out, "--weights", "none")

    def saved(self, model, processor):
        folder = os.path.join(self.folder.name, "saved")
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder

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
        self.refuses("of which transformers has no image classifier", "huggingface", folder, self.out)
        self.refuses("could not be loaded", "huggingface", "nobody/nothing", self.out)


if __name__ == "__main__":
    unittest.main()
