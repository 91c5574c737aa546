/* Private to server/image: the interface of the format readers and their helpers. */
#pragma once

#include "server/image/image.h"

/* The memory that the current photo has reserved from the budget. */
struct pixel_account {
    const struct image_memory *memory; /* NULL: no budget */
    size_t taken;
    bool is_turned; /* the photo must be turned upright, in a second buffer */
};

/* Memory for pixels, reused from image to image. */
struct pixel_buffer {
    uint8_t *data;
    size_t capacity;
    unsigned small_uses;           /* successive uses that needed far less than a giant buffer */
    struct pixel_account *account; /* NULL: the account of another buffer covers this one */
};

/* Makes room for `size` bytes; the content is undefined afterwards. Frees a giant buffer after many
 * successive small images. `working`: bytes that the decoder needs in addition. STATUS_NO_MEMORY
 * leaves the buffer empty but usable. */
enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size, size_t working,
                                 struct error *err) MUST_USE;
void pixel_buffer_done(struct pixel_buffer *buffer);

/* Calls pixel_buffer_reserve() for `width` x `height` pixels of three bytes. `name` is the
 * format's, for the error STATUS_TOO_LARGE. */
enum status pixel_buffer_reserve_rgb(const char *name, struct pixel_buffer *buffer, uint32_t width,
                                     uint32_t height, size_t working, struct error *err) MUST_USE;

/* Writes the photo src [height, width, 3] (contiguous) turned upright into dst; for orientations 5
 * … 8 dst is [width, height, 3]. `orientation` is EXIF's, 1 … 8. No overlap. */
void pixels_orient(const uint8_t *src, uint32_t width, uint32_t height, int orientation,
                   uint8_t *dst);

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

/* Read the orientation from a file: a JPEG's first EXIF segment, else its last XMP packet; a PNG's
 * first eXIf chunk; a WebP's first EXIF chunk, else its first XMP chunk. 1 if there is none. */
int exif_from_jpeg(const uint8_t *data, size_t size);
int exif_from_png(const uint8_t *data, size_t size);
int exif_from_webp(const uint8_t *data, size_t size);

/* Reads the orientation of a TIFF. For a BigTIFF, libtiff must be loaded. */
int tiff_orientation(const uint8_t *data, size_t size);

/* Sizes before the EXIF orientation: of the decoded pixels, and of the photo in the file. */
struct stored_size {
    uint32_t width, height, full_width, full_height;
};

/* The part of a photo that preprocessing `p` reads once the photo is upright. */
struct decode_part {
    const struct preprocess *p;
    int orientation;
};

/* The functions of each format.
 *
 * _load: loads the format's library; returns false if the library is missing or unusable. Call it
 * before decoding, and before a decode worker confines itself. _decode: writes the pixels as
 * stored, before the EXIF orientation, as contiguous RGB to `buffer`. If `buffer` is NULL, it only
 * reads the header, checks the limits and returns the sizes. A JPEG can be decoded at 1 /
 * `reduction` (1, 2, 4, 8; sizes are rounded up). With `part` (NULL: all), columns outside it are
 * undefined. After a failure the buffer's content is undefined, and nothing is leaked. */
typedef enum status image_decode_fn(const uint8_t *data, size_t size,
                                    const struct image_limits *limits, unsigned reduction,
                                    const struct decode_part *part, struct pixel_buffer *buffer,
                                    struct stored_size *ret, struct error *err);
image_decode_fn jpeg_decode, png_decode, bmp_decode, gif_decode, webp_decode, tiff_decode;
image_decode_fn heif_decode; /* AVIF and HEIC */
bool webp_load(void);
bool tiff_load(void);
bool avif_load(void);
bool heic_load(void);

/* Returns what AVIF or HEIC lacks after avif_load() or heic_load() has failed; static. That is
 * `package` if libheif or its plug-in is not installed. */
const char *heif_need(const char *package);
