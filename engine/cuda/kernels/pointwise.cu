/* Elementwise operators on numbers of any dtype, with numpy broadcasting. Eight numbers are read at
 * a time if all are floats of one dtype, as between layers, or 8-bit integers. */
#include "engine/cuda/kernels/any.cuh"
#include "engine/cuda/kernels/int8.cuh"

#include <cmath>

namespace
{
/* ln(1 + e^x) without overflow. */
template <typename C> __device__ inline C softplus(C x)
{
    return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}

/* As ONNX Mod-28: the remainder has the divisor's sign, even if the remainder is zero. */
__device__ inline double floor_mod(double x, double y)
{
    const double remainder = fmod(x, y);
    if (remainder == 0)
        return copysign(0.0, y);
    return (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

template <typename C> __device__ inline C unary(const cuda_pointwise &n, C x)
{
    const C alpha = (C)n.alpha, beta = (C)n.beta;
    switch (n.op) {
        CASE(OP_ABS, std::fabs(x));
        CASE(OP_NEG, -x);
        CASE(OP_SIGN, x > 0 ? (C)1 : x < 0 ? (C)-1 : x);
        CASE(OP_FLOOR, std::floor(x));
        CASE(OP_CEIL, std::ceil(x));
        CASE(OP_ROUND, std::rint(x));
        CASE(OP_SQRT, std::sqrt(x));
        CASE(OP_RECIPROCAL, (C)1 / x);
        CASE(OP_EXP, std::exp(x));
        CASE(OP_LOG, std::log(x));
        CASE(OP_SIN, std::sin(x));
        CASE(OP_COS, std::cos(x));
        CASE(OP_ERF, std::erf(x));
        CASE(OP_SOFTPLUS, softplus(x));
        CASE(OP_SOFTSIGN, x / (1 + std::fabs(x)));
        CASE(OP_SELU, x > 0 ? beta * x : beta * alpha * std::expm1(x));
        CASE(OP_CELU, x < 0 ? alpha * std::expm1(x / alpha) : x);
        CASE(OP_MISH, x * std::tanh(softplus(x)));
        CASE(OP_SHRINK, x < -alpha ? x + beta : x > alpha ? x - beta : (C)0);
        CASE(OP_THRESHOLDED_RELU, x > alpha ? x : (C)0);
        CASE(OP_RELU, x < 0 ? (C)0 : x);
    case OP_CLIP:
        x = x < alpha ? alpha : x;
        return x > beta ? beta : x;
        CASE(OP_IS_NAN, x != x);
    case OP_IS_INF: /* alpha: detect +inf; beta: detect -inf */
        return x == x && x - x != 0 && (x > 0 ? alpha : beta) != 0;
    default:
        return x;
    }
}

template <typename C> __device__ inline C binary(const cuda_pointwise &n, C x, C y)
{
    switch (n.op) {
        CASE(OP_ADD, x + y);
        CASE(OP_SUB, x - y);
        CASE(OP_MUL, x * y);
        CASE(OP_DIV, x / y);
        CASE(OP_MOD,
             (C)(n.alpha != 0 ? fmod((double)x, (double)y) : floor_mod((double)x, (double)y)));
        CASE(OP_MAX, x > y || x != x ? x : y);
        CASE(OP_MIN, x < y || x != x ? x : y);
        CASE(OP_PRELU, x < 0 ? x * y : x);
        CASE(OP_POW, y == 2 ? x * x : std::pow(x, y));
        CASE(OP_QLINEAR_ADD, plus(plus(n.fixed, times(y, n.ratios[1])), times(x, n.ratios[0])));
        CASE(OP_QLINEAR_MUL,
             plus(times((x - n.zeros[0]) * (y - n.zeros[1]), n.ratios[0]), n.fixed));
    default:
        return x;
    }
}

template <typename C> __device__ inline bool compared(const cuda_pointwise &n, C x, C y)
{
    switch (n.op) {
        CASE(OP_AND, x != 0 && y != 0);
        CASE(OP_OR, x != 0 || y != 0);
        CASE(OP_XOR, (x != 0) != (y != 0));
        CASE(OP_EQUAL, x == y);
        CASE(OP_GREATER, x > y);
        CASE(OP_LESS, x < y);
        CASE(OP_GREATER_OR_EQUAL, x >= y);
    default:
        return x <= y;
    }
}

/* The operators on integers. Sums and products are computed as unsigned, so that they wrap. */
template <> __device__ inline int64_t unary<int64_t>(const cuda_pointwise &n, int64_t x)
{
    switch (n.op) {
        CASE(OP_ABS, x < 0 ? (int64_t)(0 - (uint64_t)x) : x);
        CASE(OP_NEG, (int64_t)(0 - (uint64_t)x));
        CASE(OP_SIGN, (x > 0) - (x < 0));
        CASE(OP_RELU, x < 0 ? 0 : x);
    case OP_CLIP:
        x = x < n.lowest ? n.lowest : x;
        return x > n.highest ? n.highest : x;
        CASE(OP_NOT, !x);
    default:
        return x;
    }
}

/* Returns base^exponent. A fraction is truncated; 0 to a negative power is INT64_MAX. */
__device__ inline int64_t power(int64_t base, int64_t exponent)
{
    if (exponent < 0) {
        if (base == 0)
            return INT64_MAX;
        return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
    }
    uint64_t result = 1, square = (uint64_t)base;
    for (; exponent; exponent >>= 1, square *= square)
        if (exponent & 1)
            result *= square;
    return (int64_t)result;
}

template <> __device__ inline int64_t binary<int64_t>(const cuda_pointwise &n, int64_t x, int64_t y)
{
    const uint64_t a = (uint64_t)x, b = (uint64_t)y;
    switch (n.op) {
        CASE(OP_ADD, (int64_t)(a + b));
        CASE(OP_SUB, (int64_t)(a - b));
        CASE(OP_MUL, (int64_t)(a * b));
    case OP_DIV: /* y is never 0: the lowering checks it */
        return y == -1 ? (int64_t)(0 - a) : y ? x / y : 0;
    case OP_MOD:
        if (y == 0 || y == -1)
            return 0;
        return x % y + (n.alpha == 0 && x % y && (x % y < 0) != (y < 0) ? y : 0);
        CASE(OP_MAX, x > y ? x : y);
        CASE(OP_MIN, x < y ? x : y);
        CASE(OP_PRELU, x < 0 ? (int64_t)(a * b) : x);
        CASE(OP_POW, power(x, y));
    default:
        return x;
    }
}

/* Fills to[] with consecutive elements of the innermost dimension; with step 0, with one element.
 */
template <int EACH, typename T>
__device__ inline void load_stepped(float (&to)[EACH], const T *from, int64_t step)
{
    if (step)
        return load_all(to, from);
    float x = to_float(*from);
    UNROLLED(i, EACH)
        to[i] = x;
}

/* For operands of the result's dtype. The map counts groups of EACH elements: its innermost
 * dimension is divided by EACH. */
template <typename T, int OPERANDS, int EACH>
__global__ void floats_kernel(const T *a, const T *b, T *y, cuda_pointwise n, size_t count)
{
    const int last = n.map.rank ? n.map.rank - 1 : 0;
    FOR_EACH(i, count) {
        int64_t at[OPERANDS];
        float v[EACH], right[EACH];
        map_at(n.map, i, at);
        load_stepped(v, a + at[0], n.map.steps[0][last]);
        if constexpr (OPERANDS == 1) {
            UNROLLED(k, EACH)
                v[k] = unary(n, v[k]);
        } else {
            load_stepped(right, b + at[1], n.map.steps[1][last]);
            switch (n.op) { /* one branch for all EACH elements */
            case OP_ADD:
                UNROLLED(k, EACH)
                    v[k] += right[k];
                break;
            case OP_MUL:
                UNROLLED(k, EACH)
                    v[k] *= right[k];
                break;
            default:
                UNROLLED(k, EACH)
                    v[k] = binary(n, v[k], right[k]);
            }
        }
        activate_all(v, n.activation, n.activation_alpha, n.activation_beta);
        store_all(y + i * EACH, v);
    }
}

template <typename T, int OPERANDS>
void run_floats(cudaStream_t stream, const void *const operands[CUDA_OPERANDS], void *y,
                cuda_pointwise n, size_t count)
{
    WITH_EACH(map_in_groups(&n.map, 8),
              LAUNCH((floats_kernel<T, OPERANDS, EACH>), blocks_for(count / EACH), THREADS, stream,
                     (const T *)operands[0], (const T *)operands[1], (T *)y, n, count / EACH));
}

template <typename C, int OPERANDS>
__global__ void pointwise_kernel(const void *a, const void *b, const void *c, void *y,
                                 cuda_pointwise n, size_t count)
{
    FOR_EACH(i, count) {
        int64_t at[OPERANDS];
        map_at(n.map, i, at);
        if constexpr (OPERANDS == 1) {
            store_any(y, n.y_dtype, i, unary(n, load_any<C>(a, n.dtypes[0], at[0])));
        } else if constexpr (OPERANDS == 2) {
            const C left = load_any<C>(a, n.dtypes[0], at[0]);
            const C right = load_any<C>(b, n.dtypes[1], at[1]);
            store_any(y, n.y_dtype, i,
                      n.y_dtype == DTYPE_BOOL ? (C)compared(n, left, right)
                                              : binary(n, left, right));
        } else {
            const bool first = load_any<int64_t>(a, n.dtypes[0], at[0]) != 0;
            const C value =
                first ? load_any<C>(b, n.dtypes[1], at[1]) : load_any<C>(c, n.dtypes[2], at[2]);
            store_any(y, n.y_dtype, i, value);
        }
    }
}

template <typename C>
void run_numbers(cudaStream_t stream, const void *const operands[CUDA_OPERANDS], void *y,
                 const struct cuda_pointwise *n, size_t count)
{
    const auto kernel = n->operands == 1   ? pointwise_kernel<C, 1>
                        : n->operands == 2 ? pointwise_kernel<C, 2>
                                           : pointwise_kernel<C, 3>;
    LAUNCH(kernel, blocks_for(count), THREADS, stream, operands[0], operands[1], operands[2], y, *n,
           count);
}
} // namespace

void cuda_compute_pointwise(cudaStream_t stream, const void *const operands[CUDA_OPERANDS], void *y,
                            const struct cuda_pointwise *n)
{
    const size_t count = element_count(n->map.rank, n->map.dims);
    const bool are_floats = n->domain == CUDA_IN_FLOAT && n->dtypes[0] == n->y_dtype;
    if (are_floats && n->operands == 1)
        WITH_TYPE(n->y_dtype, (run_floats<T, 1>(stream, operands, y, *n, count)));
    else if (are_floats && n->operands == 2 && n->dtypes[1] == n->y_dtype)
        WITH_STORED_TYPE(n->y_dtype, (run_floats<T, 2>(stream, operands, y, *n, count)));
    else
        WITH_DOMAIN(n->domain, run_numbers<C>(stream, operands, y, n, count));
}
