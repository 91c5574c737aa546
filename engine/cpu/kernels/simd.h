/* The CPU's kernels, compiled once per instruction set and picked at run time.
 *
 * Kernels work on contiguous rows; the steps that call them know shapes and divide the work among
 * threads. Results of the variants differ in the last few bits (fused multiply-add). vec_math.h has
 * the sources of the approximations; tests compare them with libm. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/graph/graph.h"

enum binary_kind {
    BINARY_ADD,
    BINARY_SUB,
    BINARY_MUL,
    BINARY_DIV,
    BINARY_MAX,
    BINARY_MIN,
    BINARY_PRELU, /* a if a >= 0, else a * b */
};

/* True for an activation that kernels apply to finished rows. A clip is applied in registers. */
static inline bool is_row_activation(enum activation activation)
{
    return activation != ACTIVATION_NONE && activation != ACTIVATION_CLIP;
}

/* c = activation(a * b + bias [+ c]). Rows of a are lda apart. b is packed in panels
 * [k][gemm_columns], whose columns from n on are 0. */
struct gemm {
    const float *a, *b, *bias; /* bias: n numbers, or NULL */
    float *c;
    size_t lda, ldc; /* elements between the starts of rows */
    size_t k, n;
    size_t run, run_step; /* a row of `a` has runs of `run` numbers, which start run_step numbers
                             apart; if `run` is 0, the row is one run */
    bool accumulate;
    struct epilogue row; /* the activation; its residual is ignored */
    float *copies;       /* scratch of gemm_copies() numbers, or NULL: rows are read in place */
};

/* A tile of an image: steps in elements from pixel to pixel, and the rows [top, bottom) and columns
 * [left, right) that exist. A source tile has 6 x 6 pixels, a result tile 4 x 4. */
struct winograd_tile {
    ptrdiff_t row_step, column_step;
    int top, bottom, left, right;
};

#define WINOGRAD_POINTS 36

/* A depthwise convolution. Pixels of the image and of the result are `channels` numbers apart. A
 * block has depthwise_channels channels. If `channels` is not a multiple of depthwise_channels, the
 * last block overlaps the block before it. */
struct depthwise {
    size_t channels, height, width, out_width; /* channels >= depthwise_channels */
    size_t kernel_height, kernel_width;        /* kernel_width: 3, 5 or 7 */
    size_t stride_y, stride_x;                 /* stride_x: 1 or 2 */
    size_t pad_top, pad_left;
    const float *weights; /* [block][tap][depthwise_channels] */
    const float *bias;    /* `channels` numbers, or NULL */
    struct epilogue row;  /* the activation; its residual is ignored */
    bool bf16;            /* the image is bfloat16 */
    bool narrow_result;   /* the result is bfloat16 */
};

/* Operands of binary_rows(). A step of 0 means that each row has a single number; otherwise the
 * step is 1. a_row and b_row are elements from the start of a row to the start of the next row. */
struct binary_rows {
    enum binary_kind kind;
    int a_step, b_step;
    size_t a_row, b_row;
};

/* Operands of scale_rows(): a scale and a shift per column, and the limits of y. Rows of x are
 * x_step elements apart, rows of y y_step elements. */
struct scale_rows {
    const float *scale, *shift;
    float low, high;
    size_t x_step, y_step;
};

/* Rows of numbers, taps[t][c]. The result of a column is its maximum, where NaN is ignored, or its
 * sum times `factor`. For an 8-bit sum, `fixed` is then added. */
struct pool_rows {
    const void *const *taps;
    size_t count;
    bool is_max;
    float factor, fixed;
};

/* Rows of bytes, x_step and y_step apart; each byte x becomes table[x]. `table` has 256 entries. */
struct lookup_rows {
    const uint8_t *table;
    size_t x_step, y_step;
};

/* Returns the first channel of a block of a depthwise convolution. Every block has `lanes`
 * channels, so the last block may overlap the block before it. channels >= lanes. */
static inline size_t depthwise_first_channel(size_t channels, size_t block, size_t lanes)
{
    return block * lanes < channels - lanes ? block * lanes : channels - lanes;
}

/* A depthwise convolution of 8-bit integers with a square filter. It reads quads of source rows.
 * Results are (sum + bias) * scale, rounded half to even, plus dst_zero, saturated. */
