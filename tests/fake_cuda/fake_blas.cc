/* cuBLASLt as plain loops, with the demands on operands and workspaces that the library has. */
#include "cublasLt.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "fake_cuda.h"
#include "fake_device.h"

struct fake_blas {
    int unused;
};

struct fake_desc {
    bool is_tf32 = false;
    cublasOperation_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *bias = nullptr;
    cudaDataType_t bias_type = CUDA_R_32F;
};

struct fake_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
    int batch = 1;
    int64_t step = 0;
};

struct fake_preference {
    size_t workspace = 0;
    uint32_t alignments[4] = {256, 256, 256, 256};
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

namespace
{
constexpr size_t WORKSPACE = 4096; /* of the candidate that wants some */

/* Column-major element (i, j) of member b. */
size_t place(const fake_layout &l, int b, uint64_t i, uint64_t j)
{
    return (size_t)(b * l.step) + (size_t)i + (size_t)j * (size_t)l.ld;
}

float load(const void *data, cudaDataType_t type, size_t at)
{
    if (type == CUDA_R_32F)
        return ((const float *)data)[at];
    uint16_t bits = ((const uint16_t *)data)[at];
    return type == CUDA_R_16BF ? bfloat16_to_float(bits) : half_to_float(bits);
}

void store(void *data, cudaDataType_t type, size_t at, float value)
{
    if (type == CUDA_R_32F)
        ((float *)data)[at] = value;
    else
        ((uint16_t *)data)[at] =
            type == CUDA_R_16BF ? float_to_bfloat16(value) : float_to_half(value);
}

/* An operand's number: with CUBLAS_COMPUTE_32F_FAST_TF32 rounded to 10 bits of its fraction. */
float load_operand(const void *data, cudaDataType_t type, bool is_tf32, size_t at)
{
    float x = load(data, type, at);
    uint32_t bits;
    if (type != CUDA_R_32F || !is_tf32 || !std::isfinite(x))
        return x;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000) & ~UINT32_C(0x1fff);
    memcpy(&x, &bits, sizeof x);
    return x;
}

bool fits(const fake_desc &desc, const fake_layout &a, const fake_layout &b, const fake_layout &d)
{
    uint64_t m = desc.trans_a ? a.columns : a.rows, ka = desc.trans_a ? a.rows : a.columns;
    uint64_t n = desc.trans_b ? b.rows : b.columns, kb = desc.trans_b ? b.columns : b.rows;
    if (d.batch > GRID_MOST) /* as some kernels of the real library do */
        return false;
    return m == d.rows && n == d.columns && ka == kb && a.type == b.type && a.batch == d.batch &&
           b.batch == d.batch && d.ld >= (int64_t)d.rows && a.ld >= (int64_t)a.rows &&
           b.ld >= (int64_t)b.rows;
}

bool is_same(const fake_layout &c, const fake_layout &d)
{
    return c.type == d.type && c.rows == d.rows && c.columns == d.columns && c.batch == d.batch;
}

/* Is it where the candidate that was chosen may read it? */
bool is_aligned(const void *data, uint32_t alignment)
{
    return data && (uintptr_t)data % alignment == 0;
}

struct task {
    fake_desc desc;
    fake_layout a, b, c, d;
    float alpha, beta;
    const void *pa, *pb, *pc;
    void *pd;
};

void multiply(const task &t)
{
    bool trans_a = t.desc.trans_a == CUBLAS_OP_T, trans_b = t.desc.trans_b == CUBLAS_OP_T;
    uint64_t depth = trans_a ? t.a.rows : t.a.columns;
    for (int batch = 0; batch < t.d.batch; batch++)
        for (uint64_t j = 0; j < t.d.columns; j++)
            for (uint64_t i = 0; i < t.d.rows; i++) {
                float sum = 0;
                for (uint64_t k = 0; k < depth; k++)
                    sum +=
                        load_operand(t.pa, t.a.type, t.desc.is_tf32,
                                     trans_a ? place(t.a, batch, k, i) : place(t.a, batch, i, k)) *
                        load_operand(t.pb, t.b.type, t.desc.is_tf32,
                                     trans_b ? place(t.b, batch, j, k) : place(t.b, batch, k, j));
                float value = t.alpha * sum;
                if (t.beta != 0)
                    value += t.beta * load(t.pc, t.c.type, place(t.c, batch, i, j));
                if (t.desc.epilogue & CUBLASLT_EPILOGUE_BIAS)
                    value += load(t.desc.bias, t.desc.bias_type, i);
                if (t.desc.epilogue & CUBLASLT_EPILOGUE_GELU)
                    value *= 0.5f *
                             (1 + tanhf(0.79788456f * (value + 0.044715f * value * value * value)));
                if (t.desc.epilogue & CUBLASLT_EPILOGUE_RELU)
                    value = value < 0 ? 0 : value;
                store(t.pd, t.d.type, place(t.d, batch, i, j), value);
            }
}
} // namespace

