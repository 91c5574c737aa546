/* Private to server/http/transport: starts libmicrohttpd, tells it to accept no more, stops it. */
#pragma once

#include "server/http/transport/event_loop.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/listen.h"
#include "server/http/transport/tls.h"

struct request_log;

/* One of --http-threads: they share the listening socket, each has its connections to itself. */
struct daemon_loop {
    struct event_loop events;
    struct http_server *server;
};

struct http_daemon {
    struct daemon_loop *loops;
    size_t loop_count; /* that have been started */
    struct listener listener;
    bool is_quiesced; /* nobody looks at the listener any more */
    struct tls *tls;  /* NULL: plain */
    struct metric *certificate_expires;
    struct request_log *log;
};

/* Starts its threads on server->daemon->listener. False: libmicrohttpd refuses. */
bool daemon_start(struct http_server *server, size_t max_connections);

/* It accepts no more. */
void daemon_quiesce(struct http_server *server);

/* Ends its threads and closes its connections, not the listener. Fine when it was not started. */
void daemon_stop(struct http_server *server);

const char *daemon_version(void);
