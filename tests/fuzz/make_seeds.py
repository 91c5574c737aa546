#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: make_seeds.py (Debian: python3-onnx, python3-numpy).

Small files that reach every part of the importer and most operators; they are kept in the tree, so
this only runs when a seed is added. onnx/: models and tensors. config/: the first byte picks the
reader (fuzz_config.c), the rest is the file.
"""

import os
import struct

import numpy as np
from onnx import AttributeProto, TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
F, I, B, U8, I8 = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8,
                   TensorProto.INT8)


def write(target, name, data):
    folder = os.path.join(HERE, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def constant(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.array(values, dtype=dtype), name)


def model(name, nodes, inputs, outputs, constants=(), opset=13, domains=(), functions=()):
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
        [helper.make_tensor_value_info(n, t, None) for n, t in outputs], list(constants))
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(d, v) for d, v in [("", opset), *domains]],
        functions=list(functions), producer_name="seeds", producer_version="1")
    made.ir_version = 8
    write("onnx", name, made.SerializeToString())


def operators():
    n = helper.make_node
    image = [("x", F, [1, 2, 4, 4])]
    weights = constant("w", np.ones((2, 2, 3, 3)) / 9)
    model("conv", [n("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
                   n("Relu", ["c"], ["y"])], image, [("y", F)], [weights])
    model("conv_transpose", [n("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2],
                               output_padding=[1, 0])], image, [("y", F)], [weights])
    model("pools", [n("MaxPool", ["x"], ["m", "i"], kernel_shape=[3, 3], ceil_mode=1,
                      strides=[2, 2]),
                    n("AveragePool", ["x"], ["a"], kernel_shape=[2, 2], auto_pad="SAME_LOWER",
                      count_include_pad=1),
                    n("GlobalAveragePool", ["a"], ["g"])],
          image, [("m", F), ("i", I), ("g", F)])
    model("norms", [n("BatchNormalization", ["x", "s", "b", "s", "s"], ["n"]),
                    n("InstanceNormalization", ["n", "s", "b"], ["o"]),
                    n("LRN", ["o"], ["l"], size=3),
                    n("LayerNormalization", ["l", "four"], ["y"])], image, [("y", F)],
          [constant("s", [1, 2]), constant("b", [0, 1]), constant("four", [1, 1, 1, 1])], opset=17)
    model("shapes", [n("Shape", ["x"], ["s"]), n("Gather", ["s", "zero"], ["n"], axis=0),
                     n("Unsqueeze", ["n", "axis"], ["u"]),
                     n("Concat", ["u", "minus"], ["t"], axis=0), n("Reshape", ["x", "t"], ["r"]),
                     n("Slice", ["r", "zeros", "big", "ones", "steps"], ["c"]),
                     n("Transpose", ["c"], ["p"], perm=[1, 0]), n("Squeeze", ["p"], ["q"]),
                     n("Pad", ["q", "pads"], ["y"], mode="reflect")],
          [("x", F, [1, 2, 4, 4])], [("y", F)],
          [constant("zero", 0, np.int64), constant("axis", [0], np.int64),
           constant("minus", [-1], np.int64), constant("zeros", [-1], np.int64),
           constant("big", [-(2**63)], np.int64), constant("ones", [1], np.int64),
           constant("steps", [-3], np.int64), constant("pads", [2, 1], np.int64)])
    model("indices", [n("TopK", ["x", "k"], ["v", "i"], axis=1), n("GatherElements", ["x", "i"],
                                                                  ["g"], axis=1),
                      n("ScatterND", ["x", "at", "up"], ["s"]), n("NonZero", ["s"], ["z"]),
                      n("OneHot", ["i", "depth", "two"], ["o"]), n("ArgMax", ["x"], ["a"], axis=1),
                      n("CumSum", ["x", "one"], ["c"])],
          [("x", F, [2, 3])], [("v", F), ("g", F), ("z", I), ("o", F), ("a", I), ("c", F)],
          [constant("k", [2], np.int64), constant("at", [[0, 1], [1, -1]], np.int64),
           constant("up", [5, 6]), constant("depth", 4, np.int64), constant("two", [0, 1]),
           constant("one", 1, np.int64)])
    model("reduce", [n("ReduceMean", ["x"], ["m"], axes=[-1], keepdims=0),
                     n("ReduceSum", ["x", "axes"], ["s"]), n("Softmax", ["x"], ["t"], axis=1),
                     n("Einsum", ["x", "x"], ["e"], equation="bi, bj -> ij")],
          [("x", F, [2, 3])], [("m", F), ("s", F), ("t", F), ("e", F)],
          [constant("axes", [0], np.int64)])
    model("resize", [n("Resize", ["x", "", "scales"], ["r"], mode="cubic", exclude_outside=1),
                     n("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest",
                       nearest_mode="floor", coordinate_transformation_mode="align_corners")],
          image, [("r", F), ("y", F)],
          [constant("scales", [1, 1, 1.5, 0.5]), constant("sizes", [1, 2, 3, 9], np.int64)])
    model("detection", [n("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["n"]),
                        n("RoiAlign", ["x", "rois", "of"], ["r"], output_height=2, output_width=2)],
          [("boxes", F, [1, 3, 4]), ("scores", F, [1, 1, 3]), *image], [("n", I), ("r", F)],
          [constant("most", 2, np.int64), constant("iou", 0.5), constant("rois", [[0, 0, 3, 3]]),
           constant("of", [0], np.int64)], opset=16)
    model("grid", [n("GridSample", ["x", "g"], ["y"], mode="bicubic", padding_mode="reflection")],
          image, [("y", F)], [constant("g", [[[[0.5, float("nan")], [9, -9]]]])], opset=16)
    model("quantised", [n("QuantizeLinear", ["x", "s", "z"], ["q"]),
                        n("QLinearConv", ["q", "s", "z", "w", "s", "wz", "s", "z"], ["c"]),
                        n("DequantizeLinear", ["c", "s", "z"], ["y"])], image, [("y", F)],
          [constant("s", 0.1), constant("z", 128, np.uint8), constant("wz", 0, np.int8),
           constant("w", np.ones((2, 2, 3, 3)), np.int8)])
    model("microsoft", [n("QLinearAdd", ["a", "s", "z", "a", "s", "z", "s", "z"], ["y"],
                          domain="com.microsoft")], [("a", U8, [2, 3])], [("y", U8)],
          [constant("s", 0.1), constant("z", 3, np.uint8)], domains=[("com.microsoft", 1)])
    model("types", [n("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), n("Cast", ["h"], ["i"], to=I),
                    n("Mod", ["i", "m"], ["d"]), n("Equal", ["d", "i"], ["b"]),
                    n("Where", ["b", "x", "x"], ["w"]), n("Clip", ["w", "", "six"], ["y"])],
          [("x", F, [3])], [("y", F)], [constant("m", [3, -2, 5], np.int64), constant("six", 6)])
    model("matrix", [n("Gemm", ["x", "w", "c"], ["g"], transB=1, alpha=0.5),
                     n("MatMul", ["g", "v"], ["y"])], [("x", F, ["batch", 3])], [("y", F)],
          [constant("w", np.ones((2, 3))), constant("c", [1, 2]), constant("v", [1, 2])])


def bodies():
    n = helper.make_node
    value = helper.make_tensor_value_info
    then = helper.make_graph([n("Add", ["x", "x"], ["t"])], "then", [], [value("t", F, None)])
    other = helper.make_graph([n("Neg", ["x"], ["e"])], "else", [], [value("e", F, None)])
    model("if", [n("If", ["c"], ["y"], then_branch=then, else_branch=other)],
          [("c", B, []), ("x", F, [2])], [("y", F)])
    body = helper.make_graph(
        [n("Identity", ["k"], ["k2"]), n("Add", ["v", "x"], ["v2"]), n("Identity", ["v2"], ["s"])],
        "body", [value("i", I, []), value("k", B, []), value("v", F, [2])],
        [value("k2", B, []), value("v2", F, [2]), value("s", F, [2])])
    model("loop", [n("Loop", ["m", "", "x"], ["y", "z"], body=body)], [("x", F, [2])],
          [("y", F), ("z", F)], [constant("m", 3, np.int64)])
    scan = helper.make_graph([n("Add", ["a", "b"], ["c"]), n("Identity", ["c"], ["d"])], "scan",
                             [value("a", F, [2]), value("b", F, [2])],
                             [value("c", F, [2]), value("d", F, [2])])
    model("scan", [n("Scan", ["s", "x"], ["y", "z"], body=scan, num_scan_inputs=1)],
          [("x", F, [3, 2])], [("y", F), ("z", F)], [constant("s", [0, 0])])


def functions():
    slope = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="slope")
    slope.attribute.append(reference)
    leaky = helper.make_function("local", "Leaky", ["a"], ["b"], [slope],
                                 [helper.make_opsetid("", 13)], ["slope"])
    twice = helper.make_function(
        "local", "Twice", ["p"], ["q"],
        [helper.make_node("Leaky", ["p"], ["m"], domain="local", slope=0.5),
         helper.make_node("Leaky", ["m"], ["q"], domain="local")],
        [helper.make_opsetid("", 13), helper.make_opsetid("local", 1)])
    model("functions", [helper.make_node("Twice", ["x"], ["y"], domain="local")],
          [("x", F, [2])], [("y", F)], domains=[("local", 1)], functions=[leaky, twice])


def tensors():
    typed = TensorProto(dims=[2], data_type=F, name="t", float_data=[1, 2])
    write("onnx", "tensor_float_data", typed.SerializeToString())
    half = TensorProto(dims=[2], data_type=TensorProto.FLOAT16, int32_data=[0x3C00, 0x7C00])
    write("onnx", "tensor_half", half.SerializeToString())
    raw = TensorProto(dims=[2, 1], data_type=TensorProto.DOUBLE, raw_data=struct.pack("<2d", 1, 2))
    write("onnx", "tensor_raw", raw.SerializeToString())
    external = TensorProto(dims=[2], data_type=F, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "../w.bin"), ("offset", "8"), ("length", "8")):
        external.external_data.add(key=key, value=text)
    write("onnx", "tensor_external", external.SerializeToString())
    # A group, an unknown field of every wire type, then a tensor.
    write("onnx", "tensor_unknown", bytes.fromhex("fb3f0801fc3ff83f05fd3f01020304") +
          raw.SerializeToString())


def configurations():
    texts = [
        (0, "labels", "tench\r\ngoldfish, Carassius auratus\n\nStraße\n"),
        (1, "torchserve", '{"0": ["n1", "tench"], "1": "goldfish"}'),
        (1, "id2label", '{"id2label": {"0": "cat", "1": "caf\\u00e9"}}'),
        (1, "timm_labels", '{"label_names": ["n1"], "label_descriptions": {"n1": "tench"}}'),
        (1, "label2id", '{"label2id": {"cat": 0}}'),
        (2, "ultralytics", "{0: 'person', 1: \"cat's \\u732b\", 2: '\\x41'}"),
        (3, "vit", '{"image_processor_type": "ViTImageProcessor", "size": {"height": 224, '
                   '"width": 224}, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": '
                   '[0.5, 0.5, 0.5], "do_rescale": true, "rescale_factor": 0.0039}'),
        (3, "convnext", '{"feature_extractor_type": "ConvNextFeatureExtractor", "crop_pct": 0.875, '
                        '"size": 224}'),
        (3, "clip", '{"feature_extractor_type": "CLIPFeatureExtractor", "size": 224, "crop_size": '
                    '224, "do_center_crop": true, "do_flip_channel_order": true}'),
        (3, "efficientnet", '{"image_processor_type": "EfficientNetImageProcessor", "size": [9, 8], '
                            '"rescale_offset": true, "include_top": true}'),
        (4, "timm", '{"pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.95, '
                    '"crop_mode": "border", "interpolation": "bicubic", "mean": [0.4, 0.5, 0.6]}}'),
        (5, "imgsz", "[640, 480]"),
        (6, "triton", 'max_batch_size: 8 # images\noutput [{ label_filename: "labels.txt" }]\n'),
    ]
    for reader, name, text in texts:
        write("config", name, bytes([reader]) + text.encode("utf-8"))


def outputs():
    """Layouts by number, [rows / 8, columns, classes of a map], thresholds; then floats."""
    nan, inf = float("nan"), float("inf")
    numbers = [0.5, 10, 20, 30, 60, 0.9, 1, 0.7, 2, -3, 0.3, 1]
    for layout in range(11):
        write("tasks", f"layout_{layout}", bytes([layout, 2, 6, 3, 64, 128, 99, 16 if layout in (9, 10) else layout])
              + struct.pack("<12f", *numbers))
    write("tasks", "grid", bytes([2, 0, 84, 2, 25, 77, 99, 0]) + struct.pack("<12f", *numbers))
    write("tasks", "not_finite", bytes([4, 1, 6, 4, 0, 0, 255, 15])
          + struct.pack("<8f", nan, inf, -inf, 3e38, -3e38, 1, 0.5, nan))
    write("tasks", "all_pass", bytes([4, 255, 6, 2, 0, 255, 255, 3]) + struct.pack("<7f", 1, 2, 3, 4, 5, 6, 7))


if __name__ == "__main__":
    outputs()
    operators()
    bodies()
    functions()
    tensors()
    configurations()
