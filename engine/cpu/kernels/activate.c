/* Activations over rows, compiled once per instruction set. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

/* The loop for one activation. */
#define CASE(name, is_exponential)                                                                 \
    case ACTIVATION_##name:                                                                        \
        for (size_t i = 0; i < n; i += VEC) {                                                      \
            const size_t width = n - i < VEC ? n - i : VEC;                                        \
            const vec v = width == VEC ? vec_load(x + i) : vec_load_n(x + i, width);               \
            const vec result = vec_activate(v, ACTIVATION_##name, a, b, slope);                    \
            if (width == VEC)                                                                      \
                vec_store(y + i, result);                                                          \
            else                                                                                   \
                vec_store_n(y + i, result, width);                                                 \
        }                                                                                          \
        break;

void SIMD_NAMED(activate)(const float *x, float *y, size_t n, enum activation activation,
                          float alpha, float beta)
{
    const vec a = vec_set(alpha), b = vec_set(beta), slope = vec_set(alpha * MINUS_LOG2E);
    if (activation == ACTIVATION_NONE && x == y)
        return;
    switch (activation) {
        ACTIVATION_LIST(CASE)
    }
}
