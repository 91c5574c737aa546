/* A connection of --grpc-port: moves bytes between the socket and nghttp2, and limits what a client
 * may do.
 *
 * nghttp2 reads and writes frames, headers and flow control. It refuses violations of HTTP/2, calls
 * beyond GRPC_CALLS, bytes beyond a window, too many CONTINUATION frames, and more than OUT_ACKS
 * unread answers to PING and SETTINGS. A credit stops floods that HTTP/2 allows. Frames without a
 * message (PING, SETTINGS, RST_STREAM, PRIORITY, WINDOW_UPDATE, empty DATA) cost credit, as do all
 * bytes outside messages; time, answered calls and sent data restore some. RST_STREAM costs much
 * before the call's handler runs and little afterwards. A connection has at most 2 * GRPC_CALLS
 * calls, counting cancelled calls that still run. When its credit is used up, a connection gets
 * ENHANCE_YOUR_CALM and ends. Nothing is read while the socket accepts no output. An endless header
 * block (CONTINUATION) also ends the connection. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/grpc_connection.h"
#include "server/http/transport/tls.h"

#define READ_BYTES    (16 * 1024)
#define READS_PER_RUN 8
#define FEEDS_PER_RUN 4
#define OUT_ACKS      100
#define LINGER_MS     2000         /* how long a client may send after our side was shut down */
#define CREDIT_SECOND 100          /* credit for each second */
#define CREDIT_DATA   4            /* credit for each DATA frame sent: WINDOW_UPDATEs follow it */
#define CREDIT_CALL   20           /* credit for each answered call */
#define COST_RESET    10           /* cost of RST_STREAM before COST_CANCEL applies */
#define COST_CANCEL   0.5          /* cost of RST_STREAM once has_worked() */
#define COST_BYTE     (1.0 / 4096) /* cost of each byte read, except in DATA frames */

/* Returns `done`, the result of reading or writing. A negative result becomes -1 if the socket is
 * not ready, or -2 after an error. */
static ssize_t checked(const struct grpc_connection *c, ssize_t done)
{
    const bool is_early = c->tls ? done == GNUTLS_E_AGAIN || done == GNUTLS_E_INTERRUPTED
                                 : errno == EAGAIN || errno == EINTR;
    return done >= 0 ? done : is_early ? -1 : -2;
}

static ssize_t write_some(struct grpc_connection *c, const uint8_t *bytes, size_t size)
{
    return checked(c, c->tls ? gnutls_record_send(c->tls, bytes, size)
                             : send(c->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT));
}

/* Writes what on_send() has gathered, as far as the socket accepts it. Returns false if the
 * connection is over. */
static bool write_gathered(struct grpc_connection *c)
{
    while (c->out_at < c->out_size) {
        const ssize_t put = write_some(c, c->out + c->out_at, c->out_size - c->out_at);
        if (put < 0 && !c->blocked_since)
            c->blocked_since = clock_now();
        if (put < 0)
            return put == -1;
        c->blocked_since = 0;
        c->out_at += (size_t)put;
    }
    c->out_at = c->out_size = 0;
    return true;
}

/* Gathers frames: a system call and a TLS record for each frame would take more CPU time. */
static ssize_t on_send(nghttp2_session *session, const uint8_t *bytes, size_t size, int flags,
                       void *context)
{
    (void)session, (void)flags;
    struct grpc_connection *c = context;
    if (c->out_size == sizeof c->out && !write_gathered(c))
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    const size_t room = sizeof c->out - c->out_size, taken = size < room ? size : room;
    memcpy(c->out + c->out_size, bytes, taken);
    c->out_size += taken;
    return taken ? (ssize_t)taken : NGHTTP2_ERR_WOULDBLOCK;
}

static void watch_events(struct grpc_connection *c)
{
    const bool writes =
        c->blocked_since || (c->tls && !c->has_shaken && gnutls_record_get_direction(c->tls) == 1);
    const uint32_t events = writes ? EPOLLOUT : EPOLLIN;
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (events != c->events)
        (void)epoll_ctl(c->server->epoll_fd, c->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, c->fd,
                        &event);
    c->events = events;
}

static void close_calls(struct grpc_connection *c)
{
    for (struct grpc_call *call = LIST_FIRST(&c->calls), *next; call; call = next) {
        next = LIST_NEXT(call, listed);
        grpc_call_closed(call, false);
    }
}

void grpc_connection_end(struct grpc_connection *c)
{
    if (!c->session)
        return;
    nghttp2_session_del(c->session);
    c->session = NULL;
    (void)epoll_ctl(c->server->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    (void)shutdown(c->fd, SHUT_RDWR);
    close_calls(c);
}

/* Queues GOAWAY: the connection ends when all queued frames have been sent. */
static void tell_to_go(struct grpc_connection *c, uint32_t why)
{
    c->is_ending = true;
    (void)nghttp2_session_terminate_session(c->session, why);
}

/* Queues GOAWAY: the client makes no more calls on this connection. Open calls are answered. */
static void leave(struct grpc_connection *c)
{
    c->is_leaving = true;
    (void)nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE,
                                nghttp2_session_get_last_proc_stream_id(c->session),
                                NGHTTP2_NO_ERROR, NULL, 0);
}

