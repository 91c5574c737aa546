/* Row kernels on 8-bit integers: QuantizeLinear, DequantizeLinear, tables (OP_LOOKUP), QLinearAdd
 * and QLinearMul. One scale and zero point per tensor; reference kernels run the rest. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

#include <string.h>

struct row_step {
    struct step step;
    const struct simd_kernels *simd;
    enum op op;                /* OP_LOOKUP if it is an Add or Mul with a constant scalar, too */
    const struct value *x, *b; /* the operands, in the order in which the kernel reads them */
    void **b_data;             /* address in program->data */
    bool is_signed;
    struct scale_zero from, from_b, to;
    float a_ratio, b_ratio, fixed; /* of Add; Mul has only a_ratio */
    uint8_t table[256];            /* Lookup */
    bool by_channel;               /* Add, Mul: b is [channels] or [images, channels] */
    size_t count;                  /* number of elements */
    size_t images, channels, pixels;
};

enum { PIECE = 4096 };

/* Computes n elements of y by an Add or Mul. */
static void qrows_binary(const struct row_step *s, const uint8_t *x, const uint8_t *b, uint8_t *y,
                         size_t n)
{
    if (s->op == OP_QLINEAR_ADD)
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
    switch (s->op) {
    case OP_QUANTIZE_LINEAR:
        s->simd->quantize((const float *)(const void *)s->step.x + first, s->to.scale, s->to.zero,
                          s->is_signed, y, n);
        break;
    case OP_DEQUANTIZE_LINEAR:
        s->simd->dequantize(x, s->is_signed, s->from.scale, s->from.zero,
                            (float *)(void *)s->step.y + first, n);
        break;
    case OP_LOOKUP:
        s->simd->lookup(&(struct lookup_rows){.table = s->table}, x, y, 1, n);
        break;
    default:
        qrows_binary(s, x, (const unsigned char *)*s->b_data + first, y, n);
        break;
    }
}

static void qrows_pixels(void *context, size_t begin, size_t end)
{
    const struct row_step *s = context;
    const unsigned char *b = *s->b_data;
    for (size_t p = begin; p < end; p++)
        qrows_binary(s, s->step.x + p * s->channels, b + p / s->pixels * s->channels,
                     s->step.y + p * s->channels, s->channels);
}

/* ---- the step ---- */

STEP_RUN(qrows_run)
{
    struct row_step *s = (struct row_step *)base;
    const int threads = program->threads;
    if (s->by_channel)
        parallel_for(threads, s->images * s->pixels, s->channels / 8 + 1, qrows_pixels, s);
    else
        parallel_for(threads, (s->count + PIECE - 1) / PIECE,
                     s->op == OP_LOOKUP ? PIECE / 32 : PIECE / 8, qrows_pieces, s);
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
    if (s->op == OP_QLINEAR_ADD)
        quantized_sum_factors(&s->from, &s->from_b, &s->to, &s->a_ratio, &s->b_ratio, &s->fixed);
    else if (s->op == OP_QLINEAR_MUL)
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
    s->op = OP_LOOKUP;
}

/* Sets the parameters of a QLinearAdd or QLinearMul. */
static bool classify_binary(const struct node *node, struct row_step *ret)
{
    const struct value *a = node->inputs[0], *b = node_input(node, 3), *y = node->outputs[0];
    const enum dtype dtype = y->dtype;
    if (!b || a->known || a->dtype != dtype || b->dtype != dtype ||
        !shape_equal(&a->shape, &y->shape) || !scale_zero_of(node, 1, dtype, &ret->from) ||
        !scale_zero_of(node, 4, dtype, &ret->from_b) || !scale_zero_of(node, 6, dtype, &ret->to))
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
    ret->x = inputs[0];
    ret->b = inputs[3];
    return true;
}

static bool qrows_classify(const struct node *node, struct row_step *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape) ||
        (!dtype_is_8bit(x->dtype) && !dtype_is_8bit(y->dtype)))
        return false;
    ret->op = node->op;
    ret->is_signed = (dtype_is_8bit(y->dtype) ? y : x)->dtype == DTYPE_I8;
    ret->x = ret->b = x;
    switch (node->op) {
    case OP_QUANTIZE_LINEAR:
        return x->dtype == DTYPE_F32 && !node_int(node, "precision", 0) &&
               scale_zero_of(node, 1, y->dtype, &ret->to);
    case OP_DEQUANTIZE_LINEAR:
        return y->dtype == DTYPE_F32 && scale_zero_of(node, 1, x->dtype, &ret->from);
    case OP_LOOKUP:
        if (!node->inputs[1]->known || x->known)
            return false;
        memcpy(ret->table, node->inputs[1]->known->data, sizeof ret->table);
        return true;
    default: /* Add, Mul */
        if (!node_input(node, 3))
            return false;
        ret->b = node->inputs[3];
        return classify_binary(node, ret) || classify_swapped(node, ret);
    }
}

KERNEL_CLAIM(qrows_claim)
{
    struct row_step found = {.simd = simd()};
    if (node->op == OP_LOOKUP)
        ret->in_place = 0;
    return qrows_classify(node, &found);
}

STEP_CREATE(lower_qrows)
{
    const struct node *node = lowering->node;
    const struct value *y = node->outputs[0];
    struct row_step *step = step_create(lowering, sizeof *step, qrows_run, ret, err);
    TRY(allocated(step));
    step->simd = simd();
    (void)qrows_classify(node, step);
    step->count = shape_count(&y->shape);
    if (step->by_channel) {
        step->images = step->images ? step->images : (size_t)y->shape.dims[0];
        step->channels = (size_t)y->shape.dims[y->shape.rank - 1];
        step->pixels = step->count / step->images / step->channels;
    }
    prepare_binary(step);
    step->step.x_value = step->x->index;
    step->b_data = &lowering->program->data[step->b->index];
    step->step.kernel = step->op == OP_LOOKUP ? "table"
                        : step->by_channel    ? "int8:channels"
                                              : step->simd->name;
    return STATUS_OK;
}

const struct cpu_kernel cpu_quantized_rows = {
    {"int8 rows",
     {OP_QUANTIZE_LINEAR, OP_DEQUANTIZE_LINEAR, OP_LOOKUP, OP_QLINEAR_ADD, OP_QLINEAR_MUL},
     qrows_claim},
    lower_qrows};
