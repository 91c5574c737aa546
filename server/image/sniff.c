/* Detects formats by their first bytes. Errors say what the bytes look like, because the usual
 * causes are another image format, an error page that was saved as .jpg, and Base64 that was not
 * decoded. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "engine/base/size.h"
#include "server/image/decode.h"

static const uint8_t png_signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
static const uint8_t jpeg_signature[3] = {0xFF, 0xD8, 0xFF};

/* Finds the format of an ISO base media file by its brands (ISO/IEC 23008-12, AVIF 1.1). The brand
 * "mif1" means any HEIF; another brand decides, if there is one. */
static enum image_format sniff_brands(const uint8_t *data, size_t size)
{
    static const char heic[][4] = {"heic", "heix", "heim", "heis", "hevc", "hevx"};
    const size_t box = size >= 16 ? (size_t)data[2] << 8 | data[3]
                                  : 0; /* size of the box; sizes from 64 KiB on are refused */
    const size_t end = box < size ? box : size;
    bool is_heif = false;
    if (size < 16 || memcmp(data, "\0\0", 2) != 0 || memcmp(data + 4, "ftyp", 4) != 0)
        return IMAGE_UNKNOWN;
    for (size_t at = 8; at + 4 <= end;
         at += at == 8 ? 8 : 4) { /* skips the version after the first brand */
        if (memcmp(data + at, "avif", 4) == 0 || memcmp(data + at, "avis", 4) == 0)
            return IMAGE_AVIF;
        for (size_t i = 0; i < COUNT_OF(heic); i++)
            if (memcmp(data + at, heic[i], 4) == 0)
                return IMAGE_HEIC;
        is_heif = is_heif || memcmp(data + at, "mif1", 4) == 0;
    }
    return is_heif ? IMAGE_HEIC : IMAGE_UNKNOWN;
}

/* Also checks the size of the header, because some texts begin with "BM". */
static bool sniff_is_bmp(const uint8_t *data, size_t size)
{
    static const uint8_t header_sizes[] = {12, 40, 52, 56, 64, 108, 124};
    if (size < 18 || memcmp(data, "BM", 2) != 0 || memcmp(data + 15, "\0\0\0", 3) != 0)
        return false;
    return memchr(header_sizes, data[14], sizeof header_sizes) != NULL;
}

static bool sniff_begins(const uint8_t *data, size_t size, const char *with, size_t length)
{
    return size >= length && memcmp(data, with, length) == 0;
}

enum image_format image_sniff(const uint8_t *data, size_t size)
{
    if (size >= sizeof jpeg_signature && memcmp(data, jpeg_signature, sizeof jpeg_signature) == 0)
        return IMAGE_JPEG;
    if (size >= sizeof png_signature && memcmp(data, png_signature, sizeof png_signature) == 0)
        return IMAGE_PNG;
    if (sniff_begins(data, size, "GIF87a", 6) || sniff_begins(data, size, "GIF89a", 6))
        return IMAGE_GIF;
    if (size >= 12 && sniff_begins(data, size, "RIFF", 4) && memcmp(data + 8, "WEBP", 4) == 0)
        return IMAGE_WEBP;
    if (sniff_begins(data, size, "II*\0", 4) || sniff_begins(data, size, "MM\0*", 4) ||
        sniff_begins(data, size, "II+\0", 4) || sniff_begins(data, size, "MM\0+", 4)) /* BigTIFF */
        return IMAGE_TIFF;
    if (sniff_is_bmp(data, size))
        return IMAGE_BMP;
    return sniff_brands(data, size);
}

bool sniff_is_beginning(const uint8_t *data, size_t size)
{
    return (size < sizeof jpeg_signature && memcmp(data, jpeg_signature, size) == 0) ||
           (size < sizeof png_signature && memcmp(data, png_signature, size) == 0);
}

struct signature {
    size_t offset;
    const char *bytes;
    size_t length;
    const char *name;
};

#define SIGNATURE(offset, bytes, name)                                                             \
    {                                                                                              \
        offset, bytes, sizeof(bytes) - 1, name                                                     \
    }

/* The first match counts, so longer signatures come before shorter ones. */
static const struct signature signatures[] = {
    SIGNATURE(0, "RIFF", "a RIFF file (WAV, AVI)"),
    SIGNATURE(4, "ftyp", "an MP4 video"),
    SIGNATURE(0, "\0\0\0\x0CJXL ", "a JPEG XL image"),
    SIGNATURE(0, "\xFF\x0A", "a JPEG XL image"),
    SIGNATURE(0, "\0\0\0\x0CjP  ", "a JPEG 2000 image"),
    SIGNATURE(0, "\xFF\x4F\xFF\x51", "a JPEG 2000 image"),
    SIGNATURE(0, "\xFF\xD8", "a damaged JPEG"),
    SIGNATURE(0, "\x89PNG", "a PNG damaged by a transfer in text mode"),
    SIGNATURE(1, "PNG\r\n", "a PNG damaged by a transfer in text mode"),
    SIGNATURE(0, "\0\0\1\0", "an ICO icon"),
    SIGNATURE(0, "8BPS", "a Photoshop file"),
    SIGNATURE(0, "DICM", "a DICOM image"),
    SIGNATURE(128, "DICM", "a DICOM image"),
    SIGNATURE(0, "\x1F\x8B", "gzip data"),
    SIGNATURE(0, "PK\x03\x04", "a ZIP archive"),
    SIGNATURE(0, "%PDF", "a PDF document"),
    SIGNATURE(0, "\x93NUMPY", "a NumPy array"),
    SIGNATURE(0, "/9j/", "a JPEG in Base64 text, which must be decoded first"),
    SIGNATURE(0, "iVBORw0KGgo", "a PNG in Base64 text, which must be decoded first"),
    SIGNATURE(0, "data:", "a data: URL, whose data must be decoded first"),
    SIGNATURE(0, "http://", "a web address, not the picture itself"),
    SIGNATURE(0, "https://", "a web address, not the picture itself"),
};

static bool is_text(const uint8_t *data, size_t size)
{
    size_t look = size < 256 ? size : 256;
    for (size_t i = 0; i < look; i++)
        if ((data[i] < 0x20 && !isspace(data[i])) || data[i] == 0x7F)
            return false;
    return true;
}

const char *sniff_describe(const uint8_t *data, size_t size)
{
    static const char *const texts[][2] = {{"<!doctype html", "an HTML page"},
                                           {"<html", "an HTML page"},
                                           {"<head", "an HTML page"},
                                           {"<body", "an HTML page"},
                                           {"<svg", "an SVG drawing"},
                                           {"<", "XML text"},
                                           {"{", "JSON text"},
                                           {"[", "JSON text"}};
    for (size_t i = 0; i < COUNT_OF(signatures); i++) {
        const struct signature *s = &signatures[i];
        if (s->offset <= size && s->length <= size - s->offset &&
            memcmp(data + s->offset, s->bytes, s->length) == 0)
            return s->name;
    }
    if (!is_text(data, size))
        return "binary data of an unknown kind";
    size_t at = sniff_begins(data, size, "\xEF\xBB\xBF", 3) ? 3 : 0; /* a byte order mark */
    while (at < size && isspace(data[at]))
        at++;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (size - at >= strlen(texts[i][0]) &&
            !strncasecmp((const char *)data + at, texts[i][0], strlen(texts[i][0])))
            return texts[i][1];
    return "plain text";
}
