/* The Open Inference Protocol over gRPC: reads the model's name in a message and calls the handlers
 * of api_v2.c and api_infer.c, which write messages if route->is_message. */
#include "engine/base/size.h"
#include "proto/v2.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

/* Reads the model's name in the message, and calls the route's handle_named. */
static void grpc_handle_named(struct exchange *x)
{
    struct error err;
    if (respond_if_long(x))
        return;
    if (v2_named_unpack(x->body.data, x->body.size, x->match.model, x->match.version, &err) !=
        STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    x->route->handle_named(x);
}

#define CALL(name, admitted, handler, who, ...)                                                    \
    {                                                                                              \
        .path = "/inference.GRPCInferenceService/" name, .methods = METHOD_POST,                   \
        .takes_body = true, .admit = admitted, .handle = handler, .access = who,                   \
        .dialect = &dialect_grpc, .is_message = true, __VA_ARGS__                                  \
    }
#define NAMED(name, handler, who, ...)                                                             \
    CALL(name, NULL, grpc_handle_named, who, .handle_named = handler, __VA_ARGS__)

static const struct route routes[] = {
    CALL("ModelInfer", v2_admit, v2_infer_handle, ROUTE_KEY),
    CALL("ModelStreamInfer", v2_admit, v2_infer_handle, ROUTE_KEY, .streams = true),
    CALL("ServerLive", NULL, v2_live_handle, ROUTE_OPEN),
    CALL("ServerReady", NULL, v2_ready_handle, ROUTE_OPEN),
    NAMED("ModelReady", v2_model_ready_handle, ROUTE_OPEN),
    CALL("ServerMetadata", NULL, v2_server_handle, ROUTE_KEY),
    NAMED("ModelMetadata", v2_document_handle, ROUTE_KEY, .document = V2_METADATA),
    NAMED("ModelConfig", v2_document_handle, ROUTE_KEY, .document = V2_CONFIG),
    NAMED("ModelStatistics", v2_stats_handle, ROUTE_KEY),
    CALL("RepositoryIndex", NULL, v2_index_handle, ROUTE_KEY),
    CALL("RepositoryModelLoad", NULL, v2_load_handle, ROUTE_ADMIN),
    CALL("RepositoryModelUnload", NULL, v2_unload_handle, ROUTE_ADMIN),
};

const struct route_table grpc_route_table = {routes, COUNT_OF(routes)};
