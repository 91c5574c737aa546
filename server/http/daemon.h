/* libmicrohttpd, as server.c sees it: a thing that is started, told to accept no more, and stopped.
 * Private to this room. */
#pragma once

#include "server/http/exchange.h"
#include "server/http/listen.h"
#include "server/http/tls.h"

struct MHD_Daemon;
struct request_log;

struct http_daemon {
    struct MHD_Daemon *mhd;
    struct listener listener;
    bool is_quiesced; /* libmicrohttpd has given the listener's descriptor back */
    struct tls *tls;  /* NULL: plain */
    struct metric *certificate_expires;
    struct request_log *log;
};

/* Starts its threads on server->daemon->listener. False: it will not have it. */
bool daemon_start(struct http_server *server, size_t max_connections);

/* It accepts no more, and gives the listening descriptor back. */
void daemon_quiesce(struct http_server *server);

/* Ends its threads and closes its connections, and the listening descriptor unless it gave it back.
 * Fine when it was not started. */
void daemon_stop(struct http_server *server);

const char *daemon_version(void);
