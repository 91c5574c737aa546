/* Decodes a picture: selects the format's reader by the first bytes, decodes, and turns the pixels
 * upright. Also selects the scale of a reduced JPEG. */
#include "server/image/image.h"

#include <pthread.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "server/image/decode.h"
#include "server/image/frame.h"

#define LARGE_PIXELS UINT64_C(4000000)

struct image_decoder {
    struct pixel_buffer stored;  /* pixels in the file's order */
    struct pixel_buffer upright; /* used for turned pictures only */
    uint8_t *last;               /* the buffer with the last picture */
    struct pixel_account account;
};

/* libheif has already applied the orientation; BMP and GIF have none. */
static int no_orientation(const uint8_t *data, size_t size)
{
    (void)data, (void)size;
    return 1;
}

#define PACKAGE "the Debian package "

/* One reader for each format. A new format needs a line here, a name in image.h and its signature
 * in sniff.c. */
static const struct format_reader {
    const char *name;
    image_decode_fn *decode;
    int (*orientation)(const uint8_t *, size_t);
    bool (*load)(void); /* NULL: nothing to load */
    const char *need;   /* the package that `load` needs */
} readers[IMAGE_FORMATS] = {
    [IMAGE_JPEG] = {"JPEG", jpeg_decode, exif_from_jpeg, NULL, NULL},
    [IMAGE_PNG] = {"PNG", png_decode, exif_from_png, NULL, NULL},
    [IMAGE_BMP] = {"BMP", bmp_decode, no_orientation, NULL, NULL},
    [IMAGE_GIF] = {"GIF", gif_decode, no_orientation, NULL, NULL},
    [IMAGE_WEBP] = {"WebP", webp_decode, exif_from_webp, webp_load, PACKAGE "libwebp7"},
    [IMAGE_TIFF] = {"TIFF", tiff_decode, tiff_orientation, tiff_load, PACKAGE "libtiff6"},
    [IMAGE_AVIF] = {"AVIF", heif_decode, no_orientation, avif_load,
                    PACKAGE "libheif1, on Debian 13 also libheif-plugin-dav1d"},
    [IMAGE_HEIC] = {"HEIC", heif_decode, no_orientation, heic_load,
                    PACKAGE "libheif1, on Debian 13 also libheif-plugin-libde265"},
};

static pthread_once_t readers_once = PTHREAD_ONCE_INIT;
static bool has_reader[IMAGE_FORMATS]; /* written once */

