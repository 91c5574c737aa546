#!/usr/bin/env python3
"""Writes tests/data/sam: small seeded networks in the three forms in which people export SAM, and the masks that ONNX
Runtime and the frameworks' own steps before and after make of prompts. Needs torch, torchvision, transformers,
segment-anything, onnx, onnxruntime, Pillow: tests/data/make_sam.py

    sam/   segment-anything: encoder.onnx as samexporter writes it (MobileSAM, too), decoder.onnx by SamOnnxModel
    hf/    Hugging Face: vision_encoder.onnx, prompt_encoder_mask_decoder.onnx by the interface of optimum
    sam2/  SAM 2: encoder.onnx with high_res_feats_0 and _1, decoder.onnx as samexporter writes them
"""

import functools
import json
import os
import warnings

import numpy
import onnxruntime
import torch
from PIL import Image
from segment_anything.modeling import ImageEncoderViT, MaskDecoder, PromptEncoder, Sam, TwoWayTransformer
from segment_anything.utils.onnx import SamOnnxModel
from segment_anything.utils.transforms import ResizeLongestSide
from torch import nn
from torch.nn import functional
from torchvision.transforms import functional as pictures
from transformers import Sam2Config, Sam2Model, SamConfig, SamImageProcessorPil, SamModel

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sam")
SIDE, WIDTH, GRID = 128, 16, 8  # of the encoder's input; numbers of an embedding; its rows
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
WIDE, TALL = (200, 150), (140, 260)
# photo, points (x, y, label), box
PROMPTS = [(WIDE, [(60, 50, 1)], None), (WIDE, [(60, 50, 1), (150, 100, 0)], None), (WIDE, [], (20, 30, 120.5, 140)),
           (WIDE, [(40, 60, 0), (100, 70, 1)], (20, 30, 120, 140)), (TALL, [(0, 0, 1)], None), (TALL, [(140, 260, 1)] * 30, None)]


def photo(size):
    """Coloured waves, and a bright disc."""
    y, x = numpy.mgrid[0:size[1], 0:size[0]]
    waves = [127 + 90 * numpy.sin(x / a + c) * numpy.cos(y / b) for a, b, c in ((17, 23, 0), (31, 13, 1), (11, 41, 2))]
    pixels = numpy.stack(waves, -1)
    pixels[(x - size[0] * 0.4) ** 2 + (y - size[1] * 0.5) ** 2 < (min(size) * 0.25) ** 2] = (250, 240, 60)
    return Image.fromarray(pixels.astype(numpy.uint8))


def export(module, inputs, path, names, outputs, dynamic):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), inputs, path, dynamo=False, opset_version=17, input_names=names,
                          output_names=outputs, dynamic_axes=dynamic)
    return onnxruntime.InferenceSession(path)


def loud(module):
    """Larger weights: masks with clear edges, and scores that differ."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.6 if "output_hypernetworks" in name or "upscal" in name else 1.2)
    return module.eval()


def padded(image):
    """SAM's own steps: the longest side, then mean and std, then zeros on the right and below."""
    small = ResizeLongestSide(SIDE).apply_image(numpy.array(image))
    pixels = ((small - numpy.array(MEAN)) / numpy.array(STD)).transpose(2, 0, 1)
    full = numpy.zeros((1, 3, SIDE, SIDE), numpy.float32)
    full[0, :, :small.shape[0], :small.shape[1]] = pixels
    return full, small.shape[:2]


def rows(points, box, size, inner, pads):
    """The decoder's points and labels."""
    scale = numpy.array([inner[1] / size[0], inner[0] / size[1]])
    listed = [(numpy.array(p[:2]) * scale, p[2]) for p in points]
    if box:
        listed += [(numpy.array(box[:2]) * scale, 2), (numpy.array(box[2:]) * scale, 3)]
    elif pads:
        listed.append((numpy.zeros(2), -1))
    return (numpy.array([[p for p, _ in listed]], numpy.float32), numpy.array([[l for _, l in listed]], numpy.float32))


