/* JSON answers and requests of lensd's own endpoints, through cJSON.
 *
 * proto/ knows wire formats, not the server: these functions take plain descriptions and return
 * malloc'ed text (the caller frees it; NULL when out of memory). They never read a clock, a socket
 * or a model. Floats are printed in the shortest exact form; NaN and Inf become null. Every text
 * ends in a newline, for readable output from curl. Input texts are terminated and normally UTF-8;
 * in others (names from clients) invalid bytes become '?'.
 *
 * Thread-safe if no other thread changes the descriptions during a call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "engine/base/status.h"
#include "proto/json.h"

/* ---- errors: {"error": sentence, "code": machine word} ---- */

/* *ret_size: bytes without the terminator; may be NULL, here and below. */
char *error_json(const char *sentence, const char *code);

/* ---- /predict: the answer ---- */

struct answer_point {
    const char *name; /* NULL: left out */
    float x, y;       /* pixels of the upright picture */
    float score;      /* negative: left out */
};

struct answer_oriented {
    float x, y, width, height; /* centre and size, pixels of the upright picture */
    float angle;               /* radians, clockwise */
    float corners[4][2];
};

/* A mask in one of three forms. A mask of polygons may also have its pixels. */
struct answer_mask {
    uint64_t area;      /* pixels */
    const char *counts; /* COCO's compressed run lengths; NULL: another form */
    const uint32_t
        *points; /* else polygons, x, y, x, y …, with the end of each; NULL: another form */
    const size_t *ends;
    size_t polygons;
    const char *png; /* else a PNG in base64, of this part of the picture */
    uint32_t left, top, width, height;
    const uint8_t *pixels; /* a byte per pixel of this part, row by row: 1 inside, 0 outside */
};

struct answer_prediction {
    const char *label; /* NULL: the model has none, and the member is left out */
    size_t index;
    float probability; /* a box's score, or an area's share of the photo */
    float box[4];      /* x1, y1, x2, y2: corners in pixels of the upright picture */
    uint32_t track_id; /* of a box: the object that a tracker follows; 0: none */
    const struct answer_oriented *oriented; /* the box with its angle; NULL: it has none */
    const struct answer_point *points;      /* key points of a box */
    size_t point_count;
    bool are_corners;                /* the points are the corners of a line of text */
    const struct answer_mask *mask;  /* of an area, or of the object in a box; NULL: none */
    const struct answer_image *crop; /* of a box: the next stage's result for it; NULL: none */
};

/* The label of a prediction; "7", its index in `room`, if it has none. */
const char *answer_label(const struct answer_prediction *prediction, char room[static 24]);

/* The kind of predictions of an image. */
enum answer_kind {
    ANSWER_CLASSES,
    ANSWER_BOXES,
    ANSWER_AREAS,
    ANSWER_EMBEDDING,
    ANSWER_DEPTH,
    ANSWER_ANOMALY, /* one prediction: "normal" or "anomalous", index 0 or 1, with the score; it may
                       have a mask, and `depth` is the map */
};

/* One image's result: an error, or predictions. */
struct answer_image {
    const char *name;         /* file or field name; NULL: left out */
    const char *error, *code; /* NULL on success */
    const char *device;       /* that ran it */
    const char *precision;    /* number format, "fp32"; NULL: left out */
    uint32_t width, height;   /* pixels, upright */
    const struct answer_prediction *predictions;
    size_t prediction_count;
    enum answer_kind kind;
    const float *embedding; /* instead of predictions; NULL: none */
    size_t embedding_count;
    const char *depth; /* instead: a 16-bit PNG of the photo's size in base64; NULL: none */
    float depth_least, depth_greatest; /* the depths of 0 and 65535 */
    const char *text; /* instead: a line of text; with boxes: a page's lines; NULL: none */
    float text_score;
    uint64_t frame; /* its number in its track; 0: none */
    int batch;      /* number of images in its batch */
    double decode_ms, preprocess_ms, queue_ms, forward_ms;
};

struct predict_answer {
    const char *model;
    const struct answer_image *images;
    size_t image_count;
    bool as_list; /* the request had a list: write {"results": […]}, which includes errors */
    double total_ms;
    time_t when;                 /* creation time of the answer */
    const char *id;              /* of the request */
    bool is_base64;              /* vectors as base64 */
    size_t tokens;               /* tokens of all texts */
    float least_text;            /* omit lines of text with a score up to this; 0: omit none */
    const struct cJSON *request; /* JSON of the request; NULL: it had none */
};

