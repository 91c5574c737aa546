/* Elementwise operators on float32 and bfloat16: activations, and binary operators with numpy
 * broadcasting. bfloat16 is widened to float32 in pieces that fit the L1 cache. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/strided.h"
#include "engine/passes/optimize.h"

#define PIECE 2048 /* floats computed at a time: they stay in the L1 cache */

struct elementwise_step {
    struct step step;
    bool is_binary;
    enum binary_kind binary;
    struct epilogue activation; /* the unary operator, or a binary one's epilogue */
    void **b;                   /* address of the second operand, in program->data */
    enum dtype dtype;
    struct strided_iterator loops; /* over rows; index [rank]: a row's extent and steps (0 or 1) */
    size_t rows, row;              /* number of rows, and elements per row */
    const struct simd_kernels *simd;
};

/* Returns `rows` rows of n numbers from element `at` on as floats, in place or in `piece`. Numbers
 * are `step` (0 or 1) elements apart, rows *row_step, which becomes the step of returned rows. */
static const float *load(const struct elementwise_step *s, const void *data, size_t at, int step,
                         size_t *row_step, size_t rows, size_t n, float *piece)
{
    const uint16_t *narrow = (const uint16_t *)data + at;
    const size_t width = step ? n : 1, count = *row_step ? rows : 1, apart = *row_step;
    if (s->dtype == DTYPE_F32)
        return (const float *)data + at;
    if (apart == width || count == 1)
        s->simd->widen_bf16(narrow, piece, count * width);
    else
        for (size_t r = 0; r < count; r++)
            s->simd->widen_bf16(narrow + r * apart, piece + r * width, width);
    *row_step = apart ? width : 0;
    return piece;
}

/* Computes numbers begin … end - 1 of each of `rows` rows, from row `row` on. These rows differ
 * only in their position along the innermost loop over rows. If there are several rows, they have
 * at most PIECE numbers together. */
static void elementwise_block(const struct elementwise_step *s, size_t row, size_t rows,
                              size_t begin, size_t end)
{
    float a_piece[PIECE], b_piece[PIECE], y_piece[PIECE];
    const struct simd_kernels *k = s->simd;
    const struct epilogue *e = &s->activation;
    const size_t *a_steps = s->loops.step[0], *b_steps = s->loops.step[1];
    const int last = s->loops.rank, a_step = (int)a_steps[last], b_step = (int)b_steps[last];
    const int before = last > 0 ? last - 1 : 0; /* unused if there is only one row */
    size_t a_at = 0, b_at = 0, rest = row;
    for (int d = last - 1; d >= 0; d--) {
        const size_t i = rest % s->loops.extent[d];
        rest /= s->loops.extent[d];
        a_at += i * a_steps[d];
        b_at += i * b_steps[d];
    }
    for (size_t at = begin, n; at < end; at += n) {
        n = rows > 1 || end - at < PIECE ? end - at : PIECE;
        struct binary_rows r = {s->binary, a_step, b_step, a_steps[before], b_steps[before]};
        const size_t to = row * s->row + at, count = rows * n;
        float *y = s->dtype == DTYPE_F32 ? (float *)(void *)s->step.y + to : y_piece;
        const float *a =
            load(s, s->step.x, a_at + (a_step ? at : 0), a_step, &r.a_row, rows, n, a_piece);
        if (s->is_binary) {
            const float *b =
                load(s, *s->b, b_at + (b_step ? at : 0), b_step, &r.b_row, rows, n, b_piece);
            k->binary_rows(&r, a, b, y, rows, n);
        }
        if (!s->is_binary || e->activation)
            k->activate(s->is_binary ? y : a, y, count, e->activation, e->alpha, e->beta);
        if (s->dtype == DTYPE_BF16)
            k->narrow_bf16(y, (uint16_t *)(void *)s->step.y + to, count);
    }
}

static void elementwise_rows(void *context, size_t begin, size_t end)
{
    const struct elementwise_step *s = context;
    const size_t most = s->row < PIECE ? PIECE / s->row : 1,
                 each = s->loops.extent[s->loops.rank - 1];
    for (size_t row = begin, rows; row < end; row += rows) {
        const size_t left = end - row < most ? end - row : most, here = each - row % each;
        rows = left < here ? left : here;
        elementwise_block(s, row, rows, 0, s->row);
    }
}

