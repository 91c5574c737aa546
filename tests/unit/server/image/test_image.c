/* server/image: decoding. Expected pixels are Pillow's, from tests/data/images. */
#include <glob.h>
#include <stdio.h>
#include <sys/resource.h>

#include <jpeglib.h>

#include "engine/base/size.h"
#include "server/image/decode.h"
#include "server/image/image.h"
#include "tests/unit/server/image/image_files.h"
#include "tests/unit/server/image/png_repair.h"

/* Pillow's expectations were made with libjpeg-turbo 2.1.5; another version may round otherwise. */
#if LIBJPEG_TURBO_VERSION_NUMBER == 2001005
enum { JPEG_DIFFERENCE = 0 };
#else
enum { JPEG_DIFFERENCE = 1 };
#endif

static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;

static void decode_as_pillow(struct image_decoder *decoder, const char *path)
{
    struct file file = read_file(path);
    char expected_path[512];
    snprintf(expected_path, sizeof expected_path, "%.*s.ppm", (int)(strrchr(path, '.') - path),
             path);
    struct ppm expected = read_ppm(expected_path);

    struct image image;
    struct error err = {0};
    cr_assert_eq(image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
                 STATUS_OK, "%s: %s", path, err.message);
    cr_assert_eq(image.width, expected.width, "%s: width %u", path, image.width);
    cr_assert_eq(image.height, expected.height, "%s: height %u", path, image.height);
    cr_assert_geq(image.stride, (size_t)image.width * 3);
    const int difference = image.info.format == IMAGE_JPEG ? JPEG_DIFFERENCE : 0;
    for (uint32_t y = 0; y < image.height; y++)
        compare_pixels(path, image.pixels + y * image.stride,
                       expected.pixels + (size_t)y * image.width * 3, (size_t)image.width * 3,
                       difference, difference);

    struct image_info info;
    cr_assert_eq(image_probe(file.data, file.size, &limits, &info, &err), STATUS_OK, "%s: %s", path,
                 err.message);
    cr_assert(info.format == image.info.format && info.width == image.width &&
                  info.height == image.height && info.orientation == image.info.orientation,
              "%s: the probe and the decode disagree", path);
    free(expected.pixels);
    free(file.data);
}

/* All files of a pattern through one decoder, which also shows that none leaves a trace in it. */
static void decode_pattern(const char *pattern, size_t count)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", TEST_IMAGES, pattern);
    glob_t found;
    cr_assert_eq(glob(path, 0, NULL, &found), 0, "%s: nothing found", path);
    cr_assert_eq(found.gl_pathc, count, "%s: %zu files", pattern, (size_t)found.gl_pathc);
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < found.gl_pathc; i++)
        decode_as_pillow(decoder, found.gl_pathv[i]);
    image_decoder_free(decoder);
    globfree(&found);
}

Test(image, decodes_jpeg_as_pillow)
{
    decode_pattern("jpeg_*.jpg", 36);
}

Test(image, decodes_png_as_pillow)
{
    decode_pattern("png_*.png", 54);
}

Test(image, turns_pictures_upright_as_pillow)
{
    decode_pattern("exif_*.jpg", 15);
    decode_pattern("exif_*.png", 9);
}

Test(image, probe_tells_the_orientation)
{
    for (int orientation = 1; orientation <= 8; orientation++) {
        for (int png = 0; png < 2; png++) {
            char name[64];
            snprintf(name, sizeof name, "exif_%s%d.%s", png ? "png_" : "", orientation,
                     png ? "png" : "jpg");
            struct file file = read_image(name);
            struct image_info info;
            cr_assert_eq(image_probe(file.data, file.size, &limits, &info, NULL), STATUS_OK);
            cr_assert_eq(info.orientation, orientation, "%s: %d", name, info.orientation);
            cr_assert_eq(info.width, orientation < 5 ? 29u : 19u, "%s", name);
            free(file.data);
        }
    }
}

