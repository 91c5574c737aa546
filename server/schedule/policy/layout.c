/* Computes the positions of each input's rows in a batch buffer. */
#include "server/schedule/policy/layout.h"

#include "engine/base/size.h"

void batch_layout_done(struct batch_layout *layout)
{
    FREE_ALL(layout->row_bytes, layout->offsets);
    *layout = (struct batch_layout){0};
}

static enum status layout_place(const struct session_tensor *input, size_t i,
                                struct batch_layout *layout, struct error *err)
{
    size_t all;
    TRY(shape_check(&input->shape, input->dtype, NULL, &layout->row_bytes[i], err));
    layout->offsets[i] = layout->bytes;
    if (!size_mul(layout->row_bytes[i], layout->rows, &all) ||
        !size_add(layout->bytes, all, &all) || all > SIZE_MAX - TENSOR_ALIGN)
        return error_set(err, STATUS_SHAPE, "%zu rows of input '%s' are too large for a batch",
                         layout->rows, input->name);
    layout->bytes = size_align(all, TENSOR_ALIGN);
    return STATUS_OK;
}

enum status batch_layout_init(const struct session *session, size_t rows, struct batch_layout *ret,
                              struct error *err)
{
    const size_t count = session_info(session)->input_count;
    *ret = (struct batch_layout){.rows = rows,
                                 .row_bytes = alloc_array(count, sizeof *ret->row_bytes),
                                 .offsets = alloc_array(count, sizeof *ret->offsets)};
    TRY(check_memory(ret->row_bytes && ret->offsets, "for the layout of a batch", err));
    for (size_t i = 0; i < count; i++)
        TRY(layout_place(&session_info(session)->inputs[i], i, ret, err));
    if (ret->bytes == 0)
        ret->bytes = TENSOR_ALIGN;
    return STATUS_OK;
}
