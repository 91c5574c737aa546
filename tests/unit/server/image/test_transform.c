/* server/image: from pixels to a model's numbers. Expected pixels are Pillow's and torchvision's,
 * from tests/data/images/resize; where there are none, one way through the code is held against
 * another: a crop against the cut-out of the whole, vectors against plain C. */
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>

#include <jpeglib.h>

#include "engine/base/size.h"
#include "server/image/image.h"
#include "server/image/resample.h"
#include "server/image/transform.h"
#include "server/precision/internal.h"
#include "tests/unit/server/image/image_files.h"

static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;

/* What transform.h promises against Pillow; OpenCV's pixels are met to the bit. */
enum { GREATEST = 1 };
static const double MEAN = 0.05;

static struct image load(struct image_decoder *decoder, const char *path)
{
    struct file file = read_file(path);
    struct image image;
    struct error err = {0};
    cr_assert_eq(image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
                 STATUS_OK, "%s: %s", path, err.message);
    free(file.data);
    return image;
}

/* Numbers that show a mistake in scale, mean or std of any channel. */
static struct preprocess base(void)
{
    struct preprocess p;
    preprocess_default(&p);
    return p;
}

static struct preprocess exact(int width, int height, enum resample filter)
{
    struct preprocess p = base();
    p.resize = RESIZE_EXACT;
    p.resample = filter;
    p.resize_width = p.width = width;
    p.resize_height = p.height = height;
    return p;
}

static struct preprocess short_side(int side, int width, int height, enum resample filter)
{
    struct preprocess p = base();
    p.resize = RESIZE_SHORT_SIDE;
    p.resample = filter;
    p.resize_short = side;
    p.width = width;
    p.height = height;
    return p;
}

static struct preprocess letterbox(int width, int height)
{
    struct preprocess p = exact(width, height, RESAMPLE_LINEAR);
    p.resize = RESIZE_LETTERBOX;
    return p;
}

static struct preprocess no_resize(int width, int height)
{
    struct preprocess p = exact(width, height, RESAMPLE_BILINEAR);
    p.resize = RESIZE_NONE;
    return p;
}

/* The RGB pixels in memory of their own, with guards at both ends that must stay as they are. */
static uint8_t *pixels_of(struct transform *transform, const struct image *image,
                          const struct preprocess *p, const char *name)
{
    enum { GUARD = 64, MARK = 0xA5 };
    struct error err = {0};
    struct preprocess rgb = *p;
    rgb.channels = CHANNELS_RGB;
    cr_assert_eq(preprocess_check(p, &err), STATUS_OK, "%s: %s", name, err.message);
    const size_t bytes = (size_t)p->width * (size_t)p->height * 3;
    uint8_t *guarded = malloc(bytes + 2 * GUARD), *pixels = malloc(bytes);
    cr_assert(guarded && pixels);
    memset(guarded, MARK, bytes + 2 * GUARD);
    cr_assert_eq(transform_bytes(transform, image, &rgb, guarded + GUARD, &err), STATUS_OK,
                 "%s: %s", name, err.message);
    for (size_t i = 0; i < GUARD; i++)
        cr_assert(guarded[i] == MARK && guarded[GUARD + bytes + i] == MARK,
                  "%s: wrote outside its slot", name);
    memcpy(pixels, guarded + GUARD, bytes);
    free(guarded);
    return pixels;
}

/* transform_bytes against the file resize/NAME.ppm, with every set of kernels. */
static void expect_file(const struct image *image, const struct preprocess *p, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/resize/%s.ppm", TEST_IMAGES, name);
    struct ppm expected = read_ppm(path);
    cr_assert(expected.width == (uint32_t)p->width && expected.height == (uint32_t)p->height,
              "%s: %u x %u", path, expected.width, expected.height);
    const size_t bytes = (size_t)expected.width * expected.height * 3;
    struct transform *transform = transform_create();
    for (int k = 0; resample_kernels_at(k); k++) {
        transform_use_kernels(transform, resample_kernels_at(k));
        uint8_t *pixels = pixels_of(transform, image, p, name);
        const bool is_linear = p->resample == RESAMPLE_LINEAR;
        /* Its fixtures were computed in floats, and rounded to bytes once. */
        const double mean = p->resample == RESAMPLE_BLURRED ? 0.25 : MEAN;
        compare_pixels(name, pixels, expected.pixels, bytes, is_linear ? 0 : GREATEST,
                       is_linear ? 0 : mean);
        free(pixels);
    }
    transform_free(transform);
    free(expected.pixels);
}

