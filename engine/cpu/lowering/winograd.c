/* 3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): a quarter of the multiplications if the
 * image's sides are multiples of 4 (kernels/winograd.c has the formula).
 *
 * Tiles of 6x6 source pixels are transformed (36 points, each a matrix tiles x channels),
 * multiplied point by point with the transformed weights, and transformed back. The work is divided
 * in one of two ways:
 *
 *   - by tiles: the filters are transformed first; then each thread takes blocks of tiles through
 *     all three stages. Intermediate data stays in its second-level cache. For few channels.
 *   - by points: the three stages one after the other over a round of tiles. A thread transforms
 *     some of the filters and at once multiplies all tiles with them. For many channels.
 *
 * Transformed filters are four times as large as the filters. Transforming them in each run costs
 * less than fetching them from memory. The packed filters are those of the direct convolution.
 * Images may be bfloat16; the arithmetic is float32 with unrounded weights. */
#include "engine/base/cpu.h"
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/product_step.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

enum { POINTS = WINOGRAD_POINTS, SIDE = 6, TILE = 4 };

struct winograd_step {
    struct step step;
    const struct simd_kernels *simd;
    struct residual residual;
    struct gemm ending;   /* for winograd_sink(): only bias, n, accumulate and row */
    const float *weights; /* [panel][tap][channel][column], as a convolution reads them */
    size_t panel;         /* floats of one tap in one panel */
    size_t panels;
    size_t rows; /* rows of SIDE points for which filters are transformed at once */
    size_t images, height, width, channels, out_height, out_width, out_channels;
    size_t pitch; /* elements from one result pixel to the next */
    ptrdiff_t pad_top, pad_left;
    size_t tile_rows, tile_columns; /* rows and columns of tiles in an image */
    size_t tiles;                   /* tiles in all images */
    bool bf16;                      /* images are bfloat16 */
    bool by_points;
    size_t block;        /* tiles per block, or per round */
    size_t shared_bytes; /* scratch of all threads: `v`, `m` (by points) or filters (by tiles) */
    size_t thread_bytes; /* scratch per thread: filters (by points) or `v` and `m` (by tiles) */
    /* set for each run */
    float *filters;      /* by tiles: POINTS x panels x panel */
    float *v, *m;        /* by points: POINTS x block x channels and out_channels */
    size_t first, count; /* by points: first tile and number of tiles of this round */
};

/* Scratch of the calling thread. */
static float *winograd_memory(const struct winograd_step *s)
{
    return (float *)(void *)(s->step.memory + s->shared_bytes +
                             (size_t)forkjoin_member() * s->thread_bytes);
}

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
        .row_step = (ptrdiff_t)(s->out_width * s->pitch),
        .column_step = (ptrdiff_t)s->pitch,
        .bottom = clamp_int((ptrdiff_t)(s->out_height - top), 0, TILE),
        .right = clamp_int((ptrdiff_t)(s->out_width - left), 0, TILE),
    };
    const size_t at = ((tile / per_image * s->out_height + top) * s->out_width + left) * s->pitch;
    void *result = s->step.y + at * (s->bf16 ? sizeof(uint16_t) : sizeof(float));
    s->simd->winograd_sink(&t, &s->ending, m + row * n, rows * n, result, s->bf16);
    const struct epilogue *e = &s->ending.row; /* no row activation if the result is bfloat16 */
    float *y = result;
    const int together = s->pitch == n ? t.right : 1; /* pixels */
    for (int i = 0; is_row_activation(e->activation) && i < t.bottom; i++)
        s->simd->activate_rows(y + i * t.row_step, y + i * t.row_step, (size_t)(t.right / together),
                               s->pitch, (size_t)together * n, e->activation, e->alpha, e->beta);
}

