#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets: make_seeds.py (Debian: python3-onnx, python3-numpy).

Small files that reach every part of the importer and most operators; they are kept in the tree, so
this only runs when a seed is added. onnx/: models and tensors. In the others the first bytes pick what
reads the rest (fuzz_NAME.c). Files named by a hash are inputs that run.sh found and merge.sh kept.
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
    model("quantized", [n("QuantizeLinear", ["x", "s", "z"], ["q"]),
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
        (7, "align", '{"stages": [{"model": "a"}, {"model": "b", "align": "arcface"}, {"model": "c", "align": '
                     '{"size": "9x8", "points": [[1, 2], [3.5, -4], [5, 6]]}}]}'),
        (7, "pipeline", '{"stages": [{"model": "a"}, {"model": "b", "labels": ["car", 7], "min_score": 0.5, '
                        '"margin": 0.1, "max": 9, "sizes": ["320x48", "640x48"]}]}'),
        (7, "turn", '{"stages": [{"model": "a"}, {"model": "b", "turn": 0.9, "max": 9}, {"model": "c"}]}'),
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
    # RF-DETR with masks, masks of queries, faces, text.
    for name, layout, more in (("rf_detr", 11, 64), ("panoptic", 12, 0), ("panoptic_scaled", 12, 32), ("maskformer", 13, 32),
                               ("yunet", 14, 0), ("text", 15, 0), ("scrfd", 16, 0), ("yolo_nas", 18, 0), ("yolo_nas_flat", 19, 0), ("paddle", 24, 0)):
        write("tasks", name, bytes([layout, 12, 20, 9, 60, 128, 99, more]) + struct.pack("<12f", *numbers))
    write("tasks", "grid", bytes([2, 0, 84, 2, 25, 77, 99, 0]) + struct.pack("<12f", *numbers))
    write("tasks", "not_finite", bytes([4, 1, 6, 4, 0, 0, 255, 15])
          + struct.pack("<8f", nan, inf, -inf, 3e38, -3e38, 1, 0.5, nan))
    write("tasks", "all_pass", bytes([4, 255, 6, 2, 0, 255, 255, 3]) + struct.pack("<7f", 1, 2, 3, 4, 5, 6, 7))


def folders():
    """Outputs of a graph (fuzz_folder.c), then lensd.json, config.json, config.pbtxt."""
    def seed(name, head, outputs, *files):
        blank = [0] * 5 * (4 - len(outputs))
        write("folder", name, bytes([len(outputs) | head[0], *head[1:], *sum(outputs, []), *blank]) +
              b"\x1e".join(file.encode() for file in files))
    seed("yolov8", (0, 0x54, 80, 0), [[3, 1, 11, 20, 0]], '{"task": "detection", "layout": "yolov8", "iou": 0.5, '
         '"confidence": 0.25, "max_detections": 100, "classes": [0, "dog"], "agnostic": true}')
    seed("detr", (0, 0x54, 91, 0), [[0x13, 1, 15, 14, 0], [0x23, 1, 15, 5, 0]], '{"normalize": false}',
         '{"architectures": ["DetrForObjectDetection"], "num_classes": 91}')
    seed("torchvision", (0, 0x54, 91, 0), [[0x32, 0, 5, 0, 0], [0x49, 0, 0, 0, 0], [0x51, 0, 0, 0, 0]], "{}")
    seed("embedding", (0, 7, 0, 0), [[0x72, 1, 17, 0, 0]], '{"task": "embedding"}', '{"num_classes": 0}')
    seed("map", (0, 0x54, 3, 0), [[0x14, 1, 3, 9, 9]], '{"task": "segmentation"}')
    seed("classes", (8, 7, 127, 0), [[0x12, 1, 18, 0, 0]], '{"task": "classification"}', "{}",
         "version_policy: { specific { versions: [1, 3] } }")
    seed("ultralytics", (0, 0x54, 80, 6), [[3, 1, 16, 6, 0]], "", "", "version_policy { latest { num_versions: 2 } }")
    seed("tensors", (0, 0, 0, 0), [], '{"task": "tensors"}', "[]", "version_policy: { all { } }")


def settings():
    secret = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    zeros = "0" * 32
    for reader, name, text in [
            (0, "file", '{"port": 8080, "max_body": "64M", "idle-timeout": "2m", "watch": true, "precision": "auto",'
                        ' "cors-origin": ["https://a.example"], "log-format": "json", "memory": "cpu=2G"}'),
            (1, "words", "digits\n--port=0\n--host\n::1\n--max-body\n16MiB\n--memory\ncpu=512M,cuda:0=4G\n--grace\n"
                         "0.5\nLENSD_TOP_K=5\nLENSD_LOG_LEVEL=debug\n--trusted-proxies\n10.0.0.0/8,unix"),
            (1, "help", "--help"),
            (1, "words_wrong", "--max-bodi\n3\nLENSD_MODL=x\n--unix=/run/l\n--port=1"),
            (2, "keys", f"# name hash\nalice {secret} rate=10 burst=20\n\nbob.b-c_d@e SHA256:{'A' * 64}\r\n"),
            (3, "store", f"kernel {zeros} 8 winograd\nprecision {zeros} 3 a\nb\ncuda {zeros} 0 \n"),
            (4, "choice", "precision bf16\nfrom_folder 0\n"
                          "trial bf16 passed 21.4 19.1 44.8 41.9 2.15 1 64 30 30 0.0009 0.0031 0.99992\n")]:
        write("settings", name, bytes([reader]) + text.encode())


def requests():
    """First bytes: fuzz_head.c's options; fuzz_daemon.c's way to send, and where a write ends."""
    heads = [
        (0, "post", "POST /predict?top_k=5 HTTP/1.1\nHost: localhost:8080\nContent-Length: 10\nContent-Type: image/png\n"
                    "X-API-Key: secret\nX-Request-Id: a-1\nContent-Encoding: gzip\nX-Forwarded-For: 192.0.2.1, 10.1.2.3\n"
                    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (1, "preflight", "OPTIONS /predict HTTP/1.1\nHost: [::1]:80\nOrigin: https://b.example\n"
                         "Access-Control-Request-Method: POST"),
        (2, "admin", "PUT http://a.example/predictions/a%20b HTTP/1.1\nHost: A.example\nAuthorization: Bearer secret\n"
                     "Transfer-Encoding: chunked\nExpect: 100-continue\nOrigin: https://a.example"),
        (4, "twice", "POST /v2/models/m/versions/1/infer HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 2"),
        (8, "broken", "GET / HTTP/1.1\nHost: x\nContent-Length: 18446744073709551615\nX-Forwarded-For: ::ffff:10.0.0.1,x"),
        (24, "chunks", "POST /v1/models/m:predict HTTP/1.1\nHost: x\nTransfer-Encoding: gzip"),
        (0, "star", "OPTIONS * HTTP/1.0")]
    for option, name, text in heads:
        write("head", name, bytes([option]) + text.encode())
    streams = [
        ("pipelined", "GET / HTTP/1.1\r\nHost: x\r\n\r\nPOST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc"),
        ("chunked", "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: 10.0.0.1\r\n\r\n"
                    "3;a=b\r\nabc\r\n00A\r\n0123456789\r\n0\r\nT: v\r\n\r\nHEAD / HTTP/1.0\r\n\r\n"),
        ("bad_chunk", "PUT /echo HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nab"),
        ("both", "POST /m/a/v/1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        ("folded", "GET / HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\n: x\r\n\r\n"),
        ("expects", "POST /echo HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n123456789"),
        ("cut", "POST /admin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n123")]
    for name, text in streams:
        write("daemon", name, b"\x00\x02" + text.encode())
    for name, how in (("chunks", 1), ("chunks_small", 5), ("chunks_extended", 0x39)):
        write("daemon", name, bytes([how, 1]) + bytes(range(256)) * 2)
    for reader, name, text in ((1, "options", "?confidence=0.5&iou=1&max_detections=7&classes=0,dog&agnostic=true"),
                               (5, "logging", '{"log_info": false, "log_verbose_level": 1, "log_format": "json"}')):
        write("request", name, bytes([reader]) + text.lstrip("?").encode())
    external = TensorProto(dims=[2], data_type=F, name="w", data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "w.bin"), ("offset", "8"), ("length", "8")):
        external.external_data.add(key=key, value=text)
    model("external", [helper.make_node("Add", ["x", "w"], ["y"])], [("x", F, [2])], [("y", F)], [external])


def frigate():
    for name, text in (
            ("asks", '{"model_request": true, "model_name": "yolo.onnx"}'),
            ("sends", '{"model_data": true, "model_name": "yolo.onnx"}'),
            ("no_name", '{"model_request": true, "model_name": ""}'),
            ("int", '{"shape": [1, 320, 320, 3], "dtype": "uint8", "model_type": "ssd"}'),
            ("float", '{"shape": [1, 3, 640, 640], "dtype": "float32", "model_type": "yologeneric"}'),
            ("huge", '{"shape": [2147483647, 2147483647, 2147483647, 2147483647], "dtype": "float64"}'),
            ("negative", '{"shape": [1, -3, 8, 8.5], "dtype": "float32"}'),
            ("short", '{"shape": [1, 3, 8], "dtype": "float16"}'),
            ("type", '{"shape": [1, 3, 8, 8], "dtype": "object"}')):
        write("frigate", name, text.encode())


def dialects():
    """First bytes: fuzz_dialects.c's APIs; behind a NUL a parameter and its value."""
    for api, name, text in [
            (0, "roboflow", '{"api_key":"k","model_id":"a/1","image":[{"type":"base64","value":"AAAA"},{"value":"AA=="}],'
                            '"confidence":40,"iou_threshold":0.5,"max_detections":9,"class_filter":["a","b"]}'),
            (0, "roboflow_percent", "\0confidence\00040"),
            (1, "deepstack", '{"image":"data:image/png;base64,AAAA","min_confidence":"0.4"}'),
            (1, "deepstack_broken", '{"image":{"url":7}}'),
            (2, "hugging_face", '{"inputs":"AAAA","parameters":{"top_k":2,"threshold":0.3,"mask_threshold":null}}'),
            (2, "hugging_face_broken", '{"inputs":"AAAA","parameters":[1]}'),
            (3, "openai", '{"model":"m","input":["data:image/png;base64,AAAA","AAAA"],"encoding_format":"base64"}'),
            (3, "openai_messages", '{"messages":[{"content":[{"type":"text","text":"x"},'
                                   '{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}'),
            (5, "immich", '{"facial-recognition":{"detection":{"modelName":"immich-app/a.b:c","options":{"minScore":0.7}},'
                          '"recognition":{"modelName":"abc","options":null}}}'),
            (5, "immich_text", '{"clip":{"textual":{"modelName":"nllb","options":{"language":"pt-BR"}}}}'),
            (5, "immich_several", '{"ocr":{"detection":{"modelName":"a"},"recognition":{"modelName":"a"}},"clip":{"visual":{"modelName":"b"}}}'),
            (5, "immich_broken", '{"ocr":{"recognition":{"modelName":"..","options":{"minScore":"1"}}}}'),
            (3, "openai_address", '{"input":"https://example.org/a.png"}'),
            (6, "doods", '{"data":"AAAA","detector_name":"a","detect":{"person":60,"*":4.5},"id":"x","regions":[{"top":0,"left":0.1,'
                         '"bottom":1,"right":0.9,"covers":true,"detect":{"*":1}}]}'),
            (6, "doods_broken", '{"data":"AAAA","detector_name":"default","detect":[1],"preprocess":["grayscale"],"image":".jpg"}'),
            (7, "photoprism", '{"id":"x","model":"a","images":["data:image/png;base64,AAAA"]}'),
            (8, "cvat", '{"image":"AAAA","threshold":0.5}'),
            (8, "cvat_points", '{"image":"AAAA","pos_points":[[1,2.5]],"neg_points":[],"obj_bbox":[[0,0],[4,3]]}')]:
        write("dialects", name, bytes([api]) + text.encode())


if __name__ == "__main__":
    dialects()
    frigate()
    folders()
    settings()
    requests()
    outputs()
    operators()
    bodies()
    functions()
    tensors()
    configurations()
