/* A template of the function TILE_NAME, which multiplies rows by a panel (struct tile). tile.c
 * includes it once per number type, after defining
 *
 *     TILE_NAME, TILE_TARGET                      name; attribute of the function, or nothing
 *     TILE_SUM, TILE_ZERO, TILE_SUMS, TILE_STORE  a register of sums: type, zero, load, store
 *     TILE_FACTOR, TILE_REPEAT                    four bytes of a row in all lanes: type, load
 *     TILE_WEIGHTS, TILE_LOAD, TILE_BYTES         a register of weights: type, load, bytes
 *     TILE_ADD                                    adds products of a factor and weights to sums
 *
 * Each sum is a variable, and each number of rows and of registers has its own function: gcc 12
 * would keep an array of sums in memory, and take up to three times as long. */

#define TILE_FUNCTION_(name, count, each) name##_##count##_##each
#define TILE_FUNCTION(name, count, each)  TILE_FUNCTION_(name, count, each)

#define TILE_PART(r, i)    (c + (r)*t->ldc + (i)*VEC)
#define DECLARE_SUM(r, i)  TILE_SUM s##r##i = TILE_ZERO();
#define LOAD_SUM(r, i)     s##r##i = TILE_SUMS(TILE_PART(r, i));
#define LOAD_WEIGHTS(r, i) const TILE_WEIGHTS w##i = TILE_LOAD(b + (i)*TILE_BYTES);
#define ADD_SUM(r, i)      s##r##i = TILE_ADD(s##r##i, x, w##i);
#define STORE_SUM(r, i)    TILE_STORE(TILE_PART(r, i), s##r##i);

#define TILE_OF(count, each)                                                                       \
    TILE_TARGET static void TILE_FUNCTION(TILE_NAME, count, each)(const struct tile *t)            \
    {                                                                                              \
        const unsigned char *b = t->b, *const *rows = t->rows;                                     \
        int32_t *c = t->c;                                                                         \
        FOR_ROWS_##count(EACH_ROW, each, DECLARE_SUM) if (t->adds)                                 \
        {                                                                                          \
            FOR_ROWS_##count(EACH_ROW, each, LOAD_SUM)                                             \
        }                                                                                          \
        for (size_t tap = 0; tap < t->taps; tap++, rows += TILE_ROWS) {                            \
            const size_t run = t->run;                                                             \
            FOR_ROWS_##count(BEGIN_ROW, ) for (size_t p = 0; p < run;                              \
                                               p += 4, b += TILE_REGISTERS * TILE_BYTES)           \
            {                                                                                      \
                each(LOAD_WEIGHTS, 0) FOR_ROWS_##count(ADD_ROW, each)                              \
            }                                                                                      \
        }                                                                                          \
        FOR_ROWS_##count(EACH_ROW, each, STORE_SUM)                                                \
    }
#if TILE_ROWS > 6
#define TILES_OF_MORE(each) TILE_OF(7, each) TILE_OF(8, each)
#define TILE_MORE(each)     , TILE_FUNCTION(TILE_NAME, 7, each), TILE_FUNCTION(TILE_NAME, 8, each)
#else
#define TILES_OF_MORE(each)
#define TILE_MORE(each)
#endif

#define TILES_OF(each)                                                                             \
    TILE_OF(1, each)                                                                               \
    TILE_OF(2, each)                                                                               \
    TILE_OF(3, each)                                                                               \
    TILE_OF(4, each)                                                                               \
    TILE_OF(5, each)                                                                               \
    TILE_OF(6, each)                                                                               \
    TILES_OF_MORE(each)

TILES_OF(EACH_OF_1)
TILES_OF(EACH_OF_2)
#if TILE_REGISTERS > 2
TILES_OF(EACH_OF_3)
TILES_OF(EACH_OF_4)
#endif

#define TILE_FUNCTIONS(each)                                                                       \
    {                                                                                              \
        TILE_FUNCTION(TILE_NAME, 1, each), TILE_FUNCTION(TILE_NAME, 2, each),                      \
            TILE_FUNCTION(TILE_NAME, 3, each), TILE_FUNCTION(TILE_NAME, 4, each),                  \
            TILE_FUNCTION(TILE_NAME, 5, each), TILE_FUNCTION(TILE_NAME, 6, each) TILE_MORE(each)   \
    }

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
#undef TILE_SUM
#undef TILE_ZERO
#undef TILE_STORE
#undef TILE_FACTOR
#undef TILE_REPEAT
#undef TILE_WEIGHTS
#undef TILE_LOAD
#undef TILE_BYTES
#undef TILE_ADD
#undef TILE_SUMS
#undef TILE_PART
#undef DECLARE_SUM
#undef LOAD_SUM
#undef LOAD_WEIGHTS
#undef ADD_SUM
#undef STORE_SUM
#undef TILE_OF
#undef TILES_OF
#undef TILES_OF_MORE
#undef TILE_MORE
#undef TILE_FUNCTIONS
#undef TILE_FUNCTION
#undef TILE_FUNCTION_
