/* Delays the next request of a client that was refused and comes back at once.
 *
 * A refusal with Retry-After asks the client to come back later. If the client sends its next
 * request within 50 ms, that request waits until the 50 ms are over. Each refusal of a delayed
 * request doubles the time, up to 400 ms; each second without a refusal halves it. A client that
 * obeys Retry-After, which is at least a second, is never delayed.
 *
 * A penalty belongs to a connection. If the connection closes within a second of a refusal, its
 * penalty is kept under the client's address for the rest of that second. The next connection from
 * that address takes over the penalty, if it was opened after the refusal. A penalty goes to one
 * connection; other connections from the address are not delayed.
 *
 * Requests from a trusted proxy instead have one penalty for each forwarded address, whichever
 * connection they use. Penalties protect the server against careless clients. API keys with a rate
 * protect it against hostile ones.
 *
 * Pure: no thread, lock or clock. Times are clock_now()'s nanoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PENALTY_FIRST_MS 50
#define PENALTY_LEVELS   4 /* 50, 100, 200, 400 ms */

/* The penalty of one client. All zero: the client was never refused. */
struct penalty {
    int64_t refused; /* time of the refusal; 0: the last answer was not a refusal */
    int64_t latest;  /* time of the last refusal, even if other answers followed */
    unsigned level;  /* 0 … PENALTY_LEVELS - 1 */
};

/* Returns the time until which the next request waits; this time may have passed already. */
int64_t penalty_until(const struct penalty *penalty);

/* Records the answer to a request. `waited`: the request was delayed. */
void penalty_refused(struct penalty *penalty, bool waited, int64_t now);
void penalty_served(struct penalty *penalty);

/* Penalties of closed connections and of forwarded clients. A hash of the client selects an entry.
 * A client is forgotten when another one needs its entry. */
#define PENALTY_CLIENTS 1024
struct penalty_table {
    struct penalty_client {
        uint64_t client;
        struct penalty penalty;
        size_t fled; /* number of closed connections whose penalty was not taken over */
    } clients[PENALTY_CLIENTS];
};

/* A hash of `address` and `forwarded_for`; the latter may be NULL. IPv6 addresses of one /64 are
 * one client, because a single customer has at least a /64. */
uint64_t penalty_client(const char *address, const char *forwarded_for);

/* The entry of a client, valid until the next penalty_add() or penalty_leave(); NULL: none. */
struct penalty *penalty_find(struct penalty_table *table, uint64_t client);

/* Like penalty_find(), but replaces another client's entry if the client has none. */
struct penalty *penalty_add(struct penalty_table *table, uint64_t client);

/* Stores the penalty of a connection that has closed, unless the penalty is over. */
void penalty_leave(struct penalty_table *table, uint64_t client, const struct penalty *penalty,
                   int64_t now);

/* For the first request of a connection that was opened at `opened`: moves the penalty of a closed
 * connection of this client to *penalty. If there is none, *penalty does not change. */
void penalty_take_over(struct penalty_table *table, uint64_t client, int64_t opened, int64_t now,
                       struct penalty *penalty);
