/* Private to engine/quantize: which values an activation takes, and the range to store it in.
 * Pure.
 */
#pragma once

#include "engine/quantize/quantizer.h"

enum { RANGE_BINS = 2048 };

/* The numbers of a tensor over all images. Zeroed: none yet. */
struct number_range {
    float low, high;
    bool is_seen, is_broken; /* broken: some were not finite */
    uint64_t *bins;          /* RANGE_BINS from low to high, or NULL; free() */
    double *sums;            /* of each channel, or NULL; free() */
    double summed;           /* how many numbers each of `sums` adds */
    size_t channels, inner;  /* number i is of channel i / inner % channels */
};

/* Pass the numbers of all images to this first … */
void range_extend(struct number_range *range, const float *values, size_t count);
/* … then, for methods other than QUANTIZE_MINMAX, to this. range->bins is allocated. */
void range_count(struct number_range *range, const float *values, size_t count);

/* Adds a whole tensor to range->sums, which is allocated. */
void range_sum(struct number_range *range, const float *values, size_t count);

/* The scale and zero point of uint8 numbers for the range; real = (stored - zero) * scale. */
struct stored_as {
    float scale;
    uint8_t zero;
};
struct stored_as range_choose(const struct number_range *range, enum quantize_method method);
