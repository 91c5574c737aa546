/* Host functions for kernels on 8-bit integers; conventions as in kernels.h. A tensor of 8-bit
 * integers represents (stored - zero) * scale. Types are of enum dtype: U8, I8, I32, F32, F16,
 * BF16. Numbers are rounded half to even and saturate. */
#pragma once

#include "engine/cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operations on the int32 sum of x * weights over a window (stored values of x; the padding holds
 * its zero point):
 *
 *     sum += bias[m] - *x_zero * weight_sums[m]
 *     U8, I8:  y = saturate(round(sum * scales[m]) + zero)
 *              y = saturate(round(fixed + residual * residual_ratio + y * own_ratio)) (QLinearAdd)
 *              y = table[y]
 *     I32:     y = sum        F32:  y = sum * scales[m] */
struct cuda_int8_epilogue {
    const int32_t *bias; /* per channel of y, or NULL. If x's zero point is constant, the bias
                            includes it: minus zero times the channel's weights */
    const unsigned char *x_zero; /* x's zero point; NULL: it is 0, or the bias includes it */
    const int32_t *weight_sums;  /* per channel; used with x_zero */
    const float *scales;         /* per channel; not for I32 */
    const void *residual;        /* shaped like y, with its type, or NULL; may be y itself */
    const unsigned char *table;  /* 256 stored numbers of y's type, indexed by a byte; or NULL */
    float own_ratio, residual_ratio, fixed;
    int zero, y_type, x_type;
};

/* A convolution of 8-bit integers. The members of `conv` count bytes: conv->row is the distance
 * between the weights of two output channels. */
struct cuda_int8_conv {
    struct cuda_conv conv;
    int x_type;                   /* U8 or I8 */
    const unsigned char *padding; /* 16 aligned bytes with x's zero point */
};

/* A convolution on tensor cores; weights: int8 [m, kh, kw, c / groups], rows zero-padded to 16.
 * cuda_conv_candidates() lists candidates for dtype I8. */
void cuda_int8_conv_tensor(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_int8_conv *conv,
                           const struct cuda_int8_epilogue *epilogue,
                           const struct cuda_conv_candidate *candidate, void *workspace);
/* A convolution without tensor cores; weights: int16, [m, kh, kw, c / groups] in rows of conv->row
 * numbers, or [kh, kw, c] if groups == c == m. */
void cuda_int8_conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_int8_conv *conv,
                           const struct cuda_int8_epilogue *epilogue);

/* y = saturate(round(x / scale) + zero); x: F32, F16, BF16. */
void cuda_int8_quantize(cudaStream_t stream, int x_type, const void *x, int y_type, void *y,
                        size_t count, float scale, int zero);
/* y = (x - zero) * scale; y: F32, F16, BF16. */
void cuda_int8_dequantize(cudaStream_t stream, int x_type, const void *x, int y_type, void *y,
                          size_t count, float scale, int zero);

/* DynamicQuantizeLinear of x: F32. `ranges`: scratch of 2 * CUDA_INT8_RANGES floats. */
#define CUDA_INT8_RANGES 256
void cuda_int8_dynamic(cudaStream_t stream, const float *x, size_t count, void *ranges,
                       unsigned char *y, float *scale, unsigned char *zero);

#ifdef __cplusplus
}
#endif
