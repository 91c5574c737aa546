/* Matrix products in float32, float64, uint32 and uint64 (each by gemm_template.h), and conversion
 * of operands and results from and to the tensors' types. */
#include "engine/op/gemm.h"

#include <string.h>

#include "engine/op/convert.h"

/* A block of 128 x 256 floats of `b` is 128 KiB: a large part of a level-2 cache. */
#define BLOCK_K ((size_t)128)
#define BLOCK_N ((size_t)256)

#define ELEMENT float
#define LANES   4
#define NAME(x) x##_f32
#include "engine/op/gemm_template.h"

#define ELEMENT double
#define LANES   2
#define NAME(x) x##_f64
#include "engine/op/gemm_template.h"

#define ELEMENT uint32_t
#define LANES   4
#define NAME(x) x##_u32
#include "engine/op/gemm_template.h"

#define ELEMENT uint64_t
#define LANES   2
#define NAME(x) x##_u64
#include "engine/op/gemm_template.h"

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
    ((arithmetic) == ARITHMETIC_F32   ? product##_f32(__VA_ARGS__)                                 \
     : (arithmetic) == ARITHMETIC_F64 ? product##_f64(__VA_ARGS__)                                 \
     : (arithmetic) == ARITHMETIC_U32 ? product##_u32(__VA_ARGS__)                                 \
                                      : product##_u64(__VA_ARGS__))

void gemm_nn(enum arithmetic arithmetic, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc)
{
    BY_ARITHMETIC(arithmetic, gemm_nn, m, n, k, a, a_row, a_col, b, ldb, c, ldc);
}

/* Returns a dtype for the numbers of an arithmetic. Sums and products modulo 2^n do not depend on
 * the sign. */
static enum dtype arithmetic_dtype(enum arithmetic arithmetic)
{
    static const enum dtype dtypes[] = {[ARITHMETIC_F32] = DTYPE_F32,
                                        [ARITHMETIC_F64] = DTYPE_F64,
                                        [ARITHMETIC_U32] = DTYPE_I32,
                                        [ARITHMETIC_U64] = DTYPE_I64};
    return dtypes[arithmetic];
}

/* True if `arithmetic` can read and write elements of `dtype`. */
static bool is_native(enum dtype dtype, enum arithmetic arithmetic)
{
    return dtype == arithmetic_dtype(arithmetic) ||
           (dtype == DTYPE_U32 && arithmetic == ARITHMETIC_U32) ||
           (dtype == DTYPE_U64 && arithmetic == ARITHMETIC_U64);
}

enum status operand_open(const struct kernel_args *args, size_t i, enum arithmetic arithmetic,
                         void *ret, struct error *err)
{
    const struct tensor *tensor = kernel_input(args, i);
    void *data = tensor ? tensor->data : NULL;
    if (tensor && !is_native(tensor->dtype, arithmetic)) {
        const size_t count = shape_count(&tensor->shape);
        data = kernel_scratch(args, count, arithmetic_size(arithmetic), err);
        TRY(allocated(data));
        convert_row(tensor->data, tensor->dtype, data, arithmetic_dtype(arithmetic), count);
    }
    memcpy(ret, &data, sizeof data); /* a T ** for any T */
    return STATUS_OK;
}

enum status operands_open(const struct kernel_args *args, size_t first, size_t count,
                          const double **ret, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(operand_open(args, first + i, ARITHMETIC_F64, &ret[i], err));
    return STATUS_OK;
}

enum status result_open(const struct kernel_args *args, size_t i, enum arithmetic arithmetic,
                        void *ret, struct error *err)
{
    const struct tensor *tensor = kernel_result(args, i);
    void *data = tensor ? tensor->data : NULL;
    if (tensor && !is_native(tensor->dtype, arithmetic)) {
        data = kernel_result_scratch(args, i, arithmetic_dtype(arithmetic), err);
        TRY(allocated(data));
    }
    memcpy(ret, &data, sizeof data);
    return STATUS_OK;
}
