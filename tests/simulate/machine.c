/* The simulated machine: how long its passes take, and the most that it can do. */
#include <math.h>
#include <stdlib.h>

#include "tests/simulate/simulate.h"

double next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (double)((*state * 0x2545F4914F6CDD1Du) >> 11) / 9007199254740992.0;
}

double machine_pass(const struct machine *machine, int images)
{
    int i = 0;
    while (machine->sizes[i] < images)
        i++;
    return machine->milliseconds[i];
}

int machine_max_batch(const struct machine *machine)
{
    return machine->sizes[machine->count - 1];
}

double noisy_pass(const struct machine *machine, int images, uint64_t *seed)
{
    /* The sum of twelve uniform numbers is nearly normal. */
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += next_random(seed);
    return machine_pass(machine, images) * fmax(0.9, 1 + 0.03 * sum);
}

double machine_capacity(const struct machine *machine, int devices)
{
    double best = 0;
    for (int i = 0; i < machine->count; i++)
        if (machine->milliseconds[i] + machine->decode_ms <= machine->deadline_ms)
            best = fmax(best, machine->sizes[i] / machine->milliseconds[i]);
    double decode = machine->workers_a_device / machine->decode_ms;
    return devices * fmin(best, decode);
}

size_t simulate_bound(const struct world *world)
{
    const struct machine *machine = world->machine;
    /* Noise is taken at its mean; a fluid of images flows at the best rate, each in its window.
     * All windows are equally long, so taking an image whenever it fits loses nothing: leaving out
     * the newest is never worse than leaving out another. */
    double each = 1 / machine_capacity(machine, world->devices);
    double first = machine->decode_ms + machine->milliseconds[0], busy_until = 0;
    size_t on_time = 0;
    if (first > machine->deadline_ms)
        return 0;
    for (size_t i = 0; i < world->count; i++) {
        double start = fmax(busy_until, world->arrivals[i] + machine->decode_ms);
        if (start + each > world->arrivals[i] + machine->deadline_ms)
            continue;
        busy_until = start + each;
        on_time++;
    }
    return on_time;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void fill_percentiles(double *answers, size_t count, struct outcome *ret)
{
    qsort(answers, count, sizeof *answers, compare);
    ret->p50_ms = count ? answers[count / 2] : 0;
    ret->p99_ms = count ? answers[(size_t)((double)count * 0.99)] : 0;
}
