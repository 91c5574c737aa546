/* The threads for long work. One lock guards the queues; it is not held while a job runs. */
#include "server/http/transport/offload.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/base/thread.h"

/* One thread runs only short jobs. Two threads run both kinds, so that a second long job can start
 * during a long one. More threads would not answer sooner: forward passes need the cores. */
#define OFFLOAD_THREADS 3

STAILQ_HEAD(offload_queue, offload_job);

struct offload {
    struct offload_thread {
        pthread_t handle;
        struct offload *offload;
    } threads[OFFLOAD_THREADS]; /* the first one runs only short jobs */
    int thread_count;           /* started; only offload_create() and offload_stop() use it */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct offload_queue short_jobs, long_jobs;
    bool stop; /* accept no more jobs */
};

static struct offload_job *offload_pop(struct offload_queue *queue)
{
    struct offload_job *job = STAILQ_FIRST(queue);
    if (job)
        STAILQ_REMOVE_HEAD(queue, queued);
    return job;
}

static void *offload_run_jobs(void *context)
{
    const struct offload_thread *thread = context;
    struct offload *offload = thread->offload;
    const bool is_first = thread == &offload->threads[0];
    pthread_mutex_lock(&offload->lock);
    for (;;) {
        struct offload_job *job = is_first ? NULL : offload_pop(&offload->long_jobs);
        if (!job)
            job = offload_pop(&offload->short_jobs);
        if (job) {
            pthread_mutex_unlock(&offload->lock);
            job->run(job->exchange);
            pthread_mutex_lock(&offload->lock);
        } else if (offload->stop) {
            break;
        } else {
            pthread_cond_wait(&offload->wake, &offload->lock);
        }
    }
    pthread_mutex_unlock(&offload->lock);
    return NULL;
}

enum status offload_create(struct offload **ret, struct error *err)
{
    struct offload *offload = *ret = calloc(1, sizeof *offload);
    TRY(check_memory(offload, "for the HTTP server", err));
    STAILQ_INIT(&offload->short_jobs);
    STAILQ_INIT(&offload->long_jobs);
    pthread_mutex_init(&offload->lock, NULL);
    pthread_cond_init(&offload->wake, NULL);
    for (int i = 0; i < OFFLOAD_THREADS; i++) {
        struct offload_thread *thread = &offload->threads[i];
        thread->offload = offload;
        if (!thread_start(&thread->handle, "offload", offload_run_jobs, thread))
            return error_set(err, STATUS_IO,
                             "cannot start the threads for large requests; " THREAD_LIMIT_HINT);
        offload->thread_count++;
    }
    return STATUS_OK;
}

void offload_run(struct offload *offload, struct offload_job *job)
{
    bool queued = false;
    if (offload) {
        LOCK(&offload->lock);
        queued = !offload->stop;
        if (queued)
            STAILQ_INSERT_TAIL(job->is_long ? &offload->long_jobs : &offload->short_jobs, job,
                               queued);
        pthread_cond_broadcast(&offload->wake); /* a signal could wake only the first thread */
    }
    if (!queued)
        job->run(job->exchange);
}

void offload_stop(struct offload *offload)
{
    if (!offload)
        return;
    pthread_mutex_lock(&offload->lock);
    offload->stop = true;
    pthread_cond_broadcast(&offload->wake);
    pthread_mutex_unlock(&offload->lock);
    while (offload->thread_count > 0)
        pthread_join(offload->threads[--offload->thread_count].handle, NULL);
}

void offload_free(struct offload *offload)
{
    if (!offload)
        return;
    offload_stop(offload);
    pthread_cond_destroy(&offload->wake);
    pthread_mutex_destroy(&offload->lock);
    free(offload);
}