extern "C" {

size_t cublasLtGetVersion(void)
{
    return 130000;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    *ret = new fake_blas;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute,
                                        cudaDataType_t)
{
    *ret = new fake_desc;
    (*ret)->is_tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size)
{
    void *field = attribute == CUBLASLT_MATMUL_DESC_TRANSA         ? (void *)&desc->trans_a
                  : attribute == CUBLASLT_MATMUL_DESC_TRANSB       ? (void *)&desc->trans_b
                  : attribute == CUBLASLT_MATMUL_DESC_EPILOGUE     ? (void *)&desc->epilogue
                  : attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? (void *)&desc->bias
                                                                   : (void *)&desc->bias_type;
    memcpy(field, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    if (ld < (int64_t)rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    *ret = new fake_layout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t)
{
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
        memcpy(&layout->batch, value, sizeof layout->batch);
    else
        memcpy(&layout->step, value, sizeof layout->step);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    *ret = new fake_preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size)
{
    void *field = &preference->workspace;
    size_t wanted = sizeof preference->workspace;
    if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
        field =
            attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                ? &preference->reductions
                : &preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];
        wanted = sizeof preference->reductions;
    }
    if (size != wanted)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(field, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* Two candidates, so that choosing is exercised, with one between them that is none; the second one
 * uses workspace. No candidate for a bias of another type than the result, which the real library
 * does not take either. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *ret, int *ret_count)
{
    *ret_count = 0;
    if (!fits(*desc, *a, *b, *d) || !is_same(*c, *d) ||
        (d->type != CUDA_R_32F &&
         preference->reductions &
             (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) ||
        (desc->epilogue & CUBLASLT_EPILOGUE_BIAS && desc->bias_type != d->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const cublasStatus_t states[] = {CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED,
                                     CUBLAS_STATUS_SUCCESS};
    for (; *ret_count < 3 && *ret_count < wanted; (*ret_count)++) {
        cublasLtMatmulHeuristicResult_t *candidate = &ret[*ret_count];
        *candidate = {};
        candidate->state = states[*ret_count];
        candidate->algo.candidate = *ret_count;
        candidate->algo.workspace = candidate->workspaceSize =
            *ret_count == 2 && preference->workspace >= WORKSPACE ? WORKSPACE : 0;
        memcpy(candidate->algo.alignments, preference->alignments,
               sizeof candidate->algo.alignments);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream)
{
    if (!alpha || !beta || !fits(*desc, *a_layout, *b_layout, *d_layout) ||
        !is_same(*c_layout, *d_layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    const void *const operands[] = {a, b, *(const float *)beta != 0 ? c : d, d};
    for (int i = 0; i < 4; i++)
        if (!is_aligned(operands[i], algo->alignments[i]))
            return CUBLAS_STATUS_INVALID_VALUE;
    if (algo->candidate == 1 || workspace_size < algo->workspace ||
        (algo->workspace && !is_aligned(workspace, 16)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (desc->epilogue & CUBLASLT_EPILOGUE_BIAS && !is_aligned(desc->bias, 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    task work = {*desc,
                 *a_layout,
                 *b_layout,
                 *c_layout,
                 *d_layout,
                 *(const float *)alpha,
                 *(const float *)beta,
                 a,
                 b,
                 c,
                 d};
    /* One thread, so that the stream's order holds for products as for kernels. */
    const size_t scribbles = algo->workspace;
    fake_launch(dim3(1), dim3(1), 0, stream, false, [=] {
        for (size_t i = 0; i < scribbles; i++) /* whoever has something there loses it */
            ((unsigned char *)workspace)[i] = 0xFB;
        multiply(work);
    });
    if (cudaPeekAtLastError() == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    return cudaPeekAtLastError() == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                : CUBLAS_STATUS_EXECUTION_FAILED;
}

} // extern "C"
