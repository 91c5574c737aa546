#!/usr/bin/env python3
"""Builds the image with the engine that is there, and tries it as an operator would.

    tests/docker/check.py [unittest arguments]

Without an engine it says so and skips. Bounded: every call has a time limit, every container is removed.
"""

import hashlib
import io
import json
import os
import re
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [os.path.join(sys.path[0], os.pardir, "http"), os.path.join(sys.path[0], os.pardir)]
import engine as engines  # noqa: E402
import totals  # noqa: E402
from harness import PATIENCE, ROOT, drawn, post, read_answer  # noqa: E402

ENGINE = None
IMAGE, BARE = "localhost/lensd:check", "localhost/lensd:check-bare"
AGAIN = BARE + "-again"
ADDED_LIMIT = 15e6  # bytes that lensd and its libraries may add to the base image
BARE_LIMIT = ADDED_LIMIT + 9e6  # and what the base has of these libraries: libc, libm, GnuTLS's …
STRICT = ("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--memory", "256m",
          "--pids-limit", "64")


def base_image():
    with open(os.path.join(ROOT, "docker", "Dockerfile"), encoding="utf-8") as file:
        return next(line.split("=", 1)[1].strip() for line in file if line.startswith("ARG DEBIAN="))


def setUpModule():
    began = time.monotonic()
    how = ENGINE.need_base(base_image())
    print(f"base image {base_image()}: {how}, {time.monotonic() - began:.0f} s", file=sys.stderr)
    began = time.monotonic()
    ENGINE.build(IMAGE, ROOT)
    ENGINE.build(BARE, ROOT, "--target", "bare")
    print(f"built with {ENGINE.word} in {time.monotonic() - began:.0f} s", file=sys.stderr)
    rebuilding.start()  # the other tests wait for containers most of the time
    unittest.addModuleCleanup(ENGINE.call, "rmi", "-f", AGAIN, check=False)
    unittest.addModuleCleanup(rebuilding.join)


def rebuild():
    """The same from another folder. One more file in it has the engine repeat all that follows the packages."""
    with tempfile.TemporaryDirectory(prefix="lensd-again-") as folder:
        copy = os.path.join(folder, "source")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", ".cache", "build*", "data", "__pycache__"))
        with open(os.path.join(copy, "again"), "w", encoding="ascii"):
            pass
        ENGINE.build(AGAIN, copy, "--target", "bare")


rebuilding = threading.Thread(target=rebuild)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Container:
    def __init__(self, image, *words, options=()):
        self.id = ENGINE.out("run", "-d", "-p", "127.0.0.1::8080", *options, image, *words)
        self.port = int(ENGINE.out("port", self.id, "8080/tcp").split(":")[-1])

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def predict(self, body, timeout=PATIENCE):
        request = urllib.request.Request(self.url("/predict"), data=body, method="POST")
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return json.loads(answer.read())

    def wait(self, what, limit=PATIENCE):
        end = time.monotonic() + limit
        while True:
            try:
                return what()
            except OSError:
                if time.monotonic() > end:
                    raise AssertionError(ENGINE.call("logs", self.id, check=False).stderr) from None
                time.sleep(0.01)

    def remove(self):
        ENGINE.call("rm", "-f", self.id, check=False)


