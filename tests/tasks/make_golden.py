"""Writes tests/unit/models/tasks/golden/*.npy: small outputs and what Ultralytics and Transformers make of them. A photo of
500 x 333 in an input of 64 x 64; boxes are class, score, x1, y1, x2, y2. With the packages of run.sh."""

import math
import os
import random
from types import SimpleNamespace

import numpy
import torch
from transformers import (DeformableDetrImageProcessor, DetrImageProcessor, Mask2FormerImageProcessor, MaskFormerImageProcessor,
                          PPOCRV5ServerDetImageProcessor, PPOCRV5ServerRecImageProcessor, RTDetrImageProcessor)
from ultralytics.utils.nms import non_max_suppression
from ultralytics.utils.ops import process_mask_native, scale_boxes, scale_coords

WIDTH, HEIGHT, SIDE = 500, 333, 64


def clusters(generator, count, shares):
    """Centres and sizes around a few places."""
    places = [(generator.uniform(.1, .9), generator.uniform(.1, .9)) for _ in range(6)]
    rows = []
    for i in range(count):
        x, y = places[i % 6]
        row = [x + generator.gauss(0, .03), y + generator.gauss(0, .03),
               generator.uniform(.15, .3), generator.uniform(.15, .3)]
        rows.append([v if shares else v * SIDE for v in row])
    return torch.tensor(rows)


def put(name, values):
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/models/tasks/golden")
    numpy.save(os.path.join(folder, name + ".npy"), numpy.array(values, numpy.float32))


def put_boxes(name, boxes):
    """class, score, x1, y1, x2, y2; best first."""
    put(name, sorted(boxes, key=lambda b: -b[1]))


def yolov8(generator):
    boxes = clusters(generator, 36, False)
    scores = torch.tensor([[generator.random() ** 2 for _ in range(3)] for _ in range(36)])
    output = torch.cat([boxes, scores], 1).T[None].contiguous()
    put("yolov8", output[0])
    for name, agnostic in (("", False), ("_agnostic", True)):
        (found,) = non_max_suppression(output.clone(), 0.25, 0.45, agnostic=agnostic)
        scale_boxes((SIDE, SIDE), found[:, :4], (HEIGHT, WIDTH))
        put_boxes(f"yolov8_boxes{name}", [(f[5].item(), f[4].item(), *f[:4].tolist()) for f in found])


def oriented(generator):
    """Best first: class, score, centre, size, angle."""
    boxes = clusters(generator, 48, False)
    scores = torch.tensor([[generator.random() for _ in range(3)] for _ in range(48)])
    angles = torch.tensor([[generator.uniform(-.7, 2.3)] for _ in range(48)])
    output = torch.cat([boxes, scores, angles], 1).T[None].contiguous()
    put("oriented", output[0])
    (found,) = non_max_suppression(output.clone(), 0.25, 0.4, nc=3, rotated=True)
    scale_boxes((SIDE, SIDE), found[:, :4], (HEIGHT, WIDTH), xywh=True)
    put_boxes("oriented_boxes", [(f[5].item(), f[4].item(), *f[:4].tolist(), f[6].item()) for f in found])


def pose(generator):
    """Best first: class, score, corners; then x, y, score of two points."""
    boxes = clusters(generator, 12, False)
    scores = torch.tensor([[generator.random()] for _ in range(12)])
    points = torch.tensor([[[generator.uniform(-5, SIDE + 5), generator.uniform(-5, SIDE + 5), generator.random()]
                            for _ in range(2)] for _ in range(12)])
    output = torch.cat([boxes, scores, points.flatten(1)], 1).T[None].contiguous()
    put("pose", output[0])
    (found,) = non_max_suppression(output.clone(), 0.25, 0.45, nc=1)
    scale_boxes((SIDE, SIDE), found[:, :4], (HEIGHT, WIDTH))
    points = scale_coords((SIDE, SIDE), found[:, 6:].reshape(-1, 2, 3).clone(), (HEIGHT, WIDTH)).flatten(1)
    put_boxes("pose_boxes", [(f[5].item(), f[4].item(), *f[:4].tolist(), *p.tolist()) for f, p in zip(found, points)])


def masks(generator):
    """Best first: class, score, corners, pixels of the mask."""
    boxes = clusters(generator, 10, False)
    boxes[:, 2:] *= 2
    scores = torch.tensor([[generator.random()] for _ in range(10)])
    factors = torch.tensor([[generator.gauss(0, 1) for _ in range(4)] for _ in range(10)])
    prototypes = torch.nn.functional.interpolate(
        torch.tensor([[[[generator.gauss(0, 1) for _ in range(4)] for _ in range(4)] for _ in range(4)]]), (16, 16),
        mode="bicubic")
    output = torch.cat([boxes, scores, factors], 1).T[None].contiguous()
    put("masks_rows", output[0])
    put("masks_prototypes", prototypes[0])
    (found,) = non_max_suppression(output.clone(), 0.25, 0.45, nc=1)
    scale_boxes((SIDE, SIDE), found[:, :4], (HEIGHT, WIDTH))
    cut = process_mask_native(prototypes[0], found[:, 6:], found[:, :4], (HEIGHT, WIDTH)).sum((1, 2))
    put_boxes("masks", [(f[5].item(), f[4].item(), *f[:4].tolist(), float(m)) for f, m in zip(found, cut) if m > 0])


