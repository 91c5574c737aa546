/* How a handler waits or uses an offload thread. Also has the functions that every carrier calls
 * for its exchanges. */
#include "server/http/transport/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/size.h"
#include "server/http/transport/admit.h"
#include "server/http/transport/connections.h"
#include "server/http/transport/penalty.h"
#include "server/http/transport/respond.h"

/* The size from which a job is long: about ten milliseconds on an offload thread. */
#define LONG_JOB ((size_t)8 << 20)

#define COMPRESS_MIN 2048 /* bytes; for shorter answers, compression saves at most two packets */

const char *exchange_address(const struct exchange *x)
{
    if (x->forwarded[0])
        return x->forwarded;
    return x->connection ? x->connection->address : NULL;
}

const char *exchange_client(const struct exchange *x)
{
    const char *address = x->key_name[0] ? NULL : exchange_address(x);
    return address ? address : x->key_name;
}

void exchange_wait(struct exchange *x, struct predict_request *request, exchange_fn *finish)
{
    if (x->state != EXCHANGE_SUSPENDED) /* else the connection's thread may be reading x->state */
        x->state = EXCHANGE_SUSPENDED;
    x->finish = finish;
    connections_watch(x, request);
}

void exchange_offload(struct exchange *x, size_t bytes, exchange_fn *run)
{
    if (x->state != EXCHANGE_SUSPENDED)
        exchange_wait(x, NULL, x->finish);
    x->offload = (struct offload_job){.run = run, .exchange = x, .is_long = bytes >= LONG_JOB};
    offload_run(x->server->offload, &x->offload);
}

void exchange_free(struct exchange *x)
{
    if (!x)
        return;
    if (x->free_work)
        x->free_work(x);
    upload_done(&x->body);
    http_budget_settle(x->body.budget, &x->answer.charged, 0);
    FREE_ALL(x->answer.text, x->work, x);
}

/* Returns the client's share of the budget. Clients with the same hash use one share. */
static struct http_budget *share_of(struct http_server *server, const char *client)
{
    return &server->shares[penalty_client(client, NULL) % COUNT_OF(server->shares)];
}

struct exchange *exchange_create(struct http_server *server, const struct exchange_carrier *carrier,
                                 const struct route_table *routes, struct connection *connection,
                                 const char *target)
{
    const size_t size = strlen(target);
    /* If the target is too long, keep its beginning for the log. */
    const size_t kept = size > EXCHANGE_TARGET_MAX ? 256 : size;
    struct exchange *x = calloc(1, sizeof *x + kept + 1);
    if (!x)
        return NULL;
    x->server = server;
    x->carrier = carrier;
    x->routes = routes;
    x->connection = connection;
    x->started = clock_now();
    x->target_size = size;
    x->target = memcpy(x + 1, target, kept);
    x->path = x->target;
    if (connection)
        upload_init(&x->body, share_of(server, connection->address), 0, 0);
    return x;
}

void exchange_find_client(struct exchange *x, const char *value)
{
    struct http_server *server = x->server;
    if (value && trusted_proxies_have(&server->proxies, x->connection->address) &&
        trusted_proxies_client(&server->proxies, value, x->forwarded))
        x->body.budget = share_of(server, x->forwarded);
}

void exchange_set_client(struct exchange *x, const char *address)
{
    snprintf(x->forwarded, sizeof x->forwarded, "%s", address);
    upload_init(&x->body, share_of(x->server, x->forwarded), 0, 0);
}

/* ---- answers ---- */

/* Compresses long texts for clients that accept it. */
static void compress_answer(struct exchange *x)
{
    struct answer *answer = &x->answer;
    if (answer->is_packed)
        return;
    answer->is_packed = true;
    const char *type = answer->type ? answer->type : "";
    const bool is_text = !strncmp(type, "text/", 5) ||
                         !strncmp(type, TYPE_JSON, sizeof TYPE_JSON - 1) || strstr(type, "yaml");
    if (answer->size < COMPRESS_MIN || !is_text)
        return;
    respond_header(x, "Vary", "Accept-Encoding");
    enum coding coding = coding_choose(exchange_header(x, "Accept-Encoding"));
    size_t size;
    char *text = coding_compress(coding, answer->text, answer->size, &size);
    if (!text)
        return;
    free(answer->text);
    answer->text = text;
    answer->size = size;
    respond_header(x, "Content-Encoding", "%s", coding_names[coding]);
}

void answer_pack(struct exchange *x)
{
    compress_answer(x);
    http_budget_settle(x->body.budget, &x->answer.charged, x->answer.size);
}

void answer_write(struct exchange *x)
{
    connections_watch(x, NULL);
    if (!x->answer.status)
        x->finish(x);
    if (x->free_work)
        x->free_work(x);
    free(x->work);
    x->work = NULL;
    x->free_work = NULL;
    upload_done(&x->body);
    answer_pack(x);
}

void exchange_answer(struct exchange *x)
{
    answer_write(x);
    exchange_resume(x);
}
