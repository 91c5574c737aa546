/* Takes an image's row from an output, and converts it to float32 if it has another dtype. */
#include "models/tasks/rows.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/array.h"
#include "engine/op/convert.h"

void task_buffer_done(struct task_buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct task_buffer){NULL, 0};
}

enum status task_rows_of(const struct tensor *output, bool has_rows, int batch, int row,
                         struct task_buffer *buffer, struct task_rows *ret, struct error *err)
{
    assert(row >= 0 && row < batch);
    struct shape shape = output->shape;
    const size_t count = shape_count(&shape) / (size_t)batch;
    if ((!has_rows && batch > 1) || (has_rows && (shape.rank < 1 || shape.dims[0] != batch)))
        return error_set(err, STATUS_INVALID,
                         "the model's output has the shape %s for %d image%s; its first dimension "
                         "is not the number of images",
                         SHAPE_STRING(&shape), batch, batch > 1 ? "s" : "");
    if (has_rows) {
        shape.rank--;
        memmove(shape.dims, shape.dims + 1, (size_t)shape.rank * sizeof *shape.dims);
    }
    const size_t first = (size_t)row * count;
    *ret = (struct task_rows){NULL, shape, count};
    if (output->dtype == DTYPE_F32) {
        ret->data = count ? (const float *)output->data + first : NULL;
        return STATUS_OK;
    }
    TRY(check_memory(array_reserve(&buffer->data, &buffer->capacity, count, sizeof *buffer->data),
                     "for the numbers of an output", err));
    const char *data = (const char *)output->data + first * dtype_size(output->dtype);
    if (count && !dtype_is_float(output->dtype) && output->dtype != DTYPE_BOOL &&
        output->dtype != DTYPE_I32 && output->dtype != DTYPE_I64)
        return error_set(err, STATUS_INVALID, "the model's output is %s, not floating point",
                         dtype_name(output->dtype));
    load_floats(data, output->dtype, buffer->data, count);
    ret->data = buffer->data;
    return STATUS_OK;
}

enum status task_rows_wrong(const struct task_rows *output, const char *expected, struct error *err)
{
    return error_set(err, STATUS_INVALID,
                     "an output has the shape %s for an image, where the model's task expects %s; "
                     "correct \"task\" and \"layout\" in the model's lensd.json",
                     SHAPE_STRING(&output->shape), expected);
}
