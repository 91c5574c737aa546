#!/usr/bin/env python3
"""Models of today's exporters, small enough for every test run, and what ONNX Runtime answers.

    golden.py            writes golden.zip beside this file; needs what `./dev test exports` needs

golden.zip holds a graph for each model without its large weights, and golden.json: the outputs for one seeded
batch of each. The graphs name their weights as external data in one file of seeded numbers, which numbers()
writes again wherever the test runs: a tensor reads the numbers whose scale suits the products it is used in,
so values neither vanish nor grow. What the networks answer means nothing; every operator takes part in it.
Made with torch 2.15, torchvision 0.29, timm 1.0.31, transformers 5.23 and ONNX Runtime 1.31.
"""

import array
import json
import os
import random
import sys
import tempfile
import zipfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
ZIP = os.path.join(HERE, "golden.zip")
SHEET = 1 << 20  # numbers of one scale
SCALES = [2.0**-k for k in range(7)]
SMALL = 64  # tensors of fewer numbers stay in the graph: shapes, axes, single factors
IMAGES, CLASSES = 3, 10


def numbers():
    """The file: for each scale a sheet of numbers between -scale and scale, then one between 0.5 and 1.5."""
    generator = random.Random(2026)
    base = [generator.random() * 2 - 1 for _ in range(SHEET)]
    sheets = [array.array("f", (x * scale for x in base)) for scale in SCALES]
    sheets.append(array.array("f", (1 + 0.5 * x for x in base)))
    return b"".join(sheet.tobytes() for sheet in sheets)


def pixels(height, width, data):
    """[IMAGES, 3, height, width] float32 from the file's first sheet, as bytes."""
    return data[:4 * IMAGES * 3 * height * width]


# ---- making them ----

def sheet_of(shape):
    """Weights get a scale by what a number is summed from; vectors (biases, variances) are positive."""
    if len(shape) < 2:
        return len(SCALES)
    fan_in = 1
    for dim in shape[1:] if len(shape) > 2 else shape[:1]:
        fan_in *= dim
    wanted = (6 / fan_in) ** 0.5
    return min(range(len(SCALES)), key=lambda k: abs(SCALES[k] / wanted - 1))


def strip(model):
    """Names the seeded numbers in the place of the weights, and drops what no reader needs."""
    import onnx
    for tensor in model.graph.initializer:
        count = 1
        for dim in tensor.dims:
            count *= dim
        if tensor.data_type != onnx.TensorProto.FLOAT or count < SMALL:
            continue
        if count > SHEET:
            raise ValueError(f"{tensor.name} has {count} numbers, more than {SHEET}")
        for field in ("float_data", "raw_data"):
            tensor.ClearField(field)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "numbers"), ("offset", 4 * SHEET * sheet_of(list(tensor.dims))), ("length", 4 * count)):
            tensor.external_data.add(key=key, value=str(value))
    del model.graph.value_info[:]
    model.ClearField("metadata_props")
    for node in model.graph.node:
        node.ClearField("doc_string")
        node.ClearField("metadata_props")
    return model


def torchvision_network(name, **options):
    import torchvision
    return torchvision.models.get_model(name, num_classes=CLASSES, **options)


def timm_network(name, **options):
    import timm
    return timm.create_model(name, num_classes=CLASSES, exportable=True, **options)


def transformers_network(name, **options):
    import torch
    import transformers
    config = getattr(transformers, name + "Config")(num_labels=CLASSES, **options)
    model = transformers.AutoModelForImageClassification.from_config(config)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(images).logits
    return Logits()


