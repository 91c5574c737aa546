/* Stands in for the pipeline, which the targets of the HTTP server have no use for: their handlers
 * submit nothing. */
#include "server/schedule/runtime/pipeline.h"
#include "tests/fuzz/target.h"

bool predict_request_pin(struct predict_request *request)
{
    (void)request;
    abort();
}

void pipeline_cancel(struct pipeline *pipeline, struct predict_request *request)
{
    (void)pipeline;
    (void)request;
    abort();
}
