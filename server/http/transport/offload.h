/* Threads for work that would block a connection's thread too long: inflating, parsing, writing or
 * compressing megabytes. Jobs start in order, but short ones never wait for long ones, because one
 * thread runs no long job. */
#pragma once

#include <stdbool.h>
#include <sys/queue.h>

#include "server/http/transport/routes.h"

struct offload;

/* Owned by the caller until `run` is called. */
struct offload_job {
    exchange_fn *run;
    struct exchange *exchange;
    bool is_long;                     /* more than about ten milliseconds */
    STAILQ_ENTRY(offload_job) queued; /* for offload.c only */
};

/* STATUS_IO if a thread cannot start; STATUS_NO_MEMORY. Free *ret with offload_free(), also after a
 * failure. */
enum status offload_create(struct offload **ret, struct error *err) MUST_USE;

/* Queues a job; from any thread. If `offload` is NULL or stopped, runs the job on this thread. */
void offload_run(struct offload *offload, struct offload_job *job);

/* Ends the threads after they have run every queued job. */
void offload_stop(struct offload *offload);
void offload_free(struct offload *offload); /* accepts NULL, as offload_stop() does */
