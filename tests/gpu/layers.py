"""Layer by layer: lensd's steps beside PyTorch's own convolutions and linear layers of the same shapes, and what
NVIDIA's profiler says of the kernels."""

import csv
import io
import os
import shutil
import statistics

import networks
from programs import Broken, Forward, last_words, run_group, said

SLOWER = 1.3     # times PyTorch's time: from there on another kernel is worth its trouble
REPEATED = 20    # calls in a recording
CLOSE = 0.01     # arithmetic that counts as the same
NCU_S = 55       # seconds for a network
NCU_KERNELS = 60
SECTIONS = ["SpeedOfLight", "LaunchStats", "Occupancy", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis"]
COLUMNS = {"ns": "gpu__time_duration.sum", "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
           "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
           "warps": "sm__warps_active.avg.pct_of_peak_sustained_active", "registers": "launch__registers_per_thread"}


def module_of(node):
    """PyTorch's name of the module that a node of its exporter belongs to: /layer1/layer1.0/conv1/Conv is
    layer1.0.conv1."""
    parts = []
    for word in node.strip("/").split("/")[:-1]:
        if parts and parts[-1] == word.split(".")[0]:
            parts[-1] = word
        else:
            parts.append(word)
    return ".".join(parts)


def layers_of(torch, network, batch, height, width, device):
    """[(name, geometry, GFLOP, call)] of a network's products, channels last, in their order."""
    found, functional = [], torch.nn.functional

    def convolution(name):
        def hook(module, given, output):
            x = given[0]
            flop = 2e-9 * output.numel() * module.weight[0].numel()
            shape = (f"{tuple(module.kernel_size)[0]}x{tuple(module.kernel_size)[1]} {x.shape[1]} to {output.shape[1]}, "
                     f"{x.shape[2]}x{x.shape[3]}" + (f" / {module.stride[0]}" if module.stride[0] > 1 else "")
                     + (f", {module.groups} groups" if module.groups > 1 else ""))
            x = torch.rand_like(x).contiguous(memory_format=torch.channels_last)
            bias = torch.zeros(output.shape[1], dtype=x.dtype, device=x.device)  # as with BatchNormalization folded
            found.append((name, shape, flop, lambda: functional.conv2d(
                x, module.weight, bias, module.stride, module.padding, module.dilation, module.groups)))
        return hook

    def product(name, x, weight, bias):
        x = torch.rand_like(x)
        rows = x.numel() // x.shape[-1]
        found.append((name, f"[{rows}, {weight.shape[1]}] to {weight.shape[0]}", 2e-9 * rows * weight.numel(),
                      lambda: functional.linear(x, weight, bias)))

    def linear(name):
        return lambda module, given, output: product(name, given[0], module.weight, module.bias)

    def attention(name):
        def hook(module, given, output):
            product(f"{name}.in_proj", given[0], module.in_proj_weight, module.in_proj_bias)
            product(f"{name}.out_proj", given[0], module.out_proj.weight, module.out_proj.bias)
        return hook

    hooks = {torch.nn.Conv2d: convolution, torch.nn.Linear: linear, torch.nn.MultiheadAttention: attention}
    handles = [module.register_forward_hook(hooks[type(module)](name)) for name, module in network.named_modules()
               if type(module) in hooks]
    x = torch.rand(batch, 3, height, width, device=device, dtype=next(network.parameters()).dtype)
    with torch.no_grad():  # the fast path of nn.TransformerEncoder would call no module
        network(x.contiguous(memory_format=torch.channels_last))
    for handle in handles:
        handle.remove()
    return found


def recorded_ms(torch, call):
    """Of one call among many in a CUDA graph."""
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):  # chooses cuDNN's algorithm
                call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(REPEATED):
                call()
        times = []
        for _ in range(5):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / REPEATED)
    return statistics.median(times)


def paired(steps, layers):
    """[(layer, step)]: by the module's name where the arithmetic is the same, the others by their arithmetic."""
    steps = [step for step in steps if step["gflop"] > 0]
    pairs, left = [], []

    def close(step, layer):
        return abs(step["gflop"] / layer[2] - 1) <= CLOSE

    for layer in layers:
        step = next((step for step in steps if module_of(step["name"]) == layer[0] and close(step, layer)), None)
        if step is None:
            left.append(layer)
            continue
        steps.remove(step)
        pairs.append((layer, step))
    for layer in left:
        step = next((step for step in steps if close(step, layer)), None)
        if step is not None:
            steps.remove(step)
            pairs.append((layer, step))
    return pairs


def rows_of(pairs, times):
    """A line for each geometry; times: geometry: ms by PyTorch. What loses most comes first."""
    rows = {}
    for (_, geometry, gflop, _), step in pairs:
        row = rows.setdefault(geometry, {"geometry": geometry, "count": 0, "gflop": gflop, "lensd_ms": 0.0,
                                         "kernel": step["kernel"], "torch_ms": times[geometry]})
        row["count"] += 1
        row["lensd_ms"] += step["ms"]
    for row in rows.values():
        row["lensd_ms"] /= row["count"]
    return sorted(rows.values(), key=lambda row: row["count"] * (row["torch_ms"] - row["lensd_ms"]))


