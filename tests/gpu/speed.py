"""Is it fast? Forward passes in turns with PyTorch's, and beside the card's own ceilings, in one run."""

import contextlib
import statistics
import time

import networks
from programs import Card, Forward, said, scratch_folder

BLOCK_MS = 20.0  # a number is the mean of passes that take about this long together
TIMES = 5        # such numbers in a turn, and calls
EAGER_BAR, COMPILED_BAR = 1.2, 1.0
LATENCY_BAR_MS = 0.4
ROOFLINE_BAR = 0.45
COUNT_BAR = 0.02


def synchronise(torch, device):
    """Waits until `device` is idle: PyTorch's own default is the first GPU, whichever one computes."""
    if str(device).startswith("cuda"):
        torch.cuda.synchronize(device)


def clocked_ms(torch, device, function, times):
    """Milliseconds of `function`, `times` times, each right after another one that is not counted, from an idle GPU to
    an idle GPU by the host's clock: as lensd measures its own passes (runs_time)."""
    found = []
    for _ in range(times):
        function()
        synchronise(torch, device)
        begin = time.perf_counter()
        function()
        synchronise(torch, device)
        found.append((time.perf_counter() - begin) * 1e3)
    return found


WARM_S = 0.3             # until the clocks are up
SIDES = (8192, 12288)    # of square products
COPIED = 1 << 29         # floats, 2 GiB: many times the cache
REPEATED = 10            # work between two looks at the clock


def product_rate(torch, device, dtype, side):
    """TFLOP/s of a product of random numbers."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    repeated = REPEATED if dtype != torch.float32 else 1

    def products():
        for _ in range(repeated):
            torch.mm(a, b, out=out)

    end = time.monotonic() + WARM_S
    while time.monotonic() < end:
        clocked_ms(torch, device, products, 1)
    return 2 * side ** 3 * repeated / statistics.median(clocked_ms(torch, device, products, 3)) * 1e-9


def ceilings(torch, device):
    """Large matrix products and a large copy: what this card does now. The better of two sizes."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found = {f"{word}_tflops": max(product_rate(torch, device, dtype, side)
                                   for side in (SIDES if word != "fp32" else SIDES[:1]))
             for word, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32))}
    x = torch.randn(COPIED, device=device)
    y = torch.empty_like(x)

    def copies():
        for _ in range(REPEATED):
            y.copy_(x)

    found["copy_gbs"] = 2 * COPIED * 4 * REPEATED / statistics.median(clocked_ms(torch, device, copies, 3)) * 1e-6
    del x, y
    torch.cuda.empty_cache()
    return found


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
        # Uniform from -1 to 1, as lensd's own made-up inputs: how fast a card is depends on the numbers, too.
        self.inputs = {batch: (torch.rand(batch, 3, height, width, device=device) * 2 - 1).to(dtype)
                       .contiguous(memory_format=torch.channels_last) for batch in batches}
        self.device, self.dtype = device, dtype
        self.network = torch.compile(network, mode="max-autotune", fullgraph=True) if compiled else network
        with torch.inference_mode():
            for batch in batches:
                for _ in range(3 if compiled else 1):
                    self.network(self.inputs[batch])
        synchronise(torch, device)

    def time_ms(self, batch, times, passes):
        x = self.inputs[batch]

        def block():
            for _ in range(passes):
                self.network(x)

        with self.torch.inference_mode():
            return [ms / passes for ms in clocked_ms(self.torch, self.device, block, times)]

    def run_ms(self, batch, times):
        """The whole call, from float32 images in page-locked memory to float32 answers, as lensd's `run`."""
        torch, on_gpu = self.torch, self.torch.cuda.is_available()
        images = self.inputs[batch].float().cpu().contiguous(memory_format=torch.channels_last)
        images = images.pin_memory() if on_gpu else images

        def call():
            x = images.to(self.device, non_blocking=True).to(self.dtype)
            self.network(x).float().cpu()

        with torch.inference_mode():
            return clocked_ms(torch, self.device, call, times)


