/* server/image: a JPEG of which only what a crop reads is decoded gives the same pixels to the bit:
 * every sampling, odd sizes, every EXIF turn, against the whole decode. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "engine/base/size.h"
#include "server/image/frame.h"
#include "server/image/image.h"
#include "server/image/transform.h"

enum kind { COLOR, GRAY, INK, PROGRESSIVE, KINDS };

struct file {
    uint8_t *data;
    unsigned long size;
};

/* Noise over a slope: every coefficient is there. With `orientation` 1 … 8 in an EXIF segment. */
static struct file make(enum kind kind, int h, int v, int width, int height, int orientation)
{
    struct jpeg_compress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct file file = {0};
    uint32_t state = (uint32_t)(width * 31 + height * 7 + h * 3 + v);
    const int components = kind == GRAY ? 1 : kind == INK ? 4 : 3;
    uint8_t *row = malloc((size_t)width * (size_t)components);
    cinfo.err = jpeg_std_error(&errors);
    jpeg_create_compress(&cinfo);
    jpeg_mem_dest(&cinfo, &file.data, &file.size);
    cinfo.image_width = (JDIMENSION)width;
    cinfo.image_height = (JDIMENSION)height;
    cinfo.input_components = components;
    cinfo.in_color_space = kind == GRAY ? JCS_GRAYSCALE : kind == INK ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&cinfo);
    jpeg_set_quality(&cinfo, 92, TRUE);
    if (kind == COLOR || kind == PROGRESSIVE) {
        cinfo.comp_info[0].h_samp_factor = h;
        cinfo.comp_info[0].v_samp_factor = v;
    }
    if (kind == PROGRESSIVE)
        jpeg_simple_progression(&cinfo);
    jpeg_start_compress(&cinfo, TRUE);
    const uint8_t exif[] = {'E', 'x', 'i', 'f', 0,  0, 'M', 'M', 0, 42, 0, 0, 0,
                            8,   0,   1,   1,   18, 0, 3,   0,   0, 0,  1, 0, (uint8_t)orientation,
                            0,   0,   0,   0,   0,  0};
    jpeg_write_marker(&cinfo, JPEG_APP0 + 1, exif, sizeof exif);
    while (cinfo.next_scanline < cinfo.image_height) {
        for (int i = 0; i < width * components; i++) {
            state = state * 1664525u + 1013904223u;
            row[i] = (uint8_t)((unsigned)i / 5 + cinfo.next_scanline + (state >> 26));
        }
        jpeg_write_scanlines(&cinfo, &row, 1);
    }
    jpeg_finish_compress(&cinfo);
    jpeg_destroy_compress(&cinfo);
    free(row);
    return file;
}

static struct preprocess crop(int short_side, int width, int height, enum resample filter)
{
    struct preprocess p;
    preprocess_default(&p);
    p.resize = short_side ? RESIZE_SHORT_SIDE : RESIZE_NONE;
    p.resize_short = short_side;
    p.resample = filter;
    p.width = width;
    p.height = height;
    return p;
}

struct parts {
    struct image_decoder *whole, *part;
    struct transform *transform;
    struct file white; /* what the decoder for parts has decoded before */
    int left_out;      /* pictures of which columns were */
};

/* Every stored column that is asked for is the same, to the edges, where colour needs a neighbour
 * beyond. In these upright pixels they are columns or rows, perhaps from the other end. */
static void expect_columns(const struct image *whole, const struct image *part,
                           const struct preprocess *p, int orientation, const char *name)
{
    const bool is_swapped = orientation >= 5;
    const bool is_mirrored = orientation == 2 || orientation == 3 || orientation >= 7;
    const uint32_t stored = is_swapped ? whole->height : whole->width;
    uint32_t begin, end;
    frame_columns(p, stored, is_swapped ? whole->width : whole->height, orientation, &begin, &end);
    const size_t first = is_mirrored ? stored - end : begin, count = end - begin;
    const size_t left = is_swapped ? 0 : first, top = is_swapped ? first : 0;
    const size_t width = is_swapped ? whole->width : count;
    for (size_t row = top; row < top + (is_swapped ? count : whole->height); row++)
        cr_assert(memcmp(whole->pixels + row * whole->stride + left * 3,
                         part->pixels + row * part->stride + left * 3, width * 3) == 0,
                  "%s: other pixels in row %zu of columns %u to %u", name, row, begin, end);
}

