/* A checker for RFC 8259: a state machine with an explicit stack of levels. The checker can cut out
 * large arrays: it then counts their brackets, but does not check their elements.
 *
 * Easy to get wrong: "1." and "01" are not numbers; a comma before a closing bracket is not JSON;
 * "\ud800" alone has no meaning; a NUL byte must not end the text. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/hex.h"
#include "engine/base/text.h"
#include "engine/base/utf8.h"
#include "proto/json_extract.h"
#include "proto/strbuf.h"

#define JSON_BYTES_MAX ((size_t)1 << 30)

enum status json_scan_error(const struct json_scan *s, const char *expected)
{
    if (s->at >= s->size)
        return error_set(s->err, STATUS_INVALID, "JSON ends at byte %zu where %s was expected",
                         s->size, expected);
    unsigned char c = (unsigned char)s->text[s->at];
    if (c > 0x20 && c < 0x7F)
        return error_set(s->err, STATUS_INVALID, "JSON: '%c' at byte %zu where %s was expected", c,
                         s->at, expected);
    return error_set(s->err, STATUS_INVALID, "JSON: byte 0x%02x at byte %zu where %s was expected",
                     c, s->at, expected);
}

static enum status count_value(struct json_scan *s)
{
    if (++s->values > s->limits->max_values)
        return error_set(s->err, STATUS_INVALID, "JSON has more than %zu values; send fewer",
                         s->limits->max_values);
    return STATUS_OK;
}

static enum status scan_unit(struct json_scan *s, unsigned *ret)
{
    unsigned unit = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int digit = s->at < s->size ? hex_digit(s->text[s->at]) : -1;
        if (digit < 0)
            return json_scan_error(s, "four hexadecimal digits after \\u");
        unit = unit << 4 | (unsigned)digit;
    }
    *ret = unit;
    return STATUS_OK;
}

/* Reads the escape after the "\u" that ends at s->at. */
static enum status scan_unicode_escape(struct json_scan *s)
{
    unsigned unit = 0, low = 0;
    TRY(scan_unit(s, &unit));
    if (unit == 0)
        return error_set(s->err, STATUS_INVALID, "JSON: \\u0000 at byte %zu is not accepted",
                         s->at);
    if (unit < 0xD800 || unit > 0xDFFF)
        return STATUS_OK;
    if (unit > 0xDBFF || s->size - s->at < 2 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
        return error_set(s->err, STATUS_INVALID, "JSON: lone surrogate before byte %zu", s->at);
    s->at += 2;
    TRY(scan_unit(s, &low));
    if (low < 0xDC00 || low > 0xDFFF)
        return error_set(s->err, STATUS_INVALID, "JSON: lone surrogate before byte %zu", s->at);
    return STATUS_OK;
}

static enum status scan_string(struct json_scan *s)
{
    if (json_peek(s) != '"')
        return json_scan_error(s, "'\"'");
    s->at++;
    size_t start = s->at;
    for (;;) {
        if (s->at >= s->size)
            return json_scan_error(s, "the end of a string");
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"')
            break;
        if (c < 0x20)
            return json_scan_error(
                s, "a character of a string (control characters are written \\u00XX)");
        s->at++;
        if (c != '\\')
            continue;
        char escape = json_peek(s);
        if (escape == 'u') {
            s->at++;
            TRY(scan_unicode_escape(s));
        } else if (escape != '\0' && strchr("\"\\/bfnrt", escape)) {
            s->at++;
        } else {
            return json_scan_error(s, "an escape (\\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX)");
        }
    }
    if (!utf8_valid(s->text + start, s->at - start))
        return error_set(s->err, STATUS_INVALID, "JSON: the string at byte %zu is not UTF-8",
                         start);
    s->at++;
    return STATUS_OK;
}

static double slow_double(const char *text, size_t size)
{
    char copy[64];
    if (size < sizeof copy) {
        memcpy(copy, text, size);
        copy[size] = '\0';
        return strtod(copy, NULL);
    }
    char *longer = strndup(text, size);
    double value = longer ? strtod(longer, NULL) : 0;
    free(longer);
    return value;
}

/* Adds digits to the mantissa, and clears *fits once it exceeds 64 bits. Returns their number. */
static size_t scan_digits(struct json_scan *s, uint64_t *mantissa, bool *fits)
{
    const size_t start = s->at;
    for (; json_peek(s) >= '0' && json_peek(s) <= '9'; s->at++) {
        uint64_t more, digit = (uint64_t)(s->text[s->at] - '0');
        *fits = *fits && !__builtin_mul_overflow(*mantissa, (uint64_t)10, &more) &&
                !__builtin_add_overflow(more, digit, &more);
        if (*fits)
            *mantissa = more;
    }
    return s->at - start;
}

enum status json_scan_number(struct json_scan *s, struct json_number *ret)
{
    const size_t start = s->at;
    struct json_number number = {.is_integer = true};
    uint64_t size = 0; /* of the exponent */
    size_t fraction = 0;
    bool fits = true, is_small = true, is_down = false;
    if (json_peek(s) == '-') {
        number.negative = true;
        s->at++;
    }
    if (json_peek(s) == '0')
        s->at++;
    else if (!scan_digits(s, &number.magnitude, &fits))
        return json_scan_error(s, number.negative ? "a digit" : "a number");
    if (json_peek(s) == '.') {
        s->at++;
        number.is_integer = false;
        fraction = scan_digits(s, &number.magnitude, &fits);
        if (!fraction)
            return json_scan_error(s, "a digit after the point");
    }
    if (json_peek(s) == 'e' || json_peek(s) == 'E') {
        s->at++;
        number.is_integer = false;
        is_down = json_peek(s) == '-';
        s->at += is_down || json_peek(s) == '+';
        if (!scan_digits(s, &size, &is_small))
            return json_scan_error(s, "a digit of the exponent");
    }
    if (!ret)
        return STATUS_OK;
    number.is_integer = number.is_integer && fits;
    /* With exact digits and an exact power of ten, the result is the double nearest to the number
     * (Clinger 1990). A fraction has fewer than UINT32_MAX digits. */
    const int64_t exponent = (int64_t)(is_small && size < UINT32_MAX ? size : UINT32_MAX);
    const int64_t scale = (is_down ? -exponent : exponent) - (int64_t)fraction;
    if (fits && number.magnitude < (uint64_t)1 << 53 && scale >= -22 && scale <= 22) {
        number.value = (double)number.magnitude;
        number.value =
            scale < 0 ? number.value / exact_powers[-scale] : number.value * exact_powers[scale];
        number.value = number.negative ? -number.value : number.value;
    } else {
        number.value = slow_double(s->text + start, s->at - start);
    }
    *ret = number;
    return STATUS_OK;
}

static enum status scan_word(struct json_scan *s, const char *word)
{
    for (; *word; word++, s->at++)
        if (json_peek(s) != *word)
            return json_scan_error(s, "true, false or null");
    return STATUS_OK;
}

enum status json_scan_scalar(struct json_scan *s)
{
    switch (json_peek(s)) {
    case '"':
        return scan_string(s);
    case 't':
        return scan_word(s, "true");
    case 'f':
        return scan_word(s, "false");
    case 'n':
        return scan_word(s, "null");
    case '-':
    case '0' ... '9':
        return json_scan_number(s, NULL);
    default:
        return json_scan_error(s, "a value");
    }
}

enum status json_scan_open(struct json_scan *s)
{
    if (s->depth == s->limits->max_depth)
        return error_set(s->err, STATUS_INVALID,
                         "JSON is nested deeper than %zu levels at byte %zu; the limit is %zu "
                         "(--max-json-depth)",
                         s->limits->max_depth, s->at, s->limits->max_depth);
    s->is_object[s->depth++] = s->text[s->at++] == '{';
    return STATUS_OK;
}

static bool is_key(const struct json_scan *s, size_t begin, const char *key)
{
    const size_t length = s->at - begin - 2; /* without quotation marks */
    return length == strlen(key) && !memcmp(s->text + begin + 1, key, length);
}

static enum status scan_key(struct json_scan *s)
{
    s->at = text_skip_blanks(s->text, s->at, s->size);
    const size_t begin = s->at;
    if (json_peek(s) != '"')
        return json_scan_error(s, "a key in quotes");
    TRY(count_value(s));
    TRY(scan_string(s));
    const struct extract_rule *rule = s->cut ? s->cut->rule : NULL;
    if (rule && rule->parent && s->depth == 1)
        s->is_in_parent = is_key(s, begin, rule->parent);
    s->is_wanted = rule && s->depth == rule->depth && (s->is_in_parent || !rule->parent) &&
                   is_key(s, begin, rule->member);
    s->at = text_skip_blanks(s->text, s->at, s->size);
    if (json_peek(s) != ':')
        return json_scan_error(s, "':'");
    s->at++;
    return STATUS_OK;
}

/* Copies text[cut->copied … s->at) to cut->rest. */
static void copy_rest(struct json_scan *s)
{
    struct extraction *cut = s->cut;
    if (s->at > cut->copied) /* there may be nothing to copy */
        memcpy(cut->rest + cut->rest_size, s->text + cut->copied, s->at - cut->copied);
    cut->rest_size += s->at - cut->copied;
    cut->copied = s->at;
}

/* Replaces the array at s->at by 0, which is not longer, and records the array's place. */
static enum status cut_array(struct json_scan *s)
{
    struct extraction *cut = s->cut;
    const size_t begin = s->at;
    size_t depth = 0;
    if (cut->count == cut->max)
        return error_set(s->err, STATUS_INVALID, "the request has more than %zu of \"%s\"",
                         cut->max, cut->rule->member);
    copy_rest(s);
    do {
        const char byte = s->text[s->at++];
        depth += byte == '[';
        depth -= byte == ']';
        while (byte == '"' && s->at < s->size && s->text[s->at++] != '"')
            s->at += s->text[s->at - 1] == '\\';
    } while (depth > 0 && s->at < s->size);
    s->at = s->at < s->size ? s->at : s->size; /* a final backslash moves s->at past the end */
    cut->spans[cut->count++] = (struct json_span){s->text + begin, s->at - begin};
    cut->rest[cut->rest_size++] = '0';
    cut->copied = s->at;
    return STATUS_OK;
}

enum status json_scan_after_value(struct json_scan *s, bool *ret_more)
{
    *ret_more = false;
    while (s->depth > 0) {
        s->at = text_skip_blanks(s->text, s->at, s->size);
        bool object = s->is_object[s->depth - 1];
        if (json_peek(s) == ',') {
            s->at++;
            *ret_more = true;
            return object ? scan_key(s) : STATUS_OK;
        }
        if (json_peek(s) != (object ? '}' : ']'))
            return json_scan_error(s, object ? "',' or '}'" : "',' or ']'");
        s->at++;
        s->depth--;
    }
    return STATUS_OK;
}

/* Reads one value, or its opening bracket. *ret_opened: its first inner value follows. */
static enum status scan_value(struct json_scan *s, bool *ret_opened)
{
    *ret_opened = false;
    s->at = text_skip_blanks(s->text, s->at, s->size);
    TRY(count_value(s));
    char c = json_peek(s);
    const bool is_cut = s->is_wanted && c == '[';
    s->is_wanted = false;
    if (is_cut)
        return cut_array(s);
    if (c != '{' && c != '[')
        return json_scan_scalar(s);
    TRY(json_scan_open(s));
    s->at = text_skip_blanks(s->text, s->at, s->size);
    if (json_peek(s) == (c == '{' ? '}' : ']')) {
        s->at++;
        s->depth--;
        return STATUS_OK;
    }
    *ret_opened = true;
    return c == '{' ? scan_key(s) : STATUS_OK;
}

static enum status scan_text(struct json_scan *s)
{
    if (s->limits->max_depth > JSON_DEPTH_MAX)
        return error_set(s->err, STATUS_INVALID, "JSON: a depth limit over %d", JSON_DEPTH_MAX);
    if (s->size > JSON_BYTES_MAX)
        return error_set(s->err, STATUS_INVALID, "JSON text of %zu bytes; the limit is 1 GiB",
                         s->size);
    for (bool more = true; more;) {
        TRY(scan_value(s, &more));
        if (!more)
            TRY(json_scan_after_value(s, &more));
    }
    s->at = text_skip_blanks(s->text, s->at, s->size);
    return s->at == s->size ? STATUS_OK : json_scan_error(s, "the end");
}

enum status json_check(const char *text, size_t size, const struct json_limits *limits,
                       struct error *err)
{
    struct json_scan s = {.text = text, .size = size, .limits = limits, .err = err};
    return scan_text(&s);
}

enum status json_extract(const char *text, size_t size, const struct json_limits *limits,
                         struct extraction *cut, struct error *err)
{
    struct json_scan s = {.text = text, .size = size, .limits = limits, .err = err, .cut = cut};
    TRY(scan_text(&s));
    copy_rest(&s);
    cut->rest[cut->rest_size] = '\0';
    return STATUS_OK;
}
