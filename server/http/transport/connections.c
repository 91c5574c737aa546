/* The table of open connections: their phases, refusals, and the limits of their number. */
#include "server/http/transport/connections.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "proto/answers.h"
#include "server/http/transport/event_loop.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"

#define IDLE_MS 1000 /* idle time after which a connection's pool is returned to the system */

/* ---- phases ---- */

static bool is_busy(enum connection_phase phase)
{
    return phase != CONNECTION_AWAITS_REQUEST && phase != CONNECTION_REFUSED;
}

static struct connection_list *list_of(const struct connection *connection)
{
    struct connections *connections = connection->table;
    const enum connection_phase phase = connection->phase;
    if (connection->is_multiplexed)
        return &connections->quiet;
    if (connection->ended || phase == CONNECTION_BODY || phase == CONNECTION_ANSWERING ||
        phase == CONNECTION_REFUSED)
        return &connections->checked;
    return connection->header_since ? &connections->headers : &connections->quiet;
}

void connection_place_locked(struct connection *connection)
{
    struct connections *connections = connection->table;
    struct connection_list *list = list_of(connection);
    if (list != connection->list) {
        if (connection->list)
            TAILQ_REMOVE(connection->list, connection, listed);
        TAILQ_INSERT_TAIL(list, connection, listed);
        connection->list = list;
    }
    if (list == &connections->quiet && !is_busy(connection->phase))
        return;
    connections->is_active = true;
    if (connections->rests)
        (void)eventfd_write(connections->wake_fd, 1);
    connections->rests = false;
}

void connection_enter_locked(struct connection *connection, enum connection_phase phase)
{
    struct connection_count *count = &connection->table->counts[connection->is_admin];
    count->busy -= is_busy(connection->phase);
    count->busy += is_busy(phase);
    connection->phase = phase;
    connection->had_unread = false;
    connection->since = clock_now();
    connection->header_since = 0;
    connection->knows_acked = false;
    connection_place_locked(connection);
}

bool connection_enter(struct connection *connection, enum connection_phase phase)
{
    LOCK(&connection->table->lock);
    bool ours = connection->phase != CONNECTION_REFUSED;
    if (ours)
        connection_enter_locked(connection, phase);
    return ours;
}

/* The answer is small and the socket's buffer is empty: one send takes all of it, unless the client
 * does not read. */
static void refuse_locked(struct connection *connection, const char *answer, size_t size)
{
    if (connection->phase == CONNECTION_REFUSED)
        return;
    if (answer && connection->tls)
        tls_send_last(connection->tls, answer, size);
    else if (answer)
        (void)!send(connection->fd, answer, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)shutdown(connection->fd, SHUT_WR);
    connection_enter_locked(connection, CONNECTION_REFUSED);
}

void connection_refuse(struct connection *connection, const char *answer, size_t size)
{
    LOCK(&connection->table->lock);
    refuse_locked(connection, answer, size);
}

void connection_leave_locked(struct connection *connection)
{
    connection_enter_locked(connection, CONNECTION_REFUSED);
    (void)shutdown(connection->fd, SHUT_RDWR);
    connection->is_leaving = true;
    connection->table->counts[connection->is_admin].leaving++;
}

bool connection_send_pending_refusal(struct connection *connection)
{
    if (!connection->tls)
        return false;
    pthread_mutex_lock(&connection->table->lock);
    char *words = connection->pending_refusal;
    connection->pending_refusal = NULL;
    pthread_mutex_unlock(&connection->table->lock);
    if (!words)
        return false;
    tls_send_last(connection->tls, words, connection->pending_refusal_size);
    (void)shutdown(connection->fd, SHUT_WR);
    free(words);
    return true;
}

static void note_read_locked(struct connection *connection)
{
    if (connection->phase != CONNECTION_AWAITS_REQUEST || connection->header_since)
        return;
    connection->header_since = clock_now();
    connection_place_locked(connection);
}

/* pull(), on_finished() and pull_timeout() run on the thread that drives the session. */
static ssize_t pull(gnutls_transport_ptr_t pointer, void *bytes, size_t size)
{
    struct connection *connection = pointer;
    (void)connection_send_pending_refusal(connection);
    const ssize_t got = recvfrom(connection->fd, bytes, size, 0, NULL, NULL);
    if (got > 0) {
        LOCK(&connection->table->lock);
        note_read_locked(connection);
    }
    return got;
}

