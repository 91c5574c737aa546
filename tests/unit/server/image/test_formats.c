/* server/image: BMP, GIF, WebP, TIFF, AVIF and HEIC. Expected pixels are Pillow's, from
 * tests/data/images (make_formats.py). Formats whose library is not installed are skipped. */
#include <glob.h>

#include "engine/base/size.h"
#include "server/image/image.h"
#include "tests/unit/server/image/image_files.h"

static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;

/* The files of a format, how many there are, and by how much a byte may differ from Pillow's, at
 * most and on average. libheif repeats chroma samples where Pillow's libavif interpolates. */
static const struct kind {
    const char *pattern;
    enum image_format format;
    size_t count;
    int difference;
    double mean;
} kinds[] = {
    {"bmp_*.bmp", IMAGE_BMP, 15, 0, 0},      {"gif_*.gif", IMAGE_GIF, 12, 0, 0},
    {"webp_*.webp", IMAGE_WEBP, 9, 0, 0},    {"tiff_*.tif", IMAGE_TIFF, 16, 1, 1},
    {"heic_*.heic", IMAGE_HEIC, 8, 1, 1},    {"avif_444.avif", IMAGE_AVIF, 1, 1, 1},
    {"avif_grey.avif", IMAGE_AVIF, 1, 1, 1}, {"avif_[aeo42]*[!4].avif", IMAGE_AVIF, 6, 30, 4},
};

/* The files of a kind, or none where it cannot be decoded here. */
static size_t find_files(const struct kind *kind, glob_t *ret)
{
    char path[512];
    *ret = (glob_t){0};
    const char *package = image_format_missing(kind->format);
    if (package) {
        /* Not cr_log_warn: with a warning the program's exit status is 1. */
        fprintf(stderr, "%s: skipped, as %s is not installed\n", image_format_name(kind->format),
                package);
        return 0;
    }
    snprintf(path, sizeof path, "%s/%s", TEST_IMAGES, kind->pattern);
    cr_assert_eq(glob(path, 0, NULL, ret), 0, "%s: nothing found", path);
    cr_assert_eq(ret->gl_pathc, kind->count, "%s: %zu files", path, (size_t)ret->gl_pathc);
    return ret->gl_pathc;
}

static void decode_as_pillow(struct image_decoder *decoder, const struct kind *kind,
                             const char *path)
{
    struct file file = read_file(path);
    char expected_path[512];
    snprintf(expected_path, sizeof expected_path, "%.*s.ppm", (int)(strrchr(path, '.') - path),
             path);
    struct ppm expected = read_ppm(expected_path);
    struct image image;
    struct image_info info;
    struct error err = {0};
    cr_assert_eq(image_sniff(file.data, file.size), kind->format, "%s", path);
    cr_assert_eq(image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
                 STATUS_OK, "%s: %s", path, err.message);
    cr_assert(image.width == expected.width && image.height == expected.height, "%s: %u x %u", path,
              image.width, image.height);
    compare_pixels(path, image.pixels, expected.pixels, (size_t)image.width * image.height * 3,
                   kind->difference, kind->mean);
    cr_assert_eq(image_probe(file.data, file.size, &limits, &info, &err), STATUS_OK, "%s", path);
    cr_assert(info.width == image.width && info.height == image.height &&
                  info.orientation == image.info.orientation,
              "%s: the probe and the decode disagree", path);
    free(expected.pixels);
    free(file.data);
}

static void use_any_libheif(void)
{
    image_use_old_libheif(true);
}

TestSuite(formats, .init = use_any_libheif);

Test(formats, decodes_as_pillow)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        glob_t found;
        const size_t count = find_files(&kinds[i], &found);
        for (size_t k = 0; k < count; k++)
            decode_as_pillow(decoder, &kinds[i], found.gl_pathv[k]);
        globfree(&found);
    }
    image_decoder_free(decoder);
}

/* What image_decode promises for any bytes; each copy has exactly its size, for sanitizers. */
static enum status decode_anything(struct image_decoder *decoder, const uint8_t *data, size_t size,
                                   const struct image_limits *with)
{
    struct image image;
    struct error err = {0};
    uint8_t *copy = malloc(size ? size : 1);
    cr_assert_not_null(copy);
    memcpy(copy, data, size);
    const enum status status = image_decode(decoder, copy, size, with, NULL, false, &image, &err);
    free(copy);
    cr_assert(status == STATUS_OK || status == STATUS_BAD_IMAGE || status == STATUS_TOO_LARGE ||
                  status == STATUS_UNSUPPORTED_MEDIA || status == STATUS_NO_MEMORY,
              "status %d: %s", status, err.message);
    cr_assert(status == STATUS_OK || strlen(err.message) > 20);
    return status;
}

