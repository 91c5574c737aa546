/* Reads a POST /predict: its parameters, and the images or texts in its body.
 *
 * The body is a plain photo, multipart/form-data with photos in it, or JSON with base64. The body's
 * first bytes decide, so a plain photo may have any Content-Type. The model host reads the images
 * in place, in the body or in predict_work.json, so body and JSON must live until on_done. */
#pragma once

#include "proto/dialects.h"
#include "server/faces/faces.h"
#include "server/http/api/labels.h"
#include "server/http/api/prompts.h"
#include "server/http/api/slices.h"
#include "server/http/transport/multipart.h"

/* The fields of a form about faces in addition to its photos. */
struct face_question {
    char name[FACES_NAME_MAX + 1];
    float least; /* least similarity, 0 … 1; 0: not given */
};

struct predict_work {
    struct predict_request request; /* must be first (submission.h) */
    bool as_list;                   /* the request is a list, so the answer must be one */
    struct multipart multipart;     /* zeroed if the body is not a form */
    struct predict_json *json;      /* NULL if the body is not JSON */
    struct sliced_photo slices;
    struct staged_request *staged; /* NULL: the model is not a pipeline */
    struct request_texts texts;    /* instead of images */
    struct request_labels labels;  /* the request's labels, for its images */
    struct request_prompt prompt;  /* for the only image */
    int form;                      /* enum describe_form from `format`; -1: use Accept */
    bool is_base64;                /* vectors as base64 */
    struct face_question faces;
    struct immich_entries immich; /* zeroed, unless Immich's server sends the request */
    size_t task;                  /* index of the current task in `immich` */
    char *before;                 /* owned: the answer to the earlier tasks; NULL: none */
    uint8_t *photo;               /* owned: the photo that the earlier tasks have decoded */
    struct image pixels;          /* the pixels of `photo` */
    char model[128];              /* as requested; "" for the default */
    struct task_options options;
    char classes[32 * TASK_MAX_CLASSES], track[32 * TASK_MAX_CLASSES]; /* borrowed by options */
};

/* Reads "640x480" (width x height) or "~640x480" (nearest compiled size); false if malformed. */
bool predict_read_size(const char *text, struct predict_request *request);

/* Reads the query's parameters, and then the body and its parameters. */
enum status predict_read(struct exchange *x, struct predict_work *work, struct error *err);

/* Sets model and options for Immich's current task. */
enum status predict_set_task(struct exchange *x, struct predict_work *work, struct error *err);

/* If curl --data has removed an image's line ends, adds advice to the image's error. */
void predict_hint_at_form(const struct exchange *x, struct predict_image *image);

/* ---- api_faces.c ---- */

/* Sets question->name to `size` bytes. STATUS_INVALID: too many, or one is 0. */
enum status face_set_userid(struct face_question *question, const char *name, size_t size,
                            struct error *err) MUST_USE;

/* Answers a completed request of DeepStack about faces: register, recognize or match, by a pipeline
 * named "faces". May wait for the disk. */
void faces_answer(struct exchange *exchange, const struct face_question *question);
