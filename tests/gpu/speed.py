"""Is it fast? The card's own ceilings, and forward passes in turns with PyTorch's, in one run."""

import contextlib
import statistics
import time

import networks
from programs import Broken, Forward, said

BLOCK_MS = 20.0  # a number is the mean of passes that take about this long together
TIMES = 5        # such numbers in a turn
EAGER_BAR, COMPILED_BAR = 1.2, 1.0
LATENCY_BAR_MS = 0.6
ROOFLINE_BAR = 0.35


def synchronised_ms(torch, function, times):
    """Milliseconds between CUDA events around `function`, `times` times after a warm-up."""
    found = []
    function()
    for _ in range(times):
        if not torch.cuda.is_available():  # a rehearsal without a GPU
            begin = time.perf_counter()
            function()
            found.append((time.perf_counter() - begin) * 1e3)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return found


def roofline(part):
    """A large matrix product and a large copy, on random numbers: what this card does today."""
    torch, reason = part.torch()
    if torch is None or not part.bundle.on_gpu:
        part.note(reason or "a CPU has ceilings of another kind")
        return
    device = part.bundle.device
    side, found = 8192, {}
    for word, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = False
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        ms = statistics.median(synchronised_ms(torch, lambda a=a, b=b, out=out: torch.mm(a, b, out=out),
                                               10 if word != "fp32" else 3))
        found[f"{word}_tflops"] = 2 * side ** 3 / ms * 1e-9
    x = torch.randn(1 << 29, device=device)  # 2 GiB, many times the cache
    y = torch.empty_like(x)
    ms = statistics.median(synchronised_ms(torch, lambda: y.copy_(x), 10))
    found["copy_gbs"] = 2 * x.numel() * 4 / ms * 1e-6
    part.put("ceilings", found)
    part.note("ceilings: " + ", ".join(f"{key} {value:.0f}" for key, value in found.items()))


# -------------------------------------------------------------------------------- contenders ----


class Torch:
    """A module on the GPU, as its own users would set it for speed. `compiled`: torch.compile."""

    def __init__(self, name, folder, precision, device, batches, compiled=False):
        import torch
        self.torch = torch
        torch.backends.cudnn.benchmark = True
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        network = networks.module(name, folder, device).to(dtype).to(memory_format=torch.channels_last)
        height, width = networks.image_size(folder)
        self.inputs = {batch: torch.randn(batch, 3, height, width, device=device).to(dtype)
                       .contiguous(memory_format=torch.channels_last) for batch in batches}
        self.network = torch.compile(network, mode="max-autotune", fullgraph=True) if compiled else network
        with torch.inference_mode():
            for batch in batches:
                for _ in range(3 if compiled else 1):
                    self.network(self.inputs[batch])
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def time_ms(self, batch, times, passes):
        x = self.inputs[batch]

        def block():
            for _ in range(passes):
                self.network(x)

        with self.torch.inference_mode():
            return [ms / passes for ms in synchronised_ms(self.torch, block, times)]


def passes_for(ms):
    return max(1, min(500, round(BLOCK_MS / max(ms, 1e-3))))


def in_turns(part, contenders, batch):
    """name: [ms of each round]; every other round runs backwards."""
    rounds = 1 if not part.bundle.on_gpu else 3 if part.quick else 7
    passes = {name: passes_for(statistics.median(contender.time_ms(batch, 3, 3)))
              for name, contender in contenders.items()}
    found = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders) if number % 2 == 0 else list(contenders)[::-1]:
            found[name].append(statistics.median(contenders[name].time_ms(batch, TIMES, passes[name])))
    return found


def ratio(found, over, name="lensd"):
    """How many times as fast `name` is: the median of the quotients within a round."""
    return statistics.median(o / n for o, n in zip(found[over], found[name]))


def forward(part):
    """lensd against PyTorch eager, batch by batch."""
    half = part.bundle.half()
    torch, reason = part.torch()
    if torch is None:
        part.note(f"{reason}; lensd is measured alone")
    rows = []
    for name, batches in part.speed():
        folder = part.network(name)
        if folder is None:
            part.bar(f"{name} forward", "measured", "it was not exported", None)
            continue
        try:
            with Forward(part.bundle, folder, half, batches, patience=part.left()) as lensd:
                contenders = {"lensd": lensd}
                if torch is not None and name != "digits":
                    contenders["eager"] = Torch(name, folder, half, part.bundle.device, batches)
                for batch in batches:
                    rows.append(measure(part, contenders, name, batch, half))
                    part.put("rows", rows)
        except Exception as error:  # noqa: BLE001: the others go on
            part.bar(f"{name} forward {half}", "runs", said(error), False)
    if "fp16" != half:
        part.note("this build of lensd has no fp16: both sides are measured in bf16")


