/* 3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications if the
 * image's sides are multiples of 4 (kernels/winograd.c has the formula).
 *
 * Tiles of 6x6 source pixels are transformed (36 points, each a matrix tiles x channels),
 * multiplied point by point with the transformed weights, and transformed back. The work is divided
 * in one of two ways:
 *
 *   - by tiles: each thread takes blocks of tiles through all three stages; intermediate data stays
 *     in its second-level cache. For few channels.
 *   - by points: the three stages one after the other over a round of tiles, so that each weight is
 *     fetched once per round, not once per block. For many channels.
 *
 * Images may be bfloat16; the arithmetic is float32 with unrounded weights. */
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

#include <stdlib.h>

enum { POINTS = WINOGRAD_POINTS, TILE = 4 };

struct winograd_step {
    struct step step;
    const struct simd_kernels *simd;
    struct finish finish;
    const float *weights; /* POINTS panels-packed matrices */
    size_t packed;        /* floats of one of them */
    size_t images, height, width, channels, out_height, out_width, out_channels;
    ptrdiff_t pad_top, pad_left;
    size_t tile_rows, tile_columns, tiles; /* per image; in all images */
    bool bf16;                             /* the images */
    bool by_points;
    size_t block;        /* tiles per block, or per round */
    size_t thread_bytes; /* by tiles: scratch per thread */
    /* of this run */
    float *v, *m;        /* by points: POINTS x block x channels */
    size_t first, count; /* by points: tiles of this round */
};

static int clamp_int(ptrdiff_t value, int low, int high)
{
    return value < low ? low : value > high ? high : (int)value;
}

/* Transforms tile number `tile` into row `row` of the matrices at v. */
static void winograd_source_tile(const struct winograd_step *s, size_t tile, float *v, size_t rows,
                                 size_t row)
{
    const size_t per_image = s->tile_rows * s->tile_columns, in_image = tile % per_image;
    const ptrdiff_t top = (ptrdiff_t)(in_image / s->tile_columns * TILE) - s->pad_top;
    const ptrdiff_t left = (ptrdiff_t)(in_image % s->tile_columns * TILE) - s->pad_left;
    const ptrdiff_t height = (ptrdiff_t)s->height, width = (ptrdiff_t)s->width;
    const ptrdiff_t channels = (ptrdiff_t)s->channels;
    const struct winograd_tile t = {
        .row_step = width * channels,
        .column_step = channels,
        .top = clamp_int(-top, 0, 6),
        .bottom = clamp_int(height - top, 0, 6),
        .left = clamp_int(-left, 0, 6),
        .right = clamp_int(width - left, 0, 6),
    };
    const ptrdiff_t image = (ptrdiff_t)(tile / per_image) * height * width * channels;
    const ptrdiff_t at = image + top * t.row_step + left * t.column_step;
    const void *x = s->step.x + at * (ptrdiff_t)(s->bf16 ? sizeof(uint16_t) : sizeof(float));
    s->simd->winograd_source(&t, x, s->bf16, s->channels, v + row * s->channels,
                             rows * s->channels);
}

static void winograd_sink_tile(const struct winograd_step *s, size_t tile, const float *m,
                               size_t rows, size_t row)
{
    const size_t per_image = s->tile_rows * s->tile_columns, in_image = tile % per_image;
    const size_t top = in_image / s->tile_columns * TILE, left = in_image % s->tile_columns * TILE;
    const size_t n = s->out_channels;
    const struct winograd_tile t = {
        .row_step = (ptrdiff_t)(s->out_width * n),
        .column_step = (ptrdiff_t)n,
        .bottom = clamp_int((ptrdiff_t)(s->out_height - top), 0, TILE),
        .right = clamp_int((ptrdiff_t)(s->out_width - left), 0, TILE),
    };
    const struct gemm g = {.bias = s->finish.bias,
                           .n = n,
                           .accumulate = s->finish.residual.present,
                           .clamp = s->finish.clamp,
                           .low = s->finish.low,
                           .high = s->finish.high};
    const size_t at = ((tile / per_image * s->out_height + top) * s->out_width + left) * n;
    if (s->bf16) { /* has no other activation, see winograd_fits() */
        s->simd->winograd_sink(&t, &g, m + row * n, rows * n, (uint16_t *)(void *)s->step.y + at,
                               true);
        return;
    }
    float *y = (float *)(void *)s->step.y + at;
    s->simd->winograd_sink(&t, &g, m + row * n, rows * n, y, false);
    const struct epilogue *e = &s->finish.row;
    for (int i = 0; e->activation && i < t.bottom; i++)
        s->simd->activate(y + i * t.row_step, y + i * t.row_step, (size_t)t.right * n,
                          e->activation, e->alpha, e->beta);
}

