/* KServe's V1 protocol, the same as TensorFlow Serving's: POST /v1/models/M:predict. See answers.h
 * for the rules of this library. */
#pragma once

#include "proto/answers.h"
#include "proto/v2.h"

/* Writes {"predictions": [{"classes": [label …], "indices": […], "probabilities": […]} …]}. */
extern const struct dialect dialect_v1;

/* Reads {"instances": […]} into a request with one input. `wanted` has the name, datatype and shape
 * of the model's input; its first dimension becomes the number of rows. If the instances are
 * numbers, `text` is borrowed until v2_request_free(). Otherwise they are elements: photos in
 * base64, or with `are_texts` UTF-8 texts, in one of the forms "…", {"data": "…"} (or "b64",
 * "body", "image", "image_bytes"), or {"b64": "…"} as a member of any name. Errors as
 * v2_request_parse(); malformed base64 is STATUS_INVALID. */
enum status v1_request_parse(const char *text, size_t size, const struct json_limits *limits,
                             const struct v2_input *wanted, bool are_texts, struct v2_request **ret,
                             struct error *err) MUST_USE;

/* Returns {"predictions": [row …]}. A row has the numbers of the output, nested by its shape,
 * without the batch dimension if `has_rows`; with several outputs it is {name: numbers, …}. */
char *v1_rows_json(const struct v2_answer *answer, bool has_rows, size_t *ret_size);
