/* Connections from trusted proxies whose PROXY header (proxy_header.h) has not arrived
 * (--proxy-protocol). They wait here, before libmicrohttpd knows them. All calls come from the
 * thread of one event loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "server/http/transport/proxies.h"
#include "server/observe/metrics.h"

/* Connections that wait at a time, beside those of libmicrohttpd; a further one replaces the
 * oldest. */
#define PROXIED_MAX 256

/* How long a header may take. A proxy sends it at once; 3 seconds leave time for TCP to send it
 * again, as the protocol asks for. */
#define PROXIED_MS 3000

#define ACCEPT_PAUSE_MS 100 /* pause after accept() failed for want of descriptors or memory */

struct proxied;

/* Borrows `proxies` and `metrics`. NULL when out of memory or descriptors. */
struct proxied *proxied_create(const struct proxies *proxies, struct metrics *metrics);

/* Closes the connections that wait. Accepts NULL. */
void proxied_free(struct proxied *proxied);

/* Readable when proxied_run() has something to do. */
int proxied_fd(const struct proxied *proxied);

/* Hands connections whose header has arrived, `room` of them at most, to `take`, with the address
 * that the header names (its own where it names none); the header's bytes have been read. Closes
 * connections that sent something else or took too long. */
typedef void proxied_take(void *context, int fd, const struct sockaddr_storage *address,
                          socklen_t size);
void proxied_run(struct proxied *proxied, size_t room, proxied_take *take, void *context);

/* Accepts one connection from `listen_fd`. It waits here if its address must begin with a header;
 * else, and with `proxied` NULL, it goes to `take`: a non-blocking socket. False: none is left, or
 * accept() failed for want of resources; *ret_full_until is then when to try again. */
bool proxied_accept(struct proxied *proxied, int listen_fd, proxied_take *take, void *context,
                    int64_t *ret_full_until);

/* Connections that wait. */
size_t proxied_count(const struct proxied *proxied);

/* Milliseconds until proxied_run() has something to do without an event; -1: nothing. */
int proxied_sleep_ms(const struct proxied *proxied, size_t room);
