/* Decodes base64 in both alphabets of RFC 4648, also in data: URIs, and reports where a text is not
 * base64. */
#include "proto/base64.h"

#include <string.h>
#include <strings.h>

#include "engine/base/size.h"

enum { BAD = 64, SKIP = 65, PAD = 66 };

/* The value of each byte: 0 … 63, BAD, SKIP or PAD. Both alphabets (RFC 4648, 4 and 5). */
/* clang-format off */
static const uint8_t VALUES[256] = {
    64, 64, 64, 64, 64, 64, 64, 64, 64, 65, 65, 64, 64, 65, 64, 64,
    64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64,
    65, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 62, 64, 62, 64, 63,
    52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 64, 64, 64, 66, 64, 64,
    64,  0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14,
    15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 64, 64, 64, 64, 63,
    64, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40,
    41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 64, 64, 64, 64, 64,
    [128 ... 255] = 64,
};
/* clang-format on */

static enum status bad_character(const char *text, size_t at, struct error *err)
{
    unsigned char c = (unsigned char)text[at];
    if (c > 0x20 && c < 0x7F)
        return error_set(err, STATUS_INVALID,
                         "base64: character '%c' at offset %zu is not part of base64%s", c, at,
                         c == '.' ? "; send the file's bytes, not its name" : "");
    return error_set(err, STATUS_INVALID, "base64: byte 0x%02x at offset %zu is not part of base64",
                     c, at);
}

/* Checks the text after the first '=' at `at`: it must be blanks, and the padding that `have`
 * characters of the last group need. */
static enum status check_padding(const char *text, size_t size, size_t at, int have,
                                 struct error *err)
{
    int pads = 0;
    for (; at < size; at++) {
        unsigned value = VALUES[(unsigned char)text[at]];
        if (value == SKIP)
            continue;
        if (value != PAD)
            return error_set(err, STATUS_INVALID, "base64: data after the padding at offset %zu",
                             at);
        pads++;
    }
    if (have < 2 || have + pads != 4)
        return error_set(err, STATUS_INVALID,
                         "base64: wrong padding at the end (a group of four has %d characters and "
                         "%d '=')",
                         have, pads);
    return STATUS_OK;
}

enum status base64_decode(const char *text, size_t size, uint8_t *dst, size_t *ret_size,
                          struct error *err)
{
    size_t used = 0;
    uint32_t group = 0;
    int have = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned value = VALUES[(unsigned char)text[i]];
        if (value < 64) {
            group = group << 6 | value;
            if (++have == 4) {
                dst[used++] = (uint8_t)(group >> 16);
                dst[used++] = (uint8_t)(group >> 8);
                dst[used++] = (uint8_t)group;
                group = 0;
                have = 0;
            }
        } else if (value == PAD) {
            TRY(check_padding(text, size, i, have, err));
            break;
        } else if (value == BAD) {
            return bad_character(text, i, err);
        }
    }
    if (have == 1)
        return error_set(err, STATUS_INVALID,
                         "base64: the text is cut off: one character is left after the last "
                         "complete group of four");
    unsigned spare = have == 2 ? 0xFu : have == 3 ? 0x3u : 0;
    if (group & spare)
        return error_set(err, STATUS_INVALID,
                         "base64: the last character has bits set that decode "
                         "to nothing: the text is cut off or damaged");
    if (have == 2) {
        dst[used++] = (uint8_t)(group >> 4);
    } else if (have == 3) {
        dst[used++] = (uint8_t)(group >> 10);
        dst[used++] = (uint8_t)(group >> 2);
    }
    *ret_size = used;
    return STATUS_OK;
}

char *base64_text(const uint8_t *data, size_t size)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = alloc_array(size / 3 + 2, 4), *to = text;
    for (size_t i = 0; text && i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t bits = (uint32_t)data[i] << 16 |
                              (left > 1 ? (uint32_t)data[i + 1] << 8 : 0) |
                              (left > 2 ? (uint32_t)data[i + 2] : 0);
        *to++ = letters[bits >> 18];
        *to++ = letters[bits >> 12 & 63];
        *to++ = left > 1 ? letters[bits >> 6 & 63] : '=';
        *to++ = left > 2 ? letters[bits & 63] : '=';
    }
    return text;
}

static bool text_begins(const char *text, size_t size, const char *with)
{
    return size >= strlen(with) && strncasecmp(text, with, strlen(with)) == 0;
}

enum status picture_text_decode(char *text, size_t size, uint8_t **ret, size_t *ret_size,
                                struct error *err)
{
    static const char *const schemes[] = {"http://", "https://", "ftp://", "file://"};
    static const char mark[] = ";base64";
    for (size_t i = 0; i < COUNT_OF(schemes); i++)
        if (text_begins(text, size, schemes[i]))
            return error_set(err, STATUS_INVALID,
                             "lensd does not fetch images from URLs (%s…); send the image itself "
                             "as base64 or as a data: URI",
                             schemes[i]);
    if (text_begins(text, size, "data:")) {
        const char *comma = memchr(text, ',', size);
        const size_t head = comma ? (size_t)(comma - text) : 0;
        if (head < sizeof mark ||
            strncasecmp(comma - (sizeof mark - 1), mark, sizeof mark - 1) != 0)
            return error_set(err, STATUS_INVALID,
                             "the data: URI is not base64; write data:image/jpeg;base64,…");
        text += head + 1;
        size -= head + 1;
    }
    TRY(base64_decode(text, size, (uint8_t *)text, ret_size, err));
    *ret = (uint8_t *)text;
    return STATUS_OK;
}
