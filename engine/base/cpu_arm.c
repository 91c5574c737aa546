/* What an arm64 CPU can do, as Linux says it (Documentation/arch/arm64/elf_hwcaps.rst). */
#include <asm/hwcap.h>
#include <stdio.h>
#include <sys/auxv.h>

#include "engine/base/cpu.h"

const char cpu_architecture[] = "arm64";

void cpu_read_features(struct cpu_features *ret)
{
    const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    ret->neon_fp16 = (one & HWCAP_FPHP) && (one & HWCAP_ASIMDHP);
    ret->neon_dot = one & HWCAP_ASIMDDP;
    ret->neon_i8mm = two & HWCAP2_I8MM;
    ret->neon_bf16 = two & HWCAP2_BF16;
}

void cpu_instructions(const struct cpu_features *cpu, char *text, size_t size)
{
    snprintf(text, size, "neon%s%s%s%s", cpu->neon_dot ? " dot" : "", cpu->neon_i8mm ? " i8mm" : "",
             cpu->neon_bf16 ? " bf16" : "", cpu->neon_fp16 ? " fp16" : "");
}
