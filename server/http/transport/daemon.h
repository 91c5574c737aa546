/* Private to server/http/transport: starts and stops libmicrohttpd, and accepting connections. */
#pragma once

#include "server/http/transport/exchange.h"

/* Starts the threads of the server's listeners. STATUS_IO: libmicrohttpd has failed, or
 * memory, threads or descriptors have run out; daemon_stop() then ends what has started. */
enum status daemon_start(struct http_server *server, struct error *err) MUST_USE;

/* Starts or stops accepting connections from the listener, or from the admin listener. */
void daemon_accept(struct http_server *server, bool is_admin, bool accepts);

/* The number of accepted HTTP connections whose PROXY header has not arrived. */
size_t daemon_unread(const struct http_server *server);

/* Ends the threads, if any, and closes their connections, but not the listeners. */
void daemon_stop(struct http_server *server);
