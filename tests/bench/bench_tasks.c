/* Milliseconds of CPU time that the decoders of models/tasks take for one image: with a handful of
 * hits, and at their worst, when every candidate passes and none overlaps.
 *
 *     bench_tasks [ROUNDS]      the best of so many rounds (default 50)
 *
 * YOLO: an input of 640 x 640, 8,400 candidates, 80 classes (15 for oriented boxes); 300 boxes at
 * most, or at the worst 1,000. Masks and areas are of a photo of 1280 x 960. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "engine/base/size.h"
#include "models/tasks/answer.h"

enum { SIDE = 640, ANCHORS = 8400, QUERIES = 300 };

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static uint32_t random_state = 1;

static float uniform(float least, float most)
{
    random_state = random_state * 1664525u + 1013904223u;
    return least + (most - least) * (float)(random_state >> 8) / (float)(1 << 24);
}

static struct task_rows make_output(struct shape shape)
{
    const size_t count = shape_count(&shape);
    float *data = alloc_array(count, sizeof *data);
    if (!data)
        exit(2);
    return (struct task_rows){data, shape, count};
}

static float *numbers_of(const struct task_rows *rows)
{
    return (float *)(uintptr_t)rows->data;
}

/* Candidates side by side, [4 + classes + extras, ANCHORS]; `hits` of them have a score. */
static struct task_rows make_yolo(int classes, int extras, int hits)
{
    const struct task_rows rows = make_output(SHAPE(4 + classes + extras, ANCHORS));
    float *data = numbers_of(&rows);
    for (int i = 0; i < ANCHORS; i++) {
        const int column = i % 92, line = i / 92;
        data[i] = (float)column * 7 + 3.5f;
        data[ANCHORS + i] = (float)line * 7 + 3.5f;
        data[2 * ANCHORS + i] = data[3 * ANCHORS + i] = 6;
        for (int c = 0; c < classes; c++)
            data[(4 + c) * ANCHORS + i] = uniform(0, 0.05f);
        for (int e = 0; e < extras; e++)
            data[(4 + classes + e) * ANCHORS + i] = uniform(-1, 1);
    }
    for (int h = 0; h < hits; h++)
        data[(4 + h % classes) * ANCHORS + (size_t)h * (ANCHORS / (size_t)hits)] = uniform(0.3f, 1);
    return rows;
}

static void fill(const struct task_rows *rows, float least, float most)
{
    for (size_t i = 0; i < rows->count; i++)
        numbers_of(rows)[i] = uniform(least, most);
}

/* Smooth blobs, a plane after another. */
static void fill_blobs(const struct task_rows *rows, float above)
{
    const int64_t height = rows->shape.dims[rows->shape.rank - 2];
    const int64_t width = rows->shape.dims[rows->shape.rank - 1];
    for (size_t i = 0; i < rows->count; i++) {
        const int64_t line = (int64_t)i / width, number = line / height;
        const float x = (float)((int64_t)i % width) / (float)width;
        const float y = (float)(line % height) / (float)height, plane = (float)number;
        numbers_of(rows)[i] = 4 * sinf(6 * x + plane) * cosf(5 * y + 2 * plane) + above;
    }
}

static void measure(const char *name, const struct task *task, const struct task_rows *rows,
                    const struct task_options *options, int rounds)
{
    const struct task_geometry geometry = {0.5f, 2.0f / 3, 0, 0, 1280, 960, SIDE, SIDE};
    const struct tensor *outputs[TASK_MAX_OUTPUTS];
    struct tensor tensors[TASK_MAX_OUTPUTS];
    struct task_buffer buffers[TASK_MAX_OUTPUTS] = {0};
    struct task all = *task;
    for (size_t i = 0; i < task->output_count; i++) {
        struct shape shape = SHAPE(1);
        for (int d = 0; d < rows[i].shape.rank; d++)
            shape.dims[++shape.rank - 1] = rows[i].shape.dims[d];
        tensors[i] =
            (struct tensor){.dtype = DTYPE_F32, .shape = shape, .data = numbers_of(&rows[i])};
        outputs[i] = &tensors[i];
        all.outputs[i] = i;
    }
    double best = INFINITY;
    size_t found = 0;
    for (int i = 0; i < rounds; i++) {
        struct task_answer answer;
        struct error err;
        const double begin = cpu_ms();
        if (task_answer_of(&all, outputs, 1, 0, options, &geometry, buffers, &answer, &err) !=
            STATUS_OK) {
            fprintf(stderr, "%s: %s\n", name, err.message);
            return;
        }
        best = fmin(best, cpu_ms() - begin);
        found = answer.detections.count + answer.segments.count + answer.text.count;
        task_answer_done(&answer);
    }
    printf("%-44s %8.3f ms %6zu found\n", name, best, found);
}

