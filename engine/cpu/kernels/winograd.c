/* Winograd's minimal filtering F(4x4, 3x3), compiled once per instruction set: 16 results of a 3x3
 * convolution from 36 products instead of 144.
 *
 *     Y = A' [ (G g G') * (B' d B) ] A
 *
 * (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015) at the points 0,
 * ±sqrt(1/2), ±sqrt(2) and infinity. These points are reciprocals, so rounding costs about a
 * decimal digit less than with the paper's 0, ±1, ±2. All lanes are channels. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec.h"

#define P 0.70710678118654752f /* the smaller point; Q, the larger one, is its double */
#define Q 1.41421356237309505f

/* t = B' d, for one column or row of six numbers. */
ALWAYS_INLINE void source_six(const vec d[6], vec t[6])
{
    const vec p = vec_set(P), q = vec_set(Q), k = vec_set(-2.5f);
    const vec even_p = vec_fma(d[2], vec_set(-2.0f), d[4]);
    const vec even_q = vec_fma(d[2], vec_set(-0.5f), d[4]);
    const vec odd_p = vec_sub(vec_mul(d[3], p), vec_mul(d[1], q));
    const vec odd_q = vec_sub(vec_mul(d[3], q), vec_mul(d[1], p));
    t[0] = vec_add(vec_fma(d[2], k, d[0]), d[4]);
    t[1] = vec_add(even_p, odd_p);
    t[2] = vec_sub(even_p, odd_p);
    t[3] = vec_add(even_q, odd_q);
    t[4] = vec_sub(even_q, odd_q);
    t[5] = vec_add(vec_fma(d[3], k, d[1]), d[5]);
}

/* Loads n numbers of a pixel from element `at` of x. */
ALWAYS_INLINE vec load_pixel(const void *x, ptrdiff_t at, size_t n, bool bf16)
{
    return bf16 ? vec_widen_n((const uint16_t *)x + at, n) : vec_load_n((const float *)x + at, n);
}

ALWAYS_INLINE void source_tile(const struct winograd_tile *tile, const void *x, size_t channels,
                               float *v, size_t v_step, bool bf16)
{
    for (size_t c = 0; c < channels; c += VEC) {
        const size_t n = channels - c < VEC ? channels - c : VEC;
        vec half[6][6];
        for (int j = 0; j < 6; j++) {
            vec d[6], t[6];
            const bool inside = j >= tile->left && j < tile->right;
            const ptrdiff_t column = (ptrdiff_t)c + (ptrdiff_t)j * tile->column_step;
            for (int i = 0; i < 6; i++)
                d[i] = inside && i >= tile->top && i < tile->bottom
                           ? load_pixel(x, column + (ptrdiff_t)i * tile->row_step, n, bf16)
                           : vec_zero();
            source_six(d, t);
            for (int i = 0; i < 6; i++)
                half[i][j] = t[i];
        }
        for (int i = 0; i < 6; i++) {
            vec t[6];
            source_six(half[i], t);
            for (int j = 0; j < 6; j++)
                vec_store_n(v + (size_t)(i * 6 + j) * v_step + c, t[j], n);
        }
    }
}

void SIMD_NAMED(winograd_source)(const struct winograd_tile *tile, const void *x, bool bf16,
                                 size_t channels, float *v, size_t v_step)
{
    if (bf16)
        source_tile(tile, x, channels, v, v_step, true);
    else
        source_tile(tile, x, channels, v, v_step, false);
}

/* t = G g: six numbers from three. */
ALWAYS_INLINE void filter_six(const vec g[3], vec t[6])
{
    const vec even_p = vec_fma(g[2], vec_set(-1 / 3.0f), vec_mul(g[0], vec_set(-2 / 3.0f)));
    const vec even_q = vec_fma(g[2], vec_set(1 / 3.0f), vec_mul(g[0], vec_set(1 / 6.0f)));
    const vec odd_p = vec_mul(g[1], vec_set(P / -1.5f)), odd_q = vec_mul(g[1], vec_set(Q / 6));
    t[0] = g[0];
    t[1] = vec_add(even_p, odd_p);
    t[2] = vec_sub(even_p, odd_p);
    t[3] = vec_add(even_q, odd_q);
    t[4] = vec_sub(even_q, odd_q);
    t[5] = g[2];
}

