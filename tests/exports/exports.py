#!/usr/bin/env python3
"""Exports models with the recipes of models/export, serves them, and compares the answers.

    exports.py [--photos FOLDER] [--table FILE] [--minutes N] [--jobs N] [--patience N] [--keep FOLDER] [SOURCE[:NAME] ...]

`./dev test exports` runs it with the packages it needs; LENSD names the program. Weights are seeded, so
nothing is downloaded. A row for each model: whether it loads; the greatest difference of its outputs from
ONNX Runtime's, over their greatest magnitude; on how many photos the best class is that of the framework's
own pipeline in PyTorch; the greatest difference of that class's probability; and how long it takes to load,
beside ONNX Runtime, in CPU time. Small models come first, each in a process of its own. --minutes ends the run early;
--table writes the rows as Markdown, and a later run goes on with the models that are not in it.
transformers' image processors run on Pillow: their other backend resizes with coarser weights, up to 2/255
away. Ends with 1 where a model does not load, another class is best, or a probability differs by more than
TOLERANCE, unless EXCEPTIONS names it. Load times are reported and do not decide: the machine may be busy.
"""

import argparse
import contextlib
import fcntl
import functools
import glob
import importlib
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "http"), os.path.join(ROOT, "models", "export")]
from harness import SHARED, Server, read, run_lensd  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1")
warnings.simplefilter("ignore")

TOLERANCE = 1e-3
TENSORS = 1e-4
LOADS = 3  # of each side, in turns

# Models that miss a bound, with the reason.
EXCEPTIONS = {
    "efficientvit_m0": "with seeded weights one photo is unstable: PyTorch and ONNX Runtime differ by 0.054 on one tensor of it",
    "bit": "ONNX Runtime is wrong: 0.32 from PyTorch in float64 where lensd is 3.2e-6 from it",
    "fbnetv3_b": "PyTorch in float64 is 1.1e-4 from ONNX Runtime and 6.2e-5 from lensd",
    "efficientnet_b2": "PyTorch in float64 is 6.9e-5 from ONNX Runtime and 9.2e-5 from lensd on one photo",
    "efficientnetv2_rw_t": "with seeded weights one photo is unstable: on one tensor of it PyTorch in float32 is 0.036, ONNX Runtime "
                           "0.029 and lensd 0.047 from PyTorch in float64",
    "efficientnet_v2_m": "with seeded weights one photo is unstable: PyTorch in float32 is 0.43 from PyTorch in float64",
    "efficientnet_b3": "with seeded weights one photo is unstable: on one tensor of it the probability is, from PyTorch in float64, "
                       "1.7e-4 (PyTorch in float32), 3.1e-4 (ONNX Runtime) and 5.9e-4 (lensd) away",
}

TORCHVISION = """squeezenet1_1 squeezenet1_0 shufflenet_v2_x0_5 shufflenet_v2_x1_0 mobilenet_v3_small mnasnet0_5
    mobilenet_v2 mobilenet_v3_large mnasnet0_75 mnasnet1_0 regnet_y_400mf regnet_x_400mf efficientnet_b0
    shufflenet_v2_x1_5 shufflenet_v2_x2_0 mnasnet1_3 regnet_y_800mf regnet_x_800mf googlenet resnet18
    efficientnet_b1 densenet121 efficientnet_b2 regnet_x_1_6gf regnet_y_1_6gf efficientnet_b3 densenet169 resnet34
    efficientnet_v2_s resnet50 densenet201 inception_v3 resnext50_32x4d regnet_x_3_2gf regnet_y_3_2gf densenet161
    efficientnet_b4 swin_t swin_v2_t convnext_tiny maxvit_t resnet101 alexnet efficientnet_b5 regnet_x_8gf
    regnet_y_8gf resnet152 swin_s swin_v2_s convnext_small efficientnet_v2_m wide_resnet50_2 vgg11 vgg13 vgg16
    vgg11_bn vit_b_32 vit_b_16""".split()

