#!/usr/bin/env python3
"""Writes cases of constants that have 2 or 4 bits an element, or are 8- or 4-bit floats.

    make_packed.py FOLDER

Each case is a folder as ONNX's own. The first are ONNX's cases of Cast and DequantizeLinear with such
an input made a constant, answers as the package has them. The others are products whose weights
DequantizeLinear reads, per tensor, by axis and by block, and LSTMs of 8-bit weights, with what ONNX Runtime answers.
tests/data/packed holds `make_packed.py tests/data/packed`, of onnx 1.23 and onnxruntime 1.32.
"""
import os
import sys
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

PACKED = {TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
          TensorProto.FLOAT8E5M2FNUZ, TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1,
          TensorProto.UINT2, TensorProto.INT2}


def tensor_of(value):
    return value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value))


def write(folder, model, inputs, outputs):
    os.makedirs(f'{folder}/test_data_set_0', exist_ok=True)
    onnx.save(model, f'{folder}/model.onnx')
    for kind, values in (('input', inputs), ('output', outputs)):
        for i, value in enumerate(values):
            with open(f'{folder}/test_data_set_0/{kind}_{i}.pb', 'wb') as file:
                file.write(tensor_of(value).SerializeToString())


def onnx_cases(folder):
    for op in ('Cast', 'DequantizeLinear'):
        for case in collect_testcases(op):
            model, (inputs, outputs) = case.model, case.data_sets[0]
            types = [i.type.tensor_type.elem_type for i in model.graph.input]
            if not PACKED & set(types) or PACKED & {o.type.tensor_type.elem_type for o in model.graph.output}:
                continue
            fed = []
            for value, info, dtype in zip(inputs, list(model.graph.input), types):
                if dtype in PACKED:
                    tensor = model.graph.initializer.add()
                    tensor.CopyFrom(tensor_of(value))
                    tensor.name = info.name
                    model.graph.input.remove(info)
                else:
                    fed.append(value)
            write(f'{folder}/{case.name[5:].lower()}', model, fed, outputs)


def packed(name, dtype, shape, numbers, raw):
    """A tensor of 4-bit integers: in raw_data, or in int32_data as a byte an element."""
    flat = [int(n) & 15 for n in np.asarray(numbers).ravel()]
    flat += [0] * (len(flat) % 2)
    data = [flat[i] | flat[i + 1] << 4 for i in range(0, len(flat), 2)]
    tensor = TensorProto(name=name, data_type=dtype, dims=shape)
    if raw:
        tensor.raw_data = bytes(data)
    else:
        tensor.int32_data.extend(data)
    return tensor


