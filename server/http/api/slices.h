/* POST /predict?slices=640: a photo in overlapping slices (models/tasks/slices.h).
 *
 * - slices_set: reads a parameter.
 * - slices_begin: divides the request of one photo into parts: the second one has the slices and
 * the whole photo, which all read the same pixels. Then their boxes are merged. */
#pragma once

#include "models/tasks/slices.h"
#include "server/schedule/runtime/parts.h"

/* Zeroed: no slices. */
struct sliced_photo {
    struct request_parts parts; /* first; without a whole: it is answered as a whole */
    uint32_t side;              /* 0: not asked for */
    double overlap;
    bool has_overlap, has_rule;
    enum slices_rule rule;
    size_t count;
    struct photo_slice *places; /* of each slice, then of the whole photo */
};

/* Whether `name` is one of the parameters slices, overlap and merge. */
bool slices_is_parameter(const char *name);

/* Reads one of them. STATUS_INVALID. */
enum status slices_set(struct sliced_photo *slices, const char *name, const char *text,
                       struct error *err) MUST_USE;

/* To be called when `request` is complete. Nothing is changed where no slices are asked for, or one
 * would do. STATUS_INVALID: more than one image, or more slices than `max_images`, of which the
 * photo is one. `slices` must live as long as the request's work. */
enum status slices_begin(struct predict_request *request, size_t max_images,
                         struct sliced_photo *slices, struct error *err) MUST_USE;

void slices_free(struct sliced_photo *slices);
