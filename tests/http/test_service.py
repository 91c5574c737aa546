"""As a service: what systemd is told, the watchdog, the user, the pid file, core dumps, --check."""

import os
import pwd
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import harness
import small_onnx
from harness import ROOT, FolderCase, flat_png, hang_up, post, run_lensd, seven

UNIT = os.path.join(ROOT, "docker", "systemd", "lensd.service")


class Systemd:
    """The end of NOTIFY_SOCKET that systemd holds."""

    def __init__(self, folder, abstract=False):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = f"lensd-test-{os.getpid()}-{time.monotonic_ns()}"
        self.socket.bind("\0" + name if abstract else os.path.join(folder, "notify"))
        self.environment = {"NOTIFY_SOCKET": "@" + name if abstract else os.path.join(folder, "notify")}
        self.messages, self.changed = [], threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            try:
                data = self.socket.recv(4096).decode()
            except OSError:
                return
            if not data:
                return
            with self.changed:
                self.messages.append((time.monotonic(), data))
                self.changed.notify_all()

    def lines(self):
        with self.changed:
            return [line for _, message in self.messages for line in message.split("\n")]

    def times(self, line):
        with self.changed:
            return [when for when, message in self.messages if line in message.split("\n")]

    def wait(self, line, count=1, patience=harness.PATIENCE):
        with self.changed:
            found = self.changed.wait_for(lambda: sum(line in message.split("\n") for _, message in self.messages) >= count,
                                          patience)
        if not found:
            raise AssertionError(f"no {line!r} in {self.lines()}")


class Notify(FolderCase):
    def test_a_life(self):
        for abstract in (False, True):
            systemd = Systemd(self.folder, abstract)
            self.addCleanup(systemd.socket.close)
            server = self.serve(environment=systemd.environment)
            systemd.wait("READY=1")
            lines = systemd.lines()
            self.assertIn("STATUS=loading digits", lines)
            self.assertIn(f"STATUS=serving digits at http://127.0.0.1:{server.port}", lines)
            self.assertNotIn("WATCHDOG=1", lines)
            server.signal(signal.SIGHUP)
            systemd.wait("READY=1", 2)
            lines = systemd.lines()
            reloading = lines.index("RELOADING=1")
            self.assertRegex(lines[reloading + 1], r"^MONOTONIC_USEC=\d+$")
            self.assertIn("READY=1", lines[reloading:])
            self.assertNotIn("STOPPING=1", lines)
            self.assert_ended(server)
            systemd.wait("STOPPING=1")
            self.assertTrue(any(re.match(r"EXTEND_TIMEOUT_USEC=\d{8}$", line) for line in systemd.lines()))

    def test_a_model_that_cannot_be_served(self):
        systemd = Systemd(self.folder)
        self.addCleanup(systemd.socket.close)
        with open(self.path("bad.onnx"), "wb") as file:
            file.write(b"no model")
        ended = run_lensd("serve", self.path("bad.onnx"), "--port", "0", environment=systemd.environment)
        self.assertEqual(ended.returncode, 2)
        self.assertNotIn("READY=1", systemd.lines())

    def test_nobody_listens(self):
        for path in ("/no/such/socket", "relative", "", "/" + "x" * 300, "@"):
            server = self.serve(environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "100000"})
            self.assertEqual(server.predict(seven()).status, 200)
            self.assert_ended(server)


