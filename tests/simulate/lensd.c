/* The real scheduler in simulated time: what worker.c and lane.c do around it, as events. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/runtime/session.h"
#include "server/schedule/policy/batcher.h"
#include "tests/simulate/simulate.h"

#define MS      1e6
#define CLIENTS 16
#define FIRST   1

struct image {
    struct batch_item item;
    double arrived; /* milliseconds */
    int64_t deadline;
};

struct worker {
    struct image *image; /* NULL: idle */
    double until;
};

struct lane {
    bool runs;
    double started, until;
    struct batch batch;
};

struct run {
    const struct world *world;
    struct batcher *batcher;
    struct admission admission;
    struct image *images;
    double *answers;
    size_t arrived, answered;
    struct worker workers[MAX_WORKERS];
    struct lane lanes[MAX_DEVICES];
    int worker_count;
    uint64_t seed;
    double now; /* milliseconds */
    struct outcome *outcome;
};

static int64_t clock_of(const struct run *run)
{
    return (int64_t)(run->now * MS);
}

static bool is_late(const struct run *run, const struct image *image)
{
    return clock_of(run) + batcher_shortest_run(run->batcher) >= image->deadline;
}

static void arrive(struct run *run, uint64_t client)
{
    struct image *image = &run->images[run->arrived++];
    int64_t now = clock_of(run);
    image->arrived = run->now;
    image->deadline = now + (int64_t)(run->world->machine->deadline_ms * MS);
    image->item = (struct batch_item){
        .owner = image,
        .client = client,
        .bytes = 100000,
    };
    struct model_load load;
    int64_t predicted = 0;
    struct admission_request request = {
        .images = 1, .bytes = 100000, .time_left = image->deadline - now, .model = "m"};
    batcher_load(run->batcher, image->item.client, 0, now, &load);
    if (admission_check(&run->admission, &load, &request, &predicted, NULL) != STATUS_OK)
        run->outcome->refused++;
    else
        batcher_admit(run->batcher, &image->item, predicted, now);
}

static void start_decodes(struct run *run)
{
    batcher_grant(run->batcher);
    for (int i = 0; i < run->worker_count; i++) {
        struct worker *worker = &run->workers[i];
        while (!worker->image && batcher_counts(run->batcher).granted > 0) {
            struct image *image = batcher_claim(run->batcher, true, clock_of(run));
            if (!image)
                continue;
            if (is_late(run, image)) {
                batcher_drop(run->batcher);
                batcher_answered(run->batcher, 1);
                run->outcome->dropped++;
                continue;
            }
            worker->image = image;
            worker->until = run->now + run->world->machine->decode_ms;
        }
    }
}

static void end_decode(struct run *run, struct worker *worker)
{
    struct image *image = worker->image;
    int64_t now = clock_of(run);
    worker->image = NULL;
    if (is_late(run, image)) {
        batcher_drop(run->batcher);
        batcher_answered(run->batcher, 1);
        run->outcome->dropped++;
        return;
    }
    struct batch_slot slot = batcher_reserve(run->batcher, &image->item);
    batcher_commit(run->batcher, slot, now);
}

static void drop_late(struct run *run, struct batch *batch)
{
    int kept = 0;
    for (int i = 0; i < batch->count; i++) {
        if (is_late(run, batch->items[i]->owner)) {
            run->outcome->dropped++;
            batcher_answered(run->batcher, 1);
            continue;
        }
        batch->slots[kept] = batch->slots[i];
        batch->items[kept++] = batch->items[i];
    }
    batch->count = kept;
}

static void start_passes(struct run *run)
{
    for (int i = 0; i < run->world->devices; i++) {
        struct lane *lane = &run->lanes[i];
        while (!lane->runs && batcher_take(run->batcher, i, clock_of(run), &lane->batch)) {
            drop_late(run, &lane->batch);
            if (lane->batch.count == 0) {
                batcher_release(run->batcher, &run->lanes[i].batch, false);
                batcher_lane_idle(run->batcher, i);
                continue;
            }
            lane->runs = true;
            lane->started = run->now;
            lane->until = run->now + noisy_pass(run->world->machine, lane->batch.count, &run->seed);
        }
    }
}