static struct image load_source(struct image_decoder *decoder, char letter)
{
    char path[512];
    snprintf(path, sizeof path, "%s/source_%c.png", TEST_IMAGES, letter);
    return load(decoder, path);
}

static const char *const filter_names[] = {
    [RESAMPLE_NEAREST] = "nearest",   [RESAMPLE_LANCZOS] = "lanczos",
    [RESAMPLE_BILINEAR] = "bilinear", [RESAMPLE_BICUBIC] = "bicubic",
    [RESAMPLE_BOX] = "box",           [RESAMPLE_HAMMING] = "hamming",
    [RESAMPLE_LINEAR] = "linear",
};
enum { FILTERS = COUNT_OF(filter_names) };

Test(transform, resizes_as_pillow_and_opencv)
{
    static const struct {
        char source;
        int width, height;
    } cases[] = {{'a', 53, 41}, {'b', 47, 64}, {'c', 97, 71}, {'c', 64, 20}, {'c', 3, 48}};
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct image image = load_source(decoder, cases[i].source);
        for (int filter = 0; filter < FILTERS; filter++) {
            char name[64];
            snprintf(name, sizeof name, "%c_%s_%dx%d", cases[i].source, filter_names[filter],
                     cases[i].width, cases[i].height);
            struct preprocess p = exact(cases[i].width, cases[i].height, (enum resample)filter);
            expect_file(&image, &p, name);
        }
    }
    image_decoder_free(decoder);
}

Test(transform, crops_and_letterboxes_as_torchvision_and_ultralytics)
{
    const struct preprocess crop = short_side(64, 56, 56, RESAMPLE_BILINEAR);
    const struct preprocess padded = short_side(48, 33, 70, RESAMPLE_BILINEAR);
    const struct preprocess boxed = letterbox(72, 61);
    struct preprocess blurred = exact(40, 40, RESAMPLE_BLURRED);
    blurred.pads_square = true;
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < 3; i++) {
        const char letter = "abc"[i];
        struct image image = load_source(decoder, letter);
        char name[64];
        snprintf(name, sizeof name, "%c_short64_crop56", letter);
        expect_file(&image, &crop, name);
        snprintf(name, sizeof name, "%c_short48_crop33x70", letter);
        expect_file(&image, &padded, name);
        snprintf(name, sizeof name, "%c_letterbox72x61", letter);
        expect_file(&image, &boxed, name);
        snprintf(name, sizeof name, "%c_blurred%d", letter, blurred.width);
        expect_file(&image, &blurred, name);
    }
    struct image small = load_source(decoder, 'c');
    blurred.width = blurred.height = blurred.resize_width = blurred.resize_height = 97;
    expect_file(&small, &blurred, "c_blurred97");
    image_decoder_free(decoder);
}

Test(transform, pads_and_inverts_as_pillow)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct image image = load_source(decoder, 'c');
    struct preprocess p = no_resize(73, 55);
    expect_file(&image, &p, "c_none_crop73x55");
    p = no_resize(73, 20);
    expect_file(&image, &p, "c_none_crop73x20");
    image = load_source(decoder, 'a');
    p = exact(40, 30, RESAMPLE_BICUBIC);
    p.invert = true;
    expect_file(&image, &p, "a_invert_40x30");
    image_decoder_free(decoder);
}

