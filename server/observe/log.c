/* Formats log events as text or JSON and writes each in one call. */
#include "server/observe/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define VALUE_MAX 1024

static _Atomic bool write_json;
static _Atomic int lowest_level = LOG_INFO;
static _Atomic unsigned long lost_lines; /* lost or cut since the last one written whole */
static _Atomic unsigned long lost_total;
static _Atomic bool ends_within_line; /* the last write ended inside a line */

/* A line under construction; `full` once something did not fit. */
struct log_line {
    char *text;
    size_t used, size;
    bool full;
};

void log_configure(bool json, enum log_level lowest)
{
    log_set_json(json);
    log_set_lowest(lowest);
}

void log_set_json(bool json)
{
    atomic_store_explicit(&write_json, json, memory_order_relaxed);
}

void log_set_lowest(enum log_level lowest)
{
    atomic_store_explicit(&lowest_level, (int)lowest, memory_order_relaxed);
}

bool log_is_json(void)
{
    return atomic_load_explicit(&write_json, memory_order_relaxed);
}

enum log_level log_lowest(void)
{
    return (enum log_level)atomic_load_explicit(&lowest_level, memory_order_relaxed);
}

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return names[level];
}

static void line_put(struct log_line *line, const char *text, size_t size)
{
    if (line->full || size > line->size - line->used) {
        line->full = true;
        return;
    }
    memcpy(line->text + line->used, text, size);
    line->used += size;
}

static void line_put_text(struct log_line *line, const char *text)
{
    line_put(line, text, strlen(text));
}

__attribute__((format(printf, 2, 3))) static void line_put_format(struct log_line *line,
                                                                  const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    line_put_text(line, text);
}

/* Reads the UTF-8 character at s: returns its bytes (1 … 4) and its code point, or 1 and
 * UINT32_MAX where the bytes are not UTF-8 (RFC 3629: no overlong forms, no surrogates). */
static size_t read_character(const unsigned char *s, uint32_t *ret)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = s[0] < 0x80             ? 1
                    : (s[0] & 0xE0) == 0xC0 ? 2
                    : (s[0] & 0xF0) == 0xE0 ? 3
                    : (s[0] & 0xF8) == 0xF0 ? 4
                                            : 0;
    *ret = UINT32_MAX;
    if (length == 0)
        return 1;
    uint32_t point = length == 1 ? s[0] : s[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) /* also the terminator */
            return 1;
        point = point << 6 | (s[i] & 0x3F);
    }
    if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
        return 1;
    *ret = point;
    return length;
}

/* The inside of a quoted string, in JSON's escapes, which read well in text too. The controls
 * beyond ASCII (U+0080 … U+009F) move a terminal's cursor as ESC does, and U+2028 / U+2029 break
 * lines in some viewers: they are escaped as well. */
