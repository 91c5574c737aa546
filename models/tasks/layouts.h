/* Private to models/tasks: the table of layouts. */
#pragma once

#include "models/tasks/task.h"

struct layout_entry {
    const char *name; /* in lensd.json */
    size_t outputs;   /* the model has at least so many */
    float confidence, iou;
    int max_detections;
    bool has_rows;
};

extern const struct layout_entry task_layouts[];
extern const size_t task_layout_count;
