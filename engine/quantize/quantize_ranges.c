/* Histograms of activations, and four rules that choose a range from them. */
#include "engine/quantize/quantize_ranges.h"

#include <math.h>

enum { STEPS = 255, TRIALS = 80 };

/* QUANTIZE_PERCENTILE leaves out this share on both sides together. */
#define TAIL 1e-4

const char *quantize_method_name(enum quantize_method method)
{
    static const char *const names[] = {[QUANTIZE_MINMAX] = "minmax",
                                        [QUANTIZE_PERCENTILE] = "percentile",
                                        [QUANTIZE_MSE] = "mse",
                                        [QUANTIZE_ENTROPY] = "entropy"};
    return names[method];
}

void range_extend(struct number_range *range, const float *values, size_t count)
{
    enum { LANES = 8 };
    float low[LANES], high[LANES];
    for (size_t k = 0; k < LANES; k++) {
        low[k] = range->is_seen ? range->low : INFINITY;
        high[k] = range->is_seen ? range->high : -INFINITY;
    }
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            const float x = values[i + k];
            low[k] = x < low[k] ? x : low[k];
            high[k] = x > high[k] ? x : high[k];
        }
    for (; i < count; i++) {
        low[0] = values[i] < low[0] ? values[i] : low[0];
        high[0] = values[i] > high[0] ? values[i] : high[0];
    }
    for (size_t k = 1; k < LANES; k++) {
        low[0] = low[k] < low[0] ? low[k] : low[0];
        high[0] = high[k] > high[0] ? high[k] : high[0];
    }
    range->is_seen = range->is_seen || count > 0;
    range->low = low[0];
    range->high = high[0];
    range->is_broken = range->is_broken || !isfinite(low[0]) || !isfinite(high[0]);
}

static float bin_width(const struct number_range *range)
{
    return (range->high - range->low) / RANGE_BINS;
}

void range_count(struct number_range *range, const float *values, size_t count)
{
    const float low = range->low, per_bin = 1 / bin_width(range);
    for (size_t i = 0; i < count; i++) {
        const float at = (values[i] - low) * per_bin;
        const int bin = at >= 0 ? (at < RANGE_BINS ? (int)at : RANGE_BINS - 1) : 0;
        range->bins[bin]++;
    }
}

void range_sum(struct number_range *range, const float *values, size_t count)
{
    range->summed += (double)count / (double)range->channels;
    for (size_t at = 0, c = 0; at < count; at += range->inner, c = (c + 1) % range->channels) {
        float sums[4] = {0, 0, 0, 0};
        for (size_t i = 0; i < range->inner; i++)
            sums[i % 4] += values[at + i];
        range->sums[c] += (double)sums[0] + (double)sums[1] + (double)sums[2] + (double)sums[3];
    }
}

struct limits {
    double low, high;
};

static double bin_middle(const struct number_range *range, int bin)
{
    return (double)range->low + (bin + 0.5) * (double)bin_width(range);
}

/* ---- percentile ---- */

static struct limits percentile_limits(const struct number_range *range)
{
    struct limits limits = {(double)range->low, (double)range->high};
    uint64_t total = 0;
    for (int b = 0; b < RANGE_BINS; b++)
        total += range->bins[b];
    const double tail = (double)total * TAIL / 2;
    double below = 0, above = 0;
    for (int b = 0; b < RANGE_BINS && (below += (double)range->bins[b]) <= tail; b++)
        limits.low = bin_middle(range, b);
    for (int b = RANGE_BINS - 1; b >= 0 && (above += (double)range->bins[b]) <= tail; b--)
        limits.high = bin_middle(range, b);
    return limits;
}

/* ---- square error ---- */

/* The mean square error of a number in the range is step² / 12; one outside is off by its distance.
 * Zero is stored exactly. */
