/* Which way of a layer was the fastest, by a hash of all that decides it: the layer, the kind of
 * GPU, driver, cuBLASLt, and this build of the module. As text it outlives the process
 * (engine/cuda/module.h), a line a layer:
 *
 *     b1946ac92492d234 7c6235b4d2611184 3 9
 *
 * the hash, the way, and how many there were: where there are as many as then, they are the same.
 *
 * Whoever can write that text chooses among ways that are all right, nothing more. */
#include "engine/cuda/tuned.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/cuda/module.h"
#include "lensd_version.h"

enum {
    PLACES = 1 << 14, /* of the table; a power of two */
    MOST = PLACES / 2,
    MOST_WAYS = 64,
    LINE_MOST = 64
};

struct tuned {
    struct graph_hash key;
    uint8_t way, count; /* count 0: the place is free */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* guarded by lock, as all below */
static struct tuned *table;
static size_t used, made;

/* The key's place, or the free one where it belongs; NULL without a table. */
static struct tuned *place_locked(const struct graph_hash *key)
{
    if (!table)
        return NULL;
    size_t at = (size_t)key->words[0] % PLACES;
    while (table[at].count && memcmp(&table[at].key, key, sizeof *key) != 0)
        at = (at + 1) % PLACES;
    return &table[at];
}

/* Without memory, or room, it is found out again the next time. */
static bool put_locked(const struct graph_hash *key, int way, int count)
{
    if (!table)
        table = calloc(PLACES, sizeof *table);
    struct tuned *place = place_locked(key);
    if (!place || (!place->count && used == MOST))
        return false;
    used += place->count == 0;
    *place = (struct tuned){*key, (uint8_t)way, (uint8_t)count};
    return true;
}

bool tuned_find(const struct graph_hash *key, int count, int *ret_way)
{
    pthread_mutex_lock(&lock);
    const struct tuned *place = place_locked(key);
    const bool found = place && place->count && place->count == count;
    if (found)
        *ret_way = place->way;
    pthread_mutex_unlock(&lock);
    return found;
}

void tuned_keep(const struct graph_hash *key, int way, int count)
{
    if (way < 0 || way >= count || count > MOST_WAYS)
        return;
    pthread_mutex_lock(&lock);
    made += put_locked(key, way, count);
    pthread_mutex_unlock(&lock);
}

size_t tuned_made(void)
{
    pthread_mutex_lock(&lock);
    const size_t count = made;
    pthread_mutex_unlock(&lock);
    return count;
}

void tuned_forget(void)
{
    pthread_mutex_lock(&lock);
    free(table);
    table = NULL;
    used = 0;
    pthread_mutex_unlock(&lock);
}

/* ---- as text ---- */

char *tuned_text(void)
{
    pthread_mutex_lock(&lock);
    char *text = malloc(used * LINE_MOST + 1);
    size_t at = 0;
    for (size_t i = 0; text && table && i < PLACES; i++)
        if (table[i].count)
            at += (size_t)snprintf(text + at, LINE_MOST, "%016" PRIx64 " %016" PRIx64 " %d %d\n",
                                   table[i].key.words[0], table[i].key.words[1], table[i].way,
                                   table[i].count);
    if (text)
        text[at] = '\0';
    pthread_mutex_unlock(&lock);
    return text;
}

/* One line at `text`; its length with the newline, 0 when it is none. */
static size_t read_line(const char *text, struct tuned *ret)
{
    char line[LINE_MOST];
    struct graph_hash key;
    int way, count, length = 0;
    const char *end = memchr(text, '\n', strnlen(text, sizeof line));
    if (!end)
        return 0;
    /* a copy: sscanf() measures the whole rest of what it is given */
    snprintf(line, sizeof line, "%.*s", (int)(end - text), text);
    /* NOLINTNEXTLINE(cert-err34-c): so few digits always fit */
    if (sscanf(line, "%16" SCNx64 " %16" SCNx64 " %3d %3d%n", &key.words[0], &key.words[1], &way,
               &count, &length) != 4 ||
        line[length] || count < 1 || count > MOST_WAYS || way < 0 || way >= count)
        return 0;
    *ret = (struct tuned){key, (uint8_t)way, (uint8_t)count};
    return (size_t)length + 1;
}

bool tuned_add(const char *text)
{
    struct tuned line;
    size_t length;
    for (const char *at = text; *at; at += length)
        if (!(length = read_line(at, &line)))
            return false;
    pthread_mutex_lock(&lock);
    for (const char *at = text; *at; at += length) {
        length = read_line(at, &line);
        const struct tuned *place = place_locked(&line.key);
        if (!place || !place->count) /* what this process measured itself stays */
            (void)put_locked(&line.key, line.way, line.count);
    }
    pthread_mutex_unlock(&lock);
    return true;
}

/* ---- what decides beside the layer ---- */

static void hash_text(struct graph_hash *hash, const char *text)
{
    graph_hash_bytes(hash, text, strlen(text));
}

/* Another build has other kernels, whatever its version says. */
static void hash_module(struct graph_hash *hash)
{
    Dl_info self;
    struct stat info;
    hash_text(hash, LENSD_VERSION);
    if (!dladdr(&lock, &self) || !self.dli_fname || stat(self.dli_fname, &info) != 0)
        return;
    const int64_t facts[] = {(int64_t)info.st_size, (int64_t)info.st_mtim.tv_sec};
    graph_hash_bytes(hash, facts, sizeof facts);
}

struct graph_hash tuned_device(int device)
{
    struct graph_hash hash = {{0, 0}};
    struct cudaDeviceProp properties;
    int driver = 0;
    hash_module(&hash);
    const cudaError_t result = cudaGetDeviceProperties(&properties, device);
    cuda_ignore(result);
    if (result == cudaSuccess) {
        const int64_t facts[] = {properties.major, properties.minor, properties.multiProcessorCount,
                                 (int64_t)properties.totalGlobalMem};
        hash_text(&hash, properties.name);
        graph_hash_bytes(&hash, facts, sizeof facts);
    }
    cuda_ignore(cudaDriverGetVersion(&driver));
    const int64_t versions[] = {driver, CUDART_VERSION, (int64_t)cublasLtGetVersion()};
    graph_hash_bytes(&hash, versions, sizeof versions);
    return hash;
}
