/* The table of models, and what concerns them all: states, submit by name, drain.
 *
 * Locks: `lock` guards the table. An entry's scheduler and lanes appear once, with the lock held,
 * and stay until pipeline_free, so whoever has read the pointer may use it without the lock;
 * nothing of a scheduler is called while it is held. `state` is an atomic copy, so that it can be
 * read anywhere. */
#include "server/schedule/pipeline.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/schedule/budget.h"
#include "server/schedule/lane.h"
#include "server/schedule/meters.h"
#include "server/schedule/worker.h"

#define DEFAULT_MAX_BATCH 8
#define DEFAULT_MAX_QUEUE 256
#define MAX_QUEUE         (1u << 20)
#define MAX_THREADS       1024
#define MAX_TIME_MS       3600000

/* One line of the table. */
struct served_model {
    char name[sizeof((struct model_status *)0)->name];
    int state; /* MODEL_… of struct model_status */
    double progress;
    char failure[sizeof((struct model_status *)0)->failure];
    /* Set together when it becomes ready, unchanged afterwards. */
    struct model *model;
    struct scheduler *scheduler;
    struct lane *lanes[DEVICE_MAX];
    size_t lane_count;
};

struct pipeline {
    struct pipeline_options options; /* immutable, defaults filled in */
    struct pool *pool;
    struct budget *budget;
    _Atomic int state; /* enum pipeline_state */

    pthread_mutex_t lock;
    struct served_model *models; /* PIPELINE_MAX_MODELS, of which model_count are in use */
    size_t model_count;
    size_t default_model; /* SIZE_MAX: none yet */
    size_t required_total;
    bool draining;
};

static enum status check_options(const struct pipeline_options *options, struct error *err)
{
    if (options->device_count < 1 || options->device_count > DEVICE_MAX)
        return error_set(err, STATUS_CONFIG, "%zu devices; 1 to %d can be used",
                         options->device_count, DEVICE_MAX);
    if (options->max_batch < 0 || options->max_batch > BATCHER_MAX_BATCH)
        return error_set(err, STATUS_CONFIG, "a largest batch of %d; 1 to %d is possible",
                         options->max_batch, BATCHER_MAX_BATCH);
    if (options->max_queue > MAX_QUEUE)
        return error_set(err, STATUS_CONFIG, "a queue of %zu images; 1 to %u is possible",
                         options->max_queue, MAX_QUEUE);
    if (options->max_queue_ms < 0 || options->max_queue_ms > MAX_TIME_MS ||
        options->max_delay_us < 0 || options->max_delay_us > MAX_TIME_MS)
        return error_set(err, STATUS_CONFIG,
                         "a queue of %" PRId64 " ms and a delay of %" PRId64
                         " us; 0 to %d are possible",
                         options->max_queue_ms, options->max_delay_us, MAX_TIME_MS);
    if (options->workers < 0 || options->workers > MAX_THREADS || options->threads < 0 ||
        options->threads > MAX_THREADS)
        return error_set(err, STATUS_CONFIG,
                         "%d decode and %d forward threads; 1 to %d are possible, 0 for as many as "
                         "there are cores",
                         options->workers, options->threads, MAX_THREADS);
    return STATUS_OK;
}

/* Several lanes on the CPU share its cores evenly; a lane alone lets the session choose (0). */
static int threads_per_lane(const struct pipeline_options *options)
{
    int lanes = 0;
    for (size_t i = 0; i < options->device_count; i++)
        lanes += options->devices[i].kind == DEVICE_CPU;
    if (lanes < 2)
        return 0;
    int threads = device_cpu_threads() / lanes;
    return threads > 1 ? threads : 1;
}

static struct budget *create_budget(const struct pipeline_options *options)
{
    struct budget_limit limits[DEVICE_MAX];
    budget_limits(options->devices, options->memory_limits, options->device_count, limits);
    return budget_create(limits, options->device_count);
}

/* Lanes of options->devices[i …] that are on the same device as number i. */
static int lanes_to_come(const struct pipeline_options *options, size_t i)
{
    int lanes = 0;
    for (size_t k = i; k < options->device_count; k++)
        lanes += options->devices[k].kind == options->devices[i].kind &&
                 options->devices[k].index == options->devices[i].index;
    return lanes;
}

