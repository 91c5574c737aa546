/* Private to server/image: Pillow's resampling (src/libImaging/Resample.c, Pillow 9.4 … 13) and
 * OpenCV's INTER_LINEAR (modules/imgproc/src/resize.cpp, 4 … 5). resample.c makes a table of
 * weights for each axis; resample_plain.c and resample_x86.c have the loops over pixels. */
#pragma once

#include <stdint.h>

#include "engine/base/status.h"
#include "models/folder/preprocess.h"

/* Weights are fixed-point numbers with this many fractional bits: 32 minus 8 for the pixel minus 2
 * for the overshoot of cubic and Lanczos filters, as Pillow's PRECISION_BITS. */
enum { RESAMPLE_BITS = 32 - 8 - 2 };

/* Fractional bits of the weights of RESAMPLE_LINEAR, OpenCV's INTER_RESIZE_COEF_BITS. */
enum { RESAMPLE_LINEAR_BITS = 11 };

/* The kernels read and write whole blocks of RESAMPLE_BLOCK bytes, so rows have room for their
 * length rounded up. */
enum { RESAMPLE_BLOCK = 64 };

/* How one axis of `in` samples becomes `out` samples; only outputs first … first + count - 1 are
 * kept. Output first + i is the sum over t < length of
 * input[start[i] + t] * weights[i * length + t], plus a half, shifted by RESAMPLE_BITS, clipped to
 * 0 … 255. All windows have the length of the longest one, filled up with weights of 0, because the
 * processor predicts a loop better if its length does not change. Every window lies inside the
 * input, and start[i] <= start[i + 1].
 *
 * With RESAMPLE_LINEAR a window has two weights of RESAMPLE_LINEAR_BITS. A window may begin one
 * sample before the input or end one sample after it; then the sample at the edge is used twice. */
struct resample_axis {
    enum resample filter; /* filter … count: the arguments for which the tables were made */
    int in, padded, out, first, count;
    int length;
    int *start;
    int32_t *weights;
};

/* Makes the tables, unless *axis has them for these arguments already. in, out: 1 … 2^24; first >=
 * 0, count >= 1, first + count <= out. With RESAMPLE_BLURRED, `padded` samples are resized: `in`
 * samples, then black ones; with other filters `padded` is not used. After STATUS_NO_MEMORY *axis
 * has no tables but stays usable. */
enum status resample_axis_prepare(struct resample_axis *axis, enum resample filter, int in,
                                  int padded, int out, int first, int count,
                                  struct error *err) MUST_USE;
void resample_axis_done(struct resample_axis *axis);

/* Finds a range [*ret_begin, *ret_end) of input samples that has all inputs of the `count` outputs
 * from `first` on. */
void resample_reach(enum resample filter, int in, int out, int first, int count, int *ret_begin,
                    int *ret_end);

/* The two passes of a filter. Between the passes a number ("sample") has `sample` bytes. */
struct resample_passes {
    size_t sample;

    /* Resamples four RGB rows along the horizontal axis: reads `axis->in` pixels of bytes from
     * src[r], and writes `axis->count` pixels of samples to dst[r]. Also reads one byte after the
     * last pixel of src[r], and writes one sample after the last pixel of dst[r]. `flip` is XORed
     * with the source bytes: 0, or 255 to invert. Rows of `src` may be equal. */
    void (*horizontal)(uint8_t *const dst[4], const uint8_t *const src[4],
                       const struct resample_axis *axis, uint8_t flip);

    /* Computes one row of bytes, dst[i] for i < count, from `length` rows of samples along the
     * vertical axis. Reads and writes up to the next multiple of RESAMPLE_BLOCK. */
    void (*vertical)(uint8_t *dst, const uint8_t *const *rows, const int32_t *weights, int length,
                     size_t count);
};

/* The pixel loops for one instruction set. All tables give equal bytes. Thread-safe. */
struct resample_kernels {
    const char *name;
    struct resample_passes pillow, linear;
};

extern const struct resample_kernels resample_kernels_plain;
extern const struct resample_kernels resample_kernels_avx2; /* x86-64 */

/* Returns the i-th table that this machine supports, the slowest first; NULL after the last. */
const struct resample_kernels *resample_kernels_at(int i);

/* Returns the fastest table; never NULL. */
const struct resample_kernels *resample_kernels_pick(void);

/* Makes `transform` use other kernels than the fastest; only tests and measurements need this. */
struct transform;
void transform_use_kernels(struct transform *transform, const struct resample_kernels *kernels);
