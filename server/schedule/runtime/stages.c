/* Runs pipelines: photos to boxes, boxes to crops, crops to the next model. */
#include "server/schedule/runtime/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "models/tasks/crops.h"
#include "server/image/frame.h"
#include "server/image/warp.h"

/* The input of a stage's model: a photo, or a crop of a box. */
struct stage_crop {
    struct image picture;
    uint8_t *pixels; /* pixels of a rectified or turned crop, owned; NULL: `picture` borrows its
                        pixels from the image that it was cut from */
    struct error failure;          /* status != OK: the crop could not be cut out */
    struct predict_image *parent;  /* the photo, or the image whose box is cropped */
    size_t box;                    /* index of the cropped box in the parent's answer */
    const struct stage_size *size; /* NULL: the request's size, or the model's own */
    struct predict_image *result;  /* the crop's answer; NULL: not submitted yet */
    bool is_body;                  /* the crop is for a RESIZE_BODY model, and `map` is set */
    double map[6];                 /* maps pixels of the crop to pixels of `whole` */
    struct image whole;            /* the image from which the crop was cut */
};

/* ---- before the first part ---- */

static enum status check_labels(const struct pipeline_stage *next, const struct model *model,
                                struct error *err)
{
    size_t ignored;
    for (size_t i = 0; i < next->label_count; i++) {
        const char *label = next->labels[i];
        if (labels_find(model->labels.names, model->labels.count, label, strlen(label), &ignored))
            continue;
        if (label[strspn(label, "0123456789")])
            return error_set(err, STATUS_CONFIG,
                             "the next stage names the label '%s', but model '%s' of this stage "
                             "has no such label",
                             label, model->name);
        if (model->labels.count > 0 && strtoull(label, NULL, 10) >= model->labels.count)
            return error_set(err, STATUS_CONFIG,
                             "the next stage names class %s, but model '%s' of this stage has %zu "
                             "classes, counted from 0",
                             label, model->name, model->labels.count);
    }
    return STATUS_OK;
}

static enum status check_sizes(const struct pipeline_stage *stage, const struct model *model,
                               struct error *err)
{
    for (size_t i = 0; i < stage->size_count; i++)
        if (model_check_size(model, stage->sizes[i].height, stage->sizes[i].width, err) !=
            STATUS_OK) {
            err->status = STATUS_CONFIG; /* pipeline.json chose the size */
            return error_prefix(err, "\"sizes\" names %dx%d", stage->sizes[i].width,
                                stage->sizes[i].height);
        }
    return STATUS_OK;
}

/* True if a label means that a crop is upside down. PaddleOCR has the labels 180 and 180_degree. */
static bool label_is_turned(const struct labels *labels, size_t index)
{
    const char *name = labels_name(labels, index);
    return name && strstr(name, "180");
}

static enum status check_turning(const struct model *model, struct error *err)
{
    bool has_label = false;
    for (size_t i = 0; i < model->labels.count; i++)
        has_label = has_label || label_is_turned(&model->labels, i);
    return has_label && model->task.kind == TASK_CLASSIFICATION
               ? STATUS_OK
               : error_set(err, STATUS_CONFIG,
                           "\"turn\" needs a classifier that has a label with 180, but model '%s' "
                           "is not one; write its labels, such as 0 and 180, into its labels.txt",
                           model->name);
}

/* Checks that a stage's model supports the stage. */
static enum status check_model(const struct pipeline_config *config, size_t at,
                               const struct deployment *deployment, struct error *err)
{
    const struct pipeline_stage *stage = &config->stages[at];
    const bool is_last = at + 1 == config->stage_count;
    if (deployment->no_answer[0])
        return error_set(err, STATUS_CONFIG, "model '%s' cannot answer a photo: %s", stage->model,
                         deployment->no_answer);
    if (deployment->model->task.kind == TASK_MASKS || deployment->input_count > 1)
        return error_set(err, STATUS_CONFIG,
                         "model '%s' needs points or words with each photo, and a stage gets none",
                         stage->model);
    TRY(check_sizes(stage, deployment->model, err));
    if (is_last)
        return STATUS_OK;
    if (stage->turn > 0)
        return check_turning(deployment->model, err);
    if (!task_has_boxes(deployment->model->task.kind))
        return error_set(err, STATUS_CONFIG,
                         "model '%s' is for %s, and the next stage needs boxes; only the last "
                         "stage, or a stage with \"turn\", may have another kind of model",
                         stage->model, task_name(deployment->model->task.kind));
    const struct pipeline_stage *next = &config->stages[at + 1];
    const struct task *task = &deployment->model->task;
    const size_t points = task->kind == TASK_TEXT_BOXES ? TEXT_CORNERS : task->point_count;
    if (next->align.count && next->align.count != points)
        return error_set(err, STATUS_CONFIG,
                         "the next stage aligns %zu points, and the boxes of model '%s' have %zu",
                         next->align.count, stage->model, points);
    return check_labels(next, deployment->model, err);
}

