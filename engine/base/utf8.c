/* Checks text for valid UTF-8 and repairs text that is not. */
#include "engine/base/utf8.h"

#include <stdint.h>
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
    /* The second byte carries the overlong, surrogate and range rules (RFC 3629, section 4). */
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

bool utf8_valid(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size) {
        /* Eight ASCII bytes at a time: base64 bodies are long and nothing else. */
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
        const unsigned char *p = (const unsigned char *)text;
        size_t length = utf8_length(text, left);
        bool controls = length == 0 || p[0] < ' ' || p[0] == 0x7F || (p[0] == 0xC2 && p[1] < 0xA0);
        length = length ? length : 1;
        if (size - used <= 4 * length)
            break;
        for (size_t i = 0; i < length; i++)
            if (controls)
                used += (size_t)snprintf(buffer + used, size - used, "\\x%02x", p[i]);
            else
                buffer[used++] = text[i];
        text += length;
        left -= length;
    }
    buffer[used] = '\0';
    return buffer;
}
