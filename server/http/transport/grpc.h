/* gRPC on a separate port (--grpc-port): HTTP/2, with or without TLS, on one thread.
 *
 *     grpc.c              the thread: accepts, waits, resumes calls
 *     grpc_connection.c   a connection: reads, writes, nghttp2, limits on clients
 *     grpc_call.c         a call: turns messages into exchanges, answers into messages and trailers
 *     grpc_absent.c       replaces these files in a build without libnghttp2
 *
 * A call's message is the body of an exchange. So routes, keys, limits, the log and traces work as
 * for HTTP. The table of all connections (connections.h) counts these connections and closes idle
 * ones; the files here check their time limits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct grpc_server;
struct http_server;

/* STATUS_CONFIG in a build without libnghttp2. */
enum status grpc_check(struct error *err) MUST_USE;

/* Serves server->options.grpc_routes on the socket of server->grpc. Sets server->grpc_server, also
 * on failure, for grpc_stop(). STATUS_NO_MEMORY, STATUS_IO. */
enum status grpc_start(struct http_server *server, struct error *err) MUST_USE;

/* Asks clients to make no more calls, and closes each connection after its last answer. */
void grpc_begin_end(struct grpc_server *grpc);

/* Ends the thread and closes its connections. No exchange may be waiting. Accepts NULL. */
void grpc_stop(struct grpc_server *grpc);
