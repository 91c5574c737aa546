/* Describes a loaded model once (inputs, outputs, classes) and counts what it serves. */
#include "server/schedule/runtime/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "models/tasks/class_scores.h"
#include "server/schedule/runtime/model_host.h"

size_t served_image_input(const struct model *model)
{
    return model->input_count == 1 ? model->image_input : SIZE_MAX;
}

bool served_is_classifier(const struct served *served)
{
    return served->model->task.kind == TASK_CLASSIFICATION && !served->no_answer[0];
}

bool served_may_batch(const struct model *model)
{
    if (task_has_boxes(model->task.kind) && !task_layout_has_rows(model->task.layout))
        return false;
    if (served_image_input(model) != SIZE_MAX)
        return true; /* the session finds out */
    for (size_t i = 0; i < model->input_count; i++) {
        const struct shape *shape = &model->inputs[i].shape;
        if (shape->rank < 1 || shape->dims[0] != DIM_UNKNOWN)
            return false;
    }
    return model->input_count > 0;
}

/* The session's image input is [1, H, W, C] of its numbers whatever the file says; here it is told
 * as the file has it. */
static enum status describe_input(const struct served *served, const struct session *session,
                                  size_t i, struct error *err)
{
    const struct session_tensor *fed = session_input(session, i);
    struct served_tensor *input = &served->inputs[i];
    *input = (struct served_tensor){.name = served->model->inputs[i].name,
                                    .dtype = served->model->inputs[i].dtype,
                                    .shape = fed->shape};
    if (i == served->image_input && !served->model->input_channels_last) {
        input->shape.dims[1] = fed->shape.dims[3];
        input->shape.dims[2] = fed->shape.dims[1];
        input->shape.dims[3] = fed->shape.dims[2];
    }
    return shape_check(&input->shape, input->dtype, &input->count, &input->bytes, err);
}

static enum status describe_output(const struct served *served, const struct session *session,
                                   size_t i, struct error *err)
{
    const struct session_tensor *given = session_output(session, i);
    struct served_tensor *output = &served->outputs[i];
    *output = (struct served_tensor){
        .name = served->model->outputs[i].name, .dtype = given->dtype, .shape = given->shape};
    if (output->shape.rank == SHAPE_UNKNOWN)
        return STATUS_OK;
    return shape_check(&output->shape, output->dtype, &output->count, &output->bytes, err);
}

/* What the decode workers write must be what the session reads. */
static enum status check_image(const struct served *served, const struct session *session,
                               struct error *err)
{
    const struct preprocess *p = &served->model->preprocess;
    const struct session_tensor *input = session_input(session, served->image_input);
    struct shape wanted = SHAPE(1, p->height, p->width, preprocess_channels(p));
    if (input->dtype == session_info(session)->image.dtype && shape_equal(&input->shape, &wanted))
        return STATUS_OK;
    char wanted_text[SHAPE_TEXT], input_text[SHAPE_TEXT];
    return error_set(err, STATUS_SHAPE,
                     "model '%s': the preprocessing makes %s (batch, height, width, "
                     "channels), but input '%s' takes %s; correct the sizes in the model's "
                     "preprocessor file",
                     served->model->name, shape_text(&wanted, wanted_text), input->name,
                     shape_text(&input->shape, input_text));
}

/* Of how many things there are in a picture (a detector's boxes, [n, 4]), not of the picture. */
static bool is_of_parts(const struct served *served, size_t output)
{
    return served->outputs[output].shape.rank == SHAPE_UNKNOWN &&
           model_rows_depend_on_data(served->model, &served->model->outputs[output].shape);
}

static enum status check_scores(struct served *served, const struct session *session,
                                struct error *err)
{
    const size_t output = served->model->output;
    char text[SHAPE_TEXT];
    if (is_of_parts(served, output))
        return error_set(err, STATUS_UNSUPPORTED,
                         "output '%s' of an image has the shape %s with a first dimension that "
                         "depends on the picture, which is not one score per class; image "
                         "classifiers are served",
                         served->outputs[output].name,
                         shape_text(&served->model->outputs[output].shape, text));
    struct session_tensor scores = *session_output(session, output);
    const struct shape *declared = &served->model->outputs[output].shape;
    /* The file may declare a shape that the session knows only after a run: [1, 300, 6]. */
    if (scores.shape.rank == SHAPE_UNKNOWN && served->model->fixed_batch &&
        shape_is_known(declared))
        scores.shape = *declared;
    return scores_check(&scores, &served->class_count, err);
}

/* Finds the first output of the task, or the reason why photos get no answer. */
static void find_answer(struct served *served, const struct session *session)
{
    const struct model *model = served->model;
    struct error why = {0};
    served->output = model->output;
    if (!served->takes_images && served->input_count == 1)
        error_set(&why, STATUS_UNSUPPORTED,
                  "its input '%.60s' is not an image, [N, C, H, W] or [N, H, W, C] with 1 or 3 "
                  "channels",
                  served->inputs[0].name);
    else if (!served->takes_images)
        error_set(&why, STATUS_UNSUPPORTED,
                  "it has %zu inputs of which none alone is an image [N, C, H, W] or [N, H, W, C] "
                  "with 1 or 3 channels",
                  served->input_count);
    else if (model->task.kind == TASK_UNKNOWN)
        error_set(&why, STATUS_UNSUPPORTED, "%s", model->task.evidence);
    else if (model->task.kind != TASK_CLASSIFICATION ||
             check_scores(served, session, &why) == STATUS_OK)
        return;
    snprintf(served->no_answer, sizeof served->no_answer, "%.*s", (int)sizeof served->no_answer - 1,
             why.message);
}

