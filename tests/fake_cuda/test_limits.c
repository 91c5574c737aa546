/* The kernels at the ends of what they are asked: grids as large as a device takes and larger,
 * tensors of nothing, of one number, of odd numbers of channels. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/graph/graph.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/kernel_cases.h"
#include "tests/unit/random_graph.h"

TestSuite(limits, .init = open_stream, .fini = close_stream, .timeout = 120);

enum { MANY = 1030 }; /* more than the stand-in has blocks along y, and along z */

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

/* ---- the stand-in ---- */

Test(limits, what_cuda_does_not_start_is_refused)
{
    static const struct {
        unsigned grid[3], block[3];
        size_t shared;
        cudaError_t result;
    } table[] = {
        {{1, 1, 1}, {1, 1, 1}, 0, cudaSuccess},
        {{1, 1, 1}, {1024, 1, 1}, 0, cudaSuccess},
        {{1, 1, 1}, {8, 2, 64}, (size_t)227 << 10, cudaSuccess},
        {{0, 1, 1}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 0, 1}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 0}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1u << 31, 1, 1}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 65536, 1}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 65536}, {32, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 1}, {0, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 1}, {1025, 1, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 1}, {32, 33, 1}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 1}, {1, 1, 65}, 0, cudaErrorInvalidConfiguration},
        {{1, 1, 1}, {32, 1, 1}, ((size_t)227 << 10) + 1, cudaErrorInvalidValue},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        cr_assert_eq(fake_cuda_try_launch(table[i].grid, table[i].block, table[i].shared, stream),
                     table[i].result, "launch %zu", i);
    finished("launches of nothing");
}

/* ---- beyond a grid ---- */

static float *random_floats(struct guarded *block, size_t count, uint32_t *seed)
{
    *block = guarded_create(count * sizeof(float));
    float *numbers = (float *)block->data;
    for (size_t i = 0; i < count; i++)
        numbers[i] = random_unit(seed);
    return numbers;
}

/* y = x weights' of one pixel, or of each group's one pixel. */
static void try_simt(uint32_t seed, struct cuda_conv c)
{
    struct guarded x_block, w_block, y_block;
    const int cg = c.c / c.groups, mg = c.m / c.groups;
    const float *x = random_floats(&x_block, (size_t)(c.n * c.c), &seed);
    const float *w = random_floats(&w_block, (size_t)(c.m * cg), &seed);
    float *y = random_floats(&y_block, (size_t)(c.n * c.m), &seed);
    const struct cuda_epilogue none = {.y_dtype = DTYPE_F32};
    c.row = cg;
    cuda_conv_simt(stream, DTYPE_F32, x, w, y, &c, &none);
    finished("a convolution on ordinary cores");
    for (int i = 0; i < c.n * c.m; i++) {
        const int n = i / c.m, m = i % c.m;
        double sum = 0;
        for (int k = 0; k < cg; k++)
            sum += (double)x[n * c.c + m / mg * cg + k] * (double)w[m * cg + k];
        cr_assert_float_eq(y[i], sum, 1e-5, "groups %d, m %d, output %d", c.groups, c.m, i);
    }
    guarded_free(&x_block);
    guarded_free(&w_block);
    guarded_free(&y_block);
}

Test(limits, convolutions_of_many_groups_and_channels)
{
    struct cuda_conv c = conv_of_rows(2, 16 * MANY, 2 * MANY);
    c.groups = MANY;
    try_simt(1, c);
    try_simt(2, conv_of_rows(2, 64 * MANY, 3));
    c.m = MANY;
    try_simt(3, c);
}

Test(limits, batches_of_many_images)
{
    enum { PIXELS = 3, ROW = PIXELS * 3 };
    uint32_t seed = 4;
    struct guarded x_block, y_block, table_block, marks_block = guarded_create(MANY);
    float *x = random_floats(&x_block, (size_t)MANY * ROW, &seed);
    float *y = random_floats(&y_block, (size_t)MANY * ROW, &seed);
    const float *table = random_floats(&table_block, 3 * 256, &seed);
    const struct cuda_pixels how = {.rows = MANY, .row = ROW, .channels = 3};
    for (size_t r = 0; r < MANY; r++) {
        marks_block.data[r] = r % 3 == 0;
        for (size_t i = 0; i < ROW && r % 3 == 0; i++)
            ((unsigned char *)(x + r * ROW))[i] = (unsigned char)(r + i * 31);
    }
    cuda_pixels(stream, x, marks_block.data, table, y, &how);
    finished("pixels");
    for (size_t i = 0; i < (size_t)MANY * ROW; i++) {
        const size_t r = i / ROW, e = i % ROW;
        const float expected =
            r % 3 ? x[i] : table[e % 3 * 256 + ((unsigned char *)(x + r * ROW))[e]];
        cr_assert_eq(y[i], expected, "row %zu, number %zu", r, e);
    }
    guarded_free(&x_block);
    guarded_free(&y_block);
    guarded_free(&table_block);
    guarded_free(&marks_block);
}

