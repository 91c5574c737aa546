/* Connections from trusted proxies whose PROXY header (proxy_header.h) has not arrived
 * (--proxy-protocol). They wait here before libmicrohttpd gets them. All calls come from the thread
 * of one event loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "server/http/transport/trusted_proxies.h"
#include "server/observe/metrics.h"

/* The most connections that wait here, besides libmicrohttpd's; another replaces the oldest. */
#define PROXY_PENDING_MAX 256

/* Time limit for a header. A proxy sends it at once; 3 seconds allow TCP to resend it, as the
 * protocol requires. */
#define PROXY_PENDING_MS 3000

#define ACCEPT_PAUSE_MS 100 /* after accept() failed for lack of descriptors or memory */

struct proxy_pending;

/* Borrows `proxies` and `metrics`. NULL when out of memory or descriptors. */
struct proxy_pending *proxy_pending_create(const struct trusted_proxies *proxies,
                                           struct metrics *metrics);

/* Closes the waiting connections. Accepts NULL. */
void proxy_pending_free(struct proxy_pending *proxied);

/* Readable when proxy_pending_run() has something to do. */
int proxy_pending_fd(const struct proxy_pending *proxied);

/* Passes at most `room` connections whose header has arrived to `take`, with the address in the
 * header, or the connection's own if the header has none. The header's bytes have been read. Closes
 * connections that sent something else or took too long. */
typedef void proxy_pending_take(void *context, int fd, const struct sockaddr_storage *address,
                                socklen_t size);
void proxy_pending_run(struct proxy_pending *proxied, size_t room, proxy_pending_take *take,
                       void *context);

/* Accepts one connection from `listen_fd`. It waits here if its address must send a header;
 * otherwise, or if `proxied` is NULL, `take` gets it as a non-blocking socket. Returns false if no
 * client waits, or accept() fails for lack of resources; *ret_full_until says when to retry. */
bool proxy_pending_accept(struct proxy_pending *proxied, int listen_fd, proxy_pending_take *take,
                          void *context, int64_t *ret_full_until);

/* The number of waiting connections. */
size_t proxy_pending_count(const struct proxy_pending *proxied);

/* Milliseconds until proxy_pending_run() has work without an event; -1: it needs an event. */
int proxy_pending_sleep_ms(const struct proxy_pending *proxied, size_t room);
