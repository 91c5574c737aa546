/* Runs HTTP transfers with libcurl's multi interface on an epoll loop. */
#include "tests/load/transfers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define EVENTS      64
#define UPLOAD_SIZE (512L << 10)

struct slot {
    CURL *easy;
    int64_t tag, started;
    struct slot *next_free;
};

struct transfers {
    CURLM *multi;
    int epoll, timer;
    int64_t curl_deadline; /* when libcurl wants to be called; -1: not */
    struct slot *slots, *free;
    int slot_count, running;
};

int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int on_timer(CURLM *multi, long timeout_ms, void *context)
{
    (void)multi;
    struct transfers *t = context;
    t->curl_deadline = timeout_ms < 0 ? -1 : now_us() + (int64_t)timeout_ms * 1000;
    return 0;
}

/* libcurl says which sockets it waits for. The pointer it keeps for us marks those that epoll has.
 */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *context, void *known)
{
    (void)easy;
    struct transfers *t = context;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(t->epoll, EPOLL_CTL_DEL, fd, NULL);
        curl_multi_assign(t->multi, fd, NULL);
        return 0;
    }
    struct epoll_event event = {.data.fd = fd};
    if (what != CURL_POLL_OUT)
        event.events |= EPOLLIN;
    if (what != CURL_POLL_IN)
        event.events |= EPOLLOUT;
    if (epoll_ctl(t->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0 &&
        epoll_ctl(t->epoll, known ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) != 0)
        return -1;
    curl_multi_assign(t->multi, fd, t);
    return 0;
}

static size_t discard(char *data, size_t size, size_t count, void *context)
{
    (void)data;
    (void)context;
    return size * count;
}

static CURL *make_easy(const struct transfers_options *options, struct slot *slot)
{
    CURL *easy = curl_easy_init();
    if (!easy)
        return NULL;
    bool ok = curl_easy_setopt(easy, CURLOPT_URL, options->url) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_INTERFACE, options->source) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_PRIVATE, slot) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, discard) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_NOPROXY, "*") == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1) == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK;
    ok = ok && curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, UPLOAD_SIZE) == CURLE_OK;
    ok = ok &&
         curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(options->timeout_us / 1000)) == CURLE_OK;
    if (ok && options->insecure) {
        ok = curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK;
        ok = ok && curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
    }
    if (!ok) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

struct transfers *transfers_create(const struct transfers_options *options)
{
    struct transfers *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->curl_deadline = -1;
    t->multi = curl_multi_init();
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    t->slots = calloc((size_t)options->slots, sizeof *t->slots);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = t->timer};
    bool ok = t->multi && t->slots && t->epoll >= 0 && t->timer >= 0 &&
              epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->timer, &event) == 0;
    for (int i = 0; ok && i < options->slots; i++) {
        struct slot *slot = &t->slots[i];
        slot->easy = make_easy(options, slot);
        slot->next_free = t->free;
        t->free = slot;
        t->slot_count++;
        ok = slot->easy != NULL;
    }
    if (!ok) {
        fprintf(stderr, "loadgen: cannot prepare %d transfers: %s\n", options->slots,
                strerror(errno));
        transfers_free(t);
        return NULL;
    }
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(t->multi, CURLMOPT_SOCKETDATA, t);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(t->multi, CURLMOPT_TIMERDATA, t);
    curl_multi_setopt(t->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    curl_multi_setopt(t->multi, CURLMOPT_MAXCONNECTS, (long)options->slots);
    return t;
}

void transfers_free(struct transfers *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->slot_count; i++) {
        if (!t->slots[i].easy)
            continue;
        curl_multi_remove_handle(t->multi, t->slots[i].easy);
        curl_easy_cleanup(t->slots[i].easy);
    }
    if (t->multi)
        curl_multi_cleanup(t->multi);
    if (t->timer >= 0)
        close(t->timer);
    if (t->epoll >= 0)
        close(t->epoll);
    free(t->slots);
    free(t);
}

int transfers_running(const struct transfers *t)
{
    return t->running;
}

bool transfers_start(struct transfers *t, const struct request_body *body, int64_t tag)
{
    struct slot *slot = t->free;
    if (!slot)
        return false;
    t->free = slot->next_free;
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDS, body->data);
    curl_easy_setopt(slot->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->size);
    curl_easy_setopt(slot->easy, CURLOPT_HTTPHEADER, body->headers);
    slot->tag = tag;
    slot->started = now_us();
    t->running++;
    curl_multi_add_handle(t->multi, slot->easy);
    return true;
}

static void collect(struct transfers *t,
                    void (*on_done)(void *context, const struct outcome *outcome), void *context)
{
    CURLMsg *message;
    int left;
    while ((message = curl_multi_info_read(t->multi, &left))) {
        if (message->msg != CURLMSG_DONE)
            continue;
        /* The message dies with the handle's removal. */
        CURL *easy = message->easy_handle;
        struct outcome outcome = {.ended = now_us(), .code = message->data.result};
        char *private = NULL;
        curl_off_t received = 0;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
        curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &outcome.status);
        curl_easy_getinfo(easy, CURLINFO_SIZE_DOWNLOAD_T, &received);
        curl_easy_getinfo(easy, CURLINFO_NUM_CONNECTS, &outcome.connections);
        struct slot *slot = (struct slot *)(void *)private;
        outcome.received = (uint64_t)received;
        outcome.tag = slot->tag;
        outcome.started = slot->started;
        curl_multi_remove_handle(t->multi, easy);
        slot->next_free = t->free;
        t->free = slot;
        t->running--;
        on_done(context, &outcome);
    }
}

/* Sleeps until the deadline or an event; hands libcurl its sockets. */
static bool pump(struct transfers *t, int64_t deadline)
{
    struct epoll_event events[EVENTS];
    int running, timeout = -1;
    if (deadline <= now_us()) {
        timeout = 0;
    } else {
        struct itimerspec at = {
            .it_value = {.tv_sec = deadline / 1000000, .tv_nsec = (deadline % 1000000) * 1000}};
        timerfd_settime(t->timer, TFD_TIMER_ABSTIME, &at, NULL);
    }
    int count = epoll_wait(t->epoll, events, EVENTS, timeout);
    if (count < 0 && errno != EINTR) {
        fprintf(stderr, "loadgen: epoll_wait: %s\n", strerror(errno));
        return false;
    }
    for (int i = 0; i < count; i++) {
        uint64_t expirations;
        if (events[i].data.fd == t->timer) {
            /* Level-triggered: read, or the next wait would return at once. */
            if (read(t->timer, &expirations, sizeof expirations) < 0 && errno != EAGAIN)
                return false;
            continue;
        }
        int flags = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                    (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                    (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(t->multi, events[i].data.fd, flags, &running);
    }
    return true;
}

bool transfers_wait(struct transfers *t, int64_t deadline,
                    void (*on_done)(void *context, const struct outcome *outcome), void *context)
{
    int running;
    if (t->curl_deadline >= 0 && t->curl_deadline < deadline)
        deadline = t->curl_deadline;
    if (!pump(t, deadline))
        return false;
    if (t->curl_deadline >= 0 && t->curl_deadline <= now_us()) {
        t->curl_deadline = -1;
        curl_multi_socket_action(t->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    collect(t, on_done, context);
    return true;
}
