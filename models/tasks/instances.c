/* The masks of the objects in boxes.
 *
 * YOLO's mask is the sum of prototypes by the box's factors, interpolated to the photo, where it is
 * above 0 and inside the box (Ultralytics' process_mask_native). torchvision's are probabilities in
 * pixels of the model's input; 0.5 is the threshold of its examples. RF-DETR's are logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"
#include "models/tasks/decoders.h"

/* The data that all masks of an image share. */
struct instance_maps {
    struct area_map map;
    struct area_place *columns, *rows; /* of the photo's pixels */
    float *sum;                        /* of YOLO's prototypes; a plane */
    struct area_runs runs;             /* of the current mask */
    uint32_t width, height;            /* of the photo */
};

/* Pixels or points [left, right) x [top, bottom). */
struct instance_part {
    uint32_t left, top, right, bottom;
};

static void maps_done(struct instance_maps *maps)
{
    free(maps->map.best);
    free(maps->columns);
    free(maps->rows);
    free(maps->sum);
    free(maps->runs.items);
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
    return error_set(err, STATUS_NO_MEMORY, "no memory for the masks of an image");
}

/* The points of the map that lie around pixels [begin, end). */
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

/* Sums the prototypes in the part of the map around the box, and finds where they are above 0. */
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

/* The pixels of `part` whose score is above the threshold. */
static enum status take_mask(struct instance_maps *maps, const struct instance_part *part,
                             struct segment *ret, struct error *err)
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
    size_t pieces = 0;
    for (size_t i = 0; is_done && i < runs->count; i++) {
        if (runs->items[i].index != 0)
            continue;
        ret->area += runs->items[i].length;
        pieces++;
    }
    ret->counts = is_done ? area_counts(runs, 0, pieces) : NULL;
    return ret->counts ? STATUS_OK
                       : error_set(err, STATUS_NO_MEMORY, "no memory for the mask of a box");
}

enum status instances_check_work(size_t count, double pixels, struct error *err)
{
    if (pixels <= MAX_MASK_PIXELS)
        return STATUS_OK;
    return error_set(err, STATUS_TOO_LARGE,
                     "the masks of the %zu boxes have %.0f megapixels, more than %.0f; ask with a "
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
        /* The corners of a box may be in the wrong order; it is then empty. */
        const bool is_empty = part.right < part.left || part.bottom < part.top;
        const struct instance_part none = {0};
        found->masks[i].index = box->index;
        mix_prototypes(&maps, prototypes->data, task->prototypes,
                       detect_extras(task, &outputs[0], box->place), is_empty ? &none : &part);
        status = take_mask(&maps, is_empty ? &none : &part, &found->masks[i], err);
    }
    maps_done(&maps);
    return status;
}

/* Masks of the boxes' own: [N, 1, height, width] of torchvision, [Q, height, width] of DETR. */
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
    /* A DETR's candidate is a pair of query and class. */
    const size_t classes = is_torchvision ? 1 : (size_t)outputs[0].shape.dims[1];
    for (size_t i = 0; i < found->count && status == STATUS_OK; i++) {
        const struct instance_part all = {0, 0, maps.width, maps.height};
        found->masks[i].index = found->items[i].index;
        maps.map.scores = masks->data + found->items[i].place / classes * maps.map.plane;
        for (size_t k = 0; k < maps.map.plane; k++)
            maps.map.best[k] = area_best(&maps.map, maps.map.scores + k, 1);
        status = take_mask(&maps, &all, &found->masks[i], err);
    }
    maps_done(&maps);
    return status;
}

/* Drops boxes whose mask is empty. */
static void drop_empty(struct detections *found)
{
    size_t kept = 0;
    for (size_t i = 0; i < found->count; i++) {
        if (found->masks[i].area == 0) {
            free(found->masks[i].counts);
            continue;
        }
        found->items[kept] = found->items[i];
        found->masks[kept++] = found->masks[i];
    }
    found->count = kept;
}

enum status instances_add(const struct task *task, const struct task_rows *outputs,
                          const struct task_geometry *geometry, struct detections *found,
                          struct error *err)
{
    found->masks = alloc_array(found->count, sizeof *found->masks);
    if (!found->masks)
        return error_set(err, STATUS_NO_MEMORY, "no memory for the masks of an image");
    TRY(instances_check_work(found->count, pixels_in(found), err));
    if (task->layout == LAYOUT_TORCHVISION)
        return add_own(task, outputs, geometry, found, err);
    TRY(task->prototypes ? add_yolo(task, outputs, geometry, found, err)
                         : add_own(task, outputs, geometry, found, err));
    drop_empty(found);
    return STATUS_OK;
}
