/* Every open connection, and a thread that watches over them.
 *
 * libmicrohttpd does not look at a suspended connection, and its own time limit counts only
 * silence. The watcher thread therefore sees to
 *   - hang-ups: a client that is gone while its images wait has its request cancelled. One that has
 *     only closed its sending side is answered; which of the two it is shows when it is sent
 *     something (EPOLLRDHUP, edge-triggered: no wake-up per packet);
 *   - time limits for headers and for bodies, however slowly bytes drip in: 408;
 *   - bodies that libmicrohttpd cannot go on reading: 400;
 *   - clients that take their answers more slowly than CONNECTION_MIN_RATE: cut off;
 *   - the number of connections from one address: 429;
 *   - the number of all connections: the oldest that waits for a request is closed for a new one;
 *   - penalties: the next request of a client that was refused, and comes back at once, sleeps for
 *     a while (penalty.h).
 *
 * A connection is refused by writing the answer straight to its socket and shutting down our side.
 * The client's bytes are still read and dropped for a moment, so that the answer is not lost to a
 * TCP reset while it is still sending. That is only done while libmicrohttpd has nothing to write.
 * Under TLS only the connection's own thread may write: what the watcher has to say of late headers
 * or a late body is kept until that thread reads the next time (connection_last_words). A handshake
 * that is late is cut off without a word and counted by itself, as one connection too many is.
 *
 * Thread-safe: one lock guards the table, the phases and the pointers to requests. No other lock is
 * taken while it is held: a request is pinned under it and cancelled after it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "engine/base/status.h"
#include "server/observe/metrics.h"
#include "server/schedule/runtime/pipeline.h"

struct connections; /* the table and its thread */
struct connection;  /* one of them */
struct exchange;

enum connection_phase {
    CONNECTION_WAITING,   /* for a request, or in the middle of its headers */
    CONNECTION_DELAYED,   /* the headers are here; suspended until a penalty is over */
    CONNECTION_BODY,      /* the body is arriving */
    CONNECTION_WORKING,   /* the whole request is here */
    CONNECTION_ANSWERING, /* the answer is being sent */
    CONNECTION_REFUSED,   /* answered by connection_refuse; what still comes is dropped */
};

/* Beyond limits->total, for probes, when all others have a request in them. */
#define CONNECTION_SPARE 16

struct connection_limits {
    size_t total, per_address;
    int64_t header_timeout_ms, body_timeout_ms, answer_timeout_ms; /* 0: none */
    int64_t idle_timeout_ms;
};

/* Bytes of its answer that a client must take a second, over each answer_timeout_ms: what a modem
 * or the slowest mobile network (32 kbit/s) still brings, and no honest reader stays below. */
#define CONNECTION_MIN_RATE 4096

/* Called from the watcher's thread, without a lock. `late`: a client's headers were late (408), and
 * no exchange will log it; `waited`: nanoseconds since they began. `tick`: a few times a second,
 * while a connection is open or it returns true. */
struct connection_observer {
    void (*late)(void *context, const char *address, int64_t waited);
    bool (*tick)(void *context);
    void *context;
};

/* `pipeline`: where requests of clients that hang up are cancelled; borrowed, as `metrics`. */
enum status connections_create(const struct connection_limits *limits,
                               const struct connection_observer *observer,
                               struct pipeline *pipeline, struct metrics *metrics,
                               struct connections **ret, struct error *err) MUST_USE;
/* Ends the watcher's thread, which resumes and cancels nothing afterwards. A second call does
 * nothing. */
void connections_stop(struct connections *connections);

/* Every connection must be closed. Accepts NULL. */
void connections_free(struct connections *connections);

/* A new socket; NULL when out of memory. Over the limit of its address it is refused at once.
 * `tls`: its gnutls_session_t before its handshake, NULL without TLS; it reads no more once the
 * connection is closed. `runs`: counts the runs of the event loop that reads it; outlives it. */
struct connection *connection_open(struct connections *connections, int fd,
                                   const struct sockaddr *address, void *tls,
                                   const _Atomic uint64_t *runs);
void connection_close(struct connections *connections, struct connection *connection);

/* The HTTP status with which the watcher has refused its request; 0: it has not. */
int connection_refusal(struct connections *connections, struct connection *connection);

/* The open connection of a socket; NULL: there is none. */
struct connection *connections_find(struct connections *connections, int fd);

/* The exchange that is going on, NULL at first; from the connection's own thread. */
void connection_set_exchange(struct connection *connection, struct exchange *exchange);
struct exchange *connection_exchange(const struct connection *connection);

/* Whether it is one of CONNECTION_SPARE. */
bool connection_is_spare(const struct connection *connection);

/* "127.0.0.1", "::1", "uid:1000" behind a socket with a name; lives as long as the connection. */
const char *connection_address(const struct connection *connection);

/* Enters a phase. False: the connection has been refused meanwhile, do not answer. */
bool connection_enter(struct connections *connections, struct connection *connection,
                      enum connection_phase phase);

/* Enters CONNECTION_ANSWERING, unless it has been refused: an answer with a body of `size` bytes is
 * about to be sent. */
void connection_answering(struct connections *connections, struct connection *connection,
                          size_t size);

/* Writes `answer` (a whole HTTP response) to the socket and ends our side, unless that has been
 * done. From the connection's own thread. */
void connection_refuse(struct connections *connections, struct connection *connection,
                       const char *answer, size_t size);

/* Under TLS: sends the refusal that the watcher has left for this connection and ends our side;
 * returns whether there was one. Call from the connection's own thread when a part of the body
 * arrives. */
bool connection_last_words(struct connections *connections, struct connection *connection);

/* Counts a client that hung up before its request was complete. */
void connections_count_gone(struct connections *connections);

/* Cancels the request as soon as the client has hung up, which may be at once: sets its
 * `cancelled`, and has the pipeline drop what waits of it. NULL ends that: the request is not used
 * any more when this returns, except that one which was pinned is not done before it has been let
 * go. */
void connection_watch(struct connections *connections, struct connection *connection,
                      struct predict_request *request);

/* The HTTP version of the request that is about to be delayed or worked on: what may be sent to a
 * client that has closed its sending side, to find out whether it is gone. */
void connection_may_ask(struct connections *connections, struct connection *connection,
                        const char *version);

/* Whether the client has hung up. */
bool connection_is_gone(struct connections *connections, struct connection *connection);

/* When a request that has just come may go on (clock_now(); not later than now: at once), or
 * PENALTY_UNKNOWN. `forwarded_for`: the client, as a trusted proxy says; NULL: none says
 * it. */
#define PENALTY_UNKNOWN (-1) /* ask again after this run of the event loop */
int64_t connection_penalty(struct connections *connections, struct connection *connection,
                           const char *forwarded_for);

/* The connection is suspended: calls `resume` once: from the watcher's thread, at `until` or when
 * its client hangs up, or from connections_end_delays(). False: it does not, for the connection has
 * been refused or delays have ended. */
bool connection_delay(struct connections *connections, struct connection *connection, int64_t until,
                      void (*resume)(void *context), void *context);

/* Records whether a request was `refused` (with Retry-After), and whether it had `waited` for a
 * penalty. `last`: the connection is about to end, though the client may not know it yet. */
void connection_answered(struct connections *connections, struct connection *connection,
                         const char *forwarded_for, bool refused, bool waited, bool last);

/* Resumes all delayed connections; none is delayed from now on. */
void connections_end_delays(struct connections *connections);

/* How many are open, and how many of them have a request in them. */
void connections_count(struct connections *connections, size_t *ret_open, size_t *ret_busy);
