/* Connections from trusted proxies whose PROXY header (proxy_header.h) has not arrived
 * (--proxy-protocol). They wait here before libmicrohttpd or gRPC gets them. Use a struct
 * proxy_pending from one thread at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "server/http/transport/trusted_proxies.h"
#include "server/observe/metrics.h"

/* The most connections that wait here. A further connection replaces the oldest one. */
#define PROXY_PENDING_MAX 256

/* Time limit for a header. A proxy sends it at once; 3 seconds allow TCP to resend it, as the
 * protocol requires. */
#define PROXY_PENDING_MS 3000

#define ACCEPT_PAUSE_MS 100 /* pause after accept() failed for lack of descriptors or memory */

struct proxy_pending {
    const struct trusted_proxies *proxies;
    int epoll_fd; /* readable when bytes or hang-ups have arrived for proxy_pending_run() */
    struct metric *invalid_total;
    bool has_more; /* headers may have arrived that proxy_pending_run() left for lack of `room` */
    size_t count;
    struct proxied_socket {
        int fd;
        int64_t since;
        struct sockaddr_storage address;
        socklen_t size;
    } sockets[PROXY_PENDING_MAX]; /* oldest first */
};

/* Borrows `proxies` and `metrics`. NULL when out of memory or descriptors. */
struct proxy_pending *proxy_pending_create(const struct trusted_proxies *proxies,
                                           struct metrics *metrics);

/* Closes the waiting connections. Accepts NULL. */
void proxy_pending_free(struct proxy_pending *proxied);

/* Passes at most `room` connections whose header has arrived to `take`, which becomes their owner.
 * `address` is the client in the header, or the connection's peer if the header names none. The
 * header's bytes have been read. Closes connections that sent something else or took too long. */
typedef void proxy_pending_take(void *context, int fd, const struct sockaddr_storage *address,
                                socklen_t size);
void proxy_pending_run(struct proxy_pending *proxied, size_t room, proxy_pending_take *take,
                       void *context);

/* Accepts one connection from `listen_fd`. It waits here if it comes from a trusted proxy;
 * otherwise, or if `proxied` is NULL, `take` gets it as a non-blocking socket. Returns false if no
 * client waits, or if resources run out; in that case, *ret_full_until says when to retry. */
bool proxy_pending_accept(struct proxy_pending *proxied, int listen_fd, proxy_pending_take *take,
                          void *context, int64_t *ret_full_until);

/* Returns the milliseconds until proxy_pending_run() has work without an event, or -1: never. */
int proxy_pending_sleep_ms(const struct proxy_pending *proxied, size_t room);