static double square_error(const struct number_range *range, struct limits limits)
{
    const double step = (limits.high - limits.low) / STEPS, inside = step * step / 12;
    const double half = (double)bin_width(range) / 2;
    double sum = 0;
    for (int b = 0; b < RANGE_BINS; b++) {
        const double x = bin_middle(range, b);
        const double out = x > limits.high ? x - limits.high : x < limits.low ? limits.low - x : 0;
        if (range->bins[b] && fabs(x) > half)
            sum += (double)range->bins[b] * (out > 0 ? out * out : inside);
    }
    return sum;
}

/* ---- entropy ---- */

/* How many numbers a bin has when those outside are clipped to the edges. */
static double clipped_count(const struct number_range *range, int bin, int first, int last,
                            const double outside[2])
{
    return (double)range->bins[bin] + (bin == first ? outside[0] : 0) +
           (bin == last ? outside[1] : 0);
}

/* Relative entropy of the numbers, clipped to the limits, and of what 256 steps keep of them. */
static double relative_entropy(const struct number_range *range, struct limits limits)
{
    const double width = (double)bin_width(range);
    int first = (int)((limits.low - (double)range->low) / width);
    int last = (int)((limits.high - (double)range->low) / width);
    first = first < 0 ? 0 : first;
    last = last >= RANGE_BINS ? RANGE_BINS - 1 : last;
    const int count = last - first + 1;
    double outside[2] = {0, 0}, total = 0, sum = 0, kept = 0;
    for (int b = 0; b < RANGE_BINS; b++) {
        total += (double)range->bins[b];
        outside[b > last] += b < first || b > last ? (double)range->bins[b] : 0;
        kept += b >= first && b <= last ? (double)range->bins[b] : 0;
    }
    if (count < 2 || kept <= 0)
        return INFINITY;
    for (int s = 0; s <= STEPS; s++) {
        const int begin = first + (int)((int64_t)count * s / (STEPS + 1));
        const int end = first + (int)((int64_t)count * (s + 1) / (STEPS + 1));
        double in_step = 0;
        int used = 0;
        for (int b = begin; b < end; b++) {
            in_step += (double)range->bins[b];
            used += clipped_count(range, b, first, last, outside) > 0;
        }
        for (int b = begin; b < end; b++) {
            const double p = clipped_count(range, b, first, last, outside) / total;
            if (p > 0)
                sum += in_step > 0 ? p * log(p / (in_step / used / kept)) : INFINITY;
        }
    }
    return sum;
}

/* ---- choice ---- */

/* The limits with the least error: low and high are moved inwards in turn, twice each. */
static struct limits search_limits(const struct number_range *range, struct limits whole,
                                   double (*error)(const struct number_range *, struct limits))
{
    struct limits best = whole;
    double least = error(range, best);
    for (int round = 0; round < 4; round++) {
        struct limits from = best;
        for (int t = 1; t < TRIALS; t++) {
            struct limits limits = from;
            double *side = round % 2 ? &limits.low : &limits.high;
            *side = (round % 2 ? whole.low : whole.high) * t / TRIALS;
            const double found = limits.high > limits.low ? error(range, limits) : INFINITY;
            if (found < least) {
                least = found;
                best = limits;
            }
        }
    }
    return best;
}

struct stored_as range_choose(const struct number_range *range, enum quantize_method method)
{
    struct limits limits = {(double)range->low, (double)range->high};
    if (method == QUANTIZE_PERCENTILE && range->bins)
        limits = percentile_limits(range);
    limits.low = fmin(limits.low, 0); /* zero, which pads images, is stored exactly */
    limits.high = fmax(limits.high, 0);
    if (method == QUANTIZE_MSE && range->bins)
        limits = search_limits(range, limits, square_error);
    if (method == QUANTIZE_ENTROPY && range->bins)
        limits = search_limits(range, limits, relative_entropy);
    double scale = (limits.high - limits.low) / STEPS;
    scale = scale > 1e-30 ? scale : 1; /* all numbers are zero */
    const double zero = rint(-limits.low / scale);
    return (struct stored_as){(float)scale, (uint8_t)fmin(fmax(zero, 0), STEPS)};
}