def measure(part, contenders, name, batch, half):
    found = in_turns(part, contenders, batch)
    row = {"family": name, "batch": batch, "precision": half, "rounds_ms": found,
           "ms": {who: statistics.median(times) for who, times in found.items()},
           "host_ms": statistics.median(contenders["lensd"].run_ms(batch, 20 if part.bundle.on_gpu and batch < 64 else 5))}
    text = ", ".join(f"{who} {ms:.3f} ms" for who, ms in row["ms"].items())
    label = f"{name} {half} batch {batch}"
    part.say(f"{label}: {text}; {batch * 1e3 / row['ms']['lensd']:.0f} images/s; "
             f"with copies from and to the host {row['host_ms']:.3f} ms")
    if "eager" in found:
        row["against_eager"] = ratio(found, "eager")
        part.bar(f"{label} against eager", f">= {EAGER_BAR} x" if name == "resnet50" else "measured",
                 f"{row['against_eager']:.2f} x",
                 row["against_eager"] >= EAGER_BAR if name == "resnet50" else None)
    if name == "resnet50" and batch == 1:
        part.bar(f"{label} latency, copies included", f"<= {LATENCY_BAR_MS} ms", f"{row['host_ms']:.3f} ms",
                 row["host_ms"] <= LATENCY_BAR_MS)
    return row


def compiled(part):
    """lensd, eager and torch.compile in turns. Compiling takes minutes: each family is a part of its own."""
    name, batch = part.argument if part.bundle.on_gpu else part.profiled()[0]
    torch, reason = part.torch()
    if torch is None:
        part.note(reason)
        return
    folder, half = part.network(name), part.bundle.half()
    if folder is None:
        part.bar(f"{name} against torch.compile", "measured", "it was not exported", None)
        return
    label = f"{name} {half} batch {batch} against torch.compile"
    with contextlib.ExitStack() as stack:
        lensd = stack.enter_context(Forward(part.bundle, folder, half, [1, batch], patience=part.left()))
        contenders = {"lensd": lensd, "eager": Torch(name, folder, half, part.bundle.device, [batch])}
        began = part.left()
        contenders["compiled"] = Torch(name, folder, half, part.bundle.device, [batch], compiled=True)
        compile_s = began - part.left()
        found = in_turns(part, contenders, batch)
    medians = {who: statistics.median(times) for who, times in found.items()}
    part.put("row", {"family": name, "batch": batch, "precision": half, "rounds_ms": found, "ms": medians,
                     "compile_s": compile_s, "against_compiled": ratio(found, "compiled")})
    part.say(f"{label}: " + ", ".join(f"{who} {ms:.3f} ms" for who, ms in medians.items())
             + f"; max-autotune took {compile_s:.0f} s")
    part.bar(label, f">= {COMPILED_BAR} x", f"{ratio(found, 'compiled'):.2f} x",
             ratio(found, "compiled") >= COMPILED_BAR)


# ----------------------------------------------------------------------------------- profile ----


def ideal_ms(step, ceilings, half):
    """The least a step can take on this card: its arithmetic or its bytes, whichever is more."""
    flops = step["gflop"] / ceilings[f"{half}_tflops"]  # GFLOP over TFLOP/s is milliseconds
    return max(flops, step["bytes"] / ceilings["copy_gbs"] * 1e-6)


def losses(steps, ceilings, half):
    """Steps by what they take beyond their ideal, the greatest first."""
    rows = [dict(step, ideal_ms=ideal_ms(step, ceilings, half)) for step in steps]
    return sorted(rows, key=lambda row: row["ideal_ms"] - row["ms"])


def profile(part):
    """Where the time goes, and how much of the roofline the whole pass reaches."""
    half = part.bundle.half()
    ceilings = (part.earlier("roofline") or {}).get("ceilings")
    for name, batch in part.profiled():
        folder = part.network(name)
        if folder is None:
            part.bar(f"{name} profile", "measured", "it was not exported", None)
            continue
        try:
            with Forward(part.bundle, folder, half, [1, batch], patience=part.left()) as lensd:
                steps = lensd.profile(batch)
                whole = statistics.median(lensd.time_ms(batch, TIMES, passes_for(sum(s["ms"] for s in steps))))
        except Broken as error:
            part.bar(f"{name} profile", "measured", str(error), False)
            continue
        result = {"family": name, "batch": batch, "precision": half, "ms": whole, "steps": len(steps)}
        if ceilings:
            rows = losses(steps, ceilings, half)
            ideal = sum(row["ideal_ms"] for row in rows)
            result.update(ideal_ms=ideal, share=ideal / whole, losses=rows[:20])
            part.bar(f"{name} {half} batch {batch}, share of the measured roofline",
                     f">= {ROOFLINE_BAR:.0%}" if name == "resnet50" else "measured", f"{ideal / whole:.1%}",
                     ideal / whole >= ROOFLINE_BAR if name == "resnet50" else None)
        else:
            result["losses"] = sorted(steps, key=lambda step: -step["ms"])[:20]
            part.note("without the card's ceilings (the part roofline) steps are ordered by their time")
        part.put(f"{name}_{batch}", result)
        for row in result["losses"][:10]:
            part.say(f"  {row['ms']:8.4f} ms, ideal {row.get('ideal_ms', float('nan')):8.4f}  "
                     f"{row['kernel'][:32]:32} {row['name'][:60]}")
