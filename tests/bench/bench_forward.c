/* Milliseconds of the forward pass alone, per batch size: the program itself measures the models it
 * is given, or runs as the other half of a comparison.
 *
 *     bench_forward [options] MODEL...       a table, models and batch sizes taking turns
 *     bench_forward [options] --serve MODEL...
 *                                            answers lines on standard input (see serve())
 *     bench_forward [options] --profile MODEL...
 *                                            the steps of each batch size, slowest first
 *     bench_forward --device cuda:0 --poison …
 *                                            fills the device's memory with NaN before each run
 *
 * --isa avx2, avx512, avx512_bf16 or avx512_amx holds lensd's kernels to it.
 * --cache FOLDER keeps from run to run which kernels of layers are the quickest.
 *
 * On a CPU a batch runs in the passes that the server would run it in. For a GPU only the sizes of
 * --batch are compiled, each of which is one pass.
 *
 * MODEL is an .onnx file, a model folder, or `digits`. A turn is one run that is not counted, which
 * brings the model's weights back into the caches, and a few that are. Inputs are seeded noise. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/backend/tuning_store.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "models/folder/model.h"
#include "server/schedule/policy/latency.h"
#include "tests/bench/isa.h"

enum { MAX_MODELS = 32, MAX_BATCHES = 8, TURN = 3, MIN_TURNS = 3, MAX_RUNS = 10000 };

struct options {
    const char *device;
    enum precision precision;
    int threads;
    int batches[MAX_BATCHES];
    size_t batch_count;
    double seconds; /* for each model and batch size */
    bool serve, profile, poison;
    const char *cache; /* folder of the tuning store; NULL: none */
};

struct candidate {
    const char *path;
    struct model *model;
    struct session *session;
    struct latency latency;
    struct device_id device;
    void **inputs; /* as the server's, page-locked for a GPU; room for the largest batch, and for
                      the padding of its last pass */
    const struct tensor **outputs;
};

struct samples {
    double *times; /* milliseconds, MAX_RUNS */
    size_t count;
};

static void fill_noise(void *data, enum dtype dtype, size_t bytes, uint32_t seed)
{
    if (dtype != DTYPE_F32) {
        memset(data, 0, bytes); /* valid for every dtype: indices, lengths, masks, other floats */
        return;
    }
    float *values = data;
    for (size_t i = 0; i < bytes / sizeof *values; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) * (4.0f / 16777216.0f) - 2.0f;
    }
}

static enum status allocate_inputs(struct candidate *candidate, int largest, struct error *err)
{
    const struct session_info *info = session_info(candidate->session);
    const size_t images = (size_t)largest + (size_t)info->batches[info->batch_count - 1].size;
    const size_t count = session_info(candidate->session)->input_count;
    candidate->inputs = alloc_array(count, sizeof *candidate->inputs);
    candidate->outputs =
        alloc_array(session_info(candidate->session)->output_count, sizeof(struct tensor *));
    if (!candidate->inputs || !candidate->outputs)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const struct session_tensor *input = &session_info(candidate->session)->inputs[i];
        size_t bytes;
        TRY(shape_check(&input->shape, input->dtype, NULL, &bytes, err));
        if (!size_mul(bytes, images, &bytes) || bytes > SIZE_MAX - TENSOR_ALIGN)
            return error_set(err, STATUS_TOO_LARGE, "input '%s' is too large", input->name);
        TRY(session_buffer_create(info->device, bytes, &candidate->inputs[i], err));
        fill_noise(candidate->inputs[i], input->dtype, bytes, (uint32_t)i + 1);
    }
    return STATUS_OK;
}

/* What earlier runs found out about layers, and what this one did. */
static void recall_tunings(const char *folder)
{
    struct error err;
    if (folder && tuning_read(folder, &err) != STATUS_OK)
        fprintf(stderr, "bench_forward: %s\n", err.message);
}

static void keep_tunings(const char *folder)
{
    struct error err;
    if (folder && tuning_write(folder, &err) != STATUS_OK)
        fprintf(stderr, "bench_forward: %s\n", err.message);
}

