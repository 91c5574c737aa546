#!/usr/bin/env python3
"""The forward pass beside PyTorch's, ONNX Runtime's and OpenVINO's, in one run, taking turns: A B C A B C …

    peers.py [--build build] [--families FOLDER] [--batch 1,8,32] [--rounds 15] [--bf16]
             [--precision fp32,auto] [--peers onnxruntime,torch,openvino] [--python KIND=PYTHON]
             [--write docs/measurements/NAME.md] FAMILY ...

A family is a folder that ./dev families exported: PyTorch gets the module of the same name, the others
the same model.onnx. A peer that cannot be imported is left out and named; --python names another
interpreter for one (--python torch=venv/bin/python, several times). Every contender is set as its own users
would set it for speed (peer_forward.py), all with as many threads as there are cores. --bf16 adds
lensd --precision bf16, PyTorch under bfloat16 autocast and OpenVINO in bfloat16. --quantized QDQ adds
lensd in int8, ONNX Runtime and OpenVINO on FAMILY-QDQ, which quantize.py writes (--quantized-models says where).
--isa avx2 holds lensd's kernels and OpenVINO to AVX2 and AVX-VNNI (avx512: to AVX-512 and VNNI without AMX).
ONNX Runtime cannot be held. --against BUILD adds the lensd of another build folder, as a peer; --peers '' leaves the frameworks out.

Every contender is a process of its own, and is stopped (SIGSTOP) while another has its turn. Without
that a turn is not its own: threads of the one before spin on for milliseconds, on the cores that the next
one is measured on (--let-spin leaves all of them running, to see what that costs). A turn is one run
that is not counted and three that are, more where runs are short. The answer is a Markdown table of
medians and of ratios; a ratio is the median over the rounds of the quotient within a round, which a
machine that changes its pace disturbs least.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import common  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
TIMES = 3
TURN_MS = 60  # a turn has so many runs that it takes about this long
MOST_TIMES = 20
PAUSE_S = 0.005
SETTLE_S = 0.3  # after the last framework was loaded
THREADS = len(os.sched_getaffinity(0))
NOT_INSTALLED = 3
NAMES = {"torch": "PyTorch fp32", "torch-compile": "PyTorch compiled fp32", "torch-bf16": "PyTorch bf16",
         "onnxruntime": "ONNX Runtime fp32", "openvino": "OpenVINO fp32",
         "openvino-bf16": "OpenVINO bf16"}
ISA = {"avx2": "AVX2_VNNI", "avx512": "AVX512_CORE_VNNI"}  # lensd's variant: what OpenVINO's oneDNN calls it
QUANTIZED_NAMES = {"onnxruntime": "ONNX Runtime int8", "openvino": "OpenVINO int8"}


class Contender:
    """A co-process that is stopped between its turns."""

    def __init__(self, command, folders, stops):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folders, self.stops = folders, stops
        self.times = {}

    def wait_ready(self):
        """Its version. RuntimeError when it did not start."""
        words = self.process.stdout.readline().split()
        if words[:1] != ["ready"]:
            status = self.process.wait()
            raise RuntimeError("not installed" if status == NOT_INSTALLED else f"ended with {status}")
        if self.stops:
            self.process.send_signal(signal.SIGSTOP)
        return " ".join(words[1:])

    def turn(self, folder, batch):
        """Milliseconds of each run."""
        times = self.times.get((folder, batch), TIMES)
        if self.stops:
            self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(f"run {self.folders.index(folder)} {batch} {times}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        if self.stops:
            self.process.send_signal(signal.SIGSTOP)
        if not line or line.startswith("error"):
            raise RuntimeError(f"a contender failed: {line or 'it ended'}")
        taken = [float(word) for word in line.split()]
        self.times[folder, batch] = max(TIMES, min(MOST_TIMES, int(TURN_MS / min(taken))))
        return taken

    def close(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def forward(options, build, precision, folders):
    return [os.path.join(build, "tests", "bench", "bench_forward"), "--precision", precision, "--threads",
            str(THREADS), "--batch", ",".join(map(str, options.batch)), *(["--isa", options.isa] if options.isa else []),
            "--serve", *folders]


def commands(options, folders):
    """{name: command}, lensd first."""
    batches = ",".join(map(str, options.batch))
    precisions = options.precision + (["bf16"] if options.bf16 else [])
    found = {f"lensd {precision}": forward(options, options.build, precision, folders)
             for precision in dict.fromkeys(precisions)}
    for build in options.against:
        found.update({f"{os.path.basename(build)} {precision}": forward(options, build, precision, folders)
                      for precision in dict.fromkeys(precisions)})
    pythons = dict(pair.split("=", 1) for pair in options.python)
    kinds = options.peers + [f"{kind}-bf16" for kind in options.peers
                             if options.bf16 and f"{kind}-bf16" in NAMES]
    for kind in kinds:
        python = pythons.get(kind) or pythons.get(kind.split("-")[0]) or sys.executable
        found[NAMES[kind]] = [python, os.path.join(HERE, "peer_forward.py"), kind, str(THREADS), batches,
                              *folders]
    if options.quantized:
        stored = [quantized_folder(options, folder) for folder in folders]
        found["lensd int8"] = forward(options, options.build, "int8", stored)
        found.update({f"{os.path.basename(build)} int8": forward(options, build, "int8", stored)
                      for build in options.against})
        for kind, name in QUANTIZED_NAMES.items():
            if kind in options.peers:
                found[name] = [pythons.get(kind) or sys.executable, os.path.join(HERE, "peer_forward.py"), kind,
                               str(THREADS), batches, *stored]
    return found


def quantized_folder(options, folder):
    return os.path.join(options.quantized_models, f"{common.model_name(folder)}-{options.quantized}")


def start(options, folders):
    """({name: contender}, versions). One after the other, lensd last: it times its kernels and batch
    sizes when it starts, and all others are stopped by then."""
    made, versions = {}, []
    wanted = commands(options, folders)
    order = sorted(wanted, key=lambda name: name.startswith("lensd"))
    for name in order:
        command = wanted[name]
        if name.startswith("lensd") and not any(each.startswith("lensd") for each in made):
            print("peers: all others are ready", file=sys.stderr, flush=True)
            time.sleep(SETTLE_S)
        contender = Contender(command, folders, not options.let_spin)
        try:
            version = contender.wait_ready()
        except RuntimeError as error:
            print(f"peers: without {name}: {error}", file=sys.stderr)
            if name.startswith("lensd"):
                sys.exit(1)
            continue
        made[name] = contender
        if name in NAMES.values() and version not in versions:
            versions.append(version)
    return {name: made[name] for name in wanted if name in made}, versions


def measure(options, folders, made):
    """(folder, batch, name) to the medians of the rounds, in milliseconds."""
    rounds = {(folder, batch, name): [] for folder in folders for batch in options.batch
              for name in made}
    for number in range(options.rounds):
        # Every other round runs backwards, so that no contender always follows the same one.
        order = list(made) if number % 2 == 0 else list(made)[::-1]
        for folder in folders:
            for batch in options.batch:
                for name in order:
                    time.sleep(PAUSE_S)
                    times = made[name].turn(folder, batch)
                    rounds[folder, batch, name].append(statistics.median(times))
        print(f"peers: round {number + 1} of {options.rounds}", file=sys.stderr)
    return rounds


def table(options, folders, made, rounds):
    names = list(made)
    peers = [name for name in names if not name.startswith("lensd")]
    ours = [name for name in names if name.startswith("lensd")]
    ratios = [(our, peer) for our in ours for peer in peers if "fp32" not in our or "fp32" in peer]
    builds = {os.path.basename(build) for build in options.against}
    ratios = [(our, peer) for our, peer in ratios
              if peer.split()[0] not in builds or peer.split()[1:] == our.split()[1:]]
    ratios += [("lensd int8", our) for our in ours if "lensd int8" in ours and "fp32" in our]
    lines = ["| model | batch | " + " | ".join(f"{name} ms" for name in names) + " | "
             + " | ".join(f"{our} against {peer}" for our, peer in ratios) + " |",
             "|---|--:|" + "--:|" * (len(names) + len(ratios))]
    for folder in folders:
        for batch in options.batch:
            medians = [f"{statistics.median(rounds[folder, batch, name]):.2f}" for name in names]
            quotients = []
            for our, peer in ratios:
                pairs = zip(rounds[folder, batch, peer], rounds[folder, batch, our])
                quotients.append(f"{statistics.median(p / o for p, o in pairs):.2f} ×")
            lines.append(f"| {common.model_name(folder)} | {batch} | " + " | ".join(medians) + " | "
                         + " | ".join(quotients) + " |")
    return "\n".join(lines)


def command_line(options):
    words = ["python3 tests/bench/peers.py"]
    if options.bf16:
        words.append("--bf16")
    if options.isa:
        words.append(f"--isa {options.isa}")
    if options.let_spin:
        words.append("--let-spin")
    if options.quantized:
        words.append(f"--quantized {options.quantized}")
    if options.precision != ["fp32"]:
        words.append(f"--precision {','.join(options.precision)}")
    words += [f"--against {build}" for build in options.against]
    words += [f"--batch {','.join(map(str, options.batch))}", f"--rounds {options.rounds}",
              *options.names]
    return " ".join(words)


def parse():
    def words(text):
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--families", default=os.path.join(common.ROOT, ".cache", "families"))
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--precision", type=words, default=["fp32"],
                        help="of lensd: fp32, bf16, int8, with commas")
    parser.add_argument("--peers", type=words, default=["torch", "onnxruntime", "openvino"],
                        help="also torch-compile; with commas")
    parser.add_argument("--against", action="append", default=[], metavar="BUILD")
    parser.add_argument("--python", action="append", default=[], metavar="KIND=PYTHON")
    parser.add_argument("--quantized", metavar="KIND", help="QDQ, QOperator …, see quantize.py")
    parser.add_argument("--quantized-models", default=os.path.join(common.ROOT, ".cache", "quantized"))
    parser.add_argument("--isa", choices=sorted(ISA), help="holds all but ONNX Runtime to it")
    parser.add_argument("--let-spin", action="store_true")
    parser.add_argument("--write", help="also write the answer to this Markdown file")
    parser.add_argument("names", nargs="+", metavar="FAMILY")
    options = parser.parse_args()
    if options.isa:
        os.environ["ONEDNN_MAX_CPU_ISA"] = ISA[options.isa]
    for kind in options.peers + [pair.split("=")[0] for pair in options.python]:
        if kind not in NAMES:
            sys.exit(f"peers: no peer '{kind}'; there are {', '.join(NAMES)}")
    return options


def main():
    options = parse()
    folders = [os.path.join(options.families, name) for name in options.names]
    for folder in folders:
        if not os.path.exists(os.path.join(folder, "model.onnx")):
            sys.exit(f"peers: {folder} is not there; ./dev families {common.model_name(folder)}")
        if options.quantized and not os.path.exists(os.path.join(quantized_folder(options, folder), "model.onnx")):
            sys.exit(f"peers: {quantized_folder(options, folder)} is not there; "
                     f"tests/bench/quantize.py --kinds {options.quantized} {common.model_name(folder)}")
    before = common.machine()
    made, versions = start(options, folders)
    try:
        rounds = measure(options, folders, made)
    finally:
        for each in made.values():
            each.close()
    text = "\n".join(
        ["# Forward pass beside its peers", "",
         f"One interleaved run, {options.rounds} rounds, {THREADS} threads, "
         f"{', '.join(versions) or 'no peer'}; "
         "milliseconds are medians, a ratio above 1 means that lensd is quicker.", "",
         *[f"- {line}" for line in before],
         f"- load afterwards: {os.getloadavg()[0]:.2f}", "",
         table(options, folders, made, rounds), "", f"Command: `{command_line(options)}`"])
    print(text)
    if options.write:
        os.makedirs(os.path.dirname(os.path.abspath(options.write)), exist_ok=True)
        with open(options.write, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
