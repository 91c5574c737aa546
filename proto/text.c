#include "proto/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/base/utf8.h"

char *text_room(struct text *text, size_t more)
{
    size_t need;
    if (text->failed || !size_add(text->size, more, &need) || !size_add(need, 1, &need)) {
        text->failed = true;
        return NULL;
    }
    if (need > text->capacity) {
        size_t capacity = text->capacity < SIZE_MAX / 2 ? 2 * text->capacity : need;
        capacity = capacity > need ? capacity : need;
        capacity = capacity > 256 ? capacity : 256;
        char *grown = realloc(text->data, capacity);
        if (!grown) {
            text->failed = true;
            return NULL;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    return text->data + text->size;
}

void text_add(struct text *text, const char *bytes, size_t size)
{
    char *room = text_room(text, size);
    if (!room || size == 0)
        return;
    memcpy(room, bytes, size);
    text->size += size;
}

void text_put(struct text *text, const char *terminated)
{
    text_add(text, terminated, strlen(terminated));
}

void text_unsigned(struct text *text, uint64_t value)
{
    char digits[24], *at = digits + sizeof digits;
    do
        *--at = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    text_add(text, at, (size_t)(digits + sizeof digits - at));
}

void text_number(struct text *text, int64_t value)
{
    if (value < 0)
        text_put(text, "-");
    text_unsigned(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void text_float(struct text *text, float value)
{
    char digits[40];
    if (!isfinite(value)) {
        text_put(text, "null");
        return;
    }
    if (value == (float)(int32_t)(fabsf(value) < 1e9f ? value : 0.5f) && !signbit(value)) {
        text_unsigned(text, (uint64_t)value);
        return;
    }
    /* Nine digits always read back exactly, and %g drops trailing zeros. */
    for (int precision = 7; precision <= 9; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, (double)value);
        if (precision == 9 || strtof(digits, NULL) == value)
            break;
    }
    text_put(text, digits);
}

void text_double(struct text *text, double value)
{
    char digits[48];
    if (!isfinite(value)) {
        text_put(text, "null");
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, value);
        if (precision == 17 || strtod(digits, NULL) == value)
            break;
    }
    text_put(text, digits);
}

void text_string(struct text *text, const char *at)
{
    size_t left = strlen(at);
    text_put(text, "\"");
    while (left > 0) {
        size_t length = utf8_length(at, left);
        unsigned char c = (unsigned char)*at;
        char escaped[8];
        if (length == 0) {
            text_put(text, "?");
            length = 1;
        } else if (c == '"' || c == '\\') {
            text_put(text, c == '"' ? "\\\"" : "\\\\");
        } else if (c < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
            text_put(text, escaped);
        } else {
            text_add(text, at, length);
        }
        at += length;
        left -= length;
    }
    text_put(text, "\"");
}

char *text_finish(struct text *text, size_t *ret_size)
{
    char *end = text_room(text, 0);
    if (!end) {
        free(text->data);
        *text = (struct text){0};
        return NULL;
    }
    *end = '\0';
    if (ret_size)
        *ret_size = text->size;
    char *data = text->data;
    *text = (struct text){0};
    return data;
}
