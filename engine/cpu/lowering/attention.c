/* Attention (engine/op/attention.h): multiplies a block of a matrix's rows (queries) by all keys of
 * the matrix, so that the scores never leave the second-level cache.
 *
 * A matrix is one head of one image. The work is divided into blocks of rows of all matrices. A
 * thread takes a range of blocks and packs the keys and values of each matrix that it reaches. The
 * matrix product (kernels/gemm.c) computes a block's scores, then multiplies the exponentials of
 * the scores by the values. Each row is divided by the sum of its exponentials when it is written
 * to the output.
 *
 * If the CPU multiplies bfloat16, both products have bfloat16 operands and float32 sums, and scaled
 * queries and exponentials are rounded to bfloat16. Otherwise bfloat16 operands are widened when
 * they are packed. Scores and the sums of exponentials are always float32. */
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
    size_t *rows;    /* for each row: elements from the first row to it */
    size_t *columns; /* for each column: elements from the first column to it; NULL: contiguous */
    enum dtype dtype;
    void **data; /* address in program->data */
};

struct attention_step {
    struct step step;
    struct attention a;
    const struct simd_kernels *simd;
    struct attention_layout in[3 + ATTENTION_BIASES], y; /* in: q, k, v, biases */
    size_t blocks;                                       /* blocks of rows per matrix */
    size_t together;                                     /* blocks that one thread takes at once */
    size_t stride; /* elements from row to row of scores; not a multiple of 4096 bytes */
    size_t panel;  /* columns of a panel of packed keys and values */
    size_t wide;   /* columns of all panels of values: elements from row to row of `sums` */
    bool narrow;   /* the products have bfloat16 operands */
    size_t depth_bytes, keys_bytes; /* narrow: bytes of a query and of a row of exponentials, each
                                       padded with zeros to a multiple of tile_bytes */
    size_t most;                    /* rows of the largest block */
    size_t thread_bytes;
    struct epilogue epilogue; /* its step and zero quantize an 8-bit result */
};

struct attention_scratch {
    float *keys, *values;     /* packed */
    float *fetched;           /* copies of rows that are not contiguous float32 */
    const float **row_of;     /* pointers to rows of keys or values */
    float *q, *scores, *sums; /* buffers of a block; sums: the block's result before the division */
    float *exps;              /* narrow: the block's exponentials in bfloat16 */
    float *bias[ATTENTION_BIASES];
    float *total; /* the sum of each row's exponentials */
};

