/* Do two runs of a model say the same? Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "server/precision/precision.h"

/* Adds an image to the comparison: `count` outputs in fp32 and in the candidate's precision. The
 * trial's is_classifier says what the outputs are: class scores (softmax is applied, unless they
 * are probabilities already; a single score is a logistic one), or anything else. What is not
 * finite does not agree. */
void agreement_add(struct precision_trial *trial, const float *reference, const float *candidate,
                   size_t count, bool is_probabilities);

/* How many times the bound the greatest difference is, at least 2 where an image has another best
 * class; up to 1 holds. Infinite for what is not finite. */
double agreement_excess(const struct precision_trial *trial);

/* Every image so far agrees within the bounds of precision.h. */
bool agreement_holds(const struct precision_trial *trial);
