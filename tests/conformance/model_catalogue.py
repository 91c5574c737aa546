"""The models of model_table.py: what is built, with which inputs, and how it is exported.

Every entry gives an Example: a module in eval mode with seeded weights and the arrays it is run
on. Weights are random, but BatchNormalization's statistics are measured and the head is scaled
(models/export/random_weights.py), so that logits look like a trained model's.
"""

import dataclasses
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "..", "models", "export"))

import numpy

SEED = 0
INPUT_SEED = 4711  # not the calibration's: these images are new to the model
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = 3  # a batch that has to be padded to a compiled one


@dataclasses.dataclass
class Example:
    module: object
    inputs: list  # numpy arrays; first dimension is the batch unless batched is False
    classes: int  # of output 0, which then is [batch, classes]; 0: not a classifier
    batched: bool = True


@dataclasses.dataclass
class Entry:
    name: str
    source: str  # "torchvision", "timm", "transformers", "ultralytics", "torch"
    build: object  # () -> Example
    exporter: str = "script"  # "script" (TorchScript) or "dynamo" (torch.export)
    opset: int = 17
    dynamic: bool = True  # a symbolic batch dimension
    convert: str = ""  # a key of model_table.CONVERSIONS, applied to the exported file
    int8: bool = False  # also quantized (QDQ, per channel), for the int8 column
    ranked: bool = False  # the graph itself puts its detections into the order of their scores


def images(side, count=IMAGES, channels=3):
    from random_weights import normalise, structured_images
    return normalise(structured_images(count, side, side, INPUT_SEED), MEAN, STD)[:, :channels]


def settle(module, classes, side):
    """Measured statistics and a head of a trained model's size, where the module has a head.

    A very deep network wants more images to measure: on images that its statistics do not know,
    each BatchNormalization makes values a little larger, and after a hundred of them the last bit
    of the input decides the answer."""
    import torch
    from random_weights import calibrate, wake_branches
    module.eval()
    if not classes:
        wake_branches(module)
        return module
    with torch.no_grad():
        deep = sum(isinstance(m, torch.nn.BatchNorm2d) for m in module.modules()) > 60
        return calibrate(module, classes, side, side, MEAN, STD, SEED, count=32 if deep else 4)


class Logits:
    """Makes a Hugging Face model return a plain tuple of the outputs named."""

    @staticmethod
    def wrap(model, *names):
        import torch

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, pixel_values):
                out = self.model(pixel_values)
                found = [getattr(out, name) for name in names]
                return found[0] if len(found) == 1 else tuple(found)

        return Plain()


# ------------------------------------------------------------------------------ torchvision ----

def torchvision_classifier(name, side=224, **options):
    def build():
        import torch
        import torchvision
        torch.manual_seed(SEED)
        module = torchvision.models.get_model(name, weights=None, **options)
        return Example(settle(module, 1000, side), [images(side)], 1000)
    return build


def torchvision_segmentation(name, side=160):
    def build():
        import torch
        import torchvision
        torch.manual_seed(SEED)
        module = torchvision.models.get_model(name, weights=None, weights_backbone=None)

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = module

            def forward(self, image):
                return self.model(image)["out"]

        measure(module, images(side))
        return Example(Plain().eval(), [images(side)], 0)
    return build


def measure(module, batch):
    """BatchNormalization statistics alone, for modules without one head."""
    import torch
    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        module(torch.from_numpy(batch))
    module.eval()


def torchvision_detection(name, side=160, **options):
    """The exported graph takes one image [3, H, W] in 0 … 1 and gives boxes, scores, labels."""
    def build():
        import torch
        import torchvision
        from random_weights import structured_images
        torch.manual_seed(SEED)
        module = torchvision.models.get_model(name, weights=None, weights_backbone=None, **options)
        pixels = structured_images(2, side, side, INPUT_SEED).astype(numpy.float32) / 255
        pixels = numpy.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
        measure(module.backbone, pixels)
        image = pixels[0]
        spread_heads(module, [torch.from_numpy(image)])

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = module

            def forward(self, image):
                return tuple(self.model([image])[0].values())

        return Example(Plain().eval(), [image], 0, batched=False)
    return build


