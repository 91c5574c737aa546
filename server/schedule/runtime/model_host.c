/* The model host's options, requests, states and end. model_table.c has the table of models. */
#include "server/schedule/runtime/model_host.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/base/text.h"
#include "engine/base/thread.h"
#include "models/tasks/tensor_copy.h"
#include "server/schedule/runtime/meters.h"
#include "server/schedule/runtime/model_table.h"
#include "server/schedule/runtime/scheduler.h"

#define DEFAULT_MAX_QUEUE 256

/* Memory that threads, kernels' code and the heap need beside the models. */
#define OWN_MEMORY ((size_t)32 << 20)

/* Lanes on the CPU share its cores evenly. Returns 0 for a single lane: its session chooses. */
static int threads_per_lane(const struct model_host_options *options)
{
    int lanes = 0;
    for (size_t i = 0; i < options->device_count; i++)
        lanes += options->devices[i].kind == DEVICE_CPU;
    if (lanes < 2)
        return 0;
    int threads = device_cpu_threads() / lanes;
    return threads > 1 ? threads : 1;
}

static void init_budget(struct device_budgets *budget, const struct model_host_options *options)
{
    uint64_t total, available;
    cpu_memory(&total, &available);
    /* One eighth of the memory is for bodies and answers, another eighth for small photos. */
    const size_t rest = (size_t)(total / 4 * 3);
    const size_t host = rest > OWN_MEMORY ? rest - OWN_MEMORY : rest > 0;
    budget_init(budget, options->devices, options->memory_limits, options->device_count, host);
}

static void fill_in_defaults(struct model_host_options *options)
{
    if (options->threads == 0)
        options->threads = threads_per_lane(options);
    if (options->workers == 0)
        options->workers = device_cpu_threads();
    if (options->max_queue == 0)
        options->max_queue = DEFAULT_MAX_QUEUE;
}

enum status model_host_create(const struct model_host_options *options, struct model_host **ret,
                              struct error *err)
{
    assert(options->device_count >= 1 && options->device_count <= DEVICE_MAX);
    struct model_host *host = calloc(1, sizeof *host);
    TRY(check_memory(host, "for the model host", err));
    *ret = host;
    host->options = *options;
    host->sizes_to_come = table_sizes_to_come_locked;
    fill_in_defaults(&host->options);
    pthread_mutex_init(&host->lock, NULL);
    condition_init(&host->released);
    TAILQ_INIT(&host->deployments);
    TAILQ_INIT(&host->waiting);
    init_budget(&host->budget, &host->options);
    for (size_t i = 0; i < options->device_count; i++)
        device_queue_init(&host->device_queues[i]);
    return worker_create_pool(host, err);
}

enum model_host_state model_host_state(const struct model_host *host)
{
    return (enum model_host_state)atomic_load_explicit(&host->state, memory_order_acquire);
}

/* --- requests --- */

/* Lists the models: "a, b (failed), c". */
static void name_models_locked(struct model_host *host, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < host->entry_count; i++) {
        const char *name = host->entries[i]->name;
        const bool has_failed = table_find_locked(host, name, NULL)->state == MODEL_FAILED;
        if (i == 0 || strcmp(host->entries[i - 1]->name, name) != 0)
            text_append(text, size, ", ", "%s%s", name, has_failed ? " (failed)" : "");
    }
}

/* Lists the versions of a model: "1, 3". */
static void name_versions_locked(const struct model_host *host, const char *name, char *text,
                                 size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < host->entry_count; i++)
        if (!strcmp(host->entries[i]->name, name) && host->entries[i]->version[0])
            text_append(text, size, ", ", "%s", host->entries[i]->version);
}

static enum status explain_not_found_locked(struct model_host *host, const char *name,
                                            const char *version, struct error *err)
{
    char names[256];
    if (name && version && table_find_locked(host, name, NULL)) {
        name_versions_locked(host, name, names, sizeof names);
        return error_set(err, STATUS_NOT_FOUND, "model '%.128s' has no version '%.20s'; it has: %s",
                         name, version, names[0] ? names : "none yet");
    }
    name_models_locked(host, names, sizeof names);
    if (name && !name[0])
        return error_set(err, STATUS_NOT_FOUND,
                         "the request names no model (model_name in gRPC); this server has: %s",
                         host->entry_count ? names : "none yet");
    return error_set(err, STATUS_NOT_FOUND, "there is no model '%.128s'; this server has: %s", name,
                     host->entry_count ? names : "none yet");
}

