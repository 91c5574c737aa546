/* Attention (engine/op/attention.h): multiplies a block of rows (queries) of a matrix by all its
 * keys, so that the scores never leave the second-level cache.
 *
 * A matrix is one head of one image. The work is divided into blocks of rows of all matrices. A
 * thread takes a range of blocks and packs the keys and values of each matrix that it reaches. The
 * matrix product (kernels/gemm.c) computes a block's scores, then multiplies the exponentials of
 * the scores by the values. Each row is divided by the sum of its exponentials when it is written
 * to the output. With many keys, scores are computed in portions, and earlier results are rescaled
 * when the highest score grows (Milakov and Gimelshein, "Online normalizer calculation for
 * softmax"). bfloat16 operands are widened when packed; a bfloat16 result is narrowed when
 * written. */
#include "engine/op/attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/lowering/lowering.h"
#include "engine/cpu/program/parallel.h"

/* The offsets of rows and columns of an operand's matrix. */
struct attention_layout {
    struct access_map walk;
    size_t *rows;    /* indexed by row: distance from the first row, in elements */
    size_t *columns; /* indexed by column: distance from the first; NULL: columns are contiguous */
    enum dtype dtype;
    uint32_t value;
    const unsigned char *data; /* of this run */
};

struct attention_step {
    struct step step;
    struct attention a;
    const struct simd_kernels *simd;
    struct attention_layout q, k, v, y, bias[ATTENTION_BIASES];
    size_t blocks;  /* blocks of rows per matrix */
    size_t portion; /* keys per portion of scores */
    size_t stride;  /* elements from row to row of a portion; not a multiple of 4096 bytes */
    size_t most;    /* rows of the largest block */
    size_t thread_bytes;
    struct epilogue epilogue; /* its step and zero quantize an 8-bit result */
};

/* A thread's scratch memory. */
struct attention_scratch {
    float *keys, *values;     /* packed, portion by portion */
    float *fetched;           /* copies of rows that are not contiguous float32 */
    const float **row_of;     /* pointers to rows of keys or values */
    float *q, *scores, *sums; /* buffers of a block; sums: the block's result before the division */
    float *bias[ATTENTION_BIASES];
    float *greatest, *total; /* one per row of the block */
};

/* Assigns the scratch memory from `base` on, or only returns its size if base is NULL. */
static size_t attention_lay_out(const struct attention_step *s, unsigned char *base,
                                struct attention_scratch *ret)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const size_t panel = s->simd->gemm_columns, wide = (width + panel - 1) / panel * panel;
    const size_t deep = depth > width ? depth : width;
    float **const parts[] = {&ret->keys,    &ret->values,   &ret->fetched, &ret->q,
                             &ret->scores,  &ret->sums,     &ret->bias[0], &ret->bias[1],
                             &ret->bias[2], &ret->greatest, &ret->total};
    const size_t counts[] = {(keys + panel - 1) / panel * panel * depth,
                             keys * wide,
                             keys * deep,
                             s->most * depth,
                             s->most * s->stride,
                             s->most * width,
                             s->portion,
                             s->portion,
                             s->portion,
                             s->most,
                             s->most};
    size_t at = 0;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        *parts[i] = base ? (float *)(void *)(base + at) : NULL;
        at += size_align(counts[i] * sizeof(float), TENSOR_ALIGN);
    }
    ret->row_of = base ? (const float **)(void *)(base + at) : NULL;
    return at + size_align(keys * sizeof(float *), TENSOR_ALIGN);
}

static size_t matrix_base(const struct attention_layout *l, size_t matrix)
{
    return (size_t)(l->walk.offset + access_map_at(&l->walk.group[0], (int64_t)matrix));
}

