/* Sets the answer of an exchange: text, pages with an ETag, errors as JSON. */
#include "server/http/transport/respond.h"

#include <assert.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/text.h"
#include "proto/answers.h"
#include "proto/dialects.h"
#include "server/http/transport/negotiate.h"

#define SETTINGS_MAX ((size_t)128 << 10) /* bytes of JSON that can be parsed in a millisecond */

#define OUT_OF_MEMORY "{\"error\":\"out of memory\",\"code\":\"out_of_memory\"}\n"

static void set_answer(struct answer *answer, int http, const char *type, char *text, size_t size)
{
    free(answer->text);
    answer->status = http;
    answer->type = type;
    answer->code = NULL;
    answer->text = text;
    answer->size = text ? size : 0;
}

void respond_text(struct exchange *exchange, int http, const char *type, char *text, size_t size)
{
    if (text)
        set_answer(&exchange->answer, http, type, text, size);
    else
        set_answer(&exchange->answer, 500, TYPE_JSON, strdup(OUT_OF_MEMORY),
                   sizeof OUT_OF_MEMORY - 1);
}

void respond_json(struct exchange *exchange, int http, char *text)
{
    respond_text(exchange, http, TYPE_JSON, text, text ? strlen(text) : 0);
}

void respond_empty(struct exchange *exchange, int http)
{
    set_answer(&exchange->answer, http, NULL, NULL, 0);
}

void respond_page(struct exchange *exchange, const char *type, char *text, size_t size)
{
    char etag[32];
    respond_text(exchange, 200, type, text, size);
    if (!text)
        return;
    /* Weak: the compressed and the plain page have the same tag. */
    snprintf(etag, sizeof etag, "W/\"%016llx\"",
             (unsigned long long)fnv1a(FNV1A_START, text, size));
    exchange->answer.may_keep = true;
    respond_header(exchange, "ETag", "%s", etag);
    if (negotiate_etag(exchange_header(exchange, "If-None-Match"), etag))
        exchange->answer.status = 304; /* sent without the text, but with its length */
}

static void respond_with(struct exchange *exchange, int http, const char *code,
                         const char *sentence)
{
    const struct dialect *dialect =
        exchange_dialect(exchange) ? exchange_dialect(exchange) : exchange->carrier->dialect;
    respond_json(exchange, http,
                 dialect && dialect->write_error ? dialect->write_error(http, sentence, code)
                                                 : error_json(sentence, code));
    exchange->answer.code = code;
    if (http == 503 && exchange->answer.retry_after_s == 0)
        exchange->answer.retry_after_s = 1;
}

void respond_error(struct exchange *exchange, const struct error *err)
{
    const struct dialect *dialect = exchange_dialect(exchange);
    const int http = dialect && dialect->invalid_http && err->status == STATUS_INVALID
                         ? dialect->invalid_http
                         : status_http(err->status);
    exchange->answer.retry_after_s = err->retry_after_s;
    respond_with(exchange, http, status_word(err->status), err->message);
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

bool respond_if_long(struct exchange *exchange)
{
    if (exchange->body.size <= SETTINGS_MAX)
        return false;
    respond_refusal(exchange, 413, "too_large", "the body has %zu bytes; %s takes at most %zu",
                    exchange->body.size, exchange->path, SETTINGS_MAX);
    return true;
}

void respond_header(struct exchange *exchange, const char *name, const char *format, ...)
{
    struct answer *answer = &exchange->answer;
    assert(answer->header_count < ANSWER_HEADERS_MAX);
    if (answer->header_count == ANSWER_HEADERS_MAX)
        return;
    struct answer_header *header = &answer->headers[answer->header_count++];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(header->value, sizeof header->value, format, args);
    va_end(args);
    assert(n >= 0 && (size_t)n < sizeof header->value);
    (void)n;
    header->name = name;
}

char *raw_answer(const struct answer *answer, const char *request_id, size_t *ret_size)
{
    char *raw = NULL, methods[ALLOW_TEXT];
    FILE *out = open_memstream(&raw, ret_size);
    if (!out)
        return NULL;
    fprintf(out, "HTTP/1.1 %d %s\r\n", answer->status,
            MHD_get_reason_phrase_for((unsigned)answer->status));
    if (answer->type)
        fprintf(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", answer->type, answer->size);
    if (request_id)
        fprintf(out, "X-Request-Id: %s\r\n", request_id);
    if (answer->allow)
        fprintf(out, "Allow: %s\r\n", route_allow(answer->allow, methods, sizeof methods));
    if (answer->retry_after_s > 0)
        fprintf(out, "Retry-After: %d\r\n", answer->retry_after_s);
    for (size_t i = 0; i < answer->header_count; i++)
        fprintf(out, "%s: %s\r\n", answer->headers[i].name, answer->headers[i].value);
    fputs("Connection: close\r\n\r\n", out);
    if (answer->text)
        fwrite(answer->text, 1, answer->size, out);
    return text_close(out, &raw);
}
