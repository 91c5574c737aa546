/* The kernels of engine/cuda on 8-bit integers, one by one, on the stand-in: random shapes in every
 * candidate there is, against plain loops over integers. Sums are exact; a stored number may be the
 * next one where the real number lies between the two. Outputs hold 0xFF beforehand, and are
 * watched for what is written beyond them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/tensor.h"
#include "tests/fake_cuda/kernel_cases.h"
#include "tests/unit/random_graph.h"

TestSuite(int8, .init = open_stream, .fini = close_stream, .timeout = 240);

static struct guarded random_bytes(size_t bytes, uint32_t *seed)
{
    struct guarded block = guarded_create(bytes);
    for (size_t i = 0; i < bytes; i++)
        block.data[i] = (unsigned char)random_below(seed, 256);
    return block;
}

static int stored_at(const void *data, int type, size_t i)
{
    return type == DTYPE_I8 ? ((const int8_t *)data)[i] : ((const uint8_t *)data)[i];
}

static int lowest_of(int type)
{
    return type == DTYPE_I8 ? -128 : 0;
}

static int saturated(double x, int type)
{
    const int low = lowest_of(type);
    return x < low ? low : x > low + 255 ? low + 255 : (int)x;
}

/* ---- convolutions ---- */

enum kind { TENSOR, DIRECT, DEPTHWISE };

struct conv_case {
    enum kind kind;
    struct cuda_conv conv;
    struct cuda_int8_epilogue epilogue;
    int x_zero, depth; /* channels of a group that are there; others of x may hold anything */
    struct guarded x, weights, y, bias, sums, scales, residual, table, padding, zero, workspace;
    bool in_place;
    int64_t *expected; /* sums */
};

static int weight_at(const struct conv_case *t, int m, int tap, int channel)
{
    const struct cuda_conv *c = &t->conv;
    const size_t at = t->kind == DEPTHWISE ? (size_t)tap * (size_t)c->c + (size_t)m
                                           : (size_t)m * (size_t)c->row +
                                                 (size_t)(tap * (c->c / c->groups) + channel);
    return t->kind == TENSOR ? ((const int8_t *)t->weights.data)[at]
                             : ((const int16_t *)(const void *)t->weights.data)[at];
}

/* With zero points taken away first, and nothing where the padding is: as the operator is defined.
 */
static int64_t conv_at(const struct conv_case *t, int n, int oh, int ow, int m)
{
    const struct cuda_conv *c = &t->conv;
    const int cg = c->c / c->groups, group = m / (c->m / c->groups);
    int64_t sum = 0;
    for (int tap = 0; tap < c->kh * c->kw; tap++) {
        int h = oh * c->stride_h - c->pad_h + tap / c->kw * c->dilation_h;
        int w = ow * c->stride_w - c->pad_w + tap % c->kw * c->dilation_w;
        if (h < 0 || h >= c->h || w < 0 || w >= c->w)
            continue;
        size_t at = ((size_t)(n * c->h + h) * (size_t)c->w + (size_t)w) * (size_t)c->c;
        for (int k = 0; k < t->depth; k++)
            sum += (stored_at(t->x.data, t->epilogue.x_type, at + (size_t)(group * cg + k)) -
                    t->x_zero) *
                   weight_at(t, m, tap, k);
    }
    return sum;
}

static void fill_weights(struct conv_case *t, uint32_t *seed)
{
    const struct cuda_conv *c = &t->conv;
    const int cg = c->c / c->groups;
    if (t->kind == TENSOR) {
        t->weights = guarded_create((size_t)c->m * (size_t)c->row);
        memset(t->weights.data, 0, t->weights.bytes);
        for (int m = 0; m < c->m; m++)
            for (int tap = 0; tap < c->kh * c->kw; tap++)
                for (int k = 0; k < t->depth; k++)
                    t->weights.data[(size_t)m * (size_t)c->row + (size_t)(tap * cg + k)] =
                        (unsigned char)random_below(seed, 256);
        return;
    }
    const size_t count = (size_t)(c->kh * c->kw * cg) * (size_t)c->m;
    t->weights = guarded_create(count * 2);
    for (size_t i = 0; i < count; i++)
        ((int16_t *)(void *)t->weights.data)[i] = (int16_t)between(seed, -255, 255);
}

