/* A call over gRPC: each message becomes an exchange, each answer a message; the status goes into
 * the trailers.
 *
 *     HEADERS     admission, as for a request's head: route, key, rate, size of the headers
 *     DATA        length-prefixed messages; each is the body of an exchange and charged as it grows
 *     a message   the route's handler, which answers or waits
 *     the answer  a message, then trailers; an error is trailers alone,
 *                 in a stream an error_message
 *
 * A streaming call handles one message at a time. Later messages are held, up to the call's window
 * (GRPC_CALL_WINDOW); the window grows again only as they are handled, which is the backpressure.
 *
 * Sources: PROTOCOL-HTTP2.md and statuscodes.md in the folder doc of gRPC. */
#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "proto/dialects.h"
#include "proto/v2.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/grpc_connection.h"
#include "server/http/transport/request_log.h"
#include "server/http/transport/respond.h"

#define HEADER_BESIDE 32 /* bytes that RFC 9113, section 6.5.2, adds for each header */
#define PLAIN_MESSAGE ((size_t)128 << 10) /* bytes of the longest message without tensors */
#define OPEN_MESSAGE  ((size_t)4 << 10)   /* bytes of the longest message that needs no key */
#define DAY_MS        86400000            /* the longest time limit */

/* Most bytes of a call's headers beyond --max-header. With more, the connection is closed. */
#define HEADERS_EXCESS ((size_t)256 << 10)

static const char *call_header(const struct grpc_call *call, const char *name)
{
    const char *found = NULL;
    for (size_t at = 0; at < call->headers_size;) {
        const char *key = call->headers + at, *value = key + strlen(key) + 1;
        if (!strcasecmp(key, name))
            found = value;
        at += strlen(key) + strlen(value) + 2;
    }
    return found;
}

static const char *carrier_header(const struct exchange *x, const char *name)
{
    const struct grpc_call *call = x->handle;
    const char *authority = strcasecmp(name, "Host") ? NULL : call_header(call, ":authority");
    if (authority)
        return authority;
    if (call->timeout[0] && !strcasecmp(name, "X-Request-Timeout-Ms"))
        return call->timeout;
    /* Expect and Content-Encoding are about the body of an HTTP request, not about the messages of
     * a call. */
    if (!strcasecmp(name, "Expect") || !strcasecmp(name, "Content-Encoding"))
        return NULL;
    return call_header(call, name);
}

static const struct exchange_carrier grpc_carrier = {.dialect = &dialect_grpc,
                                                     .header = carrier_header};

struct grpc_call *grpc_call_create(struct grpc_connection *connection, int32_t stream)
{
    struct grpc_call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    call->connection = connection;
    call->stream = stream;
    call->since = clock_now();
    LIST_INSERT_HEAD(&connection->calls, call, listed);
    connection->call_count++;
    return call;
}

static void call_free(struct grpc_call *call)
{
    struct grpc_connection *c = call->connection;
    LIST_REMOVE(call, listed);
    c->call_count--;
    c->header_room -= call->headers_room;
    upload_done(&call->held);
    FREE_ALL(call->headers, call);
}

/* Logs and frees the call's exchange. `outcome` NULL: no message has begun, so do not log it. */
static void exchange_over(struct grpc_call *call, const char *outcome)
{
    struct exchange *x = call->exchange;
    call->exchange = NULL;
    if (!x)
        return;
    if (outcome) {
        if (!x->answer.status)
            x->answer.status = status_http(STATUS_CANCELLED);
        request_log_write(call->connection->server->log, x, outcome);
    }
    exchange_free(x);
}

bool grpc_call_is_busy(const struct grpc_call *call)
{
    return call->state != CALL_READING || !call->is_stream || call->prefix_size > 0;
}

void grpc_call_closed(struct grpc_call *call, bool is_whole)
{
    if (call->is_gone)
        return;
    if (call->state == CALL_WORKING) {
        call->is_gone = true; /* grpc_call_resumed() frees the call */
        metric_add(call->connection->server->http->connections->gone_total, 1);
        connections_cancel(call->exchange);
        return;
    }
    const bool is_answered = is_whole && call->state == CALL_ENDED;
    if (call->exchange && call->state == CALL_READING && grpc_call_is_busy(call))
        metric_add(call->connection->server->http->connections->gone_total, 1);
    exchange_over(call, !grpc_call_is_busy(call) ? NULL
                        : is_answered            ? "answered"
                        : call->is_late          ? "timeout"
                                                 : "client_gone");
    call_free(call);
}

