/* Images from clients: bytes in, pixels out.
 *
 * image_decode_part() and image_decode_reduced() turn the bytes of a file into upright 8-bit RGB;
 * transform_numbers() and transform_bytes() (transform.h) resize and crop those into the slot of a
 * batch. Both run on the decode workers: one `struct image_decoder` per worker, used by that worker
 * alone. Nothing here knows of HTTP, models' graphs or batches. Only jpeg.c and jpeg_encode.c use
 * libjpeg-turbo, only png.c and png_encode.c libpng; webp.c, tiff.c and heif.c load theirs at run
 * time (library.h).
 *
 * What "the same as Pillow" means here: pixels equal to PIL.ImageOps.exif_transpose(
 * Image.open(f)).convert("RGB"), with alpha dropped, not blended, and 16 bit PNG reduced to its
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
    IMAGE_GIF, /* the first picture, as of the next three */
    IMAGE_WEBP,
    IMAGE_TIFF,
    IMAGE_AVIF,
    IMAGE_HEIC,
    IMAGE_FORMATS,
};

/* Limits checked on the header alone, before any memory for pixels is taken. 0 = no limit. */
struct image_limits {
    uint64_t max_pixels; /* width * height; default 50 million */
    uint32_t max_side;   /* pixels; default 16384 */
    uint32_t max_scans;  /* scans of a progressive JPEG; default 100 */
};

#define IMAGE_LIMITS_DEFAULT ((struct image_limits){50u * 1000 * 1000, 16384, 100})

struct image_info {
    enum image_format format;
    uint32_t width, height; /* upright, that is after the EXIF turn */
    int orientation;        /* EXIF 1 … 8; 1 where the file has none or a wrong one */
};

/* Upright RGB pixels, 3 bytes a pixel, rows `stride` bytes apart. The memory belongs to the decoder
 * that made it and stays valid until its next image_decode or image_decoder_free. */
struct image {
    struct image_info info; /* of the picture as a whole */
    uint32_t width, height; /* of these pixels: less than info's after image_decode_reduced */
    size_t stride;
    const uint8_t *pixels;
};

struct image_decoder;

/* The pixels of the decoder's last picture, to draw on. */
uint8_t *image_pixels(const struct image_decoder *decoder);

/* The memory budget for large pictures, as the decoder sees it. */
struct image_memory {
    size_t small; /* bytes; pictures that take no more are decoded without asking */

    /* Takes what one picture needs, all at once; may wait. Called by the decoder's thread, with
     * nothing taken. A failure is that of the decode. */
    enum status (*take)(void *context, size_t bytes, struct error *err);
    void (*give)(void *context, size_t bytes);
    void *context;
};

/* The format as the first bytes tell it; never from a header or a file name. */
enum image_format image_sniff(const uint8_t *data, size_t size);

/* "JPEG" … "HEIC"; not of IMAGE_UNKNOWN. */
const char *image_format_name(enum image_format format);

/* Reads AVIF and HEIC with a libheif before 1.23, too: a small hostile file then takes memory
 * beyond all limits. Before any other function here, from one thread. */
void image_use_old_libheif(bool uses);

/* Whether this server can decode the format: WebP, TIFF, AVIF and HEIC need a library that may not
 * be installed, or may be unusable. *ret_need (may be NULL) is then what is needed, static: "the
 * Debian package libwebp7"; NULL for a format that needs nothing. The first call loads the
 * libraries and starts a process; make it before the process confines itself. Any thread. */
bool image_format_is_available(enum image_format format, const char **ret_need);

/* The names of those that can be decoded; returns how many. */
size_t image_formats(const char *ret_names[static IMAGE_FORMATS]);

/* A decoder for one worker thread; NULL when out of memory. Free with image_decoder_free (NULL is
 * fine). */
struct image_decoder *image_decoder_create(void);
void image_decoder_free(struct image_decoder *decoder);

/* From now on large pictures take their memory from `memory` (borrowed). Call image_decoder_done()
 * after each picture, decoded or not. */
void image_decoder_ask(struct image_decoder *decoder, const struct image_memory *memory);

/* Gives back the memory of the last picture, whose pixels are then undefined. `all`: also frees the
 * buffers that are kept for the next picture. */
void image_decoder_done(struct image_decoder *decoder, bool all);

/* Reads the header only: format, upright size, orientation. Errors as image_decode. */
enum status image_probe(const uint8_t *data, size_t size, const struct image_limits *limits,
                        struct image_info *ret, struct error *err) MUST_USE;

/* Whether a picture takes tens of milliseconds to decode on one core, as its header says: it has 4
 * megapixels or more. False where the header cannot be read. */
bool image_is_large(const uint8_t *data, size_t size);

/* Decodes `size` bytes from a client (hostile until proven otherwise).
 * STATUS_UNSUPPORTED_MEDIA: no picture (the text says what it looks like: HTML, text …), a format
 * whose library is not installed, or a kind of picture that is not read: a JPEG process that
 * browsers do not read either (arithmetic coding, lossless, 12 bit, two components), rare
 * compressions of TIFF and BMP. STATUS_BAD_IMAGE: empty, truncated, corrupt. STATUS_TOO_LARGE: over
 * a limit, which the text names with its value. STATUS_NO_MEMORY. On failure *ret is untouched and
 * the decoder stays usable. A JPEG whose data ends early is refused, not half shown. */
enum status image_decode(struct image_decoder *decoder, const uint8_t *data, size_t size,
                         const struct image_limits *limits, struct image *ret,
                         struct error *err) MUST_USE;

/* As image_decode, for whoever reads of the picture only what `p` makes of it (transform.h): those
 * pixels are the same, to the bit; of a JPEG others may be left out and hold anything. NULL: all.
 */
enum status image_decode_part(struct image_decoder *decoder, const uint8_t *data, size_t size,
                              const struct image_limits *limits, const struct preprocess *p,
                              struct image *ret, struct error *err) MUST_USE;

/* As image_decode_part, but quicker where a JPEG is much larger than what `p` resizes it to: it is
 * decoded at a half, a quarter or an eighth, never below that size. Pixels then differ from those
 * of the exact way by more than rounding (DCT scaling is another filter than Pillow's): only for
 * those who ask for it. */
enum status image_decode_reduced(struct image_decoder *decoder, const uint8_t *data, size_t size,
                                 const struct image_limits *limits, const struct preprocess *p,
                                 struct image *ret, struct error *err) MUST_USE;
