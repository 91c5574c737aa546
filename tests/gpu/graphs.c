/* Random graphs on a device against the reference kernels; with --operators graphs of one operator
 * each (tests/unit/operator_graphs.h), with --precision int8 quantized ones
 * (tests/unit/random_quantized.h), and neither may leave a step to the host. Without --count each
 * operator has one.
 *
 *     lensd_graphs [--device cuda:0] [--precision fp32] [--first 1] [--count 100] [--tolerance T]
 *                  [--seconds S] [--no-poison] [--small]
 *                  [--operators] [--off S]
 *
 * Each seed is a graph of operators and shapes drawn by it (tests/unit/random_graph.h), an image
 * size and a batch of 1, 3 or 8 images of fresh numbers. It runs three times: as the first batch,
 * as the one that is recorded and as the recording, in memory that is filled with NaN before each
 * run (not with --no-poison, for a checker that looks for reads of what was never written). Of the
 * candidates of a layer on a GPU, every fourth seed takes those that are quickest, the others each
 * a further one, so that those are checked that no network happens to choose. Differences count
 * relative to the greatest expected number of an output. A graph whose outputs differ by more than
 * the tolerance is judged by its own sensitivity (sensitivity.h): by what the reference's answer
 * moves where every operand is off by as much as its precision allows, in a few trials. Where
 * lensd's CPU backend misses the tolerance, too, it is the graph's fault. Prints "RUN name seed"
 * before each graph, so that a crash or a hang has a name, a line for each that disagrees, and a
 * line of JSON last; ends with 1 when one disagreed, with 3 when the device is broken from one on:
 * a new process may go on with the next seed. After S seconds no further graph is begun. --small:
 * small images and batches only, for a device that is slow. --off: every answer counts as S further
 * off, to see how much is noticed. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/op/interpret.h"
#include "engine/runtime/session.h"
#include "tests/gpu/sensitivity.h"
#include "tests/unit/operator_graphs.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/random_quantized.h"

enum { RUNS = 3, LARGEST = 8, EXIT_BROKEN = 3, TRIALS = 32 };

struct options {
    const char *device;
    enum precision precision;
    long first, count, seconds;
    double tolerance, off;
    bool poison, small, operators, quantized;
};

struct one {
    struct graph *graph;
    struct session *session;
    float *images; /* [LARGEST, height, width, 3] */
    struct tensor *input, *expected[RANDOM_GRAPH_OUTPUTS];
    int64_t height, width;
    int batch;
};

static float *make_images(uint32_t seed, size_t count)
{
    uint32_t state = seed * 2654435761u + 7;
    float *images = alloc_array(count, sizeof *images);
    for (size_t i = 0; images && i < count; i++)
        images[i] = random_unit(&state);
    return images;
}

/* The first `batch` images as the file declares its input. */
static enum status make_input(struct one *one, struct error *err)
{
    const int64_t pixels = one->height * one->width;
    TRY(tensor_create(NULL, DTYPE_F32, &SHAPE(one->batch, 3, one->height, one->width), &one->input,
                      err));
    float *to = one->input->data;
    for (int64_t n = 0; n < one->batch; n++)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t p = 0; p < pixels; p++)
                to[(n * 3 + c) * pixels + p] = one->images[(n * pixels + p) * 3 + c];
    return STATUS_OK;
}

/* LENSD_CUDA_TUNING (engine/cuda/program/tune.c), unless the caller has set it. */
static void choose_ways(uint32_t seed)
{
    static int is_ours = -1;
    char candidate[16] = "on";
    if (is_ours < 0)
        is_ours = getenv("LENSD_CUDA_TUNING") == NULL;
    if (!is_ours)
        return;
    if (seed % 4 != 0)
        snprintf(candidate, sizeof candidate, "%u", (seed - seed / 4) % 16);
    (void)setenv("LENSD_CUDA_TUNING", candidate, 1);
}

/* Operators on stored 8-bit numbers, which both sides compute in integers, or what is between
 * QuantizeLinear, which the reference computes in float32. */
