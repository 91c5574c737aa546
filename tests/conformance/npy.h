/* NumPy's .npy files, versions 1 to 3: what tests exchange tensors with Python in. */
#pragma once

#include "engine/tensor/tensor.h"

/* Reads a little-endian, C-ordered array of a dtype lensd has. Two opaque bytes ('V2') are
 * bfloat16: that is how ml_dtypes arrays are saved. On success the caller owns one reference.
 * Errors: STATUS_IO (cannot read, shorter than its shape), STATUS_UNSUPPORTED (another dtype,
 * Fortran order, more than TENSOR_MAX_RANK dimensions), STATUS_SHAPE, STATUS_NO_MEMORY. */
enum status npy_read(const char *path, struct tensor **ret, struct error *err) MUST_USE;

/* Writes a host tensor. Errors: STATUS_IO. */
enum status npy_write(const char *path, const struct tensor *tensor, struct error *err) MUST_USE;