/* Decodes and expects a refusal, with `word` in its text; the decoder must then still work. */
static void refuse(struct image_decoder *decoder, const char *name, const void *data, size_t size,
                   const struct image_limits *with, enum status status, const char *word)
{
    uint8_t *copy = malloc(size ? size : 1);
    cr_assert_not_null(copy);
    if (size)
        memcpy(copy, data, size);
    struct image image = {.width = 12345};
    struct error err = {0};
    const enum status got = image_decode(decoder, copy, size, with, NULL, false, &image, &err);
    cr_assert_eq(got, status, "%s: status %d, not %d (%s)", name, got, status, err.message);
    cr_assert_eq(err.status, status, "%s", name);
    cr_assert_eq(image.width, 12345, "%s: the image was touched", name);
    if (word)
        cr_assert_not_null(strstr(err.message, word), "%s: no \"%s\" in: %s", name, word,
                           err.message);
    free(copy);
}

#define BYTES(text) text, sizeof(text) - 1

Test(image, names_what_it_refuses)
{
    static const struct {
        const char *bytes;
        size_t size;
        enum status status;
        const char *word;
    } cases[] = {
        {BYTES(""), STATUS_BAD_IMAGE, "empty"},
        {BYTES("\xFF"), STATUS_BAD_IMAGE, "1 bytes"},
        {BYTES("\xFF\xD8"), STATUS_BAD_IMAGE, "2 bytes"},
        {BYTES("\x89PNG\r\n\x1A"), STATUS_BAD_IMAGE, "7 bytes"},
        {BYTES("x"), STATUS_UNSUPPORTED_MEDIA, "plain text"},
        {BYTES("\0"), STATUS_UNSUPPORTED_MEDIA, "binary data"},
        {BYTES("just some words"), STATUS_UNSUPPORTED_MEDIA, "plain text"},
        {BYTES(" \n<!DOCTYPE HTML><p>404"), STATUS_UNSUPPORTED_MEDIA, "HTML"},
        {BYTES("<html><body>502"), STATUS_UNSUPPORTED_MEDIA, "HTML"},
        {BYTES("\xEF\xBB\xBF<html>"), STATUS_UNSUPPORTED_MEDIA, "HTML"},
        {BYTES("<svg xmlns='http://www.w3.org/2000/svg'/>"), STATUS_UNSUPPORTED_MEDIA, "SVG"},
        {BYTES("<?xml version='1.0'?>"), STATUS_UNSUPPORTED_MEDIA, "XML"},
        {BYTES("{\"image\": 1}"), STATUS_UNSUPPORTED_MEDIA, "JSON"},
        {BYTES("GIF89a\1\0\1\0\0\0\0"), STATUS_BAD_IMAGE, "ends early"},
        {BYTES("GIF89a\1\0\1\0\0\0\0;"), STATUS_BAD_IMAGE, "no picture"},
        {BYTES("RIFF\x24\0\0\0WAVEfmt "), STATUS_UNSUPPORTED_MEDIA, "RIFF"},
        {BYTES("\0\0\0\x18"
               "ftypisom\0\0\0\0"),
         STATUS_UNSUPPORTED_MEDIA, "MP4"},
        {BYTES("BM\x36\0\0\0\0\0\0\0\x36\0\0\0(\0\0\0"), STATUS_BAD_IMAGE, "ends early"},
        {BYTES("BMW is a maker of cars"), STATUS_UNSUPPORTED_MEDIA, "plain text"},
        {BYTES("%PDF-1.7\n"), STATUS_UNSUPPORTED_MEDIA, "PDF"},
        {BYTES("PK\3\4...."), STATUS_UNSUPPORTED_MEDIA, "ZIP"},
        {BYTES("\x1F\x8B\x08\0"), STATUS_UNSUPPORTED_MEDIA, "gzip"},
        {BYTES("/9j/4AAQSkZJRg"), STATUS_UNSUPPORTED_MEDIA, "Base64"},
        {BYTES("iVBORw0KGgoAAA"), STATUS_UNSUPPORTED_MEDIA, "Base64"},
        {BYTES("data:image/png;base64,iVBO"), STATUS_UNSUPPORTED_MEDIA, "data: URL"},
        {BYTES("https://example.org/cat.jpg"), STATUS_UNSUPPORTED_MEDIA, "web address"},
        {BYTES("\x89PNG\n\x1A\n\0\0\0\rIHDR"), STATUS_UNSUPPORTED_MEDIA, "text mode"},
        {BYTES("\x93NUMPY\1\0"), STATUS_UNSUPPORTED_MEDIA, "NumPy"},
        {BYTES("\xFF\xD8\xFF"), STATUS_BAD_IMAGE, "ends early"},
        {BYTES("\xFF\xD8\xFF\xD9"), STATUS_BAD_IMAGE, "damaged"},
        {BYTES("\x89PNG\r\n\x1A\n"), STATUS_BAD_IMAGE, "ends early"},
        {BYTES("\x89PNG\r\n\x1A\n\0\0\0\x0DJHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\1\2\3\4"),
         STATUS_BAD_IMAGE, "header chunk"},
    };
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        refuse(decoder, cases[i].word, cases[i].bytes, cases[i].size, &limits, cases[i].status,
               cases[i].word);
    image_decoder_free(decoder);
}

