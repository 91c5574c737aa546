/* Copies the vector of an image, and scales it to length 1 if requested. */
#include "models/tasks/embed.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/size.h"

void embedding_done(struct embedding *embedding)
{
    free(embedding->values);
    *embedding = (struct embedding){NULL, 0};
}

/* Length of the vector in the row; 0 if the row is neither a vector nor a list of tokens. */
static size_t vector_size(const struct task_rows *row)
{
    int wide = 0;
    for (int i = 0; i < row->shape.rank; i++)
        wide += row->shape.dims[i] != 1;
    if (wide <= 1)
        return row->count;
    return row->shape.rank == 2 && row->count ? (size_t)row->shape.dims[1] : 0;
}

enum status embed_decode(const struct task_rows *row, const struct task_options *options,
                         struct embedding *ret, struct error *err)
{
    const size_t whole = vector_size(row);
    const size_t count = options->dimensions ? (size_t)options->dimensions : whole;
    double sum = 0;
    if (count > whole && whole)
        return error_set(err, STATUS_INVALID,
                         "dimensions is %zu, but the model's vectors have %zu numbers", count,
                         whole);
    if (whole == 0)
        return error_set(err, STATUS_INVALID,
                         "an output has the shape %s for an image, which is neither a vector nor a "
                         "list of tokens",
                         SHAPE_STRING(&row->shape));
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(row->data[i]))
            return error_set(err, STATUS_NUMERIC,
                             "number %zu of the model's vector is not finite for this image", i);
        sum += (double)row->data[i] * (double)row->data[i];
    }
    const bool is_scaled = options->normalize > 0 || options->dimensions;
    if (is_scaled && sum <= 0)
        return error_set(err, STATUS_NUMERIC,
                         "the model's vector is all zeros for this image: it has no direction");
    float *values = alloc_array(count, sizeof *values);
    if (!values)
        return error_set(err, STATUS_NO_MEMORY, "no memory for a vector of %zu numbers", count);
    const double scale = is_scaled ? 1 / sqrt(sum) : 1;
    for (size_t i = 0; i < count; i++)
        values[i] = (float)((double)row->data[i] * scale);
    *ret = (struct embedding){values, count};
    return STATUS_OK;
}
