/* Reads the headers of Frigate's ZeroMQ detector. */
#include "proto/frigate.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "proto/json.h"

static enum dtype dtype_named(const char *word)
{
#define FRIGATE_DTYPE(name, number, bytes, numpy, oip)                                             \
    if (DTYPE_##name != DTYPE_BF16 && !strcmp(word, numpy))                                        \
        return DTYPE_##name;
    DTYPE_LIST(FRIGATE_DTYPE)
#undef FRIGATE_DTYPE
    return DTYPE_NONE;
}

static enum status read_tensor(const cJSON *root, struct frigate_header *ret, struct error *err)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(root, "shape"), *item;
    const char *word = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "dtype"));
    ret->dtype = word ? dtype_named(word) : DTYPE_NONE;
    if (ret->dtype == DTYPE_NONE)
        return error_set(err, STATUS_INVALID,
                         "\"dtype\" is '%.20s'; it must be numpy's name of a type, such as uint8 "
                         "or float32",
                         word ? word : "");
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != 4)
        return error_set(err, STATUS_INVALID, "\"shape\" must be a list of four sizes");
    cJSON_ArrayForEach(item, shape)
    {
        const double size = cJSON_IsNumber(item) ? item->valuedouble : 0;
        if (!(size >= 1 && size <= INT32_MAX) || (double)(int64_t)size != size)
            return error_set(err, STATUS_INVALID, "a size in \"shape\" is not a positive integer");
        ret->shape.dims[ret->shape.rank++] = (int64_t)size;
    }
    const enum status status = shape_check(&ret->shape, ret->dtype, NULL, &ret->bytes, err);
    return status == STATUS_SHAPE ? err->status = STATUS_INVALID : status;
}

static enum status read_name(const cJSON *root, struct frigate_header *ret, struct error *err)
{
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "model_name"));
    size_t size = name ? strlen(name) : 0;
    if (size > 5 && !strcmp(name + size - 5, ".onnx"))
        size -= 5;
    if (size == 0 || size >= sizeof ret->model)
        return error_set(err, STATUS_INVALID,
                         "\"model_name\" must be a file's name of 1 to %zu bytes",
                         sizeof ret->model - 1);
    memcpy(ret->model, name, size);
    return STATUS_OK;
}

enum status frigate_header_parse(const char *text, size_t size, struct frigate_header *ret,
                                 struct error *err)
{
    const struct json_limits limits = {4, 32};
    *ret = (struct frigate_header){.kind = FRIGATE_TENSOR};
    if (size > FRIGATE_HEADER_MAX)
        return error_set(err, STATUS_INVALID, "the header has %zu bytes; the limit is %d", size,
                         FRIGATE_HEADER_MAX);
    TRY(json_check(text, size, &limits, err));
    cJSON *root = cJSON_ParseWithLength(text, size);
    TRY(check_memory(root, "for a request", err));
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "model_request")))
        ret->kind = FRIGATE_ASKS_MODEL;
    else if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "model_data")))
        ret->kind = FRIGATE_SENDS_MODEL;
    const enum status status =
        ret->kind == FRIGATE_TENSOR ? read_tensor(root, ret, err) : read_name(root, ret, err);
    cJSON_Delete(root);
    return status;
}
