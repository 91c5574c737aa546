/* Decodes photos from clients.
 *
 * image_decode() decodes a file to upright 8-bit RGB.
 * transform_numbers() and transform_bytes() (transform.h) resize and crop the pixels into the slot
 * of a batch. Both run on the decode workers. Each worker has its own `struct image_decoder`. This
 * folder depends neither on HTTP nor on graphs nor on batches. Only jpeg.c uses
 * libjpeg-turbo, only png.c libpng; webp.c, tiff.c and heif.c load their libraries
 * at run time (engine/base/library.h).
 *
 * "The same as Pillow" means: pixels equal to PIL.ImageOps.exif_transpose(
 * Image.open(f)).convert("RGB"), with alpha dropped, not blended, and 16-bit PNG reduced to its
 * high byte. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "models/folder/preprocess.h"

enum image_format {
    IMAGE_UNKNOWN,
    IMAGE_JPEG,
    IMAGE_PNG,
    IMAGE_BMP,
    IMAGE_GIF, /* only the first or primary picture of this and the formats below is decoded */
    IMAGE_WEBP,
    IMAGE_TIFF,
    IMAGE_AVIF,
    IMAGE_HEIC,
    IMAGE_FORMATS,
};

/* Limits checked on the header, before memory for pixels is allocated. 0: no limit. */
struct image_limits {
    uint64_t max_pixels; /* width * height; default 50 million */
    uint32_t max_side;   /* pixels; default 16384 */
    uint32_t max_scans;  /* scans of a progressive JPEG; default 100 */
};

#define IMAGE_LIMITS_DEFAULT ((struct image_limits){50u * 1000 * 1000, 16384, 100})

struct image_info {
    enum image_format format;
    uint32_t width, height; /* after the turn to upright */
    int orientation;        /* EXIF's, 1 … 8; 1 if absent or malformed */
};

/* Upright RGB pixels, 3 bytes per pixel, rows `stride` bytes apart. The decoder owns the memory,
 * which is valid until its next image_decode(), image_decoder_done() or image_decoder_free(). */
struct image {
    struct image_info info; /* of the photo in the file */
    uint32_t width, height; /* of `pixels`; smaller than in `info` after --fast-decode */
    size_t stride;
    const uint8_t *pixels;
};

struct image_decoder;

/* Returns the pixels of the decoder's last photo, for drawing on them. */
uint8_t *image_pixels(const struct image_decoder *decoder);

/* The decoders' memory budget for large photos. */
struct image_memory {
    size_t small; /* a photo that needs at most this many bytes reserves nothing */

    /* take() reserves all memory for one photo, and may wait. The decoder calls take() only while
     * it holds no reserved memory. If take() fails, decoding fails. */
    enum status (*take)(void *context, size_t bytes, struct error *err);
    void (*give)(void *context, size_t bytes);
    void *context;
};

/* Detects the format by the first bytes. */
enum image_format image_sniff(const uint8_t *data, size_t size);

/* Returns a name such as "JPEG". `format` must not be IMAGE_UNKNOWN. */
const char *image_format_name(enum image_format format);

/* `uses`: also decode AVIF and HEIC if libheif is older than 1.23. A small hostile file can then
 * use memory beyond all limits. Call this before any other function of this header. */
void image_use_old_libheif(bool uses);

/* Returns NULL if this server can decode the format. Otherwise returns what is missing or unusable,
 * static, such as "the Debian package libwebp7". The first call loads the libraries of WebP, TIFF,
 * AVIF and HEIC and starts a process; call it before the process confines itself. Any thread. */
const char *image_format_missing(enum image_format format);

/* Writes the names of the formats that this server can decode; returns their number. */
size_t image_formats(const char *ret_names[static IMAGE_FORMATS]);

/* Creates a decoder for one worker thread; NULL when out of memory. Large photos reserve their
 * memory from `memory` (borrowed; NULL: no budget); then call image_decoder_done() after each
 * photo, decoded or not. Free with image_decoder_free (accepts NULL). */
struct image_decoder *image_decoder_create(const struct image_memory *memory);
void image_decoder_free(struct image_decoder *decoder);

/* Gives the memory of the last photo back to the budget. The photo's pixels are then undefined.
 * `all`: also frees the buffers that the decoder keeps for the next photo. */
void image_decoder_done(struct image_decoder *decoder, bool all);

/* Reads only the header. Errors are those of image_decode(). */
enum status image_probe(const uint8_t *data, size_t size, const struct image_limits *limits,
                        struct image_info *ret, struct error *err) MUST_USE;

/* True if a photo's header declares 4 megapixels or more, which take tens of milliseconds to decode
 * on one core. False if the header cannot be read. */
bool image_is_large(const uint8_t *data, size_t size);

/* Decodes `size` untrusted bytes. With `p`, pixels of a JPEG that transform_numbers() does not read
 * may be undefined. `p` may be NULL. `reduces` (--fast-decode): a JPEG may be decoded at a half, a
 * quarter or an eighth of its size if neither side becomes smaller than the size to which `p`
 * resizes the photo. This is faster, but the pixels differ by more than rounding, because DCT
 * scaling filters differently. STATUS_UNSUPPORTED_MEDIA: the data is not a photo (the error says
 * what it looks like: HTML, text …), the format's library is not installed, or the variant is not
 * supported (rare compressions of TIFF and BMP; JPEGs with arithmetic coding, without loss, of 12
 * bits or of two components). STATUS_BAD_IMAGE: the data is empty, truncated or corrupt.
 * STATUS_TOO_LARGE: the error names the limit and its value. STATUS_NO_MEMORY. On failure *ret does
 * not change and the decoder stays usable. */
enum status image_decode(struct image_decoder *decoder, const uint8_t *data, size_t size,
                         const struct image_limits *limits, const struct preprocess *p,
                         bool reduces, struct image *ret, struct error *err) MUST_USE;

/* Turns a photo upright: src [height, width, 3], whose rows are `stride` bytes apart, to dst
 * [height, width, 3], contiguous; for orientations 5 … 8 to dst [width, height, 3]. `orientation`
 * is EXIF's, 1 … 8: 3 turns by 180 degrees, 8 by 90 degrees counter-clockwise. No overlap. */
void image_orient(const uint8_t *src, size_t stride, uint32_t width, uint32_t height,
                  int orientation, uint8_t *dst);
