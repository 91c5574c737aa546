/* Runs threads that work for several sources in turn.
 *
 * Locks: `lock` guards everything below it; it is never held while a function of pool_options
 * (except `now`) is called, nor together with any other lock. */
#include "server/schedule/runtime/pool.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"

/* A thread that has had no work for this long rests (pool_options.rest). */
#define REST_NS INT64_C(1000000000)

struct pool_thread {
    struct pool *pool;
    bool is_spare;
    pthread_t handle;
    void *state;
    bool is_resting; /* the thread rests, or has not worked yet */
};

struct pool {
    struct pool_options options; /* immutable */
    struct pool_thread *threads; /* immutable once created */
    int thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work, spare_work;   /* separate, so that each signal wakes the right thread */
    TAILQ_HEAD(, pool_source) sources; /* sources with tickets, in order of arrival */
    int64_t clock;                     /* `used` of the source with the last turn */
    bool stopping;
    int restless;        /* threads that are not resting */
    size_t longs;        /* long tasks that are running */
    pthread_cond_t left; /* a thread no longer works for a source */
};

static void pool_append_locked(struct pool *pool, struct pool_source *source)
{
    if (source->used < pool->clock)
        source->used = pool->clock;
    TAILQ_INSERT_TAIL(&pool->sources, source, entry);
}

static bool may_begin_long_locked(const struct pool *pool)
{
    return pool->longs < (size_t)pool->options.threads;
}

/* The source with a usable ticket that has used the least time; on a tie, the first one. NULL if
 * there is none. */
static struct pool_source *find_source_locked(const struct pool *pool)
{
    struct pool_source *found = NULL, *source;
    TAILQ_FOREACH(source, &pool->sources, entry)
    {
        const bool has_ticket = source->tickets > source->blocked || may_begin_long_locked(pool);
        if (has_ticket && (!found || source->used < found->used))
            found = source;
    }
    return found;
}

/* Takes a ticket of the source and charges the source the expected time of the task. Otherwise many
 * threads would take its tickets before the first task ends. Returns the charge. */
static int64_t take_ticket_locked(struct pool *pool, struct pool_source *source)
{
    const int64_t charged = source->expected;
    pool->clock = source->used;
    source->used += charged;
    if (may_begin_long_locked(pool))
        source->blocked = 0; /* try each blocked ticket again */
    TAILQ_REMOVE(&pool->sources, source, entry);
    if (--source->tickets > 0)
        pool_append_locked(pool, source);
    return charged;
}

/* Returns a ticket that could not be used. */
static void block_ticket_locked(struct pool *pool, struct pool_source *source, int64_t charged)
{
    source->used -= charged;
    source->blocked++;
    if (source->tickets++ == 0)
        pool_append_locked(pool, source);
}

/* Replaces the expected time of a task by the actual one. */
static void settle_locked(struct pool_source *source, int64_t charged, int64_t spent)
{
    source->used += spent - charged;
    source->expected += (spent - source->expected) / 8;
}

static bool has_work_locked(const struct pool_thread *thread)
{
    const struct pool *pool = thread->pool;
    return pool->stopping || ((!thread->is_spare || pool->longs) && find_source_locked(pool));
}

static void rest_locked(struct pool_thread *thread)
{
    struct pool *pool = thread->pool;
    const bool is_last = --pool->restless == 0;
    thread->is_resting = true;
    pthread_mutex_unlock(&pool->lock);
    if (pool->options.rest)
        pool->options.rest(thread->state, is_last);
    pthread_mutex_lock(&pool->lock);
}

static void wait_for_work_locked(struct pool_thread *thread)
{
    struct pool *pool = thread->pool;
    const int64_t until = clock_now() + REST_NS;
    while (!has_work_locked(thread)) {
        condition_wait(thread->is_spare ? &pool->spare_work : &pool->work, &pool->lock,
                       thread->is_resting ? INT64_MAX : until);
        if (!has_work_locked(thread) && !thread->is_resting && clock_now() >= until)
            rest_locked(thread);
    }
    pool->restless += thread->is_resting;
    thread->is_resting = false;
}

