#!/usr/bin/env python3
"""Builds the CUDA image and tries it without a GPU: it serves on the CPU and says why CUDA is not used.

    tests/docker/check_cuda.py [unittest arguments]      ./dev docker cuda

The toolkit of this machine (CUDA_HOME, or /usr/local/cuda) takes the place of NVIDIA's packages; without one
this says so and skips. LENSD_GPU_ARCH=sm_90 builds the module for that alone, in a quarter of the time. Bounded: every call has a time limit, every container is removed.
"""

import json
import os
import re
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
IMAGE = "localhost/lensd:check-cuda"
TOOLKIT = os.path.realpath(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
ARCHITECTURES = [word for word in os.environ.get("LENSD_GPU_ARCH", "").split(",") if word]
OWN_LIMIT = 90e6  # bytes that lensd, its module and its libraries may add beside cudart and cuBLASLt


def setUpModule():
    check.ENGINE = ENGINE
    ENGINE.need_base(check.base_image())
    ENGINE.build(IMAGE, ROOT, "-v", f"{TOOLKIT}:/usr/local/cuda:ro",
                 "--build-arg", "GPU_ARCH=" + ",".join(ARCHITECTURES), file="Dockerfile.cuda", timeout=1800)


def shell(command):
    return ENGINE.out("run", "--rm", "--entrypoint", "/bin/sh", IMAGE, "-c", command)


class CudaImage(unittest.TestCase):
    def test_it_serves_on_the_cpu_and_says_why(self):
        container = check.Container(IMAGE, options=check.STRICT)
        self.addCleanup(container.remove)
        answer = container.wait(lambda: container.predict(drawn(7)))
        self.assertEqual((answer["device"], answer["predictions"][0]["label"]), ("cpu", "7"))
        with check.urllib.request.urlopen(container.url("/devices"), timeout=10) as text:
            devices = {device["id"]: device for device in json.loads(text.read())["devices"]}
        self.assertIs(devices["cuda:0"]["usable"], False)
        self.assertEqual(devices["cuda:0"]["reason"], "no NVIDIA driver is installed")

    def test_a_gpu_that_is_demanded_is_an_error(self):
        ended = ENGINE.call("run", "--rm", IMAGE, "serve", "--device", "cuda", check=False)
        self.assertEqual(ended.returncode, 1)
        self.assertIn("no NVIDIA driver is installed", ended.stderr)

    def test_the_module_finds_its_libraries(self):
        """By its name it is loaded without a driver: cudart itself then says that there is none."""
        text = ENGINE.out("run", "--rm", "-e", "LENSD_CUDA_MODULE=/usr/lib/lensd/lensd_cuda.so", IMAGE, "devices")
        self.assertIn("no NVIDIA driver is installed", text)
        self.assertNotIn("does not load", text)

    def test_of_cuda_it_holds_two_libraries(self):
        found = shell("find / -xdev \\( -name 'libcu*' -o -name 'libnv*' -o -name '*cudnn*' \\) -type f | sort").split()
        names = sorted(re.sub(r"[.0-9]+$", "", os.path.basename(path).replace(".so", "")) for path in found)
        self.assertEqual([name for name in names if not name.startswith("libcurl")], ["libcublasLt", "libcudart"])

    def test_what_it_holds_is_listed(self):
        names = {package["name"] for package in json.loads(shell("cat /usr/share/doc/lensd/sbom.spdx.json"))["packages"]}
        self.assertGreater(names, {"lensd", "libc6", "libcudart", "libcublasLt"})

    def test_every_architecture_is_in_the_module(self):
        tool = os.path.join(TOOLKIT, "bin", "cuobjdump")
        if not os.path.exists(tool):
            self.skipTest("the toolkit has no cuobjdump")
        container = ENGINE.out("create", IMAGE)
        self.addCleanup(ENGINE.call, "rm", container)
        target = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"lensd-module-{os.getpid()}.so")
        ENGINE.call("cp", f"{container}:/usr/lib/lensd/lensd_cuda.so", target)
        self.addCleanup(os.unlink, target)
        text = subprocess.run([tool, "--list-elf", "--list-ptx", target], check=True, stdout=subprocess.PIPE,
                              text=True, timeout=60).stdout
        # Code for sm_80 runs on sm_86 and sm_89, too.
        self.assertGreaterEqual(set(re.findall(r"\.(sm_\d+)a?\.cubin", text)),
                                set(ARCHITECTURES or ("sm_75", "sm_80", "sm_90")))
        self.assertRegex(text, r"\.sm_\d+\.ptx")

    def test_size(self):
        base, whole = (ENGINE.inspect_image(name)["Size"] for name in (check.base_image(), IMAGE))
        sizes = dict(reversed(line.split()) for line in
                     shell("stat -L -c '%s %n' /usr/lib/lensd/lensd_cuda.so /usr/lib/x86_64-linux-gnu/libcublasLt.so.?? "
                           "/usr/lib/x86_64-linux-gnu/libcudart.so.??").splitlines())
        nvidia = sum(int(size) for path, size in sizes.items() if "lensd" not in path)
        print(f"unpacked: {whole / 1e6:.0f} MB, of which Debian {base / 1e6:.0f}, cudart and cuBLASLt "
              f"{nvidia / 1e6:.0f}, the module {int(sizes['/usr/lib/lensd/lensd_cuda.so']) / 1e6:.1f}, "
              f"lensd and its other libraries {(whole - base - nvidia) / 1e6:.0f}", file=sys.stderr)
        self.assertLess(whole - base - nvidia, OWN_LIMIT)


if __name__ == "__main__":
    ENGINE, REASON = engines.find()
    if REASON is None and not os.path.exists(os.path.join(TOOLKIT, "bin", "nvcc")):
        REASON = f"no CUDA toolkit in {TOOLKIT}"
    totals.main(REASON)