/* Multiplies v by the filters of some panels of columns, transformed for one point. */
static void winograd_multiply(const struct winograd_step *s, size_t point, const float *filters,
                              const float *v, float *m, size_t rows, size_t first_panel,
                              size_t panels)
{
    const size_t from = first_panel * s->simd->gemm_columns;
    const size_t most = panels * s->simd->gemm_columns, left = s->out_channels - from;
    const struct gemm g = {
        .a = v + point * rows * s->channels,
        .lda = s->channels,
        .b = filters,
        .k = s->channels,
        .n = left < most ? left : most,
        .c = m + point * rows * s->out_channels + from,
        .ldc = s->out_channels,
    };
    s->simd->gemm(&g, rows);
}

/* Returns the first point of a work item, which is one panel and some rows of points. */
static size_t first_point(const struct winograd_step *s, size_t item)
{
    return item / s->panels * s->rows * SIDE;
}

static void transform_filters(const struct winograd_step *s, size_t item, float *to, size_t step)
{
    const float *taps = s->weights + 9 * (item % s->panels) * s->panel;
    s->simd->winograd_filters(taps, s->panel, first_point(s, item) / SIDE, s->rows, to, step);
}

/* ---- by tiles ---- */

static void all_filters(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    const size_t each = s->panels * s->panel;
    for (size_t i = begin; i < end; i++)
        transform_filters(s, i, s->filters + first_point(s, i) * each + i % s->panels * s->panel,
                          each);
}