struct depthwise_8bit {
    size_t channels, height, width, out_height, out_width; /* channels >= depthwise_channels */
    size_t taps, stride;                                   /* taps: 3, 5 or 7; stride: 1 or 2 */
    size_t pad_top, pad_left;
    size_t quads;          /* of a band: (taps + 3) / 4 */
    size_t rows;           /* result rows of a band: (4 * quads - taps) / stride + 1 */
    bool dot;              /* use the dot product instructions; requires simd_has_dot() */
    const int8_t *weights; /* made by depthwise_8bit_pack() */
    const int32_t *bias;   /* [block][channel]: the channel's bias, minus the source's zero point
                              times the sum of the channel's weights */
    const float *scales;   /* [block][channel] */
    uint8_t src_zero;      /* the source's zero point, as stored */
    uint8_t flip;          /* 0x80 or 0. XORed with it, source numbers are signed if both `dot` and
                              dot_is_signed are set, otherwise unsigned. */
    int dst_zero;
    bool is_signed; /* the result is signed */
};

/* c = a * b. A row of a is `taps` runs of `run` bytes, a multiple of tile_bytes. Run t of row r
 * starts at rows[t * tile_rows + r]. b is one panel of tile_columns columns,
 * [k / neighbours][column][neighbours]; columns from n on are 0.
 *     tile_pairs   a: 16-bit integers, b: 8-bit integers, two neighbours, c: int32
 *     tile_dot     a: bytes, b: 8-bit integers, dot_neighbours, c: int32
 *     tile_bf16    a, b: bfloat16, two neighbours, c: float32; tiny numbers (below 1.2e-38) may
 *                  count as 0 */
struct tile {
    const unsigned char *const *rows;
    size_t taps, run; /* run: bytes */
    const unsigned char *b;
    void *c;    /* kernels may also overwrite columns n … tile_columns - 1 */
    size_t ldc; /* elements between the starts of rows */
    size_t n;
    bool is_signed; /* the bytes of a are signed; used only with dot_takes_both */
    /* With tile_rows_are_even the tile has two groups of rows, which start at rows[2 * t] and
     * rows[2 * t + 1] for run t. Rows of a group are `apart` bytes apart. */
    size_t group, apart; /* group: rows of the first group; at most 16, at least half of the rows */
    size_t chunk;        /* bytes that are multiplied at a time; divides `run`: tile_chunk() */
};

/* Converts sums to results. x = (sum + bias) * scale, or sum + bias without `scales`. With
 * `residual`, y is added. Then x is activated. Finally y = x, or for 8 bits y = x / step, rounded
 * half to even, plus zero, saturated (NaN: the lowest). Sums of integers wrap, as the operators
 * require. */
struct tile_finish {
    const void *bias;    /* tile_columns int32 numbers; without `scales`, n float32 or NULL */
    const float *scales; /* n numbers, for int32 sums; NULL: the sums are float32 */
    size_t n;            /* <= tile_columns */
    size_t lds, ldy;     /* distance of rows: lds in elements of the sums, ldy in bytes of y */
    bool residual;
    struct epilogue row; /* the activation; its residual is ignored */
    enum dtype to;       /* type of y: float32, bfloat16, uint8, int8 */
    float step;          /* 0: do not divide */
    int zero;
};

struct simd_kernels {
    const char *name; /* "avx512" … */

    /* Computes the product for m rows. Columns are processed in panels of gemm_columns. To compute
     * columns from `first` on, which must start a panel, pass b + k * first. */
    void (*gemm)(const struct gemm *g, size_t m);
    /* Number of floats of scratch that let gemm() read copies of rows that lie a multiple of 4096
     * bytes apart and so compete for one set of the first-level cache. 0 for other rows. */
    size_t (*gemm_copies)(const struct gemm *g, size_t m);
    size_t gemm_rows, gemm_columns; /* size of the block that stays in registers */

    /* Multiply 1 … tile_rows rows. tile_dot and tile_bf16 are NULL if the variant lacks the
     * instruction; call tile_dot only if simd_has_dot(). Bytes of a are signed if dot_is_signed
     * is set; with dot_takes_both they are signed if tile.is_signed is set. A thread calls
     * tile_end, unless it is NULL, after its last tile. */
    void (*tile_pairs)(const struct tile *t, size_t rows);
    void (*tile_dot)(const struct tile *t, size_t rows);
    void (*tile_bf16)(const struct tile *t, size_t rows);
    void (*tile_end)(void);
    bool dot_is_signed, dot_takes_both, tile_rows_are_even;
    size_t dot_neighbours; /* 4 or 8 */
    size_t tile_rows, tile_columns, tile_bytes;
    /* Writes `rows` rows of results and overwrites their sums. */
    void (*finish_tile)(const struct tile_finish *f, int32_t *sums, size_t rows, void *y);