static void winograd_multiply(const struct winograd_step *s, size_t point, const float *v, float *m,
                              size_t rows, size_t first_column, size_t columns)
{
    const struct gemm g = {
        .a = v + point * rows * s->channels,
        .lda = s->channels,
        .b = s->weights + point * s->packed + first_column * s->channels,
        .k = s->channels,
        .n = columns,
        .c = m + point * rows * s->out_channels + first_column,
        .ldc = s->out_channels,
    };
    s->simd->gemm(&g, rows);
}

/* ---- by tiles ---- */

static void winograd_blocks(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    const size_t blocks = (s->tiles + s->block - 1) / s->block;
    float *v = (float *)(void *)(s->step.memory + (size_t)forkjoin_member() * s->thread_bytes);
    float *m = v + POINTS * s->block * s->channels;
    for (size_t b = begin; b < end; b++) {
        const size_t first = s->tiles * b / blocks, last = s->tiles * (b + 1) / blocks;
        const size_t rows = last - first;
        for (size_t i = 0; i < rows; i++)
            winograd_source_tile(s, first + i, v, rows, i);
        for (size_t p = 0; p < POINTS; p++)
            winograd_multiply(s, p, v, m, rows, 0, s->out_channels);
        for (size_t i = 0; i < rows; i++)
            winograd_sink_tile(s, first + i, m, rows, i);
    }
}

/* ---- by points ---- */

static void round_sources(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    for (size_t i = begin; i < end; i++)
        winograd_source_tile(s, s->first + i, s->v, s->count, i);
}

/* Items are halves of points, to balance the load for both few and many threads. */
static void round_products(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    const size_t panel = s->simd->gemm_columns;
    const size_t panels = (s->out_channels + panel - 1) / panel, half = (panels + 1) / 2 * panel;
    for (size_t i = begin; i < end; i++) {
        const size_t from = i % 2 ? half : 0;
        const size_t to = i % 2 || half > s->out_channels ? s->out_channels : half;
        if (from < to)
            winograd_multiply(s, i / 2, s->v, s->m, s->count, from, to - from);
    }
}

static void round_sinks(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    for (size_t i = begin; i < end; i++)
        winograd_sink_tile(s, s->first + i, s->m, s->count, i);
}

STEP_RUN(winograd_run)
{
    struct winograd_step *s = (struct winograd_step *)base;
    const int threads = program->backend->options.threads;
    residual_begin(&s->finish.residual, program, s->step.y);
    const size_t cost = POINTS * s->channels * s->out_channels / 32;
    if (!s->by_points) {
        parallel_for(threads, (s->tiles + s->block - 1) / s->block, cost * s->block,
                     winograd_blocks, s);
        return STATUS_OK;
    }
    s->v = (float *)(void *)s->step.memory;
    s->m = s->v + POINTS * s->block * s->channels;
    const size_t rounds = (s->tiles + s->block - 1) / s->block;
    for (size_t r = 0; r < rounds; r++) {
        s->first = s->tiles * r / rounds;
        s->count = s->tiles * (r + 1) / rounds - s->first;
        parallel_for(threads, s->count, s->channels * 16, round_sources, s);
        parallel_for(threads, 2 * (size_t)POINTS, s->count * cost / POINTS / 2, round_products, s);
        parallel_for(threads, s->count, s->out_channels * 16, round_sinks, s);
    }
    return STATUS_OK;
}

/* ---- compile ---- */

/* G g G' of a 3x3 filter g at one point is the sum of its numbers times these, in double. */
static void coefficients(size_t point, double ret[9])
{
    const double p = 0.70710678118654752440, q = 1.41421356237309504880;
    /* rows of G: 1, a, a * a divided by the product of the differences from the other points */
    const double rows[6][3] = {
        {1, 0, 0},
        {1 / -1.5, p / -1.5, 0.5 / -1.5},
        {1 / -1.5, -p / -1.5, 0.5 / -1.5},
        {1 / 6.0, q / 6, 2 / 6.0},
        {1 / 6.0, -q / 6, 2 / 6.0},
        {0, 0, 1},
    };
    for (size_t y = 0; y < 3; y++)
        for (size_t x = 0; x < 3; x++)
            ret[y * 3 + x] = rows[point / 6][y] * rows[point % 6][x];
}

