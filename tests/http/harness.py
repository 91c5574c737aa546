"""What the HTTP tests share: the real binary, real sockets on the loopback, bounded time.

Only Python's standard library. LENSD names the binary; LENSD_SHARED the folder of real models (tests
that need it skip where it is absent).
"""

import contextlib
import fcntl
import http.client
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest
import zlib

import small_onnx

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARY = os.environ.get("LENSD", os.path.join(ROOT, "build", "server", "lensd"))
SHARED = os.environ.get("LENSD_SHARED", os.path.join(os.path.dirname(ROOT), "shared"))
DIGITS = os.path.join(ROOT, "tests", "data", "digits")

# What a test finds out about a model must not wait in the user's cache for the next one.
os.environ.setdefault("LENSD_CACHE", "none")

# Seconds. Sanitizers and loaded machines are slow; nothing here waits this long when all is well.
PATIENCE = float(os.environ.get("TEST_PATIENCE", 120))


MARKS = itertools.count()


def read(path):
    with open(path, "rb") as file:
        return file.read()


SANITIZED = b"__asan" in read(BINARY) or b"__tsan" in read(BINARY)  # slower, and its own memory counts

# For another CPU than Python: it runs under qemu-user.
IS_EMULATED = os.path.exists(BINARY) and read(BINARY)[18:20] != read("/proc/self/exe")[18:20]
if IS_EMULATED:
    os.environ.setdefault("LENSD_CONFINE", "off")  # a start that cannot confine itself warns

NOT_EMULATED = {
    "address space": "qemu-user ignores limits of the address space",
    "byte counts": "qemu-user gives 4 bytes of TCP_INFO, and the counts of received and acknowledged bytes lie behind them",
    "confinement": "qemu-user has neither seccomp(2) nor Landlock",
    "closed descriptors": "qemu-user opens the program as the first free descriptor before the program starts",
    "CPU time": "the /proc/self/stat of qemu-user counts no CPU time",
    "speed": "under qemu-user the kernels' trials for a model that takes long take minutes",
}


def needs(what):
    """Skips a test, or a class of them, where an emulator runs lensd and does not have this."""
    return unittest.skipIf(IS_EMULATED, NOT_EMULATED[what])


def seven():
    """A drawn seven, as PNG bytes."""
    return read(os.path.join(DIGITS, "drawn", "7_canvas.png"))


def drawn(digit, paper="canvas"):
    return read(os.path.join(DIGITS, "drawn", f"{digit}_{paper}.png"))


def png_chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data) & 0xFFFFFFFF))


