/* Multiplies matrices of 8-bit integers, with int32 sums, and of bfloat16, with float32 sums. A
 * tile of sums stays in registers while k advances. Compiled once per instruction set.
 *
 * A panel of weights stores consecutive numbers of a column side by side, as many as one
 * instruction multiplies and adds: two 8-bit integers, widened to 16 bits (exact, and available in
 * every instruction set); four 8-bit integers with VNNI or NEON's dot product; eight with i8mm,
 * which multiplies 2 x 8 by 8 x 2 bytes; two numbers of bfloat16. */
#include "engine/cpu/kernels/variant.h"
#include "engine/cpu/kernels/vec_8bit.h"

/* FOR_ROWS_n is M(r, …) for r = 0 … n - 1. */
#define FOR_ROWS_1(M, ...) M(0, __VA_ARGS__)
#define FOR_ROWS_2(M, ...) FOR_ROWS_1(M, __VA_ARGS__) M(1, __VA_ARGS__)
#define FOR_ROWS_3(M, ...) FOR_ROWS_2(M, __VA_ARGS__) M(2, __VA_ARGS__)
#define FOR_ROWS_4(M, ...) FOR_ROWS_3(M, __VA_ARGS__) M(3, __VA_ARGS__)
#define FOR_ROWS_5(M, ...) FOR_ROWS_4(M, __VA_ARGS__) M(4, __VA_ARGS__)
#define FOR_ROWS_6(M, ...) FOR_ROWS_5(M, __VA_ARGS__) M(5, __VA_ARGS__)
#define FOR_ROWS_7(M, ...) FOR_ROWS_6(M, __VA_ARGS__) M(6, __VA_ARGS__)
#define FOR_ROWS_8(M, ...) FOR_ROWS_7(M, __VA_ARGS__) M(7, __VA_ARGS__)

#define EACH_ROW(r, each, X) each(X, r)
#define BEGIN_ROW(r, none)   const unsigned char *const a##r = rows[r];
#define ADD_ROW(r, each)                                                                           \
    {                                                                                              \
        const __auto_type x = TILE_REPEAT(a##r + p);                                               \
        each(ADD_SUM, r)                                                                           \
    }

/* EACH_OF_n expands X(r, i) for the registers i = 0 … n - 1 of row r. */
#define EACH_OF_1(X, r) X(r, 0)
#define EACH_OF_2(X, r) EACH_OF_1(X, r) X(r, 1)
#define EACH_OF_3(X, r) EACH_OF_2(X, r) X(r, 2)
#define EACH_OF_4(X, r) EACH_OF_3(X, r) X(r, 3)

#define TILE_FUNCTION_(name, count, each) name##_##count##_##each
#define TILE_FUNCTION(name, count, each)  TILE_FUNCTION_(name, count, each)

#define TILE_PART(r, i)    (c + (r)*t->ldc + (i)*VEC)
#define DECLARE_SUM(r, i)  __auto_type s##r##i = TILE_ZERO();
#define LOAD_WEIGHTS(r, i) const __auto_type w##i = TILE_LOAD(b + (i)*TILE_BYTES);
#define ADD_SUM(r, i)      s##r##i = TILE_ADD(s##r##i, x, w##i);
#define STORE_SUM(r, i)    TILE_STORE(TILE_PART(r, i), s##r##i);

#define TILE_OF(count, each)                                                                       \
    TILE_TARGET static void TILE_FUNCTION(TILE_NAME, count, each)(const struct tile *t)            \
    {                                                                                              \
        const unsigned char *b = t->b, *const *rows = t->rows;                                     \
        int32_t *c = t->c;                                                                         \
        FOR_ROWS_##count(EACH_ROW, each, DECLARE_SUM) for (size_t tap = 0; tap < t->taps;          \
                                                           tap++, rows += TILE_ROWS)               \
        {                                                                                          \
            const size_t run = t->run;                                                             \
            FOR_ROWS_##count(BEGIN_ROW, ) for (size_t p = 0; p < run;                              \
                                               p += 4, b += TILE_REGISTERS * TILE_BYTES)           \
            {                                                                                      \
                each(LOAD_WEIGHTS, 0) FOR_ROWS_##count(ADD_ROW, each)                              \
            }                                                                                      \
        }                                                                                          \
        FOR_ROWS_##count(EACH_ROW, each, STORE_SUM)                                                \
    }
#if TILE_ROWS > 6
#define TILES_OF_MORE(each) TILE_OF(7, each) TILE_OF(8, each)
#define TILE_MORE(each)     , TILE_FUNCTION(TILE_NAME, 7, each), TILE_FUNCTION(TILE_NAME, 8, each)
#else
#define TILES_OF_MORE(each)
#define TILE_MORE(each)
#endif

