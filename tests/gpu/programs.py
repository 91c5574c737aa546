"""The programs of a bundle, as the parts of `./dev gpu` use them."""

import json
import os
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIBRARIES = "LENSD_GPU_LIBRARIES"  # the LD_LIBRARY_PATH of the programs, from part to part
PATIENCE = 40  # seconds for one answer, one load or one case: nothing that hangs may take a plan's time
LOADS = 3      # attempts at a load that is late: what it has measured of its layers is kept
REHEARSAL = 5  # times as long: what stands for the GPU is slow
STAND_IN = "fake"  # as a device: the stand-in for CUDA, for tests of these scripts


class Broken(Exception):
    """A program ended, answered with an error, or took too long; the message is its own. output: what it
    had printed until then."""

    def __init__(self, message, output=""):
        super().__init__(message)
        self.output = output


class Late(Broken):
    """It took too long."""


def said(error):
    """Of any exception, for a bar."""
    return (str(error) if isinstance(error, Broken) else f"{type(error).__name__}: {error}")[:600]


def text_of(data):
    """Of what subprocess hands out: text, bytes for a program that was late, or None."""
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def last_words(output, errors):
    """The end of both, which says what a program was at."""
    return " | ".join(filter(None, (text_of(errors).strip()[-400:], text_of(output).strip()[-300:])))


def run_group(words, environment, timeout, given=""):
    """(exit status, all output) of a program that has children of its own: late ones end with it."""
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace", env=environment, start_new_session=True)
    try:
        text = process.communicate(given, timeout=timeout)[0]
    except subprocess.TimeoutExpired as error:
        os.killpg(process.pid, signal.SIGKILL)
        raise Broken(f"did not end within {timeout:.0f} s", process.communicate()[0]) from error
    return process.returncode, text


class Bundle:
    def __init__(self, folder, device):
        self.folder = os.path.realpath(folder)
        self.stand_in = device == STAND_IN
        self.on_gpu = device.startswith("cuda:")
        self.device = "cuda:0" if self.stand_in else device
        self.patience = PATIENCE * (1 if self.on_gpu else REHEARSAL)
        self.environment = dict(os.environ, LENSD_CACHE="none")
        self.cache = None  # folder of what was found out about layers: the next part need not repeat it
        # What a shell has set for its own server must not decide here.
        for name in list(self.environment):
            if name.startswith("LENSD_") and name not in ("LENSD_CACHE", "LENSD_GLIBC", "LENSD_SHARED"):
                del self.environment[name]
        # This Python may be the only one that has NVIDIA's packages. Where cuBLASLt was found once (find_libraries)
        # its programs need not look again; not for PyTorch, which has its own.
        self.environment["LENSD_PYTHON"] = sys.executable
        if os.environ.get(LIBRARIES):
            self.environment["LD_LIBRARY_PATH"] = os.environ[LIBRARIES]
        if self.stand_in:
            self.environment["LENSD_CUDA_MODULE"] = os.path.join(self.folder, "lib", "lensd", "lensd_fake_cuda.so")
            if not os.path.exists(self.environment["LENSD_CUDA_MODULE"]):
                raise Broken("this bundle was made without --stand-in")
        with open(os.path.join(self.folder, "bundle.json"), encoding="utf-8") as file:
            self.about = json.load(file)

    def find_libraries(self):
        """What `start` says of cuBLASLt, or nothing; parts that are started from now on need not look for it."""
        ended = subprocess.run([self.path("start"), "--libraries"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, errors="replace", timeout=PATIENCE, env=self.environment,
                               check=False)
        if ended.returncode == 0 and ended.stdout.strip():
            self.environment["LD_LIBRARY_PATH"] = os.environ[LIBRARIES] = ended.stdout.strip()
        return ended.stderr.strip()

    def blas(self):
        """The file of cuBLASLt that the programs load, or what is known of it."""
        name = self.about.get("cublas")
        for folder in filter(None, self.environment.get("LD_LIBRARY_PATH", "").split(":")):
            if name and os.path.exists(os.path.join(folder, name)):
                return os.path.realpath(os.path.join(folder, name))
        if not name:
            return "none: this bundle has no CUDA module"
        for tool in filter(None, (shutil.which("ldconfig"), "/sbin/ldconfig")):
            try:
                text = subprocess.run([tool, "-p"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                      timeout=60, check=False).stdout
            except OSError:
                continue
            found = re.search(rf"^\s*{re.escape(name)} .*=> (\S+)$", text, re.M)
            if found:
                return os.path.realpath(found.group(1))
        return f"{name}, not found"

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def run(self, *words, timeout, accepted=(0,)):
        """A program to its end; its standard output. Broken has what it said, unless its exit status is one
        of those that are `accepted`."""
        try:
            ended = subprocess.run([self.path(words[0]), *map(str, words[1:])], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                   timeout=max(1, timeout), env=self.environment)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"{words[0]} did not end within {timeout:.0f} s: "
                         f"{last_words(error.stdout, error.stderr)}", text_of(error.stdout)) from error
        if ended.returncode not in accepted:
            raise Broken(f"{words[0]} ended with {ended.returncode}: {last_words(ended.stdout, ended.stderr)}",
                         ended.stdout)
        return ended.stdout

    def devices(self):
        return json.loads(self.run("lensd", "devices", "--json", timeout=2 * PATIENCE))["devices"]

    def precisions(self):
        """What the option takes, but for `auto`, and on a CPU for what only GPUs compute in."""
        found = re.search(r"--precision (\S+)", self.run("lensd", "serve", "--help", timeout=PATIENCE))
        left_out = ("auto", "tf32", "fp16") if self.device == "cpu" else ("auto",)
        return [word for word in found.group(1).split("|") if word not in left_out]

    def half(self):
        """The 16-bit precision that is measured: fp16 where this build has it."""
        return "fp16" if "fp16" in self.precisions() else "bf16"


class Forward:
    """bench_forward as a co-process: one model on one device, for use in a `with`."""

    def __init__(self, bundle, model, precision, batches, device=None, poison=False, patience=None, candidate=None):
        """candidate: every layer takes its candidate of that number, counted round, not its quickest."""
        for attempt in range(1, LOADS + 1):
            try:
                self.start(bundle, model, precision, batches, device, poison, patience or bundle.patience, candidate)
                return
            except Late:
                if attempt == LOADS or not bundle.cache or candidate is not None:
                    raise

    def start(self, bundle, model, precision, batches, device, poison, patience, candidate):
        words = [bundle.path("bench_forward"), "--device", device or bundle.device, "--precision", precision,
                 "--batch", ",".join(map(str, batches)), *(["--poison"] if poison else []),
                 *(["--cache", bundle.cache] if bundle.cache else []), "--serve", model]
        environment = dict(bundle.environment, **({} if candidate is None else {"LENSD_CUDA_TUNING": str(candidate)}))
        self.errors = tempfile.TemporaryFile()
        self.patience = bundle.patience
        self.pending = b""
        self.on_gpu = bundle.device != "cpu"
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, env=environment)
        began = time.monotonic()
        try:
            if not self.line(patience).startswith("ready"):
                raise Broken(f"bench_forward did not start: {self.said()}")
        except BaseException:
            self.process.kill()
            self.close()
            raise
        self.load_s = time.monotonic() - began

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-600:] or "it said nothing"

    def line(self, patience):
        """The next line of its output, at most `patience` seconds from now."""
        end = time.monotonic() + patience
        while b"\n" not in self.pending:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Late(f"bench_forward did not answer within {patience:.0f} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                self.process.wait()
                raise Broken(f"bench_forward ended with {self.process.returncode}: {self.said()}")
            self.pending += data
        line, _, self.pending = self.pending.partition(b"\n")
        return line.decode()

    def ask(self, *words):
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # line() says why it ended
        line = self.line(self.patience)
        if line.startswith("error: "):
            raise Broken(line[len("error: "):])
        return line

    def shape(self):
        """([H, W, C] of an image, numbers of an answer)."""
        *dims, count = map(int, self.ask("shape", 0, 1).split())
        return dims[1:], count

    def run_ms(self, batch, times):
        return [float(word) for word in self.ask("run", 0, batch, times).split()]

    def time_ms(self, batch, times, passes):
        """Of the device alone, each the mean of `passes`; on a CPU there is nothing to leave out."""
        if not self.on_gpu:
            return self.run_ms(batch, times)
        return [float(word) for word in self.ask("time", 0, batch, times, passes).split()]

    def answer(self, images, scratch):
        """images [N, H, W, C] float32, as one batch; what the first output is, [N, numbers]."""
        import numpy
        given, got = os.path.join(scratch, "images.raw"), os.path.join(scratch, "answers.raw")
        numpy.ascontiguousarray(images, numpy.float32).tofile(given)
        self.ask("answer", 0, len(images), given, got)
        return numpy.fromfile(got, numpy.float32).reshape(len(images), -1)

    def profile(self, batch):
        """(steps, images that they are of: more than `batch` where it is padded)."""
        steps = []
        count, images = map(int, self.ask("profile", 0, batch).split())
        for _ in range(count):
            ms, gflop, size, kernel, name = self.line(self.patience).split("\t")
            steps.append({"ms": float(ms), "gflop": float(gflop), "bytes": int(size), "kernel": kernel,
                          "name": name})
        return steps, images

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # what was never read; why it ended has been said
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def nvidia_smi():
    """Its path: containers have it beside the driver."""
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path="/usr/local/nvidia/bin")


