/* Reads Triton's config.pbtxt: the few keys that lensd uses. Other keys are ignored. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "models/folder/model_internal.h"

static bool is_at(const struct pbtxt_value *value, enum pbtxt_kind kind, const char *path)
{
    return value->kind == kind && !strcmp(value->path, path);
}

/* Reads a decimal integer; false for others. Numbers beyond 64 bits become LLONG_MIN. */
static bool read_whole(const struct pbtxt_value *value, long long *ret)
{
    char *end;
    errno = 0;
    *ret = strtoll(value->text, &end, 10);
    *ret = errno ? LLONG_MIN : value->is_negative ? -*ret : *ret;
    return value->kind == PBTXT_NUMBER && end == value->text + value->size;
}

static enum status read_dim(struct triton_input *input, const struct pbtxt_value *value,
                            struct error *err)
{
    long long dim;
    if (!read_whole(value, &dim))
        return error_set(err, STATUS_MODEL, "dims: expected whole decimal numbers");
    if (input->rank == TENSOR_MAX_RANK)
        return error_set(err, STATUS_MODEL, "an input has more than %d dims", TENSOR_MAX_RANK);
    if (dim < DIM_UNKNOWN)
        return error_set(err, STATUS_MODEL, "dims: %lld is neither a size nor -1", dim);
    input->dims[input->rank++] = dim;
    return STATUS_OK;
}

static enum status on_config(void *context, const struct pbtxt_value *value, struct error *err)
{
    struct triton_config *config = context;
    struct triton_input *input = &config->inputs[config->input_count - (config->input_count > 0)];
    long long batch;
    if (!strcmp(value->path, "max_batch_size")) {
        if (!read_whole(value, &batch) || value->in_list || batch < 0 || batch > INT32_MAX)
            return error_set(err, STATUS_MODEL, "max_batch_size is not a number of images");
        config->max_batch = (int)batch;
    } else if (is_at(value, PBTXT_MESSAGE, "input")) {
        if (config->input_count == TRITON_INPUTS_MAX)
            return error_set(err, STATUS_MODEL, "it has more than %d inputs", TRITON_INPUTS_MAX);
        config->inputs[config->input_count++] = (struct triton_input){0};
    } else if (is_at(value, PBTXT_MESSAGE, "input.reshape")) {
        input->is_reshaped = true;
    } else if (is_at(value, PBTXT_NUMBER, "input.dims")) {
        return read_dim(input, value, err);
    } else if (is_at(value, PBTXT_TEXT, "input.name")) {
        input->name = value->text;
    } else if (is_at(value, PBTXT_TEXT, "output.label_filename") && value->size &&
               !config->label_file) { /* only the first label file counts */
        config->label_file = value->text;
        if (strchr(config->label_file, '/') || strstr(config->label_file, ".."))
            return error_set(
                err, STATUS_MODEL,
                "label_filename '%.60s' is not the name of a file in the model's folder",
                config->label_file);
    }
    return STATUS_OK;
}

static enum status on_policy(void *context, const struct pbtxt_value *value, struct error *err)
{
    struct version_policy *policy = context;
    long long number;
    if (is_at(value, PBTXT_MESSAGE, "version_policy.all"))
        policy->kind = VERSIONS_ALL;
    if (is_at(value, PBTXT_MESSAGE, "version_policy.specific"))
        policy->kind = VERSIONS_SPECIFIC;
    if (!read_whole(value, &number) || number < 0)
        return STATUS_OK;
    if (!strcmp(value->path, "version_policy.latest.num_versions"))
        policy->latest = number > 0 ? (size_t)number : 1;
    if (strcmp(value->path, "version_policy.specific.versions") != 0)
        return STATUS_OK;
    if (policy->count == COUNT_OF(policy->versions))
        return error_set(err, STATUS_MODEL, "version_policy names more than %zu versions",
                         COUNT_OF(policy->versions));
    policy->versions[policy->count++] = (uint64_t)number;
    return STATUS_OK;
}

enum status triton_config_read(char *text, size_t size, struct triton_config *ret,
                               struct error *err)
{
    *ret = (struct triton_config){0};
    return pbtxt_read(text, size, on_config, ret, err);
}

enum status version_policy_read(const char *folder, struct version_policy *ret, struct error *err)
{
    struct model_place place = {.is_immich = false};
    struct side_file file;
    model_path(place.folders[0], "%s", folder);
    *ret = (struct version_policy){.kind = VERSIONS_LATEST, .latest = 1};
    const enum status status = side_file_open(&place, "config.pbtxt", &file, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    TRY(status);
    return side_file_close(&file, pbtxt_read(file.text, file.size, on_policy, ret, err), err);
}