Test(image, refuses_jpeg_that_cannot_be_bounded)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct file file = read_image("refused_arithmetic.jpg");
    refuse(decoder, "arithmetic", file.data, file.size, &limits, STATUS_UNSUPPORTED_MEDIA,
           "arithmetic");
    free(file.data);
    image_decoder_free(decoder);
}

/* Not one cut of a file may pass. Only where a JPEG lacks nothing but its end marker may the
 * decoder have had all it needed, and then the picture is the whole one. */
Test(image, refuses_truncated_files)
{
    static const char *const names[] = {
        "jpeg_420.jpg",
        "jpeg_420_progressive.jpg",
        "jpeg_cmyk.jpg",
        "jpeg_gray.jpg",
        "jpeg_restart_blocks.jpg",
        "jpeg_scans.jpg",
        "jpeg_quality_5.jpg",
        "exif_6.jpg",
        "png_rgb_8.png",
        "png_palette_4_trns.png",
        "png_gray_1_interlaced.png",
        "exif_png_after.png",
    };
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct file file = read_image(names[i]);
        const size_t marker = image_sniff(file.data, file.size) == IMAGE_JPEG ? 2 : 0;
        for (size_t size = 0; size < file.size - marker; size++)
            refuse(decoder, names[i], file.data, size, &limits, STATUS_BAD_IMAGE, NULL);
        free(file.data);
    }
    image_decoder_free(decoder);
}

Test(image, refuses_a_truncated_large_file_at_every_97th_byte)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct file file = read_image("source_a.png");
    for (size_t size = 97; size < file.size; size += 97)
        refuse(decoder, "source_a.png", file.data, size, &limits, STATUS_BAD_IMAGE, NULL);
    free(file.data);
    image_decoder_free(decoder);
}

/* Every chunk carries a checksum, so no single wrong bit of a PNG may pass. */
Test(image, refuses_every_flipped_bit_of_a_png)
{
    static const char *const names[] = {"png_palette_2.png", "png_7x13_interlaced.png",
                                        "png_gray_1_trns.png"};
    struct image_decoder *decoder = image_decoder_create(NULL);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct file file = read_image(names[i]);
        for (size_t bit = 0; bit < file.size * 8; bit++) {
            file.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            struct image image;
            cr_assert_neq(
                image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, NULL),
                STATUS_OK, "%s: bit %zu", names[i], bit);
            file.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        free(file.data);
    }
    image_decoder_free(decoder);
}

