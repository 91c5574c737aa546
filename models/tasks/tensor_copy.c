/* Copies rows of raw tensors into a batch, with images in the session's layout, and rows of results
 * out of a run. */
#include "models/tasks/tensor_copy.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/convert.h"

void tensor_copy_in(const struct served_tensor *input, bool is_image, bool last, const void *src,
                    void *dst)
{
    enum { PIXELS = 256 };
    float numbers[PIXELS], *to = dst;
    uint64_t raw[PIXELS]; /* aligned, as `src` need not be */
    if (!is_image || (last && input->dtype == DTYPE_F32)) {
        memcpy(dst, src, input->bytes);
        return;
    }
    /* With channels last the numbers keep their order, as if there were one channel. */
    const size_t channels = last ? 1 : (size_t)input->shape.dims[1];
    const size_t pixels = input->count / channels, size = dtype_size(input->dtype);
    for (size_t first = 0; first < pixels; first += PIXELS) {
        const size_t count = pixels - first < PIXELS ? pixels - first : PIXELS;
        for (size_t c = 0; c < channels; c++) {
            memcpy(raw, (const char *)src + (c * pixels + first) * size, count * size);
            load_floats(raw, input->dtype, numbers, count);
            for (size_t p = 0; p < count; p++)
                to[(first + p) * channels + c] = numbers[p];
        }
    }
}

void tensor_copies_free(struct tensor **rows, size_t count)
{
    for (size_t i = 0; rows && i < count; i++)
        tensor_unref(rows[i]);
    free(rows);
}

static enum status take_row(const struct tensor *output, int batch, int row,
                            struct memory_budget *whole, struct tensor **ret, struct error *err)
{
    struct shape shape = output->shape;
    if (batch > 1 && (shape.rank < 1 || shape.dims[0] != batch))
        return error_set(err, STATUS_SHAPE,
                         "the model's output has the shape %s for a batch of %d; its first "
                         "dimension is not the batch",
                         SHAPE_STRING(&shape), batch);
    struct tensor *made = (struct tensor *)(uintptr_t)output;
    if (tensor_keep(made, whole))
        return tensor_part(made, row, batch, ret, err);
    size_t bytes = output->bytes / (size_t)batch;
    if (batch > 1)
        shape.dims[0] = 1;
    TRY(tensor_create(NULL, output->dtype, &shape, ret, err));
    if (bytes > 0)
        memcpy((*ret)->data, (const char *)output->data + (size_t)row * bytes, bytes);
    return STATUS_OK;
}

enum status tensor_copy_out(const struct tensor *const *outputs, size_t output_count,
                            const bool *wanted, int batch, int row, struct memory_budget *whole,
                            struct tensor ***ret, struct error *err)
{
    struct tensor **rows = alloc_array(output_count, sizeof *rows);
    TRY(check_memory(rows, "for the outputs of a request", err));
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < output_count; i++)
        if (!wanted || wanted[i])
            status = take_row(outputs[i], batch, row, whole, &rows[i], err);
    if (status != STATUS_OK) {
        tensor_copies_free(rows, output_count);
        return status;
    }
    *ret = rows;
    return STATUS_OK;
}
