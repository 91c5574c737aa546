#!/usr/bin/env python3
"""Writes cases of LSTM, GRU and RNN with what ONNX Runtime answers.

    make_recurrent.py FOLDER [COUNT] [SEED]

Each case is a folder as ONNX's own: model.onnx, test_data_set_0/input_0.pb …, output_0.pb …. Sizes,
directions, activations and which operands are there come from the seed. ONNX Runtime has no layout 1:
such a case is what it answers to the same numbers of layout 0, transposed. tests/data/recurrent holds
`make_recurrent.py tests/data/recurrent`, of onnx 1.23 and onnxruntime 1.32.
"""
import os
import random
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

GATES = {'LSTM': 4, 'GRU': 3, 'RNN': 1}
FUNCTIONS = {'LSTM': 3, 'GRU': 2, 'RNN': 1}
# name: takes an alpha, takes a beta
ACTIVATIONS = {'Relu': (0, 0), 'Tanh': (0, 0), 'Sigmoid': (0, 0), 'Affine': (1, 1), 'LeakyRelu': (1, 0),
               'ThresholdedRelu': (1, 0), 'ScaledTanh': (1, 1), 'HardSigmoid': (1, 1), 'Elu': (1, 0),
               'Softsign': (0, 0), 'Softplus': (0, 0)}


def numbers(pick, *shape):
    return (pick.standard_normal(shape) * 0.5).astype(np.float32)


def attributes(cell, directions, choose):
    found = {}
    if choose.random() < 0.5:
        names = [choose.choice(list(ACTIVATIONS)) for _ in range(FUNCTIONS[cell] * directions)]
        found['activations'] = names
        if choose.random() < 0.7:
            alphas = [round(choose.uniform(0.1, 0.9), 3) for n in names if ACTIVATIONS[n][0]]
            betas = [round(choose.uniform(0.1, 0.9), 3) for n in names if ACTIVATIONS[n][1]]
            if alphas:
                found['activation_alpha'] = alphas
            if betas:
                found['activation_beta'] = betas
        else:  # of these ONNX Runtime's defaults are not ONNX's, or ONNX has none
            differ = ('Affine', 'ScaledTanh', 'ThresholdedRelu')
            found['activations'] = [n if n not in differ else 'Elu' for n in names]
    if choose.random() < 0.4:
        found['clip'] = round(choose.uniform(0.1, 2), 3)
    if cell == 'LSTM' and choose.random() < 0.25:
        found['input_forget'] = 1
    if cell == 'GRU' and choose.random() < 0.6:
        found['linear_before_reset'] = 1
    return found


def make_case(folder, number, choose, pick):
    cell = choose.choice(list(GATES))
    direction = choose.choice(['forward', 'reverse', 'bidirectional'])
    directions = 2 if direction == 'bidirectional' else 1
    steps, batch = choose.randint(1, 6), choose.randint(1, 5)
    width, hidden = choose.randint(1, 9), choose.choice([1, 3, 5, 8, 16, 17])
    rows = GATES[cell] * hidden
    layout = int(choose.random() < 0.25)
    opset = choose.choice([7, 11, 13]) if not layout else choose.choice([14, 21])
    given = attributes(cell, directions, choose)
    operands = {'X': numbers(pick, steps, batch, width), 'W': numbers(pick, directions, rows, width),
                'R': numbers(pick, directions, rows, hidden)}
    if choose.random() < 0.8:
        operands['B'] = numbers(pick, directions, 2 * rows)
    if choose.random() < 0.5:
        lengths = [choose.randint(1, steps) for _ in range(batch)]
        operands['sequence_lens'] = np.array(lengths, np.int32)
    if choose.random() < 0.5:
        operands['initial_h'] = numbers(pick, directions, batch, hidden)
    if cell == 'LSTM' and choose.random() < 0.5:
        operands['initial_c'] = numbers(pick, directions, batch, hidden)
    if cell == 'LSTM' and choose.random() < 0.4:
        operands['P'] = numbers(pick, directions, 3 * hidden)
    order = ['X', 'W', 'R', 'B', 'sequence_lens', 'initial_h'] + ['initial_c', 'P'] * (cell == 'LSTM')
    outputs = ['Y', 'Y_h'] + ['Y_c'] * (cell == 'LSTM')
    wanted = [o if choose.random() < 0.75 else '' for o in outputs]
    wanted = wanted if any(wanted) else outputs

    def model(operands, **more):
        node = helper.make_node(cell, [n if n in operands else '' for n in order], wanted, hidden_size=hidden,
                                direction=direction, **given, **more)
        fed = [n for n in operands if n not in ('W', 'R', 'B', 'P')]
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(operands[n].dtype),
                                                operands[n].shape) for n in fed]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in wanted if n]
        weights = [numpy_helper.from_array(operands[n], n) for n in operands if n not in fed]
        graph = helper.make_graph([node], 'recurrent', inputs, results, weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)])
        made.ir_version = 8
        return made, {n: operands[n] for n in fed}

    made, fed = model(operands)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=['CPUExecutionProvider'])
    answers = session.run(None, fed)
    if not all(np.isfinite(a).all() for a in answers):
        return
    if layout:
        turned = {n: operands[n].swapaxes(0, 1) if n in ('X', 'initial_h', 'initial_c') else operands[n]
                  for n in operands}
        made, fed = model(turned, layout=1)
        answers = [a.transpose(2, 0, 1, 3) if a.ndim == 4 else a.swapaxes(0, 1) for a in answers]
    name = f'{folder}/{number:03d}_{cell.lower()}_{direction}'
    os.makedirs(f'{name}/test_data_set_0', exist_ok=True)
    onnx.save(made, f'{name}/model.onnx')
    for kind, arrays in (('input', list(fed.values())), ('output', answers)):
        for i, array in enumerate(arrays):
            with open(f'{name}/test_data_set_0/{kind}_{i}.pb', 'wb') as file:
                file.write(numpy_helper.from_array(np.ascontiguousarray(array)).SerializeToString())
    with open(f'{name}/data.json', 'w', encoding='ascii') as file:
        file.write('{"rtol": 1e-4, "atol": 1e-5}\n')


def main():
    folder, count, seed = sys.argv[1], int((sys.argv + [0, 36])[2 if len(sys.argv) > 2 else -1]), 5
    if len(sys.argv) > 3:
        seed = int(sys.argv[3])
    choose, pick = random.Random(seed), np.random.default_rng(seed)
    for number in range(count):
        make_case(folder, number, choose, pick)


main()
