#!/usr/bin/env python3
"""What `meson install` installs, run from where it is: test_install.py BUILD MODULE_FOLDER [STAND_IN]

MODULE_FOLDER is where the CUDA module belongs, below the prefix; STAND_IN is a module over a stand-in for CUDA."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BUILD, MODULE_FOLDER = sys.argv[1:3]
STAND_IN = sys.argv[3] if len(sys.argv) > 3 else None


def run(*command, **environment):
    return subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="lensd-install-")
        cls.addClassCleanup(folder.cleanup)
        cls.destination = folder.name
        done = run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", folder.name)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        options = json.loads(run("meson", "introspect", BUILD, "--buildoptions").stdout)
        cls.prefix = next(option["value"] for option in options if option["name"] == "prefix")
        # Somewhere else than where it was configured for.
        cls.installed = os.path.join(folder.name, "moved")
        os.rename(folder.name + cls.prefix, cls.installed)
        cls.binary = os.path.join(cls.installed, "bin", "lensd")

    def read(self, *path):
        with open(os.path.join(self.installed, *path), encoding="utf-8") as file:
            return file.read()

    def test_the_program_answers(self):
        photo = os.path.join(ROOT, "tests", "data", "digits", "drawn", "7_paper.png")
        done = run(self.binary, "predict", os.path.join(ROOT, "models", "digits"), photo, "--device", "cpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("7", done.stdout)

    def test_the_cuda_module_is_found(self):
        """On a machine with a driver; any library does for one, because only its presence is asked."""
        if not STAND_IN:
            self.skipTest("this build has no stand-in for CUDA (a sanitizer, or no C++ compiler)")
        files = json.loads(run("meson", "introspect", BUILD, "--installed").stdout).values()
        for path in files:
            if os.path.basename(path) == "lensd_cuda.so":
                self.assertEqual(os.path.dirname(path), os.path.join(self.prefix, MODULE_FOLDER))
        folder = os.path.join(self.installed, MODULE_FOLDER)
        os.makedirs(folder, exist_ok=True)
        shutil.copy(STAND_IN, os.path.join(folder, "lensd_cuda.so"))
        libraries = os.path.join(self.destination, "libraries")
        os.mkdir(libraries)
        shutil.copy(STAND_IN, os.path.join(libraries, "libcuda.so.1"))
        done = run(self.binary, "devices", "--json", LD_LIBRARY_PATH=libraries, LENSD_CUDA_MODULE="")
        self.assertIn('"cuda:0"', done.stdout, done.stderr)

    def test_the_unit_starts_the_installed_program(self):
        unit = self.read("lib", "systemd", "system", "lensd.service")
        self.assertIn(f"\nExecStart={self.prefix}/bin/lensd serve\n", unit)

    def test_the_check_has_the_settings_of_the_service(self):
        def settings(name, but):
            lines = self.read("lib", "systemd", "system", name).splitlines()
            return [line for line in lines if re.match(r"#?[A-Z]\w+=", line) and line.lstrip("#").split("=")[0] not in but]
        changed = {"Description", "Type", "TimeoutStartSec", "ExecStart"}
        service = {"StartLimitIntervalSec", "NotifyAccess", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus",
                   "TimeoutStopSec", "WatchdogSec", "WatchdogSignal", "WantedBy"}
        self.assertEqual(settings("lensd-check.service", changed | {"RuntimeDirectoryPreserve"}),
                         settings("lensd.service", changed | service))
        check = self.read("lib", "systemd", "system", "lensd-check.service")
        self.assertIn(f"\nExecStart={self.prefix}/bin/lensd serve --check\n", check)
        self.assertIn("\nType=oneshot\n", check)
        # --unix /run/lensd/socket can be checked before the service runs, and the check leaves a running one its folder.
        self.assertIn("\nRuntimeDirectory=lensd\nRuntimeDirectoryPreserve=yes\n", check)
        self.assertNotIn("[Install]", check)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd-analyze is not installed")
    def test_systemd_takes_the_units(self):
        with tempfile.TemporaryDirectory(prefix="lensd-units-") as folder:
            names = ("lensd.service", "lensd-check.service", "lensd.socket")
            for name in names:
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(self.read("lib", "systemd", "system", name).replace(f"{self.prefix}/bin/lensd", self.binary))
            done = run("systemd-analyze", "verify", "--man=no", *(os.path.join(folder, name) for name in names), LC_ALL="C")
            self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_the_documents(self):
        self.assertIn(".TH ", self.read("share", "man", "man1", "lensd.1"))
        for path in ("bash-completion/completions/lensd", "fish/vendor_completions.d/lensd.fish",
                     "zsh/site-functions/_lensd"):
            self.assertIn("top-k", self.read("share", path))
        self.assertIn('openapi: "3.1', self.read("share", "lensd", "openapi.yaml"))

    def test_the_exporters_run(self):
        for name in ("torchvision", "timm", "huggingface", "ultralytics"):
            done = run(sys.executable, os.path.join(self.installed, "share", "lensd", "export", f"export_{name}.py"),
                       "--help")
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