Test(transform, makes_of_photos_what_pillow_does)
{
    const char *shared = getenv("LENSD_SHARED");
    char pattern[512];
    snprintf(pattern, sizeof pattern, "%s/models/squeezenet-imagenet/photos/*.jpeg",
             shared && *shared ? shared : LENSD_SOURCE_ROOT "/../shared");
    glob_t found;
    if (glob(pattern, 0, NULL, &found) != 0)
        cr_skip("there is no %s", pattern);
    struct image_decoder *decoder = image_decoder_create(NULL);
    size_t compared = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *path = found.gl_pathv[i], *begin = strrchr(path, '/') + 1;
        char name[128];
        snprintf(name, sizeof name, "photo_%.*s", (int)(strrchr(begin, '.') - begin), begin);
        struct image image = load(decoder, path);
        /* Every other one bicubic, in the order of their names: make_images.py. */
        const struct preprocess p =
            short_side(64, 56, 56, i % 2 ? RESAMPLE_BICUBIC : RESAMPLE_BILINEAR);
        expect_file(&image, &p, name);
        compared++;
        if (strcmp(name, "photo_zebra") == 0) {
            const struct preprocess standard = base();
            expect_file(&image, &standard, "photo_zebra_224");
        }
    }
    cr_assert_eq(compared, 6, "%zu photos", compared);
    image_decoder_free(decoder);
    globfree(&found);
}

/* A picture of noise in memory that ends with its last pixel, so that a sanitizer sees a read past
 * it. Rows are `gap` bytes farther apart than they need to be. */
static struct image noise(uint32_t width, uint32_t height, size_t gap, uint64_t *random)
{
    struct image image = {.info = {IMAGE_PNG, width, height, 1},
                          .width = width,
                          .height = height,
                          .stride = (size_t)width * 3 + gap};
    const size_t bytes = image.stride * (height - 1) + (size_t)width * 3;
    uint8_t *pixels = malloc(bytes);
    cr_assert_not_null(pixels);
    for (size_t i = 0; i < bytes; i++) {
        const uint64_t r = next_random(random);
        /* Black and white often: that is where filters overshoot. */
        pixels[i] = r & 0x100 ? (uint8_t)(r & 0x200 ? 255 : 0) : (uint8_t)r;
    }
    image.pixels = pixels;
    return image;
}

static void noise_free(const struct image *image)
{
    free((void *)(uintptr_t)image->pixels);
}

static int between(uint64_t *random, int low, int high)
{
    return low + (int)(next_random(random) % (uint64_t)(high - low + 1));
}

/* Sizes that break loops: 1, about a block, and whatever else. */
static int any_size(uint64_t *random, int high)
{
    switch (next_random(random) % 4) {
    case 0:
        return 1 + (int)(next_random(random) % 2);
    case 1:
        return between(random, 20, 23);
    default:
        return between(random, 1, high);
    }
}

/* Vectors and plain C give equal bytes, whatever the gap between rows. */
Test(transform, kernels_agree)
{
    struct transform *transform = transform_create();
    uint64_t random = 0xA11CE;
    for (int round = 0; round < 300; round++) {
        struct image image =
            noise((uint32_t)any_size(&random, 150), (uint32_t)any_size(&random, 150),
                  (size_t)between(&random, 0, 9), &random);
        struct preprocess p =
            exact(any_size(&random, 150), any_size(&random, 150), (enum resample)(round % FILTERS));
        p.width = any_size(&random, 150);
        p.height = any_size(&random, 150);
        p.invert = round % 5 == 0;
        p.resize = round % 7 == 0 ? RESIZE_LETTERBOX : RESIZE_EXACT;
        char name[128];
        snprintf(name, sizeof name, "round %d: %u x %u to %d x %d, crop %d x %d, %s", round,
                 image.width, image.height, p.resize_width, p.resize_height, p.width, p.height,
                 filter_names[p.resample]);
        transform_use_kernels(transform, resample_kernels_at(0));
        uint8_t *plain = pixels_of(transform, &image, &p, name);
        for (int k = 1; resample_kernels_at(k); k++) {
            transform_use_kernels(transform, resample_kernels_at(k));
            uint8_t *pixels = pixels_of(transform, &image, &p, name);
            compare_pixels(name, pixels, plain, (size_t)p.width * (size_t)p.height * 3, 0, 0);
            free(pixels);
        }
        free(plain);
        noise_free(&image);
    }
    transform_free(transform);
}

