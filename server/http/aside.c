/* Locks: one, which guards the queue and nothing else; it is not held while a job runs. */
#include "server/http/aside.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "server/schedule/thread.h"

struct aside {
    pthread_t thread;
    bool has_thread; /* the owner's */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct aside_job *head, **tail;
    bool stop; /* nothing is queued any more */
};

static void *aside_thread(void *context)
{
    struct aside *aside = context;
    pthread_mutex_lock(&aside->lock);
    for (;;) {
        struct aside_job *job = aside->head;
        if (job) {
            aside->head = job->next;
            if (!aside->head)
                aside->tail = &aside->head;
            pthread_mutex_unlock(&aside->lock);
            job->run(job->context);
            pthread_mutex_lock(&aside->lock);
        } else if (aside->stop) {
            break;
        } else {
            pthread_cond_wait(&aside->wake, &aside->lock);
        }
    }
    pthread_mutex_unlock(&aside->lock);
    return NULL;
}

enum status aside_create(struct aside **ret, struct error *err)
{
    struct aside *aside = calloc(1, sizeof *aside);
    if (!aside)
        return error_set(err, STATUS_NO_MEMORY, "out of memory for the HTTP server");
    aside->tail = &aside->head;
    pthread_mutex_init(&aside->lock, NULL);
    pthread_cond_init(&aside->wake, NULL);
    int failure = pthread_create(&aside->thread, NULL, aside_thread, aside);
    aside->has_thread = failure == 0;
    if (failure) {
        aside_free(aside);
        return error_set(err, STATUS_IO,
                         "cannot start the thread for large requests (%s); " THREAD_LIMIT_HINT,
                         strerror(failure));
    }
    pthread_setname_np(aside->thread, "aside");
    *ret = aside;
    return STATUS_OK;
}

void aside_run(struct aside *aside, struct aside_job *job)
{
    bool queued = false;
    if (aside) {
        pthread_mutex_lock(&aside->lock);
        queued = !aside->stop;
        if (queued) {
            job->next = NULL;
            *aside->tail = job;
            aside->tail = &job->next;
            pthread_cond_signal(&aside->wake);
        }
        pthread_mutex_unlock(&aside->lock);
    }
    if (!queued)
        job->run(job->context);
}

void aside_stop(struct aside *aside)
{
    if (!aside || !aside->has_thread)
        return;
    pthread_mutex_lock(&aside->lock);
    aside->stop = true;
    pthread_cond_signal(&aside->wake);
    pthread_mutex_unlock(&aside->lock);
    pthread_join(aside->thread, NULL);
    aside->has_thread = false;
}

void aside_free(struct aside *aside)
{
    if (!aside)
        return;
    aside_stop(aside);
    pthread_cond_destroy(&aside->wake);
    pthread_mutex_destroy(&aside->lock);
    free(aside);
}
