#!/usr/bin/env python3
"""Builds the multi-platform image for x86-64 and arm64 on an x86-64 machine, and compares what the two images answer.

    tests/docker/check_arm64.py [unittest arguments]      ./dev docker arm64

lensd is cross-compiled. Debian's packages are set up, and the arm64 image runs, under qemu-user, which is registered
with the kernel for the duration of the tests, if it was not before. Bounded: every call has a time limit, every container is removed.
"""

import json
import os
import platform
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(sys.path[0], os.pardir, "http"), os.path.join(sys.path[0], os.pardir)]
import check  # noqa: E402
import engine as engines  # noqa: E402
import totals  # noqa: E402
from harness import ROOT, drawn  # noqa: E402

ENGINE = None
INDEX, BARE = "localhost/lensd:check-index", "localhost/lensd:check-index-bare"
ARM_BASE = "localhost/debian-arm64:12"
BINFMT = "/proc/sys/fs/binfmt_misc"


def write(name, text):
    with open(os.path.join(BINFMT, name), "w", encoding="latin-1") as file:
        file.write(text)


def register():
    """So that arm64 programs start, in containers too."""
    if not os.path.exists(BINFMT + "/register"):
        subprocess.run(["mount", "-t", "binfmt_misc", "none", BINFMT], check=True, timeout=60)
        unittest.addModuleCleanup(subprocess.run, ["umount", BINFMT], check=True, timeout=60)
    if not os.path.exists(BINFMT + "/qemu-aarch64"):
        with open("/usr/lib/binfmt.d/qemu-aarch64.conf", encoding="latin-1") as file:
            write("register", file.read())
        unittest.addModuleCleanup(write, "qemu-aarch64", "-1")


def setUpModule():
    check.ENGINE = ENGINE
    register()
    ENGINE.need_base(check.base_image())
    ENGINE.need_base(ARM_BASE, "arm64")
    for name, options in ((INDEX, ()), (BARE, ("--target", "bare"))):
        # An index that was left would keep its images, and with one podman 4.3 lists no images at all.
        ENGINE.call("manifest", "rm", name, check=False)
        unittest.addModuleCleanup(ENGINE.call, "manifest", "rm", name, check=False)
        for architecture, base in (("amd64", check.base_image()), ("arm64", ARM_BASE)):
            # As `--platform linux/amd64,linux/arm64` does by one command where the base image has both.
            ENGINE.build(name, ROOT, "--platform", "linux/" + architecture, "--build-arg", "BUILDPLATFORM=linux/amd64",
                         "--build-arg", "DEBIAN=" + base, "--build-arg", "BUILD_DEBIAN=" + check.base_image(), *options,
                         timeout=3600, is_index=True)


class Index(unittest.TestCase):
    def start(self, name, architecture):
        container = check.Container(name, options=("--platform", "linux/" + architecture, "--read-only", "--cap-drop", "all",
                                                   "--security-opt", "no-new-privileges"))
        self.addCleanup(container.remove)
        return container

    def test_both_architectures_are_in_it(self):
        for name in (INDEX, BARE):
            images = json.loads(ENGINE.out("manifest", "inspect", name))["manifests"]
            self.assertEqual(sorted(image["platform"]["architecture"] for image in images), ["amd64", "arm64"])

    def test_both_answer_the_same(self):
        for name in (INDEX, BARE):
            answers = {}
            for architecture in ("amd64", "arm64"):
                container = self.start(name, architecture)
                container.wait(lambda: container.predict(drawn(0)))
                answers[architecture] = [container.predict(drawn(digit))["predictions"] for digit in range(10)]
                said = ENGINE.out("exec", container.id, "/usr/bin/lensd", "devices")
                self.assertEqual("neon" in said, architecture == "arm64", said)
            for digit, (one, other) in enumerate(zip(answers["amd64"], answers["arm64"])):
                self.assertEqual((one[0]["label"], other[0]["label"]), (str(digit), str(digit)), name)
                probabilities = [{each["label"]: each["probability"] for each in answer} for answer in (one, other)]
                for label in probabilities[0].keys() & probabilities[1].keys():
                    self.assertAlmostEqual(probabilities[0][label], probabilities[1][label], places=3)


if __name__ == "__main__":
    ENGINE, REASON = engines.find()
    if not REASON and ENGINE.word != "podman":
        REASON = "the index is built with podman here; docker has its own store for one"
    if not REASON and platform.machine() != "x86_64":
        REASON = "this is for x86-64 machines"
    totals.main(REASON)