/* x: groups of planes of rows, with numbers between the rows that are not copied. */
static void try_transpose(int64_t groups, int64_t planes, int64_t rows, int64_t columns)
{
    enum { FIRST = 5, BETWEEN = 3 };
    const int64_t pitch = columns + BETWEEN, plane = rows * pitch;
    const size_t count = (size_t)(groups * planes * rows * columns);
    uint32_t seed = 5;
    struct guarded x_block, y_block;
    const float *x = random_floats(&x_block, (size_t)(FIRST + groups * planes * plane), &seed);
    const float *y = random_floats(&y_block, count, &seed);
    const struct cuda_access_map map = {.rank = 4,
                                        .dims = {groups, planes, columns, rows},
                                        .steps[0] = {planes * plane, plane, 1, pitch},
                                        .offset = FIRST};
    cuda_copy_strided(stream, sizeof *x, x, y_block.data, &map);
    finished("a transpose");
    for (size_t i = 0; i < count; i++) {
        const int64_t r = (int64_t)i % rows, at = (int64_t)i / rows;
        cr_assert_eq(y[i], x[FIRST + at / columns * plane + r * pitch + at % columns],
                     "%d planes, %d rows, %d columns, %zu", (int)planes, (int)rows, (int)columns,
                     i);
    }
    guarded_free(&x_block);
    guarded_free(&y_block);
}

Test(limits, transposes_of_many_planes_and_rows)
{
    try_transpose(1, MANY, 9, 8);
    try_transpose(1, 1, 32 * MANY, 8);
    try_transpose(1, 1, 8, 32 * MANY);
    try_transpose(2, 2, 33, 100);
    try_transpose(2, 3, 64, 8);
    try_transpose(2, 2, 40, 3);
    try_transpose(2, 2, 3, 40);
    try_transpose(1, 1, 1, 1);
}

Test(limits, means_of_many_images)
{
    enum { POSITIONS = 3, CHANNELS = 8 };
    uint32_t seed = 6;
    struct guarded x_block, y_block, bytes = guarded_create((size_t)MANY * POSITIONS * CHANNELS),
                                     means = guarded_create((size_t)MANY * CHANNELS);
    const float *x = random_floats(&x_block, (size_t)MANY * POSITIONS * CHANNELS, &seed);
    const float *y = random_floats(&y_block, (size_t)MANY * CHANNELS, &seed);
    for (size_t i = 0; i < bytes.bytes; i++)
        bytes.data[i] = (unsigned char)random_below(&seed, 256);
    const struct cuda_scales scales = {1, 1, 0, 0};
    cuda_pool_global(stream, DTYPE_F32, x, y_block.data, MANY, POSITIONS, CHANNELS, 0, &scales);
    cuda_pool_global(stream, DTYPE_U8, bytes.data, means.data, MANY, POSITIONS, CHANNELS, 0,
                     &scales);
    finished("means");
    for (size_t i = 0; i < (size_t)MANY * CHANNELS; i++) {
        double sum = 0, sum_of_bytes = 0;
        for (size_t p = 0; p < POSITIONS; p++) {
            const size_t at = (i / CHANNELS * POSITIONS + p) * CHANNELS + i % CHANNELS;
            sum += (double)x[at];
            sum_of_bytes += bytes.data[at];
        }
        cr_assert_float_eq(y[i], sum / POSITIONS, 1e-6);
        cr_assert_leq(fabs(means.data[i] - sum_of_bytes / POSITIONS), 0.51);
    }
    guarded_free(&x_block);
    guarded_free(&y_block);
    guarded_free(&bytes);
    guarded_free(&means);
}

