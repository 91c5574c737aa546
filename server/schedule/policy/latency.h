/* L(b): the time of a forward pass of b images on one lane. It plans the passes: the sizes in which
 * n images run fastest.
 *
 * Measured while the session warms up, then updated by every pass: an exponentially weighted mean
 * for each compiled size. A busy neighbour or heat slows all sizes alike, so the times of sizes
 * that have not run lately follow those that have.
 *
 * Pure; the scheduler's lock guards it. Times are nanoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LATENCY_MAX_SIZES 16
#define LATENCY_MAX_BATCH 256

struct session_info;

struct latency {
    int count;                    /* compiled sizes; 0: nothing is known of this lane */
    int sizes[LATENCY_MAX_SIZES]; /* ascending */
    double ns[LATENCY_MAX_SIZES]; /* of a pass */
    int age[LATENCY_MAX_SIZES];   /* passes of other sizes since its last one */
    bool is_known;                /* some size has been measured */
    int most;                     /* images of the largest pass: LATENCY_MAX_BATCH, or fewer */
    double floor;                 /* the least that ns[0] has ever been */

    /* Derived from ns: of n images on this lane, run one pass after the other, the shortest total
     * and the images of the first pass. */
    double totals[LATENCY_MAX_BATCH + 1];
    int16_t firsts[LATENCY_MAX_BATCH + 1];
    int best; /* images of the pass with the most images per second */
    int full; /* images of the smallest pass that is nearly as good */
};

/* `count` (1 … LATENCY_MAX_SIZES) compiled sizes, ascending; milliseconds[i] of sizes[i], 0 where
 * it is not known: then it is guessed from its neighbours. A file may fix its batch to more than
 * LATENCY_MAX_BATCH images: its passes are planned for no more, and padded. */
void latency_init(struct latency *latency, const int *sizes, const double *milliseconds, int count);

/* As the session has measured its sizes. */
void latency_init_session(struct latency *latency, const struct session_info *info);

/* A pass of `images` (padded to the next compiled size) took `ns`. */
void latency_observe(struct latency *latency, int images, int64_t ns);

/* The smallest compiled size >= images (at most the largest); `images` where nothing is known. */
int latency_padded(const struct latency *latency, int images);

/* One pass of `images`, padding included; 0 when not known. */
int64_t latency_run(const struct latency *latency, int images);

/* Images of the first pass of the fastest sequence of passes, 1 … images: padding up, or a part,
 * whichever is faster. */
int latency_first(const struct latency *latency, int images);

/* Passes of that sequence. */
int latency_passes(const struct latency *latency, int images);

/* Images a nanosecond in the long run; 0 when not known. */
double latency_rate(const struct latency *latency);

/* A rate of events: a count that fades with time constant `tau`. */
struct arrivals {
    double weight; /* at `last` */
    int64_t last, tau;
};

void arrivals_init(struct arrivals *arrivals, int64_t tau_ns);
void arrivals_note(struct arrivals *arrivals, size_t count, int64_t now);
/* Events a nanosecond. */
double arrivals_rate(const struct arrivals *arrivals, int64_t now);
