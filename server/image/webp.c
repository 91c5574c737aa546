/* Decodes WebP with libwebp. Of an animation it decodes the first frame; the rest of the canvas is
 * black. Drops alpha, as Pillow does.
 *
 * Source: webp/decode.h of libwebp 1.5 (ABI 0x0209, since 0.6); RFC 9649 for the container. An ANMF
 * chunk ends in the chunks of a still picture, which libwebp also reads without a container. */
#include <stdint.h>
#include <string.h>

#include "engine/base/library.h"
#include "engine/base/size.h"
#include "server/image/decode.h"

struct webp_features { /* WebPBitstreamFeatures */
    int width, height, has_alpha, has_animation, format;
    uint32_t pad[5];
};

enum { WEBP_ABI = 0x0209, WEBP_OK = 0, WEBP_LOSSLESS = 2 };

static struct {
    int (*features)(const uint8_t *data, size_t size, struct webp_features *ret, int version);
    uint8_t *(*decode)(const uint8_t *data, size_t size, uint8_t *rgb, size_t room, int stride);
} webp;

const char *webp_load(void)
{
    static const struct library_function functions[] = {{"WebPGetFeaturesInternal", &webp.features},
                                                        {"WebPDecodeRGBInto", &webp.decode}};
    return library_load("libwebp.so.7", functions, COUNT_OF(functions))
               ? NULL
               : "the Debian package libwebp7";
}

enum { RIFF_HEADER = 12, CHUNK_HEADER = 8 };

static uint32_t webp_u24(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16;
}

/* Reads the next chunk at *at: returns its name, and sets *ret to its content. Returns NULL if no
 * whole chunk is left. */
static const char *webp_chunk(const uint8_t *data, size_t size, size_t *at, const uint8_t **ret,
                              size_t *ret_size)
{
    if (size < *at || size - *at < CHUNK_HEADER)
        return NULL;
    const char *name = (const char *)data + *at;
    const size_t length = read_u32(data + *at + 4, false);
    *at += CHUNK_HEADER;
    if (length > size - *at)
        return NULL;
    *ret = data + *at;
    *ret_size = length;
    *at += length + length % 2;
    return name;
}

/* The image to decode, and its position on the canvas. */
struct webp_frame {
    uint32_t left, top;
    struct webp_features features;
    const uint8_t *data;
    size_t size;
};

static enum status webp_damaged(struct error *err)
{
    return error_set(err, STATUS_BAD_IMAGE,
                     "the WebP is damaged or ends early; send the whole, intact file");
}

static enum status webp_first_frame(const struct decode *photo, struct webp_frame *frame,
                                    struct error *err)
{
    enum { FRAME_HEADER = 16 };
    size_t at = RIFF_HEADER, length = 0;
    const uint8_t *chunk = NULL;
    const char *name;
    while ((name = webp_chunk(photo->data, photo->size, &at, &chunk, &length)) &&
           memcmp(name, "ANMF", 4) != 0)
        continue;
    if (!name || length < FRAME_HEADER)
        return webp_damaged(err);
    frame->left = webp_u24(chunk) * 2;
    frame->top = webp_u24(chunk + 3) * 2;
    frame->data = chunk + FRAME_HEADER;
    frame->size = length - FRAME_HEADER;
    if (webp.features(frame->data, frame->size, &frame->features, WEBP_ABI) != WEBP_OK ||
        frame->features.has_animation ||
        frame->left + (uint32_t)frame->features.width > photo->width ||
        frame->top + (uint32_t)frame->features.height > photo->height)
        return webp_damaged(err);
    return STATUS_OK;
}

/* Reads the orientation of the first EXIF chunk, else of the first XMP chunk; 1 without one. */
static int webp_orientation(const uint8_t *data, size_t size)
{
    size_t at = RIFF_HEADER, length;
    const uint8_t *chunk, *xmp = NULL, *exif = NULL;
    size_t xmp_size = 0, exif_size = 0;
    for (const char *name; (name = webp_chunk(data, size, &at, &chunk, &length));) {
        if (!exif && memcmp(name, "EXIF", 4) == 0) {
            exif = chunk;
            exif_size = length;
        } else if (!xmp && memcmp(name, "XMP ", 4) == 0) {
            xmp = chunk;
            xmp_size = length;
        }
    }
    return exif_orientation(exif, exif_size, xmp, xmp_size);
}

static enum status webp_read_head(struct decode *photo, struct webp_frame *ret, struct error *err)
{
    struct webp_frame frame = {.data = photo->data, .size = photo->size};
    if (webp.features(photo->data, photo->size, &frame.features, WEBP_ABI) != WEBP_OK)
        return webp_damaged(err);
    /* at most 2^14; in an animation 2^24 */
    TRY(decode_set_size(photo, (size_t)frame.features.width, (size_t)frame.features.height, err));
    if (frame.features.has_animation)
        TRY(webp_first_frame(photo, &frame, err));
    *ret = frame;
    photo->orientation = webp_orientation(photo->data, photo->size);
    return STATUS_OK;
}

enum status webp_decode(struct decode *photo, struct error *err)
{
    struct webp_frame frame = {0};
    TRY(webp_read_head(photo, &frame, err));
    if (!photo->decoder)
        return STATUS_OK;
    const struct webp_features *features = &frame.features;
    const size_t count = (size_t)features->width * (size_t)features->height;
    /* libwebp keeps all of a lossless picture, with four bytes per pixel, but only the alpha and
     * some rows of a lossy one. */
    const size_t working = features->format == WEBP_LOSSLESS ? count * 4
                           : features->has_alpha             ? count * 2
                                                             : 0;
    TRY(decode_reserve(photo, 3, working, err));
    uint8_t *pixels = photo->decoder->stored.data;
    const size_t stride = (size_t)photo->width * 3, bytes = stride * photo->height;
    const size_t begin = frame.top * stride + (size_t)frame.left * 3;
    if (count != (size_t)photo->width * photo->height)
        memset(pixels, 0, bytes);
    return webp.decode(frame.data, frame.size, pixels + begin, bytes - begin, (int)stride)
               ? STATUS_OK
               : webp_damaged(err);
}
