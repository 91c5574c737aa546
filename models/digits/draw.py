#!/usr/bin/python3
"""Draws 20 digits the way people do on a canvas or on paper, to look at robustness.

    draw.py [FOLDER]      # default: tests/data/digits/drawn

280x280 pixels, a round brush. Digits 0 ... 9 light on black as the console's canvas posts them
(stroke 20 pixels), and 0 ... 9 in other hands, dark on grainy paper, in other sizes and places. The
strokes are written here by hand, point by point, and are not the ones that training draws with
(strokes.py). They show robustness; the accuracy is measured on the held-out handwriting.
"""

import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import needs  # noqa: E402,F401
import numpy
from PIL import Image, ImageDraw

HERE = os.path.dirname(os.path.abspath(__file__))
SIDE = 280

# Points of each stroke in pixels of the 280x280 canvas.
ON_BLACK = {
    0: [[(150, 48), (112, 62), (88, 104), (82, 158), (98, 206), (134, 232), (172, 222), (198, 182),
         (202, 126), (186, 76), (150, 48)]],
    1: [[(104, 92), (146, 50), (144, 230)]],
    2: [[(88, 98), (102, 62), (140, 48), (178, 64), (186, 102), (162, 144), (122, 186), (86, 226),
         (140, 222), (200, 226)]],
    3: [[(92, 62), (134, 48), (176, 66), (174, 104), (132, 130), (178, 146), (192, 186), (164, 224),
         (118, 230), (84, 208)]],
    4: [[(116, 52), (92, 156), (196, 154)], [(168, 96), (160, 236)]],
    5: [[(188, 54), (104, 56), (96, 126), (142, 116), (184, 138), (192, 184), (160, 224),
         (112, 226), (84, 204)]],
    6: [[(170, 46), (126, 82), (98, 136), (90, 186), (112, 226), (156, 230), (188, 200),
         (180, 162), (142, 146), (104, 166)]],
    7: [[(86, 60), (196, 56), (164, 122), (136, 178), (122, 234)]],
    8: [[(178, 78), (144, 50), (104, 66), (106, 104), (144, 134), (184, 172), (180, 214),
         (138, 232), (98, 212), (100, 172), (146, 134), (180, 104), (178, 78)]],
    9: [[(184, 94), (156, 56), (114, 60), (92, 98), (108, 138), (150, 140), (182, 106), (184, 94),
         (180, 164), (168, 234)]],
}
ON_PAPER = {
    0: [[(120, 70), (84, 98), (76, 150), (104, 190), (150, 184), (176, 140), (164, 92), (120, 70)]],
    1: [[(160, 40), (150, 140), (140, 244)]],
    2: [[(70, 110), (96, 70), (136, 78), (138, 118), (104, 170), (70, 206), (88, 188), (122, 210),
         (168, 204)]],
    3: [[(100, 40), (180, 42), (128, 108), (172, 122), (184, 176), (146, 220), (92, 206)]],
    4: [[(150, 244), (156, 40), (74, 172), (210, 176)]],
    5: [[(110, 60), (106, 122), (150, 118), (176, 150), (166, 196), (126, 214), (92, 196)],
        [(110, 60), (184, 52)]],
    6: [[(130, 44), (104, 110), (102, 180), (130, 218), (168, 200), (166, 160), (132, 148),
         (106, 176)]],
    7: [[(84, 70), (186, 66), (126, 226)], [(104, 148), (184, 140)]],
    8: [[(140, 48), (112, 68), (118, 108), (140, 124), (166, 104), (168, 66), (140, 48)],
        [(140, 124), (104, 156), (108, 208), (146, 230), (182, 204), (178, 156), (140, 124)]],
    9: [[(176, 90), (140, 60), (106, 88), (114, 128), (152, 132), (176, 90), (184, 160),
         (162, 214), (118, 220)]],
}


def stroke(draw, points, width, ink):
    """A line through `points` with round joints and ends."""
    draw.line(points, fill=ink, width=width)
    half = width / 2
    for x, y in points:
        draw.ellipse((x - half, y - half, x + half, y + half), fill=ink)


def picture(strokes, width, ink, paper, grain, random):
    image = Image.new("L", (SIDE * 2, SIDE * 2), paper)  # drawn twice as large, for smooth edges
    for points in strokes:
        stroke(ImageDraw.Draw(image), [(2 * x, 2 * y) for x, y in points], 2 * width, ink)
    image = image.resize((SIDE, SIDE), Image.BOX)
    if not grain:
        return image
    # Grain in blocks of 4 pixels and 8 levels apart: as visible as a camera's, and small as a file.
    noise = numpy.kron(random.integers(-grain, grain + 1, (SIDE // 4, SIDE // 4)), numpy.ones((4, 4)))
    return Image.fromarray(numpy.uint8(numpy.clip(numpy.asarray(image) + 8 * noise, 0, 255)))


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "../../tests/data/digits/drawn")
    os.makedirs(folder, exist_ok=True)
    random = numpy.random.default_rng(11)
    for digit in range(10):
        canvas = picture(ON_BLACK[digit], 20, 255, 0, 0, random)
        canvas.save(os.path.join(folder, f"{digit}_canvas.png"), optimize=True)
        paper = picture(ON_PAPER[digit], 9 + digit % 4 * 2, 40, 232, 1, random)
        paper.save(os.path.join(folder, f"{digit}_paper.png"), optimize=True)


if __name__ == "__main__":
    main()
