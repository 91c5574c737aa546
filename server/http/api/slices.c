/* Decodes once, predicts in slices, merges. */
#include "server/http/api/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/http/api/work.h"
#include "server/http/transport/respond.h"

enum { SIDE_LEAST = 32 };
#define OVERLAP_DEFAULT 0.2 /* SAHI's */
#define OVERLAP_MOST    0.9

bool slices_is_parameter(const char *name)
{
    return !strcmp(name, "slices") || !strcmp(name, "overlap") || !strcmp(name, "merge");
}

enum status slices_set(struct sliced_photo *slices, const char *name, const char *text,
                       struct error *err)
{
    char *end = NULL;
    const bool is_number = *text >= '0' && *text <= '9';
    const double value = is_number ? strtod(text, &end) : -1;
    const bool is_whole = is_number && !*end;
    if (!strcmp(name, "slices")) {
        if (!is_whole || value < SIDE_LEAST || value > PIPELINE_SIDE_MAX || floor(value) < value)
            return error_set(err, STATUS_INVALID,
                             "slices is '%.40s'; it must be the side of a slice in pixels, %d to "
                             "%d, such as 640",
                             text, SIDE_LEAST, PIPELINE_SIDE_MAX);
        slices->side = (uint32_t)value;
    } else if (!strcmp(name, "overlap")) {
        if (!is_whole || !(value <= OVERLAP_MOST))
            return error_set(err, STATUS_INVALID,
                             "overlap is '%.40s'; it must be the share of a slice that the next "
                             "one repeats, 0 to %g",
                             text, OVERLAP_MOST);
        slices->overlap = value;
        slices->has_overlap = true;
    } else {
        slices->rule = strcmp(text, "nms") ? SLICES_GREEDY_NMM : SLICES_NMS;
        slices->has_rule = true;
        if (slices->rule == SLICES_GREEDY_NMM && strcmp(text, "nmm") != 0)
            return error_set(err, STATUS_INVALID,
                             "merge is '%.40s'; it must be nmm (unite boxes that share half of the "
                             "smaller one) or nms (drop boxes with an IoU of 0.5)",
                             text);
    }
    return STATUS_OK;
}

/* ---- the slices ---- */

/* Runs on a thread of the pipeline. */
static void on_predicted(struct predict_request *request)
{
    exchange_offload(request->context, request->image_count * WORK_LARGE_BODY, exchange_answer);
}

static enum status make_views(struct sliced_photo *slices, uint32_t width, uint32_t height,
                              struct predict_request *request, struct error *err)
{
    const size_t row = (size_t)width * 3;
    TRY(work_images(request, slices->count + 1, err));
    slices->places[slices->count] = (struct photo_slice){0, 0, width, height};
    for (size_t i = 0; i <= slices->count; i++) {
        const struct photo_slice *place = &slices->places[i];
        slices->views[i] = (struct image){
            .info = {.width = place->width, .height = place->height, .orientation = 1},
            .width = place->width,
            .height = place->height,
            .stride = row,
            .pixels = slices->photo + place->y * row + (size_t)place->x * 3};
        request->images[i].pixels = &slices->views[i];
    }
    return STATUS_OK;
}

/* The second half, on an offload thread: the request is made anew, from pixels. */
static void predict_slices(struct exchange *x)
{
    struct predict_request *request = x->work;
    struct sliced_photo *slices = request->slices;
    struct predict_image *whole = &request->images[0];
    const struct model *model = request->used_model;
    const uint32_t width = whole->width, height = whole->height;
    struct error err;
    enum status status = STATUS_OK;
    if (model->task.kind != TASK_DETECTION)
        status = error_set(&err, STATUS_INVALID,
                           "slices are for detectors, and model '%s' is for %s; leave the "
                           "parameter out",
                           model->name, task_name(model->task.kind));
    slices->photo = whole->photo;
    slices->decode_ms = whole->decode_ms;
    whole->photo = NULL;
    predict_request_free_results(request);
    free(request->images);
    request->images = NULL;
    request->image_count = 0;
    request->decode_only = false;
    request->on_done = on_predicted;
    if (status == STATUS_OK)
        status = make_views(slices, width, height, request, &err);
    work_submit_or(x, status, &err);
}

/* Runs on a decode worker. */
static void on_decoded(struct predict_request *request)
{
    struct exchange *x = request->context;
    const struct predict_image *photo = &request->images[0];
    exchange_offload(x, (size_t)photo->width * photo->height,
                     photo->status == STATUS_OK ? predict_slices : exchange_answer);
}