class Image(unittest.TestCase):
    def start(self, image=IMAGE, *words, options=STRICT):
        container = Container(image, *words, options=options)
        self.addCleanup(container.remove)
        return container

    def test_first_answer(self):
        """How soon it comes is printed; LENSD_FIRST_ANSWER_S is a limit for a quiet machine."""
        for image in (IMAGE, BARE):
            with self.subTest(image=image):
                began = time.monotonic()
                container = self.start(image)
                answer = container.wait(lambda: container.predict(drawn(7)))
                took = time.monotonic() - began
                self.assertEqual(answer["predictions"][0]["label"], "7")
                print(f"{image}: run to first answer {took:.2f} s", file=sys.stderr)
                self.assertLess(took, float(os.environ.get("LENSD_FIRST_ANSWER_S", "inf")))

    def test_who_runs_and_what_it_may(self):
        container = self.start()
        container.wait(lambda: container.predict(drawn(3)))
        pid = ENGINE.inspect(container.id)["State"]["Pid"]
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
        self.assertEqual(status["Uid"].split("\t"), ["10001"] * 4)
        self.assertEqual((status["CapEff"], status["NoNewPrivs"]), ("0" * 16, "1"))
        self.assertIn(status["Seccomp"], ("2",))
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as file:
            root = next(line for line in file if line.split()[4] == "/")
        self.assertIn("ro", root.split()[5].split(","))

    def test_health_check(self):
        config = ENGINE.inspect_image(IMAGE)
        check = config.get("Config", {}).get("Healthcheck") or config.get("Healthcheck")
        self.assertEqual(check["Test"], ["CMD", "/usr/bin/lensd", "health"])
        container = self.start(BARE)
        container.wait(lambda: container.predict(drawn(3)))
        ended = ENGINE.call("exec", container.id, "/usr/bin/lensd", "health")
        self.assertEqual(json.loads(ended.stdout), {"status": "ready"})
        if ENGINE.word == "podman":
            self.assertEqual(ENGINE.call("healthcheck", "run", container.id, check=False).returncode, 0)

    def test_drain_answers_what_was_accepted(self):
        container = self.start()
        container.wait(lambda: container.predict(drawn(3)))
        body = drawn(3)
        connections = [socket.create_connection(("127.0.0.1", container.port), PATIENCE) for _ in range(8)]
        for connection in connections:
            self.addCleanup(connection.close)
            connection.sendall(post("/predict", body)[:-1])
        self.wait_uploads(container, 8 * (len(body) - 1))
        stopping = threading.Thread(target=ENGINE.call, args=("stop", "-t", "600", container.id))
        stopping.start()
        while self.accepts(container):
            time.sleep(0.05)
        for connection in connections:
            connection.sendall(body[-1:])
            self.assertEqual(read_answer(connection)[0].json()["model"], "digits")
        stopping.join(PATIENCE)
        self.assertEqual(ENGINE.inspect(container.id)["State"]["ExitCode"], 0)

    def wait_uploads(self, container, size):
        """Until so many bytes of bodies have been read."""
        end, found = time.monotonic() + PATIENCE, 0
        while found < size:
            self.assertLess(time.monotonic(), end, found)
            with urllib.request.urlopen(container.url("/metrics"), timeout=PATIENCE) as answer:
                found = next(float(line.split()[1]) for line in answer.read().decode().splitlines()
                             if line.startswith("lensd_http_upload_bytes "))

    @staticmethod
    def accepts(container):
        try:
            with urllib.request.urlopen(container.url("/livez"), timeout=1):
                return True
        except OSError:
            return False

    def test_a_model_from_outside(self):
        folder = os.path.join(ROOT, "models", "digits")
        for mount, words, name in ((f"{folder}:/models:ro", (), "model"),
                                   (f"{folder}:/models/drawn:ro", ("serve", "/models/drawn"), "drawn")):
            with self.subTest(mount=mount):
                container = self.start(BARE, *words, options=(*STRICT, "-v", mount))
                answer = container.wait(lambda c=container: c.predict(drawn(5)))
                self.assertEqual((answer["model"], answer["predictions"][0]["label"]), (name, "5"))

    def test_a_mistake_is_said_and_ends_it(self):
        for words, status, sentence in ((("serve", "/models/none"), 1, "none"), (("serve", "--prot", "1"), 2, "--port")):
            with self.subTest(words=words):
                ended = ENGINE.call("run", "--rm", *STRICT, BARE, *words, check=False)
                self.assertEqual(ended.returncode, status)
                self.assertIn(sentence, ended.stderr)

    def test_size(self):
        base, whole, bare = (ENGINE.inspect_image(name)["Size"] for name in (base_image(), IMAGE, BARE))
        print(f"unpacked: {whole / 1e6:.1f} MB on a base of {base / 1e6:.1f} MB: lensd and its libraries "
              f"add {(whole - base) / 1e6:.1f} MB; without Debian underneath {bare / 1e6:.1f} MB",
              file=sys.stderr)
        self.assertLess(whole - base, ADDED_LIMIT)
        self.assertLess(bare, BARE_LIMIT)

    def archive(self, image):
        container = ENGINE.out("create", image)
        try:
            data = ENGINE.call("export", container, text=False).stdout
        finally:
            ENGINE.call("rm", container)
        return tarfile.open(fileobj=io.BytesIO(data))

    def files(self, image):
        """path: (mode, owner, sha256 or link) of everything in an image."""
        found = {}
        with self.archive(image) as archive:
            for entry in archive:
                content = archive.extractfile(entry).read() if entry.isreg() else entry.linkname.encode()
                found[entry.name] = (entry.mode, entry.uid, entry.gid, hashlib.sha256(content).hexdigest())
        return found

    def test_bare_holds_nothing_else(self):
        files = self.files(BARE)
        programs = [name for name in files if "/bin/" in name or name.startswith("bin/")]
        self.assertEqual(programs, ["usr/bin/lensd"])
        for name, (mode, *_rest) in files.items():
            self.assertFalse(mode & 0o6000, f"{name} is set-user or set-group")
        licences = [name for name in files if name.endswith("/copyright")]
        for package in ("libmicrohttpd12", "libc6", "libgnutls30"):
            self.assertIn(f"usr/share/doc/{package}/copyright", licences)

    def test_what_an_image_holds_is_listed(self):
        """The list has the packages that dpkg knows, or those whose licences are there; and the program itself."""
        for image in (IMAGE, BARE):
            with self.subTest(image=image), self.archive(image) as archive:
                listed = {package["name"]: package for package in
                          json.load(archive.extractfile("usr/share/doc/lensd/sbom.spdx.json"))["packages"]}
                if image == BARE:
                    held = {name.split("/")[3]: None for name in archive.getnames() if name.endswith("/copyright")}
                else:
                    text = archive.extractfile("var/lib/dpkg/status").read().decode()
                    held = {}
                    for entry in text.split("\n\n"):
                        lines = dict(re.findall(r"^(Package|Status|Version): (.*)$", entry, re.M))
                        if lines.get("Status") == "install ok installed":
                            held[lines["Package"]] = lines["Version"]
                program = hashlib.sha256(archive.extractfile("usr/bin/lensd").read()).hexdigest()
            self.assertEqual(listed.pop("lensd")["checksums"][0]["checksumValue"], program)
            self.assertEqual(listed.keys(), held.keys())
            for name, version in held.items():
                self.assertIn(version, (None, listed[name]["versionInfo"]))

    def test_labels(self):
        for image in (IMAGE, BARE):
            labels = ENGINE.inspect_image(image)["Config"]["Labels"]
            for name in ("title", "description", "licenses", "vendor", "version", "revision"):
                self.assertTrue(labels[f"org.opencontainers.image.{name}"], name)
        self.assertEqual(ENGINE.inspect_image(IMAGE)["Config"]["Labels"]["org.opencontainers.image.base.name"], base_image())

    def test_the_same_source_gives_the_same_bytes(self):
        rebuilding.join()
        first, second = self.files(BARE), self.files(AGAIN)
        differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        # What the engine itself puts in at run time.
        self.assertEqual([name for name in differing if not name.startswith(("etc/host", "etc/resolv", "run"))],
                         [])


