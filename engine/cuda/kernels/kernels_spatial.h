/* Kernels for image operators other than Conv and pools; conventions as in kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Resize (ONNX Resize, Upsample): an output position is a weighted sum of `taps` input positions
 * along each axis. The axes' tables [out, taps] follow each other; first[axis] is where an axis's
 * table starts. `index` has input positions, `weight` their weights; positions with weight 0 are
 * not read. Index -1: y is `outside`. */
struct cuda_resize {
    int rank;
    int64_t in[CUDA_MAX_RANK], out[CUDA_MAX_RANK];
    int taps[CUDA_MAX_RANK];
    int64_t first[CUDA_MAX_RANK];
    float outside;
};
/* Resizes all axes of dense tensors of rank <= CUDA_MAX_RANK. */
void cuda_resize_any(cudaStream_t stream, int dtype, const void *x, void *y, const int32_t *index,
                     const float *weight, const struct cuda_resize *resize);
/* Resizes only axes 1 and 2 of [N, H, W, C]; no position is outside. */
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

/* LRN of x [pixels, channels]: x / (bias + factor * sum of squares of `size` channels)^beta. */
void cuda_lrn(cudaStream_t stream, int dtype, const void *x, void *y, size_t pixels,
              size_t channels, int size, float factor, float bias, float beta);

/* ConvTranspose; h, w, c describe x, and oh, ow, m describe y. x[h] contributes to y[oh] where oh =
 * h * stride + tap * dilation - pad. weights: [kh, kw, c, m / groups] of x's dtype. */
void cuda_conv_transposed(cudaStream_t stream, int dtype, const void *x, const void *weights,
                          void *y, int y_dtype, const struct cuda_conv *conv,
                          const struct cuda_epilogue *epilogue);

enum cuda_sampling { CUDA_SAMPLE_NEAREST, CUDA_SAMPLE_LINEAR, CUDA_SAMPLE_CUBIC };
enum cuda_border { CUDA_BORDER_ZEROS, CUDA_BORDER_EDGE, CUDA_BORDER_REFLECTION };

/* GridSample: x [n, c, h, w], grid [n, oh, ow, 2] (column, row), y [n, c, oh, ow]; one dtype. */
struct cuda_grid_sample {
    int64_t n, c, h, w, oh, ow;
    enum cuda_sampling sampling;
    enum cuda_border border;
    int align_corners;
};
void cuda_sample_grid(cudaStream_t stream, int dtype, const void *x, const void *grid, void *y,
                      const struct cuda_grid_sample *sample);

#ifdef __cplusplus
}
#endif
