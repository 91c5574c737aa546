/* Detection in slices: a large photo is cut into overlapping parts, each goes through the model,
 * and the boxes of all of them are merged. So objects are found that would be a few pixels wide in
 * the model's input. The rules are SAHI's (get_slice_bboxes, GREEDYNMM, NMS). Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* Pixels of the upright photo. */
struct photo_slice {
    uint32_t x, y, width, height;
};

/* Slices of `side` by `side` that overlap by `overlap` (0 … 0.9) of that; the last ones of a row
 * and of a column are moved back into the photo. Writes the first `most` and returns how many there
 * are. */
size_t slices_plan(uint32_t width, uint32_t height, uint32_t side, double overlap,
                   struct photo_slice *ret, size_t most);

enum slices_rule {
    SLICES_GREEDY_NMM, /* unites boxes that share half of the smaller area */
    SLICES_NMS,        /* drops a box whose IoU with a better one is one half or more */
};

/* Moves the boxes of parts[i], found in slices[i], to their place in the photo and merges them,
 * those of one class, or with `agnostic` all. Of more than DETECT_MAX_CANDIDATES the best are
 * looked at. *ret: at most `most`, best first; the caller frees it. Parts are left as they are.
 * STATUS_NO_MEMORY. */
enum status slices_merge(const struct detections *const *parts, const struct photo_slice *slices,
                         size_t count, enum slices_rule rule, bool agnostic, size_t most,
                         struct detections *ret, struct error *err) MUST_USE;
