/* Private to models/text/: regular expressions of tokenizer.json, by PCRE2. The file has them in
 * Ruby's syntax, for Oniguruma. Where PCRE2 differs, lensd translates or refuses an expression. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/status.h"

struct text_regex;

/* Compiles a pattern: a regular expression, or with `literal` a text that matches itself.
 * STATUS_UNSUPPORTED names the pattern and the reason. Free *ret with text_regex_free(), also after
 * an error. */
enum status text_regex_create(const char *pattern, bool literal, struct text_regex **ret,
                              struct error *err) MUST_USE;
void text_regex_free(struct text_regex *regex); /* NULL is fine */

/* Calls on_segment in order for the matches in text[0 … size), size > 0, and for the text between
 * matches. STATUS_INVALID: matching exceeds the step limit; STATUS_NO_MEMORY. Any thread. */
typedef void text_segment_fn(void *context, size_t start, size_t end, bool is_match);
enum status text_regex_each(const struct text_regex *regex, const char *text, size_t size,
                            text_segment_fn *on_segment, void *context) MUST_USE;
