"""Writes tests/unit/models/tasks/golden.h and golden_masks.h: small outputs and what the frameworks make of them.

    make_golden.py boxes >tests/unit/models/tasks/golden.h          with the packages of run.sh, and clang-format-14
    make_golden.py masks >tests/unit/models/tasks/golden_masks.h
"""

import random
import sys
from types import SimpleNamespace

import torch
from transformers import DetrImageProcessor, RTDetrImageProcessor
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
    print(f"static const float golden_{name}[] = {{{', '.join(f'{v:.9g}f' if '.' in f'{v:.9g}' or 'e' in f'{v:.9g}' else f'{v:.9g}' for v in values)}}};")


def put_boxes(name, boxes):
    """class, score, x1, y1, x2, y2; best first."""
    put(name, [v for box in sorted(boxes, key=lambda b: -b[1]) for v in box])


def yolov8(generator):
    boxes = clusters(generator, 36, False)
    scores = torch.tensor([[generator.random() ** 2 for _ in range(3)] for _ in range(36)])
    output = torch.cat([boxes, scores], 1).T[None].contiguous()
    put("yolov8", output.flatten().tolist())
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
    put("oriented", output.flatten().tolist())
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
    put("pose", output.flatten().tolist())
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
    put("masks_rows", output.flatten().tolist())
    put("masks_prototypes", prototypes.flatten().tolist())
    (found,) = non_max_suppression(output.clone(), 0.25, 0.45, nc=1)
    scale_boxes((SIDE, SIDE), found[:, :4], (HEIGHT, WIDTH))
    cut = process_mask_native(prototypes[0], found[:, 6:], found[:, :4], (HEIGHT, WIDTH)).sum((1, 2))
    put_boxes("masks", [(f[5].item(), f[4].item(), *f[:4].tolist(), float(m)) for f, m in zip(found, cut) if m > 0])


def depth(generator):
    values = torch.tensor([[[[generator.gauss(3, 2) for _ in range(6)] for _ in range(5)]]])
    put("depth", values.flatten().tolist())
    put("depth_photo", torch.nn.functional.interpolate(values, (13, 17), mode="bicubic").flatten().tolist())


def queries(generator):
    boxes = clusters(generator, 12, True)
    logits = torch.tensor([[generator.gauss(-1, 2) for _ in range(4)] for _ in range(12)])
    put("query_boxes", boxes.flatten().tolist())
    put("query_logits", logits.flatten().tolist())
    for name, processor in (("detr", DetrImageProcessor()), ("rt_detr", RTDetrImageProcessor())):
        (found,) = processor.post_process_object_detection(
            SimpleNamespace(logits=logits[None], pred_boxes=boxes[None]), 0.3, [(HEIGHT, WIDTH)])
        boxes_found = found["boxes"].clone()
        boxes_found[:, 0::2] = boxes_found[:, 0::2].clamp(0, WIDTH)
        boxes_found[:, 1::2] = boxes_found[:, 1::2].clamp(0, HEIGHT)
        put_boxes(name, [(label.item(), score.item(), *box.tolist()) for label, score, box in
                         zip(found["labels"].float(), found["scores"], boxes_found)])


print("/* Written by tests/tasks/make_golden.py: outputs, and what Ultralytics and Transformers make of them. A\n"
      " * photo of 500 x 333 in an input of 64 x 64; boxes are class, score, x1, y1, x2, y2. */\n#pragma once\n")
if sys.argv[1] == "masks":
    masks(random.Random(11))
    depth(random.Random(12))
else:
    yolov8(random.Random(7))
    oriented(random.Random(9))
    pose(random.Random(10))
    queries(random.Random(8))