/* Ascending, each once; ret is zeroed. */
static void set_batches(const struct options *options, int ret[static SESSION_MAX_BATCHES])
{
    int last = 0;
    for (size_t n = 0; n < options->batch_count; n++) {
        int next = INT_MAX;
        for (size_t i = 0; i < options->batch_count; i++) {
            const int batch =
                options->batches[i] < LATENCY_MAX_BATCH ? options->batches[i] : LATENCY_MAX_BATCH;
            next = batch > last && batch < next ? batch : next;
        }
        if (next == INT_MAX)
            return;
        ret[n] = last = next;
    }
}

static enum status candidate_load(struct candidate *candidate, const struct options *options,
                                  struct error *err)
{
    struct stat there;
    if (strcmp(candidate->path, "digits") == 0 && stat("digits", &there) != 0)
        TRY(model_load(NULL, NULL, NULL, &candidate->model, err));
    else
        TRY(model_load(candidate->path, NULL, NULL, &candidate->model, err));

    struct session_options session = {
        .precision = options->precision,
        .threads = options->threads,
        .poison = options->poison,
        .image_input = candidate->model->image_input,
        .image_layout = IMAGE_NHWC_F32,
        .image_channels_last = candidate->model->input_channels_last,
        .image_height = candidate->model->preprocess.height,
        .image_width = candidate->model->preprocess.width,
    };
    struct device_id devices[DEVICE_MAX];
    size_t device_count;
    char fallback[256];
    TRY(device_parse(options->device, devices, &device_count, fallback, sizeof fallback, err));
    session.device = candidate->device = devices[0];
    int largest = 1;
    for (size_t i = 0; i < options->batch_count; i++)
        largest = options->batches[i] > largest ? options->batches[i] : largest;
    session.max_batch = largest < LATENCY_MAX_BATCH ? largest : LATENCY_MAX_BATCH;
    if (session.device.kind != DEVICE_CPU)
        set_batches(options, session.batches);
    TRY(session_create(candidate->model->graph, &session, &candidate->session, err));
    const struct session_info *info = session_info(candidate->session);
    latency_init(&candidate->latency, info->batches, info->batch_count);
    model_drop_graph(candidate->model);
    return allocate_inputs(candidate, largest, err);
}

static void candidate_free(struct candidate *candidate)
{
    if (candidate->session && candidate->inputs)
        for (size_t i = 0; i < session_info(candidate->session)->input_count; i++)
            session_buffer_free(candidate->device, candidate->inputs[i]);
    free(candidate->inputs);
    free(candidate->outputs);
    session_free(candidate->session);
    model_free(candidate->model);
}

/* Runs `batch` images; the rows of the first output are written to `file`, unless that is NULL. */
static enum status run_batch(struct candidate *candidate, int batch, FILE *file, struct error *err)
{
    const struct session_tensor *input = &session_info(candidate->session)->inputs[0];
    const size_t row = shape_count(&input->shape) * dtype_size(input->dtype);
    void *const first = candidate->inputs[0];
    enum status status = STATUS_OK;
    for (int done = 0, count; done < batch && status == STATUS_OK; done += count) {
        count = latency_first(&candidate->latency, batch - done);
        candidate->inputs[0] = (char *)first + (size_t)done * row;
        status = session_run(candidate->session, count, (const void *const *)candidate->inputs,
                             candidate->outputs, err);
        if (status == STATUS_OK && file)
            fwrite(candidate->outputs[0]->data, 1, candidate->outputs[0]->bytes, file);
    }
    candidate->inputs[0] = first;
    return status;
}

/* One run; *ret_ms is its time. */
static enum status run_once(struct candidate *candidate, int batch, double *ret_ms,
                            struct error *err)
{
    const int64_t begin = clock_now();
    TRY(run_batch(candidate, batch, NULL, err));
    *ret_ms = clock_ms(clock_now() - begin);
    return STATUS_OK;
}

