/* libmicrohttpd's callbacks, and what each does with the exchange:
 *
 *     on_uri         request line                EXCHANGE_NEW
 *     on_request     headers                     delays a client that was just refused; calls
 *                                                exchange_admit(): EXCHANGE_BODY, or refused
 *       … again      a part of the body          collects it, or drops it if there is an answer
 *       … again      end of the body             inflates it; the route's handler answers or waits
 *       … again      after exchange_resume()     the handler's finish() answers
 *     on_completed   answer sent or aborted      logs, frees
 *
 * If an answer is queued before the body has been read, libmicrohttpd (0.9.75) closes the socket at
 * once. Bytes still in flight then reset the connection, often before the client has read the
 * answer. So there are three ways to refuse:
 *   - the client waits for "100 Continue": at once, since no body is sent;
 *   - the body is short: after reading and dropping it; the connection stays open;
 *   - the body is long, or turns out to be too long: connection_refuse(). */
#include "server/http/transport/event_loop.h"

#include <ctype.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/proxy_pending.h"
#include "server/http/transport/recv_hook.h"
#include "server/http/transport/request_log.h"
#include "server/http/transport/respond.h"
#include "server/http/transport/tls.h"
#include "server/observe/log.h"

/* Bytes of a connection's memory pool beyond 2 * --max-header. Half of the pool is read buffer. */
#define POOL_BYTES (32 * 1024)

/* What a browser may load and do for the server's pages. */
#define PAGE_POLICY                                                                                \
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' "     \
    "blob: data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

static const char *outcome(const struct exchange *x, bool was_cut,
                           enum MHD_RequestTerminationCode how)
{
    if (x->state == EXCHANGE_REFUSED)
        return "refused";
    if (was_cut && x->state == EXCHANGE_ANSWERED && how != MHD_REQUEST_TERMINATED_COMPLETED_OK)
        return "timeout"; /* --answer-timeout */
    switch (how) {
    case MHD_REQUEST_TERMINATED_COMPLETED_OK:
        return x->state == EXCHANGE_ANSWERED ? "answered" : "closed";
    case MHD_REQUEST_TERMINATED_TIMEOUT_REACHED:
        return "timeout";
    case MHD_REQUEST_TERMINATED_CLIENT_ABORT:
    case MHD_REQUEST_TERMINATED_READ_ERROR:
    case MHD_REQUEST_TERMINATED_WITH_ERROR:
        return "client_gone";
    case MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN:
        return "shutdown";
    default:
        return "unknown";
    }
}

/* Returns zeros if libmicrohttpd does not know. */
static union MHD_ConnectionInfo info_of(struct MHD_Connection *handle,
                                        enum MHD_ConnectionInfoType what)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(handle, what);
    return info ? *info : (union MHD_ConnectionInfo){0};
}

static int socket_of(struct MHD_Connection *handle)
{
    return info_of(handle, MHD_CONNECTION_INFO_CONNECTION_FD).connect_fd;
}

static const char *daemon_header(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->handle, MHD_HEADER_KIND, name);
}

static const struct exchange_carrier daemon_carrier = {.header = daemon_header};

/* A request's head in libmicrohttpd's buffer. */
struct raw_head {
    struct request_head *head;
    const char *at, *end; /* bytes not yet matched to a header; NULL if bytes are not checked */
};

/* libmicrohttpd has replaced CR LF by two NULs, and a bare LF by one. */
static bool skip_line_end(struct raw_head *raw)
{
    if (raw->end - raw->at < 2 || raw->at[0] || raw->at[1])
        return false;
    raw->at += 2;
    return true;
}

static bool is_token(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!isalnum((unsigned char)text[i]) && (!text[i] || !strchr("!#$%&'*+-.^_`|~", text[i])))
            return false;
    return size > 0;
}

