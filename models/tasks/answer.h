/* Makes the answer for one image from the outputs of a run. Pure; any thread. */
#pragma once

#include "models/tasks/depth.h"
#include "models/tasks/segment.h"
#include "models/tasks/text_read.h"
#include "models/tasks/zero_shot.h"

/* The outputs of anomalib, in this order. Only the first is always present. */
enum anomaly_part { ANOMALY_SCORE, ANOMALY_LABEL, ANOMALY_MAP, ANOMALY_MASK, ANOMALY_PARTS };

struct anomaly {
    bool is_set;
    float score; /* 0 … 1 */
    bool is_anomalous;
};

/* The task determines which members are set. Zeroed: no answer. Free with task_answer_done(). */
struct task_answer {
    struct detections detections;
    struct embedding embedding;
    struct segments segments; /* classes of a photo, or the mask of an anomaly */
    struct depth depth;       /* depth of a photo, or the map of an anomaly */
    struct anomaly anomaly;
    struct text_reading text;
};

void task_answer_done(struct task_answer *answer);

/* Returns an estimate of the answer's size as JSON, in bytes. */
size_t task_answer_bytes(const struct task_answer *answer);

/* Makes the answer for image `row` of a run of `batch` images. `task` must not be a classifier's.
 * `outputs` has all outputs of the model. `options` must be complete. `buffers`, an array of
 * TASK_MAX_OUTPUTS, gets outputs that must be converted; it can be reused for other images. *ret
 * must be zeroed; the caller frees it, also after an error. STATUS_INVALID if an output's shape
 * does not fit the task; other errors are those of the decoders. */
enum status task_answer_of(const struct task *task, const struct tensor *const *outputs, int batch,
                           int row, const struct task_options *options,
                           const struct task_geometry *geometry, struct task_buffer *buffers,
                           struct task_answer *ret, struct error *err) MUST_USE;
