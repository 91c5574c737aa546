/* A template of the function TILE_NAME, which multiplies rows by a panel (struct tile). tile.c
 * includes it once per number type, after defining
 *
 *     TILE_NAME, TILE_TARGET            name; attribute of the function, or nothing
 *     TILE_ZERO, TILE_STORE             a register of zeros; stores a register of sums
 *     TILE_REPEAT                       loads four bytes of a row into all lanes of a factor
 *     TILE_LOAD, TILE_BYTES             loads a register of weights; its size in bytes
 *     TILE_ADD                          adds products of a factor and weights to sums
 *
 * Each sum is a variable, and each number of rows and of registers has its own function: gcc 12
 * would keep an array of sums in memory, and take up to three times as long. */

TILES_OF(EACH_OF_1)
TILES_OF(EACH_OF_2)
#if TILE_REGISTERS > 2
TILES_OF(EACH_OF_3)
TILES_OF(EACH_OF_4)
#endif

void SIMD_NAMED(TILE_NAME)(const struct tile *t, size_t rows)
{
    static void (*const of[TILE_REGISTERS][TILE_ROWS])(const struct tile *) = {
        TILE_FUNCTIONS(EACH_OF_1),
        TILE_FUNCTIONS(EACH_OF_2),
#if TILE_REGISTERS > 2
        TILE_FUNCTIONS(EACH_OF_3),
        TILE_FUNCTIONS(EACH_OF_4),
#endif
    };
    of[(t->n - 1) / VEC][rows - 1](t);
}

#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_ZERO
#undef TILE_STORE
#undef TILE_REPEAT
#undef TILE_LOAD
#undef TILE_BYTES
#undef TILE_ADD