/* Per channel: a bias that takes the zero point in, or the sums of weights; scales. */
static void fill_channels(struct conv_case *t, uint32_t *seed, bool dynamic)
{
    const struct cuda_conv *c = &t->conv;
    const size_t m = (size_t)c->m;
    t->bias = guarded_create(m * 4);
    t->sums = guarded_create(m * 4);
    t->scales = guarded_create(m * 4);
    const double depth = c->kh * c->kw * t->depth;
    for (size_t i = 0; i < m; i++) {
        int64_t sum = 0;
        for (int tap = 0; tap < c->kh * c->kw; tap++)
            for (int k = 0; k < t->depth; k++)
                sum += weight_at(t, (int)i, tap, k);
        const int own = between(seed, -3000, 3000);
        ((int32_t *)(void *)t->sums.data)[i] = (int32_t)sum;
        ((int32_t *)(void *)t->bias.data)[i] = (int32_t)(own - (dynamic ? 0 : t->x_zero * sum));
        ((float *)(void *)t->scales.data)[i] =
            (float)((0.5 + random_unit(seed) * 0.4) / (sqrt(depth) * 60));
    }
}

static int64_t own_bias(const struct conv_case *t, size_t m)
{
    const int64_t in_bias = ((const int32_t *)(const void *)t->bias.data)[m];
    return t->epilogue.x_zero
               ? in_bias
               : in_bias + (int64_t)t->x_zero * ((const int32_t *)(const void *)t->sums.data)[m];
}

static struct conv_case make_case(uint32_t *seed, enum kind kind, struct cuda_conv conv, int depth,
                                  int x_type, int y_type)
{
    struct conv_case t = {.kind = kind, .depth = depth, .in_place = random_below(seed, 2)};
    const bool dynamic = random_below(seed, 4) == 0, is_stored = y_type != DTYPE_I32;
    const size_t outputs = (size_t)(conv.n * conv.oh * conv.ow * conv.m);
    t.conv = conv;
    t.x_zero = between(seed, lowest_of(x_type), lowest_of(x_type) + 255);
    t.x = random_bytes((size_t)(conv.n * conv.h * conv.w * conv.c), seed);
    fill_weights(&t, seed);
    fill_channels(&t, seed, dynamic);
    t.y = guarded_create(outputs * (is_stored ? 1 : 4));
    t.residual = random_bytes(outputs, seed);
    t.table = random_bytes(256, seed);
    t.padding = guarded_create(16);
    memset(t.padding.data, t.x_zero & 0xff, 16);
    t.zero = guarded_create(1);
    t.zero.data[0] = (unsigned char)t.x_zero;
    t.workspace = guarded_create(outputs * 4 * 33);
    t.epilogue = (struct cuda_int8_epilogue){
        .bias = t.bias.data,
        .scales = t.scales.data,
        .own_ratio = 0.75f,
        .residual_ratio = -0.5f,
        .fixed = 11.25f,
        .zero = between(seed, lowest_of(y_type), lowest_of(y_type) + 255),
        .y_type = y_type,
        .x_type = x_type,
        .padding = t.padding.data};
    if (dynamic) {
        t.epilogue.x_zero = t.zero.data;
        t.epilogue.weight_sums = t.sums.data;
    }
    if (is_stored && random_below(seed, 2))
        t.epilogue.residual = t.in_place ? t.y.data : t.residual.data;
    if (is_stored && random_below(seed, 3) == 0)
        t.epilogue.table = t.table.data;
    t.expected = malloc(outputs * sizeof *t.expected);
    for (size_t i = 0; i < outputs; i++) {
        const int m = (int)(i % (size_t)conv.m), p = (int)(i / (size_t)conv.m);
        t.expected[i] =
            conv_at(&t, p / (conv.oh * conv.ow), p / conv.ow % conv.oh, p % conv.ow, m) +
            own_bias(&t, (size_t)m);
    }
    return t;
}

