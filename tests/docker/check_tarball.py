#!/usr/bin/env python3
"""`./dev tarball`: tries an archive in a root that holds nothing but it and busybox, as a normal user.

    check_tarball.py lensd-0.1.0-linux-x86_64.tar.xz
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from PIL import Image

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PHOTO = os.path.join(ROOT, "tests", "data", "digits", "drawn", "7_paper.png")
ARCHIVE = ""

class Tarball(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="lensd-tarball-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.root = os.path.join(cls.folder, "root")
        for name in ("bin", "run", "opt"):
            os.makedirs(os.path.join(cls.root, name))
        shutil.copy("/bin/busybox", os.path.join(cls.root, "bin", "busybox"))
        os.symlink("busybox", os.path.join(cls.root, "bin", "sh"))
        os.symlink("busybox", os.path.join(cls.root, "bin", "readlink"))
        subprocess.run(["tar", "-xJf", ARCHIVE, "-C", os.path.join(cls.root, "opt")], check=True)
        (cls.name,) = os.listdir(os.path.join(cls.root, "opt"))
        cls.tree = os.path.join(cls.root, "opt", cls.name)
        os.symlink(f"/opt/{cls.name}/lensd", os.path.join(cls.root, "bin", "lensd"))
        shutil.copy(PHOTO, os.path.join(cls.root, "seven.png"))

    def words(self, *command):
        # A user namespace: root in it is the normal user outside, and has no other rights.
        return ["unshare", "--user", "--map-root-user", "/usr/sbin/chroot", self.root, *command]

    def inside(self, *command):
        ended = subprocess.run(self.words(*command), env={"PATH": "/bin"}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def test_predict(self):
        for program in (f"/opt/{self.name}/lensd", "/bin/lensd", "lensd"):
            line = json.loads(self.inside("/bin/sh", "-c", f"{program} predict digits /seven.png --jsonl"))
            self.assertEqual(line["predictions"][0]["label"], "7", program)

    def test_serve(self):
        port = os.path.join(self.root, "run", "port")
        with subprocess.Popen(self.words("/bin/lensd", "serve", "--port", "0", "--port-file", "/run/port"),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
            for line in server.stdout:
                if "lensd serves" in line:
                    break
            else:
                self.fail(f"lensd ended with {server.wait()}")
            with open(port, encoding="utf-8") as file:
                self.assertIn("ready", self.inside("/bin/lensd", "health", "--port", file.read().strip()))
            server.terminate()
            server.stdout.read()
        self.assertEqual(server.returncode, 0)

    def test_webp(self):
        """Its library is loaded while lensd runs."""
        with Image.open(PHOTO) as photo:
            photo.save(os.path.join(self.root, "seven.webp"), lossless=True)
        line = json.loads(self.inside("/bin/lensd", "predict", "digits", "/seven.webp", "--jsonl"))
        self.assertEqual(line["predictions"][0]["label"], "7")

    def test_contents(self):
        with open(os.path.join(self.tree, "sbom.spdx.json"), encoding="utf-8") as file:
            packages = {package["name"] for package in json.load(file)["packages"]}
        licences = set(os.listdir(os.path.join(self.tree, "usr", "share", "doc"))) - {"lensd"}
        self.assertEqual(packages - {"lensd"}, licences)
        self.assertIn("libc6", packages)
        subprocess.run(["sha256sum", "--check", "--quiet", os.path.basename(ARCHIVE) + ".sha256"],
                       cwd=os.path.dirname(ARCHIVE), check=True)


if __name__ == "__main__":
    ARCHIVE = os.path.realpath(sys.argv.pop(1))
    unittest.main()