/* One image: {"model","device","predictions":[{"label","index","probability"}…],
 * or of a detector [{"label","index","score","box":{"x1","y1","x2","y2"}}…], of which each may have
 * "track_id" (the image then has "frame"), "crop":{"predictions" … or "embedding" … as
 * below,"image"} or "crop":{"error","code"}, and
 * "oriented_box":{"x","y","width","height","angle","corners":[[x,y]…]} and
 * "keypoints":[{"name","x","y","score"}…] or "corners":[[x,y]…], or "embedding":[…],
 * or "segments":[{"label","index","area","rle":{"size":[height,width],"counts"}}…], where a mask
 * may be "polygons":[[x,y,x,y…]…] or "png":{"x","y","width","height","data"} instead of "rle",
 * or "depth":{"min","max","png"}, or "anomaly":{"score","anomalous"} with "map" (as "depth") and
 * "mask":{"area", and as above} where the model has them, or "text" and "score"; a page has
 * predictions and "text",
 * "image":{"width","height"},"batch","timing_ms":{"decode","preprocess","queue","forward","total"}};
 * its error, if it has one, is the whole answer. A list:
 * {"model","results":[…],"timing_ms":{"total"}} with {"name","device","predictions",…} or
 * {"name","error","code"} for each. Milliseconds. */
char *predict_answer_json(const struct predict_answer *answer);

/* The answer as text/plain: one line for each prediction, best first, "0.957125 7" (probability,
 * label; its index if it has none), for a box "0.957125 12.50 8.25 99.00 64.75 cat" (corners before
 * the label, then "#3 " if 3 is its track_id) and below it the lines of its crop, each indented by
 * two spaces; for an embedding its numbers in one line, for a line of text "0.957125 text", for a
 * page its text; an empty line between images; "error code: sentence" for a failed image. */
char *predict_answer_lines(const struct predict_answer *answer);

/* The answer as application/octet-stream, little-endian, for each image: uint32 number of
 * predictions, then for each of them uint32 index, float32 probability, and for a box four float32
 * x1, y1, x2, y2 and, if it has one, uint32 track_id; for an embedding uint32 number of values,
 * then float32 values; for a line of text uint32 number of bytes, float32 score, then the bytes
 * (UTF-8); for a failed image only 0xFFFFFFFF. */
char *predict_answer_numbers(const struct predict_answer *answer, size_t *ret_size);

/* ---- /predict: a JSON request ---- */

struct predict_json_image {
    uint8_t *data; /* decoded in place: owned by the request */
    size_t size;
    const char *name;   /* "name" of the entry, or NULL */
    struct error error; /* status != OK: malformed base64, data is NULL */
    int64_t *ids;       /* tokens instead of `data`; owned by the request; may be NULL */
    size_t id_count;
};

/* A parameter in the form of a query parameter: "0.25", "true", "0,person". */
struct predict_json_parameter {
    const char *name;
    char *text;
};

#define PREDICT_JSON_PARAMETERS 16

struct predict_json {
    struct predict_json_image *images;
    size_t image_count;
    bool as_list;                              /* the request has "images", not "image" */
    bool are_texts;                            /* "images" are UTF-8 texts and lists of tokens */
    int top_k;                                 /* 0: not given */
    const char *model;                         /* NULL: not given */
    struct predict_json_parameter *parameters; /* the other members */
    size_t parameter_count;
    void *tree; /* private: owns the memory of the pointers above */
};

struct predict_json_limits {
    struct json_limits json;
    size_t max_images;
    int max_top_k;
};

struct dialect;

/* Reads the JSON body of a request in a dialect's form (proto/dialects.h), or in /predict's own
 * (`dialect` NULL): {"image": {"b64": "…"}} or {"images": [{"b64": "…", "name": "a.jpg"}, …]}, with
 * "top_k", "model" and at most PREDICT_JSON_PARAMETERS other members: strings, numbers, true,
 * false, lists of strings and numbers. A dialect's parameters keep its names. `text` is hostile,
 * and not needed afterwards. STATUS_INVALID for a malformed request; STATUS_TOO_LARGE for more than
 * max_images. Malformed base64 is an error of that image alone. Free *ret with predict_json_free
 * (accepts NULL). */
enum status predict_json_parse(const struct dialect *dialect, const char *text, size_t size,
                               const struct predict_json_limits *limits, struct predict_json **ret,
                               struct error *err) MUST_USE;
void predict_json_free(struct predict_json *request);

/* ---- /livez, /readyz, /ping ---- */

/* {"status": word} */
char *status_word_json(const char *word);