static enum status explain_not_ready(const struct model_entry *entry, struct error *err)
{
    const bool is_unloaded =
        entry && (entry->state == MODEL_UNLOADED || entry->state == MODEL_UNLOADING);
    if (!entry)
        return error_set(err, STATUS_NOT_READY,
                         "this server has no model yet; GET /health lists those that are loading");
    if (entry->state == MODEL_FAILED || (is_unloaded && entry->failure[0]))
        return error_set(err, STATUS_NOT_READY, "model '%s' could not be loaded: %s", entry->name,
                         entry->failure);
    if (is_unloaded)
        return error_set(err, STATUS_NOT_READY, "model '%s' has been unloaded%s", entry->name,
                         table_can_answer(entry) ? " meanwhile; send the request again" : "");
    const int seconds = table_seconds_left(entry);
    error_set(err, STATUS_NOT_READY, "model '%s' is still loading (%s, %.0f %%); try again in %d s",
              entry->name, entry->phase, 100 * entry->progress, seconds);
    err->retry_after_s = seconds;
    return STATUS_NOT_READY;
}

/* The error for a request that names no model. */
static enum status explain_no_default_locked(struct model_host *host, struct error *err)
{
    char names[256];
    if (host->entry_count == 0)
        return explain_not_ready(NULL, err);
    name_models_locked(host, names, sizeof names);
    if (host->options.default_model)
        return error_set(
            err, STATUS_NOT_FOUND,
            "there is no model '%.128s', which --default-model names; this server has: %s",
            host->options.default_model, names);
    if (model_host_state(host) == MODEL_HOST_LOADING) { /* a default pipeline may be ready */
        error_set(err, STATUS_NOT_READY,
                  "models are still loading; GET /health shows their progress");
        err->retry_after_s = table_retry_after_locked(host);
        return STATUS_NOT_READY;
    }
    return error_set(err, STATUS_INVALID,
                     "the request names no model, and this server has several: %s; name one "
                     "(/predict?model=NAME), or start lensd with --default-model NAME",
                     names);
}

enum status model_host_acquire(struct model_host *host, const char *name, const char *version,
                               struct deployment **ret, struct error *err)
{
    enum status status = STATUS_OK;
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_locked(host, name, version);
    const char *pipeline_name = entry && entry->stages ? entry->name : NULL;
    if (pipeline_name) {
        name = entry->stages->stages[0].model;
        version = NULL;
        entry = table_find_locked(host, name, NULL);
    }
    if (!entry) {
        status = name ? explain_not_found_locked(host, name, version, err)
                      : explain_no_default_locked(host, err);
    } else if (!ret && table_can_answer(entry)) {
        ; /* the caller asked only whether the model can answer */
    } else if (host->draining && entry->state != MODEL_READY && table_can_answer(entry)) {
        status = error_set(err, STATUS_DRAINING, "the server is shutting down");
    } else if (entry->state != MODEL_READY) {
        status = explain_not_ready(entry, err);
    } else if (!entry->deployment) {
        status = error_set(err, STATUS_NOT_READY, "'%s' is a pipeline; a stage must name a model",
                           entry->name);
    } else {
        *ret = entry->deployment;
        (*ret)->users++;
    }
    if (status != STATUS_OK && pipeline_name) {
        /* 503 instead of 404, because a missing or unloaded stage may be loaded later. */
        err->status = status = STATUS_NOT_READY;
        (void)error_prefix(err, "stage 1 of pipeline '%s'", pipeline_name);
    }
    return status;
}

static enum status check_request(const struct predict_request *request, struct error *err)
{
    if (request->image_count == 0)
        return error_set(err, STATUS_INVALID, "the request has no image; send at least one");
    if (request->priority < 0 || request->priority > QUEUE_PRIORITIES)
        return error_set(
            err, STATUS_INVALID,
            "the priority is %d; it may be 1 (goes first) to %d (goes last), 0 for the default, %d",
            request->priority, QUEUE_PRIORITIES, QUEUE_DEFAULT_PRIORITY);
    if (request->top_k < 1 || request->top_k > PREDICT_MAX_TOP_K)
        return error_set(err, STATUS_INVALID, "top_k is %d; it may be 1 to %d", request->top_k,
                         PREDICT_MAX_TOP_K);
    assert(!request->tensors || request->target);
    return STATUS_OK;
}

