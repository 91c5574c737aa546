"""Digits as a pen draws them: polylines and arcs with seeded wobble, rasterised with round ends.

They join the training images because scikit-learn's digits come from one form and one scanner: 8x8
pixels each, always filling the frame. A mouse on a canvas makes even strokes of one width, digits of
other shapes (a 1 that is a bare line, a 7 without its bar, a closed 4) and corners that are sharp.
"""

import math

import numpy


def arc(cx, cy, rx, ry, start, end, points=12):
    """Points on an ellipse from angle start to end, degrees, clockwise from the right (y is down)."""
    return [(cx + rx * math.cos(math.radians(a)), cy + ry * math.sin(math.radians(a)))
            for a in numpy.linspace(start, end, points)]


# Each shape is a list of strokes, each stroke a list of (x, y) in a box of 1 x 1. A shape may be a
# function of a random generator where a fixed one would be too stiff.
SHAPES = {
    0: [lambda r: [arc(.5, .5, r.uniform(.22, .4), .46, -100, 262 + r.uniform(-8, 12), 22)]],
    1: [lambda r: [[(.5, .04), (.5 + r.uniform(-.1, .1), .96)]],
        lambda r: [[(r.uniform(.22, .4), r.uniform(.18, .34)), (.54, .04), (.54, .96)]],
        lambda r: [[(.3, .22), (.52, .04), (.52, .94)], [(.26, .95), (.78, .95)]]],
    2: [lambda r: [arc(.5, .28, r.uniform(.24, .34), .24, -165, 40, 12) +
                   [(.14, .95), (.84, r.uniform(.92, .97))]],
        lambda r: [arc(.48, .27, .28, .23, -160, 55, 12) + [(.3, .78)] +
                   arc(.24, .85, .1, .09, -60, -330, 10) + [(.5, .9), (.84, .92)]]],
    3: [lambda r: [arc(.46, .27, .27, .22, -155, 85, 12) +
                   arc(.46, .72, r.uniform(.28, .34), .24, -88, 155, 14)],
        lambda r: [[(.18, .06), (.76, .06), (.44, .42)] + arc(.45, .7, .31, .26, -88, 150, 12)]],
    4: [lambda r: [[(.34, .05), (.16, r.uniform(.5, .62)), (.84, r.uniform(.52, .62))],
                   [(r.uniform(.58, .68), r.uniform(.1, .36)), (.6, .96)]],
        lambda r: [[(.62, .96), (.62, .04), (.12, r.uniform(.58, .7)), (.86, r.uniform(.6, .68))]],
        lambda r: [[(.26, .05), (.24, .46), (.7, r.uniform(.44, .5))], [(.72, .05), (.7, .96)]]],
    5: [lambda r: [[(.78, .06), (.28, .06), (.24, .44)] +
                   arc(.46, .67, r.uniform(.28, .34), .27, -120, 150, 16)],
        lambda r: [[(.28, .08), (.25, .46)] + arc(.47, .68, .31, .27, -125, 145, 14),
                   [(.28, .07), (.8, .06)]]],
    6: [lambda r: [arc(.62, .42, .4, .4, -75, -165, 8) +
                   arc(.5, .7, r.uniform(.24, .32), .25, -180, 180, 18)],
        lambda r: [[(.62, .04), (.36, .34), (.22, .66)] + arc(.49, .71, .27, .24, -190, 170, 18)]],
    7: [lambda r: [[(.16, .07), (.82, .07), (r.uniform(.3, .5), .96)]],
        lambda r: [[(.16, .07), (.82, .07), (.4, .96)],
                   [(r.uniform(.28, .36), .5), (.78, r.uniform(.46, .52))]],
        lambda r: [[(.17, .2), (.18, .07), (.82, .07), (.6, .42), (.44, .96)]]],
    8: [lambda r: [arc(.5, .27, r.uniform(.2, .27), .23, 90, 450, 18),
                   arc(.5, .73, r.uniform(.24, .32), .24, -90, 270, 18)],
        lambda r: [[(.74, .14)] + arc(.48, .26, .24, .21, -40, -215, 10) +
                   arc(.52, .72, .27, .24, -60, 210, 16) + [(.36, .56), (.76, .14)]]],
    9: [lambda r: [arc(.48, .29, r.uniform(.23, .3), .25, 10, 370, 18) +
                   [(.74, .5), (r.uniform(.56, .74), .96)]],
        lambda r: [arc(.48, .29, .27, .25, -20, 340, 18) + [(.76, .3)] +
                   arc(.42, .66, .33, .3, -20, 130, 10)]],
}


def wobble(stroke, random, amount):
    """Moves a stroke's points by smooth noise, so that it bends rather than shakes."""
    points = numpy.array(stroke, numpy.float32)
    knots = random.normal(0, amount, (4, 2))
    along = numpy.linspace(0, 3, len(points))
    for axis in (0, 1):
        points[:, axis] += numpy.interp(along, numpy.arange(4), knots[:, axis])
    return points


def rasterise(strokes, size, width):
    """Coverage [size, size] float32 in 0 ... 1 of strokes `width` pixels wide with round ends."""
    y, x = numpy.mgrid[0:size, 0:size].astype(numpy.float32) + 0.5
    nearest = numpy.full((size, size), 1e9, numpy.float32)
    for points in strokes:
        points = numpy.asarray(points, numpy.float32) * size
        for (x0, y0), (x1, y1) in zip(points[:-1], points[1:]):
            dx, dy = x1 - x0, y1 - y0
            length = max(dx * dx + dy * dy, 1e-6)
            t = numpy.clip(((x - x0) * dx + (y - y0) * dy) / length, 0, 1)
            nearest = numpy.minimum(nearest, (x - x0 - t * dx)**2 + (y - y0 - t * dy)**2)
    return numpy.clip(width / 2 + 0.5 - numpy.sqrt(nearest), 0, 1)


def draw(count, size, seed):
    """count digits of each class: images [10 * count, size, size] float32, labels [10 * count]."""
    random = numpy.random.default_rng(seed)
    images, labels = [], []
    for label, shapes in SHAPES.items():
        for index in range(count):
            strokes = shapes[index % len(shapes)](random)
            amount = random.uniform(0.0, 0.055)
            strokes = [wobble(stroke, random, amount) * 0.86 + 0.07 for stroke in strokes]
            images.append(rasterise(strokes, size, random.uniform(0.045, 0.17) * size))
            labels.append(label)
    return numpy.stack(images), numpy.array(labels)
