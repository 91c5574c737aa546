/* Finds the class of each pixel of the photo (areas.c), and the area of each class. */
#include "models/tasks/segment.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "models/tasks/areas.h"

void segments_done(struct segments *segments)
{
    for (size_t i = 0; i < segments->count; i++)
        free(segments->items[i].counts);
    free(segments->items);
    *segments = (struct segments){0};
}

/* The threshold of a single class: 0.5 for probabilities, 0 for logits. */
static float threshold_of(const float *scores, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (scores[i] < 0 || scores[i] > 1)
            return 0;
    return 0.5f;
}

static enum status map_init(const struct task_rows *row, const struct task_geometry *geometry,
                            struct area_map *ret, struct error *err)
{
    const struct shape *shape = &row->shape;
    if (shape->rank != 3 || row->count == 0 || shape->dims[0] > SEGMENT_MAX_CLASSES ||
        shape->dims[1] > INT32_MAX || shape->dims[2] > INT32_MAX)
        return task_rows_wrong(row,
                               "a score for each of at most 1024 classes and each point, "
                               "[classes, height, width]",
                               err);
    TRY(area_map_init(shape->dims[2], shape->dims[1], geometry, false, ret, err));
    ret->scores = row->data;
    ret->classes = (size_t)shape->dims[0];
    ret->threshold = ret->classes == 1 ? threshold_of(row->data, row->count) : 0;
    area_classify(ret);
    /* No score exceeds a NaN of class 0. A NaN of another class is never the best score. */
    for (size_t i = 0; i < ret->plane; i++)
        if (isnan(ret->scores[i]))
            return error_set(err, STATUS_NUMERIC,
                             "the model's scores of class 0 are not numbers (NaN) for this image");
    return STATUS_OK;
}

static int by_area(const void *a, const void *b)
{
    const struct segment *left = a, *right = b;
    if (left->area != right->area)
        return left->area > right->area ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

static bool collect(const struct area_runs *runs, const struct task_options *options,
                    struct segments *ret)
{
    uint64_t areas[SEGMENT_MAX_CLASSES] = {0};
    size_t pieces[SEGMENT_MAX_CLASSES] = {0}, present = 0;
    for (size_t i = 0; i < runs->count; i++) {
        const uint16_t index = runs->items[i].index;
        if (index == AREA_NONE || !task_option_wants(options, index))
            continue;
        present += areas[index] == 0;
        areas[index] += runs->items[i].length;
        pieces[index]++;
    }
    ret->items = alloc_array(present, sizeof *ret->items);
    for (uint16_t c = 0; ret->items && c < SEGMENT_MAX_CLASSES; c++) {
        if (!areas[c])
            continue;
        char *counts = area_counts(runs, c, pieces[c]);
        if (!counts)
            return false;
        ret->items[ret->count++] = (struct segment){c, areas[c], counts};
    }
    if (ret->items)
        qsort(ret->items, ret->count, sizeof *ret->items, by_area);
    return ret->items != NULL;
}

enum status segment_decode(const struct task_rows *row, const struct task_options *options,
                           const struct task_geometry *geometry, struct segments *ret,
                           struct error *err)
{
    struct area_map map = {0};
    *ret = (struct segments){.width = (uint32_t)geometry->photo_width,
                             .height = (uint32_t)geometry->photo_height};
    enum status status = map_init(row, geometry, &map, err);
    IF_OK(status, check_memory(area_run(&map, NULL) && collect(&map.runs, options, ret),
                               "for the masks of an image", err));
    area_map_done(&map);
    return status;
}