/* Checks that the model takes the request's texts, or the words to look for, and that the encoded
 * words have the sizes of the model's inputs: the model may have been reloaded meanwhile. */
static enum status check_words(const struct deployment *deployment,
                               const struct predict_request *request, struct error *err)
{
    const struct request_words *words = request->words;
    const enum task_kind kind = deployment->model->task.kind;
    bool is_same = request->texts ? kind == TASK_EMBEDDING || kind == TASK_ZERO_SHOT
                                  : !words || deployment->input_count > 1;
    if (deployment->input_count > 1 && !words)
        return error_set(err, STATUS_INVALID,
                         "model '%s' needs words to look for; add them: labels=a dog,a red car",
                         deployment->model->name);
    for (size_t i = 0; i < deployment->input_count; i++)
        is_same = is_same && (i == deployment->image_input ||
                              (words->rows[i] && words->bytes[i] == deployment->inputs[i].bytes));
    return is_same ? STATUS_OK
                   : error_set(err, STATUS_NOT_READY,
                               "model '%s' has been reloaded; send the request again",
                               deployment->model->name);
}

/* Checks that the model supports the request. */
static enum status check_fits(const struct deployment *deployment,
                              const struct predict_request *request, struct error *err)
{
    const char *name = deployment->model->name;
    if (!request->raw_outputs && !request->tensors && deployment->no_answer[0])
        return error_set(
            err, STATUS_INVALID,
            "model '%s' cannot answer a photo: %s; send tensors to POST /v2/models/%s/infer", name,
            deployment->no_answer, name);
    if (!request->raw_outputs && !request->tensors && deployment->model->task.kind == TASK_MASKS &&
        deployment->takes_images)
        return error_set(err, STATUS_INVALID,
                         "model '%s' needs a prompt with the photo; add points=x,y,1 or "
                         "box=left,top,right,bottom to /predict",
                         name);
    if (!request->tensors && deployment->takes_images)
        TRY(check_words(deployment, request, err));
    if (!request->tensors && !deployment->takes_images)
        return error_set(err, STATUS_INVALID,
                         "model '%s' takes no photos, its inputs are tensors: GET /v2/models/%s",
                         name, name);
    if (request->raw_outputs && request->image_count > 1 && !deployment->has_rows)
        return error_set(
            err, STATUS_INVALID,
            "model '%s' takes one image, or one row, per request: it has no batch dimension, or "
            "lensd cannot prove that images do not change each other's results",
            name);
    return STATUS_OK;
}

static enum status submit_to(struct deployment *deployment, struct predict_request *request,
                             struct error *err)
{
    TRY(check_fits(deployment, request, err));
    if (!request->ignores_unused_options)
        TRY(task_options_check(&deployment->model->task, request->options,
                               request->asks_top_k && !request->texts, err));
    const struct request_words *words = request->words;
    if (request->options)
        TRY(model_find_classes(deployment->model, words ? request->text_names : NULL,
                               words ? words->words.count : 0, request->options, err));
    request->deployment = deployment_ref(deployment); /* before the request can complete */
    enum status status = scheduler_submit(deployment->scheduler, request, err);
    if (status == STATUS_OK)
        return STATUS_OK;
    request->deployment = NULL;
    deployment_unref(deployment);
    return status;
}

/* Acquires the deployment of the model, version and size that a request names. */
static enum status acquire_for(struct model_host *host, const struct predict_request *request,
                               struct deployment **ret, struct error *err)
{
    struct deployment *deployment, *sized = NULL;
    TRY(model_host_acquire(host, request->model, request->version, &deployment, err));
    *ret = deployment;
    if (!request->height)
        return STATUS_OK;
    const enum status status = model_host_acquire_size(
        host, deployment, request->height, request->width, request->size_choice, &sized, err);
    model_host_release(host, deployment);
    *ret = sized;
    return status;
}

