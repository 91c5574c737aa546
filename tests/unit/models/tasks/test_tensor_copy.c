/* server/schedule: rows of raw-tensor requests into a batch, in every dtype and layout that a file
 * may declare for an image. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/tasks/tensor_copy.h"

enum { HEIGHT = 23, WIDTH = 37, PIXELS = HEIGHT * WIDTH }; /* more than once 256, and a rest */

static const enum dtype declared[] = {DTYPE_F32, DTYPE_F64, DTYPE_F16, DTYPE_BF16, DTYPE_U8};

/* Number i, of which every dtype holds its own rounding: returned as the float that is in it. */
static float store(enum dtype dtype, void *at, size_t i)
{
    const float x = (float)(i * 7 % 250) + (dtype == DTYPE_U8 ? 0 : 0.3f);
    const double wide = (double)x;
    const uint16_t half = dtype == DTYPE_F16 ? float_to_half(x) : float_to_bfloat16(x);
    const uint8_t byte = (uint8_t)x;
    switch (dtype) {
    case DTYPE_F64:
        memcpy(at, &wide, sizeof wide);
        return x;
    case DTYPE_F16:
        memcpy(at, &half, sizeof half);
        return half_to_float(half);
    case DTYPE_BF16:
        memcpy(at, &half, sizeof half);
        return bfloat16_to_float(half);
    case DTYPE_U8:
        memcpy(at, &byte, sizeof byte);
        return (float)byte;
    default:
        memcpy(at, &x, sizeof x);
        return x;
    }
}

static void check(size_t channels, bool is_last, enum dtype dtype)
{
    enum { GUARD = 16, MARK = 0x5A, OFF = 1 };
    const size_t count = PIXELS * channels, bytes = count * dtype_size(dtype);
    struct served_tensor input = {"image", dtype, SHAPE(1, (int64_t)channels, HEIGHT, WIDTH), count,
                                  bytes};
    if (is_last)
        input.shape = SHAPE(1, HEIGHT, WIDTH, (int64_t)channels);
    char *src = malloc(bytes + OFF); /* off by one byte: a body has no alignment */
    const size_t written = count * sizeof(float);
    float *expected = malloc(written);
    uint8_t *dst = malloc(written + GUARD);
    for (size_t p = 0; p < PIXELS; p++)
        for (size_t c = 0; c < channels; c++) {
            const size_t at = is_last ? p * channels + c : c * PIXELS + p;
            expected[p * channels + c] = store(dtype, src + OFF + at * dtype_size(dtype), at);
        }
    memset(dst, MARK, written + GUARD);
    tensor_copy_in(&input, true, is_last, src + OFF, dst);
    cr_assert(memcmp(dst, expected, written) == 0, "%zu channels, last %d, %s", channels, is_last,
              dtype_name(dtype));
    for (size_t i = 0; i < GUARD; i++)
        cr_assert_eq(dst[written + i], MARK, "wrote outside its slot");
    free(src);
    free(expected);
    free(dst);
}

Test(rows, become_what_the_session_reads)
{
    for (size_t channels = 1; channels <= 3; channels += 2)
        for (int is_last = 0; is_last < 2; is_last++)
            for (size_t d = 0; d < COUNT_OF(declared); d++)
                check(channels, is_last, declared[d]);
}

Test(rows, other_inputs_stay_as_they_are)
{
    static const int64_t numbers[3] = {1, -5, INT64_MAX};
    struct served_tensor input = {"ids", DTYPE_I64, SHAPE(1, 3), 3, sizeof numbers};
    int64_t row[3];
    tensor_copy_in(&input, false, false, numbers, row);
    cr_assert(memcmp(row, numbers, sizeof row) == 0);
}
