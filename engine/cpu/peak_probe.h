/* Private to peak.c: multiply-add loops, one file per architecture. */
#pragma once

#include "engine/backend/peak.h"

/* Runs `count` rounds. Returns a value that depends on the sums, so that compilers keep them. */
typedef float (*probe_fn)(long count);

struct peak_probe {
    probe_fn run;
    double flops; /* floating-point operations per round */
    const char *instructions;
};

/* Returns the fastest loop of this precision on this CPU. */
struct peak_probe peak_probe_pick(enum precision precision);
