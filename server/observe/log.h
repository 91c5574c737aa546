/* The log: one line per event on standard error, as text for people or JSON for machines.
 *
 *     2026-11-21T12:03:04.512+00:00 info  ready model=digits threads=2 note="two words"
 *     {"time":"2026-11-21T12:03:04.512Z","level":"info","event":"ready","model":"digits",…}
 *
 * An event has a short constant name and typed fields:
 *
 *     log_event(LOG_INFO, "ready", LOG_STR("model", name), LOG_INT("threads", 2));
 *
 * Thread-safe. Lines are written in order. Each write(2) has whole lines and at most LOG_LINE_MAX
 * bytes, which a pipe accepts whole, so lines of several processes do not mix. After log_start() no
 * caller waits for the reader of standard error. If more than 256 KiB of lines are not written yet,
 * new lines are dropped, and a later line says how many. Values may come from clients: control
 * characters and malformed UTF-8 are escaped, so that clients cannot forge a line or control a
 * terminal. The log never has image content or secrets. Only server/ logs an error, once, where it
 * is handled. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

enum log_kind { LOG_KIND_TEXT, LOG_KIND_INTEGER, LOG_KIND_REAL, LOG_KIND_BOOL };

/* Use the macros below. The key is a constant of letters, digits and '_'. */
struct log_field {
    const char *key;
    enum log_kind kind;
    union {
        const char *text; /* may be NULL: null in JSON, '-' in text */
        int64_t integer;
        double real;
        bool boolean;
    };
};

#define LOG_STR(name, value)                                                                       \
    ((struct log_field){.key = (name), .kind = LOG_KIND_TEXT, .text = (value)})
#define LOG_INT(name, value)                                                                       \
    ((struct log_field){.key = (name), .kind = LOG_KIND_INTEGER, .integer = (int64_t)(value)})
#define LOG_REAL(name, value)                                                                      \
    ((struct log_field){.key = (name), .kind = LOG_KIND_REAL, .real = (double)(value)})
#define LOG_BOOL(name, value)                                                                      \
    ((struct log_field){.key = (name), .kind = LOG_KIND_BOOL, .boolean = (value)})

/* If standard error is the journal (JOURNAL_STREAM of systemd.exec(5)), gives lines a priority such
 * as "<4>", and omits the time in the text form. Call it before any thread starts. */
void log_find_journal(void);

/* The format (initially text), and the lowest level that is written (initially LOG_INFO). Any
 * thread may change both at any time. */
extern _Atomic bool log_as_json;
extern _Atomic enum log_level log_lowest;

/* Returns "debug", "info", "warn" or "error". */
const char *log_level_name(enum log_level level);

/* Writes an event with any number of fields, or none. */
#define log_event(level, event, ...)                                                               \
    log_fields((level),                                                                            \
               (const struct log_field[]){LOG_STR("event", event), ##__VA_ARGS__, {.key = NULL}})

/* Implements log_event(). fields[0] is the event. A field whose key is NULL ends the list. */
void log_fields(enum log_level level, const struct log_field *fields);

/* Writes an error as a plain line, not an event; `format` has no newline. Truncated at
 * LOG_LINE_MAX. */
__attribute__((format(printf, 1, 2))) void log_print(const char *format, ...);

/* Writes text shorter than LOG_LINE_MAX to standard output; drops it if the reader of standard
 * output stalls for a second. Call it once. */
__attribute__((format(printf, 1, 2))) void log_banner(const char *format, ...);

/* Starts the thread that writes the log. Before this call, each function above waits until its line
 * is written. Call it once. The thread ends with the process. Returns false if the system refuses a
 * thread. */
bool log_start(void);

/* Waits until all lines are written; call it before the process ends. Waits at most 5 s, and gives
 * up after a second in which nothing is written. */
void log_flush(void);

/* Number of lines since the start that were dropped or could not be written completely. */
unsigned long log_lost_total(void);

#define LOG_LINE_MAX 4096

/* Formats a line with its newline, as log_fields() writes it; only tests call this directly.
 * Returns its length. A field that does not fit is omitted; the line then ends in cut=true. A text
 * value is truncated after 1024 bytes, and then ends in "…". */
size_t log_format(bool json, bool journal, const struct timespec *time, enum log_level level,
                  const struct log_field *fields, char line[static LOG_LINE_MAX]);
