/* Each handler answers once, with one of these functions. */
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

/* Takes over `text` (malloc'ed; NULL answers 500: out of memory). */
void respond_text(struct exchange *exchange, int http, const char *type, char *text, size_t size);

/* The same with a JSON text. */
void respond_json(struct exchange *exchange, int http, char *text);

/* Answers without a body: 204. */
void respond_empty(struct exchange *exchange, int http);

/* Answers with a page that clients may cache and revalidate: 200, or 304 if If-None-Match names it.
 * Takes over `text`, as above. */
void respond_page(struct exchange *exchange, const char *type, char *text, size_t size);

/* The same with a copy of `bytes`. */
void respond_asset(struct exchange *exchange, const char *type, const unsigned char *bytes,
                   size_t size);

/* Answers with {"error", "code"}, or in the form of the route's dialect, with the HTTP status of
 * err->status. A 503 gets Retry-After. */
void respond_error(struct exchange *exchange, const struct error *err);

/* The same with an HTTP status that enum status lacks: 405, 408, 414 … `code` is a constant. */
void respond_refusal(struct exchange *exchange, int http, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* If the body is longer than any settings document, refuses it (413) and returns true. Such
 * documents are parsed on the connection's own thread. */
bool respond_if_long(struct exchange *exchange);

/* Adds a header to the answer. Call it before or after the answer is set. `name` is a constant. The
 * text and the header must fit (asserted). */
void respond_header(struct exchange *exchange, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
