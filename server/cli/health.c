/* lensd health: asks a running daemon whether it is ready. Container images without a shell or curl
 * use it in HEALTHCHECK lines. It sends one request over one connection, with a time limit. */
#include <errno.h>
#include <gnutls/gnutls.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "server/cli/commands.h"

#define HEALTH_TIMEOUT_S 3
#define KEY_MAX          256 /* bytes of a key */

/* Returns a socket that is connected to one of the addresses; -1 with errno if there is none. */
static int connect_any(const struct addrinfo *list)
{
    const struct timeval limit = {.tv_sec = HEALTH_TIMEOUT_S};
    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
            connect(fd, at->ai_addr, at->ai_addrlen) == 0)
            return fd;
        const int cause = errno;
        if (fd >= 0)
            close(fd);
        errno = cause;
    }
    return -1;
}

/* Connects to the Unix socket `path`, or to host and port if `path` is NULL. Returns the socket, or
 * -1 with an error that names the address as `where`. */
static int health_connect(const char *path, const char *host, int port, const char *where,
                          struct error *err)
{
    char service[8];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct addrinfo local = {
        .ai_family = AF_UNIX, .ai_addr = (struct sockaddr *)&name, .ai_addrlen = sizeof name};
    struct addrinfo *list = NULL;
    snprintf(service, sizeof service, "%u", (unsigned)port & 0xFFFFu);
    const int failed = path ? 0 : getaddrinfo(host, service, &hints, &list);
    if (failed) {
        (void)error_set(err, STATUS_IO, "no address for '%.100s': %s", host, gai_strerror(failed));
        return -1;
    }
    errno = ENAMETOOLONG;
    const bool fits = !path || snprintf(name.sun_path, sizeof name.sun_path, "%s", path) <
                                   (int)sizeof name.sun_path;
    const int fd = fits ? connect_any(path ? &local : list) : -1;
    if (fd < 0)
        (void)error_set(err, STATUS_IO, "nothing answers on %s: %s", where, strerror(errno));
    if (list)
        freeaddrinfo(list);
    return fd;
}

/* Begins TLS over a connected socket, without a check of the server's certificate. The caller frees
 * *session and *credentials, even after a failure. */
static bool begin_tls(int fd, gnutls_session_t *session,
                      gnutls_certificate_credentials_t *credentials)
{
    int failure;
    if (gnutls_init(session, GNUTLS_CLIENT) != 0 ||
        gnutls_certificate_allocate_credentials(credentials) != 0 ||
        gnutls_set_default_priority(*session) != 0 ||
        gnutls_credentials_set(*session, GNUTLS_CRD_CERTIFICATE, *credentials) != 0)
        return false;
    gnutls_transport_set_int(*session, fd);
    do
        failure = gnutls_handshake(*session);
    while (failure == GNUTLS_E_INTERRUPTED || failure == GNUTLS_E_WARNING_ALERT_RECEIVED);
    return failure == 0;
}

/* Reads an API key from a file with one line. Blanks may follow the key. */
static enum status health_read_key(const char *path, char key[static KEY_MAX + 1],
                                   struct error *err)
{
    uint8_t *text = NULL;
    size_t size = 0, length = 0;
    struct error cause;
    const enum status status = file_read(path, KEY_MAX + 2, &text, &size, &cause);
    if (status != STATUS_OK && status != STATUS_TOO_LARGE)
        return error_set(err, STATUS_CONFIG, "cannot read --api-key-file '%.200s': %s", path,
                         cause.message);
    while (text && text[length] > ' ' && text[length] <= '~')
        length++;
    const bool good = length > 0 && length <= KEY_MAX &&
                      length + strspn((const char *)text + length, " \t\r\n") == size;
    if (good)
        snprintf(key, KEY_MAX + 1, "%.*s", (int)length, (const char *)text);
    free(text);
    return good ? STATUS_OK
                : error_set(err, STATUS_CONFIG,
                            "--api-key-file '%.200s' must hold one API key and nothing else: the "
                            "key itself, at most %d bytes, as lensd key shows it",
                            path, KEY_MAX);
}