/* Finished is the client's last message of the handshake, in TLS 1.2 and 1.3. */
static int on_finished(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
                       const gnutls_datum_t *message)
{
    (void)type, (void)when, (void)message;
    struct connection *connection = gnutls_transport_get_ptr(session);
    if (!incoming)
        return 0;
    LOCK(&connection->table->lock);
    connection->has_shaken = true;
    connection->header_since = 0; /* later bytes belong to a request */
    connection_place_locked(connection);
    return 0;
}

static int pull_timeout(gnutls_transport_ptr_t pointer, unsigned milliseconds)
{
    const struct connection *connection = pointer;
    return gnutls_system_recv_timeout((gnutls_transport_ptr_t)(intptr_t)connection->fd,
                                      milliseconds);
}

/* Call this function before the handshake. */
static void watch_session(struct connection *connection)
{
    gnutls_transport_set_ptr2(connection->tls, connection,
                              (gnutls_transport_ptr_t)(intptr_t)connection->fd);
    gnutls_transport_set_pull_function(connection->tls, pull);
    gnutls_transport_set_pull_timeout_function(connection->tls, pull_timeout);
    gnutls_handshake_set_hook_function(connection->tls, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST,
                                       on_finished);
}

void connection_refuse_locked(struct connection *connection, int http, const char *code,
                              const char *sentence)
{
    struct answer answer = {.status = http, .type = TYPE_JSON, .retry_after_s = http == 429};
    connection->refusal = http;
    answer.text = error_json(sentence, code);
    answer.size = answer.text ? strlen(answer.text) : 0;
    size_t size = 0;
    char *raw = raw_answer(&answer, NULL, &size);
    free(answer.text);
    if (connection->tls) {
        connection->pending_refusal = raw;
        connection->pending_refusal_size = size;
        connection_enter_locked(connection, CONNECTION_REFUSED);
    } else {
        refuse_locked(connection, raw, size);
        free(raw);
    }
}

/* ---- hang-ups ---- */

void connections_watch(struct exchange *x, struct predict_request *request)
{
    struct connection *connection = x->connection;
    LOCK(&x->server->connections->lock);
    x->watched = request;
    if (connection && !connection->is_multiplexed)
        connection->watched = request ? x : NULL;
    if (request && connection && connection->gone)
        metric_add(connection->table->gone_total, 1);
    if (request && (x->is_abandoned || (connection && connection->gone)))
        atomic_store(&request->cancelled, 1);
}

struct predict_request *connection_cancel_locked(struct exchange *x)
{
    x->is_abandoned = true;
    if (!x->watched)
        return NULL;
    /* Set `cancelled` first: if pinning fails, scheduler_submit() may still read the flag. */
    atomic_store(&x->watched->cancelled, 1);
    return predict_request_pin(x->watched) ? x->watched : NULL;
}

void connections_cancel(struct exchange *x)
{
    pthread_mutex_lock(&x->server->connections->lock);
    struct predict_request *request = connection_cancel_locked(x);
    pthread_mutex_unlock(&x->server->connections->lock);
    if (request)
        model_host_cancel(x->server->options.model_host, request);
}

static bool is_full_locked(const struct connections *connections, bool is_admin)
{
    const struct connection_count *count = &connections->counts[is_admin];
    return count->open - count->leaving >
           (is_admin ? CONNECTION_ADMIN : connections->server->options.max_connections);
}

static uint32_t *held_locked(const struct connection *connection)
{
    return &connection->table->held[connection->client % CONNECTION_CLIENT_SLOTS];
}

/* Returns the connection to close for `newcomer`. Among the clients with an idle connection,
 * chooses the client with the most connections, and of its idle connections the one that has been
 * idle longest. NULL: no connection is idle. */
static struct connection *oldest_idle_locked(const struct connection *newcomer)
{
    const struct connections *connections = newcomer->table;
    struct connection *best = NULL;
    uint32_t most = 0;
    for (size_t fd = 0; fd < connections->by_fd_count; fd++) {
        struct connection *c = connections->by_fd[fd];
        const uint32_t held = c ? *held_locked(c) : 0;
        if (!c || c == newcomer || c->is_admin != newcomer->is_admin ||
            c->phase != CONNECTION_AWAITS_REQUEST || c->since >= newcomer->opened)
            continue;
        if (held > most || (held == most && c->since < best->since)) {
            best = c;
            most = held;
        }
    }
    return best;
}

