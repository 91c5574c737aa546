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

/* Packs a matrix of float32 weights from float32 or bfloat16. */
static void pack_floats(const struct packed_layout *layout, const struct strided_layout *given,
                        const void *from, float *to)
{
    const size_t columns = panel_columns(layout);
    const size_t run = layout->matrix ? layout->k : (size_t)given->dims[layout->leading + 1];
    const int64_t row_step = given->strides[layout->leading + (layout->matrix ? 0 : 1)];
    for (size_t j = 0; j < layout->n; j += columns) {
        const size_t some = layout->n - j < columns ? layout->n - j : columns;
        for (size_t p = 0; p < layout->k; p += run, to += run * columns) {
            int64_t step, at = weights_row(layout, given, p, &step);
            at += (int64_t)j * step;
            if (given->dtype != DTYPE_BF16) {
                layout->simd->gemm_pack((const float *)from + at, (size_t)row_step, (size_t)step,
                                        run, some, to);
                continue;
            }
            const uint16_t *numbers = (const uint16_t *)from + at;
            for (size_t i = 0; i < run * columns; i++) {
                const int64_t row = (int64_t)(i / columns), column = (int64_t)(i % columns);
                to[i] = i % columns < some
                            ? bfloat16_to_float(numbers[row * row_step + column * step])
                            : 0;
            }
        }
    }
}

/* Copies element `at` of the constant to `to` of the narrow weights; adds up 8-bit columns. */
static void pack_number(const struct packed_layout *layout, const struct strided_layout *given,
                        const void *from, int64_t at, void *packed, size_t to, int32_t *sum)
{
    if (layout->operands == OPERANDS_BF16) {
        ((uint16_t *)packed)[to] = given->dtype == DTYPE_BF16
                                       ? ((const uint16_t *)from)[at]
                                       : float_narrow_bfloat16(((const float *)from)[at]);
        return;
    }
    ((int8_t *)packed)[to] = ((const int8_t *)from)[at];
    *sum += ((const int8_t *)from)[at];
}

/* Packs a matrix of narrow weights. float32 is rounded to bfloat16. */
static void pack_narrow(const struct packed_layout *layout, const struct strided_layout *given,
                        const void *from, void *packed, int32_t *sums)
{
    const size_t columns = panel_columns(layout), together = neighbours(layout);
    int32_t ignored = 0;
    memset(packed, 0, part_bytes(layout));
    if (sums)
        memset(sums, 0, whole_columns(layout) * sizeof *sums);
    for (size_t j = 0; j < layout->n; j += columns) {
        const size_t some = layout->n - j < columns ? layout->n - j : columns;
        for (size_t p = 0; p < layout->k; p++) {
            int64_t step, at = weights_row(layout, given, p, &step);
            at += (int64_t)j * step;
            const size_t row = p / layout->run * layout->whole_run + p % layout->run;
            size_t to = j * whole_k(layout) + row / together * columns * together + row % together;
            for (size_t i = 0; i < some; i++, at += step, to += together)
                pack_number(layout, given, from, at, packed, to, sums ? &sums[j + i] : &ignored);
        }
    }
}

void pack_part(const struct packed_layout *layout, const struct strided_layout *given,
               const void *from, size_t part, void *packed, int32_t *sums)
{
    const int64_t at = strided_offset(given, 0, layout->leading, part);
    from = (const unsigned char *)from + at * (int64_t)dtype_size(given->dtype);
    if (are_narrow(layout))
        pack_narrow(layout, given, from, packed, sums);
    else
        pack_floats(layout, given, from, packed);
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
