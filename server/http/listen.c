#include "server/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024

static enum status cannot_listen(const char *host, int port, int cause, struct error *err)
{
    switch (cause) {
    case EADDRINUSE:
        return error_set(err, STATUS_CONFIG,
                         "port %d on %s is in use by another program; stop it, or choose another "
                         "port with --port (0: any free one)",
                         port, host);
    case EACCES:
        return error_set(err, STATUS_CONFIG,
                         "not allowed to listen on port %d; choose one from 1024 on with --port",
                         port);
    case EADDRNOTAVAIL:
        return error_set(err, STATUS_CONFIG,
                         "this machine has no address %s; choose another with --host (127.0.0.1: "
                         "this machine only, 0.0.0.0: all addresses)",
                         host);
    default:
        return error_set(err, STATUS_CONFIG, "cannot listen on %s port %d: %s", host, port,
                         strerror(cause));
    }
}

static int open_socket(const struct addrinfo *address)
{
    int one = 1, zero = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* Addresses of connections that ended a moment ago do not block a restart; a second server on
     * the same port is still refused. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

/* The port that was really bound, and an address clients on this machine can use. */
static int describe(int fd, const char *host, char *url, size_t url_size)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof bound;
    char name[128];
    snprintf(name, sizeof name, strchr(host, ':') ? "[%s]" : "%s", host);
    int port = 0;
    if (getsockname(fd, (struct sockaddr *)&bound, &size) == 0) {
        if (bound.ss_family == AF_INET) {
            const struct sockaddr_in *v4 = (const void *)&bound;
            port = ntohs(v4->sin_port);
            if (v4->sin_addr.s_addr == htonl(INADDR_ANY))
                snprintf(name, sizeof name, "127.0.0.1");
        } else {
            const struct sockaddr_in6 *v6 = (const void *)&bound;
            port = ntohs(v6->sin6_port);
            if (IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
                snprintf(name, sizeof name, "[::1]");
        }
    }
    snprintf(url, url_size, "http://%s:%d", name, port);
    return port;
}

enum status listen_open(const char *host, int port, int *ret_fd, int *ret_port, char *url,
                        size_t url_size, struct error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    int failure = getaddrinfo(host, service, &hints, &found);
    if (failure)
        return error_set(err, STATUS_CONFIG,
                         "'%.100s' is not an address of this machine (%s); use --host 127.0.0.1 or "
                         "0.0.0.0",
                         host, gai_strerror(failure));
    int fd = -1, cause = 0;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = open_socket(a);
        cause = errno;
    }
    freeaddrinfo(found);
    if (fd < 0)
        return cannot_listen(host, port, cause, err);
    *ret_port = describe(fd, host, url, url_size);
    *ret_fd = fd;
    return STATUS_OK;
}

bool listen_stop(int fd)
{
    /* Classic BPF over the TCP header: its 14th byte holds the flags. Dropped: SYN without ACK. */
    struct sock_filter program[] = {
        {BPF_LD | BPF_B | BPF_ABS, 0, 0, 13},    {BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x12},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0x02}, {BPF_RET | BPF_K, 0, 0, 0},
        {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}
