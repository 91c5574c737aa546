/* Compiled products in each variant that this CPU runs, beside plain loops: sizes that fill no
 * tile, groups, padding, strides, and each way to end. Sums are exact, so that results are, too. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/float_bits.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/program/compiled_product.h"
#include "engine/cpu/program/parallel.h"

struct shape_case {
    const char *name;
    enum product_op op; /* a matrix product: batch x height rows x in, times in x out */
    int batch, groups, in, out, height, width, taps, stride, dilation, pad;
    int depth; /* a convolution of volumes: images of the batch that are slices of one; 0: none */
};

static const struct shape_case shapes[] = {
    {"1x1", PRODUCT_CONV, 2, 1, 64, 256, 7, 9, 1, 1, 1, 0},
    {"1x1, odd", PRODUCT_CONV, 1, 1, 37, 65, 5, 5, 1, 1, 1, 0},
    {"1x1 by two", PRODUCT_CONV, 1, 1, 64, 48, 9, 7, 1, 2, 1, 0},
    {"one pixel", PRODUCT_CONV, 1, 1, 128, 10, 1, 1, 1, 1, 1, 0},
    {"3x3", PRODUCT_CONV, 1, 1, 64, 64, 9, 10, 3, 1, 1, 1},
    {"3x3, odd", PRODUCT_CONV, 2, 1, 19, 33, 7, 6, 3, 1, 1, 1},
    {"3x3 by two", PRODUCT_CONV, 1, 1, 32, 70, 11, 9, 3, 2, 1, 1},
    {"dilated", PRODUCT_CONV, 1, 1, 16, 17, 12, 13, 3, 1, 2, 2},
    {"first layer", PRODUCT_CONV, 1, 1, 3, 64, 21, 22, 7, 2, 1, 3},
    {"wide padding", PRODUCT_CONV, 1, 1, 64, 8, 3, 3, 3, 1, 1, 4},
    {"padding only", PRODUCT_CONV, 1, 1, 8, 8, 1, 1, 3, 16, 1, 5},
    {"deep windows", PRODUCT_CONV, 1, 1, 520, 9, 4, 5, 3, 1, 1, 1},
    {"lines of 37", PRODUCT_CONV, 1, 1, 16, 24, 5, 37, 3, 1, 1, 1},
    {"several strips", PRODUCT_CONV, 1, 1, 64, 16, 37, 40, 3, 1, 1, 1},
    {"small images", PRODUCT_CONV, 5, 1, 64, 40, 5, 7, 3, 1, 1, 1},
    {"small images by three", PRODUCT_CONV, 4, 1, 12, 20, 7, 5, 2, 3, 1, 0},
    {"patches", PRODUCT_CONV, 2, 1, 3, 50, 16, 32, 8, 8, 1, 0},
    {"dilated, no padding", PRODUCT_CONV, 2, 1, 64, 9, 9, 20, 3, 1, 2, 0},
    {"deep, by three", PRODUCT_CONV, 2, 1, 148, 30, 10, 22, 1, 3, 1, 0},
    {"dilated beyond reason", PRODUCT_CONV, 1, 1, 4, 5, 3, 2, 3, 1, 1 << 29, 1 << 29},
    {"groups in place", PRODUCT_CONV, 2, 2, 32, 33, 6, 16, 1, 2, 1, 0},
    {"groups", PRODUCT_CONV, 1, 4, 8, 24, 9, 9, 3, 1, 1, 1},
    {"groups, odd", PRODUCT_CONV, 2, 3, 5, 7, 6, 5, 3, 1, 1, 1},
    {"volumes", PRODUCT_CONV, 6, 1, 16, 20, 5, 7, 3, 1, 1, 1, .depth = 3},
    {"volumes of groups", PRODUCT_CONV, 4, 2, 5, 9, 6, 5, 3, 2, 1, 1, .depth = 2},
    {"rows", PRODUCT_MATMUL, 1, 1, 192, 130, 197, 1, 1, 1, 1, 0},
    {"few rows", PRODUCT_MATMUL, 1, 1, 2050, 1000, 3, 1, 1, 1, 1, 0},
    {"batch of rows", PRODUCT_MATMUL, 3, 1, 29, 31, 33, 1, 1, 1, 1, 0},
};

