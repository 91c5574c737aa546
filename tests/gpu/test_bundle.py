#!/usr/bin/env python3
"""The bundle: made of this build, moved to another folder, run with nothing in the environment.

BUILD names the build folder. Skips where patchelf is not installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, os.pardir))
import totals  # noqa: E402

BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "../../build")))
SEVEN = os.path.join("tests", "data", "digits", "drawn", "7_paper.png")


def run(*words, timeout=120, **environment):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout, env=environment)


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.mkdtemp(prefix="lensd-bundle-")
        made = os.path.join(cls.scratch, "made")
        cls.output = run(sys.executable, os.path.join(HERE, "bundle.py"), "--build", BUILD, "--photos", "1",
                         "--no-archive", "--stand-in", made, PATH=os.environ["PATH"])
        if cls.output.returncode:
            raise AssertionError(cls.output.stderr)
        # Elsewhere, and by a name that needs quoting.
        cls.folder = os.path.join(cls.scratch, "an other place")
        os.rename(made, cls.folder)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.scratch)

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def about(self):
        with open(self.path("bundle.json"), encoding="utf-8") as file:
            return json.load(file)

    def check_seven(self, **environment):
        ended = run(self.path("lensd"), "predict", self.path("models", "digits"), self.path(SEVEN),
                    LENSD_CACHE="none", **environment)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, r"\b7\b")

    def test_predicts_from_a_moved_folder_without_an_environment(self):
        self.check_seven()

    def test_predicts_with_the_c_library_it_carries(self):
        self.check_seven(LENSD_GLIBC="own")

    def test_reached_through_a_link_from_elsewhere(self):
        link = os.path.join(self.scratch, "lensd")
        os.symlink(self.path("lensd"), link)
        self.assertIn(self.about()["version"], run(link, "--version").stdout)

    def test_every_library_is_its_own(self):
        """But for the C library and what CUDA has on the machine, nothing outside the folder is loaded."""
        outside = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|dl|pthread|rt|cublasLt|cublas)\.so)")
        for name in os.listdir(self.path("bin")):
            for line in run("ldd", self.path("bin", name), PATH=os.environ["PATH"]).stdout.splitlines():
                library, _, place = line.strip().partition(" => ")
                if place and not outside.match(library):
                    self.assertTrue(place.startswith(os.path.realpath(self.folder)), f"{name}: {line}")

    def test_it_is_small(self):
        """64 MB with the CUDA module of one architecture, which takes 2, and without SQLite, which bundle.py's
        own build leaves out; line numbers and the stand-in are in this one."""
        sys.path.insert(0, HERE)
        import bundle
        found = bundle.sizes(self.folder)
        self.assertEqual(list(found.values()), sorted(found.values(), reverse=True))
        self.assertIn(f"{sum(found.values()) / 1e6:.1f} MB of 64 (", self.output.stdout)
        own = sum(size for name, size in found.items() if name != os.path.join("lib", "lensd", "lensd_fake_cuda.so")
                  and name != os.path.join("lib", "lensd", "lensd_cuda.so") and "libsqlite3" not in name)
        self.assertLess(own, 62 * 10**6, self.output.stdout)

    def test_lensd_and_its_tests_are_one_file(self):
        for name in ("bench_forward", "bench_image", "lensd_graphs", "lensd_conformance"):
            self.assertEqual(os.readlink(self.path("bin", name)), "lensd")
        self.assertIn("photos in, labels out", run(self.path("lensd"), "--help").stdout)

    def test_other_programs_start(self):
        for name in ("bench_forward", "lensd_conformance", "lensd_graphs", "lensd_post"):
            ended = run(self.path(name), "--what")
            self.assertIn("usage", ended.stdout + ended.stderr, name)
        self.assertEqual(run(self.path("start"), "none").returncode, 127)

    def test_the_stand_in_is_no_gpu(self):
        """Only by its name: the bundle itself says that there is no driver, or what GPU there is."""
        if not os.path.exists(self.path("lib", "lensd", "lensd_fake_cuda.so")):
            self.skipTest("this build has no stand-in for CUDA")
        self.check_seven(LENSD_CUDA_MODULE=self.path("lib", "lensd", "lensd_fake_cuda.so"),
                         LENSD_DEVICE="cuda:0", LENSD_PRECISION="fp32")

    def test_cublas_is_found_where_pytorch_keeps_it(self):
        if not self.about()["cublas"]:
            self.skipTest("this build has no CUDA module")
        # A python3 that knows of a package folder, and a program that shows its environment.
        packages = os.path.join(self.scratch, "packages", "nvidia", "cu", "lib")
        tools = os.path.join(self.scratch, "tools")
        os.makedirs(packages)
        os.makedirs(tools)
        open(os.path.join(packages, self.about()["cublas"]), "w", encoding="utf-8").close()
        for name, text in (("ldconfig", "exit 1"),
                           ("python3", f'PYTHONPATH="{os.path.dirname(os.path.dirname(os.path.dirname(packages)))}" '
                                       f'exec {sys.executable} "$@"')):
            with open(os.path.join(tools, name), "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{text}\n")
            os.chmod(os.path.join(tools, name), 0o755)
        shown = os.path.join(self.folder, "bin", "show")
        with open(shown, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\necho $LD_LIBRARY_PATH\n")
        os.chmod(shown, 0o755)
        self.addCleanup(os.unlink, shown)
        with open(self.path("start"), encoding="utf-8") as file:
            start = file.read().replace("/usr/local/cuda", "/nowhere").replace("/sbin/ldconfig", "/nowhere")
        other = self.path("start-elsewhere")
        with open(other, "w", encoding="utf-8") as file:
            file.write(start.replace('"$name" = start', '"$name" = start-elsewhere'))
        os.chmod(other, 0o755)
        self.addCleanup(os.unlink, other)
        ended = run(other, "show", PATH=f"{tools}:{os.environ['PATH']}")
        self.assertEqual(ended.stdout.strip(), packages, ended.stderr)
        ended = run(other, "--libraries", PATH="/usr/bin:/bin", LENSD_PYTHON=os.path.join(tools, "python3"))
        self.assertEqual(ended.stdout.strip(), packages, ended.stderr)
        # Nowhere: where there is a driver, it says what is missing and where it looked.
        os.unlink(os.path.join(packages, self.about()["cublas"]))
        ended = run(other, "show", PATH=f"{tools}:/usr/bin:/bin", LD_LIBRARY_PATH="/else/where")
        self.assertEqual((ended.stdout.strip(), ended.stderr), ("/else/where", ""))
        with open(other, "w", encoding="utf-8") as file:
            file.write(start.replace('"$name" = start', '"$name" = start-elsewhere').replace("/dev/nvidiactl", "/dev/null"))
        ended = run(other, "show", PATH=f"{tools}:/usr/bin:/bin", LD_LIBRARY_PATH="/else/where")
        self.assertEqual(ended.stdout.strip(), "/else/where")
        self.assertRegex(ended.stderr, f"{self.about()['cublas']} is not on this machine.* /else/where .*{tools}/python3"
                                       ".*pip install nvidia-cublas")

    def test_a_folder_that_is_no_bundle_is_left_alone(self):
        keep = os.path.join(self.scratch, "keep")
        os.makedirs(os.path.join(keep, "mine"))
        ended = run(sys.executable, os.path.join(HERE, "bundle.py"), "--build", BUILD, keep,
                    PATH=os.environ["PATH"])
        self.assertEqual(ended.returncode, 1)
        self.assertIn("is no bundle", ended.stderr)
        self.assertEqual(os.listdir(keep), ["mine"])


if __name__ == "__main__":
    totals.main(None if shutil.which("patchelf") else "patchelf is not installed")
