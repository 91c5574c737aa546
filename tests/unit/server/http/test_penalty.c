/* How long a refused client's next request waits, on a made-up clock. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "server/http/transport/penalty.h"

#define MS    INT64_C(1000000)
#define START (INT64_C(1000000) * MS)

static int64_t wait_ms(const struct penalty *penalty, int64_t now)
{
    int64_t until = penalty_until(penalty);
    return until > now ? (until - now) / MS : 0;
}

Test(penalty, nobody_waits_who_was_not_refused)
{
    struct penalty penalty = {0};
    cr_assert_eq(wait_ms(&penalty, START), 0);
    penalty_refused(&penalty, false, START);
    cr_assert_eq(wait_ms(&penalty, START), 50);
    penalty_served(&penalty);
    cr_assert_eq(wait_ms(&penalty, START), 0);
}

Test(penalty, doubles_for_who_comes_back_at_once)
{
    static const int64_t waits[] = {50, 100, 200, 400, 400, 400};
    struct penalty penalty = {0};
    int64_t now = START;
    bool waited = false;
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        penalty_refused(&penalty, waited, now);
        cr_assert_eq(wait_ms(&penalty, now), waits[i], "refusal %zu", i);
        now = penalty_until(&penalty);
        waited = true;
    }
}

Test(penalty, who_waits_himself_is_never_delayed)
{
    static const int64_t pauses[] = {50, 60, 1000, 5000};
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        struct penalty penalty = {0};
        int64_t now = START;
        for (int n = 0; n < 20; n++) {
            cr_assert_eq(wait_ms(&penalty, now), 0, "%d ms, request %d", (int)pauses[i], n);
            penalty_refused(&penalty, false, now);
            now += pauses[i] * MS;
        }
    }
}

Test(penalty, a_second_without_refusal_takes_one_doubling_back)
{
    static const struct {
        int64_t pause, wait;
    } cases[] = {{400, 400}, {999, 400}, {1000, 200}, {2000, 100}, {3000, 50}, {3600000, 50}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct penalty penalty = {.level = PENALTY_LEVELS - 1, .latest = START};
        int64_t now = START + cases[i].pause * MS;
        penalty_refused(&penalty, false, now);
        cr_assert_eq(wait_ms(&penalty, now), cases[i].wait, "after %d ms", (int)cases[i].pause);
    }
    /* Served in between: that alone takes nothing back. */
    struct penalty penalty = {.level = 2, .latest = START};
    penalty_served(&penalty);
    penalty_refused(&penalty, false, START + 10 * MS);
    cr_assert_eq(wait_ms(&penalty, START + 10 * MS), 200);
}

static struct penalty_table *table;

static void make_table(void)
{
    table = calloc(1, sizeof *table);
}

static void free_table(void)
{
    free(table);
}

static struct penalty refused_at(int64_t now, unsigned level)
{
    return (struct penalty){.refused = now, .latest = now, .level = level};
}

Test(penalty, one_that_fled_delays_one_new_connection, .init = make_table, .fini = free_table)
{
    const uint64_t here = penalty_client("10.0.0.1", NULL);
    const struct penalty left = refused_at(START, 1);
    struct penalty first = {0}, second = {0}, old = {0}, other = {0};
    penalty_leave(table, here, &left, START + MS);
    penalty_take_over(table, here, START - MS, START + 5 * MS, &old);
    cr_assert_eq(wait_ms(&old, START + 5 * MS), 0, "was open before the refusal");
    penalty_take_over(table, penalty_client("10.0.0.2", NULL), START + 2 * MS, START + 5 * MS,
                      &other);
    cr_assert_eq(wait_ms(&other, START + 5 * MS), 0, "another address");
    penalty_take_over(table, here, START + 2 * MS, START + 5 * MS, &first);
    cr_assert_eq(wait_ms(&first, START + 5 * MS), 95);
    penalty_take_over(table, here, START + 2 * MS, START + 5 * MS, &second);
    cr_assert_eq(wait_ms(&second, START + 5 * MS), 0, "only one had fled");
    penalty_refused(&first, true, START + 100 * MS);
    cr_assert_eq(wait_ms(&first, START + 100 * MS), 200, "the level goes on");
}

