/* Determines a model's task: from lensd.json, else from exporters' data (metadata, config.json,
 * names of outputs), else from shapes. If all fail, the task is TASK_UNKNOWN, with a reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "models/tasks/answer.h"
#include "models/tasks/decoders.h"

static void __attribute__((format(printf, 3, 4)))
decided(struct task *task, enum task_kind kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(task->evidence, sizeof task->evidence, format, args);
    va_end(args);
    task->kind = kind;
}

/* ---- outputs ---- */

/* Returns the index of the output with this name, or SIZE_MAX. TensorFlow may append ":0". */
static size_t output_named(const struct task_facts *facts, const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < facts->output_count; i++) {
        const char *own = facts->outputs[i].name;
        if (!strncmp(own, name, length) && (!own[length] || own[length] == ':'))
            return i;
    }
    return SIZE_MAX;
}

/* Returns dimension `d`, counted after the batch; -1 if unknown. */
static int64_t dim_of(const struct session_tensor *output, int d)
{
    return output->shape.rank > d + 1 ? output->shape.dims[d + 1] : -1;
}

/* Uses `count` successive outputs. */
static void take_outputs(size_t first, size_t count, struct task *task)
{
    for (size_t i = 0; i < count; i++)
        task->outputs[i] = first + i;
    task->output_count = count;
}

/* Uses this output alone. */
static void take_output(size_t output, struct task *task)
{
    take_outputs(output, 1, task);
}

static bool is_floats(const struct session_tensor *output, int rank)
{
    return dtype_is_float(output->dtype) && output->shape.rank == rank;
}

/* Uses the outputs with these names, in this order. Returns false if one is missing. */
static bool take_named(const struct task_facts *facts, const char *const *names, size_t count,
                       struct task *task)
{
    size_t found[TASK_MAX_OUTPUTS];
    for (size_t i = 0; i < count; i++) {
        found[i] = output_named(facts, names[i]);
        if (found[i] == SIZE_MAX)
            return false;
    }
    memcpy(task->outputs, found, count * sizeof *found);
    task->output_count = count;
    return true;
}

/* Returns the first output with scores for each class and each point of a map; SIZE_MAX: none. */
static size_t find_map(const struct task_facts *facts)
{
    for (size_t i = 0; i < facts->output_count; i++) {
        const struct session_tensor *output = &facts->outputs[i];
        if (is_floats(output, 4) && dim_of(output, 1) != 1 && dim_of(output, 2) != 1)
            return i;
    }
    return SIZE_MAX;
}

/* ---- detectors with one output ---- */

/* Returns the number of cells of three grids, with cells of 8, 16 and 32 pixels. */
static int64_t grid_cells(const struct task_facts *facts)
{
    int64_t cells = 0;
    for (int stride = 8; stride <= 32; stride *= 2)
        cells += (int64_t)(facts->width / stride) * (facts->height / stride);
    return cells;
}

/* Returns the layout of an output [rows, columns] by its shape; LAYOUT_NONE: no layout fits.
 * `classes` is the number of classes; 0: unknown. */
static enum task_layout layout_by_shape(const struct task_facts *facts, int64_t rows,
                                        int64_t columns, int64_t classes)
{
    const int64_t cells = grid_cells(facts);
    if (columns == cells && rows > 4 && (!classes || rows == 4 + classes))
        return LAYOUT_YOLOV8;
    if (rows == 3 * cells && columns > 5 && (!classes || columns == 5 + classes))
        return LAYOUT_YOLOV5;
    if (rows == cells && columns > 5 && (!classes || columns == 5 + classes))
        return facts->has_exp ? LAYOUT_YOLOX_PIXELS : LAYOUT_YOLOX;
    if (columns == 6 && rows > 0 && rows <= TASK_MAX_DETECTIONS && (!classes || classes != 2))
        return LAYOUT_YOLO_FINAL;
    if (classes && columns == 4 + classes && rows > 0 && rows <= TASK_MAX_DETECTIONS)
        return LAYOUT_RTDETR;
    return LAYOUT_NONE;
}

/* Checks whether an output that fits no layout would fit with another number of labels. If so,
 * records that as the reason. `extras`: a candidate's numbers besides its box and scores. */
static bool blame_labels(const struct task_facts *facts, int64_t rows, int64_t columns,
                         int64_t extras, struct task *task)
{
    const enum task_layout layout = layout_by_shape(facts, rows, columns, 0);
    const int64_t classes = (layout == LAYOUT_YOLOV8 ? rows - 4 : columns - 5) - extras;
    if (!facts->label_count || layout == LAYOUT_NONE || layout == LAYOUT_YOLO_FINAL || classes < 1)
        return false;
    decided(task, TASK_UNKNOWN,
            "output '%.40s' has the shape %s, as %s has it for %lld class%s, but there are %zu "
            "labels: give one for each class, or write \"task\" into lensd.json",
            facts->outputs[0].name, SHAPE_STRING(&facts->outputs[0].shape),
            task_layouts[layout].name, (long long)classes, classes == 1 ? "" : "es",
            facts->label_count);
    return true;
}

/* Uses the output with YOLO's prototypes of masks as the task's second output. */
static bool take_prototypes(const struct task_facts *facts, struct task *task)
{
    const size_t at = find_map(facts);
    const int64_t count = at != SIZE_MAX && at > 0 ? dim_of(&facts->outputs[at], 0) : 0;
    if (count < 1 || count > TASK_MAX_POINTS)
        return false;
    task->prototypes = (size_t)count;
    task->outputs[1] = at;
    task->output_count = 2;
    return true;
}

