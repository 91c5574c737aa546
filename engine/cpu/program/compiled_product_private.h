/* Private to compiled_product.c and product_strips.c. */
#pragma once

#include <string.h>

#include "engine/cpu/program/compiled_product.h"

enum { AXES = 3 };

struct product_axis {
    int64_t in, out, kernel;
    int64_t result_step, tap_step, offset, divisor;
    int64_t stride;                 /* source elements from one position to the next */
    int64_t inside_from, inside_to; /* results whose taps are all inside; none with a divisor */
};

struct compiled_product {
    const struct simd_kernels *simd;
    enum product_op op;
    struct packed_layout weights;
    struct strided_layout src, dst, given; /* given: weights that a node computes */
    struct product_axis axis[AXES];
    size_t parts, groups; /* groups: of a convolution, otherwise 1 */
    size_t rows, channels;
    int64_t channel_step;
    size_t ldc;          /* elements of dst between the starts of rows */
    size_t taps;         /* taps of a window; with `strips`, runs of taps */
    bool in_place;       /* reads rows in place: a row is one run, or with `strips` several */
    bool in_windows;     /* float32 windows inside the image are read in place */
    bool copies_rows;    /* gemm() reads copies of the rows, see gemm_copies() */
    bool gated;          /* first multiplies the source by product_run.gate */
    bool strips, copies; /* reads strips, described below; copies: reads copies of the lines */
    size_t group, line_groups;   /* pixels in a group; groups per line of the result, the last of
                                    which may extend beyond the line */
    size_t pixel_bytes;          /* bytes from pixel to pixel of a line */
    int64_t line_bytes;          /* bytes from line to line */
    size_t tile_rows, unit_rows; /* rows of a tile of sums; chunks have a multiple of unit_rows */
    size_t run_bytes, chunk;     /* bytes of a run, and of its part that is multiplied at a time */
    int threads;
    size_t row_bytes; /* bytes of a gathered row */
    size_t row_chunks, column_chunks;
    size_t packed_bytes; /* scratch for the packed weights if they are an activation */
    size_t result_at;    /* offset of sums or floats in a thread's scratch, after gathered rows */
    size_t taps_at;      /* offset of pointers to taps in a thread's scratch */
    size_t thread_bytes;
    struct gemm finish;               /* epilogue of float32 products */
    struct tile_finish narrow_finish; /* epilogue of products of other types */
    unsigned char *outside;           /* the numbers of a line of taps that lies in the padding */
    int64_t *tap_offsets;             /* one per tap: bytes from the first tap of a window */
    bool taps_join;                   /* neighbouring taps of a line form one run */
    /* set by compiled_product_bind() */
    const unsigned char *bound;
    const float *bias;
    /* The rest is for 8-bit integers. */
    float *scales;
    int32_t *bias_sums; /* [matrix of weights][whole_columns()]; see bind_sums() */
    uint8_t flip;       /* XORed with stored bytes to make them signed or unsigned */
    bool is_signed;     /* the bytes are signed after the XOR */
    int src_zero;
};

/* memcpy(), inlined for short runs, such as seven pixels of three colours. */
static inline void copy_short(const unsigned char *from, size_t bytes, unsigned char *to)
{
    enum { STEP = 16, SHORT = 96 };
    if (bytes < STEP || bytes > SHORT) {
        memcpy(to, from, bytes);
        return;
    }
    for (size_t at = 0; at + STEP < bytes; at += STEP)
        memcpy(to + at, from + at, STEP);
    memcpy(to + bytes - STEP, from + bytes - STEP, STEP);
}

/* A block of rows and columns of a part's result. */
struct product_block {
    const unsigned char *src;
    unsigned char *dst;           /* address of the block's first row and column */
    size_t matrix, channel;       /* channel: index of its first column in bias and scales */
    size_t first, rows, from, to; /* from, to: columns */
    unsigned char *gathered, *result;
    const unsigned char **taps;
};

/* `bytes` plus padding, so that `count` runs of that size can be multiplied together. */
static inline size_t padded_run(const struct compiled_product *p, size_t bytes, size_t count)
{
    while (!tile_chunk(p->simd, bytes * count))
        bytes += operand_bytes(&p->weights);
    return bytes;
}

/* Copies `count` numbers, channel_step elements apart, converted to the product's operand type. */
void gather_run(const struct compiled_product *p, const void *from, size_t count, void *to);

/* Strips: AMX reads groups of up to 16 rows that are equally far apart; other instructions read
 * groups of one row. For a convolution these rows are pixels of a line of its result. They are read
 * in the source, or in a copy of the lines that a block needs, with their padding. Neighbouring
 * taps and their channels form one run. */

/* Number of pointers per run of a tile: to its two groups, or to its rows. */
static inline size_t tile_pointers(const struct simd_kernels *simd)
{
    return simd->tile_rows_are_even ? 2 : simd->tile_rows;
}

/* Decides whether and how the product reads strips; if so, the taps become runs. */
void strips_describe(struct compiled_product *p);

/* Size in bytes of the strip for `lines` lines of the result. */
size_t strip_bytes(const struct compiled_product *p, int64_t lines);

/* Copies to b->gathered the source's lines that the block needs. */
void strip_copy(const struct compiled_product *p, const struct product_block *b);

/* Fills b->taps with the starts of groups of rows: [tile][run][group of the tile]. `taps`: runs per
 * row; `apart`: bytes from row to row. */
void locate_groups(const struct compiled_product *p, const struct product_block *b, size_t taps,
                   size_t apart);
