/* The thread of --zmq-port, its socket, and the calls that clients wait for. */
#include "server/http/transport/zmq.h"

#include <poll.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/library.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "proto/v2.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/inbox.h"
#include "server/http/transport/listen.h"
#include "server/http/transport/request_log.h"
#include "server/http/transport/respond.h"
#include "server/observe/log.h"

#define ID_MAX         255 /* bytes of a client's id in ZeroMQ */
#define PEERS          256 /* the most clients whose model the server stores */
#define CALLS          256 /* messages that wait for an answer; further ones fail at once */
#define QUESTIONS      128 /* part of CALLS: messages without a tensor that wait for a model */
#define READS_PER_RUN  64
#define MODEL_LIMIT_MS 25000 /* time limit of a message without a tensor; Frigate waits 30 s */
#define AGAIN_MS       250   /* interval of new tries while the model is being loaded */
#define FAILURE_LOG_MS 60000
#define LINGER_MS      200 /* time for pending answers when the server ends */

struct zmq_message { /* zmq_msg_t */
    alignas(void *) unsigned char bytes[64];
};

struct zmq_item { /* zmq_pollitem_t */
    void *socket;
    int fd;
    short events, revents; /* 1: there is something to read */
};

enum { ZMQ_ROUTER = 6 };
enum { ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2 };
enum {
    ZMQ_LINGER = 17,
    ZMQ_MAXMSGSIZE = 22,
    ZMQ_RCVHWM = 24,
    ZMQ_LAST_ENDPOINT = 32,
    ZMQ_IPV6 = 42,
};

static struct {
    void *(*context)(void);
    int (*end)(void *context);
    void *(*socket)(void *context, int kind);
    int (*close)(void *socket);
    int (*set)(void *socket, int option, const void *value, size_t size);
    int (*get)(void *socket, int option, void *value, size_t *size);
    int (*bind)(void *socket, const char *endpoint);
    int (*poll)(struct zmq_item *items, int count, long timeout_ms);
    int (*init)(struct zmq_message *message);
    int (*receive)(struct zmq_message *message, void *socket, int flags);
    int (*drop)(struct zmq_message *message);
    void *(*data)(struct zmq_message *message);
    size_t (*size)(const struct zmq_message *message);
    int (*more)(const struct zmq_message *message);
    const char *(*property)(const struct zmq_message *message, const char *name);
    int (*send)(void *socket, const void *data, size_t size, int flags);
    int (*error)(void);
    const char *(*error_text)(int error);
} zmq;

/* The frames of a message. */
enum { FRAME_ID, FRAME_EMPTY, FRAME_HEADER, FRAME_TENSOR, FRAMES };

struct zmq_call {
    struct zmq_server *server;
    LIST_ENTRY(zmq_call) listed;
    struct zmq_message frames[FRAMES];
    size_t frame_count; /* may exceed FRAMES: the rest was dropped */
    struct zmq_frames seen;
    struct exchange *exchange; /* NULL: the call will be tried again */
    int64_t started, deadline, again;
    char timeout[24]; /* in milliseconds, as text */
    bool is_late;     /* its failure has been sent, but the exchange still runs */
};

struct zmq_peer {
    char model[128]; /* "": none */
    uint64_t used;
    size_t id_size;
    uint8_t id[ID_MAX];
};

struct zmq_server {
    struct http_server *http;
    void *context, *socket;
    struct inbox inbox;
    pthread_t thread;
    bool has_thread;
    struct request_log *log;
    struct zmq_peer peers[PEERS];
    uint64_t clock; /* counts uses of peers */
    LIST_HEAD(, zmq_call) calls;
    _Atomic size_t call_count;
    size_t question_count; /* number of calls without a tensor */
    struct metric *dropped;
    int64_t next_failure_log; /* when the next line about failures may be written */
    uint64_t failures;        /* failures since the last line about them */
};

/* The answer without detections: 20 rows of 6 float32 zeros, as Frigate expects. */
static const char zeros[20 * 6 * sizeof(float)];

struct zmq_frames *zmq_frames_of(struct exchange *x)
{
    struct zmq_call *call = x->handle;
    return &call->seen;
}

/* ---- the carrier ---- */

static const char *zmq_carrier_header(const struct exchange *x, const char *name)
{
    const struct zmq_call *call = x->handle;
    const bool is_limit = call->deadline != INT64_MAX && !strcmp(name, "X-Request-Timeout-Ms");
    return is_limit ? call->timeout : NULL;
}

