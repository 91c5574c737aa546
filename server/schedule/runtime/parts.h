/* A request in parts: its photos are decoded first. Then parts of the photos run as images of
 * further requests, one request after the other. At the end the answers are merged.
 *
 *     whole, decode_only ─▶ part ─▶ part ─▶ … ─▶ whole has the answers
 *
 * A plan chooses the next part: slices.c cuts a photo into tiles for one detector, stages.c crops a
 * detector's boxes for the next model. Parts have the deadline, client and priority of `whole`, and
 * are batched like other requests. One thread at a time. */
#pragma once

#include "server/schedule/runtime/model_host.h"

/* A part: a request whose images are crops. It lives until parts_done(), because answers refer to
 * its model. */
struct request_part {
    struct predict_request request;
    struct image *crops; /* request.images[i].pixels is crops[i] */
    struct request_part *before;
};

struct request_parts {
    struct predict_request *whole; /* the caller's; NULL: the request has no parts */
    struct request_part *last;     /* the newest part; NULL: there is none yet */

    /* The plan. Called when the photos of `whole` have been decoded, and then after each part. *ret
     * is the next part, from parts_add(); NULL: no part is left, and `whole` has its answers. A
     * failure fails the whole request. */
    enum status (*next)(struct request_parts *parts, struct request_part **ret, struct error *err);
};

/* Makes `whole` the first request, which only decodes its photos. */
void parts_begin(struct request_parts *parts, struct predict_request *whole);

/* Adds a part of `count` images without pixels, for `model` (borrowed), with the options and the
 * callback of `whole`. NULL when out of memory. */
struct request_part *parts_add(struct request_parts *parts, const char *model, size_t count);

/* An image that borrows a `width` x `height` rectangle of `picture`, whose top left corner is (x,
 * y). */
struct image parts_view(const struct image *picture, uint32_t x, uint32_t y, uint32_t width,
                        uint32_t height);

/* An image that borrows the pixels of a decoded photo of `whole`. */
struct image parts_photo(const struct predict_image *photo);

/* Records that the model which answered `part` answers the whole request. */
void parts_answered_by(struct request_parts *parts, const struct request_part *part);

/* Frees the parts, but not `whole`; accepts a zeroed struct. */
void parts_done(struct request_parts *parts);