static enum MHD_Result note_header(void *context, enum MHD_ValueKind kind, const char *name,
                                   size_t name_size, const char *value, size_t value_size)
{
    (void)kind;
    struct raw_head *raw = context;
    struct request_head *head = raw->head;
    bool sound = is_token(name, name_size) && !memchr(value, '\r', value_size);
    if (raw->at) {
        sound = sound && name == raw->at && value > name + name_size && value < raw->end;
        raw->at = sound ? value + value_size : raw->at;
        sound = sound && skip_line_end(raw);
    }
    head->malformed |= !sound;
    head->hosts += !strcasecmp(name, "Host");
    if (!strcasecmp(name, "X-Forwarded-For"))
        head->forwarded_for = value;
    if (!strcasecmp(name, "Content-Length")) {
        head->lengths++;
        head->length = value;
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        head->encodings++;
        head->encoding = value;
    }
    return MHD_YES;
}

/* True if daemon_read_head() has to check what this libmicrohttpd has parsed. From 0.9.77 on the
 * library has a strict mode. */
static bool mhd_parses_leniently(void)
{
    return strverscmp(MHD_get_version(), "0.9.77") < 0;
}

/* Reads the head of a request. Marks a head as malformed that libmicrohttpd (0.9.75) parses too
 * leniently. That library cuts lines and values at NUL, joins folded lines, and takes a line that
 * begins with NUL or ":" for the end of the head, so that the rest would be a second request. Its
 * buffer holds method, target, version and headers in this order, with NULs between these parts;
 * each byte must belong to a part or to such a separator. NUL LF is accepted, because it looks like
 * CR LF here. `method` NULL: the head is incomplete. */
static struct request_head daemon_read_head(const struct exchange *x, const char *method,
                                            const char *version)
{
    struct request_head head = {
        .method = method,
        .version = version,
        .size = info_of(x->handle, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE).header_size};
    struct raw_head raw = {&head, NULL, NULL};
    if (method && mhd_parses_leniently()) {
        raw.at = version + strlen(version);
        raw.end = method + head.size;
        head.malformed =
            version != method + strlen(method) + 1 + x->target_size + 1 || !skip_line_end(&raw);
    }
    MHD_get_connection_values_n(x->handle, MHD_HEADER_KIND, note_header, &raw);
    if (raw.at)
        head.malformed |= !skip_line_end(&raw) || raw.at != raw.end;
    return head;
}

/* ---- answers ---- */

