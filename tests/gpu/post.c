/* A client that keeps a server busy: as many connections as asked for, each on a thread of its own,
 * posting one file to /predict as soon as the last answer is there. Needs nothing but the C
 * library, so that it runs wherever a bundle is taken.
 *
 *     lensd_post PORT SECONDS CONNECTIONS FILE...
 *
 * Connection i sends file i modulo their number, to 127.0.0.1. Prints a line of JSON: answers of
 * status 200 per second, latency percentiles in milliseconds, other answers, broken connections. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"

enum { MAX_CONNECTIONS = 1024, ANSWER = 64 * 1024, BINS = 32768, BIN_US = 100, PATIENCE_S = 30 };

struct message {
    char *data; /* header and body of a request */
    size_t size;
};

struct client {
    pthread_t thread;
    const struct message *message;
    uint16_t port;
    uint64_t bins[BINS]; /* latencies by 100 µs; the last one has what is beyond */
    uint64_t good, other, broken;
};

static atomic_bool ended;

static bool send_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        size -= (size_t)n;
    }
    return true;
}

/* Reads a whole answer with a Content-Length; its status, or 0. */
static int read_answer(int fd, char *buffer)
{
    size_t have = 0, whole = 0;
    int status = 0;
    while (!whole || have < whole) {
        if (have >= ANSWER - 1)
            return 0;
        ssize_t n = recv(fd, buffer + have, ANSWER - 1 - have, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return 0;
        have += (size_t)n;
        buffer[have] = '\0';
        const char *end = whole ? NULL : strstr(buffer, "\r\n\r\n");
        const char *length = end ? strcasestr(buffer, "\r\ncontent-length:") : NULL;
        if (!end)
            continue;
        if (!length || length > end || strncmp(buffer, "HTTP/1.1 ", 9) != 0)
            return 0;
        status = (int)strtol(buffer + 9, NULL, 10);
        unsigned long body = strtoul(length + 17, NULL, 10);
        if (body > ANSWER)
            return 0;
        whole = (size_t)(end + 4 - buffer) + body;
    }
    return status;
}

static int open_connection(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void *run_client(void *context)
{
    struct client *client = context;
    char *buffer = malloc(ANSWER);
    int fd = -1;
    while (buffer && !ended) {
        if (fd < 0 && (fd = open_connection(client->port)) < 0) {
            client->broken++;
            usleep(10000);
            continue;
        }
        const int64_t start = clock_now();
        int status = send_all(fd, client->message->data, client->message->size)
                         ? read_answer(fd, buffer)
                         : 0;
        const int64_t bin = (clock_now() - start) / (BIN_US * 1000);
        client->good += status == 200;
        client->other += status != 200 && status != 0;
        client->broken += status == 0;
        if (status == 200)
            client->bins[bin < BINS ? bin : BINS - 1]++;
        if (status == 0) {
            close(fd);
            fd = -1;
        }
    }
    if (fd >= 0)
        close(fd);
    free(buffer);
    return NULL;
}

static bool read_message(const char *path, struct message *ret)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    if (!file || fstat(fileno(file), &info) != 0 || info.st_size <= 0 || info.st_size > 1 << 26) {
        fprintf(stderr, "lensd_post: %s cannot be read, is empty, or is larger than 64 MiB\n",
                path);
        if (file)
            fclose(file);
        return false;
    }
    const size_t room = (size_t)info.st_size + 256;
    ret->data = malloc(room);
    bool ok = ret->data != NULL;
    if (ok) {
        int header = snprintf(ret->data, room,
                              "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                              "image/jpeg\r\nContent-Length: %lld\r\n\r\n",
                              (long long)info.st_size);
        ret->size = (size_t)header + (size_t)info.st_size;
        ok = fread(ret->data + header, 1, (size_t)info.st_size, file) == (size_t)info.st_size;
    }
    fclose(file);
    return ok;
}

/* The latency below which `share` of the answers are, in milliseconds. */
static double percentile(const uint64_t *bins, uint64_t total, double share)
{
    uint64_t sum = 0;
    size_t i = 0;
    while (i < BINS - 1 && (double)(sum += bins[i]) < share * (double)total)
        i++;
    return (double)(i + 1) * BIN_US * 1e-3;
}

static void report(struct client *clients, long count, double seconds)
{
    struct client sum = {0};
    for (long i = 0; i < count; i++) {
        sum.good += clients[i].good;
        sum.other += clients[i].other;
        sum.broken += clients[i].broken;
        for (size_t b = 0; b < BINS; b++)
            sum.bins[b] += clients[i].bins[b];
    }
    printf("{\"rate\": %.2f, \"p50_ms\": %.2f, \"p99_ms\": %.2f, \"good\": %llu, \"other\": %llu, "
           "\"broken\": %llu, \"seconds\": %.3f}\n",
           (double)sum.good / seconds, percentile(sum.bins, sum.good, 0.50),
           percentile(sum.bins, sum.good, 0.99), (unsigned long long)sum.good,
           (unsigned long long)sum.other, (unsigned long long)sum.broken, seconds);
}

static bool parse_number(const char *text, long most, long *ret)
{
    char *end;
    errno = 0;
    *ret = strtol(text, &end, 10);
    return !errno && end != text && !*end && *ret >= 1 && *ret <= most;
}

int main(int argc, char **argv)
{
    long port, seconds, count;
    if (argc < 5 || !parse_number(argv[1], 65535, &port) || !parse_number(argv[2], 600, &seconds) ||
        !parse_number(argv[3], MAX_CONNECTIONS, &count)) {
        fprintf(stderr, "usage: lensd_post PORT SECONDS CONNECTIONS FILE...\n");
        return 2;
    }
    const size_t files = (size_t)argc - 4;
    struct message *messages = alloc_array(files, sizeof *messages);
    struct client *clients = alloc_array((size_t)count, sizeof *clients);
    bool ok = messages && clients;
    for (size_t i = 0; ok && i < files; i++)
        ok = read_message(argv[4 + i], &messages[i]);
    long started = 0;
    const int64_t start = clock_now();
    for (; ok && started < count; started++) {
        clients[started].port = (uint16_t)port;
        clients[started].message = &messages[(size_t)started % files];
        ok = pthread_create(&clients[started].thread, NULL, run_client, &clients[started]) == 0;
        if (!ok)
            break;
    }
    if (ok)
        sleep((unsigned)seconds);
    const double took = (double)(clock_now() - start) * 1e-9;
    ended = true;
    for (long i = 0; i < started; i++)
        pthread_join(clients[i].thread, NULL);
    if (ok)
        report(clients, count, took);
    for (size_t i = 0; messages && i < files; i++)
        free(messages[i].data);
    free(messages);
    free(clients);
    return ok ? 0 : 1;
}
