/* The batcher's state machine.
 *
 * Locks: none here. The caller (scheduler.c) holds its lock during every call. */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/schedule/policy/batcher.h"

#define ARRIVALS_TAU_NS 20e6 /* time constant of the mean arrival rate; short, as bursts are */
#define PREPARE_WEIGHT  0.1
#define LEARNING_WEIGHT 0.1
#define WAIT_SHARE      0.02 /* share of passes that may wait for an image while images are queued */
/* WAIT_SHARE for lanes with streams: a waiting stream leaves its core to a decoder, and each image
 * that is prepared early delays others. With 0.02 the p50 latency of one client beside 64 others
 * was 3 ms longer, at the same throughput (SqueezeNet, two cores). */
#define STREAM_WAIT_SHARE 0.2
#define LATE_FRACTION     0.9 /* an image is late if less than this share of a pass is left */

enum slot_state { SLOT_FREE, SLOT_WRITING, SLOT_READY, SLOT_RUNNING };

struct buffer_slot {
    enum slot_state state;
    struct batch_item *item;
};

struct buffer {
    enum buffer_state state;
    enum batch_close reason;
    int writing, ready; /* number of slots in each state */
    int micro_batches;  /* micro-batches that lanes hold now */
    bool is_taken;      /* a lane has taken a micro-batch since the buffer was opened */
    int64_t order;      /* lanes take the closed buffer with the lowest order first */
    struct buffer_slot *slots;
};

struct lane_state {
    bool works, idle;
    int held_count;     /* batches that the lane has taken and not released */
    int64_t busy_until; /* predicted end of its last batch; 0: it has no batch */
    struct latency latency;
};

struct batcher {
    struct batcher_config config;
    struct buffer *buffers;
    struct buffer_slot *slots; /* of all buffers */
    struct lane_state *lanes;
    int forming;                  /* index, or -1 */
    int full;                     /* images at which a batch closes; set by update_full() */
    int ahead;                    /* most images between queue and lanes; set by update_full() */
    struct batcher_counts counts; /* without `queued`, `large` and `bytes` */
    size_t larges;                /* large images that are being prepared */
    int64_t next_order, first_order;
    struct queue queue;
    double arrivals; /* a count of arrivals that decays with time; as of `last_arrival` */
    int64_t last_arrival;
    double prepare_ns;    /* recent time from claim to commit */
    double early;         /* images to prepare beyond those of the next passes; rises when a lane
                             waits for an image, and falls with each pass */
    double error, spread; /* nanoseconds: mean error of predictions, and its mean deviation */
};

const char *batch_close_name(enum batch_close reason)
{
    static const char *const names[BATCH_CLOSE_REASONS] = {
        [BATCH_OPEN] = "open", [BATCH_FULL] = "full", [BATCH_IDLE_DEVICE] = "idle_device"};
    return names[reason];
}

struct batcher *batcher_create(const struct batcher_config *config)
{
    assert(config->max_batch >= 1 && config->max_batch <= BATCHER_MAX_BATCH);
    assert(config->depth >= 1 && config->depth <= BATCHER_MAX_DEPTH);
    assert(config->lanes >= 1 && config->buffers >= config->lanes * config->depth + 2);
    assert(config->max_images >= 1);
    struct batcher *batcher = calloc(1, sizeof *batcher);
    if (!batcher)
        return NULL;
    batcher->config = *config;
    batcher->forming = -1;
    batcher->full = config->max_batch;
    batcher->ahead = INT_MAX;
    batcher->early = config->workers;
    batcher->counts.buffers[BUFFER_FREE] = config->buffers;
    size_t slots;
    if (size_mul((size_t)config->buffers, (size_t)config->max_batch, &slots))
        batcher->slots = alloc_array(slots, sizeof *batcher->slots);
    batcher->buffers = alloc_array((size_t)config->buffers, sizeof *batcher->buffers);
    batcher->lanes = alloc_array((size_t)config->lanes, sizeof *batcher->lanes);
    bool has_queue = queue_init(&batcher->queue, config->max_images);
    if (!batcher->slots || !batcher->buffers || !batcher->lanes || !has_queue) {
        batcher_free(batcher);
        return NULL;
    }
    for (int i = 0; i < config->buffers; i++)
        batcher->buffers[i].slots = batcher->slots + (size_t)i * (size_t)config->max_batch;
    for (int i = 0; i < config->lanes; i++)
        batcher->lanes[i] = (struct lane_state){.works = true};
    return batcher;
}

