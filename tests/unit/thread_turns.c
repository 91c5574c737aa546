/* Turns on a device: one at a time, equal time for those that want it. Time is pretended, so that
 * the shares are exact. A plain program, so that it also runs under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "server/schedule/turns.h"
#include "tests/unit/tap.h"

/* A lane that always has work, whose passes take `cost`. */
struct lane {
    pthread_t thread;
    struct turn turn;
    int64_t cost;
    _Atomic int64_t used;
    int passes;          /* to run; 0: until `stop` */
    bool leaves_between; /* has no further work when a pass ends */
};

static _Atomic int inside, stop;

static void *run(void *argument)
{
    struct lane *lane = argument;
    for (int i = 0; lane->passes ? i < lane->passes : !atomic_load(&stop); i++) {
        turn_begin(&lane->turn);
        CHECK(atomic_fetch_add(&inside, 1) == 0);
        atomic_fetch_add(&lane->used, lane->cost);
        CHECK(atomic_fetch_sub(&inside, 1) == 1);
        turn_end(&lane->turn, lane->cost, !lane->leaves_between);
    }
    turn_end(&lane->turn, 0, false);
    return NULL;
}

static void start(struct lane *lane)
{
    CHECK(!pthread_create(&lane->thread, NULL, run, lane));
}

static void test_equal_time_not_equal_passes(void)
{
    struct turns *turns = turns_create();
    struct lane slow = {.cost = 100, .passes = 300}, fast = {.cost = 7};
    CHECK(turns);
    turn_init(&slow.turn, turns);
    turn_init(&fast.turn, turns);
    turn_begin(&slow.turn); /* both are in line before the first pass */
    start(&fast);
    while (!turn_is_contended(&slow.turn))
        usleep(100);
    turn_end(&slow.turn, 0, true);
    start(&slow);
    int64_t most = 0;
    while (atomic_load(&slow.used) < 29900) {
        /* Read in this order the difference can only look smaller than it was. */
        int64_t slow_used = atomic_load(&slow.used), fast_used = atomic_load(&fast.used);
        int64_t behind = slow_used - fast_used;
        most = behind > most ? behind : most;
    }
    CHECK(most <= 107); /* never further behind than one pass of each */
    pthread_join(slow.thread, NULL);
    CHECK(atomic_load(&fast.used) >= 300 * 100 - 107);
    atomic_store(&stop, 1);
    pthread_join(fast.thread, NULL);
    atomic_store(&stop, 0);
    turn_done(&slow.turn);
    turn_done(&fast.turn);
    turns_free(turns);
}

static void test_nobody_saves_up_time(void)
{
    struct turns *turns = turns_create();
    struct turn early, late;
    turn_init(&early, turns);
    turn_init(&late, turns);
    for (int i = 0; i < 50; i++) { /* alone, for long */
        turn_begin(&early);
        turn_end(&early, 1000, false);
    }
    /* Late comes from nothing: it gets one turn, then they alternate. */
    turn_begin(&early);
    CHECK(early.used == 50000);
    turn_end(&early, 1000, true); /* nobody else: it has the device again */
    CHECK(early.has);
    late.used = 0;
    turn_end(&early, 0, false);
    turn_begin(&late);
    CHECK(late.used >= 50000);
    turn_end(&late, 1000, true);
    turn_end(&late, 0, false);
    turn_done(&early);
    turn_done(&late);
    turns_free(turns);
}

static void test_many_lanes_one_device(void)
{
    struct turns *turns = turns_create();
    struct lane lanes[8];
    memset(lanes, 0, sizeof lanes);
    for (size_t i = 0; i < COUNT_OF(lanes); i++) {
        lanes[i].cost = 10 + (int64_t)i;
        lanes[i].passes = 500;
        lanes[i].leaves_between = i % 2;
        turn_init(&lanes[i].turn, turns);
    }
    for (size_t i = 0; i < COUNT_OF(lanes); i++)
        start(&lanes[i]);
    for (size_t i = 0; i < COUNT_OF(lanes); i++) {
        pthread_join(lanes[i].thread, NULL);
        CHECK(atomic_load(&lanes[i].used) == 500 * lanes[i].cost);
        turn_done(&lanes[i].turn);
    }
    turns_free(turns);
}

static void test_leaving_passes_the_device_on(void)
{
    struct turns *turns = turns_create();
    struct turn has;
    struct lane waits = {.cost = 1, .passes = 1};
    turn_init(&has, turns);
    turn_init(&waits.turn, turns);
    turn_begin(&has);
    start(&waits);
    while (!turn_is_contended(&has))
        usleep(100);
    turn_done(&has); /* while it has the device */
    pthread_join(waits.thread, NULL);
    CHECK(atomic_load(&waits.used) == 1);
    /* In line, but it never comes. */
    turn_begin(&waits.turn);
    turn_init(&has, turns);
    turn_end(&waits.turn, 1, true);
    turn_done(&waits.turn);
    turn_begin(&has);
    turn_done(&has);
    turns_free(turns);
    turns_free(NULL);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"equal time, not equal passes", test_equal_time_not_equal_passes},
        {"nobody saves up time", test_nobody_saves_up_time},
        {"many lanes, one device", test_many_lanes_one_device},
        {"leaving passes the device on", test_leaving_passes_the_device_on},
    };
    return tap_run(tests, COUNT_OF(tests), 60, NULL);
}
