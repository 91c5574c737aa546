/* Every open connection, and a thread that watches them.
 *
 * libmicrohttpd does not watch a suspended connection, and its own time limit counts only silence.
 * The watcher thread therefore handles
 *   - hang-ups: if a client disconnects while its images wait, its request is cancelled. A client
 *     that has only shut down its sending side is answered. EPOLLRDHUP does not tell these two
 *     cases apart. So the watcher sends an interim answer, and the system of a disconnected client
 *     replies with a reset;
 *   - time limits for headers and for bodies, even if bytes arrive slowly: 408;
 *   - bodies that libmicrohttpd cannot continue to read: 413;
 *   - clients that read their answers more slowly than CONNECTION_MIN_RATE: disconnected;
 *   - the number of connections from one address: 429;
 *   - the number of all connections: a new connection replaces an idle one (make_room_locked());
 *   - penalties: if a refused client comes back at once, its next request is delayed (penalty.h).
 *
 * The watcher sleeps until a client begins a request or hangs up. While requests are in progress,
 * the watcher checks their connections every 100 ms. The watcher never visits connections that wait
 * for a request.
 *
 * To refuse a connection, the watcher writes the answer directly to its socket and shuts down our
 * sending side. For up to two seconds the connection's own thread still reads and drops the
 * client's bytes: closing the socket at once would send a TCP reset, which discards the answer. The
 * watcher writes only while libmicrohttpd has nothing to write. Under TLS only the connection's own
 * thread may write: the answer to late headers or a late body is kept until that thread next reads
 * (connection_send_pending_refusal()). A late handshake and, under TLS or gRPC, a connection beyond
 * the limit of its address are closed without an answer.
 *
 * Thread-safe: one lock guards the table, the phases and the pointers to requests. No other lock is
 * taken while it is held: a request is pinned under the lock and cancelled after it is released. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "engine/base/status.h"
#include "server/http/transport/penalty.h"
#include "server/http/transport/tls.h"
#include "server/http/transport/trusted_proxies.h"
#include "server/schedule/runtime/model_host.h"

struct connections;
struct event_loop;
struct exchange;
struct http_server;
TAILQ_HEAD(connection_list, connection);

enum connection_phase {
    CONNECTION_AWAITS_REQUEST, /* waits for a request, or for the rest of its headers */
    CONNECTION_DELAYED,        /* the headers have arrived; suspended until a penalty is over */
    CONNECTION_BODY,           /* the body is arriving */
    CONNECTION_WORKING,        /* the whole request has arrived */
    CONNECTION_ANSWERING,      /* the answer is being sent */
    CONNECTION_REFUSED,        /* refused, with or without an answer; further bytes are dropped */
};

/* Connections beyond --max-connections. They are accepted for probes when no connection is idle. */
#define CONNECTION_SPARE 16

/* Connections to --admin-port, besides CONNECTION_SPARE. They do not count in --max-connections. */
#define CONNECTION_ADMIN 64

/* The minimum rate, in bytes per second, at which a client must read its answer, averaged over each
 * --answer-timeout. Modems and the slowest mobile networks (32 kbit/s) reach it. */
#define CONNECTION_MIN_RATE 4096

/* Creates the table, for the options of the server, which it borrows. NULL when out of memory. */
struct connections *connections_create(struct http_server *server);

/* Starts the watcher's thread. STATUS_IO. */
enum status connections_start(struct connections *connections, struct error *err) MUST_USE;

/* Ends the watcher's thread. No request is resumed or cancelled afterwards. Repeatable. */
void connections_stop(struct connections *connections);

/* The watcher's thread must have ended, and every connection must be closed. Accepts NULL. */
void connections_free(struct connections *connections);

struct connection {
    /* The caller of connection_open() sets these members. */
    int fd;
    gnutls_session_t tls;    /* NULL without TLS; not used after connection_close() */
    struct event_loop *loop; /* NULL if is_multiplexed; outlives the connection */
    bool is_admin;           /* came to --admin-port, which has a limit of its own */
    bool is_multiplexed;     /* HTTP/2: the caller checks times and hang-ups itself */

    /* connection_open() sets these members. */
    struct connections *table;
    char address[PEER_ADDRESS_MAX]; /* the client's (trusted_proxies_text()) */
    uint64_t client;                /* penalty_client(address, NULL) */
    uint32_t generation; /* in epoll events, tells successive sockets with the same fd apart */
    bool is_unix;        /* the kernel does not count bytes of Unix sockets */
    bool is_spare;       /* one of CONNECTION_SPARE connections, which serve only probes */
    int64_t opened;      /* clock_now() */

    /* Used by the connection's own thread only. */
    struct exchange *exchange; /* the current one; or NULL. resume_delayed() reads it, too */
    void *pool;       /* libmicrohttpd's memory pool for this connection; NULL: not known */
    int64_t answered; /* clock_now() at the last answer; 0: the connection is not in loop->idle */
    TAILQ_ENTRY(connection) idle;

    /* The connection's own thread sets these members before it enters a phase in which the watcher
     * reads them. */
    size_t answer_size; /* CONNECTION_ANSWERING */
    bool may_ask;       /* CONNECTION_DELAYED, CONNECTION_WORKING: an interim answer may be sent, to
                           find out if the client has disconnected */

