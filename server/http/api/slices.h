/* POST /predict?slices=640: a photo in overlapping slices (models/tasks/slices.h).
 *
 * - slices_set: reads a parameter.
 * - slices_begin: turns the request of one photo into one that only decodes it, on a decode worker.
 *   An offload thread then makes a request of the slices and the whole photo, which all read the
 *   same pixels. The pipeline runs them like other images.
 * - slices_end: leaves one image with the merged boxes. */
#pragma once

#include "models/tasks/slices.h"
#include "server/http/transport/exchange.h"

/* Zeroed: no slices. */
struct sliced_photo {
    uint32_t side; /* 0: not asked for */
    double overlap;
    bool has_overlap, has_rule;
    enum slices_rule rule;

    /* While they run. */
    const uint8_t *data; /* the photo as the client sent it */
    size_t size;
    uint8_t *photo; /* its pixels; owned; NULL: it is answered as a whole */
    double decode_ms;
    size_t count;
    struct photo_slice *places;
    struct image *views; /* of each slice, then of the whole photo */
};

/* Whether `name` is one of the parameters slices, overlap and merge. */
bool slices_is_parameter(const char *name);

/* Reads one of them. STATUS_INVALID. */
enum status slices_set(struct sliced_photo *slices, const char *name, const char *text,
                       struct error *err) MUST_USE;

/* To be called when `request`, the exchange's work, is complete. Nothing is changed where no slices
 * are asked for, or one would do. STATUS_INVALID: more than one image, or more slices than a
 * request may have images; errors of work_expect_answer(). `slices` must live as long as the work.
 */
enum status slices_begin(struct exchange *exchange, struct predict_request *request,
                         struct sliced_photo *slices, struct error *err) MUST_USE;

/* In `finish`: merges what the slices answered into one image, the only one that is left. */
void slices_end(struct predict_request *request, const struct sliced_photo *slices);

void slices_free(struct sliced_photo *slices);
