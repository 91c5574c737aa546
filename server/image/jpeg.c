/* Reads and writes JPEG with libjpeg-turbo.
 *
 * What needs care:
 * - By default libjpeg ends the process on an error. jpeg_give_up() jumps back instead. All memory
 *   of a decode belongs to the decompress object, so one jpeg_destroy frees it.
 * - libjpeg only warns about a file that ends early, and fills the rest of the picture with grey.
 *   This reader refuses such a file, as Pillow does.
 * - Each scan of a progressive file covers the whole picture. The number of scans and the memory
 *   for coefficients are limited.
 * - The tables of a decompress object outlive an image: a file without tables would be decoded with
 *   those of another client's picture. So each decode gets a new object (about 2 microseconds).
 * - Adobe's programs store CMYK and YCCK inverted. Like Pillow, this reader assumes that every file
 *   with four components is inverted. The conversion to RGB equals Pillow's cmyk2rgb to the bit.
 * - Arithmetic coding has no end of data: 200 bytes could claim 50 million pixels. Like browsers,
 *   this reader refuses it. It also refuses lossless and 12-bit JPEG, which libjpeg-turbo cannot
 *   read. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "server/image/decode.h"
#include "server/image/encode.h"
#include "server/image/frame.h"

/* The state of one decode. cinfo.client_data points to the struct. */
struct jpeg_reader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    struct decode *photo;
    const uint8_t *exif, *xmp; /* the first EXIF segment and the last XMP packet; NULL: none */
    size_t exif_size, xmp_size;
    enum status status; /* of the error that caused the jump to `failed` */
    struct error *err;
};

static _Noreturn void jpeg_give_up(struct jpeg_reader *reader, enum status status)
{
    reader->status = status;
    longjmp(reader->failed, 1);
}

static _Noreturn void fail_truncated(struct jpeg_reader *reader)
{
    jpeg_give_up(reader, error_set(reader->err, STATUS_BAD_IMAGE,
                                   "the JPEG ends early: its data stops before the picture is "
                                   "complete; send the whole file"));
}

static _Noreturn void fail_corrupt(struct jpeg_reader *reader)
{
    char text[JMSG_LENGTH_MAX];
    reader->errors.format_message((j_common_ptr)&reader->cinfo, text);
    jpeg_give_up(reader,
                 error_set(reader->err, STATUS_BAD_IMAGE,
                           "the JPEG is damaged (%s); save it again or send an intact file", text));
}

static _Noreturn void fail_unsupported(struct jpeg_reader *reader, const char *what)
{
    jpeg_give_up(reader, error_set(reader->err, STATUS_UNSUPPORTED_MEDIA,
                                   "%s JPEG is not supported; save the picture as baseline or "
                                   "progressive JPEG of 8 bit, or as PNG",
                                   what));
}

/* Implements jpeg_error_mgr.error_exit, which must not return. */
static _Noreturn void jpeg_on_error(j_common_ptr common)
{
    struct jpeg_reader *reader = common->client_data;
    switch (common->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
        jpeg_give_up(
            reader, error_set(reader->err, STATUS_NO_MEMORY,
                              "no memory to decode the JPEG; send a smaller picture or try again"));
    case JERR_NO_BACKING_STORE: /* libjpeg needs more than mem->max_memory_to_use */
        jpeg_give_up(reader, error_set(reader->err, STATUS_TOO_LARGE,
                                       "the JPEG needs more working memory than its size "
                                       "justifies; save it again as baseline JPEG"));
    case JERR_IMAGE_TOO_BIG: {
        const uint32_t side = JPEG_MAX_DIMENSION;
        jpeg_give_up(reader,
                     error_set(reader->err, STATUS_TOO_LARGE,
                               "the JPEG is %u x %u pixels, but a side may have at most %u; send a "
                               "smaller picture",
                               reader->cinfo.image_width, reader->cinfo.image_height, side));
    }
    case JERR_SOF_UNSUPPORTED:
        fail_unsupported(reader, "lossless or hierarchical");
    case JERR_BAD_PRECISION:
        fail_unsupported(reader, "12 bit (or other than 8 bit)");
    case JERR_INPUT_EOF:
    case JERR_INPUT_EMPTY:
        fail_truncated(reader);
    default:
        fail_corrupt(reader);
    }
}

