/* Private to engine/cpu/: Intel's tiles (AMX). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Their state, as ldtilecfg reads it (SDM volume 1, 18.3). It goes through inline assembly because
 * gcc 12 may drop the stores in front of its intrinsic. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Asks Linux for them, without which a process must not use them
 * (Documentation/arch/x86/xstate.rst). Thread-safe. */
bool amx_allowed(void);

struct tile;

/* tile_dot, tile_bf16 and tile_end of struct simd_kernels, for tiles of 32 rows x 64 columns. */
void amx_tile_dot(const struct tile *t, size_t rows);
void amx_tile_bf16(const struct tile *t, size_t rows);
void amx_tile_end(void);
