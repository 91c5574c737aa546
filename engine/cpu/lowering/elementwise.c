/* Elementwise operators on float32 and bfloat16: activations, and binary operators with numpy
 * broadcasting. bfloat16 is widened to float32 in pieces that fit the L1 cache. */
#include <string.h>

#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/strided.h"
#include "engine/passes/optimize.h"

#define PIECE 1024 /* floats widened at a time */

#define ROWS 16 /* rows per call: the vector stays in the cache */

enum elementwise_kind { KIND_UNARY, KIND_BINARY, KIND_ROWS };

struct elementwise_step {
    struct step step;
    enum elementwise_kind kind;
    enum binary_kind binary;
    struct epilogue activation; /* the unary operator, or a binary one's epilogue */
    uint32_t b;                 /* index of the second operand */
    enum dtype dtype;
    int rank; /* number of loops, at least 1; the innermost has steps 0 or 1 */
    size_t dims[TENSOR_MAX_RANK], a_steps[TENSOR_MAX_RANK], b_steps[TENSOR_MAX_RANK];
    size_t rows, row; /* number of rows, and elements per row */
    const struct simd_kernels *simd;
    /* of this run */
    const void *b_data;
};

static const float *load(const struct elementwise_step *s, const void *data, size_t at, size_t n,
                         float *piece)
{
    if (s->dtype == DTYPE_F32)
        return (const float *)data + at;
    s->simd->widen_bf16((const uint16_t *)data + at, piece, n);
    return piece;
}

/* Computes n elements of y from y_at on; operands have their own offsets. */
static void elementwise_piece(const struct elementwise_step *s, size_t y_at, size_t a_at,
                              size_t b_at, int a_step, int b_step, size_t n)
{
    float a_piece[PIECE], b_piece[PIECE], y_piece[PIECE];
    const struct simd_kernels *k = s->simd;
    const struct epilogue *e = &s->activation;
    void *y_data = s->step.y;
    float *y = s->dtype == DTYPE_F32 ? (float *)y_data + y_at : y_piece;
    const float *a = load(s, s->step.x, a_at, a_step ? n : 1, a_piece);
    switch (s->kind) {
    case KIND_UNARY:
        k->activate(a, y, n, e->activation, e->alpha, e->beta);
        break;
    case KIND_BINARY:
        k->binary(s->binary, a, a_step, load(s, s->b_data, b_at, b_step ? n : 1, b_piece), b_step,
                  y, n);
        break;
    case KIND_ROWS:
        break;
    }
    if (s->kind != KIND_UNARY && e->activation)
        k->activate(y, y, n, e->activation, e->alpha, e->beta);
    if (s->dtype == DTYPE_BF16)
        k->narrow_bf16(y, (uint16_t *)y_data + y_at, n);
}

static void elementwise_row(const struct elementwise_step *s, size_t row, size_t begin, size_t end)
{
    size_t a = 0, b = 0, rest = row;
    int last = s->rank - 1;
    for (int d = last - 1; d >= 0; d--) {
        size_t i = rest % s->dims[d];
        rest /= s->dims[d];
        a += i * s->a_steps[d];
        b += i * s->b_steps[d];
    }
    int a_step = (int)s->a_steps[last], b_step = (int)s->b_steps[last];
    for (size_t at = begin; at < end; at += PIECE) {
        size_t n = end - at < PIECE ? end - at : PIECE;
        elementwise_piece(s, row * s->row + at, a + (a_step ? at : 0), b + (b_step ? at : 0),
                          a_step, b_step, n);
    }
}

static void elementwise_rows(void *context, size_t begin, size_t end)
{
    const struct elementwise_step *s = context;
    for (size_t row = begin; row < end; row++)
        elementwise_row(s, row, 0, s->row);
}

/* Multiplies rows by a vector or adds it: gates of squeeze-and-excite, biases. */
static void elementwise_vector(void *context, size_t begin, size_t end)
{
    static const float ones[PIECE] = {[0 ... PIECE - 1] = 1}, zeros[PIECE];
    const struct elementwise_step *s = context;
    const size_t each = s->dims[s->rank - 2], size = dtype_size(s->dtype);
    const bool mul = s->binary == BINARY_MUL;
    float low, high;
    (void)epilogue_range(&s->activation, &low, &high);
    float piece[PIECE];
    for (size_t row = begin, rows; row < end; row += rows) {
        const size_t left = each - row % each;
        size_t at = 0, rest = row / each;
        rows = end - row < left ? end - row : left;
        for (int d = s->rank - 3; d >= 0; d--) {
            at += rest % s->dims[d] * s->b_steps[d];
            rest /= s->dims[d];
        }
        const float *vector = load(s, s->b_data, at, s->row, piece);
        const struct scale_rows r = {.scale = mul ? vector : ones,
                                     .shift = mul ? zeros : vector,
                                     .low = low,
                                     .high = high,
                                     .x_step = s->row,
                                     .y_step = s->row};
        for (size_t first = 0; first < rows; first += ROWS) {
            const size_t from = (row + first) * s->row * size;
            const size_t count = rows - first < ROWS ? rows - first : ROWS;
            const void *x = s->step.x + from;
            void *y = s->step.y + from;
            if (s->dtype == DTYPE_F32)
                s->simd->scale_rows(&r, x, y, count, s->row);
            else
                s->simd->scale_rows_bf16(&r, x, y, count, s->row);
        }
    }
}