/* Closes an idle connection if `newcomer` exceeds the limit. */
static void make_room_locked(struct connection *newcomer)
{
    struct connections *connections = newcomer->table;
    struct connection *idle;
    int unread = 0;
    if (!is_full_locked(connections, newcomer->is_admin))
        return;
    /* A connection with unread bytes is not idle: its event loop is about to read them. */
    while ((idle = oldest_idle_locked(newcomer)) && ioctl(idle->fd, FIONREAD, &unread) == 0 &&
           unread > 0)
        idle->since = newcomer->opened;
    if (idle) {
        connections->shed++;
        connection_leave_locked(idle);
        metric_add(connections->shed_total, 1);
    }
    newcomer->is_spare = is_full_locked(connections, newcomer->is_admin);
}

/* ---- the table ---- */

struct connections *connections_create(struct http_server *server)
{
    struct connections *connections = calloc(1, sizeof *connections);
    if (!connections)
        return NULL;
    connections->epoll_fd = connections->wake_fd = -1;
    connections->server = server;
    const struct metric_row rows[] = {
        {&connections->gone_total, METRIC_COUNTER, "lensd_http_clients_gone_total",
         "Requests whose client hung up before the answer."},
        {&connections->timeout_total, METRIC_COUNTER, "lensd_http_timeouts_total",
         "Requests whose headers or body did not arrive in time, or whose answer was not taken in "
         "time."},
        {&connections->late_handshakes, METRIC_COUNTER, "lensd_tls_handshake_timeouts_total",
         "TLS handshakes that did not finish in time."},
        {&connections->delayed_total, METRIC_COUNTER, "lensd_http_delayed_total",
         "Requests that waited because their client came back too soon after a refusal."},
        {&connections->shed_total, METRIC_COUNTER, "lensd_http_connections_shed_total",
         "Idle connections closed to make room for new ones."},
        {&connections->open_gauge, METRIC_GAUGE, "lensd_http_connections", "Open connections."}};
    metrics_get_all(server->options.metrics, "", rows, COUNT_OF(rows));
    TAILQ_INIT(&connections->quiet);
    TAILQ_INIT(&connections->headers);
    TAILQ_INIT(&connections->checked);
    pthread_mutex_init(&connections->lock, NULL);
    return connections;
}

void connections_free(struct connections *connections)
{
    if (!connections)
        return;
    if (connections->epoll_fd >= 0)
        close(connections->epoll_fd);
    if (connections->wake_fd >= 0)
        close(connections->wake_fd);
    pthread_mutex_destroy(&connections->lock);
    FREE_ALL(connections->by_fd, connections);
}

static bool remember_locked(struct connection *connection)
{
    struct connections *connections = connection->table;
    const size_t fd = (size_t)connection->fd, before = connections->by_fd_count;
    if (!array_reserve(&connections->by_fd, &connections->by_fd_count, fd + 1,
                       sizeof *connections->by_fd))
        return false;
    for (size_t i = before; i < connections->by_fd_count; i++)
        connections->by_fd[i] = NULL;
    connections->by_fd[fd] = connection;
    connection_place_locked(connection);
    connections->counts[connection->is_admin].open++;
    ++*held_locked(connection);
    return true;
}

static bool is_over_limit_locked(const struct connection *connection)
{
    const struct connections *connections = connection->table;
    const size_t limit = connections->server->options.max_connections_per_address;
    size_t count = 0;
    if (*held_locked(connection) <= limit)
        return false;
    for (size_t fd = 0; fd < connections->by_fd_count; fd++) {
        const struct connection *c = connections->by_fd[fd];
        count += c && c->client == connection->client && c->is_admin == connection->is_admin;
    }
    return count > limit;
}

