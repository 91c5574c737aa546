/* Opens the listening TCP or Unix socket, and stops accepting without losing a client. */
#include "server/http/transport/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "server/http/transport/server.h"

#define BACKLOG 1024

static enum status cannot_listen(const struct listen_place *place, int cause, struct error *err)
{
    const char *host = place->options->host;
    const int port = place->port;
    switch (cause) {
    case EADDRINUSE:
        return error_set(
            err, STATUS_NOT_READY,
            "port %d on %s is in use by another program; stop it, or choose another port with %s",
            port, host, place->option);
    case EACCES:
        return error_set(err, STATUS_CONFIG,
                         "not allowed to listen on port %d; choose 1024 or higher with %s", port,
                         place->option);
    case EADDRNOTAVAIL: /* an interface may get its address later */
        return error_set(err, STATUS_NOT_READY,
                         "this machine has no address %s; choose another with --host (127.0.0.1: "
                         "this machine only, 0.0.0.0: all addresses)",
                         host);
    case EMFILE:
        return error_set(
            err, STATUS_CONFIG,
            "cannot listen on %s port %d: %s; raise the limit of open files (ulimit -n)", host,
            port, strerror(cause));
    default:
        return error_set(err, STATUS_CONFIG, "cannot listen on %s port %d: %s", host, port,
                         strerror(cause));
    }
}

/* Opens and binds a socket, and listens if `listens`: a client can connect only to a socket that
 * listens. On failure returns -1 and sets errno. */