static long peak_kilobytes(void)
{
    struct rusage usage;
    cr_assert_eq(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

/* The bytes of the height in the first frame header (SOF0 … SOF2); the width follows. */
static uint8_t *jpeg_size_bytes(struct file file)
{
    size_t at = 2;
    while (at + 9 < file.size && !(file.data[at + 1] >= 0xC0 && file.data[at + 1] <= 0xC2))
        at += 2 + (size_t)(file.data[at + 2] << 8 | file.data[at + 3]);
    cr_assert_lt(at + 9, file.size);
    return file.data + at + 5;
}

Test(image, refuses_giants_by_their_header_alone)
{
    static const uint8_t png[33] = {0x89, 'P',  'N', 'G', '\r', '\n', 0x1A, '\n', 0,
                                    0,    0,    13,  'I', 'H',  'D',  'R',  0,    0,
                                    0xC3, 0x50, 0,   0,   0xC3, 0x50, /* 50000 x 50000 */
                                    8,    2,    0,   0,   0,    0,    0,    0,    0};
    const long before = peak_kilobytes();
    struct image_decoder *decoder = image_decoder_create(NULL);
    refuse(decoder, "PNG", png, sizeof png, &limits, STATUS_TOO_LARGE, "50000 x 50000");
    refuse(decoder, "PNG", png, sizeof png, &limits, STATUS_TOO_LARGE, "16384 (--max-side)");
    const struct image_limits pixels_only = {.max_pixels = 50000000};
    refuse(decoder, "PNG", png, sizeof png, &pixels_only, STATUS_TOO_LARGE, "50000000");
    refuse(decoder, "PNG", png, sizeof png, &pixels_only, STATUS_TOO_LARGE, "--max-pixels");

    struct file file = read_image("jpeg_420.jpg");
    uint8_t *size = jpeg_size_bytes(file);
    memset(size, 0xFF, 4);
    refuse(decoder, "JPEG", file.data, file.size, &limits, STATUS_TOO_LARGE, "65535 x 65535");
    static const uint8_t most[4] = {0xFF, 0xDC, 0xFF, 0xDC}; /* libjpeg's own 65500 */
    memcpy(size, most, sizeof most);
    refuse(decoder, "JPEG", file.data, file.size, &limits, STATUS_TOO_LARGE, "--max-side");
    refuse(decoder, "JPEG", file.data, file.size, &pixels_only, STATUS_TOO_LARGE, "--max-pixels");
    struct image_info info;
    cr_assert_eq(image_probe(file.data, file.size, &limits, &info, NULL), STATUS_TOO_LARGE);
    cr_assert_eq(image_probe(png, sizeof png, &limits, &info, NULL), STATUS_TOO_LARGE);
    memset(size, 0, 4);
    refuse(decoder, "JPEG", file.data, file.size, &limits, STATUS_BAD_IMAGE, NULL);
    free(file.data);
    image_decoder_free(decoder);
    cr_assert_lt(peak_kilobytes() - before, 16 * 1024, "refusing took memory");
}

Test(image, limits_are_inclusive)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    static const char *const names[] = {"jpeg_444.jpg", "png_rgb_8.png"}; /* 37 x 29 */
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct file file = read_image(names[i]);
        struct image image;
        const struct image_limits exact = {.max_pixels = 37 * 29, .max_side = 37, .max_scans = 1};
        cr_assert_eq(image_decode(decoder, file.data, file.size, &exact, NULL, false, &image, NULL),
                     STATUS_OK);
        const struct image_limits none = {0};
        cr_assert_eq(image_decode(decoder, file.data, file.size, &none, NULL, false, &image, NULL),
                     STATUS_OK);
        struct image_limits less = exact;
        less.max_pixels--;
        refuse(decoder, names[i], file.data, file.size, &less, STATUS_TOO_LARGE, "1072");
        less = exact;
        less.max_side--;
        refuse(decoder, names[i], file.data, file.size, &less, STATUS_TOO_LARGE, "36 (--max-side)");
        free(file.data);
    }
    image_decoder_free(decoder);
}