static bool is_unix_socket(int fd)
{
    int domain = AF_UNSPEC;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

static void refuse_crowd_locked(struct connection *connection)
{
    char sentence[160];
    snprintf(sentence, sizeof sentence,
             "more than %zu connections from your address; close some, or raise the limit "
             "(--max-connections-per-address)",
             connection->table->server->options.max_connections_per_address);
    if (!connection->is_multiplexed) /* a new HTTP/2 connection has no call yet to answer */
        connection_refuse_locked(connection, 429, "too_many_connections", sentence);
    connection_leave_locked(connection);
}

struct connection *connection_open(struct connections *connections, const struct connection *given,
                                   const struct sockaddr *address)
{
    struct connection *connection = malloc(sizeof *connection);
    if (!connection)
        return NULL;
    *connection = *given;
    connection->table = connections;
    connection->since = connection->opened = clock_now();
    connection->is_unix = is_unix_socket(given->fd);
    trusted_proxies_text(given->fd, address, connection->address);
    connection->client = penalty_client(connection->address, NULL);
    pthread_mutex_lock(&connections->lock);
    connection->generation = ++connections->generation;
    const bool kept = remember_locked(connection);
    if (kept && is_over_limit_locked(connection))
        refuse_crowd_locked(connection);
    else if (kept)
        make_room_locked(connection);
    pthread_mutex_unlock(&connections->lock);
    if (!kept) {
        free(connection);
        return NULL;
    }
    if (given->tls)
        watch_session(connection);
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET,
                                .data.u64 =
                                    (uint64_t)connection->generation << 32 | (uint32_t)given->fd};
    if (!given->is_multiplexed)
        (void)epoll_ctl(connections->epoll_fd, EPOLL_CTL_ADD, given->fd, &event);
    metric_add(connections->open_gauge, 1);
    return connection;
}

void connection_close(struct connection *connection)
{
    struct connections *connections = connection->table;
    (void)epoll_ctl(connections->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    const int64_t now = clock_now();
    pthread_mutex_lock(&connections->lock);
    penalty_leave(&connections->penalties, connection->client, &connection->penalty, now);
    connections->by_fd[connection->fd] = NULL;
    TAILQ_REMOVE(connection->list, connection, listed);
    struct connection_count *count = &connections->counts[connection->is_admin];
    count->open--;
    count->leaving -= connection->is_leaving;
    count->busy -= is_busy(connection->phase);
    --*held_locked(connection);
    pthread_mutex_unlock(&connections->lock);
    metric_add(connections->open_gauge, -1);
    if (connection->answered)
        TAILQ_REMOVE(&connection->loop->idle, connection, idle);
    FREE_ALL(connection->pending_refusal, connection);
}

static struct connection *find_locked(const struct connections *connections, int fd)
{
    return fd >= 0 && (size_t)fd < connections->by_fd_count ? connections->by_fd[fd] : NULL;
}

struct connection *connections_find(struct connections *connections, int fd)
{
    LOCK(&connections->lock);
    return find_locked(connections, fd);
}

void connections_note_read(struct connections *connections, int fd, void *bytes)
{
    LOCK(&connections->lock);
    struct connection *connection = find_locked(connections, fd);
    if (!connection)
        return;
    if (!connection->pool)
        connection->pool = bytes;
    note_read_locked(connection);
}

/* ---- libmicrohttpd's memory ---- */

void connection_note_idle(struct connection *connection, int64_t answered)
{
    struct connection_list *idle = &connection->loop->idle;
    if (connection->answered)
        TAILQ_REMOVE(idle, connection, idle);
    TAILQ_INSERT_TAIL(idle, connection, idle);
    connection->answered = answered;
}

/* Gives pages of zeros at a pool's end back to the system; the pages still read as zeros.
 * libmicrohttpd cleared the pool after the last request. The next request may have bytes in the
 * first pages. */
static void release_zeros(unsigned char *pool, size_t size)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t used = size - size % page;
    if ((uintptr_t)pool % page)
        return; /* the pool was not allocated by mmap() */
    const size_t whole = used;
    while (used && !pool[used - page] &&
           !memcmp(pool + used - page, pool + used - page + 1, page - 1))
        used -= page;
    (void)madvise(pool + used, whole - used, MADV_DONTNEED);
}

/* libmicrohttpd frees the pool when a connection has been silent for --idle-timeout, and reports
 * the end of the connection only later. So trust the pool only for half of --idle-timeout. */
static bool has_pool(const struct connection *connection, int64_t now)
{
    const int64_t limit_ms = connection->table->server->options.idle_timeout_ms;
    return connection->pool && !connection->exchange &&
           now - connection->answered < limit_ms * NS_PER_MS / 2;
}