/* torchvision's offset, int(round(difference / 2.0)) with halves to even, and that of Hugging
 * Face's processors, int(difference / 2.0), from their words. */
static int crop_offset(int have, int want, bool floors)
{
    if (floors) /* as Hugging Face's center_crop(), also where it pads */
        return (int)floor((have - want) / 2.0);
    return want >= have ? -((want - have) / 2) : (int)rint((have - want) / 2.0);
}

/* What a crop keeps is what the whole picture has there, and zero beyond. */
Test(transform, crop_is_a_part_of_the_whole)
{
    struct transform *transform = transform_create();
    uint64_t random = 0xC0FFEE;
    for (int round = 0; round < 200; round++) {
        struct image image =
            noise((uint32_t)any_size(&random, 90), (uint32_t)any_size(&random, 90), 0, &random);
        struct preprocess p =
            exact(any_size(&random, 90), any_size(&random, 90), (enum resample)(round % FILTERS));
        uint8_t *whole = pixels_of(transform, &image, &p, "whole");
        const int width = p.width, height = p.height;
        p.width = any_size(&random, 120);
        p.height = any_size(&random, 120);
        p.crop_floors = round % 3 == 0;
        uint8_t *crop = pixels_of(transform, &image, &p, "crop");
        const int left = crop_offset(width, p.width, p.crop_floors);
        const int top = crop_offset(height, p.height, p.crop_floors);
        for (int y = 0; y < p.height; y++)
            for (int x = 0; x < p.width; x++) {
                const int from_x = x + left, from_y = y + top;
                const bool inside = from_x >= 0 && from_x < width && from_y >= 0 && from_y < height;
                const uint8_t zeros[3] = {0},
                              *from = inside ? whole + 3 * (from_y * width + from_x) : zeros;
                cr_assert_eq(memcmp(crop + 3 * (y * p.width + x), from, 3), 0,
                             "round %d: %d x %d cropped to %d x %d differs at %d, %d", round, width,
                             height, p.width, p.height, x, y);
            }
        free(crop);
        free(whole);
        noise_free(&image);
    }
    transform_free(transform);
}

static float *floats_of(struct transform *transform, const struct image *image,
                        const struct preprocess *p)
{
    enum { GUARD = 16 };
    const size_t count = (size_t)p->width * (size_t)p->height * (size_t)preprocess_channels(p);
    float *numbers = malloc((count + GUARD) * sizeof *numbers);
    cr_assert_not_null(numbers);
    for (size_t i = 0; i < count + GUARD; i++)
        numbers[i] = NAN; /* whatever is not written stays wrong */
    struct error err = {0};
    cr_assert_eq(transform_numbers(transform, image, p, numbers, &err), STATUS_OK, "%s",
                 err.message);
    for (size_t i = 0; i < GUARD; i++)
        cr_assert(isnan(numbers[count + i]), "wrote outside its slot");
    return numbers;
}

/* y = (x * scale - mean) / std of the model's channel, for every pixel, padding included. */
static void expect_normalised(struct transform *transform, const struct image *image,
                              const struct preprocess *p, const char *name)
{
    uint8_t *pixels = pixels_of(transform, image, p, name);
    float *numbers = floats_of(transform, image, p);
    const int channels = preprocess_channels(p);
    const size_t count = (size_t)p->width * (size_t)p->height;
    for (size_t i = 0; i < count; i++)
        for (int c = 0; c < channels; c++) {
            const uint8_t *rgb = pixels + 3 * i;
            unsigned x = rgb[c];
            if (p->channels == CHANNELS_BGR)
                x = rgb[2 - c];
            else if (p->channels == CHANNELS_GRAY)
                x = (19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + (1u << 15)) >> 16;
            const double y =
                ((double)x * (double)p->scale - (double)p->mean[c]) / (double)p->std[c];
            const double got = (double)numbers[i * (size_t)channels + (size_t)c];
            /* Three roundings of float32, the first two relative to x * scale and mean. */
            const double tolerance =
                ldexp(fabs((double)x * (double)p->scale / (double)p->std[c]) +
                          fabs((double)p->mean[c] / (double)p->std[c]) + fabs(y),
                      -23);
            const bool close = fabs(got - y) <= tolerance;
            cr_assert(close, "%s: pixel %zu channel %d is %.9g, not %.9g", name, i, c, got, y);
        }
    free(numbers);
    free(pixels);
}

