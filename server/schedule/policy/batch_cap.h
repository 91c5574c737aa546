/* How many images a lane puts into one forward pass while its device is short of memory.
 *
 * Running out of memory is a normal event: another process may have taken it, or an image's
 * data-dependent part may need much. The cap then falls below the size that did not fit, and rises
 * again, doubling, when it has been good for a while: 1 s at first, twice as long each time that
 * raising it brought the next shortage (64 s at most), 1 s again once the lane has run uncapped for
 * that long.
 *
 * Pure: time comes as an argument. Owned by the lane's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct batch_cap {
    int most;           /* without any shortage */
    int cap;            /* 1 … most */
    bool has_risen;     /* since the last shortage: the next one is another */
    int64_t patience;   /* nanoseconds between a shortage and the next attempt to raise */
    int64_t next_event; /* when the cap rises, or patience is forgotten; INT64_MAX: never */
};

struct batch_cap batch_cap_begin(int most);

/* The largest batch to run at `now`; raises the cap when it is time. */
int batch_cap_now(struct batch_cap *cap, int64_t now);

/* A batch did not fit at `now`: from here on `fits` images, 1 … most, are tried at a time. */
void batch_cap_lower(struct batch_cap *cap, int fits, int64_t now);
