"""What the benches share: a description of the machine, a daemon under test, a photo to send."""

import contextlib
import http.client
import io
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path += [os.path.join(ROOT, "models"), os.path.join(ROOT, "tests", "load")]

import generators  # noqa: E402
import needs  # noqa: E402,F401: of every bench
FLAGS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16",
         "amx_int8"]


def read(path, otherwise=""):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return otherwise


def cpuinfo(key):
    for line in read("/proc/cpuinfo").splitlines():
        if line.split(":")[0].strip() == key:
            return line.split(":", 1)[1].strip()
    return "unknown"


def machine():
    """Lines of text: what the numbers below them were measured on."""
    flags = cpuinfo("flags").split()
    have = [flag for flag in FLAGS if flag in flags]
    amx = "with AMX" if "amx_tile" in flags else "no AMX: bf16 runs in AVX-512 or not at all"
    governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "not visible")
    memory = read("/proc/meminfo").splitlines()[0].split()[1] if read("/proc/meminfo") else "0"
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            check=False).stdout.strip() if shutil.which("git") else ""
    return [
        f"CPU: {cpuinfo('model name')}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, "
        f"{cpuinfo('cpu MHz')} MHz now, governor {governor}",
        f"instructions: {' '.join(have)} ({amx})",
        f"memory: {int(memory) / 1048576:.1f} GiB; load: "
        + " ".join(f"{load:.2f}" for load in os.getloadavg()),
        f"system: Linux {platform.release()}, {system_name()}; lensd {commit or 'without git'}",
    ]


def system_name():
    for line in read("/etc/os-release").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip('"')
    return "unknown system"


def free_port():
    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end(process, patience):
    """SIGTERM, and where that does not end it within `patience` seconds, SIGKILL."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Daemon:
    """`lensd serve` as a child process, for use in a `with`. started: seconds from exec to ready."""

    def __init__(self, build, model=None, options=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/predict"
        self.log = tempfile.TemporaryFile()
        command = [os.path.join(build, "server", "lensd"), "serve"] + ([model] if model else []) \
            + ["--port", str(self.port)] + list(options)
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        try:
            self.wait_ready(begin + 300)
        except BaseException:
            self.stop()
            raise
        self.started = time.monotonic() - begin

    def wait_ready(self, deadline):
        """Polls /readyz every 2 ms."""
        while True:
            if self.process.poll() is not None:
                raise RuntimeError(f"lensd ended with {self.process.returncode}: {self.text()}")
            if self.status("/readyz") == 200:
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"lensd was not ready in time: {self.text()}")
            time.sleep(0.002)

    def status(self, path):
        """The HTTP status of a GET, 0 when nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()

    def post(self, body):
        """(status, body, milliseconds) of one POST /predict."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        begin = time.monotonic()
        connection.request("POST", "/predict", body)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, answer, (time.monotonic() - begin) * 1e3

    def memory(self, key):
        """Bytes of a line of /proc/PID/status: VmRSS, RssAnon, VmHWM …"""
        for line in read(f"/proc/{self.process.pid}/status").splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        return 0

    def cpu_seconds(self):
        """Of all threads so far."""
        fields = read(f"/proc/{self.process.pid}/stat").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()[-2000:]

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        end(self.process, 20)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def photo(width=500, height=375, quality=90, seed=7):
    """JPEG bytes of a made-up photo: smooth shapes with as much detail as a camera leaves."""
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(seed)
    layers = numpy.zeros((height, width, 3))
    for cells, strength in ((4, 90.0), (16, 45.0), (64, 22.0)):
        grid = random.normal(0, 1, (cells, cells, 3))
        for channel in range(3):
            plane = Image.fromarray(grid[:, :, channel].astype("float32"))
            layers[:, :, channel] += strength * numpy.asarray(
                plane.resize((width, height), Image.BICUBIC))
    layers += random.normal(0, 4, layers.shape)
    pixels = numpy.clip(layers + 128, 0, 255).astype("uint8")
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=quality)
    return data.getvalue()


def write_manifest(folder, image=None, form_field=None, headers=()):
    """The load generator's list of what to send: one photo, `image` or the made-up one; as the form field, if one is named.
    Returns its path."""
    kind = "image/jpeg"
    if image:
        with open(image, "rb") as file:
            body = file.read()
    else:
        body = photo()
    if form_field:
        body = (f'--XboundaryX\r\nContent-Disposition: form-data; name="{form_field}"; filename="photo.jpg"\r\n'
                f"Content-Type: {kind}\r\n\r\n").encode() + body + b"\r\n--XboundaryX--\r\n"
        kind = "multipart/form-data; boundary=XboundaryX"
    path, manifest = os.path.join(folder, "photo.jpg"), os.path.join(folder, "manifest")
    with open(path, "wb") as file:
        file.write(body)
    with open(manifest, "w", encoding="utf-8") as file:
        file.write("\t".join([path, f"Content-Type: {kind}", *headers]) + "\n")
    return manifest


def load(build, url, manifest, *options):
    """loadgen's account of a run."""
    done = subprocess.run([generators.find_loadgen(build), "--manifest", manifest, "--url", url, *options],
                          stdout=subprocess.PIPE, text=True, check=True)
    return generators.parse_loadgen(done.stdout)


def closed_loop(build, url, image, concurrency, seconds, **how):
    """Posts a photo over that many connections, each as soon as it has its answer. Counts answers 200 to 299, others, and
    requests without one; rate and milliseconds are of the first. `how`: as write_manifest()."""
    with tempfile.TemporaryDirectory() as folder:
        found = load(build, url, write_manifest(folder, image, **how), "--concurrency", str(concurrency), "--seconds", str(seconds),
                     "--warmup", "0", "--requests", "20000000", "--timeout", "60", "--insecure")
    p50, p99 = (generators.quantile(found["latency"]["buckets"], share) or 0.0 for share in (0.5, 0.99))
    return {"rate": found["good"] / found["seconds"], "p50": p50, "p99": p99, "good": found["good"],
            "refused": found["answered"] - found["good"], "broken": sum(found["errors"].values())}


def model_name(path):
    return os.path.basename(os.path.normpath(path)) if path else "digits"