/* Filters are transformed a block at a time, so that the compiler can use vectors. */
enum { FILTER_BLOCK = 64 };

struct winograd_packing {
    const struct simd_kernels *simd;
    const float *taps; /* [9][stride]: each tap of all filters */
    size_t stride;     /* their number, rounded up to whole blocks */
    float *packed;
    size_t packed_each, in, out;
    _Atomic bool failed; /* out of memory */
};

/* Transforms one point of the block that starts with filter `from`. */
static void transform_block(const struct winograd_packing *packing, const double by[9], size_t from,
                            float *to)
{
    double sums[FILTER_BLOCK] = {0};
    for (size_t t = 0; t < 9; t++) {
        const float *tap = packing->taps + t * packing->stride + from;
        for (size_t i = 0; by[t] != 0 && i < FILTER_BLOCK; i++)
            sums[i] += by[t] * (double)tap[i];
    }
    for (size_t i = 0; i < FILTER_BLOCK; i++)
        to[i] = (float)sums[i];
}

static void pack_points(void *context, size_t begin, size_t end)
{
    struct winograd_packing *packing = context;
    float *plain = alloc_array(packing->stride, sizeof *plain);
    if (!plain) {
        packing->failed = true;
        return;
    }
    for (size_t point = begin; point < end; point++) {
        double by[9];
        coefficients(point, by);
        for (size_t i = 0; i < packing->stride; i += FILTER_BLOCK)
            transform_block(packing, by, i, plain + i);
        packing->simd->gemm_pack(plain, 1, packing->in, packing->in, packing->out,
                                 packing->packed + point * packing->packed_each);
    }
    free(plain);
}

static bool winograd_pack(const void *context, const struct tensor *constant, float *packed)
{
    const struct winograd_step *s = context;
    const float *filters = constant->data;
    const size_t count = s->channels * s->out_channels;
    const size_t stride = (count + FILTER_BLOCK - 1) / FILTER_BLOCK * FILTER_BLOCK;
    float *taps = alloc_array(9 * stride, sizeof *taps);
    if (!taps)
        return false;
    for (size_t i = 0; i < count; i++)
        for (size_t t = 0; t < 9; t++)
            taps[t * stride + i] = filters[i * 9 + t];
    struct winograd_packing packing = {.simd = s->simd,
                                       .taps = taps,
                                       .stride = stride,
                                       .packed = packed,
                                       .packed_each = s->packed,
                                       .in = s->channels,
                                       .out = s->out_channels};
    parallel_for(forkjoin_threads(), POINTS, count * 9, pack_points, &packing);
    free(taps);
    return !packing.failed;
}

/* True if the transformed weights, four times as large as the filters, are within limits. */
static bool is_small(const struct winograd_step *s)
{
    enum { MOST_WEIGHT_BYTES = 16 << 20 };
    return (double)POINTS * (double)s->channels * (double)s->out_channels * 4 <= MOST_WEIGHT_BYTES;
}

/* True if it is faster than a direct convolution, whose rate doubles in bfloat16. Costs are counted
 * in multiply-adds: TRANSFORM per channel of a tile, FETCH per weight from the third-level cache.
 * Measured on Zen 4. */
static bool winograd_pays(const struct winograd_step *s)
{
    enum { TRANSFORM = 250, FETCH = 8, BF16_RATE = 2 };
    const double in = (double)s->channels, out = (double)s->out_channels;
    const double tiles = (double)s->tiles;
    const double direct = 9 * in * out * (double)(s->images * s->out_height) * (double)s->out_width;
    const double here = POINTS * in * out * (tiles + FETCH) + TRANSFORM * tiles * (in + out);
    return in >= 16 && out >= 16 && here < 0.8 * direct / (s->bf16 ? BF16_RATE : 1);
}

