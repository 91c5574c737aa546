/* Packs the weights of products. */
#include "engine/cpu/program/packed_layout.h"

#include <stdlib.h>
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

int64_t strided_offset(const struct strided_layout *layout, int first, int last, size_t index)
{
    int64_t offset = 0;
    for (int a = last - 1; a >= first; a--) {
        offset += (int64_t)(index % (size_t)layout->dims[a]) * layout->strides[a];
        index /= (size_t)layout->dims[a];
    }
    return offset;
}

/* Returns the element at which row p of the matrix starts. *ret_step is the distance of columns. */
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

/* plain: room for k x n numbers, or NULL for a matrix. */
static void pack_floats(const struct packed_layout *layout, const struct strided_layout *given,
                        const float *from, float *plain, float *to)
{
    if (layout->matrix) {
        const int at = layout->leading;
        layout->simd->gemm_pack(from, (size_t)given->strides[at], (size_t)given->strides[at + 1],
                                layout->k, layout->n, to);
        return;
    }
    for (size_t p = 0; p < layout->k; p++) {
        int64_t step;
        const float *row = from + weights_row(layout, given, p, &step);
        for (size_t j = 0; j < layout->n; j++)
            plain[p * layout->n + j] = row[(int64_t)j * step];
    }
    layout->simd->gemm_pack(plain, layout->n, 1, layout->k, layout->n, to);
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

void pack_narrow(const struct packed_layout *layout, const struct strided_layout *given,
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

enum status pack_weights(const struct strided_layout *given, const void *from,
                         const struct packed_layout *wanted, void *to, struct error *err)
{
    const size_t bytes = part_bytes(wanted);
    unsigned char *matrix = to;
    int32_t *sums = (int32_t *)(void *)(matrix + wanted->parts * bytes);
    float *plain = NULL;
    if (!are_narrow(wanted) && !wanted->matrix) {
        plain = alloc_array(wanted->k * wanted->n, sizeof *plain);
        TRY(check_memory(plain, "while packing weights", err));
    }
    for (size_t i = 0; i < wanted->parts; i++, matrix += bytes) {
        const unsigned char *part = from;
        part += (size_t)strided_offset(given, 0, wanted->leading, i) * dtype_size(given->dtype);
        if (are_narrow(wanted))
            pack_narrow(wanted, given, part, matrix,
                        are_8bit(wanted) ? sums + i * whole_columns(wanted) : NULL);
        else
            pack_floats(wanted, given, (const float *)(const void *)part, plain,
                        (float *)(void *)matrix);
    }
    free(plain);
    return STATUS_OK;
}
