"""The daemon confines itself: which threads, what it reports, and what is refused. The other suites run confined and
show that everything else works. tests/unit/server/app/thread_confine.c tests each rule."""

import ctypes
import errno
import functools
import os
import pwd
import resource
import signal
import stat
import sys
import unittest

import harness
import small_onnx
from harness import FolderCase, Server, read, run_lensd, seven

PROBE = os.environ.get("DECODE_PROBE", os.path.join(harness.ROOT, "build", "tests", "http", "libdecode_probe.so"))

# Runs the real program where a container's filter refuses landlock_* and seccomp.
WITHOUT = """#!{python}
import ctypes, os, struct, sys
calls = [444, 445, 446, {seccomp}]
code = [(0x20, 0, 0, 0)] + [(0x15, len(calls) - i, 0, call) for i, call in enumerate(calls)]
code += [(0x06, 0, 0, 0x7fff0000), (0x06, 0, 0, 0x50000 | 1)]
bytes = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
program = Program(len(code), ctypes.addressof(bytes))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program)) == 0, os.strerror(ctypes.get_errno())
os.execv({binary!r}, [{binary!r}] + sys.argv[1:])
"""


def landlock():
    """The version of its ABI; 0 where there is none."""
    return max(ctypes.CDLL(None).syscall(444, None, 0, 1), 0)


@functools.cache
def is_sanitized():
    server = Server()
    said = server.get("/health").json()["confinement"]
    server.stop()
    return said == "off: this build has a sanitizer"


@harness.needs("confinement")
class ConfineCase(FolderCase):
    def setUp(self):
        if is_sanitized():
            self.skipTest("a build with a sanitizer does not confine itself")
        super().setUp()

    @staticmethod
    def threads(server):
        """{name: {"Seccomp": "2", …}} of /proc/PID/task."""
        folder, found = f"/proc/{server.process.pid}/task", {}
        for task in os.listdir(folder):
            try:
                lines = read(f"{folder}/{task}/status").decode().splitlines()
            except FileNotFoundError:  # it has ended
                continue
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            found[status["Name"], task] = status
        return found


