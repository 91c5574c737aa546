/* The difference of two answers as a number per image, and the verdict on all images. */
#include "models/quantize/agreement.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A channel's error is divided by the channel's root mean square, but by no less than this share of
 * the whole tensor's root mean square: in a tensor of boxes and scores, the scores of absent
 * classes and their errors are almost 0. */
#define QUIET 0.001

static void add_difference(struct agreement *a, double difference)
{
    a->images++;
    a->mean += isfinite(a->mean) ? (difference - a->mean) / a->images : 0;
    a->greatest = fmax(a->greatest, difference);
}

static bool all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* A vector of class scores, and what its softmax needs: exp(x - greatest) / sum, in float64 as in
 * scores_top_k(). */
struct scores {
    const float *values;
    double greatest, sum;
    size_t best, count;
    bool is_probabilities;
};

static struct scores scores_of(const float *values, size_t count, bool is_probabilities)
{
    struct scores s = {.values = values, .count = count, .is_probabilities = is_probabilities};
    for (size_t i = 0; i < count; i++)
        if (values[i] > values[s.best])
            s.best = i;
    s.greatest = (double)values[s.best];
    for (size_t i = 0; i < count; i++)
        s.sum += exp((double)values[i] - s.greatest);
    return s;
}

static double probability(const struct scores *s, size_t i)
{
    const double x = (double)s->values[i];
    if (s->is_probabilities)
        return x;
    if (s->count == 1)
        return 1 / (1 + exp(-x));
    return exp(x - s->greatest) / s->sum;
}

/* Returns how far the best class's probability exceeds that of the second class. A single score
 * decides between yes and no. */
static double lead_of(const struct scores *s)
{
    if (s->count == 1)
        return fabs(2 * probability(s, 0) - 1);
    size_t second = s->best == 0;
    for (size_t i = 0; i < s->count; i++)
        if (i != s->best && s->values[i] > s->values[second])
            second = i;
    return probability(s, s->best) - probability(s, second);
}

static bool same_best(const struct scores *a, const struct scores *b)
{
    return a->count == 1 ? (probability(a, 0) > 0.5) == (probability(b, 0) > 0.5)
                         : a->best == b->best;
}

