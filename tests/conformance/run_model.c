/* Runs one model on given arrays, as a compiled session does it.
 *
 *     lensd_run MODEL.onnx --out FOLDER [options] [IN0.npy IN1.npy …]
 *
 * Arrays are the graph's inputs in its order; theirs are the shapes the model is compiled for.
 * Output i becomes FOLDER/outI.npy. Prints one line of JSON about the load and the run. Exits 1
 * with a sentence on standard error when the model does not load or run, 2 on a wrong call.
 *
 *     --batch          a symbolic first dimension stays one: the arrays are one batch of a session
 *                      that is compiled for batches up to theirs
 *     --bf16           in bfloat16
 *     --int8           a quantized file in 8-bit integers
 *     --interpret      the reference kernels, without a session
 *     --threads N      of the forward pass (default: what a session chooses)
 *     --profile        a line per compiled step on standard error */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/runtime/session.h"
#include "models/onnx/onnx.h"
#include "tests/conformance/npy.h"
#include "tests/conformance/runner.h"

struct options {
    const char *model, *out;
    char **arrays;
    size_t array_count;
    bool batch, bf16, int8, interpret, profile;
    int threads;
};

struct report {
    double load_ms, run_ms;
    const struct session_info *info; /* NULL when interpreted */
};

static bool parse(int argc, char **argv, struct options *ret)
{
    static const struct option options[] = {
        {"out", required_argument, NULL, 'o'}, {"batch", no_argument, NULL, 'b'},
        {"bf16", no_argument, NULL, 'f'},      {"int8", no_argument, NULL, '8'},
        {"interpret", no_argument, NULL, 'i'}, {"threads", required_argument, NULL, 't'},
        {"profile", no_argument, NULL, 'p'},   {0},
    };
    *ret = (struct options){0};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'o':
            ret->out = optarg;
            break;
        case 'b':
            ret->batch = true;
            break;
        case 'f':
            ret->bf16 = true;
            break;
        case '8':
            ret->int8 = true;
            break;
        case 'i':
            ret->interpret = true;
            break;
        case 'p':
            ret->profile = true;
            break;
        case 't':
            ret->threads = (int)strtol(optarg, NULL, 10);
            break;
        default:
            return false;
        }
    }
    if (optind >= argc || !ret->out)
        return false;
    ret->model = argv[optind];
    ret->arrays = argv + optind + 1;
    ret->array_count = (size_t)(argc - optind - 1);
    return true;
}

/* Gives the graph's inputs the shapes of the arrays; *ret_batch is the batch they hold (1 where
 * the file declares all dimensions, or --batch was not asked for). */
static enum status fit_shapes(struct graph *graph, struct tensor *const *inputs, bool batch,
                              int *ret_batch, struct error *err)
{
    *ret_batch = 1;
    for (size_t i = 0; i < graph->input_count; i++) {
        struct value *value = graph->inputs[i];
        if (value->dtype != inputs[i]->dtype)
            return error_set(err, STATUS_INVALID, "input '%s' is %s, the array is %s", value->name,
                             dtype_name(value->dtype), dtype_name(inputs[i]->dtype));
        bool symbolic = batch && value->shape.rank > 0 && value->shape.dims[0] == DIM_UNKNOWN;
        value->shape = inputs[i]->shape;
        if (symbolic) {
            *ret_batch = (int)inputs[i]->shape.dims[0];
            value->shape.dims[0] = DIM_UNKNOWN;
        }
    }
    return STATUS_OK;
}

/* Copies of the arrays, padded with zeros to the batch a session compiled. */
static void **pad(const struct session *session, struct tensor *const *inputs, size_t count,
                  int batch)
{
    void **ret = alloc_array(count, sizeof *ret);
    size_t padded = (size_t)session_batch_for(session, batch);
    for (size_t i = 0; ret && i < count; i++) {
        size_t bytes = inputs[i]->bytes / (size_t)batch * padded;
        size_t room = size_align(bytes + 1, TENSOR_ALIGN);
        ret[i] = aligned_alloc(TENSOR_ALIGN, room);
        if (!ret[i])
            abort();
        memset(ret[i], 0, room);
        memcpy(ret[i], inputs[i]->data, inputs[i]->bytes);
    }
    return ret;
}

static enum status write_outputs(const char *folder, const struct tensor *const *outputs,
                                 size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%.4000s/out%zu.npy", folder, i);
        TRY(npy_write(path, outputs[i], err));
    }
    return STATUS_OK;
}

static enum status print_profile(struct session *session, int batch, struct error *err)
{
    struct session_step *steps;
    size_t count;
    TRY(session_profile(session, batch, 3, &steps, &count, err));
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "%9.4f ms %8.4f GFLOP  %-24s %s\n", steps[i].milliseconds, steps[i].gflop,
                steps[i].kernel, steps[i].name);
    free(steps);
    return STATUS_OK;
}

