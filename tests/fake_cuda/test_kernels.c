/* The kernels of engine/cuda, one by one, on the stand-in: random shapes with every candidate,
 * against plain loops in float64 over the very numbers that the kernel reads. Outputs hold NaN
 * beforehand, and are watched for what is written beyond them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/graph/graph.h"
#include "tests/fake_cuda/kernel_cases.h"
#include "tests/unit/random_graph.h"

TestSuite(kernels, .init = open_stream, .fini = close_stream, .timeout = 240);

/* ---- numbers of a dtype ---- */

static double number(const void *data, enum dtype dtype, size_t i)
{
    if (dtype == DTYPE_F32)
        return (double)((const float *)data)[i];
    uint16_t bits = ((const uint16_t *)data)[i];
    return (double)(dtype == DTYPE_F16 ? half_to_float(bits) : bfloat16_to_float(bits));
}

static void put(void *data, enum dtype dtype, size_t i, float x)
{
    if (dtype == DTYPE_F32)
        ((float *)data)[i] = x;
    else
        ((uint16_t *)data)[i] = dtype == DTYPE_F16 ? float_to_half(x) : float_to_bfloat16(x);
}

/* `count` numbers in device memory; random ones of [-1, 1], or NaN. */
struct array {
    struct guarded block;
    void *data;
    enum dtype dtype;
    size_t count;
};

static struct array make_array(enum dtype dtype, size_t count, uint32_t *seed)
{
    struct array array = {guarded_create(count * dtype_size(dtype)), NULL, dtype, count};
    array.data = array.block.data;
    for (size_t i = 0; seed && i < count; i++)
        put(array.data, dtype, i, random_unit(seed));
    return array;
}

static void free_array(struct array *array)
{
    guarded_free(&array->block);
}

static double step_of(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 0x1p-22 : dtype == DTYPE_F16 ? 0x1p-10 : 0x1p-7;
}

static double activated(double x, const struct cuda_epilogue *e)
{
    switch ((enum activation)e->activation) {
    case ACTIVATION_RELU:
        return fmax(x, 0);
    case ACTIVATION_SILU:
        return x / (1 + exp(-(double)e->alpha * x));
    case ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x * M_SQRT1_2));
    case ACTIVATION_CLIP:
        return fmin(fmax(x, (double)e->alpha), (double)e->beta);
    case ACTIVATION_HARD_SWISH:
        return x * fmin(fmax(x / 6 + 0.5, 0), 1);
    default:
        return x;
    }
}

static int pick_activation(uint32_t *seed)
{
    static const enum activation all[] = {ACTIVATION_NONE, ACTIVATION_RELU, ACTIVATION_SILU,
                                          ACTIVATION_GELU, ACTIVATION_CLIP, ACTIVATION_HARD_SWISH};
    return (int)all[random_below(seed, 6)];
}

/* ---- convolutions ---- */

struct conv_case {
    struct cuda_conv conv;
    struct cuda_epilogue epilogue;
    struct array x, weights, y, bias, residual, workspace;
    double *expected;
    bool in_place, is_tf32;
};

/* An operand's number, as TF32 where the kernel rounds it to that. */
static double operand(const struct conv_case *t, const struct array *array, size_t i)
{
    const double x = number(array->data, array->dtype, i);
    int exponent;
    if (!t->is_tf32)
        return x;
    const double fraction = frexp(x, &exponent);
    return ldexp(round(ldexp(fraction, 11)), exponent - 11);
}

/* Where weight k = (tap, channel) of output channel m is: rows, or [kh, kw, c] of a depthwise one.
 */
static size_t weight_at(const struct cuda_conv *c, bool depthwise, int m, int tap, int channel)
{
    if (depthwise)
        return (size_t)tap * (size_t)c->c + (size_t)m;
    return (size_t)m * (size_t)c->row + (size_t)(tap * (c->c / c->groups) + channel);
}