/* How many lanes' batch buffers a lane has to answer for: those of the host are in its memory. */
static void count_inputs(const struct pipeline_options *options, struct session_options *session)
{
    if (session->device.kind != DEVICE_CPU)
        return;
    size_t lanes = options->device_count;
    session->input_batches = (lanes + 2 + lanes - 1) / lanes;
    session->input_images = ((size_t)options->workers + lanes - 1) / lanes;
}

static void fill_in_defaults(struct pipeline_options *options)
{
    if (options->threads == 0)
        options->threads = threads_per_lane(options);
    if (options->workers == 0)
        options->workers = device_cpu_threads();
    if (options->max_queue == 0)
        options->max_queue = DEFAULT_MAX_QUEUE;
}

enum status pipeline_create(const struct pipeline_options *options, struct pipeline **ret,
                            struct error *err)
{
    TRY(check_options(options, err));
    struct pipeline *pipeline = calloc(1, sizeof *pipeline);
    if (!pipeline)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the pipeline");
    pipeline->options = *options;
    fill_in_defaults(&pipeline->options);
    pthread_mutex_init(&pipeline->lock, NULL);
    pipeline->default_model = SIZE_MAX;
    pipeline->models = alloc_array(PIPELINE_MAX_MODELS, sizeof *pipeline->models);
    enum status status = STATUS_OK;
    pipeline->budget = create_budget(&pipeline->options);
    if (!pipeline->models || !pipeline->budget)
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the table of models");
    else
        status = pool_create(&(struct pool_options){.threads = pipeline->options.workers,
                                                    .start = worker_start,
                                                    .run = worker_run,
                                                    .stop = worker_stop,
                                                    .context = &pipeline->options.limits},
                             &pipeline->pool, err);
    if (status != STATUS_OK) {
        pipeline_free(pipeline);
        return status;
    }
    *ret = pipeline;
    return STATUS_OK;
}

static struct served_model *find_locked(struct pipeline *pipeline, const char *name)
{
    for (size_t i = 0; i < pipeline->model_count; i++)
        if (!strcmp(pipeline->models[i].name, name))
            return &pipeline->models[i];
    return NULL;
}

/* The entry of that name, a new one if need be; NULL when the table is full. */
static struct served_model *enter_locked(struct pipeline *pipeline, const char *name)
{
    struct served_model *entry = find_locked(pipeline, name);
    if (entry || pipeline->model_count == PIPELINE_MAX_MODELS)
        return entry;
    entry = &pipeline->models[pipeline->model_count++];
    *entry = (struct served_model){.state = MODEL_LOADING};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    return entry;
}

/* After every change of the table. */
static void update_state_locked(struct pipeline *pipeline)
{
    size_t ready = 0, failed = 0;
    for (size_t i = 0; i < pipeline->model_count; i++) {
        ready += pipeline->models[i].state == MODEL_READY;
        failed += pipeline->models[i].state == MODEL_FAILED;
    }
    size_t required = pipeline->required_total > 1 ? pipeline->required_total : 1;
    enum pipeline_state state = pipeline->draining  ? PIPELINE_DRAINING
                                : ready >= required ? PIPELINE_READY
                                : failed > 0        ? PIPELINE_FAILED
                                                    : PIPELINE_LOADING;
    atomic_store_explicit(&pipeline->state, (int)state, memory_order_release);
}

enum pipeline_state pipeline_state(const struct pipeline *pipeline)
{
    return (enum pipeline_state)atomic_load_explicit(&pipeline->state, memory_order_acquire);
}

void pipeline_announce(struct pipeline *pipeline, const char *name, size_t required_total)
{
    pthread_mutex_lock(&pipeline->lock);
    struct served_model *entry = enter_locked(pipeline, name);
    if (entry && entry->state == MODEL_FAILED) { /* tried again */
        entry->state = MODEL_LOADING;
        entry->progress = 0;
    }
    if (required_total > pipeline->required_total)
        pipeline->required_total = required_total;
    update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
}

