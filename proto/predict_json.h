/* Parts of predict_json_parse() that dialect.c shares. Private to proto/. */
#pragma once

#include <cjson/cJSON.h>

#include "proto/answers.h"

/* Checks and parses a body. *ret owns *ret_root; free it with predict_json_free(). */
enum status predict_json_tree(const char *text, size_t size,
                              const struct predict_json_limits *limits, struct predict_json **ret,
                              cJSON **ret_root, struct error *err) MUST_USE;

/* Adds a member (string, number, boolean or a list of them) to request->parameters. */
enum status predict_json_parameter(const cJSON *member, struct predict_json *request,
                                   struct error *err) MUST_USE;
