/* Private to connections.c and connection_watcher.c: their shared table of connections. Call the
 * functions named *_locked with the lock held. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http/transport/connections.h"
#include "server/http/transport/exchange.h"

/* Number of counters of open connections. Clients whose hashes select the same counter share it. */
#define CONNECTION_CLIENT_SLOTS 4096

struct connections {
    struct http_server *server;
    struct metric *gone_total, *timeout_total, *late_handshakes, *delayed_total, *shed_total,
        *open_gauge;
    int epoll_fd, wake_fd; /* wake_fd: an eventfd that wakes the watcher's thread */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock;
    bool stop;
    bool delays_ended;
    /* Every connection is in one of three lists. */
    struct connection_list quiet;   /* connections without a time limit, which no tick visits */
    struct connection_list headers; /* headers are arriving; ordered by header_since */
    struct connection_list checked; /* visited at every tick: they have a body or an answer on its
                                       way, or have been refused or ended by the client */
    bool is_active;                 /* a request has been in progress since the last tick */
    bool rests; /* the watcher sleeps longer than a tick; wake it when a request begins */
    struct connection *delayed; /* a list, linked by next_delayed */
    struct penalty_table penalties;
    int64_t refused;           /* time of the last refusal with Retry-After; 0: never */
    struct connection **by_fd; /* indexed by socket; NULL: no connection */
    size_t by_fd_count;
    struct connection_count {
        size_t open, busy, leaving;
    } counts[2];                            /* [is_admin] */
    uint32_t held[CONNECTION_CLIENT_SLOTS]; /* open connections; `client` selects a counter */
    size_t shed;          /* idle connections closed to make room since the last warning */
    int64_t warned_until; /* no further warning before then */
    uint32_t generation;
};

/* Moves the connection to the list that its state requires. */
void connection_place_locked(struct connection *connection);

/* Enters a phase, even if the connection has been refused. */
void connection_enter_locked(struct connection *connection, enum connection_phase phase);

/* Sets `cancelled` in the request of the exchange, if any. Returns it, pinned, for
 * model_host_cancel(); NULL if there is none or if it cannot be pinned. */
struct predict_request *connection_cancel_locked(struct exchange *exchange);

/* Ends the connection without an answer. */
void connection_leave_locked(struct connection *connection);

/* Answers with an error and shuts down our sending side, on any thread. Under TLS it only stores
 * the answer, and the connection's own thread sends it (connection_send_pending_refusal()) when the
 * next bytes arrive, or when check_times() ends the wait for them. `http`: the HTTP status; `code`:
 * the error code in the JSON. The connection must not have been refused before. */
void connection_refuse_locked(struct connection *connection, int http, const char *code,
                              const char *sentence);
