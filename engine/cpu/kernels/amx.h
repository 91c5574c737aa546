/* Private to engine/cpu/: the tile registers of Intel's AMX. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The shapes of tile registers in the format of ldtilecfg (SDM volume 1, 18.3). Load it with inline
 * assembly: gcc 12 may drop the stores before its intrinsic. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Asks Linux to let this process use tile registers (Documentation/arch/x86/xstate.rst). Returns
 * false if Linux refuses. Thread-safe. */
bool amx_allowed(void);

struct tile;

/* tile_dot, tile_bf16 and tile_end of struct simd_kernels, for tiles of 32 rows x 64 columns. They
 * need amx_allowed(). amx_tile_end() releases the tile registers of the calling thread. */
void amx_tile_dot(const struct tile *t, size_t rows);
void amx_tile_bf16(const struct tile *t, size_t rows);
void amx_tile_end(void);