/* Returns false if the credit is used up; the client then gets ENHANCE_YOUR_CALM. */
static bool pay(struct grpc_connection *c, double cost)
{
    const int64_t now = clock_now();
    c->credit += (double)(now - c->credit_time) * 1e-9 * CREDIT_SECOND - cost;
    c->credit_time = now;
    if (c->credit > GRPC_CREDIT)
        c->credit = GRPC_CREDIT;
    if (c->credit >= 0 || c->is_ending)
        return c->credit >= 0;
    tell_to_go(c, NGHTTP2_ENHANCE_YOUR_CALM);
    return false;
}

static struct grpc_call *call_of(nghttp2_session *session, int32_t stream)
{
    return nghttp2_session_get_stream_user_data(session, stream);
}

/* True if the call's handler started in an earlier grpc_connection_run() than the current one. */
static bool has_worked(nghttp2_session *session, int32_t stream)
{
    const struct grpc_call *call = call_of(session, stream);
    return call && call->worked_in_run && call->worked_in_run != call->connection->runs;
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *head, void *context)
{
    (void)session;
    struct grpc_connection *c = context;
    const bool is_open = head->type == NGHTTP2_HEADERS && !(head->flags & NGHTTP2_FLAG_END_HEADERS);
    if (head->type == NGHTTP2_CONTINUATION)
        return 0;
    c->has_open_header = is_open;
    c->header_bytes = 0;
    c->header_since = 0;
    if (head->type == NGHTTP2_HEADERS)
        return 0;
    if (head->type == NGHTTP2_DATA && (head->length || head->flags & NGHTTP2_FLAG_END_STREAM))
        return 0;
    (void)pay(c, head->type != NGHTTP2_RST_STREAM       ? 1
                 : has_worked(session, head->stream_id) ? COST_CANCEL
                                                        : COST_RESET);
    return 0;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    struct grpc_connection *c = context;
    c->header_since = clock_now();
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST || c->is_ending)
        return 0;
    /* Calls whose streams are closed count until their exchanges have ended. */
    struct grpc_call *call =
        c->call_count < 2 * GRPC_CALLS ? grpc_call_create(c, frame->hd.stream_id) : NULL;
    if (!call)
        return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                         NGHTTP2_REFUSED_STREAM);
    return nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, call);
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_size, const uint8_t *value, size_t value_size, uint8_t flags,
                     void *context)
{
    (void)flags;
    struct grpc_call *call = call_of(session, frame->hd.stream_id);
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0; /* ignore trailers: other threads may be reading the headers */
    if (call && !grpc_call_header(call, name, name_size, value, value_size))
        tell_to_go(context, NGHTTP2_ENHANCE_YOUR_CALM);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    struct grpc_connection *c = context;
    struct grpc_call *call = call_of(session, frame->hd.stream_id);
    if (frame->hd.type == NGHTTP2_SETTINGS)
        c->has_settings = true;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        c->header_since = 0;
        c->has_open_header = false;
    }
    if (c->is_ending || !call ||
        (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA))
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        grpc_call_begin(call);
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
        grpc_call_end(call);
    return 0;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int why,
                            void *context)
{
    (void)session, (void)frame, (void)why;
    struct grpc_connection *c = context;
    c->header_since = 0;
    (void)pay(c, COST_RESET);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *bytes,
                   size_t size, void *context)
{
    (void)flags;
    struct grpc_connection *c = context;
    struct grpc_call *call = call_of(session, stream);
    const size_t taken = call && !c->is_ending ? grpc_call_data(call, bytes, size) : size;
    (void)nghttp2_session_consume_connection(session, size);
    if (taken)
        (void)nghttp2_session_consume_stream(session, stream, taken);
    (void)pay(c, -(double)size * COST_BYTE);
    return 0;
}

static int on_sent(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    const struct grpc_call *call = call_of(session, frame->hd.stream_id);
    if (frame->hd.type == NGHTTP2_DATA)
        (void)pay(context, -CREDIT_DATA);
    /* nghttp2 resets streams that break HTTP/2's rules (CVE-2025-8671). */
    if (frame->hd.type == NGHTTP2_RST_STREAM &&
        frame->rst_stream.error_code == NGHTTP2_PROTOCOL_ERROR)
        (void)pay(context, COST_RESET);
    /* The call is answered, so the client need not send the rest. */
    if (call && !call->has_ended && frame->hd.type == NGHTTP2_HEADERS &&
        frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                        NGHTTP2_NO_ERROR);
    return 0;
}

