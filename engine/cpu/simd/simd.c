#include "engine/cpu/simd/simd.h"

#include "engine/base/cpu.h"

const struct simd_kernels *simd(void)
{
    const struct cpu_features *features = cpu_features();
    if (features->avx512)
        return &simd_avx512;
    return features->avx2 ? &simd_avx2 : &simd_base;
}
