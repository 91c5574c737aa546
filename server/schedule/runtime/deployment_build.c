/* Builds a deployment: chooses precisions, creates a session and a lane for every device, and the
 * scheduler with its buffers. Also ends deployments. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/image/transform.h"
#include "server/observe/log.h"
#include "server/schedule/runtime/model_table.h"
#include "server/schedule/runtime/scheduler.h"

#define DEFAULT_MAX_BATCH 8

/* The progress of a load, from 0 to 1, when its files have been read. */
#define PROGRESS_READ 0.02

static void on_lane_progress(void *context, const char *phase, double fraction)
{
    const struct deployment_options *options = context;
    const double done = (double)options->deployment->lane_count + fraction;
    const double share = done / (double)options->host->options.device_count;
    if (options->on_progress)
        options->on_progress(options->progress_context, phase,
                             PROGRESS_READ + (1 - PROGRESS_READ) * share);
}

/* --max-batch is a limit, and the default. Below the limit config.pbtxt chooses. */
static int choose_max_batch(const struct model_host_options *options, const struct model *model)
{
    if (!deployment_may_batch(model))
        return 1;
    int most = options->max_batch ? options->max_batch : BATCHER_MAX_BATCH;
    int wish = model->max_batch > 0     ? model->max_batch
               : options->max_batch > 0 ? options->max_batch
                                        : DEFAULT_MAX_BATCH;
    return wish < most ? wish : most;
}

/* How many of options->devices from index i on are the device at index i. */
static int lanes_to_come(const struct model_host_options *options, size_t i)
{
    int lanes = 0;
    for (size_t k = i; k < options->device_count; k++)
        lanes += device_equal(options->devices[k], options->devices[i]);
    return lanes;
}

/* On a CPU the scheduler's buffers count towards the sessions' memory limits. The buffers hold
 * two batches more than there are lanes, and one image per worker. Each lane is charged its share,
 * rounded up. */
static void count_inputs(const struct model_host_options *options, struct session_options *session)
{
    if (session->device.kind != DEVICE_CPU)
        return;
    size_t lanes = options->device_count;
    session->input_batches = (lanes + 2 + lanes - 1) / lanes;
    session->input_images = ((size_t)options->workers + lanes - 1) / lanes;
}

static struct precision_options precision_options_of(const struct model_host_options *options)
{
    return (struct precision_options){
        .limits = &options->limits, .cache = options->cache, .trials = options->trials};
}

static void log_choice(const struct model *model, struct device_id device,
                       const struct precision_choice *choice, enum log_level level)
{
    log_event(level, "precision", LOG_STR("model", model->name),
              LOG_STR("device", DEVICE_STRING(device)),
              LOG_STR("precision", precision_name(choice->precision)),
              LOG_STR("origin", choice_origin_name(choice->origin)), LOG_STR("why", choice->why));
}

/* Creates a session in the precision that was chosen for devices of this kind; if none was, chooses
 * one first. */
static enum status open_session(const struct deployment_options *building,
                                struct session_options *options, struct session **ret,
                                struct error *err)
{
    struct precision_choice *choice = &building->deployment->choices[options->device.kind];
    const struct precision_options how = precision_options_of(&building->host->options);
    if (choice->why[0]) {
        options->precision = choice->precision;
        return precision_session(building->model, &how, options, ret, err);
    }
    TRY(precision_open(building->model, &how, options, choice, ret, err));
    log_choice(building->model, options->device, choice,
               choice->trial_count && how.trials != TRIALS_NONE ? LOG_INFO : LOG_DEBUG);
    return STATUS_OK;
}

/* Returns session_options.batch_activations: with more than 32 MiB per CPU thread, larger batches
 * use memory but gain no speed. 0 means no limit: on a GPU, or if the batch size is configured. */
static size_t batch_activations(const struct model_host_options *options, size_t i,
                                const struct model *model)
{
    const size_t of_thread = (size_t)32 << 20;
    const int threads = options->threads ? options->threads : device_cpu_threads();
    if (options->devices[i].kind != DEVICE_CPU || options->max_batch || model->max_batch > 0)
        return 0;
    return of_thread * (size_t)threads;
}

static struct session_pixels pixels_of(const struct model *model)
{
    struct session_pixels pixels = {.channels = preprocess_channels(&model->preprocess),
                                    .is_reversed = model->preprocess.channels == CHANNELS_BGR};
    transform_table(&model->preprocess, pixels.table);
    return pixels;
}

/* Options of the session on host->options.devices[i]. `pixels` is borrowed. */
static struct session_options options_of_lane(const struct deployment_options *deployment, size_t i,
                                              const struct session_pixels *pixels)
{
    const struct model_host_options *options = &deployment->host->options;
    const struct model *model = deployment->model;
    struct device_budgets *budget = &deployment->host->budget;
    const int lanes = lanes_to_come(options, i);
    const size_t image_input = deployment_image_input(model);
    const bool takes_pixels = image_input != SIZE_MAX && !model->preprocess.pads_normalised;
    struct session_options session = {
        .device = options->devices[i],
        .precision = options->precision,
        .threads = options->threads,
        .max_batch = choose_max_batch(options, model),
        .image_input = image_input,
        .image_layout = image_input == SIZE_MAX ? IMAGE_AS_DECLARED : IMAGE_NHWC_F32,
        .image_channels_last = model->input_channels_last,
        .pixels = takes_pixels ? pixels : NULL,
        .image_height = model->preprocess.height,
        .image_width = model->preprocess.width,
        .memory_limit = budget_share(budget, options->devices[i], lanes),
        .batch_memory =
            budget_share(budget, options->devices[i], lanes * (1 + deployment->loads_to_come)),
        .batch_activations = batch_activations(options, i, model),
        .run_memory = &budget->run,
        .max_batch_is_pinned = options->max_batch > 0,
        .cancel = deployment->cancel,
    };
    count_inputs(options, &session);
    return session;
}

