/* Copies rows of raw tensors into a batch, with images in the session's layout and dtype, and rows
 * of results out of a run. */
#include "models/tasks/tensor_copy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/tensor/floats.h"

/* An image [C, H*W] (`plane` = H*W) or [H*W, C] (`plane` = 0). */
struct planes {
    size_t channels, plane;
};

/* Converts `count` pixels of an image of `type`, at any alignment, from `first` on, to float32. */
#define TO_FLOATS(name, type, convert)                                                             \
    static void name(const char *src, float *dst, struct planes image, size_t first, size_t count) \
    {                                                                                              \
        const size_t channels = image.channels;                                                    \
        const size_t pixel_step = (image.plane ? 1 : channels) * sizeof(type);                     \
        const size_t channel_step = (image.plane ? image.plane : 1) * sizeof(type);                \
        for (size_t p = first; p < first + count; p++) {                                           \
            const char *at = src + p * pixel_step;                                                 \
            for (size_t c = 0; c < channels; c++, at += channel_step) {                            \
                type value;                                                                        \
                memcpy(&value, at, sizeof value);                                                  \
                *dst++ = (float)convert(value);                                                    \
            }                                                                                      \
        }                                                                                          \
    }

TO_FLOATS(floats_from_f32, float, )
TO_FLOATS(floats_from_f64, double, )
TO_FLOATS(floats_from_f16, uint16_t, half_to_float)
TO_FLOATS(floats_from_bf16, uint16_t, bfloat16_to_float)
TO_FLOATS(floats_from_u8, uint8_t, )

typedef void (*to_floats)(const char *src, float *dst, struct planes image, size_t first,
                          size_t count);

/* Returns the converter of a dtype. model_describe() accepts no other dtypes for an image. */
static to_floats converter(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F64:
        return floats_from_f64;
    case DTYPE_F16:
        return floats_from_f16;
    case DTYPE_BF16:
        return floats_from_bf16;
    case DTYPE_U8:
        return floats_from_u8;
    default:
        return floats_from_f32;
    }
}

/* Converts through floats, some pixels at a time. */
static void write_numbers(to_floats convert, const char *src, struct planes image, size_t pixels,
                          enum dtype as, char *dst)
{
    enum { PIXELS = 256, CHANNELS = 3 }; /* model_describe: an image has 1 or 3 channels */
    float floats[PIXELS * CHANNELS];
    assert(image.channels <= CHANNELS);
    const size_t pixel_bytes = image.channels * dtype_size(as);
    for (size_t first = 0; first < pixels; first += PIXELS) {
        const size_t count = pixels - first < PIXELS ? pixels - first : PIXELS;
        convert(src, floats, image, first, count);
        floats_write(as, floats, dst + first * pixel_bytes, count * image.channels);
    }
}

void tensor_copy_in(const struct served_tensor *input, enum dtype as, bool last, const void *src,
                    void *dst)
{
    if (as == DTYPE_NONE || (last && input->dtype == DTYPE_F32 && as == DTYPE_F32)) {
        memcpy(dst, src, input->bytes);
        return;
    }
    const size_t channels = (size_t)input->shape.dims[last ? 3 : 1];
    const size_t pixels = input->count / channels;
    const struct planes image = {channels, last ? 0 : pixels};
    if (as == DTYPE_F32)
        converter(input->dtype)(src, dst, image, 0, pixels);
    else
        write_numbers(converter(input->dtype), src, image, pixels, as, dst);
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
