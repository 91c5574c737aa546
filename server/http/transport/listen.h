/* The listening socket: how it is opened, and how accepting ends without losing a client. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct listen_options {
    const char *host;      /* an address or a name */
    int port;              /* 0: any free one */
    const char *unix_path; /* not NULL: a socket of this name instead of host and port */
    unsigned unix_mode;    /* its permissions; who may write to it may connect */
    bool tls;              /* for the URL alone */
};

struct listener {
    int fd;
    int port;               /* the real one; 0 for a socket with a name */
    char url[320];          /* "http://host:port" for clients on this machine */
    bool is_loopback;       /* only this machine can connect, over TCP */
    char where[320];        /* the same, or "unix:/run/lensd.sock" */
    char path[108];         /* of a socket with a name; "" otherwise */
    uint64_t device, inode; /* of path: what lies there later may be another's */
};

/* Listens. A socket file that nobody listens on any more is replaced, one that is in use and a file
 * that is no socket are not. STATUS_CONFIG with a sentence. The listener's fd is the caller's; on
 * failure *ret is untouched. */
enum status listen_open(const struct listen_options *options, struct listener *ret,
                        struct error *err) MUST_USE;

/* Whether listen_open() would find nothing in its way, as far as that can be told without
 * listening: a server that runs may be asked about itself, so that a socket in use is no obstacle,
 * and a port in use only a `warning` (a sentence, or "" for none). STATUS_CONFIG. */
enum status listen_check(const struct listen_options *options, char *warning, size_t size,
                         struct error *err) MUST_USE;

/* Drops new connection attempts in the kernel, before it answers them: their clients' kernels try
 * again after a second and are then refused, while handshakes under way still reach accept(). So no
 * client is told "connected" and then cut off, as closing the socket would do. A socket with a name
 * loses its name, to the same end. False where the kernel does not let us: then the socket can only
 * be closed. */
bool listen_stop(struct listener *listener) MUST_USE;

/* Removes the socket's name, if it has one and it is still ours. */
void listen_remove(struct listener *listener);