void SIMD_NAMED(winograd_filters)(const float *taps, size_t n, size_t first, size_t rows, float *to,
                                  size_t step)
{
    for (size_t at = 0; at < n; at += VEC) {
        vec half[6][3];
        for (size_t x = 0; x < 3; x++) {
            vec g[3], t[6];
            for (size_t y = 0; y < 3; y++)
                g[y] = vec_load(taps + (y * 3 + x) * n + at);
            filter_six(g, t);
            for (size_t i = 0; i < 6; i++)
                half[i][x] = t[i];
        }
        for (size_t i = 0; i < rows; i++) {
            vec t[6];
            filter_six(half[first + i], t);
            for (size_t j = 0; j < 6; j++)
                vec_store(to + (i * 6 + j) * step + at, t[j]);
        }
    }
}

/* t = A' m: four numbers from six. */
ALWAYS_INLINE void sink_six(const vec m[6], vec t[4])
{
    const vec sum_p = vec_add(m[1], m[2]), sum_q = vec_add(m[3], m[4]);
    const vec odd_p = vec_sub(m[1], m[2]), odd_q = vec_sub(m[3], m[4]);
    t[0] = vec_add(vec_add(m[0], sum_p), sum_q);
    t[1] = vec_fma(odd_p, vec_set(P), vec_mul(odd_q, vec_set(Q)));
    t[2] = vec_fma(sum_p, vec_set(0.5f), vec_add(sum_q, sum_q));
    t[3] = vec_add(vec_fma(odd_p, vec_set(P / 2), vec_mul(odd_q, vec_set(2 * Q))), m[5]);
}

ALWAYS_INLINE void sink_tile(const struct winograd_tile *tile, const struct gemm *g, const float *m,
                             size_t m_step, void *y, bool bf16)
{
    for (size_t c = 0; c < g->n; c += VEC) {
        const size_t n = g->n - c < VEC ? g->n - c : VEC;
        vec half[4][6];
        for (int j = 0; j < 6; j++) {
            vec d[6], t[4];
            for (int i = 0; i < 6; i++)
                d[i] = vec_load_n(m + (size_t)(i * 6 + j) * m_step + c, n);
            sink_six(d, t);
            for (int i = 0; i < 4; i++)
                half[i][j] = t[i];
        }
        const vec bias = g->bias ? vec_load_n(g->bias + c, n) : vec_zero();
        for (int i = 0; i < tile->bottom; i++) {
            vec t[4];
            sink_six(half[i], t);
            const ptrdiff_t row = (ptrdiff_t)i * tile->row_step + (ptrdiff_t)c;
            for (int j = 0; j < tile->right; j++) {
                const ptrdiff_t pixel = row + (ptrdiff_t)j * tile->column_step;
                vec value = vec_add(t[j], bias);
                if (g->accumulate)
                    value = vec_add(value, load_pixel(y, pixel, n, bf16));
                if (g->row.activation == ACTIVATION_CLIP)
                    value = vec_clamp(value, vec_set(g->row.alpha), vec_set(g->row.beta));
                if (bf16)
                    vec_narrow_n((uint16_t *)y + pixel, value, n);
                else
                    vec_store_n((float *)y + pixel, value, n);
            }
        }
    }
}

void SIMD_NAMED(winograd_sink)(const struct winograd_tile *tile, const struct gemm *g,
                               const float *m, size_t m_step, void *y, bool bf16)
{
    if (bf16)
        sink_tile(tile, g, m, m_step, y, true);
    else
        sink_tile(tile, g, m, m_step, y, false);
}
