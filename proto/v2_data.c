/* Reads the "data" of tensors: numbers and texts, from JSON and from binary.
 *
 * A tensor of 224 x 224 x 3 numbers is a megabyte of digits; as a tree it would be ten megabytes.
 * So the value is read once, without a tree: brackets are counted, and scalars go straight into the
 * tensor. Nested and flat arrays are equivalent, as in the protocol. A decimal number whose digits
 * are below 2^53 and whose exponent is small is computed from two exact doubles, the digits and a
 * power of ten (Clinger 1990); strtod reads the others. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/text.h"
#include "proto/strbuf.h"
#include "proto/v2.h"

struct json_cursor {
    const char *text;
    size_t size, at;
    size_t max_nesting;
    struct error *err;
    const char *name; /* the input's name */
};

static struct json_cursor cursor_of(const struct v2_input *input, struct error *err)
{
    return (struct json_cursor){input->json, input->json_size, 0, input->max_nesting,
                                err,         input->name};
}

static enum status error_expected(const struct json_cursor *c, const char *expected)
{
    if (c->at >= c->size)
        return error_set(c->err, STATUS_INVALID,
                         "input '%.80s': its data ends where %s was expected", c->name, expected);
    return error_set(c->err, STATUS_INVALID, "input '%.80s': byte %zu of its data is not a %s",
                     c->name, c->at, expected);
}

static char peek_byte(const struct json_cursor *c)
{
    return c->at < c->size ? c->text[c->at] : '\0';
}

