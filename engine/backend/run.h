/* Types for a session and its backend: precisions, photos as bytes, profile lines. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number format of a forward pass. PRECISION_AUTO is resolved before a session is created
 * (server/precision). The order is that of the values of --precision. */
enum precision {
    PRECISION_FP32, /* a quantized file computes in float32 between its QuantizeLinear nodes */
    PRECISION_TF32, /* GPUs only: float32, but with operands of convolutions and matrix products
                       rounded to a 10-bit fraction; sums are float32 */
    PRECISION_BF16,
    PRECISION_FP16, /* GPUs only. Numbers above 65504 become infinite; trials detect this. */
    PRECISION_INT8, /* products of 8-bit integers, for quantized files (optimize_is_quantized()) */
    PRECISION_AUTO,
};
#define PRECISION_COUNT PRECISION_AUTO /* number of precisions that a session can have */

/* If session_info.takes_pixels is set, images may be passed as bytes instead of floats: [H, W, C]
 * uint8 where the floats would begin. The session converts them on its device:
 *
 *     y[h, w, c] = table[c][x[h, w, is_reversed ? C - 1 - c : c]]
 *
 * This copies a quarter of the bytes. The result is bit-identical to passing y as floats. */
struct session_pixels {
    float table[3][256];
    int channels; /* C: 1 or 3 */
    bool is_reversed;
};

/* One line of a profile: a compiled step. */
struct session_step {
    const char *name, *kernel;
    double milliseconds, gflop;
    size_t bytes;
    enum precision precision; /* CPU only: precision of the first operand */
};
