/* Quantized operators: ties, saturation, zero points, scales that are none. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/base/size.h"
#include "tests/unit/engine/op/one_node.h"

static void run_ok(struct one_node *one)
{
    cr_assert_eq(one_run(one), STATUS_OK, "%s", one->err.message);
}

/* A float, uint8 or int8 scalar operand. */
static void scalar_f(struct one_node *one, size_t i, float value)
{
    one_input(one, i, DTYPE_F32, SHAPE_SCALAR, &value);
}

static void scalar_u8(struct one_node *one, size_t i, uint8_t value)
{
    one_input(one, i, DTYPE_U8, SHAPE_SCALAR, &value);
}

static void scalar_i8(struct one_node *one, size_t i, int8_t value)
{
    one_input(one, i, DTYPE_I8, SHAPE_SCALAR, &value);
}

Test(ops_quantize, ties_go_to_even_before_the_zero_point)
{
    const float x[] = {0.5f, 1.5f, 2.5f, -0.5f, -1.5f, 1000, -1000, NAN, INFINITY, -INFINITY};
    const uint8_t expected[] = {101, 103, 103, 101, 99, 255, 0, 0, 255, 0};
    struct one_node one;
    one_start(&one, OP_QUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(10), x);
    scalar_f(&one, 1, 1);
    scalar_u8(&one, 2, 101);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(10), expected);
    one_end(&one);
}

Test(ops_quantize, a_scale_of_zero_saturates)
{
    const float x[] = {1, -1, 0};
    const int8_t expected[] = {127, -128, -128};
    struct one_node one;
    one_start(&one, OP_QUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(3), x);
    scalar_f(&one, 1, 0);
    scalar_i8(&one, 2, 3);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I8, SHAPE(3), expected);
    one_end(&one);
}

Test(ops_quantize, half_precision_divides_in_half_precision)
{
    /* 3.4997 / 1 is 3.5 in float16, which rounds to 4 */
    const uint16_t x[] = {float_to_half(1.0f)}, scale[] = {float_to_half(0.28575f)};
    struct one_node one;
    one_start(&one, OP_QUANTIZE_LINEAR, 19, 2, 1);
    one_input(&one, 0, DTYPE_F16, SHAPE(1), x);
    one_input(&one, 1, DTYPE_F16, SHAPE_SCALAR, scale);
    run_ok(&one);
    float quotient = half_to_float(float_to_half(1.0f / half_to_float(scale[0])));
    const uint8_t expected[] = {(uint8_t)rintf(quotient)};
    one_equals(&one, 0, DTYPE_U8, SHAPE(1), expected);
    one_end(&one);
}

Test(ops_quantize, extremes_of_int32_do_not_overflow)
{
    const int32_t x[] = {INT32_MIN, INT32_MAX};
    const float expected[] = {-2147483648.0f, 2147483648.0f};
    struct one_node one;
    one_start(&one, OP_DEQUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_I32, SHAPE(2), x);
    scalar_f(&one, 1, 1);
    one_input(&one, 2, DTYPE_I32, SHAPE_SCALAR, (const int32_t[]){0});
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2), expected);
    one_end(&one);
}

Test(ops_quantize, scales_per_axis_and_per_block)
{
    const int8_t x[] = {1, 1, 1, 1, 1, 1};
    const float scales[] = {1, 2, 3, 4, 5, 6};
    const float per_axis[] = {1, 1, 2, 2, 3, 3}, blocked[] = {1, 2, 1, 2, 3, 4};
    struct one_node one;
    one_start(&one, OP_DEQUANTIZE_LINEAR, 13, 2, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(3, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(3), scales);
    one_int(&one, "axis", -2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3, 2), per_axis);
    one_end(&one);
    one_start(&one, OP_DEQUANTIZE_LINEAR, 21, 2, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(3, 2), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(2, 2), scales);
    one_int(&one, "axis", 0);
    one_int(&one, "block_size", 2);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(3, 2), blocked);
    one_end(&one);
}

