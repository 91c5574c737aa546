/* Names of devices, and the CPU's abilities for forward passes. */
#include "engine/tensor/device.h"

#include <stdio.h>

#include "engine/base/cpu.h"

const char *device_text(struct device_id device, char text[static DEVICE_TEXT])
{
    if (device.kind == DEVICE_CPU)
        snprintf(text, DEVICE_TEXT, "cpu");
    else
        snprintf(text, DEVICE_TEXT, "cuda:%d", device.index);
    return text;
}

int device_cpu_threads(void)
{
    return cpu_available_cores();
}

bool device_cpu_has_bf16(void)
{
    const struct cpu_features *features = cpu_features();
    return features->avx512_bf16 || features->amx_bf16 || features->neon_bf16;
}