/* How a product begins and ends. */
struct end_case {
    enum dtype from, to;
    enum activation activation;
    bool residual, bias;
    float step; /* as product_desc.dst_scale */
    int src_zero, dst_zero;
};

static const struct end_case ends[] = {
    {DTYPE_U8, DTYPE_U8, ACTIVATION_NONE, false, true, 0, 113, 7},
    {DTYPE_I8, DTYPE_I8, ACTIVATION_NONE, false, true, 0, -3, -11},
    {DTYPE_I8, DTYPE_U8, ACTIVATION_NONE, false, false, 0, 0, 0},
    {DTYPE_U8, DTYPE_I8, ACTIVATION_RELU, false, true, 3, 1, 5},
    {DTYPE_U8, DTYPE_F32, ACTIVATION_NONE, true, true, 0, 128, 0},
    {DTYPE_I8, DTYPE_F32, ACTIVATION_SILU, true, true, 0, 9, 0},
    {DTYPE_BF16, DTYPE_BF16, ACTIVATION_RELU, true, true, 0, 0, 0},
    {DTYPE_BF16, DTYPE_BF16, ACTIVATION_SILU, false, false, 0, 0, 0},
    {DTYPE_BF16, DTYPE_F32, ACTIVATION_NONE, true, false, 0, 0, 0},
    {DTYPE_F32, DTYPE_F32, ACTIVATION_RELU, true, true, 0, 0, 0},
    {DTYPE_F32, DTYPE_F32, ACTIVATION_SILU, false, false, 0, 0, 0},
    {DTYPE_F32, DTYPE_BF16, ACTIVATION_NONE, true, true, 0, 0, 0},
};

static bool of_floats(const struct end_case *e)
{
    return e->from == DTYPE_BF16 || e->from == DTYPE_F32;
}

struct operands {
    const struct shape_case *shape;
    const struct end_case *end;
    size_t images, pixels, channels; /* of the result */
    size_t rows_out, width_out;
    unsigned char *src, *before, *dst; /* before: what dst holds at the start */
    void *weights;                     /* [group][out][in][tap], or of a matrix product [in][out] */
    void *bias;
    float *scales;
    struct tensor scale_tensor;
    size_t src_count, dst_count, weight_count;
};

static unsigned next(unsigned *state)
{
    return (*state = *state * 69069 + 12345) >> 16;
}

static double number(const void *data, enum dtype dtype, size_t i)
{
    switch (dtype) {
    case DTYPE_U8:
        return ((const uint8_t *)data)[i];
    case DTYPE_I8:
        return ((const int8_t *)data)[i];
    case DTYPE_BF16:
        return (double)float_from_bits((uint32_t)((const uint16_t *)data)[i] << 16);
    default:
        return (double)((const float *)data)[i];
    }
}

/* Bytes of any value; of floats small whole numbers. */
static void fill(void *data, enum dtype dtype, size_t count, unsigned *state)
{
    for (size_t i = 0; i < count; i++) {
        const int value = (int)(next(state) % 17) - 8;
        if (dtype == DTYPE_U8 || dtype == DTYPE_I8)
            ((uint8_t *)data)[i] = (uint8_t)(i % 5 ? next(state) : 255);
        else if (dtype == DTYPE_BF16)
            ((uint16_t *)data)[i] = float_to_bfloat16((float)value);
        else
            ((float *)data)[i] = (float)value;
    }
}

static int extent(int in, const struct shape_case *s)
{
    return (in + 2 * s->pad - (s->taps - 1) * s->dilation - 1) / s->stride + 1;
}

/* Memory that ends where none begins: what reads beyond it fails, also where no sanitizer looks. */
static unsigned char *fenced(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = size_align(bytes, page);
    unsigned char *begin =
        mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(begin != MAP_FAILED && mprotect(begin + whole, page, PROT_NONE) == 0);
    return begin + whole - bytes;
}

static void unfence(unsigned char *data, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = size_align(bytes, page);
    (void)munmap(data + bytes - whole, whole + page);
}

