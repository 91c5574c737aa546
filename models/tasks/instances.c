/* Makes the masks of the objects in boxes.
 *
 * YOLO's mask is where the sum of prototypes times the box's factors, interpolated to the photo, is
 * above 0 and inside the box (Ultralytics' process_mask_native). torchvision's masks are
 * probabilities in pixels of the model's input; its examples use the threshold 0.5. DETR's and
 * RF-DETR's masks are logits.
 *
 * Segmenters have one mask for each of a fixed number of queries, and boxes surround the masks.
 * LAYOUT_PANOPTIC: a pixel belongs to the query with the highest product of its score and the
 * mask's probability (compute_segments, used by Hugging Face's DETR and the panoptic answers of
 * MaskFormer). In other layouts masks may overlap. LAYOUT_MASKFORMER: the score is that of the
 * class times the mean probability of the mask (post_process_instance_segmentation of MaskFormer
 * and Mask2Former). LAYOUT_SAM: the masks of a prompt, and their scores. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"
#include "models/tasks/decoders.h"

/* Limit for the pixels of all masks of a photo: 20 masks of 50 megapixels, about three seconds of
 * work on one core. A client that lowers the thresholds gets up to max_detections boxes. */
#define MAX_MASK_PIXELS 1e9

/* Finds the columns (or rows) of the map that the photo's columns (or rows) [begin, end) read. */
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
    return (uint32_t)decode_limit(ceilf(at), (float)side);
}

/* Computes the weighted sum of the prototypes over the part of the map around the box, and marks
 * where the sum is above 0. */
static void mix_prototypes(struct area_map *map, const float *prototypes, size_t count,
                           struct extra_numbers factors, const struct area_part *box, float *sums)
{
    struct area_part at;
    const size_t width = (size_t)map->width;
    points_around(map->columns, box->left, box->right, &at.left, &at.right);
    points_around(map->rows, box->top, box->bottom, &at.top, &at.bottom);
    for (size_t y = at.top; y < at.bottom; y++) {
        float *sum = sums + y * width;
        memset(sum + at.left, 0, (at.right - at.left) * sizeof *sum);
        for (size_t p = 0; p < count; p++) {
            const float factor = factors.first[p * factors.step];
            const float *prototype = prototypes + p * map->plane + y * width;
            for (size_t x = at.left; x < at.right; x++)
                sum[x] += factor * prototype[x];
        }
        for (size_t x = at.left; x < at.right; x++)
            map->best[y * width + x] = sum[x] > 0 ? 0 : AREA_NONE;
    }
    map->scores = sums;
}

/* Makes a mask of the pixels of `part` (NULL: of the photo) above the threshold. */
static enum status take_mask(struct area_map *map, const struct area_part *part,
                             struct detection *box, struct error *err)
{
    struct detection own = *box; /* gets the box around the mask */
    const bool is_done = area_run(map, part) && area_take(map, 0, &own);
    box->mask = own.mask;
    return check_memory(is_done, "for the masks of an image", err);
}

/* Refuses masks that have more than MAX_MASK_PIXELS `pixels` together. */
static enum status check_work(size_t count, double pixels, struct error *err)
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
    struct area_map map;
    if (shape->rank != 3 || shape->dims[0] != (int64_t)task->prototypes || prototypes->count == 0 ||
        prototypes->count > INT32_MAX)
        return task_rows_wrong(prototypes, "prototypes of masks, [prototypes, height, width]", err);
    enum status status = area_map_init(shape->dims[2], shape->dims[1], g, false, &map, err);
    float *sums = alloc_array(map.plane, sizeof *sums);
    IF_OK(status, check_memory(sums, "for the masks of an image", err));
    for (size_t i = 0; i < found->count && status == STATUS_OK; i++) {
        struct detection *box = &found->items[i];
        struct area_part part = {
            pixel_at(box->x1, map.photo_width), pixel_at(box->y1, map.photo_height),
            pixel_at(box->x2, map.photo_width), pixel_at(box->y2, map.photo_height)};
        /* A box whose corners are in the wrong order is empty. */
        if (part.right < part.left || part.bottom < part.top)
            part = (struct area_part){0};
        mix_prototypes(&map, prototypes->data, task->prototypes,
                       detect_extras(task, &outputs[0], box->place), &part, sums);
        status = take_mask(&map, &part, box, err);
    }
    free(sums);
    area_map_done(&map);
    return status;
}

/* Adds the masks in the last output: [N, 1, h, w] of torchvision's boxes, [Q, h, w] of queries. */
static enum status add_own(const struct task *task, const struct task_rows *outputs,
                           const struct task_geometry *g, struct detections *found,
                           struct error *err)
{
    const struct task_rows *masks = &outputs[task->output_count - 1];
    const struct shape *shape = &masks->shape;
    struct area_map map;
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
    enum status status = area_map_init(shape->dims[shape->rank - 1], shape->dims[shape->rank - 2],
                                       g, false, &map, err);
    map.threshold = is_torchvision ? 0.5f : 0;
    /* A DETR candidate is a pair of query and class. */
    const size_t classes = is_torchvision ? 1 : (size_t)outputs[0].shape.dims[1];
    for (size_t i = 0; i < found->count && status == STATUS_OK; i++) {
        map.scores = masks->data + found->items[i].place / classes * map.plane;
        area_classify(&map);
        status = take_mask(&map, NULL, &found->items[i], err);
    }
    area_map_done(&map);
    return status;
}