static void prepare_y(struct conv_case *t)
{
    memset(t->y.data, 0xFF, t->y.bytes);
    if (t->epilogue.residual && t->in_place)
        memcpy(t->y.data, t->residual.data, t->y.bytes);
    memset(t->workspace.data, 0xFF, t->workspace.bytes);
}

/* What a product that is stored as `stored` leads to. */
static int finished_number(const struct conv_case *t, int stored, size_t i)
{
    const struct cuda_int8_epilogue *e = &t->epilogue;
    if (e->residual) {
        const float second =
            e->fixed + (float)stored_at(t->residual.data, e->y_type, i) * e->residual_ratio;
        stored = saturated((double)rintf(second + (float)stored * e->own_ratio), e->y_type);
    }
    return e->table ? stored_at(e->table, e->y_type, (unsigned char)stored) : stored;
}

static void check_case(struct conv_case *t, const char *what)
{
    const struct cuda_conv *c = &t->conv;
    const struct cuda_int8_epilogue *e = &t->epilogue;
    finished(what);
    for (size_t i = 0; i < (size_t)(c->n * c->oh * c->ow * c->m); i++) {
        const int32_t sum = (int32_t)t->expected[i];
        if (e->y_type == DTYPE_I32) {
            cr_assert_eq(((const int32_t *)(const void *)t->y.data)[i], sum, "%s, output %zu", what,
                         i);
            continue;
        }
        const double real = (double)sum * (double)((const float *)e->scales)[i % (size_t)c->m];
        const int got = stored_at(t->y.data, e->y_type, i);
        const double slack = fabs(real) * 1e-6;
        const int low = saturated(rint(real - slack) + e->zero, e->y_type);
        const int high = saturated(rint(real + slack) + e->zero, e->y_type);
        cr_assert(got == finished_number(t, low, i) || got == finished_number(t, high, i),
                  "%s: [%d, %d, %d, %d] window %d x %d, groups %d, m %d, output %zu: %d, not %d",
                  what, c->n, c->h, c->w, c->c, c->kh, c->kw, c->groups, c->m, i, got,
                  finished_number(t, low, i));
    }
}

static void free_case(struct conv_case *t)
{
    struct guarded *all[] = {&t->x,    &t->weights, &t->y,        &t->bias,
                             &t->sums, &t->scales,  &t->table,    &t->residual,
                             &t->zero, &t->padding, &t->workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        guarded_free(all[i]);
    free(t->expected);
}

static int pick_type(uint32_t *seed)
{
    return random_below(seed, 2) ? DTYPE_I8 : DTYPE_U8;
}

/* Every tile, alone and with its sum divided. */
static void try_tensor(uint32_t seed, struct cuda_conv conv, int depth, int y_type)
{
    enum { MOST = 64 };
    struct cuda_conv_candidate candidates[MOST];
    conv.row = (conv.row + 15) / 16 * 16;
    struct conv_case t = make_case(&seed, TENSOR, conv, depth, pick_type(&seed), y_type);
    const int count =
        cuda_conv_candidates(DTYPE_I8, &conv, (size_t)227 << 10, 16, candidates, MOST);
    cr_assert_gt(count, 0);
    for (int i = 0; i < count; i++) {
        char what[64];
        snprintf(what, sizeof what, "tile %d, splits %d, seed %u", candidates[i].tile,
                 candidates[i].splits, seed);
        cr_assert_leq(candidates[i].workspace, t.workspace.bytes, "%s", what);
        prepare_y(&t);
        cuda_int8_conv_tensor(stream, t.x.data, t.weights.data, t.y.data, &t.conv, &t.epilogue,
                              &candidates[i], t.workspace.data);
        check_case(&t, what);
    }
    free_case(&t);
}

Test(int8, convolutions_on_tensor_cores)
{
    static const int channels[][2] = {{16, 70}, {48, 8},  {64, 130}, {80, 33}, {8, 64},
                                      {24, 9},  {4, 128}, {20, 24},  {144, 40}};
    uint32_t seed = 12;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        struct cuda_conv c = random_conv(&seed, channels[i][0], channels[i][1], 1, 3);
        try_tensor(seed, c, channels[i][0], i % 4 == 3 ? (int)DTYPE_I32 : pick_type(&seed));
    }
}

