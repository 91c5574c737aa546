#!/usr/bin/env python3
"""`./dev gpu`: is lensd right on this machine's GPU, is it fast, does it serve well?

    gpu.py [--bundle FOLDER] [--plan 1,3] [--out FOLDER] [--minutes N] [--resume REPORT.json]
           [--work FOLDER] [--device cuda:0]

Four plans of at most 9 minutes, each useful by itself:

    1  a look at the speed of ResNet-50, operators, random graphs, four network families
    2  the other families, ONNX's conformance cases, compute-sanitizer
    3  forward passes beside PyTorch, a table of layers, the profile, ncu on the costliest kernels, int8
    4  photos over HTTP, overload, a full card, two models, torch.compile

A plan is a list of parts, each a process with a time limit of its own; one that fails or is late does not stop
the others. --out has everything measured so far at any time, in report.json (all numbers) and report.md (a page
for docs/measurements). --resume takes over the finished parts of an earlier report of the same programs on a GPU
of the same kind, and what its unfinished parts had found, so that several short leases make one report. Exported
networks, tunings of layers and what torch.compile made stay in the --work folder for the next run. SIGTERM ends
it early, with a report.

Compares with PyTorch where python3 has torch and torchvision. Ends with 0 when no bar is missed and every
part ended, 1 when not, 2 when this machine has no usable GPU. --device fake runs everything on the stand-in
for CUDA, --device cpu on the CPU backend, to rehearse this command: never a result. Without --bundle a bundle is
built for the GPUs that are here.
"""

import argparse
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
SELF = os.path.join(HERE, "gpu.py")  # what a part is started with
sys.path[:0] = [HERE, os.path.join(HERE, "..", "bench")]

import checks  # noqa: E402
import layers  # noqa: E402
import networks  # noqa: E402
import page  # noqa: E402
import quantized  # noqa: E402
import serving  # noqa: E402
import speed  # noqa: E402
from programs import PATIENCE, REHEARSAL, STAND_IN, Broken, Bundle, nvidia_smi  # noqa: E402

PLANS = (1, 2, 3, 4)
PLAN_MINUTES = 8.7
VERSION = 1


# ------------------------------------------------------------------------------- the parts ----


