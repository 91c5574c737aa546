#include "server/precision/agreement.h"

#include <math.h>

/* Softmax in float64 as scores_top_k does it, without storing it: exp(x - greatest) / sum. */
struct scores {
    const float *values;
    double greatest, sum;
    size_t best;
    bool is_probabilities, is_finite, is_single;
};

static struct scores scores_of(const float *values, size_t count, bool is_probabilities)
{
    struct scores scores = {.values = values,
                            .is_probabilities = is_probabilities,
                            .is_finite = true,
                            .is_single = count == 1};
    for (size_t i = 0; i < count; i++) {
        scores.is_finite = scores.is_finite && isfinite(values[i]);
        if (values[i] > values[scores.best])
            scores.best = i;
    }
    scores.greatest = (double)values[scores.best];
    for (size_t i = 0; i < count; i++)
        scores.sum += exp((double)values[i] - scores.greatest);
    return scores;
}

static double probability(const struct scores *scores, size_t i)
{
    const double x = (double)scores->values[i];
    if (scores->is_probabilities)
        return x;
    if (scores->is_single)
        return 1 / (1 + exp(-x));
    return exp(x - scores->greatest) / scores->sum;
}

static void add_scores(struct precision_trial *trial, const float *reference,
                       const float *candidate, size_t count, bool is_probabilities)
{
    const struct scores a = scores_of(reference, count, is_probabilities);
    const struct scores b = scores_of(candidate, count, is_probabilities);
    if (!a.is_finite || !b.is_finite) {
        trial->greatest = INFINITY;
        return;
    }
    bool same = a.best == b.best;
    if (count == 1)
        same = (probability(&a, 0) > 0.5) == (probability(&b, 0) > 0.5);
    double furthest = 0;
    float low = reference[0], high = reference[0];
    for (size_t i = 0; i < count; i++) {
        trial->greatest = fmax(trial->greatest, fabs(probability(&a, i) - probability(&b, i)));
        furthest = fmax(furthest, fabs((double)reference[i] - (double)candidate[i]));
        low = fminf(low, reference[i]);
        high = fmaxf(high, reference[i]);
    }
    const bool tie = count > 1 &&
                     probability(&a, a.best) - probability(&a, b.best) <= PRECISION_TIE &&
                     furthest <= PRECISION_SCORES * ((double)high - (double)low);
    trial->agreeing += same;
    trial->undecided += !same && tie;
}

static void add_numbers(struct precision_trial *trial, const float *reference,
                        const float *candidate, size_t count)
{
    double largest = 0, difference = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(reference[i]) || !isfinite(candidate[i])) {
            trial->greatest = INFINITY;
            return;
        }
        largest = fmax(largest, fabs((double)reference[i]));
        difference = fmax(difference, fabs((double)reference[i] - (double)candidate[i]));
    }
    const double relative = difference > 0 ? difference / largest : 0; /* 0 / 0 is equal */
    trial->agreeing += relative <= PRECISION_RELATIVE;
    trial->greatest = fmax(trial->greatest, relative);
}

void agreement_add(struct precision_trial *trial, const float *reference, const float *candidate,
                   size_t count, bool is_probabilities)
{
    trial->images++;
    if (trial->is_classifier && count > 0)
        add_scores(trial, reference, candidate, count, is_probabilities);
    else
        add_numbers(trial, reference, candidate, count);
}

double agreement_excess(const struct precision_trial *trial)
{
    const double bound = trial->is_classifier ? PRECISION_PROBABILITY : PRECISION_RELATIVE;
    const double excess = trial->greatest / bound;
    return trial->agreeing + trial->undecided == trial->images ? excess : fmax(excess, 2);
}

bool agreement_holds(const struct precision_trial *trial)
{
    const double bound = trial->is_classifier ? PRECISION_PROBABILITY : PRECISION_RELATIVE;
    return trial->agreeing + trial->undecided == trial->images && trial->greatest <= bound;
}
