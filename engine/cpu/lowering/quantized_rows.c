/* Row kernels on 8-bit integers: QuantizeLinear, DequantizeLinear, tables (OP_LOOKUP),
 * QLinearAdd, QLinearMul, and channels-last MaxPool, QLinearAveragePool and
 * QLinearGlobalAveragePool. One scale and zero point per tensor; reference kernels run the rest. */
#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/families.h"
#include "engine/op/geometry.h"

#include <math.h>
#include <string.h>

enum row_kind {
    ROW_QUANTIZE,
    ROW_DEQUANTIZE,
    ROW_LOOKUP,
    ROW_ADD,
    ROW_MUL,
    ROW_MAX_POOL,
    ROW_MEAN_POOL,
    ROW_MEAN,
};

struct row_step {
    struct step step;
    const struct simd_kernels *simd;
    enum row_kind kind;
    uint32_t x, b;
    bool is_signed;
    struct scale_zero from, from_b, to;
    float a_ratio, b_ratio, fixed; /* of Add; Mul has only a_ratio */
    uint8_t table[256];            /* Lookup */
    bool by_channel;               /* Add, Mul: b is [channels] or [images, channels] */
    size_t count;                  /* number of elements, for the elementwise kinds */
    struct window window;          /* pools */
    bool count_include_pad;
    size_t images, channels, pixels;
    size_t thread_bytes; /* scratch per thread, for a mean: one sum per channel */
    const unsigned char *b_data;
};

enum { PIECE = 4096, MOST_TAPS = 256 };

/* Computes n elements of y by an Add or Mul. */
static void qrows_binary(const struct row_step *s, const uint8_t *x, const uint8_t *b, uint8_t *y,
                         size_t n)
{
    if (s->kind == ROW_ADD)
        s->simd->add_8bit(x, s->a_ratio, b, s->b_ratio, s->fixed, s->is_signed, y, n);
    else
        s->simd->mul_8bit(x, s->from.zero, b, s->from_b.zero, s->a_ratio, s->to.zero, s->is_signed,
                          y, n);
}

static void qrows_pieces(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const size_t first = begin * PIECE, last = end * PIECE < s->count ? end * PIECE : s->count;
    const size_t n = last - first;
    const unsigned char *x = s->step.x + first;
    unsigned char *y = s->step.y + first;
    switch (s->kind) {
    case ROW_QUANTIZE:
        s->simd->quantize((const float *)(const void *)s->step.x + first, s->to.scale, s->to.zero,
                          s->is_signed, y, n);
        break;
    case ROW_DEQUANTIZE:
        s->simd->dequantize(x, s->is_signed, s->from.scale, s->from.zero,
                            (float *)(void *)s->step.y + first, n);
        break;
    case ROW_LOOKUP:
        s->simd->lookup(&(struct lookup_rows){.table = s->table}, x, y, 1, n);
        break;
    default:
        qrows_binary(s, x, s->b_data + first, y, n);
        break;
    }
}

static void qrows_pixels(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    for (size_t p = begin; p < end; p++)
        qrows_binary(s, s->step.x + p * s->channels, s->b_data + p / s->pixels * s->channels,
                     s->step.y + p * s->channels, s->channels);
}

/* ---- pools ---- */

static void max_of(const struct row_step *s, const void *const *taps, size_t count,
                   unsigned char *y)
{
    if (count)
        s->simd->pool_max_8bit(taps, count, s->is_signed, y, s->channels);
    else /* the window is entirely in the padding: use the lowest number */
        memset(y, s->is_signed ? 0x80 : 0, s->channels);
}

/* Padding counts as the number 0, which is stored as the zero point. */
static void mean_of(const struct row_step *s, const void *const *taps, size_t count,
                    int64_t divisor, unsigned char *y)
{
    const float all = (float)(divisor > 0 ? divisor : 1);
    const float factor = s->from.scale / (s->to.scale * all);
    const float fixed = (float)s->to.zero - factor * (float)((int64_t)count * s->from.zero);
    s->simd->pool_mean_8bit(taps, count, factor, fixed, s->is_signed, y, s->channels);
}

