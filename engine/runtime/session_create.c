/* A session is a list of compiled batch sizes over one backend.
 *
 *     graph ─ passes (optimize.h has their order) ─▶ static part ─▶ program (backend)
 *                                                └─▶ data-dependent tail, run by the interpreter
 *
 * session_create() runs on the loader's thread. Then another thread owns and runs the session. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/backend/cuda_module.h"
#include "engine/backend/tuning_store.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/runtime/session_internal.h"
#include "engine/tensor/tensor_file.h"

/* Describes a tensor for one image, even if the file fixes a larger batch. */
static struct session_tensor described(const struct compiled_size *c, const char *name,
                                       const struct value *value)
{
    struct shape shape = value->shape;
    if (c->size > 1 && shape.rank > 0 && shape.dims[0] == c->size)
        shape.dims[0] = 1;
    return (struct session_tensor){name, value->dtype, shape};
}

/* Output names come from `graph`, because optimizer passes replace values. */
static enum status describe(struct session *session, const struct graph *graph, struct error *err)
{
    const struct compiled_size *c = &session->compiled[0];
    struct session_tensor *inputs, *outputs;
    session->info.inputs = inputs = alloc_array(session->info.input_count, sizeof *inputs);
    session->info.outputs = outputs = alloc_array(session->info.output_count, sizeof *outputs);
    TRY(check_memory(inputs && outputs, "while creating a session", err));
    for (size_t i = 0; i < session->info.input_count; i++) {
        const struct value *value = c->graph->inputs[i];
        inputs[i] = described(c, value->name, value);
    }
    for (size_t i = 0; i < session->info.output_count; i++) {
        const char *name = graph->outputs[i]->name;
        char *copy = arena_copy_text(c->graph->arena, name, strlen(name));
        TRY(check_memory(copy, "while creating a session", err));
        outputs[i] = described(c, copy, compiled_output(c, i));
        /* graph_validate() detects a wrong declared type only if the file fixes all shapes. */
        const enum dtype declared = graph->outputs[i]->dtype, made = outputs[i].dtype;
        if (declared != DTYPE_NONE && made != DTYPE_NONE &&
            dtype_is_float(declared) != dtype_is_float(made))
            return error_set(err, STATUS_MODEL,
                             "output '%.100s' is declared %s, but the graph makes %s; correct the "
                             "type that the file declares, or export it again",
                             name, dtype_name(declared), dtype_name(made));
    }
    return STATUS_OK;
}

static bool flag_is_set(void *flag)
{
    return *(const _Atomic int *)flag != 0;
}

void session_set_stop(struct session *session, bool (*stop)(void *context), void *context)
{
    session->stop = stop;
    session->stop_context = context;
}

static void progress(const struct session *session, const char *phase, double fraction)
{
    if (session->options.on_progress)
        session->options.on_progress(session->options.progress_context, phase, fraction);
}

static bool on_node(void *context, size_t done, size_t count)
{
    struct session *session = context;
    const double part = (double)done / (double)count;
    const int at = session->compiling.at, others = session->compiling.count - 1;
    double fraction = PROGRESS_WEIGHTS + (PROGRESS_FIRST - PROGRESS_WEIGHTS) * part;
    if (session->compiling.is_over)
        fraction = PROGRESS_ALL + (PROGRESS_ROWS - PROGRESS_ALL) * part;
    else if (at > 0)
        fraction = PROGRESS_FIRST + (PROGRESS_ALL - PROGRESS_FIRST) * (at - 1 + part) / others;
    progress(session, PHASE_COMPILE, fraction);
    return !session_is_stopped(session);
}

static bool file_fixes_batch(const struct session *session)
{
    const struct session_options *options = &session->options;
    return options->image_input < session->info.input_count &&
           session->base->inputs[options->image_input]->shape.rank > 0 &&
           session->base->inputs[options->image_input]->shape.dims[0] >= 1;
}

/* Compiles the batch size that the file fixes, if it is above 1. Otherwise compiles
 * options.batches, or 1, 2, 4 … max (for a trial: 1 and max). Stops at the first size that the
 * graph or the memory does not allow. */