static double conv_at(const struct conv_case *t, bool depthwise, int n, int oh, int ow, int m)
{
    const struct cuda_conv *c = &t->conv;
    const int cg = c->c / c->groups, group = m / (c->m / c->groups);
    double sum = 0;
    for (int tap = 0; tap < c->kh * c->kw; tap++) {
        int h = oh * c->stride_h - c->pad_h + tap / c->kw * c->dilation_h;
        int w = ow * c->stride_w - c->pad_w + tap % c->kw * c->dilation_w;
        if (h < 0 || h >= c->h || w < 0 || w >= c->w)
            continue;
        size_t at = ((size_t)(n * c->h + h) * (size_t)c->w + (size_t)w) * (size_t)c->c;
        for (int k = 0; k < cg; k++)
            sum += operand(t, &t->x, at + (size_t)(group * cg + k)) *
                   operand(t, &t->weights, weight_at(c, depthwise, m, tap, k));
    }
    return sum;
}

enum conv_kind { ORDINARY, DEPTHWISE, ON_TENSOR_CORES };

static struct conv_case make_conv_case(uint32_t *seed, struct cuda_conv conv, enum conv_kind kind,
                                       enum dtype dtype, enum dtype y_dtype)
{
    struct conv_case t = {.conv = conv,
                          .in_place = random_below(seed, 2),
                          .is_tf32 = kind == ON_TENSOR_CORES && dtype == DTYPE_F32};
    const bool depthwise = kind == DEPTHWISE;
    const size_t outputs = (size_t)(conv.n * conv.oh * conv.ow * conv.m);
    t.x = make_array(dtype, (size_t)(conv.n * conv.h * conv.w * conv.c), seed);
    t.weights = make_array(
        dtype, depthwise ? (size_t)(conv.kh * conv.kw * conv.c) : (size_t)conv.m * (size_t)conv.row,
        seed);
    t.y = make_array(y_dtype, outputs, NULL);
    t.bias = make_array(DTYPE_F32, (size_t)conv.m, seed);
    t.residual = make_array(y_dtype, outputs, seed);
    t.workspace = make_array(DTYPE_F32, outputs * 64, NULL);
    t.epilogue = (struct cuda_epilogue){.activation = pick_activation(seed),
                                        .alpha = -0.5f,
                                        .beta = 0.75f,
                                        .y_dtype = (int)y_dtype};
    if (t.epilogue.activation == ACTIVATION_SILU)
        t.epilogue.alpha = 1.25f;
    if (random_below(seed, 3))
        t.epilogue.bias = t.bias.data;
    if (random_below(seed, 2))
        t.epilogue.residual = t.in_place ? t.y.data : t.residual.data;
    t.expected = malloc(outputs * sizeof *t.expected);
    for (size_t i = 0; i < outputs; i++) {
        int m = (int)(i % (size_t)conv.m), p = (int)(i / (size_t)conv.m);
        double sum =
            conv_at(&t, depthwise, p / (conv.oh * conv.ow), p / conv.ow % conv.oh, p % conv.ow, m);
        if (t.epilogue.bias)
            sum += number(t.bias.data, DTYPE_F32, (size_t)m);
        if (t.epilogue.residual)
            sum += number(t.residual.data, y_dtype, i);
        t.expected[i] = activated(sum, &t.epilogue);
    }
    return t;
}

/* y as the kernel finds it: NaN, or the residual that it overwrites. */
static void prepare_y(struct conv_case *t)
{
    size_t bytes = t->y.count * dtype_size(t->y.dtype);
    memset(t->y.data, 0xFF, bytes);
    if (t->epilogue.residual && t->in_place)
        memcpy(t->y.data, t->residual.data, bytes);
}

