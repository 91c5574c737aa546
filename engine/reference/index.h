/* Private to the reference kernels of the indexing family: what its files share. */
#pragma once

#include "engine/reference/kernel.h"

enum status run_one_hot(const struct kernel_args *args, struct error *err);
enum status run_non_zero(const struct kernel_args *args, struct error *err);
enum status run_compress(const struct kernel_args *args, struct error *err);
enum status run_cum_sum(const struct kernel_args *args, struct error *err);
enum status run_top_k(const struct kernel_args *args, struct error *err);
enum status run_unique(const struct kernel_args *args, struct error *err);

/* Keys that order as the elements do (unsigned comparison); -0 equals 0, NaN is above everything
 * and equal to itself. */
void order_keys(const void *src, enum dtype dtype, uint64_t *dst, size_t n);
