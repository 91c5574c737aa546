/* Private to server/image: the interface of the format readers and their helpers. */
#pragma once

#include "server/image/image.h"

/* The memory that the current photo has reserved from the budget. */
struct pixel_account {
    const struct image_memory *memory; /* NULL: no budget */
    size_t taken;
};

/* Memory for pixels, reused from image to image. */
struct pixel_buffer {
    uint8_t *data;
    size_t capacity;
    unsigned small_uses; /* successive uses that needed far less than a giant buffer */
};

/* Makes room for `size` bytes; the content is undefined afterwards. Frees a giant buffer after many
 * successive small images. STATUS_NO_MEMORY leaves the buffer empty but usable. */
enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size,
                                 struct error *err) MUST_USE;
void pixel_buffer_done(struct pixel_buffer *buffer);

/* A photo that a reader decodes. */
struct decode {
    const char *name; /* the format's, for errors */
    const uint8_t *data;
    size_t size;
    const struct image_limits *limits;
    const struct preprocess *part; /* what will be read of the upright photo; NULL: all */
    bool reduces; /* may decode a JPEG at a half, a quarter or an eighth; needs `part` */
    struct pixel_buffer *buffer; /* NULL: only read the header */
    struct pixel_account *account;
    /* Set by the reader. Sizes are before the EXIF orientation: of the photo in the file, and of
     * the decoded pixels. */
    uint32_t full_width, full_height, width, height;
    int orientation; /* EXIF's, 1 … 8; initially 1 */
};

/* Sets the sizes of the photo. Errors: those of limits_check(). */
enum status decode_set_size(struct decode *photo, uint64_t width, uint64_t height,
                            struct error *err) MUST_USE;

/* Makes room in the buffer for photo->width x photo->height pixels of `bytes` bytes, and books the
 * photo's memory in the budget. `working`: bytes that the decoder needs in addition. */
enum status decode_reserve(struct decode *photo, size_t bytes, size_t working,
                           struct error *err) MUST_USE;

/* Refuses a size over the limits (STATUS_TOO_LARGE with limit and value) or with a side of 0
 * (STATUS_BAD_IMAGE). `name` is the format's, for the error. */
enum status limits_check(const char *name, uint64_t width, uint64_t height,
                         const struct image_limits *limits, struct error *err) MUST_USE;

/* True if the data ends within a JPEG or PNG signature. */
bool sniff_is_beginning(const uint8_t *data, size_t size);

/* Read the number of 2 or 4 bytes at p, big-endian or little-endian. */
static inline uint32_t read_u16(const uint8_t *p, bool big)
{
    return big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static inline uint32_t read_u32(const uint8_t *p, bool big)
{
    return big ? read_u16(p, big) << 16 | read_u16(p + 2, big)
               : read_u16(p + 2, big) << 16 | read_u16(p, big);
}

/* Returns a static text for an error about an unknown format: "a PDF document", "an HTML page". */
const char *sniff_describe(const uint8_t *data, size_t size);

/* Reads orientation 1 … 8 from TIFF-shaped EXIF data (the bytes after "Exif\0\0"); 1 if it is
 * absent or malformed. Never reads outside tiff[0 … size). */
int exif_orientation(const uint8_t *tiff, size_t size);

/* Reads the orientation from EXIF data (NULL: none), else from an XMP packet (NULL: none); else
 * 1. */
int exif_or_xmp(const uint8_t *exif, size_t exif_size, const uint8_t *xmp, size_t xmp_size);

/* Reads the orientation from the first eXIf chunk of a PNG; 1 if there is none. */
int exif_from_png(const uint8_t *data, size_t size);

/* The functions of each format.
 *
 * _load: loads the format's library. Returns NULL, or what is missing or unusable, static. Call it
 * before decoding, and before a decode worker confines itself. _decode: reads the header, checks
 * the limits, sets sizes and orientation. Then, if there is a buffer, writes the pixels as stored,
 * before the EXIF orientation, as contiguous RGB. A JPEG's columns outside photo->part are
 * undefined. After a failure the buffer's content is undefined, and nothing is leaked. */
typedef enum status image_decode_fn(struct decode *photo, struct error *err);
image_decode_fn jpeg_decode, png_decode, bmp_decode, gif_decode, webp_decode, tiff_decode;
image_decode_fn heif_decode; /* AVIF and HEIC */
const char *webp_load(void);
const char *tiff_load(void);
const char *avif_load(void);
const char *heic_load(void);