# name: (network, side, dynamo, opset)
MODELS = {
    "squeezenet1_1": (lambda: torchvision_network("squeezenet1_1"), 64, False, 11),
    "mobilenet_v3_small": (lambda: torchvision_network("mobilenet_v3_small"), 64, False, 13),
    "shufflenet_v2_x0_5": (lambda: torchvision_network("shufflenet_v2_x0_5"), 64, True, 18),
    "mnasnet0_5": (lambda: torchvision_network("mnasnet0_5"), 64, False, 17),
    "regnet_y_400mf": (lambda: torchvision_network("regnet_y_400mf"), 64, True, 18),
    "densenet": (lambda: torchvision_network("densenet121"), 64, False, 18),
    "lcnet_050": (lambda: timm_network("lcnet_050"), 64, True, 18),
    "starnet_s1": (lambda: timm_network("starnet_s1"), 64, False, 18),
    "inception_next_atto": (lambda: timm_network("inception_next_atto"), 64, True, 18),
    "edgenext_xx_small": (lambda: timm_network("edgenext_xx_small"), 64, False, 18),
    "convnextv2_atto": (lambda: timm_network("convnextv2_atto"), 64, True, 20),
    "hf_vit": (lambda: transformers_network("ViT", image_size=64, hidden_size=96, num_hidden_layers=3, num_attention_heads=3,
                                            intermediate_size=192), 64, False, 14),
    "vit_tiny": (lambda: timm_network("vit_tiny_patch16_224", img_size=64, depth=4), 64, True, 23),
    "xcit_nano": (lambda: timm_network("xcit_nano_12_p16_224", depth=4), 64, False, 18),
    "hf_poolformer": (lambda: transformers_network("PoolFormer", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1]), 64,
                      False, 18),
    "hf_resnet": (lambda: transformers_network("ResNet", hidden_sizes=[32, 64, 96, 128], embedding_size=32), 64, True, 18),
    "hf_swin": (lambda: transformers_network("Swin", image_size=64, depths=[1, 1], num_heads=[2, 4], embed_dim=48), 64, False, 18),
    "hf_swinv2": (lambda: transformers_network("Swinv2", image_size=64, depths=[1, 1], num_heads=[2, 4], embed_dim=48,
                                               window_size=4), 64, True, 18),
    "hf_mobilevit": (lambda: transformers_network("MobileViT", image_size=128), 128, False, 18),
    "hf_pvt_v2": (lambda: transformers_network("PvtV2", image_size=64, depths=[1, 1, 1, 1]), 64, True, 18),
}


def export(network, side, dynamo, opset):
    """The bytes of the stripped file."""
    import onnx
    import torch
    torch.manual_seed(0)
    network, example = network().eval(), torch.zeros(IMAGES, 3, side, side)
    axes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamo else {
        "dynamic_axes": {"image": {0: "batch"}, "scores": {0: "batch"}}}
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(network, (example,), path, dynamo=dynamo, opset_version=opset, input_names=["image"],
                          output_names=["scores"], **axes, **({"external_data": False} if dynamo else {}))
        return strip(onnx.load(path)).SerializeToString()


def answer(model, side, data):
    """ONNX Runtime's outputs."""
    import numpy
    import onnxruntime
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("numbers", data), ("model.onnx", model)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
        session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
        images = numpy.frombuffer(pixels(side, side, data), numpy.float32).reshape(IMAGES, 3, side, side)
        return session.run(None, {session.get_inputs()[0].name: images})[0]


def main():
    import numpy
    data, golden = numbers(), {}
    only = sys.argv[1:]
    with zipfile.ZipFile(ZIP, "w", zipfile.ZIP_LZMA) as file:
        for name, (network, side, dynamo, opset) in MODELS.items():
            if only and name not in only:
                continue
            model = export(network, side, dynamo, opset)
            scores = answer(model, side, data)
            if not numpy.isfinite(scores).all() or numpy.abs(scores - scores[:1]).max() < 1e-3 * numpy.abs(scores).max():
                raise ValueError(f"{name}: its answers hardly depend on the image: {scores}")
            golden[name] = {"side": side, "scores": [[float(f"{x:.7g}") for x in row] for row in scores]}
            info = zipfile.ZipInfo(f"{name}.onnx")  # without the time
            info.compress_type = zipfile.ZIP_LZMA
            file.writestr(info, model)
            print(f"{name}: {len(model)} bytes, {numpy.abs(scores).max():.3g}", flush=True)
        file.writestr(zipfile.ZipInfo("golden.json"), json.dumps(golden, indent=1), zipfile.ZIP_LZMA)


if __name__ == "__main__":
    main()
