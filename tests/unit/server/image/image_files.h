/* Files of tests/data/images for the tests of server/image: bytes as they are, and the PPM that
 * hold what Pillow makes of them (tests/data/make_images.py). */
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

struct file {
    uint8_t *data; /* exactly `size` bytes, so that a sanitizer sees a read past the end */
    size_t size;
};

struct ppm {
    uint32_t width, height;
    uint8_t *pixels;
};

static inline struct file read_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    cr_assert_not_null(stream, "%s: cannot be opened", path);
    cr_assert_eq(fseek(stream, 0, SEEK_END), 0);
    const long size = ftell(stream);
    cr_assert_gt(size, 0, "%s: empty", path);
    rewind(stream);
    struct file file = {.data = malloc((size_t)size), .size = (size_t)size};
    cr_assert_not_null(file.data);
    cr_assert_eq(fread(file.data, 1, file.size, stream), file.size, "%s: cannot be read", path);
    fclose(stream);
    return file;
}

static inline struct file read_image(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", TEST_IMAGES, name);
    return read_file(path);
}

/* Binary PPM as Pillow writes it: "P6\n3 2\n255\n" and the pixels. */
static inline struct ppm read_ppm(const char *path)
{
    struct file file = read_file(path);
    struct ppm ppm = {0};
    char head[32] = {0};
    memcpy(head, file.data, file.size < sizeof head - 1 ? file.size : sizeof head - 1);
    int used = 0;
    cr_assert_eq(sscanf(head, "P6 %u %u 255%n", &ppm.width, &ppm.height, &used), 2, "%s", path);
    const size_t bytes = (size_t)ppm.width * ppm.height * 3;
    cr_assert_eq(file.size, (size_t)used + 1 + bytes, "%s: not the size its head says", path);
    ppm.pixels = malloc(bytes);
    cr_assert_not_null(ppm.pixels);
    memcpy(ppm.pixels, file.data + used + 1, bytes);
    free(file.data);
    return ppm;
}

/* Fails unless no byte differs by more than `greatest` and all by at most `mean` on average. */
static inline void compare_pixels(const char *name, const uint8_t *got, const uint8_t *expected,
                                  size_t bytes, int greatest, double mean)
{
    double sum = 0;
    for (size_t i = 0; i < bytes; i++) {
        const int difference = abs(got[i] - expected[i]);
        cr_assert_leq(difference, greatest, "%s: byte %zu is %d, but must be %d", name, i, got[i],
                      expected[i]);
        sum += difference;
    }
    cr_assert_leq(sum / (double)bytes, mean, "%s: mean difference %g", name, sum / (double)bytes);
}

/* xorshift64*: the same mutations in every run. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Du;
}
