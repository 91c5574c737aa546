/* Answers of the Open Inference Protocol. The answer of an inference is written straight into one
 * buffer, JSON first and binary tensors behind it; documents go through cJSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/text.h"
#include "proto/v2.h"
#include "proto/v2_binary.h"
#include "proto/writer.h"

/* ---- inference ---- */

static void put_integers(struct text *text, const struct tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case DTYPE_BOOL:
        text_put(text, ((const uint8_t *)tensor->data)[i] ? "true" : "false");
        break;
    case DTYPE_U64:
        text_unsigned(text, ((const uint64_t *)tensor->data)[i]);
        break;
    default:
        text_number(text, tensor_int(tensor, i));
    }
}

static void put_numbers(struct text *text, const struct tensor *tensor, bool *is_first)
{
    size_t count = shape_count(&tensor->shape);
    for (size_t i = 0; i < count; i++) {
        if (!*is_first)
            text_put(text, ",");
        *is_first = false;
        switch (tensor->dtype) {
        case DTYPE_F32:
            text_float(text, ((const float *)tensor->data)[i]);
            break;
        case DTYPE_F64:
            text_double(text, ((const double *)tensor->data)[i]);
            break;
        case DTYPE_F16:
        case DTYPE_BF16:
            text_float(text, (float)tensor_number(tensor, i));
            break;
        default:
            put_integers(text, tensor, i);
        }
    }
}

size_t v2_binary_size(const struct v2_answer_output *output)
{
    size_t bytes = 0;
    if (!output->texts)
        for (size_t r = 0; r < output->row_count; r++)
            bytes += output->rows[r]->bytes;
    else
        for (size_t i = 0; i < shape_count(&output->shape); i++)
            bytes += 4 + strlen(output->texts[i]);
    return bytes;
}

static void put_data(struct text *text, const struct v2_answer_output *output)
{
    bool is_first = true;
    text_put(text, ",\"data\":[");
    for (size_t r = 0; !output->texts && r < output->row_count; r++)
        put_numbers(text, output->rows[r], &is_first);
    for (size_t i = 0; output->texts && i < shape_count(&output->shape); i++) {
        if (i)
            text_put(text, ",");
        text_string(text, output->texts[i]);
    }
    text_put(text, "]");
}

static void put_output(struct text *text, const struct v2_answer_output *output)
{
    const char *datatype = "BYTES";
    if (!output->texts && output->row_count > 0)
        datatype = dtype_oip_name(output->rows[0]->dtype);
    text_put(text, "{\"name\":");
    text_string(text, output->name);
    text_put(text, ",\"datatype\":\"");
    text_put(text, datatype);
    text_put(text, "\",\"shape\":[");
    for (int d = 0; d < output->shape.rank; d++) {
        if (d)
            text_put(text, ",");
        text_number(text, output->shape.dims[d]);
    }
    text_put(text, "]");
    if (output->binary) {
        text_put(text, ",\"parameters\":{\"binary_data_size\":");
        text_unsigned(text, v2_binary_size(output));
        text_put(text, "}");
    } else {
        put_data(text, output);
    }
    text_put(text, "}");
}

void v2_put_binary(struct text *text, const struct v2_answer_output *output)
{
    for (size_t r = 0; !output->texts && r < output->row_count; r++)
        text_add(text, output->rows[r]->data, output->rows[r]->bytes);
    for (size_t i = 0; output->texts && i < shape_count(&output->shape); i++) {
        size_t length = strlen(output->texts[i]);
        const char prefix[4] = {(char)(length & 0xFF), (char)(length >> 8 & 0xFF),
                                (char)(length >> 16 & 0xFF), (char)(length >> 24 & 0xFF)};
        text_add(text, prefix, sizeof prefix);
        text_add(text, output->texts[i], length);
    }
}

char *v2_answer_body(const struct v2_answer *answer, size_t *ret_size, size_t *ret_json_size,
                     bool *ret_binary)
{
    struct text text = {0};
    *ret_binary = false;
    text_put(&text, "{\"model_name\":");
    text_string(&text, answer->model);
    text_put(&text, ",\"model_version\":");
    text_string(&text, answer->version);
    if (answer->id) {
        text_put(&text, ",\"id\":");
        text_string(&text, answer->id);
    }
    text_put(&text, ",\"outputs\":[");
    for (size_t i = 0; i < answer->output_count; i++) {
        if (i)
            text_put(&text, ",");
        put_output(&text, &answer->outputs[i]);
    }
    text_put(&text, "]}");
    *ret_json_size = text.size;
    size_t binary = 0;
    for (size_t i = 0; i < answer->output_count; i++)
        binary += answer->outputs[i].binary ? v2_binary_size(&answer->outputs[i]) : 0;
    (void)text_room(&text, binary); /* at once: growing copies what is there */
    for (size_t i = 0; i < answer->output_count; i++) {
        if (!answer->outputs[i].binary)
            continue;
        *ret_binary = true;
        v2_put_binary(&text, &answer->outputs[i]);
    }
    return text_finish(&text, ret_size);
}

