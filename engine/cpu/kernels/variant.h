/* Private to engine/cpu/kernels/: the functions of the variant that is being compiled, for its
 * table in kernels.c. simd.h documents them. */
#pragma once

#include "engine/cpu/kernels/simd.h"

#define SIMD_JOIN_(a, b) a##_##b
#define SIMD_JOIN(a, b)  SIMD_JOIN_(a, b)
#define SIMD_NAMED(name) SIMD_JOIN(SIMD_JOIN(simd, SIMD_VARIANT), name) /* simd_avx2_gemm */
/* The variant avx512_bf16 has its own kernels only where they write bfloat16, because AVX512-BF16
 * has an instruction for that. Its other kernels are those of avx512. */
#if defined __AVX512BF16__
#define SIMD_COMMON(name) simd_avx512_##name
#else
#define SIMD_COMMON(name) SIMD_NAMED(name)
#endif
#define SIMD_TEXT_(name) #name
#define SIMD_TEXT(name)  SIMD_TEXT_(name)

/* Blocks that fit in registers. Of 32, gemm() uses 14 x 2 for sums, two for weights and one for a
 * number of a row; of 16, 6 x 2 for sums. Of 32, a depthwise kernel uses 2 x 7 for results, 2 x 7
 * for weights and one for a number of the image; of 16, half as many for results and weights. */
#if defined __AVX512F__
#define GEMM_ROWS          14
#define GEMM_COLUMNS       32
#define DEPTHWISE_CHANNELS 16
#define DEPTHWISE_ROWS     2
#elif defined __AVX2__
#define GEMM_ROWS          6
#define GEMM_COLUMNS       16
#define DEPTHWISE_CHANNELS 8
#define DEPTHWISE_ROWS     1
#elif defined __aarch64__
#define GEMM_ROWS          14
#define GEMM_COLUMNS       8
#define DEPTHWISE_CHANNELS 4
#define DEPTHWISE_ROWS     2
#else
#define GEMM_ROWS          6
#define GEMM_COLUMNS       8
#define DEPTHWISE_CHANNELS 4
#define DEPTHWISE_ROWS     1
#endif

/* Rows of a tile, and registers of sums per row. 32 registers hold 6 x 4 sums (NEON: 8 x 2), the
 * weights and a factor. 16 registers hold 6 x 2 sums. */
#if defined __AVX512F__
#define TILE_ROWS      6
#define TILE_REGISTERS 4
#elif defined __aarch64__
#define TILE_ROWS      8
#define TILE_REGISTERS 2
#else
#define TILE_ROWS      6
#define TILE_REGISTERS 2
#endif

/* Every kernel that is not static in kernels.c, except tile_dot and tile_bf16: X(its name in struct
 * simd_kernels). Kernels of the first list are compiled for avx512_bf16, too. */
/* clang-format off */
#define SIMD_NAMED_KERNELS(X)                                                                      \
    X(winograd_source) X(winograd_sink) X(winograd_filters) X(depthwise) X(pool) X(blend)          \
    X(finish_tile) X(quantize) X(dequantize) X(add_8bit) X(range) X(mul_8bit) X(lookup)            \
    X(scale_rows)
#define SIMD_COMMON_KERNELS(X)                                                                     \
    X(gemm) X(gemm_copies) X(tile_pairs) X(pack_rows) X(pack_columns) X(pack_pairs) X(score_row)   \
    X(activate) X(activate_rows) X(softmax) X(sum_row) X(norm_row) X(lrn) X(square_rows)           \
    X(center_rows) X(depthwise_8bit) X(depthwise_8bit_pack)
/* clang-format on */

/* Declares `symbol` as a function of the type that the table's member `name` points to. */
#define SIMD_DECLARE(name, symbol) __typeof__(*((struct simd_kernels *)0)->name) symbol;
#define SIMD_DECLARE_NAMED(name)   SIMD_DECLARE(name, SIMD_NAMED(name))
#define SIMD_DECLARE_COMMON(name)  SIMD_DECLARE(name, SIMD_COMMON(name))

SIMD_NAMED_KERNELS(SIMD_DECLARE_NAMED)
SIMD_COMMON_KERNELS(SIMD_DECLARE_COMMON)
SIMD_DECLARE_COMMON(tile_dot)
SIMD_DECLARE_NAMED(tile_bf16)
