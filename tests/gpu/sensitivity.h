/* Differences of a graph's answers from the reference's, and how many of them the graph itself
 * makes of what a device's precision cannot tell apart. */
#pragma once

#include <stddef.h>

#include "engine/graph/graph.h"
#include "engine/runtime/session.h"

struct outcome {
    double worst, sum; /* differences, relative to the greatest expected number; NaN stays */
    size_t count;
};

double outcome_mean(const struct outcome *outcome);

/* Adds what `got` differs by from `expected`: float32 tensors of as many numbers. */
void outcome_add(struct outcome *ret, const struct tensor *expected, const struct tensor *got);

struct sensitivity_options {
    enum precision precision;
    bool stored; /* int8: every operator computes on stored numbers, on either side in integers */
};

/* Interprets a copy of `graph` on `input`; every operand of a node is off by as much as it may be
 * where numbers have this precision: of 16 bits half of the last one, each number always by the
 * same, which `trial` chooses; of int8 some of float32's last ones, and what is rounded to a step
 * by as much of one as biases in whole units make. ret[graph->output_count]: what the outputs
 * differ by from `expected`. */
enum status sensitivity_try(const struct graph *graph, struct tensor *input,
                            struct tensor *const *expected,
                            const struct sensitivity_options *options, uint32_t trial,
                            struct outcome *ret, struct error *err) MUST_USE;