/* Implements jpeg_error_mgr.emit_message. Level -1 is a warning, other levels are traces. A warning
 * after which libjpeg makes up pixels is an error here. After other warnings (stray bytes between
 * segments, an odd JFIF version, an unknown Adobe transform) the picture is whole, and Pillow also
 * shows it. */
static void jpeg_on_message(j_common_ptr common, int level)
{
    struct jpeg_reader *reader = common->client_data;
    if (level >= 0)
        return;
    switch (common->err->msg_code) {
    case JWRN_HIT_MARKER:
    case JWRN_JPEG_EOF:
        fail_truncated(reader);
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
        fail_corrupt(reader);
    default:
        break;
    }
}

/* Implements progress_monitor, which libjpeg calls at least once for each row of blocks. */
static void jpeg_on_progress(j_common_ptr common)
{
    struct jpeg_reader *reader = common->client_data;
    const uint32_t most = reader->photo->limits->max_scans;
    if (!most || (uint32_t)reader->cinfo.input_scan_number <= most)
        return;
    jpeg_give_up(
        reader,
        error_set(reader->err, STATUS_TOO_LARGE,
                  "the JPEG has more than %u scans (--max-scans); save it again as baseline JPEG",
                  most));
}

/* Reads an APP1 segment, which may have EXIF data or an XMP packet, from its length on. */
static boolean jpeg_on_app1(j_decompress_ptr cinfo)
{
    static const char exif_name[] = "Exif\0"; /* then a byte of any value */
    static const char xmp_name[] =
        "http://ns.adobe.com/xap/1.0/"; /* the terminating 0 belongs to the name */
    struct jpeg_reader *reader = cinfo->client_data;
    const uint8_t *at = cinfo->src->next_input_byte;
    if (cinfo->src->bytes_in_buffer < 2)
        fail_truncated(reader);
    const size_t given = read_u16(at, true), length = given < 2 ? 2 : given; /* counts itself */
    cinfo->src->skip_input_data(cinfo, (long)length);
    const size_t size = length - 2;
    at += 2;
    if (!reader->exif && size >= sizeof exif_name &&
        memcmp(at, exif_name, sizeof exif_name - 1) == 0) {
        reader->exif = at + sizeof exif_name;
        reader->exif_size = size - sizeof exif_name;
    } else if (size >= sizeof xmp_name && memcmp(at, xmp_name, sizeof xmp_name) == 0) {
        reader->xmp = at + sizeof xmp_name;
        reader->xmp_size = size - sizeof xmp_name;
    }
    return TRUE;
}

/* Reads the headers before the first scan, and makes the checks that need no pixels. After an error
 * it jumps to reader->failed. */
static void jpeg_read_head(struct jpeg_reader *reader)
{
    struct jpeg_decompress_struct *cinfo = &reader->cinfo;
    struct decode *photo = reader->photo;
    jpeg_create_decompress(cinfo); /* keeps err and client_data */
    jpeg_set_marker_processor(cinfo, JPEG_APP0 + 1, jpeg_on_app1);
    jpeg_mem_src(cinfo, photo->data, photo->size);
    cinfo->progress = &reader->progress;
    (void)jpeg_read_header(cinfo, TRUE); /* never suspends: the whole file is in memory */

    photo->orientation =
        exif_orientation(reader->exif, reader->exif_size, reader->xmp, reader->xmp_size);
    enum status status =
        decode_set_size(photo, cinfo->image_width, cinfo->image_height, reader->err);
    if (status != STATUS_OK)
        jpeg_give_up(reader, status);
    if (cinfo->arith_code)
        fail_unsupported(reader, "arithmetic-coded");
    if (cinfo->num_components == 2 || cinfo->num_components > 4)
        fail_unsupported(reader, cinfo->num_components == 2 ? "two-component" : "many-component");

    /* A progressive file needs two bytes for each sample of the picture. The constant covers blocks
     * at the edges, which are padded to 32 pixels. */
    enum { WORKING_MEMORY = 64 << 20, BYTES_PER_PIXEL = 2 * 4 };
    cinfo->mem->max_memory_to_use =
        WORKING_MEMORY + (long)cinfo->image_width * (long)cinfo->image_height * BYTES_PER_PIXEL;
}

