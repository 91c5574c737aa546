/* Formats log events as text or JSON. A thread writes the lines, so that callers never wait for the
 * reader of standard error. */
#include "server/observe/log.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/thread.h"
#include "engine/base/utf8.h"

#define VALUE_MAX  1024
#define HALF_BYTES ((size_t)256 << 10)

_Atomic bool log_as_json;
_Atomic enum log_level log_lowest = LOG_INFO;
static _Atomic unsigned long lost_total;
static _Atomic size_t written_total; /* bytes */
static bool is_journal;              /* set before any thread starts */

/* A line that is being formatted. full: something did not fit. */
struct log_line {
    char *text;
    size_t used, size;
    bool full;
};

void log_find_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat info;
    char own[64] = "";
    if (fstat(STDERR_FILENO, &info) == 0)
        snprintf(own, sizeof own, "%llu:%llu", (unsigned long long)info.st_dev,
                 (unsigned long long)info.st_ino);
    is_journal = stream && !strcmp(stream, own);
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

/* Writes `value` with JSON's escapes, but without quotes. The text form uses the same escapes. */
static void line_put_escaped(struct log_line *line, const char *value)
{
    size_t length;
    for (const char *at = value; *at; at += length) {
        const uint32_t character = utf8_character(at, strnlen(at, 4), &length);
        if ((size_t)(at - value) + length > VALUE_MAX) {
            line_put_text(line, "…");
            return;
        }
        if (character == UINT32_MAX)
            line_put_text(line, "\xEF\xBF\xBD"); /* U+FFFD, the replacement character */
        else if (character == '"' || character == '\\')
            line_put_format(line, "\\%c", *at);
        else if (character == '\n')
            line_put_text(line, "\\n");
        else if (utf8_is_control(character))
            line_put_format(line, "\\u%04" PRIx32, character);
        else
            line_put(line, at, length);
    }
}

/* True if the text form can show a value without quotes. */
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
        if (json && !isfinite(field->real)) /* JSON has neither NaN nor infinity */
            line_put_text(line, "null");
        else
            line_put_format(line, "%.6g", field->real);
        return;
    case LOG_KIND_BOOL:
        line_put_text(line, field->boolean ? "true" : "false");
        return;
    }
}

static void line_put_head(struct log_line *line, bool json, bool journal,
                          const struct timespec *time, enum log_level level, const char *event)
{
    static const int priorities[] = {7, 6, 4, 3}; /* sd-daemon(3) */
    struct tm parts;
    char text[32], offset[8] = "+0000";
    int milliseconds = (int)(time->tv_nsec / 1000000);
    if (journal)
        line_put_format(line, "<%d>", priorities[level]);
    if (json) {
        gmtime_r(&time->tv_sec, &parts);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
        line_put_format(line, "{\"time\":\"%s.%03dZ\",\"level\":\"%s\",\"event\":\"", text,
                        milliseconds, log_level_name(level));
        line_put_escaped(line, event);
        line_put_text(line, "\"");
        return;
    }
    if (!journal) {
        localtime_r(&time->tv_sec, &parts);
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
        strftime(offset, sizeof offset, "%z", &parts); /* +0200 */
        line_put_format(line, "%s.%03d%.3s:%s ", text, milliseconds, offset, offset + 3);
    }
    line_put_format(line, "%-5s ", log_level_name(level));
    line_put_escaped(line, event);
}