def spread_heads(module, example):
    """Scales the heads' layers on one forward pass of `example`: scores of untrained heads are all
    alike or saturated, and with ties the order of detections would hang on the last bit."""
    import torch
    hooks = []

    def scale_to(wanted):
        def hook(layer, _, output):
            if not getattr(layer, "is_scaled", False):
                factor = wanted / max(float(output.std()), 1e-6)
                layer.weight.mul_(factor)
                layer.is_scaled = True
                bias = 0 if layer.bias is None else layer.bias
                if isinstance(layer, torch.nn.Conv2d) and layer.bias is not None:
                    bias = bias.view([1, -1, 1, 1])
                return (output - bias) * factor + bias
            return output
        return hook

    for name, layer in module.named_modules():
        if not isinstance(layer, (torch.nn.Linear, torch.nn.Conv2d)):
            continue
        if any(word in name for word in ("cls_score", "cls_logits", "classification_head",
                                         "mask_fcn_logits", "score_head")):
            hooks.append(layer.register_forward_hook(scale_to(2.0)))
        elif any(word in name for word in ("bbox_pred", "regression_head", "bbox_reg")):
            hooks.append(layer.register_forward_hook(scale_to(0.4)))
    with torch.no_grad():
        module.eval()(example)
    for hook in hooks:
        hook.remove()


# ------------------------------------------------------------------------------------- timm ----

def timm_classifier(name, side=224, **options):
    def build():
        import timm
        import torch
        torch.manual_seed(SEED)
        with_size = {"img_size": side} if options.pop("img_size", False) else {}
        module = timm.create_model(name, pretrained=False, exportable=True, num_classes=1000,
                                   **with_size, **options)
        return Example(settle(module, 1000, side), [images(side)], 1000)
    return build


# ----------------------------------------------------------------------------- transformers ----

SMALL_VIT = {"hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
             "intermediate_size": 192, "image_size": 96, "patch_size": 16}


def hugging_face(kind, config_class, side, outputs=("logits",), classes=100, **config):
    def build():
        import torch
        import transformers
        torch.manual_seed(SEED)
        settings = getattr(transformers, config_class)(**config)
        if classes:
            settings.num_labels = classes
        module = Logits.wrap(getattr(transformers, kind)(settings).eval(), *outputs)
        return Example(settle(module, classes, side), [images(side)], classes)
    return build


# -------------------------------------------------------------------------- YOLO and friends ----

def ultralytics_yolo(config, side=160):
    def build():
        import torch
        from ultralytics import RTDETR, YOLO
        torch.manual_seed(SEED)
        kind = RTDETR if config.startswith("rtdetr") else YOLO
        module = kind(config).model.float()
        measure(module, images(side))
        if kind is RTDETR:
            spread_heads(module, torch.from_numpy(images(side)))
        module.fuse()
        head = module.model[-1]
        head.export, head.format = True, "onnx"
        if hasattr(head, "dynamic"):
            head.dynamic = False
        for layer in module.modules():
            if layer.__class__.__name__ == "C2f":
                layer.forward = layer.forward_split
        return Example(module.eval(), [images(side)], 0)
    return build


def small_net(width=16):
    """Conv, BatchNormalization, grouped Conv, pooling, Linear: small enough for every variant."""
    def build():
        import torch
        from torch import nn
        torch.manual_seed(SEED)
        module = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False), nn.BatchNorm2d(width),
            nn.Hardswish(), nn.Conv2d(width, 2 * width, 1), nn.SiLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10))
        return Example(settle(module, 10, 64), [images(64)], 10)
    return build


# -------------------------------------------------------------------------------- the table ----

def classification():
    torchvision_names = [
        ("resnet18", True), ("resnet50", True), ("resnext50_32x4d", False),
        ("wide_resnet50_2", False), ("regnet_x_400mf", False), ("regnet_y_400mf", False),
        ("densenet121", False), ("vgg11", False), ("vgg16_bn", False), ("alexnet", False),
        ("mobilenet_v2", True), ("mobilenet_v3_small", False), ("mobilenet_v3_large", True),
        ("mnasnet1_0", False), ("shufflenet_v2_x1_0", True), ("squeezenet1_1", True),
        ("efficientnet_b0", True), ("efficientnet_v2_s", False), ("convnext_tiny", False),
        ("vit_b_16", False), ("swin_t", False), ("swin_v2_t", False), ("maxvit_t", False)]
    fixed = ("vit_b_16", "swin_t", "swin_v2_t", "maxvit_t",  # sizes are part of the weights
             "vgg11", "vgg16_bn", "alexnet")  # their adaptive pooling exports at its own size only
    for name, int8 in torchvision_names:
        side = 224 if name in fixed else 128
        yield Entry(name, "torchvision", torchvision_classifier(name, side), int8=int8)
    plain = {"aux_logits": False, "transform_input": True, "init_weights": True}
    yield Entry("googlenet", "torchvision", torchvision_classifier("googlenet", 128, **plain))
    yield Entry("inception_v3", "torchvision", torchvision_classifier("inception_v3", 160, **plain))
    for name, side in TIMM:
        newer = name in ("volo_d1_224", "halonet26t")  # the older exporter cannot
        yield Entry(name, "timm", timm_classifier(name, side), "dynamo" if newer else "script",
                    18 if newer else 17, int8=name == "vit_tiny_patch16_224")
    for name, kind, config, side, options in HUGGING_FACE:
        yield Entry(name, "transformers", hugging_face(kind, config, side, **options))


