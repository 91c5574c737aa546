/* Work that takes longer than the thread of a connection may be kept from the others, and is no
 * device's: megabytes of JSON numbers read, written, compressed. One thread of its own takes it up,
 * in order. */
#pragma once

#include "engine/base/status.h"

struct aside;

/* Owned by the caller until `run` is called. */
struct aside_job {
    void (*run)(void *context);
    void *context;
    struct aside_job *next; /* aside.c's own */
};

/* STATUS_IO without a thread. Free with aside_free. */
enum status aside_create(struct aside **ret, struct error *err) MUST_USE;

/* From any thread. Where there is no thread any more (`aside` is NULL, or stopped) the job runs
 * here, before it returns. */
void aside_run(struct aside *aside, struct aside_job *job);

/* Ends the thread once it has done all that it was given. */
void aside_stop(struct aside *aside);
void aside_free(struct aside *aside);
