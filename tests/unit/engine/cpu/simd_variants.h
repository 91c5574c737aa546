/* The row kernels' variants, for tests that run in each of them. */
#pragma once

#include "engine/base/cpu.h"
#include "engine/cpu/kernels/simd.h"

#define SIMD_VARIANTS 4

/* Those this CPU runs, the plainest first; returns how many. */
static inline size_t simd_variants(const struct simd_kernels *ret[SIMD_VARIANTS])
{
    size_t count = 0;
    ret[count++] = &simd_base;
    if (cpu_features()->avx2)
        ret[count++] = &simd_avx2;
    if (cpu_features()->avx512)
        ret[count++] = &simd_avx512;
    if (cpu_features()->avx512_bf16)
        ret[count++] = &simd_avx512_bf16;
    return count;
}