static enum status check_stage(struct staged_request *staged, size_t at, struct error *err)
{
    const char *name = staged->config->stages[at].model;
    struct deployment *deployment;
    TRY(model_host_acquire(staged->host, name, NULL, &deployment, err));
    const struct preprocess *p = &deployment->model->preprocess;
    staged->keep_aspect[at] = p->resize != RESIZE_EXACT;
    staged->body_preprocess[at] = p->resize == RESIZE_BODY ? *p : (struct preprocess){.width = 0};
    const size_t part = deployment->max_rows / ADMISSION_CROPS_DIVISOR;
    staged->rooms[at] = part > 1 ? part : 1;
    const enum status status = check_model(staged->config, at, deployment, err);
    model_host_release(staged->host, deployment);
    return status;
}

/* A missing or unloaded stage may be loaded later: 503, not 404. */
static enum status stage_failed(const struct staged_request *staged, size_t at, struct error *err)
{
    if (err->status == STATUS_NOT_FOUND)
        err->status = STATUS_NOT_READY;
    return error_prefix(err, "stage %zu of pipeline '%s'", at + 1, staged->name);
}

enum status stages_check(struct model_host *host, const char *name, const char *version,
                         struct error *err)
{
    char found[128];
    struct pipeline_config *config;
    enum status status = STATUS_OK;
    TRY(model_host_find_pipeline(host, name, version, found, &config, err));
    for (size_t i = 0; config && status == STATUS_OK && i < config->stage_count; i++) {
        struct deployment *deployment;
        struct error absent; /* ignored: the model may be loaded later */
        if (model_host_acquire(host, config->stages[i].model, NULL, &deployment, &absent) !=
            STATUS_OK)
            continue;
        status = check_model(config, i, deployment, err);
        model_host_release(host, deployment);
        if (status != STATUS_OK)
            status = error_prefix(err, "stage %zu of pipeline '%s'", i + 1, name);
    }
    free(config);
    return status;
}

/* ---- crops ---- */

static enum status take_photos(struct staged_request *staged, struct error *err)
{
    struct predict_request *whole = staged->parts.whole;
    struct stage_crop *crops = alloc_array(whole->image_count, sizeof *crops);
    TRY(check_memory(crops, "for the photos of a pipeline", err));
    staged->crops[0] = crops;
    for (size_t i = 0; i < whole->image_count; i++) {
        struct predict_image *photo = &whole->images[i];
        if (photo->status != STATUS_OK)
            continue;
        crops[staged->counts[0]++] = (struct stage_crop){
            .picture = parts_photo(photo),
            .parent = photo,
            .size = whole->height
                        ? NULL
                        : pipeline_stage_size(&staged->config->stages[0], staged->keep_aspect[0],
                                              photo->width, photo->height)};
    }
    return STATUS_OK;
}

/* Moves the answers of the first stage into the photos of the whole request. */
static void answer_photos(struct staged_request *staged)
{
    for (size_t i = 0; i < staged->counts[0]; i++) {
        struct stage_crop *crop = &staged->crops[0][i];
        struct predict_image *from = crop->result, *photo = crop->parent;
        struct predict_image answered = *from;
        /* These members stay those of the photo. */
        answered.data = photo->data;
        answered.size = photo->size;
        answered.name = photo->name;
        answered.photo = photo->photo;
        answered.times.decode_ms = photo->times.decode_ms;
        answered.pixels = photo->pixels;
        *photo = answered;
        from->predictions = NULL;
        from->prediction_count = 0;
        from->answer = (struct task_answer){0};
        crop->result = photo;
    }
    if (staged->parts.last)
        parts_answered_by(&staged->parts, staged->parts.last);
}

