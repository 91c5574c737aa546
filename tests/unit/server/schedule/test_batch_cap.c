/* The cap of a lane whose device is short of memory, with a scripted clock. */
#include <criterion/criterion.h>

#include "server/schedule/policy/batch_cap.h"

#define SECOND INT64_C(1000000000)

Test(batch_cap, without_shortage_it_is_the_most_for_ever)
{
    struct batch_cap cap = batch_cap_begin(8);
    cr_assert_eq(batch_cap_now(&cap, 0), 8);
    cr_assert_eq(batch_cap_now(&cap, INT64_MAX - 1), 8);
}

Test(batch_cap, falls_and_rises_by_doubling)
{
    struct batch_cap cap = batch_cap_begin(12);
    int64_t now = 5 * SECOND;
    batch_cap_lower(&cap, 8, now);
    batch_cap_lower(&cap, 4, now);
    batch_cap_lower(&cap, 2, now); /* one shortage: no attempt to rise lay between */
    cr_assert_eq(batch_cap_now(&cap, now + SECOND - 1), 2);
    cr_assert_eq(batch_cap_now(&cap, now + SECOND), 4);
    cr_assert_eq(batch_cap_now(&cap, now + SECOND), 4);
    cr_assert_eq(batch_cap_now(&cap, now + 2 * SECOND - 1), 4);
    cr_assert_eq(batch_cap_now(&cap, now + 2 * SECOND), 8);
    cr_assert_eq(batch_cap_now(&cap, now + 3 * SECOND), 12);
    cr_assert_eq(batch_cap_now(&cap, now + 100 * SECOND), 12);
}

Test(batch_cap, patience_doubles_when_rising_was_too_early)
{
    struct batch_cap cap = batch_cap_begin(2);
    int64_t now = 0, wait = SECOND;
    for (int i = 0; i < 10; i++) {
        batch_cap_lower(&cap, 1, now);
        cr_assert_eq(batch_cap_now(&cap, now + wait - 1), 1, "after %d attempts", i);
        cr_assert_eq(batch_cap_now(&cap, now + wait), 2, "after %d attempts", i);
        now += wait;
        wait = wait < 64 * SECOND ? 2 * wait : wait;
    }
    /* Good for as long as it was waited for: forgotten. */
    cr_assert_eq(batch_cap_now(&cap, now + wait), 2);
    now += wait;
    batch_cap_lower(&cap, 1, now);
    cr_assert_eq(batch_cap_now(&cap, now + SECOND - 1), 1);
    cr_assert_eq(batch_cap_now(&cap, now + SECOND), 2);
}

Test(batch_cap, one_image_at_a_time_is_the_least)
{
    struct batch_cap cap = batch_cap_begin(1);
    batch_cap_lower(&cap, 1, 0);
    cr_assert_eq(batch_cap_now(&cap, 0), 1);
    cr_assert_eq(batch_cap_now(&cap, 100 * SECOND), 1);
}

Test(batch_cap, what_fits_never_raises_it)
{
    struct batch_cap cap = batch_cap_begin(8);
    batch_cap_lower(&cap, 2, 0);
    batch_cap_lower(&cap, 4, 0); /* a pass that had begun before */
    cr_assert_eq(batch_cap_now(&cap, 1), 2);
}