class Card:
    """What nvidia-smi says of the GPU while a `with` runs, four times a second; nothing where it is not installed."""

    FIELDS = {"utilization.gpu": "% of the time with a kernel", "clocks.sm": "MHz", "clocks.mem": "MHz of memory",
              "power.draw": "W", "temperature.gpu": "°C"}

    def __init__(self, bundle):
        self.process, self.seen = None, {}
        self.tool = nvidia_smi() if bundle.on_gpu else None
        self.number = bundle.device.partition(":")[2]

    def __enter__(self):
        if self.tool:
            self.output = tempfile.TemporaryFile()
            self.process = subprocess.Popen(
                [self.tool, f"--id={self.number}", "--query-gpu=" + ",".join(self.FIELDS),
                 "--format=csv,noheader,nounits", "--loop-ms=250"], stdin=subprocess.DEVNULL, stdout=self.output,
                stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.seek(0)
        self.seen = card_rows(self.output.read().decode(errors="replace"))
        self.output.close()

    def words(self):
        return ", ".join(f"{low:.0f} to {high:.0f} (median {median:.0f}) {self.FIELDS[name]}"
                         for name, (low, median, high) in self.seen.items()) or "not visible"


def card_rows(text):
    """name: (least, median, greatest) of the numbers of nvidia-smi's lines; what is no number is left out."""
    columns = {name: [] for name in Card.FIELDS}
    for line in text.splitlines():
        words = line.split(",")
        if len(words) != len(columns):
            continue
        for name, word in zip(columns, words):
            try:
                columns[name].append(float(word))
            except ValueError:
                pass
    return {name: (min(found), statistics.median(found), max(found)) for name, found in columns.items() if found}


def scratch_folder():
    """In memory where there is room for batches of images."""
    parent = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1 << 30 else None
    return tempfile.TemporaryDirectory(prefix="lensd-gpu-", dir=parent)