size_t v2_number_most(enum dtype dtype)
{
    if (dtype == DTYPE_F64)
        return sizeof "-2.2250738585072014e-308";
    if (dtype_is_float(dtype))
        return FLOAT_MOST + 1;
    return dtype_size(dtype) == 8 ? sizeof "-9223372036854775808" : sizeof "-2147483648";
}

char *v2_classification(double value, size_t index, const char *label)
{
    char *text;
    int n = asprintf(&text, "%f:%zu%s%s", value, index, label ? ":" : "", label ? label : "");
    return n < 0 ? NULL : text;
}

/* ---- documents ---- */

const char *const v2_extensions[V2_EXTENSION_COUNT] = {"classification",      "model_repository",
                                                       "model_configuration", "schedule_policy",
                                                       "binary_tensor_data",  "statistics"};

static char *server_text(const char *name, const char *version, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "name", name);
    write_text(&w, root, "version", version);
    cJSON *list = write_array(&w, root, "extensions");
    for (size_t i = 0; i < V2_EXTENSION_COUNT; i++)
        write_text(&w, list, NULL, v2_extensions[i]);
    return write_finish(&w, root, ret_size);
}

static void write_integer(struct writer *w, cJSON *list, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    cJSON *item = cJSON_CreateRaw(text);
    bool added = item && list &&
                 (key ? cJSON_AddItemToObject(list, key, item) : cJSON_AddItemToArray(list, item));
    if (!added) {
        cJSON_Delete(item);
        w->failed = true;
    }
}

static void write_dims(struct writer *w, cJSON *object, const char *key, const struct shape *shape,
                       int from)
{
    cJSON *list = write_array(w, object, key);
    if (shape->rank == SHAPE_UNKNOWN)
        write_integer(w, list, NULL, -1);
    for (int d = from; d < shape->rank; d++)
        write_integer(w, list, NULL, shape->dims[d]);
}

static void write_tensors(struct writer *w, cJSON *root, const char *key,
                          const struct v2_tensor *tensors, size_t count)
{
    cJSON *list = write_array(w, root, key);
    for (size_t i = 0; i < count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", tensors[i].name);
        write_text(w, entry, "datatype", dtype_oip_name(tensors[i].dtype));
        write_dims(w, entry, "shape", &tensors[i].shape, 0);
    }
}

static char *metadata_text(const struct v2_model *model, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "name", model->name);
    cJSON *versions = write_array(&w, root, "versions");
    for (size_t i = 0; i < model->version_count; i++)
        write_text(&w, versions, NULL, model->versions[i]);
    write_text(&w, root, "platform", "onnxruntime_onnx");
    write_tensors(&w, root, "inputs", model->inputs, model->input_count);
    write_tensors(&w, root, "outputs", model->outputs, model->output_count);
    return write_finish(&w, root, ret_size);
}

/* model_config.proto's words. */
static void write_config_type(struct writer *w, cJSON *entry, enum dtype dtype)
{
    char type[32];
    snprintf(type, sizeof type, "TYPE_%s", dtype_oip_name(dtype));
    write_text(w, entry, "data_type", type);
}

static void write_config_tensors(struct writer *w, cJSON *root, const struct v2_model *model)
{
    int from = model->max_batch_size > 0 ? 1 : 0;
    cJSON *list = write_array(w, root, "input");
    for (size_t i = 0; i < model->input_count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", model->inputs[i].name);
        write_config_type(w, entry, model->inputs[i].dtype);
        write_text(w, entry, "format",
                   i != model->image_input ? "FORMAT_NONE"
                   : model->channels_last  ? "FORMAT_NHWC"
                                           : "FORMAT_NCHW");
        write_dims(w, entry, "dims", &model->inputs[i].shape, from);
    }
    list = write_array(w, root, "output");
    for (size_t i = 0; i < model->output_count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_text(w, entry, "name", model->outputs[i].name);
        write_config_type(w, entry, model->outputs[i].dtype);
        write_dims(w, entry, "dims", &model->outputs[i].shape,
                   model->outputs[i].shape.rank > 0 ? from : 0);
        bool labels = model->has_labels && i == model->label_output;
        write_text(w, entry, "label_filename", labels ? "labels.txt" : "");
    }
}

