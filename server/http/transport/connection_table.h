/* Private to connections.c and connection_watcher.c: their shared table of connections. Call the
 * functions named *_locked with the lock held. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http/transport/connections.h"
#include "server/http/transport/penalty.h"
#include "server/http/transport/tls.h"
#include "server/http/transport/trusted_proxies.h"

/* Number of counters of open connections. Clients whose hashes select the same counter share it. */
#define CONNECTION_CLIENT_SLOTS 4096

struct connection {
    int fd;
    uint32_t generation; /* in epoll events, tells successive sockets with the same fd apart */
    char address[PEER_ADDRESS_MAX];
    uint64_t client;      /* penalty_client(address, NULL) */
    gnutls_session_t tls; /* NULL without TLS */
    struct tls_reader reader;
    struct connections *owner;
    bool is_unix;        /* the kernel does not count bytes of Unix sockets */
    bool is_spare;       /* beyond limits.total: serves only probes */
    bool is_admin;       /* came to --admin-port */
    bool is_multiplexed; /* HTTP/2: the watcher does not watch it */
    int64_t opened;      /* clock_now() */

    /* Used by the connection's own thread only. */
    struct connection_loop *loop;
    struct exchange *exchange;
    void *pool;       /* libmicrohttpd's memory pool for this connection; NULL: not known */
    int64_t answered; /* clock_now() at the last answer; 0: the connection is not in loop->idle */
    TAILQ_ENTRY(connection) idle;

    /* Guarded by connections->lock. */
    struct connection_list *list; /* `quiet`, `headers` or `checked` of the table */
    TAILQ_ENTRY(connection) listed;
    enum connection_phase phase;
    bool has_shaken; /* TLS: the handshake has ended */
    int refusal;     /* HTTP status of the watcher's refusal; 0: none */
    int64_t since;   /* clock_now() at the start of the phase, or of an answer's current period */
    int64_t header_since; /* when the header's first bytes were read; 0: none yet */
    uint64_t acked;       /* bytes that the client had acknowledged at `since`, during an answer */
    bool knows_acked;
    size_t answer_size; /* size of the answer that is being sent */
    bool gone;
    int64_t ended; /* when the client shut down its sending side; 0: not yet */
    bool may_ask;  /* an interim answer may be sent, to find out if the client has disconnected */
    bool has_asked_end;    /* the interim answer was sent */
    bool is_leaving;       /* shut down in both directions; no longer counts towards limits.total */
    char *pending_refusal; /* owned; see connection_send_pending_refusal */
    size_t pending_refusal_size;
    struct predict_request *request; /* in progress; NULL: none */
    uint64_t taken, run; /* bytes read from the socket, and loop->runs, at the last tick */
    bool had_unread;     /* at the last tick, unread bytes were waiting */
    struct penalty penalty;
    bool has_asked; /* connection_penalty() has been called */
    int64_t delayed_until;
    struct connection *next_delayed;
    void (*resume)(void *context);
    void *resume_context;
};

struct connections {
    struct connection_limits limits;
    struct connection_observer observer;
    struct model_host *model_host;
    struct metric *gone_total, *timeout_total, *late_handshakes, *delayed_total, *shed_total,
        *open_gauge;
    int epoll_fd, wake_fd;
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

/* Creates the table, without a thread. NULL when out of memory. */
struct connections *connection_table_create(const struct connection_limits *limits,
                                            const struct connection_observer *observer,
                                            struct model_host *model_host, struct metrics *metrics);

/* Accepts NULL. First close every connection and end the thread. */
void connection_table_free(struct connections *connections);

/* Wakes the watcher's thread. */
void connection_table_wake(struct connections *connections);

/* Moves the connection to the list that its state requires. */
void connection_place_locked(struct connections *connections, struct connection *connection);

/* Enters a phase, even if the connection has been refused. */
void connection_enter_locked(struct connections *connections, struct connection *connection,
                             enum connection_phase phase);

/* Ends the connection without an answer. */
void connection_leave_locked(struct connections *connections, struct connection *connection);

/* Counts the bytes that the socket has received since it was opened, and the bytes that its client
 * has acknowledged. Returns false if the kernel does not report these counts. */
bool connection_bytes_passed(int fd, uint64_t *ret_received, uint64_t *ret_acked);

/* Answers with an error and shuts down our sending side, on any thread. Under TLS it only stores
 * the answer, and the connection's own thread sends it (connection_send_pending_refusal()). `http`:
 * the HTTP status; `code`: the error code in the JSON. */
void connection_refuse_locked(struct connections *connections, struct connection *connection,
                              int http, const char *code, const char *sentence);
