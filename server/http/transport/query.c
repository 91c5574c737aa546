/* Decodes percent-encoded paths and splits query parameters. */
#include "server/http/transport/query.h"

#include <stdbool.h>
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
                                 "the URL has a '%%' without two hexadecimal digits after it");
            c = (unsigned char)(high << 4 | low);
            from += 2;
        }
        if (c < 0x20 || c == 0x7F)
            return error_set(err, STATUS_INVALID, "the URL contains a control character");
        *to++ = (char)c;
    }
    *to = '\0';
    if (!utf8_valid(text, strlen(text)))
        return error_set(err, STATUS_INVALID, "the URL is not UTF-8");
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
            return error_set(err, STATUS_INVALID, "the URL has more than %d parameters", QUERY_MAX);
        if (*text)
            query.parameters[query.count++] = (struct query_parameter){text, value};
        text = next;
    }
    *ret = query;
    return STATUS_OK;
}

static size_t decode_field(unsigned char *value, size_t size)
{
    unsigned char *to = value;
    for (size_t i = 0; i < size; i++) {
        const bool is_escape = value[i] == '%' && size - i > 2;
        const int high = is_escape ? hex_digit((char)value[i + 1]) : -1;
        const int low = is_escape ? hex_digit((char)value[i + 2]) : -1;
        *to++ = high >= 0 && low >= 0 ? (unsigned char)(high << 4 | low)
                : value[i] == '+'     ? ' '
                                      : value[i];
        i += high >= 0 && low >= 0 ? 2 : 0;
    }
    return (size_t)(to - value);
}

unsigned char *query_form_field(unsigned char *form, size_t size, const char *name,
                                size_t *ret_size)
{
    const size_t length = strlen(name);
    for (size_t at = 0, end; at < size; at = end + 1) {
        const unsigned char *next = memchr(form + at, '&', size - at);
        end = next ? (size_t)(next - form) : size;
        if (end - at <= length || memcmp(form + at, name, length) != 0 || form[at + length] != '=')
            continue;
        *ret_size = decode_field(form + at + length + 1, end - at - length - 1);
        return form + at + length + 1;
    }
    return NULL;
}
