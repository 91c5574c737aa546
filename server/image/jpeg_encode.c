/* Encodes JPEG with libjpeg-turbo. An error jumps back instead of ending the process. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include "server/image/encode.h"

enum { JPEG_QUALITY = 90 };

struct jpeg_writer {
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    jmp_buf failed;
    unsigned char *bytes;
    unsigned long size;
};

static _Noreturn void jpeg_writer_fail(j_common_ptr cinfo)
{
    struct jpeg_writer *writer = cinfo->client_data;
    longjmp(writer->failed, 1);
}

/* Calls setjmp in its own function: variables that change between setjmp and longjmp must not be
 * local to it (C17 7.13.2.1). Returns false after an error of libjpeg. */
static bool jpeg_write(struct jpeg_writer *writer, const struct canvas *canvas)
{
    struct jpeg_compress_struct *cinfo = &writer->cinfo;
    if (setjmp(writer->failed) != 0)
        return false;
    jpeg_create_compress(cinfo);
    jpeg_mem_dest(cinfo, &writer->bytes, &writer->size);
    cinfo->image_width = canvas->width;
    cinfo->image_height = canvas->height;
    cinfo->input_components = 3;
    cinfo->in_color_space = JCS_RGB;
    jpeg_set_defaults(cinfo);
    jpeg_set_quality(cinfo, JPEG_QUALITY, TRUE);
    jpeg_start_compress(cinfo, TRUE);
    while (cinfo->next_scanline < cinfo->image_height) {
        JSAMPROW row = canvas->pixels + cinfo->next_scanline * canvas->stride;
        (void)jpeg_write_scanlines(cinfo, &row, 1);
    }
    jpeg_finish_compress(cinfo);
    return true;
}

enum status image_encode_jpeg(const struct canvas *canvas, uint8_t **ret, size_t *ret_size,
                              struct error *err)
{
    struct jpeg_writer writer = {.size = 0};
    if (canvas->width > JPEG_MAX_DIMENSION || canvas->height > JPEG_MAX_DIMENSION)
        return error_set(err, STATUS_TOO_LARGE,
                         "a picture of %u x %u pixels is too large for a JPEG, whose sides have at "
                         "most %ld; request a PNG with Accept: image/png",
                         canvas->width, canvas->height, (long)JPEG_MAX_DIMENSION);
    writer.cinfo.err = jpeg_std_error(&writer.errors);
    writer.errors.error_exit = jpeg_writer_fail;
    writer.cinfo.client_data = &writer;
    const bool is_done = jpeg_write(&writer, canvas);
    char text[JMSG_LENGTH_MAX];
    if (!is_done)
        writer.errors.format_message((j_common_ptr)&writer.cinfo, text);
    jpeg_destroy_compress(&writer.cinfo);
    if (!is_done) {
        free(writer.bytes);
        return error_set(err, STATUS_INTERNAL, "cannot write a JPEG: %s", text);
    }
    *ret = writer.bytes;
    *ret_size = writer.size;
    return STATUS_OK;
}