/* Their sum is more than an int holds. */
Test(limits, means_of_many_positions)
{
    const size_t positions = 8600000;
    struct guarded x = guarded_create(positions), y = guarded_create(1); /* all are 255 */
    const struct cuda_scales plain = {1, 1, 0, 0}, halved = {0.5f, 1, 127, 0};
    cuda_pool_global(stream, DTYPE_U8, x.data, y.data, 1, positions, 1, 0, &plain);
    finished("a mean of many");
    cr_assert_eq(y.data[0], 255);
    memset(x.data, 0x80, positions); /* -128 - 127 */
    cuda_pool_global(stream, DTYPE_I8, x.data, y.data, 1, positions, 1, 0, &halved);
    finished("a mean of many");
    cr_assert_leq(abs((int8_t)y.data[0] - -128), 1);
    guarded_free(&x);
    guarded_free(&y);
}

/* ---- nothing, and one ---- */

enum { ROOM = 4096 };

/* Operands that every kernel may take for its own; x is 1 in all dtypes' first numbers. */
struct operands {
    struct guarded x, w, y, z, workspace;
};

static struct operands operands_create(void)
{
    struct operands o = {guarded_create(ROOM), guarded_create(ROOM), guarded_create(ROOM),
                         guarded_create(ROOM), guarded_create(1 << 16)};
    memset(o.x.data, 0, ROOM);
    memset(o.w.data, 0, ROOM);
    return o;
}

static void operands_free(struct operands *o)
{
    guarded_free(&o->x);
    guarded_free(&o->w);
    guarded_free(&o->y);
    guarded_free(&o->z);
    guarded_free(&o->workspace);
}

/* Nothing was written. */
static void expect_nothing(struct operands *o, const char *what)
{
    finished(what);
    for (size_t i = 0; i < ROOM; i++)
        cr_assert(o->y.data[i] == 0xFF && o->z.data[i] == 0xFF, "%s wrote something", what);
}

Test(limits, elements_of_nothing)
{
    struct operands o = operands_create();
    const struct cuda_access_map map = {
        .rank = 2, .dims = {0, 8}, .steps[0] = {8, 1}, .steps[1] = {0, 1}};
    const struct cuda_access_map transposed = {.rank = 2, .dims = {8, 0}, .steps[0] = {1, 8}};
    const float *w = (const float *)o.w.data;
    for (int t = 0; t < 3; t++) {
        const int dtype = (int)dtypes[t];
        const struct cuda_epilogue shift = {.bias = w, .y_dtype = dtype};
        struct cuda_parts parts = {.rows = 4, .pitch = 16, .parts = {{o.x.data, 16, 0, NULL}}};
        cuda_scale_parts(stream, w, o.y.data, &parts, &shift);
        parts.count = 1;
        parts.rows = 0;
        cuda_scale_parts(stream, w, o.y.data, &parts, &shift);
        parts.rows = 4;
        parts.parts[0].width = 0;
        cuda_scale_parts(stream, w, o.y.data, &parts, &shift);
        cuda_apply_epilogue(stream, o.y.data, 0, 3, 3, &shift);
        expect_nothing(&o, "elements");
    }
    for (int size = 1; size <= 8; size *= 2) {
        cuda_copy_strided(stream, size, o.x.data, o.y.data, &map);
        cuda_copy_strided(stream, size, o.x.data, o.y.data, &transposed);
        const struct cuda_pad pad = {.rank = 1, .out = {0}, .in = {0}, .steps = {1}};
        cuda_pad_any(stream, size, o.x.data, o.y.data, &pad);
        struct cuda_tuples tuples = {.map = map,
                                     .depth = 1,
                                     .index_bytes = 8,
                                     .extent = {4},
                                     .step = {1},
                                     .slice = 1,
                                     .listed = 1};
        for (int i = 0; i < 4; i++) {
            tuples.map.dims[0] = i / 2; /* no tuples, or no elements of a slice */
            tuples.slice = (size_t)!tuples.map.dims[0];
            cuda_index_tuples(stream, size, i % 2, o.x.data, o.w.data, o.y.data, &tuples);
        }
        expect_nothing(&o, "picks");
    }
    const void *const numbers[CUDA_OPERANDS] = {o.x.data, o.w.data, o.w.data};
    for (int i = 0; i < 9; i++) {
        const int operands = 1 + i / 3;
        const struct cuda_pointwise n = {.op = operands == 3 ? OP_WHERE : OP_ADD,
                                         .domain = (enum cuda_domain)(i % 3),
                                         .operands = operands,
                                         .dtypes = {DTYPE_F32, DTYPE_F32, DTYPE_F32},
                                         .y_dtype = DTYPE_F32,
                                         .map = {.rank = 1, .steps = {{1}, {1}, {1}}}};
        cuda_compute_pointwise(stream, numbers, o.y.data, &n);
    }
    expect_nothing(&o, "numbers");
    operands_free(&o);
}

