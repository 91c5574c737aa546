/* Private to the reference kernels of linear algebra, convolution, normalisation, resampling,
 * quantization and control flow: functions that they share. */
#pragma once

#include "engine/op/gemm.h"
#include "engine/op/geometry.h"
#include "engine/op/kernel.h"

/* a / b rounded up, for a >= 0 and b >= 1; cannot overflow. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* dst = weights * src + bias in the dtype `working`, ONNX Conv. src [N, C, …], weights [M, C/group,
 * …], bias [M] or NULL, dst [N, M, …] as conv->out says; contiguous, no overlap. */
enum status conv_forward(const struct kernel_args *args, const struct conv_shape *conv,
                         enum dtype working, const void *src, const void *weights, const void *bias,
                         void *dst, struct error *err) MUST_USE;

/* Adds leading spatial dimensions of extent 1 to a window, so that the window has three. */
struct window window_in_3d(const struct window *window);

/* Returns the product of three extents of a 3-D window. For `kernel` this is the number of taps,
 * for `in` and `out` the number of positions in a channel of the input and of the output. */
size_t window_volume(const int64_t extents[static 3]);

/* Finds the taps *first … *end-1 of a window, at output position `at` along axis i, that fall
 * inside the input. The input position of tap t is at * stride - pad_begin + t * dilation. */
void window_taps(const struct window *window, int i, int64_t at, int64_t *first, int64_t *end);

/* Returns how many taps along axis i lie in the input or the padding. With ceil_mode, taps may lie
 * beyond the padding. */
int64_t window_padded_taps(const struct window *window, int i, int64_t at);