/* One long row is split by columns, into whole pieces. */
static void elementwise_columns(void *context, size_t begin, size_t end)
{
    const struct elementwise_step *s = context;
    size_t first = begin * PIECE, last = end * PIECE;
    elementwise_row(s, 0, first, last < s->row ? last : s->row);
}

STEP_RUN(elementwise_run)
{
    struct elementwise_step *s = (struct elementwise_step *)base;
    s->b_data = program->data[s->b];
    int threads = program->threads;
    if (s->kind == KIND_ROWS)
        parallel_for(threads, s->rows, s->row, elementwise_vector, s);
    else if (s->rows == 1)
        parallel_for(threads, (s->row + PIECE - 1) / PIECE, PIECE, elementwise_columns, s);
    else
        parallel_for(threads, s->rows, s->row, elementwise_rows, s);
    return STATUS_OK;
}

static void set_loops(struct elementwise_step *s, const struct shape *y, const struct shape *a,
                      const struct shape *b)
{
    struct broadcast merged;
    broadcast_start(&merged, y, (const struct shape *const[]){a, b}, 2);
    const struct strided_iterator *rows = &merged.rows;
    s->rank = rows->rank + 1;
    s->row = merged.row;
    s->rows = shape_count(y) / s->row;
    memcpy(s->dims, rows->extent, sizeof s->dims);
    memcpy(s->a_steps, rows->step[0], sizeof s->a_steps);
    memcpy(s->b_steps, rows->step[1], sizeof s->b_steps);
}

/* True if operand `whole` is contiguous, and several of its rows are combined with one vector. */
static bool is_by_rows(const struct elementwise_step *s, const size_t *whole, const size_t *vector)
{
    const int last = s->rank - 1;
    size_t step = 1;
    if (s->rank < 2 || vector[last] != 1 || vector[last - 1] || s->row > PIECE)
        return false;
    for (int d = last; d >= 0; d--) {
        if (whole[d] != step)
            return false;
        step *= s->dims[d];
    }
    return true;
}

static void elementwise_choose_rows(struct elementwise_step *s)
{
    float low, high;
    if (s->kind != KIND_BINARY || (s->binary != BINARY_MUL && s->binary != BINARY_ADD) ||
        !epilogue_range(&s->activation, &low, &high))
        return;
    if (is_by_rows(s, s->b_steps, s->a_steps)) {
        memcpy(s->b_steps, s->a_steps, sizeof s->b_steps);
        const uint32_t a = s->step.x_value;
        s->step.x_value = s->b;
        s->b = a;
        s->kind = KIND_ROWS;
    } else if (is_by_rows(s, s->a_steps, s->b_steps)) {
        s->kind = KIND_ROWS;
    }
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
    *ret = (struct elementwise_step){.dtype = y->dtype, .activation = node->epilogue};
    if (optimize_activation(node, &ret->activation)) {
        ret->kind = KIND_UNARY;
        return true;
    }
    ret->kind = KIND_BINARY;
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
    struct elementwise_step s;
    if (!elementwise_classify(node, &s))
        return false;
    if (node->op != OP_POW) /* the constant 2 is float32 */
        ret->narrow = NARROW_SAME;
    ret->in_place = claim_in_place(node, 0, s.kind == KIND_BINARY && !is_square(node) ? 1 : 0);
    return true;
}

STEP_CREATE(lower_elementwise)
{
    const struct node *node = lowering->node;
    struct elementwise_step proto;
    (void)elementwise_classify(node, &proto);
    const struct value *a = node->inputs[0], *y = node->outputs[0];
    const struct value *b = proto.kind == KIND_BINARY && !is_square(node) ? node->inputs[1] : a;
    struct elementwise_step *step =
        step_create_as(lowering, &proto.step, sizeof *step, elementwise_run, ret, err);
    TRY(allocated(step));
    step->simd = simd();
    step->step.kernel = step->simd->name;
    step->b = b->index;
    set_loops(step, &y->shape, &a->shape, &b->shape);
    elementwise_choose_rows(step);
    size_t count = shape_count(&y->shape);
    step->step.flops = (double)count;
    step->step.bytes = dtype_size(y->dtype) *
                       (count + shape_count(&a->shape) + (b != a ? shape_count(&b->shape) : 0));
    return STATUS_OK;
}

const struct cpu_kernel cpu_elementwise = {{"elementwise", {OP_NONE}, elementwise_claim},
                                           lower_elementwise};
