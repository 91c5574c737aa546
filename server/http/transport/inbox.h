/* What other threads tell the thread of a carrier (event_loop.c, grpc.c, zmq.c): which exchanges go
 * on (exchange_resume()), whether to accept clients, and when to end. Thread-safe. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

struct exchange;

struct inbox {
    int fd; /* an eventfd, readable if the members below have changed; negative: none */
    pthread_mutex_t lock;
    /* Guarded by lock. */
    bool is_woken, stop, accepts;
    struct exchange *resumed; /* a list by next_resumed */
};

/* Returns false if the system has no descriptor left; inbox_done() is then valid, too. */
bool inbox_init(struct inbox *inbox, bool accepts);
void inbox_done(struct inbox *inbox);

/* Sets *flag, which is `stop` or `accepts`, and wakes the thread. */
void inbox_set(struct inbox *inbox, bool *flag, bool value);

/* Wakes the thread. */
void inbox_wake_locked(struct inbox *inbox);

/* Takes the exchanges to continue. Later changes wake the thread again. Returns !inbox->stop. */
bool inbox_take(struct inbox *inbox, struct exchange **ret_resumed, bool *ret_accepts);
