/* A segmenter's scores to the areas of its classes in the photo. Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* Classes of a map, at most. */
#define SEGMENT_MAX_CLASSES 1024

/* Where one class is. */
struct segment {
    uint32_t index; /* class */
    uint64_t area;  /* pixels of the photo */
    char *counts;   /* COCO's compressed run lengths, column by column, terminated */
};

/* Zeroed: none. Free with segments_done. */
struct segments {
    struct segment *items; /* the largest first */
    size_t count;
    uint32_t width, height; /* of the photo */
};

void segments_done(struct segments *segments);

/* The class of every pixel of the photo: scores [classes, height, width] are interpolated
 * bilinearly to the photo's size, as torch.nn.functional.interpolate with align_corners=False has
 * it, then the greatest counts, the first of equal ones. Of a single class: where its score is
 * above 0, or above 0.5 where all are 0 … 1; it is class 0. Pixels that the model's input does not
 * show are in no class; so are those of classes that `options` do not want. On success the caller
 * frees *ret. STATUS_SHAPE when the row is no map; STATUS_NO_MEMORY. */
enum status segment_decode(const struct task_rows *row, const struct task_options *options,
                           const struct task_geometry *geometry, struct segments *ret,
                           struct error *err) MUST_USE;
