/* Makes the masks of the objects in boxes.
 *
 * YOLO's mask is where the sum of prototypes times the box's factors, interpolated to the photo, is
 * above 0 and inside the box (Ultralytics' process_mask_native). torchvision's masks are
 * probabilities in pixels of the model's input; its examples use the threshold 0.5. DETR's and
 * RF-DETR's are logits. */
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"
#include "models/tasks/decoders.h"

/* The data that all masks of an image share. */
struct instance_maps {
    struct area_map map;
    struct area_place *columns, *rows; /* map positions of the photo's pixels */
    float *sum;                        /* weighted sum of YOLO's prototypes: one plane */
    struct area_runs runs;             /* runs of the current mask */
    uint32_t width, height;            /* of the photo */
};

/* A rectangle of pixels or of a map's points: [left, right) x [top, bottom). */
struct instance_part {
    uint32_t left, top, right, bottom;
};

static void maps_done(struct instance_maps *maps)
{
    FREE_ALL(maps->map.best, maps->columns, maps->rows, maps->sum, maps->runs.items);
}

static enum status maps_init(int64_t height, int64_t width, float threshold,
                             const struct task_geometry *g, struct instance_maps *ret,
                             struct error *err)
{
    *ret = (struct instance_maps){.map = {.classes = 1,
                                          .plane = (size_t)height * (size_t)width,
                                          .width = (int32_t)width,
                                          .height = (int32_t)height,
                                          .threshold = threshold},
                                  .width = (uint32_t)g->photo_width,
                                  .height = (uint32_t)g->photo_height};
    ret->map.best = alloc_array(ret->map.plane, sizeof *ret->map.best);
    ret->sum = alloc_array(ret->map.plane, sizeof *ret->sum);
    ret->columns = area_places(ret->width, g->gain_x, g->left, g->input_width, ret->map.width);
    ret->rows = area_places(ret->height, g->gain_y, g->top, g->input_height, ret->map.height);
    if (ret->map.best && ret->sum && ret->columns && ret->rows)
        return STATUS_OK;
    maps_done(ret);
    return error_no_memory(err, "for the masks of an image");
}

/* Finds the points of the map around the pixels [begin, end) of a side. */
static void points_around(const struct area_place *places, uint32_t begin, uint32_t end,
                          uint32_t *ret_begin, uint32_t *ret_end)
{
    *ret_begin = *ret_end = 0;
    for (uint32_t i = begin; i < end; i++) {
        if (places[i].first < 0)
            continue;
        if (*ret_end == 0)
            *ret_begin = (uint32_t)places[i].first;
        *ret_end = (uint32_t)places[i].second + 1;
    }
}

static uint32_t pixel_at(float at, uint32_t side)
{
    const float up = ceilf(at);
    return !(up > 0) ? 0 : up >= (float)side ? side : (uint32_t)up;
}

/* Computes the weighted sum of the prototypes over the part of the map around the box, and marks
 * where the sum is above 0. */
static void mix_prototypes(struct instance_maps *maps, const float *prototypes, size_t count,
                           struct extra_numbers factors, const struct instance_part *box)
{
    struct instance_part at;
    const size_t width = (size_t)maps->map.width;
    points_around(maps->columns, box->left, box->right, &at.left, &at.right);
    points_around(maps->rows, box->top, box->bottom, &at.top, &at.bottom);
    for (size_t y = at.top; y < at.bottom; y++) {
        float *sum = maps->sum + y * width;
        memset(sum + at.left, 0, (at.right - at.left) * sizeof *sum);
        for (size_t p = 0; p < count; p++) {
            const float factor = factors.first[p * factors.step];
            const float *prototype = prototypes + p * maps->map.plane + y * width;
            for (size_t x = at.left; x < at.right; x++)
                sum[x] += factor * prototype[x];
        }
        for (size_t x = at.left; x < at.right; x++)
            maps->map.best[y * width + x] = sum[x] > 0 ? 0 : AREA_NONE;
    }
    maps->map.scores = maps->sum;
}

