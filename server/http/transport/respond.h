/* The functions with which handlers set their answer. A later answer replaces an earlier one. */
#pragma once

#include "engine/base/status.h"
#include "server/http/transport/exchange.h"

#define TYPE_JSON    "application/json"
#define TYPE_HTML    "text/html; charset=utf-8"
#define TYPE_TEXT    "text/plain; charset=utf-8"
#define TYPE_BYTES   "application/octet-stream"
#define TYPE_CSS     "text/css; charset=utf-8"
#define TYPE_SVG     "image/svg+xml"
#define TYPE_JS      "text/javascript; charset=utf-8"
#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"

/* Takes ownership of `text`, which is malloc'ed. If `text` is NULL, answers 500: out of memory. */
void respond_text(struct exchange *exchange, int http, const char *type, char *text, size_t size);

/* Like respond_text(), with a JSON text. */
void respond_json(struct exchange *exchange, int http, char *text);

/* Answers without a body, with a status such as 204. */
void respond_empty(struct exchange *exchange, int http);

/* Answers with a page that clients may cache and revalidate: 200, or 304 if If-None-Match names its
 * ETag. Takes ownership of `text` like respond_text(). */
void respond_page(struct exchange *exchange, const char *type, char *text, size_t size);

/* Answers with {"error", "code"}, or in the form of the route's dialect, with the HTTP status of
 * err->status. A 503 gets Retry-After. */
void respond_error(struct exchange *exchange, const struct error *err);

/* Like respond_error(), with any HTTP status, such as 401 or 414. `code` is a constant. */
void respond_refusal(struct exchange *exchange, int http, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* If the body is longer than 128 KiB, refuses it (413) and returns true. For requests whose short
 * JSON or message is parsed on the connection's own thread. */
bool respond_if_long(struct exchange *exchange);

/* Adds a header to the answer. Call it before or after the answer is set. `name` is a constant.
 * Asserts that the header fits into answer.headers, and its text into answer_header.value. */
void respond_header(struct exchange *exchange, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns a complete HTTP response for connection_refuse(), which bypasses libmicrohttpd;
 * malloc'ed, NULL when out of memory. request_id may be NULL. */
char *raw_answer(const struct answer *answer, const char *request_id, size_t *ret_size);
