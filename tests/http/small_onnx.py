"""Writes small ONNX files with the standard library: just enough protobuf (field numbers from
proto/onnx.proto) for a chain of convolutions that takes as long as a test needs."""

import json
import os
import random
import struct


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def blob(field, data):
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def ints(name, values):
    """AttributeProto of kind INTS."""
    return blob(1, name) + b"".join(number(8, value) for value in values) + number(20, 7)


def integer(name, value):
    """AttributeProto of kind INT."""
    return blob(1, name) + number(3, value) + number(20, 2)


def node(op, inputs, outputs, *attributes):
    return (b"".join(blob(1, name) for name in inputs) + b"".join(blob(2, name) for name in outputs) +
            blob(4, op) + b"".join(blob(5, attribute) for attribute in attributes))


def weights(name, *shape):
    count = 1
    for dim in shape:
        count *= dim
    # The same few numbers over and over: quick to write, and no convolution can blow up.
    pattern = struct.pack("<97f", *(random.Random(7).uniform(-1, 1) / 24 for _ in range(97)))
    return (b"".join(number(1, dim) for dim in shape) + number(2, 1) + blob(8, name) +
            blob(9, (pattern * (count // 97 + 1))[:4 * count]))


def tensor_info(name, *shape):
    dims = b"".join(blob(1, blob(2, dim) if isinstance(dim, str) else number(1, dim))
                    for dim in shape)
    return blob(1, name) + blob(2, blob(1, number(1, 1) + blob(2, dims)))


def convolutions(path, layers, side=128, channels=32):
    """[N, 3, side, side] -> `layers` 3x3 convolutions with ReLU -> mean -> [N, channels] scores."""
    nodes, tensors, value, width = [], [], "image", 3
    for i in range(layers):
        tensors.append(weights(f"w{i}", channels, width, 3, 3))
        nodes.append(node("Conv", [value, f"w{i}"], [f"c{i}"], ints("pads", [1, 1, 1, 1])))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"]))
        value, width = f"r{i}", channels
    nodes.append(node("GlobalAveragePool", [value], ["mean"]))
    nodes.append(node("Flatten", ["mean"], ["scores"]))
    write(path, nodes, tensors, [tensor_info("image", "N", 3, side, side)],
          [tensor_info("scores", "N", channels)])


def normalised_convolutions(path, layers, channels, side=14):
    """As convolutions, but each with a BatchNormalization, which is folded into a copy of the weights."""
    nodes, tensors, value, width = [], [], "image", 3
    for i in range(layers):
        tensors.append(weights(f"w{i}", channels, width, 3, 3))
        tensors += [constant(f"{part}{i}", number, channels) for part, number in zip("sbmv", (1.0, 0.1, 0.0, 1.0))]
        nodes.append(node("Conv", [value, f"w{i}"], [f"c{i}"], ints("pads", [1, 1, 1, 1])))
        nodes.append(node("BatchNormalization", [f"c{i}", *(f"{part}{i}" for part in "sbmv")], [f"n{i}"]))
        nodes.append(node("Relu", [f"n{i}"], [f"r{i}"]))
        value, width = f"r{i}", channels
    nodes += [node("GlobalAveragePool", [value], ["mean"]), node("Flatten", ["mean"], ["scores"])]
    write(path, nodes, tensors, [tensor_info("image", "N", 3, side, side)],
          [tensor_info("scores", "N", channels)])


def perceptron(path, *widths, side=32):
    """[N, 3, side, side] -> products with `widths` columns and ReLU -> scores."""
    nodes, tensors, value, rows = [node("Flatten", ["image"], ["flat"])], [], "flat", 3 * side * side
    for i, width in enumerate(widths):
        tensors.append(weights(f"w{i}", rows, width))
        nodes += [node("MatMul", [value, f"w{i}"], [f"p{i}"]), node("Relu", [f"p{i}"], [f"r{i}"])]
        value, rows = f"r{i}", width
    nodes.append(node("Identity", [value], ["scores"]))
    write(path, nodes, tensors, [tensor_info("image", "N", 3, side, side)],
          [tensor_info("scores", "N", rows)])


def recurrent(path, side=16, hidden=8, classes=10):
    """[N, 3, side, side] -> a convolution -> an LSTM along the width, as readers of text have -> scores."""
    nodes = [node("Conv", ["image", "w"], ["c"], ints("pads", [1, 1, 1, 1])), node("Relu", ["c"], ["r"]),
             node("ReduceMean", ["r"], ["m"], ints("axes", [2]), integer("keepdims", 0)),
             node("Transpose", ["m"], ["steps"], ints("perm", [2, 0, 1])),
             node("LSTM", ["steps", "W", "R"], ["", "last"], integer("hidden_size", hidden)),
             node("Squeeze", ["last", "axes"], ["row"]), node("MatMul", ["row", "head"], ["scores"])]
    write(path, nodes, [noise("w", 1, 0.5, 4, 3, 3, 3), noise("W", 2, 1, 1, 4 * hidden, 4),
                        noise("R", 3, 0.5, 1, 4 * hidden, hidden), noise("head", 4, 1, hidden, classes), integers("axes", [0])],
          [tensor_info("image", "N", 3, side, side)], [tensor_info("scores", "N", classes)])


def noise(name, seed, scale, *shape):
    """A tensor of reproducible random numbers."""
    count = 1
    for dim in shape:
        count *= dim
    generator = random.Random(seed)
    values = [generator.gauss(0, scale) for _ in range(count)]
    return (b"".join(number(1, dim) for dim in shape) + number(2, 1) + blob(8, name) +
            blob(9, struct.pack(f"<{count}f", *values)))


def constant(name, value, *shape):
    """A tensor of one number."""
    count = 1
    for dim in shape:
        count *= dim
    return (b"".join(number(1, dim) for dim in shape) + number(2, 1) + blob(8, name) +
            blob(9, struct.pack(f"<{count}f", *[value] * count)))


def classifier(path, layers=4, side=96, channels=48, classes=10, sharpness=1.0, offset=0.0):
    """A classifier with random weights that keep their activations' size from layer to layer. The
    greater `sharpness`, the more a small difference of its features changes its answer. `offset` is
    added to what each layer makes and subtracted again: what is rounded there is lost."""
    nodes, tensors, value, width = [], [], "image", 3
    for i in range(layers):
        tensors.append(noise(f"w{i}", i, (2 / (width * 9)) ** 0.5, channels, width, 3, 3))
        tensors.append(constant(f"b{i}", offset, channels))
        nodes.append(node("Conv", [value, f"w{i}", f"b{i}"], [f"c{i}"], ints("pads", [1, 1, 1, 1])))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"]))
        value, width = f"r{i}", channels
        if offset:
            tensors.append(constant(f"o{i}", -offset, 1, channels, 1, 1))
            nodes.append(node("Add", [value, f"o{i}"], [f"a{i}"]))
            value = f"a{i}"
    tensors.append(noise("head", 99, sharpness, channels, classes))
    nodes.append(node("GlobalAveragePool", [value], ["mean"]))
    nodes.append(node("Flatten", ["mean"], ["features"]))
    nodes.append(node("MatMul", ["features", "head"], ["scores"]))
    write(path, nodes, tensors, [tensor_info("image", "N", 3, side, side)],
          [tensor_info("scores", "N", classes)])


def not_finite_when_dark(path, side=16):
    """The square roots of the three channels' means as scores: NaN where a mean is negative."""
    write(path, [node("GlobalAveragePool", ["image"], ["mean"]), node("Flatten", ["mean"], ["flat"]),
                 node("Sqrt", ["flat"], ["scores"])], [],
          [tensor_info("image", "N", 3, side, side)], [tensor_info("scores", "N", 3)])


def linear(path, classes, weight, side=16):
    """Probabilities of `classes`: softmax of the sums of weight(class, row, column) times the image's numbers."""
    values = [weight(k, y, x) for _ in range(3) for y in range(side) for x in range(side) for k in range(classes)]
    table = (number(1, 3 * side * side) + number(1, classes) + number(2, 1) + blob(8, "w") +
             blob(9, struct.pack(f"<{len(values)}f", *values)))
    write(path, [node("Flatten", ["image"], ["flat"]), node("MatMul", ["flat", "w"], ["sums"]),
                 node("Softmax", ["sums"], ["probabilities"], integer("axis", 1))], [table],
          [tensor_info("image", "N", 3, side, side)], [tensor_info("probabilities", "N", classes)])


def fails_when_light(path, side=16):
    """Uses the channels' means as indices of a table. An index beyond its end makes the whole pass fail."""
    table = number(1, 2) + number(2, 1) + blob(8, "table") + blob(9, struct.pack("<2f", 1, 2))
    write(path, [node("GlobalAveragePool", ["image"], ["mean"]), node("Flatten", ["mean"], ["flat"]),
                 node("Cast", ["flat"], ["index"], integer("to", 7)),
                 node("Gather", ["table", "index"], ["scores"])], [table],
          [tensor_info("image", "N", 3, side, side)], [tensor_info("scores", "N", 3)])


def places_of_light(path, batch=1, side=8):
    """As a detector's boxes: [n, 4] indices of the n numbers of the image that are not 0."""
    write(path, [node("NonZero", ["image"], ["where"]),
                 node("Transpose", ["where"], ["places"], ints("perm", [1, 0])),
                 node("Cast", ["places"], ["boxes"], integer("to", 1))], [],
          [tensor_info("image", batch, 3, side, side)], [tensor_info("boxes", "n", 4)])


def boxes_of_pixels(path, numbers=6, side=240, metadata=()):
    """A detector whose boxes are the picture's first bytes of red: rows of x1, y1, x2, y2, score * 255, class and
    more, as many as there are in the first line."""
    scale = [255] * 4 + [1] + [255] * (numbers - 5)
    write(path, [node("Slice", ["image", "from", "to", "axes"], ["line"]), node("Reshape", ["line", "rows"], ["bytes"]),
                 node("Mul", ["bytes", "scale"], ["boxes"])],
          [integers("from", [0, 0, 0]), integers("to", [1, 1, side // numbers * numbers]), integers("axes", [1, 2, 3]),
           integers("rows", [1, -1, numbers]), floats("scale", (numbers,), scale)],
          [tensor_info("image", 1, 3, side, side)], [tensor_info("boxes", 1, side // numbers, numbers)], metadata)


def loops_when_light(folder, threshold, trips=0, side=8, finds_boxes=False):
    """A model folder: three scores, or the image's numbers as a detector's rows of six. A loop of `trips` matrix products, and more the further the image's mean is above `threshold`,
    from 0 to 1; at 0.1 above it, it runs longer than any test waits."""
    def scalar(name, kind, field, value_of):
        return number(2, kind) + blob(8, name) + blob(9, struct.pack(field, value_of))

    body = (blob(1, node("MatMul", ["x", "matrix"], ["y"])) +
            blob(1, node("Identity", ["more"], ["again"])) + blob(2, "body") +
            blob(11, value("i", 7)) + blob(11, value("more", 9)) +
            blob(11, tensor_info("x", 64, 64)) + blob(12, value("again", 9)) +
            blob(12, tensor_info("y", 64, 64)))
    attribute = blob(1, "body") + blob(6, body) + number(20, 5)
    write(os.path.join(folder, "model.onnx"),
          [node("ReduceMean", ["image"], ["mean"], integer("keepdims", 0)),
           node("Sub", ["mean", "threshold"], ["over"]), node("Relu", ["over"], ["length"]),
           node("Mul", ["length", "many"], ["long"]), node("Add", ["long", "fewest"], ["times"]),
           node("Cast", ["times"], ["trips"], integer("to", 7)),
           node("Loop", ["trips", "always", "matrix"], ["last"], attribute),
           node("ReduceMean", ["last"], ["zero"], integer("keepdims", 0)),
           *([node("Reshape", ["image", "rows"], ["flat"])] if finds_boxes else
             [node("GlobalAveragePool", ["image"], ["means"]), node("Flatten", ["means"], ["flat"])]),
           node("Add", ["flat", "zero"], ["boxes" if finds_boxes else "scores"])],
          [scalar("threshold", 1, "<f", threshold), scalar("many", 1, "<f", 1e12), scalar("fewest", 1, "<f", trips),
           scalar("always", 9, "<B", 1), weights("matrix", 64, 64), integers("rows", [1, -1, 6])],
          [tensor_info("image", 1, 3, side, side)],
          [tensor_info("boxes", 1, side * side // 2, 6) if finds_boxes else tensor_info("scores", 1, 3)])
    with open(os.path.join(folder, "preprocessor_config.json"), "w", encoding="ascii") as file:
        json.dump({"size": side, "do_normalize": False}, file)


def regions(path, side=4):
    """RoiAlign of a client's image, box and index of an image, with as many samples as the box has pixels."""
    write(path, [node("RoiAlign", ["image", "boxes", "which"], ["pooled"])], [],
          [tensor_info("image", 1, 1, side, side), tensor_info("boxes", 1, 4), value("which", 7, 1)],
          [tensor_info("pooled", 1, 1, 1, 1)])


def suppression(path, boxes, classes):
    """NonMaxSuppression of a client's boxes; each class has the same scores. `most` boxes of each are left."""
    write(path, [node("Expand", ["scores", "shape"], ["all"]),
                 node("NonMaxSuppression", ["boxes", "all", "most"], ["selected"])],
          [integers("shape", [1, classes, boxes])],
          [tensor_info("boxes", 1, boxes, 4), tensor_info("scores", 1, 1, boxes), value("most", 7, 1)],
          [value("selected", 7, "n", 3)])


def operator(path, op, opset, inputs, attributes=(), kind=1):
    """One node on clients' tensors, (name, element type, shape) each, None: left out; its output is of type `kind`."""
    names = [entry[0] if entry else "" for entry in inputs]
    outputs = ["y", "places"] if op == "TopK" else ["y"]
    write(path, [node(op, names, outputs, *attributes)], [], [value(*entry[:2], *entry[2]) for entry in inputs if entry],
          [blob(1, "y") + blob(2, blob(1, number(1, kind)))], opset=opset)


def unknown_operator(path):
    """A model with an operator that nobody has."""
    write(path, [node("Frobnicate", ["image"], ["scores"])], [],
          [tensor_info("image", "N", 3, 8, 8)], [tensor_info("scores", "N", 3, 8, 8)])


def floats(name, shape, values):
    """A tensor of these numbers."""
    return (b"".join(number(1, dim) for dim in shape) + number(2, 1) + blob(8, name) +
            blob(9, struct.pack(f"<{len(values)}f", *values)))


def integers(name, values):
    """A list of 64 bit integers."""
    return (number(1, len(values)) + number(2, 7) + blob(8, name) +
            blob(9, struct.pack(f"<{len(values)}q", *values)))


def always(path, outputs, side=64, batch="N", metadata=(), transposed=None, repeats=1):
    """An image in, always the same numbers out: `outputs` are (name, shape, values), each with a row an
    image. With a batch of 1 a shape may begin with "n", and has no row: that many depend on data. A fourth
    member is the number of the element type. The output named `transposed` has its rows on axis 1. All outputs
    are listed `repeats` times."""
    nodes = [node("GlobalAveragePool", ["image"], ["mean"])]
    tensors, infos = [], []
    for name, shape, values, *kind in outputs:
        rows = shape[0] == "n"
        tensors += [floats(f"{name}.zero", (len(values), 3, 1, 1), [0.0] * (3 * len(values))),
                    floats(f"{name}.values", (len(values),), [float(v) for v in values]),
                    integers(f"{name}.shape", [-1, *shape[1:]] if rows else [-1, *shape])]
        nodes += [node("Conv", ["mean", f"{name}.zero", f"{name}.values"], [f"{name}.numbers"]),
                  node("Reshape", [f"{name}.numbers", f"{name}.shape"], [f"{name}.floats"]),
                  node("Cast", [f"{name}.floats"], [f"{name}.cast"], integer("to", kind[0] if kind else 1)),
                  node("Transpose", [f"{name}.cast"], [name], ints("perm", [1, 0, 2])) if name == transposed
                  else node("Identity", [f"{name}.cast"], [name])]
        dims = shape if rows else (batch, *shape)
        infos.append(value(name, kind[0] if kind else 1,
                           *((dims[1], dims[0], *dims[2:]) if name == transposed else dims)))
    write(path, nodes, tensors, [tensor_info("image", batch, 3, side, side)], infos * repeats, metadata)


def faces(path, found, side=64):
    """SCRFD's outputs: faces of (score, left, top, right, bottom, ten numbers of points), pixels of the input. All are
    anchors of the first cell."""
    assert len(found) <= 2
    outputs = []
    for first, last in ((0, 1), (1, 5), (5, 15)):
        for stride in (8, 16, 32):
            rows = [[0] * (last - first)] * ((side // stride) ** 2 * 2)
            if stride == 8:
                entries = [(score, -left / 8, -top / 8, right / 8, bottom / 8, *(v / 8 for v in points))
                           for score, left, top, right, bottom, points in found]
                rows = [entry[first:last] for entry in entries] + rows[len(entries):]
            outputs.append((str(448 + len(outputs)), (len(rows), last - first), [v for row in rows for v in row]))
    always(path, outputs, side)


def write(path, nodes, tensors, inputs, outputs, metadata=(), opset=13):
    graph = (b"".join(blob(1, n) for n in nodes) + blob(2, "small") +
             b"".join(blob(5, t) for t in tensors) + b"".join(blob(11, i) for i in inputs) +
             b"".join(blob(12, o) for o in outputs))
    model = (number(1, 8) + blob(2, "small_onnx.py") + blob(7, graph) + blob(8, number(2, opset)) +
             b"".join(blob(14, blob(1, key) + blob(2, text)) for key, text in metadata))
    with open(path, "wb") as file:
        file.write(model)


def value(name, elem_type, *dims):
    """ValueInfoProto with any element type (numbers of TensorProto.DataType)."""
    shape = b"".join(blob(1, blob(2, dim) if isinstance(dim, str) else number(1, dim))
                     for dim in dims)
    return blob(1, name) + blob(2, blob(1, number(1, elem_type) + blob(2, shape)))


def sum_and_difference(path, elem_type=1):
    """Two inputs [N, 4] of one type: their sum, and the first one itself."""
    write(path, [node("Add", ["a", "b"], ["sum"]), node("Identity", ["a"], ["copy"])], [],
          [value("a", elem_type, "N", 4), value("b", elem_type, "N", 4)],
          [value("sum", elem_type, "N", 4), value("copy", elem_type, "N", 4)])


def fixed_row(path):
    """[3] -> [3]: no batch dimension."""
    write(path, [node("Relu", ["x"], ["y"])], [], [tensor_info("x", 3)], [tensor_info("y", 3)])


def doubled_image(path, side=8, scale=2.0):
    """[N, 3, side, side] -> the same times `scale`: an image in, no class out."""
    factor = number(1, 1) + number(2, 1) + blob(8, "factor") + blob(9, struct.pack("<f", scale))
    write(path, [node("Mul", ["image", "factor"], ["doubled"])], [factor],
          [tensor_info("image", "N", 3, side, side)], [tensor_info("doubled", "N", 3, side, side)])


def boxes_of_data(path, declared=(1, 32, 6)):
    """[1, 3, 8, 8] -> [1, 32, 6] through a Reshape whose target is computed from the picture, as
    exporters write non-maximum suppression into a detector."""
    dims = number(1, 3) + number(2, 7) + blob(8, "dims") + blob(9, struct.pack("<3q", 1, 32, 6))
    zero = number(2, 1) + blob(8, "zero") + blob(9, struct.pack("<f", 0))
    nodes = [node("ReduceMean", ["image"], ["mean"], integer("keepdims", 0)),
             node("Mul", ["mean", "zero"], ["none"]), node("Cast", ["none"], ["more"], integer("to", 7)),
             node("Add", ["dims", "more"], ["shape"]), node("Reshape", ["image", "shape"], ["boxes"])]
    write(path, nodes, [dims, zero], [tensor_info("image", 1, 3, 8, 8)],
          [tensor_info("boxes", *declared)])
