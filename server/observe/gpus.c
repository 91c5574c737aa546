/* Writes the metrics of NVIDIA GPUs. */
#include <math.h>
#include <stdio.h>

#include "engine/base/size.h"
#include "engine/runtime/nvml.h"
#include "engine/tensor/device.h"
#include "server/observe/process.h"

static void gpu_show(struct metrics *metrics, const struct gpu_reading *gpu)
{
    const struct {
        const char *name, *help;
        enum metric_kind kind;
        double value;
    } rows[] = {
        {"nv_gpu_utilization", "Share of the time that kernels ran on the GPU, 0 to 1.",
         METRIC_GAUGE, gpu->utilization},
        {"nv_gpu_memory_total_bytes", "Memory of the GPU.", METRIC_GAUGE, gpu->total_bytes},
        {"nv_gpu_memory_used_bytes", "Memory of the GPU in use by all processes.", METRIC_GAUGE,
         gpu->used_bytes},
        {"nv_gpu_power_usage", "Watts that the GPU draws.", METRIC_GAUGE, gpu->power},
        {"nv_gpu_power_limit", "Watts that the GPU may draw.", METRIC_GAUGE, gpu->power_limit},
        {"nv_energy_consumption", "Joules that the GPU has drawn since its driver was loaded.",
         METRIC_COUNTER, gpu->energy},
    };
    char uuid[2 * sizeof gpu->uuid], labels[sizeof uuid + 16];
    snprintf(labels, sizeof labels, "gpu_uuid=\"%s\"",
             metrics_escape(gpu->uuid, uuid, sizeof uuid));
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!isnan(rows[i].value))
            metric_set(metrics_get(metrics, rows[i].kind, rows[i].name, rows[i].help, labels),
                       rows[i].value);
}

void gpu_metrics_update(struct metrics *metrics)
{
    struct gpu_reading gpus[DEVICE_MAX];
    const size_t count = nvml_read(gpus, COUNT_OF(gpus));
    for (size_t i = 0; i < count; i++)
        gpu_show(metrics, &gpus[i]);
}
