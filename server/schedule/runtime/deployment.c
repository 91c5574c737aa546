/* Describes a compiled model (inputs, outputs, classes); counts its requests and passes. */
#include "server/schedule/runtime/deployment.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "models/tasks/class_scores.h"
#include "server/schedule/runtime/model_host.h"
#include "server/schedule/runtime/text_cache.h"

size_t deployment_image_input(const struct model *model)
{
    return model->input_count == 1 || model->words.form != WORDS_NONE ? model->image_input
                                                                      : SIZE_MAX;
}

bool deployment_takes_texts(const struct model *model)
{
    return model->text.tokenizer && model->task.kind == TASK_EMBEDDING;
}

bool deployment_may_batch(const struct model *model)
{
    if (task_has_boxes(model->task.kind) && !task_layout_has_rows(model->task.layout))
        return false;
    if (deployment_image_input(model) != SIZE_MAX && model->words.form == WORDS_NONE)
        return true; /* the session finds out whether rows affect each other (rows_mix) */
    for (size_t i = 0; i < model->input_count; i++) {
        const struct shape *shape = &model->inputs[i].shape;
        if (shape->rank < 1 || shape->dims[0] != DIM_UNKNOWN)
            return false;
    }
    return model->input_count > 0;
}

/* The session's image input is [1, H, W, C]; the description has the file's order of axes. */
static enum status describe_input(const struct deployment *deployment,
                                  const struct session *session, size_t i, struct error *err)
{
    const struct session_tensor *fed = &session_info(session)->inputs[i];
    struct served_tensor *input = &deployment->inputs[i];
    *input = (struct served_tensor){.name = deployment->model->inputs[i].name,
                                    .dtype = deployment->model->inputs[i].dtype,
                                    .shape = fed->shape};
    if (i == deployment->image_input && !deployment->model->input_channels_last) {
        input->shape.dims[1] = fed->shape.dims[3];
        input->shape.dims[2] = fed->shape.dims[1];
        input->shape.dims[3] = fed->shape.dims[2];
    }
    return shape_check(&input->shape, input->dtype, &input->count, &input->bytes, err);
}

static enum status describe_output(const struct deployment *deployment,
                                   const struct session *session, size_t i, struct error *err)
{
    const struct session_tensor *given = &session_info(session)->outputs[i];
    struct served_tensor *output = &deployment->outputs[i];
    *output = (struct served_tensor){
        .name = deployment->model->outputs[i].name, .dtype = given->dtype, .shape = given->shape};
    if (output->shape.rank == SHAPE_UNKNOWN)
        return STATUS_OK;
    return shape_check(&output->shape, output->dtype, &output->count, &output->bytes, err);
}

/* The decode workers must write the shape that the session reads. */
static enum status check_image(const struct deployment *deployment, const struct session *session,
                               struct error *err)
{
    const struct preprocess *p = &deployment->model->preprocess;
    const struct session_tensor *input = &session_info(session)->inputs[deployment->image_input];
    struct shape wanted = SHAPE(1, p->height, p->width, preprocess_channels(p));
    if (shape_equal(&input->shape, &wanted))
        return STATUS_OK;
    return error_set(err, STATUS_SHAPE,
                     "model '%s': the preprocessing makes %s (batch, height, width, channels), but "
                     "input '%s' takes %s; correct the sizes in the model's preprocessor file",
                     deployment->model->name, SHAPE_STRING(&wanted), input->name,
                     SHAPE_STRING(&input->shape));
}

/* True if an output has a row per object in the photo (a detector's boxes, [n, 4]). */
static bool is_per_object(const struct deployment *deployment, size_t output)
{
    return deployment->outputs[output].shape.rank == SHAPE_UNKNOWN &&
           model_rows_depend_on_data(deployment->model, &deployment->model->outputs[output].shape);
}

static enum status check_scores(struct deployment *deployment, const struct session *session,
                                struct error *err)
{
    const size_t output = deployment->model->output;
    struct session_tensor scores = session_info(session)->outputs[output];
    const struct shape *declared = &deployment->model->outputs[output].shape;
    /* The file may declare a shape that the session knows only after a run, such as [1, 300, 6]. */
    if (scores.shape.rank == SHAPE_UNKNOWN && deployment->model->fixed_batch &&
        shape_is_known(declared))
        scores.shape = *declared;
    return scores_check(&scores, &deployment->class_count, err);
}

/* Finds the first output of the task, or the reason why photos get no answer. */
static void find_answer(struct deployment *deployment, const struct session *session)
{
    const struct model *model = deployment->model;
    struct error why = {0};
    deployment->output = model->output;
    if (deployment_takes_texts(model))
        error_set(&why, STATUS_UNSUPPORTED, "it takes texts (POST /v1/embeddings)");
    else if (!deployment->takes_images && deployment->input_count == 1)
        error_set(
            &why, STATUS_UNSUPPORTED,
            "its input '%.60s' is not an image, [N, C, H, W] or [N, H, W, C] with 1 or 3 channels",
            deployment->inputs[0].name);
    else if (!deployment->takes_images && model->image_input != SIZE_MAX &&
             !model->task.is_tensors && model->lacks_tokenizer)
        error_set(&why, STATUS_UNSUPPORTED, MODEL_NO_TOKENIZER);
    else if (!deployment->takes_images && model->image_input != SIZE_MAX &&
             !model->task.is_tensors) {
        const char *other = deployment->inputs[model->image_input == 0].name;
        error_set(&why, STATUS_UNSUPPORTED,
                  "lensd does not know what belongs in its input '%.60s': write the numbers into "
                  "lensd.json, {\"inputs\": {\"%.60s\": …}}",
                  other, other);
    } else if (!deployment->takes_images)
        error_set(&why, STATUS_UNSUPPORTED,
                  "it has %zu inputs of which none alone is an image [N, C, H, W] or [N, H, W, C] "
                  "with 1 or 3 channels",
                  deployment->input_count);
    else if (model->task.kind == TASK_UNKNOWN)
        error_set(&why, STATUS_UNSUPPORTED, "%s", model->task.evidence);
    else if (model->task.kind != TASK_CLASSIFICATION ||
             check_scores(deployment, session, &why) == STATUS_OK)
        return;
    snprintf(deployment->no_answer, sizeof deployment->no_answer, "%.*s",
             (int)sizeof deployment->no_answer - 1, why.message);
}