static void check_conv(struct conv_case *t, const char *what)
{
    const struct cuda_conv *c = &t->conv;
    finished(what);
    const double depth = c->kh * c->kw * (c->c / c->groups);
    for (size_t i = 0; i < t->y.count; i++) {
        double got = number(t->y.data, t->y.dtype, i), expected = t->expected[i];
        double bound = step_of(t->y.dtype) * (fabs(expected) + 0.1) + 1e-6 * (depth + 8);
        cr_assert(fabs(got - expected) <= bound,
                  "%s: [%d, %d, %d, %d] window %d x %d, groups %d, m %d, output %zu: %g, not %g",
                  what, c->n, c->h, c->w, c->c, c->kh, c->kw, c->groups, c->m, i, got, expected);
    }
}

static void free_conv_case(struct conv_case *t)
{
    free_array(&t->x);
    free_array(&t->weights);
    free_array(&t->y);
    free_array(&t->bias);
    free_array(&t->residual);
    free_array(&t->workspace);
    free(t->expected);
}

/* Every tile, alone and with its sum divided. */
static void try_tensor(uint32_t seed, struct cuda_conv conv, enum dtype dtype, enum dtype y_dtype)
{
    enum { MOST = 64 };
    struct cuda_conv_candidate candidates[MOST];
    conv.row = (conv.row + 7) / 8 * 8;
    struct conv_case t = make_conv_case(&seed, conv, ON_TENSOR_CORES, dtype, y_dtype);
    int count = cuda_conv_candidates((int)dtype, &conv, (size_t)227 << 10, 16, candidates, MOST);
    cr_assert_gt(count, 0);
    for (int i = 0; i < count; i++) {
        char what[64];
        snprintf(what, sizeof what, "tile %d, splits %d, seed %u", candidates[i].tile,
                 candidates[i].splits, seed);
        cr_assert_leq(candidates[i].workspace, t.workspace.count * 4, "%s", what);
        prepare_y(&t);
        memset(t.workspace.data, 0xFF, t.workspace.count * 4);
        cuda_conv_tensor(stream, (int)dtype, t.x.data, t.weights.data, t.y.data, &conv, &t.epilogue,
                         &candidates[i], t.workspace.data);
        check_conv(&t, what);
    }
    free_conv_case(&t);
}

Test(kernels, convolutions_on_tensor_cores)
{
    static const int channels[][2] = {{8, 70}, {24, 8},  {64, 130}, {40, 33}, {4, 64},
                                      {12, 9}, {2, 128}, {58, 24},  {72, 300}};
    uint32_t seed = 11;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        struct cuda_conv c = random_conv(&seed, channels[i][0], channels[i][1], 1, 3);
        try_tensor(seed, c, i % 2 ? DTYPE_F16 : DTYPE_BF16,
                   i % 4 == 3 ? DTYPE_F32
                   : i % 2    ? DTYPE_F16
                              : DTYPE_BF16);
    }
}

Test(kernels, grouped_convolutions_on_tensor_cores)
{
    static const int channels[][3] = {{8, 16, 3}, {16, 8, 2}, {4, 12, 3}, {32, 32, 2}};
    uint32_t seed = 23;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        try_tensor(seed, random_conv(&seed, channels[i][0], channels[i][1], channels[i][2], 3),
                   DTYPE_F16, DTYPE_F16);
}

/* Operands of float32 are rounded to the nearest TF32; channels may be odd. */
Test(kernels, float32_on_tensor_cores)
{
    static const int channels[][3] = {{8, 70, 1}, {3, 40, 1}, {6, 24, 1}, {32, 33, 1}, {7, 9, 2}};
    uint32_t seed = 31;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        try_tensor(seed, random_conv(&seed, channels[i][0], channels[i][1], channels[i][2], 3),
                   DTYPE_F32, DTYPE_F32);
    try_tensor(seed, conv_of_rows(70, 40, 200), DTYPE_F32, DTYPE_F32);
}

/* Places in an image are 16 bits there: of a window far behind it, too, as a file's pads may say.
 */
