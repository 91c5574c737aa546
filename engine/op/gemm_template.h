/* Matrix products of one element type; gemm.c includes it once per type. ELEMENT: the C type,
 * LANES: elements in 16 bytes, NAME(x): x with the type's suffix.
 *
 * Plain loops over blocks that fit into the caches. The innermost loops use the compilers' vector
 * types, because no compiler vectorises them by itself at -O2. */

typedef ELEMENT NAME(vector) __attribute__((vector_size(16), aligned(sizeof(ELEMENT)), may_alias));

/* c[4][2 * LANES] += a[4][k] * b[k][2 * LANES] */
static void NAME(tile)(size_t k, const ELEMENT *a, size_t a_row, size_t a_col, const ELEMENT *b,
                       size_t ldb, ELEMENT *c, size_t ldc)
{
    NAME(vector) *c0 = (NAME(vector) *)c, *c1 = (NAME(vector) *)(c + ldc);
    NAME(vector) *c2 = (NAME(vector) *)(c + 2 * ldc), *c3 = (NAME(vector) *)(c + 3 * ldc);
    NAME(vector) s00 = c0[0], s01 = c0[1], s10 = c1[0], s11 = c1[1];
    NAME(vector) s20 = c2[0], s21 = c2[1], s30 = c3[0], s31 = c3[1];
    for (size_t p = 0; p < k; p++, a += a_col, b += ldb) {
        const NAME(vector) *row = (const NAME(vector) *)b;
        NAME(vector) b0 = row[0], b1 = row[1];
        ELEMENT x = a[0], y = a[a_row], z = a[2 * a_row], w = a[3 * a_row];
        s00 += x * b0;
        s01 += x * b1;
        s10 += y * b0;
        s11 += y * b1;
        s20 += z * b0;
        s21 += z * b1;
        s30 += w * b0;
        s31 += w * b1;
    }
    c0[0] = s00;
    c0[1] = s01;
    c1[0] = s10;
    c1[1] = s11;
    c2[0] = s20;
    c2[1] = s21;
    c3[0] = s30;
    c3[1] = s31;
}

/* c[2 * LANES] += a[k] * b[k][2 * LANES] */
static void NAME(strip)(size_t k, const ELEMENT *a, size_t a_col, const ELEMENT *b, size_t ldb,
                        ELEMENT *c)
{
    NAME(vector) *out = (NAME(vector) *)c;
    NAME(vector) s0 = out[0], s1 = out[1];
    for (size_t p = 0; p < k; p++, a += a_col, b += ldb) {
        const NAME(vector) *row = (const NAME(vector) *)b;
        s0 += a[0] * row[0];
        s1 += a[0] * row[1];
    }
    out[0] = s0;
    out[1] = s1;
}

static void NAME(block)(size_t m, size_t n, size_t k, const ELEMENT *a, size_t a_row, size_t a_col,
                        const ELEMENT *b, size_t ldb, ELEMENT *c, size_t ldc)
{
    size_t whole = n - n % (2 * LANES), i = 0;
    for (; i + 4 <= m; i += 4)
        for (size_t j = 0; j < whole; j += 2 * LANES)
            NAME(tile)(k, a + i * a_row, a_row, a_col, b + j, ldb, c + i * ldc + j, ldc);
    for (; i < m; i++)
        for (size_t j = 0; j < whole; j += 2 * LANES)
            NAME(strip)(k, a + i * a_row, a_col, b + j, ldb, c + i * ldc + j);
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