    /* Packs n <= `columns` rows of k numbers as columns of one panel for gemm(). If the
     * numbers are pairs of bfloat16, the panel is for tile_bf16. */
    void (*pack_rows)(const float *const *rows, size_t n, size_t k, size_t columns, float *packed);
    /* Packs all panels, of `columns` columns, of a k x n matrix of bfloat16 for tile_bf16. Rows
     * from k to the even number whole_k are 0. */
    void (*pack_pairs)(const uint16_t *const *rows, size_t k, size_t whole_k, size_t n,
                       size_t columns, uint32_t *packed);
    /* Packs all panels of a k x n matrix with its rows at rows[]. */
    void (*pack_columns)(const float *const *rows, size_t k, size_t n, float *packed);
    /* One row of attention scores: s[i] becomes exp(s[i] + biases[0][i] … - *max), after *max is
     * raised to the highest score. Returns the sum. If all scores are -inf, the row and the sum are
     * 0; a NaN makes the sum NaN. */
    float (*score_row)(float *s, size_t n, const float *const *biases, size_t bias_count,
                       float *max);

    /* Transforms 3x3 filters. Each tap has n numbers (a multiple of gemm_columns): number c of tap
     * t is taps[t * n + c]. Writes to[i * step + c] for the points i of rows `first` … first + rows
     * - 1; a row has 6 points. */
    void (*winograd_filters)(const float *taps, size_t n, size_t first, size_t rows, float *to,
                             size_t step);
    /* Transforms a source tile of float32 or bfloat16: writes v[i * v_step + c] for the 36 points
     * i. x points to the tile's first pixel, even if that pixel is padding. */
    void (*winograd_source)(const struct winograd_tile *tile, const void *x, bool bf16,
                            size_t channels, float *v, size_t v_step);
    /* Computes the result tile from the 36 products m[i * m_step + c]. Uses only g's bias, n,
     * accumulate and, if it is a clip, the activation. */
    void (*winograd_sink)(const struct winograd_tile *tile, const struct gemm *g, const float *m,
                          size_t m_step, void *y, bool bf16);

    /* Computes rows `first` … first + rows - 1 of the result for blocks first_block … last_block -
     * 1; x and y are the whole image and result. Each block's results are added to sums
     * [block][depthwise_channels], unless it is NULL. Fastest if `rows` is a multiple of
     * depthwise_rows. */
    void (*depthwise)(const struct depthwise *d, const void *x, void *y, size_t first, size_t rows,
                      size_t first_block, size_t last_block, float *sums);
    size_t depthwise_channels, depthwise_rows;

    /* Computes result rows first … first + rows - 1; first is a multiple of d->rows. */
    void (*depthwise_8bit)(const struct depthwise_8bit *d, const uint8_t *x, uint8_t *y,
                           size_t first, size_t rows);
    /* Packs weights [channel][taps][taps] if `packed` is not NULL. Returns their size in bytes. */
    size_t (*depthwise_8bit_pack)(const struct depthwise_8bit *d, const int8_t *weights,
                                  void *packed);

    /* Operators on 8-bit integers, signed or not. quantize: x / scale, rounded half to even, plus
     * zero, clamped; NaN gives the lowest. add: a * a_ratio + b * b_ratio + fixed; mul: (a -
     * a_zero) * (b - b_zero) * ratio + zero; both rounded and clamped. lookup: y may be x if their
     * steps are equal. */
    void (*quantize)(const float *x, float scale, int zero, bool is_signed, void *y, size_t n);
    void (*dequantize)(const void *x, bool is_signed, float scale, int zero, float *y, size_t n);
    void (*add_8bit)(const void *a, float a_ratio, const void *b, float b_ratio, float fixed,
                     bool is_signed, void *y, size_t n);
    /* Extends [*min, *max], which contains 0, to contain the numbers of x; NaN is ignored. */
    void (*range)(const float *x, size_t n, float *min, float *max);
    void (*mul_8bit)(const void *a, int a_zero, const void *b, int b_zero, float ratio, int zero,
                     bool is_signed, void *y, size_t n);
    void (*lookup)(const struct lookup_rows *l, const uint8_t *x, uint8_t *y, size_t rows,
                   size_t n);

    /* y[i] = activation(x[i]); y may be x. NaN stays NaN. */
    void (*activate)(const float *x, float *y, size_t n, enum activation activation, float alpha,
                     float beta);
    /* activate() for `rows` rows of n numbers. Rows start `step` numbers apart. */
    void (*activate_rows)(const float *x, float *y, size_t rows, size_t step, size_t n,
                          enum activation activation, float alpha, float beta);

    /* y[i] = a[i] ∘ b[i]; an operand with step 0 is a single number. y may be a or b. */
    void (*binary)(enum binary_kind kind, const float *a, int a_step, const float *b, int b_step,
                   float *y, size_t n);

    /* binary() for `rows` rows. Rows of y have no gaps between them. y may be an operand whose rows
     * have no gaps, either. */
    void (*binary_rows)(const struct binary_rows *r, const float *a, const float *b, float *y,
                        size_t rows, size_t n);