static char *config_text(const struct v2_model *model, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    write_text(&w, root, "name", model->name);
    write_text(&w, root, "platform", "onnxruntime_onnx");
    write_text(&w, root, "backend", "onnxruntime");
    write_text(&w, root, "default_model_filename", "model.onnx");
    cJSON *policy = write_object(&w, root, "version_policy");
    cJSON *latest = write_object(&w, policy, "latest");
    write_count(&w, latest, "num_versions", model->version_count ? model->version_count : 1);
    write_integer(&w, root, "max_batch_size", model->max_batch_size);
    write_config_tensors(&w, root, model);
    cJSON *group = write_object(&w, write_array(&w, root, "instance_group"), NULL);
    write_text(&w, group, "name", model->name);
    write_text(&w, group, "kind", model->instance_kind);
    write_count(&w, group, "count", model->instance_count);
    if (model->max_batch_size > 1) {
        cJSON *batching = write_object(&w, root, "dynamic_batching");
        cJSON *sizes = write_array(&w, batching, "preferred_batch_size");
        write_integer(&w, sizes, NULL, model->max_batch_size);
        write_integer(&w, batching, "max_queue_delay_microseconds", 0);
    }
    return write_finish(&w, root, ret_size);
}

static void write_v2_count(struct writer *w, cJSON *object, const char *key, struct v2_count count)
{
    cJSON *entry = write_object(w, object, key);
    write_count(w, entry, "count", count.count);
    write_count(w, entry, "ns", count.ns);
}

static void write_batches(struct writer *w, cJSON *entry, const struct v2_stats *stats)
{
    cJSON *list = write_array(w, entry, "batch_stats");
    for (size_t i = 0; i < stats->batch_count; i++) {
        const struct v2_batch_stats *batch = &stats->batches[i];
        cJSON *row = write_object(w, list, NULL);
        write_integer(w, row, "batch_size", batch->batch_size);
        write_v2_count(w, row, "compute_input", batch->input);
        write_v2_count(w, row, "compute_infer", batch->infer);
        write_v2_count(w, row, "compute_output", batch->output);
    }
}

static void write_stats(struct writer *w, cJSON *list, const struct v2_stats *stats)
{
    cJSON *entry = write_object(w, list, NULL);
    write_text(w, entry, "name", stats->name);
    write_text(w, entry, "version", stats->version);
    write_count(w, entry, "last_inference", stats->last_inference_ms);
    write_count(w, entry, "inference_count", stats->inference_count);
    write_count(w, entry, "execution_count", stats->execution_count);
    cJSON *inference = write_object(w, entry, "inference_stats");
    write_v2_count(w, inference, "success", stats->success);
    write_v2_count(w, inference, "fail", stats->fail);
    write_v2_count(w, inference, "queue", stats->queue);
    write_v2_count(w, inference, "compute_input", stats->input);
    write_v2_count(w, inference, "compute_infer", stats->infer);
    write_v2_count(w, inference, "compute_output", stats->output);
    write_v2_count(w, inference, "cache_hit", stats->cache_hit);
    write_v2_count(w, inference, "cache_miss", stats->cache_miss);
    write_object(w, entry, "response_stats");
    write_batches(w, entry, stats);
    cJSON *memory = write_object(w, write_array(w, entry, "memory_usage"), NULL);
    write_text(w, memory, "type", stats->memory_type);
    write_count(w, memory, "id", 0);
    write_count(w, memory, "byte_size", stats->memory_bytes);
}

static char *stats_text(const struct v2_stats *stats, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    cJSON *list = write_array(&w, root, "model_stats");
    for (size_t i = 0; i < count; i++)
        write_stats(&w, list, &stats[i]);
    return write_finish(&w, root, ret_size);
}

static char *index_text(const struct v2_index_entry *entries, size_t count, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < count; i++) {
        cJSON *entry = write_object(&w, list, NULL);
        write_text(&w, entry, "name", entries[i].name);
        write_text(&w, entry, "version", entries[i].version);
        write_text(&w, entry, "state", entries[i].state);
        write_text(&w, entry, "reason", entries[i].reason);
    }
    return write_finish(&w, list, ret_size);
}

static char *flag_text(const char *name, const char *flag, bool value, size_t *ret_size)
{
    struct writer w = {false};
    cJSON *root = cJSON_CreateObject();
    if (name)
        write_text(&w, root, "name", name);
    write_bool(&w, root, flag, value);
    return write_finish(&w, root, ret_size);
}

const struct v2_form v2_json = {.server = server_text,
                                .metadata = metadata_text,
                                .config = config_text,
                                .stats = stats_text,
                                .index = index_text,
                                .flag = flag_text,
                                .index_parse = v2_index_parse};
