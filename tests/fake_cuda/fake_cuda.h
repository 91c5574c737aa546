/* What tests order from the fake. All of it is process-wide; call between runs. */
#pragma once

#include <cuda_runtime_api.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* This many devices with that much memory each; forgets ordered failures. */
void fake_cuda_reset(int devices, size_t bytes_per_device);
/* The `after`-th call from now of a function that can fail (0: the next) answers `error`; with
 * `sticky` every later call does, too. */
void fake_cuda_fail(int after, cudaError_t error, int sticky);
/* Bytes that are allocated on a device now. */
size_t fake_cuda_used(int device);
/* Kernels, copies and products that streams have run. */
size_t fake_cuda_operations(void);
/* Starts a kernel that does nothing; what cudaGetLastError() says. */
cudaError_t fake_cuda_try_launch(const unsigned grid[3], const unsigned block[3], size_t shared,
                                 cudaStream_t stream);
/* Batches started as one graph. */
size_t fake_cuda_graph_launches(void);

/* Everything that streams do begins up to so much later, at random. */
void fake_cuda_delay(unsigned most_us);
/* Limits page-locked memory to `bytes`. fake_cuda_reset removes the limit. */
void fake_cuda_pinned_limit(size_t bytes);
/* Sets whether devices have memory pools. They do after fake_cuda_reset. */
void fake_cuda_pools(int have);
/* Can devices read each other's memory? They can after fake_cuda_reset. */
void fake_cuda_peers(int can);

/* cudaDevAttrComputeMode of all devices. */
void fake_cuda_compute_mode(int mode);
/* Compute capability of all devices, 90 for 9.0. */
void fake_cuda_capability(int capability);

/* From now on accesses to device and page-locked memory that are not ordered are counted
 * (fake_order.h); forgets those found before. */
void fake_cuda_check_order(int on);
size_t fake_cuda_races(char *text, size_t size); /* the first one in words; text may be NULL */

enum fake_cuda_skipped { FAKE_CUDA_WAIT, FAKE_CUDA_SYNC };
/* The n-th cudaStreamWaitEvent / cudaEventSynchronize from now (0: the next) does nothing. */
void fake_cuda_skip(enum fake_cuda_skipped what, int n);

enum fake_cuda_counter {
    FAKE_CUDA_WAITS, /* cudaStreamWaitEvent so far */
    FAKE_CUDA_SYNCS, /* cudaEventSynchronize */
    FAKE_CUDA_BYTES_IN,
    FAKE_CUDA_BYTES_OUT,
    FAKE_CUDA_BYTES_FROM_PEERS,
    FAKE_CUDA_CONTEXTS,           /* 1: this process has one on the device */
    FAKE_CUDA_OPERATIONS_AT_ONCE, /* kernels, copies and products on streams of the greatest
                                     priority */
    FAKE_CUDA_COLD_LAUNCHES,      /* of graphs that were not uploaded, nor launched before */
    FAKE_CUDA_FIRST_LAUNCHES,     /* of graphs */
    FAKE_CUDA_STALLS,             /* cudaFree, which waits for all that the device does */
};
size_t fake_cuda_count(enum fake_cuda_counter what, int device);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
