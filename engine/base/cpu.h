/* What this process may use of the host's CPUs, and what they can do. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Cores this process may really use: the affinity mask, cut by the cgroup v1 / v2 CPU quota rounded
 * down, at least 1. Read at the first call; never the host's core count. Thread-safe. */
int cpu_available_cores(void);

/* The quota in cores (1.5) that `root` and the text of /proc/self/cgroup lead to; 0 = no quota.
 * `root` is /sys/fs/cgroup; a parameter so that tests can show other trees. */
double cpu_cgroup_quota(const char *root, const char *proc_cgroup);

struct cpu_features {
    bool avx2;   /* with FMA and F16C */
    bool avx512; /* F, BW, VL, DQ */
    bool avx512_vnni;
    bool avx512_vbmi;
    bool avx_vnni; /* the same in 256 bits */
    bool avx512_bf16;
    bool avx512_fp16;
    bool amx_bf16, amx_int8;
    bool fast_bf16; /* multiplies bfloat16 faster than float32 */
    bool neon_dot;  /* arm64, all of which have NEON */
    bool neon_i8mm;
    bool neon_bf16;
    bool neon_fp16;
};

const struct cpu_features *cpu_features(void);

/* Reads them from the CPU; *ret is zeroed before. For cpu_features(). */
void cpu_read_features(struct cpu_features *ret);

/* From now on this thread's arithmetic treats subnormal float32 numbers (below 1.2e-38) as 0 and
 * produces none: on Intel each costs about as much as a hundred multiplications. Returns the
 * thread's previous mode, for cpu_set_float_mode(). Threads that it creates inherit the mode. */
uint64_t cpu_flush_subnormals(void);
void cpu_set_float_mode(uint64_t mode);

/* "avx512 vnni", "neon dot": at most `size` bytes with the terminator. */
void cpu_instructions(const struct cpu_features *cpu, char *text, size_t size);

extern const char cpu_architecture[]; /* "x86-64" */

/* "AMD EPYC 9004", from /proc/cpuinfo; at most `size` bytes with the terminator. */
void cpu_model_name(char *text, size_t size);

/* Bytes of memory that this process may use, and how many of them are free. The total is the least
 * of the host's memory, the limits of the process's cgroup and its parents, and ulimit -v. */
void cpu_memory(uint64_t *ret_total, uint64_t *ret_free);

/* Lowers *total and *free to what the cgroups allow. Parameters as in cpu_cgroup_quota. Pages of
 * files count as free, because the kernel can reclaim them. */
void cpu_cgroup_memory(const char *root, const char *proc_cgroup, uint64_t *total, uint64_t *free);