Test(limits, rows_and_axes_of_nothing)
{
    struct operands o = operands_create();
    const float *w = (const float *)o.w.data;
    for (int t = 0; t < 3; t++) {
        const int dtype = (int)dtypes[t];
        for (size_t row = 0; row <= 2048; row = row ? row * 16 : 1) {
            const struct cuda_axis axis = {0, row, 1, dtype, 4, CUDA_IN_FLOAT};
            cuda_softmax_axis(stream, o.x.data, o.y.data, &axis, 0);
            cuda_norm_rows(stream, dtype, o.x.data, w, w, o.y.data, 0, row, 1e-5f, 0);
        }
        const struct cuda_axis empty = {3, 0, 1, dtype, 4, CUDA_IN_FLOAT};
        cuda_softmax_axis(stream, o.x.data, o.y.data, &empty, 0);
        cuda_norm_rows(stream, dtype, o.x.data, w, w, o.y.data, 3, 0, 1e-5f, 0);
        const struct cuda_scales scales = {1, 1, 0, 0};
        cuda_pool_global(stream, dtype, o.x.data, o.y.data, 0, 3, 8, true, &scales);
        cuda_pool_global(stream, dtype, o.x.data, o.y.data, 2, 3, 0, false, &scales);
        const struct cuda_pool pool = {.window.n = 0,
                                       .window.h = 2,
                                       .window.w = 2,
                                       .window.c = 8,
                                       .window.oh = 1,
                                       .window.ow = 1,
                                       .window.kh = 2,
                                       .window.kw = 2,
                                       .window.stride_h = 1,
                                       .window.stride_w = 1};
        cuda_pool2d(stream, dtype, o.x.data, o.y.data, &pool);
        const struct cuda_pixels pixels = {.rows = 0, .row = 6, .channels = 3};
        cuda_pixels(stream, o.x.data, o.w.data, w, (float *)(void *)o.y.data, &pixels);
        const struct cuda_groups groups = {.images = 0, .pixels = 4, .channels = 8, .per = 2};
        cuda_normalise_groups(stream, dtype, o.x.data, w, w, o.y.data, &groups, o.workspace.data);
        const struct cuda_resize resize = {.in = {0, 2, 2, 8}, .out = {0, 4, 4, 8}};
        cuda_resize_image(stream, dtype, o.x.data, o.y.data, (const int32_t *)o.w.data, w, &resize);
        const struct cuda_grid_sample sample = {.n = 1, .c = 0, .h = 2, .w = 2, .oh = 2, .ow = 2};
        cuda_sample_grid(stream, dtype, o.x.data, o.w.data, o.y.data, &sample);
        expect_nothing(&o, "rows and images");
    }
    for (int d = 0; d < 3; d++) {
        static const int types[] = {DTYPE_F32, DTYPE_F64, DTYPE_I64};
        struct cuda_axis axis = {.outer = 0,
                                 .extent = 100,
                                 .inner = 1,
                                 .dtype = types[d],
                                 .domain = (enum cuda_domain)d};
        const struct cuda_reduce_axes fold = {
            .domain = axis.domain,
            .dtype = axis.dtype,
            .kept = {.rank = 1},
            .reduced = {.rank = 1, .dims = {100}, .steps[0] = {1}},
            .each = 100};
        cuda_fold_axes(stream, o.x.data, o.y.data, &fold);
        cuda_find_extreme(stream, o.x.data, (int64_t *)(void *)o.y.data, &axis, 0, 0);
        cuda_top_k(stream, o.x.data, o.y.data, (int64_t *)(void *)o.z.data, &axis, 2, 0,
                   o.workspace.data);
        if (d == 0)
            cuda_softmax_axis(stream, o.x.data, o.y.data, &axis, 1);
        expect_nothing(&o, "axes");
    }
    operands_free(&o);
}

