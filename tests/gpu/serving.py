"""Does it serve? /predict with photos over HTTP, all on one machine, and what the GPU does meanwhile."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import common
from programs import PATIENCE, Broken, Card, Forward, said

DECODE_BAR = 0.90
OVERLOAD_BAR = 0.85
IDLE_BAR = 0.05
SATURATING = 64  # images of a batch


class Daemon:
    """`lensd serve` of a bundle, for use in a `with`."""

    def __init__(self, bundle, model, options):
        """Its patience is twice the usual, as a first start measures the layers of every batch size."""
        with contextlib.closing(socket.socket()) as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [bundle.path("lensd"), "serve", *([model] if model else []), "--port", str(self.port), *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=bundle.environment)
        began = time.monotonic()
        try:
            while self.get("/readyz")[0] != 200:
                if self.process.poll() is not None:
                    raise Broken(f"lensd serve ended with {self.process.returncode}: {self.said()}")
                if time.monotonic() - began > 2 * bundle.patience:
                    raise Broken(f"lensd serve was not ready within {2 * bundle.patience} s: {self.said()}")
                time.sleep(0.02)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - began

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def post(self, path, data):
        """(status, text); 0 where the connection broke."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("POST", path, data, {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            return 0, str(error)
        finally:
            connection.close()

    def counters(self):
        """Seconds that devices computed, batches, and their images, since the start."""
        text = self.get("/metrics")[1]
        return [sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.M))
                for name in ("lensd_device_seconds_total", "lensd_batch_size_count", "lensd_batch_size_sum")]

    def said(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()[-800:]

    def close(self):
        common.end(self.process, 15)
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def make_photos(folder):
    try:
        made = [common.photo(seed=seed) for seed in range(8)]
    except ImportError as error:
        raise Broken(f"the bundle has no photos, and none can be made here: {error}") from error
    os.makedirs(folder)
    for number, data in enumerate(made):
        with open(os.path.join(folder, f"{number:02}.jpg"), "wb") as file:
            file.write(data)


def photos(part):
    """Those of the bundle; where it has none (Pillow was missing where it was made) they are made here."""
    folder = part.bundle.path("photos")
    if not os.path.isdir(folder):
        folder = os.path.join(part.options.work, "photos")
        if not os.path.isdir(folder):
            make_photos(folder)
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


def load(part, daemon, seconds, connections):
    """What the client saw, and what the daemon's own counters say of the same time."""
    before, began = daemon.counters(), time.monotonic()
    got = json.loads(part.bundle.run("lensd_post", daemon.port, seconds, connections, *photos(part),
                                     timeout=seconds + 60))
    busy, batches, images = (after - then for after, then in zip(daemon.counters(), before))
    got.update(device_busy=busy / (time.monotonic() - began), mean_batch=images / max(1, batches))
    if got["other"] or got["broken"]:
        part.note(f"{got['other']} answers were no 200, {got['broken']} connections broke")
    return got


def raw_decode_rate(part, cores):
    """Images a second that the cores can decode and resize with nothing else to do: bench_image on each."""
    words = [part.bundle.path("bench_image"), "-n", "300" if part.bundle.on_gpu else "40",
             photos(part)[0]]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=part.bundle.environment)
               for _ in range(cores)]
    rate = 0.0
    for process in running:
        text = process.communicate(timeout=120)[0]
        found = {name.strip(): float(ms) for name, ms in
                 re.findall(r"^ +([a-z][a-z -]+?) +[\d.]+ ms best +([\d.]+) ms median", text, re.M)}
        rate += 1e3 / (found["decode"] + found["preprocess"])
    return rate


