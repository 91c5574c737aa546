/* Picks the widest variant of the row kernels that this CPU runs. */
#include "engine/cpu/kernels/simd.h"

#include "engine/base/cpu.h"

static const struct simd_kernels *chosen;

void simd_use(const struct simd_kernels *kernels)
{
    chosen = kernels;
}

const struct simd_kernels *simd(void)
{
    const struct cpu_features *features = cpu_features();
    if (chosen)
        return chosen;
    if (features->avx512_bf16)
        return &simd_avx512_bf16;
    if (features->avx512)
        return &simd_avx512;
    return features->avx2 ? &simd_avx2 : &simd_base;
}