static bool follows_rows(const struct served_tensor *tensor)
{
    return tensor->shape.rank == SHAPE_UNKNOWN ||
           (tensor->shape.rank >= 1 && tensor->shape.dims[0] == 1);
}

enum status deployment_describe(struct deployment *deployment, const struct session *session,
                                struct memory_budget *run_memory, struct error *err)
{
    const struct session_info *info = session_info(session);
    deployment->input_count = info->input_count;
    deployment->output_count = info->output_count;
    deployment->image_input = deployment_image_input(deployment->model);
    deployment->takes_images = deployment->image_input != SIZE_MAX;
    deployment->inputs = alloc_array(deployment->input_count, sizeof *deployment->inputs);
    deployment->outputs = alloc_array(deployment->output_count, sizeof *deployment->outputs);
    TRY(check_memory(deployment->inputs && deployment->outputs, "to describe a model", err));
    if (deployment->takes_images)
        TRY(check_image(deployment, session, err));
    deployment->has_rows = deployment_may_batch(deployment->model) && !info->rows_mix;
    for (size_t i = 0; i < deployment->input_count; i++) {
        TRY(describe_input(deployment, session, i, err));
        deployment->has_rows = deployment->has_rows && follows_rows(&deployment->inputs[i]);
    }
    for (size_t i = 0; i < deployment->output_count; i++) {
        TRY(describe_output(deployment, session, i, err));
        deployment->has_rows = deployment->has_rows && follows_rows(&deployment->outputs[i]) &&
                               !is_per_object(deployment, i);
    }
    find_answer(deployment, session);
    if (deployment_takes_texts(deployment->model))
        deployment->text_cache = text_cache_create(TEXT_CACHE_BYTES, NULL);
    if (deployment->model->task.kind == TASK_MASKS && deployment->takes_images)
        deployment->text_cache = text_cache_create(PHOTO_CACHE_BYTES, run_memory);
    return STATUS_OK;
}

struct deployment *deployment_ref(struct deployment *deployment)
{
    atomic_fetch_add_explicit(&deployment->refs, 1, memory_order_relaxed);
    return deployment;
}

void deployment_unref(struct deployment *deployment)
{
    if (!deployment || atomic_fetch_sub_explicit(&deployment->refs, 1, memory_order_acq_rel) > 1)
        return;
    model_free(deployment->model);
    text_cache_free(deployment->text_cache);
    pthread_mutex_destroy(&deployment->stats_lock);
    FREE_ALL(deployment->inputs, deployment->outputs, deployment);
}

static void count_ms(struct deployment_count *count, double ms)
{
    count->ns += ms > 0 ? (uint64_t)(ms * 1e6) : 0;
    count->count++;
}

static void note_time(struct deployment_stats *stats)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    stats->last_inference_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void deployment_note_request(struct deployment *deployment, const struct predict_request *request)
{
    struct deployment_stats *stats = &deployment->stats;
    struct request_times times = {.total = clock_ms(clock_now() - request->started)};
    enum status status = STATUS_OK;
    size_t good = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        good += image->status == STATUS_OK;
        status = status == STATUS_OK ? image->status : status;
        times.queue = fmax(times.queue, image->times.queue_ms);
        times.input = fmax(times.input, image->times.decode_ms + image->times.preprocess_ms);
        times.infer = fmax(times.infer, image->times.forward_ms);
        times.output = fmax(times.output, image->times.output_ms);
    }
    meters_request(&deployment->meters, status, &times);
    LOCK(&deployment->stats_lock);
    note_time(stats);
    stats->inference_count += good;
    if (status != STATUS_OK) {
        count_ms(&stats->fail, times.total);
        return;
    }
    count_ms(&stats->success, times.total);
    count_ms(&stats->queue, times.queue);
    count_ms(&stats->input, times.input);
    count_ms(&stats->infer, times.infer);
    count_ms(&stats->output, times.output);
}

void deployment_note_cache_hit(struct deployment *deployment, int64_t started, double ms)
{
    const struct request_times times = {.total = clock_ms(clock_now() - started)};
    meters_request(&deployment->meters, STATUS_OK, &times);
    metric_add(deployment->meters.cache_hits, 1);
    LOCK(&deployment->stats_lock);
    note_time(&deployment->stats);
    count_ms(&deployment->stats.success, times.total);
    count_ms(&deployment->stats.cache_hit, ms);
}

void deployment_note_cache_miss(struct deployment *deployment, double ms)
{
    metric_add(deployment->meters.cache_misses, 1);
    LOCK(&deployment->stats_lock);
    count_ms(&deployment->stats.cache_miss, ms);
}

void deployment_note_run(struct deployment *deployment, int rows, double input_ms, double infer_ms)
{
    LOCK(&deployment->stats_lock);
    deployment->stats.execution_count++;
    count_ms(&deployment->stats.batches[rows].input, input_ms);
    count_ms(&deployment->stats.batches[rows].infer, infer_ms);
}

void deployment_note_output(struct deployment *deployment, int rows, double output_ms)
{
    LOCK(&deployment->stats_lock);
    count_ms(&deployment->stats.batches[rows].output, output_ms);
}