static bool is_stored(uint32_t seed)
{
    return seed / 2 % 2;
}

static struct graph *make_graph(uint32_t seed, const struct options *options, int64_t height,
                                int64_t width)
{
    if (options->quantized)
        return random_quantized(seed, height, width, is_stored(seed));
    if (options->operators)
        return operator_graph((seed - 1) % operator_graph_count(), seed, height, width);
    return random_graph(seed, height, width);
}

static enum status open_on(const char *device, enum precision precision, const struct one *one,
                           bool poison, struct session **ret, struct error *err)
{
    struct device_id devices[DEVICE_MAX];
    size_t count;
    char fallback[256];
    TRY(device_parse(device, devices, &count, fallback, sizeof fallback, err));
    const struct session_options how = {.device = devices[0],
                                        .precision = precision,
                                        .max_batch = one->batch,
                                        .image_layout = IMAGE_NHWC_F32,
                                        .trial = true,
                                        .poison = poison};
    return session_create(one->graph, &how, ret, err);
}

static enum status make_session(struct one *one, uint32_t seed, const struct options *options,
                                struct error *err)
{
    choose_ways(seed);
    TRY(open_on(options->device, options->precision, one, options->poison, &one->session, err));
    /* A scale of the whole batch makes images depend on each other: those run one by one. */
    if (options->quantized && !session_info(one->session)->batched)
        one->batch = 1;
    return STATUS_OK;
}

static enum status make_one(struct one *one, uint32_t seed, const struct options *options,
                            struct error *err)
{
    static const int64_t sizes[][2] = {{10, 9}, {17, 33}, {28, 28}};
    static const int batches[] = {1, 3, LARGEST};
    struct graph *reference = NULL;
    const size_t kinds = options->small ? 1 : COUNT_OF(sizes);
    /* An operator has another size and batch in each round. */
    const size_t turn = options->operators
                            ? (seed - 1) % operator_graph_count() + seed / operator_graph_count()
                            : seed;
    one->height = sizes[turn % kinds][0];
    one->width = sizes[turn % kinds][1];
    one->batch = batches[turn / kinds % (options->small ? 2 : COUNT_OF(batches))];
    one->graph = make_graph(seed, options, one->height, one->width);
    if (one->graph && one->graph->inputs[0]->shape.dims[0] == 1)
        one->batch = 1;
    one->images = make_images(seed, (size_t)(LARGEST * one->height * one->width * 3));
    if (!one->graph || !one->images)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    TRY(make_session(one, seed, options, err));
    TRY(make_input(one, err));
    TRY(graph_clone(one->graph, &reference, err));
    enum status status = interpret(reference, &one->input, one->expected, NULL, NULL, err);
    graph_free(reference);
    if (status != STATUS_OK)
        return error_prefix(err, "the reference");
    return STATUS_OK;
}

static void drop_one(struct one *one)
{
    session_free(one->session);
    for (size_t o = 0; o < RANDOM_GRAPH_OUTPUTS; o++)
        tensor_unref(one->expected[o]);
    tensor_unref(one->input);
    graph_free(one->graph);
    free(one->images);
}

/* ret[outputs] */
static enum status run_one(const struct one *one, struct session *session, int runs,
                           struct outcome *ret, struct error *err)
{
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const void *inputs[] = {one->images};
    for (int run = 0; run < runs; run++) {
        TRY(session_run(session, one->batch, inputs, outputs, err));
        for (size_t o = 0; o < one->graph->output_count; o++)
            outcome_add(&ret[o], one->expected[o], outputs[o]);
    }
    return STATUS_OK;
}

