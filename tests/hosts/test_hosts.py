"""Several hosts: three daemons on addresses of their own behind HAProxy, with the shipped configuration
(docker/haproxy/haproxy.cfg), under constant load. One host is killed, one is drained and restarted, one is
cut off. Hosts are network namespaces, joined by a bridge in a further one, that this test makes and removes.
No request fails; with --figures, for a quiet machine, the full rate must also be back within RECOVERY.

Needs root, iproute2 and haproxy; skips with a message where they are missing.
"""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "http"))
from harness import BINARY, ROOT, drawn  # noqa: E402
sys.path.insert(1, os.path.join(ROOT, "tests"))
import totals  # noqa: E402

RATE = 100          # requests a second, well below what one host can do
CLIENTS = 96        # threads: enough to keep the rate while some requests wait for a lost host
BALANCER = "10.77.0.1"
HOSTS = ("10.77.0.11", "10.77.0.12", "10.77.0.13")
RECOVERY = 2.0      # seconds until the full rate is back
FIGURES = False


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120)


def why_not():
    """A sentence when this machine cannot have namespaces or lacks a program; else None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("haproxy", "haproxy")):
        if not shutil.which(program):
            return f"{program} is missing (Debian: {package})"
    probe = f"lensd-probe-{os.getpid()}"
    try:
        run("ip", "netns", "add", probe)
        run("ip", "netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return "no network namespaces here: " + error.stderr.decode().strip()
    return None


class Network:
    """A namespace per address and one for the bridge; names carry this process' id."""

    def __init__(self, addresses):
        self.tag = f"lensd{os.getpid()}"
        self.names = {address: f"{self.tag}-{i}" for i, address in enumerate(addresses)}
        self.bridge = f"{self.tag}-br"
        run("ip", "netns", "add", self.bridge)
        self.inside(self.bridge, "ip", "link", "add", "br0", "type", "bridge")
        self.inside(self.bridge, "ip", "link", "set", "br0", "up")
        for i, (address, name) in enumerate(self.names.items()):
            run("ip", "netns", "add", name)
            run("ip", "link", "add", f"p{i}", "netns", self.bridge, "type", "veth",
                "peer", "name", "eth0", "netns", name)
            self.inside(self.bridge, "ip", "link", "set", f"p{i}", "master", "br0", "up")
            self.inside(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.inside(name, "ip", "link", "set", "lo", "up")
            self.inside(name, "ip", "link", "set", "eth0", "up")

    @staticmethod
    def inside(name, *words):
        run("ip", "netns", "exec", name, *words)

    def start(self, address, *words, log):
        return subprocess.Popen(["ip", "netns", "exec", self.names[address], *words],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def plug(self, address, state):
        """The cable of a host: "down" cuts it off without a word to anyone."""
        port = list(self.names).index(address)
        self.inside(self.bridge, "ip", "link", "set", f"p{port}", state)

    def close(self):
        for name in (*self.names.values(), self.bridge):
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


class Load(threading.Thread):
    """Constant rate from inside the balancer's namespace, by a process of its own (see client() below),
    until end()."""

    def __init__(self, network):
        super().__init__()
        self.process = subprocess.Popen(["ip", "netns", "exec", network.names[BALANCER], sys.executable,
                                         os.path.abspath(__file__), "--client"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.results, self.naps = [], []

    def run(self):
        with self.process.stdout as said:
            lines = said.read().decode().splitlines()
        for line in lines:
            due, took, status = line.split(" ", 2)
            (self.naps if status == "nap" else self.results).append((float(due), float(took), status))

    def end(self):
        self.process.stdin.close()
        self.join(200)
        self.process.wait(60)


def client():
    """Sends RATE photos a second at their due times until stdin ends; prints "due took status" for each,
    and "due took nap" for each time that this machine let a thread with nothing to do sleep too long:
    what it does to the client is not the balancer's doing."""
    body, gate, lines = drawn(7), threading.Lock(), []
    start, state, end = time.monotonic() + 0.5, {"next": 0}, threading.Event()

    def nap():
        while not end.is_set():
            due = time.monotonic() + 0.05
            time.sleep(0.05)
            took = time.monotonic() - due
            if took > 0.1:
                with gate:
                    lines.append(f"{due} {took:.4f} nap")

    def work():
        connection = http.client.HTTPConnection(BALANCER, 8080, timeout=120)
        while True:
            with gate:
                number = state["next"]
                state["next"] += 1
            due = start + number / RATE
            if end.wait(max(0, due - time.monotonic())):
                return
            try:
                connection.request("POST", "/predict", body)
                answer = connection.getresponse()
                text = answer.read()
                good = answer.status == 200 and b'"label":"7"' in text
                status = "ok" if good else f"{answer.status} {text[:100]!r}"
            except (OSError, http.client.HTTPException) as error:
                status = f"{type(error).__name__} {error}"
                connection.close()
            with gate:
                lines.append(f"{due} {time.monotonic() - due:.4f} {status}")

    threads = [threading.Thread(target=nap)] + [threading.Thread(target=work) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    end.set()
    for thread in threads:
        thread.join()
    print("\n".join(sorted(lines)))


def balancer_configuration(folder):
    """The shipped file, with these three servers where it finds Docker's replicas by name."""
    with open(os.path.join(ROOT, "docker", "haproxy", "haproxy.cfg"), encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"(?m)^resolvers docker\n(    .*\n)+", "", text)
    text = text.replace(" resolvers docker init-addr none", "")
    servers = "".join(f"    server replica-{i} {host}:8080\n" for i, host in enumerate(HOSTS))
    text, count = re.subn(r"(?m)^    server-template .*\n", servers, text)
    assert count == 1, "docker/haproxy/haproxy.cfg has no server-template line"
    path = os.path.join(folder, "haproxy.cfg")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


class Hosts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="lensd-hosts-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.network = Network((BALANCER, *HOSTS))
        self.addCleanup(self.network.close)
        self.daemons = {}
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.addCleanup(self.log.close)
        self.addCleanup(self.end_all)
        for host in HOSTS:
            self.serve(host)
        self.balancer = self.network.start(BALANCER, "haproxy", "-db", "-f",
                                           balancer_configuration(self.folder), log=self.log)

    def serve(self, host):
        self.daemons[host] = self.network.start(
            host, BINARY, "serve", "--host", host, "--port", "8080", "--drain-delay", "2",
            "--threads", "1", "--workers", "1", "--log-level", "warn",
            "--precision", "fp32",  # a host that starts has trials on its own processor, not on its neighbours'
            log=self.log)

    def end_all(self):
        for process in (*self.daemons.values(), self.balancer):
            if process.poll() is None:
                process.kill()
            process.wait(20)

    def states(self):
        """{host's number: what the balancer's own checks say of it}, from its page of statistics."""
        asked = subprocess.run(["ip", "netns", "exec", self.network.names[BALANCER], sys.executable, "-c",
                                "import urllib.request as r; print(r.urlopen("
                                f"'http://{BALANCER}:8404/;csv', timeout=60).read().decode())"],
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=False)
        header, *lines = (asked.stdout.decode() or "# \n").splitlines()
        rows = [dict(zip(header[2:].split(","), line.split(","))) for line in lines]
        return {row["svname"]: row["status"] for row in rows if row.get("pxname") == "lensd"
                and row["svname"].startswith("replica-")}

    def wait_up(self):
        """Until the balancer's checks have seen every host answer."""
        end, states = time.monotonic() + 120, {}
        while time.monotonic() < end:
            states = self.states()
            if list(states.values()) == ["UP"] * len(HOSTS):
                return
            time.sleep(0.1)
        self.fail(f"the hosts are not up: {states}")

    def test_kill_drain_cut(self):
        self.wait_up()
        killed, drained, cut = HOSTS
        load = Load(self.network)
        self.addCleanup(load.process.kill)
        events = {}
        load.start()
        time.sleep(3)

        events["kill"] = time.monotonic()
        self.daemons[killed].send_signal(signal.SIGKILL)
        self.daemons[killed].wait(20)
        time.sleep(4)
        self.serve(killed)
        self.wait_up()

        events["drain"] = time.monotonic()
        self.daemons[drained].send_signal(signal.SIGTERM)
        self.assertEqual(self.daemons[drained].wait(120), 0, "the drained daemon's exit status")
        self.serve(drained)
        self.wait_up()
        time.sleep(2)

        events["cut"] = time.monotonic()
        self.network.plug(cut, "down")
        time.sleep(4)
        self.network.plug(cut, "up")
        self.wait_up()
        time.sleep(2)
        load.end()
        self.judge(load.results, load.naps, events)

    def judge(self, results, naps, events):
        start, end = results[0][0], results[-1][0]
        if FIGURES:
            self.assertGreaterEqual(len(results), 0.9 * RATE * (end - start), "requests sent")

        def allowed(result):
            """A second, and what this machine stood still meanwhile."""
            return 1.0 + sum(nap[1] for nap in naps if nap[0] < result[0] + result[1] and
                             nap[0] + nap[1] > result[0] - 0.1)
        order = sorted(events.items(), key=lambda item: item[1])
        for i, (name, at) in enumerate(order):
            until = order[i + 1][1] if i + 1 < len(order) else end
            failed = [r for r in results if at - 1 <= r[0] < until and r[2] != "ok"]
            with self.subTest(event=name):
                # A photo whose replica dies under it is sent again: even those in flight are answered.
                self.assertEqual(failed, [])
                # Full rate: what fell due later than RECOVERY after the event is answered promptly. The last
                # second's requests may still be on their way when the next event comes, and are its own.
                late = [r for r in results if at + RECOVERY <= r[0] < until - 1 and r[1] > allowed(r)]
                self.assertEqual(late if FIGURES else [], [])
        quiet = [r for r in results if start <= r[0] < order[0][1] - 1]
        self.assertEqual([r for r in quiet if r[2] != "ok"], [], "before anything happened")
        for name, at in order:
            slow = max(r for r in ((r[1], round(r[0] - at, 2)) for r in results if at - 1 <= r[0] < at + 4))
            print(f"{name}: slowest {slow[0]:.2f} s, due {slow[1]} s after it", file=sys.stderr)
        slowest = max(r[1] for r in results)
        print(f"{len(results)} requests, none failed; slowest {slowest:.2f} s; the machine stood still for "
              f"{sum(nap[1] for nap in naps):.2f} s in all", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client()
    else:
        FIGURES = "--figures" in sys.argv
        sys.argv = [word for word in sys.argv if word != "--figures"]
        totals.main(why_not())