class Watchdog(FolderCase):
    def start(self, usec, *arguments, **extra):
        systemd = Systemd(self.folder)
        self.addCleanup(systemd.socket.close)
        server = self.serve(*arguments, environment={**systemd.environment, "WATCHDOG_USEC": str(usec), **extra})
        return systemd, server

    def test_it_is_told_in_time(self):
        """Four times in 0.4 s: it may be late, but not early."""
        start = time.monotonic()
        systemd, server = self.start(400000)
        systemd.wait("WATCHDOG=1", 20)
        self.assertGreater(systemd.times("WATCHDOG=1")[19] - start, 19 * 0.09)
        self.assert_ended(server)

    def test_another_process_is_meant(self):
        systemd, server = self.start(100000, WATCHDOG_PID="1")
        time.sleep(0.5)
        self.assertNotIn("WATCHDOG=1", systemd.lines())
        self.assert_ended(server)

    def test_a_lane_that_is_stuck(self):
        """It looks stuck as long as a pass runs that never ends: the watchdog must not be told meanwhile."""
        small_onnx.loops_when_light(self.folder, 0.9)
        systemd, server = self.start(2000000, self.folder, "--model-name", "loops", "--precision", "fp32")
        systemd.wait("WATCHDOG=1")
        connection = server.connect()
        connection.sendall(post("/predict", flat_png(255)))
        server.wait_log(re.compile(r"error stuck model=loops images=1 seconds=[\d.]+ text=\"no image"))

        def is_silent():
            during = len(systemd.times("WATCHDOG=1"))
            time.sleep(1)  # twice as long as between two of them
            return len(systemd.times("WATCHDOG=1")) == during
        server.wait_for(is_silent, "silence")
        during = len(systemd.times("WATCHDOG=1"))
        hang_up(connection)
        systemd.wait("WATCHDOG=1", during + 2)
        self.assertEqual(server.whole_log().count(" stuck "), 1)
        self.assert_ended(server)

    def test_load_is_no_fault(self):
        """The watchdog is told while eight clients keep the server busy."""
        systemd, server = self.start(4000000)
        answers = []

        def enough():
            return len(answers) > 16 and len(systemd.times("WATCHDOG=1")) >= 4

        def client(_):
            end = time.monotonic() + harness.PATIENCE
            while not enough() and time.monotonic() < end:
                answers.append(server.predict(seven()).status)
        harness.together(8, client)
        self.assertTrue(enough(), (answers, systemd.lines()))
        self.assertEqual(set(answers), {200})
        self.assertNotIn(" stuck ", server.whole_log())
        self.assert_ended(server)


