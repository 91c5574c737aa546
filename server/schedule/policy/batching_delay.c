/* The batching delay: whether the forming batch stays open although a device is idle.
 *
 * It does if all of this holds:
 *   - more images are certain to come (they are being decoded, or about to be), or arrivals are so
 *     frequent that passes of the present size would fall behind them. A device that keeps up gains
 *     nothing by waiting: its throughput is what arrives;
 *   - waiting for the next compiled size gives more images a second, the wait included. The wait is
 *     estimated from the images being decoded, then from the arrival rate;
 *   - every deadline in the batch still holds after the wait, with a quarter of the pass to spare;
 *   - the wait, since the first image was ready, is at most max_delay and a quarter of the pass. A
 *     longer wait leaves the device idle for more than the larger batch saves.
 *
 * docs/measurements/scheduling.md shows what it gains: clients that each wait for their answer fall
 * into step and share passes.
 *
 * Locks: none here, as in batcher.c. */
#include "server/schedule/policy/batcher_state.h"

#define DEMAND    0.9  /* least arrival rate, as a share of what passes of this size can do */
#define GAIN      1.05 /* least images a second with the wait, relative to those without */
#define SAFETY_OF 4    /* a deadline must leave this fraction of the pass: a quarter */
#define DELAY_OF  4    /* the longest wait is this fraction of the pass: a quarter */

/* What waiting for a larger batch would bring. */
struct delay_estimate {
    bool gains;     /* more images a second */
    int64_t wait;   /* nanoseconds until the missing images are ready */
    int64_t finish; /* when the larger batch would be done */
};

/* An idle lane that no closed batch is meant for, and something ready for it. */
static bool lane_wants_forming(const struct batcher *batcher)
{
    if (batcher->forming < 0 || batcher->buffers[batcher->forming].ready == 0)
        return false;
    int promised = 0;
    for (int i = 0; batcher->closed_buffers > 0 && i < batcher->config.buffers; i++) {
        const struct buffer *buffer = &batcher->buffers[i];
        if (buffer->state == BUFFER_CLOSED)
            promised += latency_passes(&batcher->lanes[0].latency, buffer->ready + buffer->writing);
    }
    if (promised < batcher->closed_buffers)
        promised = batcher->closed_buffers;
    return batcher->idle_lanes > promised;
}

/* Estimated nanoseconds until `missing` more images are ready: first those being decoded, then
 * those that wait for a worker, then new arrivals. */
static double expected_wait(const struct batcher *batcher, int missing, double rate)
{
    double known = (double)(batcher->preparing + batcher->granted), wait = 0;
    double at_once = batcher->config.workers > 0 ? batcher->config.workers : (double)known;
    double coming = missing < known ? missing : known;
    if (missing > known && rate <= 0)
        return 1e18;
    if (missing > known)
        wait = (missing - known) / rate;
    /* Decodes under way are spread evenly over their duration. */
    double decoded = known > 0 ? coming / (at_once + 1) * batcher->prepare_ns : 0;
    return wait > decoded ? wait : decoded;
}

static int64_t longest_delay(const struct batcher *batcher, int64_t pass)
{
    return batcher->config.max_delay < pass / DELAY_OF ? batcher->config.max_delay
                                                       : pass / DELAY_OF;
}

static struct delay_estimate estimate_delay(const struct batcher *batcher, int64_t now)
{
    struct delay_estimate estimate = {0};
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    const struct latency *latency = &batcher->lanes[0].latency;
    int count = forming->ready + forming->writing;
    double run = (double)latency_total(latency, (size_t)count);
    double rate = arrivals_rate(&batcher->arrivals, now);
    if (run <= 0)
        return estimate;
    bool is_busy = rate * run >= DEMAND * count * batcher->config.lanes;
    size_t known = batcher->preparing + batcher->granted;
    double best = GAIN * count / run;
    for (int i = 0; i < latency->count; i++) {
        int size = latency->sizes[i];
        if (size <= count || size > batcher->config.max_batch)
            continue;
        if (!is_busy && (size_t)(size - count) > known)
            break;
        double wait = expected_wait(batcher, size - count, rate);
        double pass = (double)latency_run(latency, size);
        if (wait > (double)longest_delay(batcher, (int64_t)pass))
            break;
        if (size / (wait + pass) > best) {
            best = size / (wait + pass);
            estimate.gains = true;
            estimate.wait = (int64_t)wait + 1;
            estimate.finish = now + (int64_t)(wait + pass + pass / SAFETY_OF);
        }
    }
    return estimate;
}

static int64_t delay_end(const struct batcher *batcher)
{
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    size_t count = (size_t)(forming->ready + forming->writing);
    int64_t pass = latency_total(&batcher->lanes[0].latency, count);
    return forming->first_ready + longest_delay(batcher, pass);
}

enum batch_close batcher_should_close(const struct batcher *batcher, int64_t now)
{
    if (batcher->forming < 0)
        return BATCH_OPEN;
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    if (forming->writing + forming->ready == batcher->config.max_batch)
        return BATCH_FULL;
    if (!lane_wants_forming(batcher))
        return BATCH_OPEN;
    if (batcher->draining)
        return BATCH_DRAIN;
    if (batcher->config.max_delay == 0)
        return BATCH_IDLE_DEVICE;
    struct delay_estimate estimate = estimate_delay(batcher, now);
    if (!estimate.gains)
        return BATCH_IDLE_DEVICE;
    if (now + estimate.wait > delay_end(batcher))
        return BATCH_DELAY;
    return estimate.finish > forming->earliest ? BATCH_DEADLINE : BATCH_OPEN;
}

int64_t batcher_wake_at(const struct batcher *batcher, int64_t now)
{
    if (!lane_wants_forming(batcher))
        return INT64_MAX;
    if (batcher->draining || batcher->config.max_delay == 0)
        return now;
    struct delay_estimate estimate = estimate_delay(batcher, now);
    return estimate.gains ? now + estimate.wait : now;
}

bool batcher_may_close_ahead(const struct batcher *batcher, int64_t now)
{
    if (batcher->closed_buffers > 0 || batcher->forming < 0)
        return false;
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    if (forming->ready == 0 || forming->writing > 0)
        return false;
    return batcher->draining || batcher->config.max_delay == 0 ||
           !estimate_delay(batcher, now).gains;
}
