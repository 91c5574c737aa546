/* Reads the parameters of slices, submits the slices of a decoded photo, and merges their boxes. */
#include "server/http/api/slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"

enum { SIDE_LEAST = 32 };
#define OVERLAP_DEFAULT 0.2 /* as in SAHI */
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
        if (!is_whole || value < SIDE_LEAST || value > MODEL_SIDE_MAX || floor(value) < value)
            return error_set(err, STATUS_INVALID,
                             "slices is '%.40s'; it must be the side of a slice in pixels, %d to "
                             "%d, such as 640",
                             text, SIDE_LEAST, MODEL_SIDE_MAX);
        slices->side = (uint32_t)value;
    } else if (!strcmp(name, "overlap")) {
        if (!is_whole || !(value <= OVERLAP_MOST))
            return error_set(err, STATUS_INVALID,
                             "overlap is '%.40s'; it must be the share of a slice that the next "
                             "slice repeats, 0 to %g",
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

static enum status slices_add(struct sliced_photo *slices, struct request_part **ret,
                              struct error *err)
{
    const struct predict_request *whole = slices->parts.whole;
    const struct model *model = whole->used_model;
    const struct image photo = parts_photo(&whole->images[0]);
    if (model->task.kind != TASK_DETECTION)
        return error_set(err, STATUS_INVALID,
                         "slices are for detectors, and model '%s' is for %s; leave the parameter "
                         "out",
                         model->name, task_name(model->task.kind));
    *ret = parts_add(&slices->parts, whole->model, slices->count + 1);
    TRY(check_memory(*ret, "for slices", err));
    slices->places[slices->count] = (struct photo_slice){0, 0, photo.width, photo.height};
    for (size_t i = 0; i <= slices->count; i++) {
        const struct photo_slice *place = &slices->places[i];
        (*ret)->crops[i] = parts_view(&photo, place->x, place->y, place->width, place->height);
    }
    return STATUS_OK;
}

static enum status merge(const struct sliced_photo *slices, struct detections *ret,
                         struct error *err)
{
    const struct predict_request *request = &slices->parts.last->request;
    const struct task_options *own = &request->used_model->task.options, *asked = request->options;
    const struct task_options options = asked ? task_options_merge(asked, own) : *own;
    const size_t most =
        asked && asked->max_detections ? (size_t)asked->max_detections : TASK_MAX_DETECTIONS;
    const struct detections **found = alloc_array(request->image_count, sizeof *found);
    TRY(check_memory(found, "for slices", err));
    for (size_t i = 0; i < request->image_count; i++)
        found[i] = &request->images[i].answer.detections;
    const enum status status = slices_merge(found, slices->places, request->image_count,
                                            slices->rule, options.agnostic > 0, most, ret, err);
    free(found);
    return status;
}

/* Sets the photo's answer from its slices. One failed slice fails the photo. */
static void answer_photo(struct sliced_photo *slices)
{
    const struct predict_request *request = &slices->parts.last->request;
    struct predict_image *photo = &slices->parts.whole->images[0];
    const double decode_ms = photo->times.decode_ms;
    photo->times = request->images[0].times;
    photo->times.decode_ms = decode_ms;
    for (size_t i = 0; i < request->image_count && photo->status == STATUS_OK; i++) {
        photo->status = request->images[i].status;
        photo->error = request->images[i].error;
    }
    /* Another version may have replaced the model while the photo was decoded, before the slices
     * were submitted. */
    if (photo->status == STATUS_OK && request->used_model->task.kind != TASK_DETECTION)
        photo->status = error_set(&photo->error, STATUS_NOT_READY,
                                  "model '%s' was replaced meanwhile by one that is not a "
                                  "detector; send the photo again, without slices",
                                  request->used_model->name);
    if (photo->status == STATUS_OK)
        photo->status = merge(slices, &photo->answer.detections, &photo->error);
    parts_answered_by(&slices->parts, slices->parts.last);
}

static enum status slices_next(struct request_parts *parts, struct request_part **ret,
                               struct error *err)
{
    struct sliced_photo *slices = (struct sliced_photo *)parts;
    *ret = NULL;
    if (parts->last)
        answer_photo(slices);
    else if (parts->whole->images[0].status == STATUS_OK)
        return slices_add(slices, ret, err);
    return STATUS_OK;
}

enum status slices_begin(struct predict_request *request, size_t max_images,
                         struct sliced_photo *slices, struct error *err)
{
    const struct image_limits none = {0};
    const struct predict_image *photo = &request->images[0];
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
    /* A photo that cannot be read fails with its own error when it is decoded. */
    if (photo->preset.status != STATUS_OK ||
        image_probe(photo->data, photo->size, &none, &info, &unread) != STATUS_OK ||
        (info.width <= slices->side && info.height <= slices->side))
        return STATUS_OK;
    const double overlap = slices->has_overlap ? slices->overlap : OVERLAP_DEFAULT;
    const size_t count = slices_plan(info.width, info.height, slices->side, overlap, NULL, 0);
    if (count >= max_images)
        return error_set(err, STATUS_INVALID,
                         "the photo makes %zu slices, but with the whole photo a request may have "
                         "%zu images (--max-images); use larger slices or less overlap",
                         count, max_images);
    slices->places = alloc_array(count + 1, sizeof *slices->places);
    TRY(check_memory(slices->places, "for slices", err));
    slices->count =
        slices_plan(info.width, info.height, slices->side, overlap, slices->places, count);
    slices->parts.next = slices_next;
    parts_begin(&slices->parts, request);
    return STATUS_OK;
}

void slices_free(struct sliced_photo *slices)
{
    parts_done(&slices->parts);
    free(slices->places);
}
