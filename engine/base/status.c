#include "engine/base/status.h"

#include <stdio.h>
#include <string.h>

const char *status_word(enum status status)
{
    switch (status) {
#define STATUS_CASE(name, number, word, http)                                                      \
    case STATUS_##name:                                                                            \
        return word;
        STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "internal";
}

int status_http(enum status status)
{
    switch (status) {
#define STATUS_CASE(name, number, word, http)                                                      \
    case STATUS_##name:                                                                            \
        return http;
        STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return 500;
}

/* Names from model files and headers reach these texts: nothing below a space may pass into a
 * terminal, a log line or JSON, and a cut must not leave half a UTF-8 character. */
static void tidy(char *text, size_t size, int wanted)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    if (wanted < 0 || (size_t)wanted < size)
        return;
    static const char mark[] = "…";
    size_t end = size - sizeof mark;
    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    memcpy(text + end, mark, sizeof mark);
}

#undef error_set /* the analyzer's */
enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    if (!err)
        return status;
    /* An argument may be the old message itself: format aside first. */
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tidy(text, sizeof text, wanted);
    err->status = status;
    memcpy(err->message, text, sizeof text);
    return status;
}

enum status error_prefix(struct error *err, const char *format, ...)
{
    if (!err)
        return STATUS_INTERNAL;
    char prefix[sizeof err->message / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    return error_set(err, err->status, "%s: %s", prefix, err->message);
}
