"""A container engine, whichever there is: docker with a daemon, else podman.

podman on a plain machine (root without CAP_SYS_RESOURCE, cgroups of both versions, no systemd) needs a
configuration of its own; and without a registry the base image is made from Debian's packages.
"""

import atexit
import json
import os
import shutil
import subprocess
import tempfile

CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""

class Engine:
    """`self.word` is "docker" or "podman"; calls raise CalledProcessError with the engine's own words."""

    def __init__(self, word):
        self.word = word
        self.environment = dict(os.environ)
        if word == "podman" and "CONTAINERS_CONF" not in os.environ:
            file = tempfile.NamedTemporaryFile("w", prefix="lensd-containers-", suffix=".conf", delete=False)
            with file:
                file.write(CONFIGURATION)
            atexit.register(os.unlink, file.name)
            self.environment["CONTAINERS_CONF"] = file.name

    def call(self, *words, timeout=900, check=True, text=True):
        ended = subprocess.run([self.word, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=text, timeout=timeout,
                               env=self.environment)
        if check and ended.returncode != 0:
            raise RuntimeError(f"{self.word} {' '.join(words)}: exit {ended.returncode}\n"
                               f"{ended.stderr if text else ended.stderr.decode(errors='replace')}")
        return ended

    def out(self, *words, **options):
        return self.call(*words, **options).stdout.strip()

    def has_image(self, name):
        return self.call("image", "inspect", name, check=False).returncode == 0

    def inspect_image(self, name):
        return json.loads(self.out("image", "inspect", name))[0]

    def inspect(self, container):
        return json.loads(self.out("container", "inspect", container))[0]

    def need_base(self, name, architecture=None):
        """Pulls the base image; where no registry answers, makes one of the same release. Of another architecture than
        this machine's it is made: podman would give a pulled one the name of its own."""
        if self.has_image(name):
            return "present"
        if not architecture and self.call("pull", "-q", name, check=False, timeout=300).returncode == 0:
            return "pulled"
        other = (f"--arch={architecture}",) if architecture else ()
        folder = tempfile.mkdtemp(prefix="lensd-base-")
        try:
            archive = os.path.join(folder, "base.tar")
            hidden = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "locale")]
            hidden += ["--dpkgopt=path-exclude=/usr/share/doc/*",
                       "--dpkgopt=path-include=/usr/share/doc/*/copyright"]
            # Of a stable release mmdebstrap takes updates and security by itself.
            subprocess.run(["mmdebstrap", "-q", "--variant=minbase", *other, *hidden, "bookworm", archive],
                           check=True, timeout=3600 if other else 600, stdin=subprocess.DEVNULL)
            self.call("import", *other, archive, name, timeout=300)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return "made from Debian's packages"

    def build(self, name, folder, *options, file="Dockerfile", timeout=1800, is_index=False):
        words = ["build", "--manifest" if is_index else "-t", name, "-f", os.path.join(folder, "docker", file)]
        if self.word == "podman":
            words += ["--pull=never", "--network", "host", "--format", "docker"]
        self.call(*words, *options, folder, timeout=timeout)


def find():
    """(Engine, None), or (None, the sentence why there is none)."""
    if shutil.which("docker"):
        answer = subprocess.run(["docker", "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                timeout=120)
        if answer.returncode == 0:
            return Engine("docker"), None
    if not shutil.which("podman"):
        return None, "no container engine: docker has no daemon here, and podman is missing"
    if os.geteuid() != 0:
        return None, "podman as an ordinary user is not what is tested here; run this as root"
    engine = Engine("podman")
    try:
        engine.out("info")
    except RuntimeError as error:
        return None, f"podman does not work here: {error}"
    return engine, None
