/* Teams: every member runs once, regions follow each other, teams of several threads at once, more
 * members than cores. A plain program, so that it also runs under ThreadSanitizer. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/forkjoin.h"
#include "engine/base/size.h"
#include "tests/unit/tap.h"

enum { MOST = 7 };

/* Plain counters: who writes and who reads them is only told apart by fork, barrier and join. */
struct region {
    int calls[MOST], members[MOST];
    int seen[MOST];
    int pause_us; /* what the last member is late by */
};

static void count(void *context)
{
    struct region *region = context;
    int member = forkjoin_member();
    CHECK(member >= 0 && member < MOST && forkjoin_members() > 1);
    region->calls[member]++;
    region->members[member] = forkjoin_members();
    if (region->pause_us && member == forkjoin_members() - 1)
        usleep((useconds_t)region->pause_us);
}

static void check_calls(const struct region *region, int threads, int times)
{
    for (int i = 0; i < MOST; i++) {
        CHECK(region->calls[i] == (i < threads ? times : 0));
        CHECK(region->members[i] == (i < threads ? threads : 0));
    }
}

static void test_every_member_runs_once(void)
{
    for (int threads = 2; threads <= MOST; threads++) {
        struct region region = {0};
        forkjoin_run(threads, count, &region);
        check_calls(&region, threads, 1);
    }
    CHECK(forkjoin_member() == 0 && forkjoin_members() == 1);
}

static void test_regions_follow_each_other(void)
{
    struct region region = {0};
    for (int i = 0; i < 20000; i++)
        forkjoin_run(2, count, &region);
    check_calls(&region, 2, 20000);
}

/* Longer than any spin: at the join, at the fork. */
static void test_who_waits_long_sleeps(void)
{
    struct region region = {.pause_us = 2000};
    for (int i = 0; i < 50; i++) {
        forkjoin_run(3, count, &region);
        usleep(1000);
    }
    check_calls(&region, 3, 50);
    struct timespec before, after;
    struct region late = {.pause_us = 300000};
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before) == 0);
    forkjoin_run(3, count, &late);
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after) == 0);
    /* Of 300 ms two members would have spun away 600. */
    CHECK((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec < 100000000);
}

/* Work that members take one piece after the other. */
struct shared {
    atomic_int next, begun;
    int done[64];    /* how often each piece was done */
    int pause_us;    /* before a member other than the first takes its first piece */
    bool is_for_two; /* the first member waits for another one to begin */
};

static void take_pieces(void *context)
{
    struct shared *shared = context;
    atomic_fetch_add(&shared->begun, 1);
    if (forkjoin_member() > 0 && shared->pause_us)
        usleep((useconds_t)shared->pause_us);
    for (int i; (i = atomic_fetch_add(&shared->next, 1)) < (int)COUNT_OF(shared->done);) {
        while (shared->is_for_two && atomic_load(&shared->begun) < 2)
            usleep(100);
        shared->done[i]++;
    }
}

static void test_shared_work_is_done_once(void)
{
    for (int round = 0; round < 4000; round++) {
        struct shared shared = {.pause_us = round % 1000 == 0 ? 300 : 0,
                                .is_for_two = round % 1000 == 1};
        if (round % 64 == 0)
            usleep(200); /* members fall asleep: they come late, or never */
        forkjoin_share(4, take_pieces, &shared);
        for (size_t i = 0; i < COUNT_OF(shared.done); i++)
            CHECK(shared.done[i] == 1);
        CHECK(shared.begun >= 1 && shared.begun <= 4);
        if (round % 3 == 0) { /* who was taken back comes to the next region all the same */
            struct region region = {0};
            forkjoin_run(4, count, &region);
            check_calls(&region, 4, 1);
        }
    }
}

/* ThreadSanitizer calls a handler of SIGBUS at once, even while the thread holds a lock of its own
 * library, which the other thread then waits for. */
#ifdef __SANITIZE_THREAD__
enum { HOLDS_MEMBERS = false };
#else
enum { HOLDS_MEMBERS = true };
#endif

/* Holds the thread that it interrupts, as a core that is busy with something else does; but not for
 * good. Members leave SIGBUS unblocked. */
static atomic_bool is_held, is_let_go, has_waited_in_vain;

static void hold(int number)
{
    (void)number;
    atomic_store(&is_held, true);
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&is_let_go); i++)
        usleep(1000);
    if (!atomic_load(&is_let_go))
        atomic_store(&has_waited_in_vain, true);
    atomic_store(&is_held, false);
}

static void tell_thread(void *context)
{
    if (forkjoin_member() == 1)
        *(pthread_t *)context = pthread_self();
}

static void test_a_member_that_has_not_begun_is_not_waited_for(void)
{
    struct sigaction held = {.sa_handler = hold}, before;
    struct shared shared = {0};
    struct region region = {0};
    pthread_t member;
    if (!HOLDS_MEMBERS)
        return;
    forkjoin_run(2, tell_thread, &member);
    CHECK(sigaction(SIGBUS, &held, &before) == 0);
    CHECK(pthread_kill(member, SIGBUS) == 0);
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&is_held); i++)
        usleep(1000);
    CHECK(atomic_load(&is_held));
    forkjoin_share(2, take_pieces, &shared);
    CHECK(!atomic_load(&has_waited_in_vain));
    CHECK(atomic_load(&is_held) && shared.begun == 1);
    atomic_store(&is_let_go, true);
    forkjoin_run(2, count, &region); /* it comes to the next region all the same */
    check_calls(&region, 2, 1);
    CHECK(shared.begun == 1);
    for (size_t i = 0; i < COUNT_OF(shared.done); i++)
        CHECK(shared.done[i] == 1);
    CHECK(sigaction(SIGBUS, &before, NULL) == 0);
}

static void alone(void *context)
{
    CHECK(forkjoin_member() == 0 && forkjoin_members() == 1);
    ++*(int *)context;
}

static void nests(void *context)
{
    int member = forkjoin_member(), *counts = context;
    forkjoin_run(4, alone, &counts[member]);
    CHECK(forkjoin_member() == member && forkjoin_members() == 3);
}

static void test_a_region_within_a_region_is_its_callers(void)
{
    int counts[3] = {0};
    forkjoin_run(3, nests, counts);
    for (int i = 0; i < 3; i++)
        CHECK(counts[i] == 1);
    forkjoin_run(1, alone, &counts[0]);
    CHECK(counts[0] == 2);
}

static void *a_pass(void *context)
{
    (void)context;
    struct region region = {0};
    for (int i = 0; i < 2000; i++)
        forkjoin_run(3, count, &region);
    check_calls(&region, 3, 2000);
    return NULL;
}

static void test_each_thread_has_a_team_that_ends_with_it(void)
{
    for (int round = 0; round < 3; round++) {
        pthread_t threads[4];
        for (size_t i = 0; i < COUNT_OF(threads); i++)
            CHECK(pthread_create(&threads[i], NULL, a_pass, NULL) == 0);
        for (size_t i = 0; i < COUNT_OF(threads); i++)
            CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"every member runs once", test_every_member_runs_once},
        {"regions follow each other", test_regions_follow_each_other},
        {"who waits long sleeps", test_who_waits_long_sleeps},
        {"shared work is done once", test_shared_work_is_done_once},
        {"a member that has not begun is not waited for",
         test_a_member_that_has_not_begun_is_not_waited_for},
        {"a region within a region is its caller's", test_a_region_within_a_region_is_its_callers},
        {"each thread has a team that ends with it", test_each_thread_has_a_team_that_ends_with_it},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