/* Creates a session and a lane on every device, one after another. */
static enum status create_lanes(struct deployment_options *options, struct error *err)
{
    const struct model *model = options->model;
    struct deployment *deployment = options->deployment;
    const struct session_pixels pixels = pixels_of(model);
    malloc_trim(0); /* because earlier sessions have fragmented the heap */
    if (options->on_progress)
        options->on_progress(options->progress_context, "reading", PROGRESS_READ);
    for (size_t i = 0; i < options->host->options.device_count; i++) {
        struct session_options session = options_of_lane(options, i, &pixels);
        if (options->known)
            memcpy(session.known, options->known, sizeof session.known);
        session.on_progress = on_lane_progress;
        session.progress_context = options;
        struct session *opened;
        TRY(open_session(options, &session, &opened, err));
        TRY(lane_create(model, opened, &session, &options->host->budget,
                        &options->host->device_queues[i], &deployment->lanes[i], err));
        const struct session_info *info = &deployment->lanes[deployment->lane_count++]->info;
        if (info->batched && info->batches[info->batch_count - 1].size < session.max_batch &&
            info->note[0])
            log_event(LOG_WARN, "smaller batches", LOG_STR("model", model->name),
                      LOG_INT("width", session.image_width),
                      LOG_INT("height", session.image_height), LOG_STR("text", info->note));
        else if (info->note[0])
            log_event(LOG_INFO, "model", LOG_STR("model", model->name),
                      LOG_STR("device", DEVICE_STRING(session.device)),
                      LOG_STR("text", info->note));
    }
    return STATUS_OK;
}

static enum status create_scheduler(const struct model_host *host, struct deployment *deployment,
                                    struct error *err)
{
    const struct model_host_options *options = &host->options;
    deployment->max_batch = choose_max_batch(options, deployment->model);
    deployment->max_rows = options->max_queue;
    for (size_t i = 0; i < deployment->lane_count; i++) {
        const struct session_info *info = &deployment->lanes[i]->info;
        const int most = session_max_batch(info); /* every lane must be able to run every batch */
        deployment->max_batch = most < deployment->max_batch ? most : deployment->max_batch;
    }
    TRY(scheduler_create(deployment, options, host->pool, &deployment->scheduler, err));
    for (size_t i = 0; i < deployment->lane_count; i++)
        TRY(lane_start(deployment->lanes[i], deployment->scheduler, (int)i, err));
    return STATUS_OK;
}

enum status deployment_create(struct deployment_options *options, struct deployment **ret,
                              struct error *err)
{
    struct deployment *deployment = options->deployment = calloc(1, sizeof *deployment);
    int64_t start = clock_now();
    const double start_ms = clock_ms(clock_thread());
    if (!deployment) {
        model_free(options->model);
        return error_set(err, STATUS_NO_MEMORY, "no memory to serve a model");
    }
    deployment->refs = 1;
    pthread_mutex_init(&deployment->stats_lock, NULL);
    deployment->model = options->model;
    if (options->choices)
        memcpy(deployment->choices, options->choices, sizeof deployment->choices);
    enum status status = create_lanes(options, err);
    IF_OK(status, deployment_describe(deployment, deployment->lanes[0]->session,
                                      &options->host->budget.run, err));
    if (status == STATUS_OK) {
        model_drop_graph(deployment->model);
        status = create_scheduler(options->host, deployment, err);
    }
    if (status == STATUS_OK) {
        metric_set(deployment->meters.triton.load_seconds, clock_ms(clock_now() - start) * 1e-3);
        /* Packing weights has fragmented the heap. */
        malloc_trim(0);
        deployment->load_ms = clock_ms(clock_thread()) - start_ms;
        *ret = deployment;
        return STATUS_OK;
    }
    deployment_end(deployment);
    return status;
}

enum status deployment_try_precision(struct deployment *deployment,
                                     const struct deployment_options *options,
                                     struct precision_choice *choices, struct error *err)
{
    const struct precision_options how = precision_options_of(&options->host->options);
    const struct model *model = options->model;
    const struct session_pixels pixels = pixels_of(model);
    for (size_t i = 0; i < deployment->lane_count; i++) {
        struct lane *lane = deployment->lanes[i];
        const struct device_id device = options->host->options.devices[i];
        struct precision_choice *choice = &choices[device.kind];
        if (choice->origin != CHOICE_PENDING)
            continue;
        const struct session_options session = options_of_lane(options, i, &pixels);
        const struct precision_gate gate = {lane_borrow, lane_return, lane};
        TRY(precision_try(model, &how, &session, lane->session, &gate, deployment->load_ms, choice,
                          err));
        log_choice(model, device, choice, LOG_INFO);
    }
    return STATUS_OK;
}

void deployment_retire(struct deployment *deployment)
{
    scheduler_stop_accepting(deployment->scheduler);
    (void)scheduler_wait_answered(deployment->scheduler, INT64_MAX);
    pool_forget(deployment->scheduler->pool, &deployment->scheduler->source);
}

void deployment_end(struct deployment *deployment)
{
    if (!deployment)
        return;
    if (deployment->scheduler)
        scheduler_stop(deployment->scheduler);
    for (size_t i = 0; i < DEVICE_MAX; i++)
        lane_free(deployment->lanes[i]);
    scheduler_free(deployment->scheduler);
    deployment_unref(deployment);
}
