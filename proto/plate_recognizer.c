/* Plate Recognizer's Snapshot API, which camera systems use. Plates are in lower case, best first.
 * Source: Plate Recognizer's API reference, "Read number plates from an image". */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "proto/dialects.h"
#include "proto/writer.h"

static void write_corners(struct writer *w, json_node *entry, const float *box)
{
    write_members(w, entry, "box{xmin=%ld ymin=%ld xmax=%ld ymax=%ld}", lrintf(box[0]),
                  lrintf(box[1]), lrintf(box[2]), lrintf(box[3]));
}

static void write_plate(struct writer *w, json_node *list, struct recognized_text *read)
{
    const struct answer_prediction *car = read->around;
    json_node *entry = write_object(w, list, NULL), *vehicle;
    for (char *at = read->text; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    write_corners(w, entry, read->box);
    write_members(w, entry,
                  "plate=%s region{code=%s score=%g} score=%g candidates[{score=%g plate=%s}] "
                  "dscore=%g",
                  read->text, "", 0.0, (double)read->score, (double)read->score, read->text,
                  (double)read->found);
    vehicle = write_object(w, entry, "vehicle");
    write_members(w, vehicle, "score=%g type=%s", car ? (double)car->probability : 0.0,
                  car ? LABEL_STRING(car) : "Unknown");
    if (car)
        write_corners(w, vehicle, car->box);
}

static void plate_recognizer_write(struct writer *w, const struct predict_answer *answer)
{
    struct recognized_texts read;
    w->failed |= !collect_recognized_texts(&answer->images[0], true, &read);
    struct tm parts;
    char when[40] = "";
    if (gmtime_r(&answer->when, &parts))
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &parts);
    write_members(w, w->root, "processing_time=%.3f", answer->total_ms);
    json_node *list = write_array(w, w->root, "results");
    for (size_t i = 0; i < read.count; i++)
        write_plate(w, list, &read.items[i]);
    write_members(w, w->root, "filename=%s version=%d camera_id=%g timestamp=%s",
                  answer->images[0].name ? answer->images[0].name : "", 1, (double)NAN, when);
    free(read.items);
}

static char *plate_recognizer_error(int http, const char *sentence, const char *code)
{
    (void)code;
    return write_document("detail=%s status_code=%d", sentence, http);
}

static const struct dialect_parameter parameters[] = {{0}};
static const struct dialect_default defaults[] = {{"confidence", "0.4"}, {0}};

const struct dialect dialect_plate_recognizer = {.name = "Plate Recognizer",
                                                 .parameters = parameters,
                                                 .defaults = defaults,
                                                 .kinds = 1u << ANSWER_BOXES,
                                                 .takes = "a pipeline of a detector and a reader",
                                                 .is_single = true,
                                                 .takes_pipelines = true,
                                                 .images = "upload",
                                                 .write = plate_recognizer_write,
                                                 .write_error = plate_recognizer_error};
