/* Packs the weights of products. */
#include "engine/cpu/program/packed_layout.h"

#include <string.h>

#include "engine/base/float_bits.h"

size_t packed_layout_bytes(const struct packed_layout *layout)
{
    const size_t sums = are_8bit(layout) ? whole_columns(layout) * sizeof(int32_t) : 0;
    return layout->parts * (part_bytes(layout) + sums);
}

bool packed_layouts_equal(const struct packed_layout *a, const struct packed_layout *b)
{
    return a->simd == b->simd && a->operands == b->operands && a->parts == b->parts &&
           a->k == b->k && a->n == b->n && a->run == b->run && a->whole_run == b->whole_run &&
           a->leading == b->leading && a->matrix == b->matrix;
}

/* Offset of element `index` (row-major) of the dims first … last - 1 of a layout. */
static int64_t strided_offset(const struct strided_layout *layout, int first, int last,
                              size_t index)
{
    int64_t offset = 0;
    for (int a = last - 1; a >= first; a--) {
        offset += (int64_t)(index % (size_t)layout->dims[a]) * layout->strides[a];
        index /= (size_t)layout->dims[a];
    }
    return offset;
}

/* Returns the offset in elements of row p of the matrix. *ret_step is the distance of columns. */
static int64_t weights_row(const struct packed_layout *layout, const struct strided_layout *given,
                           size_t p, int64_t *ret_step)
{
    const int at = layout->leading;
    *ret_step = given->strides[layout->matrix ? at + 1 : at];
    if (layout->matrix)
        return (int64_t)p * given->strides[at];
    const size_t channels = (size_t)given->dims[at + 1];
    return (int64_t)(p % channels) * given->strides[at + 1] +
           strided_offset(given, at + 2, given->rank, p / channels);
}

#define COPY_ROW(to_type, from_type, convert)                                                      \
    for (size_t i = 0; i < count; i++)                                                             \
    ((to_type *)packed)[to + i * apart] = convert(((const from_type *)from)[at + (int64_t)i * step])

/* Copies `count` numbers of a row, `step` elements apart, to places of `packed` that are `apart`
 * elements apart. Adds 8-bit numbers to the sums of their columns, unless `sums` is NULL. */
static void pack_row(const struct packed_layout *layout, enum dtype dtype, const void *from,
                     int64_t at, int64_t step, size_t count, void *packed, size_t to, size_t apart,
                     int32_t *sums)
{
    if (layout->operands == OPERANDS_F32 && dtype == DTYPE_F32)
        COPY_ROW(float, float, );
    else if (layout->operands == OPERANDS_F32)
        COPY_ROW(float, uint16_t, bfloat16_to_float);
    else if (layout->operands == OPERANDS_BF16 && dtype == DTYPE_F32)
        COPY_ROW(uint16_t, float, float_to_bfloat16);
    else if (layout->operands == OPERANDS_BF16)
        COPY_ROW(uint16_t, uint16_t, );
    else
        COPY_ROW(int8_t, int8_t, );
    for (size_t i = 0; sums && i < count; i++)
        sums[i] += ((const int8_t *)from)[at + (int64_t)i * step];
}

void pack_part(const struct packed_layout *layout, const struct strided_layout *given,
               const void *from, size_t part, void *packed, int32_t *sums)
{
    const size_t columns = panel_columns(layout), together = neighbours(layout);
    const int64_t begin = strided_offset(given, 0, layout->leading, part);
    memset(packed, 0, part_bytes(layout));
    if (sums)
        memset(sums, 0, whole_columns(layout) * sizeof *sums);
    for (size_t j = 0; j < layout->n; j += columns) {
        const size_t some = layout->n - j < columns ? layout->n - j : columns;
        for (size_t p = 0; p < layout->k; p++) {
            int64_t step, at = begin + weights_row(layout, given, p, &step);
            const size_t row = p / layout->run * layout->whole_run + p % layout->run;
            const size_t to =
                j * whole_k(layout) + row / together * columns * together + row % together;
            pack_row(layout, given->dtype, from, at + (int64_t)j * step, step, some, packed, to,
                     together, sums ? sums + j : NULL);
        }
    }
}

void pack_weights(const struct strided_layout *given, const void *from,
                  const struct packed_layout *wanted, void *to)
{
    const size_t bytes = part_bytes(wanted);
    unsigned char *matrix = to;
    int32_t *sums = (int32_t *)(void *)(matrix + wanted->parts * bytes);
    for (size_t i = 0; i < wanted->parts; i++)
        pack_part(wanted, given, from, i, matrix + i * bytes,
                  are_8bit(wanted) ? sums + i * whole_columns(wanted) : NULL);
}
