/* What the tests of single kernels share: a stream, memory that is watched for what is written
 * beyond it, and random convolutions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/cuda/kernels/kernels.h"

extern cudaStream_t stream;
void open_stream(void); /* of each test; .init and .fini */
void close_stream(void);

/* All launches were accepted, and have run. */
void finished(const char *what);

/* Device memory between two guards; holds 0xFF, which is NaN. */
struct guarded {
    unsigned char *memory, *data;
    size_t bytes;
};
struct guarded guarded_create(size_t bytes);
void guarded_free(struct guarded *block); /* fails the test where a guard was overwritten */

/* low … high */
int between(uint32_t *seed, int low, int high);
/* What a window makes of `in` places and `pads` of padding. */
int window_extent(int in, int kernel, int dilation, int stride, int pads);
/* Channels of x and y of a group, groups, and the largest window. */
struct cuda_conv random_conv(uint32_t *seed, int cg, int mg, int groups, int window);
/* y [rows, n] of x [rows, k] as images of one pixel. */
struct cuda_conv conv_of_rows(int rows, int n, int k);
