/* The HTTP server on a real socket, libmicrohttpd included. The first byte says how the rest is
 * sent: as it is, or as a body in chunks whose sizes the input gives. The server must answer with
 * HTTP and JSON or close, and must echo this body and the next client's unchanged. */
#include <errno.h>
#include <microhttpd.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "engine/base/size.h"
#include "server/http/transport/respond.h"
#include "server/http/transport/server.h"
#include "server/observe/log.h"
#include "tests/fuzz/scratch.h"

enum { MAX_BODY = 1 << 16, PATIENCE_MS = 60000 };

/* Its bytes inverted, so that no answer looks like libmicrohttpd's own. */
static void answer_echo(struct exchange *x)
{
    char *copy = malloc(x->body.size + 1);
    HOLDS(copy);
    for (size_t i = 0; i < x->body.size; i++)
        copy[i] = (char)~x->body.data[i];
    respond_text(x, 200, TYPE_BYTES, copy, x->body.size);
}

/* Large bodies take the way through an offload thread. */
static void handle_echo(struct exchange *x)
{
    if (x->body.size < 256) {
        answer_echo(x);
        return;
    }
    exchange_wait(x, NULL, answer_echo);
    exchange_offload(x, x->body.size, exchange_answer);
}

static const struct route routes[] = {
    {"/echo", METHOD_POST | METHOD_PUT, true, NULL, handle_echo, "the body", ROUTE_OPEN},
    {"/m/{model}/v/{version}", METHOD_POST, true, NULL, handle_echo, "the body"},
    {"/", METHOD_GET | METHOD_OPTIONS, false, NULL, handle_echo, "nothing", ROUTE_OPEN},
    {"/admin", METHOD_GET | METHOD_POST, true, NULL, handle_echo, "nobody's", ROUTE_ADMIN},
};
static const struct route_table table = {routes, COUNT_OF(routes)};

static struct sockaddr_un address = {.sun_family = AF_UNIX};

static void start_server(void)
{
    struct http_server *server;
    struct error err;
    const struct http_options options = {.unix_path = address.sun_path,
                                         .unix_mode = 0600,
                                         .threads = 1,
                                         .top_k = 5,
                                         .note = "",
                                         .max_body = MAX_BODY,
                                         .max_upload_memory = (size_t)64 << 20,
                                         .max_header = 4096,
                                         .max_images = 4,
                                         .max_json_depth = 16,
                                         .max_connections = 256,
                                         .max_connections_per_address = 256,
                                         .header_timeout_ms = PATIENCE_MS,
                                         .body_timeout_ms = PATIENCE_MS,
                                         .answer_timeout_ms = PATIENCE_MS,
                                         .idle_timeout_ms = PATIENCE_MS,
                                         .max_inflate_ratio = 100,
                                         .cors_origin = "https://a.example",
                                         .trusted_proxies = "unix,10.0.0.0/8",
                                         .routes = &table};
    log_lowest = LOG_ERROR;
    const int length =
        snprintf(address.sun_path, sizeof address.sun_path, "%s/s", scratch_folder());
    HOLDS(length < (int)sizeof address.sun_path);
    HOLDS(http_server_start(&options, &server, &err) == STATUS_OK);
    http_server_open(server, "off");
}

/* Sends all of it and reads until the server closes; malloc'ed and terminated. `pause_at`: a write
 * ends there. libFuzzer's timer interrupts calls. */
static char *ask(const char *bytes, size_t size, size_t pause_at, bool half_close, size_t *ret_size)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HOLDS(fd >= 0 && !connect(fd, (const struct sockaddr *)&address, sizeof address));
    size_t sent = 0, capacity = 4096, got = 0;
    while (sent < size) {
        const size_t end = sent < pause_at && pause_at < size ? pause_at : size;
        const ssize_t n = TEMP_FAILURE_RETRY(send(fd, bytes + sent, end - sent, MSG_NOSIGNAL));
        if (n < 0)
            break; /* refused and closed */
        sent += (size_t)n;
    }
    if (half_close)
        (void)shutdown(fd, SHUT_WR);
    char *answer = malloc(capacity + 1);
    for (ssize_t n = 1; n > 0; got += n > 0 ? (size_t)n : 0) {
        if (got == capacity)
            answer = realloc(answer, (capacity *= 2) + 1);
        HOLDS(answer);
        n = TEMP_FAILURE_RETRY(recv(fd, answer + got, capacity - got, 0));
    }
    close(fd);
    answer[got] = '\0';
    *ret_size = got;
    return answer;
}

/* The answer to one request for an echo is `body`, inverted. */
static void check_echo(const char *answer, size_t answer_size, const uint8_t *body, size_t size)
{
    const char *end = strstr(answer, "\r\n\r\n");
    HOLDS(!strncmp(answer, "HTTP/1.1 200 ", 13) && end);
    end += 4;
    HOLDS(answer_size - (size_t)(end - answer) == size);
    for (size_t i = 0; i < size; i++)
        HOLDS(end[i] == (char)~body[i]);
}

static void try_raw(const uint8_t *data, size_t size, size_t pause_at)
{
    static const char html[] = "\r\nContent-Type: text/html";
    size_t got;
    char *answer = ask((const char *)data, size, pause_at, true, &got);
    HOLDS(got == 0 || !strncmp(answer, "HTTP/1.1 ", 9));
    HOLDS(!memmem(answer, got, html, sizeof html - 1));
    free(answer);
}

/* `body` in chunks, whose sizes its own bytes give. */
static void try_chunks(const uint8_t *body, size_t size, uint8_t how, size_t pause_at)
{
    static const char head[] = "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    char *bytes = NULL, *answer;
    size_t used = 0, got;
    FILE *file = open_memstream(&bytes, &used);
    HOLDS(file && fputs(head, file) >= 0);
    for (size_t at = 0, chunk; at < size; at += chunk) {
        chunk = 1 + (size_t)body[at] * (how & 4 ? 1 : 67);
        chunk = chunk < size - at ? chunk : size - at;
        fprintf(file, how & 8 ? "%zX%s\r\n" : "%04zx%s\r\n", chunk, how & 16 ? ";a=\"b\"" : "");
        fwrite(body + at, 1, chunk, file);
        fputs("\r\n", file);
    }
    fputs(how & 32 ? "0\r\nTrailer: x\r\n\r\n" : "0\r\n\r\n", file);
    HOLDS(!fclose(file));
    answer = ask(bytes, used, pause_at, false, &got);
    /* libmicrohttpd 1.0 takes the LF after an extension for the chunk's first byte, and refuses. */
    const bool refuses = how & 16 && size > 0 && strverscmp(MHD_get_version(), "1.0") >= 0;
    if (!refuses || !strncmp(answer, "HTTP/1.1 200 ", 13))
        check_echo(answer, got, body, size);
    free(answer);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > MAX_BODY)
        return 0;
    if (!address.sun_path[0])
        start_server();
    const size_t pause_at = data[1] * (size / 256 + 1);
    if (data[0] & 1)
        try_chunks(data + 2, size - 2, data[0], pause_at);
    else
        try_raw(data + 2, size - 2, pause_at);
    try_chunks((const uint8_t *)"next", 4, 0, 0);
    return 0;
}
