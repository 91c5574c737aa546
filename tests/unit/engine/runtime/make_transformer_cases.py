#!/usr/bin/env python3
"""Writes transformer_cases.h and transformer_outputs.npy: Attention, RotaryEmbedding and RMSNormalization as ONNX's
reference implementation computes them, on inputs made by a formula.

    pip install 'onnx>=1.23'
    python3 tests/unit/engine/runtime/make_transformer_cases.py > tests/unit/engine/runtime/transformer_cases.h
"""
import os

import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

OPS = {"Attention": "ONNX_ATTENTION", "RotaryEmbedding": "ROTARY_EMBEDDING", "RMSNormalization": "RMS_NORMALIZATION"}
TYPES = {np.float32: (TensorProto.FLOAT, "F32"), np.bool_: (TensorProto.BOOL, "BOOL"), np.int64: (TensorProto.INT64, "I64")}


def made(shape, operand):
    """What test_transformer.c makes, too."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((i * 37 + operand * 101) % 97) / 48.0 - 1.0).astype(np.float32).reshape(shape)


def bits(*rows):
    return np.array([[c == "1" for c in row] for row in rows])


def low(shape, operand, where):
    mask = made(shape, operand)
    mask[where] = -np.inf
    return mask


# name, operator, opset, attributes, inputs (a shape: made by the formula), outputs that are wanted
CASES = [
    ("4d", "Attention", 23, {}, [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 5, 3)], 1),
    ("3d", "Attention", 23, dict(q_num_heads=2, kv_num_heads=2), [(2, 3, 8), (2, 5, 8), (2, 5, 6)], 1),
    ("grouped heads, scaled", "Attention", 23, dict(scale=0.3), [(1, 6, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4)], 1),
    ("3d, one head of keys, causal", "Attention", 23, dict(q_num_heads=4, kv_num_heads=1, is_causal=1),
     [(2, 3, 16), (2, 3, 4), (2, 3, 4)], 1),
    ("more rows than keys, causal", "Attention", 24, dict(is_causal=1), [(1, 2, 5, 4), (1, 2, 3, 4), (1, 2, 3, 4)], 1),
    ("bool mask with a hidden row", "Attention", 23, {}, [(1, 2, 3, 4), (1, 2, 4, 4), (1, 2, 4, 4), bits("1010", "0000", "0111")], 1),
    ("mask of heads, grouped", "Attention", 23, {}, [(1, 4, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), (4, 2, 3)], 1),
    ("mask of images and heads, grouped", "Attention", 23, {}, [(2, 4, 2, 4), (2, 2, 3, 4), (2, 2, 3, 4), (2, 4, 2, 3)], 1),
    ("mask of keys", "Attention", 23, {}, [(2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4), low((2, 1, 1, 3), 3, (1, 0, 0, 2))], 1),
    ("short mask", "Attention", 24, {}, [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), (3, 3)], 1),
    ("short bool mask, causal", "Attention", 24, dict(is_causal=1), [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4), bits("011", "111", "110")], 1),
    ("capped, the capped scores shown", "Attention", 23, dict(softcap=0.5, qk_matmul_output_mode=1),
     [(1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), (2, 3)], 4),
    ("the product shown", "Attention", 23, {}, [(1, 2, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4), (2, 3)], 4),
    ("cache, biased scores shown", "Attention", 23, dict(is_causal=1, qk_matmul_output_mode=2),
     [(1, 2, 2, 4), (1, 2, 2, 4), (1, 2, 2, 3), (1, 1, 2, 5), (1, 2, 3, 4), (1, 2, 3, 3)], 4),
    ("3d cache, probabilities shown", "Attention", 24, dict(q_num_heads=2, kv_num_heads=1, qk_matmul_output_mode=3, softmax_precision=1),
     [(2, 2, 8), (2, 1, 4), (2, 1, 4), bits("111", "000"), (2, 1, 2, 4), (2, 1, 2, 4)], 4),
    ("valid keys", "Attention", 24, {}, [(2, 2, 2, 4), (2, 2, 4, 4), (2, 2, 4, 4), None, None, None, np.array([2, 4])], 1),
    ("valid keys, causal", "Attention", 24, dict(is_causal=1), [(3, 2, 3, 4), (3, 1, 5, 4), (3, 1, 5, 4), None, None, None, np.array([2, 5, 3])], 1),
    ("window", "Attention", 25, dict(left_window_size=1, right_window_size=2), [(1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)], 1),
    ("window beside valid keys", "Attention", 25, dict(left_window_size=1, right_window_size=0),
     [(2, 2, 3, 4), (2, 2, 6, 4), (2, 2, 6, 4), (3, 6), None, None, np.array([4, 6])], 1),
    ("window beside a cache", "Attention", 25, dict(is_causal=1, left_window_size=2),
     [(1, 2, 2, 4), (1, 2, 2, 4), (1, 2, 2, 4), None, (1, 2, 4, 4), (1, 2, 4, 4)], 1),
    ("halves", "RotaryEmbedding", 23, {}, [(2, 2, 3, 8), (7, 4), (7, 4), np.array([[0, 5, 6], [1, 1, 2]])], 1),
    ("pairs", "RotaryEmbedding", 23, dict(interleaved=1), [(2, 2, 3, 8), (7, 4), (7, 4), np.array([[0, 5, 6], [1, 1, 2]])], 1),
    ("3d", "RotaryEmbedding", 23, dict(num_heads=2), [(2, 3, 16), (2, 3, 4), (2, 3, 4)], 1),
    ("3d, a part of each head, pairs", "RotaryEmbedding", 23, dict(num_heads=3, interleaved=1, rotary_embedding_dim=4),
     [(1, 3, 18), (5, 2), (5, 2), np.array([[4, 0, 2]])], 1),
    ("a part of each head", "RotaryEmbedding", 23, dict(rotary_embedding_dim=2), [(2, 2, 3, 6), (2, 3, 1), (2, 3, 1)], 1),
    ("rows", "RMSNormalization", 23, {}, [(3, 5, 19), (19,)], 1),
    ("two dimensions", "RMSNormalization", 23, dict(axis=1, epsilon=0.1), [(3, 4, 5), (4, 5)], 1),
    ("one scale", "RMSNormalization", 23, dict(axis=-2), [(2, 4, 5), (1,)], 1),
    ("as many scales as columns, by rows", "RMSNormalization", 23, {}, [(2, 4, 4), (4, 1)], 1),
]


def numbers(values):
    words = {True: "1", False: "0"}
    lines, line = [], "   "
    for v in values:
        text = words.get(v) if isinstance(v, (bool, np.bool_)) else str(int(v)) if isinstance(v, (int, np.integer)) else \
            "-INFINITY" if v == -np.inf else f"{v:.9g}" if "." in f"{v:.9g}" or "e" in f"{v:.9g}" else f"{v:.9g}.0"
        text += "f," if text[-1].isdigit() and isinstance(v, np.floating) else ","
        if len(line) + 1 + len(text) > 100:
            lines.append(line)
            line = "   "
        line += " " + text
    return "\n".join(lines + [line])


def main():
    arrays, entries, expected = [], [], []
    for c, (name, op, opset, attributes, inputs, wanted) in enumerate(CASES):
        values = [None if x is None else made(x, i) if isinstance(x, tuple) else np.asarray(x) for i, x in enumerate(inputs)]
        names = [f"i{i}" if v is not None else "" for i, v in enumerate(values)]
        outputs = [f"o{i}" for i in range(wanted)]
        node = helper.make_node(op, names, outputs, **attributes)
        graph = helper.make_graph(
            [node], "g",
            [helper.make_tensor_value_info(n, TYPES[v.dtype.type][0], v.shape) for n, v in zip(names, values) if n],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        results = ReferenceEvaluator(model).run(None, {n: v for n, v in zip(names, values) if n})
        ins, outs = [], []
        for i, v in enumerate(values):
            data = "NULL"
            if v is not None and not (v.dtype == np.float32 and isinstance(inputs[i], tuple)):
                data = f"case{c}_in{i}"
                word = {"F32": "float", "BOOL": "bool", "I64": "int64_t"}[TYPES[v.dtype.type][1]]
                arrays.append(f"static const {word} {data}[] = {{\n{numbers(v.ravel())}\n}};")
            ins.append("{0}" if v is None else
                       f"{{DTYPE_{TYPES[v.dtype.type][1]}, SHAPE({', '.join(map(str, v.shape))}), {data}}}")
        for r in results:
            expected.append(r.astype(np.float32).ravel())
            outs.append(f"SHAPE({', '.join(map(str, r.shape))})")
        attrs = [f'{{"{k}", ATTR_FLOAT, .f = {v}f}}' if isinstance(v, float) else f'{{"{k}", ATTR_INT, .i = {v}}}'
                 for k, v in attributes.items()]
        entries.append(f'    {{"{op}: {name}", OP_{OPS[op]}, {opset},\n     {{{", ".join(attrs) or "{0}"}}}, {len(attrs)},\n'
                       f'     {{{", ".join(ins)}}}, {len(ins)},\n     {{{", ".join(outs)}}}, {len(outs)}}},')
    np.save(os.path.join(os.path.dirname(os.path.abspath(__file__)), "transformer_outputs.npy"), np.concatenate(expected))
    print("/* Made by make_transformer_cases.py with ONNX's reference implementation; not to be edited. */")
    print("#pragma once\n\n/* clang-format off */")
    print("\n".join(arrays))
    print("\nstatic const struct transformer_case cases[] = {")
    print("\n".join(entries))
    print("};\n/* clang-format on */")


if __name__ == "__main__":
    main()