class Threads(ConfineCase):
    def test_every_thread(self):
        server = self.serve("--workers", "1")
        self.assertEqual(server.predict(seven()).status, 200)
        threads = self.threads(server)
        self.assertGreater(len(threads), 5)
        for name, status in threads.items():
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), name)
        if "Seccomp_filters" in status:
            counts = {name: int(status["Seccomp_filters"]) for (name, _), status in threads.items()}
            self.assertEqual(counts["decode-0"], counts["http"] + 1)
        said = server.get("/health").json()["confinement"]
        self.assertRegex(said, f"^seccomp, Landlock {landlock()}$" if landlock() else "^seccomp; no Landlock: ")
        self.assertEqual(" warn  confined " in self.assert_ended(server), not landlock())

    def test_decode_worker_is_stricter(self):
        """decode_probe.c tries the calls in the thread that decodes a photo, in one that it makes, and in others."""
        names = ("start", "http", "decode", "helper")
        server = self.serve("--workers", "1", environment={"LD_PRELOAD": PROBE})
        self.assertEqual(server.predict(read(os.path.join(harness.ROOT, "tests/data/images/exif_0.jpg"))).status, 200)
        self.assertTrue(server.answers())  # another connection
        for name in names:
            server.wait_log(f"probe {name} ")
        rows = {row[1]: dict(call.split("=") for call in row[2:]) for row in map(str.split, self.assert_ended(server).splitlines())
                if row[:1] == ["probe"]}
        start, http, decode, helper = ({call: int(value) for call, value in rows[name].items()} for name in names)
        self.assertEqual({call for call in decode if decode[call] != errno.EPERM}, set())
        self.assertEqual(helper, decode)
        # Neither the kernel nor a lack of rights refuses these to a thread that is not confined.
        narrower = {call for call in decode if http[call] != errno.EPERM}
        self.assertGreaterEqual(narrower, {"openat", "read", "newfstatat", "unlinkat", "recvfrom", "sendto", "accept4",
                                           "epoll_ctl", "code_mmap", "code_mprotect", "seccomp"})
        self.assertGreater(len({call for call in decode if start[call] != errno.EPERM}), len(narrower) + 12)

    @unittest.skipUnless(os.geteuid() == 0, "only root has capabilities")
    def test_root_s_capabilities(self):
        kept = sum(1 << number for number in (0, 1, 2, 3, 6, 7, 10, 14))  # of linux/capability.h
        server = self.serve()
        for name, status in self.threads(server).items():
            for kind in ("CapEff", "CapPrm", "CapInh"):
                self.assertEqual(int(status[kind], 16) & ~kept, 0, (name, kind))
        self.assertEqual(server.predict(seven()).status, 200)

    def test_off(self):
        server = self.serve("--confine", "off")
        self.assertEqual(server.predict(seven()).status, 200)
        for name, status in self.threads(server).items():
            self.assertEqual(status["NoNewPrivs"], "1", name)
        self.assertEqual(server.get("/health").json()["confinement"], "off")
        self.assertNotIn("confined", self.assert_ended(server))

    @unittest.skipUnless(os.uname().machine in ("x86_64", "aarch64"), "the number of seccomp(2) is not known here")
    def test_without_kernel_support(self):
        """The start goes on, with one line that says what is missing."""
        wrapper = self.path("lensd")
        with open(wrapper, "w") as file:
            file.write(WITHOUT.format(python=sys.executable, binary=harness.BINARY,
                                      seccomp=317 if os.uname().machine == "x86_64" else 277))
        os.chmod(wrapper, stat.S_IRWXU)
        real, harness.BINARY = harness.BINARY, wrapper
        try:
            server = self.serve()
        finally:
            harness.BINARY = real
        self.assertEqual(server.predict(seven()).status, 200)
        said = "no Landlock: Operation not permitted; no seccomp: Operation not permitted"
        self.assertEqual(server.get("/health").json()["confinement"], said)
        log = self.assert_ended(server)
        self.assertEqual(log.count("confined"), 1, log)
        self.assertIn(f' warn  confined text="{said}"', log)


