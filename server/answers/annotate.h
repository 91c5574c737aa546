/* Draws what a model found into the photo. Any thread; takes long for large photos. */
#pragma once

#include "server/schedule/runtime/model_host.h"

enum annotate_format { ANNOTATE_JPEG, ANNOTATE_PNG };

/* Decodes the photo of an answered image once more, draws its answer and encodes it: the best
 * classes, boxes with labels, key points, masks. `image`: answered with STATUS_OK, its data still
 * there. On success the caller frees *ret. STATUS_INVALID for an answer that cannot be drawn (a
 * vector), STATUS_TOO_LARGE for a JPEG with too long a side, STATUS_NO_MEMORY. */
enum status annotate_image(const struct predict_image *image, enum annotate_format format,
                           uint8_t **ret, size_t *ret_size, struct error *err) MUST_USE;

/* Bytes of memory that it takes, at most. */
size_t annotate_bytes(const struct predict_image *image);
