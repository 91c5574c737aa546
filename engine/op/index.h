/* Private to the reference kernels of the indexing family: what its files share. */
#pragma once

#include "engine/op/kernels.h"

/* Keys that order as the elements do (unsigned comparison); -0 equals 0, NaN is above everything
 * and equal to itself. */
void order_keys(const void *src, enum dtype dtype, uint64_t *dst, size_t n);