def serve(part):
    bundle, cores = part.bundle, len(os.sched_getaffinity(0))
    half, seconds, connections = bundle.half(), 5, 8 * cores
    name = part.profiled()[0][0]
    if not bundle.on_gpu:
        half, seconds = "fp32", 1
    folder = part.network(name)
    if folder is None:
        part.bar("/predict", "measured", f"{name} was not exported", None)
        return
    part.put("raw_decode_per_s", raw_decode_rate(part, cores))
    options = ["--device", bundle.device, "--precision", half, "--max-batch",
               "64" if bundle.on_gpu else "8", "--max-queue", str(4 * connections)]
    decode_only = part.decode_only(folder)
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(Daemon(bundle, folder, options))
        alone = stack.enter_context(Daemon(bundle, decode_only, options)) if decode_only else None
        load(part, full, 2 if bundle.on_gpu else 1, connections)
        rounds = [(load(part, alone, seconds, connections) if alone else None,
                   load(part, full, seconds, connections)) for _ in range(2 if bundle.on_gpu else 1)]
        overload(part, full, seconds, connections, rounds[-1][1]["rate"])
    got = rounds[-1][1]
    part.put("rounds", rounds)
    part.say(f"{name} {half}, {connections} connections, 500 x 375 JPEGs: {got['rate']:.0f} answers/s, p50 "
             f"{got['p50_ms']:.1f} ms, p99 {got['p99_ms']:.1f} ms, mean batch {got['mean_batch']:.1f}, device busy "
             f"{got['device_busy']:.0%}")
    if alone:
        share = statistics.median(b["rate"] / a["rate"] for a, b in rounds)
        part.put("share_of_decode", share)
        part.bar(f"/predict of {name} against a network that does nothing", f">= {DECODE_BAR:.0%}",
                 f"{share:.1%} of {rounds[-1][0]['rate']:.0f}/s", share >= DECODE_BAR)
    else:
        part.note("no network without work could be exported here: the decode-only rate is not measured")
    saturated(part, connections, seconds, rounds[-1][0]["rate"] if alone else None)


def overload(part, daemon, seconds, connections, rate):
    """Eight times as many clients, which ask again as soon as they are refused."""
    got = load(part, daemon, seconds, min(1024, 8 * connections))
    part.put("overload", got)
    part.bar("answers/s under overload", f">= {OVERLOAD_BAR:.0%} of {rate:.0f}",
             f"{got['rate']:.0f}/s, p99 {got['p99_ms']:.0f} ms, {got['other']} refused, {got['broken']} broken",
             got["rate"] >= OVERLOAD_BAR * rate if part.bundle.on_gpu else None)


# ---- memory of the card ----