enum status model_host_submit(struct model_host *host, struct predict_request *request,
                              struct error *err)
{
    struct deployment *deployment = NULL;
    enum status status = check_request(request, err);
    if (status == STATUS_OK && request->target)
        return submit_to(request->target, request, err);
    IF_OK(status, acquire_for(host, request, &deployment, err));
    if (status == STATUS_OK) {
        status = submit_to(deployment, request, err);
        model_host_release(host, deployment);
        return status;
    }
    /* Count it without a model name, because the client may have sent any text as name. */
    meters_refused_unknown(host->options.metrics, status, request->image_count);
    return status;
}

enum status model_host_would_admit(struct model_host *host, const struct predict_request *request,
                                   size_t images, size_t bytes, struct error *err)
{
    struct deployment *deployment = NULL, *sizes[DEPLOYMENT_SIZES];
    pthread_mutex_lock(&host->lock);
    const bool must_wait = table_must_wait_locked(host, request);
    pthread_mutex_unlock(&host->lock);
    if (must_wait) { /* the model is loaded while the body arrives */
        if (host->source.wake)
            host->source.wake(host->source.context);
        return STATUS_OK;
    }
    enum status status = acquire_for(host, request, &deployment, err);
    if (status != STATUS_OK) {
        meters_refused_unknown(host->options.metrics, status, images);
        return status;
    }
    const size_t count = request->any_size ? table_use_sizes(host, deployment, sizes) : 0;
    status = scheduler_would_admit(deployment->scheduler, request, images, bytes, err);
    for (size_t i = 0; i < count; i++) {
        if (status == STATUS_OVERLOADED &&
            scheduler_would_admit(sizes[i]->scheduler, request, images, bytes, NULL) == STATUS_OK)
            status = STATUS_OK;
        model_host_release(host, sizes[i]);
    }
    if (status != STATUS_OK)
        meters_refusal(&deployment->meters, status, images);
    model_host_release(host, deployment);
    return status;
}

enum status model_host_find_pipeline(struct model_host *host, const char *name, const char *version,
                                     char ret_name[static 128], struct pipeline_config **ret,
                                     struct error *err)
{
    *ret = NULL;
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_locked(host, name, version);
    const bool is_pipeline = entry && entry->stages;
    if (is_pipeline && (*ret = malloc(sizeof **ret)) != NULL) {
        snprintf(ret_name, 128, "%s", entry->name);
        **ret = *entry->stages;
    }
    return *ret || !is_pipeline ? STATUS_OK : error_no_memory(err, "for a pipeline");
}

enum status model_host_find_text(struct model_host *host, const char *name, char ret[static 128],
                                 struct error *err)
{
    char half[160];
    enum status status = STATUS_OK;
    LOCK(&host->lock);
    const struct model_entry *entry = table_find_locked(host, name, NULL);
    snprintf(half, sizeof half, "%s" MODEL_TEXT_ENDING, entry ? entry->name : "");
    const struct model_entry *texts = entry ? table_find_locked(host, half, NULL) : NULL;
    if (entry && !texts && !entry->brief.takes_texts && table_can_answer(entry))
        status = error_set(err, STATUS_INVALID,
                           "model '%s' takes no texts; a model for photos and texts has both "
                           "halves and a tokenizer in its folder",
                           entry->name);
    snprintf(ret, 128, "%s", texts ? texts->name : entry ? entry->name : name ? name : "");
    return status;
}

bool model_host_default(struct model_host *host, char *ret, size_t size)
{
    LOCK(&host->lock);
    const char *name = table_default_locked(host);
    snprintf(ret, size, "%s", name ? name : "");
    return name != NULL;
}

bool model_host_has_choice(struct model_host *host)
{
    LOCK(&host->lock);
    bool has_choice = false;
    const char *name = table_default_locked(host);
    for (size_t i = 0; i < host->entry_count; i++)
        has_choice |= !name || strcmp(host->entries[i]->name, name) != 0;
    return has_choice;
}

void model_host_cancel(struct model_host *host, struct predict_request *request)
{
    atomic_store_explicit(&request->cancelled, 1, memory_order_relaxed);
    /* The pin keeps the request and its `deployment` member, but not the deployment's scheduler,
     * which may have ended meanwhile. */
    pthread_mutex_lock(&host->lock);
    struct deployment *deployment = request->deployment; /* NULL: it waits or waited for a load */
    const bool is_here = deployment && !deployment->has_left;
    const bool has_waited = !deployment && table_stop_waiting_locked(host, request);
    if (is_here)
        deployment->users++;
    pthread_mutex_unlock(&host->lock);
    if (has_waited)
        predict_request_unpin(request);
    if (is_here) {
        scheduler_cancel(deployment->scheduler, request);
        model_host_release(host, deployment);
    }
    predict_request_unpin(request);
}