void pipeline_progress(struct pipeline *pipeline, const char *name, double fraction,
                       const char *failure)
{
    pthread_mutex_lock(&pipeline->lock);
    struct served_model *entry = find_locked(pipeline, name);
    if (entry && entry->state != MODEL_READY) {
        entry->progress = fraction;
        if (failure) {
            entry->state = MODEL_FAILED;
            snprintf(entry->failure, sizeof entry->failure, "%s", failure);
        }
        update_state_locked(pipeline);
    }
    pthread_mutex_unlock(&pipeline->lock);
}

/* --- adding a model --- */

/* What is being built; becomes part of the table's entry at the end. */
struct loading {
    struct pipeline *pipeline;
    struct model *model;
    struct scheduler *scheduler;
    struct lane *lanes[DEVICE_MAX];
    size_t lane_count;
};

static void on_progress(void *context, double fraction)
{
    const struct loading *loading = context;
    double lanes = (double)loading->pipeline->options.device_count;
    pipeline_progress(loading->pipeline, loading->model->name,
                      ((double)loading->lane_count + fraction) / lanes, NULL);
}

static enum status check_name(struct pipeline *pipeline, const char *name, struct error *err)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&pipeline->lock);
    if (strlen(name) >= sizeof pipeline->models->name) {
        status = error_set(err, STATUS_CONFIG,
                           "the model's name has %zu bytes; at most %zu are "
                           "possible, give it a shorter one",
                           strlen(name), sizeof pipeline->models->name - 1);
    } else if (pipeline->draining) {
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    } else {
        struct served_model *entry = enter_locked(pipeline, name);
        if (!entry)
            status = error_set(err, STATUS_CONFIG, "%d models are served, which is the most",
                               PIPELINE_MAX_MODELS);
        else if (entry->state == MODEL_READY)
            status =
                error_set(err, STATUS_CONFIG,
                          "a model named '%s' is served already; give this one another name", name);
    }
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

/* What the operator says binds; the model's own wish (config.pbtxt) goes before the default. */
static int choose_max_batch(const struct pipeline_options *options, const struct model *model)
{
    int64_t most = options->max_batch ? options->max_batch : BATCHER_MAX_BATCH;
    int64_t wish = model->max_batch > 0     ? model->max_batch
                   : options->max_batch > 0 ? options->max_batch
                                            : DEFAULT_MAX_BATCH;
    return (int)(wish < most ? wish : most);
}

/* A session on every device. */
static enum status create_lanes_in_turn(struct loading *loading, const _Atomic int *cancel,
                                        struct error *err)
{
    const struct pipeline_options *options = &loading->pipeline->options;
    const struct model *model = loading->model;
    if (model->image_input == SIZE_MAX)
        return error_set(err, STATUS_UNSUPPORTED,
                         "model '%s' has no input that looks like an image; image classifiers are "
                         "served",
                         model->name);
    for (size_t i = 0; i < options->device_count; i++) {
        struct session_options session = {
            .device = options->devices[i],
            .precision = options->precision,
            .threads = options->threads,
            .max_batch = choose_max_batch(options, model),
            .image_input = model->image_input,
            .image_layout = IMAGE_NHWC_F32,
            .image_channels_last = model->input_channels_last,
            .image_height = model->preprocess.height,
            .image_width = model->preprocess.width,
            .on_progress = on_progress,
            .progress_context = loading,
            .cancel = cancel,
            .memory_limit = budget_share(loading->pipeline->budget, options->devices[i],
                                         lanes_to_come(options, i)),
            .max_batch_is_pinned = options->max_batch > 0,
        };
        count_inputs(options, &session);
        TRY(lane_create(model, &session, loading->pipeline->budget, &loading->lanes[i], err));
        loading->lane_count++;
    }
    return STATUS_OK;
}

static enum status create_lanes(struct loading *loading, const _Atomic int *cancel,
                                struct error *err)
{
    if (!budget_begin(loading->pipeline->budget, cancel))
        return error_set(err, STATUS_CANCELLED, "loading was cancelled");
    enum status status = create_lanes_in_turn(loading, cancel, err);
    budget_end(loading->pipeline->budget);
    return status;
}