/* The file with its first scan repeated: what a bomb of thousands of scans looks like. The first
 * one, because it only sets the upper bits of the means and so may be read again; a refinement
 * would not fit coefficients that have been refined already. */
static struct file repeat_first_scan(struct file file, size_t times)
{
    size_t scan = 2;
    while (scan + 1 < file.size && !(file.data[scan] == 0xFF && file.data[scan + 1] == 0xDA))
        scan++;
    size_t end = scan + 2;
    while (end + 1 < file.size && !(file.data[end] == 0xFF && file.data[end + 1] != 0))
        end++;
    cr_assert_lt(end + 1, file.size);
    const size_t length = end - scan;
    struct file bomb = {.size = file.size + times * length};
    bomb.data = malloc(bomb.size);
    cr_assert_not_null(bomb.data);
    memcpy(bomb.data, file.data, scan);
    for (size_t i = 0; i < times; i++)
        memcpy(bomb.data + scan + i * length, file.data + scan, length);
    memcpy(bomb.data + scan + times * length, file.data + scan, file.size - scan);
    return bomb;
}

Test(image, bounds_the_scans_of_a_progressive_jpeg)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct file file = read_image("jpeg_420_progressive.jpg");
    struct file bomb = repeat_first_scan(file, 5000);
    refuse(decoder, "5000 scans", bomb.data, bomb.size, &limits, STATUS_TOO_LARGE,
           "100 scans (--max-scans)");
    struct image image;
    struct image_limits scans = {.max_scans = 6000}; /* it is a picture, as far as it goes */
    cr_assert_eq(image_decode(decoder, bomb.data, bomb.size, &scans, NULL, false, &image, NULL),
                 STATUS_OK);
    scans = limits;
    scans.max_scans = 10; /* as many as libjpeg's own progressive script makes */
    cr_assert_eq(image_decode(decoder, file.data, file.size, &scans, NULL, false, &image, NULL),
                 STATUS_OK);
    scans.max_scans = 9;
    refuse(decoder, "10 scans", file.data, file.size, &scans, STATUS_TOO_LARGE, "9 scans");
    free(bomb.data);
    free(file.data);
    image_decoder_free(decoder);
}

/* What image_decode promises for any bytes at all. */
static enum status decode_anything(struct image_decoder *decoder, const uint8_t *data, size_t size,
                                   const struct image_limits *with)
{
    struct image image;
    struct error err = {0};
    const enum status status = image_decode(decoder, data, size, with, NULL, false, &image, &err);
    cr_assert(status == STATUS_OK || status == STATUS_BAD_IMAGE || status == STATUS_TOO_LARGE ||
                  status == STATUS_UNSUPPORTED_MEDIA,
              "status %d: %s", status, err.message);
    if (status != STATUS_OK) {
        cr_assert_gt(strlen(err.message), 20);
        return status;
    }
    cr_assert_leq((uint64_t)image.width * image.height, with->max_pixels);
    unsigned sum = 0; /* every pixel is there to be read */
    for (uint32_t y = 0; y < image.height; y++)
        for (size_t x = 0; x < (size_t)image.width * 3; x++)
            sum += image.pixels[y * image.stride + x];
    cr_assert_leq(sum, image.width * image.height * 3u * 255u);
    return status;
}

static void mutate(uint8_t *data, size_t size, uint64_t *random)
{
    const int count = 1 + (int)(next_random(random) % 8);
    for (int i = 0; i < count; i++) {
        const size_t at = next_random(random) % size;
        switch (next_random(random) % 4) {
        case 0:
            data[at] ^= (uint8_t)(1u << next_random(random) % 8);
            break;
        case 1:
            data[at] = (uint8_t)next_random(random);
            break;
        case 2:
            data[at] = 0xFF;
            break;
        case 3: /* a piece of the file somewhere else */
            memmove(data + at, data + next_random(random) % size / 2,
                    (size - at) / 2 < 16 ? (size - at) / 2 : 16);
            break;
        }
    }
}

