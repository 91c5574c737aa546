/* Private to engine/cpu/: scale and zero point of operands of 8-bit operators. */
#pragma once

#include "engine/graph/graph.h"

struct quantized_params {
    float scale;
    int zero;
};

bool quantized_is_8bit(enum dtype dtype);

/* Operands `at` and `at + 1`: a float32 constant of one number, and a zero point of `dtype`; false
 * when they are something else. */
bool quantized_params_of(const struct node *node, size_t at, enum dtype dtype,
                         struct quantized_params *ret);