static void detect_by_shape(const struct task_facts *facts, struct task *task)
{
    const struct session_tensor *output = &facts->outputs[0];
    if (facts->output_count < 1 || facts->output_count > 2 || !is_floats(output, 3) ||
        facts->class_output == 0) /* output 0 has class scores, such as [batch, 1, 6] */
        return;
    struct task found = *task;
    const bool has_masks = facts->output_count == 2;
    if (has_masks && !take_prototypes(facts, &found))
        return;
    /* Only YOLOv8's layout has masks here. Its rows include the factors of the masks. */
    const int64_t rows = dim_of(output, 0) - (int64_t)found.prototypes;
    const enum task_layout layout =
        layout_by_shape(facts, rows, dim_of(output, 1), (int64_t)facts->label_count);
    if (layout == LAYOUT_NONE)
        (void)blame_labels(facts, rows, dim_of(output, 1), 0, task);
    if (layout == LAYOUT_NONE || (has_masks && layout != LAYOUT_YOLOV8))
        return;
    *task = found;
    task->layout = layout;
    task->output_count = has_masks ? 2 : 1;
    decided(task, has_masks ? TASK_INSTANCES : TASK_DETECTION,
            "output '%.60s' has the shape %s, as %s has it", output->name,
            SHAPE_STRING(&output->shape), task_layouts[layout].name);
}

/* ---- Ultralytics ---- */

/* `extras` counts the numbers of a candidate that are neither its box nor scores. */
static enum task_layout ultralytics_layout(const struct task_facts *facts, size_t extras)
{
    const struct session_tensor *output = &facts->outputs[0];
    const bool is_rtdetr = facts->description && (strcasestr(facts->description, "rtdetr") ||
                                                  strcasestr(facts->description, "rt-detr"));
    if (is_rtdetr)
        return dim_of(output, 1) == 6 && facts->label_count != 2 ? LAYOUT_RTDETR_FINAL
                                                                 : LAYOUT_RTDETR;
    if (facts->is_final)
        return LAYOUT_YOLO_FINAL;
    return layout_by_shape(facts, dim_of(output, 0), dim_of(output, 1),
                           (int64_t)(facts->label_count + extras));
}

/* Reads "[17, 3]": the number of key points, and of numbers in each. Default: COCO's numbers. */
static bool read_points(const char *text, struct task *task)
{
    char *end = NULL;
    task->point_count = 17;
    task->point_numbers = 3;
    if (!text)
        return true;
    task->point_count = strtoul(text + strspn(text, "[( "), &end, 10);
    task->point_numbers = strtoul(end + strspn(end, ", "), NULL, 10);
    return task->point_count > 0 && task->point_count <= TASK_MAX_POINTS &&
           (task->point_numbers == 2 || task->point_numbers == 3);
}

static void decide_by_metadata(const struct task_facts *facts, struct task *task)
{
    const char *name = facts->metadata_task;
    if (!strcmp(name, "classify")) {
        if (facts->class_output != SIZE_MAX)
            decided(task, TASK_CLASSIFICATION, "task 'classify' in the file's metadata");
        else
            decided(task, TASK_UNKNOWN, "the file's metadata names the task 'classify', but %s",
                    facts->class_note[0] ? facts->class_note : "no output has one score per class");
        return;
    }
    const enum task_kind kind = !strcmp(name, "detect")    ? TASK_DETECTION
                                : !strcmp(name, "pose")    ? TASK_POSE
                                : !strcmp(name, "obb")     ? TASK_ORIENTED
                                : !strcmp(name, "segment") ? TASK_INSTANCES
                                                           : TASK_UNKNOWN;
    if (kind == TASK_UNKNOWN || facts->output_count < 1) {
        decided(task, TASK_UNKNOWN,
                "the file's metadata names the task '%.40s', which lensd does not support", name);
        return;
    }
    if (kind == TASK_POSE && !read_points(facts->point_shape, task)) {
        decided(task, TASK_UNKNOWN, "kpt_shape in the file's metadata is '%.40s', not [n, 2 or 3]",
                facts->point_shape);
        return;
    }
    task->kind = kind;
    task->output_count = 1;
    if (kind == TASK_INSTANCES && !take_prototypes(facts, task)) {
        decided(task, TASK_UNKNOWN,
                "the file's metadata names the task 'segment', but no second output has the shape "
                "[batch, prototypes, height, width]");
        return;
    }
    const struct session_tensor *output = &facts->outputs[0];
    const size_t extras = task_extras(task);
    task->layout = ultralytics_layout(facts, extras);
    if (task->layout != LAYOUT_NONE)
        decided(task, kind, "task '%.40s' in the file's metadata, %s", name,
                task_layouts[task->layout].name);
    else if (!blame_labels(facts, dim_of(output, 0), dim_of(output, 1), (int64_t)extras, task))
        decided(task, TASK_UNKNOWN,
                "the file's metadata names the task '%.40s', but output '%.40s' has the shape %s; "
                "write \"layout\" into lensd.json",
                name, output->name, SHAPE_STRING(&output->shape));
}

/* ---- detectors with several outputs ---- */

/* Hugging Face's detectors by architecture. `top`: how many pairs of query and class become boxes;
 * 0: at most as many as there are queries. */
static const struct {
    const char *architecture;
    enum task_layout layout;
    int top;
} detr_architectures[] = {
    {"DetrForObjectDetection", LAYOUT_DETR, 0},
    {"TableTransformerForObjectDetection", LAYOUT_DETR, 0},
    {"YolosForObjectDetection", LAYOUT_DETR, 0},
    {"ConditionalDetrForObjectDetection", LAYOUT_DETR_SIGMOID, 100},
    {"DeformableDetrForObjectDetection", LAYOUT_DETR_SIGMOID, 100},
    {"DetaForObjectDetection", LAYOUT_DETR_SIGMOID, 100},
    {"RTDetrForObjectDetection", LAYOUT_DETR_SIGMOID, 0},
    {"RTDetrV2ForObjectDetection", LAYOUT_DETR_SIGMOID, 0},
    {"DFineForObjectDetection", LAYOUT_DETR_SIGMOID, 0},
    {"DeimForObjectDetection", LAYOUT_DETR_SIGMOID, 0},
    {"RfDetrForObjectDetection", LAYOUT_RFDETR, 0},
    {"RfDetrForInstanceSegmentation", LAYOUT_RFDETR, 0},
};