enum status slices_begin(struct exchange *x, struct predict_request *request,
                         struct sliced_photo *slices, struct error *err)
{
    const struct image_limits none = {0};
    const size_t most = x->server->options.max_images;
    struct predict_image *photo = &request->images[0];
    struct image_info info;
    struct error unread;
    if (!slices->side && (slices->has_overlap || slices->has_rule))
        return error_set(err, STATUS_INVALID, "%s needs slices, such as slices=640",
                         slices->has_overlap ? "overlap" : "merge");
    if (!slices->side)
        return STATUS_OK;
    if (request->image_count != 1)
        return error_set(err, STATUS_INVALID,
                         "slices are for one photo, and the request has %zu; send them one by one",
                         request->image_count);
    /* What cannot be read fails with its own error when it is decoded. */
    if (photo->preset.status != STATUS_OK ||
        image_probe(photo->data, photo->size, &none, &info, &unread) != STATUS_OK ||
        (info.width <= slices->side && info.height <= slices->side))
        return STATUS_OK;
    const double overlap = slices->has_overlap ? slices->overlap : OVERLAP_DEFAULT;
    const size_t count = slices_plan(info.width, info.height, slices->side, overlap, NULL, 0);
    if (count >= most)
        return error_set(err, STATUS_INVALID,
                         "the photo makes %zu slices, and with the whole photo a request may have "
                         "%zu images (--max-images); ask for larger slices or less overlap",
                         count, most);
    TRY(work_expect_answer(x, (size_t)info.width * info.height * 3, err));
    slices->places = alloc_array(count + 1, sizeof *slices->places);
    slices->views = alloc_array(count + 1, sizeof *slices->views);
    if (!slices->places || !slices->views)
        return error_no_memory(err, "slices");
    slices->count =
        slices_plan(info.width, info.height, slices->side, overlap, slices->places, count);
    slices->data = photo->data;
    slices->size = photo->size;
    request->slices = slices;
    request->decode_only = true;
    request->on_done = on_decoded;
    return STATUS_OK;
}

/* ---- the answer ---- */

static enum status merge(struct predict_request *request, const struct sliced_photo *slices,
                         struct detections *ret, struct error *err)
{
    const struct task_options *own = &request->used_model->task.options, *asked = request->options;
    const struct task_options options = asked ? task_options_merge(asked, own) : *own;
    const size_t most =
        asked && asked->max_detections ? (size_t)asked->max_detections : TASK_MAX_DETECTIONS;
    const struct detections **parts = alloc_array(request->image_count, sizeof *parts);
    if (!parts)
        return error_no_memory(err, "slices");
    for (size_t i = 0; i < request->image_count; i++)
        parts[i] = &request->images[i].answer.detections;
    const enum status status = slices_merge(parts, slices->places, request->image_count,
                                            slices->rule, options.agnostic > 0, most, ret, err);
    free(parts);
    return status;
}

void slices_end(struct predict_request *request, const struct sliced_photo *slices)
{
    struct predict_image *photo = &request->images[0];
    struct detections merged = {0};
    if (!slices->photo)
        return;
    for (size_t i = 1; i < request->image_count && photo->status == STATUS_OK; i++) {
        photo->status = request->images[i].status;
        photo->error = request->images[i].error;
    }
    /* The second half may have reached another version of the model. */
    if (photo->status == STATUS_OK && request->used_model->task.kind != TASK_DETECTION)
        photo->status = error_set(&photo->error, STATUS_NOT_READY,
                                  "model '%s' was replaced by one that is no detector meanwhile; "
                                  "send the photo again, without slices",
                                  request->used_model->name);
    if (photo->status == STATUS_OK)
        photo->status = merge(request, slices, &merged, &photo->error);
    for (size_t i = 0; i < request->image_count; i++)
        task_answer_done(&request->images[i].answer);
    photo->answer.detections = merged;
    photo->data = slices->data;
    photo->size = slices->size;
    photo->width = slices->places[slices->count].width;
    photo->height = slices->places[slices->count].height;
    photo->decode_ms = slices->decode_ms;
    request->image_count = 1;
}

void slices_free(struct sliced_photo *slices)
{
    free(slices->photo);
    free(slices->places);
    free(slices->views);
}