/* Allocates `width` x `height` pixels (*ret_bytes bytes) for a crop. */
static enum status allocate_pixels(const struct staged_request *staged, uint32_t width,
                                   uint32_t height, struct stage_crop *ret, size_t *ret_bytes,
                                   struct error *err)
{
    TRY(check_memory(size_mul((size_t)width * height, 3, ret_bytes), "for a crop", err));
    if (staged->take)
        TRY(staged->take(staged->context, *ret_bytes, err));
    ret->pixels = malloc(*ret_bytes);
    return check_memory(ret->pixels, "for a crop", err);
}

static void view_pixels(struct stage_crop *ret, uint32_t width, uint32_t height)
{
    const struct image all = {.stride = (size_t)width * 3, .pixels = ret->pixels};
    ret->picture = parts_view(&all, 0, 0, width, height);
}

/* Converts the keypoints of models with RESIZE_BODY from pixels of their crops to pixels of the
 * image that contains the box. The next stage cuts its crops from that image, too. */
static void map_bodies(struct staged_request *staged)
{
    for (size_t i = 0; i < staged->counts[staged->stage]; i++) {
        struct stage_crop *crop = &staged->crops[staged->stage][i];
        struct detections *found = &crop->result->answer.detections;
        const struct predict_image *from = crop->parent;
        if (!crop->is_body || crop->result->status != STATUS_OK)
            continue;
        crop->picture = crop->whole;
        crop->result->width = from->width;
        crop->result->height = from->height;
        for (size_t b = 0; b < found->count; b++) {
            const struct detection *box = &from->answer.detections.items[crop->box];
            found->items[b].x1 = box->x1;
            found->items[b].y1 = box->y1;
            found->items[b].x2 = box->x2;
            found->items[b].y2 = box->y2;
        }
        for (size_t p = 0; p < found->count * found->point_count; p++) {
            struct task_point *point = &found->points[p];
            point->x = (float)(crop->map[0] * (double)point->x + crop->map[2]);
            point->y = (float)(crop->map[4] * (double)point->y + crop->map[5]);
        }
    }
}

static enum status rectify(const struct staged_request *staged, const struct image *picture,
                           const struct crop *place, struct stage_crop *ret, struct error *err)
{
    uint32_t width = place->width, height = place->height;
    size_t bytes;
    TRY(allocate_pixels(staged, width, height, ret, &bytes, err));
    uint8_t *turned = place->is_turned ? malloc(bytes) : NULL;
    if (place->is_turned && !turned)
        return error_no_memory(err, "for a crop");
    if (place->is_aligned)
        warp_affine(picture, place->map, width, height, !ret->is_body, ret->pixels);
    else
        warp_quadrilateral(picture, place->corners, width, height, ret->pixels);
    if (place->is_turned) {
        image_orient(ret->pixels, (size_t)width * 3, width, height, 8, turned);
        free(ret->pixels);
        ret->pixels = turned;
        width = place->height;
        height = place->width;
    }
    view_pixels(ret, width, height);
    return STATUS_OK;
}

/* Crops the box with its margin, enlarged by BODY_PADDING as in the model's training. */
static enum status crop_body(const struct detection *box, double margin, const struct preprocess *p,
                             struct crop *ret, struct error *err)
{
    const double width = (double)(box->x2 - box->x1), height = (double)(box->y2 - box->y1);
    if (!(width > 0 && height > 0))
        return error_set(err, STATUS_INVALID, "the box has no pixels to crop");
    *ret = (struct crop){.is_warped = true,
                         .is_aligned = true,
                         .width = (uint32_t)p->width,
                         .height = (uint32_t)p->height};
    frame_body(p, width * (1 + 2 * margin), height * (1 + 2 * margin), ret->map);
    ret->map[2] += (double)box->x1 - margin * width;
    ret->map[5] += (double)box->y1 - margin * height;
    return STATUS_OK;
}