static void operands_make(struct operands *o, const struct shape_case *s, const struct end_case *e)
{
    const bool floats = of_floats(e), matrix = s->op == PRODUCT_MATMUL;
    unsigned state = 7;
    *o = (struct operands){.shape = s, .end = e, .images = (size_t)s->batch};
    o->rows_out = (size_t)(matrix ? s->height : extent(s->height, s));
    o->width_out = (size_t)(matrix ? 1 : extent(s->width, s));
    o->pixels = o->rows_out * o->width_out;
    o->channels = (size_t)(s->groups * s->out);
    o->src_count = (size_t)(s->batch * s->height * s->width * s->groups * s->in);
    o->dst_count = o->images * o->pixels * o->channels;
    o->weight_count = (size_t)(s->groups * s->out * s->in * s->taps * s->taps);
    o->src = fenced(o->src_count * dtype_size(e->from));
    o->dst = fenced(o->dst_count * dtype_size(e->to));
    o->before = malloc(o->dst_count * dtype_size(e->to));
    o->weights = malloc(o->weight_count * sizeof(float));
    o->bias = malloc(o->channels * sizeof(float));
    o->scales = malloc(o->channels * sizeof(float));
    o->scale_tensor = (struct tensor){
        .dtype = DTYPE_F32, .shape = SHAPE((int64_t)o->channels), .data = o->scales};
    fill(o->src, e->from, o->src_count, &state);
    fill(o->before, e->to, o->dst_count, &state);
    fill(o->weights, floats ? DTYPE_F32 : DTYPE_I8, o->weight_count, &state);
    for (size_t c = 0; c < o->channels; c++) {
        if (floats)
            ((float *)o->bias)[c] = (float)(int)(next(&state) % 64);
        else
            ((int32_t *)o->bias)[c] = (int32_t)(next(&state) % 9999) - 5000;
        o->scales[c] = 0.003f + 0.0001f * (float)(next(&state) % 16);
    }
}

static void operands_free(struct operands *o)
{
    unfence(o->src, o->src_count * dtype_size(o->end->from));
    unfence(o->dst, o->dst_count * dtype_size(o->end->to));
    free(o->before);
    free(o->weights);
    free(o->bias);
    free(o->scales);
}

/* The sum of a result, without its bias. */
static double sum_of(const struct operands *o, size_t image, size_t pixel, size_t channel)
{
    const struct shape_case *s = o->shape;
    const bool matrix = s->op == PRODUCT_MATMUL, floats = of_floats(o->end);
    const int group = (int)channel / s->out, y = (int)(pixel / o->width_out),
              x = (int)(pixel % o->width_out);
    double sum = 0;
    for (int ky = 0; ky < s->taps; ky++)
        for (int kx = 0; kx < s->taps; kx++) {
            const int iy = matrix ? y : y * s->stride + ky * s->dilation - s->pad;
            const int ix = matrix ? x : x * s->stride + kx * s->dilation - s->pad;
            if (iy < 0 || ix < 0 || iy >= s->height || ix >= s->width)
                continue;
            for (int c = 0; c < s->in; c++) {
                const size_t from =
                    ((image * (size_t)s->height + (size_t)iy) * (size_t)s->width + (size_t)ix) *
                        (size_t)(s->groups * s->in) +
                    (size_t)(group * s->in + c);
                const size_t at =
                    matrix
                        ? (size_t)c * o->channels + channel
                        : ((channel * (size_t)s->in + (size_t)c) * (size_t)s->taps + (size_t)ky) *
                                  (size_t)s->taps +
                              (size_t)kx;
                sum += (number(o->src, o->end->from, from) - o->end->src_zero) *
                       number(o->weights, floats ? DTYPE_F32 : DTYPE_I8, at);
            }
        }
    return sum;
}