def passes_for(ms):
    return max(1, min(500, round(BLOCK_MS / max(ms, 1e-3))))


def turns(part):
    """(rounds, numbers in a turn): a rehearsal takes one of each, since its numbers say nothing."""
    return (3, TIMES) if part.bundle.on_gpu else (1, 1)


def in_turns(part, contenders, batch):
    """name: [ms of each round]; every other round runs backwards."""
    rounds, times = turns(part)
    passes = {name: passes_for(statistics.median(contender.time_ms(batch, rounds, rounds)))
              for name, contender in contenders.items()}
    found = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders) if number % 2 == 0 else list(contenders)[::-1]:
            found[name].append(statistics.median(contenders[name].time_ms(batch, times, passes[name])))
    return found


def ratio(found, over, name="lensd"):
    """How many times as fast `name` is: the median of the quotients within a round."""
    return statistics.median(o / n for o, n in zip(found[over], found[name]))


def ratio_words(found, over):
    """The ratio, and how far rounds lie apart."""
    each = [o / n for o, n in zip(found[over], found["lensd"])]
    return f"{ratio(found, over):.2f} x" + (f" ({min(each):.2f} to {max(each):.2f} in {len(each)} rounds)"
                                           if len(each) > 1 else "")


def calls_in_turns(part, contenders, batch):
    """name: ms of the whole call, copies included; the median of rounds."""
    rounds, times = turns(part)
    times *= 4 if part.bundle.on_gpu and batch < 64 else 1
    found = {name: [] for name in contenders}
    for number in range(rounds):
        for name in list(contenders) if number % 2 == 0 else list(contenders)[::-1]:
            found[name].append(statistics.median(contenders[name].run_ms(batch, times)))
    return {name: statistics.median(ms) for name, ms in found.items()}


def look(part):
    """The first thing that is measured: whether it runs at all, how fast, and whether it is right."""
    forward(part)


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
            with Forward(part.bundle, folder, half, batches) as lensd:
                contenders = {"lensd": lensd}
                if torch is not None and name != "digits":
                    try:
                        contenders["eager"] = Torch(name, folder, half, part.bundle.device, batches)
                    except Exception as error:  # noqa: BLE001: lensd is measured nevertheless
                        part.bar(f"{name} forward {half} by PyTorch", "runs", said(error), None)
                with Card(part.bundle) as card:
                    for batch in batches:
                        rows.append(measure(part, contenders, name, batch, half))
                        part.put("rows", rows)
                if "eager" in contenders:
                    compare(part, name, folder, half, lensd, contenders["eager"], batches[-1])
                part.put(f"card_{name}", card.words())
                part.say(f"{name}: the card meanwhile: {card.words()}")
        except Exception as error:  # noqa: BLE001: the others go on
            part.bar(f"{name} forward {half}", "runs", said(error), False)
    if "fp16" != half:
        part.note("this build of lensd has no fp16: both sides are measured in bf16")


def compare(part, name, folder, half, lensd, eager, batch):
    """The answers of what was measured: of the candidates that the tuner chose, beside PyTorch's in the same format,
    by what PyTorch's float32 says."""
    import checks
    images = networks.pictures(batch, folder, part.seed)
    eager.torch.backends.cudnn.allow_tf32 = False
    with scratch_folder() as scratch:
        got = lensd.answer(images, scratch)
    with eager.torch.inference_mode():
        x = eager.torch.from_numpy(images).permute(0, 3, 1, 2).to(eager.device)
        own = eager.network(x.to(eager.dtype).contiguous(memory_format=eager.torch.channels_last)).float().cpu().numpy()
        expected = networks.module(name, folder, eager.device)(x).float().cpu().numpy()
    row = {"family": name, "precision": half, "rows": len(got), "reference": "PyTorch fp32",
           "difference": checks.difference(got, expected), "rms": checks.rms(got, expected),
           "top1": checks.agreement(got, expected), "pytorch_rms": checks.rms(own, expected),
           "pytorch_top1": checks.agreement(own, expected)}
    part.put(f"answers_{name}", row)
    checks.judge(part, row)


