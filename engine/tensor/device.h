/* Devices: what a forward pass can run on, how a user names them, what this machine has. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

enum device_kind { DEVICE_CPU, DEVICE_CUDA };
#define DEVICE_KINDS 2

struct device_id {
    enum device_kind kind;
    int index; /* 0 for the CPU */
};

#define DEVICE_HOST ((struct device_id){DEVICE_CPU, 0})
#define DEVICE_MAX  32

static inline bool device_equal(struct device_id a, struct device_id b)
{
    return a.kind == b.kind && a.index == b.index;
}

/* "cpu", "cuda:1"; the buffer is returned. */
#define DEVICE_TEXT 16
const char *device_text(struct device_id device, char text[static DEVICE_TEXT]);

/* What is known of one device of this machine. */
struct device_info {
    struct device_id id;
    char name[96];
    bool present; /* false: the entry only says why there is no such device */
    bool usable;
    char reason[256]; /* why it is not usable; empty when it is */
    uint64_t total_bytes, free_bytes;
    bool free_is_known;    /* GPU: false: free_bytes is total_bytes */
    char bus[24];          /* GPU: its PCI address, 00000000:1b:00.0 */
    int threads;           /* CPU: threads lensd may use */
    int cores;             /* CPU: cores the affinity mask and the cgroup quota leave */
    char isa[64];          /* CPU: "avx512 vnni bf16" …; GPU: "sm_90" */
    bool bf16, fp16, int8; /* precisions the hardware is fast at */
};

/* Every device of the machine; the CPU is always first and usable. A GPU that is there but cannot
 * be used is an entry with usable = false and the reason; without any GPU there is one entry,
 * cuda:0, with present = false, which says why CUDA is not available. Returns how many were
 * written, at most `max`. Thread-safe. */
size_t device_list(struct device_info *ret, size_t max);

/* Parses what a user wrote: auto | cpu | cuda | cuda:N | mps | a comma list | all.
 * "auto" takes the first usable GPU, else the CPU, and then *ret_fallback says why (a sentence,
 * empty otherwise). An explicit device that is not there, or `mps`, is STATUS_DEVICE with a
 * sentence that says which devices this machine has. ret holds DEVICE_MAX. */
enum status device_parse(const char *text, struct device_id *ret, size_t *ret_count,
                         char *ret_fallback, size_t fallback_size, struct error *err) MUST_USE;

/* Threads this process may really use: affinity mask and cgroup v1 / v2 quota (rounded down, at
 * least 1), never the host's core count. */
int device_cpu_threads(void);

/* Does this CPU have what --precision bf16 needs (AVX512-BF16, AMX, or BF16 of NEON)? */
bool device_cpu_has_bf16(void);
