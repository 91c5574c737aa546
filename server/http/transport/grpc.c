/* The thread of --grpc-port: accepts connections, waits for their sockets with epoll, and continues
 * the calls that other threads resume. */
#include "server/http/transport/grpc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/grpc_connection.h"
#include "server/http/transport/request_log.h"
#include "server/http/transport/tls.h"

#define TICK_MS         50 /* resolution of the time limits, and of penalties */
#define ACCEPTS_PER_RUN 64
#define EVENTS          64

enum status grpc_check(struct error *err)
{
    (void)err;
    return STATUS_OK;
}

static bool grpc_has_room(const struct grpc_server *grpc)
{
    size_t open, busy;
    connections_count(grpc->http->connections, &open, &busy);
    return open < grpc->http->options.max_connections + CONNECTION_SPARE;
}

static void grpc_accept(struct grpc_server *grpc)
{
    int left = clock_now() < grpc->full_until ? 0 : ACCEPTS_PER_RUN;
    while (left > 0 && grpc_has_room(grpc) &&
           proxy_pending_accept(grpc->proxied, grpc->http->grpc.fd, grpc_connection_open, grpc,
                                &grpc->full_until))
        left--;
    /* The listening socket is edge-triggered, because a level-triggered one would keep waking the
     * thread while no more connections fit. So note whether clients may still wait. */
    grpc->may_wait = left == 0 || !grpc_has_room(grpc) || clock_now() < grpc->full_until;
}

static void grpc_run_resumed(struct exchange *x)
{
    for (struct exchange *next; x; x = next) {
        struct grpc_call *call = x->handle;
        struct grpc_connection *connection = call->connection;
        next = x->next_resumed;
        grpc_call_resumed(call);
        grpc_connection_run(connection, UINT32_MAX);
    }
}

/* Checks time limits if a tick is due, handles stored input, frees connections that have ended. */
static void grpc_look_after(struct grpc_server *grpc, bool is_due, bool is_ending)
{
    const int64_t now = clock_now();
    for (struct grpc_connection *c = LIST_FIRST(&grpc->connections), *next; c; c = next) {
        next = LIST_NEXT(c, listed);
        if (is_due)
            grpc_connection_tick(c, now, is_ending);
        else if (c->wants_feed)
            grpc_connection_run(c, UINT32_MAX);
        grpc_connection_sweep(c);
    }
}

static int grpc_sleep_ms(const struct grpc_server *grpc, int64_t next_tick)
{
    const int64_t left = (next_tick - clock_now()) / NS_PER_MS;
    const struct grpc_connection *c;
    LIST_FOREACH(c, &grpc->connections, listed)
    if (c->session && c->wants_feed)
        return 0;
    int ms = !LIST_EMPTY(&grpc->connections) || grpc->may_wait ? left < 0 ? 0 : (int)left + 1 : -1;
    if (grpc->proxied) {
        const int other = proxy_pending_sleep_ms(grpc->proxied, grpc_has_room(grpc));
        ms = ms < 0 || (other >= 0 && other < ms) ? other : ms;
    }
    return ms;
}

static void *grpc_run(void *context)
{
    struct grpc_server *grpc = context;
    struct exchange *resumed;
    struct epoll_event events[EVENTS];
    int64_t next_tick = 0;
    bool accepts;
    int count = 0;
    pthread_mutex_lock(&grpc->http->gate);
    pthread_mutex_unlock(&grpc->http->gate);
    while (inbox_take(&grpc->inbox, &resumed, &accepts)) {
        grpc_run_resumed(resumed);
        for (int i = 0; i < count; i++)
            if (events[i].data.ptr && events[i].data.ptr != grpc)
                grpc_connection_run(events[i].data.ptr, events[i].events);
        grpc_accept(grpc);
        if (grpc->proxied)
            proxy_pending_run(grpc->proxied, grpc_has_room(grpc) ? 1 : 0, grpc_connection_open,
                              grpc);
        const bool is_due = clock_now() >= next_tick;
        if (is_due)
            next_tick = clock_now() + TICK_MS * NS_PER_MS;
        grpc_look_after(grpc, is_due, !accepts);
        count = epoll_wait(grpc->epoll_fd, events, EVENTS, grpc_sleep_ms(grpc, next_tick));
    }
    struct grpc_connection *c;
    LIST_FOREACH(c, &grpc->connections, listed)
    grpc_connection_end(c);
    grpc_run_resumed(resumed);
    grpc_look_after(grpc, false, true);
    return NULL;
}

static bool grpc_watch(const struct grpc_server *grpc, int fd, uint32_t how, void *pointer)
{
    struct epoll_event event = {.events = EPOLLIN | how, .data.ptr = pointer};
    return epoll_ctl(grpc->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

enum status grpc_start(struct http_server *http, struct error *err)
{
    struct grpc_server *grpc = http->grpc_server = calloc(1, sizeof *grpc);
    TRY(check_memory(grpc, "for --grpc-port", err));
    grpc->http = http;
    grpc->epoll_fd = -1;
    (void)inbox_init(&grpc->inbox, true);
    grpc->log = request_log_create(http->options.metrics, http->options.grpc_routes);
    TRY(check_memory(grpc->log && (!http->tls || gnutls_certificate_allocate_credentials(
                                                     &grpc->credentials) >= 0),
                     "for --grpc-port", err));
    if (http->tls)
        gnutls_certificate_set_retrieve_function2(grpc->credentials, tls_on_handshake);
    grpc->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (http->options.proxy_protocol)
        grpc->proxied = proxy_pending_create(&http->proxies, http->options.metrics);
    if (grpc->epoll_fd < 0 || grpc->inbox.fd < 0 ||
        (http->options.proxy_protocol && !grpc->proxied) ||
        !grpc_watch(grpc, http->grpc.fd, EPOLLET, NULL) ||
        !grpc_watch(grpc, grpc->inbox.fd, 0, grpc) ||
        (grpc->proxied && !grpc_watch(grpc, grpc->proxied->epoll_fd, 0, NULL)))
        return error_set(err, STATUS_IO,
                         "cannot open what --grpc-port needs (%s); raise the limit of open files "
                         "(ulimit -n)",
                         strerror(errno));
    grpc->has_thread = thread_start(&grpc->thread, "grpc", grpc_run, grpc);
    return grpc->has_thread
               ? STATUS_OK
               : error_set(err, STATUS_IO, "cannot start the thread of --grpc-port; %s",
                           THREAD_LIMIT_HINT);
}

void grpc_begin_end(struct grpc_server *grpc)
{
    inbox_set(&grpc->inbox, &grpc->inbox.accepts, false);
}

void grpc_stop(struct grpc_server *grpc)
{
    if (!grpc)
        return;
    inbox_set(&grpc->inbox, &grpc->inbox.stop, true);
    if (grpc->has_thread)
        pthread_join(grpc->thread, NULL);
    proxy_pending_free(grpc->proxied);
    request_log_free(grpc->log);
    if (grpc->credentials)
        gnutls_certificate_free_credentials(grpc->credentials);
    if (grpc->epoll_fd >= 0)
        close(grpc->epoll_fd);
    inbox_done(&grpc->inbox);
    free(grpc);
}
