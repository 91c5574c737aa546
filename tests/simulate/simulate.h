/* A discrete-event simulation of serving: arrivals, decode workers, devices with a measured L(b),
 * deadlines. The scheduler in it is the real one (batcher, queue, admission), driven with simulated
 * time; beside it two rules of other servers, and a bound that none can pass.
 *
 *     arrivals ─▶ [admission] ─▶ queue ─▶ workers (decode) ─▶ batches ─▶ devices ─▶ on time?
 *
 * Everything is seeded: one set of parameters gives one outcome on every machine. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8
#define MAX_WORKERS 64

/* What a device takes for a pass, and how images are prepared. */
struct machine {
    const char *name;
    int count, sizes[8];
    double milliseconds[8]; /* L(b) */
    double decode_ms;       /* one image on one worker */
    double deadline_ms;     /* that every request has */
    int workers_a_device;
};

struct world {
    const struct machine *machine;
    int devices;
    const double *arrivals; /* milliseconds, ascending */
    size_t count;
    uint64_t seed; /* of the noise in pass times */
    /* Above 0: images come from that many connections instead, each of which sends its next one
     * when it has an answer. The first is a client; the others are one client together. */
    size_t connections;
};

/* Sums to `count`. */
struct outcome {
    size_t on_time, late, refused,
        dropped;           /* dropped: admitted, but not run, its time being over */
    double p50_ms, p99_ms; /* of those that were answered; with connections: to the first */
    double rate;           /* answers a millisecond */
};

/* lensd: the batcher as it is, with this --max-queue. */
void simulate_lensd(const struct world *world, size_t max_queue, struct outcome *ret);

/* A dynamic batcher with a fixed delay and a queue without end: a device takes a full batch, or
 * what is there when the oldest image has waited `delay_ms`. */
void simulate_fixed_delay(const struct world *world, double delay_ms, size_t max_queue,
                          struct outcome *ret);

/* The most images that any scheduler could have answered in time, told the whole future: a device
 * does no more images a second than its best batch size gives, nobody decodes faster than all
 * workers together, and no image is done before its decode and a pass of one have passed. */
size_t simulate_bound(const struct world *world);

/* Images a millisecond that all devices, or all workers, can do at most. */
double machine_capacity(const struct machine *machine, int devices);

/* L(b) of `images`, padded up. */
double machine_pass(const struct machine *machine, int images);
int machine_max_batch(const struct machine *machine);

/* xorshift64*: 0 <= x < 1. */
double next_random(uint64_t *state);

/* A pass with its noise: 3 % standard deviation, never below nine tenths. */
double noisy_pass(const struct machine *machine, int images, uint64_t *seed);

/* Sorts `answers` milliseconds and fills in the percentiles. */
void fill_percentiles(double *answers, size_t count, struct outcome *ret);
