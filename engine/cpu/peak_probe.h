/* Private to peak.c: the loops of multiply-adds, which each architecture has in its own file. */
#pragma once

#include "engine/backend/peak.h"

/* Runs `count` rounds and returns something of the sums, so that they are computed. */
typedef float (*probe_fn)(long count);

struct peak_probe {
    probe_fn run;
    double flops; /* floating-point operations in a round */
    const char *instructions;
};

/* The quickest on this CPU. */
struct peak_probe peak_probe_pick(enum precision precision);
