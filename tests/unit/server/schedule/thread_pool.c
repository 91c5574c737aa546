/* The pool: every ticket is worked off once, and sources take turns. A plain program, so that it
 * also runs under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "server/schedule/runtime/pool.h"
#include "tests/unit/tap.h"

struct source {
    struct pool_source source; /* first, so that it can be cast back */
    char name;
    _Atomic int runs;
    int64_t cost;         /* of a run, on the pretended clock */
    struct pool *long_in; /* its tasks are long ones of this pool; NULL: they are not */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool is_shut;         /* guarded by lock, as all below */
static int begun, states;    /* runs so far; thread states alive */
static char order[128];      /* names of the first runs */
static int64_t pretended;    /* the time */
static int fail_start_after; /* 0: never */

static void *start(void *context)
{
    (void)context;
    pthread_mutex_lock(&lock);
    bool fails = fail_start_after && states == fail_start_after;
    states += !fails;
    pthread_mutex_unlock(&lock);
    return fails ? NULL : malloc(1);
}

static void stop(void *state)
{
    free(state);
    pthread_mutex_lock(&lock);
    states--;
    pthread_mutex_unlock(&lock);
}

static bool run(void *state, struct pool_source *pool_source)
{
    struct source *source = (struct source *)pool_source;
    CHECK(state);
    if (source->long_in && !pool_begin_long(source->long_in))
        return false;
    atomic_fetch_add(&source->runs, 1);
    pthread_mutex_lock(&lock);
    if (begun < (int)sizeof order - 1)
        order[begun] = source->name;
    begun++;
    pretended += source->cost;
    pthread_cond_broadcast(&changed);
    while (is_shut)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    if (source->long_in)
        pool_end_long(source->long_in);
    return true;
}