/* What is to be stored. */
static double result_of(const struct operands *o, double sum, size_t channel, size_t at)
{
    const struct end_case *e = o->end;
    const bool floats = of_floats(e), is_8bit = e->to == DTYPE_U8 || e->to == DTYPE_I8;
    if (e->bias)
        sum += floats ? (double)((const float *)o->bias)[channel]
                      : (double)((const int32_t *)o->bias)[channel];
    float v = floats ? (float)sum : (float)sum * o->scales[channel];
    if (e->residual)
        v += (float)number(o->before, e->to, at);
    if (e->activation == ACTIVATION_RELU)
        v = v > 0 ? v : 0;
    else if (e->activation == ACTIVATION_SILU)
        v = (float)((double)v / (1 + exp(-(double)v)));
    if (!is_8bit)
        return e->to == DTYPE_F32 ? (double)v
                                  : (double)float_from_bits((uint32_t)float_to_bfloat16(v) << 16);
    const double low = e->to == DTYPE_I8 ? -128 : 0;
    const double q = (double)rintf(e->step != 0 ? v / e->step : v) + e->dst_zero;
    return q < low ? low : q > low + 255 ? low + 255 : q;
}

/* Makes volumes of `depth` images each: N, C, H, W becomes N / depth, C, depth, H, W. */
static void stack(struct strided_layout *layout, int depth)
{
    layout->rank = 5;
    layout->dims[4] = layout->dims[3];
    layout->dims[3] = layout->dims[2];
    layout->dims[2] = depth;
    layout->dims[0] /= depth;
}

/* Channels last. */
static void strides_of_image(struct strided_layout *layout)
{
    int64_t stride = layout->dims[1];
    layout->strides[1] = 1;
    for (int a = layout->rank - 1; a > 1; a--) {
        layout->strides[a] = stride;
        stride *= layout->dims[a];
    }
    layout->strides[0] = stride;
}

static void row_major(struct strided_layout *layout)
{
    int64_t stride = 1;
    for (int a = layout->rank - 1; a >= 0; a--) {
        layout->strides[a] = stride;
        stride *= layout->dims[a];
    }
}

static struct product_desc describe(const struct operands *o, struct tensor *constant)
{
    const struct shape_case *s = o->shape;
    const struct end_case *e = o->end;
    const bool floats = of_floats(e);
    struct product_desc d = {.op = s->op,
                             .weights_constant = constant,
                             .scales = floats ? NULL : &o->scale_tensor,
                             .src_scale = 1,
                             .sum_divisor = 1,
                             .dst_scale = e->step,
                             .src_zero = e->src_zero,
                             .dst_zero = e->dst_zero};
    d.src.dtype = e->from;
    d.dst.dtype = e->to;
    d.weights.dtype = floats ? DTYPE_F32 : DTYPE_I8;
    if (s->op == PRODUCT_MATMUL) {
        d.src = (struct strided_layout){e->from, 2, {s->batch * s->height, s->in}, {0}};
        d.dst = (struct strided_layout){e->to, 2, {s->batch * s->height, s->out}, {0}};
        d.weights = (struct strided_layout){d.weights.dtype, 2, {s->in, s->out}, {0}};
        row_major(&d.src);
        row_major(&d.dst);
    } else {
        d.src = (struct strided_layout){
            e->from, 4, {s->batch, s->groups * s->in, s->height, s->width}, {0}};
        d.dst = (struct strided_layout){
            e->to,
            4,
            {s->batch, (int64_t)o->channels, (int64_t)o->rows_out, (int64_t)o->width_out},
            {0}};
        const struct strided_layout grouped = {
            d.weights.dtype, 5, {s->groups, s->out, s->in, s->taps, s->taps}, {0}};
        const struct strided_layout plain = {
            d.weights.dtype, 4, {s->out, s->in, s->taps, s->taps}, {0}};
        d.weights = s->groups > 1 ? grouped : plain;
        if (s->depth) {
            const int at = d.weights.rank++ - 2;
            memmove(&d.weights.dims[at + 1], &d.weights.dims[at], 2 * sizeof d.weights.dims[0]);
            d.weights.dims[at] = 1;
            stack(&d.src, s->depth);
            stack(&d.dst, s->depth);
        }
        strides_of_image(&d.src);
        strides_of_image(&d.dst);
    }
    row_major(&d.weights);
    for (int a = 0; a < d.src.rank - 2; a++) {
        const bool across = s->depth && a == 0; /* a window has one slice */
        d.stride[a] = across ? 1 : s->stride;
        d.dilation[a] = s->dilation;
        d.pad_begin[a] = across ? 0 : s->pad;
    }
    return d;
}

