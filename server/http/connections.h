/* Every open connection, and a thread that watches over them.
 *
 * libmicrohttpd does not look at a suspended connection, and its own time limit counts only
 * silence. The watcher thread therefore sees to
 *   - hang-ups: a client that closes (or half-closes: it gets no answer then either) while its
 * images wait has its request cancelled (EPOLLRDHUP, edge-triggered: no wake-up per packet);
 *   - time limits for headers and for bodies, however slowly bytes drip in: 408;
 *   - the number of connections from one address: 429.
 *
 * A connection is refused by writing the answer straight to its socket and shutting down our side.
 * The client's bytes are still read and dropped for a moment, so that the answer is not lost to a
 * TCP reset while it is still sending. That is only done while libmicrohttpd has nothing to write.
 *
 * Thread-safe: one lock guards the table, the phases and the pointers to requests. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "engine/base/status.h"
#include "server/observe/metrics.h"

struct connections; /* the table and its thread */
struct connection;  /* one of them */

enum connection_phase {
    CONNECTION_WAITING, /* for a request, or in the middle of its headers */
    CONNECTION_BODY,    /* the body is arriving */
    CONNECTION_WORKING, /* the whole request is here */
    CONNECTION_REFUSED, /* answered by connection_refuse; what still comes is dropped */
};

struct connection_limits {
    size_t per_address;
    int64_t header_timeout_ms, body_timeout_ms; /* 0: none */
};

enum status connections_create(const struct connection_limits *limits, struct metrics *metrics,
                               struct connections **ret, struct error *err) MUST_USE;
/* Every connection must be closed. NULL is fine. */
void connections_free(struct connections *connections);

/* A new socket; NULL when out of memory. Over the limit of its address it is refused at once. */
struct connection *connection_open(struct connections *connections, int fd,
                                   const struct sockaddr *address);
void connection_close(struct connections *connections, struct connection *connection);

/* "127.0.0.1", "::1"; lives as long as the connection. */
const char *connection_address(const struct connection *connection);

/* Enters a phase. False: the connection has been refused meanwhile, do not answer. */
bool connection_enter(struct connections *connections, struct connection *connection,
                      enum connection_phase phase);

/* Writes `answer` (a whole HTTP response) to the socket and ends our side, unless that has been
 * done. */
void connection_refuse(struct connections *connections, struct connection *connection,
                       const char *answer, size_t size);

/* Sets *cancelled to 1 as soon as the client has hung up, which may be at once. NULL ends that: the
 * pointer is not used any more when this returns. */
void connection_watch(struct connections *connections, struct connection *connection,
                      _Atomic int *cancelled);

/* The client has hung up (or half-closed). */
bool connection_is_gone(struct connections *connections, struct connection *connection);

/* How many are open, and how many of them have a request in them. */
void connections_count(struct connections *connections, size_t *ret_open, size_t *ret_busy);