void batcher_free(struct batcher *batcher)
{
    if (!batcher)
        return;
    queue_done(&batcher->queue);
    FREE_ALL(batcher->lanes, batcher->buffers, batcher->slots, batcher);
}

struct latency *batcher_latency(struct batcher *batcher, int lane)
{
    assert(lane >= 0 && lane < batcher->config.lanes);
    return &batcher->lanes[lane].latency;
}

/* --- the queue and its tickets --- */

/* Number of slots that are certain to exist for tickets, even if batches close early.
 *
 * The free slots are the rest of the forming buffer and all free buffers. A batch that closes
 * before it is full wastes at most full - 1 slots. A batch closes early only for a lane without a
 * closed buffer, so only while closed and running buffers together are fewer than lanes * depth.
 * The difference (`hungry`) is how many more batches can close early before a buffer is free again.
 * The room is therefore the free slots less hungry * (full - 1). No event makes the room smaller
 * than the number of tickets:
 *
 *     reserve          room - 1, tickets - 1
 *     close early      hungry - 1; its waste was subtracted before
 *     close full       wastes nothing
 *     take, give back  change nothing
 *     done             its last batch frees the buffer; hungry + 1, room + 1 or more
 *     abandon          frees a slot; as `done` if a closed buffer becomes empty */
static size_t room(const struct batcher *batcher)
{
    const size_t full = (size_t)batcher->full;
    const int *buffers = batcher->counts.buffers;
    size_t slots = (size_t)buffers[BUFFER_FREE] * full;
    if (batcher->forming >= 0) {
        const struct buffer *forming = &batcher->buffers[batcher->forming];
        const size_t used = (size_t)(forming->writing + forming->ready);
        slots += full > used ? full - used : 0;
    }
    int hungry = batcher->config.lanes * batcher->config.depth - buffers[BUFFER_RUNNING] -
                 buffers[BUFFER_CLOSED];
    size_t loss = hungry > 0 ? (size_t)hungry * (full - 1) : 0;
    return slots > loss ? slots - loss : 0;
}

static size_t tickets(const struct batcher *batcher)
{
    return batcher->counts.granted + batcher->counts.preparing;
}

/* The margin added to predictions: their mean error plus twice its mean deviation. About one answer
 * in fifty takes longer. */
static int64_t margin_of(const struct batcher *batcher)
{
    return (int64_t)(batcher->error + 2 * batcher->spread);
}

static double recent_arrivals(const struct batcher *batcher, int64_t now)
{
    return batcher->arrivals *
           exp(fmin((double)(batcher->last_arrival - now) / ARRIVALS_TAU_NS, 0));
}

void batcher_admit(struct batcher *batcher, struct batch_item *item, int64_t predicted, int64_t now)
{
    assert(batcher->counts.admitted < batcher->config.max_images);
    item->admitted = now;
    item->predicted = predicted;
    item->margin = margin_of(batcher);
    queue_push(&batcher->queue, item);
    batcher->arrivals = recent_arrivals(batcher, now) + 1;
    batcher->last_arrival = now;
    batcher->counts.admitted++;
}

/* How many more large images may be prepared now. */
static size_t large_room(const struct batcher *batcher)
{
    return (size_t)batcher->config.larges - batcher->larges;
}

/* How many images lanes with streams lack, to have one for each stream and `more` per lane. */
static size_t streams_lack(const struct batcher *batcher, int more)
{
    size_t count = 0;
    for (int i = 0; i < batcher->config.lanes; i++) {
        const struct lane_state *lane = &batcher->lanes[i];
        const int lacks = lane->latency.streams + more - lane->held_count;
        count += lane->works && lane->latency.streams > 0 && lacks > 0 ? (size_t)lacks : 0;
    }
    return count;
}

