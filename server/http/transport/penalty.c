/* A table of refused clients, and the time until which the next request of each must wait. */
#include "server/http/transport/penalty.h"

#include <arpa/inet.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/hash.h"

#define SECOND (1000 * NS_PER_MS)

int64_t penalty_until(const struct penalty *penalty)
{
    return penalty->refused ? penalty->refused + (PENALTY_FIRST_MS * NS_PER_MS << penalty->level)
                            : 0;
}

void penalty_refused(struct penalty *penalty, bool waited, int64_t now)
{
    int64_t seconds = (now - penalty->latest) / SECOND;
    penalty->level = seconds < penalty->level ? penalty->level - (unsigned)seconds : 0;
    if (waited && penalty->level < PENALTY_LEVELS - 1)
        penalty->level++;
    penalty->refused = penalty->latest = now;
}

void penalty_served(struct penalty *penalty)
{
    penalty->refused = 0;
}

/* Each hashed text ends with a byte that never occurs in UTF-8. */
static uint64_t penalty_hash(uint64_t hash, const void *bytes, size_t size)
{
    return fnv1a(fnv1a(hash, bytes, size), "\xFF", 1);
}

static uint64_t penalty_hash_address(uint64_t hash, const char *address)
{
    struct in6_addr v6;
    if (strchr(address, ':') && inet_pton(AF_INET6, address, &v6) == 1)
        return penalty_hash(hash, &v6, 8);
    return penalty_hash(hash, address, strlen(address));
}

uint64_t penalty_client(const char *address, const char *forwarded_for)
{
    uint64_t hash = penalty_hash_address(FNV1A_START, address);
    return forwarded_for ? penalty_hash_address(hash, forwarded_for) : hash;
}

static struct penalty_client *penalty_place(struct penalty_table *table, uint64_t client)
{
    return &table->clients[(client ^ client >> 32) % PENALTY_CLIENTS];
}

static struct penalty_client *penalty_claim(struct penalty_table *table, uint64_t client)
{
    struct penalty_client *place = penalty_place(table, client);
    if (place->client != client)
        *place = (struct penalty_client){.client = client};
    return place;
}

struct penalty *penalty_find(struct penalty_table *table, uint64_t client)
{
    struct penalty_client *place = penalty_place(table, client);
    return place->client == client ? &place->penalty : NULL;
}

struct penalty *penalty_add(struct penalty_table *table, uint64_t client)
{
    return &penalty_claim(table, client)->penalty;
}

/* True if a penalty has ended: the client was answered later, or its refusal is a second old. */
static bool is_over(const struct penalty *penalty, int64_t now)
{
    return !penalty->refused || now - penalty->refused >= SECOND;
}

void penalty_leave(struct penalty_table *table, uint64_t client, const struct penalty *penalty,
                   int64_t now)
{
    if (is_over(penalty, now))
        return;
    struct penalty_client *place = penalty_claim(table, client);
    if (is_over(&place->penalty, now))
        place->fled = 0; /* penalties of connections that closed earlier are over */
    place->penalty = *penalty;
    place->fled++;
}

void penalty_take_over(struct penalty_table *table, uint64_t client, int64_t opened, int64_t now,
                       struct penalty *penalty)
{
    struct penalty_client *place = penalty_place(table, client);
    if (place->client != client || place->fled == 0 || opened < place->penalty.refused ||
        is_over(&place->penalty, now))
        return;
    place->fled--;
    *penalty = place->penalty;
}
