/* Checks the request line and headers, and refuses before the body is read. */
#include "server/http/transport/admit.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/respond.h"

#define MALFORMED                                                                                  \
    "the request line or a header is malformed; write each header as Name: value on one line "     \
    "that ends in CR LF, without NUL, and without blanks in the name"

#define NEEDS_HOST "an HTTP/1.1 request needs a Host header"

/* Returns a number that no other call in this process returns: splitmix64 of a counter. A random
 * id_seed makes it unlikely that another process returns the number. */
static uint64_t next_number(struct exchange *x)
{
    uint64_t z =
        x->server->id_seed + atomic_fetch_add(&x->server->next_id, 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Uses the client's X-Request-Id if it is short and printable; otherwise makes an id. */
static void take_request_id(struct exchange *x)
{
    const char *given = exchange_header(x, "X-Request-Id");
    size_t length = given ? strlen(given) : 0;
    bool plain = length > 0 && length <= REQUEST_ID_MAX;
    for (size_t i = 0; plain && i < length; i++)
        plain = isalnum((unsigned char)given[i]) || strchr("-_.:/+=@", given[i]);
    if (plain) {
        memcpy(x->request_id, given, length + 1);
        return;
    }
    snprintf(x->request_id, sizeof x->request_id, "%016llx", (unsigned long long)next_number(x));
}

/* Reads "00-TRACE-SPAN-FLAGS" (W3C Trace Context, level 1) and gives this request a new span,
 * derived from `random`. Reads only the known part of a later version's header. Returns false
 * without a trace if the header is absent or malformed: the standard says to ignore a malformed
 * header (section 3.2.2.5). */
static bool trace_begin(struct trace *trace, const char *traceparent, uint64_t random)
{
    struct trace read = {.flags = 0};
    char version[3], flags[3];
    int length = 0;
    *trace = read;
    /* Capitals are not allowed. The parts are complete if together they have all 55 bytes. */
    if (!traceparent ||
        sscanf(traceparent, "%2[0-9a-f]-%32[0-9a-f]-%16[0-9a-f]-%2[0-9a-f]%n", version, read.id,
               read.parent, flags, &length) != 4 ||
        length != 55 || !strcmp(version, "ff"))
        return false;
    /* Version 00 ends after the flags; a later version may have more. */
    if (traceparent[length] && (!strcmp(version, "00") || traceparent[length] != '-'))
        return false;
    if (!read.id[strspn(read.id, "0")] || !read.parent[strspn(read.parent, "0")])
        return false; /* an id of zeros means no id */
    snprintf(read.span, sizeof read.span, "%016llx", (unsigned long long)(random | 1));
    read.flags = (uint8_t)strtoul(flags, NULL, 16);
    *trace = read;
    return true;
}

static void take_trace(struct exchange *x)
{
    const char *given = exchange_header(x, "traceparent");
    const struct trace_exporter *exporter = x->server->options.traces;
    if (!trace_begin(&x->trace, given, next_number(x)) && exporter) {
        const uint64_t low = next_number(x) | 1; /* an id of zeros would mean no id */
        snprintf(x->trace.id, sizeof x->trace.id, "%016llx%016llx",
                 (unsigned long long)next_number(x), (unsigned long long)low);
        snprintf(x->trace.span, sizeof x->trace.span, "%016llx",
                 (unsigned long long)(next_number(x) | 1));
        x->trace.flags = trace_exporter_samples(exporter, low) ? TRACE_SAMPLED : 0;
    }
    if (x->trace.id[0])
        respond_header(x, "traceparent", "00-%s-%s-%02x", x->trace.id, x->trace.span,
                       x->trace.flags);
}

void exchange_identify(struct exchange *x)
{
    take_request_id(x);
    take_trace(x);
}

/* Refuses ambiguous framing of the body (RFC 9112, section 6.3): if a proxy and lensd disagree on
 * where a request ends, a client can smuggle requests. */
static void check_framing(struct exchange *x, const struct request_head *head)
{
    if (head->malformed || head->hosts > 1) {
        respond_refusal(x, 400, "invalid_request",
                        head->malformed ? MALFORMED : "the request has more than one Host header");
    } else if (head->encodings && !strcmp(head->version, "HTTP/1.0")) {
        respond_refusal(x, 400, "invalid_request",
                        "HTTP/1.0 has no Transfer-Encoding; send Content-Length, or use HTTP/1.1");
    } else if (head->lengths > 1 || head->encodings > 1 || (head->lengths && head->encodings)) {
        respond_refusal(x, 400, "invalid_request",
                        "the request has more than one Content-Length or Transfer-Encoding header; "
                        "send exactly one of them");
    } else if (head->encoding && strcasecmp(head->encoding, "chunked") != 0) {
        respond_refusal(x, 501, "not_implemented",
                        "Transfer-Encoding '%.40s' is not implemented; use chunked or none",
                        head->encoding);
    } else {
        x->chunked = head->encoding != NULL;
        x->expected = head->length ? strtoull(head->length, NULL, 10) : 0;
        return;
    }
    /* The end of the body is unknown. A refusal of a chunked body ends the connection, so treat the
     * body as chunked. */
    x->chunked = true;
}

/* Refuses a Content-Length that is not a number below 2^64 - 1 (MHD_SIZE_UNKNOWN). */
static bool refuse_length(struct exchange *x, const char *length)
{
    const bool is_number = *length && !length[strspn(length, "0123456789")];
    if (is_number && strtoull(length, NULL, 10) != ULLONG_MAX)
        return false;
    if (is_number)
        respond_refusal(x, 413, "too_large",
                        "the body has %.40s bytes; the limit is %zu (--max-body)", length,
                        x->server->options.max_body);
    else
        respond_refusal(
            x, 400, "invalid_request",
            "Content-Length is '%.40s'; it must be the body's size in bytes, in decimal digits",
            length);
    return true;
}

static void refuse_broken_head(struct exchange *x, const struct request_head *head, int status)
{
    const size_t limit = x->server->options.max_header;
    switch (status) {
    case 414:
        respond_refusal(x, 414, "uri_too_long", "the URL is too long; the limit is %d bytes",
                        EXCHANGE_TARGET_MAX);
        return;
    case 413:
    case 431:
        respond_refusal(x, 431, "header_too_large",
                        "the request has too many headers, cookies or parameters, or too long "
                        "ones; the limit is %zu bytes (--max-header)",
                        limit);
        return;
    case 505:
        respond_refusal(x, 505, "not_implemented", "lensd speaks HTTP/1.0 and HTTP/1.1");
        return;
    default:
        respond_refusal(x, 400, "invalid_request",
                        head->size && !exchange_header(x, "Host") ? NEEDS_HOST : MALFORMED);
    }
}

void exchange_refuse_broken(struct exchange *x, const struct request_head *head, int status)
{
    if (x->state == EXCHANGE_BODY && status == 413) {
        respond_refusal(
            x, 413, "too_large",
            "a chunk, or the line with its size, is too long; the limit is %zu (--max-body)",
            x->server->options.max_body);
    } else if (x->state == EXCHANGE_BODY) {
        respond_refusal(x, 400, "invalid_request",
                        "the chunks of the body are malformed; write each as its length in "
                        "hexadecimal digits, CR LF, its bytes, CR LF");
    } else {
        exchange_identify(x);
        if (head->length && !head->encodings && refuse_length(x, head->length))
            return;
        if (head->size) /* the head is complete */
            check_framing(x, head);
        if (!x->answer.status)
            refuse_broken_head(x, head, status);
    }
}

/* Reduces "http://host/path", the form used with proxies (RFC 9112, section 3.2.2), to the path;
 * ignores the host. Returns NULL if there is no host. */
static char *origin_form(char *target)
{
    size_t scheme = !strncasecmp(target, "http://", 7)    ? 7
                    : !strncasecmp(target, "https://", 8) ? 8
                                                          : 0;
    if (!scheme)
        return target;
    char *rest = target + scheme + strcspn(target + scheme, "/?");
    if (rest == target + scheme)
        return NULL;
    if (*rest == '/')
        return rest;
    *--rest = '/'; /* an empty path means "/", which overwrites the host's last letter */
    return rest;
}

static void check_target(struct exchange *x)
{
    struct error err;
    if (x->target_size > EXCHANGE_TARGET_MAX) {
        respond_refusal(x, 414, "uri_too_long", "the URL has %zu bytes; the limit is %d",
                        x->target_size, EXCHANGE_TARGET_MAX);
        return;
    }
    char *path = origin_form(x->target);
    if (!path) {
        respond_refusal(x, 400, "invalid_request",
                        "the request's URL has no host after its scheme; request a path such as "
                        "/predict, or http://HOST/predict");
        return;
    }
    x->path = path;
    char *query = strchr(path, '?');
    if (query)
        *query++ = '\0';
    if (url_decode(path, &err) != STATUS_OK || query_parse(query, &x->query, &err) != STATUS_OK)
        respond_error(x, &err);
}

/* True if the list "a.example,b.example" contains `name` of `length` bytes, or is "*". */
static bool admit_is_listed(const char *list, const char *name, size_t length)
{
    if (!strcmp(list, "*"))
        return true;
    while (*list) {
        size_t entry = strcspn(list, ",");
        if (entry == length && !strncasecmp(list, name, length))
            return true;
        list += entry;
        list += strspn(list, ", ");
    }
    return false;
}

/* A web page can make its own host name resolve to this machine (DNS rebinding) and then read
 * lensd's answers. The attack does not work with an IP address or with localhost as the host. */
static bool is_allowed_host(const struct http_options *options, const char *host)
{
    char address[INET6_ADDRSTRLEN] = "";
    struct in6_addr binary;
    const char *name = host + (host[0] == '[');
    const size_t length = strcspn(name, host[0] == '[' ? "]" : ":");
    if (length < sizeof address)
        memcpy(address, name, length);
    return inet_pton(host[0] == '[' ? AF_INET6 : AF_INET, address, &binary) == 1 ||
           !strcasecmp(address, "localhost") ||
           admit_is_listed(options->allowed_hosts, name, length) ||
           (options->host && admit_is_listed(options->host, name, length));
}

enum status admit_check_hosts(const char *list, struct error *err)
{
    if (!list || !*list || !strcmp(list, "*"))
        return STATUS_OK;
    for (bool more = true; more;) {
        const size_t length = strcspn(list, ",");
        const size_t plain =
            strspn(list, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
        if (length == 0 || plain != length)
            return error_set(err, STATUS_CONFIG,
                             "--allowed-hosts has '%.*s'; write host names without scheme and "
                             "port, with commas between them, or * alone",
                             length < 80 ? (int)length : 80, list);
        list += length;
        more = *list == ',';
        list += more;
        list += strspn(list, " ");
    }
    return STATUS_OK;
}

static void check_headers(struct exchange *x, const struct request_head *head)
{
    const char *expect = exchange_header(x, "Expect");
    size_t limit = x->server->options.max_header;
    if (head->size > limit)
        respond_refusal(
            x, 431, "header_too_large",
            "the request line and headers have %zu bytes; the limit is %zu (--max-header)",
            head->size, limit);
    else if (!strcmp(head->version, "HTTP/1.1") && !x->host)
        respond_refusal(x, 400, "invalid_request", NEEDS_HOST);
    else if (x->host && !is_allowed_host(&x->server->options, x->host))
        respond_refusal(x, 403, "forbidden",
                        "lensd does not answer for the host '%.100s'; use its IP address, or add "
                        "the name to --allowed-hosts",
                        x->host);
    else if (expect && strcasecmp(expect, "100-continue") != 0)
        respond_refusal(x, 417, "expectation_failed",
                        "Expect: %.40s is not supported; only 100-continue is", expect);
}

static void check_route(struct exchange *x)
{
    x->route = route_find(x->routes, x->path, &x->match);
    if (!x->route && !strcmp(x->path, "*") && !strcmp(x->method, "OPTIONS")) {
        respond_empty(x, 204); /* OPTIONS * is about the whole server (RFC 9110, section 9.3.7) */
        x->answer.allow = METHOD_GET | METHOD_HEAD | METHOD_POST | METHOD_OPTIONS;
    } else if (!x->route) {
        respond_refusal(x, 404, "not_found",
                        "%.100s does not exist; GET / lists the paths, POST /predict takes images",
                        x->path);
    }
    if (!x->route)
        return;
    unsigned methods = route_methods(x->route), method = route_method(x->method);
    if (!(methods & method)) {
        char allow[ALLOW_TEXT];
        const char *advice = x->route->advice;
        respond_refusal(x, 405, "method_not_allowed",
                        "the method %.20s is not allowed for %s; use %s%s%s", x->method,
                        x->route->path, route_allow(methods, allow, sizeof allow),
                        advice ? ": " : "", advice ? advice : "");
        x->answer.allow = methods;
    } else if (method == METHOD_OPTIONS && !(x->route->methods & METHOD_OPTIONS)) {
        respond_empty(x, 204);
        x->answer.allow = methods;
    }
}

/* On --admin-port, refuses the paths that only clients use. Operators and their tools use the other
 * paths. */
static void check_port(struct exchange *x)
{
    if (x->connection && x->connection->is_admin && x->route->access == ROUTE_KEY)
        respond_refusal(x, 404, "not_found",
                        "%.100s is not served on --admin-port; use the other port", x->path);
}

/* Refuses everything but probes on a spare connection (CONNECTION_SPARE), and closes it. */
static void check_room(struct exchange *x)
{
    if (!x->connection || !x->connection->is_spare)
        return;
    x->closes = true;
    if (x->route->access != ROUTE_OPEN)
        respond_refusal(
            x, 503, "too_many_connections",
            "all connections are in use; try again soon, or raise the limit (--max-connections)");
}

/* Returns the key of "Authorization: Bearer KEY" or "Token KEY", else x_api_key (may be NULL). */
static const char *key_given(const char *authorization, const char *x_api_key)
{
    static const char *const schemes[] = {"Bearer", "Token"};
    for (size_t i = 0; authorization && i < COUNT_OF(schemes); i++) {
        const size_t length = strlen(schemes[i]);
        if (!strncasecmp(authorization, schemes[i], length) &&
            (authorization[length] == ' ' || authorization[length] == '\t'))
            return authorization + length + strspn(authorization + length, " \t");
    }
    return x_api_key;
}

static void check_access(struct exchange *x)
{
    if (!x->server->keys)
        return;
    int wait_s = 1;
    const char *key = exchange_header(x, "X-API-Key");
    key = key_given(exchange_header(x, "Authorization"),
                    key ? key : exchange_header(x, "doods-auth-key"));
    enum route_access access = x->route->access;
    if (access == ROUTE_ADMIN_WRITES)
        access = route_method(x->method) & (METHOD_GET | METHOD_HEAD) ? ROUTE_KEY : ROUTE_ADMIN;
    switch (keyring_check(x->server->keys, access, key, x->key_name, &wait_s)) {
    case KEY_GRANTED:
        return;
    case KEY_MISSING:
        respond_refusal(
            x, 401, "unauthorized",
            "%s needs an API key; send it as Authorization: Bearer KEY or X-API-Key: KEY", x->path);
        respond_header(x, "WWW-Authenticate", "Bearer realm=\"lensd\"");
        return;
    case KEY_UNKNOWN:
        respond_refusal(x, 401, "unauthorized",
                        "unknown API key; ask the server's operator for one");
        respond_header(x, "WWW-Authenticate", "Bearer realm=\"lensd\", error=\"invalid_token\"");
        return;
    case KEY_NO_ADMIN:
        respond_refusal(x, 403, "forbidden",
                        "%s is for admins; it needs a key from the --admin-key-file", x->path);
        return;
    case KEY_LIMITED:
        x->answer.retry_after_s = wait_s;
        respond_refusal(x, 429, "rate_limited", "key '%s' exceeds its rate; try again in %d s",
                        x->key_name, wait_s);
        return;
    }
}

bool admit_is_foreign(const struct exchange *x)
{
    const char *list = x->server->options.cors_origin, *origin = exchange_header(x, "Origin");
    const char *host = origin ? strstr(origin, "://") : NULL;
    return origin && !(host && x->host && !strcasecmp(host + strlen("://"), x->host)) &&
           !(list && admit_is_listed(list, origin, strlen(origin)));
}

/* Lets pages of the origins in --cors-origin read the answer (Fetch standard, section 3.3). */
static void allow_origin(struct exchange *x)
{
    const char *list = x->server->options.cors_origin, *origin = exchange_header(x, "Origin");
    if (!list)
        return;
    bool all = !strcmp(list, "*");
    if (!all)
        respond_header(x, "Vary", "Origin");
    if (!origin || strlen(origin) > 120 || !admit_is_listed(list, origin, strlen(origin)))
        return;
    respond_header(x, "Access-Control-Allow-Origin", "%s", all ? "*" : origin);
    if (strcmp(x->method, "OPTIONS") != 0 || !exchange_header(x, "Access-Control-Request-Method")) {
        respond_header(x, "Access-Control-Expose-Headers",
                       "X-Request-Id, Retry-After, WWW-Authenticate, traceparent, "
                       "Inference-Header-Content-Length, X-Cache, Age");
        return;
    }
    /* A preflight: the browser asks, without a key, which methods and headers a page may send. */
    char allow[ALLOW_TEXT];
    respond_header(x, "Access-Control-Allow-Methods", "%s",
                   route_allow(route_methods(x->route), allow, sizeof allow));
    respond_header(
        x, "Access-Control-Allow-Headers",
        "Authorization, Content-Type, Content-Encoding, X-API-Key, X-Request-Id, "
        "X-Request-Timeout-Ms, X-Priority, traceparent, Inference-Header-Content-Length");
    respond_header(x, "Access-Control-Max-Age", "600");
    if (!x->answer.status) {
        respond_empty(x, 204);
        x->answer.allow = route_methods(x->route);
    }
}

static void check_coding(struct exchange *x)
{
    const char *coding = exchange_header(x, "Content-Encoding");
    if (coding_parse(coding, &x->coding))
        return;
    respond_refusal(x, 415, "unsupported_media_type",
                    "Content-Encoding '%.40s' is not supported; use gzip, deflate or none", coding);
    respond_header(x, "Accept-Encoding", "gzip, deflate");
}

static void admit_check_body(struct exchange *x)
{
    size_t limit = x->route->takes_body ? x->server->options.max_body : EXCHANGE_DISCARD_MAX;
    struct error err;
    x->discard_body = !x->route->takes_body;
    if (!x->chunked && x->expected > limit)
        respond_refusal(x, 413, "too_large", "the body has %llu bytes; the limit is %zu%s",
                        (unsigned long long)x->expected, limit,
                        x->route->takes_body ? " (--max-body)" : "");
    else if (x->route->admit && x->route->admit(x, &err) != STATUS_OK)
        respond_error(x, &err);
    else if (!x->answer.status && x->route->takes_body)
        check_coding(x);
    if (!x->answer.status)
        upload_init(&x->body, x->body.budget, limit, x->chunked ? 0 : (size_t)x->expected);
}

enum head_verdict exchange_admit(struct exchange *x, const struct request_head *head)
{
    static exchange_fn *const checks[] = {check_port, check_room, check_access, admit_check_body};
    snprintf(x->method, sizeof x->method, "%s", head->method);
    x->host = exchange_header(x, "Host");
    x->content_type = exchange_header(x, "Content-Type");
    x->json_length = exchange_header(x, "Inference-Header-Content-Length");
    x->path = x->target;
    exchange_identify(x);
    check_framing(x, head);
    if (!x->answer.status)
        check_target(x);
    if (!x->answer.status)
        check_headers(x, head);
    if (!x->answer.status)
        check_route(x);
    if (x->route)
        allow_origin(x);
    for (size_t i = 0; !x->answer.status && i < COUNT_OF(checks); i++)
        checks[i](x);
    if (!x->answer.status)
        return ADMIT_READ;
    x->discard_body = true;
    if (!x->chunked && x->expected == 0)
        return ADMIT_READ; /* there is no body to read, so the connection can stay open */
    if (exchange_header(x, "Expect"))
        return ADMIT_ANSWER_NOW; /* the client waits for "100 Continue" before it sends */
    return x->chunked || x->expected > EXCHANGE_DISCARD_MAX ? ADMIT_REFUSE : ADMIT_READ;
}
