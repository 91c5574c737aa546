/* Concatenates and splits rows of tensors: Concat, Split, QLinearConcat and ScaleShift.
 * QLinearConcat has a table for each part whose scale differs from the result's. A ScaleShift may
 * read the parts of an image (pass_joins()); then the whole image is never written. The image's
 * parts and the result are all bfloat16, or each of them is float32 or has 8-bit integers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"
#include "engine/op/resolve.h"

#define ROWS  16   /* rows at a time: more would not fit the cache, fewer would need more calls */
#define PIECE 1024 /* floats widened at a time */

struct concat_part {
    void **data; /* address in program->data */
    enum dtype dtype;
    size_t run;           /* elements in a row of the part */
    size_t first;         /* position of these elements in a row of the whole tensor */
    const uint8_t *table; /* the new byte for each of 256 bytes; NULL: elements do not change */
};

struct concat_step {
    struct step step;
    const struct simd_kernels *simd;
    void **whole, **scale, **shift; /* addresses in program->data */
    enum dtype dtype;               /* dtype of the whole tensor, [rows, row] */
    size_t rows, row, count;
    struct concat_part *parts;
    uint8_t (*tables)[256]; /* QLinearConcat: one table per part */
    bool splits, scales;
    struct epilogue activation; /* ScaleShift: an activation that is not the clamp to [low, high] */
    float low, high;
};

/* Scales rows of a part. An activation other than a clamp is applied to float32 pieces. */
static void scale_part(const struct concat_step *s, const struct concat_part *part,
                       const unsigned char *x, unsigned char *y, size_t rows)
{
    const struct epilogue *e = &s->activation;
    const size_t size = dtype_size(s->dtype);
    struct scale_rows r = {.scale = (const float *)*s->scale + part->first,
                           .shift = (const float *)*s->shift + part->first,
                           .low = s->low,
                           .high = s->high,
                           .x_step = part->run,
                           .y_step = s->row};
    float piece[PIECE];
    if (!e->activation) {
        s->simd->scale_rows(&r, x, part->dtype, y, s->dtype, rows, part->run);
        return;
    }
    for (size_t at = 0, n; at < part->run; at += n, r.scale += n, r.shift += n) {
        n = part->run - at < PIECE ? part->run - at : PIECE;
        for (size_t row = 0; row < rows; row++) {
            unsigned char *to = y + (row * s->row + at) * size;
            s->simd->scale_rows(&r, x + (row * part->run + at) * size, s->dtype, piece, DTYPE_F32,
                                1, n);
            s->simd->activate(piece, s->dtype == DTYPE_F32 ? (float *)(void *)to : piece, n,
                              e->activation, e->alpha, e->beta);
            if (s->dtype == DTYPE_BF16)
                s->simd->narrow_bf16(piece, (uint16_t *)(void *)to, n);
        }
    }
}

static void concat_part_rows(const struct concat_step *s, const struct concat_part *part,
                             size_t first, size_t rows)
{
    const size_t run = part->run * dtype_size(part->dtype), row = s->row * dtype_size(s->dtype);
    unsigned char *own = (unsigned char *)*part->data + first * run;
    unsigned char *inside =
        (unsigned char *)*s->whole + first * row + part->first * dtype_size(s->dtype);
    if (s->scales) {
        scale_part(s, part, own, inside, rows);
    } else if (part->table) {
        s->simd->lookup(&(struct lookup_rows){part->table, run, row}, own, inside, rows, run);
    } else {
        for (size_t r = 0; r < rows; r++, own += run, inside += row)
            memcpy(s->splits ? own : inside, s->splits ? inside : own, run);
    }
}

/* Copies all parts of ROWS rows at a time, so that accesses to the whole tensor are contiguous. */
static void concat_rows(void *context, size_t begin, size_t end)
{
    const struct concat_step *s = context;
    for (size_t first = begin; first < end; first += ROWS)
        for (size_t p = 0; p < s->count; p++)
            concat_part_rows(s, &s->parts[p], first, end - first < ROWS ? end - first : ROWS);
}

STEP_RUN(concat_run)
{
    struct concat_step *s = (struct concat_step *)base;
    const size_t bytes = s->row * dtype_size(s->dtype);
    if (!s->count)
        return STATUS_OK; /* producers have written every part */
    parallel_for(program->threads, s->rows, s->scales ? s->row : bytes / (s->tables ? 16 : 8) + 1,
                 concat_rows, s);
    return STATUS_OK;
}

static void concat_free(struct step *base)
{
    struct concat_step *s = (struct concat_step *)base;
    FREE_ALL(s->parts, s->tables);
}

/* ---- compile ---- */

/* Adds part p, unless its producer writes it directly into the whole tensor. */
static void add_part(struct concat_step *s, const struct lowering *lowering, size_t p, size_t run)
{
    const struct node *node = lowering->node;
    const struct value *value = concat_part(node, p);
    struct concat_part *part = &s->parts[s->count];
    if (value && !lowering->program->plan.places[value->index].pitch) {
        *part = (struct concat_part){.data = &lowering->program->data[value->index],
                                     .dtype = value->dtype,
                                     .run = run,
                                     .first = s->row};
        s->step.bytes += s->rows * run * (dtype_size(value->dtype) + dtype_size(s->dtype));
        s->count++;
    }
    s->row += run;
    if (s->tables && quantized_part_table(node, p, s->tables[p]))
        part->table = s->tables[p];
}

