/* Private to grpc*.c: the types that the thread of --grpc-port, its connections and their calls
 * share. Only that thread uses them, except for the inbox. */
#pragma once

#include <gnutls/gnutls.h>
#include <nghttp2/nghttp2.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/base/clock.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/inbox.h"
#include "server/http/transport/proxy_pending.h"

#define GRPC_CALLS       100                 /* maximum number of open calls of a connection */
#define GRPC_CALL_WINDOW ((size_t)1 << 20)   /* bytes that a client may send ahead in one call */
#define GRPC_WINDOW      ((size_t)4 << 20)   /* bytes that a client may send ahead in all calls */
#define GRPC_HEADERS     ((size_t)256 << 10) /* bytes of headers in all calls of a connection */
#define GRPC_CREDIT      1000                /* largest value of `credit` */

struct grpc_call;
struct request_log;

struct grpc_server {
    struct http_server *http;
    int epoll_fd;
    struct inbox inbox;
    pthread_t thread;
    bool has_thread;
    struct request_log *log;
    struct proxy_pending *proxied;                /* NULL if no PROXY headers are expected */
    gnutls_certificate_credentials_t credentials; /* NULL without TLS */
    LIST_HEAD(, grpc_connection) connections;
    int64_t full_until; /* accept() failed for lack of resources: do not call it before this time */
    bool may_wait;      /* clients may be waiting for accept() */
};

struct grpc_connection {
    struct grpc_server *server;
    LIST_ENTRY(grpc_connection) listed;
    int fd;
    struct connection *entry; /* in the table of all connections */
    nghttp2_session *session; /* NULL: the connection has ended, and only its calls remain */
    gnutls_session_t tls;     /* NULL without TLS */
    bool has_shaken, has_settings, is_busy, wants_feed;
    bool has_begun;       /* as many bytes as HTTP/2's preface have arrived */
    bool refused_http1;   /* no HTTP/2 arrived: the client gets 400, and nothing in HTTP/2 */
    bool is_ending;       /* GOAWAY or a refusal is queued: further input is dropped */
    bool wants_leave;     /* a spare connection: ask its client to make later calls on another */
    bool is_leaving;      /* GOAWAY is queued: open calls continue, but the client makes no more */
    bool has_open_header; /* CONTINUATION may follow */
    LIST_HEAD(, grpc_call) calls;
    size_t header_room;   /* bytes allocated for the headers of its calls */
    size_t call_count;    /* calls, including those whose stream is closed */
    int64_t opened;       /* clock_now(), like all times here */
    int64_t idle_since;   /* when its last call ended */
    int64_t closing;      /* when our sending side was shut down; 0: not yet */
    int64_t header_since; /* start of a header block that has not ended; 0: none */
    size_t header_bytes;  /* bytes read since a frame other than CONTINUATION began */
    uint8_t out[16384];   /* frames to write, from out_at to out_size; as much as a TLS record */
    size_t out_at, out_size;
    int64_t blocked_since; /* when the socket stopped accepting bytes; 0: it accepts them */
    uint64_t runs;         /* calls of grpc_connection_run() */
    double credit;         /* the comment at the top of grpc_connection.c explains credit */
    int64_t credit_time;   /* when `credit` was computed */
    uint32_t events;       /* the events that epoll watches */
};

enum grpc_call_state {
    CALL_HEADERS,   /* its headers are arriving */
    CALL_DELAYED,   /* waits, because its client was refused a moment ago */
    CALL_READING,   /* waits for a message or the rest of one */
    CALL_WORKING,   /* the exchange works */
    CALL_ANSWERING, /* a message is being sent */
    CALL_ENDED,     /* everything but the trailers has been sent; further input is dropped */
};

struct grpc_call {
    struct grpc_connection *connection;
    LIST_ENTRY(grpc_call) listed;
    int32_t stream;
    enum grpc_call_state state;
    bool is_stream;         /* any number of messages */
    bool has_ended;         /* the client sends no more */
    bool is_gone;           /* the stream was closed in CALL_WORKING */
    bool is_broken;         /* no further message can be read */
    bool is_late;           /* the client read its answer too slowly */
    bool has_headers;       /* the answer's headers have been submitted */
    bool wants_feed;        /* `held` may be read again */
    uint64_t worked_in_run; /* the connection's run in which it last started to work; 0: never */

    char *headers; /* "name\0value\0" …; malloc'ed */
    size_t headers_size, headers_room;
    size_t headers_given; /* size as RFC 9113 counts it, including headers that are not kept */
    char timeout[24];     /* grpc-timeout in milliseconds, as text */
    int64_t delayed_until;
    int64_t since; /* when `state` began, or the period of is_slow() */

    struct exchange *exchange; /* for the current message; the first one exists since the call's
                                  headers; NULL between messages */
    uint8_t prefix[5];         /* length prefix of the message that is arriving */
    size_t prefix_size, message_left;
    struct upload held; /* input that arrived before the previous message was answered */
    size_t held_at;

    uint8_t head[32]; /* what precedes the answer's text in the message */
    size_t head_size, sent;
    size_t sent_before; /* `sent` at the time `since` */
    int status;         /* grpc-status at the end */
    int retry_after_s;
    char message[1024]; /* grpc-message, percent-encoded */
};

/* True if a time limit has passed. `since` 0: it has not begun; `limit_ms` 0: there is none. */
static inline bool grpc_is_over(int64_t since, int64_t limit_ms, int64_t now)
{
    return limit_ms && since && now - since >= limit_ms * NS_PER_MS;
}

/* ---- grpc_connection.c ---- */

/* Takes ownership of `fd`. `context`: the struct grpc_server. */
proxy_pending_take grpc_connection_open;
/* Runs the connection after `events` of its socket; UINT32_MAX: after any other event. */
void grpc_connection_run(struct grpc_connection *connection, uint32_t events);
/* Checks the time limits. */
void grpc_connection_tick(struct grpc_connection *connection, int64_t now, bool is_ending);
/* Shuts down the socket, cancels calls in CALL_WORKING, and frees the other calls. */
void grpc_connection_end(struct grpc_connection *connection);
/* Frees the connection if it has ended and has no calls. */
void grpc_connection_sweep(struct grpc_connection *connection);

/* ---- grpc_call.c ---- */

/* Returns NULL when out of memory. */
struct grpc_call *grpc_call_create(struct grpc_connection *connection, int32_t stream);
/* Adds a header. False when out of memory or far beyond --max-header: then close the connection. */
bool grpc_call_header(struct grpc_call *call, const uint8_t *name, size_t name_size,
                      const uint8_t *value, size_t value_size);
/* All headers have arrived: refuses or delays the call, or starts to read its messages. */
void grpc_call_begin(struct grpc_call *call);
/* Receives DATA. Returns by how many bytes the call's window may grow now. */
size_t grpc_call_data(struct grpc_call *call, const uint8_t *bytes, size_t size);
/* Call it when the client has sent everything. */
void grpc_call_end(struct grpc_call *call);
/* Call it when the stream is closed; `is_whole`: without an error. May free the call. */
void grpc_call_closed(struct grpc_call *call, bool is_whole);
/* Call it after the exchange was resumed. Frees the call if its stream has been closed. */
void grpc_call_resumed(struct grpc_call *call);
/* Handles the input in `held`, and the end of the client's messages. */
void grpc_call_feed(struct grpc_call *call);
/* Checks the time limits. */
void grpc_call_tick(struct grpc_call *call, int64_t now);
/* False only while a stream is between two messages. */
bool grpc_call_is_busy(const struct grpc_call *call);
