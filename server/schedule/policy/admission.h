/* Admission: which requests are admitted, and when refused ones should be retried.
 *
 * Pure functions on numbers, like the batcher, which takes the snapshot (batcher_load);
 * scheduler.c asks under its lock. Three bounds keep memory and waiting time in hand: images that
 * are admitted and not answered, bytes that wait in the queue, and the predicted time to an answer;
 * a request whose deadline would pass before its answer is refused, so that no work is spent on
 * answers that nobody waits for. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct admission {
    size_t max_images;   /* admitted and not answered */
    size_t max_bytes;    /* of images in the queue; 0: no bound */
    int64_t max_wait_ns; /* predicted time to the answer; 0: no bound */
};

/* The images that a scheduler holds at most. Beyond max_images, as many again may be crops of
 * requests that were let in before it was known how many boxes they have; and a quarter more is for
 * crops of clients that have few images in the queue. */
size_t admission_capacity(const struct admission *admission);

/* max_images divided by this is kept free among the places of crops, for clients that have few
 * images, and is the most images of one part. */
#define ADMISSION_CROPS_DIVISOR 4

enum admission_kind {
    ADMIT_REQUEST,
    ADMIT_BEFORE_CROPS, /* one image, for a request that may come to have crops in this queue */
    ADMIT_CROPS,        /* of a request that was let in */
};

/* What is inside a model's scheduler, as far as admission cares; batcher_load fills it in. Times
 * are nanoseconds; 0 where nothing is known yet, which lets requests in. */
struct model_load {
    size_t images;         /* admitted and not answered */
    size_t bytes;          /* waiting in the queue */
    size_t of_client;      /* images of the asking client in the queue */
    size_t before_prepare; /* images whose decode comes before the asking one's */
    size_t before_run;     /* images that run before it, beyond those that run now */
    int64_t lane_free;     /* until the first lane is free */
    int64_t prepare;       /* decode and transform of one image on one thread */
    int workers;           /* threads that do that */
    int max_batch;         /* images of a batch that gives `rate` */
    double rate;           /* images a nanosecond, all lanes together */
    int64_t batch;         /* a pass of max_batch images */
    int64_t single;        /* a pass of one image */
    int64_t single_floor;  /* the fastest that was ever seen */
    double arrivals;       /* images a nanosecond, lately */
    int64_t margin;        /* what answers took longer than predicted, lately, and their spread */
};

/* Nanoseconds until `images` more would be answered; 0 when not known. */
int64_t admission_predict(const struct model_load *load, size_t images);

struct admission_request {
    size_t images;     /* at least 1 */
    size_t bytes;      /* of them all */
    int64_t time_left; /* until its deadline; INT64_MAX: none */
    const char *model; /* for the text */
    enum admission_kind kind;
};

/* Whether a request may come in: all of its images or none. STATUS_TOO_LARGE: it is beyond a bound
 * by itself, so trying again cannot help. STATUS_TIMEOUT: its deadline is over. STATUS_OVERLOADED:
 * not now; *ret_retry_after_s (may be NULL) is set to 1 … 60: when what is too much now is
 * predicted to be done. The last eighth of max_images is kept for clients that have few images in
 * the queue, so that one that fills it does not keep the others out. max_images bounds requests.
 * admission_capacity() bounds crops, and also requests that may come to have crops while nothing of
 * their client waits here, so that one client's crops do not keep the others out. *ret_predicted
 * (may be NULL): what admission_predict says, set also on refusal. */
enum status admission_check(const struct admission *admission, const struct model_load *load,
                            const struct admission_request *request, int64_t *ret_predicted,
                            int *ret_retry_after_s, struct error *err) MUST_USE;