def grown(masks, inner, size):
    """Sam.postprocess_masks, and SamImageProcessorPil.post_process_masks."""
    masks = functional.interpolate(torch.from_numpy(masks), (SIDE, SIDE), mode="bilinear", align_corners=False)
    masks = masks[..., :inner[0], :inner[1]]
    return functional.interpolate(masks, size[::-1], mode="bilinear", align_corners=False)[0].numpy() > 0


def runs(mask):
    """COCO's run lengths, not compressed, column by column."""
    flat = mask.T.ravel().astype(numpy.int8)
    ends = numpy.flatnonzero(numpy.diff(flat)) + 1
    counts = numpy.diff(numpy.concatenate([[0], ends, [flat.size]])).tolist()
    return counts if not flat[0] else [0, *counts]


def answer(size, points, box, masks, scores):
    order = numpy.argsort(-scores, kind="stable")
    return {"photo": list(size), "points": [list(p) for p in points], "box": box and list(box),
            "scores": [round(float(scores[i]), 6) for i in order], "masks": [runs(masks[i]) for i in order]}


class Encoder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, pixels):
        return self.inner(pixels)


def make_sam(folder):
    torch.manual_seed(33)
    encoder = ImageEncoderViT(img_size=SIDE, patch_size=SIDE // GRID, embed_dim=WIDTH, depth=1, num_heads=2, mlp_ratio=2,
                              out_chans=WIDTH, use_rel_pos=True, window_size=0,
                              norm_layer=functools.partial(nn.LayerNorm, eps=1e-6))
    prompts = PromptEncoder(embed_dim=WIDTH, image_embedding_size=(GRID, GRID), input_image_size=(SIDE, SIDE), mask_in_chans=4)
    decoder = MaskDecoder(num_multimask_outputs=3, transformer=TwoWayTransformer(2, WIDTH, 2, 2 * WIDTH),
                          transformer_dim=WIDTH, iou_head_depth=2, iou_head_hidden_dim=WIDTH)
    sam = loud(Sam(encoder, prompts, decoder))
    first = export(Encoder(sam.image_encoder), (torch.randn(1, 3, SIDE, SIDE),), f"{folder}/encoder.onnx", ["input_image"],
                   ["image_embeddings"], None)
    names = ["image_embeddings", "point_coords", "point_labels", "mask_input", "has_mask_input", "orig_im_size"]
    inputs = (torch.randn(1, WIDTH, GRID, GRID), torch.rand(1, 3, 2) * SIDE, torch.ones(1, 3),
              torch.randn(1, 1, 4 * GRID, 4 * GRID), torch.ones(1), torch.tensor([150.0, 200.0]))
    second = export(SamOnnxModel(sam, return_single_mask=False), inputs, f"{folder}/decoder.onnx", names,
                    ["masks", "iou_predictions", "low_res_masks"],
                    {"point_coords": {1: "num_points"}, "point_labels": {1: "num_points"}})
    for size, points, box in PROMPTS:
        pixels, inner = padded(photo(size))
        coords, labels = rows(points, box, size, inner, True)
        masks, scores, small = second.run(None, {
            "image_embeddings": first.run(None, {"input_image": pixels})[0], "point_coords": coords, "point_labels": labels,
            "mask_input": numpy.zeros((1, 1, 4 * GRID, 4 * GRID), numpy.float32),
            "has_mask_input": numpy.zeros(1, numpy.float32), "orig_im_size": numpy.array(size[::-1], numpy.float32)})
        whole = grown(small, inner, size)
        # SamOnnxModel's own last steps have the padding of the photo that it was exported with.
        assert size != WIDE or (whole == (masks[0] > 0)).all()
        yield answer(size, points, box, whole, scores[0])


class HfEncoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixel_values):
        place = self.model.get_image_wide_positional_embeddings()
        return self.model.get_image_embeddings(pixel_values), place.repeat(pixel_values.shape[0], 1, 1, 1)


class HfDecoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_points, input_labels, image_embeddings, image_positional_embeddings):
        sparse, dense = self.model.prompt_encoder(input_points=input_points, input_labels=input_labels, input_boxes=None,
                                                  input_masks=None)
        masks, scores = self.model.mask_decoder(
            image_embeddings=image_embeddings, image_positional_embeddings=image_positional_embeddings,
            sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=True)[:2]
        return scores, masks