static void run_own(struct operands *o, int threads)
{
    struct error err = {0};
    struct compiled_product *product;
    struct tensor constant = {.data = o->weights};
    struct value added = {0};
    const struct epilogue epilogue = {
        .activation = o->end->activation, .alpha = 1, .residual = o->end->residual ? &added : NULL};
    const struct product_desc desc = describe(o, &constant);
    cr_assert_eq(compiled_product_create(threads, &desc, &epilogue, &product, &err), STATUS_OK,
                 "%s", err.message);
    void *packed = aligned_alloc(64, size_align(packed_layout_bytes(&product->weights), 64));
    void *scratch = aligned_alloc(64, size_align(product->scratch + 1, 64));
    cr_assert(packed && scratch);
    pack_weights(&desc.weights, o->weights, &product->weights, packed);
    compiled_product_bind(product, packed, o->end->bias ? o->bias : NULL);
    memcpy(o->dst, o->before, o->dst_count * dtype_size(o->end->to));
    compiled_product_run(
        (struct product_run){.product = product, .src = o->src, .dst = o->dst, .scratch = scratch});
    compiled_product_free(product);
    free(packed);
    free(scratch);
}

static void expect_results(const struct operands *o, const double *sums)
{
    const struct end_case *e = o->end;
    const bool is_8bit = e->to == DTYPE_U8 || e->to == DTYPE_I8;
    for (size_t i = 0; i < o->dst_count; i++) {
        const size_t channel = i % o->channels;
        const double is = number(o->dst, e->to, i), wanted = result_of(o, sums[i], channel, i);
        /* what a multiplication fused with the addition, or an exponential, may differ by */
        const double most = is_8bit ? 0 : (e->to == DTYPE_BF16 ? 8e-3 : 2e-5) * (1 + fabs(wanted));
        cr_assert(fabs(is - wanted) <= most, "%s %s, case %td of %d: [%zu] is %g, not %g",
                  simd()->name, o->shape->name, e - ends, (int)COUNT_OF(ends), i, is, wanted);
    }
}

Test(products, each_variant_agrees_with_plain_loops)
{
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t e = 0; e < COUNT_OF(ends); e++) {
            struct operands o;
            operands_make(&o, &shapes[s], &ends[e]);
            double *sums = malloc(o.dst_count * sizeof *sums);
            for (size_t i = 0; i < o.dst_count; i++)
                sums[i] = sum_of(&o, i / o.channels / o.pixels, i / o.channels % o.pixels,
                                 i % o.channels);
            for (size_t v = 0; simd_at(v); v++) {
                simd_use(simd_at(v));
                run_own(&o, 1 + (int)(v + s) % 2);
                expect_results(&o, sums);
            }
            simd_use(NULL);
            free(sums);
            operands_free(&o);
        }
}

/* Kernels read beyond windows, times weights of 0, which an infinity would turn into NaN. */
Test(products, infinity_reaches_only_windows_that_contain_it)
{
    static const struct shape_case shape = {"infinity", PRODUCT_CONV, 1, 1, 3, 20,
                                            9,          10,           3, 1, 1, 1};
    static const struct end_case end = {DTYPE_BF16, DTYPE_F32, .bias = true};
    struct operands o;
    operands_make(&o, &shape, &end);
    ((uint16_t *)(void *)o.src)[(4 * 10 + 5) * 3] = 0x7f80;
    for (size_t v = 0; simd_at(v); v++) {
        simd_use(simd_at(v));
        run_own(&o, 1);
        for (size_t i = 0; i < o.dst_count; i++)
            cr_assert_eq((bool)isfinite(number(o.dst, DTYPE_F32, i)),
                         (bool)isfinite(sum_of(&o, 0, i / o.channels, i % o.channels)),
                         "%s: [%zu] is %g", simd()->name, i, number(o.dst, DTYPE_F32, i));
    }
    simd_use(NULL);
    operands_free(&o);
}

