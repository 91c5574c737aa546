/* Accepts connections, and reads the PROXY headers of those from trusted proxies. */
#include "server/http/transport/proxy_pending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/proxy_header.h"
#include "server/observe/log.h"

struct proxy_pending *proxy_pending_create(const struct trusted_proxies *proxies,
                                           struct metrics *metrics)
{
    struct proxy_pending *proxied = calloc(1, sizeof *proxied);
    if (!proxied)
        return NULL;
    proxied->proxies = proxies;
    proxied->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    proxied->invalid_total = metrics_get(
        metrics, METRIC_COUNTER, "lensd_proxy_headers_invalid_total",
        "Connections from trusted proxies closed because they sent no valid PROXY header.", "");
    if (proxied->epoll_fd >= 0)
        return proxied;
    free(proxied);
    return NULL;
}

void proxy_pending_free(struct proxy_pending *proxied)
{
    if (!proxied)
        return;
    for (size_t i = 0; i < proxied->count; i++)
        close(proxied->sockets[i].fd);
    close(proxied->epoll_fd);
    free(proxied);
}

static void proxy_pending_remove(struct proxy_pending *proxied, size_t at)
{
    (void)epoll_ctl(proxied->epoll_fd, EPOLL_CTL_DEL, proxied->sockets[at].fd, NULL);
    proxied->count--;
    memmove(proxied->sockets + at, proxied->sockets + at + 1,
            (proxied->count - at) * sizeof proxied->sockets[0]);
}

static void proxy_pending_refuse(struct proxy_pending *proxied, size_t at, const char *why)
{
    const int fd = proxied->sockets[at].fd;
    char text[PEER_ADDRESS_MAX];
    trusted_proxies_text(fd, (const struct sockaddr *)&proxied->sockets[at].address, text);
    log_event(LOG_DEBUG, "proxy header", LOG_STR("client", text), LOG_STR("text", why));
    metric_add(proxied->invalid_total, 1);
    proxy_pending_remove(proxied, at);
    close(fd);
}

static void proxy_pending_add(struct proxy_pending *proxied, int fd,
                              const struct sockaddr_storage *address, socklen_t size)
{
    if (proxied->count == PROXY_PENDING_MAX)
        proxy_pending_refuse(proxied, 0, "too many connections wait for a PROXY header");
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.fd = fd};
    if (epoll_ctl(proxied->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        return;
    }
    proxied->sockets[proxied->count++] = (struct proxied_socket){fd, clock_now(), *address, size};
}

bool proxy_pending_accept(struct proxy_pending *proxied, int listen_fd, proxy_pending_take *take,
                          void *context, int64_t *ret_full_until)
{
    struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof address;
    char text[PEER_ADDRESS_MAX];
    const int fd =
        accept4(listen_fd, (struct sockaddr *)&address, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        const bool is_gone = errno == ECONNABORTED || errno == EINTR;
        if (!is_gone && errno != EAGAIN)
            *ret_full_until = clock_now() + ACCEPT_PAUSE_MS * NS_PER_MS;
        return is_gone;
    }
    trusted_proxies_text(fd, (const struct sockaddr *)&address, text);
    if (proxied && trusted_proxies_have(proxied->proxies, text))
        proxy_pending_add(proxied, fd, &address, size);
    else
        take(context, fd, &address, size);
    return true;
}

/* Reads a complete header, but no byte after it: the connection reads the rest. */
static enum proxy_header_state proxy_pending_read(int fd, struct proxy_header *ret)
{
    uint8_t bytes[PROXY_HEADER_MAX];
    /* Do not call recv(): recv_hook.c must note only what libmicrohttpd reads. */
    ssize_t got = recvfrom(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT, NULL, NULL);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return PROXY_HEADER_MORE;
    if (got <= 0)
        return PROXY_HEADER_INVALID;
    const enum proxy_header_state state = proxy_header_parse(bytes, (size_t)got, ret);
    if (state != PROXY_HEADER_WHOLE)
        return state;
    got = recvfrom(fd, bytes, ret->size, MSG_DONTWAIT, NULL, NULL);
    return got == (ssize_t)ret->size ? PROXY_HEADER_WHOLE : PROXY_HEADER_INVALID;
}

static int64_t proxied_deadline(const struct proxy_pending *proxied)
{
    return proxied->sockets[0].since + PROXY_PENDING_MS * NS_PER_MS;
}

void proxy_pending_run(struct proxy_pending *proxied, size_t room, proxy_pending_take *take,
                       void *context)
{
    struct epoll_event events[64];
    struct proxy_header header;
    /* An event does not say which socket has bytes. Read all of them: they are few. */
    const bool is_due =
        epoll_wait(proxied->epoll_fd, events, COUNT_OF(events), 0) > 0 || proxied->has_more;
    proxied->has_more = is_due && room == 0;
    for (size_t i = 0; is_due && i < proxied->count && room > 0;) {
        const struct proxied_socket socket = proxied->sockets[i];
        switch (proxy_pending_read(socket.fd, &header)) {
        case PROXY_HEADER_MORE:
            i++;
            break;
        case PROXY_HEADER_INVALID:
            proxy_pending_refuse(proxied, i, "its first bytes are not a PROXY header");
            break;
        case PROXY_HEADER_WHOLE:
            proxy_pending_remove(proxied, i);
            proxied->has_more = --room == 0;
            if (header.client_size)
                take(context, socket.fd, &header.client, header.client_size);
            else
                take(context, socket.fd, &socket.address, socket.size);
            break;
        }
    }
    /* Check time limits only now, because this thread may be late although the header was not. */
    while (proxied->count && clock_now() >= proxied_deadline(proxied))
        proxy_pending_refuse(proxied, 0, "no PROXY header within 3 s");
}

int proxy_pending_sleep_ms(const struct proxy_pending *proxied, size_t room)
{
    if (!proxied->count)
        return -1;
    if (proxied->has_more && room > 0)
        return 0;
    const int64_t left = (proxied_deadline(proxied) - clock_now()) / NS_PER_MS + 1;
    return left > 0 ? (int)left : 0;
}