static enum status run_session(const struct options *options, struct graph *graph,
                               struct tensor *const *inputs, int batch, struct session **session,
                               struct report *report, struct error *err)
{
    struct session_options how = {
        .precision = options->bf16   ? PRECISION_BF16
                     : options->int8 ? PRECISION_INT8
                                     : PRECISION_FP32,
        .threads = options->threads,
        .max_batch = batch,
        .image_input = SIZE_MAX,
    };
    int64_t start = clock_now();
    TRY(session_create(graph, &how, session, err));
    report->load_ms += clock_ms(clock_now() - start);
    report->info = session_info(*session);
    if (batch > report->info->batches[report->info->batch_count - 1].size)
        return error_set(err, STATUS_SHAPE, "no batch of %d: %s", batch, report->info->note);
    const struct tensor **outputs = alloc_array(graph->output_count, sizeof *outputs);
    void **padded = pad(*session, inputs, graph->input_count, batch);
    if (!outputs || !padded)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    start = clock_now();
    enum status status = session_run(*session, batch, (const void *const *)padded, outputs, err);
    report->run_ms = clock_ms(clock_now() - start);
    if (status == STATUS_OK)
        status = write_outputs(options->out, outputs, graph->output_count, err);
    for (size_t i = 0; i < graph->input_count; i++)
        free(padded[i]);
    free(padded);
    free(outputs);
    if (status == STATUS_OK && options->profile)
        status = print_profile(*session, batch, err);
    return status;
}

static enum status run_reference(const struct options *options, struct graph *graph,
                                 struct tensor *const *inputs, struct report *report,
                                 struct error *err)
{
    struct tensor **outputs = alloc_array(graph->output_count, sizeof *outputs);
    if (!outputs)
        return error_set(err, STATUS_NO_MEMORY, "out of memory");
    int64_t start = clock_now();
    enum status status = run_interpreted(graph, inputs, outputs, err);
    report->run_ms = clock_ms(clock_now() - start);
    if (status == STATUS_OK)
        status = write_outputs(options->out, (const struct tensor *const *)outputs,
                               graph->output_count, err);
    for (size_t i = 0; i < graph->output_count; i++)
        tensor_unref(outputs[i]);
    free(outputs);
    return status;
}

/* Of this program alone: getrusage() would count what its parent held when it forked. */
static double peak_memory_mb(void)
{
    char line[256];
    double kilobytes = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "VmHWM:", 6))
            kilobytes = strtod(line + 6, NULL);
    if (file)
        fclose(file);
    return kilobytes / 1024;
}

static void print_report(const struct graph *graph, const struct report *report, int batch)
{
    printf("{\"opset\": %d, \"nodes\": %zu, \"load_ms\": %.1f, \"run_ms\": %.3f, \"batch\": %d, "
           "\"max_rss_mb\": %.1f",
           graph->opset, graph->node_count, report->load_ms, report->run_ms, batch,
           peak_memory_mb());
    if (report->info)
        printf(", \"one_ms\": %.3f, \"compiled_nodes\": %zu, \"weights_mb\": %.1f, "
               "\"activations_mb\": %.1f, \"threads\": %d",
               report->info->batches[0].milliseconds, report->info->node_count,
               (double)report->info->parameter_bytes * 0x1p-20,
               (double)report->info->activation_bytes * 0x1p-20, report->info->threads);
    printf("}\n");
}

static enum status run_model(const struct options *options, struct error *err)
{
    struct onnx_model model;
    struct report report = {0};
    struct session *session = NULL;
    int batch = 1;
    int64_t start = clock_now();
    TRY(onnx_load_file(options->model, 0, &model, err));
    report.load_ms = clock_ms(clock_now() - start);
    size_t count = model.graph->input_count;
    struct tensor **inputs = alloc_array(count, sizeof *inputs);
    enum status status = inputs ? STATUS_OK : error_set(err, STATUS_NO_MEMORY, "out of memory");
    if (status == STATUS_OK && count != options->array_count)
        status = error_set(err, STATUS_INVALID, "the model has %zu inputs, %zu arrays were given",
                           count, options->array_count);
    for (size_t i = 0; i < count && status == STATUS_OK; i++)
        status = npy_read(options->arrays[i], &inputs[i], err);
    if (status == STATUS_OK)
        status = fit_shapes(model.graph, inputs, options->batch, &batch, err);
    if (status == STATUS_OK && options->interpret)
        status = run_reference(options, model.graph, inputs, &report, err);
    else if (status == STATUS_OK)
        status = run_session(options, model.graph, inputs, batch, &session, &report, err);
    if (status == STATUS_OK)
        print_report(model.graph, &report, batch);
    session_free(session);
    for (size_t i = 0; inputs && i < count; i++)
        tensor_unref(inputs[i]);
    free(inputs);
    onnx_model_done(&model);
    return status;
}

int main(int argc, char **argv)
{
    struct options options;
    struct error err;
    if (!parse(argc, argv, &options)) {
        fprintf(stderr, "usage: lensd_run MODEL.onnx --out FOLDER [--batch] [--bf16] [--interpret] "
                        "[--threads N] [--profile] [IN0.npy …]\n");
        return 2;
    }
    if (run_model(&options, &err) == STATUS_OK)
        return 0;
    fprintf(stderr, "%s: %s\n", status_word(err.status), err.message);
    return 1;
}