static int listen_open_socket(const struct addrinfo *address, bool listens)
{
    int one = 1, zero = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    /* Lets a new process bind although connections of an earlier process linger. A second server on
     * the port is still refused. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (address->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 &&
        (!listens || listen(fd, BACKLOG) == 0))
        return fd;
    int cause = errno;
    close(fd);
    errno = cause;
    return -1;
}

/* Finds the address that was bound, and a URL for clients on this machine. `host` NULL: unknown. */
static void listen_describe(const char *host, bool tls, struct listener *listener)
{
    const char *scheme = tls ? "https" : "http";
    struct sockaddr_storage bound = {.ss_family = AF_UNSPEC};
    socklen_t size = sizeof bound;
    char address[NI_MAXHOST] = "localhost", port[8] = "0";
    (void)getsockname(listener->fd, (struct sockaddr *)&bound, &size);
    if (bound.ss_family == AF_UNIX) {
        const struct sockaddr_un *path = (const void *)&bound;
        snprintf(listener->url, sizeof listener->url, "%s://localhost", scheme);
        snprintf(listener->where, sizeof listener->where, "unix:%.*s", (int)sizeof path->sun_path,
                 path->sun_path);
        return;
    }
    (void)getnameinfo((struct sockaddr *)&bound, size, address, sizeof address, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    listener->port = (int)strtol(port, NULL, 10);
    listener->is_loopback = !strncmp(address, "127.", 4) || !strcmp(address, "::1");
    const char *name = !strcmp(address, "0.0.0.0") ? "127.0.0.1"
                       : !strcmp(address, "::")    ? "::1"
                       : host                      ? host
                                                   : address;
    snprintf(listener->url, sizeof listener->url,
             strchr(name, ':') ? "%s://[%.256s]:%d" : "%s://%.256s:%d", scheme, name,
             listener->port);
    memcpy(listener->where, listener->url, sizeof listener->where);
}

/* Binds the first address that works. If none does, *ret_fd is -1 and *ret_cause says why. */
static enum status bind_port(const struct listen_place *place, bool listens, int *ret_fd,
                             int *ret_cause, struct error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", place->port);
    int failure = getaddrinfo(place->options->host, service, &hints, &found);
    if (failure)
        return error_set(
            err, STATUS_CONFIG,
            "'%.100s' is not an address of this machine (%s); use --host 127.0.0.1 or 0.0.0.0",
            place->options->host, gai_strerror(failure));
    *ret_fd = -1;
    *ret_cause = 0;
    for (const struct addrinfo *a = found; a && *ret_fd < 0; a = a->ai_next) {
        *ret_fd = listen_open_socket(a, listens);
        *ret_cause = errno;
    }
    freeaddrinfo(found);
    return STATUS_OK;
}

static enum status open_port(const struct listen_place *place, struct listener *listener,
                             struct error *err)
{
    int cause;
    TRY(bind_port(place, true, &listener->fd, &cause, err));
    if (listener->fd < 0)
        return cannot_listen(place, cause, err);
    listen_describe(place->options->host, place->options->tls_cert, listener);
    return STATUS_OK;
}

/* ---- Unix sockets ---- */

static enum status fill_address(const char *path, const char *option, struct sockaddr_un *ret,
                                struct error *err)
{
    size_t length = strlen(path);
    if (length >= sizeof ret->sun_path)
        return error_set(err, STATUS_CONFIG,
                         "the path of %s has %zu bytes; that of a socket has at most %zu", option,
                         length, sizeof ret->sun_path - 1);
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(ret->sun_path, path, length + 1);
    return STATUS_OK;
}

static enum status no_socket(const char *path, const char *option, struct error *err)
{
    return error_set(err, STATUS_CONFIG,
                     "'%s' exists and is not a socket; choose another path with %s", path, option);
}

enum status listen_clear_path(const char *path, const char *option, struct error *err)
{
    struct stat there;
    struct sockaddr_un address;
    TRY(fill_address(path, option, &address, err));
    if (lstat(path, &there) != 0)
        return STATUS_OK; /* bind() reports other errors */
    if (!S_ISSOCK(there.st_mode))
        return no_socket(path, option, err);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale = fd >= 0 && connect(fd, (const void *)&address, sizeof address) != 0 &&
                 errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    if (!stale)
        return error_set(err, STATUS_NOT_READY,
                         "another program listens on '%s'; stop it, or choose another path with %s",
                         path, option);
    if (unlink(path) != 0)
        return error_set(err, STATUS_CONFIG, "cannot remove the old socket '%s': %s", path,
                         strerror(errno));
    return STATUS_OK;
}

static bool bind_path(int fd, const struct sockaddr_un *address, unsigned mode)
{
    /* fchmod() before bind() limits the mode of the file: it is never wider than requested. chmod()
     * afterwards restores the bits that umask removed. */
    return fchmod(fd, mode) == 0 && bind(fd, (const void *)address, sizeof *address) == 0 &&
           chmod(address->sun_path, mode) == 0 && listen(fd, BACKLOG) == 0;
}

static enum status open_path(const struct http_options *options, struct listener *listener,
                             struct error *err)
{
    struct sockaddr_un address;
    struct stat made;
    TRY(fill_address(options->unix_path, "--unix", &address, err));
    TRY(listen_clear_path(options->unix_path, "--unix", err));
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0 || !bind_path(listener->fd, &address, options->unix_mode))
        return error_set(err, STATUS_CONFIG, "cannot listen on --unix '%s': %s", options->unix_path,
                         strerror(errno));
    memcpy(listener->path, address.sun_path, sizeof listener->path);
    if (stat(listener->path, &made) == 0) {
        listener->device = made.st_dev;
        listener->inode = made.st_ino;
    }
    listen_describe(NULL, options->tls_cert, listener);
    return STATUS_OK;
}

void listen_remove(struct listener *listener)
{
    struct stat there;
    if (listener->path[0] && lstat(listener->path, &there) == 0 &&
        there.st_dev == listener->device && there.st_ino == listener->inode)
        (void)unlink(listener->path);
    listener->path[0] = '\0';
}

/* ---- a socket from a supervisor ---- */

#define PASSED_FD 3 /* the first descriptor of LISTEN_FDS */

/* Returns how many sockets were passed to this process, and clears the variables. Returns 0 if the
 * variables are for another process, such as the parent. */
static long count_passed(void)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    const long passed =
        pid && count && strtol(pid, NULL, 10) == (long)getpid() ? strtol(count, NULL, 10) : 0;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return passed;
}

static bool is_listening(int fd)
{
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens;
}