static void measure_yolo(int rounds)
{
    static const struct {
        const char *name;
        enum task_kind kind;
        int classes, extras;
    } cases[] = {{"detection", TASK_DETECTION, 80, 0},
                 {"pose", TASK_POSE, 1, 51},
                 {"oriented boxes", TASK_ORIENTED, 15, 1},
                 {"instance segmentation", TASK_INSTANCES, 80, 32}};
    static const int hits[] = {6, ANCHORS};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t h = 0; h < COUNT_OF(hits); h++) {
            char name[80];
            const struct task task = {.kind = cases[i].kind,
                                      .layout = LAYOUT_YOLOV8,
                                      .output_count = cases[i].kind == TASK_INSTANCES ? 2 : 1,
                                      .point_count = 17,
                                      .point_numbers = 3,
                                      .prototypes = 32};
            const struct task_options options = {.confidence = 0.25f,
                                                 .iou = 0.7f,
                                                 .max_detections = h ? TASK_MAX_DETECTIONS : 300,
                                                 .masks = MASK_FORM_RLE};
            const struct task_rows rows[] = {make_yolo(cases[i].classes, cases[i].extras, hits[h]),
                                             make_output(SHAPE(32, 160, 160))};
            fill_blobs(&rows[1], 0);
            snprintf(name, sizeof name, "YOLO %s, %d hits", cases[i].name, hits[h]);
            measure(name, &task, rows, &options, rounds);
            free(numbers_of(&rows[0]));
            free(numbers_of(&rows[1]));
        }
}

static void measure_queries(int rounds)
{
    const struct task_options options = {
        .confidence = 0.5f, .iou = 1, .max_detections = 300, .masks = MASK_FORM_RLE};
    const struct task_rows logits = make_output(SHAPE(QUERIES, 80));
    const struct task_rows boxes = make_output(SHAPE(QUERIES, 4));
    struct task_rows rows[] = {logits, boxes};
    fill(&boxes, 0, 1);
    struct task task = {.kind = TASK_DETECTION, .layout = LAYOUT_DETR_SIGMOID, .output_count = 2};
    fill(&logits, -9, 0.01f);
    measure("RT-DETR, 300 queries, a few hits", &task, rows, &options, rounds);
    fill(&logits, 0.1f, 5);
    measure("RT-DETR, 300 queries, all pairs hit", &task, rows, &options, rounds);
    const struct task_rows classes = make_output(SHAPE(100, 81));
    const struct task_rows masks = make_output(SHAPE(100, 96, 96));
    fill(&classes, -4, 0);
    for (int q = 0; q < 100; q++)
        numbers_of(&classes)[q * 81 + (q < 12 ? q : 80)] = 8;
    fill_blobs(&masks, -3);
    rows[0] = classes;
    rows[1] = masks;
    task = (struct task){.kind = TASK_INSTANCES, .layout = LAYOUT_PANOPTIC, .output_count = 2};
    measure("DETR masks, 100 queries, 12 hits", &task, rows, &options, rounds);
    task.layout = LAYOUT_MASKFORMER;
    task.mask_side = 384;
    measure("Mask2Former, 100 queries, 12 hits", &task, rows, &options, rounds);
    free(numbers_of(&logits));
    free(numbers_of(&boxes));
    free(numbers_of(&classes));
    free(numbers_of(&masks));
}

static void measure_faces(int rounds)
{
    static const int numbers[] = {1, 1, 4, 10};
    const struct task task = {.kind = TASK_POSE,
                              .layout = LAYOUT_YUNET,
                              .output_count = 12,
                              .point_count = 5,
                              .point_numbers = 2};
    const struct task_options options = {.confidence = 0.9f, .iou = 0.3f, .max_detections = 300};
    struct task_rows rows[12];
    for (int i = 0; i < 12; i++) {
        const int64_t side = SIDE / (8 << i % 3);
        rows[i] = make_output(SHAPE(side * side, numbers[i / 3]));
        fill(&rows[i], 0, 0.9f);
    }
    for (int i = 0; i < 6; i++)
        numbers_of(&rows[0])[i * 900] = numbers_of(&rows[3])[i * 900] = 1;
    measure("YuNet, 6 hits", &task, rows, &options, rounds);
    for (int i = 0; i < 6; i++)
        fill(&rows[i], 0.95f, 1);
    for (int i = 6; i < 9; i++)
        fill(&rows[i], -2, 0);
    measure("YuNet, 8400 hits", &task, rows, &options, rounds);
    for (int i = 0; i < 12; i++)
        free(numbers_of(&rows[i]));
}

static void measure_maps(int rounds)
{
    const struct task_options options = {.confidence = 0.5f, .iou = 1, .max_detections = 1000};
    struct task_rows map = make_output(SHAPE(21, 160, 160));
    struct task task = {.kind = TASK_SEGMENTATION, .output_count = 1};
    fill_blobs(&map, 0);
    measure("areas of 21 classes, 160 x 160", &task, &map, &options, rounds);
    free(numbers_of(&map));
    map = make_output(SHAPE(1, SIDE, SIDE));
    task = (struct task){.kind = TASK_TEXT_BOXES, .layout = LAYOUT_TEXT, .output_count = 1};
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            numbers_of(&map)[y * SIDE + x] = y % 32 < 14 && x % 200 < 150 ? 0.9f : 0.05f;
    measure("text boxes, 640 x 640, 80 lines", &task, &map, &options, rounds);
    fill(&map, 0, 0.6f);
    measure("text boxes, 640 x 640, noise", &task, &map, &options, rounds);
    free(numbers_of(&map));
    map = make_output(SHAPE(40, 6625));
    task = (struct task){.kind = TASK_TEXT, .output_count = 1};
    fill(&map, 0, 1);
    measure("text line, 40 positions, 6625 characters", &task, &map, &options, rounds);
    free(numbers_of(&map));
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 50;
    measure_yolo(rounds);
    measure_queries(rounds);
    measure_faces(rounds);
    measure_maps(rounds);
    return 0;
}