static enum status create_scheduler(struct loading *loading, struct error *err)
{
    const struct pipeline_options *options = &loading->pipeline->options;
    const struct preprocess *p = &loading->model->preprocess;
    /* Every lane must be able to run every batch. */
    int max_batch = choose_max_batch(options, loading->model), padded_batch = 1;
    for (size_t i = 0; i < loading->lane_count; i++) {
        int lane_batch = lane_max_batch(loading->lanes[i]);
        max_batch = lane_batch < max_batch ? lane_batch : max_batch;
    }
    for (size_t i = 0; i < loading->lane_count; i++) {
        int padded = lane_padded_batch(loading->lanes[i], max_batch);
        padded_batch = padded > padded_batch ? padded : padded_batch;
    }
    size_t pixels = (size_t)p->height * (size_t)p->width; /* each at most 16384 */
    struct scheduler_options scheduler = {
        .model = loading->model,
        .metrics = options->metrics,
        .pool = loading->pipeline->pool,
        .admission = {.max_images = options->max_queue,
                      .max_bytes = options->max_queue_bytes,
                      .max_wait_ns = options->max_queue_ms * 1000000},
        .max_batch = max_batch,
        .lanes = (int)loading->lane_count,
        .max_delay = options->max_delay_us * 1000,
        .workers = options->workers,
        .padded_batch = padded_batch,
        .image_floats = pixels * (size_t)preprocess_channels(p),
    };
    TRY(scheduler_create(&scheduler, &loading->scheduler, err));
    for (size_t i = 0; i < loading->lane_count; i++)
        TRY(lane_start(loading->lanes[i], loading->scheduler, (int)i, err));
    return STATUS_OK;
}

/* Makes the model visible to submit. */
static enum status publish(struct loading *loading, struct error *err)
{
    struct pipeline *pipeline = loading->pipeline;
    pthread_mutex_lock(&pipeline->lock);
    struct served_model *entry = find_locked(pipeline, loading->model->name);
    if (pipeline->draining || entry->state == MODEL_READY) {
        enum status status =
            pipeline->draining
                ? error_set(err, STATUS_DRAINING, "the server is shutting down")
                : error_set(err, STATUS_CONFIG,
                            "a model named '%s' was added twice at the same time", entry->name);
        pthread_mutex_unlock(&pipeline->lock);
        return status;
    }
    entry->model = loading->model;
    entry->scheduler = loading->scheduler;
    memcpy(entry->lanes, loading->lanes, sizeof entry->lanes);
    entry->lane_count = loading->lane_count;
    entry->progress = 1;
    entry->state = MODEL_READY;
    if (pipeline->default_model == SIZE_MAX)
        pipeline->default_model = (size_t)(entry - pipeline->models);
    update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);
    return STATUS_OK;
}

/* Ends and frees what serves one model. Its images are all answered. */
static void free_parts(struct model *model, struct scheduler *scheduler, struct lane *const *lanes)
{
    if (scheduler)
        scheduler_stop(scheduler);
    for (size_t i = 0; i < DEVICE_MAX; i++)
        lane_free(lanes[i]);
    scheduler_free(scheduler);
    model_free(model);
}

enum status pipeline_add_model(struct pipeline *pipeline, struct model *model,
                               const _Atomic int *cancel, struct error *err)
{
    struct loading loading = {.pipeline = pipeline, .model = model};
    struct error failure = {0};
    enum status status = check_name(pipeline, model->name, &failure);
    bool is_entered = status == STATUS_OK;
    if (status == STATUS_OK)
        status = create_lanes(&loading, cancel, &failure);
    if (status == STATUS_OK) {
        model_drop_graph(model);
        status = create_scheduler(&loading, &failure);
    }
    if (status == STATUS_OK)
        status = publish(&loading, &failure);
    if (status == STATUS_OK)
        return STATUS_OK;
    if (is_entered)
        pipeline_progress(pipeline, model->name, 0, failure.message);
    free_parts(loading.model, loading.scheduler, loading.lanes);
    if (err)
        *err = failure;
    return status;
}

/* --- requests --- */

