/* Converts a segmenter's scores to the areas of its classes in the photo. Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* Maximum number of classes of a map. */
#define SEGMENT_MAX_CLASSES 1024

/* Zeroed: empty. Free with segments_done(). */
struct segments {
    struct segment *items; /* the largest first */
    size_t count;
    uint32_t width, height; /* of the photo */
};

void segments_done(struct segments *segments);

/* Finds the class of every pixel of the photo. Scores [classes, height, width] are interpolated
 * bilinearly to the photo's size, like torch.nn.functional.interpolate with align_corners=False.
 * The highest score decides; on a tie the first class. With a single class, a pixel has class 0 if
 * its score is above 0, or above 0.5 if all scores are in 0 … 1. Pixels outside the model's input
 * have no class. Classes that `options` exclude are omitted from the answer. The caller frees
 * *ret, also after an error. STATUS_INVALID if the row is not a map; STATUS_NUMERIC if a
 * score of class 0 is NaN; STATUS_NO_MEMORY. */
enum status segment_decode(const struct task_rows *row, const struct task_options *options,
                           const struct task_geometry *geometry, struct segments *ret,
                           struct error *err) MUST_USE;
