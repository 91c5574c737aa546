/* Classifies and normalizes characters by utf8proc. This file sorts combining marks itself, because
 * utf8proc takes quadratic time for a long run of marks. */
#include "models/text/characters.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"

/* True if the character's general category is in a set of bits. */
static bool is_in(uint32_t character, uint32_t categories)
{
    return categories >> utf8proc_category((utf8proc_int32_t)character) & 1;
}

#define BIT(category) (UINT32_C(1) << UTF8PROC_CATEGORY_##category)

bool character_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || is_in(c, BIT(ZS) | BIT(ZL) | BIT(ZP));
}

bool character_is_number(uint32_t c)
{
    return is_in(c, BIT(ND) | BIT(NL) | BIT(NO));
}

bool character_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return c > ' ' && c < 0x7F && !(c >= '0' && c <= '9') &&
               !((c | 32) >= 'a' && (c | 32) <= 'z');
    return is_in(c, BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO));
}

bool character_is_other(uint32_t c)
{
    return is_in(c, BIT(CC) | BIT(CF) | BIT(CO));
}

bool character_is_mark(uint32_t c)
{
    return c >= 0x80 && is_in(c, BIT(MN) | BIT(MC) | BIT(ME));
}

bool character_is_nonspacing(uint32_t c)
{
    return c >= 0x80 && is_in(c, BIT(MN));
}

bool character_is_word(uint32_t c)
{
    /* Alphabetic, M, Nd, Pc and Join_Control. Circled and squared Latin letters are Alphabetic,
     * too, but their category is So. */
    return is_in(c, BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO) | BIT(MN) | BIT(MC) | BIT(ME) |
                        BIT(ND) | BIT(NL) | BIT(PC)) ||
           c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
           (c >= 0x1F130 && c <= 0x1F189 && c != 0x1F14A && !(c > 0x1F149 && c < 0x1F150) &&
            !(c > 0x1F169 && c < 0x1F170));
}

uint32_t character_next(const char *text, size_t size, size_t *at)
{
    size_t length;
    const uint32_t character = utf8_character(text + *at, size - *at, &length);
    *at += length;
    return character;
}

void characters_lower(const char *text, size_t size, struct text_parts *to)
{
    for (size_t i = 0; i < size;) {
        const uint32_t c = character_next(text, size, &i);
        if (c == 0x130) /* the only one whose lower case has two characters */
            text_parts_add(to, "i\xCC\x87", 3);
        else if (c < 0x80)
            text_parts_put(to, c >= 'A' && c <= 'Z' ? c + 32 : c);
        else
            text_parts_put(to, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    }
}

static int combining_class(utf8proc_int32_t character)
{
    return character < 0x300 ? 0 : utf8proc_get_property(character)->combining_class;
}

/* Sorts a run of marks by combining class, stably, in one pass per class. */
static void order_marks(utf8proc_int32_t *run, size_t count, utf8proc_int32_t *scratch)
{
    bool is_there[256] = {false};
    size_t done = 0;
    for (size_t i = 0; i < count; i++)
        is_there[combining_class(run[i])] = true;
    for (int class = 1; class < 256; class ++)
        for (size_t i = 0; is_there[class] && i < count; i++)
            if (combining_class(run[i]) == class)
                scratch[done++] = run[i];
    memcpy(run, scratch, count * sizeof *run);
}

static void order_all_marks(utf8proc_int32_t *text, size_t count, utf8proc_int32_t *scratch)
{
    for (size_t i = 0; i < count; i++) {
        const size_t start = i;
        while (i < count && combining_class(text[i]))
            i++;
        if (i - start > 1)
            order_marks(text + start, i - start, scratch);
    }
}

void characters_normalize(const char *text, size_t size, bool compatible, bool compose,
                          struct text_parts *to)
{
    const utf8proc_option_t options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    size_t ascii = 0, count = 0, room;
    while (ascii < size && (uint8_t)text[ascii] < 0x80)
        ascii++;
    if (ascii == size || to->failed) {
        text_parts_add(to, text, size);
        return;
    }
    /* At most 6 characters per byte of the text: U+FDFA, 3 bytes, becomes 18 characters. */
    room = 6 * size + 18;
    utf8proc_int32_t *characters = alloc_array(room, 2 * sizeof *characters);
    if (!characters) {
        to->failed = STATUS_NO_MEMORY;
        return;
    }
    for (size_t i = 0; i < size;) {
        const uint32_t c = character_next(text, size, &i);
        int class = 0;
        const utf8proc_ssize_t made =
            utf8proc_decompose_char((utf8proc_int32_t)c, characters + count,
                                    (utf8proc_ssize_t)(room - count), options, &class);
        count += made > 0 ? (size_t)made : 0;
    }
    order_all_marks(characters, count, characters + room);
    if (compose)
        count = (size_t)utf8proc_normalize_utf32(characters, (utf8proc_ssize_t)count,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (size_t i = 0; i < count; i++)
        text_parts_put(to, (uint32_t)characters[i]);
    free(characters);
}

size_t characters_grapheme(const char *text, size_t size)
{
    utf8proc_int32_t state = 0;
    size_t at = 0;
    uint32_t before = character_next(text, size, &at);
    for (size_t next = at; at < size; at = next) {
        const uint32_t c = character_next(text, size, &next);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state))
            return at;
        before = c;
    }
    return size;
}
