/* Threads for work that would keep the thread of all connections from the others: megabytes that
 * are inflated, parsed, written, compressed. Jobs are taken up in order, but short ones never wait
 * for long ones: one of the threads takes no long job. */
#pragma once

#include <stdbool.h>

#include "engine/base/status.h"

struct offload;

/* Owned by the caller until `run` is called. */
struct offload_job {
    void (*run)(void *context);
    void *context;
    bool is_long;             /* more than some ten milliseconds */
    struct offload_job *next; /* offload.c's own */
};

/* STATUS_IO without a thread. Free with offload_free. */
enum status offload_create(struct offload **ret, struct error *err) MUST_USE;

/* From any thread. Where there are no threads any more (`offload` is NULL, or stopped) the job runs
 * here, before it returns. */
void offload_run(struct offload *offload, struct offload_job *job);

/* Ends the threads once they have done all that they were given. */
void offload_stop(struct offload *offload);
void offload_free(struct offload *offload);