static bool add_outside(struct instance_maps *maps, uint32_t columns)
{
    for (uint32_t x = 0; x < columns; x++)
        if (!area_add(&maps->runs, AREA_NONE, maps->height))
            return false;
    return true;
}

/* Makes a mask of the pixels of `part` above the threshold, and sets `box` around these pixels. */
static enum status take_mask(struct instance_maps *maps, const struct instance_part *part,
                             struct detection *box, struct segment *ret, struct error *err)
{
    struct area_runs *runs = &maps->runs;
    runs->count = 0;
    bool is_done = add_outside(maps, part->left);
    for (uint32_t x = part->left; is_done && x < part->right; x++)
        is_done =
            area_add(runs, AREA_NONE, part->top) &&
            area_column(&maps->map, &maps->columns[x], maps->rows, part->top, part->bottom, runs) &&
            area_add(runs, AREA_NONE, maps->height - part->bottom);
    is_done = is_done && add_outside(maps, maps->width - part->right);
    if (is_done && area_take(runs, 0, maps->height, box, ret))
        return STATUS_OK;
    return error_no_memory(err, "for the mask of a box");
}

/* Makes a mask of all pixels above the threshold, and sets `box` around these pixels. */
static enum status take_whole(struct instance_maps *maps, struct detection *box,
                              struct segment *ret, struct error *err)
{
    const struct instance_part all = {0, 0, maps->width, maps->height};
    for (size_t k = 0; k < maps->map.plane; k++)
        maps->map.best[k] = area_best(&maps->map, maps->map.scores + k, 1);
    return take_mask(maps, &all, box, ret, err);
}

enum status instances_check_work(size_t count, double pixels, struct error *err)
{
    if (pixels <= MAX_MASK_PIXELS)
        return STATUS_OK;
    return error_set(err, STATUS_TOO_LARGE,
                     "the masks of the %zu boxes have %.0f megapixels, more than %.0f; use a "
                     "higher confidence, a lower max_detections or a smaller photo",
                     count, pixels * 1e-6, MAX_MASK_PIXELS * 1e-6);
}

static double pixels_in(const struct detections *found)
{
    double pixels = 0;
    for (size_t i = 0; i < found->count; i++) {
        const struct detection *box = &found->items[i];
        const double width = box->x2 - box->x1, height = box->y2 - box->y1;
        pixels += width > 0 && height > 0 ? width * height : 0;
    }
    return pixels;
}

