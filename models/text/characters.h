/* Private to models/text/: Unicode for tokenizers, by utf8proc: character classes, normal forms,
 * lower case. Classes and their names follow the Rust crates that `tokenizers` uses. The class of
 * a new character depends on the Unicode version of utf8proc. */
#pragma once

#include "models/text/parts.h"

bool character_is_space(uint32_t character);       /* White_Space */
bool character_is_number(uint32_t character);      /* Nd, Nl, No */
bool character_is_punctuation(uint32_t character); /* ASCII punctuation, and category P */
bool character_is_other(uint32_t character);       /* Cc, Cf, Co */
bool character_is_mark(uint32_t character);        /* Mn, Mc, Me */
bool character_is_nonspacing(uint32_t character);  /* Mn */
bool character_is_word(uint32_t character);        /* \w of the crate `regex` */

/* Returns the next character of a UTF-8 text, and moves *at past it. */
uint32_t character_next(const char *text, size_t size, size_t *at);

/* Appends the text in lower case, converted as by Rust's char::to_lowercase(). */
void characters_lower(const char *text, size_t size, struct text_parts *to);

/* Appends the text in a normal form: NFD; with `compatible` NFKD; with `compose` NFC or NFKC. */
void characters_normalize(const char *text, size_t size, bool compatible, bool compose,
                          struct text_parts *to);

/* Returns the size in bytes of the first extended grapheme cluster of text[0 … size), size > 0. */
size_t characters_grapheme(const char *text, size_t size);