/* Computes rows begin … end - 1 of a pool's result. */
static void qrows_pool_rows(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const struct window *w = &s->window;
    for (size_t row = begin; row < end; row++) {
        const size_t image = row / (size_t)w->out[0];
        const int64_t oy = (int64_t)(row % (size_t)w->out[0]);
        const unsigned char *x = s->step.x + image * s->pixels * s->channels;
        for (int64_t ox = 0; ox < w->out[1]; ox++) {
            const void *taps[MOST_TAPS];
            int64_t counted;
            const size_t count = pool_taps(w, x, s->channels, oy, ox, taps, &counted);
            unsigned char *y = s->step.y + (row * (size_t)w->out[1] + (size_t)ox) * s->channels;
            if (s->kind == ROW_MAX_POOL)
                max_of(s, taps, count, y);
            else
                mean_of(s, taps, count, s->count_include_pad ? counted : (int64_t)count, y);
        }
    }
}

static void qrows_means(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const float factor = s->from.scale / (s->to.scale * (float)s->pixels);
    const int low = s->is_signed ? -128 : 0;
    int32_t *sums =
        (int32_t *)(void *)(s->step.memory + (size_t)forkjoin_member() * s->thread_bytes);
    for (size_t image = begin; image < end; image++) {
        s->simd->sum_rows_8bit(s->step.x + image * s->pixels * s->channels, s->pixels, s->is_signed,
                               sums, s->channels);
        for (size_t c = 0; c < s->channels; c++) {
            const int32_t sum = sums[c] - (int32_t)s->pixels * s->from.zero;
            const float real = rintf((float)sum * factor) + (float)s->to.zero;
            const float above = real > (float)low ? real : (float)low;
            const int stored = above < (float)(low + 255) ? (int)above : low + 255;
            s->step.y[image * s->channels + c] = (unsigned char)stored;
        }
    }
}

/* ---- the step ---- */

STEP_RUN(qrows_run)
{
    struct row_step *s = (struct row_step *)base;
    const int threads = program->threads;
    s->b_data = program->data[s->b];
    if (s->by_channel) {
        parallel_for(threads, s->images * s->pixels, s->channels / 8 + 1, qrows_pixels, s);
        return STATUS_OK;
    }
    switch (s->kind) {
    case ROW_MAX_POOL:
    case ROW_MEAN_POOL:
        parallel_for(threads, s->images * (size_t)s->window.out[0],
                     (size_t)s->window.out[1] * s->channels / 4, qrows_pool_rows, s);
        break;
    case ROW_MEAN:
        parallel_for(threads, s->images, s->pixels * s->channels / 16, qrows_means, s);
        break;
    default:
        parallel_for(threads, (s->count + PIECE - 1) / PIECE,
                     s->kind == ROW_LOOKUP ? PIECE / 32 : PIECE / 8, qrows_pieces, s);
        break;
    }
    return STATUS_OK;
}

/* True if b is [N, 1 …, C] for the image x: one number per image and channel. */
static bool is_gate(const struct shape *x, const struct shape *b)
{
    if (x->rank < 3 || b->rank != x->rank || b->dims[0] != x->dims[0] ||
        b->dims[x->rank - 1] != x->dims[x->rank - 1])
        return false;
    for (int a = 1; a < x->rank - 1; a++)
        if (b->dims[a] != 1)
            return false;
    return true;
}

/* True if b has one number for each channel of x. */
static bool is_row(const struct shape *x, const struct shape *b)
{
    return x->rank && b->rank && shape_count(b) == (size_t)b->dims[b->rank - 1] &&
           b->dims[b->rank - 1] == x->dims[x->rank - 1];
}

static void prepare_binary(struct row_step *s)
{
    if (s->kind == ROW_ADD)
        quantized_sum_factors(&s->from, &s->from_b, &s->to, &s->a_ratio, &s->b_ratio, &s->fixed);
    else if (s->kind == ROW_MUL)
        s->a_ratio = s->from.scale * s->from_b.scale / s->to.scale;
}

