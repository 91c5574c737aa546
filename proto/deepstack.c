/* DeepStack's and CodeProject.AI's vision API, which camera systems (Frigate, Blue Iris, Agent DVR,
 * Viseron) use. Boxes are in whole pixels, best first: Frigate stops at the first one below its
 * threshold. Sources: frigate/detectors/plugins/deepstack.py; CodeProject.AI's API reference. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"
#include "proto/dialects.h"
#include "proto/writer.h"

/* ---- members of every answer ---- */

void deepstack_write_call(struct writer *w, const struct deepstack_call *call)
{
    char when[40] = "";
    struct tm parts;
    const bool is_gpu = call->device && strncmp(call->device, "cpu", 3) != 0;
    if (gmtime_r(&call->when, &parts))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    const long total = lrint(call->total_ms);
    write_members(w, w->root,
                  "command=%s moduleId=%s moduleName=%s executionProvider=%s canUseGPU=%hhd "
                  "inferenceMs=%ld processMs=%ld analysisRoundTripMs=%ld processedBy=%s "
                  "timestampUTC=%s code=%d",
                  call->command, "lensd", "lensd", is_gpu ? "CUDA" : "CPU", is_gpu,
                  lrint(call->forward_ms), total, total, "localhost", when, 200);
}

static struct deepstack_call call_of(const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    return (struct deepstack_call){answer->dialect->command, image->device, image->forward_ms,
                                   answer->total_ms, answer->when};
}

void deepstack_write_box(struct writer *w, json_node *entry, const float *box)
{
    write_members(w, entry, "x_min=%ld y_min=%ld x_max=%ld y_max=%ld", lrintf(box[0]),
                  lrintf(box[1]), lrintf(box[2]), lrintf(box[3]));
}

static char *deepstack_error(int http, const char *sentence, const char *code)
{
    (void)code;
    return write_document("success=%hhd error=%s code=%d", false, sentence, http);
}

/* ---- pictures ---- */

/* Writes "Found person, car". */
static void write_found(struct writer *w, const struct answer_image *image)
{
    char text[200];
    snprintf(text, sizeof text, image->prediction_count ? "Found " : "No objects found");
    for (size_t i = 0; i < image->prediction_count; i++)
        text_append(text, sizeof text, i ? ", " : "", "%s", LABEL_STRING(&image->predictions[i]));
    write_text(w, w->root, "message", text);
}

static void deepstack_boxes(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    const struct deepstack_call call = call_of(answer);
    write_members(w, w->root, "success=%hhd", true);
    write_found(w, image);
    cJSON *list = write_array(w, w->root, "predictions");
    for (size_t i = 0; i < image->prediction_count; i++) {
        const struct answer_prediction *found = &image->predictions[i];
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, entry, "label=%s confidence=%g", LABEL_STRING(found),
                      (double)found->probability);
        deepstack_write_box(w, entry, found->box);
    }
    write_members(w, w->root, "count=%zu", image->prediction_count);
    deepstack_write_call(w, &call);
}

static void deepstack_scene(struct writer *w, const struct predict_answer *answer)
{
    const struct answer_image *image = &answer->images[0];
    const struct deepstack_call call = call_of(answer);
    write_members(w, w->root, "success=%hhd", true);
    if (image->prediction_count)
        write_members(w, w->root, "label=%s confidence=%g", LABEL_STRING(&image->predictions[0]),
                      (double)image->predictions[0].probability);
    deepstack_write_call(w, &call);
}

/* ---- text ---- */

static void deepstack_texts(struct writer *w, const struct predict_answer *answer)
{
    const bool is_plate = answer->dialect == &dialect_deepstack_plates;
    const struct deepstack_call call = call_of(answer);
    struct recognized_texts read;
    w->failed |= !collect_recognized_texts(&answer->images[0], is_plate, &read);
    write_members(w, w->root, "success=%hhd message?=%s", true,
                  is_plate && read.count ? "Found number plates" : "");
    cJSON *list = write_array(w, w->root, "predictions");
    for (size_t i = 0; i < read.count; i++) {
        const struct recognized_text *text = &read.items[i];
        cJSON *entry = write_object(w, list, NULL);
        char label[sizeof text->text + 8];
        snprintf(label, sizeof label, "%s%s", is_plate ? "Plate: " : "", text->text);
        write_text(w, entry, "label", label);
        if (is_plate)
            write_members(w, entry, "plate=%s characters=%zu", text->text, strlen(text->text));
        write_members(w, entry, "confidence=%g", (double)text->score);
        deepstack_write_box(w, entry, text->box);
    }
    write_members(w, w->root, "count=%zu", read.count);
    free(read.items);
    deepstack_write_call(w, &call);
}

char *deepstack_answer_json(const struct deepstack_call *call, const char *message,
                            const char *error, float similarity)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "success=%hhd message=%s error=%s", !error, message, error);
    if (similarity >= 0)
        write_float(&w, w.root, "similarity", similarity);
    deepstack_write_call(&w, call);
    return write_finish(&w);
}

/* ---- the table ---- */

static const struct dialect_parameter parameters[] = {{"min_confidence", "confidence", false}, {0}};
static const struct dialect_default defaults[] = {{"confidence", "0.4"}, {0}};
static const struct dialect_parameter face_parameters[] = {
    {"userid", "userid", false}, {"min_confidence", "min_similarity", false}, {0}};
static const struct dialect_default face_defaults[] = {{"confidence", "0.55"}, {0}};

#define PICTURES(word, kind, models, function)                                                     \
    .name = "DeepStack", .command = word, .parameters = parameters, .defaults = defaults,          \
    .kinds = 1u << (kind), .takes = models, .is_single = true, .images = "image",                  \
    .write = function, .write_error = deepstack_error

const struct dialect dialect_deepstack = {
    PICTURES("detect", ANSWER_BOXES, "a detector", deepstack_boxes)};
const struct dialect dialect_deepstack_custom = {
    PICTURES("custom", ANSWER_BOXES, "a detector", deepstack_boxes)};
const struct dialect dialect_deepstack_face = {
    PICTURES("detect", ANSWER_BOXES, "a detector", deepstack_boxes), .takes_pipelines = true};
const struct dialect dialect_deepstack_scene = {
    PICTURES("detectScene", ANSWER_CLASSES, "a classifier", deepstack_scene)};
const struct dialect dialect_deepstack_plates = {
    PICTURES("alpr", ANSWER_BOXES, "a pipeline of a detector and a reader", deepstack_texts),
    .takes_pipelines = true};
const struct dialect dialect_deepstack_text = {
    PICTURES("ocr", ANSWER_BOXES, "a pipeline that reads pages", deepstack_texts),
    .takes_pipelines = true};

#define FACES                                                                                      \
    .name = "DeepStack", .parameters = face_parameters, .defaults = face_defaults,                 \
    .kinds = 1u << ANSWER_BOXES, .takes = "a pipeline of faces", .images = "image",                \
    .fails_whole = true, .takes_pipelines = true, .write_error = deepstack_error

const struct dialect dialect_deepstack_register = {FACES};
const struct dialect dialect_deepstack_recognize = {FACES, .is_single = true};
const struct dialect dialect_deepstack_match = {FACES};
