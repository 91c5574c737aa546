/* Names tasks, and finds a candidate's numbers other than its box and scores. */
#include "models/tasks/decoders.h"

static const char *const task_names[] = {
    [TASK_UNKNOWN] = "unknown",
    [TASK_CLASSIFICATION] = "classification",
    [TASK_DETECTION] = "detection",
    [TASK_EMBEDDING] = "embedding",
    [TASK_SEGMENTATION] = "segmentation",
    [TASK_POSE] = "pose",
    [TASK_ORIENTED] = "oriented-boxes",
    [TASK_INSTANCES] = "instance-segmentation",
    [TASK_DEPTH] = "depth",
    [TASK_ZERO_SHOT] = "zero-shot",
    [TASK_TEXT_BOXES] = "text-detection",
    [TASK_TEXT] = "text-recognition",
    [TASK_ANOMALY] = "anomaly",
    [TASK_MASKS] = "mask-generation",
};

const char *task_name(enum task_kind kind)
{
    return task_names[kind];
}

size_t task_extras(const struct task *task)
{
    return task->kind == TASK_POSE        ? task->point_count * task->point_numbers
           : task->kind == TASK_ORIENTED  ? 1
           : task->kind == TASK_INSTANCES ? task->prototypes
                                          : 0;
}

struct extra_numbers detect_extras(const struct task *task, const struct task_rows *rows,
                                   uint32_t place)
{
    const size_t columns = (size_t)rows->shape.dims[1];
    if (task->layout == LAYOUT_YOLO_FINAL)
        return (struct extra_numbers){rows->data + place * columns + 6, 1};
    const size_t before = (size_t)rows->shape.dims[0] - task_extras(task);
    return (struct extra_numbers){rows->data + before * columns + place, columns};
}
