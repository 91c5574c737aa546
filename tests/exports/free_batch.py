#!/usr/bin/env python3
"""Exports detectors, segmenters, depth, pose, embedding and text models with a free batch, and asks lensd for three rows.

    free_batch.py [--table FILE] [--keep FOLDER] [--exporter script|dynamo] [NAME …]      NAME may be a pattern: 'rt-detr*'

`./dev test free_batch` runs it with the packages it needs; LENSD names the program. Weights are seeded, configurations
small: operators and their order are those of the large ones. A row for each file: whether it loads, whether lensd runs
its images in batches (if not, the operator that ends the proof), whether three rows asked for together are those asked
for one by one, and the greatest difference of an output from ONNX Runtime's, over its greatest magnitude. --table
writes the rows into the last section of a page; rows that are there and are not asked for again stay.
Ends with 1 where a file does not load, rows differ by more than ROWS, or an output is farther away than BOUND.
"""

import argparse
import contextlib
import fnmatch
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", part) for part in ("http", "conformance", "exports")]
from exports import infer  # noqa: E402
from harness import Server, read, run_lensd  # noqa: E402
from model_catalogue import images, measure, spread_heads, ultralytics_yolo  # noqa: E402

os.environ.update(HF_HUB_OFFLINE="1")
warnings.simplefilter("ignore")

BOUND = 1e-4
IMAGES = 3
SECONDS = 600  # for one file
ROWS = 1e-4  # what other kernels for larger batches may change

VIT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 16}
RESNET = ("ResNetConfig", {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]})
STAGES = ["stage1", "stage2", "stage3", "stage4"]
TRANSFORMER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
               "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_queries": 20}
REAL_TIME = {"encoder_in_channels": [24, 32, 48], "encoder_hidden_dim": 32, "d_model": 32, "encoder_ffn_dim": 64,
             "decoder_ffn_dim": 64, "num_queries": 30, "decoder_layers": 2, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "decoder_in_channels": [32, 32, 32], "anchor_image_size": None, "num_denoising": 0}
HGNET = ("HGNetV2Config", {"stem_channels": [3, 16, 16], "stage_in_channels": [16, 16, 24, 32],
                           "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [16, 24, 32, 48],
                           "stage_num_blocks": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48], "embedding_size": 16,
                           "depths": [1, 1, 1, 1], "stage_numb_of_layers": [1, 1, 1, 1]})
BOXES = ("logits", "pred_boxes")
QUERIES = ("class_queries_logits", "masks_queries_logits")
SWIN = ("SwinConfig", {"image_size": 128, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 8], "window_size": 4})
MASKS = {"feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "encoder_layers": 2,
         "decoder_layers": 3, "num_attention_heads": 2, "dim_feedforward": 64, "num_queries": 10, "num_labels": 5}


def hugging_face(kind, config, outputs, side=128, **settings):
    """settings: those of the configuration; pairs (class, settings) become configurations."""
    def build():
        import torch
        import transformers
        torch.manual_seed(0)
        inner = {key: getattr(transformers, value[0])(**value[1]) if isinstance(value, tuple) else value
                 for key, value in settings.items()}
        model = getattr(transformers, kind)(getattr(transformers, config)(**inner)).eval()

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, image):
                out = self.model(image)
                found = [getattr(out, name) for name in outputs]
                return found[0] if len(found) == 1 else tuple(found)
        plain = Plain().eval()
        pixels = torch.from_numpy(images(side))
        measure(plain, pixels.numpy())
        spread_heads(plain, pixels)
        return plain, pixels.numpy()
    return build


def timm_model(name, side, **options):
    def build():
        import timm
        import torch
        torch.manual_seed(0)
        model = timm.create_model(name, exportable=True, num_classes=20, **options).eval()
        measure(model, images(side))
        return model, images(side)
    return build


def torchvision_model(name, side=128):
    def build():
        import torch
        import torchvision
        torch.manual_seed(0)
        model = torchvision.models.get_model(name, weights=None, weights_backbone=None).eval()

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, image):
                return self.model(image)["out"]
        measure(model, images(side))
        return Plain().eval(), images(side)
    return build


