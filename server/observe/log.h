/* The log: one line an event on standard error, as text for people or JSON for machines.
 *
 *     12:03:04.512 info  ready model=digits device=cpu threads=2
 *     {"time":"2026-11-21T12:03:04.512Z","level":"info","event":"ready","model":"digits",…}
 *
 * Thread-safe; each line is one write. Never image content, never a secret. Only server/ logs. */
#pragma once

#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_configure(bool json, enum log_level lowest);

/* `event`: short and constant ("request", "model loaded"). Then pairs of key and printf-formatted
 * value: log_event(LOG_INFO, "ready", "model=%s", name, NULL-terminated list is error-prone, so the
 * fields are one format of space-separated key=value pairs in which a value with blanks is quoted by
 * LOG_QUOTED ("%s" through log_quote()). In JSON each pair becomes a member; a value that reads as a
 * number stays one. */
void log_event(enum log_level level, const char *event, const char *fields, ...)
    __attribute__((format(printf, 3, 4)));

/* Quotes and escapes a value for `fields` into buf; returns buf. */
const char *log_quote(const char *value, char *buf, int size);