/* Converts inverted CMYK to RGB, as Pillow's cmyk2rgb does: with white = stored black,
 * rgb[c] = white - (255 - ink[c]) * white / 255, rounded. */
static void ink_to_rgb(const uint8_t *ink, uint32_t width, uint8_t *rgb)
{
    for (uint32_t x = 0; x < width; x++, ink += 4, rgb += 3) {
        const uint32_t white = ink[3];
        for (int c = 0; c < 3; c++) {
            const uint32_t product = (255u - ink[c]) * white + 128;
            rgb[c] = (uint8_t)(white - (((product >> 8) + product) >> 8));
        }
    }
}

static void read_ink_rows(struct jpeg_decompress_struct *cinfo, uint8_t *pixels)
{
    const size_t stride = (size_t)cinfo->output_width * 3;
    JSAMPARRAY line =
        cinfo->mem->alloc_sarray((j_common_ptr)cinfo, JPOOL_IMAGE, cinfo->output_width * 4, 1);
    while (cinfo->output_scanline < cinfo->output_height) {
        uint8_t *row = pixels + stride * cinfo->output_scanline;
        jpeg_read_scanlines(cinfo, line, 1);
        ink_to_rgb(line[0], cinfo->output_width, row);
    }
}

/* libjpeg writes several rows in a call, directly into `pixels`. */
static void read_rgb_rows(struct jpeg_decompress_struct *cinfo, uint8_t *pixels, size_t stride)
{
    enum { ROWS = 16 };
    while (cinfo->output_scanline < cinfo->output_height) {
        JSAMPROW rows[ROWS];
        const JDIMENSION left = cinfo->output_height - cinfo->output_scanline;
        const JDIMENSION count = left < ROWS ? left : ROWS;
        for (JDIMENSION i = 0; i < count; i++)
            rows[i] = pixels + stride * (cinfo->output_scanline + i);
        jpeg_read_scanlines(cinfo, rows, count);
    }
}

/* True if pixels do not change when libjpeg decodes only some columns: the file has one scan, is
 * not reduced, and has one component or one of the usual samplings. */
static bool can_crop(struct jpeg_decompress_struct *cinfo)
{
    const jpeg_component_info *c = cinfo->comp_info;
    if (jpeg_has_multiple_scans(cinfo) || cinfo->scale_denom != 1)
        return false;
    if (cinfo->num_components == 1)
        return true;
    return cinfo->num_components == 3 && c[0].h_samp_factor <= 2 && c[0].v_samp_factor <= 2 &&
           c[1].h_samp_factor == 1 && c[1].v_samp_factor == 1 && c[2].h_samp_factor == 1 &&
           c[2].v_samp_factor == 1;
}

/* Makes libjpeg skip the inverse transform, upsampling and colour conversion of columns that
 * photo->part does not read. libjpeg still reads the whole file, so it finds damage. Returns the
 * first decoded column. Does nothing if that would save less than an eighth of the columns. */
static JDIMENSION crop_columns(struct jpeg_decompress_struct *cinfo, const struct decode *photo)
{
    /* In pixels: upsampling needs a neighbouring sample, and libjpeg-turbo decodes whole blocks. */
    enum { MARGIN = 16 };
    const uint32_t width = cinfo->output_width;
    uint32_t begin, end;
    if (!photo->part || !can_crop(cinfo))
        return 0;
    frame_columns(photo->part, width, cinfo->output_height, photo->orientation, &begin, &end);
    begin = begin > MARGIN ? begin - MARGIN : 0;
    end = width - end > MARGIN ? end + MARGIN : width;
    JDIMENSION first = begin, count = end - begin;
    if (count > width - width / 8)
        return 0;
    jpeg_crop_scanline(cinfo, &first, &count);
    return first;
}

