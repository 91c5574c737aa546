/* Orders from outside the process, for tests that run a whole server: a file, named by
 * $FAKE_CUDA_ORDERS, of lines such as
 *
 *     devices 2
 *     memory 1000000000     bytes of each
 *     delay 300             as fake_cuda_delay
 *     break 0 700           device 0 answers cudaErrorIllegalAddress to every call from now on, for
 *                           good, as CUDA does after such an error
 *     fail 1 999            device 1 answers this as long as the line is there
 *
 * It is looked at when a device is chosen. */
#pragma once

#include <cstddef>

#include "cuda_runtime_api.h"

void fake_control_read(int *devices, size_t *memory, unsigned *delay_us);
cudaError_t fake_control_error(int device);
