#!/usr/bin/env python3
"""The forward pass beside PyTorch's and ONNX Runtime's, in one run, taking turns: A B C A B C …

    peers.py [--build build] [--families FOLDER] [--batch 1,8,32] [--rounds 15] [--bf16]
             [--write docs/measurements/NAME.md] FAMILY ...

A family is a folder that ./dev families exported: PyTorch gets the module of the same name, ONNX
Runtime and lensd the same model.onnx. Whichever of the two cannot be imported is left out and named.
Every contender is set as its own users would set it for speed: PyTorch traced, frozen,
optimize_for_inference, channels_last; ONNX Runtime with all optimisations; all of them with as many
threads as there are cores. --bf16 adds lensd --precision bf16 and PyTorch under bfloat16 autocast.

A turn is one run that is not counted and three that are. Between turns there is a pause, in which
the thread pools of the one before go to sleep: spinning threads would cost the next contender. The
answer is a Markdown table of medians and of ratios; a ratio is the median over the rounds of the
quotient within a round, which a machine that changes its pace disturbs least.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
# Set by some images to make runs comparable; it halves what PyTorch's matrix products can do.
os.environ.pop("OPENBLAS_CORETYPE", None)
import common  # noqa: E402

TIMES = 3
PAUSE_S = 0.03
THREADS = len(os.sched_getaffinity(0))


class Lensd:
    """bench_forward --serve as a co-process."""

    def __init__(self, build, folders, batches, precision):
        self.process = subprocess.Popen(
            [os.path.join(build, "tests", "bench", "bench_forward"), "--precision", precision,
             "--threads", str(THREADS), "--batch", ",".join(map(str, batches)), "--serve", *folders],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folders = folders
        if not self.process.stdout.readline().startswith("ready"):
            sys.exit("bench_forward did not start; its reason is above")

    def turn(self, folder, batch):
        self.process.stdin.write(f"run {self.folders.index(folder)} {batch} {TIMES}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().strip()
        if not line or line.startswith("error"):
            raise RuntimeError(f"bench_forward: {line or 'ended'}")
        return [float(word) for word in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(function):
    times = []
    function()
    for _ in range(TIMES):
        begin = time.perf_counter()
        function()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


class Torch:
    def __init__(self, folders, batches, bf16):
        import torch
        import torchvision
        self.torch = torch
        self.bf16 = bf16
        torch.set_num_threads(THREADS)
        self.inputs = {}
        self.modules = {}
        for folder in folders:
            name = common.model_name(folder)
            options = {"init_weights": True, "aux_logits": False} if name == "googlenet" else {}
            module = getattr(torchvision.models, name)(weights=None, **options).eval()
            module = module.to(memory_format=torch.channels_last)
            for batch in batches:
                x = torch.rand(batch, 3, side_of(folder), side_of(folder))
                x = x.contiguous(memory_format=torch.channels_last)
                with torch.no_grad():
                    self.modules[folder, batch] = self.prepare(module, x)
                self.inputs[folder, batch] = x

    def prepare(self, module, x):
        if self.bf16:
            return module  # autocast and optimize_for_inference do not go together
        traced = self.torch.jit.freeze(self.torch.jit.trace(module, x))
        return self.torch.jit.optimize_for_inference(traced)

    def turn(self, folder, batch):
        module, x = self.modules[folder, batch], self.inputs[folder, batch]
        with self.torch.no_grad():
            if self.bf16:
                with self.torch.autocast("cpu", dtype=self.torch.bfloat16):
                    return timed(lambda: module(x))
            return timed(lambda: module(x))

    def close(self):
        pass


class OnnxRuntime:
    def __init__(self, folders, batches):
        import numpy
        import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.sessions = {folder: onnxruntime.InferenceSession(
            os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
            for folder in folders}
        random = numpy.random.default_rng(1)
        self.inputs = {(folder, batch): random.random((batch, 3, side_of(folder), side_of(folder)),
                                                      dtype=numpy.float32)
                       for folder in folders for batch in batches}

    def turn(self, folder, batch):
        session, x = self.sessions[folder], self.inputs[folder, batch]
        name = session.get_inputs()[0].name
        return timed(lambda: session.run(None, {name: x}))

    def close(self):
        pass


def side_of(folder):
    """The side of the square image that the family takes, from its preprocessor file."""
    import json
    with open(os.path.join(folder, "preprocessor_config.json"), encoding="utf-8") as file:
        return json.load(file)["crop_size"]["height"]


def contenders(options, folders):
    """Name to contender, lensd first; what is not installed is named on standard error."""
    made = {"lensd fp32": Lensd(options.build, folders, options.batch, "fp32")}
    makers = {"PyTorch fp32": lambda: Torch(folders, options.batch, False),
              "ONNX Runtime fp32": lambda: OnnxRuntime(folders, options.batch)}
    if options.bf16:
        made["lensd bf16"] = Lensd(options.build, folders, options.batch, "bf16")
        makers["PyTorch bf16"] = lambda: Torch(folders, options.batch, True)
    for name, make in makers.items():
        try:
            made[name] = make()
        except ImportError as error:
            print(f"peers: without {name}: {error}", file=sys.stderr)
    return made


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
    ratios = [(our, peer) for our in ours for peer in peers if "bf16" in our or "fp32" in peer]
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


def versions():
    found = []
    for module in ("torch", "onnxruntime"):
        if module in sys.modules:
            found.append(f"{module} {sys.modules[module].__version__}")
    return ", ".join(found) or "no peer"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(common.ROOT, "build"))
    parser.add_argument("--families", default=os.path.join(common.ROOT, ".cache", "families"))
    parser.add_argument("--batch", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--write", help="also write the answer to this Markdown file")
    parser.add_argument("names", nargs="+", metavar="FAMILY")
    options = parser.parse_args()
    folders = [os.path.join(options.families, name) for name in options.names]
    for folder in folders:
        if not os.path.exists(os.path.join(folder, "model.onnx")):
            sys.exit(f"peers: {folder} is not there; ./dev families {common.model_name(folder)}")
    before = common.machine()
    made = contenders(options, folders)
    rounds = measure(options, folders, made)
    for each in made.values():
        each.close()
    text = "\n".join(
        ["# Forward pass beside its peers", "",
         f"One interleaved run, {options.rounds} rounds, {THREADS} threads, {versions()}; "
         "milliseconds are medians, a ratio above 1 means that lensd is quicker.", "",
         *[f"- {line}" for line in before],
         f"- load afterwards: {os.getloadavg()[0]:.2f}", "",
         table(options, folders, made, rounds), "",
         "Command: `python3 tests/bench/peers.py "
         + ("--bf16 " if options.bf16 else "")
         + f"--batch {','.join(map(str, options.batch))} --rounds {options.rounds} "
         f"{' '.join(options.names)}`"])
    print(text)
    if options.write:
        os.makedirs(os.path.dirname(os.path.abspath(options.write)), exist_ok=True)
        with open(options.write, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
