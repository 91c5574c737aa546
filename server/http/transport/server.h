/* The HTTP server: sockets, limits, routes; answers come from the model host.
 *
 * It carries requests and answers, and calls handlers only through pointers in a table:
 *     server.c        start, reload, drain, end
 *     daemon.c        libmicrohttpd's callbacks, which create and end a request (struct exchange)
 *     event_loop.c    the threads that accept connections and drive libmicrohttpd
 *     inbox.c         tells a carrier's thread which requests go on
 *     admit.c         checks request line and headers before the body is read
 *     routes.c        finds the route of a path
 *     exchange.c      what a handler may do: wait, use an offload thread; packs its answer
 *     respond.c       answers and errors
 *     listen.c        the listening socket: binds, and stops accepting without losing clients
 *     connections.c   every open connection: phases, refusals, limits per address, penalties
 *     connection_watcher.c   hang-ups, time limits, delays
 *     proxy_pending.c, proxy_header.c   connections that begin with a PROXY header
 *     penalty.c       delays a refused client that comes back at once
 *     keys.c          API keys: who may send which requests, and how often
 *     response_cache.c   answers cached by request
 *     tls.c           the certificate
 *     upload.c        collects the body; counts the memory of all bodies and answers
 *     coding.c, multipart.c, negotiate.c, query.c: parsers of what clients send
 *     offload.c       threads for large bodies and answers
 *     grpc.c, grpc_connection.c, grpc_call.c   gRPC, on a port and a thread of its own
 *     zmq.c           ZeroMQ, likewise
 *     request_log.c   log line, counters and spans of a request
 *
 * The endpoints (server/http/api):
 *     route_table.c   every path and its handler
 *     api_*.c         one dialect or subject each    console_page.c: GET /
 *     submission.c    a predict request from its body to its answer; time limits, priority, client
 *
 * Libraries: libmicrohttpd only in daemon.c, event_loop.c and respond.c; nghttp2 in
 * grpc_connection.h and the files that include it; GnuTLS in keys.c, tls*, connection*, grpc*,
 * recv_hook.c and response_cache.c; zlib in coding.c; libzmq in zmq.c. Handlers run on the threads
 * of event_loop.c, gRPC and ZeroMQ and never wait for a model: /predict suspends its connection
 * until the model host is done. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "server/http/transport/keys.h"
#include "server/http/transport/listen.h"
#include "server/http/transport/routes.h"
#include "server/observe/metrics.h"
#include "server/observe/trace_exporter.h"
#include "server/schedule/runtime/model_host.h"

struct loader;

struct http_options {
    const char *host;       /* address or name to listen on */
    int port;               /* 0: any free one */
    int admin_port;         /* 0: none */
    int grpc_port;          /* 0: none */
    const char *zmq_port;   /* "5555", "ADDRESS:PORT" or an endpoint of ZeroMQ; NULL: none */
    int64_t zmq_timeout_ms; /* time limit of an answer to Frigate; 0: none */
    const char *unix_path;  /* path of a Unix socket to use instead of host and port, or NULL */
    unsigned unix_mode;     /* permissions of unix_path */
    const char *tls_cert, *tls_key; /* PEM files; NULL without TLS */
    bool is_immich;                 /* GET / and /ping answer like Immich's service */
    int threads;                    /* at least 1 */
    int top_k;                      /* number of predictions, if a request does not set it */
    const char *note; /* for /health and /devices: why --device auto chose the CPU, or "" */

    size_t max_body, max_upload_memory, max_header; /* bytes */
    size_t max_images, max_json_depth;
    size_t response_cache; /* bytes of cached answers; 0: no cache */
    size_t max_connections, max_connections_per_address;
    int64_t header_timeout_ms, body_timeout_ms, answer_timeout_ms, idle_timeout_ms;
    int64_t default_timeout_ms; /* for requests without a time limit; 0: none */

    size_t max_inflate_ratio;    /* inflated bytes per byte of a compressed body */
    const char *cors_origin;     /* "https://a.example,https://b.example" or "*"; NULL: none */
    const char *trusted_proxies; /* "10.0.0.0/8,::1"; NULL: none */
    bool proxy_protocol;         /* connections from trusted proxies begin with a PROXY header */
    const char *allowed_hosts;   /* "a.example,b.example" or "*"; NULL: "" on loopback, else "*" */
    struct keyring_options keys;

    const struct route_table *routes; /* borrowed, like all pointers below */
    const struct route_table *grpc_routes, *zmq_routes;
    struct model_host *model_host; /* outlives the server */
    struct loader *loader;         /* loads and unloads models; NULL if the models are fixed */
    struct metrics *metrics;       /* may be NULL */
    struct trace_exporter *traces; /* NULL: none are sent */
    struct faces *faces;           /* the registry of faces; NULL: there is none */
    struct tracks *tracks;         /* the tracks of all clients; NULL in tests */
};

struct http_server;

/* Opens the ports and starts the threads. Clients wait in the kernel's queue until
 * http_server_open(), which the same thread must call. STATUS_NOT_READY: an address is in use, or
 * this machine lacks it; STATUS_CONFIG: another option is wrong; STATUS_NO_MEMORY; STATUS_IO.
 * Borrows the texts of the options. */
enum status http_server_start(const struct http_options *options, struct http_server **ret,
                              struct error *err) MUST_USE;

/* Checks the address and the files in the options (API keys, certificate) without listening.
 * Warnings are sentences, or "". STATUS_NOT_READY and STATUS_CONFIG as http_server_start(), except
 * that a port in use is only a warning: the running server may use it with these options. */
struct http_warnings {
    char port[400], certificate[400];
};
enum status http_server_check(const struct http_options *options,
                              struct http_warnings *ret_warnings, struct error *err) MUST_USE;

/* Reads API keys and certificate again; the old ones stay if that fails. One thread at a time. */
enum status http_server_reload(struct http_server *server, struct error *err) MUST_USE;

/* Starts to serve clients. On a socket that a supervisor has passed (listen_take_passed()) clients
 * wait for http_server_accept(). Call this when the process has dropped its privileges.
 * `confinement` says, for /health, how the process is confined; borrowed. */
void http_server_open(struct http_server *server, const char *confinement);

/* Returns the listener of --port or --unix. */
const struct listener *http_server_listener(const struct http_server *server);

/* Makes the server report that it is not ready, and close each connection after its next answer.
 * Requests are answered as before. */
void http_server_begin_drain(struct http_server *server);

/* Starts accepting connections on a socket that a supervisor has passed. Call it when the models
 * are loaded, so that an earlier process can serve in the meantime. */
void http_server_accept(struct http_server *server);

/* Stops accepting connections, except on --admin-port. Open connections are still served. */
void http_server_stop_accepting(struct http_server *server);

/* Waits until every accepted request is answered and the remaining clients have stopped sending, or
 * until `deadline` (clock_now()). Returns whether the server is quiet. */
bool http_server_wait_quiet(struct http_server *server, int64_t deadline);

/* Closes everything. No request may be waiting for the model host: drain it first. Accepts NULL. */
void http_server_free(struct http_server *server);
