/* How long the next request of a client that was refused has to wait.
 *
 * A refusal with Retry-After asks the client to come back later. The next request of one that comes
 * back sooner than 50 ms waits until these 50 ms are over; each refusal of a request that had to
 * wait doubles the time, up to 400 ms. A second without a refusal takes one doubling back. So a
 * client that does as Retry-After says, a second or more, never waits.
 *
 * A penalty belongs to a connection. When a connection ends within a second of a refusal, its
 * penalty is kept for the rest of that second under the client's address, and the next connection
 * from there that is opened after the refusal takes it over: one penalty goes to one connection. A
 * connection that was open before, or that comes when nobody from its address has fled a penalty,
 * does not wait. Requests that a trusted proxy passes on have a penalty for each address that they
 * come from instead, whatever connection they use. Penalties spare the server from careless
 * clients; against hostile ones there are API keys with a rate.
 *
 * Pure: no thread, lock or clock. Times are clock_now()'s nanoseconds. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PENALTY_FIRST_MS 50
#define PENALTY_LEVELS   4 /* 50, 100, 200, 400 ms */

/* Of one client; zero: never refused. */
struct penalty {
    int64_t refused; /* when; 0: the last answer was no refusal */
    int64_t latest;  /* when it was refused last, whatever came after */
    unsigned level;  /* 0 … PENALTY_LEVELS - 1 */
};

/* A request that comes now waits until this time; `now` or earlier: it does not. */
int64_t penalty_until(const struct penalty *penalty);

/* A request has been answered. `waited`: it came too early and had to wait. */
void penalty_refused(struct penalty *penalty, bool waited, int64_t now);
void penalty_served(struct penalty *penalty);

/* Penalties of clients without a connection of their own, by a hash of who they are. A client
 * whose place is needed by another is forgotten. */
#define PENALTY_CLIENTS 1024
struct penalty_table {
    struct penalty_client {
        uint64_t client;
        struct penalty penalty;
        size_t fled; /* connections that ended and whose penalty nobody has taken over */
    } clients[PENALTY_CLIENTS];
};

/* FNV-1a of `address` and of `forwarded_for`, which may be NULL. */
uint64_t penalty_client(const char *address, const char *forwarded_for);

/* The penalty of a client; NULL where it has none. Valid until the next call. */
struct penalty *penalty_find(struct penalty_table *table, uint64_t client);

/* The same; a new one where it has none, in the place of another client's. */
struct penalty *penalty_add(struct penalty_table *table, uint64_t client);

/* A connection of this client has ended; keeps its penalty. */
void penalty_leave(struct penalty_table *table, uint64_t client, const struct penalty *penalty,
                   int64_t now);

/* The first request of a connection that was opened at `opened`: takes over the penalty of one that
 * ended, if there is one; otherwise *penalty stays as it is. */
void penalty_take_over(struct penalty_table *table, uint64_t client, int64_t opened, int64_t now,
                       struct penalty *penalty);
