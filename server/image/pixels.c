/* Checks the limits of pictures, reuses the decoders' pixel memory and applies the EXIF
 * orientation. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/image/decode.h"

/* A buffer above GIANT bytes is freed after SMALL_USES successive uses that needed less than a
 * quarter of it. So a worker does not keep memory for a giant photo for ever, and need not allocate
 * new pages for each of several giant photos in a row. */
enum { GIANT = 32 << 20, SMALL_USES = 8 };

enum status limits_check(const char *name, size_t width, size_t height,
                         const struct image_limits *limits, struct error *err)
{
    if (width == 0 || height == 0)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the %s header says %zu x %zu pixels, which is not possible; send an "
                         "intact file",
                         name, width, height);
    const size_t side = width > height ? width : height;
    if (limits->max_side && side > limits->max_side)
        return error_set(err, STATUS_TOO_LARGE,
                         "the %s is %zu x %zu pixels, but a side may have at most %u (--max-side); "
                         "send a smaller picture",
                         name, width, height, limits->max_side);
    /* Both sides are below 2^32, so the product fits. */
    if (limits->max_pixels && width * height > limits->max_pixels)
        return error_set(err, STATUS_TOO_LARGE,
                         "the %s is %zu x %zu = %zu pixels, but at most %zu are allowed "
                         "(--max-pixels); send a smaller picture",
                         name, width, height, width * height, (size_t)limits->max_pixels);
    return STATUS_OK;
}

enum status decode_set_size(struct decode *photo, size_t width, size_t height, struct error *err)
{
    TRY(limits_check(photo->name, width, height, photo->limits, err));
    photo->width = photo->full_width = (uint32_t)width;
    photo->height = photo->full_height = (uint32_t)height;
    return STATUS_OK;
}

enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size, struct error *err)
{
    bool far_too_large = buffer->capacity > GIANT && size < buffer->capacity / 4;
    buffer->small_uses = far_too_large ? buffer->small_uses + 1 : 0;
    if (size <= buffer->capacity && buffer->small_uses < SMALL_USES)
        return STATUS_OK;
    /* Frees the old memory first, so that the peak is the larger of both sizes, not their sum. */
    pixel_buffer_done(buffer);
    buffer->data = malloc(size ? size : 1);
    if (!buffer->data)
        return error_set(err, STATUS_NO_MEMORY,
                         "no memory for %zu bytes of pixels; send a smaller picture or try again",
                         size);
    buffer->capacity = size;
    return STATUS_OK;
}

enum status decode_reserve(struct decode *photo, size_t bytes, size_t working, struct error *err)
{
    const struct image_memory *memory = photo->decoder->memory;
    const size_t copies = photo->orientation == 1 ? 1 : 2; /* one as in the file, one upright */
    size_t size, all;
    if (!size_mul(photo->width, photo->height, &size) || !size_mul(size, bytes, &size) ||
        !size_mul(size, copies, &all) || !size_add(all, working, &all))
        return error_set(err, STATUS_TOO_LARGE, "the %s's pixels do not fit the address space",
                         photo->name);
    if (memory && all > memory->small) {
        TRY(memory->take(memory->context, all, err));
        photo->decoder->taken = all;
    }
    return pixel_buffer_reserve(&photo->decoder->stored, size, err);
}

void pixel_buffer_done(struct pixel_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct pixel_buffer){.data = NULL};
}

/* How to read an upright picture from the stored one: the first pixel is at `start`, the next
 * column is column_step farther, the next row row_step. */
struct orientation_map {
    ptrdiff_t start, column_step, row_step; /* bytes */
    uint32_t columns, rows;                 /* of the upright picture */
};

/* Orientations 2, 3, 7 and 8 reverse the stored columns, 3, 4, 6 and 7 the stored rows; 5 … 8
 * exchange rows and columns. */
static struct orientation_map orientation_map_of(size_t stride, uint32_t width, uint32_t height,
                                                 int orientation)
{
    const unsigned bit = 1u << orientation;
    const bool is_mirrored = bit & (1u << 2 | 1u << 3 | 1u << 7 | 1u << 8);
    const bool is_flipped = bit & (1u << 3 | 1u << 4 | 1u << 6 | 1u << 7);
    const ptrdiff_t across = is_mirrored ? -3 : 3;
    const ptrdiff_t down = is_flipped ? -(ptrdiff_t)stride : (ptrdiff_t)stride;
    const ptrdiff_t start = (is_mirrored ? ((ptrdiff_t)width - 1) * 3 : 0) +
                            (is_flipped ? (ptrdiff_t)(height - 1) * (ptrdiff_t)stride : 0);
    return orientation < 5 ? (struct orientation_map){start, across, down, width, height}
                           : (struct orientation_map){start, down, across, height, width};
}

static void orient_tile(const uint8_t *src, const struct orientation_map *map, uint32_t x0,
                        uint32_t x1, uint32_t y0, uint32_t y1, uint8_t *dst)
{
    for (uint32_t y = y0; y < y1; y++) {
        const uint8_t *from =
            src + map->start + y * map->row_step + (ptrdiff_t)x0 * map->column_step;
        uint8_t *to = dst + ((size_t)y * map->columns + x0) * 3;
        for (uint32_t x = x0; x < x1; x++, from += map->column_step, to += 3) {
            to[0] = from[0];
            to[1] = from[1];
            to[2] = from[2];
        }
    }
}

void image_orient(const uint8_t *src, size_t stride, uint32_t width, uint32_t height,
                  int orientation, uint8_t *dst)
{
    enum { TILE = 32 };
    const struct orientation_map map = orientation_map_of(stride, width, height, orientation);
    for (uint32_t y = 0; y < map.rows; y += TILE)
        for (uint32_t x = 0; x < map.columns; x += TILE)
            orient_tile(src, &map, x, x + TILE < map.columns ? x + TILE : map.columns, y,
                        y + TILE < map.rows ? y + TILE : map.rows, dst);
}
