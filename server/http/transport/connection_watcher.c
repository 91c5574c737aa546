/* The watcher thread: hang-ups, time limits and delays of connections. */
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/event_loop.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/request_log.h"
#include "server/observe/log.h"

#define TICK_MS    100   /* resolution of the time limits while a request is in progress */
#define DELAY_MS   10    /* resolution of penalties' delays */
#define STUCK_RUNS 100   /* a loop that runs so often in a tick and leaves bytes unread is stuck */
#define LINGER_MS  2000  /* how long a refused client may go on sending */
#define SILENT_MS  200   /* how long a refused client may be silent before it is closed */
#define FULL_MS    10000 /* minimum time between two warnings that the server is full */

/* ---- hang-ups ---- */

/* libmicrohttpd's epoll is edge-triggered and misses an end of stream that arrives with the last
 * bytes. libmicrohttpd would hold half a request until the idle timeout. Shutting down our reading
 * side causes another edge, and received bytes can still be read. The watcher's own epoll reports
 * that edge, too. Therefore the watcher repeats the shutdown at every tick, not at every event. */
static void show_end_locked(struct connection *connection)
{
    if (connection->ended && connection->phase != CONNECTION_WORKING &&
        connection->phase != CONNECTION_ANSWERING)
        (void)shutdown(connection->fd, SHUT_RD);
}

/* A client that has ended its sending side may still read, or may have disconnected. Over TCP the
 * server finds out only by sending something. To an interim answer (RFC 9110, section 15.2) the
 * system of a disconnected client replies with a reset, which handle_event() sees. A client that
 * still reads ignores the interim answer. */
static void ask_for_end_locked(struct connection *connection, int64_t now)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (!connection->ended || connection->gone || !connection->may_ask ||
        connection->has_asked_end || now - connection->ended < TICK_MS * NS_PER_MS)
        return;
    connection->has_asked_end = true;
    (void)!send(connection->fd, interim, sizeof interim - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void handle_event(struct connections *connections, const struct epoll_event *event)
{
    const uint64_t data = event->data.u64;
    size_t fd = (uint32_t)data;
    pthread_mutex_lock(&connections->lock);
    struct connection *connection = fd < connections->by_fd_count ? connections->by_fd[fd] : NULL;
    struct predict_request *request = NULL;
    if (connection && connection->generation == (uint32_t)(data >> 32)) {
        if (!connection->ended)
            connection->ended = clock_now();
        connection_place_locked(connection);
        /* Under TLS this thread cannot ask by an interim answer, so it takes the client for gone.
         */
        if (!connection->gone && (connection->tls || event->events & (EPOLLHUP | EPOLLERR))) {
            connection->gone = true;
            if (connection->watched) {
                metric_add(connections->gone_total, 1);
                request = connection_cancel_locked(connection->watched);
            }
        }
    }
    pthread_mutex_unlock(&connections->lock);
    if (request)
        model_host_cancel(connections->server->options.model_host, request);
}

/* ---- time limits ---- */

/* Refuses a request whose `part` was not complete within limit_ms. `pronoun`: "it" or "them", which
 * stands for `part` in the message. */
static void refuse_late_locked(struct connection *connection, int64_t limit_ms, const char *part,
                               const char *pronoun, const char *option)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence,
             "the request's %s did not arrive within %.3g s; send %s faster, or raise the limit "
             "(%s)",
             part, (double)limit_ms / 1000, pronoun, option);
    metric_add(connection->table->timeout_total, 1);
    connection_refuse_locked(connection, 408, "request_timeout", sentence);
}

/* Returns the time at which the oldest incomplete headers become late: the time limit begins with
 * their first byte. Returns INT64_MAX if there is no time limit, or if no headers are arriving. */
static int64_t header_deadline_locked(const struct connections *connections)
{
    const int64_t limit = connections->server->options.header_timeout_ms;
    const struct connection *first = TAILQ_FIRST(&connections->headers);
    return limit && first ? first->header_since + limit * NS_PER_MS : INT64_MAX;
}

