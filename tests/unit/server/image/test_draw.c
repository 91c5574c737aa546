/* Drawing: coverage, clipping, hostile coordinates, letters; and what encoders write is read back.
 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "server/image/encode.h"
#include "server/image/image.h"

enum { WIDTH = 40, HEIGHT = 30 };

static uint8_t pixels[HEIGHT * WIDTH * 3];
static const struct canvas canvas = {pixels, WIDTH *(size_t)3, WIDTH, HEIGHT};
static const struct rgb_colour red = {255, 0, 0};

static int red_at(uint32_t x, uint32_t y)
{
    return pixels[(y * (size_t)WIDTH + x) * 3];
}

static size_t ink(void)
{
    size_t sum = 0;
    for (size_t i = 0; i < sizeof pixels; i += 3)
        sum += pixels[i];
    return sum;
}

Test(draw, lines_are_antialiased)
{
    draw_line(&canvas, 5, 10, 35, 10, 2, red);
    cr_expect_eq(red_at(20, 9), 255);
    cr_expect_eq(red_at(20, 10), 255);
    cr_expect_eq(red_at(20, 8), 0);
    cr_expect_eq(red_at(20, 11), 0);
    memset(pixels, 0, sizeof pixels);
    draw_line(&canvas, 5, 10.5f, 35, 10.5f, 2, red);
    cr_expect_eq(red_at(20, 10), 255);
    cr_expect(abs(red_at(20, 9) - 128) <= 1 && abs(red_at(20, 11) - 128) <= 1, "half covered");
    /* A line's ink is its area, at any angle. */
    for (int i = 0; i < 16; i++) {
        memset(pixels, 0, sizeof pixels);
        const float x = 12 * cosf((float)i), y = 12 * sinf((float)i);
        draw_line(&canvas, 20 - x, 15 - y, 20 + x, 15 + y, 3, red);
        cr_expect_float_eq((double)ink() / 255, 24 * 3 + 3.14159 * 1.5 * 1.5, 3, "angle %d: %g", i,
                           (double)ink() / 255);
    }
}

Test(draw, clips)
{
    draw_line(&canvas, -100, 15, 200, 15, 2, red);
    cr_expect(red_at(0, 15) == 255 && red_at(WIDTH - 1, 15) == 255);
    draw_line(&canvas, 0, 0, 0, 0, 2 * 5, red);
    draw_fill(&canvas, 30, 20, 1e9f, 1e9f, red);
    cr_expect_eq(red_at(WIDTH - 1, HEIGHT - 1), 255);
    cr_expect_eq(red_at(29, HEIGHT - 1), 0);
    draw_column(&canvas, WIDTH, 0, 5, 1, red);
    draw_column(&canvas, 3, HEIGHT - 2, 100, 1, red);
    cr_expect_eq(red_at(3, HEIGHT - 1), 255);
    const size_t before = ink();
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        draw_line(&canvas, odd[i], 0, 5, 5, 1, red);
        draw_line(&canvas, 0, 0, 5, odd[i], 1, red);
        draw_line(&canvas, odd[i], 0, odd[i], 0, 2 * 3, red);
        draw_line(&canvas, 20, 5, 20, 5, 2 * odd[i], red);
        draw_text(&canvas, odd[i], 3, 10, "far away", red);
    }
    draw_fill(&canvas, NAN, NAN, NAN, NAN, red);
    cr_expect_eq(ink(), before);
}

Test(draw, letters)
{
    const float width = draw_text_width("Hello, person 88 %", 14);
    cr_expect(width > 100 && width < 260, "%g", (double)width);
    cr_expect_eq(draw_text_width("", 14), 0);
    cr_expect_eq(draw_text_width("\xc3\xa4", 14), draw_text_width("a", 14), "without accent");
    cr_expect_eq(draw_text_width("\xe7\x8a\xac", 14), draw_text_width("?", 14), "one character");
    cr_expect_gt(draw_text_width("\xff\x80\x01", 14), 0);
    for (char c = '!'; c <= '~'; c++) {
        memset(pixels, 0, sizeof pixels);
        draw_text(&canvas, 5, 5, 18, (const char[]){c, '\0'}, red);
        cr_expect_gt(ink(), 255 * 3, "'%c' has ink", c);
    }
    memset(pixels, 0, sizeof pixels);
    draw_text(&canvas, 5, 5, 18, "H", red);
    cr_expect_eq(red_at(20, 2) + red_at(20, 25), 0, "capitals are 18 pixels high");
}

Test(draw, colours_of_classes)
{
    for (uint32_t i = 0; i < 400; i++) {
        const struct rgb_colour a = draw_colour(i), b = draw_colour(i + 1);
        const int apart = abs(a.red - b.red) + abs(a.green - b.green) + abs(a.blue - b.blue);
        cr_expect_gt(apart, 60, "class %u and the next one", i);
        cr_expect_eq(memcmp(&a, &(struct rgb_colour){0}, sizeof a) == 0, 0);
    }
    (void)draw_colour(UINT32_MAX);
}

static struct image read_back(struct image_decoder *decoder, const uint8_t *bytes, size_t size)
{
    const struct image_limits limits = IMAGE_LIMITS_DEFAULT;
    struct image image;
    struct error err;
    cr_assert_eq(image_decode(decoder, bytes, size, &limits, NULL, false, &image, &err), STATUS_OK,
                 "%s", err.message);
    return image;
}

Test(encode, pictures_are_read_back)
{
    struct image_decoder *decoder = image_decoder_create(NULL);
    struct error err;
    uint8_t *bytes;
    size_t size;
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)(i * 7 / 3);
    cr_assert_eq(image_encode_png(PNG_KIND_RGB8, pixels, WIDTH, HEIGHT, &bytes, &size, &err),
                 STATUS_OK, "%s", err.message);
    struct image image = read_back(decoder, bytes, size);
    cr_expect(image.width == WIDTH && image.height == HEIGHT);
    cr_expect_arr_eq(image.pixels, pixels, sizeof pixels);
    cr_expect_eq(image_pixels(decoder), image.pixels);
    free(bytes);
    static uint8_t bits[HEIGHT * WIDTH];
    for (size_t i = 0; i < sizeof bits; i++)
        bits[i] = i % 3 == 0;
    cr_assert_eq(image_encode_png(PNG_KIND_GREY1, bits, WIDTH, HEIGHT, &bytes, &size, &err),
                 STATUS_OK);
    image = read_back(decoder, bytes, size);
    for (size_t i = 0; i < sizeof bits; i++)
        cr_expect_eq(image.pixels[3 * i], bits[i] * 255);
    free(bytes);
    memset(pixels, 90, sizeof pixels);
    cr_assert_eq(image_encode_jpeg(&canvas, &bytes, &size, &err), STATUS_OK, "%s", err.message);
    image = read_back(decoder, bytes, size);
    cr_expect(image.width == WIDTH && image.height == HEIGHT);
    cr_expect(abs(image.pixels[300] - 90) <= 1);
    free(bytes);
    const struct canvas wide = {pixels, 0, 70000, 1};
    cr_expect_eq(image_encode_jpeg(&wide, &bytes, &size, &err), STATUS_TOO_LARGE);
    image_decoder_free(decoder);
}

Test(encode, failure_returns_no_picture)
{
    struct error err;
    uint8_t *bytes = NULL; /* some callers free() it, also after a failure */
    size_t size;
    cr_expect_eq(image_encode_png(PNG_KIND_RGB8, pixels, 0, HEIGHT, &bytes, &size, &err),
                 STATUS_INTERNAL);
    cr_expect_null(bytes);
}