/* Maps an HTTP answer to a gRPC status. */
static int status_of(const struct exchange *x)
{
    /* 0 OK, 1 CANCELLED, 3 INVALID_ARGUMENT, 4 DEADLINE_EXCEEDED, 5 NOT_FOUND, 7 PERMISSION_DENIED,
     * 8 RESOURCE_EXHAUSTED, 12 UNIMPLEMENTED, 14 UNAVAILABLE, 16 UNAUTHENTICATED */
    static const struct {
        int http, grpc;
    } statuses[] = {{200, 0}, {499, 1},  {400, 3},  {415, 3},  {408, 4},
                    {504, 4}, {404, 5},  {403, 7},  {413, 8},  {429, 8},
                    {431, 8}, {405, 12}, {501, 12}, {503, 14}, {401, 16}};
    if (!x->route && x->answer.status == 404)
        return 12; /* there is no such method */
    for (size_t i = 0; i < COUNT_OF(statuses); i++)
        if (statuses[i].http == x->answer.status)
            return statuses[i].grpc;
    return 13; /* INTERNAL */
}

/* Percent-encodes '%' and everything but printable ASCII (the protocol's Status-Message). */
static void set_message(struct grpc_call *call, const char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < size && used + 4 <= sizeof call->message; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (byte >= ' ' && byte <= '~' && byte != '%')
            call->message[used++] = (char)byte;
        else
            used += (size_t)snprintf(call->message + used, 4, "%%%02X", byte);
    }
    call->message[used] = '\0';
}

static nghttp2_nv pair(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name),
                        strlen(value), NGHTTP2_NV_FLAG_NONE};
}

/* Adds grpc-status and the fields that go with it. */
static size_t add_status(const struct grpc_call *call, nghttp2_nv *fields, char number[static 12],
                         char pushback[static 16])
{
    size_t count = 0;
    snprintf(number, 12, "%d", call->status);
    fields[count++] = pair("grpc-status", number);
    if (call->message[0])
        fields[count++] = pair("grpc-message", call->message);
    if (call->retry_after_s > 0) {
        snprintf(pushback, 16, "%lld", (long long)call->retry_after_s * 1000);
        fields[count++] = pair("grpc-retry-pushback-ms", pushback);
    }
    return count;
}

static void submit_trailers(struct grpc_call *call)
{
    nghttp2_nv fields[3];
    char number[12], pushback[16];
    const size_t count = add_status(call, fields, number, pushback);
    (void)nghttp2_submit_trailer(call->connection->session, call->stream, fields, count);
}

/* Submits the answer's headers. If `messages` is NULL, they include the status and end the call. */
static void submit_head(struct grpc_call *call, const nghttp2_data_provider *messages)
{
    const struct exchange *x = call->exchange;
    nghttp2_nv fields[9] = {pair(":status", "200"), pair("content-type", "application/grpc"),
                            pair("grpc-accept-encoding", "identity")};
    char number[12], pushback[16];
    size_t count = 3;
    if (x)
        fields[count++] = pair("x-request-id", x->request_id);
    for (size_t i = 0; x && i < x->answer.header_count; i++)
        if (!strcmp(x->answer.headers[i].name, "traceparent"))
            fields[count++] = pair("traceparent", x->answer.headers[i].value);
    if (!messages)
        count += add_status(call, fields + count, number, pushback);
    (void)nghttp2_submit_response(call->connection->session, call->stream, fields, count, messages);
    call->has_headers = true;
}

/* Ends the call with call->status. */
static void call_finish(struct grpc_call *call)
{
    const bool has_headers = call->has_headers;
    call->state = CALL_ENDED;
    call->since = clock_now();
    if (has_headers)
        (void)nghttp2_session_resume_data(call->connection->session, call->stream);
    else
        submit_head(call, NULL);
}

