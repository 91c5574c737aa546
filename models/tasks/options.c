/* Names tasks. Parses the texts of options of answers, and merges options by precedence. */
#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/tasks/tracker.h"

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

bool task_option_wants(const struct task_options *options, uint32_t index)
{
    for (size_t i = 0; i < options->class_count; i++)
        if (options->classes[i] == index)
            return true;
    return options->class_count == 0;
}

enum {
    OPTION_CONFIDENCE,
    OPTION_IOU,
    OPTION_MAX_DETECTIONS,
    OPTION_CLASSES,
    OPTION_AGNOSTIC,
    OPTION_NORMALIZE,
    OPTION_DIMENSIONS,
    OPTION_MASKS,
    OPTION_TRACK,
    OPTION_TOP_K, /* not a member of struct task_options */
};

#define PLACE(first, last)                                                                         \
    offsetof(struct task_options, first), offsetof(struct task_options, last) +                    \
                                              sizeof((struct task_options *)0)->last -             \
                                              offsetof(struct task_options, first)

#define KIND(name)  (1u << TASK_##name)
#define CLASS_BOXES (KIND(DETECTION) | KIND(POSE) | KIND(ORIENTED) | KIND(INSTANCES))
#define ALL_BOXES   (CLASS_BOXES | KIND(TEXT_BOXES) | KIND(MASKS))
#define ALL_MASKS   (KIND(INSTANCES) | KIND(SEGMENTATION) | KIND(ANOMALY) | KIND(MASKS))

static const struct {
    const char *name;
    unsigned kinds;  /* tasks that have the option, as bits */
    size_t at, size; /* offset and size of the option's members in struct task_options */
} task_options[] = {
    [OPTION_CONFIDENCE] = {"confidence", ALL_BOXES, PLACE(confidence, confidence)},
    [OPTION_IOU] = {"iou", CLASS_BOXES, PLACE(iou, iou)},
    [OPTION_MAX_DETECTIONS] = {"max_detections", ALL_BOXES, PLACE(max_detections, max_detections)},
    [OPTION_CLASSES] = {"classes", CLASS_BOXES | KIND(SEGMENTATION),
                        PLACE(class_count, class_names)},
    [OPTION_AGNOSTIC] = {"agnostic", CLASS_BOXES, PLACE(agnostic, agnostic)},
    [OPTION_NORMALIZE] = {"normalize", KIND(EMBEDDING), PLACE(normalize, normalize)},
    [OPTION_DIMENSIONS] = {"dimensions", KIND(EMBEDDING), PLACE(dimensions, dimensions)},
    [OPTION_MASKS] = {"masks", ALL_MASKS, PLACE(masks, masks)},
    [OPTION_TRACK] = {"track", CLASS_BOXES & ~KIND(ORIENTED), PLACE(track, track)},
    [OPTION_TOP_K] = {"top_k", KIND(CLASSIFICATION) | KIND(ZERO_SHOT), 0, 0},
};

bool task_has_boxes(enum task_kind kind)
{
    return ALL_BOXES >> kind & 1;
}

static size_t find_option(const char *name)
{
    size_t i = 0;
    while (i < OPTION_TOP_K && strcmp(name, task_options[i].name) != 0)
        i++;
    return i;
}

static bool is_asked(const struct task_options *asked, size_t option)
{
    const struct task_options none = TASK_OPTIONS_NONE;
    const size_t at = task_options[option].at, size = task_options[option].size;
    if (option == OPTION_CLASSES)
        return asked->class_count != 0 || asked->class_names;
    return memcmp((const char *)asked + at, (const char *)&none + at, size) != 0;
}

struct task_options task_options_merge(const struct task_options *first,
                                       const struct task_options *second)
{
    struct task_options merged = *first;
    for (size_t i = 0; i < COUNT_OF(task_options); i++)
        if (!is_asked(first, i))
            memcpy((char *)&merged + task_options[i].at, (const char *)second + task_options[i].at,
                   task_options[i].size);
    if (first->track)
        merged.confidence = TRACKER_LOW;
    return merged;
}

static bool has_option(const struct task *task, size_t option)
{
    /* `iou` and `agnostic` have no effect where the layout decides whether masks may overlap. */
    const bool drops_overlaps = option == OPTION_IOU || option == OPTION_AGNOSTIC;
    return task_options[option].kinds >> task->kind & 1 &&
           !(drops_overlaps && task_layout_is_masks(task->layout));
}

bool task_has_option(const struct task *task, const char *name)
{
    const size_t option = find_option(name);
    return option < OPTION_TOP_K && has_option(task, option);
}