/* A detector with a third output, the queries' masks, finds instances. */
static enum task_kind kind_of_queries(const struct task *task)
{
    return task->output_count > 2 ? TASK_INSTANCES : TASK_DETECTION;
}

/* Decides the task of Hugging Face's segmenters, whose boxes surround the masks. */
static void decide_masks(const struct task_facts *facts, enum task_layout layout, struct task *task)
{
    const char *architecture = facts->architecture;
    task->layout = layout;
    task->mask_side = architecture && strstr(architecture, "Mask2Former") ? 384 : 0;
    if (architecture && strstr(architecture, "For"))
        decided(task, TASK_INSTANCES, "%.80s in config.json", architecture);
    else
        decided(task, TASK_INSTANCES, "outputs '%.60s' and '%.60s'",
                facts->outputs[task->outputs[0]].name, facts->outputs[task->outputs[1]].name);
}

/* Recognises RF-DETR's own export. Its "dets" have 4 numbers per query, MMDetection's have 5. */
static bool take_rfdetr(const struct task_facts *facts, struct task *task)
{
    static const char *const names[] = {"labels", "dets", "masks"};
    if (!take_named(facts, names, 3, task) && !take_named(facts, names, 2, task))
        return false;
    return dim_of(&facts->outputs[task->outputs[1]], 1) == 4 &&
           facts->outputs[task->outputs[0]].shape.rank == 3;
}

static void decide_detr(const struct task_facts *facts, struct task *task)
{
    const char *architecture = facts->architecture ? facts->architecture : "";
    for (size_t i = 0; i < COUNT_OF(detr_architectures); i++) {
        if (strcmp(architecture, detr_architectures[i].architecture) != 0)
            continue;
        task->layout = detr_architectures[i].layout;
        task->options.max_detections = detr_architectures[i].top;
        task->exceeds_queries = detr_architectures[i].top > 0;
        decided(task, kind_of_queries(task), "%s in config.json", architecture);
        return;
    }
    const int64_t classes = dim_of(&facts->outputs[task->outputs[0]], 1);
    const int64_t labels = (int64_t)facts->label_count;
    if (facts->words != WORDS_NONE) {
        task->layout = facts->words == WORDS_VECTORS ? LAYOUT_OWL : LAYOUT_GROUNDING;
        decided(task, TASK_DETECTION,
                "outputs 'logits' and 'pred_boxes', and words beside a photo");
    } else if (labels && (classes == labels || classes == labels + 1)) {
        task->layout = classes == labels ? LAYOUT_DETR_SIGMOID : LAYOUT_DETR;
        decided(task, TASK_DETECTION,
                "outputs 'logits' and 'pred_boxes', with %lld logits for %lld labels",
                (long long)classes, (long long)labels);
    } else {
        decided(task, TASK_UNKNOWN,
                "it has the outputs 'logits' and 'pred_boxes', but neither config.json nor its "
                "labels say whether scores are a softmax or a sigmoid; write {\"layout\": "
                "\"detr\"} or {\"layout\": \"detr-sigmoid\"} into lensd.json");
    }
}

/* Recognises torchvision's detectors, whose output names are arbitrary: boxes [n, 4], a list of
 * integers, a list of floats, and perhaps masks [n, 1, height, width]. n depends on the photo. A
 * classifier of 4 classes may also output its best class and score, but with one row per photo. */
static bool take_lists(const struct task_facts *facts, struct task *task)
{
    enum { BOXES, LABELS, SCORES, MASKS, LISTS };
    size_t found[LISTS] = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX};
    if (facts->output_count != 3 && facts->output_count != 4)
        return false;
    for (size_t i = 0; i < facts->output_count; i++) {
        const struct session_tensor *output = &facts->outputs[i];
        const int64_t *dims = output->shape.dims;
        if (is_floats(output, 2) && dims[0] == DIM_UNKNOWN && dims[1] == 4)
            found[BOXES] = i;
        else if (output->dtype == DTYPE_I64 && output->shape.rank == 1)
            found[LABELS] = i;
        else if (is_floats(output, 1))
            found[SCORES] = i;
        else if (is_floats(output, 4) && dims[0] == DIM_UNKNOWN && dims[1] == 1)
            found[MASKS] = i;
    }
    for (size_t i = 0; i < facts->output_count; i++)
        if (found[i] == SIZE_MAX)
            return false;
    memcpy(task->outputs, found, sizeof found);
    task->output_count = facts->output_count;
    return true;
}

/* Recognises InsightFace's detectors, whose output names are arbitrary: nine outputs [batch,
 * anchors, columns], or without a batch, in any order. */
static bool take_scrfd(const struct task_facts *facts, struct task *task)
{
    static const int64_t columns[] = {1, 4, 2 * FACE_POINTS};
    const int rank = facts->output_count == 9 ? facts->outputs[0].shape.rank : 0;
    if (rank != 2 && rank != 3)
        return false;
    for (size_t place = 0; place < 9; place++) {
        const int stride = 8 << place % 3;
        const int64_t anchors =
            2 * (int64_t)(facts->width / stride) * (int64_t)(facts->height / stride);
        size_t at = 0;
        for (; at < 9; at++) {
            const struct session_tensor *output = &facts->outputs[at];
            const int64_t *dims = output->shape.dims;
            if (is_floats(output, rank) && dims[rank - 1] == columns[place / 3] &&
                dims[rank - 2] == anchors)
                break;
        }
        if (at == 9)
            return false;
        task->outputs[place] = at;
    }
    task->output_count = 9;
    task->layout = rank == 3 ? LAYOUT_SCRFD : LAYOUT_SCRFD_FLAT;
    return true;
}