static void end_pass(struct run *run, int i)
{
    struct lane *lane = &run->lanes[i];
    double deadline = run->world->machine->deadline_ms;
    for (int k = 0; k < lane->batch.count; k++) {
        const struct image *image = lane->batch.items[k]->owner;
        double took = run->now - image->arrived;
        if (run->world->connections == 0 || image->item.client == FIRST)
            run->answers[run->answered++] = took;
        if (took <= deadline)
            run->outcome->on_time++;
        else
            run->outcome->late++;
    }
    lane->runs = false;
    for (int k = 0; k < lane->batch.count && run->world->connections > 0; k++)
        if (run->arrived < run->world->count)
            arrive(run, lane->batch.items[k]->client);
    latency_observe(batcher_latency(run->batcher, i), lane->batch.count,
                    (int64_t)((run->now - lane->started) * MS));
    batcher_release(run->batcher, &run->lanes[i].batch, false);
    batcher_answered(run->batcher, (size_t)lane->batch.count);
    batcher_lane_idle(run->batcher, i);
}

static double next_event(const struct run *run)
{
    double next = INFINITY;
    if (run->arrived < run->world->count && run->world->connections == 0)
        next = run->world->arrivals[run->arrived];
    for (int i = 0; i < run->worker_count; i++)
        if (run->workers[i].image)
            next = fmin(next, run->workers[i].until);
    for (int i = 0; i < run->world->devices; i++)
        if (run->lanes[i].runs)
            next = fmin(next, run->lanes[i].until);
    return next;
}

static void go(struct run *run)
{
    for (;;) {
        start_passes(run);
        start_decodes(run);
        double next = next_event(run);
        if (next == INFINITY)
            return;
        run->now = next;
        while (run->world->connections == 0 && run->arrived < run->world->count &&
               run->world->arrivals[run->arrived] <= run->now)
            arrive(run, 1 + (uint64_t)(next_random(&run->seed) * CLIENTS));
        for (int i = 0; i < run->worker_count; i++)
            if (run->workers[i].image && run->workers[i].until <= run->now)
                end_decode(run, &run->workers[i]);
        for (int i = 0; i < run->world->devices; i++)
            if (run->lanes[i].runs && run->lanes[i].until <= run->now)
                end_pass(run, i);
    }
}

void simulate_lensd(const struct world *world, size_t max_queue, struct outcome *ret)
{
    const struct machine *machine = world->machine;
    struct run run = {.world = world,
                      .admission = {.max_images = max_queue},
                      .images = calloc(world->count, sizeof *run.images),
                      .answers = calloc(world->count, sizeof *run.answers),
                      .worker_count = machine->workers_a_device * world->devices,
                      .seed = world->seed,
                      .outcome = ret};
    int max_batch = machine_max_batch(machine);
    int for_workers = (run.worker_count + max_batch - 1) / max_batch;
    *ret = (struct outcome){0};
    run.batcher = batcher_create(&(struct batcher_config){
        .max_batch = max_batch,
        .capacity = max_batch,
        .buffers = world->devices + 1 + for_workers, /* as scheduler.c has them */
        .depth = 1,
        .lanes = world->devices,
        .workers = run.worker_count,
        .max_images = max_queue});
    if (!run.images || !run.answers || !run.batcher) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    struct session_batch batches[SESSION_MAX_BATCHES];
    for (int i = 0; i < machine->count; i++)
        batches[i] = (struct session_batch){machine->sizes[i], machine->milliseconds[i], 0};
    for (int i = 0; i < world->devices; i++) {
        latency_init(batcher_latency(run.batcher, i), batches, (size_t)machine->count);
        batcher_lane_idle(run.batcher, i);
    }
    for (size_t i = 0; i < world->connections; i++)
        arrive(&run, i == 0 ? FIRST : FIRST + 1);
    go(&run);
    ret->rate = (double)(ret->on_time + ret->late) / run.now;
    fill_percentiles(run.answers, run.answered, ret);
    batcher_free(run.batcher);
    free(run.answers);
    free(run.images);
}
