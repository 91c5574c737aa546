/* The listening socket: how it is opened, and how accepting ends without losing a client. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

/* Listens on `host` (an address or a name) and `port` (0: any free one). *ret_fd is the caller's;
 * *ret_port the real port; `url` gets "http://host:port" for clients on this machine. STATUS_CONFIG
 * with a sentence otherwise. */
enum status listen_open(const char *host, int port, int *ret_fd, int *ret_port, char *url,
                        size_t url_size, struct error *err) MUST_USE;

/* Drops new connection attempts in the kernel, before it answers them: their clients' kernels try
 * again after a second and are then refused, while handshakes under way still reach accept(). So no
 * client is told "connected" and then cut off, as closing the socket would do. False where the
 * kernel does not let us: then the socket can only be closed. */
bool listen_stop(int fd) MUST_USE;