Test(products, sums_of_8_bits_are_rounded_half_to_even_and_saturated)
{
    enum { CASES = 9 };
    const int32_t given[CASES] = {1, 3, -1, 5, 1000000, -1000000, INT32_MAX, 0, 10};
    const int32_t added[CASES] = {0, 0, 0, 0, 0, 0, 1, 7, -10};
    const float factors[CASES] = {0.5f, 0.5f, 0.5f, 0.5f, 1, 1, 1, 0.5f, NAN};
    const int expected[CASES] = {10, 12, 10, 12, 127, -128, -128, 14, -128};
    for (size_t v = 0; simd_at(v); v++)
        for (size_t n = 1; n <= simd_at(v)->tile_columns; n++)
            for (int is_signed = 0; is_signed < 2; is_signed++) {
                int32_t sums[TILE_MOST_COLUMNS], bias[TILE_MOST_COLUMNS];
                float scales[TILE_MOST_COLUMNS];
                unsigned char is[TILE_MOST_COLUMNS + 1];
                const struct tile_finish f = {.bias = bias,
                                              .scales = scales,
                                              .n = n,
                                              .to = is_signed ? DTYPE_I8 : DTYPE_U8,
                                              .zero = is_signed ? 10 : 138};
                for (size_t i = 0; i < TILE_MOST_COLUMNS; i++) {
                    const size_t which = (i + n) % CASES;
                    sums[i] = given[which];
                    bias[i] = added[which];
                    scales[i] = factors[which];
                }
                is[n] = 77;
                simd_at(v)->finish_tile(&f, sums, 1, is);
                cr_assert_eq(is[n], 77, "%s writes more than %zu", simd_at(v)->name, n);
                for (size_t i = 0; i < n; i++)
                    cr_expect_eq(is_signed ? (int8_t)is[i] : is[i] - 128, expected[(i + n) % CASES],
                                 "%s: [%zu] of %zu is %d", simd_at(v)->name, i, n, is[i]);
            }
}

/* A product of 8-bit integers with stride 1 whose padding keeps the size; for 16 threads. */
static struct compiled_product *for_16_threads(int channels, int height, int width, int taps,
                                               int dilation)
{
    static float scale;
    const struct tensor scales = {.dtype = DTYPE_F32, .data = &scale};
    static int constant; /* create() only asks whether there is one */
    const int c = channels, h = height, w = width, t = taps, rows = height > 1 ? taps : 1;
    struct product_desc desc = {.op = PRODUCT_CONV,
                                .weights_constant = (void *)&constant,
                                .scales = &scales,
                                .sum_divisor = 1};
    desc.src =
        (struct strided_layout){DTYPE_U8, 4, {1, c, h, w}, {(int64_t)c * h * w, 1, c * w, c}};
    desc.dst = desc.src;
    desc.weights =
        (struct strided_layout){DTYPE_I8, 4, {c, c, rows, t}, {c * rows * t, rows * t, t, 1}};
    for (int a = 0; a < 2; a++) {
        desc.stride[a] = 1;
        desc.dilation[a] = dilation;
        desc.pad_begin[a] = (a ? t / 2 : rows / 2) * dilation;
    }
    struct compiled_product *product;
    struct error err;
    cr_assert_eq(compiled_product_create(16, &desc, &(struct epilogue){0}, &product, &err),
                 STATUS_OK, "%s", err.message);
    return product;
}

/* Threads can share a line of the result, and a thread has room for few pointers to taps. */
Test(products, few_long_lines_serve_all_threads_with_little_scratch)
{
    for (size_t v = 0; simd_at(v); v++) {
        simd_use(simd_at(v));
        if (simd()->tile_rows_are_even)
            continue; /* AMX always reads whole lines of the result */
        struct compiled_product *line = for_16_threads(64, 1, 2000, 3, 1);
        cr_assert_geq(line->row_chunks, 16, "%s: %zu", simd()->name, line->row_chunks);
        compiled_product_free(line);
        struct compiled_product *wide = for_16_threads(1, 64, 4000, 31, 2);
        cr_assert_leq(wide->scratch, (size_t)32 << 20, "%s: %zu", simd()->name, wide->scratch);
        compiled_product_free(wide);
    }
}