/* Crops a box. A failure is stored in the crop. */
static void cut_box(const struct staged_request *staged, const struct stage_crop *from, size_t box,
                    struct stage_crop *ret)
{
    const struct pipeline_stage *stage = &staged->config->stages[staged->stage + 1];
    const struct image *picture = &from->picture;
    struct crop place;
    *ret = (struct stage_crop){.parent = from->result, .box = box, .whole = *picture};
    const struct detections *found = &from->result->answer.detections;
    const struct preprocess *body = &staged->body_preprocess[staged->stage + 1];
    ret->is_body = body->width > 0 && !stage->align.count;
    enum status status =
        ret->is_body ? crop_body(&found->items[box], stage->margin, body, &place, &ret->failure)
        : stage->align.count
            ? crop_align(found, box, &stage->align, &place, &ret->failure)
            : crop_of(from->result->request->used_model->task.kind, found, box, stage->margin,
                      picture->width, picture->height, &place, &ret->failure);
    if (status == STATUS_OK && place.is_warped)
        status = rectify(staged, picture, &place, ret, &ret->failure);
    else if (status == STATUS_OK)
        ret->picture = parts_view(picture, place.x, place.y, place.width, place.height);
    if (status == STATUS_OK && ret->is_body)
        memcpy(ret->map, place.map, sizeof ret->map);
    else if (status == STATUS_OK)
        ret->size = pipeline_stage_size(stage, staged->keep_aspect[staged->stage + 1],
                                        ret->picture.width, ret->picture.height);
}

static bool stage_wants(const struct pipeline_stage *stage, const struct labels *labels,
                        const struct detection *box)
{
    const char *name = labels_name(labels, box->index);
    char number[16];
    bool is_wanted = stage->label_count == 0;
    snprintf(number, sizeof number, "%u", box->index);
    for (size_t i = 0; i < stage->label_count; i++)
        is_wanted = is_wanted || !strcmp(stage->labels[i], number) ||
                    (name && !strcmp(stage->labels[i], name));
    return is_wanted && (double)box->score >= stage->min_score;
}

/* Marks the boxes of an image for the next stage; returns their number. */
static size_t choose_boxes(const struct staged_request *staged, const struct predict_image *result,
                           bool *wanted)
{
    const struct pipeline_stage *stage = &staged->config->stages[staged->stage + 1];
    const struct detections *found = &result->answer.detections;
    size_t count = 0;
    for (size_t i = 0; i < found->count; i++)
        wanted[i] = stage_wants(stage, &result->request->used_model->labels, &found->items[i]);
    crops_limit(found, wanted, stage->max);
    for (size_t i = 0; i < found->count; i++)
        count += wanted[i];
    return count;
}

/* Returns STATUS_CANCELLED if the client has gone, which ends the whole request. */
static enum status check_client(const struct staged_request *staged, struct error *err)
{
    const struct request_part *last = staged->parts.last;
    const struct predict_request *request = last ? &last->request : staged->parts.whole;
    return atomic_load(&request->cancelled)
               ? error_set(err, STATUS_CANCELLED, "the client has gone")
               : STATUS_OK;
}

/* Fails if the client has gone, or an image of the last request_part timed out. This ends the whole
 * request. */
static enum status check_last(const struct staged_request *staged, struct error *err)
{
    const struct request_part *last = staged->parts.last;
    TRY(check_client(staged, err));
    for (size_t i = 0; staged->stage > 0 && last && i < last->request.image_count; i++)
        if (last->request.images[i].status == STATUS_TIMEOUT) {
            *err = last->request.images[i].error;
            return STATUS_TIMEOUT;
        }
    return STATUS_OK;
}

/* Fails after a hang-up or the deadline. Called before each crop, because a large crop is slow. */
static enum status check_time(const struct staged_request *staged, struct error *err)
{
    const int64_t deadline = staged->parts.whole->deadline;
    TRY(check_client(staged, err));
    if (deadline && clock_now() > deadline)
        return error_set(err, STATUS_TIMEOUT,
                         "the request's time limit ran out when crops for stage %zu were cut out; "
                         "allow it more time",
                         staged->stage + 2);
    return STATUS_OK;
}

/* Adds crops of one image's boxes to the crops of the next stage. */
static enum status cut_picture(struct staged_request *staged, const struct stage_crop *from,
                               struct error *err)
{
    struct predict_image *result = from->result;
    struct detections *found = &result->answer.detections;
    struct stage_crop **all = &staged->crops[staged->stage + 1], *grown = NULL;
    size_t *all_count = &staged->counts[staged->stage + 1], count = 0;
    if (result->request->used_model->task.kind == TASK_TEXT_BOXES && found->points)
        TRY(text_reading_order(found, err));
    bool *wanted = alloc_array(found->count, sizeof *wanted);
    result->crops = alloc_array(found->count, sizeof *result->crops);
    if (wanted && result->crops) {
        count = choose_boxes(staged, result, wanted);
        grown = reallocarray(*all, *all_count + count + 1, sizeof *grown);
    }
    if (grown)
        *all = grown;
    if (grown && *all_count + count > STAGE_CROPS_ALL)
        result->status = error_set(&result->error, STATUS_TOO_LARGE,
                                   "stage %zu would get more than %d crops of this request; lower "
                                   "the \"max\" of its pipeline, or send fewer photos at a time",
                                   staged->stage + 2, STAGE_CROPS_ALL);
    enum status status = grown ? STATUS_OK : error_no_memory(err, "for the crops of a pipeline");
    for (size_t i = 0; status == STATUS_OK && result->status == STATUS_OK && i < found->count; i++)
        if (wanted[i] && (status = check_time(staged, err)) == STATUS_OK)
            cut_box(staged, from, i, &grown[(*all_count)++]);
    free(wanted);
    return status;
}