    /* Guarded by the table's lock. */
    struct connection_list *list; /* `quiet`, `headers` or `checked` of the table */
    TAILQ_ENTRY(connection) listed;
    enum connection_phase phase;
    bool has_shaken; /* TLS: the handshake has ended */
    int refusal;     /* HTTP status of the watcher's refusal; 0: none. It does not change after
                        connection_enter() has returned false */
    int64_t since; /* clock_now() at the start of the phase, or of the period of is_slow_locked() */
    int64_t header_since; /* when the header's first bytes were read; 0: none yet */
    uint64_t acked;       /* bytes that the client had acknowledged at `since`, during an answer */
    bool knows_acked;
    _Atomic bool gone;     /* the client has disconnected; any thread may read it */
    int64_t ended;         /* when the client shut down its sending side; 0: not yet */
    bool has_asked_end;    /* the interim answer was sent */
    bool is_leaving;       /* shut down in both directions; no longer counts in --max-connections */
    char *pending_refusal; /* owned; see connection_send_pending_refusal */
    size_t pending_refusal_size;
    struct exchange *watched; /* the exchange whose request is in progress; NULL: none */
    uint64_t taken, run;      /* bytes read from the socket, and loop->runs, at the last tick */
    bool had_unread;          /* at the last tick, unread bytes were waiting */
    struct penalty penalty;
    bool has_asked; /* exchange_delay() has been called */
    int64_t delayed_until;
    struct connection *next_delayed;
};

/* Adds a new socket to the table, before its TLS handshake. Copies `given`; `address` is the
 * client's, for trusted_proxies_text(). Returns NULL when out of memory; the caller still closes
 * the socket. A connection beyond the limit of its address is refused at once. */
struct connection *connection_open(struct connections *connections, const struct connection *given,
                                   const struct sockaddr *address);
void connection_close(struct connection *connection);

/* Returns the open connection of a socket, or NULL. */
struct connection *connections_find(struct connections *connections, int fd);

/* Call this on the connection's own thread after libmicrohttpd has read into `bytes`. The first
 * bytes of a request start the time limit of its headers. The address of the connection's very
 * first bytes is the start of its memory pool. */
void connections_note_read(struct connections *connections, int fd, void *bytes);

/* Call this on the connection's own thread when libmicrohttpd has sent an answer and keeps the
 * connection. `answered`: clock_now() before it sent the answer. */
void connection_note_idle(struct connection *connection, int64_t answered);

/* Gives memory back to the system: the pools of connections that have been idle for a second. Call
 * it on the loop's thread, outside libmicrohttpd. Returns the milliseconds until the next call; -1:
 * no call is necessary before another request is answered. */
int connections_release_pools(struct event_loop *loop);

/* Enters a phase. Returns false, without a change, if the connection was refused: do not answer. */
bool connection_enter(struct connection *connection, enum connection_phase phase);

/* Writes `answer` (a whole HTTP response) to the socket and shuts down our sending side, if it is
 * still open. Call it from the connection's own thread. */
void connection_refuse(struct connection *connection, const char *answer, size_t size);

/* Under TLS: sends the watcher's pending refusal of this connection, if any, and shuts down our
 * sending side. Returns whether there was one. Call it from the connection's own thread when a part
 * of the body arrives. */
bool connection_send_pending_refusal(struct connection *connection);

/* Watches for a hang-up on behalf of `request`. When the client disconnects, sets
 * request->cancelled and removes the request's waiting images from the model host. If the client
 * has disconnected before, only sets request->cancelled. NULL ends the watch. Afterwards the
 * request is used only while it is pinned, and a pinned request does not complete. Any thread. */
void connections_watch(struct exchange *exchange, struct predict_request *request);

/* Cancels the request of an exchange for whose answer nobody waits. For carriers that notice
 * hang-ups themselves. */
void connections_cancel(struct exchange *exchange);

/* Makes the watcher's thread, or connections_end_delays(), call exchange_resume() once for the
 * exchange of a suspended connection: at `until`, or when the client hangs up. Returns false, and
 * does not resume the exchange, if the connection has been refused or delays have ended. */
bool connection_delay(struct connection *connection, int64_t until);

/* Resumes all delayed connections. Later requests are not delayed. */
void connections_end_delays(struct connections *connections);

/* Returns the number of open connections and the number of those with a request in progress.
 * Connections to --admin-port do not count. */
void connections_count(struct connections *connections, size_t *ret_open, size_t *ret_busy);

/* True if unread bytes wait on a connection, except those to --admin-port. */
bool connections_have_unread(struct connections *connections);

/* ---- private to connections.c and connection_watcher.c ----
 *
 * Call the functions named *_locked with the lock held. */

/* Number of counters of open connections. Clients whose hashes select the same counter share it. */
#define CONNECTION_CLIENT_SLOTS 4096

/* The table and the watcher's thread. Any thread adds to gone_total a client that hung up before
 * the end of its request, and to timeout_total a client that exceeded a time limit. */
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

/* Sets `cancelled` in the request of the exchange, if any. Returns the request, pinned, for
 * model_host_cancel(); NULL if there is no request or if it cannot be pinned. */
struct predict_request *connection_cancel_locked(struct exchange *exchange);

/* Ends the connection without an answer. */
void connection_leave_locked(struct connection *connection);

/* Answers with an error and shuts down our sending side, on any thread. Under TLS this function
 * only stores the answer. The connection's own thread sends the answer
 * (connection_send_pending_refusal()) when the client's next bytes arrive, or when check_times()
 * stops waiting for bytes. `http`: the HTTP status; `code`:
 * the error code in the JSON. The connection must not have been refused before. */
void connection_refuse_locked(struct connection *connection, int http, const char *code,
                              const char *sentence);