def depth(generator):
    values = torch.tensor([[[[generator.gauss(3, 2) for _ in range(6)] for _ in range(5)]]])
    put("depth", values[0])
    put("depth_photo", torch.nn.functional.interpolate(values, (13, 17), mode="bicubic")[0, 0])


def queries(generator):
    boxes = clusters(generator, 12, True)
    logits = torch.tensor([[generator.gauss(-1, 2) for _ in range(4)] for _ in range(12)])
    put("query_boxes", boxes)
    put("query_logits", logits)
    for name, processor in (("detr", DetrImageProcessor()), ("rt_detr", RTDetrImageProcessor()),
                            ("deformable_detr", DeformableDetrImageProcessor())):
        (found,) = processor.post_process_object_detection(
            SimpleNamespace(logits=logits[None], pred_boxes=boxes[None]), 0.3, [(HEIGHT, WIDTH)])
        boxes_found = found["boxes"].clone()
        boxes_found[:, 0::2] = boxes_found[:, 0::2].clamp(0, WIDTH)
        boxes_found[:, 1::2] = boxes_found[:, 1::2].clamp(0, HEIGHT)
        put_boxes(name, [(label.item(), score.item(), *box.tolist()) for label, score, box in
                         zip(found["labels"].float(), found["scores"], boxes_found)])


def query_masks(generator):
    """Best first: class, score, the box around the mask, its pixels; of a photo of WIDTH x HEIGHT."""
    logits = torch.tensor([[[generator.gauss(0, 2) for _ in range(4)] for _ in range(6)]])
    masks = torch.nn.functional.interpolate(
        torch.tensor([[[[generator.gauss(-2, 4) for _ in range(3)] for _ in range(3)] for _ in range(6)]]), (12, 12),
        mode="bicubic")
    put("query_masks_logits", logits[0])
    put("query_masks", masks[0])
    detr = SimpleNamespace(logits=logits, pred_masks=masks)
    former = SimpleNamespace(class_queries_logits=logits, masks_queries_logits=masks)
    for name, processor, outputs, more in (("panoptic", DetrImageProcessor(), detr, {}),
                                           ("maskformer", MaskFormerImageProcessor(), former, {"return_binary_maps": True}),
                                           ("mask2former", Mask2FormerImageProcessor(), former, {"return_binary_maps": True})):
        (found,) = processor.post_process_instance_segmentation(outputs, 0.3, target_sizes=[(HEIGHT, WIDTH)], **more)
        boxes = []
        for i, segment in enumerate(found["segments_info"]):
            mask = found["segmentation"][i] == 1 if more else found["segmentation"] == segment["id"]
            y, x = torch.where(mask)
            boxes.append((segment["label_id"], segment["score"], x.min().item(), y.min().item(), x.max().item() + 1,
                          y.max().item() + 1, mask.sum().item()))
        put_boxes(name, boxes)


def text(generator):
    """Best first: 0, score, and the corners of PP-OCR's boxes, eight times as large as the map; then a line of text:
    its classes and its score."""
    side = 32
    picture = torch.zeros(side, side)
    for angle, x, y, w, h in ((0.2, 11, 7, 8, 3), (-0.5, 21, 21, 8, 3), (1.2, 6, 23, 5, 2), (0.9, 27, 5, 2, 2)):
        yy, xx = torch.meshgrid(torch.arange(side) - y, torch.arange(side) - x, indexing="ij")
        u, v = xx * math.cos(angle) + yy * math.sin(angle), yy * math.cos(angle) - xx * math.sin(angle)
        picture = torch.maximum(picture, torch.sigmoid(3 * torch.minimum(w - u.abs(), h - v.abs()).float()))
    # A hole, and noise that is not text.
    picture[6:8, 10:12] = 0.1
    picture = (picture * 0.9 + torch.tensor([[generator.uniform(0, 0.1) for _ in range(side)] for _ in range(side)]))
    picture = (100 * picture).round() / 100
    put("text_map", picture[None])
    (found,) = PPOCRV5ServerDetImageProcessor().post_process_object_detection(
        SimpleNamespace(last_hidden_state=picture[None, None]), 0.3, torch.tensor([[8 * side, 8 * side]]),
        box_threshold=0.68)
    put_boxes("text_boxes", [(0, score.item(), *corners.flatten().tolist())
                             for score, corners in zip(found["scores"], found["boxes"].float())])
    scores = torch.tensor([[[generator.random() for _ in range(5)] for _ in range(12)]]).softmax(-1)
    put("text_scores", scores[0])
    (line,) = PPOCRV5ServerRecImageProcessor.post_process_text_recognition(
        SimpleNamespace(character_list="_0123"), SimpleNamespace(last_hidden_state=scores))
    put("text_line", [line["score"], *map(float, line["text"])])


for case, seed in ((yolov8, 7), (queries, 8), (oriented, 9), (pose, 10), (masks, 11), (depth, 12), (query_masks, 13), (text, 14)):
    case(random.Random(seed))