static enum status add_yolo(const struct task *task, const struct task_rows *outputs,
                            const struct task_geometry *g, struct detections *found,
                            struct error *err)
{
    const struct task_rows *prototypes = &outputs[task->output_count - 1];
    const struct shape *shape = &prototypes->shape;
    struct instance_maps maps;
    if (shape->rank != 3 || shape->dims[0] != (int64_t)task->prototypes || prototypes->count == 0 ||
        prototypes->count > INT32_MAX)
        return task_rows_wrong(prototypes, "prototypes of masks, [prototypes, height, width]", err);
    TRY(maps_init(shape->dims[1], shape->dims[2], 0, g, &maps, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < found->count && status == STATUS_OK; i++) {
        const struct detection *box = &found->items[i];
        const struct instance_part part = {
            pixel_at(box->x1, maps.width), pixel_at(box->y1, maps.height),
            pixel_at(box->x2, maps.width), pixel_at(box->y2, maps.height)};
        /* If the corners of a box are in the wrong order, it is empty. */
        const bool is_empty = part.right < part.left || part.bottom < part.top;
        const struct instance_part none = {0};
        struct detection own = *box; /* gets the box around the mask */
        mix_prototypes(&maps, prototypes->data, task->prototypes,
                       detect_extras(task, &outputs[0], box->place), is_empty ? &none : &part);
        status = take_mask(&maps, is_empty ? &none : &part, &own, &found->masks[i], err);
    }
    maps_done(&maps);
    return status;
}

/* Adds the masks in the last output: [N, 1, h, w] of torchvision's boxes, [Q, h, w] of queries. */
static enum status add_own(const struct task *task, const struct task_rows *outputs,
                           const struct task_geometry *g, struct detections *found,
                           struct error *err)
{
    const struct task_rows *masks = &outputs[task->output_count - 1];
    const struct shape *shape = &masks->shape;
    struct instance_maps maps;
    const bool is_torchvision = task->layout == LAYOUT_TORCHVISION;
    if (shape->rank != (is_torchvision ? 4 : 3) || shape->dims[0] != outputs[0].shape.dims[0] ||
        (is_torchvision && shape->dims[1] != 1) || masks->count > INT32_MAX ||
        (shape->dims[0] > 0 && masks->count == 0))
        return task_rows_wrong(masks,
                               is_torchvision ? "a mask for each box, [n, 1, height, width]"
                                              : "a mask for each query, [queries, height, width]",
                               err);
    if (masks->count == 0)
        return STATUS_OK;
    TRY(maps_init(shape->dims[shape->rank - 2], shape->dims[shape->rank - 1],
                  is_torchvision ? 0.5f : 0, g, &maps, err));
    enum status status = STATUS_OK;
    /* A DETR candidate is a pair of query and class. */
    const size_t classes = is_torchvision ? 1 : (size_t)outputs[0].shape.dims[1];
    for (size_t i = 0; i < found->count && status == STATUS_OK; i++) {
        struct detection own = found->items[i]; /* gets the box around the mask */
        maps.map.scores = masks->data + own.place / classes * maps.map.plane;
        status = take_whole(&maps, &own, &found->masks[i], err);
    }
    maps_done(&maps);
    return status;
}

enum status instances_add(const struct task *task, const struct task_rows *outputs,
                          const struct task_geometry *geometry, struct detections *found,
                          struct error *err)
{
    found->masks = alloc_array(found->count, sizeof *found->masks);
    TRY(check_memory(found->masks, "for the masks of an image", err));
    TRY(instances_check_work(found->count, pixels_in(found), err));
    if (task->layout == LAYOUT_TORCHVISION)
        return add_own(task, outputs, geometry, found, err);
    TRY(task->prototypes ? add_yolo(task, outputs, geometry, found, err)
                         : add_own(task, outputs, geometry, found, err));
    for (size_t i = 0; i < found->count; i++)
        if (found->masks[i].area == 0)
            found->items[i].score = -1;
    detections_drop(found);
    return STATUS_OK;
}

/* ---- LAYOUT_SAM ---- */

/* Limit of the masks of a prompt; SAM's decoder makes up to four. */
#define PROMPTED_MAX 64

/* The part of the model's input that the photo fills, and the masks of a prompt in it. */
struct prompted {
    size_t width, plane; /* sizes of a mask in the output */
    int32_t part_width, part_height;
    struct area_place *columns, *rows; /* positions of the part's pixels in a mask */
    float *part;                       /* NULL: masks are read directly */
};

static void prompted_done(struct prompted *prompted)
{
    FREE_ALL(prompted->columns, prompted->rows, prompted->part);
}

static int32_t part_side(float photo, float input)
{
    return (int32_t)fminf(fmaxf(roundf(photo), 1), input);
}

/* SAM interpolates masks to the input's size, cuts off the padding, and interpolates the rest to
 * the photo's size; SAM 2 interpolates to the photo's size (postprocess_masks in both). *own
 * becomes the photo's position in the map that is interpolated to the photo. */
static enum status prompted_init(const struct task *task, const struct shape *shape,
                                 struct task_geometry *own, struct prompted *ret, struct error *err)
{
    const int64_t height = shape->dims[shape->rank - 2], width = shape->dims[shape->rank - 1];
    *ret = (struct prompted){.width = (size_t)width, .plane = (size_t)height * (size_t)width};
    const bool is_padded = task->mask_side && own->left == 0 && own->top == 0;
    ret->part_width = (int32_t)width;
    ret->part_height = (int32_t)height;
    if (!is_padded)
        return STATUS_OK;
    ret->part_width = part_side(own->gain_x * own->photo_width, own->input_width);
    ret->part_height = part_side(own->gain_y * own->photo_height, own->input_height);
    const size_t columns = (size_t)ret->part_width, rows = (size_t)ret->part_height;
    ret->columns = area_places(columns, 1, 0, own->input_width, (int32_t)width);
    ret->rows = area_places(rows, 1, 0, own->input_height, (int32_t)height);
    ret->part = alloc_array(columns * rows, sizeof *ret->part);
    own->input_width = (float)ret->part_width;
    own->input_height = (float)ret->part_height;
    if (ret->columns && ret->rows && ret->part)
        return STATUS_OK;
    prompted_done(ret);
    return error_no_memory(err, "for the masks of a prompt");
}

/* Lists the masks whose scores the options keep, best first. */
static enum status list_scores(const struct task_rows *scores, const struct task_options *options,
                               struct detections *found, struct error *err)
{
    found->items = alloc_array(scores->count, sizeof *found->items);
    found->masks = alloc_array(scores->count, sizeof *found->masks);
    TRY(check_memory(found->items && found->masks, "for the masks of a prompt", err));
    for (size_t i = 0; i < scores->count; i++) {
        const float score = scores->data[i];
        if (!isfinite(score))
            return error_set(err, STATUS_NUMERIC,
                             "the score of a mask is NaN or infinite for this photo");
        if (options->confidence > 0 && !(score > options->confidence))
            continue;
        size_t at = found->count++;
        for (; at > 0 && found->items[at - 1].score < score; at--)
            found->items[at] = found->items[at - 1];
        found->items[at] = (struct detection){.score = score, .place = (uint32_t)i};
    }
    if (found->count > (size_t)options->max_detections)
        found->count = (size_t)options->max_detections;
    return STATUS_OK;
}

static enum status add_prompted(const struct task *task, const struct task_rows *masks,
                                const struct task_geometry *g, struct detections *found,
                                struct error *err)
{
    struct task_geometry own = *g;
    struct prompted prompted;
    struct instance_maps maps;
    TRY(prompted_init(task, &masks->shape, &own, &prompted, err));
    enum status status = maps_init(prompted.part_height, prompted.part_width, 0, &own, &maps, err);
    const bool has_maps = status == STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < found->count; i++) {
        const float *mask = masks->data + found->items[i].place * prompted.plane;
        for (size_t k = 0; k < prompted.plane && status == STATUS_OK; k++)
            if (!isfinite(mask[k]))
                status = error_set(err, STATUS_NUMERIC,
                                   "a mask of this photo has NaN or infinite numbers");
        if (status != STATUS_OK)
            break;
        if (prompted.part)
            area_interpolate(mask, prompted.width, prompted.columns, prompted.part_width,
                             prompted.rows, prompted.part_height, prompted.part);
        maps.map.scores = prompted.part ? prompted.part : mask;
        status = take_whole(&maps, &found->items[i], &found->masks[i], err);
    }
    if (has_maps)
        maps_done(&maps);
    prompted_done(&prompted);
    return status;
}

enum status prompted_decode(const struct task *task, const struct task_rows *outputs,
                            const struct task_options *options,
                            const struct task_geometry *geometry, struct detections *found,
                            struct error *err)
{
    const struct task_rows *masks = &outputs[0], *scores = &outputs[1];
    const struct shape *shape = &masks->shape;
    if (shape->rank < 3 || !masks->count || masks->count > INT32_MAX || !scores->count ||
        scores->count > PROMPTED_MAX ||
        masks->count != scores->count * (size_t)shape->dims[shape->rank - 1] *
                            (size_t)shape->dims[shape->rank - 2])
        return task_rows_wrong(masks, "a mask for each score, [1, masks, height, width]", err);
    enum status status = list_scores(scores, options, found, err);
    const double photo = (double)geometry->photo_width * (double)geometry->photo_height;
    IF_OK(status, instances_check_work(found->count, (double)found->count * photo, err));
    if (status == STATUS_OK && found->count)
        status = add_prompted(task, masks, geometry, found, err);
    if (status != STATUS_OK)
        detections_done(found);
    return status;
}