FILL = """
import sys, time, torch
free, _ = torch.cuda.mem_get_info(0)
taken = []
for size in (1 << 30, 64 << 20, 2 << 20):
    while torch.cuda.mem_get_info(0)[0] > int(sys.argv[1]) + size:
        taken.append(torch.empty(size, dtype=torch.uint8, device="cuda:0"))
print("full", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def full_card(spare):
    """Another process takes all of the card's memory but `spare` bytes."""
    process = subprocess.Popen([sys.executable, "-c", FILL, str(spare)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        if process.stdout.readline() != "full\n":
            raise Broken("the card could not be filled")
        timer.cancel()
        yield
    finally:
        timer.cancel()
        process.kill()
        process.wait()


def many(daemon, paths, photo, seconds, clients=8):
    """{path: {status: answers}} of clients that post one after the other."""
    counts, lock, end = {path: {} for path in paths}, threading.Lock(), time.monotonic() + seconds

    def client(number):
        path = paths[number % len(paths)]
        while time.monotonic() < end:
            status = daemon.post(path, photo)[0]
            with lock:
                counts[path][status] = counts[path].get(status, 0) + 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def memory(part):
    """Two models on the card under load, SIGTERM under load, and a card that others have filled."""
    names = [row[0] for row in part.profiled()]
    folders = [part.network(name) for name in names]
    if None in folders:
        part.bar("models on one card", "measured", "they were not exported", None)
        return
    with open(photos(part)[0], "rb") as file:
        photo = file.read()
    options = ["--device", part.bundle.device, "--precision", part.bundle.half() if part.bundle.on_gpu else "fp32",
               "--max-batch", "8"]
    for step in (two_models, full_cards):
        try:
            step(part, folders, options, photo)
        except Exception as error:  # noqa: BLE001: the other one goes on
            part.bar(step.__name__.replace("_", " "), "runs", said(error), False)


def two_models(part, folders, options, photo):
    repository = os.path.join(part.options.work, "repository")
    shutil.rmtree(repository, ignore_errors=True)
    for name, folder in (("one", folders[0]), ("two", folders[-1])):
        shutil.copytree(folder, os.path.join(repository, name), ignore=shutil.ignore_patterns("weights.pt"))
    paths = ["/predict?model=one", "/predict?model=two"]
    with Daemon(part.bundle, None, ["--models", repository, *options]) as daemon:
        counts = many(daemon, paths, photo, 4 if part.bundle.on_gpu else 1)
        part.put("two_models", counts)
        part.bar("two models on one card", "every answer is 200", str(counts),
                 all(set(each) == {200} for each in counts.values()))
        ended = threading.Timer(0.5, daemon.process.send_signal, (signal.SIGTERM,))
        ended.start()
        counts = many(daemon, paths, photo, 1.5)
        ended.join()
        code = daemon.process.wait(PATIENCE)
        part.put("sigterm", {"counts": counts, "exit": code})
        # 0: the listening socket is closed by then.
        part.bar("SIGTERM under load", "answers or refusals, exit 0", f"{counts}, exit {code}",
                 code == 0 and all(set(each) <= {200, 503, 0} and 200 in each for each in counts.values()))


def full_cards(part, folders, options, photo):
    if not part.bundle.on_gpu or part.torch()[0] is None:
        part.note("a card is filled by PyTorch, on a GPU")
        return
    options = [*options[:-1], str(SATURATING)]  # as in the part before, whose trials are kept
    with Daemon(part.bundle, folders[0], options) as daemon, full_card(0):
        counts = many(daemon, ["/predict"], photo, 3)
        part.bar("a card that is filled while it serves", "every answer is 200", str(counts),
                 set(counts["/predict"]) == {200})
    with full_card(1 << 30):
        try:
            with Daemon(part.bundle, folders[0], options) as daemon:
                found = daemon.post("/predict", photo)[0], daemon.said()[-300:]
        except Broken as error:
            found = 0, str(error)
    part.put("full_at_start", found)
    part.bar("a start on a full card", "serves smaller batches, or says what is missing", f"{found[0]}: {found[1]}",
             found[0] == 200 or "out of memory" in found[1] or "are missing" in found[1])
    with Daemon(part.bundle, folders[0], options) as daemon:
        status = daemon.post("/predict", photo)[0]
    part.bar("the same start on the empty card", "200", str(status), status == 200)


def pass_rate(part, folder):
    """Images a second of passes in a row, with nothing around them: what the GPU could do."""
    with Forward(part.bundle, folder, "fp32", [SATURATING]) as forward:
        return SATURATING * 1e3 / statistics.median(forward.time_ms(SATURATING, 5, 3))


def saturated(part, connections, seconds, decode_rate):
    """A network so heavy that the GPU is what limits: is it ever idle between batches? By the images that it did against
    those that passes in a row would have done, before and after: a smaller batch or a gap shows in it."""
    if not part.bundle.on_gpu:
        return
    folder = part.network("vit_b_16")
    if folder is None:
        part.bar("GPU idle when saturated", f"< {IDLE_BAR:.0%}", "vit_b_16 was not exported", None)
        return
    options = ["--device", part.bundle.device, "--precision", "fp32", "--max-batch", str(SATURATING), "--max-queue",
               str(4 * connections)]
    before = pass_rate(part, folder)
    with Daemon(part.bundle, folder, options) as daemon:
        load(part, daemon, 2, 2 * connections)
        with Card(part.bundle) as card:
            got = load(part, daemon, seconds, 2 * connections)
    could = max(before, pass_rate(part, folder))
    idle = 1 - got["rate"] / could
    part.put("saturated", dict(got, idle=idle, pass_rate=could, pass_rate_before=before, card=card.seen))
    limits = decode_rate is not None and got["rate"] > 0.8 * decode_rate
    part.bar("GPU idle between batches, vit_b_16 fp32", f"< {IDLE_BAR:.0%}",
             f"{idle:.1%}: {got['rate']:.0f}/s of the {could:.0f}/s that passes of {SATURATING} in a row reach (by the "
             f"server's own clock {1 - got['device_busy']:.1%}; card: {card.words()})" + (", but decoding is what limits here" if limits else ""),
             None if limits else idle < IDLE_BAR)
