/* Measures multiply-adds with operands in registers, and with so many independent sums that none
 * waits for the result of another. */
#include "engine/backend/peak.h"

#include "engine/base/clock.h"
#include "engine/base/forkjoin.h"
#include "engine/cpu/peak_probe.h"

enum { STRETCHES = 60 };

struct stretch_of {
    const struct peak_probe *probe;
    long count;
};

static void run_stretch(void *context)
{
    const struct stretch_of *of = context;
    float total = of->probe->run(of->count);
    __asm__ volatile("" ::"m"(total)); /* uses the result, so that the compiler keeps the loops */
}

/* Returns the seconds from the first start to the last end of `count` rounds on all threads. */
static double stretch(const struct peak_probe *probe, int threads, long count)
{
    struct stretch_of of = {probe, count};
    const int64_t start = clock_now();
    forkjoin_run(threads, run_stretch, &of);
    return (double)(clock_now() - start) * 1e-9;
}

struct peak peak_measure(struct device_id device, enum precision precision, int threads)
{
    if (device.kind != DEVICE_CPU)
        return (struct peak){0, ""};
    const struct peak_probe probe = peak_probe_pick(precision);
    if (threads < 1)
        threads = device_cpu_threads();
    long count = 1000;
    double best = stretch(&probe, threads, count);
    while (best < 5e-4 && count < 1L << 30) { /* until the overhead hardly counts */
        count *= 2;
        best = stretch(&probe, threads, count);
    }
    for (int i = 0; i < STRETCHES; i++) {
        const double seconds = stretch(&probe, threads, count);
        best = seconds < best ? seconds : best;
    }
    return (struct peak){probe.flops * (double)count * threads / best * 1e-9, probe.instructions};
}
