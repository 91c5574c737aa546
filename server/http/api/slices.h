/* POST /predict?slices=640: a photo in overlapping slices (models/tasks/slices.h).
 *
 *     slices_set      a parameter
 *     slices_begin    the request of one photo becomes one that only decodes it
 *       pipeline      … on a decode worker; then an offload thread makes a request of the slices
 * and of the whole photo, all of them parts of the same pixels pipeline      … which runs them like
 * any other images slices_end      one image with the merged boxes is left */
#pragma once

#include "models/tasks/slices.h"
#include "server/http/transport/exchange.h"

/* Zeroed: no slices. */
struct slicing {
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
bool slices_is(const char *name);

/* Reads one of them. STATUS_INVALID. */
enum status slices_set(struct slicing *slices, const char *name, const char *text,
                       struct error *err) MUST_USE;

/* To be called when `request`, the exchange's work, is complete. Nothing is changed where no slices
 * are asked for, or one would do. STATUS_INVALID: more than one image, or more slices than a
 * request may have images; errors of work_expect_answer(). `slices` must live as long as the work.
 */
enum status slices_begin(struct exchange *exchange, struct predict_request *request,
                         struct slicing *slices, struct error *err) MUST_USE;

/* In `finish`: merges what the slices answered into one image, the only one that is left. */
void slices_end(struct predict_request *request, const struct slicing *slices);

void slices_free(struct slicing *slices);
