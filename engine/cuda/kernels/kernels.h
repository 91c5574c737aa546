/* Host functions that launch the kernels. Each function enqueues on `stream` and returns at once;
 * cudaGetLastError() tells whether the launch was accepted. Pointers are device memory. Activations
 * are float32, bfloat16 or float16 (enum dtype); sums are float32. Images are [N, H, W, C]. Counts
 * are in elements. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_MAX_RANK 8

/* Operations after a product: y = activation(y + bias[column] + residual). */
struct cuda_epilogue {
    const float *bias;    /* per column (channel), or NULL */
    const void *residual; /* shaped like y, with y's dtype, or NULL; may be y itself */
    int activation;       /* enum activation */
    float alpha, beta;
};

#define CUDA_OPERANDS 3

/* A strided access map: maps each element of y to an element of each operand. y is dense, outermost
 * dimension first. Steps are in elements of an operand; 0 repeats the operand. */
struct cuda_access_map {
    int rank;
    int64_t dims[CUDA_MAX_RANK];
    int64_t steps[CUDA_OPERANDS][CUDA_MAX_RANK];
    int64_t offset; /* start in the first operand, in elements */
};

struct cuda_conv {
    int n, h, w, c; /* x is [n, h, w, c]; c counts the channels of all groups */
    int oh, ow, m;  /* y is [n, oh, ow, m]; m counts the channels of all groups */
    int kh, kw, groups;
    int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int row;   /* numbers between the weights of two output channels: kh * kw * c / groups, for
                  cuda_conv_tensor rounded up to a multiple of 8 */
    int y_row; /* numbers between two positions of y; 0: m. Must be m for residuals, 8-bit integers,
                  and depthwise and transposed kernels */
};

/* One candidate for a convolution on tensor cores: the shape of a block's tile, and the number of
 * blocks that share the sum of an output. */
struct cuda_conv_candidate {
    int tile, splits;
};

/* Scales and zero points of an operand and a result in 8-bit integers, which stand for (integer -
 * zero) * scale. */
struct cuda_scales {
    float from_scale, to_scale;
    int from_zero, to_zero;
};

struct cuda_pool {
    struct cuda_conv window; /* m == c */
    int pad_h_end, pad_w_end, is_max, count_include_pad;
    struct cuda_scales scales; /* of a mean of 8-bit integers */
};

/* Attention on matrices with strides. A group counts through its parts, the last part fastest; each
 * step of a part moves by `stride` elements. */
#define CUDA_GROUP_PARTS      6
#define CUDA_ATTENTION_BIASES 3

struct cuda_group {
    int count;
    int extent[CUDA_GROUP_PARTS], stride[CUDA_GROUP_PARTS];
};

struct cuda_matrices {
    int64_t offset;
    struct cuda_group batch, rows;
    int column_step;
};

/* y = softmax(scale * q k^T + biases) v for each of `batch` matrices: q [rows, depth], k [keys,
 * depth], v [keys, width], biases [rows, keys], y [rows, width]. A row with a NaN, or with -inf as
 * its highest score, is NaN, or 0 with nan_is_zero. */
struct cuda_attention {
    int batch, rows, keys, depth, width;
    float scale;
    int nan_is_zero, bias_count;
    struct cuda_matrices q, k, v, y, bias[CUDA_ATTENTION_BIASES];
    int bias_is_float[CUDA_ATTENTION_BIASES]; /* 0: the bias has q's dtype */
};

struct cuda_attention_data {
    const void *q, *k, *v, *bias[CUDA_ATTENTION_BIASES];
    void *y;
};

/* Applies an epilogue in a separate pass, in place over y [rows, columns], whose rows are `pitch`
 * numbers apart. With a residual, `pitch` must be `columns`. */
void cuda_apply_epilogue(cudaStream_t stream, int dtype, void *y, size_t rows, size_t columns,
                         size_t pitch, const struct cuda_epilogue *epilogue);
/* Copies elements of 1, 2, 4 or 8 bytes of x, the map's only operand. x, y: 16-byte aligned. */
void cuda_copy_strided(cudaStream_t stream, int size, const void *x, void *y,
                       const struct cuda_access_map *map);
/* Concat copies parts into a whole; Split (is_split) copies the whole into parts. The whole has
 * `rows` rows of `pitch` bytes. A part has `rows` rows of `width` bytes, stored contiguously; in
 * the whole they begin at `offset` of each row. A `table` (256 bytes) maps each byte. */
#define CUDA_PARTS 24