static void set_scale(struct concat_step *s, const struct node *node, void **data)
{
    bool stored = dtype_is_8bit(s->dtype);
    for (size_t p = 0; p < s->count; p++)
        stored = stored || dtype_is_8bit(s->parts[p].dtype);
    s->step.kernel = s->count > 1 ? (stored ? "int8:scale_shift:parts" : "scale_shift:parts")
                     : stored     ? "int8:scale_shift"
                                  : "scale_shift";
    s->step.flops = (double)(s->rows * s->row);
    s->scale = &data[node->inputs[1]->index];
    s->shift = &data[node->inputs[2]->index];
    if (!epilogue_range(&node->epilogue, &s->low, &s->high))
        s->activation = node->epilogue;
    if (dtype_is_8bit(s->dtype)) {
        const float lowest = s->dtype == DTYPE_I8 ? -128 : 0;
        s->low = fminf(fmaxf(s->low, lowest), lowest + 255);
        s->high = fmaxf(fminf(s->high, lowest + 255), lowest);
    }
}

STEP_CREATE(lower_concat)
{
    const struct node *node = lowering->node;
    const bool splits = node->op == OP_SPLIT, is_int8 = node->op == OP_QLINEAR_CONCAT;
    const struct value *whole = splits ? node->inputs[0] : node->outputs[0];
    const struct value *lengths = splits ? node_input(node, 1) : NULL;
    const size_t count = concat_part_count(node);
    if (lengths && !lengths->known)
        return STATUS_OK;
    const int rank = whole->shape.rank;
    const int axis =
        node->op == OP_SCALE_SHIFT ? rank - 1 : (int)node_axis(node, splits ? 0 : 1, rank);
    struct concat_step *step = step_create(lowering, sizeof *step, concat_run, ret, err);
    TRY(allocated(step));
    step->step.free = concat_free;
    step->step.kernel = is_int8 ? "int8:concat" : "copy";
    step->step.bytes = 0; /* add_part() counts the parts that the step copies */
    step->simd = simd();
    step->whole = &lowering->program->data[whole->index];
    step->dtype = whole->dtype;
    step->splits = splits;
    step->scales = node->op == OP_SCALE_SHIFT;
    step->rows = resolve_extent(&whole->shape, 0, axis);
    step->parts = alloc_array(count, sizeof *step->parts);
    step->tables = is_int8 ? alloc_array(count, sizeof *step->tables) : NULL;
    TRY(check_memory(step->parts && (!is_int8 || step->tables), "while compiling", err));
    const size_t inner = resolve_extent(&whole->shape, axis + 1, rank);
    for (size_t p = 0; p < count; p++) {
        const struct value *part = concat_part(node, p);
        const int64_t extent = part ? part->shape.dims[axis] : resolve_split(node, axis, p);
        add_part(step, lowering, p, inner * (size_t)extent);
    }
    if (step->scales)
        set_scale(step, node, lowering->program->data);
    return STATUS_OK;
}

/* True if these kernels run the node. The first output of Split may be unused. */
KERNEL_CLAIM(concat_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    ret->narrow = NARROW_SAME;
    return x && shape_count(&x->shape) && (y ? shape_count(&y->shape) > 0 : node->op == OP_SPLIT);
}

KERNEL_CLAIM(quantized_concat_claim)
{
    return claim_quantized_parts(node);
}

/* True if a part of type `part` can be converted to the type `whole`. */
static bool joins_types(enum dtype part, enum dtype whole)
{
    return part == whole || ((part == DTYPE_F32 || dtype_is_8bit(part)) &&
                             (whole == DTYPE_F32 || dtype_is_8bit(whole)));
}

KERNEL_CLAIM(scaled_parts_claim)
{
    const struct value *x = node_input(node, 0), *y = node_output(node, 0);
    float low, high;
    if (!x || !y || x->known || node->epilogue.residual ||
        (!node->channels_last && !claim_reads_image(node)) || !is_f32_constant(node->inputs[1]) ||
        !is_f32_constant(node->inputs[2]) || !shape_count(&y->shape))
        return false;
    bool stored = dtype_is_8bit(y->dtype);
    for (size_t i = 0; i < node->input_count; i++) {
        if (i != 1 && i != 2 && !joins_types(node->inputs[i]->dtype, y->dtype))
            return false;
        stored = stored || dtype_is_8bit(node->inputs[i]->dtype);
    }
    const bool clamps = epilogue_range(&node->epilogue, &low, &high);
    ret->can = KERNEL_CHANNELS_LAST | KERNEL_CONCAT | (clamps ? KERNEL_STORED_SCALE : 0);
    ret->narrow = NARROW_SAME;
    if (node->input_count == 3 && x->dtype == y->dtype && !dtype_is_8bit(y->dtype))
        ret->in_place = 0;
    return clamps || !stored;
}

const struct cpu_kernel cpu_concat = {{"concat", {OP_CONCAT, OP_SPLIT}, concat_claim},
                                      lower_concat};
const struct cpu_kernel cpu_quantized_concat = {
    {"int8 concat", {OP_QLINEAR_CONCAT}, quantized_concat_claim}, lower_concat};
const struct cpu_kernel cpu_scaled_parts = {{"scale_shift", {OP_SCALE_SHIFT}, scaled_parts_claim},
                                            lower_concat};