enum status instances_add(const struct task *task, const struct task_rows *outputs,
                          const struct task_geometry *geometry, struct detections *found,
                          struct error *err)
{
    TRY(check_work(found->count, pixels_in(found), err));
    if (task->layout == LAYOUT_TORCHVISION)
        return add_own(task, outputs, geometry, found, err);
    TRY(task->prototypes ? add_yolo(task, outputs, geometry, found, err)
                         : add_own(task, outputs, geometry, found, err));
    for (size_t i = 0; i < found->count; i++)
        if (found->items[i].mask.area == 0)
            found->items[i].score = -1;
    detections_drop(found);
    return STATUS_OK;
}

/* ---- masks of queries ---- */

/* LAYOUT_PANOPTIC: a mask is kept if it has more than this share of the pixels where its score is
 * at least 0.5. */
#define LEAST_OWN_SHARE 0.8

struct query_masks {
    const float *logits;
    size_t width, points; /* of a mask in `logits` */
    size_t classes;       /* candidates per query; candidate i belongs to query i / classes */
    struct area_map map;  /* of a plane, which is a mask or, in some models, an interpolated mask */
    struct area_place *columns,
        *rows;     /* positions of a plane's points in a mask; NULL: planes are as large as masks */
    float *planes; /* LAYOUT_PANOPTIC: a plane for each candidate; otherwise one plane in all */
};

static void query_masks_done(struct query_masks *masks)
{
    area_map_done(&masks->map);
    FREE_ALL(masks->columns, masks->rows, masks->planes);
}

static int32_t part_side(float photo, float input)
{
    return (int32_t)fminf(fmaxf(roundf(photo), 1), input);
}

/* Mask2Former interpolates masks to a fixed size, then to the photo's size. SAM interpolates masks
 * to the input's size, cuts off the padding, and interpolates the rest to the photo's size; SAM 2
 * interpolates to the photo's size (postprocess_masks in both). */
static enum status query_masks_init(const struct task *task, const struct task_rows *logits,
                                    size_t classes, size_t planes, const struct task_geometry *g,
                                    struct query_masks *ret, struct error *err)
{
    const int rank = logits->shape.rank;
    int32_t height = (int32_t)logits->shape.dims[rank - 2];
    int32_t width = (int32_t)logits->shape.dims[rank - 1];
    struct task_geometry own = *g; /* the photo's position in the planes */
    const bool is_prompted = task->layout == LAYOUT_SAM;
    *ret = (struct query_masks){.logits = logits->data,
                                .width = (size_t)width,
                                .points = (size_t)width * (size_t)height,
                                .classes = classes};
    if (task->mask_side && (!is_prompted || (g->left == 0 && g->top == 0))) {
        const float side = (float)task->mask_side;
        const int32_t mask_width = width, mask_height = height;
        width = height = task->mask_side;
        if (is_prompted) {
            width = part_side(g->gain_x * g->photo_width, g->input_width);
            height = part_side(g->gain_y * g->photo_height, g->input_height);
            own.input_width = (float)width;
            own.input_height = (float)height;
        }
        ret->columns =
            area_places((size_t)width, 1, 0, is_prompted ? g->input_width : side, mask_width);
        ret->rows =
            area_places((size_t)height, 1, 0, is_prompted ? g->input_height : side, mask_height);
        TRY(check_memory(ret->columns && ret->rows, "for the masks of an image", err));
    }
    TRY(area_map_init(width, height, &own, task->layout == LAYOUT_MASKFORMER, &ret->map, err));
    ret->planes = alloc_array(planes, ret->map.plane * sizeof *ret->planes);
    return check_memory(ret->planes, "for the masks of an image", err);
}

/* Writes the logits of a candidate's mask, interpolated to a plane. */
static void mask_logits(const struct query_masks *masks, uint32_t place, float *dst)
{
    const float *src = masks->logits + place / masks->classes * masks->points;
    if (masks->rows)
        area_interpolate(src, masks->width, masks->columns, masks->map.width, masks->rows,
                         masks->map.height, dst);
    else
        memcpy(dst, src, masks->points * sizeof *dst);
}

static float sigmoid_of(float logit)
{
    return 1 / (1 + expf(-logit));
}

/* ---- LAYOUT_PANOPTIC ---- */

/* Writes map->runs: the classes of the photo's pixels. Returns false when out of memory. */
static bool run_planes(struct area_map *map, const float *planes, size_t classes, float threshold)
{
    map->scores = planes;
    map->classes = classes;
    map->threshold = threshold;
    area_classify(map);
    return area_run(map, NULL);
}

