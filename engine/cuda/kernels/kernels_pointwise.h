/* Elementwise kernels; conventions as in kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Operators of one operand a, of two operands a and b, and WHERE: a ? b : c. */
enum cuda_pointwise_op {
    CUDA_N_COPY, /* converts */
    CUDA_N_ABS,
    CUDA_N_NEG,
    CUDA_N_SIGN,
    CUDA_N_FLOOR,
    CUDA_N_CEIL,
    CUDA_N_ROUND,
    CUDA_N_SQRT,
    CUDA_N_RECIPROCAL,
    CUDA_N_EXP,
    CUDA_N_LOG,
    CUDA_N_SIN,
    CUDA_N_COS,
    CUDA_N_ERF,
    CUDA_N_SOFTPLUS,
    CUDA_N_SOFTSIGN,
    CUDA_N_SELU,
    CUDA_N_CELU,
    CUDA_N_MISH,
    CUDA_N_SHRINK,
    CUDA_N_THRESHOLDED_RELU,
    CUDA_N_RELU,
    CUDA_N_CLIP,
    CUDA_N_NOT,
    CUDA_N_IS_NAN,
    CUDA_N_IS_INF,
    CUDA_N_ADD,
    CUDA_N_SUB,
    CUDA_N_MUL,
    CUDA_N_DIV,
    CUDA_N_MOD,  /* the result has the divisor's sign */
    CUDA_N_FMOD, /* the result has the dividend's sign */
    CUDA_N_MAX,
    CUDA_N_MIN,
    CUDA_N_PRELU,
    CUDA_N_POW,
    CUDA_N_AND,
    CUDA_N_OR,
    CUDA_N_XOR,
    CUDA_N_EQUAL,
    CUDA_N_GREATER,
    CUDA_N_LESS,
    CUDA_N_GREATER_OR_EQUAL,
    CUDA_N_LESS_OR_EQUAL,
    CUDA_N_WHERE,
};

enum cuda_domain { CUDA_IN_FLOAT, CUDA_IN_DOUBLE, CUDA_IN_WHOLE };

/* Computes y from operands with strided access, in float32, float64 or 64-bit integers. When
 * a result is converted to an integer type, integers wrap; floats saturate, and NaN becomes 0. y
 * may be an operand that is not broadcast. */
struct cuda_pointwise {
    enum cuda_pointwise_op op;
    enum cuda_domain domain;
    int operands;
    int dtypes[CUDA_OPERANDS], y_dtype;
    struct cuda_access_map map;
    double alpha, beta;      /* parameters of some operators */
    int64_t lowest, highest; /* CLIP of integers */
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
