/* Turns on a device: one at a time, equal time for those that want it. Time is pretended, so that
 * the shares are exact. A plain program, so that it also runs under ThreadSanitizer. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "server/schedule/runtime/device_queue.h"
#include "tests/unit/tap.h"

/* A lane that always has work, whose passes take `cost`. */
struct lane {
    pthread_t thread;
    struct device_turn turn;
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
        device_turn_begin(&lane->turn);
        CHECK(atomic_fetch_add(&inside, 1) == 0);
        atomic_fetch_add(&lane->used, lane->cost);
        CHECK(atomic_fetch_sub(&inside, 1) == 1);
        device_turn_end(&lane->turn, lane->cost, !lane->leaves_between);
    }
    device_turn_end(&lane->turn, 0, false);
    return NULL;
}

static void start(struct lane *lane)
{
    CHECK(!pthread_create(&lane->thread, NULL, run, lane));
}

static void test_equal_time_not_equal_passes(void)
{
    struct device_queue queue;
    device_queue_init(&queue);
    struct lane slow = {.cost = 100, .passes = 300}, fast = {.cost = 7};
    device_turn_init(&slow.turn, &queue);
    device_turn_init(&fast.turn, &queue);
    device_turn_begin(&slow.turn); /* both are in line before the first pass */
    start(&fast);
    while (!device_turn_is_contended(&slow.turn))
        usleep(100);
    device_turn_end(&slow.turn, 0, true);
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
    device_turn_done(&slow.turn);
    device_turn_done(&fast.turn);
    device_queue_done(&queue);
}

static void test_nobody_saves_up_time(void)
{
    struct device_queue queue;
    device_queue_init(&queue);
    struct device_turn early, late;
    device_turn_init(&early, &queue);
    device_turn_init(&late, &queue);
    for (int i = 0; i < 50; i++) { /* alone, for long */
        device_turn_begin(&early);
        device_turn_end(&early, 1000, false);
    }
    /* Late comes from nothing: it gets one turn, then they alternate. */
    device_turn_begin(&early);
    CHECK(early.used == 50000);
    device_turn_end(&early, 1000, true); /* nobody else: it has the device again */
    CHECK(early.has);
    late.used = 0;
    device_turn_end(&early, 0, false);
    device_turn_begin(&late);
    CHECK(late.used >= 50000);
    device_turn_end(&late, 1000, true);
    device_turn_end(&late, 0, false);
    device_turn_done(&early);
    device_turn_done(&late);
    device_queue_done(&queue);
}

static void test_many_lanes_one_device(void)
{
    struct device_queue queue;
    device_queue_init(&queue);
    struct lane lanes[8];
    memset(lanes, 0, sizeof lanes);
    for (size_t i = 0; i < COUNT_OF(lanes); i++) {
        lanes[i].cost = 10 + (int64_t)i;
        lanes[i].passes = 500;
        lanes[i].leaves_between = i % 2;
        device_turn_init(&lanes[i].turn, &queue);
    }
    for (size_t i = 0; i < COUNT_OF(lanes); i++)
        start(&lanes[i]);
    for (size_t i = 0; i < COUNT_OF(lanes); i++) {
        pthread_join(lanes[i].thread, NULL);
        CHECK(atomic_load(&lanes[i].used) == 500 * lanes[i].cost);
        device_turn_done(&lanes[i].turn);
    }
    device_queue_done(&queue);
}

static void test_leaving_passes_the_device_on(void)
{
    struct device_queue queue;
    device_queue_init(&queue);
    struct device_turn has;
    struct lane waits = {.cost = 1, .passes = 1};
    device_turn_init(&has, &queue);
    device_turn_init(&waits.turn, &queue);
    device_turn_begin(&has);
    start(&waits);
    while (!device_turn_is_contended(&has))
        usleep(100);
    device_turn_done(&has); /* while it has the device */
    pthread_join(waits.thread, NULL);
    CHECK(atomic_load(&waits.used) == 1);
    /* In line, but it never comes. */
    device_turn_begin(&waits.turn);
    device_turn_init(&has, &queue);
    device_turn_end(&waits.turn, 1, true);
    device_turn_done(&waits.turn);
    device_turn_begin(&has);
    device_turn_done(&has);
    device_queue_done(&queue);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"equal time, not equal passes", test_equal_time_not_equal_passes},
        {"nobody saves up time", test_nobody_saves_up_time},
        {"many lanes, one device", test_many_lanes_one_device},
        {"leaving passes the device on", test_leaving_passes_the_device_on},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
