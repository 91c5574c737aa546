/* Reads the orientation from EXIF data and XMP packets.
 *
 * The orientation is in the first image directory (IFD0) of the TIFF structure that EXIF data is
 * (TIFF 6.0 section 2, EXIF 2.32 section 4.6). All input is hostile: offsets are checked against
 * the length before use, and no loop follows an offset twice. Malformed data means orientation 1,
 * because a bad tag must not make a good picture unusable.
 *
 * The rules are those of ImageOps.exif_transpose in Pillow 13: the first EXIF segment of a JPEG
 * counts. In this segment, the first orientation entry of a known type counts whose values lie in
 * the segment. Of several values, the first counts. Values of the types BYTE, ASCII and UNDEFINED
 * are invalid. If there is no such entry, the last XMP packet of a JPEG counts.
 * Orientation in a PNG's text chunks (XMP, ImageMagick's "Raw profile type exif") is ignored. */
#include <math.h>
#include <string.h>

#include "server/image/decode.h"

/* Bytes of a value of each TIFF type. */
static const uint8_t exif_units[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};

/* Reads a value of type `type` at p; NAN for BYTE, ASCII and UNDEFINED. */
static double exif_number(const uint8_t *p, unsigned type, bool big)
{
    const size_t unit = exif_units[type];
    uint64_t bits = 0;
    for (size_t i = 0; i < unit; i++)
        bits = bits << 8 | p[big ? i : unit - 1 - i];
    const uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32);
    const uint32_t above = big ? high : low, below = big ? low : high; /* numerator, denominator */
    float single;
    double wide;
    switch (type) {
    case 3:  /* SHORT */
    case 4:  /* LONG */
    case 13: /* IFD */
    case 16: /* LONG8 */
        return (double)bits;
    case 5: /* RATIONAL */
        return below ? (double)above / below : (double)NAN;
    case 6: /* SBYTE */
        return (int8_t)bits;
    case 8: /* SSHORT */
        return (int16_t)bits;
    case 9: /* SLONG */
        return (int32_t)bits;
    case 10: /* SRATIONAL */
        return below ? (double)(int32_t)above / (int32_t)below : (double)NAN;
    case 11: /* FLOAT */
        memcpy(&single, &low, sizeof single);
        return (double)single;
    case 12: /* DOUBLE */
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    default: /* BYTE, ASCII, UNDEFINED */
        return (double)NAN;
    }
}

/* Finds the values of an entry of the directory: tag u16, type u16, count u32, then the values if
 * they fit into 4 bytes, else their offset. *ret_values is NULL if the type is unknown, there are
 * no values, or the values of all entries so far (*total) take more than `size` bytes. Returns
 * false if the values lie outside tiff[0 … size). */
static bool read_entry(const uint8_t *tiff, size_t size, const uint8_t *entry, bool big,
                       uint64_t *total, const uint8_t **ret_values)
{
    const unsigned type = read_u16(entry + 2, big);
    const uint64_t unit = type < sizeof exif_units ? exif_units[type] : 0;
    const uint64_t bytes = unit * read_u32(entry + 4, big);
    *ret_values = bytes && bytes <= 4 ? entry + 8 : NULL;
    if (bytes <= 4)
        return true;
    *total += bytes;
    if (*total > size)
        return true;
    const size_t offset = read_u32(entry + 8, big);
    if (offset > size || bytes > size - offset)
        return false;
    *ret_values = tiff + offset;
    return true;
}

/* Returns false if no valid entry has an orientation. */
static bool find_orientation(const uint8_t *tiff, size_t size, int *ret)
{
    enum { HEADER = 8, ENTRY = 12, TAG_ORIENTATION = 0x0112 };
    static const uint8_t again[] = {'E', 'x', 'i', 'f', 0, 0};
    if (size >= sizeof again && memcmp(tiff, again, sizeof again) == 0) { /* repeated header */
        tiff += sizeof again;
        size -= sizeof again;
    }
    if (size < HEADER || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0 &&
                          memcmp(tiff, "II\0*", 4) != 0 && memcmp(tiff, "MM*\0", 4) != 0))
        return false;
    const bool big = tiff[0] == 'M';
    size_t offset = read_u32(tiff + 4, big);
    if (offset > size || size - offset < 2)
        return false;
    size_t entries = read_u16(tiff + offset, big);
    uint64_t total = 0;
    offset += 2;
    for (; entries > 0 && size - offset >= ENTRY; entries--, offset += ENTRY) {
        const uint8_t *entry = tiff + offset, *values;
        if (!read_entry(tiff, size, entry, big, &total, &values))
            return false;
        if (!values || read_u16(entry, big) != TAG_ORIENTATION)
            continue;
        const double value = exif_number(values, read_u16(entry + 2, big), big);
        *ret = value >= 1 && value <= 8 && value == floor(value) ? (int)value : 1;
        return true;
    }
    return false;
}

/* Reads the first tiff:Orientation="N" or tiff:Orientation>N of an XMP packet; 1 without both. */
static int xmp_orientation(const uint8_t *xmp, size_t size)
{
    static const char name[] = "tiff:Orientation";
    const uint8_t *end = xmp + size, *at = xmp;
    while ((at = memmem(at, (size_t)(end - at), name, sizeof name - 1))) {
        at += sizeof name - 1;
        size_t skip = end - at >= 3 && at[0] == '=' && at[1] == '"' ? 2
                      : end - at >= 2 && at[0] == '>'               ? 1
                                                                    : 0;
        if (skip && at[skip] >= '0' && at[skip] <= '9')
            return at[skip] >= '1' && at[skip] <= '8' ? at[skip] - '0' : 1;
    }
    return 1;
}

int exif_orientation(const uint8_t *exif, size_t exif_size, const uint8_t *xmp, size_t xmp_size)
{
    int orientation = 1;
    if (exif && find_orientation(exif, exif_size, &orientation))
        return orientation;
    return xmp ? xmp_orientation(xmp, xmp_size) : 1;
}
