/* L(b) is the time of a forward pass of b images on one lane. From it, this module plans the sizes
 * of passes in which n images run fastest.
 *
 * Times are measured while the session warms up, then updated by every pass: an exponentially
 * weighted mean for each compiled size. Another busy process or heat slows all sizes alike. So the
 * times of sizes that have not run recently are adjusted together with the measured ones.
 *
 * Pure; the scheduler's lock guards it. Times are nanoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LATENCY_MAX_SIZES 16
#define LATENCY_MAX_BATCH 256

struct session_batch;

struct latency {
    int count;                    /* number of compiled sizes; 0: latency_init() was not called */
    int sizes[LATENCY_MAX_SIZES]; /* ascending */
    double ns[LATENCY_MAX_SIZES]; /* duration of a pass */
    int age[LATENCY_MAX_SIZES];   /* passes of other sizes since this size last ran, at most OLD */
    int streams;                  /* images that the lane can compute at the same time, each in a
                                     pass of its own; 0: it runs one batch at a time */
    bool is_known;                /* at least one size has been measured */
    int most;                     /* most images of a pass, at most LATENCY_MAX_BATCH */
    double floor;                 /* lowest value that ns[0] has had */

    /* Computed from ns[]. totals[n]: the shortest time for n images in consecutive passes on this
     * lane; firsts[n]: the size of the first of these passes. */
    double totals[LATENCY_MAX_BATCH + 1];
    int16_t firsts[LATENCY_MAX_BATCH + 1];
    int best; /* images of the pass with the most images per second */
    int full; /* images of the smallest pass with more than FULL_RATE of the highest rate */
};

/* Sets `count` (1 … LATENCY_MAX_SIZES) compiled sizes, ascending, and their times (0 if unknown:
 * then estimated from neighbours). A model's file may fix its batch to more than LATENCY_MAX_BATCH
 * images: then passes are planned for at most LATENCY_MAX_BATCH and padded. */
void latency_init(struct latency *latency, const struct session_batch *batches, size_t count);

/* Records that a pass of `images` (padded to the next compiled size) took `ns`. */
void latency_observe(struct latency *latency, int images, int64_t ns);

/* The smallest compiled size >= images (at most the largest); `images` if no size is known. */
int latency_padded(const struct latency *latency, int images);

/* Duration of one pass of `images`, padding included; 0 if unknown. */
int64_t latency_run(const struct latency *latency, int images);

/* Size of the first pass in the fastest sequence of passes for `images`, 1 … images. */
int latency_first(const struct latency *latency, int images);

/* Number of passes in the fastest sequence for `images`. */
int latency_passes(const struct latency *latency, int images);

/* Maximum throughput in images per nanosecond; 0 if unknown. */
double latency_rate(const struct latency *latency);
