/* Decodes a picture: selects the format's reader by the first bytes, decodes, and turns the pixels
 * upright. */
#include "server/image/image.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/image/decode.h"

#define LARGE_PIXELS UINT64_C(4000000)

/* One reader for each format. A new format needs a line here, a name in image.h and its signature
 * in sniff.c. */
static const struct format_reader {
    const char *name;
    image_decode_fn *decode;
    const char *(*load)(void); /* NULL: the format needs no library at run time */
} readers[IMAGE_FORMATS] = {
    [IMAGE_JPEG] = {"JPEG", jpeg_decode, NULL},
    [IMAGE_PNG] = {"PNG", png_decode, NULL},
    [IMAGE_BMP] = {"BMP", bmp_decode, NULL},
    [IMAGE_GIF] = {"GIF", gif_decode, NULL},
    [IMAGE_WEBP] = {"WebP", webp_decode, webp_load},
    [IMAGE_TIFF] = {"TIFF", tiff_decode, tiff_load},
    [IMAGE_AVIF] = {"AVIF", heif_decode, avif_load},
    [IMAGE_HEIC] = {"HEIC", heif_decode, heic_load},
};

static pthread_once_t readers_once = PTHREAD_ONCE_INIT;
static const char *missing[IMAGE_FORMATS]; /* written once */

static void load_readers(void)
{
    for (int i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        missing[i] = readers[i].load ? readers[i].load() : NULL;
}

const char *image_format_name(enum image_format format)
{
    return readers[format].name;
}

const char *image_format_missing(enum image_format format)
{
    pthread_once(&readers_once, load_readers);
    return missing[format];
}

struct image_decoder *image_decoder_create(const struct image_memory *memory)
{
    struct image_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder)
        decoder->memory = memory;
    return decoder;
}

void image_decoder_done(struct image_decoder *decoder, bool all)
{
    if (decoder->taken || all) {
        pixel_buffer_done(&decoder->stored);
        pixel_buffer_done(&decoder->upright);
    }
    if (decoder->taken)
        decoder->memory->give(decoder->memory->context, decoder->taken);
    decoder->taken = 0;
}

void image_decoder_free(struct image_decoder *decoder)
{
    if (!decoder)
        return;
    image_decoder_done(decoder, true);
    free(decoder);
}

uint8_t *image_pixels(const struct image_decoder *decoder)
{
    return decoder->last;
}

/* Finds the format by the first bytes, and sets photo->name to its name. */
static enum status find_format(struct decode *photo, enum image_format *ret, struct error *err)
{
    const size_t size = photo->size;
    if (size == 0)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the image is empty (0 bytes); send a JPEG or PNG file");
    if (sniff_is_beginning(photo->data, size))
        return error_set(
            err, STATUS_BAD_IMAGE,
            "the image ends after %zu bytes, inside its signature; send the whole file", size);
    *ret = image_sniff(photo->data, size);
    if (*ret == IMAGE_UNKNOWN)
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "this is not a supported image: it looks like %s; send JPEG or PNG",
                         sniff_describe(photo->data, size));
    photo->name = image_format_name(*ret);
    if (image_format_missing(*ret))
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "the server cannot read %s, because it lacks %s; send JPEG or PNG, or "
                         "install it and restart lensd",
                         photo->name, image_format_missing(*ret));
    return STATUS_OK;
}

size_t image_formats(const char *ret_names[static IMAGE_FORMATS])
{
    size_t count = 0;
    for (int i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        if (!image_format_missing((enum image_format)i))
            ret_names[count++] = readers[i].name;
    return count;
}

/* Returns the size after the turn to upright. Orientations 5 … 8 exchange width and height. */
static struct image_info upright_info(enum image_format format, const struct decode *photo)
{
    bool swapped = photo->orientation >= 5;
    return (struct image_info){.format = format,
                               .width = swapped ? photo->full_height : photo->full_width,
                               .height = swapped ? photo->full_width : photo->full_height,
                               .orientation = photo->orientation};
}

/* Reads only the header if photo->decoder is NULL. */
static enum status read_photo(struct decode *photo, struct image_info *ret, struct error *err)
{
    enum image_format format = IMAGE_UNKNOWN;
    photo->orientation = 1;
    TRY(find_format(photo, &format, err));
    TRY(readers[format].decode(photo, err));
    *ret = upright_info(format, photo);
    return STATUS_OK;
}

enum status image_probe(const uint8_t *data, size_t size, const struct image_limits *limits,
                        struct image_info *ret, struct error *err)
{
    struct decode photo = {.data = data, .size = size, .limits = limits};
    return read_photo(&photo, ret, err);
}

bool image_is_large(const uint8_t *data, size_t size)
{
    const struct image_limits none = {0};
    struct image_info info;
    struct error ignored;
    return image_probe(data, size, &none, &info, &ignored) == STATUS_OK &&
           (uint64_t)info.width * info.height >= LARGE_PIXELS;
}

enum status image_decode(struct image_decoder *decoder, const uint8_t *data, size_t size,
                         const struct image_limits *limits, const struct preprocess *p,
                         bool reduces, struct image *ret, struct error *err)
{
    struct decode photo = {.data = data,
                           .size = size,
                           .limits = limits,
                           .reduces = reduces,
                           .part = p,
                           .decoder = decoder};
    struct image_info info;
    TRY(read_photo(&photo, &info, err));
    uint8_t *pixels = decoder->stored.data;
    if (photo.orientation != 1) {
        /* decode_reserve() has computed the same product, so it does not overflow. */
        TRY(pixel_buffer_reserve(&decoder->upright, (size_t)photo.width * photo.height * 3, err));
        image_orient(pixels, (size_t)photo.width * 3, photo.width, photo.height, photo.orientation,
                     decoder->upright.data);
        pixels = decoder->upright.data;
    }
    decoder->last = pixels;
    const bool swapped = photo.orientation >= 5;
    const uint32_t width = swapped ? photo.height : photo.width;
    *ret = (struct image){.info = info,
                          .width = width,
                          .height = swapped ? photo.width : photo.height,
                          .stride = (size_t)width * 3,
                          .pixels = pixels};
    return STATUS_OK;
}
