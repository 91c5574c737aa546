/* L(b) and the passes that follow from it. */
#include <criterion/criterion.h>

#include "engine/runtime/session.h"
#include "server/schedule/policy/latency.h"

#define MS INT64_C(1000000)

/* A file may fix its batch to more images than a batch of the scheduler has. */
Test(latency, size_beyond_the_largest_batch)
{
    struct latency latency;
    latency_init(&latency, &(struct session_batch){300, 30, 0}, 1);
    cr_assert_eq(latency_first(&latency, 5), 5);
    cr_assert_eq(latency_first(&latency, 300), LATENCY_MAX_BATCH);
    cr_assert_eq(latency_padded(&latency, 5), 300);
    cr_assert_float_eq(latency_rate(&latency), LATENCY_MAX_BATCH / 30e6, 1e-12);
    latency_observe(&latency, 200, 30 * MS);
    cr_assert_eq(latency_passes(&latency, LATENCY_MAX_BATCH), 1);
}
