/* Makes the checksums of a damaged PNG right again, so that the damage reaches what lies behind
 * them. For the mutations of test_image.c and fuzz_image.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of PNG (specification annex D). */
static inline uint32_t png_crc(const uint8_t *data, size_t size)
{
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

/* data: a signature of 8 bytes, then chunks (length, name, data, checksum); stops at the first that
 * is longer than what is left. */
static inline void png_repair(uint8_t *data, size_t size)
{
    size_t at = 8;
    while (size >= at && size - at >= 12) {
        const size_t length = (size_t)data[at] << 24 | (size_t)data[at + 1] << 16 |
                              (size_t)data[at + 2] << 8 | data[at + 3];
        if (length > size - at - 12)
            return;
        const uint32_t crc = png_crc(data + at + 4, length + 4);
        for (size_t i = 0; i < 4; i++)
            data[at + 8 + length + i] = (uint8_t)(crc >> (24 - 8 * i));
        at += 12 + length;
    }
}
