/* Private to server/image: the interface of the format readers and their helpers. */
#pragma once

#include "server/image/image.h"

/* Memory for pixels, reused from image to image. */
struct pixel_buffer {
    uint8_t *data;
    size_t capacity;
    unsigned small_uses; /* successive uses of a giant buffer for much smaller images */
};

/* Makes room for `size` bytes; the content is undefined afterwards. Frees a giant buffer after many
 * successive small images. STATUS_NO_MEMORY leaves the buffer empty but usable. */
enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size,
                                 struct error *err) MUST_USE;
void pixel_buffer_done(struct pixel_buffer *buffer);

struct image_decoder {
    struct pixel_buffer stored;  /* pixels as in the file, before the turn to upright */
    struct pixel_buffer upright; /* only for pictures that had to be turned */
    uint8_t *last;               /* upright pixels of the last picture, in one of the buffers */
    const struct image_memory *memory; /* the budget; NULL: none */
    size_t taken;                      /* bytes of the budget that the last picture has reserved */
};

/* A photo that a reader decodes. */
struct decode {
    const char *name; /* of the format, for errors: "JPEG" */
    const uint8_t *data;
    size_t size;
    const struct image_limits *limits;
    const struct preprocess *part; /* only pixels that `part` reads are needed; NULL: all */
    bool reduces; /* a JPEG may be decoded at 1/2, 1/4 or 1/8 of its size; needs `part` */
    struct image_decoder *decoder; /* gets the pixels as in the file; NULL: only read the header */
    /* Set by the reader, before the turn to upright: full_width and full_height of the photo in the
     * file, width and height of the decoded pixels. */
    uint32_t full_width, full_height, width, height;
    int orientation; /* EXIF's, 1 … 8; initially 1 */
};

/* Checks the size with limits_check(), and sets full_width, full_height, width and height. */
enum status decode_set_size(struct decode *photo, size_t width, size_t height,
                            struct error *err) MUST_USE;

/* Makes room in photo->decoder for photo->width x photo->height pixels of `bytes` bytes each.
 * Reserves this memory and `working` bytes for the decoder's own use in the budget. */
enum status decode_reserve(struct decode *photo, size_t bytes, size_t working,
                           struct error *err) MUST_USE;

/* Refuses a size over the limits (STATUS_TOO_LARGE with limit and value) or with a side of 0
 * (STATUS_BAD_IMAGE). The error begins with `name`, such as "JPEG". */
enum status limits_check(const char *name, size_t width, size_t height,
                         const struct image_limits *limits, struct error *err) MUST_USE;

/* True if the data ends within a JPEG or PNG signature. */
bool sniff_is_beginning(const uint8_t *data, size_t size);

/* Read an unsigned number of 2 or 4 bytes at p; `big`: big-endian, else little-endian. */
static inline uint32_t read_u16(const uint8_t *p, bool big)
{
    return big ? (uint32_t)p[0] << 8 | p[1] : (uint32_t)p[1] << 8 | p[0];
}

static inline uint32_t read_u32(const uint8_t *p, bool big)
{
    return big ? read_u16(p, big) << 16 | read_u16(p + 2, big)
               : read_u16(p + 2, big) << 16 | read_u16(p, big);
}

/* Describes data of an unknown format for an error, such as "a PDF document"; static text. */
const char *sniff_describe(const uint8_t *data, size_t size);

/* Returns the orientation, 1 … 8, from EXIF data (a TIFF structure, the bytes after "Exif\0\0"), or
 * else from an XMP packet; 1 if neither has a valid orientation. `exif` and `xmp` may be NULL.
 * Never reads outside exif[0 … exif_size) and xmp[0 … xmp_size). */
int exif_orientation(const uint8_t *exif, size_t exif_size, const uint8_t *xmp, size_t xmp_size);

/* The functions of each format.
 *
 * …_load() loads the format's library. It returns NULL, or else a static text that names what is
 * missing or unusable. Call it before decoding, and before a decode worker confines itself.
 * …_decode() reads the header, checks the limits, and sets sizes and orientation. If
 * photo->decoder is not NULL, it also writes the pixels to decoder->stored: contiguous RGB, in the
 * order of the file, not turned upright. Columns of a JPEG that photo->part does not read are
 * undefined. After a failure the buffer's content is undefined. */
typedef enum status image_decode_fn(struct decode *photo, struct error *err);
image_decode_fn jpeg_decode, png_decode, bmp_decode, gif_decode, webp_decode, tiff_decode;
image_decode_fn heif_decode; /* AVIF and HEIC */
const char *webp_load(void);
const char *tiff_load(void);
const char *avif_load(void);
const char *heic_load(void);
