/* Learns the duration of a pass for each size, and plans the passes of n images. */
#include "server/schedule/policy/latency.h"

#include <assert.h>
#include <math.h>

#include "engine/runtime/session.h"

#define WEIGHT  0.1 /* weight of one pass in the mean of its batch size */
#define OUTLIER 4.0 /* longer passes are clamped to this multiple of the expected time */
#define OLD     16  /* passes of other sizes until a size's time changes by their full ratio */
/* A split is used only if it takes less than this share of the time of one pass, so that noise does
 * not cause splits. */
#define SPLIT_GAIN 0.95
/* A batch is full if its pass has more than this share of the best rate: to wait for more images
 * would delay clients more than it gains. */
#define FULL_RATE 0.95

static int index_of(const struct latency *latency, int images)
{
    for (int i = 0; i < latency->count; i++)
        if (latency->sizes[i] >= images)
            return i;
    return latency->count - 1;
}

int latency_padded(const struct latency *latency, int images)
{
    if (latency->count == 0)
        return images;
    return latency->sizes[index_of(latency, images)];
}

static int images_of(const struct latency *latency, int i)
{
    return latency->sizes[i] < latency->most ? latency->sizes[i] : latency->most;
}

static double rate_of(const struct latency *latency, int i)
{
    return latency->ns[i] > 0 ? images_of(latency, i) / latency->ns[i] : 0;
}

static void find_best(struct latency *latency)
{
    double best_rate = 0;
    latency->best = latency->full = latency->most;
    for (int i = latency->count - 1; i >= 0; i--) {
        if (rate_of(latency, i) <= best_rate * 1.0001)
            continue;
        best_rate = rate_of(latency, i);
        latency->best = images_of(latency, i);
    }
    for (int i = latency->count - 1; i >= 0; i--)
        if (rate_of(latency, i) > best_rate * FULL_RATE)
            latency->full = images_of(latency, i);
}

/* Plans the passes for 1, 2, 3 … images; each plan uses the plans for fewer. */
static void make_plan(struct latency *latency)
{
    latency->totals[0] = 0;
    latency->firsts[0] = 0;
    for (int n = 1; n <= latency->most; n++) {
        double total = latency->ns[index_of(latency, n)];
        double bound = total * SPLIT_GAIN;
        int first = n;
        for (int i = latency->count - 1; i >= 0; i--) {
            if (latency->sizes[i] >= n)
                continue;
            double split = latency->ns[i] + latency->totals[n - latency->sizes[i]];
            if (split < bound) {
                total = bound = split;
                first = latency->sizes[i];
            }
        }
        latency->totals[n] = total;
        latency->firsts[n] = (int16_t)first;
    }
    find_best(latency);
}

/* Sizes without a measurement get the time per image of a measured neighbour. */
static void fill_gaps(struct latency *latency)
{
    int measured = -1;
    for (int i = 0; i < latency->count && measured < 0; i++)
        if (latency->ns[i] > 0)
            measured = i;
    latency->is_known = measured >= 0;
    for (int i = 0; i < latency->count && measured >= 0; i++) {
        if (latency->ns[i] > 0)
            measured = i;
        else
            latency->ns[i] = latency->ns[measured] * latency->sizes[i] / latency->sizes[measured];
    }
}

void latency_init(struct latency *latency, const struct session_batch *batches, size_t count)
{
    _Static_assert(SESSION_MAX_BATCHES <= LATENCY_MAX_SIZES, "L(b) has room for every size");
    assert(count >= 1 && count <= LATENCY_MAX_SIZES);
    const int largest = batches[count - 1].size;
    *latency = (struct latency){.count = (int)count,
                                .most = largest < LATENCY_MAX_BATCH ? largest : LATENCY_MAX_BATCH};
    for (size_t i = 0; i < count; i++) {
        const double ms = batches[i].milliseconds;
        latency->age[i] = OLD;
        latency->sizes[i] = batches[i].size;
        latency->ns[i] = ms > 0 && isfinite(ms) ? ms * 1e6 : 0;
    }
    fill_gaps(latency);
    make_plan(latency);
    latency->floor = latency->ns[0];
}

void latency_observe(struct latency *latency, int images, int64_t ns)
{
    if (latency->count == 0 || ns <= 0)
        return;
    int i = index_of(latency, images);
    if (!latency->is_known) {
        latency->ns[i] = (double)ns;
        fill_gaps(latency);
        make_plan(latency);
        latency->floor = latency->ns[0];
        return;
    }
    const double ratio = fmin((double)ns / latency->ns[i], OUTLIER);
    const double change = WEIGHT * (ratio - 1);
    latency->age[i] = 0;
    for (int k = 0; k < latency->count; k++) {
        latency->ns[k] *= 1 + change * (k == i ? 1 : (double)latency->age[k] / OLD);
        latency->age[k] += k != i && latency->age[k] < OLD;
    }
    latency->floor = fmin(latency->floor, latency->ns[0]);
    make_plan(latency);
}

int64_t latency_run(const struct latency *latency, int images)
{
    if (!latency->is_known || images <= 0)
        return 0;
    return (int64_t)(latency->ns[index_of(latency, images)]);
}

int latency_first(const struct latency *latency, int images)
{
    if (latency->count == 0 || images <= 0)
        return images;
    return latency->firsts[images < latency->most ? images : latency->most];
}

int latency_passes(const struct latency *latency, int images)
{
    int passes = 0;
    for (; images > 0; images -= latency_first(latency, images))
        passes++;
    return passes;
}

double latency_rate(const struct latency *latency)
{
    if (!latency->is_known)
        return 0;
    return latency->best / (latency->ns[index_of(latency, latency->best)]);
}
