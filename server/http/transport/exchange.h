/* An exchange: one request and its answer, for handlers. An exchange hides the carrier
 * (libmicrohttpd, gRPC or ZeroMQ), so tests can call handlers with synthetic requests.
 *
 * The connection's thread owns the exchange. Between exchange_wait() and exchange_resume(), an
 * offload thread may own it (exchange_offload()); the model host and the watcher use only the
 * predict_request and exchange_resume(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/http/transport/coding.h"
#include "server/http/transport/keys.h"
#include "server/http/transport/offload.h"
#include "server/http/transport/query.h"
#include "server/http/transport/response_cache.h"
#include "server/http/transport/routes.h"
#include "server/http/transport/server.h"
#include "server/http/transport/trusted_proxies.h"
#include "server/http/transport/upload.h"

struct connection;
struct connections;
struct deployment;
struct exchange;
struct inbox;

/* Reads a body or submits a request for the deployment that the caller has acquired. The function
 * may acquire another deployment, release *deployment and store the other one in *deployment. */
typedef enum status prepare_fn(struct exchange *exchange, struct deployment **deployment,
                               struct error *err);

/* What a carrier provides. */
struct exchange_carrier {
    const struct dialect *dialect; /* form of errors for routes without a dialect; NULL: lensd's */
    /* The value of a request header; NULL if absent. */
    const char *(*header)(const struct exchange *exchange, const char *name);
};

/* The server's state for handlers; immutable while it runs, except atomic members. */
struct http_server {
    struct http_options options;
    struct connections *connections;
    struct http_budget budget, shares[256]; /* a hash of a client's address selects its share */
    struct trusted_proxies proxies;
    struct keyring *keys;         /* NULL in tests */
    struct response_cache *cache; /* NULL: answers are not cached */
    struct offload *offload;      /* NULL in tests */
    _Atomic int draining;
    const char *confinement;  /* from http_server_open(); NULL before it; borrowed */
    _Atomic uint64_t next_id; /* a counter, for ids of requests and traces */
    uint64_t id_seed;
    int64_t started;          /* clock_now() */
    struct listener listener; /* of --port or --unix */

    /* Private to server/http/transport. */
    struct listener admin, grpc; /* fd -1: not open */
    struct event_loop *loops;    /* of --http-threads, which share the listening socket, and a last
                                    one if there is --admin-port */
    size_t loop_count;           /* started so far */
    bool is_quiesced;            /* no thread accepts from `listener` */
    struct grpc_server *grpc_server; /* NULL without --grpc-port */
    struct zmq_server *zmq_server;   /* NULL without --zmq-port */
    struct tls *tls;                 /* NULL without TLS */
    struct metric *certificate_expires;
    struct request_log *log;
    pthread_mutex_t gate; /* locked until http_server_open(); threads wait for it */
    bool is_open;
};

#define REQUEST_ID_MAX 128

/* Maximum number of headers that an answer has in addition to the common ones. */
#define ANSWER_HEADERS_MAX 12
struct answer_header {
    const char *name; /* a constant */
    char value[160];
};

struct answer {
    int status; /* HTTP; 0: none yet */
    char *text; /* malloc'ed; owned; NULL if there is no body */
    size_t size;
    size_t json_size;  /* the Inference-Header-Content-Length header; 0: no such header */
    const char *type;  /* Content-Type, a constant; NULL if there is no body */
    const char *code;  /* error code for the log, a constant; NULL if there is no error */
    unsigned allow;    /* methods in the Allow header; 0: no such header */
    int retry_after_s; /* the Retry-After header; 0: no such header */
    bool may_keep;     /* clients may cache it and revalidate it (ETag) */
    bool is_packed;    /* the text is compressed, or is not to be compressed */
    size_t charged;    /* bytes charged to the client's budget: first an estimate, then `size` */
    struct answer_header headers[ANSWER_HEADERS_MAX]; /* respond_header() */
    size_t header_count;
};

enum exchange_state {
    EXCHANGE_NEW,       /* the request line has arrived */
    EXCHANGE_BODY,      /* the headers have arrived; the body is collected or dropped */
    EXCHANGE_SUSPENDED, /* suspended: the model host or an offload thread works */
    EXCHANGE_ANSWERED,  /* the answer has been handed to the socket */
    EXCHANGE_REFUSED,   /* answered without libmicrohttpd: drop later bytes, then close */
};

struct exchange {
    struct http_server *server;
    struct connection *connection; /* NULL over ZeroMQ and in tests */
    const struct exchange_carrier *carrier;
    const struct route_table *routes; /* the table in which the path is looked up */
    void *handle;                     /* private to the carrier */
    struct inbox *inbox;              /* of the carrier's thread */
    struct exchange *next_resumed;    /* private to the inbox and the carrier */
    enum exchange_state state;
    int64_t started;  /* clock_now() at the request line */
    int64_t answered; /* clock_now() when the answer was handed to the socket; 0: not yet */

    char *target; /* the request's target, split and decoded in place: path, then the query */
    size_t target_size;
    const char *path;
    struct query query;
    char method[16];
    const struct route *route; /* NULL if no route matches the path */
    struct route_match match;
    const struct dialect *dialect; /* the dialect of the body; NULL: the route's */
    const char *content_type;      /* NULL: none given */
    const char *host;              /* NULL: none given */
    const char *json_length;       /* Inference-Header-Content-Length; NULL: none given */
    char request_id[REQUEST_ID_MAX + 1];
    uint64_t expected; /* Content-Length; 0 if absent */
    bool chunked;
    enum coding coding;  /* the body's Content-Encoding; CODING_NONE after it has been inflated */
    bool was_delayed;    /* has been delayed by a penalty (penalty.h) */
    bool discard_body;   /* the answer exists: read the body and drop it */
    bool closes;         /* the connection ends with the answer */
    const char *body_at; /* private to daemon.c: the body in libmicrohttpd's buffer; or NULL */
    struct upload body;