/* Copies a crop, turned if its class means upside down. A failure is stored in the copy. */
static void turn_crop(const struct staged_request *staged, const struct stage_crop *from,
                      struct stage_crop *ret)
{
    const size_t at = staged->stage;
    const struct predict_image *result = from->result;
    const struct prediction *best = result->predictions;
    const struct image *picture = &from->picture;
    size_t ignored;
    *ret = (struct stage_crop){.picture = *picture, .parent = from->parent, .box = from->box};
    if (result->status != STATUS_OK) {
        ret->failure = result->error;
    } else if (result->prediction_count &&
               (double)best->probability > staged->config->stages[at].turn &&
               label_is_turned(&result->request->used_model->labels, best->index) &&
               allocate_pixels(staged, picture->width, picture->height, ret, &ignored,
                               &ret->failure) == STATUS_OK) {
        image_orient(picture->pixels, picture->stride, picture->width, picture->height, 3,
                     ret->pixels);
        view_pixels(ret, picture->width, picture->height);
    }
    if (ret->failure.status == STATUS_OK)
        ret->size =
            pipeline_stage_size(&staged->config->stages[at + 1], staged->keep_aspect[at + 1],
                                picture->width, picture->height);
}

/* Passes the crops of this stage on to the next one, and turns those that are upside down. */
static enum status turn_crops(struct staged_request *staged, struct error *err)
{
    const size_t at = staged->stage, count = staged->counts[at];
    struct stage_crop *crops = alloc_array(count, sizeof *crops);
    TRY(check_memory(crops || !count, "for the crops of a pipeline", err));
    staged->crops[at + 1] = crops;
    for (size_t i = 0; i < count; i++) {
        TRY(check_time(staged, err));
        turn_crop(staged, &staged->crops[at][i], &crops[staged->counts[at + 1]++]);
    }
    return STATUS_OK;
}

static enum status cut_boxes(struct staged_request *staged, struct error *err)
{
    for (size_t i = 0; i < staged->counts[staged->stage]; i++) {
        const struct stage_crop *from = &staged->crops[staged->stage][i];
        struct predict_image *result = from->result;
        if (result->status != STATUS_OK)
            continue;
        const struct model *model = result->request->used_model;
        if (task_has_boxes(model->task.kind))
            TRY(cut_picture(staged, from, err));
        else
            result->status = error_set(&result->error, STATUS_NOT_READY,
                                       "model '%s' was replaced meanwhile by one that finds no "
                                       "boxes; send the photo again",
                                       model->name);
    }
    return STATUS_OK;
}

/* ---- parts ---- */

/* Adds a request_part with remaining crops of one size; *ret does not change if no crop remains. */
static enum status ask_stage(struct staged_request *staged, struct request_part **ret,
                             struct error *err)
{
    struct stage_crop *crops = staged->crops[staged->stage];
    const size_t total = staged->counts[staged->stage], room = staged->rooms[staged->stage];
    const size_t most = staged->max_images < room ? staged->max_images : room;
    size_t first = 0, count = 0;
    while (first < total && crops[first].result)
        first++;
    if (first == total)
        return STATUS_OK;
    const struct stage_size *size = crops[first].size;
    for (size_t i = first; i < total && count < most; i++)
        count += !crops[i].result && crops[i].size == size;
    struct request_part *part =
        parts_add(&staged->parts, staged->config->stages[staged->stage].model, count);
    TRY(check_memory(part, "for the crops of a pipeline", err));
    for (size_t i = first, at = 0; at < count; i++) {
        struct stage_crop *crop = &crops[i];
        if (crop->result || crop->size != size)
            continue;
        crop->result = &part->request.images[at];
        crop->result->preset = crop->failure;
        part->crops[at++] = crop->picture;
        if (staged->stage > 0)
            crop->parent->crops[crop->box] = crop->result;
    }
    part->request.admission = ADMIT_CROPS;
    if (size || staged->stage > 0) {
        part->request.width = size ? size->width : 0;
        part->request.height = size ? size->height : 0;
        part->request.size_choice = SIZE_NEAREST_IF_SHORT;
    }
    if (staged->stage > 0) {
        part->request.asks_top_k = false;
        part->request.options = part->request.options ? &staged->options : NULL;
    }
    *ret = part;
    return STATUS_OK;
}

