/* What a batcher keeps; private to batcher.c and batching_delay.c. Its caller's lock guards it. */
#pragma once

#include "server/schedule/policy/batcher.h"

enum slot_state { SLOT_FREE, SLOT_WRITING, SLOT_READY, SLOT_RUNNING };
enum buffer_state { BUFFER_FREE, BUFFER_FORMING, BUFFER_CLOSED, BUFFER_RUNNING };

struct buffer_slot {
    enum slot_state state;
    struct batch_item *item;
    void *owner;
};

struct buffer {
    enum buffer_state state;
    enum batch_close reason;
    int writing, ready; /* slots in these states */
    int micro_batches;  /* that lanes have taken */
    bool is_taken;      /* a lane has had one */
    int64_t opened, first_ready, closed;
    int64_t earliest; /* deadline of its images, or earlier */
    int64_t order;    /* the least closed one is taken first */
    struct buffer_slot *slots;
};

/* A micro-batch that a lane has taken: slots first … end - 1 of the buffer. */
struct lane_batch {
    int buffer, first, end, images;
};

struct lane_state {
    bool works, idle;
    struct lane_batch held[BATCHER_MAX_DEPTH]; /* the oldest first */
    int held_count;
    int64_t busy_until; /* predicted; 0 when it is not busy */
    struct latency latency;
};

struct batcher {
    struct batcher_config config;
    struct buffer *buffers;
    struct buffer_slot *slots; /* of all buffers */
    struct lane_state *lanes;
    int forming; /* index, or -1 */
    int free_buffers, closed_buffers, running_buffers;
    int idle_lanes;
    bool draining;
    uint64_t answered;
    size_t admitted, granted, preparing;
    size_t larges;               /* large images that are being prepared */
    size_t slots_taken, running; /* images in forming and closed buffers, in lanes */
    int64_t next_order, first_order;
    struct queue queue;
    struct arrivals arrivals;
    double prepare_ns;    /* from claim to commit, lately */
    double error, spread; /* of predictions, nanoseconds: mean and mean deviation */
};
