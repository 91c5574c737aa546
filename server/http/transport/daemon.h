/* Private to server/http/transport: starts and stops libmicrohttpd, and accepting connections. */
#pragma once

#include "server/http/transport/event_loop.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/listen.h"
#include "server/http/transport/tls.h"

struct grpc_server;
struct request_log;
struct zmq_server;

struct http_daemon {
    struct event_loop *loops; /* of --http-threads, which share the listening socket, and a last one
                                 if there is --admin-port */
    size_t loop_count;        /* started so far */
    struct listener listener, admin, grpc; /* fd -1: not open */
    struct grpc_server *grpc_server;       /* NULL without --grpc-port */
    struct zmq_server *zmq_server;         /* NULL without --zmq-port */
    bool is_quiesced;                      /* no thread accepts from the listener */
    struct tls *tls;                       /* NULL without TLS */
    struct metric *certificate_expires;
    struct request_log *log;
};

/* Starts the threads of server->daemon on its listeners. STATUS_IO: libmicrohttpd has failed, or
 * memory, threads or descriptors have run out; daemon_stop() then ends what has started. */
enum status daemon_start(struct http_server *server, struct error *err) MUST_USE;

/* Starts or stops accepting connections from the listener, or from the admin listener. */
void daemon_accept(struct http_server *server, bool is_admin, bool accepts);

/* The number of accepted HTTP connections whose PROXY header has not arrived. */
size_t daemon_unread(const struct http_server *server);

/* Ends the threads, if any, and closes their connections, but not the listeners. */
void daemon_stop(struct http_server *server);