/* ---- messages to the client ---- */

/* Copies the next bytes of the message (its head, then the answer's text); returns their number. */
static size_t next_bytes(struct grpc_call *call, uint8_t *to, size_t room)
{
    const struct answer *answer = &call->exchange->answer;
    size_t count = 0;
    if (call->sent < call->head_size) {
        count = call->head_size - call->sent < room ? call->head_size - call->sent : room;
        memcpy(to, call->head + call->sent, count);
        call->sent += count;
    }
    const size_t at = call->sent - call->head_size, left = answer->size - at;
    const size_t more = left < room - count ? left : room - count;
    if (call->sent >= call->head_size && more) {
        memcpy(to + count, answer->text + at, more);
        call->sent += more;
        count += more;
    }
    return count;
}

static ssize_t read_messages(nghttp2_session *session, int32_t stream, uint8_t *to, size_t room,
                             uint32_t *flags, nghttp2_data_source *source, void *context)
{
    (void)session, (void)stream, (void)context;
    struct grpc_call *call = source->ptr;
    size_t count = 0;
    if (call->state == CALL_ANSWERING) {
        count = next_bytes(call, to, room);
        if (call->sent < call->head_size + call->exchange->answer.size)
            return (ssize_t)count;
        if (call->is_stream) {
            exchange_over(call, "answered");
            call->state = CALL_READING;
            call->since = clock_now();
            call->wants_feed = call->connection->wants_feed = true;
        } else {
            call->state = CALL_ENDED;
        }
    }
    if (call->state == CALL_ENDED) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        submit_trailers(call);
    } else if (count == 0) {
        return NGHTTP2_ERR_DEFERRED;
    }
    return (ssize_t)count;
}

static void send_message(struct grpc_call *call)
{
    const struct exchange *x = call->exchange;
    const nghttp2_data_provider provider = {.source.ptr = call, .read_callback = read_messages};
    size_t inner = 0;
    if (call->is_stream)
        inner = v2_stream_head(x->answer.status != 200, x->answer.size, call->head + 5);
    call->head[0] = 0; /* not compressed */
    const uint32_t length = htonl((uint32_t)(inner + x->answer.size));
    memcpy(call->head + 1, &length, sizeof length);
    call->head_size = 5 + inner;
    call->sent = call->sent_before = 0;
    call->state = CALL_ANSWERING;
    if (call->has_headers)
        (void)nghttp2_session_resume_data(call->connection->session, call->stream);
    else
        submit_head(call, &provider);
}

static void send_answer(struct grpc_call *call)
{
    struct exchange *x = call->exchange;
    answer_write(x);
    if (!x->route || x->route->access != ROUTE_OPEN)
        exchange_note_answer(x, false);
    x->state = EXCHANGE_ANSWERED;
    x->answered = call->since = clock_now();
    const bool is_error = x->answer.status != 200;
    if (call->is_stream ? !call->is_broken : !is_error) {
        send_message(call);
        return;
    }
    call->status = status_of(x);
    call->retry_after_s = x->answer.retry_after_s;
    set_message(call, x->answer.text ? x->answer.text : "", x->answer.size);
    call_finish(call);
}

/* Sends the answer of a call that cannot continue. */
static void send_last_answer(struct grpc_call *call)
{
    call->is_broken = true;
    send_answer(call);
}

/* ---- headers ---- */

bool grpc_call_header(struct grpc_call *call, const uint8_t *name, size_t name_size,
                      const uint8_t *value, size_t value_size)
{
    struct grpc_connection *c = call->connection;
    const size_t most = c->server->http->options.max_header;
    const size_t more = name_size + value_size + 2;
    call->headers_given += name_size + value_size + HEADER_BESIDE;
    if (c->header_room > GRPC_HEADERS + most && call->headers_given <= most)
        call->headers_given = most + 1; /* refuse as if this call itself had too many headers */
    /* Drop the headers. When all have arrived, exchange_admit() answers with 431. */
    if (call->headers_given > most)
        return call->headers_given <= most + HEADERS_EXCESS;
    const size_t before = call->headers_room;
    if (!array_reserve(&call->headers, &call->headers_room, call->headers_size + more, 1))
        return false;
    c->header_room += call->headers_room - before;
    char *at = call->headers + call->headers_size;
    memcpy(at, name, name_size);
    at[name_size] = '\0';
    memcpy(at + name_size + 1, value, value_size);
    at[name_size + 1 + value_size] = '\0';
    call->headers_size += more;
    return true;
}

