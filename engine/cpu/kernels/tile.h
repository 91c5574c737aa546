/* One kind of product of a tile, compiled once per instruction set: tile.c includes this once for
 * each kind. In: TILE_NAME, TILE_TARGET (an attribute or nothing), TILE_SUM and TILE_ZERO,
 * TILE_STORE, TILE_FACTOR and TILE_REPEAT (four bytes of a row in all lanes), TILE_WEIGHTS,
 * TILE_LOAD and TILE_BYTES (bytes of a register of weights), TILE_ADD.
 *
 * Sums have names, and each number of rows a function of its own: gcc 12 keeps an array of sums in
 * memory, which takes up to three times as long. */

#define TILE_FUNCTION_(name, count) name##_##count
#define TILE_FUNCTION(name, count)  TILE_FUNCTION_(name, count)

#define DECLARE_SUM(r, i)  TILE_SUM s##r##i = TILE_ZERO();
#define LOAD_WEIGHTS(r, i) const TILE_WEIGHTS w##i = TILE_LOAD(b + (i)*TILE_BYTES);
#define ADD_SUM(r, i)      s##r##i = TILE_ADD(s##r##i, x, w##i);
#define STORE_SUM(r, i)    TILE_STORE(c + (r)*t->ldc + (i)*VEC, s##r##i);

#define DECLARE_ROW(r) EACH_REGISTER(DECLARE_SUM, r)
#define BEGIN_ROW(r)   const unsigned char *const a##r = rows[r];
#define ADD_ROW(r)                                                                                 \
    {                                                                                              \
        const TILE_FACTOR x = TILE_REPEAT(a##r + p);                                               \
        EACH_REGISTER(ADD_SUM, r)                                                                  \
    }
#define STORE_ROW(r) EACH_REGISTER(STORE_SUM, r)

#define TILE_OF(count)                                                                             \
    TILE_TARGET static void TILE_FUNCTION(TILE_NAME, count)(const struct tile *t)                  \
    {                                                                                              \
        const unsigned char *b = t->b, *const *rows = t->rows;                                     \
        int32_t *c = t->c;                                                                         \
        EACH_ROW_##count(DECLARE_ROW) for (size_t tap = 0; tap < t->taps;                          \
                                           tap++, rows += TILE_ROWS)                               \
        {                                                                                          \
            const size_t run = t->run;                                                             \
            EACH_ROW_##count(BEGIN_ROW) for (size_t p = 0; p < run;                                \
                                             p += 4, b += TILE_REGISTERS * TILE_BYTES)             \
            {                                                                                      \
                EACH_REGISTER(LOAD_WEIGHTS, 0)                                                     \
                EACH_ROW_##count(ADD_ROW)                                                          \
            }                                                                                      \
        }                                                                                          \
        EACH_ROW_##count(STORE_ROW)                                                                \
    }

TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)
#if TILE_ROWS > 6
TILE_OF(7)
TILE_OF(8)
#endif

void SIMD_NAMED(TILE_NAME)(const struct tile *t, size_t rows)
{
    static void (*const of[TILE_ROWS])(const struct tile *) = {
        TILE_FUNCTION(TILE_NAME, 1),
        TILE_FUNCTION(TILE_NAME, 2),
        TILE_FUNCTION(TILE_NAME, 3),
        TILE_FUNCTION(TILE_NAME, 4),
        TILE_FUNCTION(TILE_NAME, 5),
        TILE_FUNCTION(TILE_NAME, 6),
#if TILE_ROWS > 6
        TILE_FUNCTION(TILE_NAME, 7),
        TILE_FUNCTION(TILE_NAME, 8),
#endif
    };
    of[rows - 1](t);
}

#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_SUM
#undef TILE_ZERO
#undef TILE_STORE
#undef TILE_FACTOR
#undef TILE_REPEAT
#undef TILE_WEIGHTS
#undef TILE_LOAD
#undef TILE_BYTES
#undef TILE_ADD