size_t batcher_grant(struct batcher *batcher)
{
    size_t space = room(batcher), queued = batcher->queue.count;
    assert(tickets(batcher) <= space);
    space -= tickets(batcher);
    /* Large images take long to prepare, so they do not count against `ahead`. */
    const size_t most = (size_t)batcher->ahead + batcher->larges + streams_lack(batcher, 1);
    const size_t ahead = batcher->counts.slots + tickets(batcher);
    const size_t left = most > ahead ? most - ahead : 0;
    space = left < space ? left : space;
    queued -= batcher->queue.large;
    queued +=
        batcher->queue.large < large_room(batcher) ? batcher->queue.large : large_room(batcher);
    size_t wanted = queued > batcher->counts.granted ? queued - batcher->counts.granted : 0;
    size_t grant = wanted < space ? wanted : space;
    batcher->counts.granted += grant;
    return grant;
}

void *batcher_pop(struct batcher *batcher)
{
    struct batch_item *item = queue_pop(&batcher->queue, true);
    return item ? item->owner : NULL;
}

void *batcher_claim(struct batcher *batcher, bool may_be_large, int64_t now)
{
    assert(batcher->counts.granted > 0);
    struct batch_item *item = queue_pop(&batcher->queue, may_be_large && large_room(batcher) > 0);
    if (!item && !may_be_large && batcher->queue.large > 0)
        return NULL;
    batcher->counts.granted--;
    if (!item)
        return NULL;
    batcher->larges += item->is_large;
    item->claimed = now;
    batcher->counts.preparing++;
    return item->owner;
}

bool batcher_remove(struct batcher *batcher, struct batch_item *item)
{
    if (!item->is_queued)
        return false;
    queue_remove(&batcher->queue, item);
    return true;
}

void batcher_end_large(struct batcher *batcher)
{
    assert(batcher->larges > 0);
    batcher->larges--;
}

void batcher_drop(struct batcher *batcher)
{
    assert(batcher->counts.preparing > 0);
    batcher->counts.preparing--;
}

/* --- the forming batch --- */

static void set_state(struct batcher *batcher, struct buffer *buffer, enum buffer_state state)
{
    batcher->counts.buffers[buffer->state]--;
    batcher->counts.buffers[state]++;
    buffer->state = state;
}

/* Closes the forming buffer. The next batcher_reserve() opens another one. */
static void close_forming(struct batcher *batcher, enum batch_close reason)
{
    struct buffer *buffer = &batcher->buffers[batcher->forming];
    set_state(batcher, buffer, BUFFER_CLOSED);
    buffer->reason = reason;
    buffer->order = batcher->next_order++;
    batcher->forming = -1;
}

/* True if the forming batch has a ready image, and closed batches are too few for the idle
 * lanes. */
static bool lane_wants_forming(const struct batcher *batcher)
{
    if (batcher->buffers[batcher->forming].ready == 0)
        return false;
    int promised = 0;
    for (int i = 0; batcher->counts.buffers[BUFFER_CLOSED] > 0 && i < batcher->config.buffers;
         i++) {
        const struct buffer *buffer = &batcher->buffers[i];
        if (buffer->state == BUFFER_CLOSED)
            promised += latency_passes(&batcher->lanes[0].latency, buffer->ready + buffer->writing);
    }
    if (promised < batcher->counts.buffers[BUFFER_CLOSED])
        promised = batcher->counts.buffers[BUFFER_CLOSED];
    return batcher->counts.idle_lanes > promised;
}

enum batch_close batcher_should_close(const struct batcher *batcher)
{
    if (batcher->forming < 0)
        return BATCH_OPEN;
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    if (forming->writing + forming->ready >= batcher->full)
        return BATCH_FULL;
    return lane_wants_forming(batcher) ? BATCH_IDLE_DEVICE : BATCH_OPEN;
}

static void close_if_due(struct batcher *batcher)
{
    enum batch_close reason = batcher_should_close(batcher);
    if (reason != BATCH_OPEN)
        close_forming(batcher, reason);
}

static void open_buffer(struct batcher *batcher)
{
    int i = 0;
    while (batcher->buffers[i].state != BUFFER_FREE)
        i++;
    struct buffer *buffer = &batcher->buffers[i];
    *buffer = (struct buffer){.slots = buffer->slots};
    set_state(batcher, buffer, BUFFER_FORMING);
    for (int slot = 0; slot < batcher->config.max_batch; slot++)
        buffer->slots[slot] = (struct buffer_slot){.state = SLOT_FREE};
    batcher->forming = i;
}