/* No step runs on the host. */
static enum status check_steps(struct one *one, struct error *err)
{
    struct session_step *steps;
    size_t count;
    TRY(session_profile(one->session, one->batch, 1, &steps, &count, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        if (!strcmp(steps[i].kernel, "host"))
            status = error_set(err, STATUS_INTERNAL, "step '%s' runs on the host", steps[i].name);
    free(steps);
    return status;
}

/* Numbers that jump where 16 bits round cannot be compared. */
static bool is_comparable(uint32_t seed, const struct options *options)
{
    return !options->operators || options->precision == PRECISION_FP32 ||
           operator_graph_is_smooth((seed - 1) % operator_graph_count());
}

static const char *graph_name(uint32_t seed, const struct options *options)
{
    if (options->quantized)
        return is_stored(seed) ? "quantized" : "qdq";
    return options->operators ? operator_graph_name((seed - 1) % operator_graph_count()) : "graph";
}

/* A chain of some ten operators, each rounding to 24, 11 or 8 bits. Of 8-bit integers a number that
 * lies between two steps may become either, which few do: hence the mean, too. */
static double tolerance_of(uint32_t seed, const struct options *options)
{
    if (options->tolerance > 0)
        return options->tolerance;
    if (options->quantized)
        return is_stored(seed) ? 0.03 : 0.1;
    if (options->precision == PRECISION_FP32)
        return 1e-4;
    return options->precision == PRECISION_BF16 ? 0.08 : 0.02;
}

static double mean_tolerance(uint32_t seed, const struct options *options)
{
    if (!options->quantized)
        return INFINITY;
    return is_stored(seed) ? 0.005 : 0.02;
}

static bool is_within(const struct outcome *got, double worst, double mean)
{
    return got->worst <= worst && outcome_mean(got) <= mean;
}

/* What an output may differ by: the tolerance, or, where it is more, somewhat more than it has
 * moved in the trials so far; on the mean, too. */
static bool is_sound(const struct outcome *got, const struct outcome *moved, uint32_t seed,
                     const struct options *options)
{
    const double worst = tolerance_of(seed, options), mean = mean_tolerance(seed, options);
    const double share = options->quantized ? 1.25 : 2; /* the former moves in whole steps */
    if (is_within(got, worst, mean))
        return true;
    return is_within(got, fmax(worst, share * moved->worst),
                     (options->quantized ? mean : 0) + share * moved->sum);
}

/* Whether the CPU backend misses the tolerance wherever the device does, and is off by a quarter as
 * much: in the same precision, or in a wider one that it has. */
static bool cpu_misses(const struct one *one, uint32_t seed, const struct options *options,
                       const struct outcome *got)
{
    struct session *session;
    struct error ignored;
    struct outcome own[RANDOM_GRAPH_OUTPUTS] = {0};
    const enum precision precision =
        options->precision == PRECISION_INT8 ||
                (options->precision == PRECISION_BF16 && device_cpu_has_bf16())
            ? options->precision
            : PRECISION_FP32;
    const double worst = tolerance_of(seed, options), mean = mean_tolerance(seed, options);
    if (!strcmp(options->device, "cpu") ||
        open_on("cpu", precision, one, false, &session, &ignored) != STATUS_OK)
        return false;
    bool misses = run_one(one, session, 1, own, &ignored) == STATUS_OK;
    for (size_t o = 0; misses && o < one->graph->output_count; o++)
        misses = is_within(&got[o], worst, mean) ||
                 (!is_within(&own[o], worst, mean) &&
                  is_within(&got[o], 4 * own[o].worst, 4 * outcome_mean(&own[o])));
    session_free(session);
    return misses;
}

/* Whether every output is as far off as the graph makes of its precision. moved[outputs]: the most
 * that they moved in a trial, in `sum` the greatest mean. */
static enum status try_sensitivity(const struct one *one, uint32_t seed,
                                   const struct options *options, const struct outcome *got,
                                   struct outcome *moved, bool *ret, struct error *err)
{
    const struct sensitivity_options how = {options->precision, is_stored(seed)};
    *ret = false;
    for (uint32_t trial = 0; trial < TRIALS && !*ret; trial++) {
        struct outcome now[RANDOM_GRAPH_OUTPUTS] = {0};
        TRY(sensitivity_try(one->graph, one->input, one->expected, &how, trial, now, err));
        *ret = true;
        for (size_t o = 0; o < one->graph->output_count; o++) {
            moved[o].worst = fmax(moved[o].worst, now[o].worst);
            moved[o].sum = fmax(moved[o].sum, outcome_mean(&now[o]));
            *ret = *ret && is_sound(&got[o], &moved[o], seed, options);
        }
    }
    return STATUS_OK;
}

/* Faults of a kernel stay with the process: whatever comes after one fails, too. */
static bool device_is_usable(const char *name)
{
    struct device_info devices[DEVICE_MAX];
    struct device_id wanted[DEVICE_MAX];
    struct error err;
    char fallback[256];
    size_t found;
    const size_t count = device_list(devices, DEVICE_MAX);
    if (device_parse(name, wanted, &found, fallback, sizeof fallback, &err) != STATUS_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        if (devices[i].id.kind == wanted[0].kind && devices[i].id.index == wanted[0].index)
            return devices[i].usable;
    return false;
}

struct totals {
    long passed, failed, skipped, next; /* next: the seed to go on with */
    long sensitive;                     /* passed, though beyond the tolerance */
    struct outcome agreed;              /* of those that passed within it */
    bool broken;                        /* the device, by the last one */
};

/* By the output that is furthest off. */
static void say_failure(const struct one *one, uint32_t seed, const struct options *options,
                        const struct outcome *got, const struct outcome *moved)
{
    size_t o = 0;
    for (size_t i = 1; i < one->graph->output_count; i++)
        o = got[i].worst <= got[o].worst ? o : i;
    printf(
        "FAIL %s %u, %d images of %lld x %lld: relative difference %g, mean %g; the graph itself "
        "moves by %g, mean %g\n",
        graph_name(seed, options), seed, one->batch, (long long)one->width, (long long)one->height,
        got[o].worst, outcome_mean(&got[o]), moved[o].worst, moved[o].sum);
}

/* got[outputs], of a run that succeeded. */
static enum status judge(const struct one *one, uint32_t seed, const struct options *options,
                         struct outcome *got, struct totals *totals, struct error *err)
{
    struct outcome all = {0}, moved[RANDOM_GRAPH_OUTPUTS] = {0};
    bool sound;
    for (size_t o = 0; o < one->graph->output_count; o++) {
        got[o].worst += options->off;
        got[o].sum += options->off * (double)got[o].count;
        all.worst = got[o].worst <= all.worst ? all.worst : got[o].worst;
        all.sum += got[o].sum;
        all.count += got[o].count;
    }
    if (is_within(&all, tolerance_of(seed, options), mean_tolerance(seed, options))) {
        totals->passed++;
        totals->agreed.worst = fmax(totals->agreed.worst, all.worst);
        totals->agreed.sum += all.sum;
        totals->agreed.count += all.count;
        return STATUS_OK;
    }
    TRY(try_sensitivity(one, seed, options, got, moved, &sound, err));
    sound = sound || cpu_misses(one, seed, options, got);
    if (!sound)
        say_failure(one, seed, options, got, moved);
    totals->passed += sound;
    totals->sensitive += sound;
    totals->failed += !sound;
    return STATUS_OK;
}

static void check(uint32_t seed, const struct options *options, struct totals *totals)
{
    struct one one = {0};
    struct error err = {0};
    struct outcome got[RANDOM_GRAPH_OUTPUTS] = {0};
    printf("RUN %s %u\n", graph_name(seed, options), seed);
    fflush(stdout);
    enum status status = make_one(&one, seed, options, &err);
    if (status == STATUS_OK)
        status = run_one(&one, one.session, RUNS, got, &err);
    if (status == STATUS_OK && (options->operators || options->quantized) &&
        strcmp(options->device, "cpu") != 0)
        status = check_steps(&one, &err);
    if (status == STATUS_OK)
        status = judge(&one, seed, options, got, totals, &err);
    if (status != STATUS_OK) {
        printf("FAIL %s %u: %s\n", graph_name(seed, options), seed, err.message);
        totals->failed++;
        totals->broken = !device_is_usable(options->device);
    }
    fflush(stdout);
    drop_one(&one);
}

static bool parse_precision(const char *text, enum precision *ret)
{
    for (int p = PRECISION_FP32; p < (int)PRECISION_COUNT; p++) {
        if (strcmp(text, precision_name((enum precision)p)) == 0) {
            *ret = (enum precision)p;
            return true;
        }
    }
    return false;
}

static bool parse_long(const char *text, long *ret)
{
    char *end;
    errno = 0;
    *ret = strtol(text, &end, 10);
    return !errno && end != text && !*end && *ret >= 0 && *ret <= INT32_MAX;
}

static bool parse(int argc, char **argv, struct options *options)
{
    static const struct option names[] = {
        {"device", required_argument, NULL, 'd'},
        {"precision", required_argument, NULL, 'p'},
        {"first", required_argument, NULL, 'f'},
        {"count", required_argument, NULL, 'n'},
        {"seconds", required_argument, NULL, 's'},
        {"tolerance", required_argument, NULL, 't'},
        {"no-poison", no_argument, NULL, 'P'},
        {"small", no_argument, NULL, 'm'},
        {"operators", no_argument, NULL, 'o'},
        {"off", required_argument, NULL, 'O'},
        {0},
    };
    bool ok = true;
    for (int c; ok && (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        switch (c) {
        case 'd':
            options->device = optarg;
            break;
        case 'p':
            ok = parse_precision(optarg, &options->precision);
            break;
        case 'f':
            ok = parse_long(optarg, &options->first);
            break;
        case 'n':
            ok = parse_long(optarg, &options->count);
            break;
        case 's':
            ok = parse_long(optarg, &options->seconds);
            break;
        case 't':
            options->tolerance = strtod(optarg, NULL);
            ok = options->tolerance > 0;
            break;
        case 'O':
            options->off = strtod(optarg, NULL);
            ok = options->off > 0;
            break;
        case 'm':
            options->small = true;
            break;
        case 'o':
            options->operators = true;
            break;
        case 'P':
            options->poison = false;
            break;
        default:
            ok = false;
        }
    }
    options->quantized = options->precision == PRECISION_INT8;
    return ok && optind == argc && !(options->operators && options->quantized);
}

static void run_all(const struct options *options, struct totals *totals)
{
    const int64_t end = clock_now() + options->seconds * 1000000000LL;
    totals->next = options->first;
    for (long i = 0; i < options->count && clock_now() < end && !totals->broken; i++) {
        const uint32_t seed = (uint32_t)totals->next++;
        if (is_comparable(seed, options))
            check(seed, options, totals);
        else
            totals->skipped++;
    }
}

int main(int argc, char **argv)
{
    struct options options = {.device = "cuda:0", .first = 1, .seconds = 600, .poison = true};
    struct totals totals = {0};
    if (!parse(argc, argv, &options)) {
        fprintf(stderr, "usage: lensd_graphs [--device cuda:0] [--precision fp32] [--first 1] "
                        "[--count 100] [--tolerance T] [--seconds S] [--no-poison] [--small] "
                        "[--operators] [--off S]\n");
        return 2;
    }
    if (options.count == 0)
        options.count = options.operators ? (long)operator_graph_count() : 100;
    run_all(&options, &totals);
    printf("{\"passed\": %ld, \"sensitive\": %ld, \"failed\": %ld, \"skipped\": %ld, "
           "\"asked\": %ld, \"next\": %ld, \"broken\": %s, \"worst\": %.3g, \"mean\": %.3g, "
           "\"tolerance\": %.3g}\n",
           totals.passed, totals.sensitive, totals.failed, totals.skipped, options.count,
           totals.next, totals.broken ? "true" : "false", totals.agreed.worst,
           outcome_mean(&totals.agreed), tolerance_of(1, &options));
    return totals.broken ? EXIT_BROKEN : totals.failed > 0;
}
