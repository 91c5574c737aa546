/* The pool: threads shared fairly by several sources of work.
 *
 * A source (a model's scheduler) offers tickets, one for each task. A thread takes a ticket of the
 * source that has used the least time and calls run(state, source), which picks the task. So a
 * model with a thousand waiting images does not keep another's single image waiting, and models
 * with work get equal time, not equal numbers of images. A source that was idle starts at the level
 * of the others: time is not saved up. Offering never allocates and never blocks on work.
 *
 * Long tasks (large pictures) could keep all threads busy. So at most `threads` of them run at a
 * time, whatever sources they come from, and one thread more, the spare one, works only while long
 * tasks are run. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

/* Embedded in what offers work; zeroed at first; private to pool.c, guarded by the pool's lock. */
struct pool_source {
    struct pool_source *next;
    size_t tickets;
    size_t blocked;   /* of the tickets: those that found nothing but long tasks, while no further
                         one could begin */
    int64_t used;     /* nanoseconds, on the pool's own scale; those of running tasks as expected */
    int64_t expected; /* of a task, lately */
};

struct pool_options {
    int threads; /* at least 1; one more is the spare */
    /* Called for each thread when it starts, in pool_create's own time: the state that run gets;
     * NULL makes pool_create fail. stop frees it. */
    void *(*start)(void *context);
    void (*begin)(void); /* called by each thread before its first task; NULL: nothing */
    /* False: only long tasks wait, and pool_begin_long refused. The ticket stays, and run is called
     * again once a long task has ended. */
    bool (*run)(void *state, struct pool_source *source);
    /* Called in each thread when it has had no work for a second; `is_last`: nor has any other. May
     * be NULL. */
    void (*rest)(void *state, bool is_last);
    void (*stop)(void *state);
    void *context;
    int64_t (*now)(void); /* nanoseconds; NULL: the monotonic clock */
};

struct pool;

/* Errors: STATUS_NO_MEMORY (also when no thread can be started). */
enum status pool_create(const struct pool_options *options, struct pool **ret,
                        struct error *err) MUST_USE;

/* Adds `tickets` to the source's; run will return true that many times. Any thread. */
void pool_offer(struct pool *pool, struct pool_source *source, size_t tickets);

/* Called by run: whether the task that it begins may be a long one. If so, call pool_end_long when
 * the task has ended, or turns out not to be long. */
bool pool_begin_long(struct pool *pool) MUST_USE;
void pool_end_long(struct pool *pool);

/* Drops the source's tickets and waits until no thread is at work for it: afterwards it may be
 * freed, if nobody offers for it any more. From any thread but the pool's own. */
void pool_forget(struct pool *pool, struct pool_source *source);

/* Threads finish their task and end; tickets left are dropped. NULL is fine. */
void pool_free(struct pool *pool);
