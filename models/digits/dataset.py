"""The digits: where they come from, which are never trained on, and how they are varied.

scikit-learn bundles 1,797 handwritten digits of 8x8 pixels with 17 gray levels (the test part of
UCI's "Optical Recognition of Handwritten Digits"). split() sets 20 % of every class aside.
"""

import math

import numpy
import torch
import torch.nn.functional as functional
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SPLIT_SEED = 20240229
HELD_OUT = 0.2
SOURCE = 64  # pixels of a side of the images that are varied
CANVAS = 64  # pixels of a side of the scene a digit is placed in, before the model's resize


def load():
    """Ink [1797, 8, 8] float32 in 0 ... 1 (1 is ink) and labels [1797]."""
    digits = load_digits()
    return digits.images.astype(numpy.float32) / 16, digits.target


def split(labels, mode="random"):
    """Indices (train, held out) into load(). "random": stratified, 20 % of each class, fixed seed.
    "blocks": the last 20 % as they lie, which are other writers' digits for the most part."""
    indices = numpy.arange(len(labels))
    if mode == "blocks":
        cut = len(labels) - int(round(HELD_OUT * len(labels)))
        return indices[:cut], indices[cut:]
    train, held_out = train_test_split(indices, test_size=HELD_OUT, stratify=labels,
                                       random_state=SPLIT_SEED)
    return numpy.sort(train), numpy.sort(held_out)


def render(ink, index):
    """One digit as a client would post it: a 64x64 gray Pillow image.

    Bicubic to 48x48, a margin of 8 pixels, 16 gray levels (the source has 17; files stay small).
    Even indices are dark on white, odd ones white on black.
    """
    digit = Image.fromarray(numpy.uint8(numpy.rint(ink * 255))).resize((48, 48), Image.BICUBIC)
    page = numpy.zeros((64, 64), numpy.uint8)
    page[8:56, 8:56] = numpy.uint8(numpy.rint(numpy.asarray(digit) / 17.0)) * 17
    return Image.fromarray(page if index % 2 else 255 - page)


def enlarge(ink):
    """Ink [N, 8, 8] to [N, 1, SOURCE, SOURCE], bicubic, clipped to 0 ... 1."""
    big = functional.interpolate(torch.from_numpy(ink)[:, None], (SOURCE, SOURCE), mode="bicubic",
                                 align_corners=False)
    return big.clamp(0, 1)


def uniform(count, low, high, random):
    return torch.empty(count, 1, 1, 1).uniform_(low, high, generator=random)


def chance(count, probability, random):
    return torch.rand(count, 1, 1, 1, generator=random) < probability


def place(ink, random):
    """Rotates, shears, stretches, scales, shifts and bends ink [N, 1, S, S] on a CANVAS scene."""
    n = len(ink)
    angle = uniform(n, -0.30, 0.30, random).flatten()
    shear = uniform(n, -0.35, 0.35, random).flatten()
    size = uniform(n, 0.38, 1.06, random).flatten()
    aspect = torch.exp(uniform(n, -0.30, 0.30, random).flatten())
    matrix = torch.zeros(n, 2, 3)  # from places in the scene to places in the source
    cos, sin = torch.cos(angle), torch.sin(angle)
    wide, high = size * torch.sqrt(aspect), size / torch.sqrt(aspect)
    matrix[:, 0, 0], matrix[:, 0, 1] = (cos + shear * sin) / wide, (-sin + shear * cos) / wide
    matrix[:, 1, 0], matrix[:, 1, 1] = sin / high, cos / high
    room = (1.04 - size).clamp(0.04, 1) * 0.75  # how far the middle may leave the scene's middle
    shift = (torch.rand(n, 2, generator=random) * 2 - 1) * room[:, None]
    matrix[:, :, 2] = -(matrix[:, :, :2] @ shift[:, :, None])[:, :, 0]
    grid = functional.affine_grid(matrix, (n, 1, CANVAS, CANVAS), align_corners=False)
    bend = torch.randn(n, 2, 4, 4, generator=random) * uniform(n, 0, 0.06, random)
    bend = functional.interpolate(bend, (CANVAS, CANVAS), mode="bicubic", align_corners=True)
    grid = grid + bend.permute(0, 2, 3, 1)
    return functional.grid_sample(ink, grid, mode="bilinear", align_corners=False)


def harden(ink, random):
    """Changes stroke thickness and the softness of edges: an enlarged 8x8 digit is a blur, a pen's
    stroke has an edge. Half of the digits keep their own shades."""
    n = len(ink)
    level, slope = uniform(n, 0.25, 0.62, random), uniform(n, 3, 14, random)
    hard = torch.sigmoid(slope * (ink - level)) - torch.sigmoid(-slope * level)
    hard = hard / (torch.sigmoid(slope * (1 - level)) - torch.sigmoid(-slope * level))
    return torch.where(chance(n, 0.5, random), hard.clamp(0, 1), ink)


def blur(image, random):
    """Gaussian, sigma to 1.6 scene pixels, a new one for each batch, on half of the images."""
    sigma = float(torch.empty(1).uniform_(0.3, 1.6, generator=random))
    taps = torch.exp(-torch.arange(-4, 5, dtype=torch.float32)**2 / (2 * sigma * sigma))
    taps = taps / taps.sum()
    soft = functional.conv2d(image, taps.view(1, 1, 1, 9), padding=(0, 4))
    soft = functional.conv2d(soft, taps.view(1, 1, 9, 1), padding=(4, 0))
    return torch.where(chance(len(image), 0.5, random), soft, image)


def colour(ink, random):
    """Ink to RGB [N, 3, H, W] in 0 ... 1: either polarity, any contrast, uneven light, noise."""
    n = len(ink)
    dark, light = uniform(n, 0, 0.40, random), uniform(n, 0.62, 1, random)
    full = chance(n, 0.4, random)  # a canvas: pure black and pure white
    dark, light = torch.where(full, torch.zeros(1), dark), torch.where(full, torch.ones(1), light)
    tint = (torch.rand(n, 3, 2, 1, generator=random) - 0.5) * uniform(n, 0, 0.35, random)
    tint = torch.where(full | chance(n, 0.5, random), torch.zeros(1), tint)
    flip = chance(n, 0.5, random)
    paper, pen = torch.where(flip, dark, light), torch.where(flip, light, dark)
    paper, pen = (paper + tint[:, :, :1]).clamp(0, 1), (pen + tint[:, :, 1:]).clamp(0, 1)
    image = paper + ink * (pen - paper)
    # Light that falls off to one side, as on a photographed page.
    angle = uniform(n, 0, 2 * math.pi, random)
    axis = torch.linspace(-1, 1, ink.shape[-1])
    ramp = torch.cos(angle) * axis.view(1, 1, 1, -1) + torch.sin(angle) * axis.view(1, 1, -1, 1)
    strength = torch.where(full, torch.zeros(1), uniform(n, 0, 0.14, random))
    noise = torch.where(chance(n, 0.5, random), uniform(n, 0, 0.08, random), torch.zeros(1))
    grain = torch.randn(image.shape, generator=random)
    return (image * (1 + strength * ramp) + noise * grain).clamp(0, 1)


def vary(ink, side, random):
    """Training images from ink [N, 1, SOURCE, SOURCE]: RGB [N, 3, side, side] in 0 ... 1."""
    scene = colour(blur(harden(place(ink, random), random), random), random)
    small = functional.interpolate(scene, (side, side), mode="bilinear", antialias=True,
                                   align_corners=False)
    return small.clamp(0, 1)
