"""Makes this folder: two seeded detectors with the inputs and outputs of PaddleDetection's exports, photos, and the
boxes that its deploy/python/infer.py finds: the photo resized to the input, `scale_factor` that of the resize, rows of
each photo by the count, boxes in pixels of the photo. Needs numpy, onnx, onnxruntime and Pillow.

    suppressed.onnx   PP-YOLOE, PicoDet: NonMaxSuppression, one photo
    queries.onnx      RT-DETR: the best pairs of query and class, any number of photos"""

import json
import os

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

HERE = os.path.dirname(os.path.abspath(__file__))
HEIGHT, WIDTH, CELL, CLASSES, QUERIES = 48, 64, 8, 3, 20
CELLS = (HEIGHT // CELL) * (WIDTH // CELL)
THRESHOLD = .25
PHOTOS = [(120, 60), (50, 90), (64, 48)]


class Net:
    def __init__(self):
        self.nodes, self.weights, self.random = [], [], numpy.random.default_rng(33)

    def constant(self, values, dtype=numpy.int64):
        name = f"constant{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(numpy.asarray(values, dtype), name))
        return name

    def add(self, op, *inputs, outputs=1, **attributes):
        names = [f"{op.lower()}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def head(self):
        """Boxes [N, cells, 4] by corners, as shares of the input, and scores [N, cells, classes]."""
        weight = self.random.normal(0, .25, (4 + CLASSES, 3, CELL, CELL))
        bias = self.random.normal([0] * 4 + [-3] * CLASSES, .3)
        out = self.add("Conv", "image", self.constant(weight, numpy.float32), self.constant(bias, numpy.float32), strides=[CELL, CELL])
        out = self.add("Transpose", self.add("Reshape", out, self.constant([0, 4 + CLASSES, CELLS])), perm=[0, 2, 1])
        raw, logits = self.add("Split", out, self.constant([4, CLASSES]), outputs=2, axis=2)
        y, x = numpy.mgrid[:HEIGHT // CELL, :WIDTH // CELL].reshape(2, -1) + .5
        centres = numpy.stack([x * CELL / WIDTH, y * CELL / HEIGHT], 1)
        reach, sign = self.add("Sigmoid", raw), numpy.float32([-.3, -.3, .3, .3])
        moved = self.add("Mul", reach, self.constant(sign, numpy.float32))
        boxes = self.add("Add", moved, self.constant(numpy.tile(centres, 2)[None], numpy.float32))
        return boxes, self.add("Sigmoid", logits)

    def write(self, name, inputs, rows, count, batch):
        self.nodes += [helper.make_node("Identity", [rows], ["rows"]), helper.make_node("Identity", [count], ["bbox_num"])]
        shapes = {"im_shape": [batch, 2], "image": [batch, 3, HEIGHT, WIDTH], "scale_factor": [batch, 2]}
        graph = helper.make_graph(self.nodes, "net", [helper.make_tensor_value_info(i, TensorProto.FLOAT, shapes[i]) for i in inputs],
                                  [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["found", 6]),
                                   helper.make_tensor_value_info("bbox_num", TensorProto.INT32, [batch])], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, os.path.join(HERE, name))


def corners_of(net, rows_and_columns):
    """[N, 1, 4]: y, x as x, y, x, y."""
    y, x = net.add("Split", rows_and_columns, outputs=2, axis=1)
    return net.add("Reshape", net.add("Concat", x, y, x, y, axis=1), net.constant([-1, 1, 4]))


def suppressed():
    net = Net()
    shares, scores = net.head()
    sides = net.constant([[[WIDTH, HEIGHT, WIDTH, HEIGHT]]], numpy.float32)
    boxes = net.add("Div", net.add("Mul", shares, sides), corners_of(net, "scale_factor"))
    by_class = net.add("Transpose", scores, perm=[0, 2, 1])
    kept = net.add("NonMaxSuppression", boxes, by_class, net.constant([100]), net.constant([.3], numpy.float32),
                   net.constant([.1], numpy.float32))
    classes = net.add("Gather", kept, net.constant([1]), axis=1)
    places = net.add("Gather", kept, net.constant([2]), axis=1)
    zeros = net.add("Sub", places, places)
    score = net.add("Unsqueeze", net.add("GatherND", by_class, net.add("Concat", zeros, classes, places, axis=1)), net.constant([1]))
    corners = net.add("GatherND", boxes, net.add("Concat", zeros, places, axis=1))
    rows = net.add("Concat", net.add("Cast", classes, to=TensorProto.FLOAT), score, corners, axis=1)
    count = net.add("Cast", net.add("Slice", net.add("Shape", rows), net.constant([0]), net.constant([1])), to=TensorProto.INT32)
    net.write("suppressed.onnx", ["image", "scale_factor"], rows, count, 1)


def queries():
    net = Net()
    shares, scores = net.head()
    best, places = net.add("TopK", net.add("Flatten", scores), net.constant([QUERIES]), outputs=2)
    labels = net.add("Mod", places, net.constant(CLASSES))
    query = net.add("Div", places, net.constant(CLASSES))
    batch = net.add("Squeeze", net.add("Gather", net.add("Shape", best), net.constant([0])))
    numbers = net.add("Range", net.constant(0), batch, net.constant(1))
    repeats = net.add("Concat", net.constant([1]), net.constant([QUERIES]), axis=0)
    numbers = net.add("Tile", net.add("Unsqueeze", numbers, net.constant([1])), repeats)
    pairs = net.add("Concat", *(net.add("Unsqueeze", part, net.constant([2])) for part in (numbers, query)), axis=2)
    found = net.add("GatherND", shares, pairs)
    sides = net.add("Floor", net.add("Add", net.add("Div", "im_shape", "scale_factor"), net.constant(.5, numpy.float32)))
    boxes = net.add("Mul", found, corners_of(net, sides))
    columns = [net.add("Unsqueeze", part, net.constant([2])) for part in (net.add("Cast", labels, to=TensorProto.FLOAT), best)]
    rows = net.add("Reshape", net.add("Concat", *columns, boxes, axis=2), net.constant([-1, 6]))
    count = net.add("Tile", net.constant([QUERIES], numpy.int32), net.add("Reshape", batch, net.constant([1])))
    net.write("queries.onnx", ["im_shape", "image", "scale_factor"], rows, count, "batch")


def photo(width, height):
    y, x = numpy.mgrid[:height, :width]
    waves = [127 + 120 * numpy.sin(x / a + c) * numpy.cos(y / b - c) for a, b, c in ((4, 7, 0), (6, 5, 1), (9, 3, width))]
    return Image.fromarray(numpy.stack(waves, -1).astype(numpy.uint8))


def find(name, pictures):
    """The boxes of each photo, best first: class, score, corners."""
    session = onnxruntime.InferenceSession(os.path.join(HERE, name))
    pixels = [numpy.float32(p.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST)).transpose(2, 0, 1) / 255 for p in pictures]
    feeds = {"image": numpy.stack(pixels), "im_shape": numpy.float32([[HEIGHT, WIDTH]] * len(pictures)),
             "scale_factor": numpy.float32([[HEIGHT / p.height, WIDTH / p.width] for p in pictures])}
    rows, counts = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    found = []
    for picture, own in zip(pictures, numpy.split(rows, numpy.cumsum(counts)[:-1]), strict=True):
        own = own[own[:, 1] > THRESHOLD]
        own[:, 2:] = own[:, 2:].clip(0, [picture.width, picture.height] * 2)
        found.append(own[numpy.argsort(-own[:, 1], kind="stable")].astype(float).round(4).tolist())
    return found


def main():
    suppressed()
    queries()
    pictures = [photo(*sides) for sides in PHOTOS]
    for i, picture in enumerate(pictures):
        picture.save(os.path.join(HERE, f"photo{i}.png"))
    boxes = {"suppressed": [find("suppressed.onnx", [p])[0] for p in pictures], "queries": find("queries.onnx", pictures)}
    with open(os.path.join(HERE, "boxes.json"), "w", encoding="utf-8") as file:
        json.dump(boxes, file)
        file.write("\n")
    print({name: [len(own) for own in found] for name, found in boxes.items()})


if __name__ == "__main__":
    main()
