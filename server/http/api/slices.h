/* POST /predict?slices=640: a photo in overlapping slices (models/tasks/slices.h).
 *
 * The photo is decoded first. Then an image for each slice, and one for the whole photo, are
 * submitted; all these images use the decoded photo's pixels. At the end the boxes are merged. */
#pragma once

#include "models/tasks/slices.h"
#include "server/schedule/runtime/parts.h"

/* A zeroed struct means that the request has no slices. */
struct sliced_photo {
    struct request_parts parts; /* must be first; `whole` is NULL if the photo is not sliced */
    uint32_t side;              /* 0: no slices requested */
    double overlap;
    bool has_overlap, has_rule;
    enum slices_rule rule;
    size_t count;               /* number of slices, without the whole photo */
    struct photo_slice *places; /* owned: places of the slices, then of the whole photo */
};

/* True for the names of the parameters: slices, overlap and merge. */
bool slices_is_parameter(const char *name);

/* Reads a parameter whose name slices_is_parameter() accepts. STATUS_INVALID. */
enum status slices_set(struct sliced_photo *slices, const char *name, const char *text,
                       struct error *err) MUST_USE;

/* Call it when `request` is complete. Does nothing if no slices are requested, one slice is enough,
 * or the photo cannot be read. STATUS_INVALID if the request has more than one image, or if slices
 * and whole photo are more than `max_images`. `slices` must live as long as the request's work. */
enum status slices_begin(struct predict_request *request, size_t max_images,
                         struct sliced_photo *slices, struct error *err) MUST_USE;

void slices_free(struct sliced_photo *slices);
