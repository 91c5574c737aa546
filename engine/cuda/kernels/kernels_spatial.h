/* Kernels for image operators other than Conv and pools; conventions as in kernels.h. */
#pragma once

#include "engine/cuda/kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

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
                          void *y, int y_dtype, const struct cuda_conv *conv,
                          const struct cuda_epilogue *epilogue);

/* GridSample, linear and with zeros as padding: x [n, c, h, w], grid [n, oh, ow, 2] (column, row),
 * y [n, c, oh, ow]; one dtype. */
struct cuda_grid_sample {
    int64_t n, c, h, w, oh, ow;
    int align_corners;
};
void cuda_sample_grid(cudaStream_t stream, int dtype, const void *x, const void *grid, void *y,
                      const struct cuda_grid_sample *sample);

#ifdef __cplusplus
}
#endif