TIMM = """lcnet_050 mobilenetv3_small_050 tinynet_e mobilenetv4_conv_small mobilenetv3_small_100 lcnet_100
    mobilenetv2_050 semnasnet_075 tf_mobilenetv3_small_minimal_100 efficientvit_b0 efficientvit_m0 mobileone_s0
    ghostnet_100 ghostnetv2_100 mobilenetv3_large_100 mobilenetv3_rw hardcorenas_a fbnetc_100 fbnetv3_b spnasnet_100
    mnasnet_100 mobilenetv2_100 tf_efficientnet_lite0 efficientnet_lite0 tf_efficientnet_b0 efficientnet_es
    efficientnet_b0 tinynet_a mixnet_s rexnet_100 regnetx_002 regnety_002 regnetz_005 mobilevit_xxs mobilevit_xs
    mobilevitv2_050 edgenext_xx_small edgenext_x_small fastvit_t8 repghostnet_050 repvit_m0_9 starnet_s1
    convnextv2_atto convnext_atto mambaout_femto inception_next_atto repvgg_a0 mobilenetv1_100 hgnetv2_b0
    vit_tiny_patch16_224 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224 eva02_tiny_patch14_336 pit_ti_224
    cait_xxs24_224 levit_128s xcit_nano_12_p16_224 crossvit_tiny_240 tiny_vit_5m_224 efficientformer_l1
    efficientformerv2_s0 swiftformer_xs gcvit_xxtiny mvitv2_tiny nest_tiny_jx visformer_tiny mixer_s32_224
    resmlp_12_224 gmixer_24_224 gmlp_s16_224 convmixer_768_32 poolformer_s12 poolformerv2_s12 resnet10t resnet14t
    resnet18 resnet18d resnet26t resnet34 resnet50 resnet50d seresnet50 resnest14d res2net50_26w_4s resnetv2_50
    skresnet18 ecaresnet26t gcresnet33ts eca_resnet33ts legacy_seresnet18 dla34 dla46_c hrnet_w18_small cspresnet50
    cspdarknet53 darknet53 vovnet39a ese_vovnet19b_dw selecsls42b dpn68 densenet121 nfnet_l0 eca_nfnet_l0
    botnet26t_256 lambda_resnet26t halonet26t sebotnet33ts_256 coatnet_nano_rw_224 maxvit_tiny_rw_224 swin_tiny_patch4_window7_224
    swinv2_tiny_window8_256 convnext_tiny convnext_nano davit_tiny focalnet_tiny_srf hiera_tiny_224 inception_v3
    inception_v4 xception41 vgg11 twins_pcpvt_small pvt_v2_b0 sequencer2d_s vit_small_patch16_224 naflexvit_base_patch16_gap
    efficientnetv2_rw_t tf_efficientnetv2_b0 tf_efficientnetv2_s""".split()

