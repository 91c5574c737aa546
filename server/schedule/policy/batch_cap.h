/* Limits the images per forward pass of a lane while its device is short of memory.
 *
 * Running out of memory is a normal event: another process may have taken the memory, or an image's
 * data-dependent tensors may need much. The cap then falls below the size that did not fit. It
 * doubles again after a period without shortage: 1 s at first, twice as long each time that raising
 * the cap caused the next shortage (64 s at most), and 1 s again once the cap has been at its
 * maximum for that period.
 *
 * Pure: the caller passes the time. Owned by the lane's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct batch_cap {
    int most;           /* the cap without a shortage */
    int cap;            /* 1 … most */
    bool has_risen;     /* the cap has risen since the last shortage */
    int64_t patience;   /* nanoseconds without shortage before the cap rises */
    int64_t next_event; /* when to raise the cap or reset the patience; INT64_MAX: never */
};

struct batch_cap batch_cap_begin(int most);

/* The largest batch to run at `now`; raises the cap when it is time. */
int batch_cap_now(struct batch_cap *cap, int64_t now);

/* Records that a batch did not fit at `now`: the cap becomes at most `fits` (1 … most). */
void batch_cap_lower(struct batch_cap *cap, int fits, int64_t now);
