/* The hold rule: may the forming batch stay open although a device is idle?
 *
 * Only if all of this holds:
 *   - more images are on their way for certain (being decoded, or about to be), or arrivals are so
 *     frequent that passes of the present size would fall behind them: a device that keeps up gains
 *     nothing by waiting, throughput is what arrives;
 *   - waiting for the next compiled size, for as long as its missing images are expected to take
 *     (those that are being decoded first, then arrivals at the present rate), gives more images a
 *     second, the waiting counted in;
 *   - every deadline in the batch still holds after that, with a quarter of the pass to spare;
 *   - it does not take longer than max_delay since the first image was ready.
 *
 * Locks: none here, as in batcher.c. */
#include "server/schedule/batcher_state.h"

#define DEMAND    0.9  /* arrivals, as a part of what passes of this size can do */
#define GAIN      1.05 /* images a second by waiting, compared with not waiting */
#define SAFETY_OF 4    /* of a pass: what deadlines must leave beyond it */

struct hold {
    bool gains;     /* waiting raises throughput */
    int64_t wait;   /* for the images it takes */
    int64_t finish; /* the batch would be done then */
};

/* What the hold rule looks at when time does not matter: an idle lane that nothing closed is meant
 * for, and something to run. */
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

/* Nanoseconds until `missing` more images will be there, as far as one can tell: first those that
 * are being decoded, then those that wait for a worker, then those that arrive. */
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

static struct hold weigh(const struct batcher *batcher, int64_t now)
{
    struct hold hold = {0};
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    const struct latency *latency = &batcher->lanes[0].latency;
    int count = forming->ready + forming->writing;
    double run = (double)latency_total(latency, (size_t)count);
    double rate = arrivals_rate(&batcher->arrivals, now);
    if (run <= 0)
        return hold;
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
        if (wait > (double)batcher->config.max_delay)
            break;
        double pass = (double)latency_run(latency, size);
        if (size / (wait + pass) > best) {
            best = size / (wait + pass);
            hold.gains = true;
            hold.wait = (int64_t)wait + 1;
            hold.finish = now + (int64_t)(wait + pass + pass / SAFETY_OF);
        }
    }
    return hold;
}

static int64_t hold_cap(const struct batcher *batcher)
{
    int64_t first = batcher->buffers[batcher->forming].first_ready, end;
    return __builtin_add_overflow(first, batcher->config.max_delay, &end) ? INT64_MAX : end;
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
    struct hold hold = weigh(batcher, now);
    if (!hold.gains)
        return BATCH_IDLE_DEVICE;
    if (now + hold.wait > hold_cap(batcher))
        return BATCH_DELAY;
    return hold.finish > forming->earliest ? BATCH_DEADLINE : BATCH_OPEN;
}

int64_t batcher_wake_at(const struct batcher *batcher, int64_t now)
{
    if (!lane_wants_forming(batcher))
        return INT64_MAX;
    if (batcher->draining || batcher->config.max_delay == 0)
        return now;
    struct hold hold = weigh(batcher, now);
    return hold.gains ? now + hold.wait : now;
}

bool batcher_may_close_ahead(const struct batcher *batcher, int64_t now)
{
    if (batcher->closed_buffers > 0 || batcher->forming < 0)
        return false;
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    if (forming->ready == 0 || forming->writing > 0)
        return false;
    return batcher->draining || batcher->config.max_delay == 0 || !weigh(batcher, now).gains;
}
