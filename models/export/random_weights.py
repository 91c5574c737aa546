"""Seeded weights for tests and benches that must run where no weights can be downloaded.

Freshly initialised networks are poor test models: BatchNormalization statistics are still 0 and 1,
so activations explode or vanish with depth, some heads start at zero, and every image gets the same
class. Here the statistics are measured on seeded images and the head is scaled, so logits have the
size of a trained model's and differ from image to image.
"""

import math

import numpy
import torch
from torch import nn


def structured_images(count, height, width, seed):
    """count RGB images [N, H, W, 3] uint8 with what photos have: gradients, edges, texture, noise."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width].astype(numpy.float32)
    images = numpy.empty((count, height, width, 3), numpy.uint8)
    for image in images:
        angle = random.uniform(0, 2 * math.pi, 3)
        ramp = numpy.stack([numpy.cos(a) * x / width + numpy.sin(a) * y / height for a in angle], -1)
        canvas = random.uniform(60, 190, 3) + random.uniform(30, 90) * ramp
        for _ in range(int(random.integers(3, 9))):  # shapes with hard edges
            cy, cx = random.uniform(0, height), random.uniform(0, width)
            ry, rx = random.uniform(0.05, 0.4) * height, random.uniform(0.05, 0.4) * width
            dy, dx = (y - cy) / ry, (x - cx) / rx
            inside = numpy.maximum(abs(dy), abs(dx)) < 1 if random.random() < 0.5 else dy**2 + dx**2 < 1
            canvas[inside] = 0.3 * canvas[inside] + 0.7 * random.uniform(0, 255, 3)
        frequency, direction = random.uniform(4, 40), random.uniform(0, math.pi)
        wave = numpy.sin(2 * math.pi * frequency * (numpy.cos(direction) * x / width +
                                                    numpy.sin(direction) * y / height))
        canvas = canvas + random.uniform(0, 40) * wave[..., None] + random.normal(0, 8, canvas.shape)
        image[...] = numpy.clip(numpy.rint(canvas), 0, 255)
    return images


def normalise(images, mean, std):
    """uint8 [N, H, W, 3] to the float32 [N, 3, H, W] a model takes."""
    scaled = (images.astype(numpy.float32) / 255 - numpy.float32(mean)) / numpy.float32(std)
    return numpy.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def head_of(model, classes):
    """The last Linear or 1x1 convolution that gives `classes` numbers."""
    heads = [m for m in model.modules()
             if (isinstance(m, nn.Linear) and m.out_features == classes) or
             (isinstance(m, nn.Conv2d) and m.out_channels == classes)]
    if not heads:
        raise ValueError(f"no layer with {classes} outputs found to scale")
    return heads[-1]


def wake_branches(model):
    """Sets scales that start at (nearly) zero, BatchNormalization's in a residual branch or a layer
    scale of 1e-6, to 0.5: training would grow them, and until then their branch does nothing, so
    that no test could see it computed wrongly."""
    for name, parameter in model.named_parameters():
        is_scale = "bias" not in name and parameter.dim() > 0 and parameter.numel() == len(parameter)
        if is_scale and float(parameter.abs().max()) < 0.01:
            nn.init.constant_(parameter, 0.5)


@torch.no_grad()
def calibrate(model, classes, height, width, mean, std, seed, logit_std=2.0, count=0):
    """Measures BatchNormalization statistics, then centres and scales the head.

    On return, over the calibration images, a class's logit has mean 0 and the logits' standard
    deviation is `logit_std`; model is in eval mode. Same seed, same torch: same weights. count:
    images to measure on; 0: as many as the kind of network wants.
    """
    torch.manual_seed(seed)
    # Networks with LayerNorm have no statistics to measure and are slow without an optimised BLAS.
    count = count or (8 if any(isinstance(m, nn.LayerNorm) for m in model.modules()) else 32)
    images = torch.from_numpy(normalise(structured_images(count, height, width, seed + 1), mean, std))
    head = head_of(model, classes)
    if float(head.weight.abs().max()) == 0:  # vit's head starts at zero
        nn.init.trunc_normal_(head.weight, std=1 / math.sqrt(head.weight[0].numel()))

    wake_branches(model)
    model.eval()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    momenta = [m.momentum for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None  # a plain average over the calls below
        m.train()
    if norms:
        for chunk in images.split(16):
            model(chunk)
    for m, momentum in zip(norms, momenta):
        m.momentum = momentum
    model.eval()

    # squeezenet has a ReLU and an average between its head and its output, so the bias is found on
    # the head's own output, the scale afterwards on the logits.
    collected = []
    hook = head.register_forward_hook(lambda _m, _i, out: collected.append(out))
    for chunk in images.split(8):
        model(chunk)
    hook.remove()
    outputs = torch.cat(collected)
    axes = [0] + list(range(2, outputs.dim()))
    if head.bias is not None:
        head.bias -= outputs.mean(dim=axes)
    logits = torch.cat([model(chunk) for chunk in images.split(8)])
    scale = logit_std / float(logits.std(dim=0).mean())
    head.weight *= scale
    if head.bias is not None:
        head.bias *= scale
    return model