static void winograd_blocks(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    const size_t blocks = (s->tiles + s->block - 1) / s->block;
    float *v = winograd_memory(s);
    float *m = v + POINTS * s->block * s->channels;
    for (size_t b = begin; b < end; b++) {
        const size_t first = s->tiles * b / blocks, last = s->tiles * (b + 1) / blocks;
        const size_t rows = last - first;
        for (size_t i = 0; i < rows; i++)
            winograd_source_tile(s, first + i, v, rows, i);
        for (size_t p = 0; p < POINTS; p++)
            winograd_multiply(s, p, s->filters + p * s->panels * s->panel, v, m, rows, 0,
                              s->panels);
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

static void round_products(void *context, size_t begin, size_t end)
{
    const struct winograd_step *s = context;
    float *filters = winograd_memory(s);
    for (size_t i = begin; i < end; i++) {
        transform_filters(s, i, filters, s->panel);
        for (size_t p = 0; p < s->rows * SIDE; p++)
            winograd_multiply(s, first_point(s, i) + p, filters + p * s->panel, s->v, s->m,
                              s->count, i % s->panels, 1);
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
    const int threads = program->threads;
    residual_begin(&s->residual, s->step.y);
    const size_t cost = POINTS * s->channels * s->out_channels / 32;
    const size_t items = s->panels * SIDE / s->rows, transform = s->panel * s->rows;
    if (!s->by_points) {
        s->filters = (float *)(void *)s->step.memory;
        parallel_for(threads, items, transform, all_filters, s);
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
        parallel_for(threads, items, s->count * cost / items + transform, round_products, s);
        parallel_for(threads, s->count, s->out_channels * 16, round_sinks, s);
    }
    return STATUS_OK;
}

/* ---- compile ---- */

/* True if Winograd is faster than a direct convolution, which runs twice as fast in bfloat16. Costs
 * are counted in multiply-adds: TRANSFORM per channel of a tile, FILTER per filter. Measured on Zen
 * 4 and on a Xeon with AVX-512. */
static bool winograd_pays(const struct winograd_step *s)
{
    enum { TRANSFORM = 250, FILTER = 288, BF16_RATE = 2 };
    const double in = (double)s->channels, out = (double)s->out_channels;
    const double tiles = (double)s->tiles;
    const double direct = 9 * in * out * (double)(s->images * s->out_height) * (double)s->out_width;
    const double here = in * out * (POINTS * tiles + FILTER) + TRANSFORM * tiles * (in + out);
    return in >= 16 && out >= 16 && here < 0.8 * direct / (s->bf16 ? BF16_RATE : 1);
}

/* Divides the work of a run into pieces. A block's tiles stay in a second-level cache of 512 KiB or
 * more (NEAR). If fewer than FEW tiles fit, blocks would read the filters too often, so the work is
 * divided by points. A round's tiles stay in a share of the third-level cache (ROUND). If a round's
 * transformed sources exceed V_NEAR, an item reads only one row of points. */
static void winograd_divide(struct winograd_step *s, size_t threads)
{
    enum { NEAR = 448 * 1024, FEW = 12, ROUND = 16 << 20, V_NEAR = 1 << 20 };
    const size_t tile_bytes = POINTS * (s->channels + s->out_channels) * sizeof(float);
    const size_t fit = NEAR / tile_bytes, each = (s->tiles + threads - 1) / threads;
    s->panels = (s->out_channels + s->simd->gemm_columns - 1) / s->simd->gemm_columns;
    s->panel = s->channels * s->simd->gemm_columns;
    s->by_points = fit < FEW;
    if (s->by_points) {
        const size_t most = ROUND / tile_bytes + 1;
        const size_t rounds = (s->tiles + most - 1) / most;
        s->block = (s->tiles + rounds - 1) / rounds;
        s->shared_bytes = s->block * tile_bytes;
    } else {
        const size_t blocks = (each + fit - 1) / fit;
        s->block = (each + blocks - 1) / blocks;
        s->shared_bytes = POINTS * s->panels * s->panel * sizeof(float);
    }
    const size_t v_bytes = POINTS * s->block * s->channels * sizeof(float);
    s->rows = s->panels < threads || (s->by_points && v_bytes > V_NEAR) ? 1 : SIDE;
    s->shared_bytes = size_align(s->shared_bytes, TENSOR_ALIGN);
    s->thread_bytes =
        size_align(s->by_points ? SIDE * s->rows * s->panel * sizeof(float) : s->block * tile_bytes,
                   TENSOR_ALIGN);
    s->step.scratch = s->shared_bytes + s->thread_bytes * threads;
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
    if (!node->channels_last || x->shape.rank != 4 || node->gate || node_output(node, 1) ||
        y->dtype != x->dtype ||
        window_init(node, 2, x->shape.dims + 1, node->inputs[1]->known->shape.dims + 2, &window,
                    NULL) != STATUS_OK ||
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
    return true;
}

enum status lower_winograd(const struct lowering *lowering, struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *y = node->outputs[0], *bias = node_bias(node);
    struct winograd_step proto;
    if (!measure_up(node, &proto) ||
        (!winograd_pays(&proto) && !lowering->backend->prefers_winograd))
        return STATUS_OK;
    struct winograd_step *step = step_create(lowering, sizeof *step, winograd_run, ret, err);
    TRY(allocated(step));
    proto.step = step->step;
    *step = proto;
    step->step.kernel = step->bf16 ? "winograd bf16" : "winograd";
    step->step.packs_constants = true;
    step->pitch = pixel_pitch(lowering, y);
    winograd_divide(step, (size_t)lowering->program->threads);
    if (bias)
        TRY(program_keep_constant(lowering->program, bias, err));
    step->residual = residual_of(lowering);
    step->ending = (struct gemm){.bias = bias ? bias->known->data : NULL,
                                 .n = step->out_channels,
                                 .accumulate = node->epilogue.residual != NULL,
                                 .row = epilogue_with_clip(&node->epilogue)};
    struct tensor *weights = node->inputs[1]->known;
    const struct strided_layout given = conv_weights(weights, 1);
    const size_t k = 9 * step->channels;
    const struct packed_layout wanted = {
        .simd = step->simd, .parts = 1, .k = k, .n = step->out_channels, .run = k, .whole_run = k};
    const void *packed;
    TRY(weights_get(lowering->backend, weights, &given, &wanted, &packed, err));
    step->weights = packed;
    step->step.bytes += packed_layout_bytes(&wanted);
    return STATUS_OK;
}