static enum status compile_all(struct session *session, struct error *err)
{
    enum { MOST_IMAGES = 4096 };
    int sizes[SESSION_MAX_BATCHES], count = 0;
    int max = session->options.max_batch > 0 ? session->options.max_batch : 1;
    int fixed = 0;
    session->fixes_batch = file_fixes_batch(session);
    if (session->fixes_batch) {
        int64_t batch = session->base->inputs[session->options.image_input]->shape.dims[0];
        if (batch > MOST_IMAGES)
            return error_set(err, STATUS_UNSUPPORTED,
                             "the file fixes the batch size to %lld images, but lensd runs at most "
                             "%d together; re-export the model with a smaller batch",
                             (long long)batch, MOST_IMAGES);
        fixed = (int)batch;
    }
    if (fixed > 1) {
        sizes[count++] = fixed; /* the file allows only this size */
    } else if (session->options.batches[0] > 0) {
        for (; count < SESSION_MAX_BATCHES && session->options.batches[count] > 0; count++)
            sizes[count] = session->options.batches[count];
    } else {
        const int step = session->options.trial ? max : 2;
        for (int b = 1; b < max && count < SESSION_MAX_BATCHES - 1; b *= step)
            sizes[count++] = b;
        sizes[count++] = max;
    }
    session->info.batched = true;
    for (int i = 0; i < count; i++) {
        if (session_is_stopped(session))
            return error_set(err, STATUS_CANCELLED, "loading was cancelled");
        struct compiled_size *c = &session->compiled[i];
        session->compiling.at = i;
        session->compiling.count = count;
        enum status status = compiled_create(session, sizes[i], c, err);
        session->compiled_count = (size_t)i + 1;
        tuning_save();
        const size_t most = session->options.batch_activations;
        const bool is_large = status == STATUS_OK && i > 0 && most &&
                              session->ops->activation_bytes(c->program) > most;
        if (!is_large)
            IF_OK(status, session_check_memory(session, err));
        if (status == STATUS_OK && !is_large)
            continue;
        if (i == 0 || status == STATUS_CANCELLED ||
            (status == STATUS_NO_MEMORY && session->options.max_batch_is_pinned))
            return status;
        compiled_done(session, c);
        session->compiled_count--;
        session->info.batched = i > 1 || status == STATUS_OK || status == STATUS_NO_MEMORY;
        session->info.rows_mix = !session->info.batched && session->rows_are_refused;
        if (status != STATUS_OK && session->info.batched)
            snprintf(session->info.note, sizeof session->info.note,
                     status == STATUS_NO_MEMORY ? "batches have at most %d images: %.118s"
                                                : "batches above %d do not compile: %.100s",
                     sizes[i - 1], err->message);
        else if (status != STATUS_OK)
            snprintf(session->info.note, sizeof session->info.note,
                     "images are run one by one: %.120s", err->message);
        break;
    }
    if (count == 1 && sizes[0] == 1)
        compiled_look_at_two(session);
    if (session->fixes_batch && session->compiled_count > 1 && !session->info.note[0])
        snprintf(session->info.note, sizeof session->info.note,
                 "the file fixes the batch size to 1, but lensd has checked that its graph runs "
                 "batches");
    progress(session, PHASE_COMPILE, PROGRESS_ALL);
    return STATUS_OK;
}

/* Fills info.parameter_bytes. A data-dependent tail packs its weights in its first run, so finish()
 * calls this again after measuring. */
static void describe_weights(struct session *session)
{
    session->info.parameter_bytes = session->ops->weight_bytes(session->backend);
    if (session->tail_backend)
        session->info.parameter_bytes += session->ops->weight_bytes(session->tail_backend);
}

/* Fills info.batches except L(b). */
static void describe_batches(struct session *session)
{
    session->info.activation_bytes = 0;
    for (size_t i = 0; i < session->compiled_count; i++) {
        const struct compiled_size *c = &session->compiled[i];
        const size_t bytes = session->ops->activation_bytes(c->program);
        session->info.batches[i] =
            (struct session_batch){.size = c->size, .activation_bytes = bytes};
        if (bytes > session->info.activation_bytes)
            session->info.activation_bytes = bytes;
    }
    session->info.batch_count = session->compiled_count;
    if (session->ops->reserved_bytes)
        session->info.activation_bytes = session->ops->reserved_bytes(session->backend);
}

static enum status finish(struct session *session, struct error *err)
{
    progress(session, PHASE_MEASURE, PROGRESS_ROWS);
    TRY(session_measure(session, err));
    if (session->info.streams)
        session->info.depth = session->info.streams + 1;
    describe_weights(session);
    if (session->compiled_count > 1) /* unused sizes should not hold memory */
        session_release_pages(session);
    return STATUS_OK;
}

void session_release_pages(struct session *session)
{
    if (session->ops->release_pages)
        session->ops->release_pages(session->backend);
}

/* Allocates the planned memory on the device. If the memory is no longer free, drops the largest
 * sizes, one after another, unless the user requires all sizes. */
static enum status reserve(struct session *session, struct error *err)
{
    session->compiling.is_over = true;
    for (;;) {
        enum status status = session->ops->reserve(session->backend, err);
        if (status != STATUS_DEVICE_MEMORY || session->compiled_count < 2 ||
            session->options.max_batch_is_pinned)
            return status;
        compiled_done(session, &session->compiled[--session->compiled_count]);
        session->info.batched = session->compiled_count > 1;
        snprintf(session->info.note, sizeof session->info.note,
                 "batches have at most %d images: %.118s",
                 session->compiled[session->compiled_count - 1].size, err->message);
    }
}

