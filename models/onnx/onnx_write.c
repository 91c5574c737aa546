/* Converts a graph to ONNX's messages, which protobuf-c packs directly into the file without
 * copying tensors.
 *
 * All messages lie in one arena. The importer bounds the nesting of bodies, and so recursion. */
#include "models/onnx/onnx_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/size.h"
#include "engine/tensor/tensor_file.h"
#include "models/onnx/onnx_import.h"

/* Limit for all tensors together. A message may have 2 GiB; the rest is for other data. */
#define TENSORS_LIMIT ((size_t)1536 << 20)

/* The lowest IR version of a file with QuantizeLinear or the opsets that lensd writes. */
#define IR_VERSION_LEAST 8

struct onnx_writer {
    struct arena *arena;
    struct name_map names; /* names that are in use, with their struct value */
    struct name_map nodes; /* names of nodes, with their struct node */
    struct error *err;
};

/* ---- names ---- */

/* Returns the value outside of all bodies to which a captured value refers. Captured values are
 * written with that value's name. */
static const struct value *origin_of(const struct value *value)
{
    while (value->outer)
        value = value->outer;
    return value;
}

/* Sets *ret to the name under which `object` is written: `name`, with a suffix if another object
 * has it. */
static enum status unique_name(struct onnx_writer *w, struct name_map *names, const char *name,
                               const void *object, char **ret)
{
    char text[600];
    const char *own = name;
    const struct name_slot *slot = *own ? name_map_find(names, own) : NULL;
    for (unsigned i = 1; !*own || (slot && slot->value != object); i++) {
        snprintf(text, sizeof text, "%.500s_%u", name, i);
        slot = name_map_find(names, text);
        own = text;
    }
    if (!slot) {
        own = arena_copy_text(w->arena, own, strlen(own));
        TRY(check_memory(own && name_map_put(names, own, (void *)(uintptr_t)object),
                         "while writing the model", w->err));
        slot = name_map_find(names, own);
    }
    *ret = (char *)(uintptr_t)slot->name;
    return STATUS_OK;
}

static enum status name_of(struct onnx_writer *w, const struct value *value, char **ret)
{
    value = origin_of(value);
    return unique_name(w, &w->names, value->name, value, ret);
}

static enum status names_of(struct onnx_writer *w, struct value *const *values, size_t count,
                            char ***ret)
{
    static char none[] = "";
    *ret = arena_alloc(w->arena, count, sizeof **ret);
    TRY(check_memory(*ret, "while writing the model", w->err));
    for (size_t i = 0; i < count; i++) {
        (*ret)[i] = none;
        if (values[i])
            TRY(name_of(w, values[i], &(*ret)[i]));
    }
    return STATUS_OK;
}

/* ---- tensors ---- */

static enum status cannot_write(struct onnx_writer *w)
{
    return error_set(w->err, STATUS_IO, "cannot write it: %s", strerror(errno));
}

static enum status write_tensor(struct onnx_writer *w, char *name, const struct tensor *tensor,
                                Onnx__TensorProto **ret)
{
    Onnx__TensorProto *proto = arena_alloc(w->arena, 1, sizeof *proto);
    const size_t rank = (size_t)tensor->shape.rank;
    int64_t *dims = arena_alloc(w->arena, rank, sizeof *dims);
    TRY(check_memory(proto && dims, "while writing the model", w->err));
    onnx__tensor_proto__init(proto);
    for (size_t d = 0; d < rank; d++)
        dims[d] = tensor->shape.dims[d];
    proto->dims = dims;
    proto->n_dims = rank;
    proto->has_data_type = true;
    proto->data_type = (int32_t)tensor->dtype;
    proto->name = name;
    *ret = proto;
    static uint8_t nothing;
    proto->has_raw_data = true;
    proto->raw_data.data = tensor->bytes ? tensor->data : &nothing;
    proto->raw_data.len = tensor->bytes;
    return STATUS_OK;
}

/* ---- types ---- */

static enum status write_dim(struct onnx_writer *w, const struct value *value, int d,
                             Onnx__TensorShapeProto__Dimension **ret)
{
    Onnx__TensorShapeProto__Dimension *dim = arena_alloc(w->arena, 1, sizeof *dim);
    TRY(check_memory(dim, "while writing the model", w->err));
    onnx__tensor_shape_proto__dimension__init(dim);
    if (value->shape.dims[d] != DIM_UNKNOWN) {
        dim->has_dim_value = true;
        dim->dim_value = value->shape.dims[d];
    } else if (value->dim_names[d]) {
        dim->dim_param = (char *)(uintptr_t)value->dim_names[d];
    }
    *ret = dim;
    return STATUS_OK;
}

