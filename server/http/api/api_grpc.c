/* The Open Inference Protocol over gRPC: reads the model's name in a message and calls the HTTP
 * handlers, which write messages for these routes (route->is_message). */
#include "engine/base/size.h"
#include "proto/v2.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

static enum status grpc_admit(struct exchange *x, struct error *err)
{
    if (atomic_load(&x->server->draining))
        return error_set(err, STATUS_DRAINING, "the server is shutting down; ask another one");
    return STATUS_OK; /* only the message names the model */
}

/* Reads the message of a call about one model, then calls its handler. */
static void grpc_handle_named(struct exchange *x, void (*handle)(struct exchange *exchange))
{
    struct v2_named named;
    struct error err;
    if (respond_if_long(x))
        return;
    if (v2_named_unpack(x->body.data, x->body.size, &named, &err) != STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    submission_name_model(x, &named);
    handle(x);
}

static void grpc_model_ready(struct exchange *x)
{
    grpc_handle_named(x, v2_model_ready_handle);
}

static void grpc_metadata(struct exchange *x)
{
    grpc_handle_named(x, v2_metadata_handle);
}

static void grpc_config(struct exchange *x)
{
    grpc_handle_named(x, v2_config_handle);
}

static void grpc_stats(struct exchange *x)
{
    grpc_handle_named(x, v2_stats_handle);
}

static void grpc_handle_repository(struct exchange *x, void (*handle)(struct exchange *exchange))
{
    struct v2_named named;
    struct error err;
    bool overrides;
    if (respond_if_long(x))
        return;
    if (v2_repository_unpack(x->body.data, x->body.size, &named, &overrides, &err) != STATUS_OK) {
        respond_error(x, &err);
    } else if (overrides) {
        respond_refusal(x, 400, "invalid_request",
                        "models are loaded from the repository as they lie there; \"config\" and "
                        "\"file:\" parameters are not taken");
    } else {
        submission_name_model(x, &named);
        handle(x);
    }
}

static void grpc_load(struct exchange *x)
{
    grpc_handle_repository(x, v2_load_handle);
}

static void grpc_unload(struct exchange *x)
{
    grpc_handle_repository(x, v2_unload_handle);
}

#define CALL(name, admitted, handler, who)                                                         \
    {                                                                                              \
        .path = "/inference.GRPCInferenceService/" name, .methods = METHOD_POST,                   \
        .takes_body = true, .admit = admitted, .handle = handler, .access = who,                   \
        .dialect = &dialect_grpc, .is_message = true                                               \
    }

static const struct route routes[] = {
    CALL("ModelInfer", grpc_admit, v2_infer_handle, ROUTE_KEY),
    {.path = "/inference.GRPCInferenceService/ModelStreamInfer",
     .methods = METHOD_POST,
     .takes_body = true,
     .admit = grpc_admit,
     .handle = v2_infer_handle,
     .dialect = &dialect_grpc,
     .is_message = true,
     .streams = true},
    CALL("ServerLive", NULL, v2_live_handle, ROUTE_OPEN),
    CALL("ServerReady", NULL, v2_ready_handle, ROUTE_OPEN),
    CALL("ModelReady", NULL, grpc_model_ready, ROUTE_OPEN),
    CALL("ServerMetadata", NULL, v2_server_handle, ROUTE_KEY),
    CALL("ModelMetadata", NULL, grpc_metadata, ROUTE_KEY),
    CALL("ModelConfig", NULL, grpc_config, ROUTE_KEY),
    CALL("ModelStatistics", NULL, grpc_stats, ROUTE_KEY),
    CALL("RepositoryIndex", NULL, v2_index_handle, ROUTE_KEY),
    CALL("RepositoryModelLoad", NULL, grpc_load, ROUTE_ADMIN),
    CALL("RepositoryModelUnload", NULL, grpc_unload, ROUTE_ADMIN),
};

const struct route_table grpc_route_table = {routes, COUNT_OF(routes)};
