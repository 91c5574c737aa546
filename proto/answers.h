/* JSON answers and requests of lensd's own endpoints, through cJSON.
 *
 * proto/ knows wire formats, not the server: these functions take plain descriptions and return
 * malloc'ed text (the caller frees it; NULL when out of memory). They never read a clock, a socket
 * or a model. JSON has scores and vectors in the shortest exact form, coordinates and times with
 * three decimals; NaN and Inf become null. Every text ends in a newline, for readable output from
 * curl. Input texts are terminated and normally UTF-8; invalid bytes (in names from clients) become
 * '?'.
 *
 * Thread-safe if no other thread changes the descriptions during a call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "engine/base/status.h"
#include "proto/json.h"

struct dialect;

/* ---- errors: {"error": "a sentence", "code": "a_fixed_name"} ---- */

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
    uint64_t area;          /* pixels */
    const char *counts;     /* COCO's compressed run lengths; NULL: another form */
    const uint32_t *points; /* else the polygons: x, y, x, y …; NULL: another form */
    const size_t *ends;     /* where each polygon ends in `points` */
    size_t polygons;
    const char *png; /* else a base64 PNG of the rectangle that the next members give */
    uint32_t left, top, width, height;
    const uint8_t *pixels; /* a byte per pixel of that rectangle, row by row: 1 inside, 0 outside */
};

struct answer_prediction {
    const char *label; /* NULL: the model has none, and the member is omitted */
    size_t index;
    float probability; /* of a class; else a box's score, or an area's share of the photo */
    float box[4];      /* left, top, right, bottom in pixels of the upright picture */
    uint32_t track_id; /* of a box: the tracker's id of its object; 0: none */
    const struct answer_oriented *oriented; /* the box with its angle; NULL: it has none */
    const struct answer_point *points;      /* key points of a box */
    size_t point_count;
    bool are_corners;                /* the points are the corners of a line of text */
    const struct answer_mask *mask;  /* of an area, or of the object in a box; NULL: none */
    const struct answer_image *crop; /* of a box: the next stage's result for it; NULL: none */
};

/* Returns the label of a prediction; if it has none, its index, such as "7", in `room`.
 * LABEL_STRING() uses memory that lasts until the end of the enclosing block. */
const char *answer_label(const struct answer_prediction *prediction, char room[static 24]);
#define LABEL_STRING(prediction) answer_label((prediction), (char[24]){0})

/* The kind of predictions of an image. */
enum answer_kind {
    ANSWER_CLASSES,
    ANSWER_BOXES,
    ANSWER_AREAS,
    ANSWER_EMBEDDING,
    ANSWER_DEPTH,
    ANSWER_ANOMALY, /* one prediction, which may have a mask: "normal" or "anomalous", index 0 or 1,
                       with the score. `depth` is the map */
};

/* One image's result: an error, or predictions. */
struct answer_image {
    const char *name;         /* file or field name; NULL: left out */
    const char *error, *code; /* NULL on success */
    const char *device;       /* the device that ran the model */
    const char *precision;    /* number format, "fp32"; NULL: left out */
    uint32_t width, height;   /* pixels, upright */
    const struct answer_prediction *predictions;
    size_t prediction_count;
    enum answer_kind kind;
    const float *embedding; /* instead of predictions: a vector; NULL: none */
    size_t embedding_count;
    const char *depth; /* a map: base64 16-bit PNG of the photo's size; NULL: none */
    float depth_least, depth_greatest; /* the depths that 0 and 65535 in the PNG mean */
    const char *text;                  /* a line of text; with boxes: a page's lines; NULL: none */
    float text_score;
    uint64_t frame; /* the photo's number in the stream of ?track=NAME, from 1; 0: no track */
    int batch;      /* number of images in the same forward pass */
    double decode_ms, preprocess_ms, queue_ms, forward_ms;
};

struct predict_answer {
    const struct dialect *dialect; /* the API whose form the answer has; NULL: /predict */
    const char *model;
    const struct answer_image *images;
    size_t image_count;
    const char *name; /* of the only image; lensd predict writes it first; NULL: left out */
    bool as_list;     /* the request had a list: write {"results": […]} */
    double total_ms;
    time_t when;                 /* creation time of the answer */
    const char *id;              /* of the request */
    bool is_base64;              /* vectors as base64 */
    size_t tokens;               /* tokens of all texts */
    float least_text;            /* omit lines of text with a score up to this; 0: omit none */
    const struct cJSON *request; /* JSON of the request; NULL: no JSON */
};

