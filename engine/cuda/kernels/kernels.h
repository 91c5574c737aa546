/* Host functions that launch the kernels. Each function enqueues on `stream` and returns at once;
 * cudaGetLastError() tells whether the launch was accepted. Pointers are device memory. Activations
 * are float32, bfloat16 or float16 (enum dtype); sums are float32. Images are [N, H, W, C]. Counts
 * are in elements. */
#pragma once

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/graph/op.h"
#include "engine/tensor/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_MAX_RANK 8 /* that of a tensor */

/* Operations after a product: y = activation(y + bias[column] + residual). */
struct cuda_epilogue {
    const float *bias;    /* per column (channel), or NULL */
    const void *residual; /* shaped like y, with y's dtype, or NULL; may be y itself */
    int activation;       /* enum activation */
    float alpha, beta;
    int y_dtype; /* float32, or the operands' dtype */
};

#define CUDA_OPERANDS 3

/* A strided access map: maps each element of y to an element of each operand. y is dense, outermost
 * dimension first. Steps are in elements of an operand; 0 repeats the operand. */
struct cuda_access_map {
    int rank;
    int64_t dims[CUDA_MAX_RANK];
    int64_t steps[CUDA_OPERANDS][CUDA_MAX_RANK];
    int64_t offset; /* start in operand 0, in elements */
};

struct cuda_conv {
    int n, h, w, c; /* x is [n, h, w, c]; c counts the channels of all groups */
    int oh, ow, m;  /* y is [n, oh, ow, m]; m counts the channels of all groups */
    int kh, kw, groups;
    int stride_h, stride_w, dilation_h, dilation_w, pad_h, pad_w;
    int row;   /* numbers between the weights of two output channels: kh * kw * c / groups,
                  rounded up to a multiple of 8 for cuda_conv_tensor */
    int y_row; /* numbers between two positions of y; 0: m. Must be m for residuals, 8-bit integers,
                  and depthwise and transposed kernels */
};

/* One candidate for a convolution on tensor cores: the shape of a block's tile, and the number of
 * blocks that share the sum of an output. */
struct cuda_conv_candidate {
    int tile, splits;
    size_t workspace; /* bytes that are needed in addition to the operands */
};

/* Scales and zero points of an operand (from) and a result (to). An 8-bit integer `stored` stands
 * for (stored - zero) * scale. */
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
void cuda_apply_epilogue(cudaStream_t stream, void *y, size_t rows, size_t columns, size_t pitch,
                         const struct cuda_epilogue *epilogue);
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
/* Writes parts into y. They have y's dtype and no tables. A number x of column c becomes
 * activation(x * scale[c] + bias[c]). A part may be y itself. */
void cuda_scale_parts(cudaStream_t stream, const float *scale, void *y,
                      const struct cuda_parts *parts, const struct cuda_epilogue *epilogue);
/* Lists candidates, the most promising first, for a device with `processors` multiprocessors and
 * `shared_limit` bytes of shared memory per block; returns their number. Returns 0 if an image is
 * too large, or a group's channels are not a multiple of two (I8: of four; float32: no such limit).
 * I8 is for cuda_int8_conv_tensor(). */
int cuda_conv_candidates(int dtype, const struct cuda_conv *conv, size_t shared_limit,
                         int processors, struct cuda_conv_candidate *ret, int max);
/* A convolution on tensor cores of float16 (sm_75 and later), bfloat16, or float32 whose operands
 * are rounded to TF32 (both sm_80 and later). weights: rows of conv->row numbers: [kh, kw, c /
 * groups], then finite padding. All pointers are aligned to 16 bytes. y: x's dtype or float32. */
void cuda_conv_tensor(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      const struct cuda_conv *conv, const struct cuda_epilogue *epilogue,
                      const struct cuda_conv_candidate *candidate, void *workspace);
/* A convolution without tensor cores; weights: [m, kh, kw, c / groups] of x's dtype. */
void cuda_conv_simt(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                    const struct cuda_conv *conv, const struct cuda_epilogue *epilogue);
/* A convolution with one thread per output, and weights as for cuda_conv_simt. If groups == c == m,
 * weights are as for cuda_conv_depthwise; a thread computes eight channels if eight divides c. */
void cuda_conv_direct(cudaStream_t stream, int dtype, const void *x, const void *weights, void *y,
                      const struct cuda_conv *conv, const struct cuda_epilogue *epilogue);
