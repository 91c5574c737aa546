/* Activations, and operators of two operands with numpy broadcasting. */
#include "engine/cuda/lowering/lowering.h"

struct cuda_elementwise_step {
    struct cuda_step step;
    enum { KIND_UNARY, KIND_BINARY } kind;
    enum cuda_binary binary;
    struct epilogue activation; /* KIND_UNARY: the operator; KIND_BINARY: applied to y */
    struct cuda_access_map map;
    struct cuda_operand a, b;
    enum dtype dtype;
    size_t count;
};

CUDA_RUN(elementwise_run)
{
    struct cuda_elementwise_step *s = (struct cuda_elementwise_step *)base;
    cudaStream_t stream = program->backend->stream;
    const struct epilogue *e = &s->activation;
    const void *a = cuda_operand_at(program, &s->a), *b = cuda_operand_at(program, &s->b);
    void *y = program->data[base->y];
    switch (s->kind) {
    case KIND_UNARY:
        cuda_activate(stream, (int)s->dtype, a, y, s->count, (int)e->activation, e->alpha, e->beta);
        break;
    case KIND_BINARY:
        cuda_apply_binary(stream, (int)s->dtype, s->binary, a, b, y, &s->map, (int)e->activation,
                          e->alpha, e->beta);
        break;
    }
    return cuda_launched(base, program, err);
}

/* By operator: its enum cuda_binary plus 1; 0: the kernel does not have the operator. */
static const int binary_kinds[OP_COUNT] = {
    [OP_ADD] = 1 + CUDA_ADD, [OP_SUB] = 1 + CUDA_SUB, [OP_MUL] = 1 + CUDA_MUL,
    [OP_DIV] = 1 + CUDA_DIV, [OP_MAX] = 1 + CUDA_MAX, [OP_MIN] = 1 + CUDA_MIN};

/* True if the operand has this dtype, or is a float32 constant, which is uploaded in this dtype. */
static bool operand_fits(const struct value *value, enum dtype dtype)
{
    return value && (value->dtype == dtype || is_f32_constant(value));
}

static bool elementwise_classify(const struct node *node, struct cuda_elementwise_step *ret)
{
    const struct value *a = node_input(node, 0), *y = node_output(node, 0);
    if (!a || !y || !is_computed(y->dtype) || !operand_fits(a, y->dtype) ||
        shape_count(&y->shape) == 0)
        return false;
    ret->dtype = y->dtype;
    ret->activation = node->epilogue;
    struct epilogue unary;
    if (optimize_activation(node, &unary)) {
        ret->kind = KIND_UNARY;
        ret->activation = unary;
        return !a->known && !node->epilogue.activation && !node->epilogue.residual;
    }
    ret->kind = KIND_BINARY;
    ret->binary = (enum cuda_binary)(binary_kinds[node->op] - 1);
    return binary_kinds[node->op] && node->input_count == 2 &&
           operand_fits(node->inputs[1], y->dtype) && !node_attr(node, "broadcast") &&
           !(a->known && node->inputs[1]->known);
}

KERNEL_CLAIM(elementwise_claim)
{
    struct cuda_elementwise_step ignored = {0};
    if (!elementwise_classify(node, &ignored))
        return false;
    ret->narrow = NARROW_SAME;
    ret->in_place = claim_in_place(node, 0, 1);
    return true;
}

static enum status elementwise_fill(const struct cuda_lowering *compile,
                                    struct cuda_elementwise_step *s, struct error *err)
{
    const struct node *node = compile->node;
    const struct value *a = node->inputs[0], *y = node->outputs[0];
    s->count = shape_count(&y->shape);
    TRY(cuda_operand_of(compile, a, s->dtype, &s->a, err));
    if (s->kind == KIND_BINARY) {
        const struct value *b = node->inputs[1];
        TRY(cuda_operand_of(compile, b, s->dtype, &s->b, err));
        s->map = cuda_map_broadcast(&y->shape, (const struct shape[]){a->shape, b->shape}, 2);
    }
    return STATUS_OK;
}

CUDA_CREATE(lower_elementwise)
{
    struct cuda_elementwise_step proto = {0};
    (void)elementwise_classify(compile->node, &proto);
    struct cuda_elementwise_step *s =
        cuda_step_create(compile, &proto, sizeof *s, elementwise_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = "elementwise";
    return elementwise_fill(compile, s, err);
}

const struct cuda_kernel cuda_kernel_elementwise = {{"elementwise", {OP_NONE}, elementwise_claim},
                                                    lower_elementwise};