Test(formats, limits_come_first)
{
    const struct image_limits side = {.max_side = 12}, pixels = {.max_pixels = 300};
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        glob_t found;
        const size_t count = find_files(&kinds[i], &found);
        for (size_t k = 0; k < count; k++) {
            struct file file = read_file(found.gl_pathv[k]);
            if (strstr(found.gl_pathv[k], "_1x1") == NULL) {
                cr_assert_eq(decode_anything(decoder, file.data, file.size, &side),
                             STATUS_TOO_LARGE, "%s", found.gl_pathv[k]);
                cr_assert_eq(decode_anything(decoder, file.data, file.size, &pixels),
                             STATUS_TOO_LARGE, "%s", found.gl_pathv[k]);
            }
            free(file.data);
        }
        globfree(&found);
    }
    image_decoder_free(decoder);
}

/* Cut files are refused, or they lack nothing that is shown (metadata and later frames). */
Test(formats, survives_cut_and_mutated_files, .timeout = 150)
{
    const struct image_limits small = {.max_pixels = 1 << 16, .max_side = 1024};
    struct image_decoder *decoder = image_decoder_create(NULL);
    uint64_t random = 0xF0F0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        glob_t found;
        const size_t count = find_files(&kinds[i], &found);
        for (size_t k = 0; k < count; k++) {
            struct file file = read_file(found.gl_pathv[k]);
            cr_assert_neq(decode_anything(decoder, file.data, file.size / 4, &small), STATUS_OK,
                          "%s: a quarter of a file", found.gl_pathv[k]);
            for (int round = 0; round < 24; round++) {
                uint8_t *copy = malloc(file.size);
                cr_assert_not_null(copy);
                memcpy(copy, file.data, file.size);
                const size_t near = round % 2 ? file.size : file.size < 64 ? file.size : 64;
                for (int n = 0; n < 1 + round % 4; n++)
                    copy[next_random(&random) % near] = (uint8_t)next_random(&random);
                (void)decode_anything(decoder, copy, file.size, &small);
                free(copy);
            }
            free(file.data);
        }
        globfree(&found);
    }
    image_decoder_free(decoder);
}

/* libtiff converts these to other colours than Pillow. */
Test(formats, refuses_lab_colours)
{
    static const uint8_t rgb[] = {6, 1, 3, 0, 1, 0, 0, 0, 2, 0}; /* PhotometricInterpretation: 2 */
    const struct kind tiffs = {"tiff_none.tif", IMAGE_TIFF, 1, 0, 0};
    glob_t found;
    if (!find_files(&tiffs, &found))
        return;
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct file file = read_file(found.gl_pathv[0]);
    struct image image;
    struct error err;
    uint8_t *tag = memmem(file.data, file.size, rgb, sizeof rgb);
    cr_assert_not_null(tag);
    for (uint8_t colours = 8; colours <= 10; colours++) {
        tag[8] = colours;
        cr_assert_eq(
            image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
            STATUS_UNSUPPORTED_MEDIA);
        cr_assert(strstr(err.message, "L*a*b*"), "%s", err.message);
    }
    free(file.data);
    globfree(&found);
    image_decoder_free(decoder);
}

Test(formats, names_the_missing_package)
{
    const char *names[IMAGE_FORMATS];
    const size_t count = image_formats(names);
    cr_assert_geq(count, 4);
    cr_assert_str_eq(names[0], "JPEG");
    cr_assert_str_eq(names[3], "GIF");
    const char *missing = image_format_missing(IMAGE_WEBP);
    cr_assert(!missing || !strcmp(missing, "the Debian package libwebp7"));
    cr_assert_null(image_format_missing(IMAGE_GIF));
}

/* A GIF of 2 x 2 pixels of the colours {1, 2, 3} and white, with these codes. */
#define SMALL_GIF(codes) "GIF89a\2\0\2\0\x80\0\0\1\2\3\xFF\xFF\xFF,\0\0\0\0\2\0\2\0\0\2" codes "\0;"

Test(formats, a_gif_that_stops_early_shows_no_earlier_photo)
{
    static const char white[] = SMALL_GIF("\2\x8C\x53"), stops[] = SMALL_GIF("\1\x2C");
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct image image;
    struct error err = {0};
    cr_assert_eq(image_decode(decoder, (const uint8_t *)white, sizeof white - 1, &limits, NULL,
                              false, &image, &err),
                 STATUS_OK, "%s", err.message);
    cr_expect(image.pixels[0] == 255 && image.pixels[11] == 255);
    cr_assert_eq(image_decode(decoder, (const uint8_t *)stops, sizeof stops - 1, &limits, NULL,
                              false, &image, &err),
                 STATUS_OK, "%s", err.message);
    for (size_t i = 0; i < 12; i++)
        cr_expect_eq(image.pixels[i], i % 3 + 1, "byte %zu is %u", i, image.pixels[i]);
    image_decoder_free(decoder);
}
