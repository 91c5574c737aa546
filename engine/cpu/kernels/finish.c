/* Turns the sums of a tile into results (struct tile_finish) while they are in the first-level
 * cache. Compiled once per instruction set. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

/* Bias and scale of VEC columns. */
struct tile_columns {
    size_t width;
    bool is_int;
    ints bias;
    vec real_bias, scale;
};

ALWAYS_INLINE struct tile_columns columns_at(const struct tile_finish *f, size_t i)
{
    struct tile_columns c = {
        .width = smaller(f->n - i, VEC), .is_int = f->scales, .scale = vec_zero()};
    c.bias = c.is_int ? ints_load((const int32_t *)f->bias + i) : ints_zero();
    c.real_bias =
        !c.is_int && f->bias ? vec_load_n((const float *)f->bias + i, c.width) : vec_zero();
    if (c.is_int)
        c.scale = vec_load_n(f->scales + i, c.width);
    return c;
}

ALWAYS_INLINE vec real_of(const struct tile_columns *c, const int32_t *sums)
{
    return c->is_int ? vec_mul(ints_real(ints_add(ints_load(sums), c->bias)), c->scale)
                     : vec_add(vec_load((const float *)(const void *)sums), c->real_bias);
}

ALWAYS_INLINE void store_8bit(const struct tile_finish *f, vec v, uint8_t *y, size_t width)
{
    const bool is_signed = f->to == DTYPE_I8;
    const float low = (float)((is_signed ? -128 : 0) - f->zero);
    const vec q = f->step != 0 ? vec_div(v, vec_set(f->step)) : v;
    const vec clamped = vec_min(vec_max(q, vec_set(low)), vec_set(low + 255)); /* NaN: low */
    const ints stored = ints_add(ints_round(clamped), ints_set(f->zero));
    uint8_t bytes[VEC];
    store_bytes(width < VEC ? bytes : y, stored, is_signed);
    if (width < VEC)
        memcpy(y, bytes, width);
}

/* Callers pass constants for `to` and is_int. */
ALWAYS_INLINE void finish_rows(const struct tile_finish *f, const int32_t *sums, size_t rows,
                               unsigned char *y, const enum dtype to, const bool is_int)
{
    const vec low = vec_set(f->low), high = vec_set(f->high);
    for (size_t i = 0; i < f->n; i += VEC) {
        struct tile_columns c = columns_at(f, i);
        c.is_int = is_int;
        for (size_t r = 0; r < rows; r++) {
            unsigned char *row = y + r * f->ldy;
            uint16_t *half = (uint16_t *)(void *)row + i;
            float *whole = (float *)(void *)row + i;
            vec v = real_of(&c, sums + r * f->lds + i);
            if (f->residual && to == DTYPE_F32)
                v = vec_add(v, vec_load_n(whole, c.width));
            else if (f->residual && to == DTYPE_BF16)
                v = vec_add(v, vec_widen_n(half, c.width));
            if (f->clamp) /* this order keeps NaN */
                v = vec_min(high, vec_max(low, v));
            if (to == DTYPE_F32)
                vec_store_n(whole, v, c.width);
            else if (to == DTYPE_BF16)
                vec_narrow_n(half, v, c.width);
            else
                store_8bit(f, v, row + i, c.width);
        }
    }
}

static void finish_to(const struct tile_finish *f, const int32_t *sums, size_t rows,
                      unsigned char *y)
{
#define FINISH(to)                                                                                 \
    do {                                                                                           \
        if (f->scales)                                                                             \
            finish_rows(f, sums, rows, y, to, true);                                               \
        else                                                                                       \
            finish_rows(f, sums, rows, y, to, false);                                              \
    } while (0)
    if (f->to == DTYPE_F32)
        FINISH(DTYPE_F32);
    else if (f->to == DTYPE_BF16)
        FINISH(DTYPE_BF16);
    else
        FINISH(DTYPE_U8);
}

/* Overwrites the sums with activated results, if the activation is not a clamp. */
static void activate_sums(const struct tile_finish *f, int32_t *sums, size_t rows,
                          const unsigned char *y)
{
    for (size_t r = 0; r < rows; r++, sums += f->lds, y += f->ldy) {
        float *real = (float *)(void *)sums;
        for (size_t i = 0; i < f->n; i += VEC) {
            const struct tile_columns c = columns_at(f, i);
            vec v = real_of(&c, sums + i);
            if (f->residual && f->to == DTYPE_F32)
                v = vec_add(v, vec_load_n((const float *)(const void *)y + i, c.width));
            else if (f->residual)
                v = vec_add(v, vec_widen_n((const uint16_t *)(const void *)y + i, c.width));
            vec_store(real + i, v);
        }
        SIMD_COMMON(activate)(real, real, f->n, f->row.activation, f->row.alpha, f->row.beta);
    }
}

void SIMD_NAMED(finish_tile)(const struct tile_finish *f, int32_t *sums, size_t rows, void *y)
{
    if (!f->row.activation) {
        finish_to(f, sums, rows, y);
        return;
    }
    struct tile_finish rest = *f;
    activate_sums(f, sums, rows, y);
    rest.scales = NULL;
    rest.bias = NULL;
    rest.residual = false;
    finish_to(&rest, sums, rows, y);
}
