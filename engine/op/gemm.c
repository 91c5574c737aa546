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

enum dtype working_dtype(enum dtype dtype)
{
    if (dtype_is_float(dtype))
        return dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32;
    return dtype_size(dtype) == 4 ? DTYPE_U32 : DTYPE_U64;
}

void gemm_nn(enum dtype working, size_t m, size_t n, size_t k, const void *a, size_t a_row,
             size_t a_col, const void *b, size_t ldb, void *c, size_t ldc)
{
    (working == DTYPE_F32   ? gemm_nn_f32
     : working == DTYPE_F64 ? gemm_nn_f64
     : working == DTYPE_U32 ? gemm_nn_u32
                            : gemm_nn_u64)(m, n, k, a, a_row, a_col, b, ldb, c, ldc);
}

/* True if elements of `dtype` are numbers of the type `working`. Sums and products modulo 2^n do
 * not depend on the sign. */
static bool is_native(enum dtype dtype, enum dtype working)
{
    return dtype == working || (dtype_size(dtype) == dtype_size(working) &&
                                !dtype_is_float(dtype) && !dtype_is_float(working));
}

enum status operand_open(const struct kernel_args *args, size_t i, enum dtype working, void *ret,
                         struct error *err)
{
    const struct tensor *tensor = kernel_input(args, i);
    void *data = tensor ? tensor->data : NULL;
    if (tensor && !is_native(tensor->dtype, working)) {
        const size_t count = shape_count(&tensor->shape);
        data = kernel_scratch(args, count, dtype_size(working), err);
        TRY(allocated(data));
        convert_row(tensor->data, tensor->dtype, data, working, count);
    }
    memcpy(ret, &data, sizeof data); /* a T ** for any T */
    return STATUS_OK;
}

enum status operands_open(const struct kernel_args *args, size_t first, size_t count,
                          const double **ret, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(operand_open(args, first + i, DTYPE_F64, &ret[i], err));
    return STATUS_OK;
}

enum status result_open(const struct kernel_args *args, size_t i, enum dtype working, void *ret,
                        struct error *err)
{
    const struct tensor *tensor = kernel_result(args, i);
    void *data = tensor ? tensor->data : NULL;
    if (tensor && !is_native(tensor->dtype, working)) {
        data = kernel_result_scratch(args, i, working, err);
        TRY(allocated(data));
    }
    memcpy(ret, &data, sizeof data);
    return STATUS_OK;
}