Test(image, survives_mutated_files)
{
    const struct image_limits small = {.max_pixels = 1 << 20, .max_side = 4096, .max_scans = 50};
    struct image_decoder *decoder = image_decoder_create(NULL);
    glob_t found;
    cr_assert_eq(glob(TEST_IMAGES "/*.[jp][pn]g", 0, NULL, &found), 0);
    uint64_t random = 0x1E57ED;
    int accepted = 0, refused = 0;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct file file = read_file(found.gl_pathv[i]);
        for (int round = 0; file.size < 10000 && round < 64; round++) {
            /* Every eighth is cut as well; always of exactly its size, for the sanitizers. */
            const size_t size = round % 8 ? file.size : 1 + next_random(&random) % file.size;
            uint8_t *copy = malloc(file.size);
            cr_assert_not_null(copy);
            memcpy(copy, file.data, file.size);
            mutate(copy, file.size, &random);
            copy = realloc(copy, size);
            cr_assert_not_null(copy);
            if (round % 4 && image_sniff(copy, size) == IMAGE_PNG)
                png_repair(copy, size);
            if (decode_anything(decoder, copy, size, &small) == STATUS_OK)
                accepted++;
            else
                refused++;
            free(copy);
        }
        free(file.data);
    }
    globfree(&found);
    image_decoder_free(decoder);
    /* Both ways were taken often, otherwise the mutations are too weak or too strong. */
    cr_assert_gt(accepted, 500, "%d accepted", accepted);
    cr_assert_gt(refused, 1000, "%d refused", refused);
}

static const uint8_t exif[] = {'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3,
                               0,   1,   0,   0, 0, 6, 0, 0, 0, 0, 0,    0,    0};

static int orientation_of(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    cr_assert_not_null(copy);
    memcpy(copy, data, size);
    const int orientation = exif_orientation(copy, size, NULL, 0);
    free(copy);
    return orientation;
}

Test(image, exif_reader_stays_inside)
{
    cr_assert_eq(orientation_of(exif, sizeof exif), 6);
    /* The entry ends 4 bytes before the block does; without all of it there is no orientation. */
    for (size_t size = 0; size < sizeof exif; size++)
        cr_assert_eq(orientation_of(exif, size), size < sizeof exif - 4 ? 1 : 6, "%zu bytes", size);

    static const struct {
        const char *name;
        size_t at;
        uint8_t value;
        int orientation;
    } cases[] = {
        {"magic", 2, '+', 1},
        {"byte order", 0, 'M', 1},
        {"directory far away", 7, 0x7F, 1},
        {"directory at the end", 4, sizeof exif, 1},
        {"65281 entries", 9, 0xFF, 6},
        {"no entries", 8, 0, 1},
        {"another tag", 10, 0x13, 1},
        {"ASCII", 12, 2, 1},
        {"LONG", 12, 4, 6},
        {"BYTE", 12, 1, 1},
        {"RATIONAL", 12, 5, 1},
        {"two values", 14, 2, 6},
        {"2^24 values", 17, 1, 1},
        {"value 0", 18, 0, 1},
        {"value 9", 18, 9, 1},
        {"value 6 + 256", 19, 1, 1},
        {"value 8", 18, 8, 8},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t block[sizeof exif];
        memcpy(block, exif, sizeof exif);
        block[cases[i].at] = cases[i].value;
        cr_assert_eq(orientation_of(block, sizeof block), cases[i].orientation, "%s: %d",
                     cases[i].name, orientation_of(block, sizeof block));
    }
    /* Directory offsets all over 32 bits. */
    for (unsigned bit = 0; bit < 32; bit++) {
        uint8_t block[sizeof exif];
        memcpy(block, exif, sizeof exif);
        const uint32_t offset = UINT32_MAX >> bit;
        for (size_t i = 0; i < 4; i++)
            block[4 + i] = (uint8_t)(offset >> 8 * i);
        const int orientation = orientation_of(block, sizeof block);
        cr_assert(orientation >= 1 && orientation <= 8);
    }
}

