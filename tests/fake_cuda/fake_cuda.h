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
/* Batches started as one graph. */
size_t fake_cuda_graph_launches(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
