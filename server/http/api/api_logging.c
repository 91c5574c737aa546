/* GET and POST /v2/logging: shows the log's settings and changes them at run time. */
#include "proto/json.h"
#include "server/http/api/route_table.h"
#include "server/http/transport/exchange.h"
#include "server/http/transport/respond.h"
#include "server/observe/log.h"

static struct logging_settings current(void)
{
    enum log_level lowest = log_lowest;
    return (struct logging_settings){.error = true,
                                     .warning = lowest <= LOG_WARN,
                                     .info = lowest <= LOG_INFO,
                                     .verbose = lowest <= LOG_DEBUG,
                                     .as_json = log_as_json};
}

static void change(struct exchange *x, const struct logging_settings *wanted)
{
    enum log_level lowest = wanted->verbose > 0 ? LOG_DEBUG
                            : wanted->info      ? LOG_INFO
                            : wanted->warning   ? LOG_WARN
                                                : LOG_ERROR;
    /* Log with the more verbose of both levels, so that the line appears if one shows info. */
    enum log_level before = log_lowest;
    log_lowest = lowest < before ? lowest : before;
    log_event(LOG_INFO, "log", LOG_STR("level", log_level_name(lowest)),
              LOG_STR("format", wanted->as_json ? "json" : "text"),
              LOG_STR("by", exchange_client(x)));
    log_as_json = wanted->as_json;
    log_lowest = lowest;
}

void logging_handle(struct exchange *x)
{
    struct error err;
    struct logging_settings settings = current();
    if (x->method[0] == 'P') {
        if (respond_if_long(x))
            return;
        if (logging_json_read((const char *)x->body.data, x->body.size, &settings, &err) !=
            STATUS_OK) {
            respond_error(x, &err);
            return;
        }
        change(x, &settings);
    }
    settings = current();
    respond_json(x, 200, logging_json(&settings));
}
