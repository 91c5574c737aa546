/* POST /v2/repository/models/M/load and /unload, for admins: waits for the loader. */
#include <stdlib.h>
#include <string.h>

#include "proto/v2.h"
#include "server/http/api/route_table.h"
#include "server/http/api/submission.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/loader/loader.h"

struct repository_work {
    struct exchange *exchange;
    struct error outcome; /* status OK: done */
};

/* As in Triton, the answer to success has no content. */
static void repository_finish(struct exchange *x)
{
    const struct repository_work *work = x->work;
    if (x->answer.status)
        return;
    if (work->outcome.status == STATUS_OK) {
        respond_json(x, 200, strdup(x->route->is_message ? "" : "{}\n"));
        return;
    }
    respond_error(x, &work->outcome);
}

static void repository_loaded(void *context, enum status status, const struct error *err)
{
    struct repository_work *work = context;
    if (status != STATUS_OK)
        work->outcome = *err;
    exchange_resume(work->exchange);
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
    } else {
        if (v2_repository_unpack(x->body.data, x->body.size, x->match.model, &overrides, &err) !=
            STATUS_OK) {
            respond_error(x, &err);
            return;
        }
    }
    if (overrides) {
        respond_refusal(x, 400, "invalid_request",
                        "models are loaded only from the repository; leave out the parameters "
                        "\"config\" and \"file:\"");
        return;
    }
    struct repository_work *work = loader ? calloc(1, sizeof *work) : NULL;
    if (!work) {
        error_set(&err, loader ? STATUS_NO_MEMORY : STATUS_NOT_READY,
                  loader ? "out of memory" : "this server loads no models");
        respond_error(x, &err);
        return;
    }
    work->exchange = x;
    x->work = work;
    exchange_wait(x, NULL, repository_finish);
    if (loader_submit(loader, job, x->match.model, repository_loaded, work, &err) == STATUS_OK)
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
