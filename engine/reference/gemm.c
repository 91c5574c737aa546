/* Matrix products in float32, float64, uint32 and uint64 (gemm_template.h for each), and the
 * conversion of operands and results from and to the types of the tensors. */
#include "engine/reference/gemm.h"

#include <stdlib.h>

#include "engine/reference/convert.h"

/* A block of b of 128 x 256 floats is 128 KiB: a good part of a level-2 cache. */
#define BLOCK_K ((size_t)128)
#define BLOCK_N ((size_t)256)

#define ELEMENT float
#define LANES   4
#define NAME(x) x##_f32
#include "engine/reference/gemm_template.h"

#define ELEMENT double
#define LANES   2
#define NAME(x) x##_f64
#include "engine/reference/gemm_template.h"

#define ELEMENT uint32_t
#define LANES   4
#define NAME(x) x##_u32
#include "engine/reference/gemm_template.h"

#define ELEMENT uint64_t
#define LANES   2
#define NAME(x) x##_u64
#include "engine/reference/gemm_template.h"

enum arithmetic arithmetic_for(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
        return ARITHMETIC_F32;
    case DTYPE_F64:
        return ARITHMETIC_F64;
    case DTYPE_I32:
    case DTYPE_U32:
        return ARITHMETIC_U32;
    default:
        return ARITHMETIC_U64;
    }
}

size_t arithmetic_size(enum arithmetic arithmetic)
{
    return arithmetic == ARITHMETIC_F32 || arithmetic == ARITHMETIC_U32 ? 4 : 8;
}

#define BY_ARITHMETIC(arithmetic, product, ...)                                                    \
    switch (arithmetic) {                                                                          \
    case ARITHMETIC_F32:                                                                           \
        product##_f32(__VA_ARGS__);                                                                \
        break;                                                                                     \
    case ARITHMETIC_F64:                                                                           \
        product##_f64(__VA_ARGS__);                                                                \
        break;                                                                                     \
    case ARITHMETIC_U32:                                                                           \
        product##_u32(__VA_ARGS__);                                                                \
        break;                                                                                     \
    case ARITHMETIC_U64:                                                                           \
        product##_u64(__VA_ARGS__);                                                                \
        break;                                                                                     \
    }

void gemm_nn(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc)
{
    BY_ARITHMETIC(arithmetic, gemm_nn, m, n, k, a, a_row, a_col, b, ldb, c, ldc);
}

void gemm_nt(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t lda,
             const void *b, size_t ldb, void *c, size_t ldc)
{
    BY_ARITHMETIC(arithmetic, gemm_nt, m, n, k, a, lda, b, ldb, c, ldc);
}

/* A tensor whose memory is already what the arithmetic computes in. */
static bool is_native(enum dtype dtype, enum arithmetic arithmetic)
{
    switch (arithmetic) {
    case ARITHMETIC_F32:
        return dtype == DTYPE_F32;
    case ARITHMETIC_F64:
        return dtype == DTYPE_F64;
    case ARITHMETIC_U32:
        return dtype == DTYPE_I32 || dtype == DTYPE_U32;
    case ARITHMETIC_U64:
        return dtype == DTYPE_I64 || dtype == DTYPE_U64;
    }
    return false;
}

enum status operand_open(const struct kernel_args *args, const struct tensor *tensor,
                         enum arithmetic arithmetic, struct gemm_operand *ret, struct error *err)
{
    size_t count = shape_count(&tensor->shape);
    *ret = (struct gemm_operand){.data = tensor->data};
    if (is_native(tensor->dtype, arithmetic))
        return STATUS_OK;
    void *copy = kernel_scratch(args, count, arithmetic_size(arithmetic), err);
    if (!copy)
        return STATUS_NO_MEMORY;
    switch (arithmetic) {
    case ARITHMETIC_F32:
        load_floats(tensor->data, tensor->dtype, copy, count);
        break;
    case ARITHMETIC_F64:
        load_doubles(tensor->data, tensor->dtype, copy, count);
        break;
    case ARITHMETIC_U32:
        convert_row(tensor->data, tensor->dtype, copy, DTYPE_I32, count);
        break;
    case ARITHMETIC_U64:
        load_integers(tensor->data, tensor->dtype, copy, count);
        break;
    }
    ret->data = ret->copy = copy;
    return STATUS_OK;
}

void operand_close(struct gemm_operand *operand)
{
    free(operand->copy);
    *operand = (struct gemm_operand){0};
}

enum status result_open(const struct kernel_args *args, struct tensor *tensor,
                        enum arithmetic arithmetic, struct result *ret, struct error *err)
{
    *ret = (struct result){.data = tensor->data, .tensor = tensor, .arithmetic = arithmetic};
    if (is_native(tensor->dtype, arithmetic))
        return STATUS_OK;
    ret->data = ret->copy =
        kernel_scratch(args, shape_count(&tensor->shape), arithmetic_size(arithmetic), err);
    return ret->copy ? STATUS_OK : STATUS_NO_MEMORY;
}

void result_store(const struct result *result)
{
    struct tensor *tensor = result->tensor;
    size_t count = shape_count(&tensor->shape);
    if (!result->copy)
        return;
    switch (result->arithmetic) {
    case ARITHMETIC_F32:
        store_floats(result->data, tensor->dtype, tensor->data, count);
        break;
    case ARITHMETIC_F64:
        store_doubles(result->data, tensor->dtype, tensor->data, count);
        break;
    case ARITHMETIC_U32:
        convert_row(result->data, DTYPE_I32, tensor->data, tensor->dtype, count);
        break;
    case ARITHMETIC_U64:
        store_integers(result->data, tensor->dtype, tensor->data, count);
        break;
    }
}

void result_close(struct result *result)
{
    free(result->copy);
    *result = (struct result){0};
}