Test(transform, normalises_in_channel_order)
{
    static const char *const names[] = {"RGB", "BGR", "GRAY"};
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct image image = load_source(decoder, 'b');
    struct transform *transform = transform_create();
    for (int k = 0; resample_kernels_at(k); k++) {
        transform_use_kernels(transform, resample_kernels_at(k));
        for (int channels = CHANNELS_RGB; channels <= CHANNELS_GRAY; channels++) {
            struct preprocess cases[] = {
                short_side(64, 56, 56, RESAMPLE_BILINEAR),
                short_side(48, 33, 71, RESAMPLE_BICUBIC), /* zeros above and below */
                letterbox(72, 61),
                no_resize(301, 7),
            };
            for (size_t i = 0; i < COUNT_OF(cases); i++) {
                cases[i].channels = (enum channel_order)channels;
                expect_normalised(transform, &image, &cases[i], names[channels]);
                cases[i].invert = true;
                expect_normalised(transform, &image, &cases[i], names[channels]);
                cases[i].scale = -2.0f; /* whatever preprocess_check lets through */
                cases[i].mean[0] = -1e-3f;
                cases[i].mean[1] = 300;
                cases[i].std[1] = -57.375f;
                cases[i].std[2] = 1e4f;
                expect_normalised(transform, &image, &cases[i], names[channels]);
            }
        }
    }
    transform_free(transform);
    image_decoder_free(decoder);
}

/* Three shapes of numbers in a row: red, green and blue of one colour, told apart. */
Test(transform, writes_channels_where_the_model_wants_them)
{
    static const uint8_t orange[3] = {255, 128, 0};
    const struct image image = {
        .info = {IMAGE_PNG, 1, 1, 1}, .width = 1, .height = 1, .stride = 3, .pixels = orange};
    struct transform *transform = transform_create();
    struct preprocess p = exact(1, 1, RESAMPLE_BILINEAR);
    p.scale = 1;
    for (int c = 0; c < 3; c++) {
        p.mean[c] = (float)c;
        p.std[c] = (float)(1 << c);
    }
    float *numbers = floats_of(transform, &image, &p);
    cr_assert(numbers[0] == 255 && numbers[1] == 63.5f && numbers[2] == -0.5f, "RGB: %g %g %g",
              (double)numbers[0], (double)numbers[1], (double)numbers[2]);
    free(numbers);
    p.channels = CHANNELS_BGR;
    numbers = floats_of(transform, &image, &p);
    cr_assert(numbers[0] == 0 && numbers[1] == 63.5f && numbers[2] == 63.25f, "BGR: %g %g %g",
              (double)numbers[0], (double)numbers[1], (double)numbers[2]);
    free(numbers);
    p.channels = CHANNELS_GRAY;
    numbers = floats_of(transform, &image, &p);
    cr_assert(numbers[0] == 151, "GRAY: %g", (double)numbers[0]); /* Pillow's L of this orange */
    free(numbers);
    transform_free(transform);
}

