/* Reads and writes PNG with libpng. An error jumps back instead of ending the process.
 *
 * The result of reading equals Pillow's convert("RGB"): palettes looked up, grey of 1, 2 and 4 bits
 * scaled to 0 … 255, alpha and tRNS dropped (not blended), 16 bit reduced to the high byte. One
 * case differs: 16-bit grey without alpha is Pillow's mode "I". Pillow (9.4 and 13.0) clips
 * everything above 255, which would turn such a picture white. Here the high byte is used, as for
 * all other 16-bit files. A palette index beyond the palette is black.
 *
 * Hostile files: the size is checked on the raw header before libpng sees the file. Chunks that do
 * not affect pixels are skipped unread (decompression bombs hide in text and profiles); the others
 * may not allocate more than CHUNK_BYTES. Files with a wrong checksum, a truncated chunk or no
 * IEND are refused. libpng also inflates what follows the last row, possibly to a thousand times
 * its size, so at most EXCESS_BYTES of the file may follow. */
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/text.h"
#include "server/image/decode.h"
#include "server/image/encode.h"

#define IDAT         0x49444154
#define EXCESS_BYTES (64 * 1024) /* and 8 more bytes for each pixel of the last row */

struct png_reader {
    png_structp png;
    png_infop info;
    struct decode *photo;
    size_t at; /* bytes of the file that libpng has read */
    bool is_last_row;
    size_t last_bytes; /* bytes of IDAT that may be read after the last row has begun */
    bool no_memory;    /* an allocation has failed; libpng's next error is its result */
    jmp_buf failed;
    enum status status; /* why the decode failed */
    struct error *err;
};

static _Noreturn void png_give_up(struct png_reader *reader, enum status status)
{
    reader->status = status;
    longjmp(reader->failed, 1);
}

/* libpng calls it after an error; it must not return. */
static _Noreturn void png_on_error(png_structp png, png_const_charp text)
{
    struct png_reader *reader = png_get_error_ptr(png);
    if (reader->no_memory) {
        png_give_up(reader,
                    error_set(reader->err, STATUS_NO_MEMORY,
                              "no memory to decode the PNG; send a smaller picture or try again"));
    }
    png_give_up(reader,
                error_set(reader->err, STATUS_BAD_IMAGE,
                          "the PNG is damaged (%s); save it again or send an intact file", text));
}

static void png_on_warning(png_structp png, png_const_charp text)
{
    (void)png; /* libpng would print to stderr */
    (void)text;
}

static void png_on_read(png_structp png, png_bytep bytes, size_t count)
{
    struct png_reader *reader = png_get_io_ptr(png);
    if (count > reader->photo->size - reader->at) {
        png_give_up(reader, error_set(reader->err, STATUS_BAD_IMAGE,
                                      "the PNG ends early: its data stops before the picture is "
                                      "complete; send the whole file"));
    }
    if (reader->is_last_row && png_get_io_chunk_type(png) == IDAT) {
        if (count > reader->last_bytes) {
            png_give_up(reader, error_set(reader->err, STATUS_BAD_IMAGE,
                                          "the PNG is damaged (its data goes on after the last "
                                          "row); save it again or send an intact file"));
        }
        reader->last_bytes -= count;
    }
    memcpy(bytes, reader->photo->data + reader->at, count);
    reader->at += count;
}

static png_voidp png_on_malloc(png_structp png, png_alloc_size_t size)
{
    struct png_reader *reader = png_get_mem_ptr(png);
    void *memory = malloc(size);
    if (!memory)
        reader->no_memory = true;
    return memory;
}

static enum status png_read_size(struct decode *photo, struct error *err)
{
    const uint8_t *data = photo->data;
    /* signature 8, chunk length 4, "IHDR" 4, width 4, height 4 … CRC: 33 bytes in all */
    enum { LENGTH_AT = 8, NAME_AT = 12, WIDTH_AT = 16, HEIGHT_AT = 20, HEADER_END = 33 };
    if (photo->size < HEADER_END)
        return error_set(
            err, STATUS_BAD_IMAGE,
            "the PNG ends early: %zu bytes do not even hold its header; send the whole file",
            photo->size);
    if (read_u32(data + LENGTH_AT, true) != 13 || memcmp(data + NAME_AT, "IHDR", 4) != 0)
        return error_set(
            err, STATUS_BAD_IMAGE,
            "the PNG is damaged (it does not begin with a header chunk); send an intact file");
    return decode_set_size(photo, read_u32(data + WIDTH_AT, true), read_u32(data + HEIGHT_AT, true),
                           err);
}

/* Reads the orientation from the first eXIf chunk; 1 if there is none. */
static int png_orientation(const uint8_t *data, size_t size)
{
    enum { SIGNATURE = 8, CHUNK = 12 }; /* a chunk: length, name, data, CRC */
    size_t at = SIGNATURE;
    while (size >= at && size - at >= CHUNK) {
        const size_t length = read_u32(data + at, true);
        if (length > size - at - CHUNK)
            return 1;
        if (memcmp(data + at + 4, "eXIf", 4) == 0)
            return exif_orientation(data + at + 8, length, NULL, 0);
        if (memcmp(data + at + 4, "IEND", 4) == 0)
            return 1;
        at += CHUNK + length;
    }
    return 1;
}

