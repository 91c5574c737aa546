/* Opens the listening socket, and stops accepting without losing clients. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"

struct http_options;

/* A port on options->host; or with "--port" the Unix socket options->unix_path, if there is one. */
struct listen_place {
    const struct http_options *options;
    const char *option; /* the name of the port's option, such as "--port" */
    int port;           /* 0: any free one */
};

struct listener {
    int fd;
    int port;         /* the actual port; 0 for a Unix socket */
    char url[320];    /* "http://host:port" for clients on this machine */
    bool is_loopback; /* accepts only TCP connections from this machine */
    bool is_passed;   /* from listen_take_passed(); other processes may accept from `fd`, too */
    char where[320];  /* like `url`, or "unix:/run/lensd.sock" */
    char path[108];   /* of a Unix socket, else "" */
    uint64_t device, inode; /* of `path`, to detect that another process has replaced it */
};

/* Opens the socket. Replaces a socket file without a listener; refuses a socket in use and any
 * other kind of file. STATUS_NOT_READY: the port or socket is in use, or this machine lacks the
 * address; STATUS_CONFIG: all else. The caller closes ret->fd. On failure *ret does not change. */
enum status listen_open(const struct listen_place *place, struct listener *ret,
                        struct error *err) MUST_USE;

/* Makes room for a Unix socket: removes a socket file without a listener; refuses a socket in use
 * (STATUS_NOT_READY) and any other kind of file (STATUS_CONFIG). *err names `option`. */
enum status listen_clear_path(const char *path, const char *option, struct error *err) MUST_USE;

/* Checks if a Unix socket can be made at `path`. Accepts a socket in use. STATUS_CONFIG. */
enum status listen_check_path(const char *path, const char *option, struct error *err) MUST_USE;

/* Takes the listening socket that systemd or another supervisor has passed to this process
 * (LISTEN_PID, LISTEN_FDS: socket activation), and clears those variables. Without one, *ret does
 * not change; ret->fd must be -1 before. `tls` only changes the URL. STATUS_CONFIG: several
 * sockets, or one that does not listen for streams. The caller closes ret->fd. */
enum status listen_take_passed(bool tls, struct listener *ret, struct error *err) MUST_USE;

/* Checks whether listen_open() would succeed, without listening. The server itself may be running:
 * a socket in use is accepted, and a port in use only sets `warning` (a sentence; "" for none).
 * STATUS_NOT_READY: this machine lacks the address; STATUS_CONFIG: all else. */
enum status listen_check(const struct listen_place *place, char *warning, size_t size,
                         struct error *err) MUST_USE;

/* Makes the kernel drop new connection attempts before it answers them. Clients try again after a
 * second, and are then refused. Handshakes that have begun still reach accept(). Closing the socket
 * instead would disconnect clients that are already connected. A Unix socket is unlinked. Returns
 * false if the kernel does not support this; then the caller can only close the socket. Do not call
 * this function for a passed socket. */
bool listen_stop(struct listener *listener) MUST_USE;

/* Unlinks a Unix socket, unless another process has replaced it. */
void listen_remove(struct listener *listener);