def products(folder):
    pick = np.random.default_rng(7)
    # name, operator, opset, dtype, axis, block, in raw_data, with zero points, by a Constant
    table = [('matmul_int4_blocks', 'MatMul', 21, 'INT4', 0, 8, True, False, False),
             ('matmul_uint4_blocks_zeros', 'MatMul', 21, 'UINT4', 0, 8, True, True, False),
             ('matmul_uint4_blocks_last', 'MatMul', 23, 'UINT4', 1, 5, False, True, False),
             ('matmul_int4_axis', 'MatMul', 23, 'INT4', 1, 0, False, True, False),
             ('matmul_int4_tensor', 'MatMul', 21, 'INT4', None, 0, True, True, False),
             ('matmul_int4_constant', 'MatMul', 21, 'INT4', 0, 8, True, False, True),
             ('conv_int4_axis', 'Conv', 21, 'INT4', 0, 0, True, False, False),
             ('conv_uint4_axis_zeros', 'Conv', 23, 'UINT4', 0, 0, True, True, False),
             ('conv_quantized_int4', 'QConv', 21, 'INT4', 0, 0, True, True, False),
             ('matmul_quantized_uint4', 'QMatMul', 21, 'UINT4', 1, 0, True, True, False),
             ('matmul_float8', 'MatMul', 21, 'FLOAT8E4M3FN', None, 0, True, False, False),
             ('matmul_float8_e5m2', 'MatMul', 23, 'FLOAT8E5M2', None, 0, True, True, False)]
    for name, op, opset, type_name, axis, block, raw, zeros, by_node in table:
        dtype = getattr(TensorProto, type_name)
        conv = op.endswith('Conv')
        x = pick.standard_normal((2, 6, 5, 5) if conv else (3, 24)).astype(np.float32)
        shape = (7, 6, 3, 3) if conv else (24, 15)
        scales = () if axis is None else (shape[axis],)
        if block:
            scales = tuple(n // block if i == axis else n for i, n in enumerate(shape))
        scale = pick.uniform(0.02, 0.2, scales).astype(np.float32)
        nodes, weights = [], [numpy_helper.from_array(scale, 's')]
        if type_name.startswith('FLOAT8'):
            floats = pick.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(dtype))
            w = numpy_helper.from_array(floats, 'w')
            z = numpy_helper.from_array(np.zeros(scales, floats.dtype), 'z')
        else:
            low = -8 if type_name == 'INT4' else 0
            w = packed('w', dtype, shape, pick.integers(low, low + 16, shape), raw)
            # a quantized convolution's weights are symmetric, for ONNX Runtime
            zero = np.zeros(scales, int) if conv and op[0] == 'Q' else pick.integers(low, low + 16, scales)
            z = packed('z', dtype, scales, zero, not raw)
        if by_node:
            nodes.append(helper.make_node('Constant', [], ['w'], value=w))
        else:
            weights.append(w)
        weights += [z] if zeros else []
        attributes = {} if axis is None else {'axis': axis}
        attributes.update({'block_size': block} if block else {})
        nodes.append(helper.make_node('DequantizeLinear', ['w', 's'] + ['z'] * zeros, ['dw'], **attributes))
        read = 'x'
        if op[0] == 'Q':
            weights += [numpy_helper.from_array(np.array(0.03, np.float32), 'xs'),
                        numpy_helper.from_array(np.array(121, np.uint8), 'xz')]
            nodes += [helper.make_node('QuantizeLinear', ['x', 'xs', 'xz'], ['xq']),
                      helper.make_node('DequantizeLinear', ['xq', 'xs', 'xz'], ['xd'])]
            read = 'xd'
        nodes.append(helper.make_node('Conv' if conv else 'MatMul', [read, 'dw'], ['y']))
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (('x', x.shape), ('y', None))]
        graph = helper.make_graph(nodes, name, ends[:1], ends[1:], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)])
        model.ir_version = 10
        options = onnxruntime.SessionOptions()  # optimized, it rounds what 4-bit products read
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        write(f'{folder}/ort_{name}', model, [x], session.run(None, {'x': x}))


def lstms(folder):
    """com.microsoft's DynamicQuantizeLSTM: ONNX Runtime quantizes its input in each run, lensd does not."""
    pick = np.random.default_rng(9)
    for name, kind, directions, by_column in (('tensor_int8', np.int8, 1, False), ('column_int8', np.int8, 2, True),
                                              ('tensor_uint8', np.uint8, 2, False)):
        low, steps, width, hidden = (-128 if kind == np.int8 else 0), 5, 12, 8
        scales = (directions, 4 * hidden) if by_column else (directions,)
        zero = np.zeros(scales, kind) if kind == np.int8 else np.full(scales, 121, kind)
        operands = {'w': pick.integers(low, low + 256, (directions, width, 4 * hidden)).astype(kind),
                    'r': pick.integers(low, low + 256, (directions, hidden, 4 * hidden)).astype(kind),
                    'b': pick.uniform(-.3, .3, (directions, 8 * hidden)).astype(np.float32),
                    'ws': pick.uniform(.002, .004, scales).astype(np.float32), 'wz': zero,
                    'rs': pick.uniform(.002, .004, scales).astype(np.float32), 'rz': zero}
        x = pick.uniform(-1, 1, (steps, 3, width)).astype(np.float32)
        node = helper.make_node('DynamicQuantizeLSTM',
                                ['x', 'w', 'r', 'b', '', '', '', '', 'ws', 'wz', 'rs', 'rz'], ['y', 'yh', 'yc'],
                                domain='com.microsoft', hidden_size=hidden,
                                direction='bidirectional' if directions == 2 else 'forward')
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
                for n, s in (('x', x.shape), ('y', None), ('yh', None), ('yc', None))]
        graph = helper.make_graph([node], name, ends[:1], ends[1:],
                                  [numpy_helper.from_array(v, n) for n, v in operands.items()])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17),
                                                        helper.make_opsetid('com.microsoft', 1)])
        model.ir_version = 8
        session = onnxruntime.InferenceSession(model.SerializeToString())
        write(f'{folder}/lstm_{name}', model, [x], session.run(None, {'x': x}))
        with open(f'{folder}/lstm_{name}/data.json', 'w', encoding='ascii') as file:
            file.write('{"rtol": 2e-2, "atol": 1e-2}\n')


warnings.simplefilter('ignore')
lstms(sys.argv[1])
onnx_cases(sys.argv[1])
products(sys.argv[1])