static int on_closed(nghttp2_session *session, int32_t stream, uint32_t why, void *context)
{
    struct grpc_connection *c = context;
    struct grpc_call *call = call_of(session, stream);
    if (!call)
        return 0;
    (void)nghttp2_session_set_stream_user_data(session, stream, NULL);
    if (why == NGHTTP2_NO_ERROR && call->state == CALL_ENDED)
        (void)pay(c, -CREDIT_CALL);
    grpc_call_closed(call, why == NGHTTP2_NO_ERROR);
    return 0;
}

static bool start_session(struct grpc_connection *c)
{
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, GRPC_CALLS},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, (uint32_t)GRPC_CALL_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)c->server->http->options.max_header}};
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    if (nghttp2_session_callbacks_new(&callbacks) != 0)
        return false;
    nghttp2_session_callbacks_set_send_callback(callbacks, on_send);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_closed);
    bool started = nghttp2_option_new(&option) == 0;
    if (started) {
        nghttp2_option_set_no_auto_window_update(option, 1);
        nghttp2_option_set_max_outbound_ack(option, OUT_ACKS);
        started = nghttp2_session_server_new2(&c->session, callbacks, c, option) == 0;
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return started &&
           nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings,
                                   sizeof settings / sizeof *settings) == 0 &&
           nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0,
                                                 (int32_t)GRPC_WINDOW) == 0;
}

void grpc_connection_open(void *context, int fd, const struct sockaddr_storage *address,
                          socklen_t size)
{
    (void)size;
    struct grpc_server *grpc = context;
    const struct connection given = {.fd = fd, .is_multiplexed = true};
    const int one = 1;
    struct grpc_connection *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return;
    }
    c->server = grpc;
    c->fd = fd;
    c->opened = c->idle_since = c->credit_time = clock_now();
    c->credit = GRPC_CREDIT;
    LIST_INSERT_HEAD(&grpc->connections, c, listed);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->entry = connection_open(grpc->http->connections, &given, (const struct sockaddr *)address);
    bool opened = c->entry && start_session(c);
    if (opened && grpc->credentials)
        opened = tls_session(grpc->credentials, fd, "h2", &c->tls);
    if (opened)
        grpc_connection_run(c, UINT32_MAX);
    else if (c->session)
        grpc_connection_end(c); /* grpc_connection_sweep() frees it */
}

void grpc_connection_sweep(struct grpc_connection *c)
{
    if (c->session || !LIST_EMPTY(&c->calls))
        return;
    LIST_REMOVE(c, listed);
    if (c->entry)
        connection_close(c->entry);
    if (c->tls)
        gnutls_deinit(c->tls);
    close(c->fd);
    free(c);
}

/* Returns false if the connection is over; an alert has told the client why. */
static bool shake_hands(struct grpc_connection *c)
{
    const int result = gnutls_handshake(c->tls);
    c->has_shaken = result == GNUTLS_E_SUCCESS;
    const bool goes_on = result >= 0 || !gnutls_error_is_fatal(result);
    if (!goes_on)
        (void)gnutls_alert_send_appropriate(c->tls, result);
    return goes_on;
}

/* True if a header block exceeds every limit without ending. */
static bool has_endless_header(struct grpc_connection *c, size_t more)
{
    c->header_bytes += more;
    return c->has_open_header &&
           c->header_bytes > 2 * c->server->http->options.max_header + READ_BYTES;
}

/* Answers bytes that are not HTTP/2, such as HTTP/1.1, with 400, and closes the connection. */
static void refuse_http1(struct grpc_connection *c)
{
    static const char answer[] =
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        "{\"error\":\"this port serves gRPC over HTTP/2 (--grpc-port); send HTTP/1.1 to "
        "--port\",\"code\":\"invalid_request\"}\n";
    (void)write_some(c, (const uint8_t *)answer, sizeof answer - 1);
    c->is_ending = c->refused_http1 = true;
}

/* Returns false if the connection is over. */
static bool read_all(struct grpc_connection *c)
{
    uint8_t bytes[READ_BYTES];
    for (int i = 0; i < READS_PER_RUN || (c->tls && gnutls_record_check_pending(c->tls)); i++) {
        const ssize_t got = checked(c, c->tls ? gnutls_record_recv(c->tls, bytes, sizeof bytes)
                                              : recv(c->fd, bytes, sizeof bytes, 0));
        if (got == -1)
            return true;
        if (got <= 0)
            return false;
        if (c->is_ending)
            continue; /* dropped, so that a reset does not discard our GOAWAY */
        (void)pay(c, (double)got * COST_BYTE);
        c->has_begun |= c->header_bytes + (size_t)got >= NGHTTP2_CLIENT_MAGIC_LEN;
        const ssize_t taken = nghttp2_session_mem_recv(c->session, bytes, (size_t)got);
        if (taken == NGHTTP2_ERR_BAD_CLIENT_MAGIC) {
            refuse_http1(c);
            return true; /* answered before the client's end of stream is read */
        }
        if (taken < 0 && !c->is_ending)
            tell_to_go(c, taken == NGHTTP2_ERR_FLOODED ? NGHTTP2_ENHANCE_YOUR_CALM
                                                       : NGHTTP2_PROTOCOL_ERROR);
        if (has_endless_header(c, (size_t)got) && !c->is_ending)
            tell_to_go(c, NGHTTP2_ENHANCE_YOUR_CALM);
    }
    return true;
}