static void compare(struct parts *parts, const struct file *file, const struct preprocess *p,
                    int orientation, const char *name)
{
    static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    struct image before, whole, part;
    struct error err = {0};
    const size_t bytes = (size_t)p->width * (size_t)p->height * 3;
    uint8_t *expected = malloc(bytes), *got = malloc(bytes);
    cr_assert_eq(image_decode(parts->part, parts->white.data, parts->white.size, &limits, NULL,
                              false, &before, &err),
                 STATUS_OK);
    cr_assert_eq(
        image_decode(parts->whole, file->data, file->size, &limits, NULL, false, &whole, &err),
        STATUS_OK, "%s: %s", name, err.message);
    cr_assert_eq(image_decode(parts->part, file->data, file->size, &limits, p, false, &part, &err),
                 STATUS_OK, "%s: %s", name, err.message);
    cr_assert_eq(whole.info.orientation, orientation);
    cr_assert(whole.width == part.width && whole.height == part.height &&
              whole.info.width == part.info.width &&
              whole.info.orientation == part.info.orientation);
    expect_columns(&whole, &part, p, orientation, name);
    cr_assert_eq(transform_bytes(parts->transform, &whole, p, expected, &err), STATUS_OK);
    cr_assert_eq(transform_bytes(parts->transform, &part, p, got, &err), STATUS_OK);
    cr_assert(memcmp(expected, got, bytes) == 0, "%s: other pixels", name);
    parts->left_out += memcmp(whole.pixels, part.pixels, part.stride * part.height) != 0;
    free(expected);
    free(got);
}

static void compare_all(struct parts *parts, enum kind kind, int h, int v, int width, int height)
{
    static const struct preprocess_case {
        int side, width, height;
        enum resample filter;
        double first; /* share of the short side that is cropped before the resize */
    } cases[] = {{64, 56, 56, RESAMPLE_BILINEAR, 0}, {40, 17, 33, RESAMPLE_LANCZOS, 0},
                 {0, 31, 29, RESAMPLE_BILINEAR, 0},  {96, 20, 96, RESAMPLE_NEAREST, 0},
                 {200, 30, 50, RESAMPLE_BICUBIC, 0}, {33, 80, 80, RESAMPLE_BOX, 0},
                 {40, 33, 40, RESAMPLE_BICUBIC, .8}, {40, 20, 40, RESAMPLE_LINEAR, .3}};
    for (int orientation = 1; orientation <= 8; orientation++) {
        struct file file = make(kind, h, v, width, height, orientation);
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            struct preprocess p =
                crop(cases[i].side, cases[i].width, cases[i].height, cases[i].filter);
            p.first_width = p.first_height = cases[i].first;
            char name[128];
            snprintf(name, sizeof name, "kind %d, %dx%d, %d x %d, turn %d, case %zu", (int)kind, h,
                     v, width, height, orientation, i);
            compare(parts, &file, &p, orientation, name);
        }
        free(file.data);
    }
}

Test(decode_part, reads_what_the_whole_has)
{
    static const int samplings[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}, {1, 4}};
    static const int sizes[][2] = {{203, 97},  {97, 203}, {160, 64},
                                   {129, 128}, {66, 61},  {17, 400}};
    struct parts parts = {.whole = image_decoder_create(NULL),
                          .part = image_decoder_create(NULL),
                          .transform = transform_create(),
                          .white = make(GRAY, 1, 1, 401, 401, 1)};
    int all = 0;
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        for (size_t i = 0; i < COUNT_OF(samplings); i++, all++)
            compare_all(&parts, COLOR, samplings[i][0], samplings[i][1], sizes[s][0], sizes[s][1]);
        for (enum kind kind = GRAY; kind < KINDS; kind++, all++)
            compare_all(&parts, kind, 2, 2, sizes[s][0], sizes[s][1]);
    }
    cr_assert_gt(parts.left_out, all * 4, "columns of %d pictures alone were left out",
                 parts.left_out);
    free(parts.white.data);
    image_decoder_free(parts.whole);
    image_decoder_free(parts.part);
    transform_free(parts.transform);
}

/* What is damaged where nobody looks is refused all the same. */
Test(decode_part, refuses_what_the_whole_refuses)
{
    static const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    const struct preprocess p = crop(64, 56, 56, RESAMPLE_BILINEAR);
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct file file = make(COLOR, 2, 2, 300, 100, 1);
    struct image image;
    struct error whole = {0}, part = {0};
    for (unsigned long size = 0; size < file.size; size += 13) {
        const enum status expected =
            image_decode(decoder, file.data, size, &limits, NULL, false, &image, &whole);
        cr_assert_neq(expected, STATUS_OK);
        cr_assert_eq(image_decode(decoder, file.data, size, &limits, &p, false, &image, &part),
                     expected, "%lu bytes: %s", size, part.message);
        cr_assert_str_eq(part.message, whole.message);
    }
    free(file.data);
    image_decoder_free(decoder);
}