static const struct exchange_carrier zmq_carrier = {.dialect = &dialect_grpc,
                                                    .header = zmq_carrier_header};

/* ---- clients ---- */

/* Returns the client with this id; NULL if the server stores no model for such a client. */
static struct zmq_peer *find_peer(struct zmq_server *server, struct zmq_message *id)
{
    for (size_t i = 0; i < PEERS; i++) {
        struct zmq_peer *peer = &server->peers[i];
        if (peer->model[0] && peer->id_size == zmq.size(id) &&
            !memcmp(peer->id, zmq.data(id), peer->id_size))
            return peer;
    }
    return NULL;
}

static void remember_model(struct zmq_server *server, struct zmq_message *id, const char *model)
{
    struct zmq_peer *peer = find_peer(server, id);
    if (!peer) {
        peer = &server->peers[0];
        for (size_t i = 1; i < PEERS; i++)
            if (server->peers[i].used < peer->used)
                peer = &server->peers[i];
        peer->id_size = zmq.size(id); /* at most ID_MAX, as read_message() checks */
        memcpy(peer->id, zmq.data(id), peer->id_size);
    }
    snprintf(peer->model, sizeof peer->model, "%s", model);
    peer->used = ++server->clock;
}

/* ---- calls ---- */

static void call_close(struct zmq_call *call)
{
    for (size_t i = 0; i < FRAMES && i < call->frame_count; i++)
        zmq.drop(&call->frames[i]);
    free(call);
}

/* Takes the call from the list and frees it. */
static void call_end(struct zmq_call *call)
{
    struct zmq_server *server = call->server;
    LIST_REMOVE(call, listed);
    atomic_fetch_sub(&server->call_count, 1);
    server->question_count -= !call->seen.has_tensor;
    call_close(call);
}