/* Writes an error to the socket, except under TLS. After MHD_NO libmicrohttpd closes the socket. */
static enum MHD_Result fail_without_memory(const struct http_server *server,
                                           struct MHD_Connection *handle)
{
    static const char text[] =
        "HTTP/1.1 500 Internal Server Error\r\n"
        "Content-Type: application/json\r\n"
        "Connection: close\r\n\r\n"
        "{\"error\":\"out of memory for a request; try again\",\"code\":\"out_of_memory\"}\n";
    if (!server->tls)
        (void)!send(socket_of(handle), text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    log_event(LOG_ERROR, "http", LOG_STR("text", "out of memory for a request"));
    return MHD_NO;
}

static enum MHD_Result queue_answer(struct exchange *x)
{
    struct answer *answer = &x->answer;
    exchange_note_answer(x, false);
    answer_pack(x);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(answer->size, answer->text, MHD_RESPMEM_MUST_FREE);
    if (!response)
        return fail_without_memory(x->server, x->handle);
    answer->text = NULL; /* now owned by the response */
    char allow[ALLOW_TEXT], seconds[16], json_size[24];
    const bool is_page = answer->type && !strcmp(answer->type, TYPE_HTML);
    const bool closes = x->closes || atomic_load(&x->server->draining);
    bool added = true;
    snprintf(seconds, sizeof seconds, "%d", answer->retry_after_s);
    snprintf(json_size, sizeof json_size, "%zu", answer->json_size);
    const struct {
        const char *name, *value; /* NULL: no such header */
    } headers[] = {
        {"Content-Type", answer->type},
        {"X-Request-Id", x->request_id},
        {"Cache-Control", answer->may_keep ? "no-cache" : "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy", is_page ? PAGE_POLICY : NULL},
        {"Allow", answer->allow ? route_allow(answer->allow, allow, sizeof allow) : NULL},
        {"Retry-After", answer->retry_after_s > 0 ? seconds : NULL},
        {"Inference-Header-Content-Length", answer->json_size ? json_size : NULL},
        {"Connection", closes ? "close" : NULL}};
    for (size_t i = 0; i < COUNT_OF(headers); i++)
        if (headers[i].value)
            added &=
                MHD_add_response_header(response, headers[i].name, headers[i].value) == MHD_YES;
    for (size_t i = 0; i < answer->header_count; i++)
        added &= MHD_add_response_header(response, answer->headers[i].name,
                                         answer->headers[i].value) == MHD_YES;
    x->state = EXCHANGE_ANSWERED;
    x->answered = clock_now();
    x->connection->answer_size = answer->size;
    (void)connection_enter(x->connection, CONNECTION_ANSWERING);
    enum MHD_Result result =
        added ? MHD_queue_response(x->handle, (unsigned)answer->status, response) : MHD_NO;
    MHD_destroy_response(response);
    if (result == MHD_YES)
        return MHD_YES;
    answer->status = status_http(STATUS_NO_MEMORY);
    answer->code = status_word(STATUS_NO_MEMORY);
    return fail_without_memory(x->server, x->handle);
}

/* Writes the answer to the socket without libmicrohttpd. Later parts of the body are dropped. */
static void refuse_now(struct exchange *x)
{
    size_t size = 0;
    exchange_note_answer(x, true);
    char *raw = raw_answer(&x->answer, x->request_id, &size);
    connection_refuse(x->connection, raw, size);
    free(raw);
    upload_done(&x->body);
    x->state = EXCHANGE_REFUSED;
}

/* libmicrohttpd answers a request that it cannot parse with HTML (0.9.75 sometimes does so twice).
 * 1.0 also refuses requests without Host or with an unknown Transfer-Encoding. Before it answers,
 * libmicrohttpd calls its log function, which calls answer_broken(). So lensd's answer is written
 * to the socket first. Then our sending side is shut down, so libmicrohttpd's answer is not sent.
 */
static void answer_broken(struct http_server *server, unsigned status)
{
    char dropped[16 * 1024];
    const int fd = recv_hook_fd();
    struct connection *connection = connections_find(server->connections, fd);
    struct exchange *x = connection ? connection->exchange : NULL, *made = NULL;
    if (connection && !x) /* the request line has not been read */
        x = made = exchange_create(server, &daemon_carrier, server->options.routes, connection, "");
    if (!x || x->state == EXCHANGE_ANSWERED || x->state == EXCHANGE_REFUSED) {
        exchange_free(made);
        return;
    }
    struct request_head head = {0};
    if (!made) {
        head = daemon_read_head(x, NULL, "");
        head.length = daemon_header(x, "Content-Length"); /* the first, which libmicrohttpd uses */
    }
    exchange_refuse_broken(x, &head, (int)status);
    refuse_now(x);
    /* Closing a socket with unread bytes resets the connection: the client may lose the answer. */
    for (int i = 0; i < 64 && recvfrom(fd, dropped, sizeof dropped, MSG_DONTWAIT, NULL, NULL) > 0;
         i++)
        ; /* not recv(): see recv_hook.h */
    if (made)
        request_log_write(server->log, x, "refused");
    exchange_free(made);
}

__attribute__((format(printf, 2, 0))) static void on_log(void *context, const char *format,
                                                         va_list args)
{
    static const char refusal[] = "Error processing request (HTTP response code is %u";
    char text[512];
    va_list again;
    va_copy(again, args);
    vsnprintf(text, sizeof text, format, args);
    text[strcspn(text, "\r\n")] = '\0';
    /* Broken requests and lost clients are normal; log them at debug level only. */
    log_event(LOG_DEBUG, "http", LOG_STR("text", text));
    if (!strncmp(format, refusal, sizeof refusal - 1))
        answer_broken(context, va_arg(again, unsigned));
    va_end(again);
}

/* ---- the phases of a request ---- */

/* The request line has arrived. */
static void *on_uri(void *context, const char *uri, struct MHD_Connection *handle)
{
    struct event_loop *loop = context;
    struct connection *connection =
        info_of(handle, MHD_CONNECTION_INFO_SOCKET_CONTEXT).socket_context;
    /* The target is copied: libmicrohttpd is about to split it in place. */
    struct exchange *x =
        connection ? exchange_create(loop->server, &daemon_carrier, loop->server->options.routes,
                                     connection, uri ? uri : "")
                   : NULL;
    if (!x)
        return NULL;
    /* Cut the query, so that libmicrohttpd does not store its parameters. */
    char *query = !uri ? NULL : strchr(uri, '?');
    if (query && query[1])
        query[1] = '\0';
    x->handle = handle;
    x->inbox = &loop->inbox;
    connection->exchange = x;
    return x;
}

/* If the request's client was refused a moment ago, suspends the connection and returns true. Later
 * on_request() is called again, as for a new request. Meanwhile no further body is read. */
static bool delay(struct exchange *x, const char *method)
{
    const int64_t until = exchange_delay(x, method);
    if (!until)
        return false;
    MHD_suspend_connection(x->handle);
    if (!connection_delay(x->connection, until))
        exchange_resume(x);
    return true;
}

static enum MHD_Result begin_exchange(struct exchange *x, const char *method, const char *version)
{
    /* HTTP/1.0 has no interim answers. On a Unix socket the kernel reports a disconnect itself. */
    if (!x->was_delayed) /* else may_ask is set, and the watcher may be reading it */
        x->connection->may_ask =
            !x->connection->tls && !x->connection->is_unix && strcmp(version, "HTTP/1.0") != 0;
    struct request_head head = daemon_read_head(x, method, version);
    exchange_find_client(x, head.forwarded_for);
    if (delay(x, method))
        return MHD_YES;
    if (x->was_delayed && x->connection->gone) {
        x->state = EXCHANGE_BODY; /* on_completed() counts the lost client */
        return MHD_NO;
    }
    if (!connection_enter(x->connection, CONNECTION_BODY))
        return MHD_NO;
    x->state = EXCHANGE_BODY;
    x->body_at =
        mhd_parses_leniently() ? method + head.size : NULL; /* the request begins at `method` */
    switch (exchange_admit(x, &head)) {
    case ADMIT_READ:
        return MHD_YES;
    case ADMIT_ANSWER_NOW:
        return queue_answer(x);
    case ADMIT_REFUSE:
        refuse_now(x);
        return MHD_YES;
    }
    return MHD_NO;
}

/* Overwrites body_at[2] after its byte was collected. A NUL of the body there would make
 * has_clear_end() return false. */
static void overwrite_byte_after_head(const struct exchange *x, const char *bytes, size_t size)
{
    const size_t at = (uintptr_t)x->body_at + 2 - (uintptr_t)bytes;
    if (x->body_at && at < size)
        ((char *)(uintptr_t)bytes)[at] = 'x';
}

static void take_body(struct exchange *x, const char *bytes, size_t size)
{
    struct error err;
    x->bytes_in += size;
    if (x->state != EXCHANGE_REFUSED && connection_send_pending_refusal(x->connection))
        x->state = EXCHANGE_REFUSED; /* on_completed() sets the status for the log */
    if (x->state == EXCHANGE_REFUSED)
        return;
    if (x->discard_body) {
        if (x->bytes_in <= EXCHANGE_DISCARD_MAX)
            return;
        if (!x->answer.status)
            respond_refusal(x, 413, "too_large", "%s takes no body", x->route->path);
        refuse_now(x);
        return;
    }
    if (upload_append(&x->body, bytes, size, &err) == STATUS_OK)
        return;
    respond_error(x, &err);
    upload_done(&x->body);
    x->discard_body = true;
    if (x->chunked || x->expected > EXCHANGE_DISCARD_MAX)
        refuse_now(x);
}

/* Runs on an offload thread: inflating a body that arrived in a millisecond may take a second. */
static void inflate_body(struct exchange *x)
{
    struct error err;
    struct upload inflated;
    if (x->connection->gone) {
        exchange_resume(x); /* to end_of_wait() */
        return;
    }
    upload_init(&inflated, x->body.budget, x->body.limit, 0);
    inflated.beside = x->body.capacity; /* charged until x->body is freed */
    const enum status status =
        coding_inflate(x->coding, x->body.data, x->body.size, x->server->options.max_inflate_ratio,
                       &inflated, &err);
    inflated.beside = 0;
    if (status != STATUS_OK) {
        upload_done(&inflated);
        respond_error(x, &err);
    }
    upload_done(&x->body);
    x->body = inflated;
    x->coding = CODING_NONE;
    exchange_resume(x);
}

static enum MHD_Result send_answer(struct exchange *x)
{
    answer_write(x);
    return queue_answer(x);
}

static enum MHD_Result handle(struct exchange *x)
{
    if (!x->answer.status && x->coding != CODING_NONE) {
        const size_t ratio = x->server->options.max_inflate_ratio;
        exchange_offload(x, x->body.size * (ratio < INFLATE_MOST ? ratio : INFLATE_MOST),
                         inflate_body);
    } else if (!x->answer.status) {
        x->route->handle(x);
    }
    if (x->state != EXCHANGE_SUSPENDED)
        return send_answer(x);
    /* Only this thread's event loop resumes connections, so no resume can precede this call. */
    MHD_suspend_connection(x->handle);
    return MHD_YES;
}

/* True if a chunked body ends without trailers, which libmicrohttpd parses as leniently as headers.
 * Version 0.9.75 moves the bytes after the last chunk to the start of its buffer. Without trailers
 * these bytes are CR LF, here two NULs (skip_line_end()). */
static bool has_clear_end(const struct exchange *x)
{
    const char *end = x->body_at;
    return !x->chunked || !end || (!end[0] && !end[1] && end[2]);
}

static enum MHD_Result end_of_request(struct exchange *x)
{
    x->closes |= !has_clear_end(x); /* do not parse the bytes after trailers as a request */
    if (x->state == EXCHANGE_REFUSED || !connection_enter(x->connection, CONNECTION_WORKING))
        return MHD_NO;
    return handle(x);
}

static enum MHD_Result end_of_wait(struct exchange *x)
{
    /* The body has been inflated, and the handler has not been called yet. */
    if (!x->answer.status && !x->finish) {
        connections_watch(x, NULL);
        x->state = EXCHANGE_BODY;
        return x->connection->gone ? MHD_NO : handle(x);
    }
    return send_answer(x);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *handle, const char *url,
                                  const char *method, const char *version, const char *bytes,
                                  size_t *size, void **exchange)
{
    (void)url;
    struct exchange *x = *exchange;
    if (!x)
        return fail_without_memory(context, handle);
    recv_hook_set(socket_of(handle));
    if (x->state == EXCHANGE_NEW)
        return begin_exchange(x, method, version);
    if (*size > 0) {
        take_body(x, bytes, *size);
        overwrite_byte_after_head(x, bytes, *size);
        *size = 0;
        return MHD_YES;
    }
    return x->state == EXCHANGE_SUSPENDED ? end_of_wait(x) : end_of_request(x);
}

static void on_completed(void *context, struct MHD_Connection *handle, void **exchange,
                         enum MHD_RequestTerminationCode how)
{
    struct http_server *server = context;
    struct exchange *x = *exchange;
    *exchange = NULL;
    recv_hook_set(socket_of(handle)); /* the connection's next request may have been read already */
    if (!x)
        return;
    x->connection->exchange = NULL;
    if (how == MHD_REQUEST_TERMINATED_COMPLETED_OK && x->answered)
        connection_note_idle(x->connection, x->answered);
    /* Without an answer of ours, libmicrohttpd may have answered the request itself. */
    if (!x->answer.status)
        x->answer.status = (int)info_of(handle, MHD_CONNECTION_INFO_HTTP_STATUS).http_status;
    connections_watch(x, NULL);
    const bool refused = !connection_enter(x->connection, CONNECTION_AWAITS_REQUEST);
    /* There is no answer: the watcher refused a late body, or the client left. */
    if (!x->answer.status && x->state != EXCHANGE_NEW) {
        if (!refused && x->state == EXCHANGE_BODY)
            metric_add(server->connections->gone_total, 1);
        const int refusal = x->connection->refusal;
        x->answer.status = refused && refusal ? refusal : status_http(STATUS_CANCELLED);
        x->state = refused ? EXCHANGE_REFUSED : x->state;
    }
    if (x->answer.status)
        request_log_write(server->log, x, outcome(x, refused, how));
    exchange_free(x);
}

static void on_connection(void *context, struct MHD_Connection *handle, void **socket_context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct event_loop *loop = context;
    struct http_server *server = loop->server;
    struct connection *connection = *socket_context;
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        const struct connection given = {
            .fd = socket_of(handle),
            .tls = server->tls ? info_of(handle, MHD_CONNECTION_INFO_GNUTLS_SESSION).tls_session
                               : NULL,
            .loop = loop,
            .is_admin = loop->is_admin};
        *socket_context =
            connection_open(server->connections, &given,
                            info_of(handle, MHD_CONNECTION_INFO_CLIENT_ADDRESS).client_addr);
    } else if (connection) {
        /* libmicrohttpd 1.0 skips on_completed() when a chunk's extension is too long. */
        void *exchange = connection->exchange;
        if (exchange)
            on_completed(server, handle, &exchange, MHD_REQUEST_TERMINATED_WITH_ERROR);
        connection_close(connection);
        *socket_context = NULL;
    }
}