struct batch_slot batcher_reserve(struct batcher *batcher, struct batch_item *item)
{
    assert(batcher->counts.preparing > 0 && room(batcher) > 0);
    batcher->counts.preparing--;
    if (batcher->forming < 0)
        open_buffer(batcher);
    struct buffer *buffer = &batcher->buffers[batcher->forming];
    struct batch_slot place = {.buffer = batcher->forming, .slot = 0};
    while (buffer->slots[place.slot].state != SLOT_FREE)
        place.slot++;
    buffer->slots[place.slot] = (struct buffer_slot){SLOT_WRITING, item};
    buffer->writing++;
    batcher->counts.slots++;
    close_if_due(batcher);
    return place;
}

static struct buffer *written_buffer(struct batcher *batcher, struct batch_slot place)
{
    struct buffer *buffer = &batcher->buffers[place.buffer];
    assert(buffer->state == BUFFER_FORMING || buffer->state == BUFFER_CLOSED);
    assert(buffer->slots[place.slot].state == SLOT_WRITING);
    buffer->writing--;
    return buffer;
}

/* True if a lane has no batch: the lane is idle, or about to be idle. */
static bool a_lane_is_free(const struct batcher *batcher)
{
    for (int i = 0; i < batcher->config.lanes; i++)
        if (batcher->lanes[i].works && batcher->lanes[i].held_count == 0)
            return true;
    return false;
}

void batcher_commit(struct batcher *batcher, struct batch_slot place, int64_t now)
{
    struct buffer *buffer = written_buffer(batcher, place);
    struct buffer_slot *slot = &buffer->slots[place.slot];
    double took = (double)(now - slot->item->claimed);
    batcher->prepare_ns +=
        batcher->prepare_ns > 0 ? PREPARE_WEIGHT * (took - batcher->prepare_ns) : took;
    /* A lane or a stream has waited for this image although the queue has images. */
    if (batcher->queue.count > 0 && !batcher_has_ready(batcher) &&
        (a_lane_is_free(batcher) || streams_lack(batcher, 0) > 0))
        batcher->early = fmin(batcher->early + 1, batcher->config.max_batch);
    slot->state = SLOT_READY;
    buffer->ready++;
    close_if_due(batcher);
}

void batcher_abandon(struct batcher *batcher, struct batch_slot place)
{
    struct buffer *buffer = written_buffer(batcher, place);
    buffer->slots[place.slot] = (struct buffer_slot){.state = SLOT_FREE};
    batcher->counts.slots--;
    if (buffer->writing + buffer->ready == 0) {
        if (buffer->state == BUFFER_FORMING)
            batcher->forming = -1;
        set_state(batcher, buffer, buffer->micro_batches > 0 ? BUFFER_RUNNING : BUFFER_FREE);
    }
    /* An idle lane may have been waiting for a closed buffer that is now empty. */
    close_if_due(batcher);
}

/* --- lanes --- */

/* Sets `full`, the number of images beyond which a batch gains nothing on any lane. But `full` lets
 * every worker that the lanes need hold a ticket while all lanes run and one closed buffer waits.
 * It shrinks only if every ticket still has a slot.
 *
 * Sets `ahead`, too. The queue cannot reorder an image that has left it. So if larger batches gain
 * nothing, `ahead` lets an image leave the queue only when a lane needs it soon. */
static void update_full(struct batcher *batcher)
{
    const struct batcher_config *config = &batcher->config;
    const int before = batcher->full, spare = config->buffers - config->lanes * config->depth - 1;
    const int early = (int)ceil(batcher->early);
    const int workers = early < config->workers ? early : config->workers;
    int full = (workers + spare - 1) / spare, next = 0;
    for (int i = 0; i < config->lanes; i++) {
        const struct latency *latency = &batcher->lanes[i].latency;
        const int wanted = latency->is_known ? latency->full : config->max_batch;
        full = wanted > full ? wanted : full;
        next += latency->streams ? 0 : wanted; /* batcher_grant() adds streams_lack() */
    }
    batcher->full = full < config->max_batch ? full : config->max_batch;
    batcher->ahead = full < config->max_batch ? next + early : INT_MAX;
    if (room(batcher) < tickets(batcher))
        batcher->full = before;
}