/* Reads grpc-timeout: up to eight digits and a unit. A malformed value becomes a call->timeout that
 * is no number, so that the handler refuses it. */
static void read_timeout(struct grpc_call *call)
{
    static const char units[] = "HMSmun";
    static const double unit_ms[] = {3600000, 60000, 1000, 1, 1e-3, 1e-6};
    const char *text = call_header(call, "grpc-timeout");
    const size_t digits = text ? strspn(text, "0123456789") : 0;
    const char *unit = text && text[digits] ? strchr(units, text[digits]) : NULL;
    if (unit && digits > 0 && digits <= 8 && !text[digits + 1]) {
        const double ms = ceil(strtod(text, NULL) * unit_ms[unit - units]);
        snprintf(call->timeout, sizeof call->timeout, "%.0f", fmin(fmax(ms, 1), DAY_MS));
    } else if (text) {
        snprintf(call->timeout, sizeof call->timeout, "'%.20s'", text);
    }
}

static bool is_grpc(const char *content_type)
{
    return content_type && !strncasecmp(content_type, "application/grpc", 16) &&
           (!content_type[16] || content_type[16] == '+' || content_type[16] == ';');
}

static bool create_exchange(struct grpc_call *call)
{
    struct http_server *server = call->connection->server->http;
    const char *path = call_header(call, ":path");
    /* The path of a gRPC method has neither escapes nor a query. */
    struct exchange *x =
        exchange_create(server, &grpc_carrier, server->options.grpc_routes, call->connection->entry,
                        path && !strpbrk(path, "%?") ? path : "/");
    call->exchange = x;
    if (!x)
        return false;
    x->handle = call;
    x->inbox = &call->connection->server->inbox;
    x->answer.is_packed = true; /* messages are not compressed */
    exchange_find_client(x, call_header(call, "x-forwarded-for"));
    return true;
}

/* Returns false if the exchange was refused; then its answer is set. */
static bool admit(struct grpc_call *call)
{
    struct exchange *x = call->exchange;
    const char *method = call_header(call, ":method");
    const struct request_head head = {.method = method ? method : "",
                                      .version = "HTTP/2",
                                      .size = call->headers_given,
                                      .hosts = 1};
    x->state = EXCHANGE_BODY;
    (void)exchange_admit(x, &head);
    if (!x->route && x->answer.status == 404)
        respond_refusal(x, 404, "not_found",
                        "there is no method %.100s; docs/protocols.md lists those of "
                        "inference.GRPCInferenceService",
                        x->path);
    return !x->answer.status;
}

/* Resets the call's stream: the client gets no status. */
static void call_reset(struct grpc_call *call, uint32_t why)
{
    call->state = CALL_ENDED;
    (void)nghttp2_submit_rst_stream(call->connection->session, NGHTTP2_FLAG_NONE, call->stream,
                                    why);
}

static void call_admit(struct grpc_call *call)
{
    call->state = CALL_READING;
    call->since = clock_now();
    const bool is_admitted = admit(call);
    call->connection->wants_leave |= call->exchange->closes;
    if (is_admitted) {
        call->wants_feed = call->connection->wants_feed = true;
        return;
    }
    send_last_answer(call);
}

void grpc_call_begin(struct grpc_call *call)
{
    const nghttp2_nv refusal[] = {pair(":status", "415")};
    if (call->headers_given <= call->connection->server->http->options.max_header &&
        !is_grpc(call_header(call, "content-type"))) {
        call->state = CALL_ENDED;
        (void)nghttp2_submit_response(call->connection->session, call->stream, refusal, 1, NULL);
        return;
    }
    read_timeout(call);
    if (!create_exchange(call)) {
        call_reset(call, NGHTTP2_INTERNAL_ERROR);
        return;
    }
    struct route_match match;
    const struct route *route = route_find(call->exchange->routes, call->exchange->path, &match);
    call->is_stream = route && route->streams;
    if (route && route->access != ROUTE_OPEN)
        call->delayed_until = exchange_delay(call->exchange, "POST");
    if (call->delayed_until)
        call->state = CALL_DELAYED;
    else
        call_admit(call);
}

