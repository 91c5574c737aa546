/* The 8-bit form of a float32 model whose folder has photos in calibration/. Trials make this form
 * once and store it in the cache folder under the key of the choice. */
#pragma once

#include "engine/graph/graph.h"
#include "models/quantize/quantize_model.h"
#include "server/precision/precision.h"

/* Calls quantize_model() with the photos in model->calibration, which must be set. `options` has no
 * photos; `limits` apply to the photos. */
enum status calibrate_model(const struct model *model, const struct image_limits *limits,
                            struct quantize_options options, struct graph **ret,
                            struct quantize_report *report, struct error *err) MUST_USE;

/* True if trials can make an 8-bit form of the model: its folder has calibration/, and there is a
 * cache folder for the form. */
bool calibrated_is_possible(const struct model *model, const struct session_options *session,
                            const char *cache);

/* Makes the 8-bit form and stores it under the key of the choice. The caller owns *ret; *ret_photos
 * is the number of calibration photos. Errors: those of quantize_model() and onnx_write_file(). */
enum status calibrated_make(const struct model *model, const struct precision_options *options,
                            const struct session_options *session, const struct graph_hash *key,
                            struct graph **ret, int *ret_photos, struct error *err) MUST_USE;

bool calibrated_exists(const struct graph_hash *key, const char *cache);

/* Reads the 8-bit form; the caller owns *ret. Errors: those of onnx_load_file(). */
enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err) MUST_USE;