Test(limits, products_of_nothing)
{
    struct operands o = operands_create();
    const struct cuda_epilogue none = {.y_dtype = DTYPE_F32};
    struct cuda_conv_candidate candidate;
    for (int e = 0; e < 3; e++) { /* no image, no places, no outputs */
        struct cuda_conv c = conv_of_rows(1, 8, 8);
        *(e == 0 ? &c.n : e == 1 ? &c.oh : &c.m) = 0;
        cr_assert_eq(cuda_conv_candidates(DTYPE_F16, &c, (size_t)227 << 10, 132, &candidate, 1), 0);
        cr_assert_eq(cuda_conv_candidates(DTYPE_I8, &c, (size_t)227 << 10, 132, &candidate, 1), 0);
        cuda_conv_simt(stream, DTYPE_F32, o.x.data, o.w.data, o.y.data, &c, &none);
        cuda_conv_direct(stream, DTYPE_F16, o.x.data, o.w.data, o.y.data, &c, &none);
        if (e < 2) {
            struct cuda_conv d = c;
            d.groups = 8;
            cuda_conv_depthwise(stream, DTYPE_F32, o.x.data, o.w.data, o.y.data, &d, &none);
            cuda_conv_transposed(stream, DTYPE_F32, o.x.data, o.w.data, o.y.data, &c, &none);
        }
    }
    expect_nothing(&o, "convolutions");
    /* Nothing goes in, and something comes out: the bias. */
    struct cuda_conv c = conv_of_rows(2, 3, 0);
    float bias[3] = {1, 2, 3};
    memcpy(o.w.data, bias, sizeof bias);
    const struct cuda_epilogue more = {.bias = (const float *)o.w.data, .y_dtype = DTYPE_F32};
    cr_assert_eq(cuda_conv_candidates(DTYPE_F16, &c, (size_t)227 << 10, 132, &candidate, 1), 0);
    cuda_conv_simt(stream, DTYPE_F32, o.x.data, o.x.data, o.y.data, &c, &more);
    finished("a product of no depth");
    for (int i = 0; i < 6; i++)
        cr_assert_eq(((float *)o.y.data)[i], bias[i % 3]);
    operands_free(&o);
}

Test(limits, attention_of_nothing)
{
    struct operands o = operands_create();
    const struct cuda_matrices rows = {
        .batch = {1, {2}, {64}}, .rows = {1, {2}, {32}}, .column_step = 1};
    struct cuda_attention a = {.batch = 2,
                               .keys = 2,
                               .depth = 32,
                               .width = 32,
                               .q = rows,
                               .k = rows,
                               .v = rows,
                               .y = rows};
    const struct cuda_attention_data data = {
        .q = o.x.data, .k = o.x.data, .v = o.x.data, .y = o.y.data};
    for (int cores = 0; cores < 2; cores++) {
        cr_assert(cuda_attention_takes(&a, cores, (size_t)227 << 10));
        cuda_attend(stream, DTYPE_F16, cores, &data, &a);
    }
    expect_nothing(&o, "attention");
    operands_free(&o);
}

Test(limits, bytes_of_nothing)
{
    struct operands o = operands_create();
    const struct cuda_int8_epilogue e = {
        .y_type = DTYPE_U8, .scales = o.w.data, .x_type = DTYPE_U8, .padding = o.w.data};
    struct cuda_conv conv = conv_of_rows(0, 8, 8);
    cuda_int8_conv_direct(stream, o.x.data, o.w.data, o.y.data, &conv, &e);
    conv.groups = 8;
    cuda_int8_conv_direct(stream, o.x.data, o.w.data, o.y.data, &conv, &e);
    cuda_int8_convert(stream, DTYPE_F32, o.x.data, DTYPE_U8, o.y.data, 0, 1, 0);
    cuda_int8_convert(stream, DTYPE_U8, o.x.data, DTYPE_F32, o.y.data, 0, 1, 0);
    struct cuda_parts parts = {.rows = 4, .pitch = 16, .parts = {{o.x.data, 16, 0, NULL}}};
    cuda_copy_parts(stream, o.y.data, &parts);
    parts.count = 1;
    parts.rows = 0;
    cuda_copy_parts(stream, o.y.data, &parts);
    parts.rows = 4;
    parts.parts[0].width = 0;
    cuda_copy_parts(stream, o.y.data, &parts);
    const struct cuda_pool pool = {.window = {.c = 8, .oh = 1, .ow = 1, .kh = 1, .kw = 1}};
    cuda_pool2d(stream, DTYPE_U8, o.x.data, o.y.data, &pool);
    cuda_pool_global(stream, DTYPE_U8, o.x.data, o.y.data, 0, 4, 8, 0, &pool.scales);
    cuda_pool_global(stream, DTYPE_U8, o.x.data, o.y.data, 4, 4, 0, 0, &pool.scales);
    expect_nothing(&o, "bytes");
    operands_free(&o);
}