/* ---- messages from the client ---- */

static void call_work(struct grpc_call *call)
{
    struct exchange *x = call->exchange;
    call->prefix_size = 0;
    call->state = CALL_WORKING;
    call->worked_in_run = call->connection->runs;
    x->route->handle(x);
    if (x->state != EXCHANGE_SUSPENDED)
        send_answer(call);
}

void grpc_call_resumed(struct grpc_call *call)
{
    if (!call->is_gone) {
        send_answer(call);
        return;
    }
    call->exchange->state = EXCHANGE_BODY;
    call->exchange->answer.status = status_http(STATUS_CANCELLED);
    exchange_over(call, "client_gone");
    call_free(call);
}

/* Creates the exchange of the next message in a stream. Returns false if the call has ended. */
static bool next_exchange(struct grpc_call *call)
{
    if (call->exchange) { /* the first message's, admitted with the call's headers */
        call->exchange->started = clock_now();
        return true;
    }
    if (!create_exchange(call)) {
        call_reset(call, NGHTTP2_INTERNAL_ERROR);
        return false;
    }
    if (admit(call))
        return true;
    send_last_answer(call);
    return false;
}

static void check_prefix(struct grpc_call *call)
{
    struct exchange *x = call->exchange;
    const uint8_t *p = call->prefix;
    const size_t size = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    const bool has_tensors = x->route->admit;
    /* Limit messages, so that clients without a key cannot fill the memory for bodies. */
    const size_t limit = has_tensors                      ? x->body.limit
                         : x->route->access == ROUTE_OPEN ? OPEN_MESSAGE
                                                          : PLAIN_MESSAGE;
    if (p[0])
        respond_refusal(x, 501, "not_implemented",
                        "compressed messages are not supported; send them uncompressed (identity)");
    else if (size > limit)
        respond_refusal(x, 413, "too_large", "the message has %zu bytes; the limit is %zu%s", size,
                        limit, has_tensors ? " (--max-body)" : "");
    if (x->answer.status)
        send_last_answer(call);
    call->message_left = size;
    x->body.expected = size;
}

static void take_body(struct grpc_call *call, const uint8_t *bytes, size_t size)
{
    struct error err;
    if (upload_append(&call->exchange->body, bytes, size, &err) == STATUS_OK) {
        call->message_left -= size;
        return;
    }
    respond_error(call->exchange, &err);
    send_last_answer(call);
}

/* Reads until the call no longer waits for input; returns the number of bytes read. */
static size_t call_parse(struct grpc_call *call, const uint8_t *bytes, size_t size)
{
    size_t at = 0;
    while (at < size && call->state == CALL_READING) {
        if (call->prefix_size == 0) {
            call->since = clock_now();
            if (call->is_stream && !next_exchange(call))
                break;
        }
        const size_t before = at;
        if (call->prefix_size < sizeof call->prefix) {
            call->prefix[call->prefix_size++] = bytes[at++];
            if (call->prefix_size == sizeof call->prefix)
                check_prefix(call);
        } else {
            const size_t part = call->message_left < size - at ? call->message_left : size - at;
            take_body(call, bytes + at, part);
            at += part;
        }
        if (call->exchange)
            call->exchange->bytes_in += at - before;
        if (call->state == CALL_READING && call->prefix_size == sizeof call->prefix &&
            call->message_left == 0)
            call_work(call);
    }
    return at;
}

