#include "server/schedule/batcher.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/size.h"

enum slot_state { SLOT_FREE, SLOT_WRITING, SLOT_READY };
enum buffer_state { BUFFER_FREE, BUFFER_FORMING, BUFFER_CLOSED, BUFFER_RUNNING };

struct slot {
    enum slot_state state;
    void *item;
};

struct buffer {
    enum buffer_state state;
    enum batch_close reason;
    int writing, ready; /* slots in these states; the rest is free or abandoned */
    int64_t opened, first_ready, closed;
    uint64_t order; /* of closing: the oldest closed batch is taken first */
    struct slot *slots;
};

struct batcher {
    struct batcher_config config;
    struct buffer *buffers;
    struct slot *slots; /* of all buffers */
    int forming;        /* index, or -1 */
    int free_buffers, closed_buffers, running_buffers;
    int idle_lanes;
    bool draining;
    size_t admitted, granted, preparing;
    size_t slots_taken, running; /* images in forming and closed, in running buffers */
    uint64_t next_order;
    /* Images waiting to be claimed: a ring that max_images bounds. */
    void **queue;
    size_t queue_start, queued;
};

const char *batch_close_name(enum batch_close reason)
{
    static const char *const names[BATCH_CLOSE_REASONS] = {
        [BATCH_OPEN] = "open",
        [BATCH_FULL] = "full",
        [BATCH_IDLE_DEVICE] = "idle_device",
        [BATCH_DRAIN] = "drain",
    };
    return names[reason];
}

struct batcher *batcher_create(const struct batcher_config *config)
{
    assert(config->max_batch >= 1 && config->max_batch <= BATCHER_MAX_BATCH);
    assert(config->lanes >= 1 && config->buffers >= config->lanes + 2);
    assert(config->max_images >= 1);
    struct batcher *batcher = calloc(1, sizeof *batcher);
    if (!batcher)
        return NULL;
    batcher->config = *config;
    batcher->forming = -1;
    batcher->free_buffers = config->buffers;
    size_t slots;
    if (size_mul((size_t)config->buffers, (size_t)config->max_batch, &slots))
        batcher->slots = alloc_array(slots, sizeof *batcher->slots);
    batcher->buffers = alloc_array((size_t)config->buffers, sizeof *batcher->buffers);
    batcher->queue = alloc_array(config->max_images, sizeof *batcher->queue);
    if (!batcher->slots || !batcher->buffers || !batcher->queue) {
        batcher_free(batcher);
        return NULL;
    }
    for (int i = 0; i < config->buffers; i++)
        batcher->buffers[i].slots = batcher->slots + (size_t)i * (size_t)config->max_batch;
    return batcher;
}

void batcher_free(struct batcher *batcher)
{
    if (!batcher)
        return;
    free(batcher->queue);
    free(batcher->buffers);
    free(batcher->slots);
    free(batcher);
}

/* Slots that are sure to be there for tickets, whatever closes early.
 *
 * Free are the rest of the forming buffer and all free buffers. Slots get lost only when a batch
 * closes before it is full: at most max_batch - 1 each time, and only for a lane that has no batch
 * yet, running or closed for it. Such a lane has to finish a batch, which frees a whole buffer,
 * before it can cost slots again. So with `hungry` lanes at most hungry * (max_batch - 1) slots go
 * before others come back, and no event makes the room smaller than the tickets:
 *
 *     reserve         room - 1, tickets - 1
 *     close early     the loss was counted under hungry, which falls by 1
 *     close full      nothing lost
 *     done            hungry + 1 (at most -(max_batch - 1)), a free buffer (+ max_batch)
 *     abandon         never takes a slot away; an emptied closed buffer counts as done does */
static size_t room(const struct batcher *batcher)
{
    size_t max_batch = (size_t)batcher->config.max_batch;
    size_t slots = (size_t)batcher->free_buffers * max_batch;
    if (batcher->forming >= 0) {
        const struct buffer *forming = &batcher->buffers[batcher->forming];
        slots += max_batch - (size_t)(forming->writing + forming->ready);
    }
    int hungry = batcher->config.lanes - batcher->running_buffers - batcher->closed_buffers;
    size_t loss = hungry > 0 ? (size_t)hungry * (max_batch - 1) : 0;
    return slots > loss ? slots - loss : 0;
}

static size_t tickets(const struct batcher *batcher)
{
    return batcher->granted + batcher->preparing;
}