# transformers: (configuration, numbers that make it small, image processor)
HUGGINGFACE = {
    "resnet": ("ResNetConfig", {"depths": [1, 1, 1, 1]}, "ConvNextImageProcessor"),
    "mobilenet_v1": ("MobileNetV1Config", {}, "MobileNetV1ImageProcessor"),
    "mobilenet_v2": ("MobileNetV2Config", {}, "MobileNetV2ImageProcessor"),
    "mobilevit": ("MobileViTConfig", {}, "MobileViTImageProcessor"),
    "mobilevitv2": ("MobileViTV2Config", {"width_multiplier": 0.5}, "MobileViTImageProcessor"),
    "vit": ("ViTConfig", {"num_hidden_layers": 3}, "ViTImageProcessor"),
    "deit": ("DeiTConfig", {"num_hidden_layers": 3}, "DeiTImageProcessor"),
    "beit": ("BeitConfig", {"num_hidden_layers": 3, "use_relative_position_bias": True}, "BeitImageProcessor"),
    "convnext": ("ConvNextConfig", {"depths": [1, 1, 2, 1]}, "ConvNextImageProcessor"),
    "convnextv2": ("ConvNextV2Config", {"depths": [1, 1, 2, 1]}, "ConvNextImageProcessor"),
    "swin": ("SwinConfig", {"depths": [1, 1, 2, 1]}, "ViTImageProcessor"),
    "swinv2": ("Swinv2Config", {"depths": [1, 1, 2, 1]}, "ViTImageProcessor"),
    "levit": ("LevitConfig", {"depths": [1, 1, 1]}, "LevitImageProcessor"),
    "poolformer": ("PoolFormerConfig", {"depths": [1, 1, 1, 1]}, "PoolFormerImageProcessor"),
    "pvt": ("PvtConfig", {"depths": [1, 1, 1, 1]}, "PvtImageProcessor"),
    "pvt_v2": ("PvtV2Config", {"depths": [1, 1, 1, 1]}, "PvtImageProcessor"),
    "regnet": ("RegNetConfig", {"depths": [1, 1, 2, 1]}, "ConvNextImageProcessor"),
    "segformer": ("SegformerConfig", {"depths": [1, 1, 1, 1]}, "SegformerImageProcessor"),
    "efficientnet": ("EfficientNetConfig", {"width_coefficient": 0.5, "depth_coefficient": 0.3,
                                            "hidden_dim": 640, "image_size": 224}, "EfficientNetImageProcessor"),
    "focalnet": ("FocalNetConfig", {"depths": [1, 1, 2, 1]}, "BitImageProcessor"),
    "bit": ("BitConfig", {"depths": [1, 1, 1, 1]}, "BitImageProcessor"),
    "cvt": ("CvtConfig", {"depth": [1, 1, 2]}, "ConvNextImageProcessor"),
    "van": ("VanConfig", {"depths": [1, 1, 1, 1]}, "ConvNextImageProcessor"),
    "swiftformer": ("SwiftFormerConfig", {"depths": [1, 1, 1, 1]}, "ViTImageProcessor"),
    "dinov2": ("Dinov2Config", {"num_hidden_layers": 3, "hidden_size": 192, "num_attention_heads": 3,
                                "image_size": 224}, "BitImageProcessor"),
    "data2vec": ("Data2VecVisionConfig", {"num_hidden_layers": 3}, "BeitImageProcessor"),
    "vit_msn": ("ViTMSNConfig", {"num_hidden_layers": 3}, "ViTImageProcessor"),
    "hgnet_v2": ("HGNetV2Config", {}, "RTDetrImageProcessor"),
}


def torchvision_model(name, folder):
    """Writes the folder; returns (module, function from a picture to [3, H, W])."""
    import export_torchvision
    model, transforms, _ = export_torchvision.export(name, folder, weights="none")
    return model, transforms


def timm_model(name, folder):
    import export_timm
    import timm
    model, data = export_timm.export(name, folder, weights="none")
    return model, timm.data.create_transform(**data, is_training=False)


def huggingface_model(name, folder):
    import export_huggingface
    import torch
    import transformers
    configuration, small, processor_name = HUGGINGFACE[name]
    if not hasattr(transformers, configuration):
        raise NotImplementedError(f"this transformers has no {configuration}")
    torch.manual_seed(0)
    config = getattr(transformers, configuration)(**small, num_labels=100)
    processor = getattr(transformers, processor_name + "Pil", getattr(transformers, processor_name))()
    # Its from_config() fails where a type has two classifiers and the configuration names none.
    classifier = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    model = (classifier[0] if isinstance(classifier, tuple) else classifier)(config).eval()
    height, width = export_huggingface.input_size(processor)
    from random_weights import calibrate

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, pixels):
            return self.model(pixels).logits
    with contextlib.suppress(ValueError):
        calibrate(Logits(), 100, height, width, (0.5,) * 3, (0.5,) * 3, 0)
    with tempfile.TemporaryDirectory() as saved:
        model.save_pretrained(saved)
        processor.save_pretrained(saved)
        export_huggingface.export(saved, folder)
    return Logits().eval(), lambda picture: processor(picture, return_tensors="pt")["pixel_values"][0]


SOURCES = {"torchvision": (torchvision_model, TORCHVISION), "timm": (timm_model, TIMM),
           "huggingface": (huggingface_model, list(HUGGINGFACE))}


