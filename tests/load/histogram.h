/* Latencies counted the way HdrHistogram does: buckets that grow with the value, each at most 0.1 %
 * wide, from 1 us to 12 days, in fixed memory. Used by one thread. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#define HISTOGRAM_HALF    1024 /* buckets for each doubling of the value */
#define HISTOGRAM_OCTAVES 30
#define HISTOGRAM_BUCKETS (HISTOGRAM_HALF * (HISTOGRAM_OCTAVES + 2))

struct histogram {
    uint64_t total;
    int64_t greatest;
    uint64_t counts[HISTOGRAM_BUCKETS];
};

/* value in microseconds; below 0 counts as 0, beyond the range as the greatest bucket. */
void histogram_add(struct histogram *h, int64_t value);

/* The smallest bucket's upper edge (us) at or below which at least `share` (0 … 1) of the values
 * are; 0 when it is empty. Never below the true quantile, at most 0.1 % above it. */
int64_t histogram_quantile(const struct histogram *h, double share);

void histogram_clear(struct histogram *h);

/* [[upper edge us, count], …], only buckets that are not empty. */
void histogram_write_json(const struct histogram *h, FILE *out);