/* Returns Pearson's correlation, or 1 for equal vectors, even if all numbers are the same. */
static double correlation_of(const float *a, const float *b, size_t count)
{
    double mean_a = 0, mean_b = 0, aa = 0, bb = 0, ab = 0, difference = 0;
    for (size_t i = 0; i < count; i++) {
        mean_a += (double)a[i] / (double)count;
        mean_b += (double)b[i] / (double)count;
    }
    for (size_t i = 0; i < count; i++) {
        const double x = (double)a[i] - mean_a, y = (double)b[i] - mean_b;
        aa += x * x;
        bb += y * y;
        ab += x * y;
        difference = fmax(difference, fabs((double)a[i] - (double)b[i]));
    }
    if (difference == 0)
        return 1;
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

void agreement_add_vector(struct agreement *a, const float *reference, const float *candidate,
                          size_t count, bool is_probabilities)
{
    if (!all_finite(reference, count) || !all_finite(candidate, count)) {
        add_difference(a, INFINITY);
        return;
    }
    a->has_numbers = true;
    const struct scores x = scores_of(reference, count, is_probabilities);
    const struct scores y = scores_of(candidate, count, is_probabilities);
    const bool is_clear = lead_of(&x) >= AGREEMENT_LEAD;
    a->clear += is_clear;
    a->agreeing += is_clear && same_best(&x, &y);
    a->same += same_best(&x, &y);
    add_difference(a, fabs(probability(&x, x.best) - probability(&y, x.best)));
    const double correlation = count > 1 ? correlation_of(reference, candidate, count) : 1;
    a->correlation += (correlation - a->correlation) / a->images;
}

static double relative_difference(const struct agreement_tensor *t, const float *reference,
                                  const float *candidate)
{
    const size_t stride = t->stride, jump = t->channels * stride;
    double all = 0, sum = 0;
    for (size_t i = 0; i < t->count; i++)
        all += (double)reference[i] * (double)reference[i];
    for (size_t c = 0; c < t->channels; c++) {
        double error = 0, scale = 0;
        for (size_t first = c * stride; first < t->count; first += jump)
            for (size_t i = first; i < first + stride; i++) {
                const double x = (double)reference[i], e = (double)candidate[i] - x;
                scale += x * x;
                error += e * e;
            }
        scale = fmax(scale, QUIET * QUIET * all / (double)t->channels);
        sum += error > 0 ? sqrt(error / scale) : 0;
    }
    return sum / (double)t->channels;
}

/* Compares the best classes at every position of a map. */
static void compare_map(struct agreement *a, const struct agreement_tensor *t,
                        const float *reference, const float *candidate)
{
    for (size_t p = 0; p < t->count / t->channels; p++) {
        const size_t first = p / t->stride * t->channels * t->stride + p % t->stride;
        size_t best = 0, other = 0;
        float high = -INFINITY, second = -INFINITY, low = INFINITY, high_of_other = -INFINITY;
        for (size_t c = 0; c < t->channels; c++) {
            const float x = reference[first + c * t->stride], y = candidate[first + c * t->stride];
            if (x > high) {
                second = high;
                high = x;
                best = c;
            } else if (x > second) {
                second = x;
            }
            if (y > high_of_other) {
                high_of_other = y;
                other = c;
            }
            low = fminf(low, x);
        }
        const double span = (double)high - (double)low;
        const bool is_clear = span > 0 && (double)high - (double)second >= AGREEMENT_LEAD * span;
        a->clear += is_clear;
        a->agreeing += is_clear && best == other;
    }
}

static void compare_labels(struct agreement *a, const struct agreement_tensor *t,
                           const float *reference, const float *candidate)
{
    a->clear += t->count;
    for (size_t i = 0; i < t->count; i++)
        a->agreeing += reference[i] == candidate[i];
}

void agreement_add_tensors(struct agreement *a, const struct agreement_tensor *tensors,
                           size_t tensor_count, const float *reference, const float *candidate)
{
    double worst = 0;
    size_t total = 0;
    for (size_t k = 0; k < tensor_count; k++)
        total += tensors[k].count;
    if (total == 0) { /* both outputs are empty: nothing was found */
        add_difference(a, 0);
        return;
    }
    if (!all_finite(reference, total) || !all_finite(candidate, total)) {
        add_difference(a, INFINITY);
        return;
    }
    a->has_numbers = true;
    for (size_t k = 0; k < tensor_count; k++) {
        const struct agreement_tensor *t = &tensors[k];
        if (t->is_labels)
            compare_labels(a, t, reference, candidate);
        else if (t->count > 0)
            worst = fmax(worst, relative_difference(t, reference, candidate));
        if (t->is_map)
            compare_map(a, t, reference, candidate);
        reference += t->count;
        candidate += t->count;
    }
    add_difference(a, worst);
}

bool agreement_holds(const struct agreement *a, char *why)
{
    const char *change = a->is_vector ? "mean change of probability" : "mean relative error";
    const double share = a->images < AGREEMENT_FEW ? 0.5 : 1, vector = share * AGREEMENT_VECTOR;
    const double bound = share * (a->is_vector ? AGREEMENT_PROBABILITY : AGREEMENT_RELATIVE);
    char text[AGREEMENT_TEXT] = "";
    if (!a->has_numbers || !isfinite(a->mean))
        snprintf(text, sizeof text, "there are no finite numbers to compare");
    else if ((double)a->agreeing < AGREEMENT_SHARE * (double)a->clear)
        snprintf(
            text, sizeof text,
            "the best class is the same for %zu of %zu %s in which fp32 has a clear best class "
            "(limit %g %%)",
            a->agreeing, a->clear, a->is_vector ? "photos" : "positions", 100 * AGREEMENT_SHARE);
    else if (a->images < 2)
        snprintf(text, sizeof text, "%s %.4f (limit %g), but one image proves nothing", change,
                 a->mean, bound);
    else if (a->mean > bound)
        snprintf(text, sizeof text, "%s %.4f (limit %g)", change, a->mean, bound);
    else if (a->is_vector && a->clear < AGREEMENT_FEW && 1 - a->correlation > vector)
        snprintf(text, sizeof text, "mean distance of the class scores %.5f (limit %g)",
                 1 - a->correlation, vector);
    if (why)
        memcpy(why, text, sizeof text);
    return !text[0];
}