static void *thread_main(void *argument)
{
    struct pool_thread *thread = argument;
    struct pool *pool = thread->pool;
    bool has_begun = !pool->options.begin;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        wait_for_work_locked(thread);
        if (pool->stopping)
            break;
        const int64_t start = pool->options.now();
        struct pool_source *source = find_source_locked(pool);
        const int64_t charged = take_ticket_locked(pool, source);
        source->running++;
        pthread_mutex_unlock(&pool->lock);
        if (!has_begun)
            pool->options.begin();
        has_begun = true;
        const bool is_used = pool->options.run(thread->state, source);
        pthread_mutex_lock(&pool->lock);
        if (is_used)
            settle_locked(source, charged, pool->options.now() - start);
        else
            block_ticket_locked(pool, source, charged);
        source->running--;
        pthread_cond_broadcast(&pool->left);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum status pool_create(const struct pool_options *options, struct pool **ret, struct error *err)
{
    struct pool *pool = calloc(1, sizeof *pool);
    TRY(check_memory(pool, "for the decode threads", err));
    *ret = pool;
    pool->options = *options;
    if (!options->now)
        pool->options.now = clock_now;
    TAILQ_INIT(&pool->sources);
    pthread_mutex_init(&pool->lock, NULL);
    condition_init(&pool->work);
    condition_init(&pool->spare_work);
    condition_init(&pool->left);
    const int count = options->threads + 1;
    pool->threads = alloc_array((size_t)count, sizeof *pool->threads);
    for (int i = 0; pool->threads && i < count; i++) {
        struct pool_thread *thread = &pool->threads[i];
        char name[32];
        snprintf(name, sizeof name, "decode-%d", i);
        thread->pool = pool;
        thread->is_spare = i == options->threads;
        thread->is_resting = true;
        thread->state = options->start(options->context);
        if (!thread->state)
            break;
        if (!thread_start(&thread->handle, name, thread_main, thread)) {
            options->stop(thread->state);
            break;
        }
        pool->thread_count++;
    }
    if (pool->thread_count < count)
        return error_set(
            err, STATUS_NO_MEMORY,
            "only %d of %d decode threads could be started; lower --workers, or " THREAD_LIMIT_HINT,
            pool->thread_count, count);
    return STATUS_OK;
}

void pool_offer(struct pool *pool, struct pool_source *source, size_t tickets)
{
    if (tickets == 0)
        return;
    pthread_mutex_lock(&pool->lock);
    if (source->tickets == 0)
        pool_append_locked(pool, source);
    source->tickets += tickets;
    bool wakes_spare = pool->longs > 0;
    pthread_mutex_unlock(&pool->lock);
    if (wakes_spare)
        pthread_cond_signal(&pool->spare_work);
    for (size_t i = 0; i < tickets && i < (size_t)pool->options.threads; i++)
        pthread_cond_signal(&pool->work);
}

bool pool_begin_long(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    const bool may_begin = may_begin_long_locked(pool);
    pool->longs += may_begin;
    pthread_mutex_unlock(&pool->lock);
    if (may_begin)
        pthread_cond_signal(&pool->spare_work);
    return may_begin;
}

void pool_end_long(struct pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->longs--;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_signal(&pool->work); /* a blocked ticket may be usable now */
}

void pool_forget(struct pool *pool, struct pool_source *source)
{
    LOCK(&pool->lock);
    for (;;) {
        if (source->tickets > 0)
            TAILQ_REMOVE(&pool->sources, source, entry);
        source->tickets = source->blocked = 0;
        if (source->running == 0) /* a thread may still return its ticket */
            break;
        condition_wait(&pool->left, &pool->lock, INT64_MAX);
    }
}

void pool_free(struct pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_mutex_unlock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_cond_broadcast(&pool->spare_work);
    for (int i = 0; i < pool->thread_count; i++) {
        pthread_join(pool->threads[i].handle, NULL);
        pool->options.stop(pool->threads[i].state);
    }
    free(pool->threads);
    pthread_cond_destroy(&pool->left);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->spare_work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}
