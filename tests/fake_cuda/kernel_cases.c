/* Helpers of the tests of single kernels: guarded memory, a stream, random convolutions. */
#include "tests/fake_cuda/kernel_cases.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/random_graph.h"

enum { GUARD = 64 };

cudaStream_t stream;

void open_stream(void)
{
    cr_assert_eq(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), cudaSuccess);
}

void close_stream(void)
{
    cudaStreamDestroy(stream);
}

void finished(const char *what)
{
    cr_assert_eq(cudaGetLastError(), cudaSuccess, "%s", what);
    cr_assert_eq(cudaStreamSynchronize(stream), cudaSuccess, "%s", what);
}

struct guarded guarded_create(size_t bytes)
{
    void *memory;
    cr_assert_eq(cudaMalloc(&memory, bytes + 2 * GUARD), cudaSuccess);
    memset(memory, 0xFF, bytes + 2 * GUARD);
    return (struct guarded){memory, (unsigned char *)memory + GUARD, bytes};
}

void guarded_free(struct guarded *block)
{
    for (size_t i = 0; i < GUARD; i++)
        cr_assert(block->memory[i] == 0xFF && block->memory[GUARD + block->bytes + i] == 0xFF,
                  "a kernel wrote beyond its output");
    cr_assert_eq(cudaFree(block->memory), cudaSuccess);
}

int between(uint32_t *seed, int low, int high)
{
    return low + (int)random_below(seed, (uint32_t)(high - low + 1));
}

int window_extent(int in, int kernel, int dilation, int stride, int pads)
{
    return (in + pads - (kernel - 1) * dilation - 1) / stride + 1;
}

struct cuda_conv random_conv(uint32_t *seed, int cg, int mg, int groups, int window)
{
    struct cuda_conv c = {.n = between(seed, 1, 3),
                          .c = cg * groups,
                          .m = mg * groups,
                          .groups = groups,
                          .kh = between(seed, 1, window),
                          .kw = between(seed, 1, window),
                          .stride_h = between(seed, 1, 2),
                          .stride_w = between(seed, 1, 2),
                          .dilation_h = between(seed, 1, 2),
                          .dilation_w = between(seed, 1, 2),
                          .pad_h = between(seed, 0, 2),
                          .pad_w = between(seed, 0, 2)};
    c.h = (c.kh - 1) * c.dilation_h + between(seed, 1, 9);
    c.w = (c.kw - 1) * c.dilation_w + between(seed, 1, 9);
    /* asymmetric: the end has a pad of its own */
    c.oh = window_extent(c.h, c.kh, c.dilation_h, c.stride_h, 2 * c.pad_h + between(seed, 0, 1));
    c.ow = window_extent(c.w, c.kw, c.dilation_w, c.stride_w, 2 * c.pad_w + between(seed, 0, 1));
    c.row = c.kh * c.kw * cg;
    return c;
}

struct cuda_conv conv_of_rows(int rows, int n, int k)
{
    return (struct cuda_conv){.n = rows,
                              .h = 1,
                              .w = 1,
                              .c = k,
                              .oh = 1,
                              .ow = 1,
                              .m = n,
                              .kh = 1,
                              .kw = 1,
                              .groups = 1,
                              .stride_h = 1,
                              .stride_w = 1,
                              .dilation_h = 1,
                              .dilation_w = 1,
                              .row = k};
}