Test(int8, grouped_convolutions_on_tensor_cores)
{
    static const int channels[][3] = {{16, 16, 3}, {8, 16, 2}, {12, 9, 3}, {32, 32, 2}};
    uint32_t seed = 29;
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        try_tensor(seed, random_conv(&seed, channels[i][0], channels[i][1], channels[i][2], 3),
                   channels[i][0], pick_type(&seed));
}

/* The channels that fill an image up to fours hold anything: their weights are 0. */
Test(int8, channels_that_fill_up_do_not_count)
{
    uint32_t seed = 41;
    for (int depth = 1; depth < 8; depth++) {
        struct cuda_conv c = random_conv(&seed, (depth + 3) / 4 * 4, 32, 1, 5);
        try_tensor(seed, c, depth, pick_type(&seed));
    }
}

/* A matrix product is a convolution of one pixel; deep sums are divided. */
Test(int8, products_on_tensor_cores)
{
    static const int sizes[][3] = {{1, 200, 1024}, {197, 96, 64}, {64, 64, 2048}, {130, 72, 40}};
    uint32_t seed = 5;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct cuda_conv c = conv_of_rows(sizes[i][0], sizes[i][1], sizes[i][2]);
        try_tensor(seed + (uint32_t)i, c, c.c, i % 2 ? (int)DTYPE_I8 : (int)DTYPE_I32);
    }
}

Test(int8, tensor_cores_want_channels_in_fours)
{
    uint32_t seed = 3;
    struct cuda_conv_candidate candidate;
    struct cuda_conv c = random_conv(&seed, 6, 32, 1, 3);
    cr_assert_eq(cuda_conv_candidates(DTYPE_I8, &c, (size_t)227 << 10, 16, &candidate, 1), 0);
}

static void try_plain(uint32_t *seed, enum kind kind, struct cuda_conv c, const char *what)
{
    const int y_type = random_below(seed, 4) ? pick_type(seed) : (int)DTYPE_I32;
    struct conv_case t = make_case(seed, kind, c, c.c / c.groups, pick_type(seed), y_type);
    prepare_y(&t);
    cuda_int8_conv_direct(stream, t.x.data, t.weights.data, t.y.data, &t.conv, &t.epilogue);
    check_case(&t, what);
    free_case(&t);
}

Test(int8, convolutions_on_ordinary_cores)
{
    uint32_t seed = 31;
    for (int i = 0; i < 24; i++)
        try_plain(&seed, DIRECT,
                  random_conv(&seed, between(&seed, 1, 9), between(&seed, 1, 40),
                              between(&seed, 1, 3), 3),
                  "direct");
}

Test(int8, depthwise_convolutions)
{
    uint32_t seed = 77;
    for (int i = 0; i < 48; i++) {
        const int channels = i % 4 == 3 ? between(&seed, 1, 20) : between(&seed, 1, 4) * 8;
        struct cuda_conv c = random_conv(&seed, 1, 1, channels, 7);
        if (i % 2) { /* those with kernels of their own */
            c.kw = c.kh = 3 + i / 2 % 3 * 2;
            c.stride_w = c.stride_h;
            c.dilation_h = c.dilation_w = 1;
            c.h = between(&seed, c.kh, 17);
            c.w = between(&seed, c.kw, 17);
            c.oh = window_extent(c.h, c.kh, 1, c.stride_h, 2 * c.pad_h);
            c.ow = window_extent(c.w, c.kw, 1, c.stride_w, 2 * c.pad_w);
            c.row = c.kh * c.kw;
        }
        try_plain(&seed, DEPTHWISE, c, "depthwise");
    }
}

/* ---- rows ---- */

