/* Decodes the anomaly score, map and mask of a photo from anomalib's models. Pure; any thread. */
#pragma once

#include "models/tasks/depth.h"
#include "models/tasks/segment.h"

/* The outputs of anomalib, in this order. Only the first is always present. */
enum anomaly_part { ANOMALY_SCORE, ANOMALY_LABEL, ANOMALY_MAP, ANOMALY_MASK, ANOMALY_PARTS };

struct anomaly {
    bool is_set;
    float score; /* 0 … 1 */
    bool is_anomalous;
};

/* Decodes the outputs of one image: the score [], the label [] (if missing: score >= 0.5), the map
 * [1, height, width] into *ret_map, and the mask [1, height, width] as one area of class 0 into
 * *ret_areas. The caller frees both. Errors: those of depth_decode() and segment_decode(). */
enum status anomaly_decode(const struct task *task, const struct task_rows *outputs,
                           const struct task_geometry *geometry, struct anomaly *ret,
                           struct depth *ret_map, struct segments *ret_areas,
                           struct error *err) MUST_USE;