/* Runs of neighbours that share a scale are converted together; there and back. */
Test(ops_quantize, channels_with_their_own_scale_there_and_back)
{
    enum { CHANNELS = 3, PIXELS = 37, COUNT = 2 * CHANNELS * PIXELS };
    const float scale[CHANNELS] = {0.5f, 0.013f, 7};
    const int8_t zero[CHANNELS] = {0, -7, 100};
    float x[COUNT], back[COUNT];
    int8_t stored[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        size_t c = i / PIXELS % CHANNELS;
        x[i] = scale[c] * ((float)(i * 7919 % 2003) / 6 - 150);
        double value = rint((double)(x[i] / scale[c])) + zero[c];
        stored[i] = (int8_t)fmin(fmax(value, -128), 127);
        back[i] = (float)(stored[i] - zero[c]) * scale[c];
    }
    struct one_node one;
    one_start(&one, OP_QUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_F32, SHAPE(2, CHANNELS, PIXELS), x);
    one_input(&one, 1, DTYPE_F32, SHAPE(CHANNELS), scale);
    one_input(&one, 2, DTYPE_I8, SHAPE(CHANNELS), zero);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I8, SHAPE(2, CHANNELS, PIXELS), stored);
    one_end(&one);
    one_start(&one, OP_DEQUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(2, CHANNELS, PIXELS), stored);
    one_input(&one, 1, DTYPE_F32, SHAPE(CHANNELS), scale);
    one_input(&one, 2, DTYPE_I8, SHAPE(CHANNELS), zero);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, CHANNELS, PIXELS), back);
    one_end(&one);
}

Test(ops_quantize, scales_that_do_not_fit)
{
    static const struct {
        struct shape scale;
        int64_t axis, block;
        int opset;
        enum status status;
        const char *words;
    } cases[] = {
        {{1, {4}}, 0, 0, 13, STATUS_SHAPE, "does not fit"},
        {{2, {3, 2}}, 0, 0, 21, STATUS_SHAPE, "does not fit"},
        {{1, {3}}, 2, 0, 13, STATUS_SHAPE, "out of range"},
        {{1, {3}}, 0, 0, 10, STATUS_UNSUPPORTED, "opset 13"},
        {{2, {3, 2}}, 0, 2, 21, STATUS_SHAPE, "does not fit"},
        {{2, {2, 2}}, 0, -2, 21, STATUS_MODEL, "block_size is -2"},
        {{2, {1, 2}}, 0, INT64_MAX, 21, STATUS_OK, ""},
    };
    const int8_t x[6] = {0};
    const float scales[6] = {1, 1, 1, 1, 1, 1};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct one_node one;
        one_start(&one, OP_DEQUANTIZE_LINEAR, cases[i].opset, 2, 1);
        one_input(&one, 0, DTYPE_I8, SHAPE(3, 2), x);
        one_input(&one, 1, DTYPE_F32, cases[i].scale, scales);
        one_int(&one, "axis", cases[i].axis);
        one_int(&one, "block_size", cases[i].block);
        if (cases[i].status == STATUS_OK)
            run_ok(&one);
        else
            one_fails(&one, cases[i].status, cases[i].words);
        one_end(&one);
    }
}

Test(ops_quantize, zero_points_of_another_type_count_by_value)
{
    const int8_t x[] = {-5, 7};
    const float expected[] = {-5, 7};
    struct one_node one;
    one_start(&one, OP_DEQUANTIZE_LINEAR, 13, 3, 1);
    one_input(&one, 0, DTYPE_I8, SHAPE(2), x);
    scalar_f(&one, 1, 1);
    scalar_u8(&one, 2, 0);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2), expected);
    one_end(&one);
}

