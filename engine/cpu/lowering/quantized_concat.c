/* QLinearConcat: parts of other scales go through a table each on their way into the whole. */
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/resolve.h"
#include "engine/tensor/quantized_number.h"

#define ROWS 16 /* made at a time: they stay in the cache, and a part is worth a call */

struct concat_part {
    uint32_t value;
    size_t run, offset; /* bytes in one outer row, and where they lie in the whole's */
    bool copies;        /* the same scale and zero point */
    uint8_t table[256];
};

struct concat_step {
    struct step step;
    const struct simd_kernels *simd;
    uint32_t whole;
    struct concat_part *parts;
    size_t count, outer, run;
    unsigned char *data;
    struct program *program;
};

static void qconcat_part(const struct concat_step *s, const struct concat_part *part, size_t first,
                         size_t rows)
{
    const struct lookup_rows l = {part->table, part->run, s->run};
    const unsigned char *from = s->program->data[part->value];
    unsigned char *to = s->data + first * s->run + part->offset;
    from += first * part->run;
    if (!part->copies) {
        s->simd->lookup(&l, from, to, rows, part->run);
        return;
    }
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * s->run, from + r * part->run, part->run);
}

/* All parts of some rows after another, so that what is written lies together. */
static void qconcat_outer(void *context, size_t begin, size_t end)
{
    const struct concat_step *s = context;
    for (size_t first = begin; first < end; first += ROWS)
        for (size_t p = 0; p < s->count; p++)
            qconcat_part(s, &s->parts[p], first, end - first < ROWS ? end - first : ROWS);
}

static enum status qconcat_run(struct step *base, struct program *program, struct error *err)
{
    struct concat_step *s = (struct concat_step *)base;
    (void)err;
    s->data = program->data[s->whole];
    s->program = program;
    parallel_for(program->backend->options.threads, s->outer, s->run / 16 + 1, qconcat_outer, s);
    return STATUS_OK;
}

static void qconcat_free(struct step *base)
{
    free(((struct concat_step *)base)->parts);
}

/* The whole's bytes for each of a part's: dequantized, divided, rounded half to even. */
static void qconcat_fill(struct concat_part *part, const struct scale_zero *from,
                         const struct scale_zero *to, bool is_signed)
{
    part->copies = from->scale == to->scale && from->zero == to->zero;
    for (int byte = 0; byte < 256; byte++) {
        const int stored = is_signed ? (int8_t)byte : byte;
        const float real = (float)(stored - from->zero) * from->scale;
        part->table[byte] = (uint8_t)(int)quantized_number(real, to->scale, to->zero, is_signed);
    }
}

static bool qconcat_claim(const struct node *node, struct kernel_caps *ret)
{
    const struct value *y = node_output(node, 0);
    struct scale_zero ignored;
    (void)ret;
    if (!y || !shape_count(&y->shape) || !scale_zero_of(node, 0, y->dtype, &ignored))
        return false;
    for (size_t i = 2; i + 1 < node->input_count; i += 3)
        if (!node->inputs[i] || node->inputs[i]->dtype != y->dtype ||
            !scale_zero_of(node, i + 1, y->dtype, &ignored))
            return false;
    return true;
}

static enum status lower_qconcat(const struct lowering *lowering, struct step **ret,
                                 struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *y = node->outputs[0];
    struct scale_zero to = {0}, from = {0};
    (void)scale_zero_of(node, 0, y->dtype, &to);
    struct concat_step *step = step_create(lowering, sizeof *step, qconcat_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.free = qconcat_free;
    step->step.kernel = "int8:concat";
    step->simd = simd();
    step->whole = y->index;
    step->count = (node->input_count - 2) / 3;
    step->parts = alloc_array(step->count, sizeof *step->parts);
    if (!step->parts)
        return error_no_memory(err, "while compiling");
    int64_t axis = node_int(node, "axis", 1);
    axis += axis < 0 ? y->shape.rank : 0;
    const size_t inner = resolve_extent(&y->shape, (int)axis + 1, y->shape.rank);
    step->outer = shape_count(&y->shape) / inner / (size_t)y->shape.dims[axis];
    for (size_t p = 0; p < step->count; p++) {
        const struct value *x = node->inputs[2 + 3 * p];
        struct concat_part *part = &step->parts[p];
        part->value = x->index;
        part->run = inner * (size_t)x->shape.dims[axis];
        part->offset = step->run;
        step->run += part->run;
        (void)scale_zero_of(node, 3 + 3 * p, y->dtype, &from);
        qconcat_fill(part, &from, &to, y->dtype == DTYPE_I8);
    }
    step->step.bytes = 2 * step->outer * step->run;
    return STATUS_OK;
}

const struct cpu_kernel cpu_quantized_concat = {{"int8 concat", {OP_QLINEAR_CONCAT}, qconcat_claim},
                                                lower_qconcat};