/* Counts the photo's pixels where the score of mask `i` is at least 0.5; -1 when out of memory. */
static double area_alone(struct query_masks *masks, size_t i)
{
    struct area_map *map = &masks->map;
    double area = 0;
    if (!run_planes(map, masks->planes + i * map->plane, 1, nextafterf(0.5f, 0)))
        return -1;
    for (size_t k = 0; k < map->runs.count; k++)
        area += map->runs.items[k].index == 0 ? map->runs.items[k].length : 0;
    return area;
}

static enum status find_panoptic(struct query_masks *masks, struct detections *found,
                                 struct error *err)
{
    for (size_t i = 0; i < found->count; i++) {
        float *plane = masks->planes + i * masks->map.plane;
        mask_logits(masks, found->items[i].place, plane);
        for (size_t k = 0; k < masks->map.plane; k++)
            plane[k] = found->items[i].score * sigmoid_of(plane[k]);
    }
    /* A single mask gets every pixel, because its scores exceed the threshold of -INFINITY. */
    bool is_done = run_planes(&masks->map, masks->planes, found->count, -INFINITY);
    for (size_t i = 0; is_done && i < found->count; i++)
        is_done = area_take(&masks->map, (uint16_t)i, &found->items[i]);
    for (size_t i = 0; is_done && i < found->count; i++) {
        struct segment *mask = &found->items[i].mask;
        const double alone = mask->area ? area_alone(masks, i) : 0;
        is_done = alone >= 0;
        if (!(alone > 0 && (double)mask->area > LEAST_OWN_SHARE * alone))
            mask->area = 0;
    }
    return check_memory(is_done, "for the masks of an image", err);
}

/* ---- other layouts ---- */

/* Returns the mean probability of the points inside a mask. */
static float mean_inside_mask(const struct area_map *map)
{
    double sum = 0, inside = 0;
    for (size_t k = 0; k < map->plane; k++) {
        if (!(map->scores[k] > 0))
            continue;
        sum += (double)sigmoid_of(map->scores[k]);
        inside++;
    }
    return (float)(sum / (inside + 1e-6));
}

static enum status find_overlapping(struct query_masks *masks, bool is_prompted, float confidence,
                                    struct detections *found, struct error *err)
{
    struct area_map *map = &masks->map;
    map->scores = masks->planes;
    for (size_t i = 0; i < found->count; i++) {
        struct detection *box = &found->items[i];
        const float *logits = masks->logits + box->place / masks->classes * masks->points;
        for (size_t k = 0; is_prompted && k < masks->points; k++)
            if (!isfinite(logits[k]))
                return error_set(err, STATUS_NUMERIC,
                                 "a mask of this photo has NaN or infinite numbers");
        mask_logits(masks, box->place, masks->planes);
        box->score *= is_prompted ? 1 : mean_inside_mask(map);
        if (!is_prompted && !(box->score > confidence))
            continue;
        area_classify(map);
        TRY(check_memory(area_run(map, NULL) && area_take(map, 0, box), "for the masks of an image",
                         err));
    }
    return STATUS_OK;
}

/* Drops masks without area or of excluded classes, sorts the rest, and keeps the best. */
static void keep_best(const struct task_options *options, struct detections *found)
{
    for (size_t i = 0; i < found->count; i++)
        if (found->items[i].mask.area == 0 || !task_option_wants(options, found->items[i].index))
            found->items[i].score = -1;
    detections_drop(found);
    for (size_t i = 1; i < found->count; i++) {
        const struct detection box = found->items[i];
        size_t at = i;
        for (; at > 0 && found->items[at - 1].score < box.score; at--)
            found->items[at] = found->items[at - 1];
        found->items[at] = box;
    }
    for (size_t i = (size_t)options->max_detections; i < found->count; i++)
        found->items[i].score = -1;
    detections_drop(found);
}

enum status query_masks_add(const struct task *task, const struct task_rows *outputs,
                            const struct task_options *options,
                            const struct task_geometry *geometry, struct detections *found,
                            struct error *err)
{
    const bool is_panoptic = task->layout == LAYOUT_PANOPTIC;
    const bool is_prompted = task->layout == LAYOUT_SAM;
    const size_t classes = task->layout == LAYOUT_MASKFORMER ? (size_t)outputs[0].shape.dims[1] : 1;
    struct query_masks masks;
    if (found->count == 0)
        return STATUS_OK;
    TRY(check_work(found->count,
                   (double)found->count * (double)geometry->photo_width *
                       (double)geometry->photo_height,
                   err));
    enum status status = query_masks_init(task, &outputs[is_prompted ? 0 : 1], classes,
                                          is_panoptic ? found->count : 1, geometry, &masks, err);
    IF_OK(status, is_panoptic
                      ? find_panoptic(&masks, found, err)
                      : find_overlapping(&masks, is_prompted, options->confidence, found, err));
    query_masks_done(&masks);
    TRY(status);
    if (!is_prompted)
        keep_best(options, found);
    return STATUS_OK;
}
