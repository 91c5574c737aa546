/* CPU cores, instruction sets and memory that are available to this process. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of cores this process may use: those of the affinity mask, at most the cgroup v1 / v2 CPU
 * quota rounded down, at least 1. Read once, at the first call. Thread-safe. */
int cpu_available_cores(void);

/* The cgroup CPU quota in cores, such as 1.5; 0 without a quota. `root` is /sys/fs/cgroup and
 * `proc_cgroup` the text of /proc/self/cgroup; tests pass other values. */
double cpu_cgroup_quota(const char *root, const char *proc_cgroup);

struct cpu_features {
    bool avx2;   /* with FMA and F16C */
    bool avx512; /* F, BW, VL, DQ */
    bool avx512_vnni;
    bool avx512_vbmi;
    bool avx_vnni; /* AVX-VNNI, in 256-bit registers */
    bool avx512_bf16;
    bool avx512_fp16;
    bool amx_bf16, amx_int8;
    bool fast_bf16; /* multiplies bfloat16 faster than float32 */
    bool neon_dot;  /* arm64's dot product; every arm64 CPU has NEON */
    bool neon_i8mm;
    bool neon_bf16;
    bool neon_fp16;
};

const struct cpu_features *cpu_features(void);

/* Sets the features that this CPU has. Only cpu.c calls it, once. */
void cpu_read_features(struct cpu_features *ret);

/* Makes this thread's arithmetic treat subnormal float32 numbers (below 1.2e-38) as 0. On Intel
 * each such number costs as much as about a hundred multiplications. Returns the thread's previous
 * mode for cpu_set_float_mode(). Threads that this thread creates inherit the mode. */
uint64_t cpu_flush_subnormals(void);
void cpu_set_float_mode(uint64_t mode);

/* Writes a text such as "avx512 vnni" or "neon dot", at most `size` bytes with the terminator. */
void cpu_instructions(const struct cpu_features *cpu, char *text, size_t size);

extern const char cpu_architecture[]; /* "x86-64" or "arm64" */

/* Writes the CPU's name from /proc/cpuinfo, such as "AMD EPYC 9004", or "x86-64 CPU" or "arm64 CPU"
 * if that file has no name; at most `size` bytes with the terminator. */
void cpu_model_name(char *text, size_t size);

/* Bytes of memory that this process may use, and how many are free. The total is the smallest of
 * the host's memory, the limits of the process's cgroup and its parents, and ulimit -v. */
void cpu_memory(uint64_t *ret_total, uint64_t *ret_free);

/* Lowers *total and *free to the limits of the cgroups. `root` and `proc_cgroup` are as in
 * cpu_cgroup_quota(). Cached file pages count as free, because the kernel can reclaim them. */
void cpu_cgroup_memory(const char *root, const char *proc_cgroup, uint64_t *total, uint64_t *free);
