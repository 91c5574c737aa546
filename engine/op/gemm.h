/* Private to the reference kernels: matrix products, and their element types.
 *
 * float16 and bfloat16 are computed in float32, integers modulo 2^32 or 2^64 (as in numpy). */
#pragma once

#include "engine/op/kernel.h"

/* Returns the dtype in which operators with several operands compute elements of `dtype`: float32,
 * float64, uint32 or uint64. The functions below take one of these dtypes as `working`. */
enum dtype working_dtype(enum dtype dtype);

/* c[m, n] += a[m, k] * b[k, n]. Element (i, p) of `a` is a[i * a_row + p * a_col], so that `a` may
 * be transposed; rows of b and c are ldb and ldc apart. No overlap; any extent may be 0. */
void gemm_nn(enum dtype working, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc);

/* Returns the transpose of a matrix [rows, columns] with elements of `size` bytes, in scratch
 * memory; NULL with *err set when out of memory. */
void *transposed(const struct kernel_args *args, const void *matrix, size_t rows, size_t columns,
                 size_t size, struct error *err);

/* Sets the pointer at `ret` to the elements of input i in the dtype `working`: the tensor's own
 * memory if the dtypes agree, else a converted copy. NULL if the input is omitted. */
enum status operand_open(const struct kernel_args *args, size_t i, enum dtype working, void *ret,
                         struct error *err) MUST_USE;

/* Opens inputs first … first + count - 1 as double. */
enum status operands_open(const struct kernel_args *args, size_t first, size_t count,
                          const double **ret, struct error *err) MUST_USE;

/* Sets the pointer at `ret` to memory for the elements of output i in the dtype `working`: the
 * tensor's own memory if the dtypes agree. Otherwise a buffer that is converted into the output
 * when the kernel has succeeded. NULL if the output is not wanted. */
enum status result_open(const struct kernel_args *args, size_t i, enum dtype working, void *ret,
                        struct error *err) MUST_USE;
