/* Selects the widest variant of the kernels that this CPU supports. */
#include "engine/cpu/kernels/simd.h"

#include <pthread.h>

#include "engine/base/cpu.h"
#if defined __x86_64__

static struct simd_kernels amx; /* name is NULL if the CPU or Linux has no AMX */

static void add_amx(void)
{
    const struct cpu_features *cpu = cpu_features();
    if (!cpu->avx512_bf16 || !cpu->avx512_vnni || !cpu->amx_int8 || !cpu->amx_bf16 ||
        !amx_allowed())
        return;
    amx = simd_avx512_bf16;
    amx.tile_rows = TILE_MOST_ROWS;
    amx.tile_columns = TILE_MOST_COLUMNS;
    amx.tile_bytes = 64;
    amx.tile_rows_are_even = amx.dot_takes_both = true;
    amx.tile_dot = amx_tile_dot;
    amx.tile_bf16 = amx_tile_bf16;
    amx.tile_end = amx_tile_end;
    amx.name = "avx512_amx";
}

static const struct simd_kernels *amx_variant(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, add_amx);
    return amx.name ? &amx : NULL;
}
#endif

static const struct simd_kernels *chosen;

void simd_use(const struct simd_kernels *kernels)
{
    chosen = kernels;
}

const struct simd_kernels *simd_at(size_t i)
{
    const struct cpu_features *cpu = cpu_features();
    const struct simd_kernels *usable[SIMD_VARIANTS] = {&simd_base};
    size_t count = 1;
#if defined __x86_64__
    if (cpu->avx2)
        usable[count++] = &simd_avx2;
    if (cpu->avx512)
        usable[count++] = &simd_avx512;
    if (cpu->avx512_bf16)
        usable[count++] = &simd_avx512_bf16;
    if (amx_variant())
        usable[count++] = amx_variant();
#else
    if (cpu->neon_dot)
        usable[count++] = &simd_dot;
    if (cpu->neon_dot && cpu->neon_i8mm && cpu->neon_bf16)
        usable[count++] = &simd_i8mm;
#endif
    return i < count ? usable[i] : NULL;
}

const struct simd_kernels *simd(void)
{
    size_t last = 0;
    if (chosen)
        return chosen;
    while (simd_at(last + 1))
        last++;
    return simd_at(last);
}

bool simd_has_dot(const struct simd_kernels *kernels)
{
    const struct cpu_features *cpu = cpu_features();
#if defined __x86_64__
    return kernels == &simd_avx2 ? cpu->avx_vnni : kernels->tile_dot && cpu->avx512_vnni;
#else
    return kernels->tile_dot && cpu->neon_dot;
#endif
}
