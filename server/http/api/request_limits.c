/* Reads the time limit, the priority and the client of a request. */
#include "server/http/api/request_limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"
#include "server/http/transport/penalty.h"

#define MAX_TIMEOUT_MS 86400000 /* a day */

/* Reads a header's integer; without the header *ret does not change. */
static enum status request_limits_read_number(const struct exchange *x, const char *header,
                                              long least, long most, long *ret, struct error *err)
{
    const char *text = exchange_header(x, header);
    char *end = NULL;
    long value = -1;
    if (!text)
        return STATUS_OK;
    errno = 0;
    if (text[0] >= '0' && text[0] <= '9')
        value = strtol(text, &end, 10);
    if (!end || *end || errno || value < least || value > most)
        return error_set(err, STATUS_INVALID,
                         "%s is '%.40s'; it must be a whole number from %ld to %ld", header, text,
                         least, most);
    *ret = value;
    return STATUS_OK;
}

/* Reads a duration as Ollama does: "0", "30s", "5m"; "-1" means forever. */
static enum status read_keep_alive(const struct exchange *x, struct predict_request *request,
                                   struct error *err)
{
    const char *text = query_value(&x->query, "keep_alive");
    double ms = 0;
    if (!text)
        return STATUS_OK;
    if (strcmp(text, "-1") != 0 && (!text_read_ms(text, &ms) || ms > MAX_TIMEOUT_MS))
        return error_set(err, STATUS_INVALID,
                         "keep_alive is '%.40s'; it must be a time from 0 to a day, such as 0, 30s "
                         "or 5m, or -1 for ever",
                         text);
    request->has_keep_alive = true;
    request->keep_alive_ns = text[0] == '-' ? INT64_MAX : (int64_t)(ms * 1e6);
    return STATUS_OK;
}

enum status request_limits_read(const struct exchange *x, struct predict_request *request,
                                struct error *err)
{
    long timeout_ms = (long)x->server->options.default_timeout_ms, priority = 0;
    TRY(request_limits_read_number(x, "X-Request-Timeout-Ms", 1, MAX_TIMEOUT_MS, &timeout_ms, err));
    TRY(request_limits_read_number(x, "X-Priority", 0, QUEUE_PRIORITIES, &priority, err));
    TRY(read_keep_alive(x, request, err));
    const char *client = exchange_client(x);
    request->started = x->started;
    request->deadline = timeout_ms ? x->started + (int64_t)timeout_ms * 1000000 : 0;
    request->priority = (int)priority;
    request->client = client[0] ? penalty_client(client, NULL) : 0;
    return STATUS_OK;
}

enum status request_limits_of_body(struct predict_request *request, int64_t timeout_us,
                                   int64_t priority, struct error *err)
{
    /* Ignore a time limit of centuries: it exceeds the range of clock_now(). */
    if (timeout_us && timeout_us <= (INT64_MAX - request->started) / 1000) {
        const int64_t deadline = request->started + timeout_us * 1000;
        if (request->deadline == 0 || deadline < request->deadline)
            request->deadline = deadline;
    }
    if (priority > QUEUE_PRIORITIES)
        return error_set(err, STATUS_INVALID,
                         "priority is %lld; it may be 1 (goes first) to %d (goes last), 0 for the "
                         "default, %d",
                         (long long)priority, QUEUE_PRIORITIES, QUEUE_DEFAULT_PRIORITY);
    if (priority)
        request->priority = (int)priority;
    return STATUS_OK;
}

enum status request_limits_ask_room(struct exchange *x, struct predict_request *request,
                                    struct error *err)
{
    TRY(request_limits_read(x, request, err));
    int retry_after_s = 0;
    enum status status = model_host_would_admit(x->server->options.model_host, request, 1,
                                                (size_t)x->expected, &retry_after_s, err);
    x->answer.retry_after_s = status == STATUS_OK ? 0 : retry_after_s;
    return status;
}
