/* APIs of other servers for images. Each is a table: where a JSON body has images and parameters,
 * and how to write answers and errors. Its requests are handled as those of /predict
 * (server/http/api/api_predict.c). See answers.h for the rules of this library. */
#pragma once

#include <time.h>

#include "proto/answers.h"

struct cJSON;
struct writer;

/* A parameter of the API and /predict's name for it. Other parameters are ignored. */
struct dialect_parameter {
    const char *name, *own;
    bool is_percent; /* a value above 1 is a percentage */
};

struct dialect_default {
    const char *name, *value; /* /predict's name of a parameter; its default */
};

struct dialect {
    const char *name;                           /* "DeepStack" */
    const char *command;                        /* the member "command" of DeepStack's answers */
    const struct dialect_parameter *parameters; /* nameless entry ends it; NULL: /predict's names */
    const struct dialect_default *defaults;     /* ends with a nameless entry; NULL: none */
    unsigned kinds;       /* the kinds of answers that `write` supports: 1u << enum answer_kind */
    const char *takes;    /* the supported models, for an error: "a detector" */
    bool is_base64;       /* a body may be an image in base64 */
    bool is_single;       /* takes only one image */
    bool fails_whole;     /* if one image fails, the request fails */
    bool takes_texts;     /* a request may have texts instead of images */
    bool has_id;          /* answers contain the request's id, so they cannot be cached */
    bool has_whole_mask;  /* a mask as PNG has the size of the photo */
    bool takes_pipelines; /* accepts pipelines as models */
    bool takes_prompts;   /* takes points and a box; the answer is the best mask */
    int invalid_http;     /* the HTTP status of an invalid request; 0: 400 */
    bool has_pixels;      /* masks as polygons also have pixels */
    const char *model;    /* the JSON member that names the model; NULL: the path names it */
    const char *header;   /* the HTTP header that names the model instead; NULL: none */
    const char *nested; /* the JSON member that holds the parameters; NULL: the outermost object */
    const char *images; /* the JSON member that holds the images */
    const char *text;   /* form field for a text; the body may also be a text; NULL: no texts */
    /* Adds the images of a JSON body; used instead of `images`. If both are NULL, the body has
     * /predict's form. */
    enum status (*find)(struct cJSON *root, struct predict_json *ret, struct error *err);
    /* Writes an answer to the root, an empty object. NULL: faces_answer() does, because it needs
     * the registry of faces (server/http/api/predict_body.h). */
    void (*write)(struct writer *w, const struct predict_answer *answer);
    /* Writes an error. NULL: errors are {"error", "code"}. */
    char *(*write_error)(int http, const char *sentence, const char *code);
};

/* Roboflow Inference: POST /infer/{task}, POST /{project}/{version}. */
extern const struct dialect dialect_roboflow;
/* DeepStack and CodeProject.AI: POST /v1/vision/detection, custom/{model}, scene, alpr, ocr, face
 * and the paths below it. */
extern const struct dialect dialect_deepstack, dialect_deepstack_custom, dialect_deepstack_scene,
    dialect_deepstack_plates, dialect_deepstack_text, dialect_deepstack_face,
    dialect_deepstack_register, dialect_deepstack_recognize, dialect_deepstack_match;
/* The task APIs of Hugging Face: POST /models/{model}. */
extern const struct dialect dialect_hugging_face;
/* OpenAI's embeddings, of texts and pictures: POST /v1/embeddings. */
extern const struct dialect dialect_openai;
/* llama.cpp's embeddings, as Frigate requests them: POST /embeddings. */
extern const struct dialect dialect_llama_cpp;
/* Immich's service: POST /predict. This dialect applies until the part `entries` has been read, and
 * then the dialect of a task in `entries`. */
extern const struct dialect dialect_immich;
/* TorchServe: POST /predictions/{model}. */
extern const struct dialect dialect_torchserve;
/* DOODS, for Home Assistant: POST /detect. */
extern const struct dialect dialect_doods;
/* PhotoPrism's vision service: POST /api/v1/vision/labels, nsfw and face. */
extern const struct dialect dialect_photoprism_labels, dialect_photoprism_nsfw,
    dialect_photoprism_face;
/* CVAT: the dashboard of Nuclio, POST /api/function_invocations. */
extern const struct dialect dialect_cvat;
/* Plate Recognizer: POST /v1/plate-reader. */
extern const struct dialect dialect_plate_recognizer;

