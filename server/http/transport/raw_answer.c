/* Formats an answer that bypasses libmicrohttpd. */
#include "server/http/transport/raw_answer.h"

#include <microhttpd.h>
#include <stdio.h>

#include "engine/base/text.h"

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