struct cuda_part {
    void *data;
    size_t width, offset;
    const void *table;
};
struct cuda_parts {
    int count, is_split;
    size_t rows, pitch;
    struct cuda_part parts[CUDA_PARTS];
};
void cuda_copy_parts(cudaStream_t stream, void *whole, const struct cuda_parts *parts);
/* Joins parts of `dtype` in y, without tables: a number x of column c becomes activation(x *
 * scale[c] + shift[c]). A part may be y itself. */
void cuda_scale_parts(cudaStream_t stream, int dtype, const float *scale, const float *shift,
                      void *y, const struct cuda_parts *parts, int activation, float alpha,
                      float beta);
/* Lists candidates, the most promising first, for a device with `processors` multiprocessors and
 * `shared_limit` bytes of shared memory per block; returns their number. Returns 0 if an image is
 * too large, or a group's channels are not a multiple of two (I8: of four; float32: no such limit).
 * I8 is for cuda_int8_conv_tensor(). */
int cuda_conv_candidates(int dtype, const struct cuda_conv *conv, size_t shared_limit,
                         int processors, struct cuda_conv_candidate *ret, int max);
/* Bytes that a candidate needs in addition to its operands. */
size_t cuda_conv_workspace(const struct cuda_conv *conv,
                           const struct cuda_conv_candidate *candidate);
/* A convolution on tensor cores of float16 (sm_75 and later), bfloat16, or float32 whose operands
 * are rounded to TF32 (both sm_80 and later). weights: rows of conv->row numbers: [kh, kw, c /
 * groups], then finite padding. All pointers are aligned to 16 bytes. y: x's dtype or float32. */
void cuda_conv_tensor(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      int y_dtype, const struct cuda_conv *conv,
                      const struct cuda_epilogue *epilogue,
                      const struct cuda_conv_candidate *candidate, void *workspace);
/* A convolution without tensor cores; weights: [m, kh, kw, c / groups] of x's dtype. */
void cuda_conv_simt(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                    int y_dtype, const struct cuda_conv *conv,
                    const struct cuda_epilogue *epilogue);
/* A convolution with one thread per output, and weights as for cuda_conv_simt. If groups == c == m,
 * weights are as for cuda_conv_depthwise; a thread computes eight channels if eight divides c. */
void cuda_conv_direct(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      int y_dtype, const struct cuda_conv *conv,
                      const struct cuda_epilogue *epilogue);
/* A convolution with groups == c == m; weights: [kh, kw, c]. */
void cuda_conv_depthwise(cudaStream_t stream, int dtype, const void *x, const void *weights,
                         void *y, int y_dtype, const struct cuda_conv *conv,
                         const struct cuda_epilogue *epilogue);
/* A pool of images; dtype: also U8, I8. */
void cuda_pool2d(cudaStream_t stream, int dtype, const void *x, void *y,
                 const struct cuda_pool *pool);
/* y[n, c] = mean or maximum of x[n, position, c] over the positions. A mean's dtype may also be U8
 * or I8, with `scales` and at most CUDA_MEAN_MOST positions, because a thread adds up an eighth of
 * them as int32. */
#define CUDA_MEAN_MOST ((size_t)1 << 26)
void cuda_pool_global(cudaStream_t stream, int dtype, const void *x, void *y, size_t n,
                      size_t positions, size_t channels, int is_max,
                      const struct cuda_scales *scales);
/* True if cuda_attend supports the attention, with tensor cores (16-bit dtypes) or without, on a
 * device with `shared_limit` bytes of shared memory per block. */
int cuda_attention_takes(const struct cuda_attention *attention, int on_tensor_cores,
                         size_t shared_limit);
void cuda_attend(cudaStream_t stream, int dtype, int on_tensor_cores,
                 const struct cuda_attention_data *data, const struct cuda_attention *attention);
/* LayerNormalization of each of `rows` rows of `row` elements, or RMSNormalization (is_rms, no
 * mean). bias may be NULL. */
void cuda_norm_rows(cudaStream_t stream, int dtype, const void *x, const float *scale,
                    const float *bias, void *y, size_t rows, size_t row, float epsilon, int is_rms);

/* ---- inputs of a run (pixels.cu) ---- */

/* Converts a batch of images; a row is one image. If row r has bytes, y[r, e] = table[c][byte] with
 * e = pixel * C + c; if it has floats, it is copied. Rows of x are `pitch` bytes apart, rows of y
 * `row` elements. */
struct cuda_pixels {
    size_t rows, row, pitch;
    int channels, is_reversed; /* channels: 1 or 3; is_reversed: in reverse order */
};
void cuda_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                 const float *table, float *y, const struct cuda_pixels *pixels);

#ifdef __cplusplus
}
#endif