static size_t round_up(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

/* Assigns the scratch memory from `base` on, or only returns its size if base is NULL. */
static size_t attention_lay_out(const struct attention_step *s, unsigned char *base,
                                struct attention_scratch *ret)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const size_t query = s->narrow ? s->depth_bytes / sizeof(float) : depth; /* in floats */
    const size_t exps = s->keys_bytes / sizeof(float), deep = depth > width ? depth : width;
    float **const parts[] = {&ret->keys,    &ret->values,  &ret->fetched, &ret->q,
                             &ret->scores,  &ret->sums,    &ret->exps,    &ret->bias[0],
                             &ret->bias[1], &ret->bias[2], &ret->total};
    const size_t counts[] = {round_up(keys, s->panel) * query,
                             (s->narrow ? exps : keys) * s->wide,
                             keys * (deep > query ? deep : query),
                             s->most * query,
                             s->most * s->stride,
                             s->most * s->wide,
                             s->most * exps,
                             keys,
                             keys,
                             keys,
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

/* Returns a row of `count` elements as contiguous floats: in place if the row is contiguous
 * float32, otherwise copied to `to`. */
static const float *row(const struct attention_step *s, const struct attention_layout *l,
                        size_t base, size_t r, size_t count, float *to)
{
    const size_t at = base + l->rows[r], run = l->columns ? 1 : count;
    if (!l->columns && l->dtype == DTYPE_F32)
        return (const float *)*l->data + at;
    for (size_t c = 0; c < count; c += run) {
        const size_t from = at + (l->columns ? l->columns[c] : 0);
        if (l->dtype == DTYPE_F32)
            to[c] = ((const float *)*l->data)[from];
        else
            s->simd->widen_bf16((const uint16_t *)*l->data + from, to + c, run);
    }
    return to;
}

/* Returns a row of bfloat16 as `bytes` contiguous bytes, with zeros after its `count` elements, at
 * an address where pairs can be read as floats. */
static const uint16_t *narrow_row(const struct attention_layout *l, size_t base, size_t r,
                                  size_t count, size_t bytes, uint16_t *to)
{
    const uint16_t *from = (const uint16_t *)*l->data + base + l->rows[r];
    if (!l->columns && bytes == count * sizeof *from && (uintptr_t)from % sizeof(float) == 0)
        return from;
    for (size_t c = 0; c < count; c++)
        to[c] = from[l->columns ? l->columns[c] : c];
    memset(to + count, 0, bytes - count * sizeof *to);
    return to;
}

static void attention_pack_narrow(const struct attention_step *s, size_t matrix,
                                  const struct attention_scratch *t)
{
    const size_t keys = (size_t)s->a.keys, width = (size_t)s->a.width;
    const size_t deep = s->depth_bytes / sizeof(float), wide = width * sizeof(uint16_t);
    uint16_t *const fetched = (uint16_t *)(void *)t->fetched;
    const uint16_t **rows = (const uint16_t **)t->row_of;
    const struct attention_layout *k = &s->in[1], *v = &s->in[2];
    size_t base = matrix_base(k, matrix);
    for (size_t i = 0; i < keys; i++)
        rows[i] =
            narrow_row(k, base, i, (size_t)s->a.depth, s->depth_bytes, fetched + i * deep * 2);
    for (size_t first = 0; first < keys; first += s->panel)
        s->simd->pack_rows((const float **)rows + first,
                           keys - first < s->panel ? keys - first : s->panel, deep, s->panel,
                           t->keys + first * deep);
    base = matrix_base(v, matrix);
    for (size_t i = 0; i < keys; i++)
        rows[i] = narrow_row(v, base, i, width, wide, fetched + i * width);
    s->simd->pack_pairs(rows, keys, s->keys_bytes / sizeof(uint16_t), width, s->panel,
                        (uint32_t *)(void *)t->values);
}

static void attention_pack(const struct attention_step *s, size_t matrix,
                           const struct attention_scratch *t)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const struct attention_layout *k = &s->in[1], *v = &s->in[2];
    size_t base = matrix_base(k, matrix);
    for (size_t first = 0; first < keys; first += s->panel) {
        const size_t count = keys - first < s->panel ? keys - first : s->panel;
        for (size_t i = 0; i < count; i++)
            t->row_of[i] = row(s, k, base, first + i, depth, t->fetched + i * depth);
        s->simd->pack_rows(t->row_of, count, depth, s->panel, t->keys + first * depth);
    }
    base = matrix_base(v, matrix);
    for (size_t i = 0; i < keys; i++)
        t->row_of[i] = row(s, v, base, i, width, t->fetched + i * width);
    s->simd->pack_columns(t->row_of, keys, width, t->values);
}

/* Replaces a block's scores by their exponentials. */
static void weigh(const struct attention_step *s, size_t matrix, size_t first_row, size_t rows,
                  const struct attention_scratch *t)
{
    size_t bases[ATTENTION_BIASES];
    for (size_t b = 0; b < s->a.bias_count; b++)
        bases[b] = matrix_base(&s->in[3 + b], matrix);
    for (size_t r = 0; r < rows; r++) {
        const float *biases[ATTENTION_BIASES];
        float greatest = -INFINITY;
        for (size_t b = 0; b < s->a.bias_count; b++)
            biases[b] =
                row(s, &s->in[3 + b], bases[b], first_row + r, (size_t)s->a.keys, t->bias[b]);
        t->total[r] = s->simd->score_row(t->scores + r * s->stride, (size_t)s->a.keys, biases,
                                         s->a.bias_count, &greatest);
    }
}

static void write_row(const struct attention_step *s, size_t base, size_t r, float total,
                      float *sums)
{
    const size_t width = (size_t)s->a.width, run = s->y.columns ? 1 : width;
    const float factor = 1 / total;
    if (s->a.nan_is_zero && (total == 0 || isnan(total)))
        memset(sums, 0, width * sizeof *sums);
    else
        s->simd->binary(BINARY_MUL, sums, 1, &factor, 0, sums, width);
    for (size_t c = 0; c < width; c += run) {
        const size_t to = base + s->y.rows[r] + (s->y.columns ? s->y.columns[c] : 0);
        if (s->y.dtype == DTYPE_F32)
            memcpy((float *)(void *)s->step.y + to, sums + c, run * sizeof *sums);
        else if (s->y.dtype == DTYPE_BF16)
            s->simd->narrow_bf16(sums + c, (uint16_t *)(void *)s->step.y + to, run);
        else
            s->simd->quantize(sums + c, s->epilogue.step, s->epilogue.zero, s->y.dtype == DTYPE_I8,
                              s->step.y + to, run);
    }
}

/* Rounds `count` numbers to row r of `to`, and fills the rest of the row's `bytes` with zeros. */
static void narrow_padded(const struct attention_step *s, const float *from, size_t count,
                          size_t bytes, float *to, size_t r)
{
    uint16_t *row = (uint16_t *)(void *)to + r * bytes / sizeof *row;
    s->simd->narrow_bf16(from, row, count);
    memset(row + count, 0, bytes - count * sizeof *row);
}

/* c = a b for rows of `bytes` bytes of bfloat16 and packed panels. Rows of c are ldc apart. */
static void multiply_narrow(const struct attention_step *s, const float *a, size_t bytes,
                            const float *b, size_t n, float *c, size_t ldc, size_t rows)
{
    const size_t tiles = (rows + s->simd->tile_rows - 1) / s->simd->tile_rows;
    for (size_t j = 0; j < n; j += s->panel)
        for (size_t i = 0; i < tiles; i++) {
            const size_t first = rows * i / tiles, count = rows * (i + 1) / tiles - first;
            const size_t group = s->simd->tile_rows_are_even ? (count + 1) / 2 : 1;
            const unsigned char *starts[TILE_MOST_ROWS];
            for (size_t r = 0; r * group < count; r++)
                starts[r] = (const unsigned char *)a + (first + r * group) * bytes;
            const struct tile t = {.rows = starts,
                                   .taps = 1,
                                   .run = bytes,
                                   .b = (const unsigned char *)b + j * bytes,
                                   .c = c + first * ldc + j,
                                   .ldc = ldc,
                                   .n = n - j < s->panel ? n - j : s->panel,
                                   .group = group,
                                   .apart = bytes,
                                   .chunk = s->simd->tile_bytes};
            s->simd->tile_bf16(&t, count);
        }
}

static void attention_block(const struct attention_step *s, size_t matrix, size_t first_row,
                            size_t rows, const struct attention_scratch *t)
{
    const size_t keys = (size_t)s->a.keys, depth = (size_t)s->a.depth, width = (size_t)s->a.width;
    const size_t base = matrix_base(&s->in[0], matrix);
    for (size_t r = 0; r < rows; r++) {
        float *to = s->narrow ? t->fetched : t->q + r * depth;
        s->simd->binary(BINARY_MUL, row(s, &s->in[0], base, first_row + r, depth, to), 1,
                        &s->a.scale, 0, to, depth);
        if (s->narrow)
            narrow_padded(s, to, depth, s->depth_bytes, t->q, r);
    }
    if (s->narrow) {
        multiply_narrow(s, t->q, s->depth_bytes, t->keys, keys, t->scores, s->stride, rows);
        weigh(s, matrix, first_row, rows, t);
        for (size_t r = 0; r < rows; r++)
            narrow_padded(s, t->scores + r * s->stride, keys, s->keys_bytes, t->exps, r);
        multiply_narrow(s, t->exps, s->keys_bytes, t->values, width, t->sums, s->wide, rows);
    } else {
        const struct gemm scores = {.a = t->q,
                                    .lda = depth,
                                    .b = t->keys,
                                    .k = depth,
                                    .n = keys,
                                    .c = t->scores,
                                    .ldc = s->stride};
        const struct gemm sums = {.a = t->scores,
                                  .lda = s->stride,
                                  .b = t->values,
                                  .k = keys,
                                  .n = width,
                                  .c = t->sums,
                                  .ldc = s->wide};
        s->simd->gemm(&scores, rows);
        weigh(s, matrix, first_row, rows, t);
        s->simd->gemm(&sums, rows);
    }
    const size_t to = matrix_base(&s->y, matrix);
    for (size_t r = 0; r < rows; r++)
        write_row(s, to, first_row + r, t->total[r], t->sums + r * s->wide);
}

static void attention_items(void *context, size_t begin, size_t end)
{
    const struct attention_step *s = context;
    const size_t all = (size_t)s->a.rows;
    struct attention_scratch t;
    size_t packed = SIZE_MAX;
    attention_lay_out(s, s->step.memory + (size_t)forkjoin_member() * s->thread_bytes, &t);
    for (size_t i = begin * s->together; i < end * s->together; i++) {
        const size_t matrix = i / s->blocks, block = i % s->blocks;
        const size_t first = all * block / s->blocks;
        if (matrix != packed)
            (s->narrow ? attention_pack_narrow : attention_pack)(s, matrix, &t);
        packed = matrix;
        attention_block(s, matrix, first, all * (block + 1) / s->blocks - first, &t);
    }
    if (s->narrow && s->simd->tile_end)
        s->simd->tile_end();
}

STEP_RUN(attention_run)
{
    struct attention_step *s = (struct attention_step *)base;
    /* If there are many matrices, a thread takes whole ones, and packs keys and values once. */
    s->together = s->a.batch >= 2 * program->threads ? s->blocks : 1;
    const size_t items = (size_t)s->a.batch * s->blocks / s->together;
    parallel_for(program->threads, items, (size_t)(s->step.flops / (double)items / 64) + 1,
                 attention_items, s);
    return STATUS_OK;
}

/* ---- compile ---- */

static void attention_free(struct step *base)
{
    struct attention_step *s = (struct attention_step *)base;
    for (size_t i = 0; i < COUNT_OF(s->in); i++)
        FREE_ALL(s->in[i].rows, s->in[i].columns);
    FREE_ALL(s->y.rows, s->y.columns);
}

static size_t *table(const struct access_map_group *group)
{
    const int64_t count = access_map_extent(group);
    size_t *at = alloc_array((size_t)count, sizeof *at);
    for (int64_t i = 0; at && i < count; i++)
        at[i] = (size_t)access_map_at(group, i);
    return at;
}

static bool layout_init(const struct lowering *lowering, struct attention_layout *l,
                        const struct access_map *walk, const struct value *value)
{
    int64_t stride;
    *l = (struct attention_layout){
        .walk = *walk, .dtype = value->dtype, .data = &lowering->program->data[value->index]};
    const bool even = access_map_is_even(&walk->group[2], &stride) && stride <= 1 &&
                      (stride == 1 || access_map_extent(&walk->group[2]) == 1);
    l->rows = table(&walk->group[1]);
    if (!even)
        l->columns = table(&walk->group[2]);
    return l->rows && (even || l->columns);
}

/* Chooses blocks of about 30 rows (28 to 40 in some variants), so that their scores stay in the
 * cache. */
static void attention_divide(struct attention_step *s)
{
    const struct simd_kernels *simd = s->simd;
    const size_t rows = (size_t)s->a.rows, keys = (size_t)s->a.keys, size = sizeof(uint16_t);
    s->narrow = simd->tile_bf16;
    for (size_t i = 0; i < 3; i++)
        s->narrow = s->narrow && s->in[i].dtype == DTYPE_BF16;
    s->panel = s->narrow ? simd->tile_columns : simd->gemm_columns;
    s->wide = round_up((size_t)s->a.width, s->panel);
    s->depth_bytes = s->narrow ? round_up((size_t)s->a.depth * size, simd->tile_bytes) : 0;
    s->keys_bytes = s->narrow ? round_up(keys * size, simd->tile_bytes) : 0;
    const size_t unit = !s->narrow                 ? 2 * simd->gemm_rows
                        : simd->tile_rows_are_even ? simd->tile_rows
                                                   : 5 * simd->tile_rows;
    s->blocks = (rows + unit - 1) / unit;
    s->most = (rows + s->blocks - 1) / s->blocks;
    s->stride = s->narrow ? round_up(keys, s->panel) : keys;
    s->stride += s->stride % 256 ? 0 : simd->gemm_columns;
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
    struct attention_scratch t;
    attention_load(node, &a);
    struct attention_step *s = step_create(lowering, sizeof *s, attention_run, ret, err);
    TRY(allocated(s));
    s->step.kernel = "attention";
    s->step.free = attention_free;
    s->simd = simd();
    s->a = a;
    s->epilogue = node->epilogue;
    const struct access_map *const maps[] = {&a.q, &a.k, &a.v, &a.bias[0], &a.bias[1], &a.bias[2]};
    bool ok = layout_init(lowering, &s->y, &a.y, node->outputs[0]);
    for (size_t i = 0; ok && i < 3 + a.bias_count; i++)
        ok = layout_init(lowering, &s->in[i], maps[i], node->inputs[i]);
    TRY(check_memory(ok, "while compiling", err));
    attention_divide(s);
    s->thread_bytes = attention_lay_out(s, NULL, &t);
    s->step.scratch = s->thread_bytes * (size_t)lowering->program->threads;
    s->step.flops =
        2 * (double)a.batch * (double)a.rows * (double)a.keys * (double)(a.depth + a.width);
    return STATUS_OK;
}

const struct cpu_kernel cpu_attention = {{"attention", {OP_ATTENTION}, attention_claim},
                                         lower_attention};
