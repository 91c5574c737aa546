/* Measures the peak arithmetic rate of this machine; layers are compared with it. */
#pragma once

#include "engine/backend/run.h"
#include "engine/tensor/device.h"

/* The instructions behind a peak. */
struct peak {
    double gflops;            /* multiply-adds count two; 0: this device is not probed */
    const char *instructions; /* "AVX-512 FMA", "AMX bf16" …; static text */
};

/* Keeps `threads` threads (0: device_cpu_threads()) busy with independent multiply-adds in
 * registers for some 30 ms, and takes the best of many short stretches (others may use the machine,
 * too). bf16 products have float32 sums, as in a session. Defined in engine/cpu/peak.c. */
struct peak peak_measure(struct device_id device, enum precision precision, int threads);
