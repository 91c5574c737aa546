/* Documents of the Open Inference Protocol: cJSON trees, printed as JSON or packed as messages of
 * grpc_service.proto. Both use the same field names. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/size.h"
#include "proto/grpc_service.pb-c.h"
#include "proto/v2.h"
#include "proto/v2_fields.h"
#include "proto/writer.h"

static void pack_object(struct strbuf *to, const ProtobufCMessageDescriptor *type,
                        const cJSON *object);

/* Converts a number, a boolean or the name of an enumerator to the integer of a field. */
static uint64_t integer_of(const ProtobufCFieldDescriptor *field, const cJSON *item)
{
    const char *text = item->valuestring; /* set for strings, and for numbers that are raw JSON */
    if (field->type == PROTOBUF_C_TYPE_ENUM) {
        const ProtobufCEnumValue *value =
            protobuf_c_enum_descriptor_get_value_by_name(field->descriptor, text);
        return value ? (uint64_t)value->value : 0;
    }
    if (field->type == PROTOBUF_C_TYPE_BOOL)
        return cJSON_IsTrue(item);
    return text[0] == '-' ? (uint64_t)strtoll(text, NULL, 10) : strtoull(text, NULL, 10);
}

static void pack_value(struct strbuf *to, const ProtobufCFieldDescriptor *field, const cJSON *item)
{
    struct strbuf inner = {0};
    if (field->type == PROTOBUF_C_TYPE_STRING) {
        v2_add_bytes(to, field->id, item->valuestring, strlen(item->valuestring));
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        pack_object(&inner, field->descriptor, item);
        v2_add_inner(to, field->id, &inner);
    } else {
        v2_add_varint(to, field->id << 3);
        v2_add_varint(to, integer_of(field, item));
    }
}

/* Packs a list: integers in one field, other values in one field each. */
static void pack_list(struct strbuf *to, const ProtobufCFieldDescriptor *field, const cJSON *list)
{
    struct strbuf inner = {0};
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (field->type == PROTOBUF_C_TYPE_STRING || field->type == PROTOBUF_C_TYPE_MESSAGE)
            pack_value(to, field, item);
        else
            v2_add_varint(&inner, integer_of(field, item));
    }
    if (inner.size || inner.failed)
        v2_add_inner(to, field->id, &inner);
}

/* True if a value is "", 0 or false, which proto3 leaves out. */
static bool is_default(const ProtobufCFieldDescriptor *field, const cJSON *item)
{
    if (field->type == PROTOBUF_C_TYPE_STRING)
        return !item->valuestring[0];
    return field->type != PROTOBUF_C_TYPE_MESSAGE && integer_of(field, item) == 0;
}

/* Packs the members of `object` that `type` has. Recursion is bounded, because no type contains
 * itself. */
static void pack_object(struct strbuf *to, const ProtobufCMessageDescriptor *type,
                        const cJSON *object)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &type->fields[i];
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field->name);
        if (item && field->label == PROTOBUF_C_LABEL_REPEATED)
            pack_list(to, field, item);
        else if (item && !is_default(field, item))
            pack_value(to, field, item);
    }
}

/* Writes the tree as a message of `type`, or as JSON, and frees it. */
static char *finish_document(struct writer *w, bool is_message,
                             const ProtobufCMessageDescriptor *type, size_t *ret_size)
{
    struct strbuf message = {.failed = w->failed || !w->root};
    if (!is_message) {
        char *text = write_finish(w);
        *ret_size = text ? strlen(text) : 0;
        return text;
    }
    pack_object(&message, type, w->root);
    cJSON_Delete(w->root);
    return strbuf_finish(&message, ret_size);
}

char *v2_server_document(bool is_message, const char *name, const char *version, size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "name=%s version=%s extensions[%s %s %s %s %s %s]", name, version,
                  "classification", "model_repository", "model_configuration", "schedule_policy",
                  "binary_tensor_data", "statistics");
    return finish_document(&w, is_message, &inference__server_metadata_response__descriptor,
                           ret_size);
}