/* libzmq drops the reply to a client that has gone. */
static void send_reply(struct zmq_call *call, const void *data, size_t size)
{
    struct zmq_message *id = &call->frames[FRAME_ID];
    void *socket = call->server->socket;
    (void)zmq.send(socket, zmq.data(id), zmq.size(id), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq.send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq.send(socket, data, size, ZMQ_DONTWAIT);
}

static void send_failure(struct zmq_call *call, const char *why)
{
    struct zmq_server *server = call->server;
    const int64_t now = clock_now();
    if (call->seen.failure)
        send_reply(call, call->seen.failure, call->seen.failure_size);
    server->failures++;
    if (now < server->next_failure_log)
        return;
    log_event(LOG_WARN, "zmq failure", LOG_STR("client", exchange_address(call->exchange)),
              LOG_INT("requests", (int64_t)server->failures), LOG_STR("text", why));
    server->failures = 0;
    server->next_failure_log = now + FAILURE_LOG_MS * NS_PER_MS;
}

static bool has_place(const struct zmq_call *call)
{
    const struct zmq_server *server = call->server;
    return call->seen.has_tensor ? atomic_load(&server->call_count) <= CALLS
                                 : server->question_count <= QUESTIONS;
}

/* True if the model may still be loaded before the deadline. */
static bool call_may_try_again(const struct zmq_call *call)
{
    return !call->seen.has_tensor && has_place(call) && call->exchange->answer.status == 503 &&
           clock_now() + AGAIN_MS * NS_PER_MS < call->deadline &&
           !atomic_load(&call->server->http->draining);
}

static void call_answer(struct zmq_call *call)
{
    struct exchange *x = call->exchange;
    answer_write(x);
    if (call_may_try_again(call)) {
        call->exchange = NULL;
        call->again = clock_now() + AGAIN_MS * NS_PER_MS;
        exchange_free(x);
        return;
    }
    x->state = EXCHANGE_ANSWERED;
    x->answered = clock_now();
    if (call->is_late) {
        x->answer.status = status_http(STATUS_TIMEOUT);
    } else if (x->answer.status == 200) {
        send_reply(call, x->answer.text, x->answer.size);
        if (!call->seen.has_tensor)
            remember_model(call->server, &call->frames[FRAME_ID], call->seen.model);
    } else {
        send_failure(call, x->answer.text);
    }
    request_log_write(call->server->log, x, call->is_late ? "timeout" : "answered");
    exchange_free(x);
    call_end(call);
}

/* Answers a call whose exchange still runs, and cancels its request. */
static void call_time_out(struct zmq_call *call)
{
    char why[100];
    snprintf(why, sizeof why, "there was no answer after %s ms (--zmq-timeout)", call->timeout);
    call->is_late = true;
    send_failure(call, why);
    connections_cancel(call->exchange);
}

static bool call_create_exchange(struct zmq_call *call)
{
    struct zmq_server *server = call->server;
    const char *path = call->seen.has_tensor ? "/zmq/detect" : "/zmq/model";
    const char *address = zmq.property(&call->frames[FRAME_HEADER], "Peer-Address");
    struct exchange *x =
        exchange_create(server->http, &zmq_carrier, server->http->options.zmq_routes, NULL, path);
    if (!x)
        return false;
    call->exchange = x;
    x->handle = call;
    x->inbox = &server->inbox;
    x->answer.is_packed = true; /* answers are not compressed */
    x->started = call->started;
    x->bytes_in = call->seen.header_size + call->seen.tensor_size;
    x->route = route_find(x->routes, path, &x->match);
    snprintf(x->method, sizeof x->method, "ZMQ");
    exchange_identify(x);
    exchange_set_client(x, address && address[0] ? address : "ipc");
    return true;
}

static void call_work(struct zmq_call *call)
{
    struct error err;
    if (!call_create_exchange(call)) {
        call_end(call);
        return;
    }
    struct exchange *x = call->exchange;
    if (call->frame_count > FRAMES)
        respond_refusal(x, 400, "invalid_request", "the message has more than two parts");
    else if (!has_place(call))
        respond_refusal(x, 503, "overloaded", "more than %d messages wait for an answer",
                        call->seen.has_tensor ? CALLS : QUESTIONS);
    else if (upload_charge(&x->body, x->bytes_in, &err) != STATUS_OK)
        respond_error(x, &err);
    else
        x->route->handle(x);
    if (x->state != EXCHANGE_SUSPENDED)
        call_answer(call);
}

/* ---- the thread ---- */

static void call_begin(struct zmq_server *server, struct zmq_call *call)
{
    struct zmq_message *header = &call->frames[FRAME_HEADER], *tensor = &call->frames[FRAME_TENSOR];
    const bool has_tensor = call->frame_count > FRAME_TENSOR;
    struct zmq_peer *peer = find_peer(server, &call->frames[FRAME_ID]);
    const int64_t ms = has_tensor ? server->http->options.zmq_timeout_ms : MODEL_LIMIT_MS;
    call->seen = (struct zmq_frames){.header = zmq.data(header),
                                     .header_size = zmq.size(header),
                                     .tensor = has_tensor ? zmq.data(tensor) : NULL,
                                     .tensor_size = has_tensor ? zmq.size(tensor) : 0,
                                     .has_tensor = has_tensor,
                                     .failure = zeros,
                                     .failure_size = sizeof zeros};
    if (peer) {
        peer->used = ++server->clock;
        snprintf(call->seen.model, sizeof call->seen.model, "%s", peer->model);
    }
    snprintf(call->timeout, sizeof call->timeout, "%lld", (long long)ms);
    call->started = clock_now();
    call->deadline = ms ? call->started + ms * NS_PER_MS : INT64_MAX;
    LIST_INSERT_HEAD(&server->calls, call, listed);
    atomic_fetch_add(&server->call_count, 1);
    server->question_count += !has_tensor;
    call_work(call);
}

/* Takes one message from the socket. Returns false if there is none. */
static bool read_message(struct zmq_server *server)
{
    struct zmq_message rest;
    struct zmq_call *call = calloc(1, sizeof *call);
    if (!call)
        return false;
    call->server = server;
    for (bool more = true; more;) {
        struct zmq_message *frame =
            call->frame_count < FRAMES ? &call->frames[call->frame_count] : &rest;
        zmq.init(frame);
        if (zmq.receive(frame, server->socket, ZMQ_DONTWAIT) < 0) {
            zmq.drop(frame);
            break; /* there is no message: libzmq delivers all frames of one together */
        }
        more = zmq.more(frame);
        if (frame == &rest)
            zmq.drop(frame);
        call->frame_count++;
    }
    if (call->frame_count == 0) {
        free(call);
        return false;
    }
    if (call->frame_count > FRAME_HEADER && zmq.size(&call->frames[FRAME_EMPTY]) == 0 &&
        zmq.size(&call->frames[FRAME_ID]) <= ID_MAX) {
        call_begin(server, call);
    } else {
        metric_add(server->dropped, 1);
        call_close(call);
    }
    return true;
}

/* Fails late calls and tries due calls again. Returns the milliseconds until the next call is late
 * or due. */
static long check_call_times(struct zmq_server *server)
{
    const int64_t now = clock_now();
    int64_t next = now + 1000 * NS_PER_MS;
    for (struct zmq_call *call = LIST_FIRST(&server->calls), *after; call; call = after) {
        after = LIST_NEXT(call, listed);
        const bool waits = call->exchange && !call->is_late;
        const int64_t due = waits ? call->deadline : call->exchange ? INT64_MAX : call->again;
        if (due > now)
            next = due < next ? due : next;
        else if (waits)
            call_time_out(call);
        else
            call_work(call);
    }
    return (long)((next - now + NS_PER_MS - 1) / NS_PER_MS);
}

static void *zmq_run(void *context)
{
    struct zmq_server *server = context;
    struct exchange *resumed;
    pthread_mutex_lock(&server->http->gate);
    pthread_mutex_unlock(&server->http->gate);
    for (bool goes_on = true, accepts; goes_on;) {
        goes_on = inbox_take(&server->inbox, &resumed, &accepts);
        for (struct exchange *next; resumed; resumed = next) {
            next = resumed->next_resumed;
            call_answer(resumed->handle);
        }
        for (int i = 0; i < READS_PER_RUN && accepts && read_message(server); i++)
            ;
        struct zmq_item items[] = {{.fd = server->inbox.fd, .events = 1},
                                   {.socket = server->socket, .events = 1}};
        const long wait_ms = check_call_times(server);
        if (goes_on)
            (void)zmq.poll(items, accepts ? 2 : 1, wait_ms);
    }
    return NULL;
}

/* ---- start and end ---- */

static enum status zmq_load(struct error *err)
{
    static const struct library_function functions[] = {
        {"zmq_ctx_new", &zmq.context},   {"zmq_ctx_term", &zmq.end},
        {"zmq_socket", &zmq.socket},     {"zmq_close", &zmq.close},
        {"zmq_setsockopt", &zmq.set},    {"zmq_getsockopt", &zmq.get},
        {"zmq_bind", &zmq.bind},         {"zmq_poll", &zmq.poll},
        {"zmq_msg_init", &zmq.init},     {"zmq_msg_recv", &zmq.receive},
        {"zmq_msg_close", &zmq.drop},    {"zmq_msg_data", &zmq.data},
        {"zmq_msg_size", &zmq.size},     {"zmq_msg_more", &zmq.more},
        {"zmq_msg_gets", &zmq.property}, {"zmq_send", &zmq.send},
        {"zmq_errno", &zmq.error},       {"zmq_strerror", &zmq.error_text}};
    if (library_load("libzmq.so.5", functions, COUNT_OF(functions)))
        return STATUS_OK;
    return error_set(err, STATUS_CONFIG,
                     "--zmq-port needs libzmq: install libzmq5 or another package with "
                     "libzmq.so.5");
}

/* Makes an endpoint; a port alone gets 127.0.0.1. *ret_is_local: other machines cannot connect. */
static void zmq_endpoint(const char *given, char *ret, size_t size, bool *ret_is_local)
{
    static const char *const local[] = {"ipc://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:"};
    const bool is_port = !given[strspn(given, "0123456789")];
    snprintf(ret, size, "%s%s%s", strstr(given, "://") ? "" : "tcp://", is_port ? "127.0.0.1:" : "",
             given);
    *ret_is_local = false;
    for (size_t i = 0; i < COUNT_OF(local); i++)
        *ret_is_local |= !strncmp(ret, local[i], strlen(local[i]));
}

/* `endpoint` has a ':'. Checks the port's range, because libzmq takes a port modulo 65536. */
static bool is_endpoint(const char *endpoint)
{
    const char *port = strrchr(endpoint, ':') + 1;
    const size_t digits = strspn(port, "0123456789");
    return !strncmp(endpoint, "ipc:///", 7) ||
           (!strncmp(endpoint, "tcp://", 6) && digits > 0 && digits < 6 && !port[digits] &&
            strtol(port, NULL, 10) <= UINT16_MAX);
}

static enum status zmq_prepare(const struct http_options *options, char *ret, size_t size,
                               struct error *err)
{
    bool is_local;
    zmq_endpoint(options->zmq_port, ret, size, &is_local);
    if (strlen(ret) + 1 == size || !is_endpoint(ret))
        return error_set(err, STATUS_CONFIG,
                         "--zmq-port is '%.80s'; it must be a port, ADDRESS:PORT, tcp://ADDRESS:"
                         "PORT or ipc:///PATH",
                         options->zmq_port);
    if (!is_local && (options->keys.keys_file || options->keys.admin_file))
        return error_set(err, STATUS_CONFIG,
                         "--zmq-port %.80s is open to other machines, and ZeroMQ carries no API "
                         "key; use a loopback address, or leave out the keys",
                         options->zmq_port);
    return zmq_load(err);
}

enum status zmq_check(const struct http_options *options, struct error *err)
{
    char endpoint[320];
    TRY(zmq_prepare(options, endpoint, sizeof endpoint, err));
    return strncmp(endpoint, "ipc://", 6) != 0 ? STATUS_OK
                                               : listen_check_path(endpoint + 6, "--zmq-port", err);
}

static enum status zmq_bind_socket(struct zmq_server *server, char endpoint[static 320],
                                   struct error *err)
{
    const int linger = LINGER_MS, waiting = 2, is_ipv6 = strchr(endpoint, '[') != NULL;
    const int64_t most = (int64_t)server->http->options.max_body;
    size_t size = 320;
    if (!strncmp(endpoint, "ipc://", 6)) /* libzmq would remove any file there */
        TRY(listen_clear_path(endpoint + 6, "--zmq-port", err));
    server->context = zmq.context();
    server->socket = server->context ? zmq.socket(server->context, ZMQ_ROUTER) : NULL;
    if (!server->socket)
        return error_set(err, STATUS_IO, "cannot start libzmq (%s); %s",
                         zmq.error_text(zmq.error()), THREAD_LIMIT_HINT);
    (void)zmq.set(server->socket, ZMQ_LINGER, &linger, sizeof linger);
    (void)zmq.set(server->socket, ZMQ_RCVHWM, &waiting, sizeof waiting);
    (void)zmq.set(server->socket, ZMQ_IPV6, &is_ipv6, sizeof is_ipv6);
    (void)zmq.set(server->socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
    if (zmq.bind(server->socket, endpoint) != 0)
        return error_set(err, STATUS_CONFIG, "cannot listen on %.100s (--zmq-port): %s", endpoint,
                         zmq.error_text(zmq.error()));
    (void)zmq.get(server->socket, ZMQ_LAST_ENDPOINT, endpoint, &size);
    log_event(LOG_INFO, "zmq port", LOG_STR("url", endpoint));
    return STATUS_OK;
}

enum status zmq_start(struct http_server *http, struct error *err)
{
    const struct http_options *options = &http->options;
    struct zmq_server *server = http->zmq_server = calloc(1, sizeof *server);
    char endpoint[320];
    TRY(check_memory(server, "for --zmq-port", err));
    server->http = http;
    (void)inbox_init(&server->inbox, true);
    TRY(zmq_prepare(options, endpoint, sizeof endpoint, err));
    server->log = request_log_create(options->metrics, options->zmq_routes);
    TRY(check_memory(server->log, "for --zmq-port", err));
    server->dropped = metrics_get(
        options->metrics, METRIC_COUNTER, "lensd_zmq_dropped_total",
        "Messages on --zmq-port that were dropped because no REQ socket sent them.", "");
    if (server->inbox.fd < 0)
        return error_set(err, STATUS_IO, "--zmq-port: too many open files; raise ulimit -n");
    TRY(zmq_bind_socket(server, endpoint, err));
    server->has_thread = thread_start(&server->thread, "zmq", zmq_run, server);
    return server->has_thread
               ? STATUS_OK
               : error_set(err, STATUS_IO, "cannot start the thread of --zmq-port; %s",
                           THREAD_LIMIT_HINT);
}

void zmq_begin_end(struct zmq_server *server)
{
    inbox_set(&server->inbox, &server->inbox.accepts, false);
}

bool zmq_is_busy(const struct zmq_server *server)
{
    return server && atomic_load(&server->call_count) > 0;
}

void zmq_stop(struct zmq_server *server)
{
    if (!server)
        return;
    zmq_begin_end(server);
    inbox_set(&server->inbox, &server->inbox.stop, true);
    if (server->has_thread)
        pthread_join(server->thread, NULL);
    for (struct zmq_call *call = LIST_FIRST(&server->calls), *next; call; call = next) {
        next = LIST_NEXT(call, listed);
        call_close(call); /* the call waits for its next try and has no exchange */
    }
    if (server->socket)
        zmq.close(server->socket);
    if (server->context)
        zmq.end(server->context);
    request_log_free(server->log);
    inbox_done(&server->inbox);
    free(server);
}
