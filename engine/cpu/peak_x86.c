/* Multiply-adds of x86-64. */
#include "engine/cpu/peak_probe.h"

#include <immintrin.h>

#include "engine/base/cpu.h"
#include "engine/cpu/kernels/amx.h"

enum { SUMS = 12 };

/* Each sum is a variable, because an array of sums would live in memory. */
#define EACH_SUM(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/* A probe on registers of `type`: `step` computes the next sum from s, a and b. */
#define PROBE(name, features, type, factor, set, step, first)                                      \
    __attribute__((target(features))) static float name(long count)                                \
    {                                                                                              \
        const factor a = set(0.999f), b = set(1e-3f);                                              \
        EACH_SUM(DECLARE_##type)                                                                   \
        for (long i = 0; i < count; i++) {                                                         \
            EACH_SUM(step)                                                                         \
        }                                                                                          \
        float total = 0;                                                                           \
        EACH_SUM(first)                                                                            \
        return total;                                                                              \
    }

#define DECLARE___m512(n) __m512 s##n = _mm512_set1_ps((float)(n));
#define DECLARE___m256(n) __m256 s##n = _mm256_set1_ps((float)(n));
#define DECLARE___m128(n) __m128 s##n = _mm_set1_ps((float)(n));

#define DECLARE___m512i(n) __m512i s##n = _mm512_set1_epi32(n);
#define DECLARE___m256i(n) __m256i s##n = _mm256_set1_epi32(n);
#define DECLARE___m128i(n) __m128i s##n = _mm_set1_epi32(n);

#define FMA_512(n)   s##n = _mm512_fmadd_ps(s##n, a, b);
#define FMA_256(n)   s##n = _mm256_fmadd_ps(s##n, a, b);
#define FMA_128(n)   s##n = _mm_add_ps(_mm_mul_ps(s##n, a), b);
#define BF16_512(n)  s##n = _mm512_dpbf16_ps(s##n, a, b);
#define VNNI_512(n)  s##n = _mm512_dpbusd_epi32(s##n, a, b);
#define VNNI_256(n)  s##n = _mm256_dpbusd_avx_epi32(s##n, a, b);
#define PAIRS_512(n) s##n = _mm512_add_epi32(_mm512_madd_epi16(s##n, a), b);
#define PAIRS_256(n) s##n = _mm256_add_epi32(_mm256_madd_epi16(s##n, a), b);
#define PAIRS_128(n) s##n = _mm_add_epi32(_mm_madd_epi16(s##n, a), b);
#define INT_512(n)   total += (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(s##n));
#define INT_256(n)   total += (float)_mm_cvtsi128_si32(_mm256_castsi256_si128(s##n));
#define INT_128(n)   total += (float)_mm_cvtsi128_si32(s##n);
/* Integers in place of the floats that PROBE sets. */
#define SET_512(x)   _mm512_set1_epi32((int)((x)*1e4f))
#define SET_256(x)   _mm256_set1_epi32((int)((x)*1e4f))
#define SET_128(x)   _mm_set1_epi32((int)((x)*1e4f))
#define FIRST_512(n) total += _mm512_cvtss_f32(s##n);
#define FIRST_256(n) total += _mm256_cvtss_f32(s##n);
#define FIRST_128(n) total += _mm_cvtss_f32(s##n);

__attribute__((target("avx512f,avx512bf16"))) static inline __m512bh set_bf16(float value)
{
    return _mm512_cvtne2ps_pbh(_mm512_set1_ps(value), _mm512_set1_ps(value));
}

PROBE(probe_avx512, "avx512f", __m512, __m512, _mm512_set1_ps, FMA_512, FIRST_512)
PROBE(probe_avx2, "avx2,fma", __m256, __m256, _mm256_set1_ps, FMA_256, FIRST_256)
PROBE(probe_sse, "sse2", __m128, __m128, _mm_set1_ps, FMA_128, FIRST_128)
PROBE(probe_avx512_vnni, "avx512f,avx512vnni", __m512i, __m512i, SET_512, VNNI_512, INT_512)
PROBE(probe_avx_vnni, "avx2,avxvnni", __m256i, __m256i, SET_256, VNNI_256, INT_256)
PROBE(probe_avx512_pairs, "avx512f,avx512bw", __m512i, __m512i, SET_512, PAIRS_512, INT_512)
PROBE(probe_avx2_pairs, "avx2", __m256i, __m256i, SET_256, PAIRS_256, INT_256)
PROBE(probe_sse_pairs, "sse2", __m128i, __m128i, SET_128, PAIRS_128, INT_128)
PROBE(probe_avx512_bf16, "avx512f,avx512bf16", __m512, __m512bh, set_bf16, BF16_512, FIRST_512)

/* Tiles of zeros: their products take as long as any others. */
#define AMX_PROBE(name, features, multiply)                                                        \
    __attribute__((target(features))) static float name(long count)                                \
    {                                                                                              \
        struct amx_config config = {.palette = 1};                                                 \
        for (int t = 0; t < 8; t++) {                                                              \
            config.row_bytes[t] = 64;                                                              \
            config.rows[t] = 16;                                                                   \
        }                                                                                          \
        __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");                                 \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
        _tile_zero(4);                                                                             \
        _tile_zero(5);                                                                             \
        for (long i = 0; i < count; i++) {                                                         \
            multiply(0, 4, 5);                                                                     \
            multiply(1, 4, 5);                                                                     \
            multiply(2, 4, 5);                                                                     \
            multiply(3, 4, 5);                                                                     \
        }                                                                                          \
        _tile_release();                                                                           \
        return 0;                                                                                  \
    }

AMX_PROBE(probe_amx_bf16, "amx-tile,amx-bf16", _tile_dpbf16ps)
AMX_PROBE(probe_amx_int8, "amx-tile,amx-int8", _tile_dpbusd)

static struct peak_probe pick_int8(const struct cpu_features *cpu)
{
    if (cpu->amx_int8 && amx_allowed())
        return (struct peak_probe){probe_amx_int8, 4.0 * 16 * 16 * 64 * 2, "AMX int8"};
    if (cpu->avx512_vnni)
        return (struct peak_probe){probe_avx512_vnni, SUMS * 64.0 * 2, "AVX512-VNNI"};
    if (cpu->avx_vnni)
        return (struct peak_probe){probe_avx_vnni, SUMS * 32.0 * 2, "AVX-VNNI"};
    if (cpu->avx512)
        return (struct peak_probe){probe_avx512_pairs, SUMS * 32.0 * 2, "AVX-512, 16 bits"};
    if (cpu->avx2)
        return (struct peak_probe){probe_avx2_pairs, SUMS * 16.0 * 2, "AVX2, 16 bits"};
    return (struct peak_probe){probe_sse_pairs, SUMS * 8.0 * 2, "SSE, 16 bits"};
}

struct peak_probe peak_probe_pick(enum precision precision)
{
    const struct cpu_features *cpu = cpu_features();
    if (precision == PRECISION_INT8)
        return pick_int8(cpu);
    if (precision == PRECISION_BF16 && cpu->amx_bf16 && amx_allowed())
        return (struct peak_probe){probe_amx_bf16, 4.0 * 16 * 16 * 32 * 2, "AMX bf16"};
    if (precision == PRECISION_BF16 && cpu->avx512_bf16)
        return (struct peak_probe){probe_avx512_bf16, SUMS * 32.0 * 2, "AVX512-BF16"};
    if (cpu->avx512)
        return (struct peak_probe){probe_avx512, SUMS * 16.0 * 2, "AVX-512 FMA"};
    if (cpu->avx2)
        return (struct peak_probe){probe_avx2, SUMS * 8.0 * 2, "AVX2 FMA"};
    return (struct peak_probe){probe_sse, SUMS * 4.0 * 2, "SSE"};
}
