/* Encodes PNG with libpng. An error jumps back instead of ending the process. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>

#include "engine/base/text.h"
#include "server/image/encode.h"

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

static void png_writer_warn(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static const struct {
    int colour, depth;
    size_t bytes; /* bytes per pixel */
} png_kinds[] = {
    [PNG_KIND_RGB8] = {PNG_COLOR_TYPE_RGB, 8, 3},
    [PNG_KIND_GREY1] = {PNG_COLOR_TYPE_GRAY, 1, 1},
    [PNG_KIND_GREY16] = {PNG_COLOR_TYPE_GRAY, 16, 2},
};

/* Calls setjmp in its own function: variables that change between setjmp and longjmp must not be
 * local to it (C17 7.13.2.1). Returns false after an error of libpng. */
static bool png_write(struct png_writer *writer, enum png_kind kind, const uint8_t *pixels,
                      uint32_t width, uint32_t height)
{
    if (setjmp(writer->failed) != 0)
        return false;
    writer->png =
        png_create_write_struct(PNG_LIBPNG_VER_STRING, writer, png_writer_fail, png_writer_warn);
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
