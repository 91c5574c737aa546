/* Checks text for valid UTF-8 and repairs text that is not. */
#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

size_t utf8_length(const char *text, size_t left)
{
    const unsigned char *p = (const unsigned char *)text;
    if (left == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    size_t length = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || left < length)
        return 0;
    /* The second byte obeys the overlong, surrogate and range rules (RFC 3629, section 4). */
    unsigned char low = 0x80, high = 0xBF;
    if (p[0] == 0xE0)
        low = 0xA0;
    else if (p[0] == 0xED)
        high = 0x9F;
    else if (p[0] == 0xF0)
        low = 0x90;
    else if (p[0] == 0xF4)
        high = 0x8F;
    if (p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    return length;
}

uint32_t utf8_character(const char *text, size_t left, size_t *ret_length)
{
    const size_t length = utf8_length(text, left);
    const unsigned char first = (unsigned char)text[0];
    *ret_length = length ? length : 1;
    if (length <= 1)
        return length ? first : UINT32_MAX;
    uint32_t character = first & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++)
        character = character << 6 | ((unsigned char)text[i] & 0x3F);
    return character;
}

size_t utf8_put(uint32_t character, char to[static 4])
{
    static const uint8_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    const unsigned more = character < 0x80      ? 0
                          : character < 0x800   ? 1
                          : character < 0x10000 ? 2
                                                : 3;
    to[0] = (char)(lead[more] | character >> (6 * more));
    for (unsigned i = 1; i <= more; i++)
        to[i] = (char)(0x80 | (character >> (6 * (more - i)) & 0x3F));
    return more + 1;
}

bool utf8_is_control(uint32_t character)
{
    static const uint32_t ranges[][2] = {
        {0, 0x1F},        {0x7F, 0x9F},     {0x61C, 0x61C},          {0x200E, 0x200F},
        {0x2028, 0x202E}, {0x2066, 0x2069}, {UINT32_MAX, UINT32_MAX}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (character >= ranges[i][0] && character <= ranges[i][1])
            return true;
    return false;
}

bool utf8_valid(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size) {
        /* Skips eight ASCII bytes at a time, for long base64 bodies. */
        uint64_t word;
        if (size - i >= sizeof word) {
            memcpy(&word, text + i, sizeof word);
            if (!(word & 0x8080808080808080u)) {
                i += sizeof word;
                continue;
            }
        }
        size_t length = utf8_length(text + i, size - i);
        if (length == 0)
            return false;
        i += length;
    }
    return true;
}

void utf8_repair(char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        size_t length = utf8_length(text, left);
        if (length == 0) {
            *text = '?';
            length = 1;
        }
        text += length;
        left -= length;
    }
}

const char *utf8_shown(const char *text, char *buffer, size_t size)
{
    size_t used = 0, left = strlen(text);
    while (left > 0) {
        size_t length;
        const bool is_control = utf8_is_control(utf8_character(text, left, &length));
        if (size - used <= 4 * length)
            break;
        for (size_t i = 0; i < length; i++)
            if (is_control)
                used +=
                    (size_t)snprintf(buffer + used, size - used, "\\x%02x", (unsigned char)text[i]);
            else
                buffer[used++] = text[i];
        text += length;
        left -= length;
    }
    buffer[used] = '\0';
    return buffer;
}