/* Refuses the client with the oldest incomplete headers if these headers are late. Returns false if
 * they are not late. */
static bool refuse_late_headers(struct connections *connections, int64_t now)
{
    char address[PEER_ADDRESS_MAX];
    pthread_mutex_lock(&connections->lock);
    struct connection *connection = TAILQ_FIRST(&connections->headers);
    const bool is_late = now >= header_deadline_locked(connections);
    const bool has_shaken = is_late && (!connection->tls || connection->has_shaken);
    const int64_t waited = is_late ? now - connection->header_since : 0;
    if (has_shaken) {
        memcpy(address, connection->address, sizeof address);
        refuse_late_locked(connection, connections->server->options.header_timeout_ms, "headers",
                           "them", "--header-timeout");
    } else if (is_late) {
        metric_add(connections->late_handshakes, 1);
        connection_leave_locked(connection);
    }
    pthread_mutex_unlock(&connections->lock);
    if (has_shaken)
        request_log_late(connections->server->log, address, waited);
    return is_late;
}

/* Counts the bytes that the socket has received since it was opened, and the bytes that its client
 * has acknowledged. Returns false if the kernel does not report these counts. */
static bool bytes_passed(int fd, uint64_t *ret_received, uint64_t *ret_acked)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    memset(&info, 0, sizeof info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
        size < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof info.tcpi_bytes_received)
        return false;
    *ret_received = info.tcpi_bytes_received;
    *ret_acked = info.tcpi_bytes_acked;
    return true;
}

/* libmicrohttpd (0.9.75) buffers the whole line with a chunk's size. If the line does not fit,
 * libmicrohttpd stops reading, and the event loop spins: bytes that waited in the socket at the
 * last tick still wait after many iterations. */
static bool is_stuck_locked(struct connection *connection)
{
    uint64_t received, acked;
    int unread = 0;
    const uint64_t run = atomic_load_explicit(&connection->loop->runs, memory_order_relaxed);
    const bool spins = run - connection->run > STUCK_RUNS;
    connection->run = run;
    if (!spins || !bytes_passed(connection->fd, &received, &acked) ||
        ioctl(connection->fd, FIONREAD, &unread) != 0) {
        connection->had_unread = false;
        return false;
    }
    const uint64_t taken = received - (uint64_t)unread;
    const bool is_stuck = connection->had_unread && taken == connection->taken;
    connection->had_unread = unread > 0;
    connection->taken = taken;
    return is_stuck;
}

static void check_body_locked(struct connection *connection, int64_t now)
{
    if (is_stuck_locked(connection)) {
        connection_refuse_locked(connection, 413, "too_large",
                                 "the line with a chunk's size is too long");
        /* The event loop spins until the connection ends, so shorten LINGER_MS to SILENT_MS. */
        connection->since -= (LINGER_MS - SILENT_MS) * NS_PER_MS;
        return;
    }
    int64_t limit = connection->table->server->options.body_timeout_ms;
    if (limit == 0 || now - connection->since < limit * NS_PER_MS)
        return;
    refuse_late_locked(connection, limit, "body", "it", "--body-timeout");
}

/* True if the client has read its answer too slowly for a period of limit_ms, which began at
 * connection->since. If the client was fast enough until the period's end, starts the next
 * period. */
static bool is_slow_locked(struct connection *connection, int64_t limit_ms, int64_t now)
{
    const uint64_t least = (uint64_t)limit_ms * CONNECTION_MIN_RATE / 1000;
    const int64_t spent_ms = (now - connection->since) / NS_PER_MS;
    uint64_t received, acked;
    if (connection->knows_acked && spent_ms < limit_ms)
        return false;
    if (connection->is_unix || !bytes_passed(connection->fd, &received, &acked)) {
        /* Without the kernel's count of bytes, allow the client the time for the whole answer. */
        return spent_ms > limit_ms && (uint64_t)(spent_ms - limit_ms) >
                                          connection->answer_size / CONNECTION_MIN_RATE * 1000;
    }
    if (connection->knows_acked && acked - connection->acked < least)
        return true;
    if (connection->knows_acked)
        connection->since = now;
    connection->knows_acked = true;
    connection->acked = acked;
    return false;
}

