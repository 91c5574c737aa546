"""The program that makes the load, and what it measured."""

import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999)


class Broken(Exception):
    """A generator failed: a sentence."""


def quantile(buckets, share, missing=0):
    """ms at or below which that share of the values is. `missing`: values that count as endless;
    None when the quantile falls among them. buckets: [[upper edge us, count], …], ascending."""
    total = sum(count for _, count in buckets) + missing
    if total == 0:
        return None
    rank, seen = max(1, -(-share * total // 1)), 0
    for edge, count in buckets:
        seen += count
        if seen >= rank:
            return edge / 1e3
    return None


class Result:
    """One run at one concurrency or one rate.

    loop: "closed" or "open"; asked: connections, or requests/s. Latencies in ms, of answers 200 to 299.
    """

    def __init__(self, loop, asked):
        self.loop, self.asked = loop, asked
        self.seconds, self.sent, self.good = 0.0, 0, 0
        self.statuses, self.errors = {}, {}
        self.quantiles = {share: None for share in SHARES}
        self.max_ms = self.service_p99 = self.lag_p99 = self.refused_p99 = None
        self.buckets = None
        self.notes = []
        self.probe = False  # one of the steps of a search

    @property
    def bad(self):
        return (sum(count for status, count in self.statuses.items() if not 200 <= status <= 299)
                + sum(self.errors.values()))

    @property
    def throughput(self):
        return self.good / self.seconds if self.seconds else 0.0

    def counting_failures(self, share):
        """The quantile when what failed counts as never answered; None: beyond every limit."""
        if self.buckets is not None:
            return quantile(self.buckets, share, self.bad)
        return None if self.bad > (1 - share) * (self.good + self.bad) else self.quantiles.get(share)

    def answers(self):
        """"200: 1433, 503: 12, 2 timeouts"."""
        parts = [f"{status}: {count}" for status, count in sorted(self.statuses.items())]
        parts += [f"{count} {name.replace('_', ' ')}" for name, count in self.errors.items() if count]
        return ", ".join(parts) or "none"

    def as_json(self, images):
        values = {"loop": self.loop, "probe": self.probe,
                  ("connections" if self.loop == "closed" else "rate"): self.asked,
                  "seconds": round(self.seconds, 4), "sent": self.sent, "good": self.good,
                  "requests_per_s": round(self.throughput, 3),
                  "images_per_s": round(self.throughput * images, 3),
                  "statuses": {str(k): v for k, v in sorted(self.statuses.items())},
                  "errors": self.errors,
                  "latency_ms": {name_of(share): value for share, value in self.quantiles.items()},
                  "max_ms": self.max_ms, "notes": self.notes}
        for name in ("service_p99", "lag_p99", "refused_p99"):
            if getattr(self, name) is not None:
                values[name + "_ms"] = getattr(self, name)
        return values


def name_of(share):
    """0.999: "p99.9"."""
    return f"p{share * 100:.10g}"


def find_loadgen(build):
    candidates = [os.environ.get("LOADGEN", ""), os.path.join(build, "tests", "load", "loadgen")]
    for path in candidates:
        if path and os.access(path, os.X_OK):
            return path
    raise Broken(f"there is no {candidates[1]}: `./dev load` builds it (it needs "
                 "libcurl4-openssl-dev); or name the build folder with --build")


def stop(process):
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


def parse_loadgen(text):
    """The last line of loadgen's output: its result."""
    found = {}
    for line in text.splitlines():
        found = json.loads(line).get("result", found)
    if not found:
        raise Broken("loadgen gave no result")
    return found


class Generators:
    """Runs them. headers: {name: value} for every request; progress: see progress.py."""

    def __init__(self, options, requests, headers, progress):
        self.options, self.requests, self.headers = options, requests, headers
        self.progress = progress
        self.loadgen_path = find_loadgen(options.build)
        self.left = options.max_requests

    def limit(self):
        if self.left <= 0:
            raise Broken(f"the {self.options.max_requests} requests of --max-requests are used up")
        return int(self.left)

    def closed(self, connections, seconds):
        return self.run("closed", connections, seconds)

    def open(self, rate, seconds):
        return self.run("open", rate, seconds)

    def run(self, loop, asked, seconds):
        options, limit = self.options, self.limit()
        warmup = min(options.warmup, seconds)
        command = [self.loadgen_path, "--url", self.requests.url, "--manifest", self.requests.manifest,
                   "--seconds", f"{seconds:.3f}", "--warmup", f"{warmup:.3f}",
                   "--requests", str(min(limit, 20_000_000)), "--timeout", str(options.timeout),
                   "--seed", str(options.seed), "--connections", str(options.connections)]
        command += ["--concurrency", str(asked)] if loop == "closed" else ["--rate", f"{asked:.6g}"]
        command += ["--insecure"] if options.insecure else []
        for name, value in self.headers.items():
            command += ["--header", f"{name}: {value}"]
        label = f"{asked} connections" if loop == "closed" else f"{asked:.5g} /s"
        found = None
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            for line in process.stdout:
                message = json.loads(line)
                found = message.get("result", found)
                step = message.get("progress")
                if step:
                    self.progress.show(loop, label, step["seconds"] / (warmup + seconds),
                                       step["good"], step["bad"], step["p50_us"] / 1e3,
                                       step["p99_us"] / 1e3)
        finally:
            stop(process)
        if process.returncode != 0 or not found:
            raise Broken(f"loadgen ended with {process.returncode}")
        return self.result(loop, asked, found)

    def result(self, loop, asked, found):
        result = Result(loop, asked)
        result.seconds, result.sent, result.good = found["seconds"], found["sent"], found["good"]
        result.statuses = {int(status): count for status, count in found["statuses"].items()}
        result.errors = {name: count for name, count in found["errors"].items() if count}
        result.buckets = found["latency"]["buckets"]
        result.quantiles = {share: quantile(result.buckets, share) for share in SHARES}
        result.max_ms = found["latency"]["max_us"] / 1e3
        result.service_p99 = quantile(found["service"]["buckets"], 0.99)
        result.refused_p99 = quantile(found["refused"]["buckets"], 0.99)
        self.left -= found["sent"]
        if loop == "open":
            result.lag_p99 = quantile(found["lag"]["buckets"], 0.99)
            self.judge_generator(result, found)
        return result

    def judge_generator(self, result, found):
        """Says what of the latency may be the generator's own."""
        if found["most_waiting"]:
            result.notes.append(
                f"up to {found['most_waiting']} requests waited for one of the "
                f"{self.options.connections} connections (--connections); that time is counted")
        p50 = result.quantiles[0.5]
        if not found["most_waiting"] and p50 and result.lag_p99 and result.lag_p99 > max(1.0, p50):
            result.notes.append(f"the generator itself was up to {result.lag_p99:.1f} ms late (p99): "
                                "it shares its cores with others")