void predict_request_free_results(struct predict_request *request)
{
    for (size_t i = 0; i < request->image_count; i++) {
        struct predict_image *image = &request->images[i];
        free(image->predictions);
        image->predictions = NULL;
        image->prediction_count = 0;
        task_answer_done(&image->answer);
        free(image->crops);
        image->crops = NULL;
        free(image->photo);
        image->photo = NULL;
        if (image->outputs)
            tensor_copies_free(image->outputs, request->deployment->output_count);
        image->outputs = NULL;
    }
    deployment_unref(request->deployment);
    request->deployment = NULL;
    request->used_model = NULL;
    table_let_go(request);
}

/* --- status, draining, freeing --- */

/* Describes an entry, and a pipeline by its first stage. */
static void fill_model_status(struct model_host *host, const struct model_entry *entry,
                              struct model_status *ret)
{
    const struct model_entry *first =
        entry->stages ? table_find_locked(host, entry->stages->stages[0].model, NULL) : NULL;
    *ret = (struct model_status){.brief = first ? first->brief : entry->brief,
                                 .can_answer = table_can_answer(entry),
                                 .is_default = table_can_answer(entry) &&
                                               entry == table_find_locked(host, NULL, NULL),
                                 .cause = entry->cause,
                                 .loads = entry->loads,
                                 .load_seconds = entry->load_seconds,
                                 .state = entry->state,
                                 .progress = entry->progress,
                                 .phase = entry->phase,
                                 .seconds_left = table_seconds_left(entry)};
    snprintf(ret->name, sizeof ret->name, "%s", entry->name);
    snprintf(ret->version, sizeof ret->version, "%s", entry->version);
    snprintf(ret->failure, sizeof ret->failure, "%s", entry->failure);
    ret->stage_count = entry->stages ? entry->stages->stage_count : 0;
    for (size_t i = 0; i < ret->stage_count; i++)
        memcpy(ret->stages[i], entry->stages->stages[i].model, sizeof ret->stages[i]);
    memcpy(ret->unloads, entry->unloads, sizeof ret->unloads);
    const struct deployment *deployment = entry->deployment;
    if (!deployment)
        return;
    ret->lane_count = deployment->lane_count;
    for (size_t i = 0; i < deployment->lane_count; i++) {
        ret->lanes[i] = deployment->lanes[i]->info;
        lane_describe_health(deployment->lanes[i], &ret->health[i]);
    }
    memcpy(ret->choices, deployment->choices, sizeof ret->choices);
}

/* The state of the first required model that is not served; MODEL_HOST_READY if all are. */
static enum model_host_state required_state_locked(struct model_host *host)
{
    for (size_t i = 0; i < host->entry_count; i++) {
        if (!host->entries[i]->is_required)
            continue;
        const struct model_entry *best = table_find_locked(host, host->entries[i]->name, NULL);
        if (!table_can_answer(best))
            return best->state == MODEL_FAILED    ? MODEL_HOST_FAILED
                   : best->state == MODEL_LOADING ? MODEL_HOST_LOADING
                                                  : MODEL_HOST_UNLOADED;
    }
    return MODEL_HOST_READY;
}

enum model_host_state model_host_readiness(struct model_host *host)
{
    enum model_host_state state = model_host_state(host);
    if (state != MODEL_HOST_READY)
        return state;
    pthread_mutex_lock(&host->lock);
    for (size_t i = 0; i < host->entry_count; i++) {
        const struct deployment *deployment = host->entries[i]->deployment;
        if (deployment && deployment->scheduler->is_lost)
            state = MODEL_HOST_FAILED;
    }
    if (state == MODEL_HOST_READY && host->options.ready_strict)
        state = required_state_locked(host);
    pthread_mutex_unlock(&host->lock);
    char models[256];
    return state == MODEL_HOST_READY && model_host_is_stuck(host, models, sizeof models)
               ? MODEL_HOST_STUCK
               : state;
}

