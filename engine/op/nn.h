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

/* Copies to `values` the elements of a plane that a 3-D window covers at an output position, in
 * memory's order, and writes to `places` their positions in the plane. Returns their number.
 * *ret_padded becomes the number of taps in the input or the padding. window_room() allocates
 * `values` and `places`. */
size_t window_read(const struct window *w, size_t position, const double *plane, double *values,
                   size_t *places, double *ret_padded);
enum status window_room(const struct kernel_args *args, const struct window *w, double **ret_values,
                        size_t **ret_places, struct error *err) MUST_USE;
