#!/usr/bin/env python3
"""Writes cases of x[mask] = number as exporters write it, and of graphs that differ from that in one part.

    make_masked.py FOLDER

Each case is a folder as ONNX's own, with what ONNX Runtime answers. lensd makes a Where of the first kind; one of
the others made a Where would have another answer. tests/data/masked holds `make_masked.py tests/data/masked`, of
onnx 1.23 and onnxruntime 1.32.
"""
import os
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

INTS = {'zero': [0], 'one': [1], 'two': [2], 'last': [-1], 'ones': [1, 1], 'depth': [5]}


def columns(how, mask='mask'):
    """Nodes that make c0 and c1, [count], of the mask's places."""
    nodes = [helper.make_node('NonZero', [mask], ['places']),
             helper.make_node('Transpose', ['places'], ['pairs'], perm=[1, 0])]
    if how == 'split':
        nodes += [helper.make_node('Split', ['pairs', 'ones'], ['p0', 'p1'], axis=1)]
    else:
        nodes += [helper.make_node('Slice', ['pairs', 'zero', 'one', 'one'], ['p0']),
                  helper.make_node('Slice', ['pairs', 'one', 'two', 'one'], ['p1'])]
    return nodes + [helper.make_node('Squeeze', [f'p{i}', 'one'], [f'c{i}']) for i in (0, 1)]


def traced():
    """c0 and c1 broadcast to each other, as a tracer does."""
    nodes = [helper.make_node('Add', ['c0', 'c1'], ['sum']), helper.make_node('Shape', ['sum'], ['s'])]
    one = numpy_helper.from_array(np.array([1], np.int64), 'value')
    for i in (0, 1):
        nodes += [helper.make_node('Shape', ['s'], [f'r{i}']),
                  helper.make_node('ConstantOfShape', [f'r{i}'], [f'o{i}'], value=one),
                  helper.make_node('Mul', [f'o{i}', 'last'], [f'm{i}']),
                  helper.make_node('Equal', ['s', f'm{i}'], [f'e{i}']),
                  helper.make_node('Where', [f'e{i}', f'o{i}', 's'], [f'w{i}']),
                  helper.make_node('Expand', [f'c{i}', f'w{i}'], [f'x{i}'])]
    return nodes


def case(folder, name, nodes, tuples, updates, shape=(3, 4, 5), mask_shape=(3, 4), reduction='none', kind=np.float32):
    pick = np.random.default_rng(3)
    nodes = list(nodes)
    for part in sorted(set(tuples)):
        nodes.append(helper.make_node('Unsqueeze', [part, 'last'], [f'u_{part}']))
    if tuples:
        nodes.append(helper.make_node('Concat', [f'u_{part}' for part in tuples], ['tuples'], axis=-1))
    else:
        nodes += [helper.make_node('NonZero', ['mask'], ['places']),
                  helper.make_node('Transpose', ['places'], ['tuples'], perm=[1, 0])]
    nodes.append(helper.make_node('Shape', ['tuples'], ['many'], start=0, end=1))
    if len(shape) > len(mask_shape):
        nodes.append(helper.make_node('Concat', ['many', 'depth'], ['extent'], axis=0))
    else:
        nodes.append(helper.make_node('Identity', ['many'], ['extent']))
    nodes += [helper.make_node('Expand', ['number', 'extent'], ['filled'])]
    if updates == 'counted':  # each update is another number
        nodes += [helper.make_node('CumSum', ['filled', 'axis'], ['updates'])]
    else:
        nodes += [helper.make_node('Reshape', ['filled', 'extent'], ['updates'])]
    nodes.append(helper.make_node('ScatterND', ['x', 'tuples', 'updates'], ['y'], reduction=reduction))
    constants = {n: np.array(v, np.int64) for n, v in INTS.items()}
    number = np.array(-2.5 if kind == np.float32 else 0).astype(kind)
    constants.update({'number': number, 'axis': np.array(0, np.int64)})
    # Computed from one input: lensd_conformance makes constants of further ones.
    fed = {'numbers': pick.standard_normal(shape).astype(np.float32)}
    rest = list(range(len(mask_shape), len(shape)))
    sums = helper.make_node('ReduceSum', ['numbers', 'rest'], ['sums'], keepdims=0, noop_with_empty_axes=1)
    nodes = [sums, helper.make_node('Greater', ['sums', 'limit'], ['mask']),
             helper.make_node('Identity', ['numbers'], ['x']) if kind == np.float32 else
             helper.make_node('Greater', ['numbers', 'limit'], ['x'])] + nodes
    constants.update({'rest': np.array(rest, np.int64),
                      'limit': np.array(1e3 if updates == 'none true' else 0.5, np.float32)})
    read = {i for n in nodes for i in n.input}
    ends = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in {**fed, 'y': np.zeros(shape, kind)}.items()]
    graph = helper.make_graph(nodes, name, ends[:-1], ends[-1:],
                              [numpy_helper.from_array(v, n) for n, v in constants.items() if n in read])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)])
    model.ir_version = 9
    answers = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)
    os.makedirs(f'{folder}/{name}/test_data_set_0', exist_ok=True)
    onnx.save(model, f'{folder}/{name}/model.onnx')
    for what, arrays in (('input', list(fed.values())), ('output', answers)):
        for i, array in enumerate(arrays):
            with open(f'{folder}/{name}/test_data_set_0/{what}_{i}.pb', 'wb') as file:
                file.write(numpy_helper.from_array(array).SerializeToString())


def main():
    folder = sys.argv[1]
    slices, split = columns('slices'), columns('split')
    case(folder, 'places', [], [], 'same')
    case(folder, 'places_all_dimensions', [], [], 'same', mask_shape=(3, 4, 5))
    case(folder, 'places_one_dimension', [], [], 'same', shape=(6, 5), mask_shape=(6,))
    case(folder, 'columns', slices, ['c0', 'c1'], 'same')
    case(folder, 'columns_of_split', split, ['c0', 'c1'], 'same')
    case(folder, 'columns_of_tracer', split + traced(), ['x0', 'x1'], 'same')
    case(folder, 'columns_bool', slices, ['c0', 'c1'], 'same', kind=np.bool_)
    case(folder, 'columns_none_true', slices, ['c0', 'c1'], 'none true')
    # these are something else
    square = {'shape': (4, 4, 5), 'mask_shape': (4, 4)}
    case(folder, 'other_columns_swapped', slices, ['c1', 'c0'], 'same', **square)
    case(folder, 'other_column_twice', slices, ['c0', 'c0'], 'same', **square)
    case(folder, 'other_split_swapped', split + traced(), ['x1', 'x0'], 'same', **square)
    case(folder, 'other_numbers', slices, ['c0', 'c1'], 'counted')
    case(folder, 'other_sum', slices, ['c0', 'c1'], 'same', reduction='add')
    case(folder, 'other_way_round', slices + [helper.make_node('Sub', ['two', 'c0'], ['d'])], ['d', 'c1'], 'same')


main()
