/* For tests: the rest of the process sees an x86-64 CPU without VNNI instructions. */
#pragma once

#include "engine/base/cpu.h"

/* Before sessions are made. */
static inline void hide_vnni(void)
{
    struct cpu_features *cpu = (struct cpu_features *)(uintptr_t)cpu_features();
    cpu->avx512_vnni = cpu->avx_vnni = false;
}