static void line_put_escaped(struct log_line *line, const char *value)
{
    const unsigned char *s = (const unsigned char *)value;
    size_t read = 0;
    while (s[read]) {
        uint32_t point;
        size_t length = read_character(s + read, &point);
        if (read + length > VALUE_MAX) {
            line_put_text(line, "…");
            return;
        }
        if (point == UINT32_MAX)
            line_put_text(line, "\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        else if (point == '"' || point == '\\')
            line_put_format(line, "\\%c", (char)point);
        else if (point == '\n')
            line_put_text(line, "\\n");
        else if (point < 0x20 || (point >= 0x7F && point < 0xA0) || point == 0x2028 ||
                 point == 0x2029)
            line_put_format(line, "\\u%04" PRIx32, point);
        else
            line_put(line, value + read, length);
        read += length;
    }
}

/* Whether a text value reads unambiguously without quotes. */
static bool is_plain(const char *value)
{
    for (const unsigned char *s = (const unsigned char *)value; *s; s++)
        if (*s <= ' ' || *s >= 0x7F || *s == '"' || *s == '\\' || *s == '=')
            return false;
    return *value != '\0' && strlen(value) <= VALUE_MAX;
}

static void line_put_string(struct log_line *line, bool json, const char *value)
{
    if (!value) {
        line_put_text(line, json ? "null" : "-");
    } else if (!json && is_plain(value)) {
        line_put_text(line, value);
    } else {
        line_put_text(line, "\"");
        line_put_escaped(line, value);
        line_put_text(line, "\"");
    }
}

static void line_put_value(struct log_line *line, bool json, const struct log_field *field)
{
    switch (field->kind) {
    case LOG_KIND_TEXT:
        line_put_string(line, json, field->text);
        return;
    case LOG_KIND_INTEGER:
        line_put_format(line, "%" PRId64, field->integer);
        return;
    case LOG_KIND_REAL:
        if (json && !isfinite(field->real)) /* JSON has no such numbers */
            line_put_text(line, "null");
        else
            line_put_format(line, "%.6g", field->real);
        return;
    case LOG_KIND_BOOL:
        line_put_text(line, field->boolean ? "true" : "false");
        return;
    }
}

static void line_put_head(struct log_line *line, bool json, const struct timespec *time,
                          enum log_level level, const char *event)
{
    struct tm parts;
    char text[32], offset[8] = "+0000";
    int milliseconds = (int)(time->tv_nsec / 1000000);
    if (json) {
        gmtime_r(&time->tv_sec, &parts);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
        line_put_format(line, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"event\":\"", text,
                        milliseconds, log_level_name(level));
        line_put_escaped(line, event);
        line_put_text(line, "\"");
    } else {
        localtime_r(&time->tv_sec, &parts);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
        strftime(offset, sizeof offset, "%z", &parts); /* +0200 */
        line_put_format(line, "%s.%03d%.3s:%s %-5s ", text, milliseconds, offset, offset + 3,
                        log_level_name(level));
        line_put_escaped(line, event);
    }
}

size_t log_format(bool json, const struct timespec *time, enum log_level level,
                  const struct log_field *fields, char line[static LOG_LINE_MAX])
{
    static const char json_cut[] = ",\"cut\":true", text_cut[] = " cut=true";
    /* Keeps room for the `cut` mark and the end of the line. */
    struct log_line out = {.size = LOG_LINE_MAX - sizeof json_cut - sizeof "}\n"};
    out.text = line;
    line_put_head(&out, json, time, level, fields[0].text);
    bool cut = false;
    for (const struct log_field *field = fields + 1; field->key; field++) {
        size_t before = out.used;
        line_put_format(&out, json ? ",\"%s\":" : " %s=", field->key);
        line_put_value(&out, json, field);
        if (out.full) {
            out.used = before;
            out.full = false;
            cut = true;
        }
    }
    out.size = LOG_LINE_MAX;
    if (cut)
        line_put_text(&out, json ? json_cut : text_cut);
    line_put_text(&out, json ? "}\n" : "\n");
    return out.used;
}

/* One write for the whole line: lines of several threads and processes do not mix. */
static bool log_write_line(const char *line, size_t size)
{
    const bool begins_anew = atomic_exchange(&ends_within_line, false);
    const struct iovec parts[] = {{(void *)(uintptr_t) "\n", 1}, {(void *)(uintptr_t)line, size}};
    const size_t wanted = size + begins_anew;
    ssize_t written;
    do
        written = writev(STDERR_FILENO, parts + !begins_anew, 1 + begins_anew);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)wanted)
        return true;
    if (written > (ssize_t)begins_anew || (written <= 0 && begins_anew))
        atomic_store(&ends_within_line, true);
    return false;
}

/* A failed write (standard error closed, disk full) must not stop the server. The next line that
 * can be written is followed by the number of lost ones. */
static void write_or_count(const char *line, size_t size)
{
    if (!log_write_line(line, size)) {
        atomic_fetch_add(&lost_lines, 1);
        atomic_fetch_add(&lost_total, 1);
        return;
    }
    const unsigned long lost = atomic_exchange(&lost_lines, 0);
    if (lost)
        log_event(LOG_WARN, "log lines lost", LOG_INT("lines", (int64_t)lost),
                  LOG_STR("text", "writing to standard error failed; check the disk or the "
                                  "process that reads it"));
}

unsigned long log_lost_total(void)
{
    return atomic_load(&lost_total);
}

void log_fields(enum log_level level, const struct log_field *fields)
{
    if ((int)level < atomic_load_explicit(&lowest_level, memory_order_relaxed))
        return;
    char line[LOG_LINE_MAX];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int saved = errno; /* callers may log before they look at it */
    size_t size = log_format(atomic_load_explicit(&write_json, memory_order_relaxed), &now, level,
                             fields, line);
    write_or_count(line, size);
    errno = saved;
}
