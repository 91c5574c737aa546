/* Makes the masks of the objects in boxes.
 *
 * YOLO's mask is where the sum of prototypes times the box's factors, interpolated to the photo, is
 * above 0 and inside the box (Ultralytics' process_mask_native). torchvision's masks are
 * probabilities in pixels of the model's input; its examples use the threshold 0.5. DETR's and
 * RF-DETR's masks are logits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"
#include "models/tasks/decoders.h"

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
    TRY(instances_check_work(found->count, pixels_in(found), err));
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
