"""Writes golden outputs of SCRFD, YOLO-NAS and anomalib, and what they mean, with numpy alone, and faces that OpenCV 4
has aligned, into tests/unit/models/tasks/golden/. The decoding follows what the frameworks' documents say, box by box; it shares nothing
with lensd. A photo of 500 x 333 in an input of 64 x 64."""

import os

import cv2
import numpy

WIDTH, HEIGHT, SIDE = 500, 333, 64
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../unit/models/tasks/golden")


def put(name, values):
    numpy.save(os.path.join(FOLDER, name + ".npy"), numpy.asarray(values, numpy.float32))


def overlap(a, b):
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0
    shared = width * height
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def suppress(found, iou):
    """`found`: class, score, corners …; the greedy suppression of each class."""
    kept = []
    for one in sorted(found, key=lambda f: -f[1]):
        if all(k[0] != one[0] or overlap(k[2:6], one[2:6]) <= iou for k in kept):
            kept.append(one)
    return kept


def to_photo(values, gains):
    """x, y, x, y … of the input, whose upper left corner is that of the photo. Boxes are cut, points are not."""
    sides = WIDTH, HEIGHT
    return [min(max(v / gains[i % 2], 0), sides[i % 2]) if i < 4 else v / gains[i % 2] for i, v in enumerate(values)]


def scrfd(random):
    """InsightFace: two anchors at the upper left corner of each cell; distances and points in strides. Its det_scale is that
    of the height for both axes."""
    gains = 2 * (int(SIDE * HEIGHT / WIDTH) / HEIGHT,)
    rows, found = [], []
    for stride in (8, 16, 32):
        across = SIDE // stride
        anchors = across * across * 2
        scores = random.uniform(0, 1, anchors) ** 3
        boxes = random.uniform(.3, 2.2, (anchors, 4))
        points = random.uniform(-1.5, 1.5, (anchors, 10))
        rows.append(numpy.concatenate([scores[:, None], boxes, points], 1))
        for i in range(anchors):
            x, y = (i // 2 % across) * stride, (i // 2 // across) * stride
            left, top, right, bottom = boxes[i] * stride
            box = (x - left, y - top, x + right, y + bottom)
            at = [v * stride + (x, y)[k % 2] for k, v in enumerate(points[i])]
            if scores[i] > .5:
                found.append((0, scores[i], *box, *at))
    put("scrfd", numpy.concatenate(rows))
    put("scrfd_faces", [(*face[:2], *to_photo(face[2:], gains)) for face in suppress(found, .4)])


def yolo_nas(random):
    """SuperGradients: each class of a box above the threshold is a detection of its own."""
    count, gains = 84, (SIDE / WIDTH, SIDE / WIDTH)
    corner, size = random.uniform(0, 40, (count, 2)), random.uniform(8, 24, (count, 2))
    boxes = numpy.concatenate([corner, corner + size], 1)
    scores = random.uniform(0, 1, (count, 3)) ** 4
    put("yolo_nas_boxes", boxes)
    put("yolo_nas_scores", scores)
    found = [(c, scores[i, c], *boxes[i]) for i in range(count) for c in range(3) if scores[i, c] > .25]
    kept = suppress(found, .7)
    put("yolo_nas", [(*f[:2], *to_photo(f[2:], gains)) for f in kept])
    put("yolo_nas_flat", [(0, *f[2:6], f[1], f[0]) for f in kept])


def anomaly(random):
    """anomalib's mask of 6 x 5 points, and the pixels of a photo of 23 x 11 where its bilinear interpolation, without
    aligned corners, is above a half."""
    mask = random.uniform(0, 1, (6, 5)) > .6
    put("anomaly_mask", mask[None])

    def weights(pixels, points):
        at = numpy.clip((numpy.arange(pixels) + .5) * points / pixels - .5, 0, points - 1)
        first = numpy.minimum(at.astype(int), points - 2)
        table = numpy.zeros((pixels, points))
        table[numpy.arange(pixels), first] = 1 - (at - first)
        table[numpy.arange(pixels), first + 1] = at - first
        return table

    put("anomaly_photo", weights(11, 6) @ mask @ weights(23, 5).T > .5)


def umeyama(source, target):
    """The 2 x 3 matrix of Umeyama's paper (1991), equations 34 to 43."""
    from_middle, to_middle = source.mean(0), target.mean(0)
    covariance = (target - to_middle).T @ (source - from_middle) / len(source)
    u, d, v = numpy.linalg.svd(covariance)
    signs = numpy.array([1, numpy.sign(numpy.linalg.det(u) * numpy.linalg.det(v))])
    rotation = u @ numpy.diag(signs) @ v
    scale = (d * signs).sum() / (source - from_middle).var(0).sum()
    return numpy.column_stack([scale * rotation, to_middle - scale * rotation @ from_middle])


def aligned():
    """Points of three faces in a picture of 24 x 18 (one leaves it), and the crops of 28 x 28: ArcFace's, a quarter."""
    y, x, c = numpy.mgrid[:18, :24, :3]
    picture = (x * 37 + y * 91 + c * 50 + x * y * 7).astype(numpy.uint8)
    template = numpy.array([[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655],
                            [70.7299, 92.2041]]) / 4
    faces = numpy.array([[[9, 6], [15.25, 5.5], [12, 8.75], [9.75, 12], [14.5, 11.75]],
                         [[20, 2.5], [24.5, 9], [19, 8], [14, 7], [17.5, 12.5]],
                         [[15, 5.5], [9, 6], [12, 8.5], [14.5, 12], [9.5, 11.5]]])
    matrices = [umeyama(face, template) for face in faces]
    put("aligned_points", faces)
    put("aligned_template", template)
    put("aligned_maps", [cv2.invertAffineTransform(matrix) for matrix in matrices])
    put("aligned_pixels", [cv2.warpAffine(picture, matrix, (28, 28), borderValue=0) for matrix in matrices])


def main():
    aligned()
    anomaly(numpy.random.default_rng(8))
    scrfd(numpy.random.default_rng(5))
    yolo_nas(numpy.random.default_rng(6))


if __name__ == "__main__":
    main()