/* Writes frames until the socket accepts no more. Returns false if the connection is over. */
static bool write_all(struct grpc_connection *c)
{
    /* While closing, the streams still exist but the calls that they read from are freed. */
    return c->closing || c->refused_http1 || (!c->has_begun && !c->is_ending) ||
           (nghttp2_session_send(c->session) == 0 && write_gathered(c));
}

static void feed_calls(struct grpc_connection *c)
{
    c->wants_feed = false;
    for (struct grpc_call *call = LIST_FIRST(&c->calls), *next; call; call = next) {
        next = LIST_NEXT(call, listed);
        if (call->wants_feed)
            grpc_call_feed(call);
    }
}

/* Marks the connection busy or idle: a busy one is not closed to make room, and drains wait for it.
 * Returns false if the connection is over. */
static bool note_phase(struct grpc_connection *c)
{
    const struct grpc_call *call;
    bool is_busy = false;
    LIST_FOREACH(call, &c->calls, listed)
    is_busy |= grpc_call_is_busy(call);
    if (is_busy == c->is_busy)
        return true;
    c->is_busy = is_busy;
    return connection_enter(c->entry, is_busy ? CONNECTION_WORKING : CONNECTION_AWAITS_REQUEST);
}

/* Returns false if the connection is over. */
static bool run(struct grpc_connection *c, uint32_t events)
{
    c->runs++;
    if (events != UINT32_MAX && events & (EPOLLHUP | EPOLLERR))
        return false;
    if (c->tls && !c->has_shaken) {
        if (!shake_hands(c))
            return false;
        if (!c->has_shaken)
            return true;
        events = EPOLLIN;
    }
    if (events != UINT32_MAX && events & EPOLLIN && !read_all(c))
        return false;
    if (c->wants_leave && !c->is_ending && !c->is_leaving)
        leave(c);
    /* Messages without a forward pass are answered at once. Limit how many one connection has
     * answered here, so that other connections get their turn. */
    for (int i = 0; i < FEEDS_PER_RUN && (i == 0 || c->wants_feed); i++) {
        if (c->wants_feed)
            feed_calls(c);
        if (!write_all(c))
            return false;
    }
    if (!c->blocked_since && !c->closing &&
        (c->refused_http1 ||
         (!nghttp2_session_want_read(c->session) && !nghttp2_session_want_write(c->session)))) {
        c->is_ending = true;
        c->closing = clock_now();
        close_calls(c);
        if (c->tls)
            (void)gnutls_bye(c->tls, GNUTLS_SHUT_WR);
        (void)shutdown(c->fd, SHUT_WR);
    }
    return note_phase(c);
}

void grpc_connection_run(struct grpc_connection *c, uint32_t events)
{
    if (!c->session)
        return;
    if (run(c, events))
        watch_events(c);
    else
        grpc_connection_end(c);
}

/* ---- time limits ---- */

void grpc_connection_tick(struct grpc_connection *c, int64_t now, bool is_ending)
{
    const struct http_options *options = &c->server->http->options;
    if (!c->session)
        return;
    if (!LIST_EMPTY(&c->calls))
        c->idle_since = now;
    if (grpc_is_over(c->has_settings ? 0 : c->opened, options->header_timeout_ms, now) ||
        grpc_is_over(c->header_since, options->header_timeout_ms, now) ||
        grpc_is_over(c->blocked_since, options->answer_timeout_ms, now) ||
        grpc_is_over(c->closing, LINGER_MS, now)) {
        if (!c->closing)
            metric_add(c->server->http->connections->timeout_total, 1);
        grpc_connection_end(c);
        return;
    }
    for (struct grpc_call *call = LIST_FIRST(&c->calls), *next; call; call = next) {
        next = LIST_NEXT(call, listed);
        grpc_call_tick(call, now);
    }
    if (!c->is_ending && grpc_is_over(c->idle_since, options->idle_timeout_ms, now)) {
        tell_to_go(c, NGHTTP2_NO_ERROR);
    } else if (is_ending && !c->is_ending && !c->is_leaving) {
        leave(c);
    }
    grpc_connection_run(c, UINT32_MAX);
}
