/* Private to quantized.c and quantized_rows.c. A quantized tensor holds 8-bit integers that stand
 * for (stored - zero) * scale. */
#pragma once

#include "engine/cuda/kernels/kernels_int8.h"
#include "engine/cuda/lowering/lowering.h"

struct terms {
    float scale;
    int zero;
};

static inline bool is_8bit(enum dtype dtype)
{
    return dtype == DTYPE_U8 || dtype == DTYPE_I8;
}

/* Operands `at` and `at + 1`: constants of one number, float32 and of `dtype` (left out: 0). */
bool terms_read(const struct node *node, size_t at, enum dtype dtype, struct terms *ret);

/* QLinearAdd as a * a_ratio + b * b_ratio + fixed, in the order of the reference kernel. */
void terms_add(const struct terms *a, const struct terms *b, const struct terms *y,
               float *ret_a_ratio, float *ret_b_ratio, float *ret_fixed);
