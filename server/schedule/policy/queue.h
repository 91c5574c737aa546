/* The queue of images that wait to be prepared; it decides which is next.
 *
 *     priority 1   client A ─ a a a a a a a a a   B ─ b    A has more than its share: take turns
 *     priority 4   client C ─ c c c   D ─ d d              in order of arrival
 *
 * Within a priority the oldest image goes first, as long as its client has no more images than its
 * share: twice the average of the other clients, plus 2. Otherwise the clients of that priority
 * take turns, one image each (deficit round robin with equal costs), so that a client that floods
 * the queue delays only itself. A client without images in the queue gets its turn before the
 * client whose image went last gets another turn. Taking turns always would not be fairer to equal
 * clients, but waiting times would vary more, and requests would miss more deadlines
 * (tests/simulate: 5 to 10 % less goodput under overload).
 *
 * Between priorities the image with the lowest `admitted + priority * QUEUE_AGE_NS` goes first.
 * That is the more urgent image, unless the less urgent one has waited QUEUE_AGE_NS longer for
 * each step between their priorities. So no image starves.
 *
 * Large images, which are slow to prepare, have separate lines in each priority, so that small
 * images are still prepared when the limit of large images is reached.
 *
 * Every operation is O(1); no allocation after queue_init(). Not thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

/* The priorities in requests: 1 goes first, 8 goes last, 0 means the default. */
#define QUEUE_PRIORITIES       8
#define QUEUE_DEFAULT_PRIORITY 4
#define QUEUE_AGE_NS           INT64_C(250000000)

/* A client has a line of small and a line of large images for each priority. */
#define QUEUE_CLASSES ((size_t)2 * QUEUE_PRIORITIES)

TAILQ_HEAD(queue_items, batch_item);
TAILQ_HEAD(queue_turns, queue_client);

/* One image, embedded in the caller's struct. The caller sets the first part before batcher_admit()
 * and does not change it afterwards; the rest is private to batcher and queue. */
struct batch_item {
    void *owner;     /* what the batcher returns for this image */
    uint64_t client; /* 0: unknown; all unknown clients count as one */
    int priority;    /* 0 … QUEUE_PRIORITIES */
    size_t bytes;    /* size; counted in queue.bytes while the image is in the queue */
    bool is_large;   /* slow to prepare */

    bool is_queued;
    int64_t admitted, claimed;
    int64_t predicted; /* predicted nanoseconds from admission to its answer; 0: unknown */
    int64_t margin;    /* part of the prediction: a correction learnt from earlier predictions */
    struct queue_client *line;
    TAILQ_ENTRY(batch_item) of_line, of_class;
};

struct queue_line {
    struct queue_items items; /* the oldest first, as in queue_class */
    size_t count;
    TAILQ_ENTRY(queue_client) turn;
};

struct queue_client {
    uint64_t key;
    size_t count;
    struct queue_client *bucket_next; /* in its hash bucket, or in the list of free clients */
    struct queue_line lines[QUEUE_CLASSES];
};

struct queue_class {
    struct queue_turns turns;
    struct queue_client *served; /* client of the image popped last; NULL if it has no images */
    struct queue_items items;
    size_t count, clients;
};

struct queue {
    size_t capacity, count, bytes, large; /* `large`: how many of `count` are large */
    struct queue_class classes[QUEUE_CLASSES];
    struct queue_client *clients; /* an array of `capacity`, used up to `touched` */
    size_t touched;
    struct queue_client *free;
    struct queue_client **buckets;
    size_t bucket_mask;
};

/* Initialises a queue for at most `capacity` images. Returns false when out of memory; queue_done()
 * works then, too. */
bool queue_init(struct queue *queue, size_t capacity);
void queue_done(struct queue *queue);

/* Adds the item to the line of its client and priority. There must be room (count < capacity). */
void queue_push(struct queue *queue, struct batch_item *item);

/* Removes and returns the next image, a large one only if `takes_large`; NULL when none waits. */
struct batch_item *queue_pop(struct queue *queue, bool takes_large);

/* Removes a queued image (is_queued). */
void queue_remove(struct queue *queue, struct batch_item *item);

/* Number of a client's images in the queue. */
size_t queue_of_client(const struct queue *queue, uint64_t client);

/* Estimates how many queued images go before a new image of this client and priority: all images of
 * more urgent priorities, and those of the same priority (if clients take turns, only a share of
 * each client's). Less urgent images that have waited long are not counted. */
size_t queue_ahead(const struct queue *queue, uint64_t client, int priority);
