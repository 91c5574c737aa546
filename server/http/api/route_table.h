/* The table of every route that lensd serves, and the handlers in it. A handler runs on its
 * connection's thread, must not block, and answers (respond.h) or waits (exchange_wait). */
#pragma once

#include "server/http/transport/routes.h"

extern const struct route_table http_route_table;
extern const struct route_table grpc_route_table; /* of --grpc-port */
extern const struct route_table zmq_route_table;  /* of --zmq-port */

admit_fn predict_admit, dialect_admit, face_admit, v2_admit;
exchange_fn predict_handle, health_handle, livez_handle, readyz_handle, ping_handle, devices_handle,
    metrics_handle, logging_handle, root_handle, console_json_handle, deepstack_list_handle,
    deepstack_ping_handle, labelled_models_handle, face_list_handle, face_delete_handle,
    roboflow_registry_handle, kserve_model_handle, kserve_models_handle, v2_live_handle,
    v2_ready_handle, v2_server_handle, v2_model_ready_handle, v2_stats_handle, v2_infer_handle,
    v2_index_handle, v2_load_handle, v2_unload_handle;
exchange_fn v2_document_handle;          /* answers with route->document */
exchange_fn asset_handle;                /* answers with the file for route->path */
exchange_fn fixed_handle, absent_handle; /* answer with route->fixed: as JSON, or as a 501 */
