/* Decodes the first picture of a GIF onto the whole screen; pixels that the picture does not cover
 * get its transparent colour, or colour 0 if it has none, as in Pillow. Drops transparency.
 *
 * Source: GIF89a specification; section numbers below. Hostile files: the code table has a fixed
 * size, a string is never longer than the table, and each code adds pixels or ends the picture. */
#include <string.h>

#include "server/image/decode.h"

struct gif_head {
    uint32_t width, height;                      /* size of the screen */
    uint32_t left, top, part_width, part_height; /* the picture's place on the screen */
    bool is_interlaced;
    unsigned fill;           /* colour of pixels that the picture does not cover */
    uint8_t palette[256][3]; /* grey if the file has no palette; black beyond the file's palette */
    const uint8_t *data, *end; /* the LZW code size, then the blocks of codes */
};

static enum status gif_cut(struct error *err)
{
    return error_set(err, STATUS_BAD_IMAGE,
                     "the GIF ends early: its data stops before the first picture is complete; "
                     "send the whole file");
}

/* Skips the blocks at *at. Returns false if the data ends before the last block does. */
static bool gif_skip_blocks(const uint8_t **at, const uint8_t *end)
{
    while (*at<end &&* * at> 0) {
        if (end - *at <= **at)
            return false;
        *at += 1 + **at;
    }
    return *at < end && (*at)++;
}

/* Reads the colour table if the flags announce one. Returns false if the table is incomplete. */
static bool gif_read_palette(const uint8_t **at, const uint8_t *end, unsigned flags,
                             struct gif_head *head)
{
    const ptrdiff_t bytes = 3 * (2 << (flags & 7));
    if (!(flags & 0x80))
        return true;
    if (end - *at < bytes)
        return false;
    memset(head->palette, 0, sizeof head->palette);
    memcpy(head->palette, *at, (size_t)bytes);
    *at += bytes;
    return true;
}

/* Reads all that precedes the codes of the first picture. */
static enum status gif_read_head(struct decode *photo, struct gif_head *ret, struct error *err)
{
    enum { SCREEN_END = 13, EXTENSION = 0x21, PICTURE = 0x2C, CONTROL = 0xF9 };
    const uint8_t *data = photo->data;
    struct gif_head head = {.end = data + photo->size};
    const uint8_t *at = data + SCREEN_END;
    for (unsigned i = 0; i < 256; i++)
        memset(head.palette[i], (int)i, 3);
    if (photo->size < SCREEN_END)
        return gif_cut(err);
    if (!gif_read_palette(&at, head.end, data[10], &head))
        return gif_cut(err);
    for (; at < head.end && *at == EXTENSION;) { /* 23 */
        if (head.end - at < 2)
            return gif_cut(err);
        if (at[1] == CONTROL && head.end - at >= 8 && at[2] == 4 && (at[3] & 1))
            head.fill = at[6];
        at += 2;
        if (!gif_skip_blocks(&at, head.end))
            return gif_cut(err);
    }
    if (at == head.end)
        return gif_cut(err);
    if (*at != PICTURE)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the GIF is damaged or has no picture; send an intact file");
    if (head.end - at < 10 + 2)
        return gif_cut(err);
    head.left = read_u16(at + 1, false); /* 20 */
    head.top = read_u16(at + 3, false);
    head.part_width = read_u16(at + 5, false);
    head.part_height = read_u16(at + 7, false);
    head.is_interlaced = at[9] & 0x40;
    const unsigned flags = at[9];
    const uint32_t screen_width = read_u16(data + 6, false),
                   screen_height = read_u16(data + 8, false);
    const uint32_t right = head.left + head.part_width, bottom = head.top + head.part_height;
    head.width = right > screen_width ? right : screen_width;
    head.height = bottom > screen_height ? bottom : screen_height;
    at += 10;
    if (!gif_read_palette(&at, head.end, flags, &head) || head.end - at < 2)
        return gif_cut(err);
    TRY(decode_set_size(photo, head.width, head.height, err));
    head.data = at;
    *ret = head;
    return STATUS_OK;
}

struct gif_cursor {
    const struct gif_head *head;
    uint8_t *pixels;
    uint32_t x, row, step; /* step: rows to the next one (appendix E) */
};