def make_hf(folder):
    torch.manual_seed(34)
    model = loud(SamModel(SamConfig(
        vision_config={"hidden_size": WIDTH, "output_channels": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": SIDE, "patch_size": SIDE // GRID, "window_size": 0, "global_attn_indexes": [0],
                       "mlp_dim": 2 * WIDTH, "num_pos_feats": WIDTH // 2},
        prompt_encoder_config={"hidden_size": WIDTH, "image_size": SIDE, "patch_size": SIDE // GRID, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": WIDTH, "mlp_dim": 2 * WIDTH, "num_attention_heads": 2, "iou_head_depth": 2,
                             "iou_head_hidden_dim": WIDTH})))
    with torch.no_grad():  # transformers begins with weights that are nearly zero
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.3)
    size = {"longest_edge": SIDE}
    processor = SamImageProcessorPil(size=size, pad_size={"height": SIDE, "width": SIDE}, mask_size={"longest_edge": 4 * GRID},
                                  mask_pad_size={"height": 4 * GRID, "width": 4 * GRID})
    processor.save_pretrained(folder)
    free = {0: "batch_size", 1: "point_batch_size"}
    first = export(HfEncoder(model), (torch.randn(1, 3, SIDE, SIDE),), f"{folder}/vision_encoder.onnx", ["pixel_values"],
                   ["image_embeddings", "image_positional_embeddings"],
                   {name: {0: "batch_size"} for name in ("pixel_values", "image_embeddings", "image_positional_embeddings")})
    example = torch.randn(1, WIDTH, GRID, GRID)
    names = ["input_points", "input_labels", "image_embeddings", "image_positional_embeddings"]
    second = export(HfDecoder(model), (torch.rand(1, 1, 2, 2) * SIDE, torch.ones(1, 1, 2, dtype=torch.int64), example, example),
                    f"{folder}/prompt_encoder_mask_decoder.onnx", names, ["iou_scores", "pred_masks"],
                    {names[0]: {**free, 2: "points"}, names[1]: {**free, 2: "points"}, names[2]: {0: "batch_size"},
                     names[3]: {0: "batch_size"}, "iou_scores": free, "pred_masks": free})
    for size, points, box in PROMPTS:
        if box:
            continue
        given = processor(photo(size), return_tensors="np")
        inner = [int(side) for side in given["reshaped_input_sizes"][0]]
        coords, labels = rows(points, box, size, inner, False)
        embeddings, places = first.run(None, {"pixel_values": numpy.asarray(given["pixel_values"], numpy.float32)})
        scores, masks = second.run(None, {names[0]: coords[:, None], names[1]: labels[:, None].astype(numpy.int64),
                                          names[2]: embeddings, names[3]: places})
        whole = processor.post_process_masks(torch.from_numpy(masks), torch.tensor([size[::-1]]), torch.tensor([inner]))
        assert (whole[0][0].numpy() == grown(masks[:, 0], inner, size)).all()
        yield answer(size, points, box, whole[0][0].numpy(), scores[0, 0])


class Sam2Encoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        features = list(self.model.get_image_features(image).fpn_hidden_states)
        features[-1] = features[-1] + self.model.no_memory_embedding
        return tuple(f.permute(1, 2, 0).reshape(1, -1, GRID << k, GRID << k) for f, k in zip(features, (2, 1, 0)))


class Sam2Decoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image_embed, high_res_feats_0, high_res_feats_1, point_coords, point_labels, mask_input, has_mask_input):
        prompts = self.model.prompt_encoder
        points = prompts._embed_points(point_coords[:, None], point_labels[:, None].to(torch.int64), pad=True)
        dense = has_mask_input * prompts.mask_embed(mask_input)
        dense = dense + (1 - has_mask_input) * prompts.no_mask_embed.weight.reshape(1, -1, 1, 1)
        masks, scores = self.model.mask_decoder(
            image_embeddings=image_embed, image_positional_embeddings=self.model.get_image_wide_positional_embeddings(),
            sparse_prompt_embeddings=points, dense_prompt_embeddings=dense, multimask_output=True,
            high_resolution_features=[high_res_feats_0, high_res_feats_1])[:2]
        return torch.clamp(masks[0], -32, 32), scores[0]