static struct MHD_Daemon *start_one(struct event_loop *loop)
{
    struct http_server *server = loop->server;
    const struct http_options *o = &server->options;
    static char tls_priorities[] = TLS_PRIORITIES;
    unsigned flags =
        MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    /* The rest stays 0, which is MHD_OPTION_END. */
    struct MHD_OptionItem items[8] = {
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)loop->limit, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)((o->idle_timeout_ms + 999) / 1000), NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)loop->pool_bytes, NULL},
        {MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, NULL}, /* main() ignores SIGPIPE */
    };
    size_t count = 4;
    if (!mhd_parses_leniently())
        items[count++] = (struct MHD_OptionItem){MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL};
    if (server->tls) {
        flags |= MHD_USE_TLS;
        items[count++] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_PRIORITIES, 0, tls_priorities};
        items[count++] =
            (struct MHD_OptionItem){MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)tls_on_handshake};
    }
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, server, MHD_OPTION_EXTERNAL_LOGGER,
                            on_log, server, MHD_OPTION_URI_LOG_CALLBACK, on_uri, loop,
                            MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, loop, MHD_OPTION_ARRAY,
                            items, MHD_OPTION_END);
}

/* If this fails after the loop was counted, daemon_stop() frees the loop. */
static bool start_loop(struct http_server *server, bool is_admin, size_t limit)
{
    const struct http_options *o = &server->options;
    struct event_loop *loop = &server->loops[server->loop_count];
    *loop = (struct event_loop){.server = server,
                                .listen_fd = is_admin ? server->admin.fd : server->listener.fd,
                                .limit = limit,
                                .is_admin = is_admin,
                                .pool_bytes = POOL_BYTES + 2 * o->max_header};
    if (o->proxy_protocol && !is_admin) {
        loop->proxied = proxy_pending_create(&server->proxies, o->metrics);
        if (!loop->proxied)
            return false;
    }
    struct MHD_Daemon *mhd = start_one(loop);
    if (!mhd) {
        proxy_pending_free(loop->proxied);
        return false;
    }
    server->loop_count++;
    return event_loop_start(loop, mhd);
}

