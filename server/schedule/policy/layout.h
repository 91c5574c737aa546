/* The layout of a batch's inputs in one buffer: all rows of input 0, then those of input 1, …
 *
 *     | input 0: row 0, row 1 … row R-1 | input 1: row 0 … | …      each input 64-byte aligned
 *
 * A row is one image's share of an input: its pixels, or one row of a raw-tensor request, in the
 * session's layout. Immutable after creation. */
#pragma once

#include "engine/runtime/session.h"

struct batch_layout {
    size_t rows;       /* rows per buffer */
    size_t *row_bytes; /* bytes of a row of each input; owned */
    size_t *offsets;   /* where the rows of each input begin in a buffer; owned */
    size_t bytes;      /* size of a buffer, a multiple of TENSOR_ALIGN, at least TENSOR_ALIGN */
};

/* Creates the layout for `rows` rows of the session's inputs. STATUS_NO_MEMORY; STATUS_SHAPE if a
 * size exceeds size_t. Always free *ret with batch_layout_done(), which accepts a zeroed struct. */
enum status batch_layout_init(const struct session *session, size_t rows, struct batch_layout *ret,
                              struct error *err) MUST_USE;
void batch_layout_done(struct batch_layout *layout);

/* Address of row `row` of input `input`. */
static inline void *batch_layout_row(const struct batch_layout *layout, void *buffer, size_t input,
                                     size_t row)
{
    return (char *)buffer + layout->offsets[input] + row * layout->row_bytes[input];
}
