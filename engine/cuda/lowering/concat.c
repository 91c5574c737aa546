/* Concat, Split, com.microsoft's QLinearConcat (each input has its own scale), and ScaleShift of an
 * image or of the inputs of a Concat. */
#include "engine/cuda/lowering/lowering.h"

#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"

struct cuda_concat_step {
    struct cuda_step step;
    uint32_t whole;
    size_t count;
    struct part {
        struct cuda_operand operand;
        size_t width, offset; /* a row of the part has `width` bytes, `offset` bytes after a whole
                                 row's start */
        const void *table;    /* 256 results by byte; NULL: bytes are copied */
    } * parts;
    struct cuda_parts form;
    const void *scale;             /* of a ScaleShift, float32; NULL: another operator */
    struct cuda_epilogue epilogue; /* of a ScaleShift, with its shift as bias */
};

CUDA_RUN(concat_run)
{
    struct cuda_concat_step *s = (struct cuda_concat_step *)base;
    for (size_t first = 0; first < s->count; first += CUDA_PARTS) {
        struct cuda_parts parts = s->form;
        for (size_t p = first; p < s->count && p < first + CUDA_PARTS; p++)
            parts.parts[parts.count++] = (struct cuda_part){
                /* The cast removes const, but a step only reads from a constant. */
                (void *)(uintptr_t)cuda_operand_at(program, &s->parts[p].operand),
                s->parts[p].width, s->parts[p].offset, s->parts[p].table};
        if (s->scale)
            cuda_scale_parts(program->backend->stream, s->scale, program->data[s->whole], &parts,
                             &s->epilogue);
        else
            cuda_copy_parts(program->backend->stream, program->data[s->whole], &parts);
    }
    return cuda_launched(base, program, err);
}

static void concat_free(struct cuda_step *base)
{
    free(((struct cuda_concat_step *)base)->parts);
}

/* The parts of a ScaleShift must have the type of its result. */
KERNEL_CLAIM(scaled_parts_claim)
{
    if (!claim_reads_image(node) || node->epilogue.residual || !is_f32_constant(node->inputs[1]) ||
        !is_f32_constant(node->inputs[2]))
        return false;
    const enum dtype dtype = node->outputs[0]->dtype;
    for (size_t i = 0; i < node->input_count; i++)
        if (i != 1 && i != 2 && (node->inputs[i]->known || node->inputs[i]->dtype != dtype))
            return false;
    ret->can = KERNEL_CHANNELS_LAST | KERNEL_CONCAT;
    ret->narrow = NARROW_SAME;
    ret->in_place = claim_in_place(node, 0, 0);
    return is_computed(dtype);
}

KERNEL_CLAIM(concat_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    if (node->op == OP_SPLIT) {
        const struct value *lengths = node_input(node, 1);
        ret->narrow = NARROW_SAME;
        return x && !x->known && shape_count(&x->shape) && (!lengths || lengths->known);
    }
    if (!y || !shape_count(&y->shape) || node->epilogue.activation || node->epilogue.residual)
        return false;
    if (node->op == OP_QLINEAR_CONCAT)
        return claim_quantized_parts(node);
    ret->narrow = NARROW_SAME;
    for (size_t p = 0; p < node->input_count; p++)
        if (!node->inputs[p])
            return false;
    return true;
}

static enum status add_part(const struct cuda_lowering *compile, struct cuda_concat_step *s,
                            size_t p, size_t width, enum dtype dtype, struct error *err)
{
    const struct node *node = compile->node;
    const struct value *part = concat_part(node, p);
    struct part *to = &s->parts[s->count];
    to->offset = s->form.pitch;
    to->width = width;
    s->form.pitch += width;
    if (!part || !width || !s->form.rows || compile->program->plan.places[part->index].pitch)
        return STATUS_OK; /* the part is empty, or its node writes it in place */
    s->count++;
    s->step.bytes += 2 * s->form.rows * width;
    uint8_t table[256];
    if (node->op == OP_QLINEAR_CONCAT && quantized_part_table(node, p, table))
        TRY(cuda_weights_upload(compile->backend, DTYPE_U8, table, sizeof table, &to->table, err));
    return cuda_operand_of(compile, part, dtype, &to->operand, err);
}

CUDA_CREATE(lower_concat)
{
    const struct node *node = compile->node;
    const bool splits = node->op == OP_SPLIT, is_int8 = node->op == OP_QLINEAR_CONCAT;
    const bool is_scale = node->op == OP_SCALE_SHIFT, is_plain = !splits && !is_int8 && !is_scale;
    const struct value *whole = splits ? node->inputs[0] : node->outputs[0];
    const size_t count = concat_part_count(node);
    const int rank = whole->shape.rank;
    const int at = is_scale ? rank - 1 : (int)node_axis(node, is_plain ? 1 : 0, rank);
    const size_t inner =
        dtype_size(whole->dtype) * resolve_extent(&whole->shape, at + 1, whole->shape.rank);
    struct cuda_concat_step *s = cuda_step_create(compile, NULL, sizeof *s, concat_run, ret, err);
    TRY(allocated(s));
    s->step.free = concat_free;
    s->step.bytes = 0;
    s->step.kernel = is_int8    ? "int8 concat"
                     : is_scale ? (count > 1 ? "scale_shift:parts" : "scale_shift")
                                : "copy";
    s->whole = whole->index;
    s->form.is_split = splits;
    s->form.rows = resolve_extent(&whole->shape, 0, at);
    s->parts = calloc(node->input_count + node->output_count, sizeof *s->parts);
    TRY(check_memory(s->parts, "while compiling", err));
    for (size_t p = 0; p < count; p++) {
        const struct value *part = concat_part(node, p);
        const int64_t extent = part ? part->shape.dims[at] : resolve_split(node, at, p);
        TRY(add_part(compile, s, p, inner * (size_t)extent, whole->dtype, err));
    }
    if (is_plain && !s->count)
        s->step.kernel = "written by its inputs";
    if (is_scale) {
        const struct epilogue *e = &node->epilogue;
        const void *shift;
        TRY(cuda_weights_of(compile->backend, node->inputs[1], DTYPE_F32, &s->scale, err));
        TRY(cuda_weights_of(compile->backend, node->inputs[2], DTYPE_F32, &shift, err));
        s->epilogue = (struct cuda_epilogue){shift,    NULL,    (int)e->activation,
                                             e->alpha, e->beta, (int)whole->dtype};
    }
    return STATUS_OK;
}

const struct cuda_kernel cuda_kernel_concat = {
    {"concat", {OP_CONCAT, OP_SPLIT, OP_QLINEAR_CONCAT}, concat_claim}, lower_concat};
const struct cuda_kernel cuda_kernel_scaled_parts = {
    {"scale_shift", {OP_SCALE_SHIFT}, scaled_parts_claim}, lower_concat};
