/* Private to the reference kernels: matrix products, and their element types.
 *
 * float16 and bfloat16 are computed in float32, integers modulo 2^32 or 2^64 (as in numpy). */
#pragma once

#include "engine/op/kernel.h"

enum arithmetic { ARITHMETIC_F32, ARITHMETIC_F64, ARITHMETIC_U32, ARITHMETIC_U64 };

/* The arithmetic in which a dtype is computed. */
enum arithmetic arithmetic_for(enum dtype dtype);

/* Bytes of one element. */
size_t arithmetic_size(enum arithmetic arithmetic);

/* c[m, n] += a[m, k] * b[k, n]. Element (i, p) of `a` is a[i * a_row + p * a_col], so that `a` may
 * be transposed; rows of b and c are ldb and ldc apart. No overlap; any extent may be 0. */
void gemm_nn(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc);

/* Returns the transpose of a matrix [rows, columns] with elements of `size` bytes, in scratch
 * memory; NULL with *err set when out of memory. */
void *transposed(const struct kernel_args *args, const void *matrix, size_t rows, size_t columns,
                 size_t size, struct error *err);

/* Sets the pointer at `ret` to the elements of input i in the type of an arithmetic: the tensor's
 * own memory if the types agree, else a converted copy. NULL if the input is omitted. */
enum status operand_open(const struct kernel_args *args, size_t i, enum arithmetic arithmetic,
                         void *ret, struct error *err) MUST_USE;

/* Opens inputs first … first + count - 1 as double. */
enum status operands_open(const struct kernel_args *args, size_t first, size_t count,
                          const double **ret, struct error *err) MUST_USE;

/* Sets the pointer at `ret` to memory for the elements of output i in the type of an arithmetic:
 * the tensor's own memory if the types agree. Otherwise a buffer that is converted into the output
 * when the kernel has succeeded. NULL if the output is not wanted. */
enum status result_open(const struct kernel_args *args, size_t i, enum arithmetic arithmetic,
                        void *ret, struct error *err) MUST_USE;
