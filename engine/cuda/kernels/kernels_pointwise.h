/* Elementwise kernels; conventions as in kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels.h"
#include "engine/graph/op.h"

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_domain { CUDA_IN_FLOAT, CUDA_IN_DOUBLE, CUDA_IN_WHOLE };

/* Computes y from operands with strided access, in float32, float64 or 64-bit integers; Cast and
 * Identity only convert. When a result is converted to an integer type, integers wrap; floats
 * saturate, and NaN becomes 0. y may be an operand that is not broadcast. */
struct cuda_pointwise {
    enum op op;
    enum cuda_domain domain;
    int operands;
    int dtypes[CUDA_OPERANDS], y_dtype;
    struct cuda_access_map map;
    double alpha, beta;      /* parameters of some operators; MOD: alpha is the attribute fmod */
    int64_t lowest, highest; /* CLIP of integers */
    /* QLINEAR_ADD: y = fixed + b * ratios[1] + a * ratios[0], QLINEAR_MUL: y = (a - zeros[0]) * (b
     * - zeros[1]) * ratios[0] + fixed, rounded. Operands and y are all U8 or all I8; the domain is
     * CUDA_IN_FLOAT. */
    float ratios[2], fixed;
    int zeros[2];
    /* enum activation, applied to the result. Only if y and one or two operands have the same
     * dtype, float32 or a 16-bit float. */
    int activation;
    float activation_alpha, activation_beta;
};
void cuda_compute_pointwise(cudaStream_t stream, const void *const operands[CUDA_OPERANDS], void *y,
                            const struct cuda_pointwise *numbers);

#ifdef __cplusplus
}
#endif
