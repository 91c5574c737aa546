/* The rule of other servers' dynamic batchers: a fixed delay. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/simulate/simulate.h"

struct pass {
    bool runs;
    double until;
    size_t images[256];
    int count;
};

struct run {
    const struct world *world;
    double delay;
    size_t max_queue;
    size_t *decoding, *ready; /* rings as long as all arrivals: never around */
    size_t decoding_head, decoding_tail, ready_head, ready_tail;
    double *ready_since, *answers;
    size_t arrived, answered, inside;
    struct worker {
        bool works;
        size_t image;
        double until;
    } workers[MAX_WORKERS];
    struct pass lanes[MAX_DEVICES];
    int worker_count;
    uint64_t seed;
    double now;
    struct outcome *outcome;
};

static void start_decodes(struct run *run)
{
    for (int i = 0; i < run->worker_count && run->decoding_head < run->decoding_tail; i++) {
        struct worker *worker = &run->workers[i];
        if (worker->works)
            continue;
        worker->works = true;
        worker->image = run->decoding[run->decoding_head++];
        worker->until = run->now + run->world->machine->decode_ms;
    }
}

static bool may_start(const struct run *run)
{
    size_t waiting = run->ready_tail - run->ready_head;
    if (waiting == 0)
        return false;
    return waiting >= (size_t)machine_max_batch(run->world->machine) ||
           run->now >= run->ready_since[run->ready_head] + run->delay;
}

static void start_passes(struct run *run)
{
    for (int i = 0; i < run->world->devices; i++) {
        struct pass *lane = &run->lanes[i];
        if (lane->runs || !may_start(run))
            continue;
        int max_batch = machine_max_batch(run->world->machine);
        for (lane->count = 0; lane->count < max_batch && run->ready_head < run->ready_tail;)
            lane->images[lane->count++] = run->ready[run->ready_head++];
        lane->runs = true;
        lane->until = run->now + noisy_pass(run->world->machine, lane->count, &run->seed);
    }
}

static void end_pass(struct run *run, struct pass *lane)
{
    for (int k = 0; k < lane->count; k++) {
        double took = run->now - run->world->arrivals[lane->images[k]];
        run->answers[run->answered++] = took;
        if (took <= run->world->machine->deadline_ms)
            run->outcome->on_time++;
        else
            run->outcome->late++;
    }
    run->inside -= (size_t)lane->count;
    lane->runs = false;
}

static double next_event(const struct run *run)
{
    double next = run->arrived < run->world->count ? run->world->arrivals[run->arrived] : INFINITY;
    bool is_idle = false;
    for (int i = 0; i < run->worker_count; i++)
        if (run->workers[i].works)
            next = fmin(next, run->workers[i].until);
    for (int i = 0; i < run->world->devices; i++) {
        if (run->lanes[i].runs)
            next = fmin(next, run->lanes[i].until);
        else
            is_idle = true;
    }
    if (is_idle && run->ready_head < run->ready_tail)
        next = fmin(next, run->ready_since[run->ready_head] + run->delay);
    return next;
}

static void arrive(struct run *run)
{
    size_t image = run->arrived++;
    if (run->inside >= run->max_queue) {
        run->outcome->refused++;
        return;
    }
    run->inside++;
    run->decoding[run->decoding_tail++] = image;
}

static void go(struct run *run)
{
    for (;;) {
        start_decodes(run);
        start_passes(run);
        double next = next_event(run);
        if (next == INFINITY)
            return;
        run->now = next;
        while (run->arrived < run->world->count && run->world->arrivals[run->arrived] <= run->now)
            arrive(run);
        for (int i = 0; i < run->worker_count; i++) {
            struct worker *worker = &run->workers[i];
            if (!worker->works || worker->until > run->now)
                continue;
            worker->works = false;
            run->ready_since[run->ready_tail] = run->now;
            run->ready[run->ready_tail++] = worker->image;
        }
        for (int i = 0; i < run->world->devices; i++)
            if (run->lanes[i].runs && run->lanes[i].until <= run->now)
                end_pass(run, &run->lanes[i]);
    }
}

void simulate_fixed_delay(const struct world *world, double delay_ms, size_t max_queue,
                          struct outcome *ret)
{
    struct run run = {.world = world,
                      .delay = delay_ms,
                      .max_queue = max_queue,
                      .decoding = calloc(world->count, sizeof *run.decoding),
                      .ready = calloc(world->count, sizeof *run.ready),
                      .ready_since = calloc(world->count, sizeof *run.ready_since),
                      .answers = calloc(world->count, sizeof *run.answers),
                      .worker_count = world->machine->workers_a_device * world->devices,
                      .seed = world->seed,
                      .outcome = ret};
    *ret = (struct outcome){0};
    if (!run.decoding || !run.ready || !run.ready_since || !run.answers) {
        fprintf(stderr, "out of memory\n");
        exit(2);
    }
    go(&run);
    fill_percentiles(run.answers, run.answered, ret);
    free(run.decoding);
    free(run.ready);
    free(run.ready_since);
    free(run.answers);
}