static void check_answer_locked(struct connection *connection, int64_t now)
{
    int64_t limit = connection->table->server->options.answer_timeout_ms;
    if (limit == 0 || !is_slow_locked(connection, limit, now))
        return;
    /* No error can be sent in the middle of an answer. Drop the bytes in the kernel's buffer, too.
     */
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    metric_add(connection->table->timeout_total, 1);
    (void)setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    (void)shutdown(connection->fd, SHUT_RDWR);
    connection_enter_locked(connection, CONNECTION_REFUSED);
}

/* Returns whether requests were in progress since the last tick. */
static bool check_times(struct connections *connections, int64_t now)
{
    struct connection *c;
    while (refuse_late_headers(connections, now))
        ; /* each call removes a late connection from the list */
    LOCK(&connections->lock);
    const bool was_active = connections->is_active;
    connections->is_active = false;
    TAILQ_FOREACH(c, &connections->checked, listed)
    {
        show_end_locked(c);
        switch (c->phase) {
        case CONNECTION_BODY:
            check_body_locked(c, now);
            break;
        case CONNECTION_REFUSED:
            /* The connection's own thread wakes at the end of input and sends the refusal. */
            if (c->pending_refusal && now - c->since > SILENT_MS * NS_PER_MS)
                (void)shutdown(c->fd, SHUT_RD);
            if (now - c->since > LINGER_MS * NS_PER_MS)
                (void)shutdown(c->fd, SHUT_RDWR);
            break;
        case CONNECTION_ANSWERING:
            check_answer_locked(c, now);
            break;
        case CONNECTION_DELAYED:
        case CONNECTION_WORKING:
            ask_for_end_locked(c, now);
            break;
        case CONNECTION_AWAITS_REQUEST: /* libmicrohttpd sees the end and closes the connection */
            break;
        }
    }
    return was_active;
}

/* ---- delays ---- */

bool connection_delay(struct connection *connection, int64_t until)
{
    struct connections *connections = connection->table;
    pthread_mutex_lock(&connections->lock);
    bool delays = !connections->delays_ended && connection->phase != CONNECTION_REFUSED;
    bool first = !connections->delayed;
    if (delays) {
        connection_enter_locked(connection, CONNECTION_DELAYED);
        connection->delayed_until = until;
        connection->next_delayed = connections->delayed;
        connections->delayed = connection;
    }
    pthread_mutex_unlock(&connections->lock);
    if (!delays)
        return false;
    metric_add(connections->delayed_total, 1);
    if (first)
        (void)eventfd_write(connections->wake_fd, 1);
    return true;
}

/* libmicrohttpd cannot close a delayed connection before it is resumed, so the connection may be
 * accessed until then. */
static void resume_delayed(struct connections *connections, int64_t now)
{
    struct connection *due = NULL, *next;
    pthread_mutex_lock(&connections->lock);
    for (struct connection **at = &connections->delayed; *at;) {
        struct connection *c = *at;
        if (now < c->delayed_until && !c->gone && !connections->delays_ended) {
            at = &c->next_delayed;
            continue;
        }
        *at = c->next_delayed;
        c->next_delayed = due;
        due = c;
    }
    pthread_mutex_unlock(&connections->lock);
    for (; due; due = next) {
        next = due->next_delayed;
        exchange_resume(due->exchange);
    }
}

void connections_end_delays(struct connections *connections)
{
    pthread_mutex_lock(&connections->lock);
    connections->delays_ended = true;
    pthread_mutex_unlock(&connections->lock);
    resume_delayed(connections, clock_now());
}