/* One colour stays that colour through every size; the weights of a window add up to one. */
static void expect_flat(struct transform *transform, uint32_t width, uint32_t height,
                        const struct preprocess *p)
{
    const size_t bytes = (size_t)width * height * 3;
    uint8_t *source = malloc(bytes);
    cr_assert_not_null(source);
    for (size_t i = 0; i < bytes; i++)
        source[i] = (uint8_t)(i % 3 * 100 + 3);
    const struct image image = {.info = {IMAGE_PNG, width, height, 1},
                                .width = width,
                                .height = height,
                                .stride = (size_t)width * 3,
                                .pixels = source};
    char name[128];
    snprintf(name, sizeof name, "flat %u x %u to %d x %d, %s", width, height, p->width, p->height,
             filter_names[p->resample]);
    uint8_t *pixels = pixels_of(transform, &image, p, name);
    for (size_t i = 0; i < (size_t)p->width * (size_t)p->height * 3; i++)
        /* A window of 16384 weights, each rounded, may be off by a little. */
        cr_assert_leq(abs(pixels[i] - (int)(i % 3 * 100 + 3)), width + height > 4096 ? 1 : 0,
                      "%s: byte %zu is %d", name, i, pixels[i]);
    free(pixels);
    free(source);
}

Test(transform, takes_every_size)
{
    static const struct {
        uint32_t width, height;
        int to_width, to_height;
    } cases[] = {
        {1, 1, 1, 1},     {1, 1, 300, 200},     {1, 1, 1, 2000},      {1, 7, 5, 1},
        {7, 1, 1, 5},     {1, 4000, 64, 64},    {4000, 1, 64, 64},    {16384, 1, 1, 1},
        {1, 16384, 1, 1}, {16384, 3, 2, 2},     {3000, 2000, 1, 1},   {3000, 2000, 1, 700},
        {2, 2, 1999, 3},  {640, 480, 641, 479}, {255, 257, 256, 256}, {2, 2, 1, 1},
    };
    struct transform *transform = transform_create();
    for (int k = 0; resample_kernels_at(k); k++) {
        transform_use_kernels(transform, resample_kernels_at(k));
        for (size_t i = 0; i < COUNT_OF(cases); i++)
            for (int filter = 0; filter < FILTERS; filter++) {
                const struct preprocess p =
                    exact(cases[i].to_width, cases[i].to_height, (enum resample)filter);
                expect_flat(transform, cases[i].width, cases[i].height, &p);
            }
    }
    const struct preprocess small = short_side(2, 2, 2, RESAMPLE_LANCZOS);
    expect_flat(transform, 1, 16384, &small); /* 2 x 32768: just allowed */
    transform_free(transform);
}

Test(transform, letterbox_keeps_a_line_of_the_thinnest_picture)
{
    uint64_t random = 7;
    struct transform *transform = transform_create();
    struct image image = noise(16384, 1, 0, &random);
    struct preprocess p = letterbox(64, 33);
    p.pad_value = 77;
    uint8_t *pixels = pixels_of(transform, &image, &p, "16384 x 1");
    size_t padding = 0;
    for (size_t y = 0; y < 33; y++)
        for (size_t i = 0; i < 64 * 3; i++)
            padding += y != 16 && pixels[y * 64 * 3 + i] == 77;
    cr_assert_eq(padding, 32 * 64 * 3, "%zu bytes of padding", padding);
    free(pixels);
    noise_free(&image);
    transform_free(transform);
}

/* SAM's sides: int(side * ratio + 0.5), 0 in the model's numbers to the right and below; with
 * sides_floor, as YOLOX has it, int(side * ratio) and a byte. */
Test(transform, letterbox_in_the_corner)
{
    static const struct {
        bool floors;
        int height;
    } cases[] = {{false, 20}, {true, 19}};
    uint64_t random = 8;
    struct transform *transform = transform_create();
    struct image image = noise(64, 49, 0, &random); /* into 26 wide: 19.9 high */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct preprocess p = letterbox(26, 30),
                          plain = exact(26, cases[i].height, RESAMPLE_LINEAR);
        p.pads_corner = p.pads_normalised = true;
        p.sides_floor = cases[i].floors;
        float *boxed = floats_of(transform, &image, &p);
        float *whole = floats_of(transform, &image, &plain);
        const size_t kept = 26 * (size_t)cases[i].height * 3;
        cr_assert_eq(memcmp(boxed, whole, kept * sizeof *boxed), 0);
        for (size_t k = kept; k < 26 * 30 * 3; k++)
            cr_assert(boxed[k] == 0, "%zu is %g", k, (double)boxed[k]);
        p.pads_normalised = false;
        uint8_t *pixels = pixels_of(transform, &image, &p, "bytes");
        for (size_t k = kept; k < 26 * 30 * 3; k++)
            cr_assert_eq(pixels[k], 114);
        free(pixels);
        free(boxed);
        free(whole);
    }
    noise_free(&image);
    transform_free(transform);
}