/* Returns the bytes of coefficients that libjpeg keeps: all with several scans, otherwise 0. */
static size_t coefficient_bytes(struct jpeg_decompress_struct *cinfo)
{
    size_t blocks = 0;
    if (!jpeg_has_multiple_scans(cinfo))
        return 0;
    for (int i = 0; i < cinfo->num_components; i++) /* sides of at most 2^13 blocks */
        blocks +=
            (size_t)cinfo->comp_info[i].width_in_blocks * cinfo->comp_info[i].height_in_blocks;
    return blocks * DCTSIZE2 * sizeof(JCOEF);
}

/* For --fast-decode: returns the largest of 8, 4, 2 and 1 by which both sides can be divided
 * without becoming smaller than the resized photo. */
static unsigned reduction_of(const struct decode *photo)
{
    const bool is_swapped = photo->orientation >= 5;
    const uint32_t width = is_swapped ? photo->full_height : photo->full_width;
    const uint32_t height = is_swapped ? photo->full_width : photo->full_height;
    struct crop_frame frame;
    struct error ignored; /* transform.c will report the error */
    if (!photo->reduces || !photo->part)
        return 1;
    const struct source_frame source = frame_source(photo->part, width, height);
    if (frame_of(photo->part, source.width, source.height, &frame, &ignored) != STATUS_OK)
        return 1;
    unsigned reduction = 8;
    while (reduction > 1 && (source.width / reduction < (uint32_t)frame.resized_width ||
                             source.height / reduction < (uint32_t)frame.resized_height))
        reduction /= 2;
    return reduction;
}

static void jpeg_read_pixels(struct jpeg_reader *reader)
{
    struct jpeg_decompress_struct *cinfo = &reader->cinfo;
    struct decode *photo = reader->photo;
    const bool ink = cinfo->num_components == 4;
    cinfo->out_color_space = ink ? JCS_CMYK : JCS_RGB;
    cinfo->scale_num = 1;
    cinfo->scale_denom = reduction_of(photo);
    jpeg_calc_output_dimensions(cinfo);
    photo->width = cinfo->output_width; /* counts also the columns that are not decoded */
    photo->height = cinfo->output_height;
    enum status status = decode_reserve(photo, 3, coefficient_bytes(cinfo), reader->err);
    if (status != STATUS_OK)
        jpeg_give_up(reader, status);
    jpeg_start_decompress(cinfo);
    uint8_t *pixels = photo->decoder->stored.data;
    if (ink)
        read_ink_rows(cinfo, pixels);
    else
        read_rgb_rows(cinfo, pixels + (size_t)crop_columns(cinfo, photo) * 3,
                      (size_t)photo->width * 3);
    /* No jpeg_finish_decompress: it would only look for the end marker, which is not needed. */
}

/* Calls setjmp in a function of its own, without the reader among its locals: locals that change
 * between setjmp and longjmp are indeterminate afterwards (C17 7.13.2.1). */
static void jpeg_run(struct jpeg_reader *reader)
{
    if (setjmp(reader->failed) != 0)
        return;
    jpeg_read_head(reader);
    if (reader->photo->decoder)
        jpeg_read_pixels(reader);
}

enum status jpeg_decode(struct decode *photo, struct error *err)
{
    struct jpeg_reader reader = {
        .photo = photo, .err = err, .progress.progress_monitor = jpeg_on_progress};
    reader.cinfo.client_data = &reader;
    reader.cinfo.err = jpeg_std_error(&reader.errors);
    reader.errors.error_exit = jpeg_on_error;
    reader.errors.emit_message = jpeg_on_message;
    jpeg_run(&reader);
    jpeg_destroy_decompress(&reader.cinfo);
    return reader.status;
}

/* ---- writing ---- */

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

/* Calls setjmp as jpeg_run() does. Returns false after an error of libjpeg. */
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