void batcher_admit(struct batcher *batcher, void *item)
{
    size_t capacity = batcher->config.max_images;
    assert(batcher->admitted < capacity && batcher->queued < capacity);
    batcher->queue[(batcher->queue_start + batcher->queued) % capacity] = item;
    batcher->queued++;
    batcher->admitted++;
}

size_t batcher_grant(struct batcher *batcher)
{
    size_t space = room(batcher);
    assert(tickets(batcher) <= space);
    space -= tickets(batcher);
    size_t wanted = batcher->queued > batcher->granted ? batcher->queued - batcher->granted : 0;
    size_t grant = wanted < space ? wanted : space;
    batcher->granted += grant;
    return grant;
}

void *batcher_cut(struct batcher *batcher)
{
    if (batcher->queued == 0)
        return NULL;
    void *item = batcher->queue[batcher->queue_start];
    batcher->queue_start = (batcher->queue_start + 1) % batcher->config.max_images;
    batcher->queued--;
    return item;
}

void *batcher_claim(struct batcher *batcher)
{
    assert(batcher->granted > 0);
    batcher->granted--;
    void *item = batcher_cut(batcher);
    if (item)
        batcher->preparing++;
    return item;
}

void batcher_give_up(struct batcher *batcher)
{
    assert(batcher->preparing > 0);
    batcher->preparing--;
}

/* Takes the forming buffer out of reach of reserve. */
static void close_forming(struct batcher *batcher, enum batch_close reason, int64_t now)
{
    struct buffer *buffer = &batcher->buffers[batcher->forming];
    buffer->state = BUFFER_CLOSED;
    buffer->reason = reason;
    buffer->closed = now;
    buffer->order = batcher->next_order++;
    batcher->forming = -1;
    batcher->closed_buffers++;
}

static void apply_hold_rule(struct batcher *batcher, int64_t now)
{
    enum batch_close reason = batcher_should_close(batcher, now);
    if (reason != BATCH_OPEN)
        close_forming(batcher, reason, now);
}

static void open_buffer(struct batcher *batcher, int64_t now)
{
    int i = 0;
    while (batcher->buffers[i].state != BUFFER_FREE)
        i++;
    struct buffer *buffer = &batcher->buffers[i];
    *buffer = (struct buffer){.state = BUFFER_FORMING, .opened = now, .slots = buffer->slots};
    for (int slot = 0; slot < batcher->config.max_batch; slot++)
        buffer->slots[slot] = (struct slot){SLOT_FREE, NULL};
    batcher->forming = i;
    batcher->free_buffers--;
}