/* Recognises SuperGradients' YOLO-NAS: an output with a list of boxes by its name, or two outputs
 * with boxes and scores by their shapes. */
static bool take_yolo_nas(const struct task_facts *facts, struct task *task)
{
    const struct session_tensor *boxes = facts->outputs, *scores = boxes + 1;
    const int64_t classes = facts->output_count == 2 ? dim_of(scores, 1) : 0;
    const int64_t labels = (int64_t)facts->label_count, cells = grid_cells(facts);
    if (facts->output_count == 1 && text_ends(boxes->name, "flat_predictions") &&
        dim_of(boxes, 0) == 7)
        task->layout = LAYOUT_YOLO_NAS_FLAT;
    else if (classes > 0 && is_floats(boxes, 3) && is_floats(scores, 3) &&
             dim_of(boxes, 0) == cells && dim_of(scores, 0) == cells && dim_of(boxes, 1) == 4 &&
             (!labels || classes == labels))
        task->layout = LAYOUT_YOLO_NAS;
    else
        return false;
    take_outputs(0, facts->output_count, task);
    return true;
}

/* Recognises PaddleDetection's outputs: rows [n, 6] or [batch, n, 6], and their count per image. */
static bool take_paddle(const struct task_facts *facts, struct task *task)
{
    const struct session_tensor *rows = facts->outputs, *count = rows + 1;
    const int rank = facts->has_scales && facts->output_count == 2 ? rows->shape.rank : 0;
    if ((rank != 2 && rank != 3) || !dtype_is_float(rows->dtype) ||
        rows->shape.dims[rank - 1] != 6 ||
        (count->dtype != DTYPE_I32 && count->dtype != DTYPE_I64) || count->shape.rank != 1 ||
        (count->shape.dims[0] != (rank == 3 ? rows->shape.dims[0] : 1) &&
         count->shape.dims[0] != DIM_UNKNOWN))
        return false;
    task->layout = rank == 3 ? LAYOUT_PADDLE : LAYOUT_PADDLE_FLAT;
    take_outputs(0, 2, task);
    return true;
}

/* Recognises anomalib's exports since version 2. */
static bool take_anomaly(const struct task_facts *facts, struct task *task)
{
    static const char *const names[] = {[ANOMALY_SCORE] = "pred_score",
                                        [ANOMALY_LABEL] = "pred_label",
                                        [ANOMALY_MAP] = "anomaly_map",
                                        [ANOMALY_MASK] = "pred_mask"};
    if (output_named(facts, names[ANOMALY_SCORE]) == SIZE_MAX)
        return false;
    for (size_t i = 0; i < ANOMALY_PARTS; i++) {
        const size_t at = output_named(facts, names[i]);
        if (at == SIZE_MAX)
            continue;
        task->outputs[task->output_count++] = at;
        task->anomaly_parts |= 1u << i;
    }
    return true;
}

static void set_faces(struct task *task)
{
    task->point_count = FACE_POINTS;
    task->point_numbers = 2;
}

static void detect_by_outputs(const struct task_facts *facts, struct task *task)
{
    static const char *const detr[] = {"logits", "pred_boxes", "pred_masks"};
    static const char *const panoptic[] = {"logits", "pred_masks"};
    static const char *const maskformer[] = {"class_queries_logits", "masks_queries_logits"};
    static const char *const yunet[] = {"cls_8",   "cls_16", "cls_32", "obj_8",
                                        "obj_16",  "obj_32", "bbox_8", "bbox_16",
                                        "bbox_32", "kps_8",  "kps_16", "kps_32"};
    const bool is_rfdetr = facts->architecture && !strncmp(facts->architecture, "RfDetr", 6);
    static const char *const torchvision[] = {"boxes", "labels", "scores", "masks"};
    static const char *const tensorflow[] = {"detection_boxes", "detection_classes",
                                             "detection_scores", "num_detections"};
    if (is_rfdetr && take_named(facts, detr, 3, task)) {
        decide_detr(facts, task);
    } else if (take_named(facts, panoptic, 2, task)) {
        decide_masks(facts, LAYOUT_PANOPTIC, task);
    } else if (take_named(facts, detr, 2, task)) {
        decide_detr(facts, task);
    } else if (take_named(facts, maskformer, 2, task)) {
        decide_masks(facts, LAYOUT_MASKFORMER, task);
    } else if (take_rfdetr(facts, task)) {
        task->layout = LAYOUT_RFDETR;
        decided(task, kind_of_queries(task), "outputs 'dets' and 'labels', as RF-DETR's");
    } else if (take_named(facts, yunet, COUNT_OF(yunet), task)) {
        task->layout = LAYOUT_YUNET;
        set_faces(task);
        decided(task, TASK_POSE, "outputs 'cls_8' to 'kps_32', as YuNet's");
    } else if (take_scrfd(facts, task)) {
        set_faces(task);
        decided(task, TASK_POSE, "nine outputs of scores, boxes and points, as SCRFD's");
    } else if (take_anomaly(facts, task)) {
        decided(task, TASK_ANOMALY, "output 'pred_score', as anomalib's");
    } else if (take_yolo_nas(facts, task)) {
        decided(task, TASK_DETECTION, "output '%.60s'%s, as YOLO-NAS has it",
                facts->outputs[0].name,
                task->output_count > 1 ? " of boxes, and one of scores" : "");
    } else if (take_paddle(facts, task)) {
        decided(task, TASK_DETECTION,
                "outputs of boxes with 6 numbers each and of their number, as PaddleDetection's");
    } else if (take_named(facts, tensorflow, 4, task) || take_named(facts, tensorflow, 3, task)) {
        task->layout = LAYOUT_TENSORFLOW;
        decided(task, TASK_DETECTION, "output 'detection_boxes' and its scores and classes");
    } else if (facts->output_count == 3 && take_named(facts, torchvision, 3, task) &&
               facts->outputs[task->outputs[0]].shape.rank == 3) {
        task->layout = LAYOUT_RTDETR_LISTS;
        decided(task, TASK_DETECTION,
                "outputs of boxes, labels and scores, as RT-DETR's own code exports them");
    } else if ((facts->output_count == 4 && take_named(facts, torchvision, 4, task)) ||
               (facts->output_count == 3 && take_named(facts, torchvision, 3, task)) ||
               take_lists(facts, task)) {
        const bool has_masks = task->output_count == 4;
        task->layout = LAYOUT_TORCHVISION;
        decided(task, has_masks ? TASK_INSTANCES : TASK_DETECTION,
                "outputs of boxes, labels%s and scores, as torchvision has them",
                has_masks ? ", masks" : "");
    } else {
        task->output_count = 0;
    }
}

