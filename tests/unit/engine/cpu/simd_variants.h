/* The row kernels' variants, for tests that run in each of them. */
#pragma once

#include "engine/cpu/kernels/simd.h"

/* Those this CPU runs, the plainest first; returns how many. */
static inline size_t simd_variants(const struct simd_kernels *ret[SIMD_VARIANTS])
{
    size_t count = 0;
    while (count < SIMD_VARIANTS && (ret[count] = simd_at(count)))
        count++;
    return count;
}