def yolo(config, end_to_end=None):
    def build():
        example = ultralytics_yolo(config)()
        if end_to_end is not None:
            example.module.model[-1].end2end = end_to_end
        return example.module, example.inputs[0]
    return build


def captcha(time_major):
    """Convolutions, a bidirectional LSTM, and characters of each step, as text readers and captchas have them."""
    def build():
        import torch
        torch.manual_seed(0)

        class Reader(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3, 2, 1),
                                                torch.nn.ReLU())
                self.steps = torch.nn.LSTM(32, 24, bidirectional=True, batch_first=not time_major)
                self.head = torch.nn.Linear(48, 37)

            def forward(self, image):
                x = self.body(image).mean(2)
                x = x.permute(2, 0, 1) if time_major else x.permute(0, 2, 1)
                return self.head(self.steps(x)[0]).softmax(-1)
        return Reader().eval(), images(64)
    return build


def digits():
    """Five digits by five heads of one embedding."""
    import torch
    torch.manual_seed(0)

    class Digits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4))
            self.heads = torch.nn.ModuleList(torch.nn.Linear(256, 10) for _ in range(5))

        def forward(self, image):
            x = self.body(image).flatten(1)
            return torch.stack([head(x) for head in self.heads], 1)
    return Digits().eval(), images(64)


