/* Caches answers by their request (--response-cache), so that a repeated image is not computed
 * again.
 *
 * The key of an answer is a SHA-256 of the body and of everything else in the request that the
 * answer depends on. With a weaker hash, a client could construct two bodies with one key and
 * replace the answer of another client. The hash begins with a secret of the process, so clients
 * cannot choose bodies that all fall into one bucket. It includes the name of the API key, so that
 * the holder of another key cannot find out which requests were sent.
 *
 * The least recently used answers are evicted when the cache is full. Thread-safe; one lock, which
 * is not held while a body is hashed or an answer copied. */
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

/* The key of a request whose answer may be cached. */
struct response_key {
    bool is_set;
    uint8_t hash[RESPONSE_KEY_BYTES];
    double search_ms; /* time for hashing and lookup */
};

/* The model and version that a request names, and which load of the model answered. */
struct cached_model {
    char name[128], version[32]; /* "": the default model, the newest version */
    uint64_t generation;
};

/* A cached answer; read-only outside response_cache.c. */
struct cached_answer {
    struct cached_model model;
    size_t image_count;
    int64_t made; /* clock_now() */
    const char *type;
    size_t size, json_size; /* of struct answer */

    /* Private to response_cache.c. */
    _Atomic int refs;
    size_t bytes; /* size that counts towards the cache's limit */
    uint8_t hash[RESPONSE_KEY_BYTES];
    LIST_ENTRY(cached_answer) bucket;
    TAILQ_ENTRY(cached_answer) by_use;

    char text[]; /* size */
};

/* `max_bytes` limits the answers and the table. STATUS_NO_MEMORY, also if the system has no random
 * numbers. `metrics` is borrowed and may be NULL. The caller frees *ret, also after a failure. */
enum status response_cache_create(size_t max_bytes, struct metrics *metrics,
                                  struct response_cache **ret, struct error *err) MUST_USE;
void response_cache_free(struct response_cache *cache); /* accepts NULL */

/* Hashes a request with a complete body into exchange->cache_key. `reads_forms`: the handler reads
 * only the parts of a multipart body, so the random boundary that clients choose is not hashed.
 * Returns false if the request cannot be hashed. */
bool response_cache_key(const struct response_cache *cache, struct exchange *exchange,
                        bool reads_forms);

/* Writes the SHA-256 of a photo and of the API key's name as hexadecimal digits. The name keeps
 * clients with different keys apart. Returns false if SHA-256 is not available. */
bool response_photo_hash(const struct exchange *exchange, const uint8_t *data, size_t size,
                         char ret[static 2 * RESPONSE_KEY_BYTES + 1]);

/* Returns the answer cached under exchange->cache_key, or NULL. The caller releases it. */
struct cached_answer *response_cache_find(struct response_cache *cache,
                                          const struct exchange *exchange);
void cached_answer_release(struct cached_answer *answer);

/* Caches a copy of the exchange's answer, which must not be compressed yet, and replaces any other
 * answer with its key. Does nothing if the answer is larger than half of the cache, or when out of
 * memory. */
void response_cache_keep(struct response_cache *cache, const struct exchange *exchange,
                         const struct cached_model *model);