    int answer_form; /* the form that the client wants, as the handler numbers its forms */
    struct answer answer;
    struct response_key cache_key;
    bool is_cached; /* the answer came from the response cache */

    /* Members for handlers that wait. */
    void *work;                      /* malloc'ed; owned */
    exchange_fn *finish;             /* answers; called if there is no answer yet */
    exchange_fn *free_work;          /* frees what `work` owns; or NULL */
    struct offload_job offload;      /* private to exchange_offload() */
    exchange_fn *awaited;            /* called when the requested model is loaded */
    prepare_fn *use;                 /* the argument of submission_to_model() */
    struct predict_request *watched; /* for connections.c only, like the next member */
    bool is_abandoned;               /* nobody waits for the answer */
    exchange_fn *next; /* called after the last part of a request; NULL: exchange_answer() */

    char key_name[KEY_NAME_MAX + 1];  /* the name of the API key; "" without a key */
    char forwarded[INET6_ADDRSTRLEN]; /* the client that a trusted proxy names; or "" */

    /* Members for the log. */
    struct trace trace;
    char model[64];
    size_t image_count;
    struct predict_times slowest; /* of each phase: the milliseconds of its slowest image */
    struct predict_times times;   /* of the image whose forward pass started last */
    uint64_t bytes_in;
    struct metric *write_seconds; /* the model's metric of the time to send an answer; NULL: none */
};

/* The address of the request's sender: the client that a trusted proxy names, else the peer of the
 * connection ("127.0.0.1", "uid:1000"). NULL in tests. */
const char *exchange_address(const struct exchange *exchange);

/* The client: the name of its key, else its address. Lives as long as the exchange. */
const char *exchange_client(const struct exchange *exchange);

/* Records model, number of images and time in each phase, for the log (request_log.c). */
void exchange_note(struct exchange *exchange, const struct predict_request *request);

/* Returns a request header, NULL if absent; it lives as long as the exchange. Only the exchange's
 * owner may call it. */
static inline const char *exchange_header(const struct exchange *exchange, const char *name)
{
    return exchange->handle ? exchange->carrier->header(exchange, name) : NULL;
}

/* Suspends the exchange until exchange_resume(). The handler's thread calls this; an offload
 * thread may call it again when there is a request to watch. If the client hangs up, or already
 * has, the request is cancelled. After exchange_resume(), `finish` is called if there is no
 * answer. */
void exchange_wait(struct exchange *exchange, struct predict_request *request, exchange_fn *finish);

/* Calls `run` on an offload thread (offload.h); from any thread. The exchange waits from now on, if
 * it does not wait already. `run` then owns the exchange, and must call exchange_resume() or pass
 * the exchange on. `bytes`: roughly how many bytes `run` reads or writes; this distinguishes long
 * jobs from short ones. */
void exchange_offload(struct exchange *exchange, size_t bytes, exchange_fn *run);

/* The dialect of the request, its answer and its errors; NULL: lensd's own. */
static inline const struct dialect *exchange_dialect(const struct exchange *exchange)
{
    return exchange->dialect || !exchange->route ? exchange->dialect : exchange->route->dialect;
}

/* The version in the path; NULL: none. */
static inline const char *exchange_version(const struct exchange *exchange)
{
    return exchange->match.version[0] ? exchange->match.version : NULL;
}

/* For use as `run` of exchange_offload(): calls answer_write(), then exchange_resume(). */
void exchange_answer(struct exchange *exchange);

/* Call this function once after exchange_wait(), on any thread. Do not touch the exchange
 * afterwards. */
void exchange_resume(struct exchange *exchange);

/* ---- for carriers ---- */

/* Compresses the answer if that is worthwhile, and charges the budget for its final size. May be
 * called again. */
void answer_pack(struct exchange *exchange);

/* Ends a wait: calls the handler's `finish` if there is no answer yet, frees the handler's work and
 * the body, and then packs the answer. A compressed answer thus never exists beside the body. */
void answer_write(struct exchange *exchange);

/* Copies `target`, truncated if too long. Borrows the other arguments. NULL when out of memory. */
struct exchange *exchange_create(struct http_server *server, const struct exchange_carrier *carrier,
                                 const struct route_table *routes, struct connection *connection,
                                 const char *target);
void exchange_free(struct exchange *exchange); /* accepts NULL */

/* Sets the client's address for an exchange without a `connection`. From now on the body is charged
 * to that client's share of the budget. */
void exchange_set_client(struct exchange *exchange, const char *address);

/* If a trusted proxy sent the request, stores the client that the proxy names in `forwarded_for`,
 * the last X-Forwarded-For or NULL. */
void exchange_find_client(struct exchange *exchange, const char *forwarded_for);

/* Returns the time (clock_now()) until which a request with this method must wait, because its
 * client was refused just before (penalty.h); 0: it need not wait. */
int64_t exchange_delay(struct exchange *exchange, const char *method);

/* Records whether the answer is a refusal, for exchange_delay(). `last`: the server closes the
 * connection after this answer. */
void exchange_note_answer(struct exchange *exchange, bool last);
