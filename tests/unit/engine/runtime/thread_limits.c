/* The system starts no further thread (RLIMIT_NPROC, a container's pids limit): teams stay smaller,
 * and sessions say so instead of running on fewer threads than their kernels were made for. A plain
 * program: pthread_create is wrapped by the linker, and fails when it is told to. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/forkjoin.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/tap.h"

static atomic_int threads_left = 1000000; /* that may still be started */

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*run)(void *argument), void *argument)
{
    if (atomic_fetch_sub(&threads_left, 1) <= 0)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, run, argument);
}

/* A thread of its own, so that each test begins without a team. */
static void on_a_thread(void *(*run)(void *argument), void *argument)
{
    pthread_t thread;
    atomic_store(&threads_left, 1000000);
    CHECK(pthread_create(&thread, NULL, run, argument) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    atomic_store(&threads_left, 1000000);
}

static void count(void *context)
{
    CHECK(forkjoin_members() == 3);
    atomic_fetch_add((atomic_int *)context, 1);
}

static void *make_a_smaller_team(void *argument)
{
    atomic_int calls = 0;
    (void)argument;
    atomic_store(&threads_left, 2);
    errno = 0;
    CHECK(forkjoin_prepare(5) == 3);
    CHECK(errno == EAGAIN);
    forkjoin_run(5, count, &calls);
    CHECK(calls == 3);
    forkjoin_share(5, count, &calls);
    CHECK(calls >= 4 && calls <= 6);
    atomic_store(&threads_left, 2);
    CHECK(forkjoin_prepare(5) == 5);
    return NULL;
}

static void test_a_team_is_as_large_as_can_be(void)
{
    on_a_thread(make_a_smaller_team, NULL);
}

static void *refuse_a_session(void *argument)
{
    const struct graph *graph = argument;
    const struct session_options options = {
        .threads = 4, .max_batch = 2, .image_layout = IMAGE_NHWC_F32};
    struct session *session = NULL;
    struct error err = {0};
    atomic_store(&threads_left, 1);
    CHECK(session_create(graph, &options, &session, &err) == STATUS_NO_MEMORY);
    CHECK(strstr(err.message, "the system started only 2 of the 4 threads of a forward pass"));
    CHECK(strstr(err.message, strerror(EAGAIN)) && strstr(err.message, "--threads"));
    atomic_store(&threads_left, 2);
    CHECK(session_create(graph, &options, &session, &err) == STATUS_OK);
    session_free(session);
    return NULL;
}

static void test_a_session_says_that_threads_are_missing(void)
{
    struct graph *graph = random_graph(1003, 12, 11);
    CHECK(graph);
    on_a_thread(refuse_a_session, graph);
    graph_free(graph);
}

static void *enter_without_threads(void *argument)
{
    struct error err = {0};
    atomic_store(&threads_left, 0);
    CHECK(session_enter(argument, &err) == STATUS_NO_MEMORY);
    CHECK(strstr(err.message, "only 1"));
    atomic_store(&threads_left, 2);
    CHECK(session_enter(argument, &err) == STATUS_OK);
    CHECK(session_enter(argument, &err) == STATUS_OK);
    return NULL;
}

static void test_another_thread_needs_a_team_of_its_own(void)
{
    struct graph *graph = random_graph(1003, 12, 11);
    const struct session_options options = {
        .threads = 3, .max_batch = 1, .image_layout = IMAGE_NHWC_F32};
    struct session *session = NULL;
    struct error err = {0};
    CHECK(graph && session_create(graph, &options, &session, &err) == STATUS_OK);
    on_a_thread(enter_without_threads, session);
    session_free(session);
    graph_free(graph);
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"a team is as large as can be", test_a_team_is_as_large_as_can_be},
        {"a session says that threads are missing", test_a_session_says_that_threads_are_missing},
        {"another thread needs a team of its own", test_another_thread_needs_a_team_of_its_own},
    };
    return tap_run(tests, COUNT_OF(tests), NULL);
}
