/* Private to models/tasks: candidate boxes of one image. */
#pragma once

#include "models/tasks/detect.h"

struct candidates {
    struct detections found;
    const struct task_options *options;
    size_t extras;    /* numbers behind the box, scores and class of a candidate */
    bool is_oriented; /* the last of them is the angle */
    bool is_out_of_memory;
};

/* Adds a candidate, unless its score is not above the threshold, its class is not wanted, or its
 * box is not finite. Keeps the best DETECT_MAX_CANDIDATES (DETECT_MAX_ORIENTED). */
void candidates_add(struct candidates *candidates, const struct detection *added);

/* Sorts the candidates, best first, and keeps the best max_detections. With an IoU below 1, first
 * drops each candidate that overlaps a better one by more than that (a better one of its class, or
 * of any class with `agnostic`). Oriented boxes are compared by probabilistic IoU, also with better
 * ones that were dropped. */
void candidates_suppress(struct candidates *candidates, const struct task_options *options);