Test(ops_quantize, dynamic_ranges_include_zero)
{
    const float x[] = {1, 5}, nothing[] = {0, 0};
    const uint8_t stored[] = {51, 255}, zeros[] = {0, 0}, zero[] = {0};
    const float scale[] = {5.0f / 255}, one_scale[] = {1};
    struct one_node one;
    one_start(&one, OP_DYNAMIC_QUANTIZE_LINEAR, 11, 1, 3);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), x);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(2), stored);
    one_equals(&one, 1, DTYPE_F32, SHAPE_SCALAR, scale);
    one_equals(&one, 2, DTYPE_U8, SHAPE_SCALAR, zero);
    one_end(&one);
    one_start(&one, OP_DYNAMIC_QUANTIZE_LINEAR, 11, 1, 3);
    one_input(&one, 0, DTYPE_F32, SHAPE(2), nothing);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(2), zeros);
    one_equals(&one, 1, DTYPE_F32, SHAPE_SCALAR, one_scale);
    one_end(&one);
}

/* ---- convolutions and products ---- */

static void qlinear_conv(struct one_node *one, const int64_t *pads)
{
    const uint8_t x[] = {10, 10, 10, 10};
    const int8_t w[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    one_start(one, OP_QLINEAR_CONV, 10, 9, 1);
    one_input(one, 0, DTYPE_U8, SHAPE(1, 1, 2, 2), x);
    scalar_f(one, 1, 1);
    scalar_u8(one, 2, 7);
    one_input(one, 3, DTYPE_I8, SHAPE(1, 1, 3, 3), w);
    scalar_f(one, 4, 1);
    scalar_i8(one, 5, 0);
    scalar_f(one, 6, 1);
    scalar_u8(one, 7, 1);
    one_ints(one, "pads", pads, 4);
}

Test(ops_quantize, padding_is_the_zero_point)
{
    /* each window covers the four pixels of 10 - 7 and padding that counts as 0 */
    static const int64_t pads[] = {1, 1, 1, 1};
    const int32_t bias[] = {100};
    const uint8_t expected[] = {113, 113, 113, 113};
    struct one_node one;
    qlinear_conv(&one, pads);
    one_input(&one, 8, DTYPE_I32, SHAPE(1), bias);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(1, 1, 2, 2), expected);
    one_end(&one);
}

Test(ops_quantize, qlinear_conv_refuses_wrong_operands)
{
    static const int64_t pads[] = {1, 1, 1, 1};
    const int32_t bias[] = {1, 2};
    const float scales[] = {1, 2};
    struct one_node one;
    qlinear_conv(&one, pads);
    one_input(&one, 8, DTYPE_I32, SHAPE(2), bias);
    one_fails(&one, STATUS_SHAPE, "expected [1]");
    one_end(&one);
    qlinear_conv(&one, pads);
    one_input(&one, 4, DTYPE_F32, SHAPE(2), scales);
    one_fails(&one, STATUS_SHAPE, "w_scale");
    one_end(&one);
    qlinear_conv(&one, pads);
    one_input(&one, 1, DTYPE_F32, SHAPE(2), scales);
    one_fails(&one, STATUS_SHAPE, "one number");
    one_end(&one);
    qlinear_conv(&one, pads);
    one_input(&one, 8, DTYPE_F32, SHAPE(1), scales);
    one_fails(&one, STATUS_MODEL, "float32");
    one_end(&one);
}

Test(ops_quantize, zero_points_of_rows_and_columns)
{
    const uint8_t a[] = {1, 2, 3, 4}, b[] = {1, 0, 0, 1};
    const uint8_t rows[] = {1, 2}, columns[] = {0, 1};
    /* (a - [[1], [2]]) * (b - [0, 1]) = [[0, 1], [1, 2]] * [[1, -1], [0, 0]] */
    const int32_t expected[] = {0, 0, 1, -1};
    struct one_node one;
    one_start(&one, OP_MATMUL_INTEGER, 10, 4, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(2, 2), a);
    one_input(&one, 1, DTYPE_U8, SHAPE(2, 2), b);
    one_input(&one, 2, DTYPE_U8, SHAPE(2), rows);
    one_input(&one, 3, DTYPE_U8, SHAPE(2), columns);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_I32, SHAPE(2, 2), expected);
    one_end(&one);
    one_start(&one, OP_MATMUL_INTEGER, 10, 4, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(2, 2), a);
    one_input(&one, 1, DTYPE_U8, SHAPE(2, 2), b);
    one_input(&one, 2, DTYPE_U8, SHAPE(3), a);
    one_fails(&one, STATUS_SHAPE, "a_zero_point");
    one_end(&one);
}