/* Writes an APP1 segment, at most 150 bytes; nothing for an empty one. Returns its size. */
static size_t put_app1(uint8_t *to, const char *body, size_t size)
{
    const uint8_t head[] = {0xFF, 0xE1, 0, (uint8_t)(size + 2)};
    cr_assert_leq(size, 140);
    if (size == 0)
        return 0;
    memcpy(to, head, sizeof head);
    memcpy(to + sizeof head, body, size);
    return sizeof head + size;
}

/* The verdicts are Pillow 13's. */
Test(image, exif_and_xmp_of_jpegs)
{
#define XMP "http://ns.adobe.com/xap/1.0/\0"
#define IFD "Exif\0\0II*\0\x08\0\0\0"
#define ONE "\x01\0"
#define TWO "\x02\0"
#define TAG "\x12\x01"
    static const struct {
        const char *name, *first, *second;
        size_t first_size, second_size;
        int orientation;
    } cases[] = {
#define CASE(NAME, FIRST, SECOND, WANTED)                                                          \
    {NAME, FIRST, SECOND, sizeof(FIRST) - 1, sizeof(SECOND) - 1, WANTED}
        CASE("XMP alone", XMP "<x tiff:Orientation=\"6\"/>", "", 6),
        CASE("an element", XMP "<tiff:Orientation>6</tiff:Orientation>", "", 6),
        CASE("the last packet", XMP "tiff:Orientation=\"3\"", XMP "tiff:Orientation=\"6\"", 6),
        CASE("EXIF before XMP", XMP "tiff:Orientation=\"6\"",
             IFD ONE TAG "\x03\0\x01\0\0\0\x03\0\0\0", 3),
        CASE("EXIF without", IFD ONE "\x0F\x01\x03\0\x01\0\0\0\x03\0\0\0",
             XMP "tiff:Orientation=\"6\"", 6),
        CASE("a byte is no number", IFD ONE TAG "\x01\0\x01\0\0\0\x06\0\0\0",
             XMP "tiff:Orientation=\"6\"", 1),
        CASE("the first of two",
             IFD TWO TAG "\x03\0\x01\0\0\0\x03\0\0\0" TAG "\x03\0\x01\0\0\0\x06\0\0\0", "", 3),
        CASE("the first that is valid",
             IFD TWO TAG "\x63\0\x01\0\0\0\x03\0\0\0" TAG "\x03\0\x01\0\0\0\x06\0\0\0", "", 6),
        CASE("SSHORT", IFD ONE TAG "\x08\0\x01\0\0\0\x06\0\0\0", "", 6),
        CASE("FLOAT", IFD ONE TAG "\x0B\0\x01\0\0\0\0\0\xC0\x40", "", 6),
        CASE("RATIONAL", IFD ONE TAG "\x05\0\x01\0\0\0\x16\0\0\0\x0C\0\0\0\x02\0\0\0", "", 6),
        CASE("another magic", "Exif\0\0II\0*\x08\0\0\0" ONE TAG "\x03\0\x01\0\0\0\x06\0\0\0", "",
             6),
        CASE("a header twice", "Exif\0\0" IFD ONE TAG "\x03\0\x01\0\0\0\x06\0\0\0", "", 6),
    };
    const struct image_limits none = {0};
    struct file plain = read_file(TEST_IMAGES "/jpeg_16x16.jpg");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t *data = malloc(plain.size + 300);
        struct image_info info = {0};
        cr_assert_not_null(data);
        memcpy(data, plain.data, 2);
        size_t size = 2;
        size += put_app1(data + size, cases[i].first, cases[i].first_size);
        size += put_app1(data + size, cases[i].second, cases[i].second_size);
        memcpy(data + size, plain.data + 2, plain.size - 2);
        size += plain.size - 2;
        cr_assert_eq(image_probe(data, size, &none, &info, NULL), STATUS_OK, "%s", cases[i].name);
        cr_expect_eq(info.orientation, cases[i].orientation, "%s", cases[i].name);
        free(data);
    }
    free(plain.data);
}

