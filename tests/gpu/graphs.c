/* Random graphs on a device against the reference kernels; with --operators graphs of one operator
 * each (tests/unit/operator_graphs.h), which must also leave no step to the host. Without --count
 * each operator has one.
 *
 *     lensd_graphs [--device cuda:0] [--precision fp32] [--first 1] [--count 100] [--tolerance T]
 *                  [--seconds S] [--no-poison] [--small]
 *                  [--operators]
 *
 * Each seed is a graph of operators and shapes drawn by it (tests/unit/random_graph.h), an image
 * size and a batch of 1, 3 or 8 images of fresh numbers (with --precision int8 a quantised one,
 * tests/unit/random_quantised.h, every other one without float arithmetic). It runs three times: as
 * the first batch, as the one that is recorded and as the recording, in memory that is filled with
 * NaN before each run (not with --no-poison, for a checker that looks for reads of what was never
 * written). Of the ways to run a layer on a GPU, every fourth seed takes those that are quickest,
 * the others each a further one, so that those are checked that no network happens to choose.
 * Differences count relative to the greatest expected number of an output. Prints a line for each
 * graph that disagrees, and a line of JSON last; ends with 1 when one disagreed. After S seconds no
 * further graph is begun. --small: small images and batches only, for a device that is slow. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/cpu/interpret.h"
#include "engine/session.h"
#include "tests/unit/operator_graphs.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/random_quantised.h"

enum { RUNS = 3, LARGEST = 8 };

struct options {
    const char *device;
    enum precision precision;
    long first, count, seconds;
    double tolerance;
    bool poison, small, operators;
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

/* LENSD_CUDA_TUNING (engine/cuda/tune.c), unless the caller has set it. */
static void choose_ways(uint32_t seed)
{
    static int is_ours = -1;
    char way[16] = "on";
    if (is_ours < 0)
        is_ours = getenv("LENSD_CUDA_TUNING") == NULL;
    if (!is_ours)
        return;
    if (seed % 4 != 0)
        snprintf(way, sizeof way, "%u", (seed - seed / 4) % 16);
    (void)setenv("LENSD_CUDA_TUNING", way, 1);
}

static enum status make_one(struct one *one, uint32_t seed, const struct options *options,
                            struct error *err)
{
    static const int64_t sizes[][2] = {{10, 9}, {17, 33}, {28, 28}};
    static const int batches[] = {1, 3, LARGEST};
    struct device_id devices[DEVICE_MAX];
    struct graph *reference = NULL;
    size_t count;
    char fallback[256];
    const size_t kinds = options->small ? 1 : COUNT_OF(sizes);
    /* An operator has another size and batch in each round. */
    const size_t turn = options->operators
                            ? (seed - 1) % operator_graph_count() + seed / operator_graph_count()
                            : seed;
    one->height = sizes[turn % kinds][0];
    one->width = sizes[turn % kinds][1];
    one->batch = batches[turn / kinds % (options->small ? 2 : COUNT_OF(batches))];
    if (options->operators)
        one->graph =
            operator_graph((seed - 1) % operator_graph_count(), seed, one->height, one->width);
    else if (options->precision == PRECISION_INT8)
        one->graph = random_quantised(seed, one->height, one->width, seed % 2);
    else
        one->graph = random_graph(seed, one->height, one->width);
    if (one->graph && one->graph->inputs[0]->shape.dims[0] == 1)
        one->batch = 1;
    one->images = make_images(seed, (size_t)(LARGEST * one->height * one->width * 3));
    if (!one->graph || !one->images)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    TRY(device_parse(options->device, devices, &count, fallback, sizeof fallback, err));
    const struct session_options how = {.device = devices[0],
                                        .precision = options->precision,
                                        .max_batch = one->batch,
                                        .image_layout = IMAGE_NHWC_F32,
                                        .trial = true,
                                        .poison = options->poison};
    choose_ways(seed);
    TRY(session_create(one->graph, &how, &one->session, err));
    if (!session_info(one->session)->batched) /* images that change each other's results */
        one->batch = 1;
    TRY(make_input(one, err));
    TRY(graph_clone(one->graph, &reference, err));
    enum status status = interpret(reference, &one->input, one->expected, NULL, NULL, err);
    graph_free(reference);
    return status == STATUS_OK ? STATUS_OK : error_prefix(err, "the reference");
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

static double difference(const struct tensor *expected, const struct tensor *got)
{
    const float *e = expected->data, *g = got->data;
    double largest = 1e-2, worst = 0;
    for (size_t i = 0; i < shape_count(&expected->shape); i++) {
        const double d = fabs((double)e[i] - (double)g[i]);
        largest = fmax(largest, fabs((double)e[i]));
        worst = d <= worst ? worst : d; /* NaN stays */
    }
    return worst / largest;
}

/* The greatest difference of all outputs and runs. */
static enum status run_one(struct one *one, double *ret, struct error *err)
{
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS];
    const void *inputs[] = {one->images};
    *ret = 0;
    for (int run = 0; run < RUNS; run++) {
        TRY(session_run(one->session, one->batch, inputs, outputs, err));
        for (size_t o = 0; o < one->graph->output_count; o++) {
            const double d = difference(one->expected[o], outputs[o]);
            *ret = d <= *ret ? *ret : d;
        }
    }
    return STATUS_OK;
}

