/* From the outputs of a run to what is answered for one of its images. Pure; any thread. */
#pragma once

#include "models/tasks/detect.h"
#include "models/tasks/embed.h"
#include "models/tasks/segment.h"

/* One of them, by the task; zeroed: none. Free with task_answer_done. */
struct task_answer {
    struct detections detections;
    struct embedding embedding;
    struct segments segments;
};

void task_answer_done(struct task_answer *answer);

/* About how many bytes it takes as JSON. */
size_t task_answer_bytes(const struct task_answer *answer);

/* The answer for image `row` of a run of `batch`. `task`: no classifier. `outputs`: all
 * of the model's, of which the task's own are read. `options`: complete. `buffers`:
 * TASK_MAX_OUTPUTS of them. On success the caller frees *ret. STATUS_SHAPE when an output is not
 * what the task expects; others as of the decoders. */
enum status task_answer_of(const struct task *task, const struct tensor *const *outputs, int batch,
                           int row, const struct task_options *options,
                           const struct task_geometry *geometry, struct task_buffer *buffers,
                           struct task_answer *ret, struct error *err) MUST_USE;