static void write_dims(struct writer *w, cJSON *object, const char *key, const struct shape *shape,
                       int from)
{
    cJSON *list = write_array(w, object, key);
    if (shape->rank == SHAPE_UNKNOWN)
        write_members(w, list, "%d", -1);
    for (int d = from; d < shape->rank; d++)
        write_members(w, list, "%ld", shape->dims[d]);
}

static void write_tensors(struct writer *w, cJSON *root, const char *key,
                          const struct v2_tensor *tensors, size_t count)
{
    cJSON *list = write_array(w, root, key);
    for (size_t i = 0; i < count; i++) {
        cJSON *entry = write_object(w, list, NULL);
        write_members(w, entry, "name=%s datatype=%s", tensors[i].name,
                      dtype_oip_name(tensors[i].dtype));
        write_dims(w, entry, "shape", &tensors[i].shape, 0);
    }
}

char *v2_metadata_document(bool is_message, const struct v2_model *model, size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    write_text(&w, w.root, "name", model->name);
    write_texts(&w, w.root, "versions", model->versions, model->version_count);
    write_text(&w, w.root, "platform", "onnxruntime_onnx");
    write_tensors(&w, w.root, "inputs", model->inputs, model->input_count);
    write_tensors(&w, w.root, "outputs", model->outputs, model->output_count);
    return finish_document(&w, is_message, &inference__model_metadata_response__descriptor,
                           ret_size);
}

/* Begins an entry of "input" or "output". */
static json_node *write_config_tensor(struct writer *w, json_node *list,
                                      const struct v2_tensor *tensor)
{
    char type[32];
    json_node *entry = write_object(w, list, NULL);
    snprintf(type, sizeof type, "TYPE_%s", dtype_oip_name(tensor->dtype));
    write_members(w, entry, "name=%s data_type=%s", tensor->name, type);
    return entry;
}

static void write_config_tensors(struct writer *w, cJSON *root, const struct v2_model *model)
{
    int from = model->max_batch_size > 0 ? 1 : 0;
    cJSON *list = write_array(w, root, "input");
    for (size_t i = 0; i < model->input_count; i++) {
        cJSON *entry = write_config_tensor(w, list, &model->inputs[i]);
        write_text(w, entry, "format",
                   i != model->image_input ? "FORMAT_NONE"
                   : model->channels_last  ? "FORMAT_NHWC"
                                           : "FORMAT_NCHW");
        write_dims(w, entry, "dims", &model->inputs[i].shape, from);
    }
    list = write_array(w, root, "output");
    for (size_t i = 0; i < model->output_count; i++) {
        cJSON *entry = write_config_tensor(w, list, &model->outputs[i]);
        write_dims(w, entry, "dims", &model->outputs[i].shape,
                   model->outputs[i].shape.rank > 0 ? from : 0);
        bool labels = model->has_labels && i == model->label_output;
        write_text(w, entry, "label_filename", labels ? "labels.txt" : "");
    }
}

char *v2_config_document(bool is_message, const struct v2_model *model, size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    cJSON *config = is_message ? write_object(&w, w.root, "config") : w.root;
    write_members(&w, config,
                  "name=%s platform=%s backend=%s default_model_filename=%s "
                  "version_policy{latest{num_versions=%zu}} max_batch_size=%d",
                  model->name, "onnxruntime_onnx", "onnxruntime", "model.onnx",
                  model->version_count ? model->version_count : 1, model->max_batch_size);
    write_config_tensors(&w, config, model);
    write_members(&w, config, "instance_group[{name=%s kind=%s count=%zu}]", model->name,
                  model->instance_kind, model->instance_count);
    if (model->max_batch_size > 1)
        write_members(&w, config,
                      "dynamic_batching{preferred_batch_size[%d] max_queue_delay_microseconds=%d}",
                      model->max_batch_size, 0);
    return finish_document(&w, is_message, &inference__model_config_response__descriptor, ret_size);
}

