/* Private to the reference kernels: matrix products, and the element types they come in.
 *
 * float16 and bfloat16 are computed in float32, integers modulo 2^32 or 2^64 (so that overflow
 * wraps as numpy has it). */
#pragma once

#include "engine/reference/kernel.h"

enum arithmetic { ARITHMETIC_F32, ARITHMETIC_F64, ARITHMETIC_U32, ARITHMETIC_U64 };

/* What a dtype is computed in. */
enum arithmetic arithmetic_for(enum dtype dtype);

/* Bytes of one element. */
size_t arithmetic_size(enum arithmetic arithmetic);

/* c[m, n] += a[m, k] * b[k, n]. Element (i, p) of a is a[i * a_row + p * a_col], so that a may be
 * transposed; rows of b and c are contiguous and ldb, ldc apart. No overlap; any extent may be 0.
 */
void gemm_nn(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc);

/* c[m, n] += a[m, k] * transpose of b[n, k]; all rows contiguous. */
void gemm_nt(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t lda,
             const void *b, size_t ldb, void *c, size_t ldc);

/* The elements of a tensor in an arithmetic: its own memory where the types agree, a converted copy
 * otherwise. Give back with operand_close(), also a zeroed one. */
struct gemm_operand {
    const void *data;
    void *copy;
};

enum status operand_open(const struct kernel_args *args, const struct tensor *tensor,
                         enum arithmetic arithmetic, struct gemm_operand *ret,
                         struct error *err) MUST_USE;
void operand_close(struct gemm_operand *operand);

/* Room for a tensor's elements in an arithmetic, uninitialised. result_store() converts them into
 * the tensor; result_close() frees. */
struct result {
    void *data;
    void *copy;
    struct tensor *tensor;
    enum arithmetic arithmetic;
};

enum status result_open(const struct kernel_args *args, struct tensor *tensor,
                        enum arithmetic arithmetic, struct result *ret, struct error *err) MUST_USE;
void result_store(const struct result *result);
void result_close(struct result *result);
