/* Measures the peak arithmetic rate of this machine, for comparison with the rates of layers. */
#pragma once

#include "engine/backend/run.h"
#include "engine/tensor/device.h"

/* The highest rate of multiply-adds, and the instruction set whose kernels reach it. */
struct peak {
    double gflops;            /* a multiply-add counts as two; 0: this device is not measured */
    const char *instructions; /* "avx512_bf16" …; static text */
};

/* Runs product kernels on `threads` threads (0: device_cpu_threads()) for about 30 ms. Returns the
 * best rate of many short intervals, because other programs may use the machine. bf16 products have
 * float32 sums, as in a session. Defined in engine/cpu/peak.c. */
struct peak peak_measure(struct device_id device, enum precision precision, int threads);