PAIR = ("script", "dynamo")
# name: (builder, exporters)
FAMILIES = {
    "detr": (hugging_face("DetrForObjectDetection", "DetrConfig", BOXES, use_timm_backbone=False, backbone=None,
                          backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[3:]}), **TRANSFORMER), PAIR),
    "table-transformer": (hugging_face("TableTransformerForObjectDetection", "TableTransformerConfig", BOXES, use_timm_backbone=False,
                                       backbone=None, backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[3:]}),
                                       **TRANSFORMER), PAIR),
    "conditional-detr": (hugging_face("ConditionalDetrForObjectDetection", "ConditionalDetrConfig", BOXES, use_timm_backbone=False,
                                      backbone=None, backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[3:]}),
                                      **TRANSFORMER), PAIR),
    "dab-detr": (hugging_face("DabDetrForObjectDetection", "DabDetrConfig", BOXES, use_timm_backbone=False, backbone=None,
                              backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[3:]}),
                              **{**TRANSFORMER, "hidden_size": 32}), PAIR),
    "deformable-detr": (hugging_face("DeformableDetrForObjectDetection", "DeformableDetrConfig", BOXES, use_timm_backbone=False,
                                     backbone=None, backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[1:]}),
                                     num_feature_levels=4, **TRANSFORMER), PAIR),
    "deformable-detr two stages": (hugging_face("DeformableDetrForObjectDetection", "DeformableDetrConfig", BOXES,
                                                use_timm_backbone=False, backbone=None, two_stage=True, with_box_refine=True,
                                                two_stage_num_proposals=20, num_feature_levels=4,
                                                backbone_config=(RESNET[0], {**RESNET[1], "out_features": STAGES[1:]}),
                                                **TRANSFORMER), PAIR),
    "rt-detr": (hugging_face("RTDetrForObjectDetection", "RTDetrConfig", BOXES, backbone_config=(
        "RTDetrResNetConfig", {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1],
                               "layer_type": "basic", "out_features": STAGES[1:]}), **REAL_TIME), PAIR),
    "rt-detr v2": (hugging_face("RTDetrV2ForObjectDetection", "RTDetrV2Config", BOXES, backbone_config=(
        "RTDetrResNetConfig", {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1],
                               "layer_type": "basic", "out_features": STAGES[1:]}), **REAL_TIME), PAIR),
    "d-fine": (hugging_face("DFineForObjectDetection", "DFineConfig", BOXES, backbone_config=(
        HGNET[0], {**HGNET[1], "out_features": STAGES[1:]}), **REAL_TIME), PAIR),
    "deim v2": (hugging_face("Deimv2ForObjectDetection", "Deimv2Config", BOXES, backbone_config=(
        HGNET[0], {**HGNET[1], "out_features": STAGES[1:]}), **REAL_TIME), PAIR),
    "lw-detr": (hugging_face("LwDetrForObjectDetection", "LwDetrConfig", BOXES, side=128, backbone_config=(
        "LwDetrViTConfig", {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 128,
                            "patch_size": 16, "num_windows": 4, "window_block_indices": [0, 2], "out_indices": [2, 4]}),
        d_model=32, decoder_layers=2, decoder_ffn_dim=64, decoder_self_attention_heads=2, decoder_cross_attention_heads=2,
        num_queries=20, group_detr=1, projector_scale_factors=[1.0]), PAIR),
    "rf-detr": (hugging_face("RfDetrForObjectDetection", "RfDetrConfig", BOXES, side=128, backbone_config=(
        "RfDetrDinov2Config", {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 128,
                               "patch_size": 16, "num_windows": 2, "out_indices": [2, 4]}),
        d_model=32, decoder_layers=2, decoder_ffn_dim=64, decoder_self_attention_heads=2, decoder_cross_attention_heads=2,
        num_queries=20, group_detr=1, projector_scale_factors=[1.0]), PAIR),
    "yolos": (hugging_face("YolosForObjectDetection", "YolosConfig", BOXES, image_size=[128, 128], num_detection_tokens=20, **VIT), PAIR),
    "mask2former": (hugging_face("Mask2FormerForUniversalSegmentation", "Mask2FormerConfig", QUERIES, backbone_config=(
        SWIN[0], {**SWIN[1], "out_features": STAGES}), **MASKS), PAIR),
    "maskformer": (hugging_face("MaskFormerForInstanceSegmentation", "MaskFormerConfig", QUERIES, fpn_feature_size=32,
                                mask_feature_size=32, num_labels=5, backbone_config=(SWIN[0], {**SWIN[1], "out_features": STAGES}),
                                decoder_config=("DetrConfig", {**TRANSFORMER, "use_timm_backbone": False, "backbone": None,
                                                               "backbone_config": None})), PAIR),
    "eomt": (hugging_face("EomtForUniversalSegmentation", "EomtConfig", QUERIES, image_size=128, num_blocks=2, num_queries=10,
                          num_upscale_blocks=1, num_labels=5, **VIT), PAIR),
    "beit segmentation": (hugging_face("BeitForSemanticSegmentation", "BeitConfig", ("logits",), image_size=128, num_labels=5,
                                       out_indices=[1, 2, 3, 4], use_relative_position_bias=True, pool_scales=[1, 2, 3, 6], **VIT), PAIR),
    "upernet": (hugging_face("UperNetForSemanticSegmentation", "UperNetConfig", ("logits",), hidden_size=32, num_labels=5,
                             auxiliary_channels=16, backbone_config=("ConvNextConfig", {
                                 "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "out_features": STAGES}),
                             auxiliary_in_channels=32), PAIR),
    "segformer": (hugging_face("SegformerForSemanticSegmentation", "SegformerConfig", ("logits",), hidden_sizes=[16, 32, 64, 128],
                               depths=[1, 1, 1, 1], decoder_hidden_size=32), PAIR),
    "mobilevit segmentation": (hugging_face("MobileViTForSemanticSegmentation", "MobileViTConfig", ("logits",), image_size=128,
                                            num_labels=5), PAIR),
    "mobilenet v2 segmentation": (hugging_face("MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", ("logits",),
                                               depth_multiplier=0.5, image_size=128, num_labels=5), PAIR),
    "dpt": (hugging_face("DPTForDepthEstimation", "DPTConfig", ("predicted_depth",), image_size=128,
                         backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 24, 32], fusion_hidden_size=16, **VIT), PAIR),
    "depth anything": (hugging_face("DepthAnythingForDepthEstimation", "DepthAnythingConfig", ("predicted_depth",), backbone_config=(
        "Dinov2Config", {**{k: v for k, v in VIT.items() if k != "intermediate_size"}, "image_size": 128, "out_features": STAGES,
                         "reshape_hidden_states": False, "apply_layernorm": True}), patch_size=16, reassemble_hidden_size=32,
        neck_hidden_sizes=[16, 16, 24, 32], fusion_hidden_size=16, head_hidden_size=16), PAIR),
    "glpn": (hugging_face("GLPNForDepthEstimation", "GLPNConfig", ("predicted_depth",), hidden_sizes=[16, 32, 64, 128],
                          num_attention_heads=[1, 2, 4, 8], depths=[1, 1, 1, 1], decoder_hidden_size=16), PAIR),
    "vitpose": (hugging_face("VitPoseForPoseEstimation", "VitPoseConfig", ("heatmaps",), num_labels=17, backbone_config=(
        "VitPoseBackboneConfig", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": [128, 128],
                                  "patch_size": [16, 16], "num_experts": 1, "part_features": 0, "out_indices": [2]})), PAIR),
    "dinov2 with registers": (hugging_face("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", ("pooler_output",), image_size=128,
                                           **{k: v for k, v in VIT.items() if k != "intermediate_size"}), PAIR),
    "siglip2 vision": (hugging_face("SiglipVisionModel", "SiglipVisionConfig", ("pooler_output",), image_size=128, **VIT), PAIR),
    "clip vision": (hugging_face("CLIPVisionModelWithProjection", "CLIPVisionConfig", ("image_embeds",), image_size=128,
                                 projection_dim=32, **VIT), PAIR),
    "textnet": (hugging_face("TextNetForImageClassification", "TextNetConfig", ("logits",), num_labels=10), PAIR),
    "pp-ocr detection": (hugging_face("PPOCRV5MobileDetForObjectDetection", "PPOCRV5MobileDetConfig", ("last_hidden_state",)), PAIR),
    "csatv2": (timm_model("csatv2", 512), PAIR),
    "yolo11n": (yolo("yolo11n.yaml"), ("script",)),
    "yolo26n end to end": (yolo("yolo26n.yaml", True), ("script",)),
    "yolov10n end to end": (yolo("yolov10n.yaml", True), ("script",)),
    "rtdetr-l of Ultralytics": (yolo("rtdetr-l.yaml"), ("script",)),
    "deeplabv3": (torchvision_model("deeplabv3_mobilenet_v3_large"), ("script",)),
    "lraspp": (torchvision_model("lraspp_mobilenet_v3_large"), PAIR),
    "captcha": (captcha(False), ("script",)),
    "captcha, time-major": (captcha(True), ("script",)),
    "captcha of five heads": (digits, PAIR),
}