static enum status write_type(struct onnx_writer *w, const struct value *value,
                              Onnx__TypeProto **ret)
{
    Onnx__TypeProto *type = arena_alloc(w->arena, 1, sizeof *type);
    Onnx__TypeProto__Tensor *tensor = arena_alloc(w->arena, 1, sizeof *tensor);
    Onnx__TensorShapeProto *shape = arena_alloc(w->arena, 1, sizeof *shape);
    const size_t rank = value->shape.rank > 0 ? (size_t)value->shape.rank : 0;
    Onnx__TensorShapeProto__Dimension **dims = arena_alloc(w->arena, rank, sizeof *dims);
    TRY(check_memory(type && tensor && shape && dims, "while writing the model", w->err));
    onnx__type_proto__init(type);
    onnx__type_proto__tensor__init(tensor);
    onnx__tensor_shape_proto__init(shape);
    type->tensor_type = tensor;
    tensor->has_elem_type = true;
    tensor->elem_type = (int32_t)value->dtype;
    if (value->shape.rank != SHAPE_UNKNOWN)
        tensor->shape = shape;
    shape->n_dim = rank;
    shape->dim = dims;
    for (size_t d = 0; d < rank; d++)
        TRY(write_dim(w, value, (int)d, &dims[d]));
    *ret = type;
    return STATUS_OK;
}

static enum status write_infos(struct onnx_writer *w, struct value *const *values, size_t count,
                               Onnx__ValueInfoProto ***ret)
{
    *ret = arena_alloc(w->arena, count, sizeof **ret);
    TRY(check_memory(*ret, "while writing the model", w->err));
    for (size_t i = 0; i < count; i++) {
        Onnx__ValueInfoProto *info = arena_alloc(w->arena, 1, sizeof *info);
        TRY(check_memory(info, "while writing the model", w->err));
        onnx__value_info_proto__init(info);
        (*ret)[i] = info;
        TRY(name_of(w, values[i], &info->name));
        if (values[i]->dtype != DTYPE_NONE)
            TRY(write_type(w, values[i], &info->type));
    }
    return STATUS_OK;
}

/* ---- nodes ---- */

static enum status write_graph(struct onnx_writer *w, const struct graph *graph,
                               Onnx__GraphProto **ret);

static enum status write_strings(struct onnx_writer *w, const struct attr *attr,
                                 Onnx__AttributeProto *proto)
{
    proto->strings = arena_alloc(w->arena, attr->count, sizeof *proto->strings);
    TRY(check_memory(proto->strings, "while writing the model", w->err));
    proto->n_strings = attr->count;
    for (size_t i = 0; i < attr->count; i++)
        proto->strings[i] =
            (ProtobufCBinaryData){strlen(attr->strings[i]), (uint8_t *)(uintptr_t)attr->strings[i]};
    return STATUS_OK;
}

static enum status write_attribute(struct onnx_writer *w, const struct attr *attr,
                                   Onnx__AttributeProto **ret)
{
    Onnx__AttributeProto *proto = *ret = arena_alloc(w->arena, 1, sizeof *proto);
    TRY(check_memory(proto, "while writing the model", w->err));
    onnx__attribute_proto__init(proto);
    proto->name = (char *)(uintptr_t)attr->name;
    proto->has_type = true;
    proto->type = (int32_t)attr->kind;
    if (attr->kind == ATTR_STRING && !strcmp(attr->name, "nearest_mode") &&
        !strcmp(attr->s, "simple"))
        return error_set(w->err, STATUS_UNSUPPORTED,
                         "ONNX has no newer form of a Resize of opset 10 that shrinks one axis and "
                         "stretches another");
    switch (attr->kind) {
    case ATTR_INT:
        proto->has_i = true;
        proto->i = attr->i;
        break;
    case ATTR_FLOAT:
        proto->has_f = true;
        proto->f = attr->f;
        break;
    case ATTR_STRING:
        proto->has_s = true;
        proto->s = (ProtobufCBinaryData){attr->count, (uint8_t *)(uintptr_t)attr->s};
        break;
    case ATTR_INTS:
        proto->n_ints = attr->count;
        proto->ints = (int64_t *)(uintptr_t)attr->ints;
        break;
    case ATTR_FLOATS:
        proto->n_floats = attr->count;
        proto->floats = (float *)(uintptr_t)attr->floats;
        break;
    case ATTR_STRINGS:
        return write_strings(w, attr, proto);
    case ATTR_TENSOR:
        return write_tensor(w, NULL, attr->t, &proto->t);
    case ATTR_GRAPH:
        return write_graph(w, attr->g, &proto->g);
    }
    return STATUS_OK;
}