size_t log_format(bool json, bool journal, const struct timespec *time, enum log_level level,
                  const struct log_field *fields, char line[static LOG_LINE_MAX])
{
    static const char json_cut[] = ",\"cut\":true", text_cut[] = " cut=true";
    /* Leaves space for the field `cut` and the end of the line. */
    struct log_line out = {.size = LOG_LINE_MAX - sizeof json_cut - sizeof "}\n"};
    out.text = line;
    line_put_head(&out, json, journal, time, level, fields[0].text);
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

/* ---- writing ---- */

/* How long log_flush() waits for the reader of standard error: in total, and while nothing is
 * written. `docker stop` kills after 10 s, and running requests may need part of this time. */
#define FLUSH_SECONDS 5
#define STALL_SECONDS 1

/* How long the log waits for a stalled reader of standard output. */
#define STDOUT_WAIT_MS 1000

static struct {
    pthread_mutex_t lock;
    pthread_cond_t filled, written;
    /* Guarded by `lock`. No thread holds `lock` while it writes. */
    char halves[2][HALF_BYTES]; /* one collects lines, the other is written */
    int collecting;
    size_t used;               /* bytes in the half that collects lines */
    char banner[LOG_LINE_MAX]; /* text for standard output; "": none */
    bool has_thread;
    bool is_writing;    /* a thread writes the half that does not collect, and the banner */
    bool is_full;       /* new lines are dropped until write_half_locked() swaps the halves */
    bool is_failing;    /* the last write failed */
    unsigned long lost; /* dropped or cut lines that tell_lost_locked() has not yet reported */
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .filled = PTHREAD_COND_INITIALIZER,
            .written = PTHREAD_COND_INITIALIZER};

/* Returns the number of bytes written; fewer than `size` after an error. */
static size_t write_bytes(int fd, const char *text, size_t size)
{
    struct pollfd reader = {.fd = fd, .events = POLLOUT};
    size_t written = 0;
    while (written < size) {
        const ssize_t n = write(fd, text + written, size - written);
        if (n > 0) {
            written += (size_t)n;
            atomic_fetch_add_explicit(&written_total, (size_t)n, memory_order_relaxed);
        } else if (n < 0 && errno == EAGAIN) { /* the pipe is full and does not block */
            (void)poll(&reader, 1, -1);
        } else if (n == 0 || errno != EINTR) {
            break;
        }
    }
    return written;
}

/* Writes lines, in pieces of at most LOG_LINE_MAX bytes, which a pipe accepts whole. Returns the
 * number of lines that were not written completely. */
static unsigned long write_lines(const char *text, size_t size)
{
    static bool ends_within_line; /* the last write failed in the middle of a line */
    unsigned long lost = 0;
    for (size_t start = 0, end; start < size; start = end) {
        const size_t left = size - start;
        const char *last = memrchr(text + start, '\n', left < LOG_LINE_MAX ? left : LOG_LINE_MAX);
        end = (size_t)(last + 1 - text);
        size_t at = start;
        if (!ends_within_line || write_bytes(STDERR_FILENO, "\n", 1) == 1) {
            at += write_bytes(STDERR_FILENO, text + start, end - start);
            ends_within_line = at > start && text[at - 1] != '\n';
        }
        for (; at < end; at++)
            lost += text[at] == '\n';
    }
    return lost;
}

static bool write_banner(void)
{
    struct pollfd reader = {.fd = STDOUT_FILENO, .events = POLLOUT};
    const size_t size = strlen(writer.banner);
    return poll(&reader, 1, STDOUT_WAIT_MS) != 0 &&
           write_bytes(STDOUT_FILENO, writer.banner, size) == size;
}

static void count_lost_locked(unsigned long lines)
{
    writer.lost += lines;
    atomic_fetch_add(&lost_total, lines);
}

static void put_locked(const char *text, size_t size)
{
    if (writer.is_full || size > HALF_BYTES - writer.used) {
        writer.is_full = true;
        count_lost_locked(1);
        return;
    }
    memcpy(writer.halves[writer.collecting] + writer.used, text, size);
    writer.used += size;
}

static size_t format_now(enum log_level level, const struct log_field *fields,
                         char line[static LOG_LINE_MAX])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return log_format(log_as_json, is_journal, &now, level, fields, line);
}

static void tell_lost_locked(void)
{
    const struct log_field fields[] = {
        LOG_STR("event", "log lines lost"),
        LOG_INT("lines", writer.lost),
        LOG_STR("text", "standard error was full or failed; check the process that reads it, or "
                        "the disk"),
        {.key = NULL},
    };
    char line[LOG_LINE_MAX];
    writer.lost = 0;
    if (LOG_WARN >= log_lowest)
        put_locked(line, format_now(LOG_WARN, fields, line));
}

