/* Decodes the map as a depth map, and the mask as the scores of a segmenter with one class. */
#include "models/tasks/anomaly.h"

#include <math.h>

enum status anomaly_decode(const struct task *task, const struct task_rows *outputs,
                           const struct task_geometry *geometry, struct anomaly *ret,
                           struct depth *ret_map, struct segments *ret_areas, struct error *err)
{
    const struct task_options all = {.confidence = -1};
    const struct task_rows *parts[ANOMALY_PARTS] = {NULL};
    for (size_t i = 0, at = 0; i < ANOMALY_PARTS; i++)
        if (task->anomaly_parts >> i & 1)
            parts[i] = &outputs[at++];
    for (size_t i = ANOMALY_SCORE; i <= ANOMALY_LABEL; i++)
        if (parts[i] && parts[i]->count != 1)
            return task_rows_wrong(parts[i], "one number for the photo", err);
    const float score = parts[ANOMALY_SCORE]->data[0];
    if (!isfinite(score))
        return error_set(err, STATUS_NUMERIC, "the score of this image is not finite");
    if (parts[ANOMALY_MAP])
        TRY(depth_decode(parts[ANOMALY_MAP], geometry, ret_map, err));
    if (parts[ANOMALY_MASK])
        TRY(segment_decode(parts[ANOMALY_MASK], &all, geometry, ret_areas, err));
    const struct task_rows *label = parts[ANOMALY_LABEL];
    *ret = (struct anomaly){true, score, label ? label->data[0] > 0 : score >= 0.5f};
    return STATUS_OK;
}
