/* 8-bit integers between products: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear; Add and
 * Mul of com.microsoft; tables (OP_LOOKUP). A tensor has one scale and one zero point; nodes with
 * other scales run on the host. */
#include "engine/cuda/lowering/lowering.h"

#include "engine/base/size.h"
#include "engine/op/families.h"

enum rows_kind {
    INT8_QUANTIZE,
    INT8_DEQUANTIZE,
    INT8_DYNAMIC,
    INT8_BINARY,
    INT8_TABLE,
};

struct int8_rows_step {
    struct cuda_step step;
    enum rows_kind kind;
    struct cuda_operand x, b;
    uint32_t y_scale, y_zero;
    enum dtype x_dtype, y_dtype;
    struct scale_zero from, from_b, to;
    struct cuda_pointwise binary;
    const void *table; /* 256 bytes */
    size_t count;
};

CUDA_RUN(quantized_rows_run)
{
    struct int8_rows_step *s = (struct int8_rows_step *)base;
    struct cuda_backend *backend = program->backend;
    cudaStream_t stream = backend->stream;
    const void *x = cuda_operand_at(program, &s->x);
    void *y = program->data[base->y];
    switch (s->kind) {
    case INT8_QUANTIZE:
        cuda_int8_quantize(stream, (int)s->x_dtype, x, (int)s->y_dtype, y, s->count, s->to.scale,
                           s->to.zero);
        break;
    case INT8_DEQUANTIZE:
        cuda_int8_dequantize(stream, (int)s->x_dtype, x, (int)s->y_dtype, y, s->count,
                             s->from.scale, s->from.zero);
        break;
    case INT8_DYNAMIC:
        cuda_int8_dynamic(stream, x, s->count, backend->arena + program->value_bytes, y,
                          program->data[s->y_scale], program->data[s->y_zero]);
        break;
    case INT8_BINARY:
        cuda_compute_pointwise(
            stream, (const void *const[CUDA_OPERANDS]){x, cuda_operand_at(program, &s->b)}, y,
            &s->binary);
        break;
    case INT8_TABLE:
        cuda_copy_parts(
            stream, y,
            &(struct cuda_parts){.count = 1,
                                 .rows = 1,
                                 .pitch = s->count,
                                 .parts = {{(void *)(uintptr_t)x, s->count, 0, s->table}}});
        break;
    }
    return cuda_launched(base, program, err);
}

/* ---- classification of a node ---- */

/* These functions read a node's parameters; false: the kernels cannot run the node. */

static bool read_quantize(const struct node *node, struct int8_rows_step *ret)
{
    return is_computed(node->inputs[0]->dtype) && !node_int(node, "precision", 0) &&
           scale_zero_of(node, 1, node->outputs[0]->dtype, &ret->to);
}

static bool read_dequantize(const struct node *node, struct int8_rows_step *ret)
{
    return is_computed(node->outputs[0]->dtype) &&
           scale_zero_of(node, 1, node->inputs[0]->dtype, &ret->from);
}

static bool read_dynamic(const struct node *node, struct int8_rows_step *ret)
{
    (void)ret;
    return node->inputs[0]->dtype == DTYPE_F32 && node_output(node, 1) && node_output(node, 2);
}

static bool read_binary(const struct node *node, struct int8_rows_step *ret)
{
    const struct value *a = node->inputs[0], *b = node_input(node, 3), *y = node->outputs[0];
    return b && shape_count(&b->shape) && !(a->known && b->known) && a->dtype == y->dtype &&
           b->dtype == y->dtype && scale_zero_of(node, 1, a->dtype, &ret->from) &&
           scale_zero_of(node, 4, b->dtype, &ret->from_b) &&
           scale_zero_of(node, 6, y->dtype, &ret->to);
}

static bool read_lookup(const struct node *node, struct int8_rows_step *ret)
{
    (void)ret;
    return node->inputs[1]->known != NULL;
}

static const struct {
    enum op op;
    enum rows_kind kind;
    bool (*read)(const struct node *node, struct int8_rows_step *ret);
} readers[] = {{OP_QUANTIZE_LINEAR, INT8_QUANTIZE, read_quantize},
               {OP_DEQUANTIZE_LINEAR, INT8_DEQUANTIZE, read_dequantize},
               {OP_DYNAMIC_QUANTIZE_LINEAR, INT8_DYNAMIC, read_dynamic},
               {OP_QLINEAR_ADD, INT8_BINARY, read_binary},
               {OP_QLINEAR_MUL, INT8_BINARY, read_binary},
               {OP_LOOKUP, INT8_TABLE, read_lookup}};