def version_of(package):
    """Of an installed Python package, without importing it, which may take a minute; or "none"."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def machine(part):
    """What everything below was measured on."""
    import common

    def about(key, value):
        part.put(key, value)
        part.say(f"{key}: {value}")

    about("lensd", f"{part.bundle.about['version']} of {part.bundle.about['commit'] or 'no commit'}, bundle of "
                   f"{part.bundle.about['made']}")
    device = next(each for each in part.bundle.devices() if each["id"] == part.bundle.device)
    about("gpu", ("" if part.bundle.on_gpu else "none; instead of one: ")
          + f"{device['name']}, {device['memory']['total_bytes'] / 2**30:.0f} GiB, {device['isa']}")
    if nvidia_smi() and part.bundle.on_gpu:
        text = subprocess.run([nvidia_smi(), "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit,"
                               "temperature.gpu", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True,
                              check=False, timeout=60).stdout.strip()
        about("driver, clocks now, power limit, temperature", text.splitlines()[0] if text else "not visible")
    about("host", "; ".join(common.machine()[:3]))
    about("system", f"Linux {platform.release()}, {common.system_name()}, Python {platform.python_version()}")
    about("precisions of this build", ", ".join(part.bundle.precisions()))
    about("cuBLASLt of lensd", part.bundle.blas())
    about("Python packages", ", ".join(f"{name} {version_of(name)}" for name in (
        "torch", "torchvision", "triton", "onnx", "onnxruntime", "numpy", "nvidia-cublas", "nvidia-cudnn-cu13")))


def export(part):
    """Network files, made here: too large to be brought along."""
    torch, reason = part.torch()
    if torch is None:
        part.note(f"{reason}; the digit classifier is all there is, and lensd is compared with its own CPU backend")
        return
    part.put("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")

    def done(name, seconds, problem):
        part.put(name, {"seconds": seconds, "problem": problem})
        part.say(f"{name}: " + (f"exported in {seconds:.0f} s" if problem is None else f"NOT exported: {problem}"))

    networks.export_all(part.wanted_networks(), part.networks_folder(), done)
    part.say(f"networks are in {part.networks_folder()}")


# name: (plans, function, seconds at most). What is worth most comes first in a plan: a run that ends early does
# without the rest. The exports run beside the others from the beginning.
PARTS = {
    "machine": (PLANS, machine, PATIENCE),
    "export": (PLANS, export, 500),
    "look": ((1,), speed.look, 110),
    "operators": ((1,), checks.operators, 120),
    "graphs": ((1,), checks.random_graphs, 80),
    "families": ((1,), checks.families, 240),
    "more families": ((2,), checks.families, 250),
    "cases": ((2,), checks.conformance, 90),
    "sanitizer": ((2,), checks.sanitizer, 190),
    "forward": ((3,), speed.forward, 160),
    "layers": ((3,), layers.table, 90),
    "profile": ((3,), speed.profile, 60),
    "ncu": ((3,), layers.kernels, 120),
    "quantized": ((3,), quantized.quantized, 90),
    "serve": ((4,), serving.serve, 120),
    "memory": ((4,), serving.memory, 90),
    **{f"compiled {name}": ((4,), speed.compiled, 200) for name, _ in networks.COMPILED},
}
ARGUMENTS = {f"compiled {name}": (name, batch) for name, batch in networks.COMPILED}
BESIDE = "export"  # runs beside the other parts


class Part:
    """What a part's function sees: the bundle, its time, and where its results go. Every result is on disk
    as soon as it is known."""

    def __init__(self, name, options, limit):
        self.name, self.options, self.seed = name, options, options.seed
        self.bundle = Bundle(options.bundle, options.device)
        self.bundle.cache = os.path.join(options.work, "tunings")
        self.bundle.environment["LENSD_CACHE"] = os.path.join(options.work, "cache")
        # What torch.compile finds out takes minutes: it is kept, too.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(options.work, "inductor"))
        os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(options.work, "triton"))
        self.argument = ARGUMENTS.get(name)
        self.end = time.monotonic() + limit
        self.before = read_json(earlier_file(options.work, name)).get("results", {})
        self.state = {"status": "begun", "bars": [], "notes": [], "results": {}}
        self.save()

    def left(self):
        """Seconds of its time, at least one."""
        return max(1.0, self.end - time.monotonic())

    def save(self):
        write_json(state_file(self.options.work, self.name), self.state)

    def put(self, key, value):
        self.state["results"][key] = value
        self.save()

    def bar(self, what, wanted, got, met):
        """met: None where it cannot be judged."""
        met = None if met is None else bool(met)
        self.state["bars"].append({"what": what, "wanted": wanted, "got": str(got), "met": met})
        self.say(f"{page.WORDS[met]:6} {what}: {got} [{wanted}]")
        self.save()

    def note(self, text):
        self.state["notes"].append(text)
        self.say(f"note: {text}")
        self.save()

    def say(self, text):
        print(f"[{self.name}] {text}", flush=True)

    def networks_folder(self):
        return os.path.join(self.options.work, "networks")

    def network(self, name):
        """The folder of a network, as soon as it is exported; None when it was not, or not in time."""
        if name == "digits":
            return self.bundle.path("models", "digits")
        folder, end = os.path.join(self.networks_folder(), name), time.monotonic() + max(self.left() - PATIENCE, 0)
        while not networks.is_there(folder):
            exports = read_json(state_file(self.options.work, BESIDE))
            if exports.get("status") != "begun" or exports["results"].get(name, {}).get("problem") \
                    or time.monotonic() > end:
                return None
            time.sleep(0.2)
        return folder

    def torch(self):
        """(torch, None), or (None, why PyTorch takes no part)."""
        if self.bundle.stand_in:
            return None, "the stand-in is too slow for networks"
        return networks.torch_or_reason()

    def only_these(self, names):
        """Those of --networks, or all."""
        chosen = self.options.networks
        return [name for name in names if not chosen or name in chosen]

    def only_these_rows(self, table):
        """The same of (network, batch sizes)."""
        return [row for row in table if self.only_these([row[0]])]

    def families(self):
        if self.torch()[0] is None:
            return ["digits"] if self.name == "families" else []
        first = self.only_these(networks.FAMILIES[:networks.FIRST])
        return first if self.name == "families" else [name for name in self.only_these(networks.FAMILIES)
                                                      if name not in first]

    def speed(self):
        """(network, batch sizes)"""
        if self.torch()[0] is None:
            return [("digits", [1])]
        table = networks.SPEED[:1] if self.name == "look" else networks.SPEED
        sizes = {"look": [1, 64]}.get(self.name)
        return [(name, [1, 4] if not self.bundle.on_gpu else sizes or batches)
                for name, batches in self.only_these_rows(table)]

    def profiled(self):
        """(network, batch size); the first one is served, too."""
        if self.torch()[0] is None:
            return [("digits", 1)]
        if not self.bundle.on_gpu:
            return [(name, 4) for name in self.families()][:1]
        return [("resnet50", 256), ("vit_b_16", 64)]

    def wanted_networks(self):
        """Of the parts that run, in their order."""
        names = []
        for name in chosen(self.options):
            part = Part.__new__(Part)
            part.name, part.options, part.bundle = name, self.options, self.bundle
            if name == "look":
                names += [row[0] for row in part.speed()[:1]]
            elif name in ("families", "more families"):
                names += part.families()
            elif name in ("forward", "quantized"):
                names += [row[0] for row in part.speed()]
            elif name in ("layers", "profile", "ncu", "serve", "memory"):
                names += [row[0] for row in part.profiled()]
            elif name in ARGUMENTS:
                names.append(ARGUMENTS[name][0])
        return list(dict.fromkeys(names))

    def decode_only(self, folder):
        """The folder of a network that does nothing, prepared like `folder`'s; None without PyTorch."""
        if self.torch()[0] is None:
            return None
        target = os.path.join(self.networks_folder(), "nothing")
        networks.export_decode_only(target, folder)
        return target


