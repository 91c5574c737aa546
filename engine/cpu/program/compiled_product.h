/* Private to engine/cpu/: matrix products, convolutions and transposed convolutions of float32,
 * bfloat16 and 8-bit integers, compiled for their shapes. */
#pragma once

#include <string.h>

#include "engine/cpu/program/packed_layout.h"

enum product_op { PRODUCT_CONV, PRODUCT_DECONV, PRODUCT_MATMUL };

/* dst = activation(src * weights + bias [+ dst]). The dims of images are N, C, spatial …; the dims
 * of weights are [group,] out, in, spatial … or, for a matrix product, in, out. */
struct product_desc {
    enum product_op op;
    struct strided_layout src, dst;
    struct tensor *weights_constant; /* NULL: the weights are an activation */
    struct strided_layout weights;   /* layout of the weights in memory */
    const struct value *bias; /* a constant vector, of int32 with `scales`, otherwise of float32;
                                 NULL: no bias */
    int64_t stride[3], dilation[3], pad_begin[3]; /* unused by a matrix product */
    /* For 8-bit integers: the weights' only scale, or one for each output channel; NULL for floats.
     * result = sum * (src_scale * scale / sum_divisor), plus dst_zero for an 8-bit dst. A float32
     * dst has a float32 residual. */
    const struct tensor *scales;
    float src_scale, sum_divisor;
    float dst_scale; /* if not 0, the activation's result is divided by it before it is stored */
    int32_t src_zero, dst_zero;
    bool gated; /* the source of a float32 1x1 convolution of stride 1 without padding is first
                   multiplied by a factor per image and channel */
};

enum { AXES = 3 };

struct product_axis {
    int64_t in, out, kernel;
    int64_t result_step, tap_step, offset, divisor;
    int64_t stride;                 /* source elements from one position to the next */
    int64_t inside_from, inside_to; /* results whose taps are all inside the image; none if divisor
                                       is not 1 */
};

struct compiled_product {
    const struct simd_kernels *simd;
    enum product_op op;
    struct packed_layout weights;          /* the layout that the weights must have */
    struct strided_layout src, dst, given; /* given: layout of weights that a node computes */
    struct product_axis axis[AXES];
    size_t parts, groups; /* groups: of a convolution, otherwise 1 */
    size_t rows, channels;
    int64_t channel_step;
    size_t ldc;         /* elements of dst between the starts of rows */
    size_t taps;        /* taps of a window; with `strips`, runs of taps of a window */
    bool in_place;      /* reads rows in place: a row is one run, or with `strips` several */
    bool in_windows;    /* float32 windows inside the image are read in place */
    bool copies_rows;   /* gemm() reads copies of the rows, see gemm_copies() */
    bool gated;         /* first multiplies the source by product_run.gate */
    bool strips;        /* reads strips, which are described below */
    bool copies;        /* reads copies of the source's lines */
    size_t group;       /* pixels in a group */
    size_t line_groups; /* groups in a line of the result; the last group may extend beyond
                           the line */
    size_t pixel_bytes; /* bytes from pixel to pixel of a line */
    int64_t line_bytes; /* bytes from line to line */
    size_t tile_rows;   /* rows of a tile of sums */
    size_t unit_rows;   /* a chunk has a multiple of unit_rows rows */
    size_t run_bytes;   /* bytes of a run */
    size_t chunk;       /* bytes of the part of a run that is multiplied at a time */
    int threads;
    size_t row_bytes; /* bytes of a gathered row */
    size_t row_chunks, column_chunks;
    size_t packed_bytes; /* scratch for the packed weights if they are an activation */
    size_t scratch;      /* bytes for a run */
    size_t result_at;    /* offset of the result in a thread's scratch, after the gathered rows */
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

/* Keeps no reference to `desc`. threads: maximum number for a run. STATUS_NO_MEMORY. */
enum status compiled_product_create(int threads, const struct product_desc *desc,
                                    const struct epilogue *epilogue, struct compiled_product **ret,
                                    struct error *err) MUST_USE;
void compiled_product_free(struct compiled_product *product); /* NULL is fine */

const char *compiled_product_name(const struct compiled_product *product); /* static text */

/* Sets constant operands; call it before the first run. weights: packed by pack_weights(), or NULL
 * if each run passes them. bias: the constant's numbers, or NULL. Both must live as long as the
 * product. */
void compiled_product_bind(struct compiled_product *product, const void *weights, const void *bias);

struct product_run {
    const struct compiled_product *product;
    const unsigned char *src;
    const unsigned char *weights; /* NULL if compiled_product_bind() set them */
    const float *gate;            /* [image][channel], of a gated product */
    unsigned char *dst;
    unsigned char *scratch; /* product->scratch bytes, 64-byte aligned */
};

void compiled_product_run(struct product_run run);

/* ---- for compiled_product.c and product_strips.c ---- */

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
 * groups of one row. For a convolution these rows are the windows of neighbouring pixels of the
 * result. Kernels read the windows in the source, or in a copy of the source's lines and their
 * padding. Neighbouring taps and their channels form one run. */

/* Returns how many pointers a tile has for each run: to its two groups, or to its rows. */
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