/* Writes a pixel with palette index `index`. Returns false if it was the last one. */
static bool gif_put(struct gif_cursor *cursor, uint8_t index)
{
    const struct gif_head *head = cursor->head;
    const size_t row = (size_t)head->top + cursor->row;
    memcpy(cursor->pixels + (row * head->width + head->left + cursor->x) * 3, head->palette[index],
           3);
    if (++cursor->x < head->part_width)
        return true;
    cursor->x = 0;
    cursor->row += cursor->step;
    while (head->is_interlaced && cursor->row >= head->part_height && cursor->step > 2) {
        /* rows 0, 8, …; 4, 12, …; 2, 6, …; 1, 3, … */
        const bool is_second = cursor->step == 8 && cursor->row % 8 == 0;
        cursor->step = is_second ? 8 : cursor->step / 2;
        cursor->row = is_second ? 4 : cursor->step / 2;
    }
    return cursor->row < head->part_height;
}

/* Reads codes, which may begin in one block and end in the next. */
struct gif_bits {
    const uint8_t *at, *end;
    unsigned block; /* bytes left in the current block */
    uint32_t bits;
    unsigned count;
};

static bool gif_read_code(struct gif_bits *in, unsigned width, unsigned *ret)
{
    while (in->count < width) {
        if (in->block == 0) {
            if (in->at == in->end || *in->at == 0)
                return false;
            in->block = *in->at++;
        }
        if (in->at == in->end)
            return false;
        in->bits |= (uint32_t)*in->at++ << in->count;
        in->count += 8;
        in->block--;
    }
    *ret = in->bits & ((1u << width) - 1);
    in->bits >>= width;
    in->count -= width;
    return true;
}

enum { GIF_CODES = 4096, GIF_CODE_BITS = 12, GIF_NONE = GIF_CODES };

/* The string of a code is the string of prefix[code], then the byte last[code]. */
struct gif_table {
    uint16_t prefix[GIF_CODES];
    uint8_t last[GIF_CODES];
    uint8_t string[GIF_CODES + 1];
};

/* Writes the string of a code backwards to the end of table->string; returns its length. */
static size_t gif_string(struct gif_table *table, unsigned code, unsigned clear)
{
    size_t length = 0;
    for (; code > clear; code = table->prefix[code]) /* a code's prefix is a smaller number */
        table->string[GIF_CODES - length++] = table->last[code];
    table->string[GIF_CODES - length++] = (uint8_t)code;
    return length;
}

static enum status gif_read_codes(const struct gif_head *head, uint8_t *pixels, struct error *err)
{
    struct gif_cursor cursor = {head, pixels, 0, 0, head->is_interlaced ? 8 : 1};
    struct gif_bits in = {.at = head->data + 1, .end = head->end};
    struct gif_table table;
    const unsigned least = *head->data; /* appendix F */
    if (least < 1 || least > 8)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the GIF is damaged (LZW code size %u); send an intact file", least);
    const unsigned clear = 1u << least, stop = clear + 1;
    unsigned next = stop + 1, width = least + 1, before = GIF_NONE, code;
    while (gif_read_code(&in, width, &code)) {
        if (code == stop)
            return STATUS_OK; /* the remaining pixels stay uncovered */
        if (code == clear) {
            next = stop + 1;
            width = least + 1;
            before = GIF_NONE;
            continue;
        }
        if (code > next || (code == next && before == GIF_NONE))
            return error_set(
                err, STATUS_BAD_IMAGE,
                "the GIF is damaged (a code that is not defined yet); send an intact file");
        /* A code that is about to be defined: the previous string, then its first byte again. */
        const bool is_new = code == next;
        size_t length = gif_string(&table, is_new ? before : code, clear);
        const uint8_t first = table.string[GIF_CODES + 1 - length];
        if (before != GIF_NONE && next < GIF_CODES) {
            table.prefix[next] = (uint16_t)before;
            table.last[next++] = first;
            width += next == 1u << width && width < GIF_CODE_BITS;
        }
        before = code;
        for (size_t i = length; i > 0; i--)
            if (!gif_put(&cursor, table.string[GIF_CODES + 1 - i]))
                return STATUS_OK;
        if (is_new && !gif_put(&cursor, first))
            return STATUS_OK;
    }
    return gif_cut(err);
}

enum status gif_decode(struct decode *photo, struct error *err)
{
    struct gif_head head;
    TRY(gif_read_head(photo, &head, err));
    if (!photo->decoder)
        return STATUS_OK;
    TRY(decode_reserve(photo, 3, 0, err));
    uint8_t *pixels = photo->decoder->stored.data;
    /* The codes of the picture may stop early, and the buffer has pixels of an earlier photo. */
    for (size_t i = 0; i < (size_t)head.width * head.height; i++)
        memcpy(pixels + i * 3, head.palette[head.fill], 3);
    return head.part_width && head.part_height ? gif_read_codes(&head, pixels, err) : STATUS_OK;
}