def table(part):
    """ResNet-50's and ViT's shapes. lensd's steps include activations and residuals, PyTorch's calls do not."""
    torch, reason = part.torch()
    if torch is None or not part.bundle.on_gpu:
        part.note(reason or "layers are compared on GPUs only")
        return
    torch.backends.cudnn.benchmark = True
    for name, batch in (("resnet50", 64), ("vit_b_16", 64), ("resnet50", 1)):
        folder = part.network(name) if name in part.only_these([name]) else None
        if folder is None:
            part.bar(f"{name} layers", "measured", "it was not exported", None)
            continue
        try:
            one_table(part, torch, name, batch, folder)
        except Exception as error:  # noqa: BLE001: the others go on
            part.bar(f"{name} layers, batch {batch}", "measured", said(error), False)


def one_table(part, torch, name, batch, folder):
    with Forward(part.bundle, folder, "fp16", [batch]) as lensd:
        steps, images = lensd.profile(batch)
    network = networks.module(name, folder, part.bundle.device).half().to(memory_format=torch.channels_last)
    layers = layers_of(torch, network, images, *networks.image_size(folder), part.bundle.device)
    pairs, times = paired(steps, layers), {}
    for (_, geometry, _, call), _ in pairs:
        if geometry not in times and part.left() > 3:
            times[geometry] = recorded_ms(torch, call)
    rows = rows_of([pair for pair in pairs if pair[0][1] in times], times)
    part.put(f"{name}_{batch}", {"family": name, "batch": batch, "rows": rows, "layers": len(layers), "paired": len(pairs)})
    slow = [row for row in rows if row["lensd_ms"] > SLOWER * row["torch_ms"]]
    part.bar(f"{name} fp16 batch {batch}, layers beside PyTorch's", "measured",
             f"{sum(row['count'] * row['lensd_ms'] for row in rows):.3f} ms, PyTorch "
             f"{sum(row['count'] * row['torch_ms'] for row in rows):.3f} ms; {len(slow)} of {len(rows)} geometries are more "
             f"than {SLOWER} x slower: " + "; ".join(row["geometry"] for row in slow[:6]), None)
    for row in rows:
        part.say(f"  {row['count']:2} x {row['geometry']:44} lensd {row['lensd_ms']:.4f} ms ({row['kernel']}), PyTorch "
                 f"{row['torch_ms']:.4f} ms")


# ---------------------------------------------------------------------------------- ncu ----


def ncu_rows(text):
    """The lines of `ncu --csv --page raw`: {column: text}; the line after the heads has units."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    return [] if start is None else list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]


def number(text):
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def kernels(part):
    """One pass of each network, kernel by kernel, the costliest first. The card's clocks stay as they are."""
    tool = shutil.which("ncu") or next((path for path in ("/usr/local/cuda/bin/ncu",) if os.path.exists(path)), None)
    if tool is None or not part.bundle.on_gpu:
        part.note("ncu profiles GPUs only" if tool else "ncu is not installed here")
        return
    for name in part.only_these(["resnet50", "vit_b_16"]):
        folder = part.network(name)
        if folder is None:
            part.bar(f"{name} by ncu", "measured", "it was not exported", None)
            continue
        try:
            profile_kernels(part, tool, name, folder, min(NCU_S, part.left() - 3))
        except Broken as error:
            part.bar(f"{name} by ncu", "measured", f"{error}: {last_words(error.output, '')}"[:400], None)


def profile_kernels(part, tool, name, folder, seconds):
    """Kernels are counted from the program's start. Behind 40 passes' worth the load is over, and as many as a pass
    has are one pass, wherever they begin."""
    batch = 64
    with Forward(part.bundle, folder, "fp16", [batch]) as lensd:
        a_pass = len(lensd.profile(batch)[0]) * 5 // 4
    words = [tool, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--launch-skip", str(40 * a_pass), "--launch-count",
             str(max(NCU_KERNELS, a_pass)), *[word for section in SECTIONS for word in ("--section", section)],
             part.bundle.path("bench_forward"), "--device", part.bundle.device, "--precision", "fp16", "--batch", str(batch),
             "--cache", part.bundle.cache, "--serve", folder]
    _, text = run_group(words, dict(part.bundle.environment, LENSD_CUDA_GRAPHS="off"), seconds,
                        given=f"time 0 {batch} 1 60\n")
    found = [dict({key: number(row.get(column)) for key, column in COLUMNS.items()}, kernel=row.get("Kernel Name", "")[:120],
                  grid=row.get("Grid Size"), block=row.get("Block Size")) for row in ncu_rows(text)]
    if not found:
        part.note(f"{name}: ncu did not profile: {last_words(text, '')}"[:400])
        return
    with open(os.path.join(part.options.out, f"ncu-{name}.csv"), "w", encoding="utf-8") as file:
        file.write(text)
    found.sort(key=lambda row: -(row["ns"] or 0))
    part.put(name, found[:NCU_KERNELS])
    for row in found[:12]:
        part.say("  " + ", ".join(f"{key} {row[key]}" for key in COLUMNS) + f"  {row['kernel'][:70]}")
    part.bar(f"{name} by ncu", "measured", f"{len(found)} kernels, in ncu-{name}.csv", None)