size_t grpc_call_data(struct grpc_call *call, const uint8_t *bytes, size_t size)
{
    struct error err;
    size_t taken = 0;
    if (call->state == CALL_READING && !call->held.size)
        taken = call_parse(call, bytes, size);
    /* A unary call has one message; further ones are dropped. */
    const bool is_read = call->state == CALL_WORKING || call->state == CALL_ANSWERING;
    if (call->state == CALL_ENDED || (is_read && !call->is_stream) || taken == size)
        return size;
    if (!call->held.budget) {
        const struct exchange *x = call->exchange;
        upload_init(&call->held, x ? x->body.budget : &call->connection->server->http->budget,
                    GRPC_CALL_WINDOW, 0);
    }
    if (upload_append(&call->held, bytes + taken, size - taken, &err) == STATUS_OK)
        return taken;
    if (call->state == CALL_WORKING)
        (void)nghttp2_submit_rst_stream(call->connection->session, NGHTTP2_FLAG_NONE, call->stream,
                                        NGHTTP2_ENHANCE_YOUR_CALM);
    else
        call_reset(call, NGHTTP2_ENHANCE_YOUR_CALM);
    return size;
}

static void check_end(struct grpc_call *call)
{
    if (!call->has_ended || call->state != CALL_READING || call->held.size)
        return;
    if (!grpc_call_is_busy(call)) {
        exchange_over(call, NULL);
        call_finish(call);
    } else {
        respond_refusal(
            call->exchange, 400, "invalid_request",
            "the call ended in the middle of a message; send a zero byte and the length in "
            "four bytes before each message");
        send_last_answer(call);
    }
}

void grpc_call_feed(struct grpc_call *call)
{
    call->wants_feed = false;
    if (call->held.size > 0) {
        const size_t left = call->held.size - call->held_at;
        const size_t taken = call_parse(call, call->held.data + call->held_at, left);
        (void)nghttp2_session_consume_stream(call->connection->session, call->stream, taken);
        call->held_at += taken;
        if (taken == left || call->state == CALL_ENDED) {
            upload_done(&call->held);
            call->held_at = 0;
        }
    }
    check_end(call);
}

void grpc_call_end(struct grpc_call *call)
{
    call->has_ended = true;
    check_end(call);
}

/* ---- time limits ---- */

/* True if the client has read its answer too slowly for a period of limit_ms, which began at
 * call->since. If the client was fast enough until the period's end, starts the next period. */
static bool is_slow(struct grpc_call *call, int64_t limit_ms, int64_t now)
{
    if (!grpc_is_over(call->since, limit_ms, now))
        return false;
    const size_t least = (size_t)limit_ms * CONNECTION_MIN_RATE / 1000;
    if (call->sent - call->sent_before < least)
        return true;
    call->sent_before = call->sent;
    call->since = now;
    return false;
}

void grpc_call_tick(struct grpc_call *call, int64_t now)
{
    const struct http_server *server = call->connection->server->http;
    const struct http_options *options = &server->options;
    switch (call->state) {
    case CALL_DELAYED:
        if (now >= call->delayed_until || atomic_load(&server->draining))
            call_admit(call);
        break;
    case CALL_READING:
        if (!grpc_call_is_busy(call) && grpc_is_over(call->since, options->idle_timeout_ms, now)) {
            exchange_over(call, NULL);
            call->status = 14; /* UNAVAILABLE */
            set_message(call, "the stream was idle", 19);
            call_finish(call);
        } else if (grpc_call_is_busy(call) &&
                   grpc_is_over(call->since, options->body_timeout_ms, now)) {
            metric_add(server->connections->timeout_total, 1);
            respond_refusal(
                call->exchange, 408, "request_timeout",
                "the message did not arrive within %.3g s; send it faster, or raise the "
                "limit (--body-timeout)",
                (double)options->body_timeout_ms / 1000);
            send_last_answer(call);
        }
        break;
    case CALL_ANSWERING:
    case CALL_ENDED: /* the trailers wait behind data while the client's window is closed */
        if (call->state == CALL_ENDED ? !grpc_is_over(call->since, options->answer_timeout_ms, now)
                                      : !is_slow(call, options->answer_timeout_ms, now))
            break;
        metric_add(server->connections->timeout_total, 1);
        call->is_late = true;
        call->since = now;
        call_reset(call, NGHTTP2_CANCEL);
        break;
    case CALL_HEADERS:
    case CALL_WORKING:
        break;
    }
}
