/* Sliced detection: a large photo is cut into overlapping slices, the model runs on each, and their
 * boxes are merged. This finds objects that would be only a few pixels wide in the model's input.
 * The rules are SAHI's (get_slice_bboxes, GREEDYNMM, NMS). Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"

/* A slice in pixels of the upright photo. */
struct photo_slice {
    uint32_t x, y, width, height;
};

/* Plans slices of `side` by `side` pixels that overlap by the share `overlap` (0 … 0.9). The last
 * slices of a row and of a column are moved back into the photo. Writes the first `most` slices and
 * returns the number of all slices. */
size_t slices_plan(uint32_t width, uint32_t height, uint32_t side, double overlap,
                   struct photo_slice *ret, size_t most);

enum slices_rule {
    SLICES_GREEDY_NMM, /* merges boxes that share half of the smaller area */
    SLICES_NMS,        /* drops a box whose IoU with a better box is 0.5 or more */
};

/* Moves the boxes of parts[i], found in slices[i], to their place in the photo, and merges boxes of
 * one class, or with `agnostic` of all classes. Only the best DETECT_MAX_CANDIDATES are examined.
 * *ret: at most `most` boxes, best first; the caller frees it. Parts do not change.
 * STATUS_NO_MEMORY. */
enum status slices_merge(const struct detections *const *parts, const struct photo_slice *slices,
                         size_t count, enum slices_rule rule, bool agnostic, size_t most,
                         struct detections *ret, struct error *err) MUST_USE;
