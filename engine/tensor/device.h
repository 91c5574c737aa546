/* Devices that run forward passes: names in options, and a list of this machine's devices. */
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

/* Writes "cpu" or "cuda:1" into the buffer and returns it. */
#define DEVICE_TEXT 16
const char *device_text(struct device_id device, char text[static DEVICE_TEXT]);

/* The text of device_text(), in memory that lasts until the enclosing block ends. */
#define DEVICE_STRING(device) device_text((device), (char[DEVICE_TEXT]){0})

/* Describes one device of this machine. */
struct device_info {
    struct device_id id;
    char name[96];
    bool present; /* false: there is no such device; `reason` says why */
    bool usable;
    char reason[256]; /* why it is not usable; empty when it is */
    uint64_t total_bytes, free_bytes;
    bool free_is_known;    /* GPU: if false, free_bytes is total_bytes */
    char bus[24];          /* GPU: its PCI address, 00000000:1b:00.0 */
    int threads;           /* CPU: threads lensd may use */
    int cores;             /* CPU: cores allowed by the affinity mask and the cgroup quota */
    char isa[64];          /* CPU: "avx512 vnni bf16" …; GPU: "sm_90" */
    bool bf16, fp16, int8; /* the hardware is fast at this precision */
};

/* Lists the devices of the machine. The CPU comes first and is always usable. A GPU that cannot be
 * used has usable = false and the reason. Without any GPU there is one entry cuda:0 with present =
 * false and the reason why CUDA is not available. Returns the number of entries, at most `max`.
 * Thread-safe. */
size_t device_list(struct device_info *ret, size_t max);

/* Describes device `id`. Returns false if device_list() does not have it. */
static inline bool device_find(struct device_id id, struct device_info *ret)
{
    struct device_info devices[DEVICE_MAX];
    for (size_t i = 0, count = device_list(devices, DEVICE_MAX); i < count; i++)
        if (device_equal(devices[i].id, id)) {
            *ret = devices[i];
            return true;
        }
    return false;
}

/* Parses the user's text: auto | cpu | cuda | cuda:N | a comma list of these | all. "auto" takes
 * the first usable GPU, else the CPU; if the CPU is taken although there is a GPU, *ret_fallback is
 * a sentence with the reason, otherwise empty. STATUS_DEVICE: a named GPU is not usable;
 * STATUS_CONFIG: any other text, also "mps". `ret` has room for DEVICE_MAX devices. */
enum status device_parse(const char *text, struct device_id *ret, size_t *ret_count,
                         char *ret_fallback, size_t fallback_size, struct error *err) MUST_USE;

/* Threads that this process may use: affinity mask and cgroup quota, rounded down, at least 1. */
int device_cpu_threads(void);

/* True if this CPU has the instructions for --precision bf16: AVX512-BF16, AMX, or NEON's BF16. */
bool device_cpu_has_bf16(void);