/* ---- embeddings ---- */

/* Returns an output with the usual name of an embedding; SIZE_MAX: none. */
static size_t named_vector(const struct task_facts *facts)
{
    static const char *const names[] = {"image_embeds",    "image_embeddings",   "text_embeds",
                                        "text_embeddings", "sentence_embedding", "embeddings",
                                        "embedding",       "pooler_output",      "pooled_output",
                                        "features",        "last_hidden_state"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const size_t at = output_named(facts, names[i]);
        if (at != SIZE_MAX && dtype_is_float(facts->outputs[at].dtype))
            return at;
    }
    return SIZE_MAX;
}

/* Returns the output that is most probably an embedding; SIZE_MAX: none. */
static size_t find_vector(const struct task_facts *facts)
{
    const size_t named = named_vector(facts);
    return named != SIZE_MAX                 ? named
           : facts->class_output != SIZE_MAX ? facts->class_output
           : facts->output_count             ? 0
                                             : SIZE_MAX;
}

/* Decides the task of a text model or of one half of a photo-text model, if its output is a vector
 * per row. */
static void decide_half(const struct task_facts *facts, struct task *task)
{
    const size_t at = facts->takes_texts || facts->is_half ? find_vector(facts) : SIZE_MAX;
    if (at == SIZE_MAX || facts->outputs[at].shape.rank != 2)
        return;
    take_output(at, task);
    decided(task, TASK_EMBEDDING, "it takes %s, output '%.60s'",
            facts->takes_texts ? "texts" : "photos", facts->outputs[at].name);
}

/* Decides the task of SAM's encoder and of its decoder. */
static void decide_prompted(const struct task_facts *facts, struct task *task)
{
    if (facts->is_encoder) {
        take_output(0, task);
        decided(task, TASK_MASKS, "its other half, the decoder, makes masks of points and a box");
    }
    if (!facts->makes_masks)
        return;
    task->layout = LAYOUT_SAM;
    task->mask_side = facts->mask_side;
    take_outputs(0, 2, task);
    decided(task, TASK_MASKS, "inputs for points, outputs '%.60s' and '%.60s'",
            facts->outputs[0].name, facts->outputs[1].name);
}

/* Refuses vectors of texts that cannot be compared with the output. */
static enum status check_text_size(const struct task_facts *facts,
                                   const struct session_tensor *output, struct error *err)
{
    const int64_t numbers = output->shape.rank == 2 ? output->shape.dims[1] : -1;
    if (numbers <= 0 || (uint64_t)numbers == facts->text_size)
        return STATUS_OK;
    return error_set(err, STATUS_MODEL,
                     "the vectors in zero_shot.json have %zu numbers, but output '%s' has %lld; "
                     "make them with the text half of this model",
                     facts->text_size, output->name, (long long)numbers);
}

static void decide_embedding(const struct task_facts *facts, struct task *task)
{
    const char *architecture = facts->architecture;
    const size_t named = named_vector(facts);
    const bool has_score_per_label =
        facts->class_output != SIZE_MAX && facts->label_count > 0 &&
        dim_of(&facts->outputs[facts->class_output], 0) == (int64_t)facts->label_count;
    if ((named == SIZE_MAX && facts->class_output == SIZE_MAX) ||
        (!facts->text_size && has_score_per_label) || (architecture && strstr(architecture, "For")))
        return;
    take_output(find_vector(facts), task);
    const char *name = facts->outputs[task->outputs[0]].name;
    if (facts->text_size)
        decided(task, TASK_ZERO_SHOT, "vectors of texts in zero_shot.json, output '%.60s'", name);
    else if (architecture &&
             (text_ends(architecture, "Model") || text_ends(architecture, "ModelWithProjection")))
        decided(task, TASK_EMBEDDING, "%.80s in config.json, output '%.60s'", architecture, name);
    else if (facts->is_headless)
        decided(task, TASK_EMBEDDING, "\"num_classes\": 0 in config.json, output '%.60s'", name);
    else if (named != SIZE_MAX && facts->label_count == 0 &&
             (facts->class_output == SIZE_MAX || facts->class_output == named))
        decided(task, TASK_EMBEDDING, "output '%.60s', by its name", name);
    else
        task->output_count = 0;
}

/* ---- depth ---- */

