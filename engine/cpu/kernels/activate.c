/* Activations over rows, compiled once per instruction set. NaN stays NaN throughout: minimum and
 * maximum answer their second operand when one is NaN. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

/* The loop for one activation: `v` is the register at hand, `expression` what becomes of it. */
#define EACH(expression)                                                                           \
    for (size_t i = 0; i < n; i += VEC) {                                                          \
        const size_t width = n - i < VEC ? n - i : VEC;                                            \
        const vec v = width == VEC ? vec_load(x + i) : vec_load_n(x + i, width);                   \
        const vec result = (expression);                                                           \
        if (width == VEC)                                                                          \
            vec_store(y + i, result);                                                              \
        else                                                                                       \
            vec_store_n(y + i, result, width);                                                     \
    }                                                                                              \
    break

ALWAYS_INLINE vec gelu_tanh(vec v)
{
    const vec half = vec_mul(v, vec_set(0.5f)), square = vec_mul(v, v);
    const vec inner =
        vec_mul(vec_set(0.79788456080286536f), vec_fma(vec_mul(square, v), vec_set(0.044715f), v));
    return vec_fma(half, vec_tanh(inner), half);
}

ALWAYS_INLINE vec elu(vec v, vec alpha)
{
    /* max(v, 0) + alpha * (e^min(v, 0) - 1): one of the terms is 0 */
    const vec negative = vec_mul(alpha, vec_sub(vec_exp(vec_min(vec_zero(), v)), vec_set(1)));
    return vec_add(vec_max(vec_zero(), v), negative);
}

void SIMD_NAMED(activate)(const float *x, float *y, size_t n, enum activation activation,
                          float alpha, float beta)
{
    const vec a = vec_set(alpha), b = vec_set(beta), zero = vec_zero();
    const vec slope = vec_set(alpha * MINUS_LOG2E);
    switch (activation) {
    case ACTIVATION_NONE:
        if (x != y)
            memcpy(y, x, n * sizeof *y);
        break;
    case ACTIVATION_RELU:
        EACH(vec_max(zero, v));
    case ACTIVATION_LEAKY_RELU:
        EACH(vec_fma(vec_min(zero, v), a, vec_max(zero, v)));
    case ACTIVATION_CLIP:
        EACH(vec_clamp(v, a, b));
    case ACTIVATION_SIGMOID:
        EACH(vec_sigmoid(v));
    case ACTIVATION_HARD_SIGMOID:
        EACH(vec_clamp(vec_fma(v, a, b), zero, vec_set(1)));
    case ACTIVATION_HARD_SWISH:
        EACH(vec_hard_swish(v));
    case ACTIVATION_SILU:
        EACH(vec_silu(v, slope));
    case ACTIVATION_GELU:
        EACH(vec_gelu(v));
    case ACTIVATION_GELU_TANH:
        EACH(gelu_tanh(v));
    case ACTIVATION_TANH:
        EACH(vec_tanh(v));
    case ACTIVATION_ELU:
        EACH(elu(v, a));
    }
}
