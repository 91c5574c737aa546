/* Masks of Hugging Face's segmenters, which have one mask for each of a fixed number of queries.
 *
 * LAYOUT_PANOPTIC: a pixel belongs to the query with the highest product of its score and the
 * mask's probability (compute_segments, used by DETR and the panoptic answers of MaskFormer).
 * LAYOUT_MASKFORMER: masks may overlap; the score is that of the class times the mean probability
 * of the mask (post_process_instance_segmentation of MaskFormer and Mask2Former). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"
#include "models/tasks/decoders.h"

/* LAYOUT_PANOPTIC: a mask must keep over this share of its pixels with scores of at least 0.5. */
#define LEAST_OWN_SHARE 0.8

struct query_masks {
    const struct task_rows *logits; /* [Q, height, width] */
    size_t classes;        /* candidates per query; candidate i belongs to query i / classes */
    int32_t width, height; /* of the planes, which may be larger than the output */
    size_t plane;
    struct area_place *columns,
        *rows; /* a plane's points in the output; NULL: planes are as large as the output */
    struct area_place *photo_columns, *photo_rows; /* LAYOUT_PANOPTIC: positions of photo pixels */
    int32_t *nearest_columns, *nearest_rows;       /* LAYOUT_MASKFORMER: nearest points; -1: none */
    uint32_t photo_width, photo_height;
    float *planes;  /* LAYOUT_PANOPTIC: one for each candidate; else one */
    uint16_t *best; /* LAYOUT_PANOPTIC: best candidate of each point */
    struct area_runs runs;
};

static void query_masks_done(struct query_masks *masks)
{
    FREE_ALL(masks->columns, masks->rows, masks->photo_columns, masks->photo_rows,
             masks->nearest_columns, masks->nearest_rows, masks->planes, masks->best,
             masks->runs.items);
}

/* Returns the nearest map points of a side's pixels; -1: outside. As in torch's nearest, in
 * float32, a pixel's start decides, not its centre. free() the result; NULL when out of memory. */
static int32_t *nearest_points(uint32_t count, float gain, float begin, float input, int32_t side)
{
    const bool is_whole = fabsf(begin) < 0.5f && fabsf(gain * (float)count - input) < 0.5f;
    const float scale = is_whole ? (float)side / (float)count : gain * ((float)side / input);
    const float first = is_whole ? 0 : begin * ((float)side / input);
    int32_t *points = alloc_array(count, sizeof *points);
    for (uint32_t i = 0; points && i < count; i++) {
        const float point = floorf((float)i * scale + first);
        points[i] = point >= 0 && point < (float)side ? (int32_t)point : -1;
    }
    return points;
}

/* Maps the photo's pixels to points of the planes. Returns false when out of memory. */
static bool places_init(struct query_masks *masks, bool is_panoptic, const struct task_geometry *g)
{
    if (!is_panoptic) {
        masks->nearest_columns =
            nearest_points(masks->photo_width, g->gain_x, g->left, g->input_width, masks->width);
        masks->nearest_rows =
            nearest_points(masks->photo_height, g->gain_y, g->top, g->input_height, masks->height);
        return masks->nearest_columns && masks->nearest_rows;
    }
    masks->photo_columns =
        area_places(masks->photo_width, g->gain_x, g->left, g->input_width, masks->width);
    masks->photo_rows =
        area_places(masks->photo_height, g->gain_y, g->top, g->input_height, masks->height);
    masks->best = alloc_array(masks->plane, sizeof *masks->best);
    return masks->photo_columns && masks->photo_rows && masks->best;
}