def png_header(width, height):
    """The beginning of a PNG that claims this size, and nothing else."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)


def png(width, height, shade=0):
    """A whole RGB PNG with a gradient."""
    row = b"\0" + bytes((x * 7 + shade) & 0xFF for x in range(width * 3))
    return (png_header(width, height) + png_chunk(b"IDAT", zlib.compress(row * height, 1)) +
            png_chunk(b"IEND", b""))


def flat_png(shade, side=16):
    """A whole gray PNG of one shade."""
    row = b"\0" + bytes([shade] * side * 3)
    return (png_header(side, side) + png_chunk(b"IDAT", zlib.compress(row * side, 1)) +
            png_chunk(b"IEND", b""))


def multipart(parts, boundary="XboundaryX"):
    """[(name, filename or None, bytes)] as a body; returns (content type, bytes)."""
    body = b""
    for name, filename, data in parts:
        disposition = f'form-data; name="{name}"'
        if filename is not None:
            disposition += f'; filename="{filename}"'
        body += (f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n").encode() + data + b"\r\n"
    return f"multipart/form-data; boundary={boundary}", body + f"--{boundary}--\r\n".encode()


def run_lensd(*arguments, environment=None, timeout=PATIENCE):
    """Runs a command to its end; returns the CompletedProcess with text output. A server takes any free port, unless a test
    is about where it listens: the user's own may be on 8080."""
    environment = environment or {}
    if "serve" in arguments and not {"--unix", "--config"} & {*arguments} and "LENSD_UNIX" not in environment:
        environment = {"LENSD_PORT": "0", **environment}
    return subprocess.run([BINARY, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout,
                          env={**os.environ, **environment})


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Answer:
    """A response, read to its end."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def exchange(client, method, path, body, headers):
    """The answer to one request of an http.client. lensd cuts off a refused client that is still sending after two seconds. On a
    busy machine a long body may take longer; the answer has arrived all the same."""
    with contextlib.closing(client):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            client.request(method, path, body, headers or {})
        response = client.getresponse()
        return Answer(response.status, response.headers, response.read())


class Server:
    """A running `lensd serve` on a free port, for any Host. `environment`: a value of None unsets a variable. `prepare`:
    is called in the new process before lensd. `stdout`, `stderr`: descriptors; without them `output` and log() have it."""

    def __init__(self, *arguments, wait_ready=True, environment=None, prepare=None, stdout=subprocess.PIPE, stderr=None):
        self.folder = tempfile.mkdtemp(prefix="lensd-http-")
        port_file = os.path.join(self.folder, "port")
        self.log_path = os.path.join(self.folder, "log")
        self.log_file = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            [BINARY, "serve", *arguments, "--port", "0", "--port-file", port_file],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=self.log_file if stderr is None else stderr, preexec_fn=prepare,
            env={name: value for name, value in {**os.environ, "LENSD_ALLOWED_HOSTS": "*", **(environment or {})}.items()
                 if value is not None})

        def find_port():
            try:
                return read(port_file)
            except FileNotFoundError:  # not yet; or no more, because lensd has ended, and wait_for() says how
                return b""
        self.port = int(self.wait_for(find_port, "the port file"))
        if wait_ready:
            self.wait_ready()

    def wait_for(self, condition, what, patience=PATIENCE):
        end = time.monotonic() + patience
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"lensd ended with {self.process.returncode} while waiting for "
                                     f"{what}; the end of its log:\n{self.log_so_far()[-3000:]}")
            time.sleep(0.01)
        raise AssertionError(f"no {what} within {patience} s; the end of lensd's log:\n{self.log_so_far()[-3000:]}")

    def wait_ready(self):
        """Until models are served."""
        def is_ready():
            try:
                return self.get("/readyz").status == 200
            except OSError:  # it ends; wait_for() says how
                return False
        self.wait_for(is_ready, "readiness")

    def log(self):
        """The whole log, after the server's end. Before, use wait_log(): the server writes a line later than it does what the line
        says."""
        if self.process.poll() is None:
            raise AssertionError("lensd still writes its log: use wait_log(), wait_entries() or whole_log()")
        return self.log_so_far()

    def log_so_far(self):
        """The complete lines so far. Use it only in a condition that is waited for."""
        is_running = self.process.poll() is None
        text = read(self.log_path).decode(errors="replace")
        return text[:text.rfind("\n") + 1] if is_running else text

    def client(self, timeout):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=PATIENCE):
        return exchange(self.client(timeout), method, path, body, headers)

    def get(self, path):
        return self.request("GET", path)

    def answers(self):
        """Does it let one more connection in?"""
        try:
            return self.get("/livez").status == 200
        except OSError:
            return False

    def predict(self, body, path="/predict", headers=None, timeout=PATIENCE):
        return self.request("POST", path, body, headers, timeout)

    def connect(self, timeout=PATIENCE):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, data, timeout=PATIENCE):
        """Sends bytes and reads until the server closes."""
        with self.connect(timeout) as connection:
            connection.sendall(data)
            return read_to_end(connection)

    def metric(self, name):
        """The sum of a counter's or gauge's series whose line starts with `name`."""
        total = 0.0
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def cpu_seconds(self):
        """What it has computed so far: unlike time, the same on a machine that has other things to do."""
        fields = read(f"/proc/{self.process.pid}/stat").rsplit(b") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def admitted(self):
        """Requests whose body was read and which were let in, ever: it only grows, so that what was sent
        can be waited for, however quickly it is answered."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics").body.decode().splitlines()
                   if line.startswith("lensd_phase_seconds_count{") and 'phase="read"' in line)

    def wait_admitted(self, count):
        self.wait_for(lambda: self.admitted() >= count, f"{count} requests to be let in")

    def wait_metric(self, name, wanted):
        """Some things are counted just after the answer that they are about has gone."""
        self.wait_for(lambda: self.metric(name) == wanted, f"{name} to be {wanted}")

    def wait_log(self, text, times=1):
        """Waits for `times` lines with this text or regular expression, and returns them: the server writes a line later than it
        does what the line says."""
        search = text.search if isinstance(text, re.Pattern) else lambda line: text in line

        def find():
            found = [line.rstrip("\n") for line in self.log_so_far().splitlines(keepends=True) if search(line)]
            return len(found) >= times and found
        return self.wait_for(find, f"{text!r} in {times} lines of the log")

    def wait_entries(self, times=1, **fields):
        """Waits for `times` entries of a log in JSON that have these fields, and returns them."""
        def find():
            entries = [json.loads(line) for line in self.log_so_far().splitlines() if line.startswith("{")]
            found = [entry for entry in entries if fields.items() <= entry.items()]
            return len(found) >= times and found
        return self.wait_for(find, f"{fields} in {times} entries of the log")

    def whole_log(self):
        """The log with all lines that the server logged before this call. It waits for a line of its own, which comes after them.
        For tests of what must not be in the log. Wait for the line of a request first: it comes after the answer."""
        def is_marked():
            mark = f"mark-{next(MARKS)}"
            self.request("GET", "/v2", headers={"X-Request-Id": mark})
            end = time.monotonic() + 5
            while mark not in self.log_so_far() and time.monotonic() < end:
                time.sleep(0.01)
            return mark in self.log_so_far()  # not if the log was full
        self.wait_for(is_marked, "a line that this request asks for")
        return self.log_so_far()

    def signal_logged(self, number, text):
        """Sends a signal and waits for one more line with this text."""
        before = sum(text in line for line in self.log_so_far().splitlines())
        self.signal(number)
        return self.wait_log(text, before + 1)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    @contextlib.contextmanager
    def stopped(self):
        """What clients send meanwhile it finds all at once."""
        self.signal(signal.SIGSTOP)
        try:
            self.wait_for(lambda: read(f"/proc/{self.process.pid}/stat").rsplit(b") ", 1)[1][:1] == b"T", "the process to be stopped")
            yield
        finally:
            self.signal(signal.SIGCONT)

    def wait(self, timeout=PATIENCE):
        return self.process.wait(timeout)

    def stop(self, patience=PATIENCE):
        """Ends it as an operator would and says how it ended."""
        if self.process.poll() is None:
            self.signal()
        try:
            code = self.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            code = -signal.SIGKILL
        if self.process.stdout:
            self.output = self.process.stdout.read().decode()
            self.process.stdout.close()
        text = self.log_so_far()
        self.log_file.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code, text


