/* How the inputs of a batch lie in one buffer: input by input, the rows of each one after another.
 *
 *     | input 0: row 0, row 1 … row R-1 | input 1: row 0 … | …      each input 64-byte aligned
 *
 * A row is what one item of a batch gives to an input: an image's pixels, or one line of a
 * raw-tensor request. It is laid out as the session wants it. Immutable once made. */
#pragma once

#include "engine/runtime/session.h"

struct batch_layout {
    size_t input_count;
    size_t rows;       /* that a buffer has room for */
    size_t *row_bytes; /* of each input; owned */
    size_t *offsets;   /* where each input's rows begin in a buffer; owned */
    size_t bytes;      /* of a buffer, a multiple of TENSOR_ALIGN, at least TENSOR_ALIGN */
};

/* The layout for `rows` rows of the session's inputs. STATUS_NO_MEMORY, STATUS_SHAPE (a size does
 * not fit). Free with batch_layout_done, which is fine on zeroes. */
enum status batch_layout_init(const struct session *session, size_t rows, struct batch_layout *ret,
                              struct error *err) MUST_USE;
void batch_layout_done(struct batch_layout *layout);

/* Row `row` of input `input`. */
static inline void *batch_layout_row(const struct batch_layout *layout, void *buffer, size_t input,
                                     size_t row)
{
    return (char *)buffer + layout->offsets[input] + row * layout->row_bytes[input];
}