static enum status stages_next(struct request_parts *parts, struct request_part **ret,
                               struct error *err)
{
    struct staged_request *staged = (struct staged_request *)parts;
    *ret = NULL;
    TRY(check_last(staged, err));
    if (!staged->crops[0])
        TRY(take_photos(staged, err));
    for (;;) {
        TRY(ask_stage(staged, ret, err));
        if (*ret)
            break;
        if (staged->stage == 0)
            answer_photos(staged);
        else
            map_bodies(staged);
        if (staged->stage + 1 == staged->config->stage_count)
            return STATUS_OK;
        TRY(staged->config->stages[staged->stage].turn > 0 ? turn_crops(staged, err)
                                                           : cut_boxes(staged, err));
        staged->stage++;
    }
    return check_stage(staged, staged->stage, err) == STATUS_OK
               ? STATUS_OK
               : stage_failed(staged, staged->stage, err);
}

/* Checks that the queue of a later stage's model has room for a crop, for every size that the stage
 * names, because it is not known yet which one a crop needs. Otherwise crops would be refused after
 * the detector has run. */
static enum status ask_room(const struct staged_request *staged, size_t at, struct error *err)
{
    const struct pipeline_stage *stage = &staged->config->stages[at];
    struct predict_request crop = {.model = stage->model,
                                   .size_choice =
                                       SIZE_NEAREST, /* because the size may not be compiled yet */
                                   .admission = ADMIT_BEFORE_CROPS,
                                   .deadline = staged->parts.whole->deadline,
                                   .priority = staged->parts.whole->priority,
                                   .client = staged->parts.whole->client};
    for (size_t i = 0; i == 0 || i < stage->size_count; i++) {
        crop.height = stage->size_count ? stage->sizes[i].height : 0;
        crop.width = stage->size_count ? stage->sizes[i].width : 0;
        TRY(model_host_would_admit(staged->host, &crop, 1, 0, err));
    }
    return STATUS_OK;
}

static enum status begin(struct staged_request *staged, struct error *err)
{
    struct predict_request *whole = staged->parts.whole;
    for (size_t i = 0; i < staged->config->stage_count; i++)
        if (check_stage(staged, i, err) != STATUS_OK ||
            (i > 0 && ask_room(staged, i, err) != STATUS_OK))
            return stage_failed(staged, i, err);
    staged->options = TASK_OPTIONS_NONE;
    if (whole->options) {
        staged->options.normalize = whole->options->normalize;
        staged->options.masks = whole->options->masks;
    }
    whole->model = staged->config->stages[0].model;
    whole->version = NULL;
    whole->ignores_unused_options = true;
    return STATUS_OK;
}

enum status stages_begin(struct model_host *host, struct predict_request *whole,
                         struct staged_request **ret, struct error *err)
{
    char name[128];
    struct pipeline_config *config;
    *ret = NULL;
    TRY(model_host_find_pipeline(host, whole->model, whole->version, name, &config, err));
    if (!config)
        return STATUS_OK;
    struct staged_request *staged = calloc(1, sizeof *staged);
    if (!staged) {
        free(config);
        return error_no_memory(err, "for a pipeline");
    }
    staged->host = host;
    staged->config = config;
    memcpy(staged->name, name, sizeof name);
    staged->parts.next = stages_next;
    parts_begin(&staged->parts, whole);
    *ret = staged;
    return begin(staged, err);
}

void stages_free(struct staged_request *staged)
{
    if (!staged)
        return;
    parts_done(&staged->parts);
    for (size_t s = 0; s < PIPELINE_STAGES_MAX; s++) {
        for (size_t i = 0; i < staged->counts[s]; i++)
            free(staged->crops[s][i].pixels);
        free(staged->crops[s]);
    }
    FREE_ALL(staged->config, staged);
}
