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
        .width = i < f->n ? smaller(f->n - i, VEC) : 0, .is_int = f->scales, .scale = vec_zero()};
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

ALWAYS_INLINE vec divide_by_step(const struct tile_finish *e, vec v)
{
    return e->step != 0 ? vec_div(v, vec_set(e->step)) : v;
}

#if defined __AVX512F__

/* Stores the first n numbers of a row of `count` registers: one cache line at a time. */
ALWAYS_INLINE void store_8bit(const struct tile_finish *e, const vec *v, uint8_t *y, size_t n,
                              const size_t count)
{
    ints q[4] = {ints_zero(), ints_zero(), ints_zero(), ints_zero()};
    for (size_t i = 0; i < count; i++) /* vec_min() keeps NaN, which becomes INT32_MIN */
        q[i] = ints_round(vec_min(vec_set(INT16_MAX), divide_by_step(e, v[i])));
    const ints zero = _mm512_set1_epi16((short)e->zero);
    const ints low = _mm512_adds_epi16(_mm512_packs_epi32(q[0], q[1]), zero);
    const ints high = _mm512_adds_epi16(_mm512_packs_epi32(q[2], q[3]), zero);
    const ints mixed = e->to == DTYPE_I8
                           ? _mm512_packs_epi16(low, high) /* a 128-bit lane: 4 of each q[i] */
                           : _mm512_packus_epi16(low, high);
    const ints order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const ints bytes = _mm512_permutexvar_epi32(order, mixed);
    if (n == (size_t)4 * VEC)
        ints_store(y, bytes);
    else
        _mm512_mask_storeu_epi8(y, ((__mmask64)1 << n) - 1, bytes);
}

#elif defined __AVX2__

ALWAYS_INLINE void store_8bit(const struct tile_finish *e, const vec *v, uint8_t *y, size_t n,
                              const size_t count)
{
    ints q[2] = {ints_zero(), ints_zero()};
    for (size_t i = 0; i < count; i++)
        q[i] = ints_round(vec_min(vec_set(INT16_MAX), divide_by_step(e, v[i])));
    const ints both =
        _mm256_adds_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_set1_epi16((short)e->zero));
    const ints mixed =
        e->to == DTYPE_I8 ? _mm256_packs_epi16(both, both) : _mm256_packus_epi16(both, both);
    const ints order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    const __m128i bytes = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(mixed, order));
    if (n == (size_t)2 * VEC)
        _mm_storeu_si128((__m128i *)(void *)y, bytes);
    else if (n == VEC)
        _mm_storel_epi64((__m128i *)(void *)y, bytes);
    else
        memcpy(y, &bytes, n);
}

#else

ALWAYS_INLINE void store_8bit(const struct tile_finish *e, const vec *v, uint8_t *y, size_t n,
                              const size_t count)
{
    const float low = (float)((e->to == DTYPE_I8 ? -128 : 0) - e->zero);
    for (size_t i = 0, at = 0; i < count && at < n; i++, at += VEC) {
        const vec q = divide_by_step(e, v[i]);
        const vec clamped = vec_min(vec_max(q, vec_set(low)), vec_set(low + 255)); /* NaN: `low` */
        const ints stored = ints_add(ints_round(clamped), ints_set(e->zero));
        uint8_t bytes[VEC];
        store_bytes(n - at < VEC ? bytes : y + at, stored, e->to == DTYPE_I8);
        if (n - at < VEC)
            memcpy(y + at, bytes, n - at);
    }
}

#endif

/* Stores the first n numbers of a row of `count` registers as bfloat16. */
ALWAYS_INLINE void store_bf16(const vec *v, uint16_t *y, size_t n, const size_t count)
{
#if defined __AVX512BF16__
    for (size_t i = 0; i < count; i += 2, y += (size_t)2 * VEC) {
        const size_t more = n - i * VEC;
        if (i + 1 == count) {
            vec_narrow_n(y, v[i], more);
            break;
        }
        const ints both = (ints)_mm512_cvtne2ps_pbh(v[i + 1], v[i]);
        if (more >= (size_t)2 * VEC)
            ints_store(y, both);
        else
            _mm512_mask_storeu_epi16(y, ((__mmask32)1 << more) - 1, both);
    }
#else
    for (size_t i = 0; i < count && i * VEC < n; i++)
        vec_narrow_n(y + i * VEC, v[i], smaller(n - i * VEC, VEC));
#endif
}

