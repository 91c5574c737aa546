/* Row kernels in float32, compiled once per instruction set and picked at run time.
 *
 * Everything here works on contiguous rows; the steps that call it split work over threads and know
 * about shapes. Results of the variants agree to the last few bits only (fused multiply-add).
 * Sources of the approximations stand beside them in kernels.c; greatest errors are tested against
 * libm. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/graph.h"

enum binary_kind { BINARY_ADD, BINARY_SUB, BINARY_MUL, BINARY_DIV, BINARY_MAX, BINARY_MIN };

struct simd_kernels {
    const char *name; /* "avx512" … */

    /* y[i] = activation(x[i]); y may be x. NaN stays NaN. */
    void (*activate)(const float *x, float *y, size_t n, enum activation activation, float alpha,
                     float beta);

    /* y[i] = a[i] ∘ b[i]; an operand whose step is 0 is one number. y may be a or b. */
    void (*binary)(enum binary_kind kind, const float *a, int a_step, const float *b, int b_step,
                   float *y, size_t n);

    /* y[c] = x[c] * scale[c] + shift[c] */
    void (*scale_shift)(const float *x, const float *scale, const float *shift, float *y, size_t n);

    /* y[c] = max over taps of taps[t][c]; NaN in any tap may or may not win. count >= 1. */
    void (*pool_max)(const float *const *taps, size_t count, float *y, size_t n);

    /* y[c] = factor * sum over taps of taps[t][c]; count may be 0. */
    void (*pool_sum)(const float *const *taps, size_t count, float factor, float *y, size_t n);

    /* The same on bfloat16, summed in float32. */
    void (*pool_max_bf16)(const uint16_t *const *taps, size_t count, uint16_t *y, size_t n);
    void (*pool_sum_bf16)(const uint16_t *const *taps, size_t count, float factor, uint16_t *y,
                          size_t n);

    /* y[c] += x[c] */
    void (*accumulate)(const float *x, float *y, size_t n);

    /* Softmax of one row: exp(x - max) / sum. y may be x. */
    void (*softmax)(const float *x, float *y, size_t n);

    /* (x - mean) / sqrt(variance + epsilon) * scale + bias (either may be NULL). y may be x. */
    void (*layer_norm)(const float *x, const float *scale, const float *bias, float epsilon,
                       float *y, size_t n);

    void (*widen_bf16)(const uint16_t *x, float *y, size_t n);
    void (*narrow_bf16)(const float *x, uint16_t *y, size_t n); /* nearest even, NaN stays NaN */
};

extern const struct simd_kernels simd_base, simd_avx2, simd_avx512;

/* The widest variant this CPU runs. Thread-safe. */
const struct simd_kernels *simd(void);