/* Writes one image, or only its error if it failed; times are in milliseconds:
 *     {"model","device","precision",RESULT,"frame","image":{"width","height"},"batch",
 *      "timing_ms":{"decode","preprocess","queue","forward","total"}}
 * or a list, in which a failed image has {"name","error","code"}:
 *     {"model","device","results":[{"name","device",RESULT …}…],"timing_ms":{"total"}}
 * RESULT, by kind:
 *     "predictions":[{"label","index","probability"}…]
 *     "predictions":[{"label","index","score","track_id","box":{"x1","y1","x2","y2"},
 *         "oriented_box":{"x","y","width","height","angle","corners":[[x,y]…]},
 *         "keypoints":[{"name","x","y","score"}…] or "corners":[[x,y]…], MASK,
 *         "crop":{RESULT,"image"} or {"error","code"}}…], for a page also "text"
 *     "segments":[{"label","index",MASK}…]   or   "embedding":[…]   or   "text" and "score"
 *     "depth":{"min","max","png"}   or   "anomaly":{"score","anomalous"},"map","mask":{MASK}
 * MASK: "area" and "rle":{"size":[height,width],"counts"}, "polygons":[[x,y,x,y…]…] or
 *     "png":{"x","y","width","height","data"}. "map" is like "depth". Unset values are omitted. */
char *predict_answer_json(const struct predict_answer *answer);

/* Writes text/plain, with an empty line between images. Lines of an image, by kind:
 *     "0.957125 cat"                           a class, best first: probability, label (or index)
 *     "0.957125 12.50 8.25 99.00 64.75 #3 cat"  a box: score, corners, track_id if it has one,
 *                                              label; below it its crop's lines, indented by two
 *     "0.957125 text"                          a line of text; for a page only its text
 *     an embedding's numbers; a depth map's least and greatest depth; "error code: sentence" */
char *predict_answer_lines(const struct predict_answer *answer);

/* Writes application/octet-stream, little-endian; for an image, by kind:
 *     uint32 count, then uint32 index and float32 probability per prediction, and for a box four
 *         float32 x1, y1, x2, y2 and, if it has one, uint32 track_id
 *     uint32 count, then the float32 values of an embedding
 *     uint32 count, float32 score, then the bytes (UTF-8) of a line of text
 *     0xFFFFFFFF if the image failed */
char *predict_answer_numbers(const struct predict_answer *answer, size_t *ret_size);

/* ---- /predict: a JSON request ---- */

struct predict_json_image {
    const struct cJSON *item; /* private: the image's node in the tree */
    uint8_t *data;            /* decoded in place; owned by the request */
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
    size_t image_count, max_images, room;      /* room: the array's capacity */
    bool as_list;                              /* the request has a list of images */
    bool are_texts;                            /* "images" are UTF-8 texts and lists of tokens */
    const char *model;                         /* NULL: not given */
    struct predict_json_parameter *parameters; /* the other members */
    size_t parameter_count;
    void *tree; /* private: owns the memory of the pointers above */
};

/* Reads the JSON body of a request in a dialect's form (proto/dialects.h), or in /predict's own
 * (`dialect` NULL): {"image": {"b64": "…"}} or {"images": [{"b64": "…", "name": "a.jpg"}, …]}, with
 * "model" and at most PREDICT_JSON_PARAMETERS other members: strings, numbers, true, false, lists
 * of strings, numbers and points. Parameters keep the dialect's names. `text` is untrusted, and not
 * needed afterwards. STATUS_INVALID: the request is malformed; STATUS_TOO_LARGE: it has more than
 * max_images. Malformed base64 fails only its own image. The caller sets *ret to NULL
 * before, and frees it with predict_json_free() (accepts NULL), even after a failure. */
enum status predict_json_parse(const struct dialect *dialect, const char *text, size_t size,
                               const struct json_limits *limits, size_t max_images,
                               struct predict_json **ret, struct error *err) MUST_USE;
void predict_json_free(struct predict_json *request);
