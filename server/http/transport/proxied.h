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

/* Connections that wait at a time; a further one replaces the oldest. */
#define PROXIED_MAX 256

struct proxied;

/* `timeout_ms`: how long a header may take; 0: no limit. Borrows `proxies` and `metrics`. NULL when
 * out of memory or descriptors. */
struct proxied *proxied_create(const struct proxies *proxies, int64_t timeout_ms,
                               struct metrics *metrics);

/* Closes the connections that wait. Accepts NULL. */
void proxied_free(struct proxied *proxied);

/* Readable when proxied_run() has something to do. */
int proxied_fd(const struct proxied *proxied);

/* Whether a connection from this address must begin with a header. */
bool proxied_expects(const struct proxied *proxied, int fd, const struct sockaddr *address);

/* Takes over `fd`, a non-blocking socket. */
void proxied_add(struct proxied *proxied, int fd, const struct sockaddr_storage *address,
                 socklen_t size);

/* Hands each connection whose header has arrived to `take`, with the address that the header names
 * (its own where it names none); the header's bytes have been read. Closes connections that sent
 * something else or took too long. */
typedef void proxied_take(void *context, int fd, const struct sockaddr_storage *address,
                          socklen_t size);
void proxied_run(struct proxied *proxied, proxied_take *take, void *context);

/* Connections that wait, and milliseconds until the first takes too long; -1: none will. */
size_t proxied_count(const struct proxied *proxied);
int proxied_sleep_ms(const struct proxied *proxied);