char *v2_labels_document(bool is_message, const struct v2_model *model, size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    write_members(&w, w.root, "model=%s version=%s", model->name, model->version);
    write_texts(&w, w.root, "labels", model->labels, model->label_count);
    return finish_document(&w, is_message, NULL, ret_size);
}

static void write_v2_count(struct writer *w, cJSON *object, const char *key, struct v2_count count)
{
    write_members(w, write_object(w, object, key), "count=%lu ns=%lu", count.count, count.ns);
}

static void write_batches(struct writer *w, cJSON *entry, const struct v2_stats *stats)
{
    cJSON *list = write_array(w, entry, "batch_stats");
    for (int size = 1; size <= V2_MAX_BATCH; size++) {
        const struct v2_batch_stats *batch = &stats->batches[size];
        if (batch->infer.count == 0)
            continue;
        cJSON *row = write_object(w, list, NULL);
        write_members(w, row, "batch_size=%d", size);
        write_v2_count(w, row, "compute_input", batch->input);
        write_v2_count(w, row, "compute_infer", batch->infer);
        write_v2_count(w, row, "compute_output", batch->output);
    }
}

static void write_stats(struct writer *w, cJSON *list, const struct v2_stats *stats)
{
    const struct {
        const char *key;
        struct v2_count count;
    } counts[] = {{"success", stats->success},     {"fail", stats->fail},
                  {"queue", stats->queue},         {"compute_input", stats->input},
                  {"compute_infer", stats->infer}, {"compute_output", stats->output},
                  {"cache_hit", stats->cache_hit}, {"cache_miss", stats->cache_miss}};
    cJSON *entry = write_object(w, list, NULL);
    write_members(w, entry,
                  "name=%s version=%s last_inference=%lu inference_count=%lu execution_count=%lu",
                  stats->name, stats->version, stats->last_inference_ms, stats->inference_count,
                  stats->execution_count);
    cJSON *inference = write_object(w, entry, "inference_stats");
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        write_v2_count(w, inference, counts[i].key, counts[i].count);
    write_members(w, entry, "response_stats{}");
    write_batches(w, entry, stats);
    write_members(w, entry, "memory_usage[{type=%s id=%d byte_size=%lu}]", stats->memory_type, 0,
                  stats->memory_bytes);
}

char *v2_stats_document(bool is_message, const struct v2_stats *stats, size_t count,
                        size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    cJSON *list = write_array(&w, w.root, "model_stats");
    for (size_t i = 0; i < count; i++)
        write_stats(&w, list, &stats[i]);
    return finish_document(&w, is_message, &inference__model_statistics_response__descriptor,
                           ret_size);
}

char *v2_index_document(bool is_message, const struct v2_index_entry *entries, size_t count,
                        size_t *ret_size)
{
    struct writer w = {.root = is_message ? cJSON_CreateObject() : cJSON_CreateArray()};
    cJSON *list = is_message ? write_array(&w, w.root, "models") : w.root;
    for (size_t i = 0; i < count; i++)
        write_members(&w, list, "{name=%s version=%s state=%s reason=%s}", entries[i].name,
                      entries[i].version, entries[i].state, entries[i].reason);
    return finish_document(&w, is_message, &inference__repository_index_response__descriptor,
                           ret_size);
}

char *v2_flag_document(bool is_message, const char *name, const char *flag, bool value,
                       size_t *ret_size)
{
    struct writer w = {.root = write_root()};
    /* ModelReady has the same answer as ServerReady. */
    const ProtobufCMessageDescriptor *message = !strcmp(flag, "live")
                                                    ? &inference__server_live_response__descriptor
                                                    : &inference__server_ready_response__descriptor;
    write_members(&w, w.root, "name=%s", name);
    write_members(&w, w.root, !strcmp(flag, "live") ? "live=%hhd" : "ready=%hhd", value);
    return finish_document(&w, is_message, message, ret_size);
}