Test(int8, floats_are_stored_and_read_back)
{
    static const float edges[] = {0,     -0.0f,  0.5f * 0.05f,    1.5f * 0.05f,     -2.5f * 0.05f,
                                  1e30f, -1e30f, (float)INFINITY, (float)-INFINITY, (float)NAN};
    uint32_t seed = 2;
    for (int type = DTYPE_U8; type <= DTYPE_I8; type++) {
        for (size_t count = 1; count < 600; count += 37) {
            struct guarded x = guarded_create(count * 4), y = guarded_create(count),
                           z = guarded_create(count * 4);
            float *from = (float *)(void *)x.data;
            const int zero = type == DTYPE_I8 ? -7 : 113;
            for (size_t i = 0; i < count; i++)
                from[i] = i < sizeof edges / sizeof *edges ? edges[i] : 9 * random_unit(&seed);
            cuda_int8_convert(stream, DTYPE_F32, x.data, type, y.data, count, 0.05f, zero);
            cuda_int8_convert(stream, type, y.data, DTYPE_F32, z.data, count, 0.05f, zero);
            finished("quantize");
            for (size_t i = 0; i < count; i++) {
                const double real = (double)rintf(from[i] / 0.05f);
                const int expected = isnan(real) ? lowest_of(type) : saturated(real + zero, type);
                cr_assert_eq(stored_at(y.data, type, i), expected, "%g", (double)from[i]);
                cr_assert_eq(((const float *)(const void *)z.data)[i],
                             (float)(expected - zero) * 0.05f);
            }
            guarded_free(&x);
            guarded_free(&y);
            guarded_free(&z);
        }
    }
}

static int binary_number(const struct cuda_pointwise *b, int p, int q)
{
    float value;
    if (b->op == OP_QLINEAR_MUL) {
        value = (float)((p - b->zeros[0]) * (q - b->zeros[1])) * b->ratios[0];
        value += b->fixed;
    } else {
        value = b->fixed + (float)q * b->ratios[1];
        value += (float)p * b->ratios[0];
    }
    return saturated((double)rintf(value), b->y_dtype);
}

Test(int8, sums_and_products_of_two)
{
    uint32_t seed = 91;
    for (int i = 0; i < 32; i++) {
        const int64_t rows = between(&seed, 1, 9);
        const int64_t row = between(&seed, 1, 40) * (i % 3 ? 1 : 16);
        const size_t count = (size_t)(rows * row);
        const int type = pick_type(&seed);
        struct cuda_pointwise b = {.op = i % 2 ? OP_QLINEAR_MUL : OP_QLINEAR_ADD,
                                   .domain = CUDA_IN_FLOAT,
                                   .operands = 2,
                                   .dtypes = {type, type},
                                   .y_dtype = type,
                                   .ratios = {i % 2 ? 0.01f : 0.4f, 0.7f},
                                   .fixed = 12.5f,
                                   .zeros = {3, -5}};
        b.map = (struct cuda_access_map){.rank = 2, .dims = {rows, row}, .steps[0] = {row, 1}};
        const int b_kind = i / 2 % 4; /* of a row, of a column, one number, whole */
        b.map.steps[1][0] = b_kind == 3 ? row : b_kind == 1;
        b.map.steps[1][1] = b_kind == 0 || b_kind == 3;
        struct guarded x = random_bytes(count, &seed), z = random_bytes(count, &seed);
        struct guarded y = guarded_create(count);
        const void *const operands[CUDA_OPERANDS] = {x.data, z.data};
        cuda_compute_pointwise(stream, operands, y.data, &b);
        finished("binary");
        for (size_t k = 0; k < count; k++) {
            const size_t at = (k / (size_t)row) * (size_t)b.map.steps[1][0] +
                              (k % (size_t)row) * (size_t)b.map.steps[1][1];
            cr_assert_eq(stored_at(y.data, type, k), binary_number(&b, stored_at(x.data, type, k),
                                                                   stored_at(z.data, type, at)));
        }
        guarded_free(&x);
        guarded_free(&y);
        guarded_free(&z);
    }
}

