/* Private to models/tasks: candidates of boxes while an image is decoded. */
#pragma once

#include "models/tasks/detect.h"

struct candidates {
    struct detections found;
    const struct task_options *options;
    bool is_out_of_memory;
};

/* Takes a candidate whose score is above the threshold and whose class is wanted; others, and boxes
 * that are not finite, are left out. Once DETECT_MAX_CANDIDATES are there, only better ones count.
 */
void candidates_add(struct candidates *candidates, const struct detection *added);

/* Candidates to the best max_detections, best first; with an IoU below 1, of those that overlap
 * more only the best stays (of each class, or of all with `agnostic`). */
void candidates_suppress(struct detections *found, const struct task_options *options);