#define IMMICH_LANGUAGE 8

/* A task in the part `entries` of an Immich request. */
struct immich_entry {
    const struct dialect *dialect;
    char model[128];      /* name of the model's folder in Immich's cache */
    const char *language; /* IMMICH_LANGUAGE bytes to put before the text; NULL: nothing */
    float least_box;      /* least score of a face or a box of text, 0 … 1; negative: not given */
    float least_text;     /* least score of a line of text, 0 … 1 */
};

struct immich_entries {
    struct immich_entry list[3]; /* pipelines first */
    size_t count;
    bool is_text;        /* the answer is the vector of a text; there is no picture */
    const char *refusal; /* static: why lensd refuses the request; NULL: no reason */
};

/* Parses the part `entries` (at most 8 levels, 256 values). *ret owns nothing. STATUS_INVALID,
 * STATUS_NO_MEMORY. */
enum status immich_entries_parse(const char *text, size_t size, struct immich_entries *ret,
                                 struct error *err) MUST_USE;

/* Joins the answers to two tasks of one request into one object, and frees both answers. `second`
 * and the result are NULL when out of memory. */
char *immich_join(char *first, char *second);

/* A model in CVAT's list of functions. */
struct cvat_function {
    const char *name, *shape;  /* shape: the kind of its answers in CVAT's words */
    const char *const *labels; /* one for each class; "" for a class without a label */
    size_t label_count;        /* 0: none, or the model is not loaded */
    bool takes_points;         /* makes masks from points */
    bool takes_boxes;
};

/* Adds the members of a function to `node`; its labels are in a JSON text. */
void cvat_write_function(struct writer *w, struct cJSON *node,
                         const struct cvat_function *function);

/* Values that CodeProject.AI adds to every answer. */
struct deepstack_call {
    const char *command; /* "detect" */
    const char *device;  /* the device that ran the model; NULL: none */
    double forward_ms, total_ms;
    time_t when;
};

/* Adds the members that every answer has. */
void deepstack_write_call(struct writer *w, const struct deepstack_call *call);
/* Adds a box {x1, y1, x2, y2} in whole pixels. */
void deepstack_write_box(struct writer *w, struct cJSON *entry, const float *box);
/* Returns {"success", "message", "error", "similarity"}. NULL texts and a negative similarity are
 * omitted. With an `error`, such as a photo without a face, a valid request had no success. */
char *deepstack_answer_json(const struct deepstack_call *call, const char *message,
                            const char *error, float similarity);

/* Returns a parameter's entry in the dialect's table; NULL: the API ignores the parameter. */
const struct dialect_parameter *dialect_parameter(const struct dialect *dialect, const char *name);

/* Sets STATUS_INVALID for a request with `track` to an API whose answers have no track_id: such
 * an answer would look as if no object had been followed. */
enum status error_no_tracks(const char *api, struct error *err);

/* Adds a text, an image as text, or a list of tokens to ret->images. STATUS_TOO_LARGE: more than
 * `max_images`. */
enum status dialect_add_item(struct cJSON *item, struct predict_json *ret,
                             struct error *err) MUST_USE;
/* Adds the images of a member: a text, an object with a text in "value", "b64" or "url", or a list
 * of these. STATUS_INVALID; STATUS_TOO_LARGE. */
enum status dialect_add_pictures(struct cJSON *member, struct predict_json *ret,
                                 struct error *err) MUST_USE;

/* A text that a pipeline read in a photo, for APIs that list texts without boxes. */
struct recognized_text {
    char text[1024];
    float score, box[4]; /* score: 0 … 1; box: left, top, right, bottom in pixels of the photo */
    float found;         /* score of the box, 0 … 1 */
    const struct answer_prediction *around; /* an earlier stage's box, such as a car; or NULL */
};

struct recognized_texts {
    struct recognized_text *items;
    size_t count, capacity;
};

/* Collects the texts of a photo without control bytes. Of plates only digits and letters, as
 * capitals, are kept; plates are sorted, best first. The caller frees ret->items, even after a
 * failure. Returns false when out of memory; some texts are then missing. */
bool collect_recognized_texts(const struct answer_image *image, bool is_plate,
                              struct recognized_texts *ret);
