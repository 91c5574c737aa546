/* Matrix instructions of a warp and asynchronous copies, as small device functions: PTX for nvcc.
 * The test double has its own versions (fake_warp.h).
 *
 * Fragments are those of PTX's mma.m16n8k16 (PTX ISA, "Matrix Fragments for mma.m16n8k16"). With g
 * = lane / 4 and t = lane % 4, and two neighbouring numbers in a register, the lower one first:
 *
 *     a [16, 16]   a0 (g, 2t)   a1 (g + 8, 2t)   a2 (g, 2t + 8)   a3 (g + 8, 2t + 8)
 *     b [16, 8]    b0 (2t, g)   b1 (2t + 8, g)
 *     c [16, 8]    c0 (g, 2t)   c1 (g, 2t + 1)   c2 (g + 8, 2t)   c3 (g + 8, 2t + 1)
 *
 * The fragments of mma.m16n8k32 on 8-bit integers have the same bytes: four 8-bit numbers replace
 * two 16-bit numbers, and k is twice as deep. Their sums c are int32 and wrap. The fragments of
 * mma.m16n8k8 on TF32 also have the same bytes: a register holds one number, and k is half as deep.
 *
 * ldmatrix loads four 8 x 8 matrices with rows of 16 bytes at any address. Lane i gives the address
 * of row i % 8 of matrix i / 8. From each matrix it receives the numbers (g, 2t) and (g, 2t + 1),
 * or if transposed (2t, g) and (2t + 1, g). All threads of a warp must call these functions. */
#pragma once

#include "engine/cuda/kernels/device.cuh"

/* Two neighbouring 8-bit integers, signed or not, for kernels that count in two-byte numbers. */
struct s8_pair {
    uint16_t bits;
};
struct u8_pair {
    uint16_t bits;
};
/* Half a float32, which tensor cores multiply as TF32, with a 10-bit fraction. */
struct tf32_half {
    uint16_t bits;
};

#ifdef LENSD_FAKE_CUDA
#include "fake_warp.h"
#else

__device__ static inline uint32_t shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Starts a copy of BYTES (4, 8 or 16; both addresses are multiples) into shared memory, or of zeros
 * if !has; `global` must be readable in both cases. The thread that started it sees the data after
 * copies_wait(), other threads after a later barrier. Before sm_80 the copy is immediate. */
template <int BYTES>
__device__ static inline void copy_async(void *shared, const void *global, bool has)
{
#if __CUDA_ARCH__ >= 800
    int bytes = has ? BYTES : 0;
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(
                         shared_address(shared)),
                     "l"(global), "r"(bytes)
                     : "memory");
    else
        asm volatile(
            "cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(shared)),
            "l"(global), "n"(BYTES), "r"(bytes)
            : "memory");
#else
    if constexpr (BYTES == 16)
        *(uint4 *)shared = has ? *(const uint4 *)global : make_uint4(0, 0, 0, 0);
    else if constexpr (BYTES == 8)
        *(uint2 *)shared = has ? *(const uint2 *)global : make_uint2(0, 0);
    else
        *(unsigned *)shared = has ? *(const unsigned *)global : 0u;
#endif
}

/* Ends a group of copies, which may be empty. */
__device__ static inline void copies_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

/* Waits until at most the newest PENDING groups of this thread are still in flight. */
template <int PENDING> __device__ static inline void copies_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
#endif
}

__device__ static inline void load_matrices(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ static inline void load_matrices_transposed(uint32_t (&r)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

template <typename T>
__device__ static inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1);

template <>
__device__ inline void multiply_add<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                            uint32_t b1)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else /* sm_75 multiplies half the depth */
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                 "{%6}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4],
                                                   uint32_t b0, uint32_t b1)
{
#if __CUDA_ARCH__ >= 800 /* older devices have no bfloat16; the code is never started there */
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

template <>
__device__ inline void multiply_add<tf32_half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
#if __CUDA_ARCH__ >= 800 /* older devices have no TF32 */
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

/* Rounds a float32 to the nearest TF32. The matrix instruction itself would truncate it. */
__device__ static inline uint32_t round_tf32(uint32_t bits)
{
#if __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(bits) : "f"(__uint_as_float(bits)));
#endif
    return bits;
}

/* Integers: T says whether x is signed; weights are signed. */
template <typename T>
__device__ static inline void multiply_add(int (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1);

#if __CUDA_ARCH__ >= 800
#define MULTIPLY_ADD_INTEGERS(pair, type)                                                          \
    template <>                                                                                    \
    __device__ inline void multiply_add<pair>(int(&c)[4], const uint32_t(&a)[4], uint32_t b0,      \
                                              uint32_t b1)                                         \
    {                                                                                              \
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, "    \
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"                             \
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
#else /* sm_75 has m8n8k16: eight rows and half the depth */
#define MULTIPLY_ADD_INTEGERS(pair, type)                                                          \
    template <>                                                                                    \
    __device__ inline void multiply_add<pair>(int(&c)[4], const uint32_t(&a)[4], uint32_t b0,      \
                                              uint32_t b1)                                         \
    {                                                                                              \
        const uint32_t b[2] = {b0, b1};                                                            \
        UNROLL                                                                                     \
        for (int i = 0; i < 4; i++)                                                                \
            asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." type ".s8.s32 {%0, %1}, {%2}, "   \
                         "{%3}, {%0, %1};\n"                                                       \
                         : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])                              \
                         : "r"(a[i]), "r"(b[i / 2]));                                              \
    }
#endif
MULTIPLY_ADD_INTEGERS(s8_pair, "s8")
MULTIPLY_ADD_INTEGERS(u8_pair, "u8")
#undef MULTIPLY_ADD_INTEGERS

#endif

/* Rounds the operands in a fragment to the format that multiply_add<T>() multiplies. */
template <typename T> __device__ static inline void round_operands(uint32_t (&)[4])
{
}
template <> __device__ inline void round_operands<tf32_half>(uint32_t (&r)[4])
{
    UNROLL
    for (uint32_t &number : r)
        number = round_tf32(number);
}

/* Returns the index of number `piece * 8` of `row` in a tile in shared memory. The tile's rows have
 * DEPTH (32 or 64) two-byte numbers in pieces of 16 bytes. The pieces of each row are permuted. So
 * the eight rows that ldmatrix reads at a time, and the pieces that neighbouring threads write, are
 * in different banks. */
template <int DEPTH> __device__ static inline int swizzled(int row, int piece)
{
    constexpr int PIECES = DEPTH / 8;
    static_assert(PIECES == 4 || PIECES == 8, "a tile is 32 or 64 deep");
    return row * DEPTH + (piece ^ (PIECES == 8 ? row & 7 : row >> 1 & 3)) * 8;
}