/* One long row is split by columns, into whole pieces. */
static void elementwise_columns(void *context, size_t begin, size_t end)
{
    const struct elementwise_step *s = context;
    size_t first = begin * PIECE, last = end * PIECE;
    elementwise_block(s, 0, 1, first, last < s->row ? last : s->row);
}

STEP_RUN(elementwise_run)
{
    struct elementwise_step *s = (struct elementwise_step *)base;
    int threads = program->threads;
    if (s->rows == 1)
        parallel_for(threads, (s->row + PIECE - 1) / PIECE, PIECE, elementwise_columns, s);
    else
        parallel_for(threads, s->rows, s->row, elementwise_rows, s);
    return STATUS_OK;
}

/* enum binary_kind plus 1; 0: the operator is not binary. */
static const int binary_kinds[OP_COUNT] = {
    [OP_ADD] = 1 + BINARY_ADD,    [OP_SUB] = 1 + BINARY_SUB, [OP_MUL] = 1 + BINARY_MUL,
    [OP_DIV] = 1 + BINARY_DIV,    [OP_MAX] = 1 + BINARY_MAX, [OP_MIN] = 1 + BINARY_MIN,
    [OP_PRELU] = 1 + BINARY_PRELU};

static bool dtype_fits(const struct value *value, enum dtype dtype)
{
    return value && value->dtype == dtype;
}

/* True for x to the power of 2: it is computed as x times x. */
static bool is_square(const struct node *node)
{
    return node->op == OP_POW && is_f32_constant(node_input(node, 1)) &&
           shape_count(&node->inputs[1]->shape) == 1 &&
           shape_equal(&node->inputs[0]->shape, &node->outputs[0]->shape) &&
           tensor_number(node->inputs[1]->known, 0) == 2;
}

static bool elementwise_classify(const struct node *node, struct elementwise_step *ret)
{
    const struct value *a = node_input(node, 0), *y = node_output(node, 0);
    if (!a || !y || (y->dtype != DTYPE_F32 && y->dtype != DTYPE_BF16) || !dtype_fits(a, y->dtype) ||
        shape_count(&y->shape) == 0)
        return false;
    ret->dtype = y->dtype;
    ret->activation = node->epilogue;
    if (optimize_activation(node, &ret->activation))
        return true;
    ret->is_binary = true;
    if (is_square(node)) {
        ret->binary = BINARY_MUL;
        return true;
    }
    ret->binary = (enum binary_kind)(binary_kinds[node->op] - 1);
    return binary_kinds[node->op] && node->input_count == 2 &&
           dtype_fits(node->inputs[1], y->dtype);
}

KERNEL_CLAIM(elementwise_claim)
{
    struct elementwise_step s = {.dtype = DTYPE_NONE};
    if (!elementwise_classify(node, &s))
        return false;
    if (node->op != OP_POW) /* a Pow's exponent stays float32 */
        ret->narrow = NARROW_SAME;
    ret->in_place = claim_in_place(node, 0, s.is_binary && !is_square(node) ? 1 : 0);
    return true;
}

STEP_CREATE(lower_elementwise)
{
    const struct node *node = lowering->node;
    struct elementwise_step *step = step_create(lowering, sizeof *step, elementwise_run, ret, err);
    TRY(allocated(step));
    (void)elementwise_classify(node, step);
    const struct value *a = node->inputs[0], *y = node->outputs[0];
    const struct value *b = step->is_binary && !is_square(node) ? node->inputs[1] : a;
    step->simd = simd();
    step->step.kernel = step->simd->name;
    step->b = &lowering->program->data[b->index];
    struct broadcast merged;
    broadcast_start(&merged, &y->shape, (const struct shape *const[]){&a->shape, &b->shape}, 2);
    step->loops = merged.rows;
    step->row = merged.row;
    step->rows = shape_count(&y->shape) / merged.row;
    step->step.flops = (double)shape_count(&y->shape);
    return STATUS_OK;
}

const struct cpu_kernel cpu_elementwise = {{"elementwise", {OP_NONE}, elementwise_claim},
                                           lower_elementwise};