/* Returns a row of `count` elements as contiguous floats: in place if contiguous, else in `to`. */
static const float *row(const struct attention_step *s, const struct attention_layout *l,
                        size_t base, size_t r, size_t count, float *to)
{
    const size_t at = base + l->rows[r];
    if (!l->columns) {
        if (l->dtype == DTYPE_F32)
            return (const float *)(const void *)l->data + at;
        s->simd->widen_bf16((const uint16_t *)(const void *)l->data + at, to, count);
        return to;
    }
    if (l->dtype == DTYPE_F32) {
        const float *from = (const float *)(const void *)l->data + at;
        for (size_t c = 0; c < count; c++)
            to[c] = from[l->columns[c]];
    } else {
        const uint16_t *from = (const uint16_t *)(const void *)l->data + at;
        for (size_t c = 0; c < count; c++)
            s->simd->widen_bf16(from + l->columns[c], to + c, 1);
    }
    return to;
}

static void attention_pack(const struct attention_step *s, size_t matrix,
                           const struct attention_scratch *t)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const size_t panel = s->simd->gemm_columns, wide = (width + panel - 1) / panel * panel;
    size_t base = matrix_base(&s->k, matrix);
    for (size_t first = 0; first < keys; first += panel) {
        const size_t count = keys - first < panel ? keys - first : panel;
        for (size_t i = 0; i < count; i++)
            t->row_of[i] = row(s, &s->k, base, first + i, depth, t->fetched + i * depth);
        s->simd->pack_rows(t->row_of, count, depth, t->keys + first * depth);
    }
    base = matrix_base(&s->v, matrix);
    for (size_t i = 0; i < keys; i++)
        t->row_of[i] = row(s, &s->v, base, i, width, t->fetched + i * width);
    for (size_t first = 0; first < keys; first += s->portion) {
        const size_t count = keys - first < s->portion ? keys - first : s->portion;
        s->simd->pack_columns(t->row_of + first, count, width, t->values + first * wide);
    }
}

/* Computes exp of a block's scores for keys first … first + count - 1; rescales earlier sums. */
static void weigh(const struct attention_step *s, size_t matrix, size_t first_row, size_t rows,
                  size_t first, size_t count, const struct attention_scratch *t)
{
    const size_t width = (size_t)s->a.width;
    size_t bases[ATTENTION_BIASES];
    for (size_t b = 0; b < s->a.bias_count; b++)
        bases[b] = matrix_base(&s->bias[b], matrix) + first;
    for (size_t r = 0; r < rows; r++) {
        const float *biases[ATTENTION_BIASES];
        for (size_t b = 0; b < s->a.bias_count; b++) {
            const struct attention_layout *l = &s->bias[b];
            biases[b] = row(s, l, bases[b], first_row + r, count, t->bias[b]);
        }
        const float before = t->greatest[r];
        const float sum = s->simd->score_row(t->scores + r * s->stride, count, biases,
                                             s->a.bias_count, &t->greatest[r]);
        if (!first) {
            t->total[r] = sum;
            continue;
        }
        const float factor = before == t->greatest[r] ? 1 : expf(before - t->greatest[r]);
        t->total[r] = t->total[r] * factor + sum;
        if (factor != 1) {
            float *y = t->sums + r * width;
            s->simd->binary(BINARY_MUL, y, 1, &factor, 0, y, width);
        }
    }
}

static void write_row(const struct attention_step *s, size_t base, size_t r, float total,
                      float *sums)
{
    const size_t width = (size_t)s->a.width, at = base + s->y.rows[r];
    const float factor = 1 / total;
    if (s->a.nan_is_zero && (total == 0 || isnan(total)))
        memset(sums, 0, width * sizeof *sums);
    else if (!s->y.columns && s->y.dtype == DTYPE_F32) {
        s->simd->binary(BINARY_MUL, sums, 1, &factor, 0, (float *)(void *)s->step.y + at, width);
        return;
    } else
        s->simd->binary(BINARY_MUL, sums, 1, &factor, 0, sums, width);
    if (s->epilogue.step != 0) {
        const size_t run = s->y.columns ? 1 : width;
        for (size_t c = 0; c < width; c += run)
            s->simd->quantize(sums + c, s->epilogue.step, s->epilogue.zero, s->y.dtype == DTYPE_I8,
                              s->step.y + at + (s->y.columns ? s->y.columns[c] : 0), run);
        return;
    }
    if (s->y.dtype == DTYPE_BF16) {
        uint16_t *to = (uint16_t *)(void *)s->step.y + at;
        if (!s->y.columns)
            s->simd->narrow_bf16(sums, to, width);
        for (size_t c = 0; s->y.columns && c < width; c++)
            s->simd->narrow_bf16(sums + c, to + s->y.columns[c], 1);
        return;
    }
    float *to = (float *)(void *)s->step.y + at;
    if (!s->y.columns)
        memcpy(to, sums, width * sizeof *to);
    for (size_t c = 0; s->y.columns && c < width; c++)
        to[s->y.columns[c]] = sums[c];
}

