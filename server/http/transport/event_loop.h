/* A thread that accepts connections and drives one daemon of libmicrohttpd.
 *
 * libmicrohttpd's own thread can sleep on requests that have arrived. MHD_epoll() (0.9.75 and
 * 1.0.1) takes at most 128 events from epoll_wait(). When it gets exactly 128, it calls
 * epoll_wait() again before it serves any of them, and that call blocks. So lensd waits in poll()
 * itself and calls MHD_run(), in which epoll_wait() never blocks. In this mode libmicrohttpd has no
 * wake-up for connections that other threads resume: the inbox wakes the thread.
 *
 * lensd also accepts connections itself, for two reasons: connections of a proxy may begin with a
 * header that is not HTTP (proxy_pending.h), and lensd must stop and resume accepting without
 * touching the listening socket, which another process may share. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/http/transport/connections.h"
#include "server/http/transport/inbox.h"

struct MHD_Daemon;
struct http_server;
struct proxy_pending;

struct event_loop {
    /* The caller of event_loop_start() sets these members. */
    struct http_server *server;
    int listen_fd;     /* non-blocking; other loops and processes may share it */
    size_t limit;      /* maximum number of open connections */
    bool is_admin;     /* the loop of --admin-port, not one of those counted by --http-threads */
    size_t pool_bytes; /* size of libmicrohttpd's memory pool of a connection */
    struct proxy_pending *proxied; /* owned; NULL if no PROXY headers are expected */

    struct MHD_Daemon *mhd; /* started with MHD_USE_EPOLL and MHD_USE_NO_LISTEN_SOCKET, without a
                               thread of its own */
    int epoll_fd;           /* the daemon's */
    struct inbox inbox;
    pthread_t thread;
    bool has_thread;
    /* Used by the thread only. */
    int64_t full_until; /* accept() failed for lack of resources: do not call it before this time */
    size_t added;       /* connections handed to the daemon since its last run */
    struct connection_list idle; /* for connections_release_pools(); oldest answer first */
    /* Set by the thread; any thread reads them. */
    _Atomic uint64_t runs; /* iterations of the loop */
    _Atomic size_t unread; /* connections whose PROXY header has not arrived */
};

/* Drives `mhd`. The loop takes ownership of `mhd` and loop->proxied, even on failure. Returns false
 * if the system has no thread or descriptor left. *loop must not move until event_loop_stop().
 * Accepts nothing until event_loop_accept(). */
bool event_loop_start(struct event_loop *loop, struct MHD_Daemon *mhd);

/* Starts or stops accepting connections. When this returns after a stop, the daemon's callbacks
 * have seen every accepted connection. */
void event_loop_accept(struct event_loop *loop, bool accepts);

/* Ends the thread. The thread first stops the daemon, and this closes its connections. The
 * listening socket stays open. No connection may be suspended. Also valid after a failed start. */
void event_loop_stop(struct event_loop *loop);

/* ---- daemon.c: all loops of a server ---- */

/* Starts the threads of the server's listeners. STATUS_IO: libmicrohttpd has failed, or
 * memory, threads or descriptors have run out; daemon_stop() then ends what has started. */
enum status daemon_start(struct http_server *server, struct error *err) MUST_USE;

/* Starts or stops accepting connections from the listener, or from the admin listener. */
void daemon_accept(struct http_server *server, bool is_admin, bool accepts);

/* The number of accepted HTTP connections whose PROXY header has not arrived. */
size_t daemon_unread(const struct http_server *server);

/* Ends the threads, if any, and closes their connections, but not the listeners. */
void daemon_stop(struct http_server *server);