static enum status write_node(struct onnx_writer *w, const struct node *node, Onnx__NodeProto **ret)
{
    Onnx__NodeProto *proto = *ret = arena_alloc(w->arena, 1, sizeof *proto);
    if (!strcmp(op_domain(node->op), "lensd"))
        return error_set(w->err, STATUS_UNSUPPORTED, "%s is not an operator of ONNX",
                         NODE_STRING(node));
    TRY(check_memory(proto, "while writing the model", w->err));
    onnx__node_proto__init(proto);
    proto->op_type = (char *)(uintptr_t)op_name(node->op);
    proto->domain = (char *)(uintptr_t)op_domain(node->op);
    TRY(unique_name(w, &w->nodes, node->name, node, &proto->name));
    proto->n_input = node->input_count;
    proto->n_output = node->output_count;
    TRY(names_of(w, node->inputs, node->input_count, &proto->input));
    TRY(names_of(w, node->outputs, node->output_count, &proto->output));
    proto->n_attribute = node->attr_count;
    proto->attribute = arena_alloc(w->arena, node->attr_count, sizeof *proto->attribute);
    TRY(check_memory(proto->attribute, "while writing the model", w->err));
    for (size_t a = 0; a < node->attr_count; a++)
        TRY(write_attribute(w, &node->attrs[a], &proto->attribute[a]));
    return STATUS_OK;
}

/* ---- graphs ---- */

/* Writes the constants that have readers. */
static enum status write_constants(struct onnx_writer *w, const struct graph *graph,
                                   const uint32_t *readers, Onnx__GraphProto *proto)
{
    proto->initializer = arena_alloc(w->arena, graph->value_count, sizeof *proto->initializer);
    TRY(check_memory(proto->initializer, "while writing the model", w->err));
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct value *value = graph->values[v];
        char *name;
        if (!readers[v] || !value->known || value->outer)
            continue;
        TRY(name_of(w, value, &name));
        TRY(write_tensor(w, name, value->known, &proto->initializer[proto->n_initializer++]));
    }
    return STATUS_OK;
}

static enum status write_graph(struct onnx_writer *w, const struct graph *graph,
                               Onnx__GraphProto **ret)
{
    static char unnamed[] = "graph";
    Onnx__GraphProto *proto = *ret = arena_alloc(w->arena, 1, sizeof *proto);
    TRY(check_memory(proto, "while writing the model", w->err));
    onnx__graph_proto__init(proto);
    proto->name = *graph->name ? (char *)(uintptr_t)graph->name : unnamed;
    proto->n_input = graph->input_count;
    proto->n_output = graph->output_count;
    /* Inputs and outputs come first, so that they keep their names. */
    TRY(write_infos(w, graph->inputs, graph->input_count, &proto->input));
    TRY(write_infos(w, graph->outputs, graph->output_count, &proto->output));
    proto->n_node = graph->node_count;
    proto->node = arena_alloc(w->arena, graph->node_count, sizeof *proto->node);
    TRY(check_memory(proto->node, "while writing the model", w->err));
    for (size_t n = 0; n < graph->node_count; n++)
        TRY(write_node(w, graph->nodes[n], &proto->node[n]));
    uint32_t *readers = alloc_array(graph->value_count, sizeof *readers);
    TRY(check_memory(readers, "while writing the model", w->err));
    graph_count_readers(graph, readers);
    const enum status status = write_constants(w, graph, readers, proto);
    free(readers);
    return status;
}

/* ---- models ---- */

/* Recursion follows the nesting of bodies. */
static void collect_domains(const struct graph *graph, int versions[OP_COUNT])
{
    for (size_t n = 0; n < graph->node_count; n++) {
        const struct node *node = graph->nodes[n];
        versions[node->op] = node->opset;
        for (size_t a = 0; a < node->attr_count; a++)
            if (node->attrs[a].kind == ATTR_GRAPH)
                collect_domains(node->attrs[a].g, versions);
    }
}

static enum status write_opsets(struct onnx_writer *w, const struct graph *graph,
                                Onnx__ModelProto *proto)
{
    int versions[OP_COUNT] = {0};
    collect_domains(graph, versions);
    proto->opset_import = arena_alloc(w->arena, OP_COUNT, sizeof *proto->opset_import);
    TRY(check_memory(proto->opset_import, "while writing the model", w->err));
    for (int op = OP_NONE; op < OP_COUNT; op++) {
        /* OP_NONE stands for ai.onnx. */
        const char *domain = op_domain((enum op)op);
        bool is_new = op == OP_NONE || (versions[op] && *domain);
        for (size_t i = 0; is_new && i < proto->n_opset_import; i++)
            is_new = strcmp(proto->opset_import[i]->domain, domain) != 0;
        if (!is_new)
            continue;
        Onnx__OperatorSetIdProto *entry = arena_alloc(w->arena, 1, sizeof *entry);
        TRY(check_memory(entry, "while writing the model", w->err));
        onnx__operator_set_id_proto__init(entry);
        entry->domain = (char *)(uintptr_t)domain;
        entry->has_version = true;
        entry->version = op == OP_NONE ? graph->opset : versions[op];
        proto->opset_import[proto->n_opset_import++] = entry;
    }
    return STATUS_OK;
}

