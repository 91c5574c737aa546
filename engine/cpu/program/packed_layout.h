/* Private to engine/cpu/: the memory layout of packed weights. */
#pragma once

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/graph/graph.h"

/* Strides of a tensor's elements in memory. */
struct strided_layout {
    enum dtype dtype;
    int rank;
    int64_t dims[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK]; /* strides in elements */
};

/* Types of the numbers in rows and in weights. With PAIRS rows have int16 and weights int8; with
 * DOT rows have bytes and weights int8. */
enum product_operands { OPERANDS_F32, OPERANDS_BF16, OPERANDS_PAIRS, OPERANDS_DOT };

/* `parts` matrices of k x n, packed in the panels that simd's kernels read. For 8-bit integers the
 * sums of each matrix's columns follow (int32, whole_columns() per matrix). */
struct packed_layout {
    const struct simd_kernels *simd;
    enum product_operands operands;
    size_t parts, k, n;
    size_t run, whole_run; /* k has runs, each padded with zeros to whole_run */
    int leading;           /* number of leading dims of the constant that index the matrices */
    bool matrix;           /* the constant's last dims are k, n; otherwise n, channels, taps … */
};

static inline bool are_narrow(const struct packed_layout *layout)
{
    return layout->operands != OPERANDS_F32;
}

/* Number of consecutive elements of a column that a panel stores side by side. */
static inline size_t neighbours(const struct packed_layout *layout)
{
    return layout->operands == OPERANDS_DOT   ? layout->simd->dot_neighbours
           : layout->operands == OPERANDS_F32 ? 1
                                              : 2;
}

/* Size in bytes of one number of a row. */
static inline size_t operand_bytes(const struct packed_layout *layout)
{
    static const size_t of[] = {
        [OPERANDS_F32] = 4, [OPERANDS_BF16] = 2, [OPERANDS_PAIRS] = 2, [OPERANDS_DOT] = 1};
    return of[layout->operands];
}

static inline size_t weight_bytes(const struct packed_layout *layout)
{
    return layout->operands == OPERANDS_PAIRS ? 1 : operand_bytes(layout);
}

static inline size_t panel_columns(const struct packed_layout *layout)
{
    return are_narrow(layout) ? layout->simd->tile_columns : layout->simd->gemm_columns;
}

/* n, rounded up to full panels. */
static inline size_t whole_columns(const struct packed_layout *layout)
{
    const size_t panel = panel_columns(layout);
    return (layout->n + panel - 1) / panel * panel;
}

/* Returns how many bytes a kernel multiplies at a time if rows consist of runs of `bytes`; 0 if the
 * kernel cannot multiply such runs, or would waste more than a quarter of its tile registers. */
static inline size_t tile_chunk(const struct simd_kernels *simd, size_t bytes)
{
    const size_t least = (bytes + simd->tile_bytes - 1) / simd->tile_bytes;
    if (!simd->tile_rows_are_even)
        return bytes % simd->tile_bytes ? 0 : simd->tile_bytes;
    for (size_t count = least; count <= least + least / 3; count++)
        if (bytes % (count * 4) == 0)
            return bytes / count;
    return 0;
}

/* Returns k including its padding. */
static inline size_t whole_k(const struct packed_layout *layout)
{
    return layout->k / layout->run * layout->whole_run;
}

static inline size_t part_bytes(const struct packed_layout *layout)
{
    return whole_k(layout) * whole_columns(layout) * weight_bytes(layout);
}

static inline bool are_8bit(const struct packed_layout *layout)
{
    return layout->operands == OPERANDS_PAIRS || layout->operands == OPERANDS_DOT;
}

size_t packed_layout_bytes(const struct packed_layout *layout);
bool packed_layouts_equal(const struct packed_layout *a, const struct packed_layout *b);

/* Packs the weights at `from`, which have the layout `given`, into `to`, of packed_layout_bytes().
 * Any thread. */
void pack_weights(const struct strided_layout *given, const void *from,
                  const struct packed_layout *wanted, void *to);

/* Packs matrix `part` into `packed`, of part_bytes(). Rounds float32 to bfloat16, or widens
 * bfloat16, as the layout requires. `sums` receives the sums of 8-bit columns, whole_columns()
 * numbers; may be NULL. Any thread. */
void pack_part(const struct packed_layout *layout, const struct strided_layout *given,
               const void *from, size_t part, void *packed, int32_t *sums);
