/* Heads of requests: a line METHOD TARGET VERSION, then a header a line. The first byte picks the
 * options of the server. A head is admitted only if its framing is unambiguous, its host and key
 * are known and its body is short enough. Otherwise it gets an answer in JSON, whose headers take
 * one line each. */
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "proto/json.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/respond.h"
#include "tests/fuzz/scratch.h"

enum { MAX_BODY = 1000 };

static void never(struct exchange *exchange)
{
    (void)exchange;
    abort();
}

static const struct route routes[] = {
    {"/", METHOD_GET | METHOD_OPTIONS, false, NULL, never, "a page", ROUTE_OPEN},
    {"/predict", METHOD_POST, true, NULL, never, "a body", ROUTE_KEY, "advice"},
    {"/v2/models/{model}/versions/{version}/infer", METHOD_POST, true, NULL, never, "a model"},
    {"/v1/models/{model}:predict", METHOD_POST, true, NULL, never, "a model"},
    {"/v2/logging", METHOD_GET | METHOD_POST, true, NULL, never, "settings", ROUTE_ADMIN_WRITES},
    {"/predictions/{model}", METHOD_PUT, true, NULL, never, "a model", ROUTE_ADMIN},
};
static const struct route_table table = {routes, COUNT_OF(routes)};

static struct {
    const char *name, *value;
} headers[1024];
static size_t header_count;

static const char *find_header(const struct exchange *exchange, const char *name)
{
    (void)exchange;
    for (size_t i = 0; i < header_count; i++)
        if (!strcasecmp(headers[i].name, name))
            return headers[i].value;
    return NULL;
}

/* Of HTTP/1.1 requests whose errors are lensd's own. */
static const struct exchange_carrier carrier = {.header = find_header};

static struct http_server server = {
    .options = {.host = "127.0.0.1", .max_body = MAX_BODY, .max_header = 4096, .routes = &table}};

/* One key, "secret". */
static void make_server(void)
{
    static const char keys[] =
        "a sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n";
    static char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s", scratch_write("keys", keys, sizeof keys - 1));
    const struct keyring_options options = {.admin_file = path};
    HOLDS(keyring_create(&options, &server.keys, NULL) == STATUS_OK);
    HOLDS(trusted_proxies_parse("10.0.0.0/8,::1,2001:db8::/33,unix", &server.proxies, NULL) ==
          STATUS_OK);
}

/* As daemon.c reads it. */
static void take_header(char *line, struct request_head *head)
{
    char *value = strchr(line, ':');
    if (!value || header_count == COUNT_OF(headers)) {
        head->malformed = true;
        return;
    }
    *value++ = '\0';
    value += strspn(value, " \t");
    headers[header_count].name = line;
    headers[header_count++].value = value;
    head->hosts += !strcasecmp(line, "Host");
    if (!strcasecmp(line, "Content-Length")) {
        head->lengths++;
        head->length = value;
    } else if (!strcasecmp(line, "Transfer-Encoding")) {
        head->encodings++;
        head->encoding = value;
    }
}

static void check_answer(const struct exchange *x)
{
    const struct answer *answer = &x->answer;
    HOLDS(answer->status >= 200 && answer->status < 600);
    HOLDS(answer->status == 204 || answer->size > 0);
    HOLDS(!answer->size ||
          json_check(answer->text, answer->size, &JSON_LIMITS_DEFAULT, NULL) == STATUS_OK);
    size_t size = 0;
    char *raw = raw_answer(answer, x->request_id, &size);
    HOLDS(raw && size > answer->size);
    for (size_t i = 0; i < size - answer->size; i++)
        HOLDS(raw[i] == '\r'   ? raw[i + 1] == '\n'
              : raw[i] == '\n' ? i > 0 && raw[i - 1] == '\r'
                               : (uint8_t)raw[i] >= 32);
    free(raw);
}

static void try_admit(struct exchange *x, const struct request_head *head)
{
    const enum head_verdict verdict = exchange_admit(x, head);
    const size_t id = strlen(x->request_id);
    HOLDS(id > 0 && id <= REQUEST_ID_MAX && !x->request_id[strcspn(x->request_id, "\r\n")]);
    if (x->answer.status) {
        check_answer(x);
        return;
    }
    HOLDS(verdict == ADMIT_READ && x->route && !head->malformed);
    HOLDS(x->discard_body == !x->route->takes_body);
    HOLDS(head->hosts <= 1 && head->lengths + head->encodings <= 1);
    HOLDS(x->expected <= (x->route->takes_body ? MAX_BODY : EXCHANGE_DISCARD_MAX));
    HOLDS(x->route->access != ROUTE_ADMIN || !strcmp(x->key_name, "a"));
}

static void try_forwarded(const char *forwarded)
{
    char client[INET6_ADDRSTRLEN] = "";
    if (forwarded && trusted_proxies_client(&server.proxies, forwarded, client))
        HOLDS(client[0] && client[strspn(client, "0123456789abcdef.:")] == '\0');
    struct trusted_proxies parsed;
    struct error err = {0};
    if (forwarded && trusted_proxies_parse(forwarded, &parsed, &err) != STATUS_OK)
        HOLDS(err.message[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size)
        return 0;
    if (!server.keys)
        make_server();
    server.options.cors_origin = data[0] & 1 ? "*" : data[0] & 2 ? "https://a.example" : NULL;
    server.options.allowed_hosts = data[0] & 4 ? "*" : "a.example,b.example";
    char *text = strndup((const char *)data + 1, size - 1), *rest = text;
    HOLDS(text);
    struct request_head head = {.size = size};
    char *line = strsep(&rest, "\n");
    head.method = strsep(&line, " ");
    const char *target = line ? strsep(&line, " ") : "";
    head.version = line ? line : "HTTP/1.1";
    header_count = 0;
    while (rest)
        take_header(strsep(&rest, "\n"), &head);
    struct exchange x = {.server = &server,
                         .carrier = &carrier,
                         .handle = &header_count,
                         .routes = &table,
                         .target = strdup(target),
                         .target_size = strlen(target)};
    HOLDS(x.target);
    if (data[0] & 8) {
        static const int refusals[] = {400, 413, 414, 431, 501, 505};
        x.state = data[0] & 16 ? EXCHANGE_BODY : EXCHANGE_NEW;
        exchange_refuse_broken(&x, &head, refusals[(data[0] >> 5) % COUNT_OF(refusals)]);
        check_answer(&x);
    } else {
        try_admit(&x, &head);
    }
    try_forwarded(find_header(&x, "X-Forwarded-For"));
    upload_done(&x.body);
    free(x.answer.text);
    free(x.target);
    free(text);
    return 0;
}
