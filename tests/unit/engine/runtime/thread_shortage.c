/* Memory runs out while sessions are compiled and run, and while networks are quantized: the answer
 * is the right one, or a sentence and STATUS_NO_MEMORY. */
#include <string.h>

#include "engine/base/size.h"
#include "engine/quantize/quantizer.h"
#include "tests/unit/models/failing_memory.h"
#include "tests/unit/operator_graphs.h"
#include "tests/unit/random_graph.h"
#include "tests/unit/random_quantized.h"
#include "tests/unit/tap.h"

/* Allocations of a job that fail, one a run, evenly spread. Other jobs have other ones. */
#ifdef __SANITIZE_THREAD__
enum { SAMPLES = 4 };
#else
enum { SAMPLES = 32 };
#endif

enum { SIDE = 12, IMAGES = 2 };

/* C's rule for sizes, which sanitizers check and glibc does not. */
#define WHOLE(size, alignment) (((size) + (alignment)-1) / (alignment) * (alignment))

WRAP(void *, aligned_alloc, (size_t alignment, size_t size), alignment, WHOLE(size, alignment))
WRAP(void *, reallocarray, (void *data, size_t count, size_t size), data, count, size)

struct job {
    enum status (*run)(const struct job *job, struct error *err);
    const struct graph *graph;
    enum precision precision;
};

static float image[IMAGES * SIDE * SIDE * 3];

static enum status compile_and_run(const struct job *job, struct error *err)
{
    const struct session_options options = {
        .precision = job->precision, .threads = 1, .max_batch = IMAGES, .image_input = SIZE_MAX};
    const void *inputs[] = {image};
    const struct tensor *outputs[RANDOM_GRAPH_OUTPUTS + 1];
    struct session *session;
    TRY(session_create(job->graph, &options, &session, err));
    const enum status status = session_run(session, 1, inputs, outputs, err);
    session_free(session);
    return status;
}

static enum status read_image(void *context, size_t i, const void **ret, struct error *err)
{
    (void)context, (void)err;
    *ret = image + i * SIDE * SIDE * 3;
    return STATUS_OK;
}

static enum status quantize(struct quantizer *quantizer, struct error *err)
{
    const struct session_options options = {
        .threads = 1, .max_batch = 1, .trial = true, .image_layout = IMAGE_NHWC_F32};
    const struct quantizer_images images = {.count = IMAGES, .read = read_image};
    struct graph *made;
    TRY(quantizer_observe(quantizer, &options, &images, (size_t)64 << 20, err));
    TRY(quantizer_make(quantizer, true, true, &made, err));
    graph_free(made);
    return STATUS_OK;
}

static enum status observe_and_quantize(const struct job *job, struct error *err)
{
    struct quantizer *quantizer, *smooth = NULL;
    TRY(quantizer_create(job->graph, QUANTIZER_WEIGHT_MAX, &quantizer, err));
    enum status status = quantize(quantizer, err);
    if (status == STATUS_OK)
        status = quantizer_smooth(quantizer, &smooth, err);
    if (smooth)
        status = quantize(smooth, err);
    quantizer_free(smooth);
    quantizer_free(quantizer);
    return status;
}

/* Runs the job with the n-th allocation failing; returns how many more would have succeeded. */
static long run_short(const struct job *job, long n, enum status *ret, struct error *err)
{
    *err = (struct error){0};
    atomic_store(&has_failed, false);
    atomic_store(&left, n);
    *ret = job->run(job, err);
    return atomic_exchange(&left, LONG_MAX);
}

/* Frees the graph. */
static void sample(enum status (*run)(const struct job *, struct error *), const char *what,
                   uint32_t seed, struct graph *graph, enum precision precision)
{
    const struct job job = {run, graph, precision};
    struct error err;
    enum status status;
    CHECK(graph);
    const long all = LONG_MAX - run_short(&job, LONG_MAX, &status, &err);
    CHECK(status == STATUS_OK);
    for (long i = 0; i < SAMPLES; i++) {
        const long n = 1 + (i * all + seed * 7919 % (uint32_t)all) / SAMPLES;
        (void)run_short(&job, n, &status, &err);
        const bool right = status == STATUS_OK || (status == STATUS_NO_MEMORY && err.message[0]);
        if (!right)
            fprintf(stderr, "%s %u, allocation %ld: %s: %s\n", what, seed, n, status_word(status),
                    err.message);
        CHECK(right);
    }
    graph_free(graph);
}

static void test_sessions(void)
{
    for (uint32_t seed = 1; seed <= 12; seed++)
        sample(compile_and_run, "random graph", seed, random_graph(seed, SIDE, SIDE),
               PRECISION_FP32);
    for (uint32_t seed = 20; seed <= 24; seed++)
        sample(compile_and_run, "random graph in bfloat16", seed, random_graph(seed, SIDE, SIDE),
               device_cpu_has_bf16() ? PRECISION_BF16 : PRECISION_FP32);
}

static void test_quantized_sessions(void)
{
    for (uint32_t seed = 1; seed <= 12; seed++)
        sample(compile_and_run, "quantized graph", seed,
               random_quantized(seed, SIDE, SIDE, seed % 2), PRECISION_INT8);
}

static void test_operators(void)
{
    for (size_t i = 0; i < operator_graph_count(); i++)
        sample(compile_and_run, operator_graph_name(i), (uint32_t)i,
               operator_graph(i, 5, SIDE, SIDE), PRECISION_FP32);
}

static void test_quantizer(void)
{
    for (uint32_t seed = 1; seed <= 40; seed += 8) {
        struct graph *graph = random_graph(seed, SIDE, SIDE);
        struct quantizer *quantizer;
        struct error err;
        /* not every one has a layer that can be quantized */
        if (quantizer_create(graph, QUANTIZER_WEIGHT_MAX, &quantizer, &err) == STATUS_OK) {
            quantizer_free(quantizer);
            sample(observe_and_quantize, "random graph, quantized", seed, graph, PRECISION_FP32);
        } else {
            graph_free(graph);
        }
    }
}

int main(void)
{
    static const struct tap_test tests[] = {
        {"sessions are compiled and run", test_sessions},
        {"sessions of quantized networks", test_quantized_sessions},
        {"sessions of single operators", test_operators},
        {"networks are quantized", test_quantizer},
    };
    uint32_t state = 3;
    for (size_t i = 0; i < COUNT_OF(image); i++)
        image[i] = random_unit(&state);
    return tap_run(tests, COUNT_OF(tests), NULL);
}
