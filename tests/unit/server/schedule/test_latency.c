/* How many images of a batch run together so that they are in time. */
#include <criterion/criterion.h>

#include "engine/base/size.h"
#include "server/schedule/policy/latency.h"

#define MS INT64_C(1000000)

Test(latency, in_time)
{
    static const int sizes[] = {1, 2, 4, 8};
    static const double milliseconds[] = {16, 24, 40, 72};
    struct latency latency;
    latency_init(&latency, sizes, milliseconds, 4);
    static const struct {
        const char *name;
        int count, expected;
        int64_t needed_ms;    /* a sixteenth on top of the pass */
        int64_t time_left[8]; /* ms */
    } cases[] = {
        {"all of them", 4, 4, 43, {100, 100, 100, 43}},
        {"no deadline", 2, 2, 26, {INT64_MAX / MS, INT64_MAX / MS}},
        {"one is hopeless: the others go", 4, 3, 43, {100, 100, 10, 100}},
        {"a smaller pass saves more", 8, 4, 43, {50, 50, 50, 50, 10, 50, 10, 50}},
        {"only the first two fit into their time", 3, 2, 26, {30, 30, 20}},
        {"one", 1, 1, 17, {20}},
        {"nobody is in time: one is measured all the same", 3, 1, 17, {1, 1, 1}},
        {"late already", 2, 1, 17, {-5, -5}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t time_left[8], needed = 0;
        for (int k = 0; k < cases[i].count; k++)
            time_left[k] = cases[i].time_left[k] * MS;
        int in_time = latency_in_time(&latency, time_left, cases[i].count, &needed);
        cr_assert_eq(in_time, cases[i].expected, "%s: %d", cases[i].name, in_time);
        cr_assert_eq((needed + MS / 2) / MS, cases[i].needed_ms, "%s: %lld", cases[i].name,
                     (long long)needed);
    }
}

/* A file may fix its batch to more images than a batch of the scheduler has. */
Test(latency, size_beyond_the_largest_batch)
{
    static const int sizes[] = {300};
    static const double milliseconds[] = {30};
    struct latency latency;
    latency_init(&latency, sizes, milliseconds, 1);
    cr_assert_eq(latency_first(&latency, 5), 5);
    cr_assert_eq(latency_first(&latency, 300), LATENCY_MAX_BATCH);
    cr_assert_eq(latency_padded(&latency, 5), 300);
    cr_assert_eq(latency_total(&latency, 5), 30 * MS);
    cr_assert_eq(latency_total(&latency, 300), 60 * MS);
    cr_assert_float_eq(latency_rate(&latency), LATENCY_MAX_BATCH / 30e6, 1e-12);
    latency_observe(&latency, 200, 30 * MS);
    cr_assert_eq(latency_passes(&latency, LATENCY_MAX_BATCH), 1);
}
