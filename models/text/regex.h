/* Regular expressions of tokenizer.json, by PCRE2. They are written for Oniguruma in Ruby's syntax;
 * where the libraries differ, an expression is translated, or refused by name. Private to
 * models/text/. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct text_regex;

/* Compiles a pattern: a regular expression, or with `literal` a text that matches itself.
 * STATUS_UNSUPPORTED names the pattern and why. Free with text_regex_free(). */
enum status text_regex_create(const char *pattern, bool literal, struct text_regex **ret,
                              struct error *err) MUST_USE;
void text_regex_free(struct text_regex *regex); /* NULL is fine */

/* Calls on_segment for the matches in text[0 … size), size > 0, and for the text between them, in
 * order; the segments cover the text. STATUS_INVALID: the text takes more steps of matching than
 * are allowed; STATUS_NO_MEMORY. Any thread. */
typedef void text_segment_fn(void *context, size_t start, size_t end, bool is_match);
enum status text_regex_each(const struct text_regex *regex, const char *text, size_t size,
                            text_segment_fn *on_segment, void *context) MUST_USE;