@unittest.skipUnless(landlock(), "this kernel has no Landlock")
class Files(ConfineCase):
    def test_a_model_that_is_a_link_out_of_the_folder(self):
        models, elsewhere = self.path("models"), self.path("elsewhere")
        for path in (os.path.join(models, "inside"), elsewhere):
            os.makedirs(path)
            small_onnx.doubled_image(os.path.join(path, "model.onnx"), 2)
        os.symlink(elsewhere, os.path.join(models, "outside"))
        server = self.serve("--models", models, wait_ready=False)
        states = server.wait_for(
            lambda: (lambda rows: len(rows) == 2 and "loading" not in {row["state"] for row in rows} and rows)(
                server.get("/health").json()["models"]), "both models")
        states = {row["name"]: row for row in states}
        self.assertEqual(states["inside"]["state"], "ready")
        self.assertEqual(states["outside"]["state"], "failed")
        self.assertIn("Permission denied; it is a link, and lensd follows links within the folder of models only",
                      states["outside"]["error"])
        self.assert_ended(server)
        single = self.path("single")
        os.makedirs(single)
        os.symlink(os.path.join(elsewhere, "model.onnx"), os.path.join(single, "model.onnx"))
        checked = run_lensd("serve", "--check", single)
        self.assertEqual(checked.returncode, 2, checked.stdout)
        self.assertIn("Permission denied; it is a link", checked.stderr)
        self.assertEqual(run_lensd("serve", "--check", "--confine", "off", single).returncode, 0)
        server = self.serve("--models", models, "--confine", "off")
        self.assertEqual({row["state"] for row in server.get("/health").json()["models"]}, {"ready"})
        self.assert_ended(server)

    def test_a_model_in_the_cache_of_hugging_face(self):
        """Its files are links to MODEL/blobs. Those that lead elsewhere are refused."""
        revision, blobs = self.path("models--a--b/snapshots/0123"), self.path("models--a--b/blobs")
        for path in (revision, blobs):
            os.makedirs(path)
        small_onnx.doubled_image(os.path.join(blobs, "aa"), 2)
        for name, text in (("bb", "cat\ndog\n"), ("../../secret", "fish\nbird\n")):
            with open(os.path.join(blobs, name), "w", encoding="utf-8") as file:
                file.write(text)
        os.symlink("../../blobs/aa", os.path.join(revision, "model.onnx"))
        os.symlink("../../blobs/bb", os.path.join(revision, "labels.txt"))
        for served in ([revision], [os.path.join(revision, "model.onnx")], ["--models", os.path.dirname(revision)]):
            server = self.serve(*served)
            self.assertEqual(server.get("/health").json()["models"][0]["state"], "ready", served)
            self.assert_ended(server)
        os.unlink(os.path.join(revision, "labels.txt"))
        os.symlink("../../../secret", os.path.join(revision, "labels.txt"))
        for confine in ([], ["--confine", "off"]):
            ended = harness.run_lensd("serve", revision, "--port", "0", *confine)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn("labels.txt", ended.stderr)

    def test_keys_are_reread_in_their_folder_only(self):
        """A new file over the old one is read; a link to another folder is not, and the old keys hold."""
        os.mkdir(self.path("etc"))
        os.mkdir(self.path("elsewhere"))
        keys = self.path("etc/keys")

        def write(path, name):
            with open(path, "w") as file:
                file.write(f"{name} sha256:{'0' * 64}\n")
        write(keys, "alice")
        server = self.serve("--api-keys", keys)

        def reload(result):
            before = server.metric(f'lensd_reloads_total{{result="{result}"}}')
            server.signal(signal.SIGHUP)
            server.wait_metric(f'lensd_reloads_total{{result="{result}"}}', before + 1)
        write(keys + ".new", "bob")
        os.replace(keys + ".new", keys)
        reload("ok")
        write(self.path("elsewhere/keys"), "carol")
        os.symlink(self.path("elsewhere/keys"), keys + ".new")
        os.replace(keys + ".new", keys)
        reload("failed")
        server.wait_log("Permission denied")
        self.assert_ended(server)

    def test_a_cache_that_is_not_there_yet(self):
        cache = self.path("not/yet/there")
        server = self.serve("--cache", cache)
        self.assertTrue(os.path.isdir(cache))
        self.assertNotIn("nothing can be stored", self.assert_ended(server))

    def test_a_core_dump_that_the_kernel_writes(self):
        most, hard = 1 << 16, resource.getrlimit(resource.RLIMIT_CORE)[1]
        if "/" in read("/proc/sys/kernel/core_pattern").decode() or 0 <= hard < most:
            self.skipTest("core dumps are not written to the working folder")

        def prepare():
            os.chdir(self.folder)
            resource.setrlimit(resource.RLIMIT_CORE, (most, hard))
        latest = 0
        for _ in range(2):  # the second may have to replace the first
            server = self.serve("--core-dumps", prepare=prepare)
            server.signal(signal.SIGSEGV)
            self.assertEqual(server.wait(), -signal.SIGSEGV)
            before, latest = latest, max((os.stat(self.path(name)).st_mtime_ns for name in os.listdir(self.folder)
                                          if name.startswith("core")), default=0)
            self.assertGreater(latest, before)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_a_cache_of_another_user(self):
        """It is made as the user, who writes there later."""
        os.chmod(self.folder, 0o777)
        server = self.serve("--user", "nobody", "--cache", self.path("cache"))
        self.assertEqual(os.stat(self.path("cache")).st_uid, pwd.getpwnam("nobody").pw_uid)
        self.assertNotIn("nothing can be stored", self.assert_ended(server))


if __name__ == "__main__":
    unittest.main()
