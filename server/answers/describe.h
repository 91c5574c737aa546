/* Converts the model host's answers to the plain descriptions of proto/answers.h, for the server
 * and the command line. */
#pragma once

#include "proto/dialects.h"
#include "server/schedule/runtime/model_host.h"

/* True if writing even a small answer may take long, because pictures are encoded, masks converted
 * or tracks followed. */
bool describe_is_slow(const struct predict_request *request);

enum describe_form {
    DESCRIBE_JSON,
    DESCRIBE_LINES,
    DESCRIBE_NUMBERS,
    DESCRIBE_JPEG, /* annotate_image() writes it; describe_predictions() writes JSON */
    DESCRIBE_PNG,
};

/* How to write an answer. */
struct describe_how {
    enum describe_form form; /* for answers of lensd's own API */
    /* The caller sets what the request does not tell: the dialect, as_list, total_ms and so on. The
     * model is the pipeline's name; NULL: the name of the model that answered. */
    struct predict_answer answer;
    const struct model_status *status; /* gives the precision; NULL: unknown */
    /* Reserves memory for pixels of masks (dialect->has_pixels); NULL: there is no limit. If `take`
     * fails, the description fails with the error in *err. */
    enum status (*take)(void *context, size_t bytes, struct error *err);
    void *context;
    struct error *err;
};

/* Writes the answer to a completed request (on_done was called). The result is malloc'ed; NULL when
 * out of memory, or if `take` failed. Only DESCRIBE_NUMBERS needs `ret_size`. */
char *describe_predictions(const struct predict_request *request, const struct describe_how *how,
                           size_t *ret_size);

/* Returns the text that was read in a line, or in the crops of a page's boxes, malloc'ed; NULL when
 * out of memory. */
char *describe_text(const struct predict_image *image);

/* Returns the kind of the answers to a completed request. */
enum answer_kind describe_kind(const struct predict_request *request);