/* Weights [2, 18] of 4 bits in blocks of 16, the second of which is not full. */
static void start_nbits(struct one_node *one, const float *a, const uint8_t packed[32],
                        const int64_t sizes[3])
{
    const float scales[] = {0.5f, 2, 1, 0.25f};
    one_start(one, OP_MATMUL_NBITS, 1, 6, 1);
    one_int(one, "K", 18);
    one_int(one, "N", sizes[0]);
    one_int(one, "bits", sizes[1]);
    one_int(one, "block_size", sizes[2]);
    one_input(one, 0, DTYPE_F32, SHAPE(2, 18), a);
    one_input(one, 1, DTYPE_U8, SHAPE(2, 2, 8), packed);
    one_input(one, 2, DTYPE_F32, SHAPE(4), scales);
}

Test(ops_quantize, packed_weights_begin_with_the_lowest_bits)
{
    /* Rows of a choose inputs 1 and 17. */
    const float a[36] = {[1] = 1, [18 + 17] = 1}, bias[] = {100, 200};
    const uint8_t packed[32] = {[0] = 0x5f, [8] = 0x3e, [16] = 0xc1, [24] = 0x90};
    const uint8_t zeros[] = {0x21, 0x43};
    const float middle[] = {(5 - 8) * 0.5f, (12 - 8) * 1, (3 - 8) * 2, (9 - 8) * 0.25f};
    const float shifted[] = {100 + (5 - 1) * 0.5f, 200 + (12 - 3) * 1, 100 + (3 - 2) * 2,
                             200 + (9 - 4) * 0.25f};
    const int64_t right[] = {2, 4, 16}; /* N, bits, block_size */
    struct one_node one;
    start_nbits(&one, a, packed, right);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 2), middle);
    one_end(&one);
    start_nbits(&one, a, packed, right);
    one_input(&one, 3, DTYPE_U8, SHAPE(2), zeros);
    one_input(&one, 5, DTYPE_F32, SHAPE(2), bias);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_F32, SHAPE(2, 2), shifted);
    one_end(&one);
    start_nbits(&one, a, packed, right);
    one_input(&one, 3, DTYPE_U8, SHAPE(4), packed);
    one_fails(&one, STATUS_SHAPE, "zero_points has shape [4], expected 2");
    one_end(&one);
    static const struct {
        int64_t sizes[3];
        enum status status;
        const char *words;
    } wrong[] = {{{3, 4, 16}, STATUS_SHAPE, "B has shape [2, 2, 8], expected 48"},
                 {{2, 3, 16}, STATUS_UNSUPPORTED, "bits is 3"},
                 {{2, 4, 24}, STATUS_SHAPE, "power of two"},
                 {{-1, 4, 16}, STATUS_SHAPE, "N is -1"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        start_nbits(&one, a, packed, wrong[i].sizes);
        one_fails(&one, wrong[i].status, wrong[i].words);
        one_end(&one);
    }
}

/* A sum of numbers of 8 bits through an operator that makes it a stored number. */
static void requantized(enum op op, const float scales[3], int32_t sum, uint8_t expected)
{
    enum { COUNT = 300 };
    const bool is_conv = op == OP_QLINEAR_CONV, is_gemm = op == OP_QGEMM;
    const struct shape x_shape = is_conv ? SHAPE(1, COUNT, 1, 1) : SHAPE(1, COUNT);
    const struct shape y_shape = is_conv ? SHAPE(1, 1, 1, 1) : SHAPE(1, 1);
    const size_t y_terms = is_gemm ? 7 : 6;
    uint8_t x[COUNT];
    int8_t w[COUNT];
    struct one_node one;
    for (int32_t i = 0; i < COUNT; i++) {
        x[i] = (uint8_t)(sum / COUNT + (i < sum % COUNT));
        w[i] = 1;
    }
    one_start(&one, op, is_gemm ? 1 : 10, is_gemm ? 9 : 8, 1);
    one_input(&one, 0, DTYPE_U8, x_shape, x);
    one_input(&one, 3, DTYPE_I8, is_conv ? x_shape : SHAPE(COUNT, 1), w);
    scalar_f(&one, 1, scales[0]);
    scalar_u8(&one, 2, 0);
    scalar_f(&one, 4, scales[1]);
    scalar_i8(&one, 5, 0);
    scalar_f(&one, y_terms, scales[2]);
    scalar_u8(&one, y_terms + 1, 0);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, y_shape, &expected);
    one_end(&one);
}

