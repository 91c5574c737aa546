/* Prints the answers of lensd predict as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"
#include "server/answers/describe.h"
#include "server/cli/commands.h"

static void print_points(const struct predict_image *image, size_t box)
{
    const struct detections *found = &image->answer.detections;
    char shown[1024];
    for (size_t i = 0; i < found->point_count; i++) {
        const struct task_point *point = &found->points[box * found->point_count + i];
        const char *name = labels_name(&image->request->used_model->point_names, i);
        printf("        ");
        if (point->score >= 0)
            printf("%6.2f %%  ", (double)point->score * 100);
        printf("(%.0f, %.0f)  ", (double)point->x, (double)point->y);
        if (name)
            printf("%s\n", utf8_shown(name, shown, sizeof shown));
        else
            printf("point %zu\n", i);
    }
}

static void print_place(const struct predict_image *image, const struct detection *box)
{
    if (image->request->used_model->task.kind != TASK_ORIENTED) {
        printf("(%.0f, %.0f) to (%.0f, %.0f)", (double)box->x1, (double)box->y1, (double)box->x2,
               (double)box->y2);
        return;
    }
    printf("%.0f x %.0f around (%.0f, %.0f), rotated by %.1f degrees", (double)(box->x2 - box->x1),
           (double)(box->y2 - box->y1), (double)(box->x1 + box->x2) / 2,
           (double)(box->y1 + box->y2) / 2, (double)box->angle * 180 / 3.14159265358979);
}

/* Prints a line such as "3 boxes: 2 person, 1 car". */
static void print_counts(const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    const struct labels *labels = &image->request->used_model->labels;
    char shown[1024];
    if (found->count == 0)
        return;
    printf("    %zu box%s", found->count, found->count == 1 ? "" : "es");
    for (size_t i = 0, classes = 0; i < found->count && labels->count; i++) {
        size_t same = 0, before = 0;
        for (size_t k = 0; k < found->count; k++) {
            same += found->items[k].index == found->items[i].index;
            before += k < i && found->items[k].index == found->items[i].index;
        }
        if (before > 0)
            continue;
        const char *label = labels_name(labels, found->items[i].index);
        printf("%s%zu ", classes++ ? ", " : ": ", same);
        if (label)
            printf("%s", utf8_shown(label, shown, sizeof shown));
        else
            printf("class %u", found->items[i].index);
    }
    printf("\n");
}

static void print_answer(const struct predict_image *image);

/* Prints "cat (class 3)", or "class 3" without a label, and ends the line. */
static void print_class(const char *label, size_t index)
{
    char shown[1024];
    if (label)
        printf("%s  (class %zu)\n", utf8_shown(label, shown, sizeof shown), index);
    else
        printf("class %zu\n", index);
}

/* Prints the next stage's result for a box. */
static void print_crop(const struct predict_image *crop)
{
    if (crop->status != STATUS_OK) {
        printf("      crop: error: %s\n", crop->error.message);
        return;
    }
    printf("      the crop of %u x %u\n", crop->width, crop->height);
    print_answer(crop);
}

static void print_boxes(const struct predict_image *image)
{
    const struct detections *found = &image->answer.detections;
    for (size_t i = 0; i < found->count; i++) {
        const struct detection *box = &found->items[i];
        printf("    %6.2f %%  ", (double)box->score * 100);
        print_place(image, box);
        printf("  ");
        print_class(labels_name(&image->request->used_model->labels, box->index), box->index);
        if (found->items[i].mask.counts)
            printf("        %llu pixels\n", (unsigned long long)found->items[i].mask.area);
        if (image->request->used_model->task.kind == TASK_POSE)
            print_points(image, i);
        if (image->crops && image->crops[i])
            print_crop(image->crops[i]);
    }
    print_counts(image);
    if (task_has_boxes(image->request->used_model->task.kind) && found->count == 0)
        printf("    nothing found\n");
}

static void print_areas(const struct predict_image *image)
{
    const struct segments *found = &image->answer.segments;
    for (size_t i = 0; i < found->count; i++) {
        const struct segment *area = &found->items[i];
        printf("    %6.2f %% of the picture  ",
               (double)area->area * 100 / ((double)found->width * (double)found->height));
        print_class(labels_name(&image->request->used_model->labels, area->index), area->index);
    }
}

/* Prints the text that was read in a photo. Returns false if the model reads no text. */
static bool print_text(const struct predict_image *image)
{
    const bool is_line = image->answer.text.is_read;
    if (!is_line && (image->request->used_model->task.kind != TASK_TEXT_BOXES || !image->crops))
        return false;
    char *text = describe_text(image), *rest = text;
    const size_t size = text ? 4 * strlen(text) + 1 : 0; /* each byte may become "\x1b" */
    char *shown = alloc_array(size, 1);
    if (!text || !shown)
        fprintf(stderr, "lensd: out of memory\n");
    else if (is_line)
        printf("    %6.2f %%  ", (double)image->answer.text.score * 100);
    else if (!text[0])
        printf("    no text found");
    for (const char *line; shown && (line = strsep(&rest, is_line ? "" : "\n"));)
        printf("%s%s\n", is_line || !line[0] ? "" : "    ", utf8_shown(line, shown, size));
    FREE_ALL(text, shown);
    return true;
}

static void print_answer(const struct predict_image *image)
{
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct prediction *prediction = &image->predictions[i];
        printf("    %6.2f %%  ", (double)prediction->probability * 100);
        print_class(prediction->label, prediction->index);
    }
    if (!print_text(image))
        print_boxes(image);
    print_areas(image);
    const struct anomaly *anomaly = &image->answer.anomaly;
    if (anomaly->is_set)
        printf("    %6.2f %%  %s\n", (double)anomaly->score * 100,
               anomaly->is_anomalous ? "anomalous" : "normal");
    const struct depth *depth = &image->answer.depth;
    if (depth->values)
        printf("    a map of %u x %u points; --json or --annotate writes it\n", depth->width,
               depth->height);
    const struct embedding *vector = &image->answer.embedding;
    for (size_t i = 0; i < vector->count; i++)
        printf("%s%.9g", i ? " " : "    ", (double)vector->values[i]);
    if (vector->count)
        printf("\n");
}

void print_image(const char *path, const struct predict_image *image)
{
    if (image->status != STATUS_OK) {
        printf("%s\n    error: %s\n", path, image->error.message);
        return;
    }
    printf("%s  (%u x %u; %s, forward %.2f ms)\n", path, image->width, image->height,
           DEVICE_STRING(image->times.device), image->times.forward_ms);
    print_answer(image);
}
