/* A hash table of answers with chained buckets, and a list of the answers by their last use. */
#include "server/http/transport/response_cache.h"

#include <gnutls/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "engine/base/thread.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/multipart.h"

/* Size of a typical answer. The table has about one bucket for each that the cache can hold. */
#define TYPICAL_BYTES 1024

/* A form with at most this many parts more than --max-images is hashed part by part. */
#define PARAMETER_PARTS 64

LIST_HEAD(cache_bucket, cached_answer);
TAILQ_HEAD(cached_answers, cached_answer);

struct response_cache {
    uint8_t secret[32];
    size_t max_bytes;
    struct metric *used, *evictions;

    pthread_mutex_t lock;         /* guards the members below, and the answers' links */
    struct cache_bucket *buckets; /* zeroed buckets are empty */
    size_t bucket_count;          /* a power of two */
    struct cached_answers by_use; /* most recently used first */
    size_t bytes;
};

enum status response_cache_create(size_t max_bytes, struct metrics *metrics,
                                  struct response_cache **ret, struct error *err)
{
    struct response_cache *cache = *ret = calloc(1, sizeof *cache);
    TRY(check_memory(cache, "for the response cache", err));
    pthread_mutex_init(&cache->lock, NULL);
    TAILQ_INIT(&cache->by_use);
    cache->max_bytes = max_bytes;
    cache->bucket_count = 1;
    while (cache->bucket_count <= max_bytes / TYPICAL_BYTES / 2)
        cache->bucket_count *= 2;
    cache->buckets = alloc_array(cache->bucket_count, sizeof *cache->buckets);
    cache->bytes = sizeof *cache + cache->bucket_count * sizeof *cache->buckets;
    if (!cache->buckets || gnutls_rnd(GNUTLS_RND_KEY, cache->secret, sizeof cache->secret) != 0)
        return error_set(err, STATUS_NO_MEMORY,
                         "no memory, or no random numbers, for a response cache of %zu bytes",
                         max_bytes);
    cache->used = metrics_get(metrics, METRIC_GAUGE, "lensd_response_cache_bytes",
                              "Bytes of the response cache, its table included.", "");
    cache->evictions = metrics_get(metrics, METRIC_COUNTER, "lensd_response_cache_evictions_total",
                                   "Answers that made room for others in the response cache.", "");
    metric_set(cache->used, (double)cache->bytes);
    return STATUS_OK;
}

/* Hashes each field after its length, so that different lists of fields give different bytes. */
static bool hash_field(gnutls_hash_hd_t hash, const void *bytes, size_t size)
{
    const uint64_t length = size;
    return gnutls_hash(hash, &length, sizeof length) == 0 &&
           (size == 0 || gnutls_hash(hash, bytes, size) == 0);
}

static bool hash_text(gnutls_hash_hd_t hash, const char *text)
{
    return hash_field(hash, text, text ? strlen(text) : 0);
}

static bool hash_form(gnutls_hash_hd_t hash, const struct multipart *form)
{
    bool is_good = hash_text(hash, "form");
    for (size_t i = 0; is_good && i < form->count; i++) {
        const struct multipart_part *part = &form->parts[i];
        is_good = hash_text(hash, part->name) && hash_text(hash, part->filename) &&
                  hash_field(hash, &part->has_filename, sizeof part->has_filename) &&
                  hash_field(hash, part->data, part->size);
    }
    return is_good;
}

static bool hash_body(gnutls_hash_hd_t hash, const struct exchange *x, bool reads_forms)
{
    const struct upload *body = &x->body;
    struct multipart form;
    struct error err;
    /* A body with bytes before its first boundary is hashed whole, because /predict could read
     * those bytes as a photo. */
    if (reads_forms && multipart_is(x->content_type) && body->size > 2 &&
        !memcmp(body->data, "--", 2) &&
        multipart_parse(x->content_type, body->data, body->size,
                        x->server->options.max_images + PARAMETER_PARTS, &form,
                        &err) == STATUS_OK) {
        const bool is_good = hash_form(hash, &form);
        multipart_done(&form);
        return is_good;
    }
    return hash_text(hash, x->content_type) && hash_text(hash, x->json_length) &&
           hash_field(hash, body->data, body->size);
}

bool response_cache_key(const struct response_cache *cache, struct exchange *x, bool reads_forms)
{
    gnutls_hash_hd_t hash;
    if (gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) != 0)
        return false;
    bool is_good = hash_field(hash, cache->secret, sizeof cache->secret) &&
                   hash_text(hash, x->key_name) && hash_text(hash, x->path) &&
                   hash_text(hash, x->match.model) && /* a header may name the model */
                   hash_field(hash, &x->answer_form, sizeof x->answer_form) &&
                   hash_field(hash, &x->query.count, sizeof x->query.count);
    for (size_t i = 0; is_good && i < x->query.count; i++)
        is_good = hash_text(hash, x->query.parameters[i].name) &&
                  hash_text(hash, x->query.parameters[i].value);
    is_good = is_good && hash_body(hash, x, reads_forms);
    gnutls_hash_deinit(hash, x->cache_key.hash);
    x->cache_key.is_set = is_good;
    return is_good;
}

