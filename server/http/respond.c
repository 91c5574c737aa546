#include "server/http/respond.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/answers.h"

#define OUT_OF_MEMORY "{\"error\":\"out of memory\",\"code\":\"out_of_memory\"}\n"

void respond_text(struct exchange *exchange, int http, const char *type, char *text, size_t size)
{
    free(exchange->answer.text);
    exchange->answer.status = http;
    exchange->answer.type = type;
    exchange->answer.code = NULL;
    exchange->answer.text = text;
    exchange->answer.size = size;
    if (text)
        return;
    exchange->answer.status = 500;
    exchange->answer.type = TYPE_JSON;
    exchange->answer.text = strdup(OUT_OF_MEMORY);
    exchange->answer.size = exchange->answer.text ? sizeof OUT_OF_MEMORY - 1 : 0;
}

static void respond_with(struct exchange *exchange, int http, const char *code,
                         const char *sentence)
{
    size_t size = 0;
    char *text = error_json(sentence, code, &size);
    respond_text(exchange, http, TYPE_JSON, text, size);
    exchange->answer.code = code;
    if (http == 503 && exchange->answer.retry_after_s == 0)
        exchange->answer.retry_after_s = 1;
}

void respond_error(struct exchange *exchange, const struct error *err)
{
    respond_with(exchange, status_http(err->status), status_word(err->status), err->message);
}

void respond_refusal(struct exchange *exchange, int http, const char *code, const char *format, ...)
{
    char sentence[480];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    respond_with(exchange, http, code, sentence);
}

static const char *reason_phrase(int http)
{
    switch (http) {
    case 400:
        return "Bad Request";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 414:
        return "URI Too Long";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    default:
        return "Error";
    }
}

char *respond_raw(const struct answer *answer, const char *request_id, size_t *ret_size)
{
    char id[REQUEST_ID_MAX + 32] = "", allow[64] = "", retry[48] = "", methods[32];
    if (request_id)
        snprintf(id, sizeof id, "X-Request-Id: %s\r\n", request_id);
    if (answer->allow)
        snprintf(allow, sizeof allow, "Allow: %s\r\n",
                 route_allow(answer->allow, methods, sizeof methods));
    if (answer->retry_after_s > 0)
        snprintf(retry, sizeof retry, "Retry-After: %d\r\n", answer->retry_after_s);
    char *raw = NULL;
    int n = asprintf(&raw,
                     "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n%s%s%s"
                     "Connection: close\r\n\r\n%s",
                     answer->status, reason_phrase(answer->status), answer->type, answer->size, id,
                     allow, retry, answer->text ? answer->text : "");
    if (n < 0)
        return NULL;
    *ret_size = (size_t)n;
    return raw;
}
