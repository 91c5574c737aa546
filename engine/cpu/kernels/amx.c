/* Multiplies matrices with Intel's AMX: at a time, two tile registers with 16 rows each by two with
 * 16 columns each. Panels of weights have the layout that VNNI and AVX512-BF16 use; a tile register
 * holds 16 columns of 16 groups of four bytes. */
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/cpu/kernels/simd.h"

/* The shapes of tile registers in the format of ldtilecfg (SDM volume 1, 18.3). Inline assembly
 * loads the struct, because gcc 12 may drop the stores before its intrinsic. */
struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

enum { ROWS = 16, STEP = 64, PANEL = 64 * 4, PAIR = 32 };

bool amx_allowed(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Tile registers 0 … 3 hold sums, 4 and 5 rows, 6 and 7 weights. */
static _Thread_local struct amx_config config;

static void configure(const struct tile *t, size_t rows)
{
    const uint8_t upper = (uint8_t)(rows < t->group ? rows : t->group), chunk = (uint8_t)t->chunk;
    const uint8_t lower = (uint8_t)(rows > t->group ? rows - t->group : ROWS), k = chunk / 4;
    if (config.palette && config.rows[0] == upper && config.rows[2] == lower &&
        config.row_bytes[4] == chunk)
        return;
    config = (struct amx_config){
        .palette = 1,
        .row_bytes = {STEP, STEP, STEP, STEP, chunk, chunk, STEP, STEP},
        .rows = {upper, upper, lower, lower, upper, lower, k, k},
    };
    __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

static void store_sums(int32_t *c, long apart, size_t down, bool right, bool two)
{
    _tile_stored(0, c, apart);
    if (right)
        _tile_stored(1, c + ROWS, apart);
    if (two)
        _tile_stored(2, c + down, apart);
    if (two && right)
        _tile_stored(3, c + down + ROWS, apart);
}

/* `two` is true if the tile has a second group of rows, `right` if it has more than 16 columns. */
#define AMX_PRODUCT(name, multiply)                                                                \
    static void name##_pair(const struct tile *t, size_t j, const bool two, const bool right)      \
    {                                                                                              \
        const unsigned char *const *rows = t->rows, *b = t->b + j * 4;                             \
        const long apart = (long)t->apart;                                                         \
        const size_t chunk = t->chunk, run = t->run;                                               \
        _tile_zero(0);                                                                             \
        _tile_zero(1);                                                                             \
        _tile_zero(2);                                                                             \
        _tile_zero(3);                                                                             \
        for (size_t tap = 0; tap < t->taps; tap++, rows += 2)                                      \
            for (size_t p = 0; p < run; p += chunk, b += chunk / 4 * PANEL) {                      \
                _tile_loadd(4, rows[0] + p, apart);                                                \
                _tile_loadd(6, b, PANEL);                                                          \
                multiply(0, 4, 6);                                                                 \
                if (right) {                                                                       \
                    _tile_loadd(7, b + 64, PANEL);                                                 \
                    multiply(1, 4, 7);                                                             \
                }                                                                                  \
                if (two) {                                                                         \
                    _tile_loadd(5, rows[1] + p, apart);                                            \
                    multiply(2, 5, 6);                                                             \
                    if (right)                                                                     \
                        multiply(3, 5, 7);                                                         \
                }                                                                                  \
            }                                                                                      \
        store_sums((int32_t *)t->c + j, (long)(t->ldc * sizeof(int32_t)), t->group * t->ldc,       \
                   right, two);                                                                    \
    }                                                                                              \
    static void name(const struct tile *t, size_t rows)                                            \
    {                                                                                              \
        configure(t, rows);                                                                        \
        for (size_t j = 0; j < t->n; j += PAIR)                                                    \
            name##_pair(t, j, rows > t->group, t->n - j > ROWS);                                   \
    }

AMX_PRODUCT(multiply_unsigned, _tile_dpbusd)
AMX_PRODUCT(multiply_signed, _tile_dpbssd)
AMX_PRODUCT(multiply_bf16, _tile_dpbf16ps)

void amx_tile_dot(const struct tile *t, size_t rows)
{
    if (t->is_signed)
        multiply_signed(t, rows);
    else
        multiply_unsigned(t, rows);
}

void amx_tile_bf16(const struct tile *t, size_t rows)
{
    multiply_bf16(t, rows);
}

void amx_tile_end(void)
{
    if (config.palette)
        _tile_release();
    config.palette = 0;
}
