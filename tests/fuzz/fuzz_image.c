/* Any bytes as a picture, then as a model's input: they are refused with a sentence, or they make a
 * picture within the limits, of the size and turn that the probe of its header told, whose every
 * pixel can be read, and finite numbers. Whatever came before, the decoder and the transform then
 * make of a known picture what they always do.
 *
 * A PNG runs a second time with its checksums made right, so that mutations get past them. The
 * first byte of the second half picks the preprocessing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/image/image.h"
#include "server/image/transform.h"
#include "tests/fuzz/target.h"
#include "tests/unit/server/image/png_repair.h"

enum { WIDTH = 23, HEIGHT = 17 };

static const struct image_limits limits = {
    .max_pixels = 1 << 17, .max_side = 4096, .max_scans = 12};

/* 2 x 1, 8 bit RGB: orange and grey. */
static const uint8_t known[] = {
    0x89, 'P',  'N',  'G',  0x0D, 0x0A, 0x1A, 0x0A, 0x00, 0x00, 0x00, 0x0D, 'I',  'H',  'D',
    'R',  0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x01, 0x08, 0x02, 0x00, 0x00, 0x00, 0x7B,
    0x40, 0xE8, 0xDD, 0x00, 0x00, 0x00, 0x0F, 0x49, 0x44, 0x41, 0x54, 0x78, 0xDA, 0x63, 0xF8,
    0xDF, 0xC0, 0xE0, 0xEB, 0xEB, 0x0B, 0x00, 0x0A, 0x4F, 0x02, 0x67, 0xEE, 0xA3, 0xE7, 0xD3,
    0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4E, 0x44, 0xAE, 0x42, 0x60, 0x82};

static struct preprocess preprocess_of(uint8_t choice)
{
    struct preprocess p;
    preprocess_default(&p);
    p.resize = (enum resize_rule)(choice % 4);
    p.resample = (enum resample)(choice / 4 % 6);
    p.channels = (enum channel_order)(choice % 3);
    p.invert = choice & 0x80;
    p.resize_short = 19;
    p.resize_width = p.width = WIDTH;
    p.resize_height = p.height = HEIGHT;
    HOLDS(preprocess_check(&p, NULL) == STATUS_OK);
    return p;
}

static void check_pixels(const struct image *image)
{
    HOLDS(image->width && image->height && image->pixels);
    HOLDS(image->width <= limits.max_side && image->height <= limits.max_side);
    HOLDS((uint64_t)image->width * image->height <= limits.max_pixels);
    HOLDS(image->stride >= (size_t)image->width * 3);
    uint64_t sum = 0;
    for (uint32_t y = 0; y < image->height; y++)
        for (size_t x = 0; x < (size_t)image->width * 3; x++)
            sum += image->pixels[y * image->stride + x];
    HOLDS(sum <= (uint64_t)image->width * image->height * 3 * 255);
}

static void check_refusal(enum status status, const struct error *err)
{
    HOLDS(status == STATUS_BAD_IMAGE || status == STATUS_TOO_LARGE ||
          status == STATUS_UNSUPPORTED_MEDIA);
    HOLDS(err->status == status && strlen(err->message) > 20);
}

/* `decoder` made `image` of these bytes; without what `p` does not read it gives the same. */
static void check_transform(struct image_decoder *decoder, struct transform *transform,
                            const struct image *image, const struct preprocess *p,
                            const uint8_t *data, size_t size)
{
    float numbers[WIDTH * HEIGHT * 3], of_part[WIDTH * HEIGHT * 3];
    struct error err = {0};
    struct image part;
    const enum status status = transform_numbers(transform, image, p, numbers, &err);
    HOLDS(image_decode(decoder, data, size, &limits, p, false, &part, NULL) == STATUS_OK);
    HOLDS(transform_numbers(transform, &part, p, of_part, NULL) == status);
    if (status != STATUS_OK) {
        HOLDS(status == STATUS_TOO_LARGE && strlen(err.message) > 20);
        return;
    }
    for (int i = 0; i < WIDTH * HEIGHT * preprocess_channels(p); i++)
        HOLDS(isfinite(numbers[i]) && numbers[i] == of_part[i]);
}

/* Nothing that a hostile picture did is left in the decoder. */
static void check_known(struct image_decoder *decoder, struct transform *transform)
{
    static const uint8_t expected[] = {255, 128, 0, 77, 77, 77};
    struct image image;
    HOLDS(image_decode(decoder, known, sizeof known, &limits, NULL, false, &image, NULL) ==
          STATUS_OK);
    HOLDS(image.width == 2 && image.height == 1 && image.info.orientation == 1);
    HOLDS(memcmp(image.pixels, expected, sizeof expected) == 0);
    struct preprocess p = preprocess_of(RESIZE_EXACT);
    p.resize_width = p.width = 2;
    p.resize_height = p.height = 1;
    p.channels = CHANNELS_RGB;
    uint8_t pixels[sizeof expected];
    HOLDS(transform_bytes(transform, &image, &p, pixels, NULL) == STATUS_OK);
    HOLDS(memcmp(pixels, expected, sizeof expected) == 0);
}

static void check_picture(struct image_decoder *decoder, struct transform *transform,
                          const uint8_t *data, size_t size)
{
    struct image_info info = {0};
    struct image image = {0};
    struct error probe_err = {0}, err = {0};
    const enum status probed = image_probe(data, size, &limits, &info, &probe_err);
    const enum status decoded =
        image_decode(decoder, data, size, &limits, NULL, false, &image, &err);
    if (probed != STATUS_OK) {
        /* What the header alone refuses is refused, for the same reason. */
        check_refusal(probed, &probe_err);
        HOLDS(decoded == probed && !image.pixels);
    }
    if (decoded != STATUS_OK) {
        check_refusal(decoded, &err);
        HOLDS(!image.pixels);
    } else {
        check_pixels(&image);
        HOLDS(info.format == image.info.format && info.orientation == image.info.orientation);
        HOLDS(info.width == image.width && info.height == image.height);
        const struct preprocess p = preprocess_of(data[size / 2]);
        check_transform(decoder, transform, &image, &p, data, size);
    }
    check_known(decoder, transform);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* As long as a worker's: what one picture leaves behind would meet the next. */
    static struct image_decoder *decoder;
    static struct transform *transform;
    if (!decoder) {
        image_use_old_libheif(true);
        decoder = image_decoder_create(NULL);
        transform = transform_create();
        HOLDS(decoder && transform);
    }
    check_picture(decoder, transform, data, size);
    if (image_sniff(data, size) == IMAGE_PNG) {
        uint8_t *copy = malloc(size);
        HOLDS(copy);
        memcpy(copy, data, size);
        png_repair(copy, size);
        check_picture(decoder, transform, copy, size);
        free(copy);
    }
    return 0;
}
