/* Turns the texts of a request into tokens for their model. */
#pragma once

#include "models/folder/text_input.h"
#include "server/http/transport/exchange.h"
#include "server/schedule/runtime/model_host.h"

/* A zeroed struct means that the request has no texts. Free with texts_done(). */
struct request_texts {
    struct text_item *items; /* owned; what they point to is borrowed */
    size_t count;
    bool truncate;   /* truncate a text that is too long; otherwise refuse it */
    char model[128]; /* the model for these texts */
    struct text_rows rows;
};

/* Makes room for `count` texts. STATUS_NO_MEMORY. */
enum status texts_begin(struct request_texts *texts, size_t count, struct error *err) MUST_USE;
void texts_done(struct request_texts *texts);

/* Writes texts->rows, the deployment's inputs for the texts, and charges them to the body. Errors:
 * those of text_rows_make() and upload_charge(); STATUS_INVALID if the model takes no texts. */
enum status texts_make_rows(struct exchange *x, struct request_texts *texts,
                            const struct deployment *deployment, struct error *err) MUST_USE;