/* Returns the first output with one map: [batch, height, width] or [batch, 1, height, width]. */
static size_t find_depth(const struct task_facts *facts)
{
    for (size_t i = 0; i < facts->output_count; i++) {
        const struct session_tensor *output = &facts->outputs[i];
        if (is_floats(output, 3) || (is_floats(output, 4) && dim_of(output, 0) == 1))
            return i;
    }
    return SIZE_MAX;
}

static void decide_depth(const struct task_facts *facts, struct task *task)
{
    const char *architecture = facts->architecture;
    const size_t at = find_depth(facts);
    if (at == SIZE_MAX)
        return;
    const char *name = facts->outputs[at].name;
    if (architecture && text_ends(architecture, "ForDepthEstimation"))
        decided(task, TASK_DEPTH, "%.80s in config.json", architecture);
    else if (!strcmp(name, "predicted_depth") || !strcmp(name, "depth"))
        decided(task, TASK_DEPTH, "output '%.60s', by its name", name);
    else
        return;
    take_output(at, task);
}

/* ---- text ---- */

/* Finds the output [batch, positions, classes], whose classes are a blank, the characters and
 * perhaps a space; SIZE_MAX: none. */
static size_t find_text(const struct task_facts *facts)
{
    const int64_t named = (int64_t)facts->label_count;
    for (size_t i = 0; i < facts->output_count; i++) {
        const int64_t classes = dim_of(&facts->outputs[i], 1);
        if (is_floats(&facts->outputs[i], 3) && (classes == 1 + named || classes == 2 + named))
            return i;
    }
    return SIZE_MAX;
}

static void decide_text(const struct task_facts *facts, struct task *task)
{
    const char *architecture = facts->architecture ? facts->architecture : "";
    const size_t map = find_depth(facts);
    const bool is_detector =
        !strncmp(architecture, "PPOCR", 5) && text_ends(architecture, "DetForObjectDetection");
    if (facts->are_characters) {
        task->outputs[0] = find_text(facts);
        task->output_count = task->outputs[0] != SIZE_MAX;
        if (task->output_count)
            decided(task, TASK_TEXT, "a list of %zu characters, output '%.60s'", facts->label_count,
                    facts->outputs[task->outputs[0]].name);
        else
            decided(task, TASK_UNKNOWN,
                    "the model's list has %zu characters, but no output has the shape [batch, "
                    "positions, %zu or %zu]: a blank, the characters and perhaps a space",
                    facts->label_count, 1 + facts->label_count, 2 + facts->label_count);
    } else if (is_detector && map != SIZE_MAX) {
        take_output(map, task);
        task->layout = LAYOUT_TEXT;
        decided(task, TASK_TEXT_BOXES, "%.80s in config.json", architecture);
    }
}

/* ---- heatmaps ---- */

static bool take_heatmaps(const struct task_facts *facts, struct task *task)
{
    const size_t at = find_map(facts);
    const int64_t points = at != SIZE_MAX ? dim_of(&facts->outputs[at], 0) : 0;
    if (points < 1 || points > TASK_MAX_POINTS)
        return false;
    take_output(at, task);
    task->layout = LAYOUT_HEATMAPS;
    task->point_count = (size_t)points;
    task->point_numbers = 3;
    return true;
}

/* ---- segmentation ---- */

static void decide_segmentation(const struct task_facts *facts, struct task *task)
{
    const size_t at = find_map(facts);
    if (at == SIZE_MAX)
        return;
    const struct session_tensor *output = &facts->outputs[at];
    const char *architecture = facts->architecture;
    const bool is_pose = architecture && text_ends(architecture, "ForPoseEstimation");
    if (is_pose && !strncmp(architecture, "VitPose", 7) && take_heatmaps(facts, task)) {
        decided(task, TASK_POSE, "%.80s in config.json", architecture);
        return;
    }
    if (is_pose)
        decided(task, TASK_UNKNOWN,
                "%.80s in config.json: output '%.60s' is a heatmap for each point of one body, "
                "which lensd decodes only for VitPose; request tensors",
                architecture, output->name);
    else if (architecture && text_ends(architecture, "ForSemanticSegmentation"))
        decided(task, TASK_SEGMENTATION, "%.80s in config.json", architecture);
    else if (facts->label_count > 1 && dim_of(output, 0) == (int64_t)facts->label_count &&
             (facts->class_output == SIZE_MAX || facts->class_output == at))
        decided(task, TASK_SEGMENTATION, "output '%.60s' has a map for each of the %zu labels",
                output->name, facts->label_count);
    else if (facts->label_count > 1 && facts->class_output == SIZE_MAX) {
        decided(task, TASK_UNKNOWN,
                "output '%.60s' has %lld maps, but there are %zu labels: give one for each map, or "
                "write \"task\" into lensd.json",
                output->name, (long long)dim_of(output, 0), facts->label_count);
        return;
    } else {
        return;
    }
    take_output(at, task);
}

/* ---- classification ---- */

static void decide_classification(const struct task_facts *facts, struct task *task)
{
    if (facts->class_output == SIZE_MAX && facts->class_note[0])
        decided(task, TASK_UNKNOWN, "%s", facts->class_note);
    if (facts->class_output == SIZE_MAX)
        return;
    const struct session_tensor *output = &facts->outputs[facts->class_output];
    decided(task, TASK_CLASSIFICATION, "output '%.60s' has the shape %s: one score per class%s%s",
            output->name, SHAPE_STRING(&output->shape), facts->class_note,
            facts->label_count
                ? ""
                : "; if it is a vector, write {\"task\": \"embedding\"} into lensd.json");
}

static void decide_nothing(const struct task_facts *facts, struct task *task)
{
    if (facts->output_count == 0)
        decided(task, TASK_UNKNOWN, "it has no output");
    else
        decided(task, TASK_UNKNOWN,
                "output '%.60s' of an image has the shape %s, which is not one score per class, "
                "and nothing else shows its meaning; write \"task\" into lensd.json",
                facts->outputs[0].name, SHAPE_STRING(&facts->outputs[0].shape));
}