def read_to_end(connection):
    data = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


@contextlib.contextmanager
def held_start(file):
    """Within this, a start with --faces `file` waits behind the port file, before lensd is confined: it opens the registry,
    and the kernel lets it wait for the end of a lease (fcntl(2))."""
    with contextlib.ExitStack() as stack:
        def lease(path):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            held = os.open(path, os.O_RDONLY)
            stack.callback(os.close, held)
            fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_RDLCK)

        stack.callback(signal.signal, signal.SIGIO, signal.signal(signal.SIGIO, signal.SIG_IGN))  # sent when another waits
        try:
            lease(file + ".tried")
            with contextlib.suppress(BlockingIOError):
                os.close(os.open(file + ".tried", os.O_RDWR | os.O_NONBLOCK))
                raise OSError("nobody waits for their end")
            lease(file)
        except OSError as error:
            raise unittest.SkipTest(f"no leases here: {error}") from error
        yield


def hang_up(connection):
    """Leaves so that the server is told at once; after close() alone a client might still want its answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def drip(connection, pieces):
    """Sends a piece every 50 ms, again and again, until the server says something or closes; returns all that it says."""
    data, end = b"", time.monotonic() + PATIENCE
    connection.settimeout(0.05)
    for piece in itertools.cycle(pieces):
        if time.monotonic() > end:
            raise AssertionError("never cut off")
        try:
            connection.sendall(piece)
            data = connection.recv(65536)
            break
        except TimeoutError:
            continue
        except OSError:
            break  # it was closed while we sent; what was said before can be read
    connection.settimeout(PATIENCE)
    try:
        return data + read_to_end(connection)
    except TimeoutError:
        raise
    except OSError:
        return data


def read_answer(connection, buffered=b"", head=False):
    """One response from a socket; returns (Answer, bytes of the next one)."""
    data = buffered
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"closed within the head of an answer: {data!r}")
        data += piece
    lines, rest = data.split(b"\r\n\r\n", 1)
    first, *others = lines.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, value in
               (line.split(":", 1) for line in others)}
    size = 0 if head else int(headers.get("content-length", 0))
    while len(rest) < size:
        piece = connection.recv(65536)
        if not piece:
            raise AssertionError(f"closed within the body of an answer: {lines!r}")
        rest += piece
    return Answer(int(first.split()[1]), headers, rest[:size]), rest[size:]


def post(path, body, *headers):
    """The bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: lensd", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class FolderCase(unittest.TestCase):
    """Tests with a folder of their own, which start servers of their own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def serve(self, *arguments, **options):
        server = Server(*arguments, **options)
        self.addCleanup(self.end, server)
        return server

    @staticmethod
    def end(server):
        """What a test has left behind. A server that is killed writes no counters of coverage and no report of leaks."""
        if not server.log_file.closed:
            server.stop(10)

    def assert_ended(self, server, code=0):
        ended, log = server.stop()
        self.assertEqual(ended, code, log[-3000:])
        return log


class ServedCase(unittest.TestCase):
    """Tests that share one server, which must end well afterwards."""

    arguments = ()

    @classmethod
    def start(cls):
        return Server(*cls.arguments)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.start()

    @classmethod
    def tearDownClass(cls):
        code, log = cls.server.stop()
        if code != 0:
            raise AssertionError(f"lensd ended with {code}:\n{log[-4000:]}")

    def tearDown(self):
        # Whatever a test sent: the server answers the next one.
        self.assertEqual(self.server.get("/livez").status, 200)

    def assert_error(self, answer, status, code, *words):
        """A JSON error with this status and code, whose sentence has these words."""
        self.assertEqual(answer.status, status, answer.body)
        error = json.loads(answer.body)
        self.assertEqual(set(error), {"error", "code"})
        self.assertEqual(error["code"], code, error)
        for word in words:
            self.assertIn(word, error["error"])


class ServedModelCase(ServedCase):
    """The same with a model, "served", that write_model(path) makes."""

    @classmethod
    def start(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        path = os.path.join(cls.folder.name, "served.onnx")
        cls.write_model(path)
        return Server(path, *cls.arguments)

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class HeldCase(ServedCase):
    """Tests that hold the lane of the model "served", so that nothing which waits for it can be served too early,
    however quick the machine is: a forward pass over a LIGHT photo ends when its client leaves. `trips`: the length
    of a pass over a DARK one."""

    LIGHT, DARK = flat_png(255), flat_png(9)
    arguments, trips = (), 0

    @classmethod
    def start(cls):
        folder = tempfile.TemporaryDirectory(prefix="lensd-http-")
        cls.addClassCleanup(folder.cleanup)
        small_onnx.loops_when_light(folder.name, 0.9, cls.trips)
        return Server(folder.name, "--model-name", "served", "--precision", "fp32", "--workers", "1", *cls.arguments)

    def send(self, photos, *headers, source="127.0.0.1"):
        """A connection that has asked for these photos, once the server has let them in or refused them."""
        admitted = self.server.admitted()
        connection = socket.create_connection(("127.0.0.1", self.server.port), PATIENCE, (source, 0))
        self.addCleanup(connection.close)
        kind, body = multipart([("image", f"{i}.png", photo) for i, photo in enumerate(photos)])
        connection.sendall(post("/predict", body, f"Content-Type: {kind}", *headers))
        self.server.wait_for(lambda: self.is_answered(connection) or self.server.admitted() > admitted, "the request")
        return connection

    def hold(self, photos=1, source="127.0.0.1"):
        """A client that has the lane until hang_up(), with one of its LIGHT photos."""
        connection = self.send([self.LIGHT] * photos, source=source)
        self.server.wait_for(lambda: self.server.metric("lensd_in_flight_images") > 0, "a forward pass")
        return connection

    @staticmethod
    def is_answered(connection):
        return bool(select.select([connection], [], [], 0)[0])


def together(count, work):
    """Runs work(i) in `count` threads at once; returns the results, raises the first error."""
    results, errors = [None] * count, []
    gate = threading.Barrier(count)

    def run(i):
        try:
            gate.wait(PATIENCE)
            results[i] = work(i)
        except BaseException as error:  # noqa: B902 - handed to the caller below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise AssertionError("a client is still waiting")
    return results
