/* Decodes BMP, bottom-up and top-down: palettes of 1, 2, 4 and 8 bits (4 and 8 bits also run-length
 * encoded), and colours of 16, 24 and 32 bits with or without masks. Ignores alpha in pixels of 32
 * bits, as Pillow does. A palette index beyond the palette is black. Pixels that run-length codes
 * skip have index 0.
 *
 * Source: "Bitmap Storage", Win32 documentation. Refuses BMP with a JPEG or PNG inside (for
 * printers) and OS/2's Huffman code. */
#include <string.h>

#include "engine/base/size.h"
#include "server/image/decode.h"

enum { RGB_PLAIN = 0, RGB_RLE8 = 1, RGB_RLE4 = 2, RGB_MASKS = 3, RGB_ALPHA_MASKS = 6 };

struct bmp_head {
    uint32_t width, height;
    unsigned bits, compression;
    bool is_top_down;
    uint32_t masks[3];         /* masks of red, green and blue in pixels of 16 or 32 bits */
    uint8_t palette[256][3];   /* RGB; black beyond the file's palette */
    const uint8_t *data, *end; /* the pixels as they are in the file */
};

static enum status bmp_cut(struct error *err)
{
    return error_set(err, STATUS_BAD_IMAGE,
                     "the BMP ends early: its data stops before the picture is complete; send the "
                     "whole file");
}

static bool bmp_is_known(const struct bmp_head *head)
{
    switch (head->compression) {
    case RGB_PLAIN:
        return head->bits == 1 || head->bits == 2 || head->bits == 4 || head->bits == 8 ||
               head->bits == 16 || head->bits == 24 || head->bits == 32;
    case RGB_RLE8:
        return head->bits == 8 && !head->is_top_down;
    case RGB_RLE4:
        return head->bits == 4 && !head->is_top_down;
    case RGB_MASKS:
    case RGB_ALPHA_MASKS:
        return head->bits == 16 || head->bits == 32;
    default:
        return false;
    }
}

/* The palette begins at data[at]. A colour has `unit` bytes: 3 after the oldest header, else 4. */
static void bmp_read_palette(const uint8_t *data, size_t size, size_t at, uint32_t count,
                             size_t unit, struct bmp_head *head)
{
    const uint32_t most = 1u << head->bits;
    if (count == 0 || count > most)
        count = most;
    for (uint32_t i = 0; i < count && size - at >= unit; i++, at += unit)
        for (int c = 0; c < 3; c++)
            head->palette[i][c] = data[at + 2 - (size_t)c];
}

static void bmp_read_masks(const uint8_t *data, struct bmp_head *head)
{
    static const uint32_t of_16[] = {0x7C00, 0x03E0, 0x001F}, of_32[] = {0xFF0000, 0xFF00, 0xFF};
    const bool is_told = head->compression >= RGB_MASKS;
    for (int c = 0; c < 3; c++)
        head->masks[c] = is_told            ? read_u32(data + 54 + 4 * c, false)
                         : head->bits == 16 ? of_16[c]
                                            : of_32[c];
}

static enum status bmp_read_head(struct decode *photo, struct bmp_head *ret, struct error *err)
{
    enum { FILE_HEADER = 14, OLDEST = 12, WINDOWS = 40, WITH_MASKS = 54 + 12 };
    const uint8_t *data = photo->data;
    const size_t size = photo->size;
    struct bmp_head head = {0};
    const size_t info = size >= 18 ? read_u32(data + FILE_HEADER, false) : 0;
    int64_t width, height;
    uint32_t colours = 0;
    if (info < OLDEST || size < FILE_HEADER + info || (info > OLDEST && info < WINDOWS))
        return bmp_cut(err);
    if (info == OLDEST) {
        width = read_u16(data + 18, false);
        height = read_u16(data + 20, false);
        head.bits = read_u16(data + 24, false);
    } else {
        width = (int32_t)read_u32(data + 18, false);
        height = (int32_t)read_u32(data + 22, false);
        head.bits = read_u16(data + 28, false);
        head.compression = read_u32(data + 30, false);
        colours = read_u32(data + 46, false);
    }
    head.is_top_down = height < 0;
    height = head.is_top_down ? -height : height;
    TRY(decode_set_size(photo, width < 0 ? 0 : (size_t)width, (size_t)height, err));
    head.width = photo->width;
    head.height = photo->height;
    if (!bmp_is_known(&head))
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "BMP of %u bits with compression %u is not supported; save the picture as "
                         "BMP of 24 bits, JPEG or PNG",
                         head.bits, head.compression);
    const bool has_masks = head.compression >= RGB_MASKS;
    const size_t pixels = read_u32(data + 10, false);
    if ((has_masks && size < WITH_MASKS) || pixels > size)
        return bmp_cut(err);
    if (head.bits <= 8)
        bmp_read_palette(data, size, FILE_HEADER + info, colours, info == OLDEST ? 3 : 4, &head);
    else
        bmp_read_masks(data, &head);
    head.data = data + pixels;
    head.end = data + size;
    *ret = head;
    return STATUS_OK;
}

