/* Lists the devices of this machine, and finds the devices that a user names. This file is separate
 * from engine/tensor/device.c because it uses the CUDA module. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend/cuda_module.h"
#include "engine/base/cpu.h"
#include "engine/base/text.h"
#include "engine/runtime/nvml.h"
#include "engine/tensor/device.h"

static void describe_cpu(struct device_info *ret)
{
    const struct cpu_features *features = cpu_features();
    *ret = (struct device_info){.id = DEVICE_HOST, .present = true, .usable = true};
    cpu_model_name(ret->name, sizeof ret->name);
    cpu_memory(&ret->total_bytes, &ret->free_bytes);
    ret->cores = ret->threads = cpu_available_cores();
    cpu_instructions(features, ret->isa, sizeof ret->isa);
    ret->bf16 = features->fast_bf16; /* fp16 stays false: the CPU has no such kernels */
    ret->int8 =
        features->avx512_vnni || features->avx_vnni || features->amx_int8 || features->neon_dot;
}

/* Asks the driver for the free memory of a GPU on which this process has no context. */
static void ask_driver(struct device_info *gpu)
{
    uint64_t used;
    if (!gpu->usable || gpu->free_is_known || !nvml_used_bytes(gpu->bus, &used))
        return;
    gpu->free_bytes = used < gpu->total_bytes ? gpu->total_bytes - used : 0;
    gpu->free_is_known = true;
}

/* Lists GPUs through the module. Without a module, or if CUDA cannot be used, lists the driver's
 * device files with the reason why the GPUs cannot be used. */
static size_t list_gpus(struct device_info *ret, size_t max)
{
    const char *why;
    char reason[sizeof ret->reason];
    const struct cuda_module *module = cuda_module(&why);
    size_t count = module ? module->devices(ret, max, reason, sizeof reason) : 0;
    if (!module)
        snprintf(reason, sizeof reason, "%s", why);
    for (size_t i = 0; i < count; i++)
        ask_driver(&ret[i]);
    if (count || max == 0)
        return count;
    for (int i = 0; i < DEVICE_MAX && count < max; i++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", i);
        if (access(path, F_OK) != 0)
            continue;
        struct device_info *gpu = &ret[count++];
        *gpu = (struct device_info){.id = {DEVICE_CUDA, i}, .present = true};
        snprintf(gpu->name, sizeof gpu->name, "NVIDIA GPU");
        snprintf(gpu->reason, sizeof gpu->reason, "%s", reason);
    }
    if (count)
        return count;
    ret[0] = (struct device_info){.id = {DEVICE_CUDA, 0}};
    snprintf(ret[0].name, sizeof ret[0].name, "no NVIDIA GPU");
    snprintf(ret[0].reason, sizeof ret[0].reason, "%s", reason);
    return 1;
}

size_t device_list(struct device_info *ret, size_t max)
{
    if (max == 0)
        return 0;
    describe_cpu(&ret[0]);
    return 1 + list_gpus(ret + 1, max - 1);
}

/* Writes the names of the usable devices ("cpu, cuda:0"). */
static void usable_text(const struct device_info *devices, size_t count, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        if (devices[i].usable)
            text_append(text, size, ", ", "%s", DEVICE_STRING(devices[i].id));
}

static enum status push(struct device_id id, struct device_id *ret, size_t *count,
                        struct error *err)
{
    if (*count == DEVICE_MAX)
        return error_set(err, STATUS_CONFIG, "more than %d devices in --device", DEVICE_MAX);
    ret[(*count)++] = id;
    return STATUS_OK;
}

static enum status parse_one(const char *word, const struct device_info *devices, size_t known,
                             struct device_id *ret, size_t *count, struct error *err)
{
    char have[256];
    usable_text(devices, known, have, sizeof have);
    if (!strcmp(word, "cpu"))
        return push(DEVICE_HOST, ret, count, err);
    if (!strcmp(word, "mps") || !strncmp(word, "mps:", 4))
        return error_set(err, STATUS_CONFIG,
                         "device '%s': this build has no MPS (Apple Metal) backend; the devices of "
                         "this machine are: %s (use one of them, or --device auto)",
                         word, have);
    int index = 0;
    if (!strncmp(word, "cuda:", 5)) {
        char *end;
        errno = 0;
        long n = strtol(word + 5, &end, 10);
        if (errno || end == word + 5 || *end || n < 0 || n > 1023 || word[5] == '+')
            return error_set(err, STATUS_CONFIG,
                             "device '%s': expected cuda:N with N a number from 0 to 1023", word);
        index = (int)n;
    } else if (strcmp(word, "cuda") != 0) {
        return error_set(err, STATUS_CONFIG,
                         "unknown device '%s'; use auto, cpu, cuda, cuda:N, a list such as "
                         "cuda:0,cuda:1, or all",
                         word);
    }
    const char *reason = "there is no such GPU";
    for (size_t i = 0; i < known; i++) {
        if (devices[i].id.kind != DEVICE_CUDA)
            continue;
        if (devices[i].usable && devices[i].id.index == index)
            return push(devices[i].id, ret, count, err);
        if (!devices[i].usable)
            reason = devices[i].reason;
    }
    return error_set(err, STATUS_DEVICE,
                     "device '%s' is not available: %s; the devices of this machine are: %s (use "
                     "one of them, or --device auto)",
                     word, reason, have);
}

/* True if `auto` can use a GPU that looks usable. Tries to open the GPU. */
static bool can_be_opened(struct device_info *gpu)
{
    const struct cuda_module *module = cuda_module(NULL);
    gpu->usable = module && module->try_device(gpu->id.index, gpu->reason, sizeof gpu->reason);
    return gpu->usable;
}

enum status device_parse(const char *text, struct device_id *ret, size_t *ret_count,
                         char *ret_fallback, size_t fallback_size, struct error *err)
{
    struct device_info devices[DEVICE_MAX];
    size_t known = device_list(devices, DEVICE_MAX), count = 0;
    if (fallback_size)
        ret_fallback[0] = '\0';
    if (!strcmp(text, "auto")) {
        size_t pick = 0;
        for (size_t i = 1; i < known && !pick; i++)
            if (devices[i].usable && can_be_opened(&devices[i]))
                pick = i;
        if (!pick && known > 1 && devices[1].present)
            snprintf(ret_fallback, fallback_size, "serving on the CPU: the GPU is not usable, %s",
                     devices[1].reason);
        ret[0] = devices[pick].id;
        *ret_count = 1;
        return STATUS_OK;
    }
    if (!strcmp(text, "all")) {
        for (size_t i = 1; i < known; i++)
            if (devices[i].usable)
                TRY(push(devices[i].id, ret, &count, err));
        if (!count)
            TRY(push(DEVICE_HOST, ret, &count, err));
        *ret_count = count;
        return STATUS_OK;
    }
    const char *rest = text;
    do {
        char word[64];
        size_t length = strcspn(rest, ",");
        if (length >= sizeof word)
            return error_set(err, STATUS_CONFIG, "unknown device '%.40s…'", rest);
        memcpy(word, rest, length);
        word[length] = '\0';
        TRY(parse_one(word, devices, known, ret, &count, err));
        rest += length;
    } while (*rest++ == ',');
    *ret_count = count;
    return STATUS_OK;
}
