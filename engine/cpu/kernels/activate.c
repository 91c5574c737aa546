/* Activations over rows, compiled once per instruction set. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

#define CASE(name, is_exponential)                                                                 \
    case ACTIVATION_##name:                                                                        \
        for (; rows > 0; rows--, x += step, y += step) {                                           \
            size_t i = 0;                                                                          \
            for (; i + VEC <= n; i += VEC)                                                         \
                vec_store(y + i, vec_activate(vec_load(x + i), ACTIVATION_##name, a, b, slope));   \
            if (i < n)                                                                             \
                vec_store_n(                                                                       \
                    y + i, vec_activate(vec_load_n(x + i, n - i), ACTIVATION_##name, a, b, slope), \
                    n - i);                                                                        \
        }                                                                                          \
        break;

void SIMD_NAMED(activate_rows)(const float *x, float *y, size_t rows, size_t step, size_t n,
                               enum activation activation, float alpha, float beta)
{
    const vec a = vec_set(alpha), b = vec_set(beta), slope = vec_set(alpha * MINUS_LOG2E);
    if (activation == ACTIVATION_NONE && x == y)
        return;
    switch (activation) {
        ACTIVATION_LIST(CASE)
    }
}

void SIMD_NAMED(activate)(const float *x, float *y, size_t n, enum activation activation,
                          float alpha, float beta)
{
    SIMD_NAMED(activate_rows)(x, y, 1, n, n, activation, alpha, beta);
}
