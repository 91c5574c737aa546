/* For tests: the rest of the process sees an x86-64 CPU without VNNI instructions. */
#pragma once

#include <stdlib.h>

#include "engine/base/cpu.h"

/* From lensd and oneDNN; before sessions are made. */
static inline void hide_vnni(void)
{
    (void)setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
    struct cpu_features *cpu = (struct cpu_features *)(uintptr_t)cpu_features();
    cpu->avx512_vnni = cpu->avx_vnni = false;
}