static enum status run_turn(struct candidate *candidate, int batch, struct samples *samples,
                            struct error *err)
{
    double ms;
    TRY(run_once(candidate, batch, &ms, err));
    for (int i = 0; i < TURN && samples->count < MAX_RUNS; i++) {
        TRY(run_once(candidate, batch, &ms, err));
        samples->times[samples->count++] = ms;
    }
    return STATUS_OK;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_row(const struct candidate *candidate, const struct options *options, int batch,
                      const struct samples *samples)
{
    const struct session_info *info = session_info(candidate->session);
    qsort(samples->times, samples->count, sizeof *samples->times, ascending);
    const double median = samples->times[samples->count / 2];
    printf("%-22s %-7s %-5s %7d %6d %11.3f %11.3f %11.1f %6zu\n", candidate->model->name,
           DEVICE_STRING(info->device), precision_name(options->precision), info->threads, batch,
           median, samples->times[0], batch * 1e3 / median, samples->count);
}

/* The table: rounds of turns, every model and batch size once a round, until each had its seconds.
 */
static enum status measure(struct candidate *candidates, size_t count,
                           const struct options *options, struct error *err)
{
    struct samples samples[MAX_MODELS * MAX_BATCHES] = {0};
    double spent[MAX_MODELS * MAX_BATCHES] = {0};
    const size_t total = count * options->batch_count;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < total && status == STATUS_OK; i++) {
        samples[i].times = alloc_array(MAX_RUNS, sizeof(double));
        if (!samples[i].times)
            status = error_set(err, STATUS_NO_MEMORY, "out of memory");
    }
    bool busy = true;
    for (int round = 0; busy && status == STATUS_OK; round++) {
        busy = false;
        for (size_t i = 0; i < total && status == STATUS_OK; i++) {
            if ((round >= MIN_TURNS && spent[i] >= options->seconds) ||
                samples[i].count == MAX_RUNS)
                continue;
            const int64_t begin = clock_now();
            status = run_turn(&candidates[i / options->batch_count],
                              options->batches[i % options->batch_count], &samples[i], err);
            spent[i] += clock_ms(clock_now() - begin) * 1e-3;
            busy = true;
        }
    }
    if (status == STATUS_OK) {
        printf("%-22s %-7s %-5s %7s %6s %11s %11s %11s %6s\n", "model", "device", "", "threads",
               "batch", "ms median", "ms best", "images/s", "runs");
        for (size_t i = 0; i < total; i++)
            print_row(&candidates[i / options->batch_count], options,
                      options->batches[i % options->batch_count], &samples[i]);
    }
    for (size_t i = 0; i < total; i++)
        free(samples[i].times);
    return status;
}

static int slowest_first(const void *a, const void *b)
{
    const struct session_step *x = a, *y = b;
    return (x->milliseconds < y->milliseconds) - (x->milliseconds > y->milliseconds);
}

static enum status profile(const struct candidate *candidate, int batch, struct error *err)
{
    struct session_step *steps;
    size_t count;
    TRY(session_profile(candidate->session, batch, 10, &steps, &count, err));
    double total = 0;
    for (size_t i = 0; i < count; i++)
        total += steps[i].milliseconds;
    qsort(steps, count, sizeof *steps, slowest_first);
    printf("%s, batch %d: %zu steps, %.3f ms\n", candidate->model->name, batch, count, total);
    printf("%9s %6s %9s %8s  %-28s %s\n", "ms", "%", "GFLOP/s", "MB", "kernel", "step");
    for (size_t i = 0; i < count; i++) {
        const struct session_step *step = &steps[i];
        printf("%9.3f %6.1f %9.1f %8.2f  %-28s %s\n", step->milliseconds,
               total > 0 ? step->milliseconds * 100 / total : 0,
               step->milliseconds > 0 ? step->gflop * 1e3 / step->milliseconds : 0,
               (double)step->bytes * 1e-6, step->kernel, step->name);
    }
    free(steps);
    return STATUS_OK;
}