/* No step of an operator's graph runs on the host. */
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
    return options->operators ? operator_graph_name((seed - 1) % operator_graph_count()) : "graph";
}

/* Did it agree? What else it was is printed. */
static bool check(uint32_t seed, const struct options *options, double *worst)
{
    struct one one = {0};
    struct error err = {0};
    double d = 0;
    enum status status = make_one(&one, seed, options, &err);
    if (status == STATUS_OK)
        status = run_one(&one, &d, &err);
    if (status == STATUS_OK && options->operators && strcmp(options->device, "cpu") != 0)
        status = check_steps(&one, &err);
    const bool ok = status == STATUS_OK && d <= options->tolerance;
    if (status != STATUS_OK)
        printf("FAIL %s %u: %s\n", graph_name(seed, options), seed, err.message);
    else if (!ok)
        printf("FAIL %s %u, %d images of %lld x %lld: relative difference %g\n",
               graph_name(seed, options), seed, one.batch, (long long)one.width,
               (long long)one.height, d);
    else if (d > *worst)
        *worst = d;
    drop_one(&one);
    fflush(stdout);
    return ok;
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
        {"device", required_argument, NULL, 'd'},  {"precision", required_argument, NULL, 'p'},
        {"first", required_argument, NULL, 'f'},   {"count", required_argument, NULL, 'n'},
        {"seconds", required_argument, NULL, 's'}, {"tolerance", required_argument, NULL, 't'},
        {"no-poison", no_argument, NULL, 'P'},     {"small", no_argument, NULL, 'm'},
        {"operators", no_argument, NULL, 'o'},     {0},
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
    return ok && optind == argc;
}

/* A chain of some ten operators, each rounding to 24, 11 or 8 bits. */
static double default_tolerance(enum precision precision)
{
    if (precision == PRECISION_FP32)
        return 1e-4;
    if (precision == PRECISION_INT8) /* a step more or less in some layer */
        return 0.1;
    return strcmp(precision_name(precision), "fp16") == 0 ? 0.02 : 0.08;
}

int main(int argc, char **argv)
{
    struct options options = {.device = "cuda:0", .first = 1, .seconds = 600, .poison = true};
    long passed = 0, failed = 0;
    double worst = 0;
    if (!parse(argc, argv, &options)) {
        fprintf(
            stderr,
            "usage: lensd_graphs [--device cuda:0] [--precision fp32] [--first 1] "
            "[--count 100] [--tolerance T] [--seconds S] [--no-poison] [--small] [--operators]\n");
        return 2;
    }
    if (options.operators && options.count == 0)
        options.count = (long)operator_graph_count();
    else if (options.count == 0)
        options.count = 100;
    if (options.tolerance == 0)
        options.tolerance = default_tolerance(options.precision);
    const int64_t end = clock_now() + options.seconds * 1000000000LL;
    for (long i = 0; i < options.count && clock_now() < end; i++) {
        if (!is_comparable((uint32_t)(options.first + i), &options))
            continue;
        const bool ok = check((uint32_t)(options.first + i), &options, &worst);
        passed += ok;
        failed += !ok;
    }
    printf("{\"passed\": %ld, \"failed\": %ld, \"asked\": %ld, \"worst\": %.3g, \"tolerance\": "
           "%.3g}\n",
           passed, failed, options.count, worst, options.tolerance);
    return failed > 0;
}