static void set_idle(struct batcher *batcher, struct lane_state *lane, bool idle)
{
    batcher->counts.idle_lanes += (int)idle - (int)lane->idle;
    lane->idle = idle;
}

void batcher_lane_idle(struct batcher *batcher, int index)
{
    struct lane_state *lane = &batcher->lanes[index];
    assert(!lane->idle && lane->held_count == 0);
    lane->busy_until = 0;
    lane->works = true;
    set_idle(batcher, lane, true);
    update_full(batcher);
    close_if_due(batcher);
}

void batcher_lane_works(struct batcher *batcher, int index, bool works)
{
    struct lane_state *lane = &batcher->lanes[index];
    lane->works = works;
    if (!works)
        set_idle(batcher, lane, false);
    close_if_due(batcher);
}

/* Finds the first ready slots that have no slot of another lane between them. */
static void find_ready(const struct batcher *batcher, const struct buffer *buffer,
                       struct batch *ret)
{
    ret->first = ret->count = 0;
    ret->end = batcher->config.capacity;
    for (int slot = 0; slot < batcher->config.max_batch; slot++) {
        enum slot_state state = buffer->slots[slot].state;
        if (state == SLOT_READY) {
            ret->slots[ret->count++] = slot;
        } else if (state == SLOT_RUNNING) {
            if (ret->count > 0) {
                ret->end = slot;
                return;
            }
            ret->first = slot + 1;
        }
    }
}

/* Reduces the batch to the images of one pass whose padding reaches no slot of another lane. If
 * each stream has an image, the pass has one image. Returns false if no size fits: then the other
 * lane must finish first. */
static bool cut_batch(const struct batcher *batcher, struct batch *batch)
{
    const struct latency *latency = &batcher->lanes[batch->lane].latency;
    const bool in_streams = latency->streams > 0 && batcher_fills_lanes(batcher);
    int count = in_streams ? 1 : latency_first(latency, batch->count);
    for (int i = latency->count;; count = latency->sizes[i]) {
        int end = count < batch->count ? batch->slots[count] : batch->end;
        int padded = batch->first + latency_padded(latency, count);
        if (padded <= end) {
            int last = batch->slots[count - 1] + 1;
            batch->end = padded > last ? padded : last;
            batch->count = batch->taken = count;
            return true;
        }
        do
            i--;
        while (i >= 0 && latency->sizes[i] >= count);
        if (i < 0)
            return false;
    }
}

/* Returns the oldest closed buffer from which the lane can take images (no slot is being written),
 * and sets *ret to these images. NULL if there is none. */
static struct buffer *find_batch(const struct batcher *batcher, int lane, struct batch *ret)
{
    struct buffer *oldest = NULL;
    struct batch found = {.lane = lane};
    for (int i = 0; batcher->counts.buffers[BUFFER_CLOSED] > 0 && i < batcher->config.buffers;
         i++) {
        struct buffer *buffer = &batcher->buffers[i];
        if (buffer->state != BUFFER_CLOSED || buffer->writing > 0 ||
            (oldest && buffer->order > oldest->order))
            continue;
        find_ready(batcher, buffer, &found);
        if (!cut_batch(batcher, &found))
            continue;
        oldest = buffer;
        found.buffer = i;
        *ret = found;
    }
    return oldest;
}

bool batcher_can_take(const struct batcher *batcher)
{
    if (batcher->counts.idle_lanes == 0)
        return false;
    for (int i = 0; batcher->counts.buffers[BUFFER_CLOSED] > 0 && i < batcher->config.buffers; i++)
        if (batcher->buffers[i].state == BUFFER_CLOSED && batcher->buffers[i].writing == 0)
            return true;
    return batcher_should_close(batcher) != BATCH_OPEN &&
           batcher->buffers[batcher->forming].writing == 0;
}

/* Learns from the difference between the time predicted at admission and the time until `end`, when
 * the pass is expected to end. */
