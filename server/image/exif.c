/* EXIF orientation, read straight from the file's bytes.
 *
 * Only one number is wanted, so no EXIF library and no copy of the metadata: two walkers find the
 * EXIF block (JPEG APP1, PNG eXIf), and one reader looks through the first image directory (IFD0)
 * of the TIFF structure inside (TIFF 6.0 section 2, EXIF 2.32 section 4.6). Everything is hostile:
 * offsets are compared with the length before use, no loop follows an offset more than once, and
 * whatever is wrong means orientation 1, because a bad tag must not cost a good picture.
 *
 * As in Pillow's ImageOps.exif_transpose, of several EXIF segments the first counts, and a wrong
 * number, or one of another type than SHORT or LONG, turns nothing. Orientation in XMP or in PNG
 * text chunks is not read. */
#include <string.h>

#include "server/image/decode.h"

static uint32_t read_u16(const uint8_t *p, bool big)
{
    return big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static uint32_t exif_u32(const uint8_t *p, bool big)
{
    return big ? read_u16(p, big) << 16 | read_u16(p + 2, big)
               : read_u16(p + 2, big) << 16 | read_u16(p, big);
}

/* An IFD entry: tag u16, type u16, count u32, then the value itself where it fits 4 bytes. */
static int orientation_of_entry(const uint8_t *entry, bool big)
{
    enum { TYPE_SHORT = 3, TYPE_LONG = 4 };
    if (exif_u32(entry + 4, big) != 1)
        return 1;
    uint32_t value;
    switch (read_u16(entry + 2, big)) {
    case TYPE_SHORT:
        value = read_u16(entry + 8, big);
        break;
    case TYPE_LONG:
        value = exif_u32(entry + 8, big);
        break;
    default:
        return 1;
    }
    return value >= 1 && value <= 8 ? (int)value : 1;
}

int exif_orientation(const uint8_t *tiff, size_t size)
{
    enum { HEADER = 8, ENTRY = 12, TAG_ORIENTATION = 0x0112 };
    if (size < HEADER || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 1;
    const bool big = tiff[0] == 'M';
    size_t offset = exif_u32(tiff + 4, big);
    if (offset > size || size - offset < 2)
        return 1;
    size_t entries = read_u16(tiff + offset, big);
    offset += 2;
    for (; entries > 0 && size - offset >= ENTRY; entries--, offset += ENTRY)
        if (read_u16(tiff + offset, big) == TAG_ORIENTATION)
            return orientation_of_entry(tiff + offset, big);
    return 1;
}

int exif_from_jpeg(const uint8_t *data, size_t size)
{
    enum { SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, APP1 = 0xE1, TEM = 0x01, RST0 = 0xD0, RST7 = 0xD7 };
    size_t at = 2; /* after SOI */
    while (size - at >= 4) {
        if (data[at] != 0xFF) { /* junk between segments, which libjpeg also steps over */
            at++;
            continue;
        }
        const uint8_t marker = data[at + 1];
        if (marker == SOS || marker == EOI)
            return 1;
        if (marker == 0xFF) { /* fill byte */
            at++;
            continue;
        }
        at += 2;
        if (marker == 0 || marker == SOI || marker == TEM || (marker >= RST0 && marker <= RST7))
            continue;
        const size_t length = read_u16(data + at, true); /* counts its own two bytes */
        if (length < 2 || length > size - at)
            return 1;
        if (marker == APP1 && length >= 8 && memcmp(data + at + 2, "Exif\0", 5) == 0)
            return exif_orientation(data + at + 8, length - 8);
        at += length;
    }
    return 1;
}

int exif_from_png(const uint8_t *data, size_t size)
{
    enum { SIGNATURE = 8, CHUNK = 12 }; /* a chunk: length, name, data, CRC */
    size_t at = SIGNATURE;
    while (size >= at && size - at >= CHUNK) {
        const size_t length = exif_u32(data + at, true);
        if (length > size - at - CHUNK)
            return 1;
        if (memcmp(data + at + 4, "eXIf", 4) == 0)
            return exif_orientation(data + at + 8, length);
        if (memcmp(data + at + 4, "IEND", 4) == 0)
            return 1;
        at += CHUNK + length;
    }
    return 1;
}