/* Turns an Add or Mul with a constant scalar into a table. */
static void become_table(struct row_step *s, const struct tensor *number)
{
    uint8_t all[256], same[256];
    prepare_binary(s);
    memset(same, *(const uint8_t *)number->data, sizeof same);
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    qrows_binary(s, all, same, s->table, sizeof s->table);
    s->kind = ROW_LOOKUP;
}

/* Sets the parameters of a QLinearAdd or QLinearMul. */
static bool classify_binary(const struct node *node, struct row_step *ret)
{
    const struct value *a = node->inputs[0], *b = node_input(node, 3), *y = node->outputs[0];
    const enum dtype dtype = y->dtype;
    if (!b || a->known || a->dtype != dtype || b->dtype != dtype ||
        !scale_zero_of(node, 1, dtype, &ret->from) ||
        !scale_zero_of(node, 4, dtype, &ret->from_b) || !scale_zero_of(node, 6, dtype, &ret->to))
        return false;
    ret->kind = node->op == OP_QLINEAR_ADD ? ROW_ADD : ROW_MUL;
    if (!shape_equal(&a->shape, &y->shape))
        return false;
    if (b->known && shape_count(&b->shape) == 1) {
        become_table(ret, b->known);
        return true;
    }
    if (shape_equal(&b->shape, &y->shape))
        return true;
    const bool of_all = is_row(&a->shape, &b->shape);
    ret->by_channel = of_all || is_gate(&a->shape, &b->shape);
    ret->images = of_all ? 1 : 0;
    return ret->by_channel;
}

/* If the first operand is the gate or the constant scalar, swaps the operands. */
static bool classify_swapped(const struct node *node, struct row_step *ret)
{
    const struct value *b = node_input(node, 3), *y = node->outputs[0];
    if (!b || !shape_equal(&b->shape, &y->shape))
        return false;
    struct value *inputs[8];
    struct node swapped = *node;
    for (size_t i = 0; i < 8; i++)
        inputs[i] = node->inputs[i < 3 ? i + 3 : i < 6 ? i - 3 : i];
    swapped.inputs = inputs;
    if (!classify_binary(&swapped, ret))
        return false;
    ret->x = inputs[0]->index;
    ret->b = inputs[3]->index;
    return true;
}

static bool small_window(const struct node *node)
{
    size_t count;
    const int64_t *kernel = node_ints(node, "kernel_shape", &count);
    return count == 2 && kernel[0] <= 16 && kernel[1] <= 16;
}

/* The read functions set the kind and parameters. They return false if the kernels do not fit. */

static bool read_quantize(const struct node *node, struct row_step *ret)
{
    ret->kind = ROW_QUANTIZE;
    return node->inputs[0]->dtype == DTYPE_F32 && !node_int(node, "precision", 0) &&
           scale_zero_of(node, 1, node->outputs[0]->dtype, &ret->to);
}

static bool read_dequantize(const struct node *node, struct row_step *ret)
{
    ret->kind = ROW_DEQUANTIZE;
    return node->outputs[0]->dtype == DTYPE_F32 &&
           scale_zero_of(node, 1, node->inputs[0]->dtype, &ret->from);
}

static bool read_lookup(const struct node *node, struct row_step *ret)
{
    ret->kind = ROW_LOOKUP;
    if (!node->inputs[1]->known || node->inputs[0]->known)
        return false;
    memcpy(ret->table, node->inputs[1]->known->data, sizeof ret->table);
    return true;
}

static bool read_binary(const struct node *node, struct row_step *ret)
{
    if (!node_input(node, 3))
        return false;
    ret->b = node->inputs[3]->index;
    return classify_binary(node, ret) || classify_swapped(node, ret);
}

static bool read_max_pool(const struct node *node, struct row_step *ret)
{
    ret->kind = ROW_MAX_POOL;
    return dtype_is_8bit(node->inputs[0]->dtype) && node->inputs[0]->shape.rank == 4 &&
           !node_output(node, 1) && small_window(node);
}

