/* KServe's V1 protocol, the same as TensorFlow Serving's: POST /v1/models/M:predict. See answers.h
 * for the rules of this library. */
#pragma once

#include "engine/tensor/tensor.h"
#include "proto/answers.h"

/* ---- KServe V1: the request ---- */

struct v1_request {
    /* A photo is base64: "…", {"data": "…"} (or "b64", "body", "image", "image_bytes"), or {"b64":
     * "…"} as a member of any name. A text has the same forms, but is not encoded. */
    struct predict_json_image *images;
    size_t image_count;  /* 0: numbers */
    const char *numbers; /* the array "instances" in the request; NULL: it has photos or texts */
    size_t numbers_size;
    size_t rows; /* number of elements of `numbers` */
    void *tree;  /* private */
};

/* Reads {"instances": […]}. If they are numbers, `text` is borrowed until v1_request_free().
 * `are_texts`: strings are UTF-8 texts, not photos. Errors as predict_json_parse(). */
enum status v1_request_parse(const char *text, size_t size, const struct json_limits *limits,
                             size_t max_images, bool are_texts, struct v1_request **ret,
                             struct error *err) MUST_USE;
void v1_request_free(struct v1_request *request); /* accepts NULL */

/* ---- KServe V1: the answers ---- */

/* Returns {"predictions": [{"classes": [label …], "indices": […], "probabilities": […]} …]}. */
char *v1_classes_json(const struct predict_answer *answer);

/* A model's outputs for one row of the input. */
struct v1_row {
    struct tensor *const *outputs;
};

/* Returns {"predictions": [row …]}. A row has the numbers of the output, nested by its shape,
 * without the batch dimension if `has_rows`; with several outputs it is {name: numbers, …}. */
char *v1_rows_json(const struct v1_row *rows, size_t row_count, const char *const *names,
                   size_t output_count, bool has_rows);

struct v1_version {
    const char *version;
    bool is_ready;
    const char *reason; /* why it is not ready */
};

/* Returns {"name", "ready", "model_version_status": […]}, for clients of KServe and TensorFlow
 * Serving, with "id", "object", "created" and "owned_by" for OpenAI's. */
char *v1_model_json(const char *name, bool ready, const struct v1_version *versions, size_t count);

/* Returns {"models": [name …]}, with OpenAI's "object" and "data". */
char *v1_models_json(const char *const *names, size_t count);