class Files(FolderCase):
    def test_the_pid_file(self):
        path = self.path("pid")
        server = self.serve("--pid-file", path)
        self.assertEqual(int(harness.read(path)), server.process.pid)
        self.assert_ended(server)
        self.assertFalse(os.path.exists(path))
        ended = run_lensd("serve", "--port", "0", "--pid-file", "/no/such/folder/pid")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("cannot write --pid-file '/no/such/folder/pid'", ended.stderr)

    def test_the_port_file(self):
        path = self.path("port")
        for model, code in (("digits", 0), (self.path("bad.onnx"), 2)):
            with open(self.path("bad.onnx"), "w") as file:
                file.write("no model")
            process = subprocess.Popen([harness.BINARY, "serve", model, "--port", "0", "--port-file", path],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.addCleanup(process.stdout.close)
            self.addCleanup(lambda process=process: process.poll() is None and process.kill())
            if code == 0:
                self.assertIn(b"http://127.0.0.1:", process.stdout.readline())
                self.assertGreater(int(harness.read(path)), 0)
                process.terminate()
            self.assertEqual(process.wait(harness.PATIENCE), code)
            self.assertFalse(os.path.exists(path))

    def test_another_s_port_file_stays(self):
        path = self.path("port")
        process = subprocess.Popen([harness.BINARY, "serve", "--port", "0", "--port-file", path],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(process.stdout.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        process.stdout.readline()
        with open(path, "w") as file:
            file.write("1\n")
        process.terminate()
        self.assertEqual(process.wait(harness.PATIENCE), 0)
        self.assertEqual(harness.read(path), b"1\n")

    def test_another_s_pid_file_stays(self):
        path = self.path("pid")
        server = self.serve("--pid-file", path)
        with open(path, "w") as file:
            file.write("1\n")
        self.assert_ended(server)
        self.assertEqual(harness.read(path), b"1\n")

    def refused(self, option, path, *more):
        before = sorted(os.listdir(self.folder))
        place = () if "--unix" in more else ("--port", "0")
        for check in ((), ("--check",)):
            ended = run_lensd("serve", *place, option, path, *more, *check)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(f"{option} '{path}'", ended.stderr)
            self.assertEqual(sorted(os.listdir(self.folder)), before)
        return ended.stderr

    def test_what_is_no_file_is_not_replaced(self):
        with open(self.path("precious"), "w") as file:
            file.write("precious\n")
        os.symlink(self.path("precious"), self.path("link"))
        os.symlink("/nowhere/at/all", self.path("dangling"))
        os.mkfifo(self.path("fifo"))
        os.mkdir(self.path("folder"))
        for option in ("--pid-file", "--port-file"):
            for name, what in (("link", "a symbolic link"), ("dangling", "a symbolic link"),
                               ("fifo", "a device, pipe or socket"), ("folder", "a folder")):
                with self.subTest(option=option, name=name):
                    kind = os.lstat(self.path(name)).st_mode
                    self.assertIn(f"is there already and is {what}", self.refused(option, self.path(name)))
                    self.assertEqual(os.lstat(self.path(name)).st_mode, kind)
        self.assertEqual(harness.read(self.path("precious")), b"precious\n")

    def test_what_is_no_pid_file_is_not_replaced(self):
        path = self.path("notes")
        for text in ("notes\n", "12 notes\n", "12\n13\n", "7" * 20, "7" * 100, "1\0", "\n"):
            with self.subTest(text=text):
                with open(path, "w") as file:
                    file.write(text)
                self.assertIn("is not a pid file", self.refused("--pid-file", path, "--unix", self.path("socket")))
                self.assertEqual(harness.read(path), text.encode())

    def test_an_old_pid_file_is_replaced(self):
        path = self.path("pid")
        for text in ("", "999999999\n", "12"):
            for name in (path, path + ".new"):
                with open(name, "w") as file:
                    file.write(text)
            server = self.serve("--pid-file", path)
            self.assertEqual(int(harness.read(path)), server.process.pid)
            self.assert_ended(server)
            self.assertEqual(os.listdir(self.folder), [])

    def test_what_took_the_pid_file_s_place_stays(self):
        path = self.path("pid")
        server = self.serve("--pid-file", path)
        os.remove(path)
        with open(self.path("other"), "w") as file:
            file.write(f"{server.process.pid}\n")
        os.symlink("other", path)
        self.assert_ended(server)
        self.assertEqual(sorted(os.listdir(self.folder)), ["other", "pid"])

    def status(self, server, key):
        with open(f"/proc/{server.process.pid}/status") as status:
            return next(line.split()[1:] for line in status if line.startswith(key + ":"))

    def limit(self, server):
        return resource.prlimit(server.process.pid, resource.RLIMIT_CORE)[0]

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_another_user(self):
        nobody = pwd.getpwnam("nobody")
        os.chmod(self.folder, 0o755)
        server = self.serve("--user", "nobody", "--pid-file", self.path("pid"))
        self.assertEqual(self.status(server, "Uid"), [str(nobody.pw_uid)] * 4)
        self.assertEqual(self.status(server, "Gid"), [str(nobody.pw_gid)] * 4)
        self.assertEqual(self.status(server, "CapEff"), ["0" * 16])
        self.assertEqual(self.status(server, "NoNewPrivs"), ["1"])
        for task in os.listdir(f"/proc/{server.process.pid}/task"):
            with open(f"/proc/{server.process.pid}/task/{task}/status") as status:
                self.assertIn(f"Uid:\t{nobody.pw_uid}\t{nobody.pw_uid}", status.read())
        self.assertEqual(server.predict(seven()).status, 200)
        self.assert_ended(server)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_files_of_another_user(self):
        """In root's folder the port file ends empty and the pid file stays; in the user's both go."""
        for owner, left in ((0, {"pid", "port"}), (65534, set())):
            folder = self.path(f"of-{owner}")
            os.chmod(self.folder, 0o755)
            os.mkdir(folder)
            os.chown(folder, owner, owner)
            process = subprocess.Popen(
                [harness.BINARY, "serve", "--port", "0", "--user", "65534", "--port-file", f"{folder}/port",
                 "--pid-file", f"{folder}/pid"],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.addCleanup(process.stdout.close)
            self.addCleanup(lambda process=process: process.poll() is None and process.kill())
            self.assertIn(b"http://127.0.0.1:", process.stdout.readline())
            self.assertEqual((os.stat(f"{folder}/port").st_uid, os.stat(f"{folder}/pid").st_uid), (65534, 0))
            process.terminate()
            self.assertEqual(process.wait(harness.PATIENCE), 0)
            self.assertEqual(set(os.listdir(folder)), left)
            if left:
                self.assertEqual(harness.read(f"{folder}/port"), b"")
                self.assertEqual(int(harness.read(f"{folder}/pid")), process.pid)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_numbers_and_groups(self):
        server = self.serve("--user", "12345:23456")
        self.assertEqual((self.status(server, "Uid")[0], self.status(server, "Gid")[0]), ("12345", "23456"))
        self.assertEqual(self.status(server, "Groups"), [])
        self.assert_ended(server)

    def test_users_that_are_none(self):
        for user, word in (("no-such-user-here", "adduser --system"), ("0:no-such-group", "group 'no-such-group'"),
                           ("-1", "which is not a user of this system")):
            ended = run_lensd("serve", "--port", "0", f"--user={user}")
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(word, ended.stderr)

    @unittest.skipIf(os.geteuid() == 0, "root can become anybody")
    def test_only_root_can(self):
        ended = run_lensd("serve", "--port", "0", "--user", "0:0")
        self.assertIn("only root can become", ended.stderr)

    def test_core_dumps(self):
        server = self.serve()
        self.assertEqual(self.limit(server) if os.geteuid() == 0 else 0, 0)
        self.assertEqual(os.stat(f"/proc/{server.process.pid}/mem").st_uid, 0)
        self.assert_ended(server)
        soft = resource.getrlimit(resource.RLIMIT_CORE)[0]
        server = self.serve("--core-dumps")
        self.assertEqual(self.limit(server), soft)
        self.assertEqual(os.stat(f"/proc/{server.process.pid}/mem").st_uid, os.geteuid())
        self.assert_ended(server)


def check(*arguments):
    """Without trials of a precision: under a sanitizer or on a busy machine the digits are slow enough
    for them, and they are told in the log."""
    return run_lensd("serve", "--check", "--precision", "fp32", *arguments)


class Check(FolderCase):
    def test_all_is_well(self):
        done = check()
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (0, "lensd: the settings are fine, and digits can be served\n", ""))

    def test_no_port_is_opened(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            done = check("--port", str(taken.getsockname()[1]))
            self.assertEqual(done.returncode, 0, done.stderr)

            self.assertIn("is in use; ignore this if that is the running server", done.stderr)

    def test_what_cannot_be_kept(self):
        for cache in (harness.BINARY, os.path.join(harness.BINARY, "below")):
            done = check("--cache", cache)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"nothing can be stored in --cache '{cache}' (Not a directory)", done.stderr)
        if os.getuid() == 0:  # who may write anywhere, and yet not there
            done = check("--cache", "/proc/lensd")
            self.assertIn("nothing can be stored in --cache '/proc/lensd' (", done.stderr)
            server = self.serve("--cache", "/proc/lensd")
            self.assertEqual(server.whole_log().count("nothing can be stored in --cache '/proc/lensd' ("), 1)
        done = check("--cache", self.path("not/yet/there"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_limits_of_devices_that_are_not_served(self):
        for arguments, words in ((("--gpu-memory", "1G"), "--gpu-memory sets a limit for GPUs,"),
                                 (("--memory", "cpu=2G,cuda:0=12G"), "--memory sets a limit for cuda:0,")):
            done = check("--device", "cpu", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(words + " which --device cpu does not use", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            seven = os.path.join(harness.DIGITS, "drawn", "7_canvas.png")
            done = run_lensd("predict", "digits", seven, "--device", "cpu", *arguments)
            self.assertEqual((done.returncode, done.stderr.count(words)), (0, 1), done.stderr)
        done = check("--memory", "gpu=12G")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'gpu', which is not a device", done.stderr)

    def test_what_is_wrong(self):
        with open(self.path("keys"), "w") as file:
            file.write("alice secret\n")
        with open(self.path("bad.onnx"), "wb") as file:
            file.write(b"no model")
        for arguments, word in ((("--port", "x"), "--port"), (("--api-keys", self.path("keys")), "line 1"),
                                (("--tls-cert", "/no/such", "--tls-key", "/no/such"), "--tls-cert '/no/such'"),
                                ((self.path("bad.onnx"),), "bad.onnx"),
                                (("/dev/null",), "not a regular file"), (("/dev/zero",), "not a regular file"),
                                (("--host", "foo.invalid"), "'foo.invalid' is not an address"),
                                (("--user", "no-such-user-here"), "no-such-user-here")):
            with self.subTest(arguments=arguments):
                done = check(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(word, done.stderr)

    def test_what_may_come_later(self):
        """Exit 1, so that systemd tries again: a file system, an address or a GPU that is not there yet, memory."""
        for name in ("mount", "empty"):  # a mount point without its file system is an empty folder
            os.mkdir(self.path(name))
        os.mkdir(self.path("mount/resnet50"))
        for arguments, word in ((("/no/such/model",), "/no/such/model: there is no such file or folder"),
                                (("/no/such/model.onnx",), "/no/such/model.onnx: there is no such file"),
                                (("--models", "/no/such/models"), "there is no such folder"),
                                (("--models", self.path("empty")), "there is no model in this folder"),
                                ((self.path("mount/resnet50"),), "no model: looked for"),
                                (("--host", "192.0.2.1"), "no address 192.0.2.1"),
                                (("--device", "cuda:999"), "is not available"),
                                (("--device", "cpu", "--memory", "4K"), "missing; raise --memory")):
            with self.subTest(arguments=arguments):
                for more in ((), ("--check",)):
                    done = run_lensd("serve", *arguments, "--port", "0", *more)
                    self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
                    self.assertIn(word, done.stderr)

    @unittest.skipUnless(os.geteuid() == 0, "only root can become somebody else")
    def test_as_another_user(self):
        """Model and cache are looked at as the user who will read them; keys are read before, and again."""
        os.chmod(self.folder, 0o755)
        shut, keys, cache = self.path("shut"), self.path("keys"), self.path("cache")
        os.mkdir(shut, 0o700)
        os.mkdir(cache, 0o700)
        small_onnx.doubled_image(os.path.join(shut, "model.onnx"), 2)
        for arguments in (("--check",), ("--port", "0")):
            done = run_lensd("serve", shut, *arguments, "--user", "nobody")
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("Permission denied", done.stderr)
        with open(keys, "w") as file:
            file.write("alice sha256:" + "0" * 64 + "\n")
        os.chmod(keys, 0o600)
        said = f"--api-keys '{keys}' was read as root, but --user 'nobody' cannot read it again at SIGHUP"
        done = check("--user", "nobody", "--api-keys", keys, "--cache", cache)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(said, done.stderr)
        self.assertIn(f"nothing can be stored in --cache '{cache}' (Permission denied)", done.stderr)
        server = self.serve("--user", "nobody", "--api-keys", keys)
        server.wait_log(said)
        os.chmod(keys, 0o644)
        done = check("--user", "nobody", "--api-keys", keys)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class ProtectHome(FolderCase):
    def test_a_model_in_a_home_folder(self):
        """As systemd hides them: an empty folder without permissions over /home."""
        program = shutil.copy(harness.BINARY, self.path("lensd"))
        os.chmod(self.folder, 0o755)
        hide = ("mount -t tmpfs -o mode=0000 none /home && "
                "exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all \"$0\" \"$@\"")
        for arguments in (("/home/alice/resnet50",), ("--models", "/home/alice")):
            done = subprocess.run(["unshare", "--mount", "sh", "-c", hide, program, "serve", "--check", *arguments],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=harness.PATIENCE)
            if done.returncode not in (0, 2):
                self.skipTest(f"no mounts of its own: {done.stderr}")
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("Permission denied; the service may not see home folders (ProtectHome= of its unit)", done.stderr)
            self.assertNotIn("chmod", done.stderr)


class Unit(unittest.TestCase):
    analyze = shutil.which("systemd-analyze")

    def run_analyze(self, *arguments):
        return subprocess.run([self.analyze, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=harness.PATIENCE, env={**os.environ, "LC_ALL": "C"})

    @unittest.skipUnless(analyze, "systemd-analyze is not installed")
    def test_verify(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = os.path.join(folder, "lensd.service")
            with open(UNIT) as file, open(unit, "w") as out:
                out.write(file.read().replace("/usr/local/bin/lensd", harness.BINARY))
            done = self.run_analyze("verify", "--man=no", unit)
            self.assertEqual((done.returncode, done.stdout.strip()), (0, ""))

    @unittest.skipUnless(analyze, "systemd-analyze is not installed")
    def test_exposure(self):
        done = self.run_analyze("security", "--offline=true", UNIT)
        found = re.search(r"exposure level for lensd.service: ([\d.]+)", done.stdout)
        self.assertTrue(found, done.stdout)
        self.assertLessEqual(float(found.group(1)), 1.2, done.stdout)

    def test_restarts(self):
        """What is wrong with settings or models (exit 2) is not tried again; an operator may restart at will."""
        with open(UNIT) as file:
            lines = file.read().splitlines()
        self.assertIn("RestartPreventExitStatus=2", lines)
        self.assertIn("StartLimitIntervalSec=0", lines)

    def test_the_command_line(self):
        """What the unit starts is what lensd understands."""
        with open(UNIT) as file:
            start = re.search(r"^ExecStart=/usr/local/bin/lensd (.*)$", file.read(), re.M).group(1)
        done = run_lensd(*start.split(), "--check")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