static void learn(struct batcher *batcher, const struct batch_item *item, int64_t end)
{
    if (item->predicted == 0)
        return;
    double error = (double)(end - item->admitted) - (double)(item->predicted - item->margin);
    double surprise = error - batcher->error;
    batcher->error += LEARNING_WEIGHT * surprise;
    batcher->spread += LEARNING_WEIGHT * (fabs(surprise) - batcher->spread);
}

/* Takes images from the oldest closed buffer. Returns false if there are none. */
static bool take(struct batcher *batcher, int index, int64_t now, struct batch *ret)
{
    struct lane_state *lane = &batcher->lanes[index];
    struct buffer *buffer = find_batch(batcher, index, ret);
    if (!buffer)
        return false;
    ret->reason = buffer->reason;
    ret->is_first = !buffer->is_taken;
    buffer->is_taken = true;
    for (int i = 0; i < ret->count; i++)
        ret->items[i] = buffer->slots[ret->slots[i]].item;
    for (int slot = ret->first; slot < ret->end && slot < batcher->config.max_batch; slot++)
        buffer->slots[slot].state = SLOT_RUNNING;
    lane->held_count++;
    const int64_t free = lane->busy_until > now ? lane->busy_until : now;
    lane->busy_until = free + latency_run(&lane->latency, ret->count);
    learn(batcher, buffer->slots[ret->slots[0]].item, lane->busy_until);
    set_idle(batcher, lane, false);
    buffer->micro_batches++;
    buffer->ready -= ret->count;
    if (buffer->ready == 0)
        set_state(batcher, buffer, BUFFER_RUNNING);
    batcher->counts.running += (size_t)ret->count;
    batcher->counts.slots -= (size_t)ret->count;
    return true;
}

bool batcher_take(struct batcher *batcher, int index, int64_t now, struct batch *ret)
{
    close_if_due(batcher);
    return batcher->lanes[index].idle && take(batcher, index, now, ret);
}

bool batcher_fills_lanes(const struct batcher *batcher)
{
    size_t streams = 0;
    for (int i = 0; i < batcher->config.lanes; i++)
        streams += (size_t)batcher->lanes[i].latency.streams;
    return batcher->counts.running + batcher->counts.slots >= streams;
}

/* True if no batch is closed and the forming batch has images that the lane may take. */
static bool may_close_ahead(const struct batcher *batcher, enum ahead ahead)
{
    if (ahead == AHEAD_CLOSED || batcher->counts.buffers[BUFFER_CLOSED] > 0 || batcher->forming < 0)
        return false;
    const struct buffer *forming = &batcher->buffers[batcher->forming];
    return forming->ready > 0 && (forming->writing == 0 || ahead == AHEAD_BESIDE);
}

bool batcher_take_ahead(struct batcher *batcher, int index, enum ahead ahead, int64_t now,
                        struct batch *ret)
{
    const struct lane_state *lane = &batcher->lanes[index];
    if (!lane->works || lane->held_count == 0 || lane->held_count >= batcher->config.depth ||
        a_lane_is_free(batcher) || (ahead == AHEAD_BESIDE && !batcher_fills_lanes(batcher)))
        return false;
    if (may_close_ahead(batcher, ahead))
        close_forming(batcher, BATCH_IDLE_DEVICE);
    return take(batcher, index, now, ret);
}

bool batcher_has_ready(const struct batcher *batcher)
{
    if (batcher->forming >= 0 && batcher->buffers[batcher->forming].ready > 0)
        return true;
    for (int i = 0; batcher->counts.buffers[BUFFER_CLOSED] > 0 && i < batcher->config.buffers; i++)
        if (batcher->buffers[i].state == BUFFER_CLOSED && batcher->buffers[i].ready > 0)
            return true;
    return false;
}