static enum status query_masks_init(const struct task *task, const struct task_rows *outputs,
                                    size_t planes, const struct task_geometry *g,
                                    struct query_masks *ret, struct error *err)
{
    const struct shape *shape = &outputs[1].shape;
    const int32_t height = (int32_t)shape->dims[1], width = (int32_t)shape->dims[2];
    const bool is_panoptic = task->layout == LAYOUT_PANOPTIC;
    *ret = (struct query_masks){.logits = &outputs[1],
                                .classes = is_panoptic ? 1 : (size_t)outputs[0].shape.dims[1],
                                .width = task->mask_side ? task->mask_side : width,
                                .height = task->mask_side ? task->mask_side : height,
                                .photo_width = (uint32_t)g->photo_width,
                                .photo_height = (uint32_t)g->photo_height};
    ret->plane = (size_t)ret->width * (size_t)ret->height;
    size_t points = 0;
    bool is_done = size_mul(planes, ret->plane, &points);
    if (is_done && task->mask_side) {
        const float side = (float)task->mask_side;
        ret->columns = area_places((size_t)ret->width, 1, 0, side, width);
        ret->rows = area_places((size_t)ret->height, 1, 0, side, height);
        is_done = ret->columns && ret->rows;
    }
    ret->planes = is_done ? alloc_array(points, sizeof *ret->planes) : NULL;
    if (ret->planes && places_init(ret, is_panoptic, g))
        return STATUS_OK;
    query_masks_done(ret);
    return error_no_memory(err, "for the masks of an image");
}

/* Writes the logits of a candidate's mask, interpolated to a plane. */
static void mask_logits(const struct query_masks *masks, uint32_t place, float *dst)
{
    const size_t query = place / masks->classes;
    const size_t width = (size_t)masks->logits->shape.dims[2];
    const float *src = masks->logits->data + query * width * (size_t)masks->logits->shape.dims[1];
    if (!masks->rows) {
        memcpy(dst, src, masks->plane * sizeof *dst);
        return;
    }
    area_interpolate(src, width, masks->columns, masks->width, masks->rows, masks->height, dst);
}

static float sigmoid_of(float logit)
{
    return 1 / (1 + expf(-logit));
}

static enum status no_memory_for_masks(struct error *err)
{
    return error_no_memory(err, "for the masks of an image");
}

/* ---- LAYOUT_PANOPTIC ---- */

/* Classifies the photo's pixels by `map`, as runs. Returns false when out of memory. */
static bool run_columns(struct query_masks *masks, const struct area_map *map)
{
    masks->runs.count = 0;
    bool is_done = true;
    for (uint32_t x = 0; is_done && x < masks->photo_width; x++)
        is_done = area_column(map, &masks->photo_columns[x], masks->photo_rows, 0,
                              masks->photo_height, &masks->runs);
    return is_done;
}

static struct area_map map_of(const struct query_masks *masks, const float *scores, size_t classes,
                              float threshold)
{
    struct area_map map = {.scores = scores,
                           .classes = classes,
                           .plane = masks->plane,
                           .width = masks->width,
                           .height = masks->height,
                           .threshold = threshold,
                           .best = masks->best};
    for (size_t i = 0; i < masks->plane; i++)
        map.best[i] = area_best(&map, scores + i, masks->plane);
    return map;
}

/* Counts the photo's pixels where the score of mask `i` is at least 0.5; -1 when out of memory. */
static double area_alone(struct query_masks *masks, size_t i)
{
    const struct area_map map =
        map_of(masks, masks->planes + i * masks->plane, 1, nextafterf(0.5f, 0));
    double area = 0;
    if (!run_columns(masks, &map))
        return -1;
    for (size_t k = 0; k < masks->runs.count; k++)
        area += masks->runs.items[k].index == 0 ? masks->runs.items[k].length : 0;
    return area;
}

static enum status find_panoptic(struct query_masks *masks, struct detections *found,
                                 struct error *err)
{
    for (size_t i = 0; i < found->count; i++) {
        float *plane = masks->planes + i * masks->plane;
        mask_logits(masks, found->items[i].place, plane);
        for (size_t k = 0; k < masks->plane; k++)
            plane[k] = found->items[i].score * sigmoid_of(plane[k]);
    }
    /* A single mask gets every pixel, because its scores exceed the threshold of -INFINITY. */
    const struct area_map map = map_of(masks, masks->planes, found->count, -INFINITY);
    if (!run_columns(masks, &map))
        return no_memory_for_masks(err);
    for (size_t i = 0; i < found->count; i++)
        if (!area_take(&masks->runs, (uint16_t)i, masks->photo_height, &found->items[i],
                       &found->masks[i]))
            return no_memory_for_masks(err);
    for (size_t i = 0; i < found->count; i++) {
        struct segment *mask = &found->masks[i];
        const double alone = mask->area ? area_alone(masks, i) : 0;
        if (alone < 0)
            return no_memory_for_masks(err);
        if (!(alone > 0 && (double)mask->area > LEAST_OWN_SHARE * alone))
            mask->area = 0;
    }
    return STATUS_OK;
}