size_t session_share_arena(struct session *session, struct shared_arena *arena)
{
    const struct backend_ops *ops = session->ops;
    return ops->share_arena ? ops->share_arena(session->backend, arena) : 0;
}

static enum status settle(const struct tensor *tensor, struct error *err)
{
    struct mapping *mapping = tensor ? tensor_mapping(tensor) : NULL;
    if (!mapping)
        return STATUS_OK;
    const struct tensor *owner = tensor->base ? tensor->base : tensor;
    bool kept = atomic_load(&owner->refs) > 1; /* a program also holds the memory */
    enum status status = STATUS_OK;
    if (kept)
        status = mapping_settle(mapping, err);
    else if (!mapping_is_whole(mapping))
        status = error_set(err, STATUS_IO, MAPPING_CHANGED);
    else
        mapping_let_go(mapping);
    return status;
}

/* Makes the session independent of the files from which the weights of the caller's `graph` were
 * mapped. Compiling packs most constants into other layouts; the mapped pages of packed constants
 * are released. Constants that programs read in place are copied to process memory. STATUS_IO if a
 * file has changed since it was mapped: packed weights may then be a mix of two files, or zeros.
 * Recurses into subgraphs, whose depth the importer bounds. */
static enum status settle_weights(const struct graph *graph, struct error *err)
{
    for (size_t v = 0; v < graph->value_count; v++)
        if (settle(graph->values[v]->known, err) != STATUS_OK)
            return error_prefix(err, "the weights '%s'", graph->values[v]->name);
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        for (size_t a = 0; a < node->attr_count; a++) {
            if (node->attrs[a].kind == ATTR_TENSOR && settle(node->attrs[a].t, err) != STATUS_OK)
                return error_prefix(err, "attribute '%s' of '%s'", node->attrs[a].name, node->name);
            if (node->attrs[a].kind == ATTR_GRAPH)
                TRY(settle_weights(node->attrs[a].g, err));
        }
    }
    return STATUS_OK;
}

static enum status build(struct session *session, const struct graph *graph, struct error *err)
{
    TRY(graph_clone(graph, &session->base, err));
    session->info.input_count = graph->input_count;
    session->info.output_count = graph->output_count;
    const bool is_cpu = session->options.device.kind == DEVICE_CPU;
    if (is_cpu)
        session_begin_memory(session);
    TRY(session_feed_channels_last(session, err));
    if (session->options.precision == PRECISION_INT8)
        TRY(optimize_quantized(session->base, session->ops->multiplies_to_float, err));
    if (session->ops->rounds_dynamically)
        TRY(optimize_dynamic(session->base, err));
    TRY(optimize_weights(session->base, err));
    TRY(optimize_recurrent(session->base, err));
    TRY(session_check_weights(session, err));
    TRY(session_choose_threads(session, err));
    const struct backend_options options = {.device = session->options.device,
                                            .precision = session->options.precision,
                                            .threads = session->options.threads,
                                            .poison = session->options.poison,
                                            .pixels = session->options.pixels,
                                            .pixels_input = session->options.image_input,
                                            .memory = is_cpu ? &session->memory : NULL,
                                            .on_node = on_node,
                                            .is_stopped = session_is_stopped,
                                            .on_run_ended = session_run_ended,
                                            .context = session};
    progress(session, PHASE_OPTIMISE, PROGRESS_WEIGHTS);
    TRY(session->ops->open(&options, &session->backend, err));
    TRY(compile_all(session, err));
    TRY(reserve(session, err));
    TRY(describe(session, graph, err));
    TRY(session_prepare_runs(session, err));
    graph_free(session->base);
    session->base = NULL;
    TRY(settle_weights(graph, err));
    describe_weights(session);
    describe_batches(session);
    session->info.node_count = session->compiled[0].graph->node_count;
    if (!session->options.trial)
        TRY(finish(session, err));
    progress(session, PHASE_MEASURE, 1);
    session->options.on_progress = NULL; /* progress_context may be freed now */
    session->options.pixels = NULL;      /* the caller may free `pixels` now */
    return STATUS_OK;
}

/* Returns the backend of the device, or NULL with an error if it is not available. */
static const struct backend_ops *backend_find(struct device_id device, struct error *err)
{
    const char *reason;
    const struct cuda_module *module;
    switch (device.kind) {
    case DEVICE_CPU:
        return &backend_cpu;
    case DEVICE_CUDA:
        module = cuda_module(&reason);
        if (module)
            return module->backend;
        (void)error_set(err, STATUS_DEVICE, "%s: %s", DEVICE_STRING(device), reason);
        break;
    }
    return NULL;
}

