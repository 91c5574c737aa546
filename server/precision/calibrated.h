/* The 8-bit form of a float32 model whose folder has photos in calibration/. Trials make it once;
 * it is kept in the cache folder under the key of the choice. */
#pragma once

#include "engine/graph/graph.h"
#include "models/quantize/quantize_model.h"
#include "server/precision/precision.h"

/* quantize_model() on the photos in model->calibration, which is set. `options` without its photos;
 * `limits`: of the photos. */
enum status calibrate_model(const struct model *model, const struct image_limits *limits,
                            struct quantize_options options, struct graph **ret,
                            struct quantize_report *report, struct error *err) MUST_USE;

/* Whether trials may make an 8-bit form of the model: its folder has calibration/, and the cache a
 * place to keep the form. */
bool calibrated_is_possible(const struct model *model, const struct session_options *session,
                            const char *cache);

/* Makes it and keeps it under the key of the choice. *ret: the caller's; *ret_photos: how many
 * photos it was calibrated with. Errors: those of quantize_model() and onnx_write_file(). */
enum status calibrated_make(const struct model *model, const struct precision_options *options,
                            const struct session_options *session, const struct graph_hash *key,
                            struct graph **ret, int *ret_photos, struct error *err) MUST_USE;

bool calibrated_exists(const struct graph_hash *key, const char *cache);

/* *ret: the caller's. Errors: those of onnx_load_file(). */
enum status calibrated_read(const struct graph_hash *key, const char *cache, struct graph **ret,
                            struct error *err) MUST_USE;