/* Scales a channel of a pixel to 0 … 255. */
static uint8_t bmp_channel(uint32_t pixel, uint32_t mask)
{
    if (!mask)
        return 0;
    const int shift = __builtin_ctz(mask);
    const uint64_t top = mask >> shift;
    return (uint8_t)(((pixel & mask) >> shift) * UINT64_C(255) / top);
}

static void bmp_read_row(const struct bmp_head *head, const uint8_t *row, uint8_t *rgb)
{
    const unsigned bits = head->bits;
    for (uint32_t x = 0; x < head->width; x++, rgb += 3) {
        if (bits <= 8) {
            const size_t at = (size_t)x * bits;
            const unsigned index =
                row[at / 8] >> (8 - bits - at % 8) & ((1u << bits) - 1); /* high bits first */
            memcpy(rgb, head->palette[index], 3);
        } else if (bits == 24) {
            for (int c = 0; c < 3; c++)
                rgb[c] = row[(size_t)x * 3 + 2 - (size_t)c];
        } else {
            const uint32_t pixel = bits == 16 ? read_u16(row + (size_t)x * 2, false)
                                              : read_u32(row + (size_t)x * 4, false);
            for (int c = 0; c < 3; c++)
                rgb[c] = bmp_channel(pixel, head->masks[c]);
        }
    }
}

static enum status bmp_read_rows(const struct bmp_head *head, uint8_t *pixels, struct error *err)
{
    /* No overflow: sides are below 2^31, and a pixel has at most 32 bits. */
    const uint64_t row_bits = (uint64_t)head->width * head->bits;
    const uint64_t stride = (row_bits + 31) / 32 * 4, last = (row_bits + 7) / 8;
    size_t before;
    if (!size_mul(stride, head->height - 1, &before) || before > (size_t)(head->end - head->data) ||
        last > (size_t)(head->end - head->data) - before)
        return bmp_cut(err);
    for (uint32_t y = 0; y < head->height; y++) {
        const uint32_t to = head->is_top_down ? y : head->height - 1 - y;
        bmp_read_row(head, head->data + stride * y, pixels + (size_t)to * head->width * 3);
    }
    return STATUS_OK;
}

struct bmp_runs {
    const struct bmp_head *head;
    uint8_t *pixels;
    uint32_t x, y; /* the next pixel, counted from the lower left corner */
};

/* Drops pixels beyond the end of a row. */
static void bmp_put(struct bmp_runs *runs, unsigned index)
{
    const struct bmp_head *head = runs->head;
    if (runs->x < head->width && runs->y < head->height) {
        const size_t row = head->height - 1 - runs->y;
        memcpy(runs->pixels + (row * head->width + runs->x) * 3, head->palette[index], 3);
        runs->x++;
    }
}

static unsigned bmp_index(const struct bmp_head *head, const uint8_t *from, unsigned i)
{
    return head->bits == 8 ? from[i] : i % 2 ? from[i / 2] & 15u : from[i / 2] >> 4;
}

static enum status bmp_read_runs(const struct bmp_head *head, uint8_t *pixels, struct error *err)
{
    enum { END_OF_ROW = 0, END = 1, MOVE = 2 };
    struct bmp_runs runs = {head, pixels, 0, 0};
    const uint8_t *at = head->data;
    for (size_t i = 0; i < (size_t)head->width * head->height; i++)
        memcpy(pixels + i * 3, head->palette[0], 3);
    while (runs.y < head->height) {
        if (head->end - at < 2)
            return bmp_cut(err);
        const unsigned count = at[0], value = at[1];
        at += 2;
        if (count > 0) {
            const uint8_t twice[2] = {(uint8_t)value, (uint8_t)value};
            for (unsigned i = 0; i < count; i++)
                bmp_put(&runs, bmp_index(head, twice, i % 2));
        } else if (value == END) {
            break;
        } else if (value == END_OF_ROW) {
            runs.x = 0;
            runs.y++;
        } else if (value == MOVE) {
            if (head->end - at < 2)
                return bmp_cut(err);
            runs.x = at[0] < head->width - runs.x ? runs.x + at[0] : head->width;
            runs.y = at[1] < head->height - runs.y ? runs.y + at[1] : head->height;
            at += 2;
        } else { /* a count of literal pixels, padded to 16 bits */
            const ptrdiff_t bytes = head->bits == 8 ? (ptrdiff_t)value : ((ptrdiff_t)value + 1) / 2;
            if (head->end - at < bytes + bytes % 2)
                return bmp_cut(err);
            for (unsigned i = 0; i < value; i++)
                bmp_put(&runs, bmp_index(head, at, i));
            at += bytes + bytes % 2;
        }
    }
    return STATUS_OK;
}

enum status bmp_decode(struct decode *photo, struct error *err)
{
    struct bmp_head head;
    TRY(bmp_read_head(photo, &head, err));
    if (!photo->decoder)
        return STATUS_OK;
    TRY(decode_reserve(photo, 3, 0, err));
    const bool has_runs = head.compression == RGB_RLE8 || head.compression == RGB_RLE4;
    return has_runs ? bmp_read_runs(&head, photo->decoder->stored.data, err)
                    : bmp_read_rows(&head, photo->decoder->stored.data, err);
}