/* ---- the thread ---- */

static void warn_if_full(struct connections *connections, int64_t now)
{
    pthread_mutex_lock(&connections->lock);
    const size_t shed = now < connections->warned_until ? 0 : connections->shed;
    if (shed) {
        connections->shed = 0;
        connections->warned_until = now + FULL_MS * NS_PER_MS;
    }
    pthread_mutex_unlock(&connections->lock);
    if (shed)
        log_event(LOG_WARN, "connections full",
                  LOG_INT("limit", connections->server->options.max_connections),
                  LOG_INT("closed", shed),
                  LOG_STR("text", "closing idle connections for new ones, first from the address "
                                  "with the most connections; raise "
                                  "--max-connections or lower --max-connections-per-address"));
}

/* Returns epoll_wait()'s timeout. `next`: the earliest time of the next tick. `ticks`: the next
 * tick is necessary even if no request is in progress. */
static int sleep_ms_locked(struct connections *connections, bool ticks, int64_t next)
{
    int64_t until = next;
    connections->rests = !ticks && !connections->is_active && !connections->shed &&
                         TAILQ_EMPTY(&connections->checked) &&
                         connections->counts[false].busy + connections->counts[true].busy == 0;
    if (connections->rests)
        until = header_deadline_locked(connections);
    if (connections->delayed)
        return DELAY_MS;
    if (until == INT64_MAX)
        return -1;
    const int64_t left = (until > next ? until : next) - clock_now();
    return left > 0 ? (int)((left + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

static void *connections_thread(void *context)
{
    struct connections *connections = context;
    bool ticks = false;
    int64_t next = 0; /* earliest time of the next check of time limits */
    for (;;) {
        struct epoll_event events[64];
        pthread_mutex_lock(&connections->lock);
        bool stop = connections->stop;
        int ms = sleep_ms_locked(connections, ticks, next);
        pthread_mutex_unlock(&connections->lock);
        if (stop)
            return NULL;
        int count = epoll_wait(connections->epoll_fd, events, 64, ms);
        for (int i = 0; i < count; i++) {
            eventfd_t wakes;
            if (events[i].data.u64 == UINT64_MAX)
                (void)eventfd_read(connections->wake_fd, &wakes);
            else
                handle_event(connections, &events[i]);
        }
        const int64_t now = clock_now();
        resume_delayed(connections, now);
        if (now < next)
            continue;
        ticks = check_times(connections, now);
        warn_if_full(connections, now);
        model_host_end_waits(connections->server->options.model_host);
        ticks |= request_log_tell_left_out(connections->server->log, false);
        next = now + TICK_MS * NS_PER_MS;
    }
}

enum status connections_start(struct connections *connections, struct error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = UINT64_MAX};
    int failure = 0;
    connections->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    connections->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (connections->epoll_fd < 0 || connections->wake_fd < 0 ||
        epoll_ctl(connections->epoll_fd, EPOLL_CTL_ADD, connections->wake_fd, &event) != 0)
        failure = errno;
    else if (!thread_start(&connections->thread, "watcher", connections_thread, connections))
        failure = EAGAIN;
    connections->has_thread = !failure;
    return failure ? error_set(err, STATUS_IO,
                               "cannot start the thread that watches connections (%s); %s",
                               strerror(failure),
                               failure == EMFILE ? "raise the limit of open files (ulimit -n)"
                                                 : THREAD_LIMIT_HINT)
                   : STATUS_OK;
}

void connections_stop(struct connections *connections)
{
    if (!connections->has_thread)
        return;
    pthread_mutex_lock(&connections->lock);
    connections->stop = true;
    pthread_mutex_unlock(&connections->lock);
    (void)eventfd_write(connections->wake_fd, 1);
    pthread_join(connections->thread, NULL);
    connections->has_thread = false;
}
