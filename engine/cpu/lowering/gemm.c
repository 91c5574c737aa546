/* Convolutions and fully connected layers as a matrix product, by the kernel of
 * kernels/gemm.c: pixels x (taps x channels) times (taps x channels) x output channels.
 *
 * A pointwise convolution reads its source in place. With few weights, so does a window inside the
 * image: a row of taps is one run of numbers. Otherwise the rows of a piece that fits in the
 * second-level cache are gathered first, tap by tap. With a gate, a factor per image and channel of
 * the source, rows are copied. */
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"

#include <stdlib.h>
#include <string.h>

struct dense_step {
    struct step step;
    const struct simd_kernels *simd;
    uint32_t gate;
    struct finish finish;
    const float *weights;   /* packed panels */
    size_t rows, k, n;      /* rows: output pixels of all images */
    size_t gathered_step;   /* from row to row of gathered taps: not a multiple of 4096 bytes */
    bool gathers, in_place; /* in_place: windows inside the image are not gathered */
    struct window window;   /* of a convolution that gathers */
    size_t channels;
    bool gated;
    bool transposed;                  /* the constant is [n, k] */
    size_t images;                    /* of a convolution */
    size_t row_pieces, column_pieces; /* the work is divided into row_pieces x column_pieces */
    size_t thread_bytes;              /* scratch per thread: gathered, gated or copied rows */
    bool copies;                      /* the kernel reads copies of the rows */
    /* of this run */
    const float *x_data;
    float *y_data;
    const float *gate_data;
};

/* ---- running ---- */