TIMM = [
    ("vit_tiny_patch16_224", 224), ("deit_tiny_distilled_patch16_224", 224),
    ("eva02_tiny_patch14_224", 224), ("mixer_s32_224", 224), ("levit_128s", 224),
    ("efficientformer_l1", 224), ("convnextv2_atto", 128), ("repvgg_a0", 128),
    ("ghostnet_100", 128), ("mobilenetv4_conv_small", 128), ("mobilenetv4_hybrid_medium", 128),
    ("nfnet_l0", 128), ("hrnet_w18_small", 128), ("mobileone_s0", 128), ("fastvit_t8", 128),
    ("mobilevit_xxs", 128), ("mobilevitv2_050", 128), ("poolformer_s12", 128),
    ("coatnet_nano_rw_224", 224), ("regnetz_b16", 128), ("resnest14d", 128),
    ("res2net50_26w_4s", 128), ("dla34", 128), ("cspresnet50", 128), ("darknet53", 128),
    ("xcit_nano_12_p16_224", 224), ("pit_ti_224", 224), ("visformer_tiny", 224),
    ("crossvit_tiny_240", 240), ("gcvit_xxtiny", 224), ("edgenext_xx_small", 128),
    ("tinynet_e", 106), ("rexnet_100", 128), ("legacy_seresnet18", 128), ("repvit_m0_9", 128),
    ("tiny_vit_5m_224", 224), ("swiftformer_xs", 128), ("hgnetv2_b0", 128), ("mvitv2_tiny", 224),
    ("cait_xxs24_224", 224), ("efficientvit_b0", 128), ("efficientvit_m0", 224),
    ("mambaout_femto", 128), ("lambda_resnet26t", 256), ("botnet26t_256", 256),
    ("halonet26t", 256), ("volo_d1_224", 224), ("focalnet_tiny_srf", 128), ("davit_tiny", 224),
    ("resnetv2_50x1_bit", 128), ("beit_base_patch16_224", 224)]

STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [24, 48, 96, 192]}
HUGGING_FACE = [
    ("hf vit", "ViTForImageClassification", "ViTConfig", 96, SMALL_VIT),
    ("hf deit", "DeiTForImageClassificationWithTeacher", "DeiTConfig", 96, SMALL_VIT),
    ("hf beit", "BeitForImageClassification", "BeitConfig", 96,
     {**SMALL_VIT, "use_relative_position_bias": True, "layer_scale_init_value": 0.3}),
    ("hf dinov2", "Dinov2ForImageClassification", "Dinov2Config", 96,
     {**SMALL_VIT, "mlp_ratio": 2, "layerscale_value": 0.3}),
    ("hf swin", "SwinForImageClassification", "SwinConfig", 128,
     {"image_size": 128, "embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8],
      "window_size": 4}),
    ("hf swinv2", "Swinv2ForImageClassification", "Swinv2Config", 128,
     {"image_size": 128, "embed_dim": 24, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8],
      "window_size": 4}),
    ("hf resnet", "ResNetForImageClassification", "ResNetConfig", 96,
     {**STAGES, "embedding_size": 24}),
    ("hf convnext", "ConvNextForImageClassification", "ConvNextConfig", 96,
     {**STAGES, "layer_scale_init_value": 0.3}),
    ("hf mobilevit", "MobileViTForImageClassification", "MobileViTConfig", 128,
     {"image_size": 128, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes":
      [16, 24, 32, 40, 48, 56, 160]}),
    ("hf mobilenet_v2", "MobileNetV2ForImageClassification", "MobileNetV2Config", 96,
     {"depth_multiplier": 0.5, "image_size": 96}),
    ("hf pvt", "PvtForImageClassification", "PvtConfig", 128,
     {"image_size": 128, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
      "num_attention_heads": [1, 2, 4, 8]}),
    ("hf segformer", "SegformerForSemanticSegmentation", "SegformerConfig", 128,
     {"classes": 0, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1],
      "decoder_hidden_size": 64}),
    ("hf dpt", "DPTForDepthEstimation", "DPTConfig", 96,
     {**SMALL_VIT, "classes": 0, "outputs": ("predicted_depth",), "backbone_out_indices":
      [0, 1, 2, 3], "neck_hidden_sizes": [16, 32, 48, 64], "fusion_hidden_size": 32}),
    ("hf detr", "DetrForObjectDetection", "DetrConfig", 128,
     {"classes": 0, "outputs": ("logits", "pred_boxes"), "use_timm_backbone": True,
      "backbone": "resnet18", "use_pretrained_backbone": False, "d_model": 64,
      "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
      "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 20}),
    ("hf yolos", "YolosForObjectDetection", "YolosConfig", 96,
     {**SMALL_VIT, "image_size": [96, 96], "classes": 0, "outputs": ("logits", "pred_boxes"),
      "num_detection_tokens": 20}),
    ("hf clip vision", "CLIPVisionModelWithProjection", "CLIPVisionConfig", 96,
     {**SMALL_VIT, "classes": 0, "outputs": ("image_embeds",), "projection_dim": 64}),
    ("hf siglip vision", "SiglipVisionModel", "SiglipVisionConfig", 96,
     {**SMALL_VIT, "classes": 0, "outputs": ("pooler_output",)}),
]


def dense():
    """Segmentation and detection: outputs that are no class scores."""
    for name in ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large", "fcn_resnet50"):
        yield Entry(name, "torchvision", torchvision_segmentation(name))
    for name, side in (("ssdlite320_mobilenet_v3_large", 320), ("ssd300_vgg16", 300),
                       ("retinanet_resnet50_fpn", 160), ("fcos_resnet50_fpn", 160),
                       ("fasterrcnn_mobilenet_v3_large_320_fpn", 160),
                       ("fasterrcnn_resnet50_fpn", 160), ("maskrcnn_resnet50_fpn", 160),
                       ("keypointrcnn_resnet50_fpn", 160)):
        sizes = {} if name.startswith("ssd") else {"min_size": 160, "max_size": 224}
        if "rcnn" in name:  # fewer regions than the usual 1000 and 100: the same graph, sooner
            sizes.update(rpn_pre_nms_top_n_test=200, rpn_post_nms_top_n_test=100,
                         box_detections_per_img=20)
        yield Entry(name, "torchvision", torchvision_detection(name, side, **sizes), dynamic=False)
    for config in ("yolov5n.yaml", "yolov8n.yaml", "yolov8n-seg.yaml", "yolov8n-pose.yaml",
                   "yolov8n-obb.yaml", "yolov9t.yaml", "yolov10n.yaml", "yolo11n.yaml",
                   "yolo12n.yaml", "yolo26n.yaml", "rtdetr-l.yaml"):
        yield Entry(config.split(".")[0], "ultralytics", ultralytics_yolo(config),
                    int8=config == "yolov8n.yaml", ranked=config.startswith("rtdetr"))


def variants():
    """The same models through other exporters, opsets, precisions and quantizers."""
    models = [("small net", "torch", small_net()),
              ("resnet18", "torchvision", torchvision_classifier("resnet18", 128)),
              ("mobilenet_v3_small", "torchvision",
               torchvision_classifier("mobilenet_v3_small", 128)),
              ("swin_t", "torchvision", torchvision_classifier("swin_t")),
              ("vit_tiny_patch16_224", "timm", timm_classifier("vit_tiny_patch16_224")),
              ("convnextv2_atto", "timm", timm_classifier("convnextv2_atto", 128)),
              ("hf dinov2", "transformers", hugging_face(*HUGGING_FACE[3][1:4],
                                                         **HUGGING_FACE[3][4]))]
    quantizers = ["QDQ per tensor", "QDQ per channel", "QDQ uint8", "QOperator",
                  "QOperator per channel", "dynamic int8"]
    for name, source, build in models:
        quick = name in ("small net", "resnet18", "hf dinov2")  # these take every road
        for opset, dynamic in ((11, False), (13, True), (20, True)):
            if name in ("swin_t", "hf dinov2") and opset < 13:
                continue  # the exporter itself needs 13 or 14
            if quick or opset < 20:
                yield Entry(name, source, build, "script", opset, dynamic)
        for opset, dynamic in ((18, True), (18, False), (21, True), (23, True)):
            if name == "hf dinov2" and opset > 21:
                continue  # Attention as one operator (opset 23), which lensd refuses by name
            if quick or (opset, dynamic) == (18, True):
                yield Entry(name, source, build, "dynamo", opset, dynamic)
        if quick:
            yield Entry(name, source, build, "dynamo, not optimised", 18)
        for convert in ("float16", "float16, float32 in and out", "float16 module", "bfloat16"):
            if quick or convert != "bfloat16":
                yield Entry(name, source, build, convert=convert)
        for convert in quantizers if quick else ("QDQ uint8", "dynamic int8"):
            yield Entry(name, source, build, opset=17, convert=convert)
    for name, kind, config, side, options in HUGGING_FACE:
        yield Entry(name, "transformers", hugging_face(kind, config, side, **options), "dynamo",
                    18)
    for name in ("lraspp_mobilenet_v3_large",):
        yield Entry(name, "torchvision", torchvision_segmentation(name), "dynamo", 18)