static void attention_block(const struct attention_step *s, size_t matrix, size_t first_row,
                            size_t rows, const struct attention_scratch *t)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const size_t panel = s->simd->gemm_columns, wide = (width + panel - 1) / panel * panel;
    const size_t base = matrix_base(&s->q, matrix);
    for (size_t r = 0; r < rows; r++) {
        float *to = t->q + r * depth;
        s->simd->binary(BINARY_MUL, row(s, &s->q, base, first_row + r, depth, to), 1, &s->a.scale,
                        0, to, depth);
        t->greatest[r] = -INFINITY;
        t->total[r] = 0;
    }
    for (size_t first = 0; first < keys; first += s->portion) {
        const size_t count = keys - first < s->portion ? keys - first : s->portion;
        const struct gemm scores = {.a = t->q,
                                    .lda = depth,
                                    .b = t->keys + first * depth,
                                    .k = depth,
                                    .n = count,
                                    .c = t->scores,
                                    .ldc = s->stride};
        const struct gemm sums = {.a = t->scores,
                                  .lda = s->stride,
                                  .b = t->values + first * wide,
                                  .k = count,
                                  .n = width,
                                  .c = t->sums,
                                  .ldc = width,
                                  .accumulate = first > 0};
        s->simd->gemm(&scores, rows);
        weigh(s, matrix, first_row, rows, first, count, t);
        s->simd->gemm(&sums, rows);
    }
    const size_t to = matrix_base(&s->y, matrix);
    for (size_t r = 0; r < rows; r++)
        write_row(s, to, first_row + r, t->total[r], t->sums + r * width);
}

static void attention_items(void *context, size_t begin, size_t end)
{
    const struct attention_step *s = context;
    const size_t all = (size_t)s->a.rows;
    struct attention_scratch t;
    size_t packed = SIZE_MAX;
    attention_lay_out(s, s->step.memory + (size_t)forkjoin_member() * s->thread_bytes, &t);
    for (size_t i = begin; i < end; i++) {
        const size_t matrix = i / s->blocks, block = i % s->blocks;
        const size_t first = all * block / s->blocks;
        if (matrix != packed)
            attention_pack(s, matrix, &t);
        packed = matrix;
        attention_block(s, matrix, first, all * (block + 1) / s->blocks - first, &t);
    }
}

STEP_RUN(attention_run)
{
    struct attention_step *s = (struct attention_step *)base;
    s->q.data = program->data[s->q.value];
    s->k.data = program->data[s->k.value];
    s->v.data = program->data[s->v.value];
    for (size_t b = 0; b < s->a.bias_count; b++)
        s->bias[b].data = program->data[s->bias[b].value];
    const size_t items = (size_t)s->a.batch * s->blocks;
    /* If there are many matrices, a thread takes whole ones, to pack keys and values once. */
    const size_t threads = (size_t)program->backend->options.threads;
    const size_t grain = (size_t)s->a.batch >= 2 * threads ? s->blocks : 1;
    parallel_grains((int)threads, items, grain, (size_t)(s->step.flops / (double)items / 64) + 1,
                    attention_items, s);
    return STATUS_OK;
}

