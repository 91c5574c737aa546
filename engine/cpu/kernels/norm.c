/* Softmax and normalizations of rows, compiled once per instruction set. */
#include <math.h>

#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_math.h"

float SIMD_NAMED(sum_row)(const float *x, size_t n)
{
    enum { TOGETHER = 4096 }; /* sums of more float32 numbers would lose digits */
    double all = 0;
    for (; n > TOGETHER; n -= TOGETHER, x += TOGETHER)
        all += (double)SIMD_NAMED(sum_row)(x, TOGETHER);
    vec sum = vec_zero();
    FOR_REGISTERS(i, width, n)
        sum = vec_add(sum, vec_load_n(x + i, width));
    return (float)(all + (double)vec_sum(sum));
}

/* Returns the sum of (x - mean)^2. *ret_difference is the sum of x - mean, for norm_row(). */
static float row_square_sum(const float *x, float mean, size_t n, float *ret_difference)
{
    const vec m = vec_set(mean);
    vec sum = vec_zero(), difference = vec_zero();
    size_t i = 0;
    for (; i + VEC <= n; i += VEC) {
        const vec d = vec_sub(vec_load(x + i), m);
        difference = vec_add(difference, d);
        sum = vec_fma(d, d, sum);
    }
    *ret_difference = vec_sum(difference);
    float result = vec_sum(sum);
    for (; i < n; i++) {
        *ret_difference += x[i] - mean;
        result += (x[i] - mean) * (x[i] - mean);
    }
    return result;
}

void SIMD_NAMED(softmax)(const float *x, float *y, size_t n)
{
    float greatest = -INFINITY;
    if (x != y)
        memcpy(y, x, n * sizeof *y);
    const vec factor = vec_set(1.0f / SIMD_NAMED(score_row)(y, n, NULL, 0, &greatest));
    FOR_REGISTERS(i, width, n) {
        vec_store_n(y + i, vec_mul(vec_load_n(y + i, width), factor), width);
    }
}

/* The mean is rounded. Its error matters if the mean is much larger than the deviation, so the mean
 * of the differences is subtracted, too. */
void SIMD_NAMED(norm_row)(const float *x, const float *scale, const float *bias, float epsilon,
                          bool is_rms, float *y, size_t n)
{
    float wrong;
    const float mean = is_rms ? 0 : SIMD_NAMED(sum_row)(x, n) / (float)n;
    const float squares = row_square_sum(x, mean, n, &wrong) / (float)n;
    wrong = is_rms ? 0 : wrong / (float)n;
    const float variance = squares - wrong * wrong;
    const float factor = 1.0f / sqrtf((variance > 0 ? variance : 0) + epsilon);
    const vec m = vec_set(mean), f = vec_set(factor), shift = vec_set(-wrong * factor);
    FOR_REGISTERS(i, width, n) {
        vec v = vec_fma(vec_sub(vec_load_n(x + i, width), m), f, shift);
        if (scale)
            v = vec_mul(v, vec_load_n(scale + i, width));
        if (bias)
            v = vec_add(v, vec_load_n(bias + i, width));
        vec_store_n(y + i, v, width);
    }
}

void SIMD_NAMED(lrn)(const float *x, size_t n, size_t size, float factor, float bias, float beta,
                     float *squares, float *y)
{
    const size_t before = (size - 1) / 2;
    memset(squares, 0, (n + size) * sizeof *squares);
    for (size_t i = 0; i < n; i++)
        squares[before + i] = x[i] * x[i];
    for (size_t i = 0; i < n; i++)
        y[i] = squares[i];
    for (size_t k = 1; k < size; k++)
        for (size_t i = 0; i < n; i++)
            y[i] += squares[i + k];
    if (beta == 0.75f) { /* the usual value */
        for (size_t i = 0; i < n; i++) {
            const float root = sqrtf(bias + factor * y[i]);
            y[i] = x[i] / (root * sqrtf(root));
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / powf(bias + factor * y[i], beta);
}

void SIMD_NAMED(square_rows)(const float *x, const float *mean, size_t rows, float *sum,
                             float *difference, size_t n)
{
    FOR_REGISTERS(i, width, n) {
        const vec m = vec_load_n(mean + i, width);
        vec s = vec_zero(), all = vec_zero();
        for (size_t r = 0; r < rows; r++) {
            const vec d = vec_sub(vec_load_n(x + r * n + i, width), m);
            s = vec_fma(d, d, s);
            all = vec_add(all, d);
        }
        vec_store_n(sum + i, s, width);
        vec_store_n(difference + i, all, width);
    }
}

void SIMD_NAMED(center_rows)(const float *x, const float *mean, const float *factor,
                             const float *shift, size_t rows, float *y, size_t n)
{
    for (size_t r = 0; r < rows; r++, x += n, y += n)
        FOR_REGISTERS(i, width, n) {
            const vec d = vec_sub(vec_load_n(x + i, width), vec_load_n(mean + i, width));
            vec_store_n(y + i,
                        vec_fma(d, vec_load_n(factor + i, width), vec_load_n(shift + i, width)),
                        width);
        }
}