/* A whole number from `low` to `high`, or a sentence and false. */
static bool parse_number(const char *option, const char *text, long low, long high, long *ret)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high) {
        fprintf(stderr, "bench_forward: %s '%s' is not a number from %ld to %ld\n", option, text,
                low, high);
        return false;
    }
    *ret = value;
    return true;
}

/* ---- the co-process ---- */

/* A line of the co-process's input, taken apart; words point into the line. */
struct command {
    const struct verb *verb;
    long index, batch, times, passes;
    const char *input, *output;
};

struct verb {
    const char *name;
    size_t words; /* of the line, itself included */
    enum status (*run)(struct candidate *, const struct command *, struct error *);
};

static enum status print_times(const double *times, long count)
{
    for (long i = 0; i < count; i++)
        printf("%s%.5f", i ? " " : "", times[i]);
    printf("\n");
    return STATUS_OK;
}

static enum status serve_run(struct candidate *candidate, const struct command *command,
                             struct error *err)
{
    double times[MAX_RUNS];
    TRY(run_once(candidate, (int)command->batch, &times[0], err));
    for (long i = 0; i < command->times; i++)
        TRY(run_once(candidate, (int)command->batch, &times[i], err));
    return print_times(times, command->times);
}

static enum status serve_time(struct candidate *candidate, const struct command *command,
                              struct error *err)
{
    double times[MAX_RUNS];
    for (long i = 0; i < command->times; i++) {
        TRY(session_time(candidate->session, (int)command->batch, (int)command->passes, &times[i],
                         err));
        times[i] /= (double)command->passes;
    }
    return print_times(times, command->times);
}

static enum status serve_answer(struct candidate *candidate, const struct command *command,
                                struct error *err)
{
    const struct session_tensor *input = &session_info(candidate->session)->inputs[0];
    const size_t bytes =
        shape_count(&input->shape) * dtype_size(input->dtype) * (size_t)command->batch;
    FILE *file = fopen(command->input, "rb");
    bool whole = file && fread(candidate->inputs[0], 1, bytes, file) == bytes && fgetc(file) == EOF;
    if (file)
        fclose(file);
    if (!whole)
        return error_set(err, STATUS_IO, "%s does not hold the %zu bytes of %ld images",
                         command->input, bytes, command->batch);
    const enum dtype dtype = session_info(candidate->session)->outputs[0].dtype;
    if (dtype != DTYPE_F32)
        return error_set(err, STATUS_UNSUPPORTED, "the first output is %s, not float32",
                         dtype_name(dtype));
    file = fopen(command->output, "wb");
    if (!file)
        return error_set(err, STATUS_IO, "cannot write %s", command->output);
    const enum status status = run_batch(candidate, (int)command->batch, file, err);
    const long written = ftell(file);
    whole = !ferror(file);
    whole = fclose(file) == 0 && whole;
    TRY(status);
    if (!whole)
        return error_set(err, STATUS_IO, "cannot write %s", command->output);
    printf("%zu\n", (size_t)written / sizeof(float));
    return STATUS_OK;
}

static enum status serve_profile(struct candidate *candidate, const struct command *command,
                                 struct error *err)
{
    struct session_step *steps;
    size_t count;
    TRY(session_profile(candidate->session, (int)command->batch, 5, &steps, &count, err));
    printf("%zu %d\n", count, session_batch_for(candidate->session, (int)command->batch));
    for (size_t i = 0; i < count; i++)
        printf("%.6f\t%.6f\t%zu\t%s\t%s\n", steps[i].milliseconds, steps[i].gflop, steps[i].bytes,
               steps[i].kernel, steps[i].name);
    free(steps);
    return STATUS_OK;
}

/* Dimensions of one image, and how many numbers the first output has for it. */
static enum status serve_shape(struct candidate *candidate, const struct command *command,
                               struct error *err)
{
    (void)command;
    (void)err;
    const struct shape *shape = &session_info(candidate->session)->inputs[0].shape;
    for (int i = 0; i < shape->rank; i++)
        printf("%lld ", (long long)shape->dims[i]);
    printf("%zu\n", shape_count(&session_info(candidate->session)->outputs[0].shape));
    return STATUS_OK;
}