/* "a, b, c": the models there are. */
static void name_models_locked(const struct pipeline *pipeline, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < pipeline->model_count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "",
                                 pipeline->models[i].name);
}

static enum status explain_not_ready(const struct served_model *entry, const char *name,
                                     int *ret_retry_after_s, struct error *err)
{
    if (ret_retry_after_s)
        *ret_retry_after_s = 1;
    if (entry && entry->state == MODEL_FAILED)
        return error_set(err, STATUS_NOT_READY, "model '%s' could not be loaded: %s", name,
                         entry->failure);
    return error_set(err, STATUS_NOT_READY,
                     "model '%s' is still loading; see /health, and try again", name);
}

/* The scheduler that serves `name` (NULL: the default model). */
static enum status find_scheduler(struct pipeline *pipeline, const char *name,
                                  struct scheduler **ret, int *ret_retry_after_s, struct error *err)
{
    enum status status = STATUS_OK;
    pthread_mutex_lock(&pipeline->lock);
    const struct served_model *entry = NULL;
    if (name)
        entry = find_locked(pipeline, name);
    else if (pipeline->default_model != SIZE_MAX)
        entry = &pipeline->models[pipeline->default_model];
    else if (pipeline->model_count > 0) /* the first announced one tells why there is none */
        entry = &pipeline->models[0];
    if (!entry && name) {
        char names[256];
        name_models_locked(pipeline, names, sizeof names);
        status = error_set(err, STATUS_NOT_FOUND, "there is no model '%s'; this server has: %s",
                           name, pipeline->model_count ? names : "none yet");
    } else if (!entry || entry->state != MODEL_READY) {
        status = explain_not_ready(entry, entry ? entry->name : "default", ret_retry_after_s, err);
    } else {
        *ret = entry->scheduler;
    }
    pthread_mutex_unlock(&pipeline->lock);
    return status;
}

static enum status check_request(const struct predict_request *request, struct error *err)
{
    if (request->image_count == 0)
        return error_set(err, STATUS_INVALID, "the request has no image; send at least one");
    if (request->priority < 0 || request->priority > QUEUE_URGENCIES)
        return error_set(err, STATUS_INVALID,
                         "the priority is %d; it may be 1 (goes first) to %d (goes last), 0 for "
                         "the default, %d",
                         request->priority, QUEUE_URGENCIES, QUEUE_DEFAULT_URGENCY);
    if (request->top_k < 1 || request->top_k > PREDICT_MAX_TOP_K)
        return error_set(err, STATUS_INVALID, "top_k is %d; it may be 1 to %d", request->top_k,
                         PREDICT_MAX_TOP_K);
    return STATUS_OK;
}

enum status pipeline_submit(struct pipeline *pipeline, struct predict_request *request,
                            int *ret_retry_after_s, struct error *err)
{
    struct scheduler *scheduler = NULL;
    enum status status = check_request(request, err);
    if (status == STATUS_OK)
        status = find_scheduler(pipeline, request->model, &scheduler, ret_retry_after_s, err);
    if (status == STATUS_OK)
        return scheduler_submit(scheduler, request, ret_retry_after_s, err);
    /* Not under the name the client sent: it may be anything. */
    meters_refused(pipeline->options.metrics, "", status, request->image_count);
    return status;
}

enum status pipeline_check(struct pipeline *pipeline, const struct predict_request *request,
                           size_t images, size_t bytes, int *ret_retry_after_s, struct error *err)
{
    struct scheduler *scheduler = NULL;
    enum status status =
        find_scheduler(pipeline, request->model, &scheduler, ret_retry_after_s, err);
    if (status == STATUS_OK)
        return scheduler_check(scheduler, request, images, bytes, ret_retry_after_s, err);
    meters_refused(pipeline->options.metrics, "", status, images);
    return status;
}

void predict_request_done(struct predict_request *request)
{
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_image *image = &request->images[i];
        free(image->predictions);
        image->predictions = NULL;
        image->prediction_count = 0;
    }
}

/* --- states and the end --- */

