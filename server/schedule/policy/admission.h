/* Admission: which requests are admitted, and when clients should retry refused ones.
 *
 * Pure functions of numbers; batcher_load() fills in the numbers. Three limits bound memory and
 * waiting time: the number of admitted images without an answer, the bytes in the queue, and the
 * predicted time to an answer. A request whose deadline would pass before its answer is refused, to
 * avoid wasted work. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct admission {
    size_t max_images;   /* limit of admitted images without an answer */
    size_t max_bytes;    /* limit of the bytes of images in the queue; 0: none */
    int64_t max_wait_ns; /* limit of the predicted time until an answer; 0: none */
};

/* The most images that a scheduler holds: max_images, the same number again for crops (a request is
 * admitted before the number of its boxes is known), and a quarter of max_images for crops of
 * clients that have few images in the queue. */
size_t admission_capacity(const struct admission *admission);

/* max_images divided by this number is the number of places for crops that are reserved for clients
 * with few images in the queue. It is also the most crops in one request of a pipeline. */
#define ADMISSION_CROPS_DIVISOR 4

enum admission_kind {
    ADMIT_REQUEST,
    ADMIT_BEFORE_CROPS, /* asks whether crops of a new request would have room in this queue */
    ADMIT_CROPS,        /* crops of an admitted request */
};

/* The load of a model's scheduler, for the admission of a request; batcher_load() fills it in.
 * Times are in nanoseconds. While no lane has been measured, `rate` and the times of passes are 0,
 * and no request is refused for its time. */
struct model_load {
    size_t images;         /* admitted images without an answer */
    size_t bytes;          /* bytes of the images in the queue */
    size_t of_client;      /* images of the request's client in the queue */
    size_t before_prepare; /* images that are decoded before the client's next one */
    size_t before_run;     /* images that run before the client's next one, but do not run yet */
    int64_t lane_free;     /* time until the first lane is free */
    int64_t prepare;       /* time to decode and transform one image on one thread */
    int workers;           /* threads that decode */
    int max_batch;         /* batch size for which `rate` holds */
    double rate;           /* images per nanosecond, all lanes together */
    int64_t batch;         /* duration of a pass of max_batch images */
    int64_t single;        /* duration of a pass of one image */
    int64_t single_floor;  /* the lowest value that `single` has had */
    double arrivals;       /* recent images per nanosecond */
    int64_t margin;        /* mean of actual minus predicted time, plus twice its mean deviation */
};

/* Nanoseconds until `images` further images would be answered; 0 if unknown. */
int64_t admission_predict(const struct model_load *load, size_t images);

struct admission_request {
    size_t images;     /* at least 1 */
    size_t bytes;      /* bytes of all its images */
    int64_t time_left; /* nanoseconds until its deadline; INT64_MAX: it has none */
    const char *model; /* the model's name, for error messages */
    enum admission_kind kind;
};

/* Decides whether to admit a request: all of its images or none. STATUS_TOO_LARGE: it exceeds a
 * limit by itself, so a retry cannot help. STATUS_TIMEOUT: its deadline has passed.
 * STATUS_OVERLOADED: a later retry may succeed; err->retry_after_s is 1 … 60, the predicted time
 * until there is room. The last eighth of max_images is reserved for clients with
 * few images in the queue, so that a client that fills the queue does not block others. max_images
 * limits requests, and admission_capacity() limits crops. admission_capacity() also limits
 * ADMIT_BEFORE_CROPS while no image of the client is in the queue, so that one client's crops do
 * not block others. *ret_predicted (may be NULL) is admission_predict()'s value; it is not set with
 * STATUS_TOO_LARGE and STATUS_TIMEOUT. */
enum status admission_check(const struct admission *admission, const struct model_load *load,
                            const struct admission_request *request, int64_t *ret_predicted,
                            struct error *err) MUST_USE;
