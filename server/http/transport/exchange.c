/* What a handler may do with its exchange besides answering: read a header, wait, hand work to an
 * offload thread. */
#include "server/http/transport/exchange.h"

#include <microhttpd.h>

#include "server/http/transport/connections.h"
#include "server/http/transport/event_loop.h"

/* Bytes from which on a job takes an offload thread some ten milliseconds. */
#define LONG_JOB ((size_t)8 << 20)

const char *exchange_header(const struct exchange *x, const char *name)
{
    return x->handle ? MHD_lookup_connection_value(x->handle, MHD_HEADER_KIND, name) : NULL;
}

const char *exchange_address(const struct exchange *x)
{
    if (x->forwarded[0])
        return x->forwarded;
    return x->connection ? connection_address(x->connection) : NULL;
}

const char *exchange_client(const struct exchange *x)
{
    return x->key_name[0] || !x->connection ? x->key_name : exchange_address(x);
}

void exchange_wait(struct exchange *x, struct predict_request *request,
                   void (*finish)(struct exchange *exchange))
{
    bool is_new = x->state != EXCHANGE_SUSPENDED;
    if (is_new) /* else the connection's thread may be reading it */
        x->state = EXCHANGE_SUSPENDED;
    x->finish = finish;
    connection_watch(x->server->connections, x->connection, request);
    if (is_new)
        MHD_suspend_connection(x->handle);
}

static void run_offloaded(void *context)
{
    struct exchange *x = context;
    x->offloaded(x);
}

void exchange_offload(struct exchange *x, size_t bytes, void (*run)(struct exchange *exchange))
{
    x->offloaded = run;
    x->offload =
        (struct offload_job){.run = run_offloaded, .context = x, .is_long = bytes >= LONG_JOB};
    offload_run(x->server->offload, &x->offload);
}

void exchange_resume(struct exchange *x)
{
    event_loop_resume(x->loop, x->handle);
}