static bool parse_command(char *line, long models, long largest, struct command *ret)
{
    static const struct verb verbs[] = {
        {"run", 4, serve_run},         {"time", 5, serve_time},   {"answer", 5, serve_answer},
        {"profile", 3, serve_profile}, {"shape", 3, serve_shape},
    };
    char *words[6], *save = NULL;
    size_t count = 0;
    for (char *word = strtok_r(line, " \n", &save); word && count < COUNT_OF(words);
         word = strtok_r(NULL, " \n", &save))
        words[count++] = word;
    *ret = (struct command){0};
    for (size_t v = 0; v < COUNT_OF(verbs) && count > 0; v++)
        if (strcmp(words[0], verbs[v].name) == 0 && count == verbs[v].words)
            ret->verb = &verbs[v];
    if (!ret->verb || !parse_number("INDEX", words[1], 0, models - 1, &ret->index) ||
        !parse_number("BATCH", words[2], 1, largest, &ret->batch))
        return false;
    if (ret->verb->run == serve_answer) {
        ret->input = words[3];
        ret->output = words[4];
    }
    return (ret->verb->run != serve_run && ret->verb->run != serve_time) ||
           (parse_number("TIMES", words[3], 1, MAX_RUNS, &ret->times) &&
            (count < 5 || parse_number("PASSES", words[4], 1, MAX_RUNS, &ret->passes)));
}

/* First of all it prints "ready" and the names of the models; then it answers each line of its
 * input, and ends with it. INDEX counts the models from 0; file names hold no space.
 *
 *     run INDEX BATCH TIMES            runs once unmeasured and TIMES measured: the milliseconds
 *     time INDEX BATCH TIMES PASSES    the same without the copies to and from the device; each
 *                                      number is the mean of PASSES passes in a row, after as
 *                                      many that are not counted
 *     answer INDEX BATCH INPUT OUTPUT  reads raw numbers, [BATCH, H, W, C] float32, runs, writes
 *                                      the first output's: how many numbers
 *     profile INDEX BATCH              how many steps and of how many images (padding included),
 *                                      and then a line for each, with tabs between: milliseconds,
 *                                      GFLOP, bytes, kernel, name
 *     shape INDEX BATCH                the dimensions of one image, and the numbers of an answer
 *
 * What does not work is answered by "error: " and a sentence. */
static void serve(struct candidate *candidates, size_t count, const struct options *options)
{
    char line[1024];
    long largest = 1;
    printf("ready");
    for (size_t i = 0; i < count; i++)
        printf(" %s", candidates[i].model->name);
    printf("\n");
    fflush(stdout);
    for (size_t i = 0; i < options->batch_count; i++)
        largest = options->batches[i] > largest ? options->batches[i] : largest;
    while (fgets(line, sizeof line, stdin)) {
        struct command command;
        struct error err = {0};
        if (!parse_command(line, (long)count, largest, &command))
            printf("error: expected run, time, answer, profile or shape with their arguments\n");
        else if (command.verb->run(&candidates[command.index], &command, &err) != STATUS_OK)
            printf("error: %s\n", err.message);
        fflush(stdout);
    }
}

