/* Decodes the outputs of the YOLO family, and of detectors that suppress overlaps themselves.
 *
 * A candidate's class is the one with the highest score; on a tie the first. Sources: Ultralytics'
 * non_max_suppression (candidates before the suppression) and RTDETRPredictor, YOLOX's
 * decode_outputs, postprocess. */
#include <math.h>

#include "models/tasks/decoders.h"

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

/* Number of candidates decoded together, so that scores are read in the order of memory. */
enum { BLOCK = 128 };

/* Finds the highest score, or 0, of each of `count` candidates. The scores of class c are in line
 * c; lines are `step` numbers apart. */
static void block_greatest(const float *lines, size_t classes, size_t step, size_t count,
                           float greatest[static BLOCK])
{
    for (size_t i = 0; i < count; i++)
        greatest[i] = 0;
    for (size_t c = 0; c < classes; c++, lines += step)
        for (size_t i = 0; i < count; i++)
            greatest[i] = lines[i] > greatest[i] ? lines[i] : greatest[i];
}

enum status decode_yolov8(const struct task_rows *outputs, struct candidates *candidates,
                          struct error *err)
{
    const struct task_rows *rows = &outputs[0];
    const int64_t beside = 4 + (int64_t)task_extras(candidates->task);
    if (rows->shape.rank != 2 || rows->shape.dims[0] <= beside)
        return task_rows_wrong(rows, "[4 + classes + the task's own numbers, candidates]", err);
    const size_t classes = (size_t)(rows->shape.dims[0] - beside);
    const size_t all = (size_t)rows->shape.dims[1];
    const float *scores = rows->data + 4 * all, confidence = candidates->options->confidence;
    for (size_t first = 0; first < all; first += BLOCK) {
        const size_t count = all - first < BLOCK ? all - first : BLOCK;
        float greatest[BLOCK];
        block_greatest(scores + first, classes, all, count, greatest);
        for (size_t i = 0; i < count; i++) {
            if (!(greatest[i] > confidence))
                continue;
            size_t index = 0; /* the first class with the highest score, which is above 0 */
            while (index + 1 < classes && !(scores[index * all + first + i] >= greatest[i]))
                index++;
            const float *at = rows->data + first + i;
            struct detection found = decode_centred(at[0], at[all], at[2 * all], at[3 * all]);
            found.angle = candidates->is_oriented ? at[(4 + classes) * all] : 0;
            candidates_add(candidates, found, greatest[i], index, first + i);
        }
    }
    return STATUS_OK;
}

/* Decodes `count` rows of x, y, w, h, objectness (except RT-DETR) and scores. With a stride, x, y,
 * w and h are those of a YOLOX grid `width` cells wide. */
static void decode_cells(const struct task_rows *rows, size_t first, size_t count, size_t width,
                         float stride, struct candidates *candidates)
{
    const bool is_rtdetr = candidates->task->layout == LAYOUT_RTDETR;
    const size_t columns = (size_t)rows->shape.dims[1], before = is_rtdetr ? 4 : 5;
    const float confidence = candidates->options->confidence;
    for (size_t i = 0; i < count; i++) {
        const float *row = rows->data + (first + i) * columns;
        /* Scores are at most 1, so a score times the objectness is not above the objectness. */
        if (!is_rtdetr && !(row[4] > confidence))
            continue;
        const size_t best = decode_greatest(row + before, columns - before);
        const float score = (is_rtdetr ? 1 : row[4]) * row[before + best];
        if (!(score > confidence))
            continue;
        struct detection found = is_rtdetr ? decode_shares(row, candidates->geometry)
                                           : decode_centred(row[0], row[1], row[2], row[3]);
        if (stride > 0) {
            const size_t column = i % width, line = i / width;
            found =
                decode_centred((row[0] + (float)column) * stride, (row[1] + (float)line) * stride,
                               expf(row[2]) * stride, expf(row[3]) * stride);
        }
        candidates_add(candidates, found, score, best, first + i);
    }
}