static enum status write_model(struct onnx_writer *w, const struct graph *graph,
                               const struct onnx_write_options *options, Onnx__ModelProto *proto)
{
    onnx__model_proto__init(proto);
    proto->has_ir_version = true;
    proto->ir_version = graph->ir_version > IR_VERSION_LEAST ? graph->ir_version : IR_VERSION_LEAST;
    proto->producer_name = (char *)(uintptr_t)options->producer;
    TRY(write_opsets(w, graph, proto));
    proto->n_metadata_props = options->metadata_count;
    proto->metadata_props =
        arena_alloc(w->arena, options->metadata_count, sizeof *proto->metadata_props);
    TRY(check_memory(proto->metadata_props, "while writing the model", w->err));
    for (size_t i = 0; i < options->metadata_count; i++) {
        Onnx__StringStringEntryProto *entry = arena_alloc(w->arena, 1, sizeof *entry);
        TRY(check_memory(entry, "while writing the model", w->err));
        onnx__string_string_entry_proto__init(entry);
        entry->key = (char *)(uintptr_t)options->metadata[i].key;
        entry->value = (char *)(uintptr_t)options->metadata[i].value;
        proto->metadata_props[i] = entry;
    }
    return write_graph(w, graph, &proto->graph);
}

/* ---- files ---- */

struct onnx_sink {
    ProtobufCBuffer base;
    FILE *file;
    bool failed;
};

static void sink_append(ProtobufCBuffer *buffer, size_t size, const uint8_t *data)
{
    struct onnx_sink *sink = (struct onnx_sink *)buffer;
    sink->failed = sink->failed || fwrite(data, 1, size, sink->file) != size;
}

/* Bytes from mapped files are valid only if the files have not changed meanwhile. */
static bool any_changed(const struct graph *graph)
{
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct tensor *tensor = graph->values[v]->known;
        const struct mapping *mapping = tensor ? tensor_mapping(tensor) : NULL;
        if (mapping && !mapping_is_whole(mapping))
            return true;
    }
    return false;
}

/* Writes the file to the disk and closes it. Returns false and sets errno on failure. */
static bool finish_file(FILE *file)
{
    const bool is_written = fflush(file) == 0 && fsync(fileno(file)) == 0;
    const int cause = errno;
    const bool is_closed = fclose(file) == 0;
    if (!is_written)
        errno = cause;
    return is_written && is_closed;
}

static enum status write_model_to(struct onnx_writer *w, const struct graph *graph,
                                  const struct onnx_write_options *options, FILE *file)
{
    Onnx__ModelProto proto;
    enum status status = write_model(w, graph, options, &proto);
    struct onnx_sink sink = {.base = {.append = sink_append}, .file = file};
    if (status == STATUS_OK) {
        protobuf_c_message_pack_to_buffer(&proto.base, &sink.base);
        if (sink.failed)
            status = cannot_write(w);
    }
    if (status == STATUS_OK && any_changed(graph))
        status = error_set(w->err, STATUS_IO,
                           "the model's data file changed while it was read; start again");
    if (!finish_file(file) && status == STATUS_OK)
        status = cannot_write(w);
    return status;
}

static size_t tensor_bytes(const struct graph *graph)
{
    size_t total = 0;
    for (size_t v = 0; v < graph->value_count; v++)
        if (graph->values[v]->known)
            total = size_sum(total, graph->values[v]->known->bytes);
    return total;
}

enum status onnx_write_file(const struct graph *graph, const struct onnx_write_options *options,
                            const char *path, struct error *err)
{
    struct onnx_writer w = {.arena = arena_create(0), .err = err};
    FILE *file = NULL;
    enum status status = w.arena ? STATUS_OK : error_no_memory(err, "while writing the model");
    if (status == STATUS_OK && tensor_bytes(graph) > TENSORS_LIMIT)
        status = error_set(err, STATUS_TOO_LARGE, "its tensors exceed the 1.5 GiB of an ONNX file");
    if (status == STATUS_OK && !(file = fopen(path, "wbxe")))
        status = cannot_write(&w);
    if (file) {
        status = write_model_to(&w, graph, options, file);
        if (status != STATUS_OK)
            (void)unlink(path);
    }
    name_map_done(&w.names);
    name_map_done(&w.nodes);
    arena_free(w.arena);
    return status == STATUS_OK ? status : error_prefix(err, "%.200s", path);
}