#define TILES_OF(each)                                                                             \
    TILE_OF(1, each)                                                                               \
    TILE_OF(2, each)                                                                               \
    TILE_OF(3, each)                                                                               \
    TILE_OF(4, each)                                                                               \
    TILE_OF(5, each)                                                                               \
    TILE_OF(6, each)                                                                               \
    TILES_OF_MORE(each)

#define TILE_FUNCTIONS(each)                                                                       \
    {                                                                                              \
        TILE_FUNCTION(TILE_NAME, 1, each), TILE_FUNCTION(TILE_NAME, 2, each),                      \
            TILE_FUNCTION(TILE_NAME, 3, each), TILE_FUNCTION(TILE_NAME, 4, each),                  \
            TILE_FUNCTION(TILE_NAME, 5, each), TILE_FUNCTION(TILE_NAME, 6, each) TILE_MORE(each)   \
    }

#if !defined __AVX512BF16__

#define TILE_NAME tile_pairs
#define TILE_TARGET
#define TILE_ZERO    ints_zero
#define TILE_STORE   ints_store
#define TILE_REPEAT  ints_repeat
#define TILE_LOAD(b) load_pairs((const int8_t *)(b))
#define TILE_BYTES   ((size_t)VEC * 2)
#define TILE_ADD     add_pairs
#include "engine/cpu/kernels/tile.h"

#if defined DOT && !defined __ARM_FEATURE_MATMUL_INT8

#define TILE_NAME    tile_dot
#define TILE_TARGET  DOT
#define TILE_ZERO    ints_zero
#define TILE_STORE   ints_store
#define TILE_REPEAT  ints_repeat
#define TILE_LOAD(b) load_dot((const int8_t *)(b))
#define TILE_BYTES   ((size_t)VEC * 4)
#define TILE_ADD     add_dot
#include "engine/cpu/kernels/tile.h"

#endif
#endif

#if defined __ARM_FEATURE_MATMUL_INT8

/* i8mm multiplies two rows at a time: a register holds their sums in two columns. */
void SIMD_NAMED(tile_dot)(const struct tile *t, size_t rows)
{
    for (size_t r = 0; r < rows; r += 2) {
        const bool two = r + 1 < rows;
        const unsigned char *const *row = t->rows + r;
        const int8_t *b = (const int8_t *)t->b;
        int32_t *c = (int32_t *)t->c + r * t->ldc, *d = two ? c + t->ldc : c;
        int32x4_t s0 = vdupq_n_s32(0), s1 = s0, s2 = s0, s3 = s0;
        for (size_t tap = 0; tap < t->taps; tap++, row += TILE_ROWS)
            for (size_t p = 0; p < t->run; p += 8, b += 64) {
                const uint8x16_t x = vcombine_u8(vld1_u8(row[0] + p), vld1_u8(row[two] + p));
                s0 = vusmmlaq_s32(s0, x, vld1q_s8(b));
                s1 = vusmmlaq_s32(s1, x, vld1q_s8(b + 16));
                s2 = vusmmlaq_s32(s2, x, vld1q_s8(b + 32));
                s3 = vusmmlaq_s32(s3, x, vld1q_s8(b + 48));
            }
        vst1q_s32(c, vcombine_s32(vget_low_s32(s0), vget_low_s32(s1)));
        vst1q_s32(c + 4, vcombine_s32(vget_low_s32(s2), vget_low_s32(s3)));
        if (two) {
            vst1q_s32(d, vcombine_s32(vget_high_s32(s0), vget_high_s32(s1)));
            vst1q_s32(d + 4, vcombine_s32(vget_high_s32(s2), vget_high_s32(s3)));
        }
    }
}

#endif

#if defined __AVX512BF16__ || defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC

#if defined __AVX512BF16__
#define TILE_REPEAT(p)      (__m512bh) ints_repeat(p)
#define TILE_LOAD(b)        (__m512bh) _mm512_loadu_si512(b)
#define TILE_ADD(sum, x, w) _mm512_dpbf16_ps(sum, x, w)
#else
#define TILE_REPEAT(p)      vreinterpretq_bf16_s32(ints_repeat(p))
#define TILE_LOAD(b)        vreinterpretq_bf16_u8(vld1q_u8(b))
#define TILE_ADD(sum, x, w) vbfdotq_f32(sum, x, w)
#endif
#define TILE_NAME tile_bf16
#define TILE_TARGET
#define TILE_ZERO        vec_zero
#define TILE_STORE(p, v) vec_store((float *)(void *)(p), v)
#define TILE_BYTES       ((size_t)VEC * 4)
#include "engine/cpu/kernels/tile.h"

#endif