enum status decode_yolo_grids(const struct task_rows *outputs, struct candidates *candidates,
                              struct error *err)
{
    const struct task_rows *rows = &outputs[0];
    const bool is_rtdetr = candidates->task->layout == LAYOUT_RTDETR;
    if (rows->shape.rank != 2 || rows->shape.dims[1] < (is_rtdetr ? 5 : 6))
        return task_rows_wrong(
            rows, is_rtdetr ? "[queries, 4 + classes]" : "[candidates, 5 + classes]", err);
    const size_t all = (size_t)rows->shape.dims[0];
    if (candidates->task->layout != LAYOUT_YOLOX) {
        decode_cells(rows, 0, all, 1, 0, candidates);
        return STATUS_OK;
    }
    const size_t width = (size_t)candidates->geometry->input_width;
    const size_t height = (size_t)candidates->geometry->input_height;
    size_t expected = 0, done = 0;
    for (size_t stride = 8; stride <= 32; stride *= 2)
        expected += (width / stride) * (height / stride);
    if (expected != all)
        return task_rows_wrong(rows, "a row for each cell of the grids of 8, 16 and 32 pixels",
                               err);
    for (size_t stride = 8; stride <= 32; stride *= 2) {
        const size_t cells = (width / stride) * (height / stride);
        decode_cells(rows, done, cells, width / stride, (float)stride, candidates);
        done += cells;
    }
    return STATUS_OK;
}

/* Each class of a box with a score above the threshold is a candidate (SuperGradients'
 * multi_label_per_box). */
enum status decode_yolo_nas(const struct task_rows *outputs, struct candidates *candidates,
                            struct error *err)
{
    const struct task_rows *boxes = &outputs[0], *scores = &outputs[1];
    if (boxes->shape.rank != 2 || boxes->shape.dims[1] != 4)
        return task_rows_wrong(boxes, "boxes, [candidates, 4]", err);
    if (scores->shape.rank != 2 || scores->shape.dims[0] != boxes->shape.dims[0])
        return task_rows_wrong(scores, "scores for each box, [candidates, classes]", err);
    const size_t classes = (size_t)scores->shape.dims[1];
    for (size_t i = 0; i < scores->count; i++) {
        const float *box = boxes->data + i / classes * 4;
        if (scores->data[i] > candidates->options->confidence)
            candidates_add(candidates, decode_corners(box[0], box[1], box[2], box[3]),
                           scores->data[i], i % classes, i);
    }
    return STATUS_OK;
}

enum status decode_final(const struct task_rows *outputs, struct candidates *candidates,
                         struct error *err)
{
    const struct task_rows *rows = &outputs[0];
    const enum task_layout layout = candidates->task->layout;
    const bool is_paddle = layout == LAYOUT_PADDLE || layout == LAYOUT_PADDLE_FLAT;
    const bool is_nas = layout == LAYOUT_YOLO_NAS_FLAT; /* the image's number comes first */
    const size_t box = is_paddle ? 2 : is_nas, columns = 6 + is_nas + task_extras(candidates->task);
    if (rows->shape.rank != 2 || rows->shape.dims[1] != (int64_t)columns)
        return task_rows_wrong(rows,
                               is_nas ? "[boxes, 7]: image, corners, score, class"
                                      : "[boxes, 6 + the task's own numbers]",
                               err);
    if (is_paddle && outputs[1].count != 1)
        return task_rows_wrong(&outputs[1], "the count of boxes", err);
    size_t count = (size_t)rows->shape.dims[0];
    const float said = is_paddle ? outputs[1].data[0] : (float)count;
    if (!(said >= 0 && said <= (float)count)) /* also true for NaN */
        return error_set(err, STATUS_INVALID,
                         "the model says that it found %g boxes, but its output has %zu rows",
                         (double)said, count);
    count = is_paddle ? (size_t)said : count;
    for (size_t i = 0; i < count; i++) {
        const float *row = rows->data + columns * i, *at = row + box;
        struct detection found =
            layout == LAYOUT_RTDETR_FINAL ? decode_shares(at, candidates->geometry)
            : candidates->is_oriented     ? decode_centred(at[0], at[1], at[2], at[3])
                                          : decode_corners(at[0], at[1], at[2], at[3]);
        uint32_t index;
        found.angle = candidates->is_oriented ? at[6] : 0;
        if (decode_class(is_paddle ? row[0] : at[5], &index))
            candidates_add(candidates, found, is_paddle ? row[1] : at[4], index, i);
    }
    return STATUS_OK;
}