Test(kernels, tensor_cores_leave_windows_far_behind_the_image)
{
    struct cuda_conv_candidate candidate;
    struct cuda_conv c = conv_of_rows(1, 32, 8);
    c.h = c.w = c.oh = c.ow = 8;
    cr_assert_eq(cuda_conv_candidates(DTYPE_F16, &c, (size_t)227 << 10, 16, &candidate, 1), 1);
    c.ow = 65544; /* pads of 65536 on the right: the window at 65536 is not the one at 0 */
    cr_assert_eq(cuda_conv_candidates(DTYPE_F16, &c, (size_t)227 << 10, 16, &candidate, 1), 0);
    c.ow = 8;
    c.oh = 65544;
    cr_assert_eq(cuda_conv_candidates(DTYPE_F16, &c, (size_t)227 << 10, 16, &candidate, 1), 0);
}

/* A matrix product is a convolution of one pixel; deep sums are divided. */
Test(kernels, products_on_tensor_cores)
{
    uint32_t seed = 5;
    static const int sizes[][3] = {{1, 200, 512}, {197, 96, 64}, {64, 64, 512}, {130, 72, 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct cuda_conv c = conv_of_rows(sizes[i][0], sizes[i][1], sizes[i][2]);
        try_tensor(seed + (uint32_t)i, c, DTYPE_F16, DTYPE_F16);
    }
}

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

Test(kernels, convolutions_on_ordinary_cores)
{
    uint32_t seed = 31;
    for (int i = 0; i < 16; i++) {
        enum dtype dtype = dtypes[i % 3], y_dtype = i % 5 ? dtype : DTYPE_F32;
        /* On cores directly: groups of 1 to 8 channels. */
        struct cuda_conv c = random_conv(&seed, i % 2 ? 1 + i / 2 : between(&seed, 1, 9),
                                         between(&seed, 1, 70), between(&seed, 1, 3), 3);
        struct conv_case t = make_conv_case(&seed, c, ORDINARY, dtype, y_dtype);
        prepare_y(&t);
        (i % 2 ? cuda_conv_direct : cuda_conv_simt)(stream, (int)dtype, t.x.data, t.weights.data,
                                                    t.y.data, &c, &t.epilogue);
        check_conv(&t, i % 2 ? "direct" : "simt");
        free_conv_case(&t);
    }
}

Test(kernels, depthwise_convolutions)
{
    uint32_t seed = 77;
    for (int i = 0; i < 40; i++) {
        const int channels = i % 4 == 3 ? between(&seed, 1, 20) : between(&seed, 1, 4) * 8;
        enum dtype dtype = dtypes[i % 3], y_dtype = i % 7 ? dtype : DTYPE_F32;
        struct cuda_conv c = random_conv(&seed, 1, 1, channels, 7);
        if (i % 2) { /* those with kernels of their own */
            c.kw = c.kh = 3 + i / 2 % 3 * 2;
            c.stride_w = c.stride_h;
            c.dilation_h = c.dilation_w = 1;
            c.h = between(&seed, c.kh, 17);
            c.w = between(&seed, c.kw, 17);
            c.oh = window_extent(c.h, c.kh, 1, c.stride_h, 2 * c.pad_h);
            c.ow = window_extent(c.w, c.kw, 1, c.stride_w, 2 * c.pad_w);
        }
        struct conv_case t = make_conv_case(&seed, c, DEPTHWISE, dtype, y_dtype);
        prepare_y(&t);
        cuda_conv_depthwise(stream, (int)dtype, t.x.data, t.weights.data, t.y.data, &c,
                            &t.epilogue);
        check_conv(&t, "depthwise");
        free_conv_case(&t);
    }
}

/* ---- rows, images, elements ---- */

/* Every number of y against expected[i]. */
static void check(struct array *y, const double *expected, double slack, const char *what)
{
    finished(what);
    for (size_t i = 0; i < y->count; i++) {
        double got = number(y->data, y->dtype, i);
        double bound = step_of(y->dtype) * (fabs(expected[i]) + 0.01) + slack;
        cr_assert(fabs(got - expected[i]) <= bound, "%s, output %zu: %g, not %g", what, i, got,
                  expected[i]);
    }
}

static void expect_softmax(const struct array *x, size_t row, double *ret)
{
    for (size_t first = 0; first < x->count; first += row) {
        double sum = 0;
        for (size_t i = first; i < first + row; i++)
            sum += ret[i] = exp(number(x->data, x->dtype, i));
        for (size_t i = first; i < first + row; i++)
            ret[i] /= sum;
    }
}

/* is_rms: RMSNormalization. */
static void expect_layer_norm(const struct array *x, size_t row, const float *scale,
                              const float *bias, bool is_rms, double *ret)
{
    for (size_t first = 0; first < x->count; first += row) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < row && !is_rms; i++)
            mean += number(x->data, x->dtype, first + i) / (double)row;
        for (size_t i = 0; i < row; i++)
            variance += pow(number(x->data, x->dtype, first + i) - mean, 2) / (double)row;
        for (size_t i = 0; i < row; i++)
            ret[first + i] = (number(x->data, x->dtype, first + i) - mean) / sqrt(variance + 1e-5) *
                                 (double)scale[i] +
                             (bias ? (double)bias[i] : 0);
    }
}

