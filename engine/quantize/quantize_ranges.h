/* Private to engine/quantize: which values an activation takes, and the range to store it in.
 * Pure.
 */
#pragma once

#include "engine/quantize/quantizer.h"

enum { RANGE_BINS = 2048 };

/* The numbers of a tensor over all images. Number i is of channel i / inner % channels. */
struct number_range {
    float *lows, *highs; /* of each channel; free() */
    double *sums;        /* of each channel; free() */
    double summed;       /* how many numbers each of `sums` adds */
    uint64_t *bins;      /* RANGE_BINS over the whole range, or NULL: all numbers are the same */
    size_t channels, inner;
};

/* STATUS_NO_MEMORY. Free with range_done(), also after a failure (fine on zeroes). */
enum status range_init(struct number_range *range, size_t channels, size_t inner,
                       struct error *err) MUST_USE;
void range_done(struct number_range *range);

/* Pass the numbers of all images to this first … */
void range_extend(struct number_range *range, const float *values, size_t count);
/* … then, with range->bins allocated, to this. */
void range_count(struct number_range *range, const float *values, size_t count);

/* *low <= *high: the least and greatest number; false: there are none, or some were not finite. */
bool range_limits(const struct number_range *range, float *low, float *high);

/* The scale and zero point of uint8 numbers; real = (stored - zero) * scale. */
struct number_scale {
    float scale;
    uint8_t zero;
};
/* Stores the whole range, or the part of it with the least square error. */
struct number_scale range_scale(const struct number_range *range, bool is_whole);
