/* Inside server/image only: what image.c asks of the format readers. */
#pragma once

#include "server/image/image.h"

/* Memory for pixels that is used again from image to image. */
struct pixel_buffer {
    uint8_t *data;
    size_t capacity;
    unsigned small_uses; /* uses in a row that needed far less than a giant capacity */
};

/* Makes room for `size` bytes; the content is undefined afterwards. A giant buffer that a run of
 * small images did not need is given back. STATUS_NO_MEMORY leaves the buffer empty but usable. */
enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size,
                                 struct error *err) MUST_USE;
void pixel_buffer_done(struct pixel_buffer *buffer);

/* Writes the picture src [height, width, 3] (contiguous) turned upright into dst; for orientations
 * 5 … 8 dst is [width, height, 3]. `orientation` is 1 … 8 as EXIF counts. No overlap. */
void pixels_turn(const uint8_t *src, uint32_t width, uint32_t height, int orientation,
                 uint8_t *dst);

/* Refuses a size over the limits (STATUS_TOO_LARGE, naming limit and value) or with a side of 0
 * (STATUS_BAD_IMAGE). `name` is the format's, for the text. */
enum status limits_check(const char *name, uint64_t width, uint64_t height,
                         const struct image_limits *limits, struct error *err) MUST_USE;

/* Whether all there is fits the signature of a JPEG or PNG, but ends inside it. */
bool sniff_is_beginning(const uint8_t *data, size_t size);

/* What unknown bytes look like, for people: "a GIF image", "HTML text". Static text. */
const char *sniff_describe(const uint8_t *data, size_t size);

/* Orientation 1 … 8 from TIFF-shaped EXIF data (the bytes after "Exif\0\0"); 1 where there is none
 * or the data is wrong. Never reads outside tiff[0 … size). */
int exif_orientation(const uint8_t *tiff, size_t size);

/* The same from a whole file: the first APP1 segment that holds EXIF, the first eXIf chunk. */
int exif_from_jpeg(const uint8_t *data, size_t size);
int exif_from_png(const uint8_t *data, size_t size);

/* A header alone, limits applied: the size as stored, before the EXIF turn. */
enum status jpeg_read_size(const uint8_t *data, size_t size, const struct image_limits *limits,
                           uint32_t *ret_width, uint32_t *ret_height, struct error *err) MUST_USE;
enum status png_read_size(const uint8_t *data, size_t size, const struct image_limits *limits,
                          uint32_t *ret_width, uint32_t *ret_height, struct error *err) MUST_USE;

/* The size of decoded pixels in the file's order, before the EXIF turn, and that of the whole. */
struct stored_size {
    uint32_t width, height, full_width, full_height;
};

/* What will be read of a picture: what `p` makes of it when it has been turned upright. */
struct decode_part {
    const struct preprocess *p;
    int orientation;
};

/* The pixels as stored, contiguous RGB in `buffer`; a JPEG's at 1 / `reduction` (1, 2, 4, 8; parts
 * of a pixel count whole). With `part` (NULL: all) columns that are not read may hold anything. On
 * failure the buffer's content is undefined and nothing is leaked. */
enum status jpeg_decode(const uint8_t *data, size_t size, const struct image_limits *limits,
                        unsigned reduction, const struct decode_part *part,
                        struct pixel_buffer *buffer, struct stored_size *ret,
                        struct error *err) MUST_USE;
enum status png_decode(const uint8_t *data, size_t size, const struct image_limits *limits,
                       unsigned reduction, const struct decode_part *part,
                       struct pixel_buffer *buffer, struct stored_size *ret,
                       struct error *err) MUST_USE;