enum status listen_take_passed(bool tls, struct listener *ret, struct error *err)
{
    const long count = count_passed();
    if (count == 0)
        return STATUS_OK;
    if (count != 1)
        return error_set(
            err, STATUS_CONFIG,
            "LISTEN_FDS is %ld; lensd takes one socket: keep one Listen line in the socket unit",
            count);
    if (!is_listening(PASSED_FD) || fcntl(PASSED_FD, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(PASSED_FD, F_SETFL, O_NONBLOCK) != 0)
        return error_set(err, STATUS_CONFIG,
                         "the passed socket (LISTEN_FDS, descriptor %d) does not listen for "
                         "streams; use ListenStream= and Accept=no in the socket unit",
                         PASSED_FD);
    *ret = (struct listener){.fd = PASSED_FD, .is_passed = true};
    listen_describe(NULL, tls, ret);
    return STATUS_OK;
}

/* ---- all listeners ---- */

static bool is_unix(const struct listen_place *place)
{
    return place->options->unix_path && !strcmp(place->option, "--port");
}

enum status listen_open(const struct listen_place *place, struct listener *ret, struct error *err)
{
    struct listener listener = {.fd = -1};
    enum status status = is_unix(place) ? open_path(place->options, &listener, err)
                                        : open_port(place, &listener, err);
    if (status == STATUS_OK)
        *ret = listener;
    else if (listener.fd >= 0)
        close(listener.fd);
    return status;
}

static enum status check_port(const struct listen_place *place, char *warning, size_t size,
                              struct error *err)
{
    int fd, cause;
    TRY(bind_port(place, false, &fd, &cause, err));
    if (fd >= 0)
        close(fd);
    else if (cause == EADDRINUSE)
        snprintf(warning, size,
                 "port %d on %.200s is in use; ignore this if that is the running server with "
                 "these settings, else stop that program or choose another %s",
                 place->port, place->options->host, place->option);
    else
        return cannot_listen(place, cause, err);
    return STATUS_OK;
}

enum status listen_check_path(const char *path, const char *option, struct error *err)
{
    struct sockaddr_un address;
    struct stat there;
    TRY(fill_address(path, option, &address, err));
    if (lstat(path, &there) == 0)
        return S_ISSOCK(there.st_mode) ? STATUS_OK : no_socket(path, option, err);
    char folder[PATH_MAX];
    path_folder(address.sun_path, folder);
    if (access(folder, W_OK | X_OK) != 0)
        return error_set(err, STATUS_CONFIG, "cannot listen on %s '%s': %s", option, path,
                         strerror(errno));
    return STATUS_OK;
}

enum status listen_check(const struct listen_place *place, char *warning, size_t size,
                         struct error *err)
{
    warning[0] = '\0';
    return is_unix(place) ? listen_check_path(place->options->unix_path, "--unix", err)
                          : check_port(place, warning, size, err);
}

bool listen_stop(struct listener *listener)
{
    /* Classic BPF on the TCP header: its 14th byte holds the flags. Drops SYN without ACK. */
    struct sock_filter program[] = {
        {BPF_LD | BPF_B | BPF_ABS, 0, 0, 13},    {BPF_ALU | BPF_AND | BPF_K, 0, 0, 0x12},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0x02}, {BPF_RET | BPF_K, 0, 0, 0},
        {BPF_RET | BPF_K, 0, 0, UINT32_MAX},
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (listener->path[0]) {
        listen_remove(listener);
        return true;
    }
    if (setsockopt(listener->fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0)
        return true;
    /* Some kernels refuse filters to a process without privileges. Then drop packets with a hop
     * limit below 255, which systems do not use by default. An IPv6 socket needs both limits
     * because it may accept IPv4, too. */
    const int hops = 255;
    const bool is_ipv6 =
        setsockopt(listener->fd, IPPROTO_IPV6, IPV6_MINHOPCOUNT, &hops, sizeof hops) == 0;
    return setsockopt(listener->fd, IPPROTO_IP, IP_MINTTL, &hops, sizeof hops) == 0 || is_ipv6;
}
