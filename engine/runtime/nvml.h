/* GPU readings from NVIDIA's management library (NVML): load, memory, power. The library comes with
 * the driver and is loaded at run time (libnvidia-ml.so.1). This file is part of the program, not
 * of the CUDA module. A reading neither creates a CUDA context nor wakes up a GPU. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values that a GPU does not report are NAN. */
struct gpu_reading {
    char uuid[96];
    double utilization; /* 0 … 1, over about the last second */
    double total_bytes, used_bytes;
    double power, power_limit; /* watts */
    double energy;             /* joules since the driver was loaded */
};

/* Sets *ret to the GPU memory in use by all processes. Returns false if the GPU does not report a
 * number. `bus` is the GPU's PCI address. Thread-safe. */
bool nvml_used_bytes(const char *bus, uint64_t *ret);

/* Reads every GPU that is visible to this process, and returns the number of GPUs. Thread-safe. */
size_t nvml_read(struct gpu_reading *ret, size_t max);