Test(kernels, rows)
{
    static const size_t lengths[] = {1, 5, 8, 49, 197, 256, 768, 1000, 1024, 1025, 2048};
    uint32_t seed = 3;
    for (size_t i = 0; i < 3 * sizeof lengths / sizeof *lengths; i++) {
        const size_t row = lengths[i / 3], rows = 1 + random_below(&seed, 12);
        enum dtype dtype = dtypes[i % 3];
        struct array x = make_array(dtype, rows * row, &seed),
                     y = make_array(dtype, rows * row, NULL);
        struct array scale = make_array(DTYPE_F32, row, &seed),
                     bias = make_array(DTYPE_F32, row, &seed);
        double *expected = malloc(x.count * sizeof *expected);
        const struct cuda_axis axis = {rows,         row, 1, (int)dtype, (int)dtype_size(dtype),
                                       CUDA_IN_FLOAT};
        cuda_softmax_axis(stream, x.data, y.data, &axis, 0);
        expect_softmax(&x, row, expected);
        check(&y, expected, 1e-6, "softmax");
        const float *more = random_below(&seed, 2) ? bias.data : NULL;
        memset(y.data, 0xFF, y.count * dtype_size(dtype));
        cuda_norm_rows(stream, (int)dtype, x.data, scale.data, more, y.data, rows, row, 1e-5f, 0);
        expect_layer_norm(&x, row, scale.data, more, false, expected);
        check(&y, expected, 1e-4, "layer norm");
        memset(y.data, 0xFF, y.count * dtype_size(dtype));
        cuda_norm_rows(stream, (int)dtype, x.data, scale.data, NULL, y.data, rows, row, 1e-5f, 1);
        expect_layer_norm(&x, row, scale.data, NULL, true, expected);
        check(&y, expected, 1e-4, "RMS norm");
        free(expected);
        free_array(&x);
        free_array(&y);
        free_array(&scale);
        free_array(&bias);
    }
}

static double pooled(const struct array *x, const struct cuda_pool *pool, size_t i)
{
    const struct cuda_conv *p = &pool->window;
    const int c = (int)(i % (size_t)p->c), at = (int)(i / (size_t)p->c);
    const int ow = at % p->ow, oh = at / p->ow % p->oh, n = at / p->ow / p->oh;
    double sum = 0, greatest = -INFINITY;
    int taps = 0;
    for (int r = 0; r < p->kh; r++)
        for (int s = 0; s < p->kw; s++) {
            int h = oh * p->stride_h - p->pad_h + r, w = ow * p->stride_w - p->pad_w + s;
            if (h < 0 || h >= p->h || w < 0 || w >= p->w)
                continue;
            double v = number(x->data, x->dtype, (size_t)(((n * p->h + h) * p->w + w) * p->c + c));
            sum += v;
            greatest = fmax(greatest, v);
            taps++;
        }
    return pool->is_max ? greatest : sum / (pool->count_include_pad ? p->kh * p->kw : taps);
}

