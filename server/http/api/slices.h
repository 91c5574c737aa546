/* POST /predict?slices=640: a photo in overlapping slices (models/tasks/slices.h).
 *
 * - slices_set: reads a parameter.
 * - slices_begin: divides the request for one photo into one part per slice and one part for the
 *   whole photo. All read the same pixels. Afterwards their boxes are merged. */
#pragma once

#include "models/tasks/slices.h"
#include "server/schedule/runtime/parts.h"

/* Zeroed: no slices. */
struct sliced_photo {
    struct request_parts parts; /* first; without `whole`, the photo is not sliced */
    uint32_t side;              /* 0: no slices requested */
    double overlap;
    bool has_overlap, has_rule;
    enum slices_rule rule;
    size_t count;
    struct photo_slice *places; /* places of the slices, then of the whole photo */
};

/* True for the names of the parameters: slices, overlap and merge. */
bool slices_is_parameter(const char *name);

/* Reads one of these parameters. STATUS_INVALID. */
enum status slices_set(struct sliced_photo *slices, const char *name, const char *text,
                       struct error *err) MUST_USE;

/* Call it when `request` is complete. Does nothing if no slices are requested, or one slice is
 * enough. STATUS_INVALID: more than one image, or more slices than `max_images`, including the
 * whole photo. `slices` must live as long as the request's work. */
enum status slices_begin(struct predict_request *request, size_t max_images,
                         struct sliced_photo *slices, struct error *err) MUST_USE;

void slices_free(struct sliced_photo *slices);