/* A convolution with groups == c == m; weights: [kh, kw, c]. */
void cuda_conv_depthwise(cudaStream_t stream, int dtype, const void *x, const void *weights,
                         void *y, const struct cuda_conv *conv,
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
 * e = pixel * C + c; if it has floats, it is copied. Rows of x and y are `row` floats apart. */
struct cuda_pixels {
    size_t rows, row;
    int channels;    /* 1 or 3 */
    int is_reversed; /* the bytes' channels are in reverse order */
};
void cuda_pixels(cudaStream_t stream, const void *x, const unsigned char *are_bytes,
                 const float *table, float *y, const struct cuda_pixels *pixels);

/* ---- elementwise operators (pointwise.cu) ---- */

enum cuda_domain { CUDA_IN_FLOAT, CUDA_IN_DOUBLE, CUDA_IN_WHOLE };

/* Computes y from operands with strided access, in float32, float64 or 64-bit integers; Cast and
 * Identity only convert. When a result is converted to an integer type, integers wrap; floats
 * saturate, and NaN becomes 0. y may be an operand that is not broadcast. */
struct cuda_pointwise {
    enum op op;
    enum cuda_domain domain;
    int operands;
    int dtypes[CUDA_OPERANDS], y_dtype;
    struct cuda_access_map map;
    double alpha, beta;      /* parameters of some operators; MOD: alpha is the attribute fmod */
    int64_t lowest, highest; /* CLIP of integers */
    /* QLINEAR_ADD: y = fixed + b * ratios[1] + a * ratios[0], QLINEAR_MUL: y = (a - zeros[0]) * (b
     * - zeros[1]) * ratios[0] + fixed, rounded. Operands and y are all U8 or all I8; the domain is
     * CUDA_IN_FLOAT. */
    float ratios[2], fixed;
    int zeros[2];
    /* enum activation, applied to the result. Only if y and one or two operands have the same
     * dtype, float32 or a 16-bit float. */
    int activation;
    float activation_alpha, activation_beta;
};
void cuda_compute_pointwise(cudaStream_t stream, const void *const operands[CUDA_OPERANDS], void *y,
                            const struct cuda_pointwise *numbers);

/* ---- along axes of a tensor (reduce.cu) ---- */

/* y[o] = the reduction of x over some dimensions. x is dense. The map `kept` has the other
 * dimensions, `reduced` those that are reduced. */
struct cuda_reduce_axes {
    enum op fold; /* a reduction */
    enum cuda_domain domain;
    int dtype;                            /* of x and y */
    struct cuda_access_map kept, reduced; /* dimensions and steps of x */
    size_t count, each; /* count: elements of y; each: elements of x per element of y */
};
void cuda_fold_axes(cudaStream_t stream, const void *x, void *y,
                    const struct cuda_reduce_axes *reduce);

/* An axis of a dense tensor: [outer, extent, inner]. */
struct cuda_axis {
    size_t outer, extent, inner;
    int dtype, size; /* size: bytes of an element */
    enum cuda_domain domain;
};

/* y [outer, inner]: index of the first (is_last: last) maximum or minimum. NaN beats numbers. */
void cuda_find_extreme(cudaStream_t stream, const void *x, int64_t *y, const struct cuda_axis *axis,
                       int is_least, int is_last);

/* Softmax, or its logarithm. */
void cuda_softmax_axis(cudaStream_t stream, const void *x, void *y, const struct cuda_axis *axis,
                       int is_log);

/* The k largest or smallest elements of each line, sorted; equal elements keep their order. NaN
 * counts as larger than any number. values, [outer, k, inner] of x's dtype, and indices, int64, may
 * be NULL. workspace: cuda_top_k_workspace() bytes. */
size_t cuda_top_k_workspace(const struct cuda_axis *axis, size_t k);
void cuda_top_k(cudaStream_t stream, const void *x, void *values, int64_t *indices,
                const struct cuda_axis *axis, size_t k, int is_least, void *workspace);

/* ---- elements of 1 to 8 bytes: padding, gathers, scatters (gather_scatter.cu) ---- */

/* y[…, i, …] = x[…, i - begin, …] in each dimension, `fill` outside of x. */
struct cuda_pad {
    int rank;
    int64_t out[CUDA_MAX_RANK], in[CUDA_MAX_RANK]; /* dimensions of y and x */
    int64_t begin[CUDA_MAX_RANK];
    int64_t steps[CUDA_MAX_RANK]; /* strides of x, in elements */
    uint64_t fill;                /* the element, in the first bytes */
};
void cuda_pad_any(cudaStream_t stream, int size, const void *x, void *y,
                  const struct cuda_pad *pad);

/* Maps tuples of indices to slices of a tensor. The map has the tuples' dimensions, and its operand
 * is the tensor: a slice starts at the tuple's element of the map, plus index * step[k] for each
 * index k. Index k is below extent[k], and counts from the end if negative. All indices must be in
 * range. */
struct cuda_tuples {
    struct cuda_access_map map;
    int depth, index_bytes; /* depth: indices of a tuple; index_bytes: 4 or 8 */
    int64_t extent[CUDA_MAX_RANK], step[CUDA_MAX_RANK];
    size_t slice;  /* elements of a slice */
    size_t listed; /* number of tuples in memory; tuple i is read from entry i % listed */
};
/* Copies slices of `from` to the rows of `to`, which is [tuples, slice]. With `scatters`, copies
 * the rows of `from`, [tuples, slice], to slices of `to`; then no two slices may be equal. */
void cuda_index_tuples(cudaStream_t stream, int size, int scatters, const void *from,
                       const void *indices, void *to, const struct cuda_tuples *tuples);

/* ---- images, except Conv and pools (spatial.cu) ---- */

/* Resize (ONNX Resize, Upsample) of rows and columns of [N, H, W, C]: an output position is a
 * weighted sum of `taps` input positions along each axis. The table [out, taps] of the columns
 * follows that of the rows. `index` has input positions, `weight` their weights; positions with
 * weight 0 are not read. */
struct cuda_resize {
    int64_t in[4], out[4];
    int taps[2]; /* of rows, of columns */
};
void cuda_resize_image(cudaStream_t stream, int dtype, const void *x, void *y, const int32_t *index,
                       const float *weight, const struct cuda_resize *resize);

/* GroupNormalization, InstanceNormalization (one channel per group). In x [images, pixels,
 * channels], each group of `per` channels is normalized by its mean and standard deviation,
 * multiplied by `scale`, and increased by `bias` (both [channels]). */
struct cuda_groups {
    size_t images, pixels, channels, per;
    float epsilon;
};
/* Bytes needed in addition to the operands. */
size_t cuda_groups_workspace(const struct cuda_groups *groups);
void cuda_normalise_groups(cudaStream_t stream, int dtype, const void *x, const float *scale,
                           const float *bias, void *y, const struct cuda_groups *groups,
                           void *workspace);

/* ConvTranspose; h, w, c describe x, and oh, ow, m describe y. x[h] contributes to y[oh] where oh =
 * h * stride + tap * dilation - pad. weights: [kh, kw, c, m / groups] of x's dtype. */
void cuda_conv_transposed(cudaStream_t stream, int dtype, const void *x, const void *weights,
                          void *y, const struct cuda_conv *conv,
                          const struct cuda_epilogue *epilogue);

/* GridSample, linear and with zeros as padding: x [n, c, h, w], grid [n, oh, ow, 2] (column, row),
 * y [n, c, oh, ow]; one dtype. */
struct cuda_grid_sample {
    int64_t n, c, h, w, oh, ow;
    int align_corners;
};
void cuda_sample_grid(cudaStream_t stream, int dtype, const void *x, const void *grid, void *y,
                      const struct cuda_grid_sample *sample);

/* ---- 8-bit integers (conv.cu, conv_int8.cu, int8_rows.cu) ----
 *
 * A tensor of 8-bit integers represents (stored - zero) * scale. Types are of enum dtype: U8, I8,
 * I32, F32, F16, BF16. Numbers are rounded half to even and saturate. */

/* Operations on the int32 sum of x * weights over a window (stored values of x; the padding holds
 * its zero point):
 *
 *     sum += bias[m] - *x_zero * weight_sums[m]
 *     U8, I8:  y = saturate(round(sum * scales[m]) + zero)
 *              y = saturate(round(fixed + residual * residual_ratio + y * own_ratio)) (QLinearAdd)
 *              y = table[y]
 *     I32:     y = sum        F32:  y = sum * scales[m] */
struct cuda_int8_epilogue {
    const void *bias;   /* int32 per channel of y, or NULL. If x's zero point is constant, the bias
                           includes it: minus zero times the channel's weights */
    const void *x_zero; /* x's zero point, a byte; NULL: it is 0, or the bias includes it */
    const void *weight_sums; /* int32 per channel; used with x_zero */
    const void *scales;      /* float32 per channel; not for I32 */
    const void *residual;    /* shaped like y, with its type, or NULL; may be y itself */
    const void *table;       /* 256 stored numbers of y's type, indexed by a byte; or NULL */
    float own_ratio, residual_ratio, fixed;
    int zero, y_type, x_type; /* x_type: U8 or I8 */
    const void *padding;      /* 16 aligned bytes with x's zero point */
};

/* A convolution of 8-bit integers on tensor cores; weights: int8 [m, kh, kw, c / groups], rows
 * zero-padded to 16. cuda_conv_candidates() lists candidates for dtype I8. */
void cuda_int8_conv_tensor(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_conv *conv, const struct cuda_int8_epilogue *epilogue,
                           const struct cuda_conv_candidate *candidate, void *workspace);
/* A convolution without tensor cores; weights: int16, [m, kh, kw, c / groups] in rows of conv->row
 * numbers, or [kh, kw, c] if groups == c == m. */
void cuda_int8_conv_direct(cudaStream_t stream, const void *x, const void *weights, void *y,
                           const struct cuda_conv *conv, const struct cuda_int8_epilogue *epilogue);

/* If y is U8 or I8, y = saturate(round(x / scale) + zero), otherwise y = (x - zero) * scale. The
 * other type is F32, F16 or BF16. */
void cuda_int8_convert(cudaStream_t stream, int x_type, const void *x, int y_type, void *y,
                       size_t count, float scale, int zero);

/* DynamicQuantizeLinear of x: F32. `ranges`: scratch of 2 * CUDA_INT8_RANGES floats. */
#define CUDA_INT8_RANGES 256
void cuda_int8_dynamic(cudaStream_t stream, const float *x, size_t count, void *ranges,
                       unsigned char *y, float *scale, unsigned char *zero);

#ifdef __cplusplus
}
#endif