class Kubernetes(unittest.TestCase):
    def test_the_deployment_runs(self):
        """The very manifest, played by podman: probes aside, as a cluster would run it."""
        if ENGINE.word != "podman":
            self.skipTest("podman kube play is not there")
        with open(os.path.join(ROOT, "docker", "kubernetes", "deployment.yaml"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("image: localhost/lensd:latest", text)
        port = free_port()
        # A claim is a volume of that name for podman. Names are this run's own: a run that was killed leaves its behind.
        run = f"lensd-check-{os.getpid()}-{os.urandom(4).hex()}"
        ENGINE.call("volume", "create", run)
        self.addCleanup(ENGINE.call, "volume", "rm", "-f", run, check=False)
        ENGINE.call("run", "--rm", "--user", "0", "-v", f"{run}:/volume", "--entrypoint", "/bin/cp", IMAGE,
                    "-r", "/models/digits", "/volume/")
        text = text.replace("localhost/lensd:latest", IMAGE).replace("replicas: 2", "replicas: 1")
        for line in ("metadata:\n  name: lensd\n", "claimName: lensd-models\n"):
            self.assertEqual(text.count(line), 1)
            text = text.replace(line, line[:line.rindex(":")] + f": {run}\n")
        # podman 4.3 restarts an init container that has ended well, unless the pod says otherwise.
        text = text.replace("      automountService", "      restartPolicy: OnFailure\n      automountService")
        text = text.replace("containerPort: 8080", f"containerPort: 8080\n              hostPort: {port}\n"
                            "              hostIP: 127.0.0.1")
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"lensd-pod-{os.getpid()}.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        self.addCleanup(os.unlink, path)
        self.addCleanup(ENGINE.call, "kube", "down", path, check=False)
        ENGINE.call("kube", "play", path)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", data=drawn(7))
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    self.assertEqual(json.loads(answer.read())["predictions"][0]["label"], "7")
                break
            except OSError:
                self.assertLess(time.monotonic(), end, "the pod does not answer")
                time.sleep(0.1)
        name = next(line for line in ENGINE.out("ps", "--format", "{{.Names}}").splitlines()
                    if line.startswith(run) and line.endswith("-lensd"))
        state = ENGINE.inspect(name)
        self.assertEqual(state["Config"]["User"].split(":")[0], "10001")
        self.assertTrue(state["HostConfig"]["ReadonlyRootfs"])


if __name__ == "__main__":
    ENGINE, REASON = engines.find()
    totals.main(REASON)