static void wait_for(int runs)
{
    pthread_mutex_lock(&lock);
    while (begun < runs)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void set_shut(bool value)
{
    pthread_mutex_lock(&lock);
    is_shut = value;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int64_t pretended_now(void)
{
    pthread_mutex_lock(&lock);
    int64_t now = pretended;
    pthread_mutex_unlock(&lock);
    return now;
}

static struct pool *create(int threads)
{
    struct pool *pool = NULL;
    begun = 0;
    memset(order, 0, sizeof order);
    struct pool_options options = {
        .threads = threads, .start = start, .run = run, .stop = stop, .now = pretended_now};
    struct error err;
    CHECK(pool_create(&options, &pool, &err) == STATUS_OK);
    return pool;
}

static void test_sources_take_turns(void)
{
    struct source a = {.name = 'a', .cost = 10}, b = {.name = 'b', .cost = 10},
                  c = {.name = 'c', .cost = 10};
    set_shut(true);
    struct pool *pool = create(1);
    pool_offer(pool, &a.source, 6);
    wait_for(1); /* the only thread is busy with a's first */
    pool_offer(pool, &b.source, 1);
    pool_offer(pool, &c.source, 2);
    pool_offer(pool, &b.source, 1);
    pool_offer(pool, &c.source, 0);
    set_shut(false);
    wait_for(10);
    pool_free(pool);
    CHECK(!strcmp(order, "abcabcaaaa"));
}

static void test_turns_are_weighed_by_time(void)
{
    struct source large = {.name = 'L', .cost = 90}, small = {.name = 's', .cost = 10};
    set_shut(true);
    struct pool *pool = create(1);
    pool_offer(pool, &large.source, 8);
    wait_for(1);
    pool_offer(pool, &small.source, 60);
    set_shut(false);
    wait_for(68);
    pool_free(pool);
    /* While both have work, nine small ones come for each large one. */
    int larges = 0, smalls = 0;
    for (const char *name = order; larges < 6; name++) {
        larges += *name == 'L';
        smalls += *name == 's';
        CHECK(*name);
        CHECK(smalls <= 9 * (larges + 1) && smalls >= 9 * (larges - 2));
    }
}

static void test_nobody_saves_up_time(void)
{
    struct source busy = {.name = 'b', .cost = 10}, late = {.name = 'l', .cost = 10};
    struct pool *pool = create(1);
    pool_offer(pool, &busy.source, 40);
    wait_for(40);
    set_shut(true);
    pool_offer(pool, &busy.source, 7);
    wait_for(41);
    pool_offer(pool, &late.source, 6);
    set_shut(false);
    wait_for(53);
    pool_free(pool);
    int in_a_row = 0;
    for (const char *name = order + 41; *name; name++) {
        in_a_row = *name == 'l' ? in_a_row + 1 : 0;
        CHECK(in_a_row <= 2);
    }
}

struct offerer {
    pthread_t thread;
    struct pool *pool;
    struct source *source;
};

static void *offer_many(void *argument)
{
    const struct offerer *offerer = argument;
    for (int i = 0; i < 500; i++)
        pool_offer(offerer->pool, &offerer->source->source, (size_t)(i % 4));
    return NULL;
}

static void test_no_ticket_is_lost(void)
{
    struct source sources[3] = {{.name = 'a'}, {.name = 'b'}, {.name = 'c'}};
    struct offerer offerers[6];
    struct pool *pool = create(4);
    for (int i = 0; i < 6; i++) {
        offerers[i] = (struct offerer){.pool = pool, .source = &sources[i % 3]};
        CHECK(!pthread_create(&offerers[i].thread, NULL, offer_many, &offerers[i]));
    }
    for (int i = 0; i < 6; i++)
        pthread_join(offerers[i].thread, NULL);
    wait_for(6 * 750);
    pool_free(pool);
    for (int i = 0; i < 3; i++)
        CHECK(atomic_load(&sources[i].runs) == 2 * 750);
}

static void test_free_drops_what_is_left(void)
{
    struct source a = {.name = 'a'};
    set_shut(true);
    struct pool *pool = create(2);
    pool_offer(pool, &a.source, 1000);
    wait_for(2);
    set_shut(false);
    pool_free(pool);
    CHECK(atomic_load(&a.runs) >= 2);
    CHECK(states == 0);
    pool_free(NULL);
}

static void test_a_thread_that_cannot_start(void)
{
    struct pool *pool = NULL;
    struct pool_options options = {.threads = 3, .start = start, .run = run, .stop = stop};
    struct error err = {0};
    fail_start_after = 2;
    CHECK(pool_create(&options, &pool, &err) == STATUS_NO_MEMORY);
    CHECK(strstr(err.message, "2 of 4") && strstr(err.message, "ulimit -u"));
    pool_free(pool);
    CHECK(states == 0);
    fail_start_after = 0;
}

static void test_the_spare_thread_works_beside_long_tasks(void)
{
    struct source busy = {.name = 'b'}, others = {.name = 's'};
    set_shut(true);
    struct pool *pool = create(2);
    pool_offer(pool, &busy.source, 2);
    wait_for(2); /* both threads are busy */
    pool_offer(pool, &others.source, 2);
    CHECK(atomic_load(&others.runs) == 0);
    CHECK(pool_begin_long(pool));
    wait_for(3);
    CHECK(atomic_load(&others.runs) == 1);
    pool_end_long(pool);
    set_shut(false);
    wait_for(4);
    pool_forget(pool, &busy.source); /* waits until all have seen that it is open */
    pool_forget(pool, &others.source);
    /* Offered while there is a long task. */
    set_shut(true);
    pool_offer(pool, &busy.source, 2);
    wait_for(6);
    CHECK(pool_begin_long(pool));
    pool_offer(pool, &others.source, 1);
    wait_for(7);
    pool_end_long(pool);
    set_shut(false);
    pool_free(pool);
    CHECK(atomic_load(&others.runs) == 3 && states == 0);
}

static void test_long_tasks_of_all_sources_leave_a_thread(void)
{
    struct source longs[3] = {{.name = 'A'}, {.name = 'B'}, {.name = 'C'}}, others = {.name = 's'};
    set_shut(true);
    struct pool *pool = create(2);
    for (size_t i = 0; i < COUNT_OF(longs); i++) {
        longs[i].long_in = pool;
        pool_offer(pool, &longs[i].source, 20);
    }
    wait_for(2);
    CHECK(!pool_begin_long(pool));
    pool_offer(pool, &others.source, 5);
    wait_for(3);
    CHECK(atomic_load(&others.runs) == 1);
    set_shut(false);
    wait_for(65); /* what was blocked is tried again */
    for (size_t i = 0; i < COUNT_OF(longs); i++) {
        pool_forget(pool, &longs[i].source);
        CHECK(atomic_load(&longs[i].runs) == 20);
    }
    CHECK(atomic_load(&others.runs) == 5);
    pool_free(pool);
}

static void test_blocked_tickets_are_forgotten(void)
{
    struct source longs = {.name = 'L'};
    struct pool *pool = create(1);
    longs.long_in = pool;
    CHECK(pool_begin_long(pool));
    pool_offer(pool, &longs.source, 3);
    pool_forget(pool, &longs.source);
    pool_end_long(pool);
    CHECK(atomic_load(&longs.runs) == 0);
    pool_free(pool);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"sources take turns", test_sources_take_turns},
        {"no ticket is lost", test_no_ticket_is_lost},
        {"free drops what is left", test_free_drops_what_is_left},
        {"a thread that cannot start", test_a_thread_that_cannot_start},
        {"turns are weighed by time", test_turns_are_weighed_by_time},
        {"nobody saves up time", test_nobody_saves_up_time},
        {"the spare thread works beside long tasks", test_the_spare_thread_works_beside_long_tasks},
        {"long tasks of all sources leave a thread", test_long_tasks_of_all_sources_leave_a_thread},
        {"blocked tickets are forgotten", test_blocked_tickets_are_forgotten},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