struct batch_slot batcher_reserve(struct batcher *batcher, void *item, int64_t now)
{
    assert(batcher->preparing > 0 && room(batcher) > 0);
    batcher->preparing--;
    if (batcher->forming < 0)
        open_buffer(batcher, now);
    struct buffer *buffer = &batcher->buffers[batcher->forming];
    struct batch_slot place = {.buffer = batcher->forming, .slot = 0};
    while (buffer->slots[place.slot].state != SLOT_FREE)
        place.slot++;
    buffer->slots[place.slot] = (struct slot){SLOT_WRITING, item};
    buffer->writing++;
    batcher->slots_taken++;
    apply_hold_rule(batcher, now);
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

void batcher_commit(struct batcher *batcher, struct batch_slot place, int64_t now)
{
    struct buffer *buffer = written_buffer(batcher, place);
    buffer->slots[place.slot].state = SLOT_READY;
    if (buffer->ready++ == 0)
        buffer->first_ready = now;
    apply_hold_rule(batcher, now);
}

void batcher_abandon(struct batcher *batcher, struct batch_slot place, int64_t now)
{
    struct buffer *buffer = written_buffer(batcher, place);
    buffer->slots[place.slot] = (struct slot){SLOT_FREE, NULL};
    batcher->slots_taken--;
    if (buffer->writing + buffer->ready == 0) {
        if (buffer->state == BUFFER_FORMING)
            batcher->forming = -1;
        else
            batcher->closed_buffers--;
        buffer->state = BUFFER_FREE;
        batcher->free_buffers++;
    }
    /* An emptied closed buffer may have been meant for a lane that is idle. */
    apply_hold_rule(batcher, now);
}

void batcher_lane_idle(struct batcher *batcher, int64_t now)
{
    batcher->idle_lanes++;
    assert(batcher->idle_lanes + batcher->running_buffers <= batcher->config.lanes);
    apply_hold_rule(batcher, now);
}

/* What the hold rule looks at when time does not matter: an idle lane that nothing closed is meant
 * for, and something to run. */
static bool lane_wants_forming(const struct batcher *batcher)
{
    return batcher->forming >= 0 && batcher->idle_lanes > batcher->closed_buffers &&
           batcher->buffers[batcher->forming].ready > 0;
}

static int64_t hold_end(const struct batcher *batcher)
{
    int64_t first = batcher->buffers[batcher->forming].first_ready, end;
    return __builtin_add_overflow(first, batcher->config.hold_ns, &end) ? INT64_MAX : end;
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
    return now >= hold_end(batcher) ? BATCH_IDLE_DEVICE : BATCH_OPEN;
}

int64_t batcher_wake_at(const struct batcher *batcher)
{
    return lane_wants_forming(batcher) ? hold_end(batcher) : INT64_MAX;
}

/* The oldest closed buffer that nobody writes to; NULL when there is none. */
static struct buffer *oldest_filled(const struct batcher *batcher)
{
    struct buffer *oldest = NULL;
    for (int i = 0; batcher->closed_buffers > 0 && i < batcher->config.buffers; i++) {
        struct buffer *buffer = &batcher->buffers[i];
        if (buffer->state == BUFFER_CLOSED && buffer->writing == 0 &&
            (!oldest || buffer->order < oldest->order))
            oldest = buffer;
    }
    return oldest;
}

bool batcher_can_take(const struct batcher *batcher, int64_t now)
{
    if (batcher->idle_lanes == 0)
        return false;
    if (oldest_filled(batcher))
        return true;
    return batcher_should_close(batcher, now) != BATCH_OPEN &&
           batcher->buffers[batcher->forming].writing == 0;
}

bool batcher_take(struct batcher *batcher, int64_t now, struct batch *ret)
{
    assert(batcher->idle_lanes > 0);
    apply_hold_rule(batcher, now);
    struct buffer *buffer = oldest_filled(batcher);
    if (!buffer)
        return false;
    buffer->state = BUFFER_RUNNING;
    batcher->closed_buffers--;
    batcher->running_buffers++;
    batcher->idle_lanes--;
    batcher->running += (size_t)buffer->ready;
    batcher->slots_taken -= (size_t)buffer->ready;

    ret->buffer = (int)(buffer - batcher->buffers);
    ret->reason = buffer->reason;
    ret->opened = buffer->opened;
    ret->closed = buffer->closed;
    ret->count = 0;
    for (int slot = 0; slot < batcher->config.max_batch; slot++) {
        if (buffer->slots[slot].state != SLOT_READY)
            continue;
        ret->slots[ret->count] = slot;
        ret->items[ret->count] = buffer->slots[slot].item;
        ret->count++;
    }
    assert(ret->count == buffer->ready);
    return true;
}

void batcher_done(struct batcher *batcher, int index)
{
    struct buffer *buffer = &batcher->buffers[index];
    assert(buffer->state == BUFFER_RUNNING);
    buffer->state = BUFFER_FREE;
    batcher->running -= (size_t)buffer->ready;
    batcher->running_buffers--;
    batcher->free_buffers++;
}

void batcher_answered(struct batcher *batcher, size_t images)
{
    assert(images <= batcher->admitted);
    batcher->admitted -= images;
}

void batcher_drain(struct batcher *batcher, int64_t now)
{
    batcher->draining = true;
    apply_hold_rule(batcher, now);
}

struct batcher_counts batcher_counts(const struct batcher *batcher)
{
    return (struct batcher_counts){
        .admitted = batcher->admitted,
        .queued = batcher->queued,
        .granted = batcher->granted,
        .preparing = batcher->preparing,
        .slots = batcher->slots_taken,
        .running = batcher->running,
        .idle_lanes = batcher->idle_lanes,
        .free_buffers = batcher->free_buffers,
        .closed_buffers = batcher->closed_buffers,
        .running_buffers = batcher->running_buffers,
    };
}

int batch_compact(struct batch *batch, struct batch_move *moves)
{
    /* The images in slots beyond `count` are exactly as many as the gaps below it, so each gap is
     * filled from the end, and what is not moved stays where it is. */
    void *items[BATCHER_MAX_BATCH];
    int moved = 0, next = 0, last = batch->count - 1;
    for (int slot = 0; slot < batch->count; slot++) {
        if (next <= last && batch->slots[next] == slot) {
            items[slot] = batch->items[next++];
        } else {
            moves[moved++] = (struct batch_move){.from = batch->slots[last], .to = slot};
            items[slot] = batch->items[last--];
        }
    }
    for (int slot = 0; slot < batch->count; slot++) {
        batch->items[slot] = items[slot];
        batch->slots[slot] = slot;
    }
    return moved;
}
