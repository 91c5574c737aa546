/* Holds a bench to the instructions of another CPU. */
#ifndef LENSD_TESTS_BENCH_ISA_H
#define LENSD_TESTS_BENCH_ISA_H

#include <stdbool.h>
#include <string.h>

#include "engine/cpu/kernels/simd.h"

/* Call it before the first session. False: this CPU has no such variant. */
static inline bool isa_hold(const char *variant)
{
    for (size_t v = 0; simd_at(v); v++) {
        if (strcmp(simd_at(v)->name, variant) == 0) {
            simd_use(simd_at(v));
            return true;
        }
    }
    return false;
}

#endif
