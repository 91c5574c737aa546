#include "models/utf8.h"

#include <stdint.h>

static size_t followers(uint8_t first)
{
    if (first >= 0xC2 && first <= 0xDF)
        return 1;
    if (first >= 0xE0 && first <= 0xEF)
        return 2;
    return first >= 0xF0 && first <= 0xF4 ? 3 : 0;
}

bool utf8_valid(const char *text, size_t size)
{
    const uint8_t *s = (const uint8_t *)text;
    for (size_t i = 0; i < size;) {
        uint8_t c = s[i++];
        if (c < 0x80)
            continue;
        size_t more = followers(c);
        if (!more || more > size - i)
            return false;
        uint8_t next = s[i];
        if ((c == 0xE0 && next < 0xA0) || (c == 0xED && next > 0x9F) ||
            (c == 0xF0 && next < 0x90) || (c == 0xF4 && next > 0x8F))
            return false;
        for (; more; more--)
            if ((s[i++] & 0xC0) != 0x80)
                return false;
    }
    return true;
}