/* The i-th model's scheduler, NULL while it has none; false beyond the last model. */
static bool scheduler_at(struct pipeline *pipeline, size_t i, struct scheduler **ret)
{
    pthread_mutex_lock(&pipeline->lock);
    bool exists = i < pipeline->model_count;
    *ret = exists ? pipeline->models[i].scheduler : NULL;
    pthread_mutex_unlock(&pipeline->lock);
    return exists;
}

static void describe(const struct served_model *entry, struct model_status *ret)
{
    *ret = (struct model_status){.state = entry->state, .progress = entry->progress};
    snprintf(ret->name, sizeof ret->name, "%s", entry->name);
    if (entry->state == MODEL_FAILED)
        snprintf(ret->failure, sizeof ret->failure, "%s", entry->failure);
    const struct model *model = entry->model;
    if (!model)
        return;
    snprintf(ret->version, sizeof ret->version, "%s", model->version);
    ret->parameter_bytes = model->parameter_bytes;
    ret->file_bytes = model->file_bytes;
    ret->width = model->preprocess.width;
    ret->height = model->preprocess.height;
    ret->channels = preprocess_channels(&model->preprocess);
    ret->class_count = model->class_count ? model->class_count : lane_classes(entry->lanes[0]);
    ret->lane_count = entry->lane_count;
    for (size_t i = 0; i < entry->lane_count; i++)
        ret->lanes[i] = *lane_info(entry->lanes[i]);
}

size_t pipeline_models(struct pipeline *pipeline, struct model_status *ret, size_t max)
{
    size_t count = 0;
    for (;; count++) {
        pthread_mutex_lock(&pipeline->lock);
        bool exists = count < pipeline->model_count && count < max;
        struct scheduler *scheduler = NULL;
        if (exists) {
            describe(&pipeline->models[count], &ret[count]);
            ret[count].is_default = count == pipeline->default_model;
            scheduler = pipeline->models[count].scheduler;
        }
        pthread_mutex_unlock(&pipeline->lock);
        if (!exists)
            return count;
        if (!scheduler)
            continue;
        for (size_t i = 0; i < ret[count].lane_count; i++)
            scheduler_describe_latency(scheduler, (int)i, &ret[count].lanes[i]);
        struct batcher_counts images = scheduler_counts(scheduler);
        ret[count].queued = images.queued;
        ret[count].in_flight = images.admitted - images.queued;
    }
}

size_t pipeline_memory(struct pipeline *pipeline, struct device_id device, size_t *ret_limit)
{
    return budget_used(pipeline->budget, device, ret_limit);
}

bool pipeline_drain(struct pipeline *pipeline, int grace_ms)
{
    int64_t until = clock_now() + (int64_t)(grace_ms > 0 ? grace_ms : 0) * 1000000;
    pthread_mutex_lock(&pipeline->lock);
    pipeline->draining = true; /* from here on no model is added */
    update_state_locked(pipeline);
    pthread_mutex_unlock(&pipeline->lock);

    struct scheduler *scheduler;
    bool complete = true;
    for (size_t i = 0; scheduler_at(pipeline, i, &scheduler); i++)
        if (scheduler)
            scheduler_stop_accepting(scheduler);
    for (size_t i = 0; scheduler_at(pipeline, i, &scheduler); i++)
        if (scheduler && !scheduler_wait_answered(scheduler, until))
            complete = false;
    for (size_t i = 0; !complete && scheduler_at(pipeline, i, &scheduler); i++)
        if (scheduler)
            scheduler_cut(scheduler);
    for (size_t i = 0; !complete && scheduler_at(pipeline, i, &scheduler); i++)
        if (scheduler)
            scheduler_wait_answered(scheduler, INT64_MAX);
    return complete;
}

void pipeline_free(struct pipeline *pipeline)
{
    if (!pipeline)
        return;
    pipeline_drain(pipeline, 0);
    pool_free(pipeline->pool);
    for (size_t i = 0; i < pipeline->model_count; i++) {
        struct served_model *entry = &pipeline->models[i];
        free_parts(entry->model, entry->scheduler, entry->lanes);
    }
    free(pipeline->models);
    budget_free(pipeline->budget);
    pthread_mutex_destroy(&pipeline->lock);
    free(pipeline);
}