bool response_photo_hash(const struct exchange *x, const uint8_t *data, size_t size,
                         char ret[static 2 * RESPONSE_KEY_BYTES + 1])
{
    uint8_t bytes[RESPONSE_KEY_BYTES];
    gnutls_hash_hd_t hash;
    if (gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) != 0)
        return false;
    const bool is_good = hash_text(hash, x->key_name) && hash_field(hash, data, size);
    gnutls_hash_deinit(hash, bytes);
    size_t room = 2 * RESPONSE_KEY_BYTES + 1;
    return is_good && gnutls_hex_encode(&(gnutls_datum_t){bytes, sizeof bytes}, ret, &room) == 0;
}

static struct cache_bucket *bucket_of(const struct response_cache *cache, const uint8_t *hash)
{
    uint64_t number;
    memcpy(&number, hash, sizeof number);
    return &cache->buckets[number & (cache->bucket_count - 1)];
}

static struct cached_answer *cache_find_locked(const struct response_cache *cache,
                                               const uint8_t *hash)
{
    struct cached_answer *answer;
    LIST_FOREACH(answer, bucket_of(cache, hash), bucket)
    if (!memcmp(answer->hash, hash, RESPONSE_KEY_BYTES))
        break;
    return answer;
}

void cached_answer_release(struct cached_answer *answer)
{
    if (atomic_fetch_sub_explicit(&answer->refs, 1, memory_order_acq_rel) == 1)
        free(answer);
}

static void cache_remove_locked(struct response_cache *cache, struct cached_answer *answer)
{
    LIST_REMOVE(answer, bucket);
    TAILQ_REMOVE(&cache->by_use, answer, by_use);
    cache->bytes -= answer->bytes;
    cached_answer_release(answer);
}

void response_cache_free(struct response_cache *cache)
{
    if (!cache)
        return;
    while (!TAILQ_EMPTY(&cache->by_use))
        cache_remove_locked(cache, TAILQ_FIRST(&cache->by_use));
    pthread_mutex_destroy(&cache->lock);
    FREE_ALL(cache->buckets, cache);
}

struct cached_answer *response_cache_find(struct response_cache *cache, const struct exchange *x)
{
    LOCK(&cache->lock);
    struct cached_answer *answer = cache_find_locked(cache, x->cache_key.hash);
    if (answer) {
        TAILQ_REMOVE(&cache->by_use, answer, by_use);
        TAILQ_INSERT_HEAD(&cache->by_use, answer, by_use);
        atomic_fetch_add_explicit(&answer->refs, 1, memory_order_relaxed);
    }
    return answer;
}

/* Returns NULL if the answer is too large, or memory runs out. */
static struct cached_answer *cached_answer_create(const struct response_cache *cache,
                                                  const struct exchange *x,
                                                  const struct cached_model *model)
{
    size_t bytes;
    if (!size_add(sizeof(struct cached_answer), x->answer.size, &bytes) ||
        bytes > cache->max_bytes / 2)
        return NULL;
    struct cached_answer *answer = malloc(bytes);
    if (!answer)
        return NULL;
    *answer = (struct cached_answer){.model = *model,
                                     .image_count = x->image_count,
                                     .made = clock_now(),
                                     .type = x->answer.type,
                                     .json_size = x->answer.json_size,
                                     .size = x->answer.size,
                                     .refs = 1,
                                     .bytes = bytes};
    memcpy(answer->hash, x->cache_key.hash, sizeof answer->hash);
    memcpy(answer->text, x->answer.text, x->answer.size);
    return answer;
}

void response_cache_keep(struct response_cache *cache, const struct exchange *x,
                         const struct cached_model *model)
{
    struct cached_answer *answer = cached_answer_create(cache, x, model);
    if (!answer)
        return;
    LOCK(&cache->lock);
    struct cached_answer *before = cache_find_locked(cache, answer->hash);
    LIST_INSERT_HEAD(bucket_of(cache, answer->hash), answer, bucket);
    TAILQ_INSERT_HEAD(&cache->by_use, answer, by_use);
    if (before)
        cache_remove_locked(cache, before);
    for (cache->bytes += answer->bytes; cache->bytes > cache->max_bytes;
         metric_add(cache->evictions, 1))
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): TAILQ_REMOVE() has unlinked freed answers */
        cache_remove_locked(cache, TAILQ_LAST(&cache->by_use, cached_answers));
    metric_set(cache->used, (double)cache->bytes);
}