/* True if there is something to write. After a failure only a new line causes another attempt. */
static bool has_work_locked(void)
{
    return writer.used > 0 || writer.banner[0] || (writer.lost > 0 && !writer.is_failing);
}

/* Writes the half that has collected lines. Meanwhile the other half collects. If lines were lost,
 * its first line says how many. */
static void write_half_locked(void)
{
    const char *text = writer.halves[writer.collecting];
    const size_t size = writer.used;
    const bool has_banner = writer.banner[0];
    writer.collecting = !writer.collecting;
    writer.used = 0;
    writer.is_full = false;
    if (writer.lost > 0 && !writer.is_failing)
        tell_lost_locked();
    writer.is_writing = true;
    pthread_mutex_unlock(&writer.lock);
    const unsigned long lost = write_lines(text, size);
    const bool has_lost_banner = has_banner && !write_banner();
    pthread_mutex_lock(&writer.lock);
    writer.is_writing = false;
    writer.is_failing = lost > 0; /* a failure of standard output does not count */
    count_lost_locked(lost + has_lost_banner);
    if (has_banner)
        writer.banner[0] = '\0';
    pthread_cond_broadcast(&writer.written);
}

/* Wakes the log's thread. Before that thread exists, writes everything itself. */
static void wake_writer_locked(void)
{
    pthread_cond_signal(&writer.filled);
    while (!writer.has_thread && (writer.is_writing || has_work_locked()))
        if (writer.is_writing)
            pthread_cond_wait(&writer.written, &writer.lock);
        else
            write_half_locked();
}

static void put(const char *text, size_t size)
{
    LOCK(&writer.lock);
    put_locked(text, size);
    wake_writer_locked();
}

static void *log_thread(void *context)
{
    (void)context;
    pthread_mutex_lock(&writer.lock);
    for (;;) {
        if (has_work_locked())
            write_half_locked();
        else
            pthread_cond_wait(&writer.filled, &writer.lock);
    }
    return NULL;
}

bool log_start(void)
{
    pthread_t thread;
    if (!thread_start(&thread, "log", log_thread, NULL))
        return false;
    pthread_detach(thread);
    LOCK(&writer.lock);
    writer.has_thread = true;
    return true;
}

/* Waits until everything is written, at most `seconds`. */
static bool wait_written_locked(int seconds)
{
    struct timespec until;
    int failure = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    while (failure == 0 && (writer.is_writing || has_work_locked()))
        failure = pthread_cond_clockwait(&writer.written, &writer.lock, CLOCK_MONOTONIC, &until);
    return failure == 0;
}

void log_flush(void)
{
    LOCK(&writer.lock);
    for (int waited = 0; waited < FLUSH_SECONDS; waited += STALL_SECONDS) {
        const size_t before = atomic_load_explicit(&written_total, memory_order_relaxed);
        if (wait_written_locked(STALL_SECONDS) ||
            atomic_load_explicit(&written_total, memory_order_relaxed) == before)
            return;
    }
}

unsigned long log_lost_total(void)
{
    return atomic_load(&lost_total);
}

void log_print(const char *format, ...)
{
    char text[LOG_LINE_MAX] = "<3>";
    const size_t prefix = is_journal ? strlen(text) : 0;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + prefix, sizeof text - prefix, format, args);
    va_end(args);
    const size_t size = strlen(text);
    text[size] = '\n'; /* replaces the terminator */
    put(text, size + 1);
}

void log_banner(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&writer.lock);
    (void)vsnprintf(writer.banner, sizeof writer.banner, format, args);
    utf8_repair(writer.banner);
    wake_writer_locked();
    pthread_mutex_unlock(&writer.lock);
    va_end(args);
}

void log_fields(enum log_level level, const struct log_field *fields)
{
    char line[LOG_LINE_MAX];
    const int saved = errno; /* callers may log before they read errno */
    if (level < log_lowest)
        return;
    put(line, format_now(level, fields, line));
    errno = saved;
}
