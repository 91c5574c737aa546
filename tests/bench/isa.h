/* Holds a bench to the instructions of another CPU: lensd's kernels to a variant, oneDNN to the
 * same. */
#ifndef LENSD_TESTS_BENCH_ISA_H
#define LENSD_TESTS_BENCH_ISA_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"

/* Call it before the first session. False: this CPU has no such variant. */
static inline bool isa_hold(const char *variant)
{
    static const char *const isa[][2] = {{"avx2", "AVX2_VNNI"},
                                         {"avx512", "AVX512_CORE_VNNI"},
                                         {"avx512_bf16", "AVX512_CORE_BF16"},
                                         {"avx512_amx", "AVX512_CORE_AMX"}};
    for (size_t i = 0; i < COUNT_OF(isa); i++)
        if (strcmp(isa[i][0], variant) == 0)
            (void)setenv("ONEDNN_MAX_CPU_ISA", isa[i][1], 1);
    for (size_t v = 0; simd_at(v); v++) {
        if (strcmp(simd_at(v)->name, variant) == 0) {
            simd_use(simd_at(v));
            return true;
        }
    }
    return false;
}

#endif
