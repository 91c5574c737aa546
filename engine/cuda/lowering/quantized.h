/* Private to the lowerings of 8-bit integers: quantized.c, quantized_rows.c, concat.c. */
#pragma once

#include "engine/cuda/kernels/kernels_int8.h"
#include "engine/cuda/lowering/lowering.h"

/* Factors of QLinearAdd, a * a_ratio + b * b_ratio + fixed, rounded as by the reference kernel. */
void quantized_sum_factors(const struct scale_zero *a, const struct scale_zero *b,
                           const struct scale_zero *y, float *ret_a_ratio, float *ret_b_ratio,
                           float *ret_fixed);