/* A number of JSON, as an integer and as a double. */
struct number {
    bool negative, is_integer; /* is_integer: without fraction or exponent, and fits 64 bits */
    uint64_t magnitude;
    double value;
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
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

/* Reads digits at c->at: adds them to the mantissa, and clears *fits once it exceeds 64 bits.
 * Returns the number of digits. */
static size_t read_digits(struct json_cursor *c, uint64_t *mantissa, bool *fits)
{
    size_t start = c->at;
    for (; is_digit(peek_byte(c)); c->at++) {
        uint64_t more, digit = (uint64_t)(c->text[c->at] - '0');
        *fits = *fits && !__builtin_mul_overflow(*mantissa, (uint64_t)10, &more) &&
                !__builtin_add_overflow(more, digit, &more);
        if (*fits)
            *mantissa = more;
    }
    return c->at - start;
}

static enum status read_exponent(struct json_cursor *c, int *ret)
{
    bool negative = false;
    int value = 0;
    c->at++;
    if (peek_byte(c) == '+' || peek_byte(c) == '-')
        negative = c->text[c->at++] == '-';
    if (!is_digit(peek_byte(c)))
        return error_expected(c, "digit of an exponent");
    for (; is_digit(peek_byte(c)); c->at++)
        if (value < 100000)
            value = value * 10 + (c->text[c->at] - '0');
    *ret = negative ? -value : value;
    return STATUS_OK;
}

static enum status data_read_number(struct json_cursor *c, struct number *ret)
{
    size_t start = c->at, fraction = 0;
    int exponent = 0;
    bool fits = true;
    *ret = (struct number){.is_integer = true};
    if (peek_byte(c) == '-') {
        ret->negative = true;
        c->at++;
    }
    if (!is_digit(peek_byte(c)))
        return error_expected(c, "number");
    if (peek_byte(c) == '0' && c->at + 1 < c->size && is_digit(c->text[c->at + 1]))
        return error_expected(c, "number: a zero before other digits");
    read_digits(c, &ret->magnitude, &fits);
    if (peek_byte(c) == '.') {
        c->at++;
        ret->is_integer = false;
        fraction = read_digits(c, &ret->magnitude, &fits);
        if (fraction == 0)
            return error_expected(c, "digit after the point");
    }
    if (peek_byte(c) == 'e' || peek_byte(c) == 'E') {
        ret->is_integer = false;
        TRY(read_exponent(c, &exponent));
    }
    if (!fits) {
        ret->is_integer = false;
        ret->value = slow_double(c->text + start, c->at - start);
        return STATUS_OK;
    }
    int scale = exponent - (int)(fraction < 1000 ? fraction : 1000);
    if (ret->magnitude < ((uint64_t)1 << 53) && scale >= -22 && scale <= 22) {
        double value = (double)ret->magnitude;
        value = scale < 0 ? value / exact_powers[-scale] : value * exact_powers[scale];
        ret->value = ret->negative ? -value : value;
    } else {
        ret->value = slow_double(c->text + start, c->at - start);
    }
    return STATUS_OK;
}

/* ---- storing ---- */

/* Refuses the value that begins at `start`. `most`: the largest number of a float type that the
 * value overflows, as text; otherwise NULL. */
static enum status error_value(const struct json_cursor *c, size_t start, enum dtype dtype,
                               const char *most)
{
    size_t length = c->at - start < 40 ? c->at - start : 40;
    return error_set(c->err, STATUS_INVALID,
                     most ? "input '%.80s': %.*s is larger than the largest number of %s, %s"
                          : "input '%.80s': %.*s is not a valid %s",
                     c->name, (int)length, c->text + start, dtype_oip_name(dtype), most);
}

/* Stores an integer or a boolean; false if the dtype cannot hold the number. */
static bool store_integer(struct number number, enum dtype dtype, void *dst, size_t i)
{
    const size_t width = dtype_size(dtype);
    const bool is_signed =
        dtype == DTYPE_I8 || dtype == DTYPE_I16 || dtype == DTYPE_I32 || dtype == DTYPE_I64;
    const uint64_t most = dtype == DTYPE_BOOL ? 1 : UINT64_MAX >> (64 - 8 * width + is_signed);
    const uint64_t limit = !number.negative ? most : is_signed ? most + 1 : 0;
    const uint64_t value = number.negative ? 0 - number.magnitude : number.magnitude;
    if (!number.is_integer || number.magnitude > limit)
        return false;
    if (width == 1)
        ((uint8_t *)dst)[i] = (uint8_t)value;
    else if (width == 2)
        ((uint16_t *)dst)[i] = (uint16_t)value;
    else if (width == 4)
        ((uint32_t *)dst)[i] = (uint32_t)value;
    else
        ((uint64_t *)dst)[i] = value;
    return true;
}

static enum status store_number(const struct json_cursor *c, size_t start, struct number number,
                                enum dtype dtype, void *dst, size_t i)
{
    if (dtype == DTYPE_F32) {
        ((float *)dst)[i] = (float)number.value;
        return isinf(((float *)dst)[i]) ? error_value(c, start, dtype, "3.4e38") : STATUS_OK;
    }
    if (dtype == DTYPE_F64) {
        ((double *)dst)[i] = number.value;
        return isinf(number.value) ? error_value(c, start, dtype, "1.8e308") : STATUS_OK;
    }
    if (dtype == DTYPE_F16 || dtype == DTYPE_BF16 || dtype == DTYPE_NONE)
        return error_set(c->err, STATUS_INVALID,
                         "input '%.80s': %s has no JSON form, send it as binary data", c->name,
                         dtype_oip_name(dtype));
    return store_integer(number, dtype, dst, i) ? STATUS_OK : error_value(c, start, dtype, NULL);
}

static bool take_word(struct json_cursor *c, const char *word)
{
    size_t length = strlen(word);
    if (c->size - c->at < length || memcmp(c->text + c->at, word, length) != 0)
        return false;
    c->at += length;
    return true;
}

static enum status read_scalar(struct json_cursor *c, enum dtype dtype, void *dst, size_t i)
{
    size_t start = c->at;
    struct number number = {.is_integer = true};
    if (take_word(c, "true"))
        number.magnitude = 1;
    else if (!take_word(c, "false"))
        TRY(data_read_number(c, &number));
    bool word = c->text[start] == 't' || c->text[start] == 'f';
    if (word && dtype != DTYPE_BOOL)
        return error_value(c, start, dtype, NULL);
    return store_number(c, start, number, dtype, dst, i);
}

/* ---- sequences of scalars ---- */

/* The place between two scalars of an array. */
struct scalar_cursor {
    size_t depth;        /* 0: before the first bracket or after the last */
    bool is_after_value; /* a scalar or an array has just ended: a comma or a bracket must follow */
    bool is_open;        /* a bracket has just opened: the array may be empty */
};

static enum status too_deep(const struct json_cursor *c)
{
    return error_set(c->err, STATUS_INVALID,
                     "input '%.80s': byte %zu of its data begins an array more than %zu deep; nest "
                     "as the shape does, within --max-json-depth, or send a flat array",
                     c->name, c->at, c->max_nesting);
}

/* Moves to the next scalar, over brackets and commas. *ret_done: the array has ended. */
static enum status next_scalar(struct json_cursor *c, struct scalar_cursor *w, bool *ret_done)
{
    *ret_done = false;
    for (;;) {
        c->at = text_skip_blanks(c->text, c->at, c->size);
        char at = peek_byte(c);
        if (w->is_after_value && w->depth == 0) {
            if (c->at != c->size)
                return error_expected(c, "end of the data");
            *ret_done = true;
            return STATUS_OK;
        }
        if (w->is_after_value && at == ',') {
            w->is_after_value = false;
            w->is_open = false;
        } else if ((w->is_after_value || w->is_open) && at == ']') {
            w->depth--;
            w->is_after_value = true;
            w->is_open = false;
        } else if (w->is_after_value) {
            return error_expected(c, "',' or ']'");
        } else if (at == '[' && w->depth == c->max_nesting) {
            return too_deep(c);
        } else if (at == '[') {
            w->depth++;
            w->is_open = true;
        } else if (w->depth == 0) {
            return error_expected(c, "'['");
        } else {
            w->is_open = false;
            w->is_after_value = true; /* true once the caller has read the scalar */
            return STATUS_OK;
        }
        c->at++;
    }
}

static enum status wrong_count(const struct v2_input *input, size_t found, bool more,
                               struct error *err)
{
    return error_set(
        err, STATUS_INVALID, "input '%.80s' has %s %zu elements of data, but its shape %s is %zu",
        input->name, more ? "more than" : "only", found, SHAPE_STRING(&input->shape), input->count);
}

enum status v2_read_numbers(const struct v2_input *input, void *dst, struct error *err)
{
    struct json_cursor c = cursor_of(input, err);
    struct scalar_cursor scalars = {0};
    size_t i = 0;
    for (bool done;; i++) {
        TRY(next_scalar(&c, &scalars, &done));
        if (done)
            break;
        if (i == input->count)
            return wrong_count(input, i, true, err);
        TRY(read_scalar(&c, input->dtype, dst, i));
    }
    return i == input->count ? STATUS_OK : wrong_count(input, i, false, err);
}

/* ---- BYTES ---- */

static enum status read_elements(const struct v2_input *input, struct v2_bytes *ret,
                                 struct error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < input->count; i++) {
        const uint8_t *p = input->binary + at;
        size_t left = input->binary_size - at;
        uint32_t length = left < 4 ? 0
                                   : (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                         (uint32_t)p[3] << 24;
        if (left < 4 || length > left - 4)
            return error_set(
                err, STATUS_INVALID,
                "input '%.80s': element %zu of its BYTES does not fit into the remaining %zu "
                "bytes; write the length of each element before it, as 4 bytes little-endian",
                input->name, i, left);
        ret[i] = (struct v2_bytes){p + 4, length};
        at += 4 + (size_t)length;
    }
    if (at != input->binary_size)
        return error_set(err, STATUS_INVALID,
                         "input '%.80s': %zu byte%s left over after its %zu element%s", input->name,
                         input->binary_size - at, input->binary_size - at == 1 ? " is" : "s are",
                         input->count, input->count == 1 ? "" : "s");
    return STATUS_OK;
}

/* Returns the position after the last quote of the string at the cursor; 0 if it is not closed. */
static size_t string_end(const struct json_cursor *c)
{
    for (size_t at = c->at + 1; at < c->size; at++) {
        if (c->text[at] == '\\')
            at++;
        else if (c->text[at] == '"')
            return at + 1;
    }
    return 0;
}

/* Reads an array of strings; they become part of `tree`, the request's. */
static enum status read_strings(const struct v2_input *input, cJSON *tree, struct v2_bytes *ret,
                                struct error *err)
{
    struct json_cursor c = cursor_of(input, err);
    const struct json_limits limits = {1, 1};
    struct scalar_cursor scalars = {0};
    size_t i = 0;
    for (bool done;; i++) {
        TRY(next_scalar(&c, &scalars, &done));
        if (done)
            break;
        if (i == input->count)
            return wrong_count(input, i, true, err);
        const size_t end = peek_byte(&c) == '"' ? string_end(&c) : 0;
        if (end == 0)
            return error_expected(&c, "string in quotes, as BYTES are in JSON");
        TRY(json_check(c.text + c.at, end - c.at, &limits, err));
        cJSON *text = cJSON_ParseWithLength(c.text + c.at, end - c.at);
        TRY(check_memory(text, "for a request", err));
        cJSON_AddItemToArray(tree, text);
        ret[i] = (struct v2_bytes){(uint8_t *)text->valuestring, strlen(text->valuestring)};
        c.at = end;
    }
    return i == input->count ? STATUS_OK : wrong_count(input, i, false, err);
}

enum status v2_read_bytes(const struct v2_request *request, const struct v2_input *input,
                          bool (*is_bare)(const uint8_t *data, size_t size), struct v2_bytes *ret,
                          struct error *err)
{
    if (input->elements) {
        memcpy(ret, input->elements, input->count * sizeof *ret);
        return STATUS_OK;
    }
    if (input->binary && input->count == 1 && is_bare &&
        is_bare(input->binary, input->binary_size)) {
        ret[0] = (struct v2_bytes){input->binary, input->binary_size};
        return STATUS_OK;
    }
    return input->binary ? read_elements(input, ret, err)
                         : read_strings(input, request->tree, ret, err);
}
