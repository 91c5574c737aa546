"""Makes this folder: a small seeded VitPose of Hugging Face as ONNX, a photo, and the poses that Transformers finds
in the whole photo and in boxes of it (VitPoseImageProcessor, post_process_pose_estimation). Needs torch, transformers,
scipy, onnx and Pillow."""

import json
import os

import numpy
import torch
from PIL import Image
from transformers import VitPoseBackboneConfig, VitPoseConfig, VitPoseForPoseEstimation, VitPoseImageProcessor

HERE = os.path.dirname(os.path.abspath(__file__))
HEIGHT, WIDTH, SIDE, POINTS = 64, 48, 64, 6
# x1, y1, x2, y2; the last leaves little room to the edges.
BOXES = [(8, 8, 24, 40), (30, 20, 58, 36), (2, 3, 62, 61)]


def photo():
    y, x = numpy.mgrid[:SIDE, :SIDE]
    waves = [127 + 80 * numpy.sin(x / a + c) * numpy.cos(y / b - c) for a, b, c in ((5, 9, 0), (8, 6, 1), (11, 4, 2))]
    return Image.fromarray(numpy.stack(waves, -1).astype(numpy.uint8))


def network():
    torch.manual_seed(9)
    backbone = VitPoseBackboneConfig(image_size=(HEIGHT, WIDTH), patch_size=(8, 8), hidden_size=32, num_hidden_layers=1,
                                     num_attention_heads=2, mlp_ratio=2, out_indices=[1])
    config = VitPoseConfig(backbone_config=backbone, num_labels=POINTS, scale_factor=4, use_simple_decoder=True,
                           id2label={i: f"point {i}" for i in range(POINTS)})
    net = VitPoseForPoseEstimation(config).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if name.endswith("weight") and weight.dim() > 1:
                weight.normal_(0, 1 / weight[0].numel() ** .5)
        # Maps like those of a trained net: a few hills of up to about 1.
        net.head.conv.weight.mul_(.6)
    return net


def main():
    net, processor = network(), VitPoseImageProcessor(size={"height": HEIGHT, "width": WIDTH})
    picture = photo()
    picture.save(os.path.join(HERE, "photo.png"))
    torch.onnx.export(net, torch.zeros(1, 3, HEIGHT, WIDTH), os.path.join(HERE, "model.onnx"), dynamo=False,
                      input_names=["pixel_values"], output_names=["heatmaps"], opset_version=17,
                      dynamic_axes={"pixel_values": {0: "batch"}, "heatmaps": {0: "batch"}})
    net.config.architectures = ["VitPoseForPoseEstimation"]
    net.config.save_pretrained(HERE)
    processor.save_pretrained(HERE)
    poses = []
    for box in [(0, 0, SIDE, SIDE), *BOXES]:
        corner = [[[box[0], box[1], box[2] - box[0], box[3] - box[1]]]]
        with torch.no_grad():
            outputs = net(**processor(picture, boxes=corner, return_tensors="pt"))
        pose = processor.post_process_pose_estimation(outputs, boxes=corner)[0][0]
        poses.append({"box": box, "points": pose["keypoints"].tolist(), "scores": pose["scores"].tolist()})
    # A picture of the input's size, which nothing resizes; in pixels of the input.
    ready = picture.crop((0, 0, WIDTH, HEIGHT))
    pixels = processor(ready, boxes=None, do_affine_transform=False, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        heatmaps = net(pixels).heatmaps.numpy()
    sides = numpy.array([[WIDTH - 1, HEIGHT - 1]], numpy.float32)
    points, scores = processor.keypoints_from_heatmaps(heatmaps, sides / 2, sides / 200)
    poses.append({"box": (0, 0, WIDTH, HEIGHT), "points": points[0].tolist(), "scores": scores[0, :, 0].tolist()})
    ready.save(os.path.join(HERE, "ready.png"))
    with open(os.path.join(HERE, "poses.json"), "w", encoding="utf-8") as file:
        json.dump(poses, file)
        file.write("\n")


if __name__ == "__main__":
    main()
