/* What a request's line and headers say, before its body is read: is it sound, is there such a
 * route, may the body come? Knows nothing of sockets. */
#pragma once

#include <stddef.h>

#include "server/http/transport/exchange.h"

/* A body this short is read to its end to keep the connection when the answer is an error. */
#define EXCHANGE_SWALLOW_MAX ((uint64_t)1 << 20)

#define EXCHANGE_TARGET_MAX 8192 /* bytes of path and query */

/* Borrowed: lives as long as the exchange. A header that is not there is NULL. */
struct request_head {
    const char *method, *version; /* "POST", "HTTP/1.1" */
    size_t size;                  /* bytes of the request line and the headers */
    const char *host, *content_type, *expect, *request_id, *traceparent;
    const char *authorization, *api_key;
    const char *json_length; /* Inference-Header-Content-Length */
    const char *content_encoding;
    const char *origin, *preflight; /* Origin, Access-Control-Request-Method */
    bool malformed; /* the request line or a header is none, or proxies may read it otherwise */
    int hosts;      /* Host headers */
    int lengths, encodings;        /* how many Content-Length and Transfer-Encoding headers */
    const char *length, *encoding; /* the last of each */
};

enum head_verdict {
    ADMIT_READ,       /* the body may come (where exchange->swallow is set, only to be dropped) */
    ADMIT_ANSWER_NOW, /* the answer is there, and no body is on its way */
    ADMIT_REFUSE,     /* the answer is there, and a body is coming that shall not be waited for */
};

/* Fills in what the head says. exchange->target, target_size and server are set. */
enum head_verdict exchange_admit(struct exchange *exchange, const struct request_head *head);

/* Answers a request that the HTTP library cannot read, instead of its own answer with `status`. Of
 * *head all that has been read is there; of several lengths the first. */
void exchange_refuse_broken(struct exchange *exchange, const struct request_head *head, int status);
