/* What NVIDIA's management library knows of GPUs: load, memory, power. It comes with the driver and
 * is loaded at run time (libnvidia-ml.so.1); part of the program, not of the CUDA module. No
 * reading makes a CUDA context or wakes a GPU up. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a GPU does not tell is NAN. */
struct gpu_reading {
    char uuid[96];
    double utilization; /* 0 … 1: of the last second or so */
    double total_bytes, used_bytes;
    double power, power_limit; /* watts */
    double energy;             /* joules since the driver was loaded */
};

/* What of a GPU's memory is in use, by whomever; false where it is not told. `bus`: its PCI
 * address. Thread-safe. */
bool nvml_used_bytes(const char *bus, uint64_t *ret);

/* Every GPU that the library shows to this process; 0 where there is none. Thread-safe. */
size_t nvml_read(struct gpu_reading *ret, size_t max);