ALWAYS_INLINE vec add_residual(vec v, const void *y, size_t i, size_t width, const enum dtype to)
{
    return vec_add(v, to == DTYPE_F32 ? vec_load_n((const float *)y + i, width)
                                      : vec_widen_n((const uint16_t *)y + i, width));
}

/* Callers pass constants for `to`, is_int, whole (the row has all columns) and count, the number of
 * registers per row. */
ALWAYS_INLINE void finish_rows(const struct tile_finish *f, const int32_t *sums, size_t rows,
                               unsigned char *y, const enum dtype to, const bool is_int,
                               const bool whole, const size_t count)
{
    const struct tile_finish e = *f; /* the compiler must assume that a store to y changes *f */
    const vec low = vec_set(e.row.alpha), high = vec_set(e.row.beta);
    struct tile_columns c[TILE_REGISTERS];
    vec v[TILE_REGISTERS];
    for (size_t i = 0; i < count; i++)
        c[i] = columns_at(f, i * VEC);
    for (; rows > 0; rows--, sums += e.lds, y += e.ldy) {
        for (size_t i = 0; i < count; i++) {
            const size_t width = whole ? VEC : c[i].width;
            c[i].is_int = is_int;
            v[i] = real_of(&c[i], sums + i * VEC);
            if (e.residual && (to == DTYPE_F32 || to == DTYPE_BF16))
                v[i] = add_residual(v[i], y, i * VEC, width, to);
            if (e.row.activation == ACTIVATION_CLIP)
                v[i] = vec_clamp(v[i], low, high);
            if (to == DTYPE_F32)
                vec_store_n((float *)(void *)y + i * VEC, v[i], width);
        }
        if (to == DTYPE_BF16)
            store_bf16(v, (uint16_t *)(void *)y, whole ? count * VEC : e.n, count);
        if (to == DTYPE_U8)
            store_8bit(&e, v, y, whole ? count * VEC : e.n, count);
    }
}

static void finish_to(const struct tile_finish *f, const int32_t *sums, size_t rows,
                      unsigned char *y)
{
#define FINISH_COUNT(to, is_int, count)                                                            \
    do {                                                                                           \
        if (f->n == (size_t)(count)*VEC)                                                           \
            finish_rows(f, sums, rows, y, to, is_int, true, count);                                \
        else                                                                                       \
            finish_rows(f, sums, rows, y, to, is_int, false, count);                               \
    } while (0)
#define FINISH_WIDE(to, is_int)                                                                    \
    do {                                                                                           \
        if (f->n <= VEC)                                                                           \
            FINISH_COUNT(to, is_int, 1);                                                           \
        else if (TILE_REGISTERS == 2 || f->n <= (size_t)2 * VEC)                                   \
            FINISH_COUNT(to, is_int, 2);                                                           \
        else if (f->n <= (size_t)3 * VEC)                                                          \
            FINISH_COUNT(to, is_int, TILE_REGISTERS - 1);                                          \
        else                                                                                       \
            FINISH_COUNT(to, is_int, TILE_REGISTERS);                                              \
    } while (0)
#define FINISH(to)                                                                                 \
    do {                                                                                           \
        if (f->scales)                                                                             \
            FINISH_WIDE(to, true);                                                                 \
        else                                                                                       \
            FINISH_WIDE(to, false);                                                                \
    } while (0)
    if (f->to == DTYPE_F32)
        FINISH(DTYPE_F32);
    else if (f->to == DTYPE_BF16)
        FINISH(DTYPE_BF16);
    else
        FINISH(DTYPE_U8);
}

/* Overwrites the sums with activated results, if is_row_activation(). */
static void activate_sums(const struct tile_finish *f, int32_t *sums, size_t rows,
                          const unsigned char *y)
{
    for (size_t r = 0; r < rows; r++, sums += f->lds, y += f->ldy) {
        float *real = (float *)(void *)sums;
        for (size_t i = 0; i < f->n; i += VEC) {
            const struct tile_columns c = columns_at(f, i);
            vec v = real_of(&c, sums + i);
            if (f->residual)
                v = add_residual(v, y, i, c.width, f->to);
            vec_store(real + i, v);
        }
        SIMD_COMMON(activate)(real, real, f->n, f->row.activation, f->row.alpha, f->row.beta);
    }
}

void SIMD_NAMED(finish_tile)(const struct tile_finish *f, int32_t *sums, size_t rows, void *y)
{
    if (!is_row_activation(f->row.activation)) {
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