static bool follows_rows(const struct served_tensor *tensor)
{
    return tensor->shape.rank == SHAPE_UNKNOWN ||
           (tensor->shape.rank >= 1 && tensor->shape.dims[0] == 1);
}

static enum status served_describe(struct served *served, const struct session *session,
                                   struct error *err)
{
    const struct session_info *info = session_info(session);
    served->input_count = session_input_count(session);
    served->output_count = session_output_count(session);
    served->image_input = served_image_input(served->model);
    served->image_numbers = info->image;
    served->takes_images = served->image_input != SIZE_MAX;
    served->inputs = alloc_array(served->input_count, sizeof *served->inputs);
    served->outputs = alloc_array(served->output_count, sizeof *served->outputs);
    if (!served->inputs || !served->outputs)
        return error_set(err, STATUS_NO_MEMORY, "no memory to describe a model");
    if (served->takes_images)
        TRY(check_image(served, session, err));
    served->has_rows = served_may_batch(served->model) && !info->rows_mix;
    for (size_t i = 0; i < served->input_count; i++) {
        TRY(describe_input(served, session, i, err));
        served->has_rows = served->has_rows && follows_rows(&served->inputs[i]);
    }
    for (size_t i = 0; i < served->output_count; i++) {
        TRY(describe_output(served, session, i, err));
        served->has_rows =
            served->has_rows && follows_rows(&served->outputs[i]) && !is_of_parts(served, i);
    }
    find_answer(served, session);
    served->max_batch = info->batched ? info->batches[info->batch_count - 1].size : 1;
    return STATUS_OK;
}

enum status served_create(struct model *model, const struct session *session, struct served **ret,
                          struct error *err)
{
    struct served *served = calloc(1, sizeof *served);
    if (!served)
        return error_set(err, STATUS_NO_MEMORY, "no memory to describe a model");
    served->refs = 1;
    served->model = model;
    enum status status = served_describe(served, session, err);
    if (status != STATUS_OK) {
        served->model = NULL; /* still the caller's */
        served_unref(served);
        return status;
    }
    *ret = served;
    return STATUS_OK;
}

struct served *served_ref(struct served *served)
{
    atomic_fetch_add_explicit(&served->refs, 1, memory_order_relaxed);
    return served;
}

void served_unref(struct served *served)
{
    if (!served || atomic_fetch_sub_explicit(&served->refs, 1, memory_order_acq_rel) > 1)
        return;
    model_free(served->model);
    free(served->inputs);
    free(served->outputs);
    free(served);
}

/* ---- counting ---- */

static void served_add(_Atomic uint64_t *number, uint64_t more)
{
    atomic_fetch_add_explicit(number, more, memory_order_relaxed);
}

static void count_ms(struct served_count *count, double ms)
{
    served_add(&count->ns, ms > 0 ? (uint64_t)(ms * 1e6) : 0);
    served_add(&count->count, 1);
}

static void note_time(struct served_stats *stats)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    atomic_store_explicit(&stats->last_ms,
                          (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000,
                          memory_order_relaxed);
}

void served_note_request(struct served *served, const struct predict_request *request)
{
    struct served_stats *stats = &served->stats;
    double queue = 0, input = 0, infer = 0, output = 0;
    size_t good = 0;
    for (size_t i = 0; i < request->image_count; i++) {
        const struct predict_image *image = &request->images[i];
        double prepared = image->decode_ms + image->preprocess_ms;
        good += image->status == STATUS_OK;
        queue = image->queue_ms > queue ? image->queue_ms : queue;
        input = prepared > input ? prepared : input;
        infer = image->forward_ms > infer ? image->forward_ms : infer;
        output = image->output_ms > output ? image->output_ms : output;
    }
    note_time(stats);
    served_add(&stats->rows, good);
    double total = clock_ms(clock_now() - request->started);
    if (good < request->image_count) {
        count_ms(&stats->fail, total);
        return;
    }
    count_ms(&stats->success, total);
    count_ms(&stats->queue, queue);
    count_ms(&stats->input, input);
    count_ms(&stats->infer, infer);
    count_ms(&stats->output, output);
}

void served_note_cache_hit(struct served *served, int64_t started, double ms)
{
    const double total = clock_ms(clock_now() - started);
    note_time(&served->stats);
    count_ms(&served->stats.success, total);
    count_ms(&served->stats.cache_hit, ms);
    meters_cache_hit(&served->meters, total);
}

void served_note_cache_miss(struct served *served, double ms)
{
    count_ms(&served->stats.cache_miss, ms);
    metric_add(served->meters.cache_misses, 1);
}

void served_note_run(struct served *served, int rows, double input_ms, double infer_ms)
{
    served_add(&served->stats.executions, 1);
    if (rows < 1 || rows > BATCHER_MAX_BATCH)
        return;
    struct served_batch *batch = &served->stats.batches[rows];
    count_ms(&batch->input, input_ms);
    count_ms(&batch->infer, infer_ms);
}

void served_note_output(struct served *served, int rows, double output_ms)
{
    if (rows >= 1 && rows <= BATCHER_MAX_BATCH)
        count_ms(&served->stats.batches[rows].output, output_ms);
}
