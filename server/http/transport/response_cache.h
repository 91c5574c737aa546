/* Answers kept by what was asked (--response-cache), so that a photo sent again is not computed
 * again.
 *
 * The key of an answer is a SHA-256 of the body and of all else in the request that an answer
 * depends on. With a weaker hash a client could make two bodies with one key, and put its answer in
 * the place of another's. The hash begins with a secret of the process, so clients cannot choose
 * bodies that all fall into one bucket of the table. The name of the API key is part of it: whoever
 * has another one cannot find out what somebody else has sent.
 *
 * Answers that were not asked for longest go first when there is no room. Thread-safe; one lock,
 * which is not held while a body is hashed or an answer copied. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "engine/base/status.h"
#include "server/observe/metrics.h"

struct exchange;
struct response_cache;

#define RESPONSE_KEY_BYTES 32

/* Of a request whose answer may be kept. */
struct response_key {
    bool is_set;
    uint8_t hash[RESPONSE_KEY_BYTES];
    size_t headers;   /* of the answer, before the handler's own */
    double search_ms; /* what hashing and finding took */
};

/* The model that a request asked for, and which load of it answered. */
struct cached_model {
    char name[128], version[32]; /* "": the default model, the newest version */
    uint64_t generation;
};

/* Read-only for all but response_cache.c. */
struct cached_answer {
    struct cached_model model;
    size_t image_count;
    int64_t made; /* clock_now() */
    const char *type;
    const char *header; /* the handler's own; NULL: none */
    char header_value[24];
    size_t size;

    /* Private to response_cache.c. */
    _Atomic int refs;
    size_t bytes; /* that it counts for */
    uint8_t hash[RESPONSE_KEY_BYTES];
    LIST_ENTRY(cached_answer) bucket;
    TAILQ_ENTRY(cached_answer) by_use;

    char text[]; /* size */
};

/* `max_bytes`: of answers and of what is needed to find them. STATUS_NO_MEMORY, also without
 * random numbers. `metrics` is borrowed and may be NULL. */
enum status response_cache_create(size_t max_bytes, struct metrics *metrics,
                                  struct response_cache **ret, struct error *err) MUST_USE;
void response_cache_free(struct response_cache *cache); /* NULL is fine */

/* Hashes a request whose body is whole into exchange->cache_key. `reads_forms`: the handler reads
 * nothing of a multipart body but its parts, so its boundary, which clients choose at random, does
 * not count. False: it cannot be hashed. */
bool response_cache_key(const struct response_cache *cache, struct exchange *exchange,
                        bool reads_forms);

/* The answer kept under exchange->cache_key, for the caller to release; NULL: there is none. */
struct cached_answer *response_cache_find(struct response_cache *cache,
                                          const struct exchange *exchange);
void cached_answer_release(struct cached_answer *answer);

/* Keeps a copy of the exchange's answer, not compressed yet, in the place of any other under its
 * key. One that is larger than half of the cache, or for which there is no memory, is not kept. */
void response_cache_keep(struct response_cache *cache, const struct exchange *exchange,
                         const struct cached_model *model);