def export(build, exporter, path):
    """Writes the file; returns three images."""
    import torch
    module, pixels = build()
    example = torch.from_numpy(pixels)
    with torch.no_grad():
        out = module(example)
    names = [f"output{i}" for i in range(1 if isinstance(out, torch.Tensor) else len(out))]
    if exporter == "dynamo":
        torch.onnx.export(module, (example,), path, dynamo=True, input_names=["image"], output_names=names, external_data=False,
                          dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    else:
        torch.onnx.export(module, (example,), path, dynamo=False, opset_version=17, input_names=["image"], output_names=names,
                          dynamic_axes={name: {0: "batch"} for name in ["image", *names]})
    return pixels


def farthest(got, wanted):
    """The greatest difference of an output, over its greatest magnitude. lensd answers [steps, batch, classes] with the
    batch first."""
    import numpy
    wanted = {name: value if value.shape == got[name].shape else value.swapaxes(0, 1) for name, value in wanted.items()}
    return max(float(numpy.abs(got[name] - value).max()) / max(float(numpy.abs(value).max()), 1e-30)
               for name, value in wanted.items())


def check(name, exporter, folder):
    """The row's cells after name and exporter: loads, batches, rows, outputs, note."""
    import numpy
    import onnxruntime
    path = os.path.join(folder, "model.onnx")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            pixels = export(FAMILIES[name][0], exporter, path)
    except Exception as reason:  # of any library
        return ["no export", "", "", "", f"{type(reason).__name__}: {str(reason).strip().splitlines()[0] if str(reason) else ''}"[:150]]
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        alone = [dict(zip([o.name for o in session.get_outputs()], session.run(None, {"image": pixels[i:i + 1]}), strict=True))
                 for i in range(IMAGES)]
    except Exception as reason:
        return ["no export", "", "", "", f"ONNX Runtime: {str(reason).strip().splitlines()[0]}"[:150]]
    inspected = run_lensd("inspect", path, "--json")
    if inspected.returncode:
        return ["no", "", "", "", (inspected.stdout + inspected.stderr).strip().splitlines()[-1][:150]]
    note = json.loads(inspected.stdout).get("note") or ""
    server = Server(path, "--precision", "fp32", "--max-body", "64M")
    try:
        device = server.get("/devices").json()["devices"][0]
        batched = device["models"][0]["batched"]
        single = [infer(server, os.path.basename(folder), "image", pixels[i:i + 1]) for i in range(IMAGES)]
        worst = max(farthest(single[i], alone[i]) for i in range(IMAGES))
        equal = ""
        if batched:
            together = infer(server, os.path.basename(folder), "image", pixels)
            apart = {key: numpy.concatenate([one[key] for one in single]) for key in together}
            equal = ("yes" if all(together[key].tobytes() == apart[key].tobytes() for key in together)
                     else f"{farthest(together, apart):.1e}")
    finally:
        server.stop()
    return ["yes", "yes" if batched else "no", equal, f"{worst:.1e}", note if not batched else ""]


HEAD = "| family | exporter | loads | batches | rows as alone | outputs, from ONNX Runtime's | note |\n|---|---|---|---|---|--:|---|"
TITLE = "## Files with a free batch\n"


def line(row):
    """Without colours and without the folders of this machine."""
    return "| " + " | ".join(re.sub(r"\x1b\[\d+m|/\S*/(?=\S+\.onnx)", "", cell).replace("|", "/") for cell in row) + " |"


def read_rows(path):
    text = read(path).decode() if os.path.exists(path) else ""
    rows = [[cell.strip() for cell in found.strip("|").split("|")] for found in text.partition(TITLE)[2].splitlines()]
    return {(row[0], row[1]): row for row in rows if row[0] in FAMILIES and len(row) == 7}


def write_table(path, rows):
    before = read(path).decode().partition(TITLE)[0]
    listed = [rows[key] for key in all_files() if key in rows]
    exported = [row for row in listed if row[2] != "no export"]
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(f"""{before}{TITLE}
`./dev test free_batch --table docs/measurements/exports.md` wrote this section: files with a free batch of small, seeded
configurations (tests/exports/free_batch.py). Three rows in one request are compared with the same rows in three requests: "yes" means equal to the bit; a
number is the greatest difference over the greatest magnitude. "no export": PyTorch's exporter failed, or ONNX
Runtime refuses its file or a batch that it was not traced with.

{len(listed)} of the script's {len(all_files())} files tried, {len(exported)} exported, {sum(row[2] == 'yes' for row in exported)} load,
{sum(row[3] == 'yes' for row in exported)} run in batches.

{HEAD}
""" + "".join(line(row) + "\n" for row in listed))
    os.replace(path + ".new", path)


def all_files():
    return [(name, exporter) for name, (_, exporters) in FAMILIES.items() for exporter in exporters]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", help="write the rows into this page")
    parser.add_argument("--keep", help="keep the files here")
    parser.add_argument("--exporter", choices=PAIR, help="only this one")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a file, in a process of its own
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lensd-families-") as base:
        base = options.keep or base
        if options.one:
            folder = os.path.join(base, "-".join(options.one).replace(" ", "-"))
            os.makedirs(folder, exist_ok=True)
            print("\n" + json.dumps(check(*options.one, folder)))
            return 0
        rows, bad, tried = read_rows(options.table) if options.table else {}, 0, 0
        print(HEAD, flush=True)
        for name, exporter in all_files():
            if options.exporter not in (None, exporter) or (
                    options.names and not any(fnmatch.fnmatch(name, pattern) for pattern in options.names)):
                continue
            try:
                done = subprocess.run([sys.executable, __file__, "--keep", base, "--one", name, exporter], timeout=SECONDS,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
                cells = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else \
                    ["no", "", "", "", (done.stderr.strip().splitlines() or ["it crashed"])[-1][:150]]
            except subprocess.TimeoutExpired:
                cells = ["no", "", "", "", f"not done within {SECONDS} s"]
            row = rows[name, exporter] = [name, exporter, *cells]
            tried += 1
            good = row[2] == "no export" or (
                row[2] == "yes" and float(row[5]) <= BOUND and (row[4] in ("yes", "") or float(row[4]) <= ROWS))
            bad += not good
            print(line(row), flush=True)
            if options.table:
                write_table(options.table, rows)
    print(f"{tried - bad} passed, {bad} failed, 0 skipped")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