/* ---- compile ---- */

static void layout_done(struct attention_layout *l)
{
    FREE_ALL(l->rows, l->columns);
}

static void attention_free(struct step *base)
{
    struct attention_step *s = (struct attention_step *)base;
    layout_done(&s->q);
    layout_done(&s->k);
    layout_done(&s->v);
    layout_done(&s->y);
    for (size_t b = 0; b < ATTENTION_BIASES; b++)
        layout_done(&s->bias[b]);
}

static size_t *table(const struct access_map_group *group)
{
    const int64_t count = access_map_extent(group);
    size_t *at = alloc_array((size_t)count, sizeof *at);
    for (int64_t i = 0; at && i < count; i++)
        at[i] = (size_t)access_map_at(group, i);
    return at;
}

static bool layout_init(struct attention_layout *l, const struct access_map *walk,
                        const struct value *value)
{
    int64_t stride;
    *l = (struct attention_layout){.walk = *walk, .dtype = value->dtype, .value = value->index};
    const bool even = access_map_is_even(&walk->group[2], &stride) && stride <= 1 &&
                      (stride == 1 || access_map_extent(&walk->group[2]) == 1);
    l->rows = table(&walk->group[1]);
    if (!even)
        l->columns = table(&walk->group[2]);
    return l->rows && (even || l->columns);
}

/* Chooses blocks of about 2 * gemm_rows rows, so that their scores stay in the cache. A small
 * number of keys is one portion. */
static void attention_divide(struct attention_step *s)
{
    enum { ALL_AT_ONCE = 1024, PORTION = 512 };
    const size_t rows = (size_t)s->a.rows, unit = 2 * s->simd->gemm_rows;
    s->blocks = (rows + unit - 1) / unit;
    s->most = (rows + s->blocks - 1) / s->blocks;
    s->portion = (size_t)s->a.keys <= ALL_AT_ONCE ? (size_t)s->a.keys : PORTION;
    s->stride = s->portion + (s->portion % 256 ? 0 : s->simd->gemm_columns);
}

static bool computes(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16;
}

KERNEL_CLAIM(attention_claim)
{
    for (size_t i = 0; i < node->input_count; i++)
        if (!computes(node->inputs[i]->dtype))
            return false;
    ret->narrow = NARROW_SAME;
    ret->can = KERNEL_STORED_RESULT;
    return true;
}

STEP_CREATE(lower_attention)
{
    const struct node *node = lowering->node;
    struct attention a;
    struct shape shape;
    struct attention_scratch t;
    TRY(attention_load(node, &a, &shape, err));
    struct attention_step *s = step_create(lowering, sizeof *s, attention_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = "attention";
    s->step.free = attention_free;
    s->simd = simd();
    s->a = a;
    s->epilogue = node->epilogue;
    bool ok =
        layout_init(&s->q, &a.q, node->inputs[0]) && layout_init(&s->k, &a.k, node->inputs[1]) &&
        layout_init(&s->v, &a.v, node->inputs[2]) && layout_init(&s->y, &a.y, node->outputs[0]);
    for (size_t b = 0; ok && b < a.bias_count; b++)
        ok = layout_init(&s->bias[b], &a.bias[b], node->inputs[3 + b]);
    TRY(check_memory(ok, "while compiling", err));
    attention_divide(s);
    s->thread_bytes = attention_lay_out(s, NULL, &t);
    s->step.scratch = s->thread_bytes * (size_t)lowering->backend->options.threads;
    s->step.flops =
        2 * (double)a.batch * (double)a.rows * (double)a.keys * (double)(a.depth + a.width);
    for (size_t i = 0; i < node->input_count; i++)
        s->step.bytes += value_bytes(node->inputs[i]);
    s->step.bytes += shape_count(&shape) * dtype_size(node->outputs[0]->dtype);
    return STATUS_OK;
}

const struct cpu_kernel cpu_attention = {{"attention", {OP_ATTENTION}, attention_claim},
                                         lower_attention};
