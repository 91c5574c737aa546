/* Documents of the Open Inference Protocol: cJSON trees, printed as JSON or packed as messages of
 * grpc_service.proto. Both use the same field names. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "proto/grpc_service.pb-c.h"
#include "proto/strbuf.h"
#include "proto/v2.h"
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
        strbuf_field(to, field->id, item->valuestring, strlen(item->valuestring));
    } else if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
        pack_object(&inner, field->descriptor, item);
        strbuf_inner(to, field->id, &inner);
    } else {
        strbuf_varint(to, field->id << 3);
        strbuf_varint(to, integer_of(field, item));
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
            strbuf_varint(&inner, integer_of(field, item));
    }
    if (inner.size || inner.failed)
        strbuf_inner(to, field->id, &inner);
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

char *v2_document(struct writer *w, enum v2_document document, bool is_message, size_t *ret_size)
{
    static const ProtobufCMessageDescriptor *const types[] = {
        [V2_SERVER] = &inference__server_metadata_response__descriptor,
        [V2_LIVE] = &inference__server_live_response__descriptor,
        [V2_READY] = &inference__server_ready_response__descriptor, /* ModelReady's is the same */
        [V2_METADATA] = &inference__model_metadata_response__descriptor,
        [V2_CONFIG] = &inference__model_config_response__descriptor,
        [V2_STATISTICS] = &inference__model_statistics_response__descriptor,
        [V2_INDEX] = &inference__repository_index_response__descriptor};
    struct strbuf message = {.failed = w->failed || !w->root};
    if (!is_message) {
        cJSON *root = w->root;
        if (document == V2_INDEX && root && root->child) {
            w->root = cJSON_DetachItemViaPointer(root, root->child);
            cJSON_Delete(root);
        }
        char *text = write_finish(w);
        *ret_size = text ? strlen(text) : 0;
        return text;
    }
    pack_object(&message, types[document], w->root);
    cJSON_Delete(w->root);
    return strbuf_finish(&message, ret_size);
}