Test(image, pixel_memory_is_reused_and_given_back)
{
    struct pixel_buffer buffer = {0};
    const size_t giant = 40u << 20, small = 1u << 20;
    cr_assert_eq(pixel_buffer_reserve(&buffer, small, NULL), STATUS_OK);
    const uint8_t *first = buffer.data;
    cr_assert_eq(pixel_buffer_reserve(&buffer, small / 2, NULL), STATUS_OK);
    cr_assert_eq(buffer.data, first, "a smaller picture took new memory");
    cr_assert_eq(pixel_buffer_reserve(&buffer, giant, NULL), STATUS_OK);
    cr_assert_eq(buffer.capacity, giant);
    /* Giants again and again keep it, small ones for long enough do not. */
    for (int i = 0; i < 100; i++)
        cr_assert_eq(pixel_buffer_reserve(&buffer, i % 4 ? small : giant, NULL), STATUS_OK);
    cr_assert_eq(buffer.capacity, giant);
    for (int i = 0; i < 100; i++)
        cr_assert_eq(pixel_buffer_reserve(&buffer, small, NULL), STATUS_OK);
    cr_assert_eq(buffer.capacity, small);
    pixel_buffer_done(&buffer);
    cr_assert_null(buffer.data);
}

/* Takes and gives of a decoder. */
struct asked {
    size_t taken, held;
    bool refuses;
};

static enum status take_bytes(void *context, size_t bytes, struct error *err)
{
    struct asked *asked = context;
    cr_expect_eq(asked->held, 0, "a picture is to take all at once");
    if (asked->refuses)
        return error_set(err, STATUS_TOO_LARGE, "no");
    asked->taken = asked->held = bytes;
    return STATUS_OK;
}

static void give_bytes(void *context, size_t bytes)
{
    struct asked *asked = context;
    asked->held -= bytes;
}

Test(image, memory_is_asked_for)
{
    /* Coefficients of 4:2:0: one and a half a pixel, of whole blocks, two bytes each. */
    static const struct {
        const char *name;
        size_t per_pixel_most, per_pixel_least;
    } cases[] = {{"jpeg_420.jpg", 3, 3}, {"exif_6.jpg", 6, 6}, {"jpeg_420_progressive.jpg", 9, 6}};
    struct asked asked = {0};
    const struct image_memory memory = {.take = take_bytes, .give = give_bytes, .context = &asked};
    struct image_decoder *decoder = image_decoder_create(&memory);
    struct image image;
    struct error err;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct file file = read_image(cases[i].name);
        cr_assert_eq(
            image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
            STATUS_OK);
        const size_t pixels = (size_t)image.width * image.height;
        cr_expect(asked.taken >= pixels * cases[i].per_pixel_least &&
                      asked.taken <= pixels * cases[i].per_pixel_most,
                  "%s: %zu bytes for %zu pixels", cases[i].name, asked.taken, pixels);
        cr_expect_gt(asked.held, 0);
        image_decoder_done(decoder, false);
        cr_expect_eq(asked.held, 0);
        asked.refuses = true;
        cr_expect_eq(
            image_decode(decoder, file.data, file.size, &limits, NULL, false, &image, &err),
            STATUS_TOO_LARGE);
        image_decoder_done(decoder, false);
        asked.refuses = false;
        free(file.data);
    }
    image_decoder_free(decoder);
}
