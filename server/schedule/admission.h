/* Admission: which requests are let in, and when the others should come back.
 *
 * Pure functions on numbers, like the batcher: scheduler.c asks under its lock. The bound counts
 * images that are admitted and not answered, so that memory and waiting time are bounded by it. */
#pragma once

#include <stddef.h>

#include "engine/base/status.h"

struct admission {
    size_t max_images; /* admitted and not answered */
    double batch_ms;   /* measured time of a full batch, L(max_batch); 0 = not known */
    int max_batch;
    int lanes;
};

/* Whether `images` (at least 1) more may come in while `admitted` are inside: all or none.
 * STATUS_TOO_LARGE: more than the bound itself, so trying again cannot help. STATUS_OVERLOADED: no
 * room now; *ret_retry_after_s (may be NULL) is set as by admission_retry_after. `model` is for the
 * text. */
enum status admission_check(const struct admission *admission, const char *model, size_t admitted,
                            size_t images, int *ret_retry_after_s, struct error *err) MUST_USE;

/* Seconds until what is admitted now is predicted to be answered, 1 … 60. */
int admission_retry_after(const struct admission *admission, size_t admitted);
