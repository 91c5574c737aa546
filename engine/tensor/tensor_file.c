/* Makes tensors whose bytes lie in a mapped file. */
#include "engine/tensor/tensor_file.h"

static void release(void *context, void *data)
{
    (void)data;
    mapping_free(context);
}

enum status tensor_from_file(int fd, uint64_t offset, enum dtype dtype, const struct shape *shape,
                             struct tensor **ret, struct error *err)
{
    size_t bytes;
    struct mapping *mapping;
    TRY(shape_check(shape, dtype, NULL, &bytes, err));
    TRY(mapping_create(fd, offset, bytes, &mapping, err));
    enum status status =
        tensor_wrap(dtype, shape, mapping_data(mapping), release, mapping, ret, err);
    if (status != STATUS_OK)
        mapping_free(mapping);
    return status;
}

struct mapping *tensor_mapping(const struct tensor *tensor)
{
    if (tensor->memory == TENSOR_VIEW)
        tensor = tensor->base;
    return tensor->memory == TENSOR_WRAPPED && tensor->release == release ? tensor->release_context
                                                                          : NULL;
}
