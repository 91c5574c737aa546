/* Decodes percent-encoded paths and splits query parameters. */
#include "server/http/transport/query.h"

#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/utf8.h"

enum status url_decode(char *text, struct error *err)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        unsigned char c = (unsigned char)*from;
        if (c == '%') {
            int high = hex_digit(from[1]), low = high < 0 ? -1 : hex_digit(from[2]);
            if (low < 0)
                return error_set(err, STATUS_INVALID,
                                 "the address has a '%%' without two hexadecimal digits after it");
            c = (unsigned char)(high << 4 | low);
            from += 2;
        }
        if (c < 0x20 || c == 0x7F)
            return error_set(err, STATUS_INVALID, "the address contains a control character");
        *to++ = (char)c;
    }
    *to = '\0';
    if (!utf8_valid(text, strlen(text)))
        return error_set(err, STATUS_INVALID, "the address is not UTF-8");
    return STATUS_OK;
}

const char *query_value(const struct query *query, const char *name)
{
    for (size_t i = 0; i < query->count; i++)
        if (!strcmp(query->parameters[i].name, name))
            return query->parameters[i].value;
    return NULL;
}

static void plus_to_blank(char *text)
{
    while ((text = strchr(text, '+')))
        *text++ = ' ';
}

enum status query_parse(char *text, struct query *ret, struct error *err)
{
    struct query query = {.count = 0};
    while (text && *text) {
        char *next = strchr(text, '&');
        if (next)
            *next++ = '\0';
        char *value = strchr(text, '=');
        if (value)
            *value++ = '\0';
        else
            value = text + strlen(text);
        plus_to_blank(text);
        plus_to_blank(value);
        TRY(url_decode(value, err));
        TRY(url_decode(text, err));
        if (*text && query_value(&query, text))
            return error_set(err, STATUS_INVALID, "parameter '%.60s' is given twice", text);
        if (*text && query.count == QUERY_MAX)
            return error_set(err, STATUS_INVALID, "the address has more than %d parameters",
                             QUERY_MAX);
        if (*text)
            query.parameters[query.count++] = (struct query_parameter){text, value};
        text = next;
    }
    *ret = query;
    return STATUS_OK;
}
