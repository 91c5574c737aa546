/* The images that wait to be prepared, and whose turn is next.
 *
 *     priority 1   client A ─ a a a a a a a a a   B ─ b    A has more than its share: take turns
 *     priority 4   client C ─ c c c   D ─ d d              in order of arrival
 *
 * Within a priority the oldest image goes first, as long as its client has no more than its share:
 * 2 more than twice what the others have on average. Otherwise the clients of that
 * priority take turns, one image each (deficit round robin with equal costs): a client that floods
 * the queue delays only itself. If all clients always took turns, that would be no fairer between
 * equal clients, but waiting times would vary more and more deadlines would be missed
 * (tests/simulate: 5 to 10 % of goodput under overload).
 *
 * Between priorities the image with the least `admitted + priority * QUEUE_AGE_NS` goes first: the
 * more urgent one, unless the other has waited QUEUE_AGE_NS longer for every step between them. So
 * no image starves.
 *
 * Large images, which take long to prepare, have separate lines in each priority, so that a small
 * one can be taken when no more large ones may be.
 *
 * Every operation is O(1); no allocation after queue_init. Not thread-safe: the batcher's. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Urgencies as requests give them: 1 goes first, 8 last, 0 stands for the default. */
#define QUEUE_PRIORITIES       8
#define QUEUE_DEFAULT_PRIORITY 4
#define QUEUE_AGE_NS           INT64_C(250000000)

/* Lines of a client: for each priority one of small and one of large images. */
#define QUEUE_CLASSES ((size_t)2 * QUEUE_PRIORITIES)

#define NO_DEADLINE INT64_MAX

struct queue_client;

/* One image, embedded in what the caller keeps for it. The first part is set by the caller before
 * batcher_admit and unchanged afterwards; the rest is private to batcher and queue. */
struct batch_item {
    void *owner;      /* what the batcher hands out */
    uint64_t client;  /* whose it is; 0: nobody in particular, one client like the others */
    int priority;     /* 0 … QUEUE_PRIORITIES */
    int64_t deadline; /* or NO_DEADLINE */
    size_t bytes;     /* held while it waits in the queue */
    bool is_large;    /* takes long to prepare */

    bool is_queued;
    int64_t admitted, claimed;
    int64_t predicted; /* nanoseconds from admitted to its answer, as foreseen; 0: not known */
    int64_t margin;    /* of that: what earlier predictions taught */
    struct queue_client *line;
    struct batch_item *previous, *next; /* of its client */
    struct batch_item *older, *newer;   /* of its class */
};

struct queue_line {
    struct batch_item *first, *last;
    size_t count;
    struct queue_client *previous, *next; /* whose turn is before and after */
};

struct queue_client {
    uint64_t key;
    size_t count;
    struct queue_client *bucket_next; /* or the next free one */
    struct queue_line lines[QUEUE_CLASSES];
};

struct queue_class {
    struct queue_client *first, *last; /* the turns */
    struct batch_item *oldest, *newest;
    size_t count, clients;
};

struct queue {
    size_t capacity, count, bytes, large; /* large: of count */
    struct queue_class classes[QUEUE_CLASSES];
    struct queue_client *clients; /* capacity of them; the first `touched` have been used */
    size_t touched;
    struct queue_client *free;
    struct queue_client **buckets;
    size_t bucket_mask;
};

/* For at most `capacity` images. False when out of memory; queue_done is fine then too. */
bool queue_init(struct queue *queue, size_t capacity);
void queue_done(struct queue *queue);

/* Adds the item to the line of its client and priority. There must be room (count < capacity). */
void queue_push(struct queue *queue, struct batch_item *item);

/* Takes out the image whose turn it is; NULL when none waits. Large ones only if `takes_large`. */
struct batch_item *queue_pop(struct queue *queue, bool takes_large);

/* Takes out an image that is queued (is_queued). */
void queue_remove(struct queue *queue, struct batch_item *item);

/* Images of a client that wait. */
size_t queue_of_client(const struct queue *queue, uint64_t client);

/* How many that wait now go before a new image of this client and priority, at most: all that are
 * more urgent; of its own priority all, or, where clients take turns, a share of every client. */
size_t queue_ahead(const struct queue *queue, uint64_t client, int priority);