/* ---- lensd.json ---- */

static enum task_layout layout_named(const char *name)
{
    for (size_t i = 1; i < task_layout_count; i++)
        if (*name && !strcmp(task_layouts[i].name, name))
            return (enum task_layout)i;
    return LAYOUT_NONE;
}

static enum status configured_layout(const struct task_facts *facts, struct task *task,
                                     struct error *err)
{
    const enum task_layout layout = layout_named(facts->configured_layout);
    char names[300] = "";
    for (size_t i = 1; i < task_layout_count; i++)
        if (*task_layouts[i].name)
            text_append(names, sizeof names, ", ", "%s", task_layouts[i].name);
    if (layout == LAYOUT_NONE)
        return error_set(
            err, STATUS_MODEL,
            "lensd.json: \"layout\" is \"%.40s\", which lensd does not know; it may be %s",
            facts->configured_layout, names);
    if (facts->output_count < task_layouts[layout].outputs)
        return error_set(
            err, STATUS_MODEL, "lensd.json: the layout \"%s\" has %zu outputs, but the model %zu",
            task_layouts[layout].name, task_layouts[layout].outputs, facts->output_count);
    detect_by_outputs(facts, task); /* finds outputs by their names */
    const bool are_masks = task_layout_is_masks(task->layout) && task_layout_is_masks(layout);
    if ((task->layout != layout && !are_masks) || !task->output_count)
        take_outputs(0, task_layouts[layout].outputs, task);
    task->layout = layout;
    if (task_layout_is_faces(layout))
        set_faces(task);
    if (layout == LAYOUT_HEATMAPS && !take_heatmaps(facts, task))
        return error_set(err, STATUS_MODEL,
                         "lensd.json: the layout \"heatmaps\" needs an output of the shape [batch, "
                         "points, height, width] with at most %d points",
                         TASK_MAX_POINTS);
    decided(task,
            task_layout_is_faces(layout) || layout == LAYOUT_HEATMAPS ? TASK_POSE
            : layout == LAYOUT_TEXT                                   ? TASK_TEXT_BOXES
            : task_layout_is_masks(layout)                            ? TASK_INSTANCES
                                                                      : TASK_DETECTION,
            "layout '%s' in lensd.json", task_layouts[layout].name);
    return STATUS_OK;
}

/* Applies a task whose answers are boxes; the layout defines how they are found. */
static enum status apply_configured_boxes(const struct task_facts *facts, enum task_kind kind,
                                          struct task *task, struct error *err)
{
    const bool has_own_masks =
        (task->layout == LAYOUT_TORCHVISION && task->output_count == 4) ||
        ((task->layout == LAYOUT_RFDETR || task->layout == LAYOUT_DETR_SIGMOID) &&
         task->output_count == 3);
    if (task->kind != kind && !facts->configured_layout)
        return error_set(err, STATUS_MODEL,
                         "lensd.json: \"task\" is \"%s\", but the outputs do not show the layout "
                         "of the boxes; add \"layout\"",
                         task_name(kind));
    if (kind == TASK_INSTANCES && has_own_masks)
        task->kind = kind;
    if (kind != TASK_DETECTION && task->kind != kind && task->layout != LAYOUT_YOLOV8 &&
        task->layout != LAYOUT_YOLO_FINAL)
        return error_set(
            err, STATUS_MODEL,
            "lensd.json: the task \"%s\" needs the layout \"yolov8\" or \"yolo-final\"",
            task_name(kind));
    if (kind == TASK_INSTANCES && task->kind != kind && !take_prototypes(facts, task))
        return error_set(err, STATUS_MODEL,
                         "lensd.json: the task \"%s\" needs a second output of the shape [batch, "
                         "prototypes, height, width]",
                         task_name(kind));
    if (kind == TASK_POSE && !task_layout_is_faces(task->layout) &&
        task->layout != LAYOUT_HEATMAPS && !read_points(facts->point_shape, task))
        return error_set(err, STATUS_MODEL,
                         "kpt_shape in the file's metadata is '%.40s', not [n, 2 or 3]",
                         facts->point_shape);
    if (task->kind != kind)
        decided(task, kind, "task '%s' in lensd.json, %s", task_name(kind),
                task_layouts[task->layout].name);
    return STATUS_OK;
}

static enum task_kind kind_named(const char *name)
{
    for (size_t i = 0; i < TASK_KINDS; i++)
        if (!strcmp(task_name((enum task_kind)i), name))
            return (enum task_kind)i;
    return TASK_UNKNOWN;
}