enum status session_buffer_create(struct device_id device, size_t bytes, void **ret,
                                  struct error *err)
{
    const struct backend_ops *ops = backend_find(device, err);
    if (!ops)
        return STATUS_DEVICE;
    if (ops->host_alloc)
        return ops->host_alloc(device, bytes, ret, err);
    /* the length for munmap() lies before the data */
    size_t all, *pages = MAP_FAILED;
    if (size_add(bytes, TENSOR_ALIGN, &all))
        pages = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %zu bytes of inputs", bytes);
    *pages = all;
    *ret = (char *)pages + TENSOR_ALIGN;
    return STATUS_OK;
}

void session_buffer_free(struct device_id device, void *data)
{
    const struct backend_ops *ops = backend_find(device, NULL);
    size_t *pages = data ? (void *)((char *)data - TENSOR_ALIGN) : NULL;
    if (ops && ops->host_free)
        ops->host_free(data);
    else if (pages)
        munmap(pages, *pages);
}

static enum status refuse_int8(const struct graph *graph, struct error *err)
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const enum op op = graph->nodes[n]->op;
        if (op == OP_DYNAMIC_QUANTIZE_LINEAR)
            return error_set(err, STATUS_UNSUPPORTED,
                             "the precision int8 needs a file quantized statically (QDQ or "
                             "QOperator), and this one is quantized dynamically "
                             "(quantize_dynamic), which runs at auto or fp32");
        if (op == OP_DEQUANTIZE_LINEAR || op == OP_MATMUL_NBITS)
            return error_set(err, STATUS_UNSUPPORTED,
                             "the precision int8 needs 8-bit activations, and only the weights of "
                             "this model are quantized (%s); run it at auto or fp32",
                             op_name(op));
    }
    return error_set(err, STATUS_UNSUPPORTED,
                     "the precision int8 needs a quantized file (QDQ or QOperator), and this one "
                     "is not; make one with lensd quantize, or leave it at auto");
}

/* A run may use 1 / RUN_SHARE of the machine's memory: clients' values can determine the shapes of
 * data-dependent parts, and models, bodies, photos and other requests need memory, too. */
#define RUN_SHARE 8

static void session_limit_runs(struct session *session, const struct session_options *options)
{
    uint64_t total, available;
    cpu_memory(&total, &available);
    const size_t share = (size_t)(total / RUN_SHARE), most = options->memory_limit;
    session->tail_budget.limit = !options->run_memory && most && most < share ? most : share;
    session->tail_budget.whole = options->run_memory;
}

enum status session_create(const struct graph *graph, const struct session_options *options,
                           struct session **ret, struct error *err)
{
    const struct backend_ops *ops = backend_find(options->device, err);
    if (!ops)
        return STATUS_DEVICE;
    if ((options->precision == PRECISION_FP16 || options->precision == PRECISION_TF32) &&
        options->device.kind == DEVICE_CPU)
        return error_set(err, STATUS_UNSUPPORTED,
                         "the precision %s is for GPUs; use fp32 or bf16 on a CPU",
                         precision_name(options->precision));
    if (options->precision == PRECISION_INT8 && !optimize_is_quantized(graph))
        return refuse_int8(graph, err);
    if (options->precision == PRECISION_BF16 && options->device.kind == DEVICE_CPU &&
        !device_cpu_has_bf16())
        return error_set(
            err, STATUS_DEVICE,
            "--precision bf16 needs a CPU with AVX512-BF16, AMX or (arm64) BF16, which "
            "this one is not; use --precision fp32");
    struct session *session = calloc(1, sizeof *session);
    TRY(check_memory(session, "while creating a session", err));
    session->ops = ops;
    session_limit_runs(session, options);
    session->options = *options;
    if (options->cancel)
        session_set_stop(session, flag_is_set, (void *)(uintptr_t)options->cancel);
    session->info.device = options->device;
    session->info.precision = options->precision;
    session->info.threads = session->options.threads;
    struct error own;
    enum status status = build(session, graph, err ? err : &own);
    if (status != STATUS_OK) {
        session_free(session);
        return status;
    }
    *ret = session;
    return STATUS_OK;
}

enum status session_enter(struct session *session, struct error *err)
{
    return session->ops->enter ? session->ops->enter(session->backend, err) : STATUS_OK;
}

void session_free(struct session *session)
{
    if (!session)
        return;
    for (size_t i = 0; i < SESSION_MAX_BATCHES; i++)
        compiled_done(session, &session->compiled[i]);
    if (session->backend)
        session->ops->close(session->backend);
    if (session->tail_backend)
        session->ops->close(session->tail_backend);
    graph_free(session->base);
    FREE_ALL((void *)(uintptr_t)session->info.inputs, (void *)(uintptr_t)session->info.outputs,
             session->wanted, session->all_pixels, session);
}
