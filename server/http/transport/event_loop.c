/* Drives one libmicrohttpd daemon with poll() and MHD_run(), and resumes suspended requests. */
#include "server/http/transport/event_loop.h"

#include <limits.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "server/schedule/runtime/thread.h"

static void wake_locked(struct event_loop *loop)
{
    const uint64_t one = 1;
    if (!loop->woken)
        (void)!write(loop->wake_fd, &one, sizeof one);
    loop->woken = true;
}

/* Clears the wake-ups before a run: later ones cause another run. False: stop. */
static bool begin_run(struct event_loop *loop)
{
    uint64_t wakes;
    pthread_mutex_lock(&loop->lock);
    if (loop->woken)
        (void)!read(loop->wake_fd, &wakes, sizeof wakes);
    loop->woken = false;
    bool stop = loop->stop;
    pthread_mutex_unlock(&loop->lock);
    return !stop;
}

/* How long poll() may wait before the daemon has something to do. */
static int sleep_ms(const struct event_loop *loop)
{
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(loop->mhd, &ms) != MHD_YES)
        return -1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

static void stop_daemon(const struct event_loop *loop)
{
    /* Otherwise it would close the listening socket, which other loops may share. */
    (void)MHD_quiesce_daemon(loop->mhd);
    MHD_stop_daemon(loop->mhd);
}

static void *event_loop_run(void *context)
{
    struct event_loop *loop = context;
    struct pollfd wakers[] = {{.fd = loop->epoll_fd, .events = POLLIN},
                              {.fd = loop->wake_fd, .events = POLLIN}};
    while (begin_run(loop)) {
        loop->closed = false;
        MHD_run(loop->mhd);
        atomic_fetch_add_explicit(&loop->runs, 1, memory_order_relaxed);
        int ms = loop->closed ? 0 : sleep_ms(loop);
        if (ms != 0)
            (void)poll(wakers, 2, ms);
    }
    /* On this thread, because its callbacks use a variable of it (reading.c). */
    stop_daemon(loop);
    return NULL;
}

bool event_loop_start(struct event_loop *loop, struct MHD_Daemon *mhd)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(mhd, MHD_DAEMON_INFO_EPOLL_FD);
    *loop = (struct event_loop){.mhd = mhd, .epoll_fd = info ? info->epoll_fd : -1};
    pthread_mutex_init(&loop->lock, NULL);
    loop->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->has_thread = loop->epoll_fd >= 0 && loop->wake_fd >= 0 &&
                       thread_start(&loop->thread, "http", event_loop_run, loop);
    return loop->has_thread;
}

void event_loop_stop(struct event_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stop = true;
    wake_locked(loop);
    pthread_mutex_unlock(&loop->lock);
    if (loop->has_thread)
        pthread_join(loop->thread, NULL);
    else
        stop_daemon(loop);
    if (loop->wake_fd >= 0)
        close(loop->wake_fd);
    pthread_mutex_destroy(&loop->lock);
}

void event_loop_note_closed(struct event_loop *loop)
{
    loop->closed = true;
}

void event_loop_resume(struct event_loop *loop, struct MHD_Connection *connection)
{
    /* The lock also keeps the daemon alive until MHD_resume_connection() has returned. */
    pthread_mutex_lock(&loop->lock);
    MHD_resume_connection(connection);
    wake_locked(loop);
    pthread_mutex_unlock(&loop->lock);
}