/* Perceiver: the middle of the picture, 7/8 of its short side, then resized: as if it were all. */
Test(transform, crops_before_the_resize)
{
    uint64_t random = 9;
    struct transform *transform = transform_create();
    struct image image = noise(61, 45, 2, &random), middle = image;
    struct preprocess p = exact(30, 33, RESAMPLE_BICUBIC);
    middle.width = middle.height = 39; /* int(45 * 0.875) */
    middle.pixels += (45 - 39) / 2 * image.stride + (61 - 39) / 2 * 3;
    uint8_t *expected = pixels_of(transform, &middle, &p, "the middle");
    p.first_width = p.first_height = 0.875;
    uint8_t *pixels = pixels_of(transform, &image, &p, "cropped first");
    compare_pixels("cropped first", pixels, expected, 30 * 33 * 3, 0, 0);
    free(expected);
    free(pixels);
    noise_free(&image);
    transform_free(transform);
}

/* What a refused picture leaves behind works as before. */
Test(transform, refuses_what_would_grow_too_long)
{
    uint64_t random = 99;
    struct transform *transform = transform_create();
    struct image thin = noise(16384, 1, 0, &random), good = noise(40, 30, 0, &random);
    const struct preprocess p = short_side(256, 22, 22, RESAMPLE_BICUBIC);
    uint8_t *before = pixels_of(transform, &good, &p, "before");
    uint8_t dst[22 * 22 * 3];
    struct error err = {0};
    cr_assert_eq(transform_bytes(transform, &thin, &p, dst, &err), STATUS_TOO_LARGE);
    cr_assert_not_null(strstr(err.message, "4194304 x 256"), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "65535"), "%s", err.message);

    const struct image giant = {.width = (1u << 24) + 1, .height = 1, .pixels = dst};
    cr_assert_eq(transform_bytes(transform, &giant, &p, dst, &err), STATUS_TOO_LARGE);
    cr_assert_not_null(strstr(err.message, "16777217"), "%s", err.message);
    const struct image endless = {.width = UINT32_MAX, .height = UINT32_MAX, .pixels = dst};
    cr_assert_eq(transform_bytes(transform, &endless, &p, dst, &err), STATUS_TOO_LARGE);

    uint8_t *after = pixels_of(transform, &good, &p, "after");
    cr_assert_eq(memcmp(before, after, sizeof dst), 0);
    free(before);
    free(after);
    noise_free(&thin);
    noise_free(&good);
    transform_free(transform);
}

/* ---- decoding at a reduced size ---- */

static struct file jpeg_of(const uint8_t *rgb, unsigned side)
{
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    unsigned char *data = NULL;
    unsigned long size = 0;
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &data, &size);
    cinfo.image_width = cinfo.image_height = side;
    cinfo.input_components = 3;
    cinfo.in_color_space = JCS_RGB;
    jpeg_set_defaults(&cinfo);
    jpeg_set_quality(&cinfo, 90, TRUE);
    jpeg_start_compress(&cinfo, TRUE);
    while (cinfo.next_scanline < side) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(rgb + (size_t)cinfo.next_scanline * side * 3);
        jpeg_write_scanlines(&cinfo, &row, 1);
    }
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    return (struct file){data, size};
}

static void transformed(struct transform *transform, const struct image *image,
                        const struct preprocess *p, uint8_t *dst)
{
    struct error err = {0};
    cr_assert_eq(transform_bytes(transform, image, p, dst, &err), STATUS_OK, "%s", err.message);
}

/* Why --fast-decode has to be asked for: over pictures of every kind the reduced way is close on
 * average but keeps the 1/255 of the exact way for hardly any. */