Test(kernels, pools)
{
    uint32_t seed = 41;
    for (int i = 0; i < 24; i++) {
        enum dtype dtype = dtypes[i % 3];
        struct cuda_pool p = {.window.n = between(&seed, 1, 3),
                              .window.h = between(&seed, 3, 12),
                              .window.w = between(&seed, 3, 12),
                              .window.kh = between(&seed, 2, 3),
                              .window.kw = between(&seed, 2, 3),
                              .window.stride_h = between(&seed, 1, 2),
                              .window.stride_w = between(&seed, 1, 2),
                              .window.dilation_h = 1,
                              .window.dilation_w = 1,
                              .window.pad_h = 1,
                              .window.pad_w = 1,
                              .pad_h_end = 1,
                              .pad_w_end = 1,
                              .is_max = i % 2,
                              .count_include_pad = i % 4 == 0};
        p.window.c = i % 5 ? 8 * between(&seed, 1, 40) : between(&seed, 1, 20);
        p.window.oh = window_extent(p.window.h, p.window.kh, 1, p.window.stride_h, 2);
        p.window.ow = window_extent(p.window.w, p.window.kw, 1, p.window.stride_w, 2);
        const size_t positions = (size_t)(p.window.h * p.window.w),
                     images = (size_t)p.window.n * (size_t)p.window.c;
        struct array x = make_array(dtype, images * positions, &seed);
        struct array y = make_array(dtype, images * (size_t)(p.window.oh * p.window.ow), NULL);
        struct array all = make_array(dtype, images, NULL);
        double *expected = malloc(x.count * 4 * sizeof *expected);
        for (size_t k = 0; k < y.count; k++)
            expected[k] = pooled(&x, &p, k);
        cuda_pool2d(stream, (int)dtype, x.data, y.data, &p);
        check(&y, expected, 1e-6, "pool");
        cuda_pool_global(stream, (int)dtype, x.data, all.data, (size_t)p.window.n, positions,
                         (size_t)p.window.c, p.is_max, &p.scales);
        struct cuda_pool whole = {.window.n = p.window.n,
                                  .window.h = p.window.h,
                                  .window.w = p.window.w,
                                  .window.c = p.window.c,
                                  .window.oh = 1,
                                  .window.ow = 1,
                                  .window.kh = p.window.h,
                                  .window.kw = p.window.w,
                                  .window.stride_h = 1,
                                  .window.stride_w = 1,
                                  .is_max = p.is_max};
        for (size_t k = 0; k < all.count; k++)
            expected[k] = pooled(&x, &whole, k);
        check(&all, expected, 1e-6, "global pool");
        free(expected);
        free_array(&x);
        free_array(&y);
        free_array(&all);
    }
}

