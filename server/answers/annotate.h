/* Draws a model's results into the photo. Any thread; slow for large photos. */
#pragma once

#include "server/schedule/runtime/model_host.h"

enum annotate_format { ANNOTATE_JPEG, ANNOTATE_PNG };

/* Decodes the photo of an answered image again, draws its answer and encodes it: the best classes,
 * boxes with labels, key points, masks. `image` has been answered with STATUS_OK and still has its
 * data. On success the caller frees *ret. STATUS_INVALID: the answer cannot be drawn (a vector);
 * STATUS_TOO_LARGE: a side is too long for JPEG; STATUS_NO_MEMORY. */
enum status annotate_image(const struct predict_image *image, enum annotate_format format,
                           uint8_t **ret, size_t *ret_size, struct error *err) MUST_USE;

/* The most memory that annotate_image() needs, in bytes. */
size_t annotate_bytes(const struct predict_image *image);
