/* Instruction sets of an arm64 CPU, from Linux (Documentation/arch/arm64/elf_hwcaps.rst). */
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

/* Sets FZ of FPCR (Arm ARM, C5.2.8). */
uint64_t cpu_flush_subnormals(void)
{
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    cpu_set_float_mode(before | UINT64_C(1) << 24);
    return before;
}

void cpu_set_float_mode(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(mode));
}

void cpu_instructions(const struct cpu_features *cpu, char *text, size_t size)
{
    snprintf(text, size, "neon%s%s%s%s", cpu->neon_dot ? " dot" : "", cpu->neon_i8mm ? " i8mm" : "",
             cpu->neon_bf16 ? " bf16" : "", cpu->neon_fp16 ? " fp16" : "");
}