static void set_bounds(png_structp png)
{
    enum { CHUNK_BYTES = 1 << 20, CHUNKS = 16 };
    /* lensd's limits were checked above; libpng's own (a million per side) would only word the
     * error differently. */
    png_set_user_limits(png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_chunk_malloc_max(png, CHUNK_BYTES);
    png_set_chunk_cache_max(png, CHUNKS);
    png_set_crc_action(png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    /* -1: applies to all chunks but IHDR, PLTE, tRNS, IDAT and IEND */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
}

static void set_transforms(png_structp png, png_infop info)
{
    const int colour = png_get_color_type(png, info), depth = png_get_bit_depth(png, info);
    if (colour == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    if (colour == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(png);
    if (depth == 16)
        png_set_strip_16(png);
    if (!(colour & PNG_COLOR_MASK_COLOR))
        png_set_gray_to_rgb(png);
    /* libpng also makes alpha of the tRNS chunk of a palette. */
    png_set_strip_alpha(png);
}

/* Writes rows straight into the picture; an interlaced file visits each row in seven passes. */
static void png_read_pixels(struct png_reader *reader)
{
    const uint32_t height = reader->photo->height;
    const size_t width = reader->photo->width, stride = 3 * width;
    reader->last_bytes = EXCESS_BYTES + 8 * width;
    const int passes = png_set_interlace_handling(reader->png);
    png_read_update_info(reader->png, reader->info);
    if (png_get_rowbytes(reader->png, reader->info) != stride)
        png_error(reader->png, "unexpected row size");
    enum status status = decode_reserve(reader->photo, 3, 0, reader->err);
    if (status != STATUS_OK)
        png_give_up(reader, status);
    for (int pass = 0; pass < passes; pass++)
        for (uint32_t y = 0; y < height; y++) {
            reader->is_last_row = pass == passes - 1 && y == height - 1;
            png_read_row(reader->png, reader->photo->decoder->stored.data + stride * y, NULL);
        }
    png_read_end(reader->png, NULL); /* also checks that the file is complete up to IEND */
}

/* Calls setjmp in a function of its own, without the reader among its locals: locals that change
 * between setjmp and longjmp are indeterminate afterwards (C17 7.13.2.1). */
static void png_run(struct png_reader *reader)
{
    if (setjmp(reader->failed) != 0)
        return;
    reader->png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, reader, png_on_error,
                                           png_on_warning, reader, png_on_malloc, NULL);
    reader->info = reader->png ? png_create_info_struct(reader->png) : NULL;
    if (!reader->info) {
        png_give_up(reader, error_set(reader->err, STATUS_NO_MEMORY,
                                      "no memory to decode the PNG; try again"));
    }
    png_set_read_fn(reader->png, reader, png_on_read);
    set_bounds(reader->png);
    png_read_info(reader->png, reader->info);
    set_transforms(reader->png, reader->info);
    png_read_pixels(reader);
}

enum status png_decode(struct decode *photo, struct error *err)
{
    TRY(png_read_size(photo, err));
    photo->orientation = png_orientation(photo->data, photo->size);
    if (!photo->decoder)
        return STATUS_OK;
    struct png_reader reader = {.photo = photo, .err = err};
    png_run(&reader);
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    return reader.status;
}

/* ---- writing ---- */

/* Low compression: the picture is sent only once. */
enum { PNG_LEVEL = 3 };

struct png_writer {
    png_structp png;
    png_infop info;
    jmp_buf failed;
    FILE *out;
    char text[120]; /* why it failed */
};

static _Noreturn void png_writer_fail(png_structp png, png_const_charp text)
{
    struct png_writer *writer = png_get_error_ptr(png);
    strncpy(writer->text, text, sizeof writer->text - 1);
    longjmp(writer->failed, 1);
}

static const struct {
    int colour, depth;
    size_t bytes; /* bytes per pixel */
} png_kinds[] = {
    [PNG_KIND_RGB8] = {PNG_COLOR_TYPE_RGB, 8, 3},
    [PNG_KIND_GREY1] = {PNG_COLOR_TYPE_GRAY, 1, 1},
    [PNG_KIND_GREY16] = {PNG_COLOR_TYPE_GRAY, 16, 2},
};

/* Calls setjmp as png_run() does. Returns false after an error of libpng. */
static bool png_write(struct png_writer *writer, enum png_kind kind, const uint8_t *pixels,
                      uint32_t width, uint32_t height)
{
    if (setjmp(writer->failed) != 0)
        return false;
    writer->png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, writer, png_writer_fail, png_on_warning);
    writer->info = writer->png ? png_create_info_struct(writer->png) : NULL;
    if (!writer->info)
        return false;
    png_init_io(writer->png, writer->out);
    png_set_user_limits(writer->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_compression_level(writer->png, PNG_LEVEL);
    png_set_IHDR(writer->png, writer->info, width, height, png_kinds[kind].depth,
                 png_kinds[kind].colour, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_write_info(writer->png, writer->info);
    if (kind == PNG_KIND_GREY1)
        png_set_packing(writer->png);
    if (kind == PNG_KIND_GREY16 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        png_set_swap(writer->png);
    for (size_t y = 0; y < height; y++)
        png_write_row(writer->png, pixels + y * width * png_kinds[kind].bytes);
    png_write_end(writer->png, NULL);
    return true;
}

enum status image_encode_png(enum png_kind kind, const void *pixels, uint32_t width,
                             uint32_t height, uint8_t **ret, size_t *ret_size, struct error *err)
{
    char *bytes = NULL;
    struct png_writer writer = {.out = open_memstream(&bytes, ret_size), .text = "out of memory"};
    const bool is_done = writer.out && png_write(&writer, kind, pixels, width, height);
    png_destroy_write_struct(&writer.png, &writer.info);
    if (!text_close(writer.out, &bytes) || !is_done) {
        free(bytes);
        return error_set(err, STATUS_INTERNAL, "cannot write a PNG: %s", writer.text);
    }
    *ret = (uint8_t *)bytes;
    return STATUS_OK;
}