/* One number goes in, one comes out, and none is written behind it. */
Test(limits, one_number)
{
    struct operands o = operands_create();
    const float two = 2, half = 0.5f;
    float *y = (float *)o.y.data;
    const float *w = (const float *)o.w.data;
    memcpy(o.x.data, &two, sizeof two);
    memcpy(o.w.data, &half, sizeof half);
    const struct cuda_access_map map = {0};
    const void *const numbers[CUDA_OPERANDS] = {o.x.data, w};
    const struct cuda_pointwise minus = {
        .op = OP_SUB, .operands = 2, .dtypes = {DTYPE_F32, DTYPE_F32}, .y_dtype = DTYPE_F32};
    const struct cuda_epilogue none = {.y_dtype = DTYPE_F32};
    const struct cuda_parts parts = {
        .count = 1, .rows = 1, .pitch = 4, .parts = {{o.x.data, 4, 0, NULL}}};
    const struct cuda_conv c = conv_of_rows(1, 1, 1);
    const struct cuda_axis axis = {
        .outer = 1, .extent = 1, .inner = 1, .dtype = DTYPE_F32, .size = 4};
    const struct cuda_reduce_axes fold = {.dtype = DTYPE_F32, .count = 1, .each = 1};
    const struct cuda_pool pool = {.window.n = 1,
                                   .window.h = 1,
                                   .window.w = 1,
                                   .window.c = 1,
                                   .window.oh = 1,
                                   .window.ow = 1,
                                   .window.kh = 1,
                                   .window.kw = 1,
                                   .window.stride_h = 1,
                                   .window.stride_w = 1};
#define EXPECT(call, number)                                                                       \
    do {                                                                                           \
        memset(o.y.data, 0xFF, ROOM);                                                              \
        call;                                                                                      \
        finished(#call);                                                                           \
        cr_assert_float_eq(y[0], number, 1e-6, #call);                                             \
        for (size_t i = sizeof *y; i < ROOM; i++)                                                  \
            cr_assert_eq(o.y.data[i], 0xFF, #call);                                                \
    } while (0)
    EXPECT(cuda_compute_pointwise(stream, numbers, y, &minus), 1.5);
    EXPECT(cuda_scale_parts(stream, w, y, &parts,
                            &(struct cuda_epilogue){.bias = w, .y_dtype = DTYPE_F32}),
           1.5);
    EXPECT(cuda_copy_strided(stream, 4, o.x.data, y, &map), 2);
    EXPECT(cuda_norm_rows(stream, DTYPE_F32, o.x.data, w, w, y, 1, 1, 1e-5f, 0), 0.5);
    EXPECT(cuda_pool_global(stream, DTYPE_F32, o.x.data, y, 1, 1, 1, false, &pool.scales), 2);
    EXPECT(cuda_pool2d(stream, DTYPE_F32, o.x.data, y, &pool), 2);
    EXPECT(cuda_conv_simt(stream, DTYPE_F32, o.x.data, w, y, &c, &none), 1);
    EXPECT(cuda_conv_direct(stream, DTYPE_F32, o.x.data, w, y, &c, &none), 1);
    EXPECT(cuda_conv_depthwise(stream, DTYPE_F32, o.x.data, w, y, &c, &none), 1);
    EXPECT(cuda_conv_transposed(stream, DTYPE_F32, o.x.data, w, y, &c, &none), 1);
    EXPECT(cuda_fold_axes(stream, o.x.data, y, &fold), 2);
    EXPECT(cuda_softmax_axis(stream, o.x.data, y, &axis, 0), 1);
    EXPECT(
        cuda_top_k(stream, o.x.data, y, (int64_t *)(void *)o.z.data, &axis, 1, 0, o.workspace.data),
        2);
#undef EXPECT
    operands_free(&o);
}