def measure(part, contenders, name, batch, half):
    found = in_turns(part, contenders, batch)
    row = {"family": name, "batch": batch, "precision": half, "rounds_ms": found,
           "ms": {who: statistics.median(times) for who, times in found.items()},
           "host": calls_in_turns(part, contenders, batch)}
    text = ", ".join(f"{who} {ms:.3f} ms" for who, ms in row["ms"].items())
    label = f"{name} {half} batch {batch}"
    part.say(f"{label}: {text}; {batch * 1e3 / row['ms']['lensd']:.0f} images/s; "
             "with copies from and to the host " + ", ".join(f"{who} {ms:.3f} ms" for who, ms in row["host"].items()))
    if "eager" in found:
        row["against_eager"] = ratio(found, "eager")
        part.bar(f"{label} against eager", f">= {EAGER_BAR} x", ratio_words(found, "eager"),
                 row["against_eager"] >= EAGER_BAR)
    if name == "resnet50" and batch == 1:
        part.bar(f"{label} latency, copies included", f"<= {LATENCY_BAR_MS} ms",
                 ", ".join(f"{who} {ms:.3f} ms" for who, ms in row["host"].items()),
                 row["host"]["lensd"] <= LATENCY_BAR_MS)
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
    with contextlib.ExitStack() as stack:
        lensd = stack.enter_context(Forward(part.bundle, folder, half, [1, batch]))
        contenders = {"lensd": lensd, "eager": Torch(name, folder, half, part.bundle.device, [batch])}
        began = part.left()
        contenders["compiled"] = Torch(name, folder, half, part.bundle.device, [batch], compiled=True)
        compile_s = began - part.left()
        found = in_turns(part, contenders, batch)
        judge_compiled(part, name, batch, found, compile_s)


def judge_compiled(part, name, batch, found, compile_s):
    half = part.bundle.half()
    label = f"{name} {half} batch {batch} against torch.compile"
    medians = {who: statistics.median(times) for who, times in found.items()}
    part.put("row", {"family": name, "batch": batch, "precision": half, "rounds_ms": found, "ms": medians,
                     "compile_s": compile_s, "against_compiled": ratio(found, "compiled")})
    part.say(f"{label}: " + ", ".join(f"{who} {ms:.3f} ms" for who, ms in medians.items())
             + f"; max-autotune took {compile_s:.0f} s")
    part.bar(label, f">= {COMPILED_BAR} x", ratio_words(found, "compiled"),
             ratio(found, "compiled") >= COMPILED_BAR)


# ----------------------------------------------------------------------------------- profile ----


def ideal_ms(step, found):
    """The least a step can take on this card: its arithmetic or its bytes, whichever is more."""
    flops = step["gflop"] / peak(found)  # GFLOP over TFLOP/s is milliseconds
    return max(flops, step["bytes"] / found["copy_gbs"] * 1e-6)


def peak(found):
    """TFLOP/s of products in 16 bits: the better of the two formats, whichever is measured."""
    return max(found["bf16_tflops"], found["fp16_tflops"])


def highest(first, second):
    """Of two looks at the card's ceilings."""
    return {key: max(first[key], second[key]) for key in first}


def losses(steps, found):
    """Steps by what they take beyond their ideal, the greatest first."""
    rows = [dict(step, ideal_ms=ideal_ms(step, found)) for step in steps]
    return sorted(rows, key=lambda row: row["ideal_ms"] - row["ms"])


def shares(rows, whole_ms, images, gflop, found):
    """Of the roofline: `share` by the steps that compute products alone, which is what is judged, since steps that only
    move numbers are there because they were not fused; `share_of_all` with those; `arithmetic` by the products at
    the card's peak as if memory took no time. gflop: of an image, by somebody else's count, or None."""
    products = sum(row["ideal_ms"] for row in rows if row["gflop"] > 0)
    counted = sum(row["gflop"] for row in rows)
    # Arithmetic that only lensd counts is none.
    too_many = max(1.0, counted / (gflop * images)) if gflop else 1.0
    return {"share": products / too_many / whole_ms, "share_of_all": sum(row["ideal_ms"] for row in rows) / whole_ms,
            "arithmetic": counted / too_many / peak(found) / whole_ms, "gflop_per_image": counted / images,
            "gflop_per_image_by_pytorch": gflop}


