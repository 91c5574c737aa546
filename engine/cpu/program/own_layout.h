/* Private to own_products.c: how its weights lie in memory. */
#pragma once

#include "engine/base/size.h"
#include "engine/cpu/kernels/simd.h"
#include "engine/cpu/program/own_products.h"

/* What rows and weights consist of. */
enum product_operands { OPERANDS_F32, OPERANDS_BF16, OPERANDS_PAIRS, OPERANDS_DOT };

/* `parts` matrices of k x n in panels: floats as simd->gemm wants them, or 8-bit integers, behind
 * all of which stand the sums of each matrix's columns (int32). */
struct own_layout {
    const struct simd_kernels *simd;
    enum product_operands operands;
    size_t parts, k, n;
    int leading; /* dims of the constant in front of the matrix: groups or batches */
    bool matrix; /* the constant's last dims are k, n; otherwise n, channels, taps … */
};

static inline bool are_narrow(const struct own_layout *layout)
{
    return layout->operands != OPERANDS_F32;
}

static inline size_t neighbours(const struct own_layout *layout)
{
    return layout->operands == OPERANDS_DOT ? layout->simd->dot_neighbours : 2;
}

/* Bytes of a number of a row. */
static inline size_t operand_bytes(const struct own_layout *layout)
{
    static const size_t of[] = {
        [OPERANDS_F32] = 4, [OPERANDS_BF16] = 2, [OPERANDS_PAIRS] = 2, [OPERANDS_DOT] = 1};
    return of[layout->operands];
}

static inline size_t panel_columns(const struct own_layout *layout)
{
    return are_narrow(layout) ? layout->simd->tile_columns : layout->simd->gemm_columns;
}

static inline size_t whole_columns(const struct own_layout *layout)
{
    const size_t panel = panel_columns(layout);
    return (layout->n + panel - 1) / panel * panel;
}

static inline size_t whole_k(const struct own_layout *layout)
{
    return are_narrow(layout)
               ? size_align(layout->k, layout->simd->tile_bytes / operand_bytes(layout))
               : layout->k;
}

/* Bytes of one matrix. */
static inline size_t part_bytes(const struct own_layout *layout)
{
    if (layout->operands == OPERANDS_F32)
        return layout->simd->gemm_packed(layout->k, layout->n) * sizeof(float);
    return whole_k(layout) * whole_columns(layout) * (layout->operands == OPERANDS_BF16 ? 2 : 1);
}

static inline bool are_8bit(const struct own_layout *layout)
{
    return layout->operands == OPERANDS_PAIRS || layout->operands == OPERANDS_DOT;
}

/* A matrix of narrow weights, bfloat16 also from floats, which are rounded. sums: of the columns of
 * 8-bit integers, or NULL. */
void own_pack_narrow(const struct own_layout *layout, const struct strided_layout *given,
                     const void *from, void *packed, int32_t *sums);

/* Element `index` of the dims first … last - 1 of a layout, row-major. */
int64_t own_offset_at(const struct strided_layout *layout, int first, int last, size_t index);
