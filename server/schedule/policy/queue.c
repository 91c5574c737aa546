/* Chooses the next image to prepare, in constant time. */
#include "server/schedule/policy/queue.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/size.h"

bool queue_init(struct queue *queue, size_t capacity)
{
    *queue = (struct queue){.capacity = capacity};
    size_t buckets = 16;
    while (buckets < capacity && buckets < 65536)
        buckets *= 2;
    queue->bucket_mask = buckets - 1;
    queue->clients = alloc_array(capacity, sizeof *queue->clients);
    queue->buckets = alloc_array(buckets, sizeof *queue->buckets);
    for (size_t c = 0; c < QUEUE_CLASSES; c++) {
        TAILQ_INIT(&queue->classes[c].turns);
        TAILQ_INIT(&queue->classes[c].items);
    }
    return queue->clients && queue->buckets;
}

void queue_done(struct queue *queue)
{
    FREE_ALL(queue->clients, queue->buckets);
}

static size_t class_of(int priority, bool is_large)
{
    assert(priority >= 0 && priority <= QUEUE_PRIORITIES);
    return 2 * ((size_t)(priority > 0 ? priority : QUEUE_DEFAULT_PRIORITY) - 1) + is_large;
}

static struct queue_client **bucket_of(const struct queue *queue, uint64_t key)
{
    /* The multiplication spreads keys that clients have chosen badly. */
    key *= 0x9E3779B97F4A7C15u;
    return &queue->buckets[(key >> 32) & queue->bucket_mask];
}

static struct queue_client *client_find(const struct queue *queue, uint64_t key)
{
    struct queue_client *client = *bucket_of(queue, key);
    while (client && client->key != key)
        client = client->bucket_next;
    return client;
}

static struct queue_client *line_enter(struct queue *queue, uint64_t key)
{
    struct queue_client *client = client_find(queue, key);
    if (client)
        return client;
    client = queue->free;
    if (client)
        queue->free = client->bucket_next;
    else
        client = &queue->clients[queue->touched++];
    assert(queue->touched <= queue->capacity);
    struct queue_client **bucket = bucket_of(queue, key);
    *client = (struct queue_client){.key = key, .bucket_next = *bucket};
    for (size_t c = 0; c < QUEUE_CLASSES; c++)
        TAILQ_INIT(&client->lines[c].items);
    *bucket = client;
    return client;
}

static void leave(struct queue *queue, struct queue_client *client)
{
    struct queue_client **link = bucket_of(queue, client->key);
    while (*link != client)
        link = &(*link)->bucket_next;
    *link = client->bucket_next;
    client->bucket_next = queue->free;
    queue->free = client;
}

/* Adds a turn of `client` before the turn of `next`, or last if `next` is NULL. */
static void insert_turn(struct queue_class *class, struct queue_client *client,
                        struct queue_client *next, size_t c)
{
    if (next)
        TAILQ_INSERT_BEFORE(next, client, lines[c].turn);
    else
        TAILQ_INSERT_TAIL(&class->turns, client, lines[c].turn);
    class->clients++;
}

static void remove_turn(struct queue_class *class, const struct queue_client *client, size_t c)
{
    TAILQ_REMOVE(&class->turns, client, lines[c].turn);
    if (class->served == client)
        class->served = NULL;
    class->clients--;
}

void queue_push(struct queue *queue, struct batch_item *item)
{
    assert(queue->count < queue->capacity && !item->is_queued);
    size_t c = class_of(item->priority, item->is_large);
    struct queue_class *class = &queue->classes[c];
    struct queue_client *client = line_enter(queue, item->client);
    struct queue_line *line = &client->lines[c];
    if (line->count == 0)
        insert_turn(class, client, class->served, c);
    item->line = client;
    TAILQ_INSERT_TAIL(&line->items, item, of_line);
    TAILQ_INSERT_TAIL(&class->items, item, of_class);
    item->is_queued = true;
    line->count++;
    client->count++;
    class->count++;
    queue->count++;
    queue->large += item->is_large;
    queue->bytes += item->bytes;
}

void queue_remove(struct queue *queue, struct batch_item *item)
{
    assert(item->is_queued);
    size_t c = class_of(item->priority, item->is_large);
    struct queue_class *class = &queue->classes[c];
    struct queue_client *client = item->line;
    struct queue_line *line = &client->lines[c];
    TAILQ_REMOVE(&line->items, item, of_line);
    TAILQ_REMOVE(&class->items, item, of_class);
    item->is_queued = false;
    item->line = NULL;
    line->count--;
    client->count--;
    class->count--;
    queue->count--;
    queue->large -= item->is_large;
    queue->bytes -= item->bytes;
    if (line->count == 0)
        remove_turn(class, client, c);
    if (client->count == 0)
        leave(queue, client);
}

/* True if clients take turns: if the client of the oldest image has over twice as many images as
 * the others on average, plus 2. */
static bool takes_turns(const struct queue_class *class, size_t c)
{
    if (class->clients < 2)
        return false;
    size_t count = TAILQ_FIRST(&class->items)->line->lines[c].count, others = class->count - count;
    return count > 2 * others / (class->clients - 1) + 2;
}

struct batch_item *queue_pop(struct queue *queue, bool takes_large)
{
    struct batch_item *next = NULL;
    int64_t least = 0;
    size_t chosen = 0;
    for (size_t c = 0; c < QUEUE_CLASSES; c++) {
        const struct queue_class *class = &queue->classes[c];
        if (class->count == 0 || (c % 2 && !takes_large))
            continue;
        struct batch_item *item = TAILQ_FIRST(
            takes_turns(class, c) ? &TAILQ_FIRST(&class->turns)->lines[c].items : &class->items);
        int64_t key = item->admitted + (int64_t)(c / 2) * QUEUE_AGE_NS;
        if (!next || key < least) {
            next = item;
            least = key;
            chosen = c;
        }
    }
    if (!next)
        return NULL;
    struct queue_class *class = &queue->classes[chosen];
    struct queue_client *client = next->line;
    bool goes_on = client->lines[chosen].count > 1;
    queue_remove(queue, next);
    class->served = NULL;
    if (goes_on) { /* the client's next turn comes after those of all other clients */
        remove_turn(class, client, chosen);
        insert_turn(class, client, NULL, chosen);
        class->served = client;
    }
    return next;
}

size_t queue_of_client(const struct queue *queue, uint64_t client)
{
    const struct queue_client *found = client_find(queue, client);
    return found ? found->count : 0;
}

/* Number of waiting images in a class that go before a new one of this client. */
static size_t ahead_in_class(const struct queue_class *class, const struct queue_client *client,
                             size_t c)
{
    if (class->count == 0 || !takes_turns(class, c))
        return class->count;
    size_t own = client ? client->lines[c].count : 0;
    size_t others = class->clients - (own > 0), theirs = class->count - own, share;
    if (!size_mul(others, own + 1, &share) || share > theirs)
        share = theirs;
    return own + share;
}

size_t queue_ahead(const struct queue *queue, uint64_t client, int priority)
{
    const struct queue_client *found = client_find(queue, client);
    const size_t small = class_of(priority, false), large = class_of(priority, true);
    size_t ahead = 0;
    for (size_t c = 0; c < small; c++)
        ahead += queue->classes[c].count;
    return ahead + ahead_in_class(&queue->classes[small], found, small) +
           ahead_in_class(&queue->classes[large], found, large);
}