/* Copies inline: short runs are common (three colours, three taps) and not worth a call. */
static void copy_run(const float *from, size_t count, float *to)
{
    if (count > 32) {
        memcpy(to, from, count * sizeof *to);
        return;
    }
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Gathers the taps of one output pixel, in the order of the packed weights: y, x, channel. */
static void gather_pixel(const struct dense_step *s, size_t pixel, float *to)
{
    const struct window *w = &s->window;
    const size_t width = (size_t)w->out[1], area = width * (size_t)w->out[0];
    const size_t image = pixel / area, in_image = pixel % area;
    const int64_t y0 = (int64_t)(in_image / width) * w->stride[0] - w->pad_begin[0];
    const int64_t x0 = (int64_t)(in_image % width) * w->stride[1] - w->pad_begin[1];
    const float *x = s->x_data + image * (size_t)(w->in[0] * w->in[1]) * s->channels;
    for (int64_t ky = 0; ky < w->kernel[0]; ky++) {
        const int64_t row = y0 + ky * w->dilation[0];
        const bool row_inside = row >= 0 && row < w->in[0];
        /* a whole row of taps is contiguous */
        if (row_inside && w->dilation[1] == 1 && x0 >= 0 && x0 + w->kernel[1] <= w->in[1]) {
            const size_t count = (size_t)w->kernel[1] * s->channels;
            copy_run(x + (size_t)(row * w->in[1] + x0) * s->channels, count, to);
            to += count;
            continue;
        }
        for (int64_t kx = 0; kx < w->kernel[1]; kx++, to += s->channels) {
            const int64_t column = x0 + kx * w->dilation[1];
            if (row_inside && column >= 0 && column < w->in[1])
                copy_run(x + (size_t)(row * w->in[1] + column) * s->channels, s->channels, to);
            else
                memset(to, 0, s->channels * sizeof *to);
        }
    }
}

/* Computes results first … first + rows - 1 from gathered taps. */
static void dense_gathered(const struct dense_step *s, struct gemm *g, size_t first, size_t rows,
                           float *gathered)
{
    for (size_t row = 0; row < rows; row++)
        gather_pixel(s, first + row, gathered + row * s->gathered_step);
    g->a = gathered;
    g->lda = s->gathered_step;
    g->run = g->run_step = 0;
    s->simd->gemm(g, rows);
    g->c += rows * g->ldc;
}

/* Divides `count` results from `at` on along one axis. Finds how many have all taps inside, and how
 * many precede these. */
static void divide_run(const struct window *w, int axis, int64_t at, int64_t count,
                       int64_t *ret_before, int64_t *ret_inside)
{
    const int64_t stride = w->stride[axis];
    const int64_t last = w->in[axis] - (w->kernel[axis] - 1) * w->dilation[axis] - 1;
    const int64_t first = (w->pad_begin[axis] + stride - 1) / stride;
    const int64_t end =
        last + w->pad_begin[axis] < 0 ? 0 : (last + w->pad_begin[axis]) / stride + 1;
    const int64_t before = first > at ? first - at : 0;
    *ret_before = before < count ? before : count;
    const int64_t inside = end - at - *ret_before, left = count - *ret_before;
    *ret_inside = inside < 0 ? 0 : inside < left ? inside : left;
}

/* Computes `count` results of one row of the image; gathers the taps of results at the edges. */
static void dense_row(const struct dense_step *s, struct gemm *g, size_t first, size_t count,
                      float *gathered)
{
    const struct window *w = &s->window;
    const int64_t width = w->out[1], row = (int64_t)first / width, x = (int64_t)first % width;
    const int64_t image = row / w->out[0], y = row % w->out[0];
    int64_t above, rows_inside, before, inside;
    divide_run(w, 0, y, 1, &above, &rows_inside);
    divide_run(w, 1, x, (int64_t)count, &before, &inside);
    if (!rows_inside || !inside) {
        dense_gathered(s, g, first, count, gathered);
        return;
    }
    if (before)
        dense_gathered(s, g, first, (size_t)before, gathered);
    const int64_t from_y = image * w->in[0] + y * w->stride[0] - w->pad_begin[0];
    const int64_t from_x = (x + before) * w->stride[1] - w->pad_begin[1];
    g->a = s->x_data + (size_t)(from_y * w->in[1] + from_x) * s->channels;
    g->lda = (size_t)w->stride[1] * s->channels;
    g->run = (size_t)w->kernel[1] * s->channels;
    g->run_step = (size_t)(w->dilation[0] * w->in[1]) * s->channels;
    s->simd->gemm(g, (size_t)inside);
    g->c += (size_t)inside * g->ldc;
    const size_t done = (size_t)(before + inside);
    if (done < count)
        dense_gathered(s, g, first + done, count - done, gathered);
}

/* Computes results first … first + rows - 1 of a convolution that is not pointwise. */
static void dense_windows(const struct dense_step *s, struct gemm *g, size_t first, size_t rows,
                          float *gathered)
{
    if (!s->in_place) {
        dense_gathered(s, g, first, rows, gathered);
        return;
    }
    const size_t width = (size_t)s->window.out[1], end = first + rows;
    for (size_t row = first, count; row < end; row += count) {
        count = width - row % width;
        count = count < end - row ? count : end - row;
        dense_row(s, g, row, count, gathered);
    }
}

/* Multiplies rows first … first + rows - 1 of the source by their image's gate. */
static void gate_rows(const struct dense_step *s, size_t first, size_t rows, float *to)
{
    const size_t each = s->rows / s->images;
    for (size_t r = first; r < first + rows; r++, to += s->k)
        s->simd->binary(BINARY_MUL, s->x_data + r * s->k, 1, s->gate_data + r / each * s->k, 1, to,
                        s->k);
}

static void dense_pieces(void *context, size_t begin, size_t end)
{
    const struct dense_step *s = context;
    const size_t panel = s->simd->gemm_columns, panels = (s->n + panel - 1) / panel;
    float *gathered =
        (float *)(void *)(s->step.memory + (size_t)forkjoin_member() * s->thread_bytes);
    for (size_t i = begin; i < end; i++) {
        /* the column index runs slowest, so that a thread keeps its weights */
        const size_t r = i % s->row_pieces, c = i / s->row_pieces;
        const size_t first = s->rows * r / s->row_pieces;
        const size_t rows = s->rows * (r + 1) / s->row_pieces - first;
        const size_t from = panels * c / s->column_pieces * panel;
        size_t to = panels * (c + 1) / s->column_pieces * panel;
        to = to < s->n ? to : s->n;
        struct gemm g = {.a = s->x_data + first * s->k,
                         .lda = s->k,
                         .b = s->weights + from * s->k,
                         .k = s->k,
                         .bias = s->finish.bias ? s->finish.bias + from : NULL,
                         .n = to - from,
                         .c = s->y_data + first * s->n + from,
                         .ldc = s->n,
                         .accumulate = s->finish.residual.present,
                         .clamp = s->finish.clamp,
                         .low = s->finish.low,
                         .high = s->finish.high,
                         .row = s->finish.row,
                         .copies = s->copies ? gathered : NULL};
        if (s->gathers) {
            dense_windows(s, &g, first, rows, gathered);
            continue;
        }
        if (s->gated) {
            gate_rows(s, first, rows, gathered);
            g.a = gathered;
        }
        s->simd->gemm(&g, rows);
    }
}

STEP_RUN(dense_run)
{
    struct dense_step *s = (struct dense_step *)base;
    s->x_data = (const void *)base->x;
    s->y_data = (void *)base->y;
    residual_begin(&s->finish.residual, program, s->y_data);
    if (s->gated)
        s->gate_data = program->data[s->gate];
    const size_t pieces = s->row_pieces * s->column_pieces;
    parallel_for(program->backend->options.threads, pieces, s->rows * s->k * s->n / pieces / 32 + 1,
                 dense_pieces, s);
    return STATUS_OK;
}

/* ---- compile ---- */

/* Threads share the rows or the columns. Each thread reads all of the other operand, so the other
 * one should be smaller. If rows are copied first, columns are shared only if there are too few
 * rows for every thread. A piece's source and result stay in the second-level cache. If the weights
 * do not, a piece has enough rows for each time that the weights are read (kernels/gemm.c). Each
 * thread gets several pieces of columns, so that idle threads can take some. */
static void dense_divide(struct dense_step *s, size_t threads)
{
    enum { NEAR = 256 * 1024, ROWS_NEAR = 704 * 1024, DEPTH = 768, EACH = 4 };
    const size_t panel = s->simd->gemm_columns, panels = (s->n + panel - 1) / panel;
    const size_t unit = s->simd->gemm_rows;
    const bool copies = s->gathers || s->gated;
    s->gathered_step = s->k * sizeof(float) % 4096 ? s->k : s->k + 16;
    const bool by_columns =
        s->rows < (copies ? unit * threads : s->n) && panels >= threads && threads > 1;
    const size_t pieces = panels / threads < EACH ? panels / threads : EACH;
    s->column_pieces = !by_columns ? 1 : copies ? threads : threads * pieces;
    const size_t columns = s->n / s->column_pieces + 1, deep = s->k < DEPTH ? s->k : DEPTH;
    size_t most = NEAR / ((s->k + columns) * sizeof(float));
    if (s->k * columns * sizeof(float) > NEAR && ROWS_NEAR / (deep * sizeof(float)) > most)
        most = ROWS_NEAR / (deep * sizeof(float));
    most = most < unit ? unit : most / unit * unit;
    const size_t sharers = by_columns ? 1 : threads;
    const size_t each = (s->rows + sharers - 1) / sharers;
    s->row_pieces = (each + most - 1) / most * sharers;
    if (s->row_pieces > s->rows)
        s->row_pieces = s->rows;
    const size_t rows = s->rows / s->row_pieces + 1;
    const struct gemm g = {.lda = s->k, .k = s->k, .n = columns};
    const size_t copied = copies ? 0 : s->simd->gemm_copies(&g, rows);
    s->copies = copied > 0;
    s->thread_bytes =
        size_align((copies ? rows * s->gathered_step : copied) * sizeof(float), TENSOR_ALIGN);
    s->step.scratch = s->thread_bytes * threads;
}

/* ONNX's [M, C, taps…] as (taps, C) x M. */
static bool pack_conv(const void *context, const struct tensor *constant, float *packed)
{
    const struct simd_kernels *kernels = context;
    const size_t n = (size_t)constant->shape.dims[0], channels = (size_t)constant->shape.dims[1];
    const size_t k = shape_count(&constant->shape) / n, taps = k / channels;
    const float *w = constant->data;
    if (taps == 1) {
        kernels->gemm_pack(w, 1, k, k, n, packed);
        return true;
    }
    float *plain = alloc_array(k * n, sizeof *plain);
    if (!plain)
        return false;
    for (size_t m = 0; m < n; m++)
        for (size_t c = 0; c < channels; c++)
            for (size_t t = 0; t < taps; t++)
                plain[m * k + t * channels + c] = w[(m * channels + c) * taps + t];
    kernels->gemm_pack(plain, 1, k, k, n, packed);
    free(plain);
    return true;
}

enum status weights_pack_conv(struct backend *backend, struct tensor *weights, const float **ret,
                              size_t *ret_bytes, struct error *err)
{
    const struct simd_kernels *kernels = simd();
    const size_t n = (size_t)weights->shape.dims[0], k = shape_count(&weights->shape) / n;
    *ret_bytes = kernels->gemm_packed(k, n) * sizeof(float);
    return weights_pack_own(backend, weights, "conv panels", *ret_bytes, pack_conv, kernels, ret,
                            err);
}

static bool pack_matrix(const void *context, const struct tensor *constant, float *packed)
{
    const struct dense_step *s = context;
    s->simd->gemm_pack(constant->data, s->transposed ? 1 : s->n, s->transposed ? s->k : 1, s->k,
                       s->n, packed);
    return true;
}

static enum status dense_pack(struct dense_step *s, const struct lowering *lowering,
                              size_t *ret_bytes, struct error *err)
{
    struct tensor *weights = lowering->node->inputs[1]->known;
    if (lowering->node->op == OP_CONV)
        return weights_pack_conv(lowering->backend, weights, &s->weights, ret_bytes, err);
    *ret_bytes = s->simd->gemm_packed(s->k, s->n) * sizeof(float);
    return weights_pack_own(lowering->backend, weights,
                            s->transposed ? "transposed panels" : "matrix panels", *ret_bytes,
                            pack_matrix, s, &s->weights, err);
}

/* Creates the step of a node that the kernel fits. */
static enum status dense_build(const struct lowering *lowering, const struct dense_step *proto,
                               struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    struct dense_step *step =
        step_create_as(lowering, &proto->step, sizeof *step, dense_run, ret, err);
    TRY(allocated(step));
    step->step.kernel = "gemm";
    step->step.packs_constants = true;
    if (node->gate) {
        step->gate = node->gate->index;
        step->gated = true;
        step->step.kernel = "gemm:gated";
    }
    dense_divide(step, (size_t)lowering->backend->options.threads);
    TRY(finish_init(lowering, node_bias(node), &step->finish, err));
    size_t bytes;
    TRY(dense_pack(step, lowering, &bytes, err));
    step->step.flops = 2 * (double)step->rows * (double)step->k * (double)step->n;
    step->step.bytes = bytes + sizeof(float) * (shape_count(&node->inputs[0]->shape) +
                                                shape_count(&node->outputs[0]->shape));
    return STATUS_OK;
}

/* True if the source is read in place. */
static bool is_pointwise(const struct window *w)
{
    bool pointwise = true;
    for (int a = 0; a < 2; a++)
        pointwise = pointwise && w->kernel[a] == 1 && w->stride[a] == 1 && !w->pad_begin[a] &&
                    !w->pad_end[a];
    return pointwise;
}

/* Each row of results is a separate product that fetches the weights, so they must be few. */
static bool reads_in_place(const struct dense_step *s)
{
    enum { NEAR = 64 * 1024, FEWEST = 14 };
    const struct window *w = &s->window;
    return w->dilation[1] == 1 && w->out[1] >= FEWEST && w->pad_begin[0] >= 0 &&
           w->pad_begin[1] >= 0 && s->k * s->n * sizeof(float) <= NEAR;
}

static bool multiplies_gate(const struct node *node)
{
    struct window w;
    struct error ignored;
    return window_init(node, 2, node->inputs[0]->shape.dims + 1,
                       node->inputs[1]->known->shape.dims + 2, &w, &ignored) == STATUS_OK &&
           is_pointwise(&w);
}

KERNEL_CLAIM(dense_claim)
{
    const struct value *x = node->inputs[0], *w = node->inputs[1], *y = node->outputs[0];
    const struct value *bias = node_bias(node);
    if (!is_f32_constant(w) || (bias && !is_f32_constant(bias)) || x->dtype != DTYPE_F32 ||
        y->dtype != DTYPE_F32)
        return false;
    if (node->op != OP_CONV)
        return w->shape.rank == 2 && x->shape.rank >= 2 && !x->known && shape_count(&w->shape) &&
               shape_count(&y->shape) &&
               (node->op == OP_MATMUL ||
                (claim_gemm_is_plain(node) && !node_int(node, "transA", 0)));
    if (!node->channels_last || x->shape.rank != 4 || node_int(node, "group", 1) != 1)
        return false;
    if (multiplies_gate(node))
        ret->can |= KERNEL_GATE;
    return true;
}

STEP_CREATE(lower_dense_conv)
{
    const struct node *node = lowering->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct tensor *weights = node->inputs[1]->known;
    struct dense_step proto = {.simd = simd(), .n = (size_t)weights->shape.dims[0]};
    TRY(window_init(node, 2, x->shape.dims + 1, weights->shape.dims + 2, &proto.window, err));
    const struct window *w = &proto.window;
    proto.channels = (size_t)weights->shape.dims[1];
    proto.k = proto.channels * (size_t)(w->kernel[0] * w->kernel[1]);
    proto.rows = shape_count(&y->shape) / proto.n;
    proto.images = (size_t)x->shape.dims[0];
    proto.gathers = !is_pointwise(w);
    proto.in_place = proto.gathers && reads_in_place(&proto);
    return dense_build(lowering, &proto, ret, err);
}

STEP_CREATE(lower_dense_matmul)
{
    const struct node *node = lowering->node;
    const struct value *b = node->inputs[1], *y = node->outputs[0];
    const bool transposed = node->op == OP_GEMM && node_int(node, "transB", 0);
    struct dense_step proto = {.simd = simd(),
                               .k = (size_t)b->shape.dims[transposed],
                               .n = (size_t)b->shape.dims[!transposed],
                               .transposed = transposed};
    proto.rows = shape_count(&y->shape) / proto.n;
    return dense_build(lowering, &proto, ret, err);
}

STEP_CREATE(lower_gemm)
{
    return lowering->node->op == OP_CONV ? lower_dense_conv(lowering, ret, err)
                                         : lower_dense_matmul(lowering, ret, err);
}

const struct cpu_kernel cpu_gemm = {{"gemm", {OP_CONV, OP_GEMM, OP_MATMUL}, dense_claim},
                                    lower_gemm};
