/* Accepts connections, drives one libmicrohttpd daemon with poll() and MHD_run(), and resumes
 * suspended requests. */
#include "server/http/transport/event_loop.h"

#include <limits.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/proxy_pending.h"
#include "server/http/transport/recv_hook.h"

#define ACCEPTS_PER_RUN 64 /* limited, so that open connections are served in between */
#define RUNS_PER_POLL   8  /* maximum number of MHD_run() calls without poll() */

/* Returns how many more connections the daemon can take. */
static size_t room(const struct event_loop *loop)
{
    /* MHD_get_daemon_info() also frees connections that have closed. */
    const union MHD_DaemonInfo *info =
        MHD_get_daemon_info(loop->mhd, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    /* libmicrohttpd 1.0 counts a new connection only after MHD_run(). */
    const size_t open = (info ? info->num_connections : 0) + loop->added;
    return open < loop->limit ? loop->limit - open : 0;
}

static void add_connection(void *context, int fd, const struct sockaddr_storage *address,
                           socklen_t size)
{
    struct event_loop *loop = context;
    /* MHD_add_connection() closes the socket if it fails. */
    if (MHD_add_connection(loop->mhd, fd, (const struct sockaddr *)address, size) == MHD_YES)
        loop->added++;
}

static void accept_some(struct event_loop *loop)
{
    int left = ACCEPTS_PER_RUN;
    while (left-- > 0 && room(loop) &&
           proxy_pending_accept(loop->proxied, loop->listen_fd, add_connection, loop,
                                &loop->full_until))
        ;
}

static int sooner(int ms, int other)
{
    return other < 0 || (ms >= 0 && ms < other) ? ms : other;
}

/* Returns poll()'s timeout in milliseconds; -1 to wait until an event. */
static int sleep_ms(struct event_loop *loop, bool is_paused)
{
    MHD_UNSIGNED_LONG_LONG longest;
    int ms = connections_release_pools(loop);
    if (MHD_get_timeout(loop->mhd, &longest) == MHD_YES)
        ms = sooner(longest < INT_MAX ? (int)longest : INT_MAX, ms);
    if (loop->proxied)
        ms = sooner(ms, proxy_pending_sleep_ms(loop->proxied, room(loop)));
    return is_paused ? sooner(ms, ACCEPT_PAUSE_MS) : ms;
}

static void stop_daemon(const struct event_loop *loop)
{
    MHD_stop_daemon(loop->mhd);
    proxy_pending_free(loop->proxied);
}

static void *event_loop_run(void *context)
{
    struct event_loop *loop = context;
    struct exchange *resumed;
    bool accepts, is_due = false;
    int unpolled = 0;
    recv_hook_start(loop->server->connections);
    for (;;) {
        const bool goes_on = inbox_take(&loop->inbox, &resumed, &accepts);
        for (; resumed; resumed = resumed->next_resumed)
            MHD_resume_connection(resumed->handle);
        if (!goes_on)
            break;
        const bool is_paused = clock_now() < loop->full_until;
        if (accepts && is_due && !is_paused)
            accept_some(loop);
        if (loop->proxied) {
            proxy_pending_run(loop->proxied, room(loop), add_connection, loop);
            atomic_store(&loop->unread, loop->proxied->count);
        }
        MHD_run(loop->mhd);
        loop->added = 0;
        atomic_fetch_add_explicit(&loop->runs, 1, memory_order_release);
        const int ms = sleep_ms(loop, is_paused);
        is_due = false;
        if (ms == 0 && ++unpolled < RUNS_PER_POLL)
            continue; /* MHD_run() finds the events of its sockets itself */
        unpolled = 0;
        struct pollfd wakers[] = {
            {.fd = accepts && !is_paused && room(loop) ? loop->listen_fd : -1, .events = POLLIN},
            {.fd = loop->epoll_fd, .events = POLLIN},
            {.fd = loop->inbox.fd, .events = POLLIN},
            {.fd = loop->proxied ? loop->proxied->epoll_fd : -1, .events = POLLIN}};
        is_due = poll(wakers, COUNT_OF(wakers), ms) > 0 && wakers[0].revents;
    }
    /* Stop the daemon on this thread: the daemon's callbacks use thread-local variables
     * (recv_hook.c). */
    stop_daemon(loop);
    return NULL;
}

bool event_loop_start(struct event_loop *loop, struct MHD_Daemon *mhd)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(mhd, MHD_DAEMON_INFO_EPOLL_FD);
    loop->mhd = mhd;
    loop->epoll_fd = info ? info->epoll_fd : -1;
    TAILQ_INIT(&loop->idle);
    loop->has_thread = inbox_init(&loop->inbox, false) && loop->epoll_fd >= 0 &&
                       thread_start(&loop->thread, "http", event_loop_run, loop);
    return loop->has_thread;
}

void event_loop_accept(struct event_loop *loop, bool accepts)
{
    const struct timespec pause = {.tv_nsec = NS_PER_MS};
    pthread_mutex_lock(&loop->inbox.lock);
    const uint64_t before = atomic_load_explicit(&loop->runs, memory_order_relaxed);
    loop->inbox.accepts = accepts;
    inbox_wake_locked(&loop->inbox);
    pthread_mutex_unlock(&loop->inbox.lock);
    /* A run that has already begun may still accept; the wake-up starts another run. */
    while (!accepts && atomic_load_explicit(&loop->runs, memory_order_acquire) == before)
        nanosleep(&pause, NULL);
}

void event_loop_stop(struct event_loop *loop)
{
    inbox_set(&loop->inbox, &loop->inbox.stop, true);
    if (loop->has_thread)
        pthread_join(loop->thread, NULL);
    else
        stop_daemon(loop);
    inbox_done(&loop->inbox);
}