enum status daemon_start(struct http_server *server, struct error *err)
{
    const size_t count = (size_t)server->options.threads;
    const size_t most = server->options.max_connections + CONNECTION_SPARE;
    server->loops = calloc(count + 1, sizeof *server->loops);
    bool started = server->loops;
    for (size_t i = 0; started && i < count; i++)
        started = start_loop(server, false, most / count + (i < most % count));
    if (started && server->admin.fd >= 0)
        started = start_loop(server, true, CONNECTION_ADMIN + CONNECTION_SPARE);
    return started ? STATUS_OK
                   : error_set(err, STATUS_IO,
                               "cannot start the HTTP server (libmicrohttpd %s); check the limits "
                               "of threads and open files",
                               MHD_get_version());
}

void daemon_accept(struct http_server *server, bool is_admin, bool accepts)
{
    for (size_t i = 0; i < server->loop_count; i++)
        if (server->loops[i].is_admin == is_admin)
            event_loop_accept(&server->loops[i], accepts);
}

size_t daemon_unread(const struct http_server *server)
{
    size_t count = 0;
    for (size_t i = 0; i < server->loop_count; i++)
        count += atomic_load(&server->loops[i].unread);
    return count;
}

void daemon_stop(struct http_server *server)
{
    for (size_t i = 0; i < server->loop_count; i++)
        event_loop_stop(&server->loops[i]);
    free(server->loops);
    server->loops = NULL;
    server->loop_count = 0;
}