def state_file(work, name):
    return os.path.join(work, "parts", name.replace(" ", "_") + ".json")


def earlier_file(work, name):
    """What an earlier run of an unfinished part had found."""
    return state_file(work, name + " before")


def read_json(path):
    """{} where there is nothing whole to read."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def run_part(options):
    """In the child: one part to its end."""
    part = Part(options.part, options, options.limit)
    try:
        PARTS[options.part][1](part)
        part.state["status"] = "done"
    except Exception as error:  # noqa: BLE001: whatever it was, the report says it
        traceback.print_exc()
        part.state.update(status="failed", reason=f"{type(error).__name__}: {error}"[:1000])
        part.say(f"FAILED: {part.state['reason']}")
    part.save()
    return 0 if part.state["status"] == "done" else 1


# --------------------------------------------------------------------------- the supervisor ----


def descendants(pid):
    """Children of a process, theirs too; none where /proc does not say."""
    found, begin = [], [pid]
    while begin:
        try:
            with open(f"/proc/{begin[0]}/task/{begin[0]}/children", encoding="ascii") as file:
                children = [int(word) for word in file.read().split()]
        except OSError:
            children = []
        found += children
        begin = begin[1:] + children
    return found


def end_process(process):
    """The part and what it started: they are one process group, and workers that left it are found by
    their parents."""
    left = descendants(process.pid)
    for signal_number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 10)):
        for send, target in [(os.killpg, process.pid)] + [(os.kill, pid) for pid in left]:
            try:
                send(target, signal_number)
            except (ProcessLookupError, PermissionError):
                pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


class Ended(BaseException):
    """SIGTERM: the time on the machine is over."""


def end_early(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Ended


def begin_part(options, name, limit):
    """The process of a part, in a group of its own."""
    words = [sys.executable, SELF, "--part", name, "--limit", f"{limit:.0f}", "--work",
             options.work, "--bundle", options.bundle, "--device", options.device, "--seed", str(options.seed),
             "--plan", ",".join(map(str, options.plan)), "--out", options.out]
    words += ["--networks", ",".join(options.networks)] if options.networks else []
    words += [word for folder in options.cases for word in ("--cases", folder)]
    # The part itself may take as long to begin as Python does; who waits for the exports must not see an older state.
    write_json(state_file(options.work, name), {"status": "begun", "bars": [], "notes": [], "results": {}})
    return subprocess.Popen(["nice", *words] if name == BESIDE else words, stdin=subprocess.DEVNULL, start_new_session=True)


def end_part(options, name, process, began, limit, late=False):
    """Its state, once it has ended or is ended now."""
    end_process(process)
    state = read_json(state_file(options.work, name)) or {"status": "failed", "bars": [], "notes": [], "results": {}}
    if state["status"] == "begun":
        if late:
            state.update(status="out of time", reason=f"its {limit:.0f} s were over; what is above was measured")
        else:
            state.update(status="failed", reason=f"its process ended with {process.returncode}")
        write_json(state_file(options.work, name), state)
    return dict(state, seconds=time.monotonic() - began)


def run_one(options, name, limit, save):
    """Runs a part, at most `limit` seconds; returns its state. save(state) whenever it has found something."""
    began, at, seen = time.monotonic(), now(), None
    process, late = begin_part(options, name, limit), False
    try:
        while process.poll() is None and not late:
            late = time.monotonic() - began > limit
            time.sleep(0.1)
            state = read_json(state_file(options.work, name))
            if state and state != seen:
                save(dict(state, seconds=time.monotonic() - began, began=at))
                seen = state
    except Ended:
        late = options.ended = True
    finally:
        state = end_part(options, name, process, began, limit, late)
    return dict(state, began=at)


def now():
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def taken_over(options, bundle, card):
    """Parts of an earlier report that count: finished, of the same programs, card and kind of run."""
    if not options.resume:
        return {}
    try:
        with open(options.resume, encoding="utf-8") as file:
            report = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"gpu: --resume {options.resume}: {error}")
    for what, mine, theirs in (("programs", bundle.about["programs_sha256"], report.get("programs_sha256")),
                               ("device", options.device, report.get("device")),
                               ("GPU", card, report.get("card")),
                               ("PyTorch", version_of("torch"), report.get("torch"))):
        if mine != theirs:
            sys.exit(f"gpu: {options.resume} is of other {what}: {theirs}, here {mine}; leave --resume out")
    for name, part in report["parts"].items():
        write_json(earlier_file(options.work, name), part)
    return {name: dict(part, taken_over=True) for name, part in report["parts"].items()
            if part["status"] == "done" and name in PARTS and PARTS[name][0] != PLANS
            and (part["bars"] or part["results"])}  # what found nothing to do may find something here


def chosen(options):
    """Names of the parts of this run."""
    return [name for name, (plans, *_) in PARTS.items() if set(plans) & set(options.plan)]


def usable(bundle):
    """The name of the GPU; ends with a sentence when there is none to measure on."""
    looked = bundle.find_libraries()
    try:
        devices = bundle.devices()
    except Broken as error:
        sys.exit(f"gpu: {error}")
    device = next((each for each in devices if each["id"] == bundle.device), None)
    if device is None or not device["usable"]:
        reason = device["reason"] if device else "this machine has no such device"
        print(f"gpu: {bundle.device} cannot be used: {reason}. ./dev gpu needs an NVIDIA GPU with its driver, and "
              "cuBLASLt (a CUDA toolkit, or PyTorch's packages)." + (f"\n{looked}" if looked else ""), file=sys.stderr)
        sys.exit(2)
    return device["name"]


def save_report(options, report):
    write_json(os.path.join(options.out, "report.json"), report)
    with open(os.path.join(options.out, "report.md"), "w", encoding="utf-8") as file:
        file.write(page.markdown(report))


def supervise(options):
    began = time.monotonic()
    try:
        bundle = Bundle(options.bundle, options.device)
    except Broken as error:
        sys.exit(f"gpu: {error}")
    card = usable(bundle)
    shutil.rmtree(os.path.join(options.work, "parts"), ignore_errors=True)  # of another run
    done = taken_over(options, bundle, card)
    minutes = options.minutes or PLAN_MINUTES * len(options.plan)
    end = began + minutes * 60
    report = {"version": VERSION, "gpu": bundle.on_gpu, "device": options.device, "card": card,
              "torch": version_of("torch"), "plans": options.plan, "seed": options.seed, "began": now(),
              "command": " ".join(["./dev gpu", *options.words]), "bundle": bundle.about,
              "programs_sha256": bundle.about["programs_sha256"], "machine": {}, "parts": dict(done)}
    for name, part in done.items():
        write_json(state_file(options.work, name), part)

    def keep(name, state):
        report["parts"][name] = state
        if name == "machine":
            report["machine"].update(state["results"])
        if name == BESIDE and "PyTorch" in state["results"]:
            report["machine"]["PyTorch"] = state["results"]["PyTorch"]
        # In the order of PARTS, whatever was taken over.
        report["parts"] = {each: report["parts"][each] for each in PARTS if each in report["parts"]}
        save_report(options, report)

    options.ended = False
    signal.signal(signal.SIGTERM, end_early)
    exports_at = now()
    exports = begin_part(options, BESIDE, end - began) if BESIDE in PARTS else None
    for name in chosen(options):
        if name == BESIDE:
            continue
        if name in done:
            print(f"[{name}] taken over from {options.resume}", flush=True)
            save_report(options, report)
            continue
        limit = min(PARTS[name][2] * (1 if bundle.on_gpu else REHEARSAL), end - time.monotonic())
        if limit < 5 or options.ended:
            keep(name, {"status": "left out", "reason": "no time is left", "bars": [], "notes": [], "results": {},
                        "seconds": 0.0, "began": now()})
            continue
        print(f"[{name}] begins, for {limit:.0f} s at most, {(end - time.monotonic()) / 60:.1f} minutes are left", flush=True)
        keep(name, run_one(options, name, limit, lambda state, name=name: keep(name, state)))
    if exports:
        is_late, is_over = time.monotonic() >= end, exports.poll() is not None
        state = end_part(options, BESIDE, exports, began, end - began, not is_over)
        if not is_over and not is_late:  # no part waits for what is left
            state.update(status="done", reason="")
        keep(BESIDE, dict(state, began=exports_at))
    print("\n" + page.table(report), flush=True)
    print(f"{os.path.join(options.out, 'report.json')} and report.md have all of it", flush=True)
    return 1 if page.unfinished(report) or any(bar["met"] is False for bar in page.bars(report)) else 0


def make_bundle(parser, device):
    """For the GPUs that are here: code for all of them takes nvcc a quarter of an hour, and is too much for a bundle."""
    root = os.path.realpath(os.path.join(HERE, "..", ".."))
    if not os.path.exists(os.path.join(root, "dev")):
        parser.error("--bundle must name the folder that ./dev bundle made")
    arch, more = "sm_90", ["--stand-in"] if device == STAND_IN else []
    if device not in (STAND_IN, "cpu"):
        try:
            said = subprocess.run(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"], check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        except OSError:
            said = ""
        found = sorted(set(said.split()))
        if not found or not all(re.fullmatch(r"\d+\.\d+", each) for each in found):
            parser.error("nvidia-smi shows no GPU here; --device fake rehearses on a stand-in, --bundle FOLDER uses what "
                         "./dev bundle made")
        arch = ",".join("sm_" + each.replace(".", "") for each in found)
    status = subprocess.run([os.path.join(root, "dev"), "bundle", "--no-archive", *more, "--arch", arch], check=False).returncode
    if status:
        sys.exit(status)
    return os.path.join(root, "build-bundle", "lensd-bundle")


def plans(text):
    """A list of plans."""
    found = text.split(",")
    if not all(word in map(str, PLANS) for word in found):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of plans such as 1 or 1,3")
    return sorted({int(word) for word in found})


def parse(words):
    parser = argparse.ArgumentParser(prog="./dev gpu", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", help="a folder that ./dev bundle made (default: one is made)")
    parser.add_argument("--networks", type=lambda text: text.split(","), help="only these, of: "
                        + ", ".join(networks.FAMILIES))
    parser.add_argument("--cases", action="append", metavar="FOLDER", help="conformance cases in ONNX's layout to run on "
                        "the device; may be repeated (default: those of the bundle)")
    parser.add_argument("--plan", type=plans, default=list(PLANS), help="which, such as 1 or 1,3 (default: all four)")
    parser.add_argument("--out", default="gpu-report", help="folder of the report (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="for everything; parts that would begin later are left out "
                        f"(default: {PLAN_MINUTES} for each plan)")
    parser.add_argument("--resume", metavar="REPORT.json", help="take over what this report has finished")
    parser.add_argument("--device", default="cuda:0", help=f"cuda:N (default: %(default)s); {STAND_IN} or cpu: a rehearsal")
    parser.add_argument("--seed", type=int, help="of weights' images and graphs (default: from the clock)")
    parser.add_argument("--work", metavar="FOLDER", help="exported networks and partial results; the next run with it need not "
                        "make them again (default: one of this bundle's among the temporary files)")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.words = words
    for folder in options.cases or []:
        if not os.path.isdir(folder):
            parser.error(f"--cases {folder}: there is no such folder")
    options.cases = [os.path.abspath(folder) for folder in options.cases or []]
    if options.device not in (STAND_IN, "cpu") and not re.fullmatch(r"cuda:\d+", options.device):
        parser.error(f"--device {options.device}: a GPU has a name such as cuda:0")
    options.bundle = options.bundle or make_bundle(parser, options.device)
    if not os.path.exists(os.path.join(options.bundle, "bundle.json")):
        parser.error(f"{options.bundle} is no bundle: it has no bundle.json (./dev bundle makes one)")
    options.seed = options.seed if options.seed is not None else int(time.time()) % 1000003
    return options


def own_work_folder(options):
    """One that the next run of the same programs finds again, nobody else's."""
    with open(os.path.join(options.bundle, "bundle.json"), encoding="utf-8") as file:
        programs = json.load(file)["programs_sha256"][:12]
    folder = os.path.join(tempfile.gettempdir(), f"lensd-gpu-{os.getuid()}-{programs}")
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        there = os.lstat(folder)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.getuid() or there.st_mode & 0o077:
            sys.exit(f"gpu: {folder} is somebody else's; --work names another folder")
    return folder


def main():
    options = parse(sys.argv[1:])
    if options.part:
        return run_part(options)
    options.bundle, options.out = os.path.abspath(options.bundle), os.path.abspath(options.out)
    os.makedirs(options.out, exist_ok=True)
    options.work = os.path.abspath(options.work) if options.work else own_work_folder(options)
    os.makedirs(options.work, exist_ok=True)
    with open(os.path.join(options.work, "lock"), "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"gpu: another run works in {options.work}; --work names another folder")
        status = supervise(options)
    print(f"networks and tunings stay in {options.work} for the next run; rm -r it when there is none", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