void batcher_release(struct batcher *batcher, const struct batch *batch, bool gives_back)
{
    struct lane_state *lane = &batcher->lanes[batch->lane];
    struct buffer *buffer = &batcher->buffers[batch->buffer];
    assert(lane->held_count > 0 && buffer->micro_batches > 0);
    for (int slot = batch->first; slot < batch->end && slot < batcher->config.max_batch; slot++)
        buffer->slots[slot].state = SLOT_FREE;
    if (--lane->held_count == 0)
        lane->busy_until = 0;
    batcher->counts.running -= (size_t)batch->taken;
    if (--buffer->micro_batches == 0 && buffer->state == BUFFER_RUNNING)
        set_state(batcher, buffer, BUFFER_FREE);
    if (gives_back && batch->count > 0) {
        for (int i = 0; i < batch->count; i++)
            buffer->slots[batch->slots[i]] = (struct buffer_slot){SLOT_READY, batch->items[i]};
        set_state(batcher, buffer, BUFFER_CLOSED);
        buffer->order = --batcher->first_order;
        buffer->ready += batch->count;
        batcher->counts.slots += (size_t)batch->count;
    } else {
        const double share = lane->latency.streams > 0 ? STREAM_WAIT_SHARE : WAIT_SHARE;
        batcher->early = fmax(batcher->early - share, 0);
        update_full(batcher);
    }
    close_if_due(batcher);
}

/* --- numbers --- */

int64_t batcher_shortest_run(const struct batcher *batcher)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < batcher->config.lanes; i++) {
        int64_t run = latency_run(&batcher->lanes[i].latency, 1);
        least = run < least ? run : least;
    }
    return (int64_t)(LATE_FRACTION * (double)least);
}

/* Sets the members of *ret that depend on the working lanes. The durations of passes are those of
 * the lane that is free first. */
static void load_of_lanes(const struct batcher *batcher, int64_t now, struct model_load *ret)
{
    const struct lane_state *soonest = NULL;
    int64_t least = INT64_MAX;
    for (int i = 0; i < batcher->config.lanes; i++) {
        const struct lane_state *lane = &batcher->lanes[i];
        if (!lane->works || !lane->latency.is_known)
            continue;
        int64_t free = lane->busy_until > now ? lane->busy_until - now : 0;
        ret->rate += latency_rate(&lane->latency);
        if (free < least) {
            least = free;
            soonest = lane;
        }
    }
    if (!soonest)
        return;
    const struct latency *latency = &soonest->latency;
    ret->lane_free = least;
    ret->max_batch = latency->best;
    ret->batch = latency_run(latency, latency->best);
    ret->single = latency_run(latency, 1);
    ret->single_floor = (int64_t)latency->floor;
}

void batcher_load(const struct batcher *batcher, uint64_t client, int priority, int64_t now,
                  struct model_load *ret)
{
    size_t ahead = queue_ahead(&batcher->queue, client, priority);
    *ret =
        (struct model_load){.images = batcher->counts.admitted,
                            .bytes = batcher->queue.bytes,
                            .of_client = client ? queue_of_client(&batcher->queue, client) : 0,
                            .before_prepare = batcher->counts.preparing + ahead,
                            .before_run = batcher->counts.slots + batcher->counts.preparing + ahead,
                            .prepare = (int64_t)batcher->prepare_ns,
                            .workers = batcher->config.workers,
                            .max_batch = batcher->config.max_batch,
                            .arrivals = recent_arrivals(batcher, now) / ARRIVALS_TAU_NS,
                            .margin = margin_of(batcher)};
    load_of_lanes(batcher, now, ret);
}

void batcher_answered(struct batcher *batcher, size_t images)
{
    assert(images <= batcher->counts.admitted);
    batcher->counts.admitted -= images;
}

struct batcher_counts batcher_counts(const struct batcher *batcher)
{
    struct batcher_counts counts = batcher->counts;
    counts.queued = batcher->queue.count;
    counts.large = batcher->queue.large;
    counts.bytes = batcher->queue.bytes;
    return counts;
}

int batch_compact(struct batch *batch, struct batch_move *moves)
{
    /* Move images from the end into the gaps before slot batch->first + batch->count, one image per
     * gap. The rest stay in place. */
    struct batch_item *items[BATCHER_MAX_BATCH];
    int moved = 0, next = 0, last = batch->count - 1;
    for (int i = 0; i < batch->count; i++) {
        int slot = batch->first + i;
        if (next <= last && batch->slots[next] == slot) {
            items[i] = batch->items[next++];
        } else {
            moves[moved++] = (struct batch_move){.from = batch->slots[last], .to = slot};
            items[i] = batch->items[last--];
        }
    }
    for (int i = 0; i < batch->count; i++) {
        batch->items[i] = items[i];
        batch->slots[i] = batch->first + i;
    }
    return moved;
}