Test(int8, parts_make_a_whole_and_are_split_off_again)
{
    /* width, offset, width, offset, pitch */
    static const size_t forms[][5] = {{16, 16, 32, 32, 80}, {4, 8, 8, 12, 24}, {2, 0, 4, 4, 10},
                                      {5, 3, 1, 8, 9},      {0, 0, 32, 0, 32}, {48, 0, 0, 48, 48}};
    enum { ROWS = 7, FORMS = sizeof forms / sizeof *forms };
    uint32_t seed = 8;
    for (size_t i = 0; i < 2 * FORMS; i++) {
        const size_t *form = forms[i / 2], pitch = form[4];
        struct guarded whole = guarded_create(ROWS * pitch), table = random_bytes(256, &seed);
        struct guarded from[2], back[2];
        struct cuda_parts parts = {.count = 2, .rows = ROWS, .pitch = pitch};
        for (size_t p = 0; p < 2; p++) {
            from[p] = random_bytes(ROWS * form[2 * p], &seed);
            back[p] = guarded_create(ROWS * form[2 * p]);
            parts.parts[p] = (struct cuda_part){from[p].data, form[2 * p], form[2 * p + 1],
                                                i % 2 ? table.data : NULL};
        }
        cuda_copy_parts(stream, whole.data, &parts);
        finished("parts");
        for (size_t k = 0; k < ROWS * pitch; k++) {
            unsigned char expected = 0xFF;
            for (size_t p = 0; p < 2; p++) {
                const size_t column = k % pitch - form[2 * p + 1];
                if (column < form[2 * p])
                    expected = from[p].data[k / pitch * form[2 * p] + column];
                if (column < form[2 * p] && i % 2)
                    expected = table.data[expected];
            }
            cr_assert_eq(whole.data[k], expected);
        }
        parts.is_split = 1;
        for (size_t p = 0; p < 2; p++) {
            parts.parts[p].data = back[p].data;
            parts.parts[p].table = NULL;
        }
        cuda_copy_parts(stream, whole.data, &parts);
        finished("parts");
        for (size_t p = 0; p < 2; p++)
            for (size_t k = 0; k < ROWS * form[2 * p]; k++)
                cr_assert_eq(
                    back[p].data[k],
                    whole.data[k / form[2 * p] * pitch + form[2 * p + 1] + k % form[2 * p]]);
        for (size_t p = 0; p < 2; p++) {
            guarded_free(&from[p]);
            guarded_free(&back[p]);
        }
        guarded_free(&whole);
        guarded_free(&table);
    }
}

static int pooled(const struct cuda_pool *how, int type, const unsigned char *x, int n, int oh,
                  int ow, int c)
{
    const struct cuda_conv *p = &how->window;
    int greatest = lowest_of(type), taps = 0;
    float sum = 0;
    for (int r = 0; r < p->kh; r++)
        for (int s = 0; s < p->kw; s++) {
            const int h = oh * p->stride_h - p->pad_h + r * p->dilation_h;
            const int w = ow * p->stride_w - p->pad_w + s * p->dilation_w;
            const bool inside = h >= 0 && h < p->h && w >= 0 && w < p->w;
            const bool padded = h >= -p->pad_h && h < p->h + how->pad_h_end && w >= -p->pad_w &&
                                w < p->w + how->pad_w_end;
            taps += inside || (how->count_include_pad && padded);
            if (!inside)
                continue;
            const int v = stored_at(x, type, (size_t)(((n * p->h + h) * p->w + w) * p->c + c));
            greatest = v > greatest ? v : greatest;
            sum += (float)(v - how->scales.from_zero) * how->scales.from_scale;
        }
    if (how->is_max)
        return greatest;
    const float mean = sum / (float)(taps ? taps : 1);
    return saturated((double)rintf(mean / how->scales.to_scale + (float)how->scales.to_zero), type);
}

