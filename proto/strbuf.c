/* A growing buffer that writes integers, shortest exact floats and escaped strings. */
#include "proto/strbuf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/base/size.h"
#include "engine/base/utf8.h"

char *strbuf_room(struct strbuf *text, size_t more)
{
    size_t need;
    if (text->failed || !size_add(text->size, more, &need) || !size_add(need, 1, &need)) {
        text->failed = true;
        return NULL;
    }
    text->failed = !array_reserve(&text->data, &text->capacity, need, 1);
    return text->failed ? NULL : text->data + text->size;
}

void strbuf_add(struct strbuf *text, const char *bytes, size_t size)
{
    char *room = strbuf_room(text, size);
    if (!room || size == 0)
        return;
    memcpy(room, bytes, size);
    text->size += size;
}

void strbuf_put(struct strbuf *text, const char *terminated)
{
    strbuf_add(text, terminated, strlen(terminated));
}

void strbuf_unsigned(struct strbuf *text, uint64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    strbuf_add(text, at, (size_t)(digits + sizeof digits - at));
}

void strbuf_number(struct strbuf *text, int64_t value)
{
    if (value < 0)
        strbuf_put(text, "-");
    strbuf_unsigned(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* Writes `count` decimal digits with a point after the first `before` of them, in the form of %g.
 * Returns the length. */
static size_t put_decimal(char *text, const char *digits, int count, int before, bool negative)
{
    char *at = text;
    if (negative)
        *at++ = '-';
    if (before > 9 || before < -3) {
        *at++ = *digits;
        if (count > 1) {
            *at++ = '.';
            memcpy(at, digits + 1, (size_t)count - 1);
            at += count - 1;
        }
        int exponent = before - 1, size = exponent < 0 ? -exponent : exponent;
        *at++ = 'e';
        *at++ = exponent < 0 ? '-' : '+';
        *at++ = (char)('0' + size / 10);
        *at++ = (char)('0' + size % 10);
        return (size_t)(at - text);
    }
    if (before <= 0) {
        *at++ = '0';
        *at++ = '.';
        for (int zero = before; zero < 0; zero++)
            *at++ = '0';
        memcpy(at, digits, (size_t)count);
        return (size_t)(at + count - text);
    }
    for (int i = 0; i < before || i < count; i++) {
        if (i == before)
            *at++ = '.';
        *at++ = i < count ? digits[i] : '0';
    }
    return (size_t)(at - text);
}

const double exact_powers[23] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                 1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* True if digits x 10^-scale reads back as `value`. Digits and power are exact, so their quotient
 * is the double nearest to the decimal. The float nearest to that double is also nearest to the
 * decimal, unless the double lies exactly between two floats. Then the double must equal the
 * decimal, which is certain only for integers below 2^53. */
static bool reads_back(uint64_t digits, int scale, float value)
{
    double decimal =
        scale >= 0 ? (double)digits / exact_powers[scale] : (double)digits * exact_powers[-scale];
    uint64_t bits;
    memcpy(&bits, &decimal, sizeof bits);
    bool is_between = (bits & 0x1FFFFFFF) == 0x10000000;
    bool is_whole = scale <= 0 && decimal < 0x1p53;
    return (!is_between || is_whole) && (float)decimal == value;
}

/* Writes like write_shortest(), but without the C library, if `value`, the absolute value, is 1e-9
 * to 1e18. Otherwise returns 0. */
static size_t write_middling(float value, bool negative, char *text)
{
    int places = 0; /* value is at least 10^places, and less than ten times that */
    if (!(value >= 1e-9f && value < 1e18f))
        return 0;
    while ((double)value >= exact_powers[places + 1])
        places++;
    while (value < 1 && (double)value * exact_powers[-places] < 1)
        places--;
    for (int precision = 6; precision <= 9; precision++) {
        int scale = precision - 1 - places; /* -12 … 18 */
        double scaled =
            scale >= 0 ? (double)value * exact_powers[scale] : (double)value / exact_powers[-scale];
        uint64_t digits = (uint64_t)(scaled + 0.5);
        if (!reads_back(digits, scale, value))
            continue;
        char reversed[24], ordered[24];
        int count = 0, zeros = 0;
        for (; digits > 0; digits /= 10)
            reversed[count++] = (char)('0' + digits % 10);
        while (zeros < count - 1 && reversed[zeros] == '0')
            zeros++;
        for (int i = count; i > zeros; i--)
            ordered[count - i] = reversed[i - 1];
        return put_decimal(text, ordered, count - zeros, count - scale, negative);
    }
    return 0;
}

/* Writes a number with `least` to `most` digits, and no more than read back as the number. `most`
 * digits always do, and %g drops trailing zeros. */
static size_t print_shortest(double value, int least, int most, char text[static FLOAT_TEXT])
{
    int size = 0;
    for (int digits = least; digits <= most; digits++) {
        size = snprintf(text, FLOAT_TEXT, "%.*g", digits, value);
        if (most > 9 ? strtod(text, NULL) == value : strtof(text, NULL) == (float)value)
            break;
    }
    return size > 0 ? (size_t)size : 0;
}

size_t write_shortest(float value, char text[static FLOAT_TEXT])
{
    const size_t size = write_middling(fabsf(value), signbit(value), text);
    return size ? size : print_shortest((double)value, 6, 9, text);
}

void strbuf_float(struct strbuf *text, float value)
{
    if (!isfinite(value)) {
        strbuf_put(text, "null");
        return;
    }
    if (value == (float)(int32_t)(fabsf(value) < 1e9f ? value : 0.5f) && !signbit(value)) {
        strbuf_unsigned(text, (uint64_t)value);
        return;
    }
    char *room = strbuf_room(text, FLOAT_TEXT);
    if (room)
        text->size += write_shortest(value, room);
}

static void strbuf_double(struct strbuf *text, double value)
{
    char *room = strbuf_room(text, FLOAT_TEXT);
    if (room && isfinite(value))
        text->size += print_shortest(value, 15, 17, room);
    else
        strbuf_put(text, "null");
}

void strbuf_element(struct strbuf *text, const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        strbuf_float(text, (float)tensor_number(tensor, i));
        break;
    case DTYPE_F64:
        strbuf_double(text, tensor_number(tensor, i));
        break;
    case DTYPE_U64:
        strbuf_unsigned(text, ((const uint64_t *)tensor->data)[i]);
        break;
    default:
        strbuf_number(text, tensor_int(tensor, i));
    }
}

void strbuf_string(struct strbuf *text, const char *at)
{
    size_t left = strlen(at);
    strbuf_put(text, "\"");
    while (left > 0) {
        size_t length = utf8_length(at, left);
        unsigned char c = (unsigned char)*at;
        char escaped[8];
        if (length == 0) {
            strbuf_put(text, "?");
            length = 1;
        } else if (c == '"' || c == '\\') {
            strbuf_put(text, c == '"' ? "\\\"" : "\\\\");
        } else if (c < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            strbuf_put(text, escaped);
        } else {
            strbuf_add(text, at, length);
        }
        at += length;
        left -= length;
    }
    strbuf_put(text, "\"");
}

char *strbuf_finish(struct strbuf *text, size_t *ret_size)
{
    char *end = strbuf_room(text, 0);
    if (!end) {
        free(text->data);
        *text = (struct strbuf){0};
        return NULL;
    }
    *end = '\0';
    if (ret_size)
        *ret_size = text->size;
    /* A long text may wait for its reader, so free the memory that the text does not need. */
    char *data = realloc(text->data, text->size + 1);
    data = data ? data : text->data;
    *text = (struct strbuf){0};
    return data;
}