/* Divides the work of a run into pieces. */
static void winograd_divide(struct winograd_step *s, size_t threads)
{
    enum { NEAR = 448 * 1024, FEW = 12 };
    const size_t tile_bytes = POINTS * (s->channels + s->out_channels) * sizeof(float);
    const size_t fit = NEAR / tile_bytes, each = (s->tiles + threads - 1) / threads;
    s->by_points = fit < FEW;
    if (s->by_points) {
        const size_t most = 48 * threads;
        const size_t rounds = (s->tiles + most - 1) / most;
        s->block = (s->tiles + rounds - 1) / rounds;
        s->step.scratch = s->block * tile_bytes;
        return;
    }
    const size_t blocks = (each + fit - 1) / fit;
    s->block = (each + blocks - 1) / blocks;
    s->thread_bytes = size_align(s->block * tile_bytes, TENSOR_ALIGN);
    s->step.scratch = s->thread_bytes * threads;
}

static bool winograd_fits(const struct node *node, const struct window *w, bool bf16)
{
    float low, high;
    bool fits = w->spatial == 2 && node_int(node, "group", 1) == 1;
    if (bf16 && !epilogue_range(&node->epilogue, &low, &high))
        return false;
    if (bf16 && cpu_features()->amx_bf16)
        return false; /* AMX is faster than anything in float32 */
    for (int a = 0; fits && a < 2; a++)
        fits = w->kernel[a] == 3 && w->stride[a] == 1 && w->dilation[a] == 1 &&
               w->pad_begin[a] >= 0 && w->pad_begin[a] <= 2 && w->pad_end[a] <= 2;
    return fits;
}

/* Sets sizes and tiles. Returns false if the kernel does not fit the node. */
static bool measure_up(const struct node *node, struct winograd_step *ret)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool bf16 = x->dtype == DTYPE_BF16;
    struct window window;
    struct error ignored;
    if (!node->channels_last || x->shape.rank != 4 || node->gate || node_output(node, 1) ||
        y->dtype != x->dtype ||
        window_init(node, 2, x->shape.dims + 1, node->inputs[1]->known->shape.dims + 2, &window,
                    &ignored) != STATUS_OK ||
        !winograd_fits(node, &window, bf16))
        return false;
    *ret = (struct winograd_step){
        .simd = simd(),
        .bf16 = bf16,
        .images = (size_t)x->shape.dims[0],
        .height = (size_t)x->shape.dims[1],
        .width = (size_t)x->shape.dims[2],
        .channels = (size_t)x->shape.dims[3],
        .out_height = (size_t)y->shape.dims[1],
        .out_width = (size_t)y->shape.dims[2],
        .out_channels = (size_t)y->shape.dims[3],
        .pad_top = (ptrdiff_t)window.pad_begin[0],
        .pad_left = (ptrdiff_t)window.pad_begin[1],
    };
    ret->tile_rows = (ret->out_height + TILE - 1) / TILE;
    ret->tile_columns = (ret->out_width + TILE - 1) / TILE;
    ret->tiles = ret->images * ret->tile_rows * ret->tile_columns;
    return is_small(ret);
}

KERNEL_CLAIM(winograd_claim)
{
    struct winograd_step ignored;
    return measure_up(node, &ignored);
}

STEP_CREATE(lower_winograd)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    struct winograd_step proto;
    struct tensor *weights = node->inputs[1]->known;
    if (!measure_up(node, &proto) || (!winograd_pays(&proto) && !lowering->any))
        return STATUS_OK;
    struct winograd_step *step =
        step_create_as(lowering, &proto.step, sizeof *step, winograd_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = step->bf16 ? "winograd bf16" : "winograd";
    step->step.packs_constants = true;
    step->packed = step->simd->gemm_packed(step->channels, step->out_channels);
    winograd_divide(step, (size_t)lowering->backend->options.threads);
    TRY(finish_init(lowering, node_bias(node), &step->finish, err));
    TRY(weights_pack_own(lowering->backend, weights, "winograd",
                         POINTS * step->packed * sizeof(float), winograd_pack, step, &step->weights,
                         err));
    const double count = (double)shape_count(&y->shape);
    step->step.flops = 18 * count * (double)step->channels;
    step->step.bytes = value_bytes(x) + value_bytes(y) + sizeof(float) * POINTS * step->packed;
    return STATUS_OK;
}

const struct cpu_kernel cpu_winograd = {{"winograd", {OP_CONV}, winograd_claim}, lower_winograd};
