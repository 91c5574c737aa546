/* The table of every route that lensd serves, and the handlers in it. A handler runs on its
 * connection's thread, must not block, and answers (respond.h) or waits (exchange_wait). */
#pragma once

#include "server/http/transport/routes.h"

extern const struct route_table http_route_table;
extern const struct route_table grpc_route_table; /* of --grpc-port */
extern const struct route_table zmq_route_table;  /* of --zmq-port */

/* The handlers. */
enum status predict_admit(struct exchange *exchange, struct error *err);
void predict_handle(struct exchange *exchange);
enum status dialect_admit(struct exchange *exchange, struct error *err);
void health_handle(struct exchange *exchange);
void livez_handle(struct exchange *exchange);
void readyz_handle(struct exchange *exchange);
void ping_handle(struct exchange *exchange);
void devices_handle(struct exchange *exchange);
void metrics_handle(struct exchange *exchange);
void logging_handle(struct exchange *exchange);
void page_handle(struct exchange *exchange);
void root_handle(struct exchange *exchange);
void asset_handle(struct exchange *exchange); /* answers with the file for route->path */
/* Answer with route->fixed: as JSON, or as a refusal with 501. */
void fixed_handle(struct exchange *exchange);
void absent_handle(struct exchange *exchange);
void console_json_handle(struct exchange *exchange);
void deepstack_list_handle(struct exchange *exchange);
void deepstack_ping_handle(struct exchange *exchange);
void labelled_models_handle(struct exchange *exchange);
enum status face_admit(struct exchange *exchange, struct error *err);
void face_list_handle(struct exchange *exchange);
void face_delete_handle(struct exchange *exchange);
void roboflow_registry_handle(struct exchange *exchange);
void kserve_model_handle(struct exchange *exchange);
void kserve_models_handle(struct exchange *exchange);
enum status v2_admit(struct exchange *exchange, struct error *err);
void v2_live_handle(struct exchange *exchange);
void v2_ready_handle(struct exchange *exchange);
void v2_server_handle(struct exchange *exchange);
void v2_model_ready_handle(struct exchange *exchange);
void v2_document_handle(struct exchange *exchange); /* answers with route->document */
void v2_stats_handle(struct exchange *exchange);
void v2_infer_handle(struct exchange *exchange);
void v2_index_handle(struct exchange *exchange);
void v2_load_handle(struct exchange *exchange);
void v2_unload_handle(struct exchange *exchange);