/* ---- LAYOUT_MASKFORMER ---- */

/* Writes runs of the photo's pixels whose nearest logit is above 0. False: out of memory. */
static bool run_nearest(struct query_masks *masks)
{
    const int32_t *rows = masks->nearest_rows;
    masks->runs.count = 0;
    for (uint32_t x = 0; x < masks->photo_width; x++) {
        const int32_t column = masks->nearest_columns[x];
        for (uint32_t y = 0, next; y < masks->photo_height; y = next) {
            for (next = y + 1; next < masks->photo_height && rows[next] == rows[y];)
                next++;
            const bool is_inside =
                column >= 0 && rows[y] >= 0 &&
                masks->planes[(size_t)rows[y] * (size_t)masks->width + (size_t)column] > 0;
            if (!area_add(&masks->runs, is_inside ? 0 : AREA_NONE, next - y))
                return false;
        }
    }
    return true;
}

static enum status find_overlapping(struct query_masks *masks, float confidence,
                                    struct detections *found, struct error *err)
{
    for (size_t i = 0; i < found->count; i++) {
        struct detection *box = &found->items[i];
        double sum = 0, inside = 0;
        mask_logits(masks, box->place, masks->planes);
        for (size_t k = 0; k < masks->plane; k++) {
            if (!(masks->planes[k] > 0))
                continue;
            sum += (double)sigmoid_of(masks->planes[k]);
            inside++;
        }
        box->score *= (float)(sum / (inside + 1e-6));
        found->masks[i].index = box->index;
        if (!(box->score > confidence))
            continue;
        if (!run_nearest(masks) ||
            !area_take(&masks->runs, 0, masks->photo_height, box, &found->masks[i]))
            return no_memory_for_masks(err);
    }
    return STATUS_OK;
}

/* ---- both ---- */

/* Drops masks without area or of excluded classes, sorts the rest, and keeps the best. */
static void keep_best(const struct task_options *options, struct detections *found)
{
    size_t kept = 0;
    for (size_t i = 0; i < found->count; i++) {
        const struct detection box = found->items[i];
        const struct segment mask = found->masks[i];
        if (mask.area == 0 || !task_option_wants(options, box.index)) {
            free(mask.counts);
            continue;
        }
        size_t at = kept++;
        for (; at > 0 && found->items[at - 1].score < box.score; at--) {
            found->items[at] = found->items[at - 1];
            found->masks[at] = found->masks[at - 1];
        }
        found->items[at] = box;
        found->masks[at] = mask;
    }
    for (found->count = kept; found->count > (size_t)options->max_detections; found->count--)
        free(found->masks[found->count - 1].counts);
}

enum status query_masks_add(const struct task *task, const struct task_rows *outputs,
                            const struct task_options *options,
                            const struct task_geometry *geometry, struct detections *found,
                            struct error *err)
{
    const bool is_panoptic = task->layout == LAYOUT_PANOPTIC;
    struct query_masks masks;
    found->masks = alloc_array(found->count, sizeof *found->masks);
    if (!found->masks)
        return no_memory_for_masks(err);
    if (found->count == 0)
        return STATUS_OK;
    TRY(instances_check_work(found->count,
                             (double)found->count * (double)geometry->photo_width *
                                 (double)geometry->photo_height,
                             err));
    TRY(query_masks_init(task, outputs, is_panoptic ? found->count : 1, geometry, &masks, err));
    const enum status status = is_panoptic
                                   ? find_panoptic(&masks, found, err)
                                   : find_overlapping(&masks, options->confidence, found, err);
    query_masks_done(&masks);
    TRY(status);
    keep_best(options, found);
    return STATUS_OK;
}