static bool quantized_rows_classify(const struct node *node, struct int8_rows_step *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (!x || !y || !shape_count(&x->shape) || !shape_count(&y->shape))
        return false;
    for (size_t i = 0; i < COUNT_OF(readers); i++)
        if (readers[i].op == node->op) {
            ret->kind = readers[i].kind;
            return (!x->known || ret->kind == INT8_BINARY) && readers[i].read(node, ret);
        }
    return false;
}

KERNEL_CLAIM(quantized_rows_claim)
{
    struct int8_rows_step s;
    if (!quantized_rows_classify(node, &s))
        return false;
    if (s.kind == INT8_BINARY)
        ret->in_place = claim_in_place(node, 0, 3);
    if (node->op == OP_LOOKUP)
        ret->in_place = 0;
    return true;
}

/* ---- steps ---- */

static enum status fill_binary(const struct cuda_lowering *compile, struct int8_rows_step *s,
                               struct error *err)
{
    const struct node *node = compile->node;
    const struct value *a = node->inputs[0], *b = node->inputs[3], *y = node->outputs[0];
    struct cuda_pointwise *n = &s->binary;
    const int dtype = (int)y->dtype;
    *n = (struct cuda_pointwise){.op = node->op,
                                 .domain = CUDA_IN_FLOAT,
                                 .operands = 2,
                                 .dtypes = {dtype, dtype},
                                 .y_dtype = dtype,
                                 .ratios = {s->from.scale * s->from_b.scale / s->to.scale},
                                 .fixed = (float)s->to.zero,
                                 .zeros = {s->from.zero, s->from_b.zero}};
    if (node->op == OP_QLINEAR_ADD)
        quantized_sum_factors(&s->from, &s->from_b, &s->to, &n->ratios[0], &n->ratios[1],
                              &n->fixed);
    n->map = cuda_map_broadcast(&y->shape, (const struct shape *const[]){&a->shape, &b->shape}, 2);
    return cuda_operand_of(compile, b, b->dtype, &s->b, err);
}

static enum status quantized_rows_fill(const struct cuda_lowering *compile,
                                       struct int8_rows_step *s, struct error *err)
{
    static const char *const kernels[] = {[INT8_QUANTIZE] = "quantize",
                                          [INT8_DEQUANTIZE] = "dequantize",
                                          [INT8_DYNAMIC] = "dynamic quantize",
                                          [INT8_BINARY] = "int8 binary",
                                          [INT8_TABLE] = "int8 table"};
    const struct node *node = compile->node;
    const struct value *x = node->inputs[0], *y = node->outputs[0];
    s->step.kernel = kernels[s->kind];
    s->x_dtype = x->dtype;
    s->y_dtype = y->dtype;
    s->count = shape_count(&y->shape);
    TRY(cuda_operand_of(compile, x, x->dtype, &s->x, err));
    switch (s->kind) {
    case INT8_BINARY:
        return fill_binary(compile, s, err);
    case INT8_TABLE:
        return cuda_weights_of(compile->backend, node->inputs[1], DTYPE_U8, &s->table, err);
    case INT8_DYNAMIC:
        s->y_scale = node->outputs[1]->index;
        s->y_zero = node->outputs[2]->index;
        s->step.workspace = 2 * CUDA_INT8_RANGES * sizeof(float);
        return STATUS_OK;
    default:
        return STATUS_OK;
    }
}

CUDA_CREATE(lower_quantized_rows)
{
    struct int8_rows_step proto = {0};
    (void)quantized_rows_classify(compile->node, &proto);
    struct int8_rows_step *s =
        cuda_step_create(compile, &proto, sizeof *s, quantized_rows_run, ret, err);
    return s ? quantized_rows_fill(compile, s, err) : STATUS_NO_MEMORY;
}

const struct cuda_kernel cuda_kernel_int8_rows = {{"int8 rows", {OP_NONE}, quantized_rows_claim},
                                                  lower_quantized_rows};