/* Sends GET /readyz and reads the answer, at most as much as `text` holds. `tls` is NULL for plain
 * HTTP. Returns the length of the answer. */
static size_t health_ask(int fd, gnutls_session_t tls, const char *key, char *text, size_t size)
{
    char request[KEY_MAX + 160];
    size_t length = 0;
    int written = snprintf(request, sizeof request,
                           "GET /readyz HTTP/1.1\r\nHost: localhost\r\nUser-Agent: lensd-health\r\n"
                           "%s%s%sConnection: close\r\n\r\n",
                           key[0] ? "Authorization: Bearer " : "", key, key[0] ? "\r\n" : "");
    int64_t until = clock_now() + (int64_t)HEALTH_TIMEOUT_S * 1000000000;
    ssize_t sent = tls ? gnutls_record_send(tls, request, (size_t)written)
                       : send(fd, request, (size_t)written, MSG_NOSIGNAL);
    if (sent != written)
        return 0;
    while (length + 1 < size && clock_now() < until) {
        const size_t room = size - 1 - length;
        ssize_t got =
            tls ? gnutls_record_recv(tls, text + length, room) : recv(fd, text + length, room, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    text[length] = '\0';
    return length;
}

/* Says that there was no answer. A TLS server answers plain HTTP with an alert, a record of type
 * 21, or closes the connection. */
static void say_no_answer(const char *where, bool tls, const char *answer, size_t length)
{
    if (tls)
        fprintf(stderr,
                "lensd: %s gave no HTTPS answer within %d s; if it serves plain HTTP, ask without "
                "--tls-cert; else it may be stopped or overloaded\n",
                where, HEALTH_TIMEOUT_S);
    else if (length > 0 && answer[0] == 21)
        fprintf(stderr, "lensd: %s speaks TLS; ask with --tls-cert FILE, its certificate\n", where);
    else
        fprintf(
            stderr,
            "lensd: %s gave no HTTP answer within %d s; if it serves HTTPS, ask with --tls-cert "
            "FILE%s\n",
            where, HEALTH_TIMEOUT_S, length == 0 ? "; else it may be stopped or overloaded" : "");
}

int command_health(const struct config *config)
{
    struct error err;
    char answer[4096], where[160], key[KEY_MAX + 1] = "";
    /* Linux connects to this machine if the address is 0.0.0.0 or ::. */
    const char *host = config->http.host, *path = config->http.unix_path;
    if (path)
        snprintf(where, sizeof where, "'%s'", path);
    else
        snprintf(where, sizeof where, "%s port %d", host, config->http.port);
    int fd = -1;
    if (!config->api_key_file || health_read_key(config->api_key_file, key, &err) == STATUS_OK)
        fd = health_connect(path, host, config->http.port, where, &err);
    if (fd < 0) {
        fprintf(stderr, "lensd: %s\n", err.message);
        return 1;
    }
    size_t length = 0;
    gnutls_session_t tls = NULL;
    gnutls_certificate_credentials_t credentials = NULL;
    if (!config->http.tls_cert || begin_tls(fd, &tls, &credentials))
        length = health_ask(fd, tls, key, answer, sizeof answer);
    if (tls)
        gnutls_deinit(tls);
    if (credentials)
        gnutls_certificate_free_credentials(credentials);
    close(fd);
    if (length < sizeof "HTTP/1.1 200" || strncmp(answer, "HTTP/1.", 7) != 0) {
        say_no_answer(where, config->http.tls_cert != NULL, answer, length);
        return 1;
    }
    const char *body = strstr(answer, "\r\n\r\n");
    bool ready = !strncmp(answer + 9, "200", 3);
    fprintf(ready ? stdout : stderr, "%s", body ? body + 4 : "\n");
    return ready ? 0 : 1;
}
