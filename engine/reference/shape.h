/* Private to the reference kernels of the shape family: what its two files share. */
#pragma once

#include "engine/reference/kernel.h"

enum status run_pad(const struct kernel_args *args, struct error *err);
enum status run_center(const struct kernel_args *args, struct error *err);
enum status run_col2im(const struct kernel_args *args, struct error *err);
