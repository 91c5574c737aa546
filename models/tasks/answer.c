/* Takes an image's rows from the outputs and passes them to the decoder of the task. */
#include "models/tasks/answer.h"

#include <math.h>
#include <string.h>

#include "models/tasks/decoders.h"

void task_answer_done(struct task_answer *answer)
{
    detections_done(&answer->detections);
    embedding_done(&answer->embedding);
    segments_done(&answer->segments);
    depth_done(&answer->depth);
    text_done(&answer->text);
}

size_t task_answer_bytes(const struct task_answer *answer)
{
    enum { ENTRY = 160, NUMBER = 14, POINT = 80 };
    size_t bytes = (answer->detections.count + answer->segments.count) * ENTRY +
                   (answer->embedding.count + answer->text.count) * NUMBER;
    bytes += answer->detections.count * answer->detections.point_count * POINT;
    /* A map becomes a PNG with two bytes per pixel, in base64. */
    if (answer->depth.values)
        bytes += (size_t)answer->depth.geometry.photo_width *
                 (size_t)answer->depth.geometry.photo_height * 3;
    const struct detections *found = &answer->detections;
    for (size_t i = 0; i < found->count; i++)
        bytes += found->items[i].mask.counts ? strlen(found->items[i].mask.counts) : 0;
    for (size_t i = 0; i < answer->segments.count; i++)
        bytes += strlen(answer->segments.items[i].counts);
    return bytes;
}

/* Reads the score and the label, one number each. A missing label is true if the score is at least
 * 0.5. Decodes the map, [1, height, width], as a depth map, and the mask, [1, height, width], as
 * the scores of a segmenter with one class. */
static enum status anomaly_decode(const struct task *task, const struct task_rows *outputs,
                                  const struct task_geometry *geometry, struct task_answer *ret,
                                  struct error *err)
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
        TRY(depth_decode(parts[ANOMALY_MAP], geometry, &ret->depth, err));
    if (parts[ANOMALY_MASK])
        TRY(segment_decode(parts[ANOMALY_MASK], &all, geometry, &ret->segments, err));
    const struct task_rows *label = parts[ANOMALY_LABEL];
    ret->anomaly = (struct anomaly){true, score, label ? label->data[0] > 0 : score >= 0.5f};
    return STATUS_OK;
}

enum status task_answer_of(const struct task *task, const struct tensor *const *outputs, int batch,
                           int row, const struct task_options *options,
                           const struct task_geometry *geometry, struct task_buffer *buffers,
                           struct task_answer *ret, struct error *err)
{
    struct task_rows rows[TASK_MAX_OUTPUTS];
    for (size_t i = 0; i < task->output_count; i++)
        TRY(task_rows_of(outputs[task->outputs[i]], task_layout_has_rows(task->layout), batch, row,
                         &buffers[i], &rows[i], err));
    *ret = (struct task_answer){0};
    switch (task->kind) {
    case TASK_DETECTION:
    case TASK_POSE:
    case TASK_ORIENTED:
    case TASK_INSTANCES:
    case TASK_TEXT_BOXES:
    case TASK_MASKS:
        return detect_decode(task, rows, options, geometry, &ret->detections, err);
    case TASK_EMBEDDING:
    case TASK_ZERO_SHOT:
        return embed_decode(&rows[0], options, &ret->embedding, err);
    case TASK_SEGMENTATION:
        return segment_decode(&rows[0], options, geometry, &ret->segments, err);
    case TASK_DEPTH:
        return depth_decode(&rows[0], geometry, &ret->depth, err);
    case TASK_ANOMALY:
        return anomaly_decode(task, rows, geometry, ret, err);
    case TASK_TEXT:
        return text_decode(&rows[0], &ret->text, err);
    case TASK_CLASSIFICATION:
    case TASK_UNKNOWN:
        break;
    }
    return error_set(err, STATUS_INTERNAL, "the model's task has no decoder");
}