def make_sam2(folder):
    torch.manual_seed(35)
    model = Sam2Model(Sam2Config(
        vision_config={"backbone_config": {
            "model_type": "sam2_hiera_det_model", "hidden_size": 4, "image_size": [SIDE, SIDE], "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [4, 8, 12, 16], "num_attention_heads_per_stage": [1, 2, 2, 2], "global_attention_blocks": [3],
            "window_size_per_stage": [8, 4, 8, 4], "mlp_ratio": 2.0}, "backbone_channel_list": [16, 12, 8, 4],
            "backbone_feature_sizes": [[GRID << k, GRID << k] for k in (2, 1, 0)], "fpn_hidden_size": WIDTH},
        prompt_encoder_config={"hidden_size": WIDTH, "image_size": SIDE, "patch_size": SIDE // GRID, "mask_input_channels": 4},
        mask_decoder_config={"hidden_size": WIDTH, "mlp_dim": 2 * WIDTH, "num_attention_heads": 2, "iou_head_depth": 2,
                             "iou_head_hidden_dim": WIDTH})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.3)
    features = ["high_res_feats_0", "high_res_feats_1", "image_embed"]
    first = export(Sam2Encoder(model), (torch.randn(1, 3, SIDE, SIDE),), f"{folder}/encoder.onnx", ["image"], features, None)
    names = ["image_embed", "high_res_feats_0", "high_res_feats_1", "point_coords", "point_labels", "mask_input", "has_mask_input"]
    inputs = (torch.randn(1, WIDTH, GRID, GRID), torch.randn(1, WIDTH // 8, 4 * GRID, 4 * GRID),
              torch.randn(1, WIDTH // 4, 2 * GRID, 2 * GRID), torch.rand(1, 3, 2) * SIDE, torch.ones(1, 3),
              torch.randn(1, 1, 4 * GRID, 4 * GRID), torch.ones(1))
    second = export(Sam2Decoder(model), inputs, f"{folder}/decoder.onnx", names, ["masks", "iou_predictions"],
                    {"point_coords": {0: "num_labels", 1: "num_points"}, "point_labels": {0: "num_labels", 1: "num_points"},
                     "mask_input": {0: "num_labels"}, "has_mask_input": {0: "num_labels"}})
    for size, points, box in PROMPTS:
        # SAM2Transforms resizes so, too, but without rounding to bytes. Columns first, as Pillow did before version 13.
        columns = photo(size).resize((SIDE, size[1]), Image.Resampling.BILINEAR)
        pixels = pictures.to_tensor(columns.resize((SIDE, SIDE), Image.Resampling.BILINEAR))
        pixels = pictures.normalize(pixels, [m / 255 for m in MEAN], [s / 255 for s in STD])[None].numpy()
        made = dict(zip(features, first.run(None, {"image": pixels})))
        coords, labels = rows(points, box, size, (SIDE, SIDE), False)
        masks, scores = second.run(None, {**made, "point_coords": coords, "point_labels": labels,
                                          "mask_input": numpy.zeros((1, 1, 4 * GRID, 4 * GRID), numpy.float32),
                                          "has_mask_input": numpy.zeros(1, numpy.float32)})
        whole = functional.interpolate(torch.from_numpy(masks), size[::-1], mode="bilinear", align_corners=False)
        yield answer(size, points, box, whole[0].numpy() > 0, scores[0])


def main():
    for name, make in (("sam", make_sam), ("hf", make_hf), ("sam2", make_sam2)):
        folder = os.path.join(HERE, name)
        os.makedirs(folder, exist_ok=True)
        answers = list(make(folder))
        with open(os.path.join(folder, "answers.json"), "w", encoding="ascii") as file:
            json.dump(answers, file, separators=(",", ":"))
            file.write("\n")
        print(name, [(a["scores"], [sum(m[1::2]) for m in a["masks"]]) for a in answers])
    for size in (WIDE, TALL):
        photo(size).save(os.path.join(HERE, f"{size[0]}x{size[1]}.png"))


if __name__ == "__main__":
    main()
