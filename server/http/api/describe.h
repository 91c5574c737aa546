/* What the server and the command line both show, as JSON: from the pipeline's structs to the plain
 * descriptions of proto/answers.h. */
#pragma once

#include "server/schedule/runtime/pipeline.h"

/* The answer to a request that is done (on_done was called), as a list, each with the precision it
 * was computed in where `model` (NULL: not known) tells it. total_ms: since request->started.
 * malloc'ed; NULL when out of memory. */
char *describe_predictions(const struct predict_request *request, const struct model_status *model,
                           double total_ms, size_t *ret_size);

/* Whether writing the answer takes long although it is small: pictures are encoded, masks
 * converted. */
bool describe_is_slow(const struct predict_request *request);

/* The same without the precision, in any form. */
enum describe_form {
    DESCRIBE_JSON,
    DESCRIBE_LINES,
    DESCRIBE_NUMBERS,
    DESCRIBE_JPEG, /* pictures are annotate.h's; errors instead of them are JSON */
    DESCRIBE_PNG,
    DESCRIBE_TORCHSERVE, /* {label: probability} */
    DESCRIBE_KSERVE,     /* {"predictions": [{"classes", "indices", "probabilities"}]} */
};
char *describe_predictions_as(enum describe_form form, const struct predict_request *request,
                              bool as_list, double total_ms, size_t *ret_size);

/* Every device of the machine with the models that `pipeline` (NULL: none) has on it. */
char *describe_devices(struct pipeline *pipeline, const char *note, size_t *ret_size);

/* The state, the models and their progress. `draining` overrules the pipeline's own state. */
char *describe_health(struct pipeline *pipeline, bool draining, double uptime_s, const char *note,
                      const char *confinement, size_t *ret_size);

/* "loading", "ready", "draining", "failed", "unloaded". */
const char *describe_state(struct pipeline *pipeline, bool draining);