static void load_readers(void)
{
    for (int i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        has_reader[i] = !readers[i].load || readers[i].load();
}

const char *image_format_name(enum image_format format)
{
    return readers[format].name;
}

bool image_format_is_available(enum image_format format, const char **ret_need)
{
    pthread_once(&readers_once, load_readers);
    const char *need = readers[format].need;
    if (ret_need)
        *ret_need = format == IMAGE_AVIF || format == IMAGE_HEIC ? heif_need(need) : need;
    return has_reader[format];
}

struct image_decoder *image_decoder_create(void)
{
    struct image_decoder *decoder = calloc(1, sizeof *decoder);
    if (decoder)
        decoder->stored.account = &decoder->account;
    return decoder;
}

void image_decoder_ask(struct image_decoder *decoder, const struct image_memory *memory)
{
    decoder->account.memory = memory;
}

void image_decoder_done(struct image_decoder *decoder, bool all)
{
    struct pixel_account *account = &decoder->account;
    if (account->taken || all) {
        pixel_buffer_done(&decoder->stored);
        pixel_buffer_done(&decoder->upright);
    }
    if (account->taken)
        account->memory->give(account->memory->context, account->taken);
    account->taken = 0;
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

static enum status find_reader(const uint8_t *data, size_t size, enum image_format *ret_format,
                               struct error *err)
{
    if (size == 0)
        return error_set(err, STATUS_BAD_IMAGE,
                         "the image is empty (0 bytes); send a JPEG or PNG file");
    if (sniff_is_beginning(data, size))
        return error_set(
            err, STATUS_BAD_IMAGE,
            "the image ends after %zu bytes, inside its signature; send the whole file", size);
    enum image_format format = image_sniff(data, size);
    if (format == IMAGE_UNKNOWN)
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "this is not a supported image: it looks like %s; send JPEG or PNG",
                         sniff_describe(data, size));
    const char *need;
    if (!image_format_is_available(format, &need))
        return error_set(err, STATUS_UNSUPPORTED_MEDIA,
                         "the server cannot read %s, because it lacks %s; send JPEG or PNG, or "
                         "install it and restart lensd",
                         image_format_name(format), need);
    *ret_format = format;
    return STATUS_OK;
}

size_t image_formats(const char *ret_names[static IMAGE_FORMATS])
{
    size_t count = 0;
    for (int i = IMAGE_JPEG; i < IMAGE_FORMATS; i++)
        if (image_format_is_available((enum image_format)i, NULL))
            ret_names[count++] = readers[i].name;
    return count;
}

/* Orientations 5 … 8 exchange width and height. */
static struct image_info upright_info(enum image_format format, uint32_t width, uint32_t height,
                                      int orientation)
{
    bool swapped = orientation >= 5;
    return (struct image_info){.format = format,
                               .width = swapped ? height : width,
                               .height = swapped ? width : height,
                               .orientation = orientation};
}

enum status image_probe(const uint8_t *data, size_t size, const struct image_limits *limits,
                        struct image_info *ret, struct error *err)
{
    enum image_format format = IMAGE_UNKNOWN;
    TRY(find_reader(data, size, &format, err));
    const struct format_reader *reader = &readers[format];
    struct stored_size stored;
    TRY(reader->decode(data, size, limits, 1, NULL, NULL, &stored, err));
    *ret = upright_info(format, stored.full_width, stored.full_height,
                        reader->orientation(data, size));
    return STATUS_OK;
}

bool image_is_large(const uint8_t *data, size_t size)
{
    const struct image_limits none = {0};
    struct image_info info;
    struct error ignored;
    return image_probe(data, size, &none, &info, &ignored) == STATUS_OK &&
           (uint64_t)info.width * info.height >= LARGE_PIXELS;
}

static enum status image_decode_with(struct image_decoder *decoder,
                                     const struct format_reader *reader, enum image_format format,
                                     const uint8_t *data, size_t size,
                                     const struct image_limits *limits, unsigned reduction,
                                     int orientation, const struct preprocess *part,
                                     struct image *ret, struct error *err)
{
    const struct decode_part read = {part, orientation};
    struct stored_size stored;
    decoder->account.is_turned = orientation != 1;
    TRY(reader->decode(data, size, limits, reduction, part ? &read : NULL, &decoder->stored,
                       &stored, err));
    uint8_t *pixels = decoder->stored.data;
    if (orientation != 1) {
        /* The decoder has computed the same product, so it does not overflow. */
        TRY(pixel_buffer_reserve(&decoder->upright, (size_t)stored.width * stored.height * 3, 0,
                                 err));
        pixels_orient(pixels, stored.width, stored.height, orientation, decoder->upright.data);
        pixels = decoder->upright.data;
    }
    decoder->last = pixels;
    const bool swapped = orientation >= 5;
    const uint32_t width = swapped ? stored.height : stored.width;
    *ret = (struct image){
        .info = upright_info(format, stored.full_width, stored.full_height, orientation),
        .width = width,
        .height = swapped ? stored.width : stored.height,
        .stride = (size_t)width * 3,
        .pixels = pixels};
    return STATUS_OK;
}

enum status image_decode_part(struct image_decoder *decoder, const uint8_t *data, size_t size,
                              const struct image_limits *limits, const struct preprocess *p,
                              struct image *ret, struct error *err)
{
    enum image_format format = IMAGE_UNKNOWN;
    TRY(find_reader(data, size, &format, err));
    const struct format_reader *reader = &readers[format];
    return image_decode_with(decoder, reader, format, data, size, limits, 1,
                             reader->orientation(data, size), p, ret, err);
}

enum status image_decode(struct image_decoder *decoder, const uint8_t *data, size_t size,
                         const struct image_limits *limits, struct image *ret, struct error *err)
{
    return image_decode_part(decoder, data, size, limits, NULL, ret, err);
}

/* Returns the largest of 8, 4, 2, 1 that leaves both sides at least as large as the resize. */
static unsigned reduction_for(uint32_t width, uint32_t height, const struct crop_frame *frame)
{
    unsigned reduction = 8;
    while (reduction > 1 && (width / reduction < (uint32_t)frame->resized_width ||
                             height / reduction < (uint32_t)frame->resized_height))
        reduction /= 2;
    return reduction;
}

enum status image_decode_reduced(struct image_decoder *decoder, const uint8_t *data, size_t size,
                                 const struct image_limits *limits, const struct preprocess *p,
                                 struct image *ret, struct error *err)
{
    enum image_format format = IMAGE_UNKNOWN;
    TRY(find_reader(data, size, &format, err));
    const struct format_reader *reader = &readers[format];
    const int orientation = reader->orientation(data, size);
    unsigned reduction = 1;
    if (format == IMAGE_JPEG) {
        struct stored_size stored;
        struct crop_frame frame;
        TRY(reader->decode(data, size, limits, 1, NULL, NULL, &stored, err));
        const struct image_info info =
            upright_info(format, stored.full_width, stored.full_height, orientation);
        const struct source_frame source = frame_source(p, info.width, info.height);
        TRY(frame_of(p, source.width, source.height, &frame, err));
        reduction = reduction_for(source.width, source.height, &frame);
    }
    return image_decode_with(decoder, reader, format, data, size, limits, reduction, orientation, p,
                             ret, err);
}
