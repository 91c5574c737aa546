/* gRPC on a port of its own (--grpc-port): HTTP/2, with TLS or without, on one thread.
 *
 *     grpc.c              the thread: accepts, waits, resumes calls
 *     grpc_connection.c   a connection: bytes in and out, nghttp2, limits of what a client may send
 *     grpc_call.c         a call: messages become exchanges, answers become messages and trailers
 *     grpc_absent.c       instead of these in a build without libnghttp2
 *
 * A call's message is the body of an exchange, so that routes, keys, limits, the log and traces are
 * those of HTTP. Connections are in the table of all connections (connections.h), which counts them
 * and closes idle ones; their time limits are checked here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct grpc_server;
struct http_server;

/* STATUS_CONFIG in a build without libnghttp2. */
enum status grpc_check(struct error *err) MUST_USE;

/* Serves server->options.grpc_routes on a listening socket that does not block, which stays the
 * caller's, as does all else. STATUS_NO_MEMORY, STATUS_IO. */
enum status grpc_start(struct http_server *server, int listen_fd, struct grpc_server **ret,
                       struct error *err) MUST_USE;

/* From now on connections are told to make no more calls, and closed when theirs are answered. */
void grpc_begin_end(struct grpc_server *grpc);

/* Ends the thread and closes its connections. No exchange may wait any more. NULL is fine. */
void grpc_stop(struct grpc_server *grpc);
