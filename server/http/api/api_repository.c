/* POST /v2/repository/models/M/load and /unload, for admins: waits for the loader. */
#include <string.h>

#include "proto/v2.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/loader/loader.h"

/* Runs on the loader's thread. */
static void repository_done(void *context, enum status status, const struct error *err)
{
    struct exchange *x = context;
    if (status == STATUS_OK) /* as in Triton, the answer has no content */
        respond_json(x, 200, strdup(x->route->is_message ? "" : "{}\n"));
    else
        respond_error(x, err);
    exchange_resume(x);
}

/* True if the request has a file or a configuration, which is refused: clients only name models. */
static bool has_override(const struct exchange *x)
{
    const char *body = (const char *)x->body.data;
    return body && x->body.size > 0 &&
           (memmem(body, x->body.size, "\"config\"", 8) ||
            memmem(body, x->body.size, "\"file:", 6));
}

static void repository_submit(struct exchange *x, enum loader_job job)
{
    struct error err;
    struct loader *loader = x->server->options.loader;
    bool overrides;
    if (respond_if_long(x))
        return;
    if (!x->route->is_message) {
        overrides = job == LOADER_LOAD && has_override(x);
    } else if (v2_repository_unpack(x->body.data, x->body.size, x->match.model, &overrides, &err) !=
               STATUS_OK) {
        respond_error(x, &err);
        return;
    }
    if (overrides) {
        respond_refusal(x, 400, "invalid_request",
                        "models are loaded only from the repository; leave out the parameters "
                        "\"config\" and \"file:\"");
        return;
    }
    if (!loader) {
        error_set(&err, STATUS_NOT_READY, "this server loads no models");
        respond_error(x, &err);
        return;
    }
    exchange_wait(x, NULL, NULL);
    if (loader_submit(loader, job, x->match.model, repository_done, x, &err) == STATUS_OK)
        return;
    respond_error(x, &err);
    exchange_resume(x);
}

void v2_load_handle(struct exchange *x)
{
    repository_submit(x, LOADER_LOAD);
}

void v2_unload_handle(struct exchange *x)
{
    repository_submit(x, LOADER_UNLOAD);
}
