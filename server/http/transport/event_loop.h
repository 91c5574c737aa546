/* A thread that drives one daemon of libmicrohttpd.
 *
 * libmicrohttpd's own thread can sleep on requests that have arrived. MHD_epoll() (0.9.75 and
 * 1.0.1) takes at most 128 events from epoll_wait(); when it gets exactly 128 it calls epoll_wait()
 * again, which blocks, before it serves any of them. So lensd waits in poll() itself and calls
 * MHD_run(), in which epoll_wait() never blocks.
 *
 * In this mode two things of libmicrohttpd's thread are left to lensd:
 *   - It has no wake-up for connections that other threads resume: event_loop_resume() wakes the
 *     thread.
 *   - At its limit of connections it stops listening, and listens again only at the beginning of a
 *     run: after a connection has closed there is another run before the thread sleeps. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct MHD_Connection;
struct MHD_Daemon;

struct event_loop {
    struct MHD_Daemon *mhd; /* started with MHD_USE_EPOLL, without a thread of its own */
    int epoll_fd;           /* the daemon's */
    int wake_fd;            /* an eventfd: readable while `woken` */
    pthread_t thread;
    bool has_thread;
    bool closed; /* a connection has closed in this run; only the loop's thread uses it */
    _Atomic uint64_t runs;

    pthread_mutex_t lock;
    bool woken, stop; /* guarded by lock */
};

/* Drives `mhd`, which is the loop's afterwards, also on failure: false when the system has no
 * thread or descriptor left. *loop must not move until event_loop_stop(). */
bool event_loop_start(struct event_loop *loop, struct MHD_Daemon *mhd);

/* Ends the thread, which first stops the daemon and so closes its connections; the listening socket
 * stays open. No connection may be suspended. Also after a failed start. */
void event_loop_stop(struct event_loop *loop);

/* A connection of this loop has closed. From the loop's thread. */
void event_loop_note_closed(struct event_loop *loop);

/* MHD_resume_connection() for a connection of this loop, from any thread. */
void event_loop_resume(struct event_loop *loop, struct MHD_Connection *connection);