def gflop_by_pytorch(part, name, folder):
    """Of one image, as PyTorch counts its own operators; None where it cannot."""
    try:
        import torch
        from torch.utils.flop_counter import FlopCounterMode
        network = networks.module(name, folder, "cpu")
        height, width = networks.image_size(folder)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # one operator that the counter does not know
        try:
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                network(torch.zeros(1, 3, height, width))
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
        return counter.get_total_flops() * 1e-9
    except Exception as error:  # noqa: BLE001: PyTorch before 2.1 has no such counter
        part.note(f"PyTorch cannot count the arithmetic of {name}: {said(error)}")
        return None


def profile(part):
    """Where the time goes, and how much of the roofline the whole pass reaches. The card's ceilings are taken
    before and after it; the higher ones count."""
    half = part.bundle.half()
    torch, reason = part.torch()
    if torch is None or not part.bundle.on_gpu:
        part.note(reason or "a CPU has ceilings of another kind: steps are ordered by their time")
    for name, batch in part.profiled():
        folder = part.network(name)
        if folder is None:
            part.bar(f"{name} profile", "measured", "it was not exported", None)
            continue
        try:
            profile_one(part, torch, name, batch, half, folder)
        except Exception as error:  # noqa: BLE001: the others go on
            part.bar(f"{name} profile", "measured", said(error), False)


def profile_one(part, torch, name, batch, half, folder):
    before = after = None
    with Forward(part.bundle, folder, half, [1, batch]) as lensd:
        if torch is not None and part.bundle.on_gpu:
            before = ceilings(torch, part.bundle.device)
        steps, images = lensd.profile(batch)
        whole = statistics.median(lensd.time_ms(batch, turns(part)[1], passes_for(sum(s["ms"] for s in steps))))
        if before:
            after = ceilings(torch, part.bundle.device)
    result = {"family": name, "batch": batch, "precision": half, "ms": whole, "steps": len(steps),
              "profiled_images": images}
    gflop = gflop_by_pytorch(part, name, folder) if torch is not None and name != "digits" else None
    if gflop:
        counted = sum(step["gflop"] for step in steps) / images
        part.bar(f"{name}, arithmetic of an image as PyTorch counts it", f"within {COUNT_BAR:.0%}",
                 f"{counted:.3f} GFLOP, PyTorch {gflop:.3f}", abs(counted / gflop - 1) <= COUNT_BAR)
    if before:
        found = highest(before, after)
        rows = losses(steps, found)
        result.update(shares(rows, whole * images / batch, images, gflop, found), ceilings=found, ceilings_before=before,
                      ceilings_after=after, ideal_ms=sum(row["ideal_ms"] for row in rows), losses=rows[:20])
        part.say("ceilings: " + ", ".join(f"{key} {value:.0f} ({before[key]:.0f} before, {after[key]:.0f} after)"
                                          for key, value in found.items()))
        part.bar(f"{name} {half} batch {batch}, share of the measured roofline",
                 f">= {ROOFLINE_BAR:.0%}" if name == "resnet50" else "measured",
                 f"{result['share']:.1%} by products; {result['share_of_all']:.1%} with the steps that only move numbers, "
                 f"{result['arithmetic']:.1%} of the peak of arithmetic",
                 result["share"] >= ROOFLINE_BAR if name == "resnet50" else None)
    else:
        result["losses"] = sorted(steps, key=lambda step: -step["ms"])[:20]
    part.put(f"{name}_{batch}", result)
    for row in result["losses"][:10]:
        part.say(f"  {row['ms']:8.4f} ms, " + (f"ideal {row['ideal_ms']:8.4f}  " if "ideal_ms" in row else "")
                 + f"{row['kernel'][:32]:32} {row['name'][:60]}")
