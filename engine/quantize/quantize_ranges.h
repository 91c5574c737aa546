/* Private to engine/quantize: statistics of an activation's values, and the range in which they are
 * stored. Pure functions. */
#pragma once

#include "engine/quantize/quantizer.h"

enum { RANGE_BINS = 2048 };

/* Statistics of a tensor's numbers over all images. Number i is of channel i / inner % channels. */
struct number_range {
    float *lows, *highs; /* per channel */
    double *sums;        /* per channel */
    double summed;       /* count of the numbers in each sum */
    uint64_t *bins;      /* RANGE_BINS over the whole range; NULL before the second pass, or if all
                            numbers are equal */
    size_t channels, inner;
};

/* Allocates the statistics in `arena`. Error: STATUS_NO_MEMORY. */
enum status range_init(struct number_range *range, struct arena *arena, size_t channels,
                       size_t inner, struct error *err) MUST_USE;

/* First pass: extends the range by the numbers of one image. */
void range_extend(struct number_range *range, const float *values, size_t count);
/* Second pass: counts the numbers of one image in range->bins, which the caller has allocated. */
void range_count(struct number_range *range, const float *values, size_t count);

/* Sets *low <= *high to the numbers' limits. Returns false if there are no numbers, or some are not
 * finite. */
bool range_limits(const struct number_range *range, float *low, float *high);

/* Scale and zero point of uint8 numbers; real = (stored - zero) * scale. */
struct number_scale {
    float scale;
    uint8_t zero;
};
/* Returns the scale for the whole range, or for the part with the least square error. */
struct number_scale range_scale(const struct number_range *range, bool is_whole);