enum status task_options_check(const struct task *task, const struct task_options *asked,
                               bool asks_top_k, struct error *err)
{
    const struct task_options none = TASK_OPTIONS_NONE;
    const char *stray = NULL;
    char names[160] = "";
    for (size_t i = 0; i < COUNT_OF(task_options); i++)
        if (has_option(task, i))
            text_append(names, sizeof names, ", ", "%s", task_options[i].name);
        else if (i == OPTION_TOP_K ? asks_top_k : is_asked(asked ? asked : &none, i))
            stray = task_options[i].name;
    if (!stray)
        return STATUS_OK;
    return error_set(err, STATUS_INVALID,
                     "%s has no effect on a model whose task is %s%s%s%s; leave it out", stray,
                     task_name(task->kind), names[0] ? " (its parameters: " : "", names,
                     names[0] ? ")" : "");
}

static enum status option_share(const char *name, const char *text, float *ret, struct error *err)
{
    char *end = NULL;
    const bool is_plain = *text && !text[strspn(text, "0123456789.")];
    const double value = is_plain ? strtod(text, &end) : -1;
    if (!end || *end || !(value >= 0 && value <= 1))
        return error_set(err, STATUS_INVALID, "%s is '%.40s'; it must be a number from 0 to 1",
                         name, text);
    *ret = (float)value;
    return STATUS_OK;
}

static enum status option_flag(const char *name, const char *text, int *ret, struct error *err)
{
    const bool is_true = !strcmp(text, "true") || !strcmp(text, "1");
    if (!is_true && strcmp(text, "false") != 0 && strcmp(text, "0") != 0)
        return error_set(err, STATUS_INVALID, "%s is '%.40s'; it must be true or false", name,
                         text);
    *ret = is_true;
    return STATUS_OK;
}

/* Reads an integer up to `most` at *text and moves *text past it; -1: there is no such integer. */
static long take_whole(const char **text, long most)
{
    char *end = NULL;
    errno = 0;
    const long value = **text >= '0' && **text <= '9' ? strtol(*text, &end, 10) : -1;
    if (!end || errno || value > most)
        return -1;
    *text = end;
    return value;
}

static enum status option_classes(const char *text, struct task_options *options, struct error *err)
{
    options->class_count = 0;
    options->class_names = NULL;
    for (const char *at = text; options->class_count < TASK_MAX_CLASSES; at++) {
        const size_t length = strcspn(at, ",");
        const char *end = at;
        const long index = take_whole(&end, 1000000000);
        const bool is_number = strspn(at, "0123456789") == length;
        if (length == 0 || (is_number && index < 0))
            break;
        if (!is_number)
            options->class_names = text;
        options->classes[options->class_count++] = is_number ? (uint32_t)index : 0;
        at += length;
        if (*at)
            continue;
        if (options->class_names)
            options->class_count = 0;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "classes is '%.40s'; it must be class numbers or labels separated by "
                     "commas, at most %d: classes=0,2",
                     text, TASK_MAX_CLASSES);
}

enum status task_option_whole(const char *name, const char *text, int most, int *ret,
                              struct error *err)
{
    const char *at = text;
    const long value = take_whole(&at, most);
    if (value < 1 || *at)
        return error_set(err, STATUS_INVALID, "%s is '%.40s'; it must be a number from 1 to %d",
                         name, text, most);
    *ret = (int)value;
    return STATUS_OK;
}

static enum status option_masks(const char *text, struct task_options *options, struct error *err)
{
    static const char *const forms[] = {
        [MASK_FORM_RLE] = "rle", [MASK_FORM_POLYGON] = "polygon", [MASK_FORM_PNG] = "png"};
    for (size_t i = MASK_FORM_RLE; i < COUNT_OF(forms); i++) {
        if (strcmp(text, forms[i]) != 0)
            continue;
        options->masks = (enum mask_form)i;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID, "masks is '%.40s'; it must be rle, polygon or png", text);
}

static enum status option_track(const char *text, const char **ret, struct error *err)
{
    size_t length = 0;
    while (isalnum((unsigned char)text[length]) || (text[length] && strchr("-._:/@", text[length])))
        length++;
    *ret = text;
    return length && length <= TASK_TRACK_MAX && !text[length]
               ? STATUS_OK
               : error_set(err, STATUS_INVALID,
                           "track is '%.40s'; it must be a camera's name of 1 to %d letters, "
                           "digits and -._:/@",
                           text, TASK_TRACK_MAX);
}

enum status task_option_set(struct task_options *options, const char *name, const char *text,
                            struct error *err)
{
    if (!strcmp(name, "confidence"))
        return option_share(name, text, &options->confidence, err);
    if (!strcmp(name, "iou"))
        return option_share(name, text, &options->iou, err);
    if (!strcmp(name, "agnostic"))
        return option_flag(name, text, &options->agnostic, err);
    if (!strcmp(name, "normalize"))
        return option_flag(name, text, &options->normalize, err);
    if (!strcmp(name, "masks"))
        return option_masks(text, options, err);
    if (!strcmp(name, "track"))
        return option_track(text, &options->track, err);
    if (!strcmp(name, "classes"))
        return option_classes(text, options, err);
    if (!strcmp(name, "dimensions"))
        return task_option_whole(name, text, TASK_MAX_DIMENSIONS, &options->dimensions, err);
    return task_option_whole(name, text, TASK_MAX_DETECTIONS, &options->max_detections, err);
}
