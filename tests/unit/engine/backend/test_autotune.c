/* The autotuner, on costs that are made up: who is run when, what counts, and what is chosen. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/backend/autotune.h"
#include "engine/base/size.h"

enum { MOST_RUNS = 64 };

/* Candidates whose true costs are known, on a machine that adds to them. */
struct machine {
    double costs[8];
    double warm_up;  /* added to the first run of each candidate */
    uint32_t noise;  /* seed: a run costs up to twice as much; 0: quiet */
    int failing_run; /* that run fails; -1: none does */
    int runs;
    char order[MOST_RUNS + 1]; /* who was run, as digits */
};

static double disturbance(struct machine *machine)
{
    if (!machine->noise)
        return 1;
    machine->noise = machine->noise * 1664525u + 1013904223u;
    const double share = (double)(machine->noise >> 8) * 0x1p-24;
    return share < 0.3 ? 1 : 1 + share; /* some runs are left alone */
}

static enum status run_on(void *context, size_t candidate, struct autotune_run *ret,
                          struct error *err)
{
    struct machine *machine = context;
    cr_assert_lt(machine->runs, MOST_RUNS);
    if (machine->runs == machine->failing_run)
        return error_set(err, STATUS_DEVICE, "the device is lost");
    const bool is_first = !strchr(machine->order, (int)('0' + candidate));
    machine->order[machine->runs++] = (char)('0' + candidate);
    ret->cost =
        machine->costs[candidate] * disturbance(machine) + (is_first ? machine->warm_up : 0);
    ret->spent = 1;
    return STATUS_OK;
}

static size_t choose(struct machine *machine, size_t count, double budget, double *costs)
{
    const struct autotune tune = {.count = count,
                                  .rounds = 5,
                                  .clear = 0.92,
                                  .budget = budget,
                                  .run = run_on,
                                  .context = machine};
    struct error err = {0};
    size_t chosen;
    machine->runs = 0;
    memset(machine->order, 0, sizeof machine->order);
    cr_assert_eq(autotune_choose(&tune, costs, &chosen, &err), STATUS_OK, "%s", err.message);
    return chosen;
}

Test(autotune, keeps_the_incumbent_unless_another_is_clearly_quicker)
{
    double costs[8];
    struct machine machine = {.costs = {10, 9.5, 11}, .warm_up = 5, .failing_run = -1};
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 0);
    machine.costs[1] = 9.1;
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 1);
    machine.costs[2] = 9.0;
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 2);
    machine.costs[1] = 9.0; /* of equals the first */
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 1);
    cr_expect_float_eq((float)costs[0], 10, 1e-6f, "the warm-up counts: %f", costs[0]);
}

Test(autotune, each_round_begins_with_another_candidate)
{
    double costs[8];
    struct machine machine = {.costs = {1, 1, 1}, .failing_run = -1};
    (void)choose(&machine, 3, INFINITY, costs);
    cr_expect_str_eq(machine.order, "012012120201012120");
}

Test(autotune, leaves_out_who_is_far_behind)
{
    double costs[8];
    struct machine machine = {.costs = {2, 5, 3}, .warm_up = 9, .failing_run = -1};
    (void)choose(&machine, 3, INFINITY, costs);
    cr_expect_str_eq(machine.order, "01201220200220");
    cr_expect_float_eq((float)costs[1], 5, 1e-6f);
}

Test(autotune, a_candidate_that_cannot_run_is_left_out)
{
    double costs[8];
    struct machine machine = {.costs = {INFINITY, 5, 4}, .failing_run = -1};
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 2);
    cr_expect_str_eq(machine.order, "0121212211212");
    machine.costs[1] = machine.costs[2] = INFINITY;
    cr_expect_eq(choose(&machine, 3, INFINITY, costs), 0);
    cr_expect(isinf(costs[0]));
    cr_expect_str_eq(machine.order, "012");
}

Test(autotune, a_budget_ends_it)
{
    double costs[8];
    struct machine machine = {.costs = {9, 3, 1}, .failing_run = -1};
    cr_expect_eq(choose(&machine, 3, 0, costs), 0); /* nothing to compare the incumbent with */
    cr_expect_str_eq(machine.order, "0");
    cr_expect_eq(choose(&machine, 3, 2, costs), 1); /* candidate 2 has not run */
    cr_expect_str_eq(machine.order, "01");
    cr_expect(isinf(costs[2]));
    cr_expect_eq(choose(&machine, 3, 4, costs), 2); /* a round that has begun is finished */
    cr_expect_str_eq(machine.order, "012012");
}

Test(autotune, all_costs_are_measured_on_demand)
{
    double costs[8];
    size_t chosen;
    struct error err = {0};
    struct machine machine = {.costs = {1, 9, 3}, .failing_run = -1};
    struct autotune tune = {.count = 3,
                            .rounds = 2,
                            .clear = 1,
                            .budget = INFINITY,
                            .all = true,
                            .run = run_on,
                            .context = &machine};
    cr_assert_eq(autotune_choose(&tune, costs, &chosen, &err), STATUS_OK);
    cr_expect_str_eq(machine.order, "012012120");
    machine = (struct machine){.costs = {1, 9, 3}, .failing_run = -1};
    tune.budget = 0;
    cr_assert_eq(autotune_choose(&tune, costs, &chosen, &err), STATUS_OK);
    cr_expect_str_eq(machine.order, "012");
    cr_expect_float_eq((float)costs[1], 9, 1e-6f);
}

Test(autotune, an_error_ends_it)
{
    double costs[8];
    for (int failing = 0; failing < 18; failing++) {
        struct machine machine = {.costs = {1, 1, 1}, .failing_run = failing};
        const struct autotune tune = {.count = 3,
                                      .rounds = 5,
                                      .clear = 0.92,
                                      .budget = INFINITY,
                                      .run = run_on,
                                      .context = &machine};
        struct error err = {0};
        size_t chosen = 7;
        cr_expect_eq(autotune_choose(&tune, costs, &chosen, &err), STATUS_DEVICE);
        cr_expect_eq(chosen, 7);
        cr_expect_eq(machine.runs, failing);
    }
}

/* Noise that leaves one run of each near candidate alone does not change the choice. */
Test(autotune, noise_does_not_change_the_choice)
{
    double costs[8];
    int undisturbed = 0;
    for (uint32_t seed = 1; seed < 400; seed++) {
        struct machine machine = {
            .costs = {10, 8, 12, 8.1}, .warm_up = 3, .noise = seed, .failing_run = -1};
        const size_t chosen = choose(&machine, 4, INFINITY, costs);
        if (costs[0] > 10 || costs[1] > 8 || costs[3] > 8.1)
            continue;
        undisturbed++;
        cr_expect_eq(chosen, 1, "seed %u: candidate %zu", seed, chosen);
        struct machine again = {
            .costs = {10, 8, 12, 8.1}, .warm_up = 3, .noise = seed, .failing_run = -1};
        cr_expect_eq(choose(&again, 4, INFINITY, costs), chosen, "seed %u", seed);
    }
    cr_expect_gt(undisturbed, 100);
}