def in_turns():
    """(source, name) of all models: the small ones of each source first."""
    longest = max(len(names) for _, names in SOURCES.values())
    rows = [((k + 0.5) / len(names) if len(names) < longest else k / longest, source, name)
            for source, (_, names) in SOURCES.items() for k, name in enumerate(names)]
    return [(source, name) for _, source, name in sorted(rows)]


def infer(server, model, name, pixels):
    """The outputs that the server makes of [1, 3, H, W] float32, by name."""
    import numpy
    head = json.dumps({"inputs": [{"name": name, "shape": list(pixels.shape), "datatype": "FP32",
                                   "parameters": {"binary_data_size": pixels.nbytes}}]}).encode()
    answer = server.request("POST", f"/v2/models/{model}/infer", head + pixels.tobytes(),
                            {"Inference-Header-Content-Length": str(len(head)),
                             "Content-Type": "application/octet-stream"})
    if answer.status != 200:
        raise RuntimeError(answer.body.decode()[:200])
    return {output["name"]: numpy.array(output["data"], numpy.float32).reshape(output["shape"])
            for output in answer.json()["outputs"]}


def cpu_ms(process):
    """CPU time of all threads of a process, those that have ended left out."""
    total = 0
    for path in glob.glob(f"/proc/{process}/task/*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(read(path).split()[0])
    return total / 1e6


def load_lensd(folder):
    """(server, CPU milliseconds until the model is ready, the program's start among them)."""
    server = Server(folder, "--precision", "fp32", "--max-body", "64M")
    return server, cpu_ms(server.process.pid)


def load_onnxruntime(folder):
    """(session, CPU milliseconds to create it)."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    used = time.process_time()
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), options, providers=["CPUExecutionProvider"])
    return session, 1e3 * (time.process_time() - used)


def compare_loads(folder):
    """(the last server, the last session, (CPU milliseconds, ratio)), the least of each side."""
    server, mine, theirs = None, [], []
    for _ in range(LOADS):
        if server:
            server.stop()
        server, used = load_lensd(folder)
        mine.append(used)
        session, used = load_onnxruntime(folder)
        theirs.append(used)
    return server, session, (min(mine), min(mine) / max(min(theirs), 1e-3))


def compare_tensors(server, session, model, pixels):
    """The greatest difference from ONNX Runtime, over the greatest magnitude."""
    import numpy
    name = session.get_inputs()[0].name
    expected = session.run(None, {name: pixels})
    got = infer(server, model, name, pixels)
    worst = 0.0
    for output, theirs in zip(session.get_outputs(), expected, strict=True):
        difference = float(numpy.abs(got[output.name] - theirs).max())
        worst = max(worst, difference / max(float(numpy.abs(theirs).max()), 1e-30))
    return worst


def compare_photos(server, model, transform, photos):
    """(photos whose best class is the pipeline's, greatest difference of its probability)."""
    import torch
    from PIL import Image, ImageOps
    equal, worst = 0, 0.0
    for path in photos:
        picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        pixels = torch.as_tensor(transform(picture))
        with torch.no_grad():
            expected = model(pixels[None]).softmax(-1)[0]
        best = int(expected.argmax())
        answer = server.predict(read(path), "/predict?top_k=1000")
        if answer.status != 200:
            raise RuntimeError(answer.body.decode()[:200])
        predictions = answer.json()["predictions"]
        equal += predictions[0]["index"] == best
        got = {row["index"]: row["probability"] for row in predictions}.get(best, 0.0)
        worst = max(worst, abs(got - float(expected[best])))
    return equal, worst


def check(source, name, folder, photos):
    """A row: {source, name, loads, tensors, equal, probability, cpu, note, commit}."""
    import torch
    from PIL import Image, ImageOps
    row = empty_row(source, name)
    try:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            model, transform = SOURCES[source][0](name, folder)
    except (Exception, SystemExit) as reason:  # of any library
        row.update(loads="no export", note=f"{type(reason).__name__}: {str(reason).splitlines()[:1]} "
                                           f"{said.getvalue().strip().splitlines()[-1:]}"[:160])
        return row
    torch.set_grad_enabled(False)
    try:
        with turn():
            server, session, row["cpu"] = compare_loads(folder)
        server.wait_ready()
    except AssertionError as reason:
        row.update(loads="no", note=row["note"] or str(reason).strip().splitlines()[-1][:160])
        return row
    try:
        row["loads"] = "yes"
        picture = ImageOps.exif_transpose(Image.open(photos[0])).convert("RGB")
        pixels = torch.as_tensor(transform(picture))[None].numpy()
        row["tensors"] = compare_tensors(server, session, name, pixels)
        row["equal"], row["probability"] = compare_photos(server, model, transform, photos)
    except Exception as reason:
        row["note"] = row["note"] or f"{type(reason).__name__}: {reason}"[:160]
    finally:
        server.stop()
    return row


@functools.cache
def commit():
    """Of the checkout; "" without git."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=7", "HEAD"], text=True).strip()
    return ""


def empty_row(source, name):
    return {"source": source, "name": name, "loads": "", "tensors": None, "equal": None, "probability": None,
            "cpu": None, "note": EXCEPTIONS.get(name, ""), "commit": commit()}


def is_good(row, photos):
    if row["loads"] == "no export" or row["name"] in EXCEPTIONS:
        return True
    return (row["equal"] is not None and row["equal"] == photos and row["probability"] <= TOLERANCE
            and row["tensors"] <= TENSORS)


# ---- the table ----

def shown(value, form):
    return "" if value is None else format(value, form)


def shown_load(pair):
    return "" if pair is None else f"{pair[0]:.0f} ({pair[1]:.1f})"


def line(row, photos):
    equal = "" if row["equal"] is None else f"{row['equal']}/{photos}"
    return (f"| {row['source']} | {row['name']} | {row['loads']} | {shown(row['tensors'], '.1e')} | {equal} | "
            f"{shown(row['probability'], '.1e')} | {shown_load(row['cpu'])} | {row['commit']} | "
            f"{row['note'].replace('|', '/')} |")


HEAD = ("| source | model | loads | outputs, from ONNX Runtime's | best class equal | its probability differs by | "
        "load, CPU ms | commit | note |\n|---|---|---|--:|--:|--:|--:|--:|---|")


def versions():
    import importlib.metadata
    names = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxruntime", "pillow")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def read_table(path):
    """The rows that write_table() wrote; [] without the file."""
    rows = []
    for text in read(path).decode().splitlines() if os.path.exists(path) else []:
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if len(cells) != 9 or cells[0] not in SOURCES:
            continue
        source, name, loads, tensors, equal, probability, cpu, of, note = cells
        rows.append({"source": source, "name": name, "loads": loads, "note": note or EXCEPTIONS.get(name, ""),
                     "cpu": [float(part) for part in cpu.strip(")").split(" (")] if cpu else None, "commit": of,
                     "tensors": float(tensors) if tensors else None, "equal": int(equal.split("/")[0]) if equal else None,
                     "probability": float(probability) if probability else None})
    return rows


def median(numbers):
    return sorted(numbers)[len(numbers) // 2]


def write_table(path, rows, photos):
    tried = [row for row in rows if row["loads"] != "no export"]
    good = sum(is_good(row, photos) for row in tried)
    best = sum(row["equal"] == photos for row in tried)
    ratios = [row["cpu"][1] for row in tried if row["cpu"]] or [0]
    left = len(in_turns()) - len(rows)
    others = "".join(read(path).decode().partition("\n## ")[1:]) if os.path.exists(path) else ""  # free_batch.py's
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(f"""# Exports, served and compared

`./dev test exports --table docs/measurements/exports.md` wrote this page. Each model is exported with seeded weights by its
recipe in `models/export`, served in fp32, and compared: its outputs with ONNX Runtime's on the same tensor (greatest difference
over the greatest magnitude), and its answers to {photos} photos with the framework's own pipeline in PyTorch. "Load" is the CPU
time of all threads from the start of the program until the model is ready, from an empty cache. The number in brackets is its ratio to the CPU
time that ONNX Runtime takes to create a session. Each time is the least of {LOADS}, measured in turns on a machine with other load.
"Commit" is the commit at which the row was measured.

{versions()}; {run_lensd("--version").stdout.strip()}

{len(rows)} models tried, {len(tried)} exported, {sum(row['loads'] == 'yes' for row in tried)} served. The best class was equal on
all photos for {best}; {good} are within the bounds (probability {TOLERANCE:g}, outputs {TENSORS:g}) or have an exception with its reason.
If a model cannot be exported, its row says why. {left} models of the script's list have not been run.

Loading takes a median of {median(ratios):.1f} times the CPU time of ONNX Runtime, at most twice for
{sum(ratio <= 2 for ratio in ratios)} of {len(ratios)}.

{HEAD}
""")
        for row in rows:
            file.write(line(row, photos) + "\n")
        file.write(others)
    os.replace(path + ".new", path)


# ---- processes ----

@contextlib.contextmanager
def turn():
    """One process at a time. A lock of multiprocessing would stay taken after its holder is killed."""
    with open(__file__, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def work(answer, jobs, source, name, folder, photos):
    """A model's process."""
    os.setsid()
    import random_weights
    import torch
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // jobs))
    # 8 pictures are measured as well as 32: nobody looks at the scores as such here.
    random_weights.calibrate = functools.partial(random_weights.calibrate, count=8)
    answer.send(check(source, name, folder, photos))


class Task:
    """A model that is checked in a process of its own, in a folder that is removed with it."""

    def __init__(self, options, source, name, photos):
        self.row = empty_row(source, name)
        self.keep = options.keep
        self.patience = options.patience
        self.base = options.keep or tempfile.mkdtemp(prefix="lensd-exports-")
        self.answer, sender = multiprocessing.Pipe(False)
        self.end = time.monotonic() + options.patience
        self.process = multiprocessing.get_context("fork").Process(
            target=work, args=(sender, options.jobs, source, name, os.path.join(self.base, name), photos))
        self.process.start()
        sender.close()

    def is_done(self):
        return self.answer.poll() or not self.process.is_alive() or time.monotonic() > self.end

    def finish(self):
        """The row; the process and what it started are ended."""
        try:
            if self.answer.poll():
                self.row = self.answer.recv()
            else:
                self.row.update(loads="no", note=f"not done within {self.patience:g} s")
        except EOFError:
            self.row.update(loads="no", note="the process of the check ended early")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        if not self.keep:
            shutil.rmtree(self.base)
        return self.row


def run_all(options, models, photos):
    """Yields the rows as they come."""
    for library in "onnxruntime", "timm", "torchvision", "transformers":  # once, for all processes
        importlib.import_module(library)
    end = time.monotonic() + 60 * options.minutes
    models, running = iter(models), []
    try:
        while True:
            while len(running) < options.jobs and time.monotonic() < end and (model := next(models, None)):
                running.append(Task(options, *model, photos))
            if not running:
                return
            multiprocessing.connection.wait([task.answer for task in running], 1)
            for task in [task for task in running if task.is_done()]:
                running.remove(task)
                yield task.finish()
    finally:
        for task in running:
            task.finish()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", default=os.path.join(SHARED, "models", "squeezenet-imagenet", "photos"))
    parser.add_argument("--table", help="write the rows to this file")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further model after that")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    parser.add_argument("--patience", type=float, default=400, help="seconds for a model (default: 400)")
    parser.add_argument("--keep", help="keep the model folders here")
    parser.add_argument("models", nargs="*", metavar="SOURCE[:NAME]")
    options = parser.parse_args()
    photos = sorted(glob.glob(os.path.join(options.photos, "*")))
    if not photos:
        parser.error(f"there is no photo in {options.photos}; --photos names a folder of them")
    rows = read_table(options.table) if options.table else []
    known = {(row["source"], row["name"]) for row in rows}
    models = [(source, name) for source, name in in_turns() if (source, name) not in known and
              (not options.models or source in options.models or f"{source}:{name}" in options.models)]
    print(HEAD, flush=True)
    for row in run_all(options, models, photos):
        rows.append(row)
        print(line(row, len(photos)), flush=True)
        if options.table:
            write_table(options.table, rows, len(photos))
    bad = [row["name"] for row in rows if not is_good(row, len(photos))]
    print(f"{len(rows) - len(bad)} passed, {len(bad)} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
