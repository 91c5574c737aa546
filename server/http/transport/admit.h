/* Checks a request's line and headers before its body is read: syntax, host, route, key, length.
 * Does not touch sockets. */
#pragma once

#include <stddef.h>

#include "server/http/transport/exchange.h"

/* After an error, a body up to this size is still read, so that the connection stays usable. */
#define EXCHANGE_DISCARD_MAX ((uint64_t)1 << 20)

#define EXCHANGE_TARGET_MAX 8192 /* bytes of path and query */

/* The parts of a request's head that exchange_header() cannot return. Strings are borrowed and live
 * as long as the exchange. */
struct request_head {
    const char *method, *version;  /* "POST", "HTTP/1.1" */
    size_t size;                   /* bytes of the request line and the headers */
    bool malformed;                /* a line is invalid, or a proxy may parse it differently */
    int hosts;                     /* number of Host headers */
    int lengths, encodings;        /* number of Content-Length and Transfer-Encoding headers */
    const char *length, *encoding; /* value of the last header of that name; NULL: none */
    const char *forwarded_for;     /* the last X-Forwarded-For, which the nearest proxy adds */
};

enum head_verdict {
    ADMIT_READ,       /* read the body (and drop it if exchange->discard_body is set) */
    ADMIT_ANSWER_NOW, /* the answer is ready; the client sends its body only after "100 Continue" */
    ADMIT_REFUSE,     /* the answer is ready; do not wait for the body */
};

/* Checks *head and fills in an exchange from exchange_create(). Calls the route's `admit`. */
enum head_verdict exchange_admit(struct exchange *exchange, const struct request_head *head);

/* Sets the exchange's id and trace from its headers; without such headers, makes a new id and
 * trace. exchange_admit() calls this. */
void exchange_identify(struct exchange *exchange);

/* True if a foreign web page sends the request: its Origin is neither this server nor in
 * --cors-origin. Such a page cannot read the answer, but a handler that changes something must
 * refuse the request. */
bool admit_is_foreign(const struct exchange *exchange);

/* Checks the list in --allowed-hosts; NULL is valid. STATUS_CONFIG. */
enum status admit_check_hosts(const char *list, struct error *err) MUST_USE;

/* Sets the answer to a request that libmicrohttpd cannot parse and would answer with `status`.
 * Only the headers parsed so far are known; head->length is the first Content-Length. */
void exchange_refuse_broken(struct exchange *exchange, const struct request_head *head, int status);