Test(int8, pools)
{
    uint32_t seed = 19;
    for (int i = 0; i < 24; i++) {
        const int type = pick_type(&seed);
        struct cuda_pool how = {.window.n = 2,
                                .window.c = i % 3 ? between(&seed, 1, 20) : 16,
                                .window.kh = between(&seed, 1, 3),
                                .window.kw = between(&seed, 1, 3),
                                .window.stride_h = between(&seed, 1, 2),
                                .window.stride_w = between(&seed, 1, 2),
                                .window.dilation_h = 1,
                                .window.dilation_w = between(&seed, 1, 2),
                                .window.pad_h = between(&seed, 0, 1),
                                .window.pad_w = between(&seed, 0, 1),
                                .pad_h_end = 1,
                                .is_max = i % 2,
                                .count_include_pad = i % 4 == 0,
                                .scales = {0.07f, 0.05f, 4, 9}};
        struct cuda_conv *p = &how.window;
        p->h = between(&seed, 3, 9);
        p->w = between(&seed, 5, 9);
        p->oh = window_extent(p->h, p->kh, 1, p->stride_h, p->pad_h + 1);
        p->ow = window_extent(p->w, p->kw, p->dilation_w, p->stride_w, p->pad_w);
        const size_t count = (size_t)(p->n * p->oh * p->ow * p->c);
        struct guarded x = random_bytes((size_t)(p->n * p->h * p->w * p->c), &seed);
        struct guarded y = guarded_create(count);
        cuda_pool2d(stream, type, x.data, y.data, &how);
        finished("pool");
        for (size_t k = 0; k < count; k++) {
            const int at = (int)(k / (size_t)p->c);
            cr_assert_eq(stored_at(y.data, type, k),
                         pooled(&how, type, x.data, at / p->ow / p->oh, at / p->ow % p->oh,
                                at % p->ow, (int)(k % (size_t)p->c)));
        }
        guarded_free(&x);
        guarded_free(&y);
    }
}

Test(int8, means_of_images)
{
    /* the last: more images than the stand-in's grids have blocks along y */
    static const size_t sizes[][3] = {
        {49, 260, 3}, {1, 8, 3}, {17, 5, 3}, {300, 132, 3}, {1, 4, 2050}};
    uint32_t seed = 23;
    for (size_t i = 0; i < 9; i++) {
        const size_t positions = sizes[i / 2][0], channels = sizes[i / 2][1];
        const size_t images = sizes[i / 2][2];
        const int type = i % 2 ? DTYPE_I8 : DTYPE_U8;
        struct guarded x = random_bytes(images * positions * channels, &seed);
        struct guarded y = guarded_create(images * channels);
        const struct cuda_scales scales = {1.7f, 1, 5, 60};
        const float factor = 1.7f / (float)positions;
        cuda_pool_global(stream, type, x.data, y.data, images, positions, channels, 0, &scales);
        finished("mean");
        for (size_t k = 0; k < images * channels; k++) {
            int sum = 0;
            for (size_t p = 0; p < positions; p++)
                sum += stored_at(x.data, type,
                                 (k / channels * positions + p) * channels + k % channels) -
                       5;
            cr_assert_eq(stored_at(y.data, type, k),
                         saturated((double)rintf((float)sum * factor) + 60, type));
        }
        guarded_free(&x);
        guarded_free(&y);
    }
}

Test(int8, scales_of_a_run)
{
    uint32_t seed = 37;
    for (int i = 0; i < 6; i++) {
        const size_t count = (size_t)between(&seed, 1, 9000);
        const float offset = (float)(i % 3 - 1) * 1.5f, width = i == 5 ? 0 : 2;
        struct guarded x = guarded_create(count * 4), y = guarded_create(count),
                       scale = guarded_create(4);
        struct guarded zero = guarded_create(1), ranges = guarded_create(2 * CUDA_INT8_RANGES * 4);
        float *from = (float *)(void *)x.data, low = 0, high = 0;
        for (size_t k = 0; k < count; k++) {
            from[k] = i == 5 ? 0 : offset + width * random_unit(&seed);
            low = fminf(low, from[k]);
            high = fmaxf(high, from[k]);
        }
        cuda_int8_dynamic(stream, from, count, ranges.data, y.data, (float *)(void *)scale.data,
                          zero.data);
        finished("dynamic");
        const float step = high == low ? 1 : (high - low) / 255;
        const int middle = saturated((double)rintf(-low / step), DTYPE_U8);
        cr_assert_eq(*(const float *)(const void *)scale.data, step);
        cr_assert_eq(zero.data[0], middle);
        for (size_t k = 0; k < count; k++)
            cr_assert_eq(y.data[k], saturated((double)rintf(from[k] / step) + middle, DTYPE_U8));
        guarded_free(&x);
        guarded_free(&y);
        guarded_free(&scale);
        guarded_free(&zero);
        guarded_free(&ranges);
    }
}
