/* HTTP transfers over kept connections: libcurl's multi interface on an epoll loop, one thread.
 *
 * A transfer occupies one of a fixed number of slots from start to end; libcurl keeps a connection
 * a slot and uses it again. Times are microseconds of CLOCK_MONOTONIC. */
#pragma once

#include <stdint.h>

#include "tests/load/requests.h"

struct transfers;

struct transfers_options {
    const char *url;
    int slots;
    int64_t timeout_us; /* of one transfer, connecting included */
    bool insecure;      /* take any certificate */
    const char *source; /* this machine's address to connect from; NULL: any */
};

/* How a transfer ended. */
struct outcome {
    int64_t tag;            /* the caller's */
    int64_t started, ended; /* us */
    CURLcode code;          /* CURLE_OK: an answer came, whatever its status */
    long status;            /* HTTP */
    uint64_t received;      /* bytes of the answer's body */
    long connections;       /* opened for it: 0 when one was used again */
};

int64_t now_us(void);

/* NULL: said on standard error. */
struct transfers *transfers_create(const struct transfers_options *options);
void transfers_free(struct transfers *transfers);

/* The body is borrowed until the outcome. false: every slot is busy. */
bool transfers_start(struct transfers *transfers, const struct request_body *body, int64_t tag);
int transfers_running(const struct transfers *transfers);

/* Waits until `deadline` (us) or until something happened on a socket, then hands every transfer
 * that ended to on_done, from which new ones may be started. false: the loop broke (said). */
bool transfers_wait(struct transfers *transfers, int64_t deadline,
                    void (*on_done)(void *context, const struct outcome *outcome), void *context);