static enum status apply_configured_task(const struct task_facts *facts, struct task *task,
                                         struct error *err)
{
    static const struct {
        enum task_kind kind;
        enum task_layout layout;
        size_t (*find)(const struct task_facts *facts);
        const char *shape; /* shape of the required output */
    } maps[] = {{TASK_EMBEDDING, LAYOUT_NONE, find_vector, "[batch, numbers]"},
                {TASK_SEGMENTATION, LAYOUT_NONE, find_map, "[batch, classes, height, width]"},
                {TASK_DEPTH, LAYOUT_NONE, find_depth, "[batch, height, width]"},
                {TASK_TEXT_BOXES, LAYOUT_TEXT, find_depth, "[batch, 1, height, width]"}};
    const char *name = facts->configured_task;
    const enum task_kind kind = kind_named(name);
    for (size_t i = 0; i < COUNT_OF(maps); i++) {
        if (maps[i].kind != kind)
            continue;
        const size_t at = maps[i].find(facts);
        if (at == SIZE_MAX)
            return error_set(
                err, STATUS_MODEL,
                "lensd.json: \"task\" is \"%s\", but no output of the model has the shape %s", name,
                maps[i].shape);
        take_output(at, task);
        task->layout = maps[i].layout ? maps[i].layout : task->layout;
        decided(task, kind, "task '%s' in lensd.json", name);
        return STATUS_OK;
    }
    if (!strcmp(name, "tensors")) {
        *task = (struct task){.options = TASK_OPTIONS_NONE, .is_tensors = true};
        decided(task, TASK_UNKNOWN, "lensd.json says that its outputs are tensors");
    } else if (kind == TASK_TEXT) {
        if (task->kind != TASK_TEXT)
            return error_set(
                err, STATUS_MODEL, "lensd.json: \"task\" is \"text-recognition\", but %s",
                facts->are_characters ? task->evidence
                                      : "the model has no list of characters; put characters.txt "
                                        "beside the .onnx file, with one character per line");
    } else if (kind == TASK_CLASSIFICATION) {
        if (facts->class_output == SIZE_MAX)
            return error_set(err, STATUS_MODEL,
                             "lensd.json: \"task\" is \"classification\", but no output of the "
                             "model has one score per class");
        decided(task, TASK_CLASSIFICATION, "task 'classification' in lensd.json");
    } else if (kind == TASK_ANOMALY && task->kind != kind) {
        return error_set(err, STATUS_MODEL,
                         "lensd.json: \"task\" is \"anomaly\", but the model has no output named "
                         "'pred_score', as anomalib's have since version 2");
    } else if (kind == TASK_ANOMALY) {
        decided(task, kind, "task 'anomaly' in lensd.json");
    } else if (task_has_boxes(kind)) {
        return apply_configured_boxes(facts, kind, task, err);
    } else {
        return error_set(err, STATUS_MODEL,
                         "lensd.json: \"task\" is \"%.40s\"; it may be \"classification\", "
                         "\"detection\", \"pose\", \"oriented-boxes\", "
                         "\"instance-segmentation\", \"embedding\", \"segmentation\", \"depth\", "
                         "\"text-detection\", \"text-recognition\", \"anomaly\" or \"tensors\"",
                         name);
    }
    return STATUS_OK;
}

/* Completes the options of lensd.json by the defaults of the layout's framework. */
static void complete_options(const struct task_facts *facts, struct task *task)
{
    const struct layout_entry *entry = &task_layouts[task->layout];
    struct task_options own = {.confidence = entry->confidence,
                               .iou = entry->iou,
                               .max_detections = entry->max_detections,
                               .masks = MASK_FORM_RLE};
    if (task->options.max_detections)
        own.max_detections = task->options.max_detections;
    task->options = task_options_merge(&facts->options, &own);
}

/* Refuses models whose answers would differ from their framework's. lensd.json overrides this. */
static void refuse_inexact(const struct task_facts *facts, struct task *task)
{
    static const struct {
        const char *architecture, *words;
    } inexact[] = {
        {"EomtForUniversalSegmentation",
         "Transformers computes its scores from masks as large as the photo, but lensd would use "
         "the small masks; to accept that, write {\"layout\": \"maskformer\"} into lensd.json"},
        {"ZoeDepthForDepthEstimation",
         "Transformers mirrors the edges of a photo and cuts the mirrored edges off the depth "
         "map, but lensd does neither; to accept that, write {\"task\": \"depth\"} into "
         "lensd.json"}};
    for (size_t i = 0; facts->architecture && i < COUNT_OF(inexact); i++)
        if (!strcmp(facts->architecture, inexact[i].architecture)) {
            *task = (struct task){.options = TASK_OPTIONS_NONE};
            decided(task, TASK_UNKNOWN, "%s", inexact[i].words);
        }
}

enum status task_decide(const struct task_facts *facts, struct task *ret, struct error *err)
{
    struct task task = {.options = TASK_OPTIONS_NONE};
    decide_nothing(facts, &task);
    static void (*const rules[])(const struct task_facts *, struct task *) = {
        detect_by_outputs, decide_depth,    decide_segmentation,
        decide_embedding,  detect_by_shape, decide_classification};
    decide_text(facts, &task);
    decide_half(facts, &task);
    decide_prompted(facts, &task);
    if (facts->metadata_task)
        decide_by_metadata(facts, &task);
    for (size_t i = 0; i < COUNT_OF(rules) && !facts->metadata_task && !facts->are_characters; i++)
        if (task.kind == TASK_UNKNOWN && !task.output_count && !facts->takes_texts)
            rules[i](facts, &task);
    refuse_inexact(facts, &task);
    /* A split model's lensd.json describes the photo part, not a text encoder or mask decoder. */
    const bool is_about_photos = (!facts->takes_texts || !facts->is_half) && !facts->makes_masks;
    if (facts->configured_layout && is_about_photos)
        TRY(configured_layout(facts, &task, err));
    if (facts->configured_task && is_about_photos)
        TRY(apply_configured_task(facts, &task, err));
    if (facts->text_size && task.kind == TASK_EMBEDDING)
        decided(&task, TASK_ZERO_SHOT, "vectors of texts in zero_shot.json");
    if (facts->text_size && task.kind != TASK_ZERO_SHOT)
        return error_set(
            err, STATUS_MODEL,
            "zero_shot.json gives vectors of texts, but the model's task is '%s', not an "
            "embedding; write {\"task\": \"embedding\"} into lensd.json, or remove the file",
            task_name(task.kind));
    complete_options(facts, &task);
    if (task.kind == TASK_ZERO_SHOT) {
        TRY(check_text_size(facts, &facts->outputs[task.outputs[0]], err));
        task.options.normalize = 1;
    }
    *ret = task;
    return STATUS_OK;
}
