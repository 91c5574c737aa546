/* Every operator that rearranges elements (Transpose, Slice, Expand, Tile, DepthToSpace …) is one
 * strided copy. Dimensions are first merged where source and destination allow it. Then the
 * innermost dimension decides: a contiguous run is memcpy, a repeated element is a fill, anything
 * else is a loop over elements. A transposition is copied in tiles, whose source and destination
 * stay in the cache. */
#include "engine/op/copy.h"

#include <string.h>

#define TILE 16

void copy_bytes(void *dst, const void *src, size_t bytes)
{
    if (bytes)
        memcpy(dst, src, bytes);
}

void zero_bytes(void *dst, size_t bytes)
{
    if (bytes)
        memset(dst, 0, bytes);
}

void contiguous_steps(const struct shape *shape, size_t item, ptrdiff_t *ret)
{
    size_t step = item;
    for (int i = shape->rank; i-- > 0;) {
        ret[i] = (ptrdiff_t)step;
        step *= (size_t)shape->dims[i];
    }
}

void fill_row(void *dst, const void *value, size_t item, size_t n)
{
    if (!n)
        return;
    if (item == 1) {
        memset(dst, *(const unsigned char *)value, n);
        return;
    }
    char *to = dst;
    memcpy(to, value, item);
    /* Each memcpy doubles the data. */
    for (size_t done = 1; done < n;) {
        size_t more = done < n - done ? done : n - done;
        memcpy(to + done * item, to, more * item);
        done += more;
    }
}

/* Drops dimensions of extent 1, and merges neighbours that are contiguous in source and
 * destination. */
static int merge(struct copy_dim *dims, int rank)
{
    int kept = 0;
    for (int i = 0; i < rank; i++) {
        if (dims[i].extent == 1)
            continue;
        struct copy_dim *last = kept ? &dims[kept - 1] : NULL;
        ptrdiff_t extent = (ptrdiff_t)dims[i].extent;
        if (last && last->dst == dims[i].dst * extent && last->src == dims[i].src * extent) {
            last->extent *= dims[i].extent;
            last->dst = dims[i].dst;
            last->src = dims[i].src;
        } else {
            dims[kept++] = dims[i];
        }
    }
    return kept;
}

/* Copies rows x columns elements in tiles; TYPE has their size. */
#define DEFINE_GRID(TYPE)                                                                          \
    static void grid_##TYPE(char *dst, const char *src, const struct copy_dim *row,                \
                            const struct copy_dim *column)                                         \
    {                                                                                              \
        for (size_t r = 0; r < row->extent; r += TILE) {                                           \
            size_t row_end = r + TILE < row->extent ? r + TILE : row->extent;                      \
            for (size_t c = 0; c < column->extent; c += TILE) {                                    \
                size_t column_end = c + TILE < column->extent ? c + TILE : column->extent;         \
                for (size_t i = r; i < row_end; i++) {                                             \
                    char *to = dst + (ptrdiff_t)i * row->dst;                                      \
                    const char *from = src + (ptrdiff_t)i * row->src;                              \
                    for (size_t k = c; k < column_end; k++)                                        \
                        *(TYPE *)(void *)(to + (ptrdiff_t)k * column->dst) =                       \
                            *(const TYPE *)(const void *)(from + (ptrdiff_t)k * column->src);      \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
EACH_ITEM_TYPE(DEFINE_GRID)

/* Copies two dimensions: row by row by memcpy() or fill_row() if possible, otherwise in tiles. */
static void copy_inner(char *dst, const char *src, size_t item, const struct copy_dim *row,
                       const struct copy_dim *column)
{
    bool packed = column->dst == (ptrdiff_t)item;
    if (!packed || (column->src != 0 && column->src != (ptrdiff_t)item)) {
        BY_ITEM_SIZE(item, grid, dst, src, row, column);
        return;
    }
    for (size_t r = 0; r < row->extent; r++) {
        if (column->src)
            memcpy(dst, src, column->extent * item);
        else
            fill_row(dst, src, item, column->extent);
        dst += row->dst;
        src += row->src;
    }
}

void copy_strided(void *dst, const void *src, size_t item, struct copy_dim *dims, int rank)
{
    for (int i = 0; i < rank; i++)
        if (dims[i].extent == 0)
            return;
    rank = merge(dims, rank);
    static const struct copy_dim one = {1, 0, 0};
    struct copy_dim column =
        rank > 0 ? dims[rank - 1] : (struct copy_dim){1, (ptrdiff_t)item, (ptrdiff_t)item};
    /* Copy a strided innermost dimension with the one in which the source is contiguous. */
    int partner = rank - 2;
    if (rank > 1 && column.src != (ptrdiff_t)item && column.src != 0)
        for (int i = 0; i < rank - 1; i++)
            if (dims[i].src == (ptrdiff_t)item)
                partner = i;
    struct copy_dim row = rank > 1 ? dims[partner] : one;
    int outer = rank > 2 ? rank - 2 : 0;
    for (int i = partner; rank > 2 && i < outer; i++)
        dims[i] = dims[i + 1];
    size_t at[COPY_MAX_RANK] = {0};
    char *to = dst;
    const char *from = src;
    for (;;) {
        copy_inner(to, from, item, &row, &column);
        int d = outer - 1;
        for (; d >= 0; d--) {
            to += dims[d].dst;
            from += dims[d].src;
            if (++at[d] < dims[d].extent)
                break;
            to -= dims[d].dst * (ptrdiff_t)at[d];
            from -= dims[d].src * (ptrdiff_t)at[d];
            at[d] = 0;
        }
        if (d < 0)
            return;
    }
}

void copy_broadcast(void *dst, const struct shape *to, const void *src, const struct shape *from,
                    size_t item)
{
    struct copy_dim dims[TENSOR_MAX_RANK];
    ptrdiff_t to_step = (ptrdiff_t)item, from_step = (ptrdiff_t)item;
    for (int i = 1; i <= to->rank; i++) {
        const int64_t extent = i <= from->rank ? from->dims[from->rank - i] : 1;
        struct copy_dim *dim = &dims[to->rank - i];
        *dim =
            (struct copy_dim){(size_t)to->dims[to->rank - i], to_step, extent == 1 ? 0 : from_step};
        to_step *= (ptrdiff_t)dim->extent;
        from_step *= (ptrdiff_t)extent;
    }
    copy_strided(dst, src, item, dims, to->rank);
}