int connections_release_pools(struct event_loop *loop)
{
    struct connection *connection;
    const int64_t now = clock_now();
    while ((connection = TAILQ_FIRST(&loop->idle))) {
        const int64_t left = connection->answered + IDLE_MS * NS_PER_MS - now;
        if (left > 0)
            return (int)(left / NS_PER_MS) + 1;
        if (has_pool(connection, now))
            release_zeros(connection->pool, loop->pool_bytes);
        TAILQ_REMOVE(&loop->idle, connection, idle);
        connection->answered = 0;
    }
    return -1;
}

/* ---- penalties ---- */

static bool has_hung_up(int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};
    return poll(&end, 1, 0) > 0;
}

/* Stores the penalties of connections that this client has closed but libmicrohttpd still holds, so
 * that the client's next connection can take over a penalty. */
static void release_penalties_locked(struct connections *connections, uint64_t client, int64_t now)
{
    if (!connections->refused || now - connections->refused >= 1000 * NS_PER_MS)
        return;
    for (size_t fd = 0; fd < connections->by_fd_count; fd++) {
        struct connection *c = connections->by_fd[fd];
        if (!c || c->client != client || !c->penalty.refused || !has_hung_up(c->fd))
            continue;
        penalty_leave(&connections->penalties, client, &c->penalty, now);
        penalty_served(&c->penalty); /* so that connection_close() does not store it again */
    }
}

/* True if a penalty may delay the request. Probes and dashboards use GET and are not delayed. */
static bool may_wait(const char *method)
{
    return !(route_method(method) & (METHOD_GET | METHOD_HEAD | METHOD_OPTIONS));
}

static uint64_t penalized_client(const struct exchange *x)
{
    return penalty_client(x->connection->address, x->forwarded[0] ? x->forwarded : NULL);
}

int64_t exchange_delay(struct exchange *x, const char *method)
{
    struct connection *connection = x->connection;
    struct connections *connections = connection->table;
    const struct penalty *penalty = &connection->penalty;
    const int64_t now = clock_now();
    if (x->was_delayed || !may_wait(method))
        return 0;
    const uint64_t client = penalized_client(x);
    LOCK(&connections->lock);
    if (x->forwarded[0]) {
        penalty = penalty_find(&connections->penalties, client);
    } else if (!connection->has_asked) {
        release_penalties_locked(connections, client, now);
        penalty_take_over(&connections->penalties, client, connection->opened, now,
                          &connection->penalty);
    }
    connection->has_asked = true;
    const int64_t until = penalty ? penalty_until(penalty) : 0;
    x->was_delayed = until > now;
    return x->was_delayed ? until : 0;
}

void exchange_note_answer(struct exchange *x, bool last)
{
    struct connections *connections = x->connection->table;
    const bool refused = x->answer.retry_after_s > 0, is_forwarded = x->forwarded[0];
    const int64_t now = clock_now();
    if (!may_wait(x->method))
        return;
    const uint64_t client = penalized_client(x);
    LOCK(&connections->lock);
    struct penalty *penalty = !is_forwarded ? &x->connection->penalty
                              : refused     ? penalty_add(&connections->penalties, client)
                                            : penalty_find(&connections->penalties, client);
    if (refused) {
        connections->refused = now;
        penalty_refused(penalty, x->was_delayed, now);
    } else if (penalty) {
        penalty_served(penalty);
    }
    if (last && !is_forwarded) {
        penalty_leave(&connections->penalties, client, penalty, now);
        penalty_served(penalty); /* so that connection_close() does not store it again */
    }
}

/* ---- counts ---- */

void connections_count(struct connections *connections, size_t *ret_open, size_t *ret_busy)
{
    LOCK(&connections->lock);
    *ret_open = connections->counts[false].open;
    *ret_busy = connections->counts[false].busy;
}

bool connections_have_unread(struct connections *connections)
{
    int unread = 0;
    LOCK(&connections->lock);
    for (size_t fd = 0; fd < connections->by_fd_count && unread == 0; fd++) {
        const struct connection *c = connections->by_fd[fd];
        if (!c || c->is_admin || ioctl(c->fd, FIONREAD, &unread) != 0)
            unread = 0;
    }
    return unread > 0;
}