/* Sums whose real number lies beside a tie, on which its product in float32 lies: what ONNX Runtime
 * 1.31 answers, and what the float64 product would not. */
Test(ops_quantize, products_are_rounded_in_float32)
{
    static const struct {
        float scales[3];
        int32_t sum;
        uint8_t expected;
    } cases[] = {
        {{0.00567471f, 0.011237911f, 0.006047754f}, 9436, 100},    /* 99.4999965 */
        {{0.009204941f, 0.008714615f, 0.0273839f}, 33625, 98},     /* 98.5000009 */
        {{0.0058976426f, 0.008487973f, 0.026042804f}, 55926, 108}, /* 107.4999984 */
        {{0.016752932f, 0.0114162965f, 0.017850602f}, 6580, 70},   /* 70.5000019 */
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        requantized(OP_QLINEAR_CONV, cases[i].scales, cases[i].sum, cases[i].expected);
        requantized(OP_QLINEAR_MATMUL, cases[i].scales, cases[i].sum, cases[i].expected);
        requantized(OP_QGEMM, cases[i].scales, cases[i].sum, cases[i].expected);
    }
}

Test(ops_quantize, products_saturate)
{
    const uint8_t a[] = {255, 255}, b[] = {255, 255};
    const uint8_t expected[] = {255};
    struct one_node one;
    one_start(&one, OP_QLINEAR_MATMUL, 10, 8, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(1, 2), a);
    scalar_f(&one, 1, 1);
    scalar_u8(&one, 2, 0);
    one_input(&one, 3, DTYPE_U8, SHAPE(2, 1), b);
    scalar_f(&one, 4, 1);
    scalar_u8(&one, 5, 0);
    scalar_f(&one, 6, 1e-30f);
    scalar_u8(&one, 7, 0);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(1, 1), expected);
    one_end(&one);
}

/* ---- com.microsoft ---- */

Test(ops_quantize, zero_points_may_be_left_out_in_the_middle)
{
    const uint8_t a[] = {10, 20}, b[] = {1, 2}, expected[] = {21, 42};
    struct one_node one;
    one_start(&one, OP_QLINEAR_ADD, 1, 8, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(2), a);
    scalar_f(&one, 1, 2);
    one_input(&one, 3, DTYPE_U8, SHAPE(2), b);
    scalar_f(&one, 4, 1);
    scalar_f(&one, 6, 1);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(2), expected);
    one_end(&one);
    one_start(&one, OP_QLINEAR_ADD, 1, 8, 1);
    one_input(&one, 0, DTYPE_U8, SHAPE(2), a);
    scalar_f(&one, 1, 2);
    one_fails(&one, STATUS_MODEL, "left out but required");
    one_end(&one);
}

Test(ops_quantize, concat_takes_numbers_that_agree_as_they_are)
{
    const uint8_t a[] = {1, 255}, b[] = {4}, expected[] = {1, 255, 8};
    struct one_node one;
    one_start(&one, OP_QLINEAR_CONCAT, 1, 8, 1);
    scalar_f(&one, 0, 0.1f);
    scalar_u8(&one, 1, 0);
    one_input(&one, 2, DTYPE_U8, SHAPE(2), a);
    scalar_f(&one, 3, 0.1f);
    scalar_u8(&one, 4, 0);
    one_input(&one, 5, DTYPE_U8, SHAPE(1), b);
    scalar_f(&one, 6, 0.2f);
    scalar_u8(&one, 7, 0);
    one_int(&one, "axis", 0);
    run_ok(&one);
    one_equals(&one, 0, DTYPE_U8, SHAPE(3), expected);
    one_end(&one);
}
