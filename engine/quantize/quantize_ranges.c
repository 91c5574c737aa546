/* Histograms of activations, and the range with the least square error. */
#include "engine/quantize/quantize_ranges.h"

#include <math.h>

enum { STEPS = 255, TRIALS = 80 };

enum status range_init(struct number_range *range, struct arena *arena, size_t channels,
                       size_t inner, struct error *err)
{
    *range = (struct number_range){.channels = channels,
                                   .inner = inner,
                                   .lows = arena_alloc(arena, channels, sizeof *range->lows),
                                   .highs = arena_alloc(arena, channels, sizeof *range->highs),
                                   .sums = arena_alloc(arena, channels, sizeof *range->sums)};
    TRY(check_memory(range->lows && range->highs && range->sums, "while quantizing", err));
    for (size_t c = 0; c < channels; c++) {
        range->lows[c] = INFINITY;
        range->highs[c] = -INFINITY;
    }
    return STATUS_OK;
}

/* Records values[c] for each channel c. */
static void extend_all(struct number_range *range, const float *values)
{
    float *lows = range->lows, *highs = range->highs;
    for (size_t c = 0; c < range->channels; c++) {
        const float x = values[c];
        lows[c] = x < lows[c] ? x : lows[c];
        highs[c] = x > highs[c] ? x : highs[c];
        range->sums[c] += (double)x;
    }
}

static void extend_channel(struct number_range *range, size_t c, const float *values)
{
    enum { LANES = 8 };
    float low[LANES], high[LANES], sum[LANES] = {0};
    size_t i = 0;
    for (size_t k = 0; k < LANES; k++) {
        low[k] = range->lows[c];
        high[k] = range->highs[c];
    }
    for (; i + LANES <= range->inner; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            const float x = values[i + k];
            low[k] = x < low[k] ? x : low[k];
            high[k] = x > high[k] ? x : high[k];
            sum[k] += x;
        }
    for (; i < range->inner; i++) {
        low[0] = values[i] < low[0] ? values[i] : low[0];
        high[0] = values[i] > high[0] ? values[i] : high[0];
        sum[0] += values[i];
    }
    for (size_t k = 0; k < LANES; k++) {
        range->lows[c] = fminf(range->lows[c], low[k]);
        range->highs[c] = fmaxf(range->highs[c], high[k]);
        range->sums[c] += (double)sum[k];
    }
}

void range_extend(struct number_range *range, const float *values, size_t count)
{
    if (count % (range->channels * range->inner))
        return;
    range->summed += (double)count / (double)range->channels;
    if (range->inner == 1)
        for (size_t at = 0; at < count; at += range->channels)
            extend_all(range, values + at);
    else
        for (size_t at = 0, c = 0; at < count; at += range->inner, c = (c + 1) % range->channels)
            extend_channel(range, c, values + at);
}

bool range_limits(const struct number_range *range, float *low, float *high)
{
    bool is_finite = range->channels > 0;
    *low = INFINITY;
    *high = -INFINITY;
    for (size_t c = 0; c < range->channels; c++) {
        *low = fminf(*low, range->lows[c]);
        *high = fmaxf(*high, range->highs[c]);
        is_finite = is_finite && isfinite(range->sums[c]);
    }
    return is_finite && isfinite(*low) && isfinite(*high);
}

void range_count(struct number_range *range, const float *values, size_t count)
{
    float low, high;
    if (!range_limits(range, &low, &high))
        return;
    const float per_bin = RANGE_BINS / (high - low);
    for (size_t i = 0; i < count; i++) {
        const float at = (values[i] - low) * per_bin;
        const int bin = at >= 0 ? (at < RANGE_BINS ? (int)at : RANGE_BINS - 1) : 0;
        range->bins[bin]++;
    }
}

struct limits {
    double low, high;
};

/* Returns the sum of squared errors: step^2 / 12 for a number within the limits, the squared
 * distance for a number outside. The bin around zero adds nothing. `bins` divide `whole` evenly. */
static double square_error(const uint64_t *bins, struct limits whole, struct limits limits)
{
    const double step = (limits.high - limits.low) / STEPS, inside = step * step / 12;
    const double width = (whole.high - whole.low) / RANGE_BINS;
    double sum = 0;
    for (int b = 0; b < RANGE_BINS; b++) {
        const double x = whole.low + (b + 0.5) * width;
        const double out = x > limits.high ? x - limits.high : x < limits.low ? limits.low - x : 0;
        if (bins[b] && fabs(x) > width / 2)
            sum += (double)bins[b] * (out > 0 ? out * out : inside);
    }
    return sum;
}

/* Searches for the limits with the least error: varies each limit twice, one limit at a time. */
static struct limits search_limits(const uint64_t *bins, struct limits seen)
{
    const struct limits whole = {fmin(seen.low, 0), fmax(seen.high, 0)};
    struct limits best = whole;
    double least = square_error(bins, seen, best);
    for (int round = 0; round < 4; round++) {
        const struct limits from = best;
        for (int t = 1; t < TRIALS; t++) {
            struct limits limits = from;
            *(round % 2 ? &limits.low : &limits.high) =
                (round % 2 ? whole.low : whole.high) * t / TRIALS;
            const double error =
                limits.high > limits.low ? square_error(bins, seen, limits) : INFINITY;
            if (error < least) {
                least = error;
                best = limits;
            }
        }
    }
    return best;
}

struct number_scale range_scale(const struct number_range *range, bool is_whole)
{
    float low, high;
    (void)range_limits(range, &low, &high);
    struct limits limits = {(double)low, (double)high};
    if (range->bins && !is_whole)
        limits = search_limits(range->bins, limits);
    limits.low = fmin(limits.low, 0); /* zero must be exact, because it pads images */
    limits.high = fmax(limits.high, 0);
    double scale = (limits.high - limits.low) / STEPS;
    scale = scale > 1e-30 ? scale : 1; /* 1 if all numbers are zero */
    const double zero = rint(-limits.low / scale);
    return (struct number_scale){(float)scale, (uint8_t)fmin(fmax(zero, 0), STEPS)};
}
