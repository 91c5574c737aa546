/* The words and HTTP numbers of statuses, and error sentences: formats them, replaces control
 * characters, adds advice and prefixes. */
#include "engine/base/status.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/utf8.h"

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

static const char mark[] = "…"; /* marks a cut */

/* Names from model files and headers occur in these texts. Control characters must not reach a
 * terminal, a log line or JSON, and a cut must not split a UTF-8 character. */
static void tidy(char *text, size_t size, int wanted)
{
    size_t length;
    for (char *p = text; *p; p += length)
        if (utf8_is_control(utf8_character(p, strnlen(p, 4), &length)))
            memset(p, '?', length);
    if (wanted < 0 || (size_t)wanted < size)
        return;
    size_t end = size - sizeof mark;
    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
        end--;
    memcpy(text + end, mark, sizeof mark);
}

#undef error_set /* a macro for the analyzer */
enum status error_set(struct error *err, enum status status, const char *format, ...)
{
    if (!err)
        return status;
    /* An argument may be the old message itself, so format into a buffer first. */
    char text[sizeof err->message];
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tidy(text, sizeof text, wanted);
    err->status = status;
    err->is_advised = false;
    err->retry_after_s = status_http(status) == 503;
    memcpy(err->message, text, sizeof text);
    return status;
}

/* The start of the first UTF-8 character at or after `at`. */
static const char *character_at(const char *at)
{
    while (((unsigned char)*at & 0xC0) == 0x80)
        at++;
    return at;
}

enum status error_advise(struct error *err, const char *format, ...)
{
    if (!err)
        return STATUS_INTERNAL;
    if (err->is_advised)
        return err->status;
    char advice[sizeof err->message / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(advice, sizeof advice, format, args);
    va_end(args);
    size_t room = sizeof err->message - strlen(advice) - sizeof "; ", length = strlen(err->message);
    if (length > room) {
        length = room - sizeof mark;
        while (length > 0 && ((unsigned char)err->message[length] & 0xC0) == 0x80)
            length--;
        memcpy(err->message + length, mark, sizeof mark);
    }
    (void)error_set(err, err->status, "%s; %s", err->message, advice);
    err->is_advised = true;
    return err->status;
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
    bool is_advised = err->is_advised;
    int seconds = err->retry_after_s;
    size_t room = sizeof err->message - 1, length = strlen(prefix) + 2 + strlen(err->message);
    if (length <= room) {
        (void)error_set(err, err->status, "%s: %s", prefix, err->message);
    } else {
        /* Cut the prefix's start: its end and the message are nearer to the fault. */
        size_t cut = length - room + strlen(mark);
        const char *rest = cut < strlen(prefix) ? character_at(prefix + cut) : "";
        (void)error_set(err, err->status, "%s%s: %s", mark, rest, err->message);
    }
    err->is_advised = is_advised;
    err->retry_after_s = seconds ? seconds : err->retry_after_s;
    return err->status;
}