Test(kernels, elements)
{
    uint32_t seed = 53;
    for (int i = 0; i < 30; i++) {
        enum dtype dtype = dtypes[i % 3];
        const int64_t outer = between(&seed, 1, 4), inner = between(&seed, 1, 9),
                      last = i % 2 ? 8 * between(&seed, 1, 5) : between(&seed, 1, 17);
        const size_t count = (size_t)(outer * inner * last);
        /* b is [outer, 1, last], or [outer, inner, 1]. */
        const bool along = random_below(&seed, 2);
        struct cuda_access_map map = {.rank = 3,
                                      .dims = {outer, inner, last},
                                      .steps[0] = {inner * last, last, 1},
                                      .steps[1] = {along ? last : inner, along ? 0 : 1, along}};
        struct array a = make_array(dtype, count, &seed), b = make_array(dtype, count, &seed),
                     y = make_array(dtype, count, NULL);
        double *expected = malloc(count * sizeof *expected);
        static const enum op ops[] = {OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_MAX, OP_MIN};
        const enum op op = ops[random_below(&seed, COUNT_OF(ops))];
        for (size_t k = 0; k < count && op == OP_DIV; k++) /* divide by 1 to 2 */
            put(b.data, dtype, k, 1 + fabsf(random_unit(&seed)));
        for (size_t k = 0; k < count; k++) {
            size_t o = k / (size_t)(inner * last), m = k / (size_t)last % (size_t)inner,
                   n = k % (size_t)last;
            double p = number(a.data, dtype, k);
            double q = number(b.data, dtype, along ? o * (size_t)last + n : o * (size_t)inner + m);
            double r = op == OP_ADD   ? p + q
                       : op == OP_SUB ? p - q
                       : op == OP_MUL ? p * q
                       : op == OP_DIV ? p / q
                       : op == OP_MAX ? fmax(p, q)
                                      : fmin(p, q);
            expected[k] = fmax(r, 0);
        }
        const void *const operands[CUDA_OPERANDS] = {a.data, b.data};
        const struct cuda_pointwise numbers = {.op = op,
                                               .operands = 2,
                                               .dtypes = {(int)dtype, (int)dtype},
                                               .y_dtype = (int)dtype,
                                               .map = map,
                                               .activation = ACTIVATION_RELU};
        cuda_compute_pointwise(stream, operands, y.data, &numbers);
        check(&y, expected, 1e-6, "binary");
        free(expected);
        free_array(&a);
        free_array(&b);
        free_array(&y);
    }
}

/* ---- attention ---- */

/* [batch, rows, heads, 3, width] as transformers' one product makes it: matrices of a head. Rows
 * are counted in several parts, as those of windows are. */
static struct cuda_matrices packed(int images, int heads, int rows, int part, int width)
{
    const int row = heads * 3 * width;
    const int inner = rows % 7 == 0 ? 7 : rows % 5 == 0 ? 5 : 1;
    return (struct cuda_matrices){.offset = part * width,
                                  .batch = {2, {images, heads}, {rows * row, 3 * width}},
                                  .rows = {3, {rows / inner, 1, inner}, {row * inner, 8, row}},
                                  .column_step = 1};
}

static size_t place(const struct cuda_matrices *m, int batch, int row, int column)
{
    int64_t at = m->offset + (int64_t)column * m->column_step;
    const struct cuda_group *groups[] = {&m->batch, &m->rows};
    int i[] = {batch, row};
    for (int g = 0; g < 2; g++)
        for (int p = groups[g]->count - 1; p >= 0; p--) {
            at += (int64_t)(i[g] % groups[g]->extent[p]) * groups[g]->stride[p];
            i[g] /= groups[g]->extent[p];
        }
    return (size_t)at;
}

static double bias_number(const struct cuda_attention *a, const struct array bias[], int batch,
                          int row, int key)
{
    double sum = 0;
    for (int b = 0; b < a->bias_count; b++)
        sum += number(bias[b].data, bias[b].dtype, place(&a->bias[b], batch, row, key));
    return sum;
}

/* Expected numbers of y, by place. */
static void attend_plainly(const struct cuda_attention *a, const struct array *x,
                           const struct array bias[], double *ret)
{
    double *scores = malloc((size_t)a->keys * sizeof *scores);
    for (int batch = 0; batch < a->batch; batch++)
        for (int row = 0; row < a->rows; row++) {
            double greatest = -INFINITY, sum = 0;
            for (int key = 0; key < a->keys; key++) {
                double dot = 0;
                for (int d = 0; d < a->depth; d++)
                    dot += number(x->data, x->dtype, place(&a->q, batch, row, d)) *
                           number(x->data, x->dtype, place(&a->k, batch, key, d));
                scores[key] = dot * (double)a->scale + bias_number(a, bias, batch, row, key);
                greatest = fmax(greatest, scores[key]);
            }
            for (int key = 0; key < a->keys; key++)
                sum += scores[key] = exp(scores[key] - greatest);
            for (int d = 0; d < a->width; d++) {
                double result = 0;
                for (int key = 0; key < a->keys; key++)
                    result += scores[key] * number(x->data, x->dtype, place(&a->v, batch, key, d));
                ret[place(&a->y, batch, row, d)] = a->nan_is_zero && isnan(sum) ? 0 : result / sum;
            }
        }
    free(scores);
}

