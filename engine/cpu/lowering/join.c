/* ScaleShift of a concatenation that is never written: DenseNet's normalisations read the layers
 * before them where those left their results. A few rows are made at a time, part by part. Parts
 * and result are bfloat16, or any of float32 and 8-bit integers. */
#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

#define ROWS 16 /* made at a time: they stay in the cache, and a part is worth a call */

struct part {
    uint32_t value;
    enum dtype dtype;
    size_t channels, first; /* of the result's */
    const void *data;       /* of this run */
};

struct join_step {
    struct step step;
    const struct simd_kernels *simd;
    uint32_t y, scale_value, shift_value;
    struct part *parts;
    size_t part_count, rows, channels;
    enum dtype dtype;
    float low, high;
    /* of this run */
    const float *scale, *shift;
    void *y_data;
};

static void join_part(const struct join_step *s, const struct part *part, size_t first, size_t rows)
{
    const size_t from = first * part->channels * dtype_size(part->dtype);
    const size_t to = (first * s->channels + part->first) * dtype_size(s->dtype);
    const void *x = (const unsigned char *)part->data + from;
    void *y = (unsigned char *)s->y_data + to;
    const struct scale_rows r = {.scale = s->scale + part->first,
                                 .shift = s->shift + part->first,
                                 .low = s->low,
                                 .high = s->high,
                                 .x_step = part->channels,
                                 .y_step = s->channels};
    if (s->dtype == DTYPE_BF16)
        s->simd->scale_rows_bf16(&r, x, y, rows, part->channels);
    else if (s->dtype == DTYPE_F32 && part->dtype == DTYPE_F32)
        s->simd->scale_rows(&r, x, y, rows, part->channels);
    else
        s->simd->scale_rows_8bit(&r, x, part->dtype, y, s->dtype, rows, part->channels);
}

static void join_rows(void *context, size_t begin, size_t end)
{
    const struct join_step *s = context;
    for (size_t first = begin; first < end; first += ROWS)
        for (size_t p = 0; p < s->part_count; p++)
            join_part(s, &s->parts[p], first, end - first < ROWS ? end - first : ROWS);
}

static enum status join_run(struct step *base, struct program *program, struct error *err)
{
    struct join_step *s = (struct join_step *)base;
    (void)err;
    s->y_data = program->data[s->y];
    s->scale = program->data[s->scale_value];
    s->shift = program->data[s->shift_value];
    for (size_t p = 0; p < s->part_count; p++)
        s->parts[p].data = program->data[s->parts[p].value];
    parallel_for(program->backend->options.threads, s->rows, s->channels, join_rows, s);
    return STATUS_OK;
}

static void join_free(struct step *base)
{
    free(((struct join_step *)base)->parts);
}

/* Can a part of this type be made one of that type? */
static bool joins_types(enum dtype part, enum dtype whole)
{
    return part == whole ||
           ((part == DTYPE_F32 || is_8bit(part)) && (whole == DTYPE_F32 || is_8bit(whole)));
}

static bool join_claim(const struct node *node, struct kernel_caps *ret)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    float low, high;
    if (!x || !y || x->known || node->epilogue.residual ||
        (!node->channels_last && !claim_reads_image(node)) ||
        !epilogue_range(&node->epilogue, &low, &high) || !is_f32_constant(node->inputs[1]) ||
        !is_f32_constant(node->inputs[2]) || !shape_count(&y->shape))
        return false;
    for (size_t i = 0; i < node->input_count; i++)
        if (i != 1 && i != 2 && !joins_types(node->inputs[i]->dtype, y->dtype))
            return false;
    ret->can = KERNEL_CHANNELS_LAST | KERNEL_CONCAT | KERNEL_STORED_SCALE;
    ret->narrow = NARROW_SAME;
    if (node->input_count == 3 && x->dtype == y->dtype && !is_8bit(y->dtype))
        ret->in_place = 0;
    return true;
}

static const char *join_name(const struct node *node)
{
    bool stored = is_8bit(node->outputs[0]->dtype);
    for (size_t i = 0; i < node->input_count; i++)
        stored = stored || is_8bit(node->inputs[i]->dtype);
    if (stored)
        return node->input_count > 3 ? "int8:scale_shift:parts" : "int8:scale_shift";
    return node->input_count > 3 ? "scale_shift:parts" : "scale_shift";
}

static void add_parts(struct join_step *step, const struct node *node)
{
    for (size_t i = 0; i < node->input_count; i++) {
        const struct value *x = node->inputs[i];
        if (i == 1 || i == 2) /* scale and shift */
            continue;
        const size_t channels = (size_t)x->shape.dims[x->shape.rank - 1];
        step->parts[step->part_count++] =
            (struct part){x->index, x->dtype, channels, step->channels, NULL};
        step->channels += channels;
    }
}

static enum status lower_join(const struct lowering *lowering, struct step **ret, struct error *err)
{
    const struct node *node = lowering->node;
    const struct value *y = node->outputs[0];
    struct join_step *step = step_create(lowering, sizeof *step, join_run, ret, err);
    if (!step)
        return STATUS_NO_MEMORY;
    step->step.free = join_free;
    step->step.kernel = join_name(node);
    step->simd = simd();
    step->dtype = y->dtype;
    step->y = y->index;
    step->scale_value = node->inputs[1]->index;
    step->shift_value = node->inputs[2]->index;
    (void)epilogue_range(&node->epilogue, &step->low, &step->high);
    if (is_8bit(y->dtype)) {
        const float lowest = y->dtype == DTYPE_I8 ? -128 : 0;
        step->low = fminf(fmaxf(step->low, lowest), lowest + 255);
        step->high = fmaxf(fminf(step->high, lowest + 255), lowest);
    }
    step->parts = alloc_array(node->input_count, sizeof *step->parts);
    if (!step->parts)
        return error_no_memory(err, "while compiling");
    add_parts(step, node);
    step->rows = shape_count(&y->shape) / step->channels;
    step->step.flops = (double)shape_count(&y->shape);
    step->step.bytes = value_bytes(y);
    for (size_t p = 0; p < step->part_count; p++)
        step->step.bytes += step->rows * step->parts[p].channels * dtype_size(step->parts[p].dtype);
    return STATUS_OK;
}

const struct cpu_kernel cpu_join = {{"scale_shift", {OP_SCALE_SHIFT}, join_claim}, lower_join};