static bool read_mean_pool(const struct node *node, struct row_step *ret)
{
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const bool is_global = node->op == OP_QLINEAR_GLOBAL_AVERAGE_POOL;
    ret->kind = is_global ? ROW_MEAN : ROW_MEAN_POOL;
    ret->count_include_pad = node_int(node, "count_include_pad", 0) != 0;
    return x->dtype == y->dtype && !node_int(node, "channels_last", 0) &&
           (is_global || (x->shape.rank == 4 && small_window(node))) &&
           scale_zero_of(node, 1, x->dtype, &ret->from) &&
           scale_zero_of(node, 3, y->dtype, &ret->to);
}

static const struct {
    enum op op;
    bool (*read)(const struct node *node, struct row_step *ret);
} readers[] = {{OP_QUANTIZE_LINEAR, read_quantize},
               {OP_DEQUANTIZE_LINEAR, read_dequantize},
               {OP_LOOKUP, read_lookup},
               {OP_QLINEAR_ADD, read_binary},
               {OP_QLINEAR_MUL, read_binary},
               {OP_MAX_POOL, read_max_pool},
               {OP_QLINEAR_AVERAGE_POOL, read_mean_pool},
               {OP_QLINEAR_GLOBAL_AVERAGE_POOL, read_mean_pool}};

static bool qrows_classify(const struct node *node, struct row_step *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape) ||
        (!dtype_is_8bit(x->dtype) && !dtype_is_8bit(y->dtype)))
        return false;
    ret->is_signed = (dtype_is_8bit(y->dtype) ? y : x)->dtype == DTYPE_I8;
    ret->x = ret->b = x->index;
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        if (readers[i].op == node->op)
            return readers[i].read(node, ret);
    return false;
}

static bool wants_channels_last(enum row_kind kind)
{
    return kind == ROW_MAX_POOL || kind == ROW_MEAN_POOL || kind == ROW_MEAN;
}

KERNEL_CLAIM(qrows_claim)
{
    struct row_step found = {.simd = simd()};
    if (!qrows_classify(node, &found))
        return false;
    if (wants_channels_last(found.kind))
        ret->can = KERNEL_CHANNELS_LAST;
    if (node->op == OP_LOOKUP)
        ret->in_place = 0;
    return true;
}

STEP_CREATE(lower_qrows)
{
    const struct node *node = lowering->node;
    struct row_step proto = {.simd = simd()};
    (void)qrows_classify(node, &proto);
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    const struct shape *image = proto.by_channel ? &y->shape : &x->shape;
    proto.count = shape_count(&y->shape);
    if (image->rank) {
        proto.images = proto.images ? proto.images : (size_t)image->dims[0];
        proto.channels = (size_t)image->dims[image->rank - 1];
        proto.pixels = shape_count(image) / proto.images / proto.channels;
    }
    prepare_binary(&proto);
    if (proto.kind == ROW_MAX_POOL || proto.kind == ROW_MEAN_POOL)
        TRY(pool_window_init(node, &x->shape, true, &proto.window, err));
    struct row_step *step =
        step_create_as(lowering, &proto.step, sizeof *step, qrows_run, ret, err);
    TRY(allocated(step));
    step->step.x_value = step->x;
    step->step.kernel = step->kind == ROW_LOOKUP ? "table"
                        : step->by_channel       ? "int8:channels"
                                                 : step->simd->name;
    if (step->kind == ROW_MEAN) {
        step->thread_bytes = size_align(step->channels * sizeof(int32_t), TENSOR_ALIGN);
        step->step.scratch = step->thread_bytes * (size_t)lowering->program->threads;
    }
    step->step.bytes = value_bytes(x) + value_bytes(y);
    return STATUS_OK;
}

const struct cpu_kernel cpu_quantized_rows = {{"int8 rows", {OP_NONE}, qrows_claim}, lower_qrows};
