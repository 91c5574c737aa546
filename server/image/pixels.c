/* Checks the limits of pictures, reuses the decoders' pixel memory and applies the EXIF
 * orientation. */
#include <stdlib.h>
#include <string.h>

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

/* Orientations 2, 3, 7 and 8 reverse the stored columns, 3, 4, 6 and 7 the stored rows; 5 … 8
 * exchange rows and columns. Copies tile by tile, because the columns of a turned picture are far
 * apart in memory. */
void image_orient(const uint8_t *src, size_t stride, uint32_t width, uint32_t height,
                  int orientation, uint8_t *dst)
{
    enum { TILE = 32 };
    const unsigned bit = 1u << orientation;
    const bool is_mirrored = bit & (1u << 2 | 1u << 3 | 1u << 7 | 1u << 8);
    const bool is_flipped = bit & (1u << 3 | 1u << 4 | 1u << 6 | 1u << 7);
    const bool is_turned = orientation >= 5;
    const ptrdiff_t across = is_mirrored ? -3 : 3;
    const ptrdiff_t down = is_flipped ? -(ptrdiff_t)stride : (ptrdiff_t)stride;
    const ptrdiff_t column_step = is_turned ? down : across, row_step = is_turned ? across : down;
    const uint32_t columns = is_turned ? height : width, rows = is_turned ? width : height;
    src += (is_mirrored ? ((size_t)width - 1) * 3 : 0) + (is_flipped ? (height - 1) * stride : 0);
    for (uint32_t top = 0; top < rows; top += TILE)
        for (uint32_t left = 0; left < columns; left += TILE)
            for (uint32_t y = top; y < rows && y < top + TILE; y++) {
                const uint8_t *from = src + y * row_step + left * column_step;
                uint8_t *to = dst + ((size_t)y * columns + left) * 3;
                for (uint32_t x = left; x < columns && x < left + TILE; x++, to += 3) {
                    memcpy(to, from, 3);
                    from += column_step;
                }
            }
}