    /* Per row: y[c] = clamp(x[c] * scale[c] + shift[c]); NaN stays. With equal steps y may be x.
     * Types: float32 or 8 bits to float32 or 8 bits, bfloat16 to bfloat16 or float32. 8-bit results
     * are rounded half to even, and NaN gives `low`; then `low` and `high` must be in the type's
     * range, and y must not be x. */
    void (*scale_rows)(const struct scale_rows *s, const void *x, enum dtype from, void *y,
                       enum dtype to, size_t rows, size_t n);

    /* y[c] = the result of column c (struct pool_rows). Without taps, a maximum is -inf or the
     * lowest 8-bit number, and a sum is 0. y has the type of the taps; for sums it may be float32.
     */
    void (*pool)(const struct pool_rows *p, enum dtype from, void *y, enum dtype to, size_t n);

    /* y[c] = sum over taps of weights[t] * taps[t][c]; count >= 1. y may be a tap. */
    void (*blend)(const float *const *taps, const float *weights, size_t count, float *y, size_t n);

    /* Softmax of one row: exp(x - max) / sum. y may be x. */
    void (*softmax)(const float *x, float *y, size_t n);

    /* LRN of the n channels of one pixel: x[i] / (bias + factor * sum of the squares of x[i -
     * before] … x[i - before + size - 1])^beta with before = (size - 1) / 2; positions outside of x
     * count as 0. squares: n + size numbers of scratch. y is not x. */
    void (*lrn)(const float *x, size_t n, size_t size, float factor, float bias, float beta,
                float *squares, float *y);

    /* sum[c] = sum over rows of (x[r * n + c] - mean[c])^2. difference[c] = sum over rows of
     * x[r * n + c] - mean[c], which is not 0 because the mean is rounded. */
    void (*square_rows)(const float *x, const float *mean, size_t rows, float *sum,
                        float *difference, size_t n);

    /* y[r * n + c] = (x[r * n + c] - mean[c]) * factor[c] + shift[c] */
    void (*center_rows)(const float *x, const float *mean, const float *factor, const float *shift,
                        size_t rows, float *y, size_t n);

    float (*sum_row)(const float *x, size_t n);

    /* (x - mean) / sqrt(variance + epsilon) * scale + bias; scale and bias may be NULL. is_rms: the
     * mean counts as 0. y may be x. */
    void (*norm_row)(const float *x, const float *scale, const float *bias, float epsilon,
                     bool is_rms, float *y, size_t n);

    void (*widen_bf16)(const uint16_t *x, float *y, size_t n);
    /* Rounds half to even; NaN stays NaN. Where the avx512_bf16 variant writes bfloat16, numbers
     * below the smallest normal one (1.2e-38) become 0. */
    void (*narrow_bf16)(const float *x, uint16_t *y, size_t n);
    void (*widen_f16)(const uint16_t *x, float *y, size_t n);
    /* Rounds half to even; numbers beyond the range of float16 become infinite; NaN stays NaN. */
    void (*narrow_f16)(const float *x, uint16_t *y, size_t n);
    /* y[i] = (x[i] ^ flip) - zero */
    void (*widen_8bit)(const uint8_t *x, uint8_t flip, int zero, int16_t *y, size_t n);
};

/* The largest tile_rows and tile_columns of all variants. */
enum { TILE_MOST_ROWS = 32, TILE_MOST_COLUMNS = 64 };

/* Variants of x86-64; those of arm64 are base (NEON), dot, and i8mm with bfloat16. */
extern const struct simd_kernels simd_base, simd_avx2, simd_avx512, simd_avx512_bf16;
extern const struct simd_kernels simd_dot, simd_i8mm;

enum { SIMD_VARIANTS = 5 }; /* the most that a CPU supports; the fifth is avx512_bf16 with AMX */

/* Returns variant i of those that this CPU supports, the simplest first. Returns NULL after the
 * last variant. Thread-safe. */
const struct simd_kernels *simd_at(size_t i);

/* The widest variant that this CPU supports. Thread-safe. */
const struct simd_kernels *simd(void);

/* Asks Linux to let this process use AMX's tile registers (Documentation/arch/x86/xstate.rst).
 * Returns false if Linux refuses. Thread-safe. */
bool amx_allowed(void);

/* tile_dot, tile_bf16 and tile_end for tiles of 32 rows x 64 columns. They need amx_allowed().
 * amx_tile_end() releases the tile registers of the calling thread. */
void amx_tile_dot(const struct tile *t, size_t rows);
void amx_tile_bf16(const struct tile *t, size_t rows);
void amx_tile_end(void);

/* True if tile_dot can be called on this CPU. */
bool simd_has_dot(const struct simd_kernels *kernels);

/* For tests: sets simd()'s result. NULL: the widest variant. Do not call it while another thread
 * uses a session. */
void simd_use(const struct simd_kernels *kernels);
