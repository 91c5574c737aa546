/* The pool: threads that several sources of work share fairly.
 *
 * A source (a model's scheduler) offers tickets, one per task. A thread takes a ticket of the
 * source that has used the least time and calls run(state, source), which chooses the task. So a
 * model with a thousand waiting images does not delay another model's single image. Models with
 * work get equal time, not equal numbers of images. A source that was idle starts with the used
 * time of the source that was served last, so it cannot save up time. Offering never allocates and
 * never blocks on work.
 *
 * Long tasks (large photos) could keep all threads busy. Therefore at most `threads` of them run at
 * a time, from all sources together, and one spare thread works only while long tasks run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/base/status.h"

/* Embedded in a source of work; initially zero. Private to pool.c; the pool's lock guards it. */
struct pool_source {
    TAILQ_ENTRY(pool_source) entry; /* in the list of sources, while it has tickets */
    size_t tickets;
    size_t running; /* threads that work for the source */
    size_t blocked; /* tickets whose run() returned false; they wait until a long task may begin */
    int64_t used;   /* nanoseconds: actual ones of finished tasks, expected ones of running tasks;
                       relative to other sources */
    int64_t expected; /* mean nanoseconds of recent tasks */
};

struct pool_options {
    int threads; /* at least 1; without the spare thread */
    /* Called for each thread at its start, within pool_create(). Returns the state for run(); NULL
     * makes pool_create() fail. stop() frees it. */
    void *(*start)(void *context);
    void (*begin)(void); /* called by each thread before its first task; may be NULL */
    /* Returns false if only long tasks wait and pool_begin_long() refused. The ticket stays, and
     * run() is called again after a long task has ended. */
    bool (*run)(void *state, struct pool_source *source);
    /* Called in each thread that has had no work for a second. `is_last`: no other thread has had
     * work either. May be NULL. */
    void (*rest)(void *state, bool is_last);
    void (*stop)(void *state);
    void *context;
    int64_t (*now)(void); /* nanoseconds; NULL: the monotonic clock */
};

struct pool;

/* STATUS_NO_MEMORY, also when a thread cannot be started. The caller frees *ret, which a failure
 * may set. */
enum status pool_create(const struct pool_options *options, struct pool **ret,
                        struct error *err) MUST_USE;

/* Gives the source `tickets` more tickets; run() must return true once for each. Any thread. */
void pool_offer(struct pool *pool, struct pool_source *source, size_t tickets);

/* Called by run(): true if it may begin a long task. Call pool_end_long() when that task has ended,
 * or turns out to be short. */
bool pool_begin_long(struct pool *pool) MUST_USE;
void pool_end_long(struct pool *pool);

/* Drops the source's tickets and waits until no thread works for it. Afterwards it may be freed, if
 * no thread offers tickets for it any more. Not from the pool's own threads. */
void pool_forget(struct pool *pool, struct pool_source *source);

/* Threads finish their task and end; remaining tickets are dropped. NULL is fine. */
void pool_free(struct pool *pool);