static bool parse_batches(const char *text, struct options *options)
{
    char list[128], *save = NULL;
    long batch;
    if ((size_t)snprintf(list, sizeof list, "%s", text) >= sizeof list) {
        fprintf(stderr, "bench_forward: --batch is too long\n");
        return false;
    }
    options->batch_count = 0;
    for (char *word = strtok_r(list, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        if (options->batch_count == MAX_BATCHES) {
            fprintf(stderr, "bench_forward: --batch takes at most %d sizes\n", MAX_BATCHES);
            return false;
        }
        if (!parse_number("--batch", word, 1, 4096, &batch))
            return false;
        options->batches[options->batch_count++] = (int)batch;
    }
    return options->batch_count > 0;
}

static bool parse_precision(const char *text, enum precision *ret)
{
    for (int i = PRECISION_FP32; i < (int)PRECISION_COUNT; i++) {
        if (strcmp(text, precision_name((enum precision)i)) == 0) {
            *ret = (enum precision)i;
            return true;
        }
    }
    fprintf(stderr, "bench_forward: --precision '%s' is none of fp32, tf32, bf16, fp16, int8\n",
            text);
    return false;
}

static bool parse_option(const char *option, const char *value, struct options *options)
{
    long number;
    if (strcmp(option, "--device") == 0) {
        options->device = value;
        return true;
    }
    if (strcmp(option, "--cache") == 0) {
        options->cache = value;
        return true;
    }
    if (strcmp(option, "--isa") == 0) {
        if (!isa_hold(value))
            fprintf(stderr, "bench_forward: this CPU has no variant '%s'\n", value);
        return strcmp(simd()->name, value) == 0;
    }
    if (strcmp(option, "--precision") == 0)
        return parse_precision(value, &options->precision);
    if (strcmp(option, "--batch") == 0)
        return parse_batches(value, options);
    if (strcmp(option, "--threads") == 0) {
        if (!parse_number(option, value, 1, 1024, &number))
            return false;
        options->threads = (int)number;
        return true;
    }
    if (strcmp(option, "--seconds") == 0) {
        if (!parse_number(option, value, 1, 3600, &number))
            return false;
        options->seconds = (double)number;
        return true;
    }
    fprintf(stderr, "bench_forward: unknown option %s\n", option);
    return false;
}

/* Fills options; returns the index of the first model, or -1 after saying what is wrong. */
static int parse_arguments(int argc, char **argv, struct options *options)
{
    int i = 1;
    while (i < argc && strncmp(argv[i], "--", 2) == 0) {
        if (strcmp(argv[i], "--serve") == 0) {
            options->serve = true;
            i++;
        } else if (strcmp(argv[i], "--profile") == 0) {
            options->profile = true;
            i++;
        } else if (strcmp(argv[i], "--poison") == 0) {
            options->poison = true;
            i++;
        } else if (i + 1 < argc && parse_option(argv[i], argv[i + 1], options)) {
            i += 2;
        } else {
            break;
        }
    }
    if (i >= argc || strncmp(argv[i], "--", 2) == 0 || argc - i > MAX_MODELS) {
        fprintf(
            stderr,
            "usage: bench_forward [--device cpu] [--precision fp32|tf32|bf16|fp16|int8]\n"
            "                     [--threads N] [--batch 1,8,32] [--seconds 3] [--poison]\n"
            "                     [--cache FOLDER] [--isa avx2] [--serve | --profile] MODEL...\n"
            "MODEL: an .onnx file, a model folder, or digits; at most %d\n",
            MAX_MODELS);
        return -1;
    }
    return i;
}

int main(int argc, char **argv)
{
    struct options options = {.device = "cpu",
                              .precision = PRECISION_FP32,
                              .batches = {1, 8, 32},
                              .batch_count = 3,
                              .seconds = 3};
    const int first = parse_arguments(argc, argv, &options);
    if (first < 0)
        return 2;

    struct candidate candidates[MAX_MODELS] = {0};
    const size_t count = (size_t)(argc - first);
    struct error err = {0};
    enum status status = STATUS_OK;
    recall_tunings(options.cache);
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        candidates[i].path = argv[first + (int)i];
        status = candidate_load(&candidates[i], &options, &err);
    }
    keep_tunings(options.cache);
    if (status == STATUS_OK && options.serve)
        serve(candidates, count, &options);
    else if (status == STATUS_OK && !options.profile)
        status = measure(candidates, count, &options, &err);
    for (size_t i = 0; i < count && status == STATUS_OK && options.profile; i++)
        for (size_t b = 0; b < options.batch_count && status == STATUS_OK; b++)
            status = profile(&candidates[i], options.batches[b], &err);
    if (status != STATUS_OK)
        fprintf(stderr, "bench_forward: %s\n", err.message);
    for (size_t i = 0; i < count; i++)
        candidate_free(&candidates[i]);
    return status == STATUS_OK ? 0 : 1;
}