/* `masked`: the first bias forbids some keys, and the last row all of them. */
static void try_attention(uint32_t seed, int heads, int rows, int width, int biases, bool masked,
                          enum dtype dtype, bool on_tensor_cores)
{
    const int images = 2;
    struct cuda_attention a = {.batch = images * heads,
                               .rows = rows,
                               .keys = rows,
                               .depth = width,
                               .width = width,
                               .scale = 1.0f / sqrtf((float)width),
                               .nan_is_zero = masked,
                               .bias_count = biases,
                               .q = packed(images, heads, rows, 0, width),
                               .k = packed(images, heads, rows, 1, width),
                               .v = packed(images, heads, rows, 2, width)};
    a.y = (struct cuda_matrices){.batch = {2, {images, heads}, {rows * heads * width, width}},
                                 .rows = {1, {rows}, {heads * width}},
                                 .column_step = 1};
    const size_t count = (size_t)(images * heads * rows * width);
    struct array x = make_array(dtype, count * 3, &seed), y = make_array(dtype, count, NULL);
    struct array bias[CUDA_ATTENTION_BIASES];
    struct cuda_attention_data data = {.q = x.data, .k = x.data, .v = x.data, .y = y.data};
    for (int b = 0; b < biases; b++) { /* of a head, and of all */
        a.bias_is_float[b] = b == 0 || dtype == DTYPE_F32;
        a.bias[b] = (struct cuda_matrices){.batch = {2, {images, heads}, {0, b ? 0 : rows * rows}},
                                           .rows = {1, {rows}, {rows}},
                                           .column_step = 1};
        bias[b] = make_array(b == 0 ? DTYPE_F32 : dtype, (size_t)(heads * rows * rows), &seed);
        data.bias[b] = bias[b].data;
        for (size_t i = 0; masked && b == 0 && i < bias[0].count; i++)
            if (random_below(&seed, 3) == 0 || i / (size_t)rows % (size_t)rows + 1 == (size_t)rows)
                put(bias[0].data, DTYPE_F32, i, -INFINITY);
    }
    double *expected = malloc(count * sizeof *expected);
    char what[96];
    snprintf(what, sizeof what, "attention of %d heads, %d rows, width %d, %d biases", heads, rows,
             width, biases);
    cr_assert(cuda_attention_takes(&a, on_tensor_cores, (size_t)227 << 10), "%s", what);
    attend_plainly(&a, &x, bias, expected);
    cuda_attend(stream, (int)dtype, on_tensor_cores, &data, &a);
    /* Weights are rounded to the operands' dtype. */
    check(&y, expected, step_of(dtype), what);
    for (int b = 0; b < biases; b++)
        free_array(&bias[b]);
    free(expected);
    free_array(&x);
    free_array(&y);
}

Test(kernels, attention_on_tensor_cores)
{
    static const int widths[] = {32, 64, 80, 96, 128, 24, 72};
    for (uint32_t i = 0; i < sizeof widths / sizeof *widths; i++)
        try_attention(i + 1, 2, i % 2 ? 50 : 70, widths[i], (int)i % 3, false,
                      i % 2 ? DTYPE_BF16 : DTYPE_F16, true);
    try_attention(20, 1, 1, 32, 0, false, DTYPE_F16, true);
    try_attention(21, 2, 197, 64, 0, false, DTYPE_F16, true);
    try_attention(22, 2, 130, 32, 2, true, DTYPE_F16, true);
}

Test(kernels, attention_on_ordinary_cores)
{
    for (uint32_t i = 0; i < 9; i++)
        try_attention(i + 60, 2, 1 + (int)i * 9, 5 + (int)i * 7, (int)i % 3, i % 3 == 2,
                      dtypes[i % 3], false);
}
