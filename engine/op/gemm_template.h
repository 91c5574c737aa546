/* Matrix products of one element type; gemm.c includes it once per type. ELEMENT: the C type,
 * LANES: elements in 16 bytes, NAME(x): x with the type's suffix.
 *
 * Plain loops over blocks that fit into the caches. The innermost loops use the compilers' vector
 * types, because no compiler vectorises them by itself at -O2. */

typedef ELEMENT NAME(vector) __attribute__((vector_size(16), aligned(sizeof(ELEMENT)), may_alias));

/* c[rows][2 * LANES] += a[rows][k] * b[k][2 * LANES]; `rows` is a constant, at most 4. */
static inline __attribute__((always_inline)) void NAME(tile)(const size_t rows, size_t k,
                                                             const ELEMENT *a, size_t a_row,
                                                             size_t a_col, const ELEMENT *b,
                                                             size_t ldb, ELEMENT *c, size_t ldc)
{
    NAME(vector) s[4][2];
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 2; i++)
            s[r][i] = ((const NAME(vector) *)(c + r * ldc))[i];
    for (size_t p = 0; p < k; p++, a += a_col, b += ldb) {
        const NAME(vector) *row = (const NAME(vector) *)b, b0 = row[0], b1 = row[1];
        for (size_t r = 0; r < rows; r++) {
            s[r][0] += a[r * a_row] * b0;
            s[r][1] += a[r * a_row] * b1;
        }
    }
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < 2; i++)
            ((NAME(vector) *)(c + r * ldc))[i] = s[r][i];
}

static void NAME(block)(size_t m, size_t n, size_t k, const ELEMENT *a, size_t a_row, size_t a_col,
                        const ELEMENT *b, size_t ldb, ELEMENT *c, size_t ldc)
{
    size_t whole = n - n % (2 * LANES), i = 0;
    for (; i + 4 <= m; i += 4)
        for (size_t j = 0; j < whole; j += 2 * LANES)
            NAME(tile)(4, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc);
    for (; i < m; i++)
        for (size_t j = 0; j < whole; j += 2 * LANES)
            NAME(tile)(1, k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc);
    for (size_t j = whole; j < n; j++) {
        for (i = 0; i < m; i++) {
            ELEMENT sum = c[i * ldc + j];
            for (size_t p = 0; p < k; p++)
                sum += a[i * a_row + p * a_col] * b[p * ldb + j];
            c[i * ldc + j] = sum;
        }
    }
}

static void NAME(gemm_nn)(size_t m, size_t n, size_t k, const void *a, size_t a_row, size_t a_col,
                          const void *b, size_t ldb, void *c, size_t ldc)
{
    for (size_t p = 0; p < k; p += BLOCK_K) {
        size_t depth = k - p < BLOCK_K ? k - p : BLOCK_K;
        for (size_t j = 0; j < n; j += BLOCK_N) {
            size_t width = n - j < BLOCK_N ? n - j : BLOCK_N;
            NAME(block)
            (m, width, depth, (const ELEMENT *)a + p * a_col, a_row, a_col,
             (const ELEMENT *)b + p * ldb + j, ldb, (ELEMENT *)c + j, ldc);
        }
    }
}

#undef ELEMENT
#undef LANES
#undef NAME