/* Describes entry `i` of the table. Returns false if there is none. */
static bool describe_entry(struct model_host *host, size_t i, struct model_status *ret)
{
    pthread_mutex_lock(&host->lock);
    const struct model_entry *entry = i < host->entry_count ? host->entries[i] : NULL;
    struct deployment *deployment = entry ? entry->deployment : NULL;
    if (entry)
        fill_model_status(host, entry, ret);
    if (deployment)
        deployment->users++;
    pthread_mutex_unlock(&host->lock);
    if (!deployment)
        return entry;
    for (size_t lane = 0; lane < ret->lane_count; lane++)
        for (size_t k = 0; k < ret->lanes[lane].batch_count; k++) {
            struct session_batch *batch = &ret->lanes[lane].batches[k];
            const int64_t ns = scheduler_latency(deployment->scheduler, (int)lane, batch->size);
            batch->milliseconds = ns ? clock_ms(ns) : batch->milliseconds;
        }
    struct batcher_counts images = scheduler_counts(deployment->scheduler, &ret->still_ns);
    model_host_release(host, deployment);
    ret->queued = images.queued;
    ret->in_flight = images.admitted - images.queued;
    return true;
}

struct model_status *model_host_snapshot(struct model_host *host, size_t *ret_count)
{
    pthread_mutex_lock(&host->lock);
    const size_t count = host->entry_count;
    pthread_mutex_unlock(&host->lock);
    struct model_status *models = alloc_array(count, sizeof *models);
    *ret_count = 0;
    while (models && *ret_count < count && describe_entry(host, *ret_count, &models[*ret_count]))
        ++*ret_count;
    return models;
}

size_t model_host_memory(struct model_host *host, struct device_id device, size_t *ret_limit)
{
    return budget_used(&host->budget, device, ret_limit);
}

bool model_host_is_stuck(struct model_host *host, char *ret_models, size_t size)
{
    bool is_stuck = false;
    ret_models[0] = '\0';
    for (struct deployment *i = NULL; (i = table_use_next(host, i)) != NULL;) {
        bool is_here = false;
        for (size_t k = 0; k < i->lane_count; k++)
            is_here = is_here || lane_is_stuck(i->lanes[k]);
        if (is_here)
            text_append(ret_models, size, ", ", "%s", i->model->name);
        is_stuck = is_stuck || is_here;
    }
    return is_stuck;
}

bool model_host_drain(struct model_host *host, int grace_ms)
{
    int64_t until = clock_now() + (int64_t)(grace_ms > 0 ? grace_ms : 0) * 1000000;
    pthread_mutex_lock(&host->lock);
    host->draining = true; /* from now on no model is added, and no request waits for a load */
    table_update_state_locked(host);
    table_settle_and_unlock(host, NULL);

    bool complete = true;
    for (struct deployment *i = NULL; (i = table_use_next(host, i)) != NULL;)
        scheduler_stop_accepting(i->scheduler);
    for (struct deployment *i = NULL; (i = table_use_next(host, i)) != NULL;)
        complete = scheduler_wait_answered(i->scheduler, until) && complete;
    for (struct deployment *i = NULL; !complete && (i = table_use_next(host, i)) != NULL;)
        scheduler_cut(i->scheduler);
    for (struct deployment *i = NULL; !complete && (i = table_use_next(host, i)) != NULL;)
        scheduler_wait_answered(i->scheduler, INT64_MAX);
    return complete;
}

void model_host_free(struct model_host *host)
{
    if (!host)
        return;
    model_host_drain(host, 0);
    pool_free(host->pool);
    assert(!host->retiring);
    for (size_t i = 0; i < host->entry_count; i++) {
        struct model_entry *entry = host->entries[i];
        deployment_end(entry->deployment);
        for (size_t k = 0; k < DEPLOYMENT_SIZES; k++)
            deployment_end(entry->sizes[k]);
        table_unref_entry(entry);
    }
    free(host->entries);
    budget_done(&host->budget);
    for (size_t i = 0; i < host->options.device_count; i++)
        device_queue_done(&host->device_queues[i]);
    pthread_cond_destroy(&host->released);
    pthread_mutex_destroy(&host->lock);
    free(host);
}