Test(transform, of_a_reduced_decode_is_near_but_not_within_the_contract)
{
    enum { SIDE = 100, PICTURES = 64 };
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct transform *transform = transform_create();
    const struct preprocess p = short_side(SIDE, SIDE, SIDE, RESAMPLE_BILINEAR);
    uint8_t *rgb = malloc((size_t)PICTURE_SIDE * PICTURE_SIDE * 3);
    uint8_t full[SIDE * SIDE * 3], reduced[SIDE * SIDE * 3];
    int beyond = 0;
    for (unsigned i = 0; i < PICTURES; i++) {
        struct error err = {0};
        struct image image;
        picture_draw(i, rgb);
        struct file file = jpeg_of(rgb, PICTURE_SIDE);
        cr_assert_eq(
            image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
            STATUS_OK, "%s", err.message);
        transformed(transform, &image, &p, full);
        cr_assert_eq(image_decode(decoder, file.data, file.size, &limits, &p, true, &image, &err),
                     STATUS_OK, "%s", err.message);
        cr_expect(image.width == PICTURE_SIDE / 2 && image.height == PICTURE_SIDE / 2);
        cr_expect(image.info.width == PICTURE_SIDE && image.info.height == PICTURE_SIDE);
        transformed(transform, &image, &p, reduced);
        int greatest = 0;
        double sum = 0;
        for (size_t b = 0; b < sizeof full; b++) {
            const int difference = abs(full[b] - reduced[b]);
            greatest = difference > greatest ? difference : greatest;
            sum += difference;
        }
        beyond += greatest > GREATEST;
        cr_expect_leq(sum / (double)sizeof full, 6.0, "picture %u: mean difference %g", i,
                      sum / (double)sizeof full);
        free(file.data);
    }
    cr_expect_geq(beyond, PICTURES / 2, "%d of %d pictures", beyond, PICTURES);
    free(rgb);
    transform_free(transform);
    image_decoder_free(decoder);
}

/* Every JPEG of the test data, for a model whose input is small beside it: the size of the whole is
 * told, the pixels are no fewer than the resize wants, and the result is where the exact one is. */
Test(transform, of_a_reduced_decode_keeps_the_frame)
{
    struct image_decoder *decoder = image_decoder_create(NULL), *other = image_decoder_create(NULL);
    struct transform *transform = transform_create();
    const struct preprocess p = short_side(4, 4, 4, RESAMPLE_BILINEAR);
    glob_t found;
    int reduced = 0;
    cr_assert_eq(glob(TEST_IMAGES "/*.jpg", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct file file = read_file(found.gl_pathv[i]);
        struct image exact_image, image;
        struct error err = {0};
        uint8_t a[4 * 4 * 3], b[4 * 4 * 3];
        if (image_decode(other, file.data, file.size, &limits, NULL, false, &exact_image, &err) ==
            STATUS_OK) {
            cr_assert_eq(
                image_decode(decoder, file.data, file.size, &limits, &p, true, &image, &err),
                STATUS_OK, "%s: %s", found.gl_pathv[i], err.message);
            cr_expect(image.info.width == exact_image.width &&
                          image.info.height == exact_image.height &&
                          image.info.orientation == exact_image.info.orientation,
                      "%s", found.gl_pathv[i]);
            cr_expect(image.width <= exact_image.width && image.height <= exact_image.height);
            reduced += image.width < exact_image.width;
            transformed(transform, &exact_image, &p, a);
            transformed(transform, &image, &p, b);
            double sum = 0;
            for (size_t k = 0; k < sizeof a; k++)
                sum += abs(a[k] - b[k]);
            cr_expect_leq(sum / (double)sizeof a, 20.0, "%s: mean difference %g", found.gl_pathv[i],
                          sum / (double)sizeof a);
        }
        free(file.data);
    }
    cr_expect_geq(reduced, 10, "%d pictures were reduced", reduced);
    globfree(&found);
    transform_free(transform);
    image_decoder_free(decoder);
    image_decoder_free(other);
}
