/* Reuses the decoders' pixel memory and applies the EXIF orientation. */
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/image/decode.h"

/* Frees a buffer above GIANT bytes after SMALL_USES successive uses that needed less than a quarter
 * of it. So one giant photo does not keep its memory in every worker, and a series of giants does
 * not fault in fresh pages each time. */
enum { GIANT = 32 << 20, SMALL_USES = 8 };

/* Takes from the budget all memory that the photo will need. */
static enum status ask(struct pixel_account *account, size_t size, size_t working,
                       struct error *err)
{
    const struct image_memory *memory = account ? account->memory : NULL;
    size_t bytes;
    if (!memory)
        return STATUS_OK;
    if (!size_mul(size, account->is_turned ? 2 : 1, &bytes) || !size_add(bytes, working, &bytes))
        return error_set(err, STATUS_TOO_LARGE, "the picture does not fit the address space");
    if (bytes <= memory->small)
        return STATUS_OK;
    TRY(memory->take(memory->context, bytes, err));
    account->taken = bytes;
    return STATUS_OK;
}

enum status pixel_buffer_reserve(struct pixel_buffer *buffer, size_t size, size_t working,
                                 struct error *err)
{
    TRY(ask(buffer->account, size, working, err));
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

enum status pixel_buffer_reserve_rgb(const char *name, struct pixel_buffer *buffer, uint32_t width,
                                     uint32_t height, size_t working, struct error *err)
{
    size_t bytes;
    if (!size_mul(width, height, &bytes) || !size_mul(bytes, 3, &bytes))
        return error_set(err, STATUS_TOO_LARGE, "the %s's pixels do not fit the address space",
                         name);
    return pixel_buffer_reserve(buffer, bytes, working, err);
}

void pixel_buffer_done(struct pixel_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct pixel_buffer){.account = buffer->account};
}

/* A strided access map: reads the source with a constant step for each upright column and row.
 * Tiles keep the columns of a transposed picture in the cache. */
struct orientation_map {
    ptrdiff_t start, column_step, row_step; /* bytes */
    uint32_t columns, rows;                 /* of the upright picture */
};

static struct orientation_map orientation_map_of(uint32_t width, uint32_t height, int orientation)
{
    const ptrdiff_t pixel = 3, line = (ptrdiff_t)width * 3;
    const ptrdiff_t right = line - pixel, bottom = (ptrdiff_t)(height - 1) * line;
    switch (orientation) {
    case 2: /* mirrored left to right */
        return (struct orientation_map){right, -pixel, line, width, height};
    case 3: /* upside down */
        return (struct orientation_map){bottom + right, -pixel, -line, width, height};
    case 4: /* mirrored top to bottom */
        return (struct orientation_map){bottom, pixel, -line, width, height};
    case 5: /* transposed */
        return (struct orientation_map){0, line, pixel, height, width};
    case 6: /* needs a quarter turn clockwise */
        return (struct orientation_map){bottom, -line, pixel, height, width};
    case 7: /* transposed along the other diagonal */
        return (struct orientation_map){bottom + right, -line, -pixel, height, width};
    case 8: /* needs a quarter turn counter-clockwise */
        return (struct orientation_map){right, line, -pixel, height, width};
    default:
        return (struct orientation_map){0, pixel, line, width, height};
    }
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

void pixels_orient(const uint8_t *src, uint32_t width, uint32_t height, int orientation,
                   uint8_t *dst)
{
    enum { TILE = 32 };
    const struct orientation_map map = orientation_map_of(width, height, orientation);
    for (uint32_t y = 0; y < map.rows; y += TILE)
        for (uint32_t x = 0; x < map.columns; x += TILE)
            orient_tile(src, &map, x, x + TILE < map.columns ? x + TILE : map.columns, y,
                        y + TILE < map.rows ? y + TILE : map.rows, dst);
}