Test(penalty, who_reconnects_slowly_keeps_the_level, .init = make_table, .fini = free_table)
{
    const uint64_t here = penalty_client("10.0.0.1", NULL);
    const struct penalty left = refused_at(START, 2);
    struct penalty taken = {0};
    penalty_leave(table, here, &left, START + MS);
    penalty_take_over(table, here, START + 2 * MS, START + 250 * MS, &taken);
    cr_assert_eq(wait_ms(&taken, START + 250 * MS), 0);
    penalty_refused(&taken, false, START + 250 * MS);
    cr_assert_eq(wait_ms(&taken, START + 250 * MS), 200);
}

Test(penalty, what_is_over_is_forgotten, .init = make_table, .fini = free_table)
{
    const uint64_t here = penalty_client("10.0.0.1", NULL);
    const struct penalty left = refused_at(START, 0), again = refused_at(START + 1500 * MS, 0);
    struct penalty taken = {0};
    penalty_leave(table, here, &left, START + 1000 * MS);
    penalty_take_over(table, here, START + 1000 * MS, START + 1000 * MS, &taken);
    cr_assert_eq(taken.refused, 0, "was over when the connection ended");
    penalty_leave(table, here, &left, START + MS);
    penalty_take_over(table, here, START + 1000 * MS, START + 1000 * MS, &taken);
    cr_assert_eq(taken.refused, 0, "was over when the next came");
    penalty_leave(table, here, &again, START + 1501 * MS);
    penalty_take_over(table, here, START + 1502 * MS, START + 1502 * MS, &taken);
    cr_assert_eq(taken.refused, again.refused);
    taken = (struct penalty){0};
    penalty_take_over(table, here, START + 1503 * MS, START + 1503 * MS, &taken);
    cr_assert_eq(taken.refused, 0, "the one before it no longer counts");
}

Test(penalty, clients_of_a_proxy_have_their_own, .init = make_table, .fini = free_table)
{
    const uint64_t greedy = penalty_client("10.0.0.1", "192.0.2.1");
    const uint64_t polite = penalty_client("10.0.0.1", "192.0.2.2");
    cr_assert_neq(greedy, polite);
    cr_assert_neq(penalty_client("10.0.0.1", NULL), penalty_client("10.0.0.1", ""));
    penalty_refused(penalty_add(table, greedy), false, START);
    cr_assert_eq(wait_ms(penalty_find(table, greedy), START), 50);
    cr_assert_null(penalty_find(table, polite));
}

Test(penalty, a_network_of_ipv6_is_one_client)
{
    const uint64_t here = penalty_client("2001:db8:1:2::1", NULL);
    cr_assert_eq(here, penalty_client("2001:db8:1:2:ffff::7", NULL));
    cr_assert_neq(here, penalty_client("2001:db8:1:3::1", NULL));
    cr_assert_neq(penalty_client("192.0.2.1", NULL), penalty_client("192.0.2.2", NULL));
    cr_assert_eq(penalty_client("10.0.0.1", "2001:db8:1:2::1"),
                 penalty_client("10.0.0.1", "2001:db8:1:2::2"));
    cr_assert_neq(penalty_client("::1", NULL), penalty_client("uid:1000", NULL));
}

Test(penalty, a_full_table_forgets_and_never_mixes_up, .init = make_table, .fini = free_table)
{
    const uint64_t count = 4 * PENALTY_CLIENTS;
    for (uint64_t client = 1; client <= count; client++) {
        cr_assert_null(penalty_find(table, client), "client %d", (int)client);
        penalty_refused(penalty_add(table, client), false, START);
    }
    cr_assert_null(penalty_find(table, 1));
    /* Asking for others takes nobody's place. */
    for (uint64_t client = 1; client <= count; client++)
        (void)penalty_find(table, count + client);
    for (uint64_t client = count - PENALTY_CLIENTS + 1; client <= count; client++)
        cr_assert_eq(wait_ms(penalty_find(table, client), START), 50);
}
