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

/* Limit for all tensors together. A message of protobuf has at most 2 GiB; the rest is for other
 * data. */
#define TENSORS_LIMIT ((size_t)1536 << 20)

/* The lowest IR version of a file with QuantizeLinear or the opsets that lensd writes. */
#define IR_VERSION_LEAST 8

/* Functions that fail set `status` and *err, and return NULL. */
struct onnx_writer {
    struct arena *arena;
    struct name_map names; /* names that are in use, with their struct value */
    struct name_map nodes; /* names of nodes, with their struct node */
    enum status status;
    struct error *err;
};

static void *writer_alloc(struct onnx_writer *w, size_t count, size_t size)
{
    void *memory = arena_alloc(w->arena, count, size);
    if (!memory)
        w->status = error_no_memory(w->err, "while writing the model");
    return memory;
}

static void *new_message(struct onnx_writer *w, const ProtobufCMessageDescriptor *descriptor)
{
    void *message = writer_alloc(w, 1, descriptor->sizeof_message);
    if (message)
        protobuf_c_message_init(descriptor, message);
    return message;
}

/* ---- names ---- */

/* Returns the name under which `object` is written: `name`, with a suffix if another object has
 * it. */
static char *unique_name(struct onnx_writer *w, struct name_map *names, const char *name,
                         const void *object)
{
    char text[600];
    const char *own = name;
    const struct name_slot *slot = *own ? name_map_find(names, own) : NULL;
    for (unsigned i = 1; !*own || (slot && slot->value != object); i++) {
        snprintf(text, sizeof text, "%.500s_%u", name, i);
        slot = name_map_find(names, text);
        own = text;
    }
    if (slot)
        return (char *)(uintptr_t)slot->name;
    char *copy = arena_copy_text(w->arena, own, strlen(own));
    if (copy && name_map_put(names, copy, (void *)(uintptr_t)object))
        return copy;
    w->status = error_no_memory(w->err, "while writing the model");
    return NULL;
}

/* Returns the name of a value. A captured value has the name of the value outside of all bodies to
 * which it refers. */
static char *name_of(struct onnx_writer *w, const struct value *value)
{
    while (value->outer)
        value = value->outer;
    return unique_name(w, &w->names, value->name, value);
}

static char **names_of(struct onnx_writer *w, struct value *const *values, size_t count)
{
    static char none[] = "";
    char **names = writer_alloc(w, count, sizeof *names);
    for (size_t i = 0; names && i < count; i++)
        names[i] = values[i] ? name_of(w, values[i]) : none;
    return names;
}

/* ---- tensors ---- */

static Onnx__TensorProto *write_tensor(struct onnx_writer *w, char *name,
                                       const struct tensor *tensor)
{
    static uint8_t nothing;
    Onnx__TensorProto *proto = new_message(w, &onnx__tensor_proto__descriptor);
    if (!proto)
        return NULL;
    proto->dims = (int64_t *)(uintptr_t)tensor->shape.dims;
    proto->n_dims = (size_t)tensor->shape.rank;
    proto->has_data_type = true;
    proto->data_type = (int32_t)tensor->dtype;
    proto->name = name;
    proto->has_raw_data = true;
    proto->raw_data.data = tensor->bytes ? tensor->data : &nothing;
    proto->raw_data.len = tensor->bytes;
    return proto;
}

/* ---- types ---- */

static Onnx__TypeProto *write_type(struct onnx_writer *w, const struct value *value)
{
    Onnx__TypeProto *type = new_message(w, &onnx__type_proto__descriptor);
    Onnx__TypeProto__Tensor *tensor = new_message(w, &onnx__type_proto__tensor__descriptor);
    Onnx__TensorShapeProto *shape = new_message(w, &onnx__tensor_shape_proto__descriptor);
    const size_t rank = value->shape.rank > 0 ? (size_t)value->shape.rank : 0;
    if (!type || !tensor || !shape || !(shape->dim = writer_alloc(w, rank, sizeof *shape->dim)))
        return NULL;
    type->tensor_type = tensor;
    tensor->has_elem_type = true;
    tensor->elem_type = (int32_t)value->dtype;
    if (value->shape.rank != SHAPE_UNKNOWN)
        tensor->shape = shape;
    shape->n_dim = rank;
    for (size_t d = 0; d < rank; d++) {
        Onnx__TensorShapeProto__Dimension *dim = shape->dim[d] =
            new_message(w, &onnx__tensor_shape_proto__dimension__descriptor);
        if (!dim)
            return NULL;
        dim->has_dim_value = value->shape.dims[d] != DIM_UNKNOWN;
        dim->dim_value = value->shape.dims[d];
        if (!dim->has_dim_value)
            dim->dim_param = (char *)(uintptr_t)value->dim_names[d];
    }
    return type;
}

static Onnx__ValueInfoProto **write_infos(struct onnx_writer *w, struct value *const *values,
                                          size_t count)
{
    Onnx__ValueInfoProto **infos = writer_alloc(w, count, sizeof *infos);
    for (size_t i = 0; infos && i < count; i++) {
        infos[i] = new_message(w, &onnx__value_info_proto__descriptor);
        if (!infos[i])
            return NULL;
        infos[i]->name = name_of(w, values[i]);
        if (values[i]->dtype != DTYPE_NONE)
            infos[i]->type = write_type(w, values[i]);
    }
    return infos;
}

/* ---- nodes ---- */

static Onnx__GraphProto *write_graph(struct onnx_writer *w, const struct graph *graph);

static ProtobufCBinaryData *write_strings(struct onnx_writer *w, const struct attr *attr)
{
    ProtobufCBinaryData *strings = writer_alloc(w, attr->count, sizeof *strings);
    for (size_t i = 0; strings && i < attr->count; i++)
        strings[i] =
            (ProtobufCBinaryData){strlen(attr->strings[i]), (uint8_t *)(uintptr_t)attr->strings[i]};
    return strings;
}

static Onnx__AttributeProto *write_attribute(struct onnx_writer *w, const struct attr *attr)
{
    Onnx__AttributeProto *proto = new_message(w, &onnx__attribute_proto__descriptor);
    if (!proto)
        return NULL;
    proto->name = (char *)(uintptr_t)attr->name;
    proto->has_type = true;
    proto->type = (int32_t)attr->kind;
    if (attr->kind == ATTR_STRING && !strcmp(attr->name, "nearest_mode") &&
        !strcmp(attr->s, "simple"))
        w->status =
            error_set(w->err, STATUS_UNSUPPORTED,
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
        proto->n_strings = attr->count;
        proto->strings = write_strings(w, attr);
        break;
    case ATTR_TENSOR:
        proto->t = write_tensor(w, NULL, attr->t);
        break;
    case ATTR_GRAPH:
        proto->g = write_graph(w, attr->g);
    }
    return proto;
}

static Onnx__NodeProto *write_node(struct onnx_writer *w, const struct node *node)
{
    Onnx__NodeProto *proto = new_message(w, &onnx__node_proto__descriptor);
    if (!strcmp(op_domain(node->op), "lensd"))
        w->status = error_set(w->err, STATUS_UNSUPPORTED, "%s is not an operator of ONNX",
                              NODE_STRING(node));
    if (!proto)
        return NULL;
    proto->op_type = (char *)(uintptr_t)op_name(node->op);
    proto->domain = (char *)(uintptr_t)op_domain(node->op);
    proto->name = unique_name(w, &w->nodes, node->name, node);
    proto->n_input = node->input_count;
    proto->n_output = node->output_count;
    proto->input = names_of(w, node->inputs, node->input_count);
    proto->output = names_of(w, node->outputs, node->output_count);
    proto->n_attribute = node->attr_count;
    proto->attribute = writer_alloc(w, node->attr_count, sizeof *proto->attribute);
    for (size_t a = 0; proto->attribute && a < node->attr_count; a++)
        proto->attribute[a] = write_attribute(w, &node->attrs[a]);
    return proto;
}

/* ---- graphs ---- */

/* Writes the constants that have readers. */
static void write_constants(struct onnx_writer *w, const struct graph *graph,
                            Onnx__GraphProto *proto)
{
    uint32_t *readers = writer_alloc(w, graph->value_count, sizeof *readers);
    proto->initializer = writer_alloc(w, graph->value_count, sizeof *proto->initializer);
    if (!readers || !proto->initializer)
        return;
    graph_count_readers(graph, readers);
    for (size_t v = 0; v < graph->value_count; v++) {
        const struct value *value = graph->values[v];
        if (readers[v] && value->known && !value->outer)
            proto->initializer[proto->n_initializer++] =
                write_tensor(w, name_of(w, value), value->known);
    }
}

static Onnx__GraphProto *write_graph(struct onnx_writer *w, const struct graph *graph)
{
    static char unnamed[] = "graph";
    Onnx__GraphProto *proto = new_message(w, &onnx__graph_proto__descriptor);
    if (!proto)
        return NULL;
    proto->name = *graph->name ? (char *)(uintptr_t)graph->name : unnamed;
    proto->n_input = graph->input_count;
    proto->n_output = graph->output_count;
    /* Inputs and outputs come first, so that they keep their names. */
    proto->input = write_infos(w, graph->inputs, graph->input_count);
    proto->output = write_infos(w, graph->outputs, graph->output_count);
    proto->n_node = graph->node_count;
    proto->node = writer_alloc(w, graph->node_count, sizeof *proto->node);
    for (size_t n = 0; w->status == STATUS_OK && n < graph->node_count; n++)
        proto->node[n] = write_node(w, graph->nodes[n]);
    write_constants(w, graph, proto);
    return proto;
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

static void write_opsets(struct onnx_writer *w, const struct graph *graph, Onnx__ModelProto *proto)
{
    int versions[OP_COUNT] = {0};
    collect_domains(graph, versions);
    proto->opset_import = writer_alloc(w, OP_COUNT, sizeof *proto->opset_import);
    for (int op = OP_NONE; w->status == STATUS_OK && op < OP_COUNT; op++) {
        /* OP_NONE stands for ai.onnx. */
        const char *domain = op_domain((enum op)op);
        bool is_new = op == OP_NONE || (versions[op] && *domain);
        for (size_t i = 0; is_new && i < proto->n_opset_import; i++)
            is_new = strcmp(proto->opset_import[i]->domain, domain) != 0;
        Onnx__OperatorSetIdProto *entry =
            is_new ? new_message(w, &onnx__operator_set_id_proto__descriptor) : NULL;
        if (!entry)
            continue;
        entry->domain = (char *)(uintptr_t)domain;
        entry->has_version = true;
        entry->version = op == OP_NONE ? graph->opset : versions[op];
        proto->opset_import[proto->n_opset_import++] = entry;
    }
}

static void write_metadata(struct onnx_writer *w, const struct onnx_write_options *options,
                           Onnx__ModelProto *proto)
{
    proto->n_metadata_props = options->metadata_count;
    proto->metadata_props = writer_alloc(w, options->metadata_count, sizeof *proto->metadata_props);
    for (size_t i = 0; w->status == STATUS_OK && i < options->metadata_count; i++) {
        Onnx__StringStringEntryProto *entry = proto->metadata_props[i] =
            new_message(w, &onnx__string_string_entry_proto__descriptor);
        if (!entry)
            return;
        entry->key = (char *)(uintptr_t)options->metadata[i].key;
        entry->value = (char *)(uintptr_t)options->metadata[i].value;
    }
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

static void cannot_write(struct onnx_writer *w)
{
    if (w->status == STATUS_OK)
        w->status = error_set(w->err, STATUS_IO, "cannot write it: %s", strerror(errno));
}

static void write_model(struct onnx_writer *w, const struct graph *graph,
                        const struct onnx_write_options *options, FILE *file)
{
    struct onnx_sink sink = {.base = {.append = sink_append}, .file = file};
    Onnx__ModelProto proto;
    onnx__model_proto__init(&proto);
    proto.has_ir_version = true;
    proto.ir_version = graph->ir_version > IR_VERSION_LEAST ? graph->ir_version : IR_VERSION_LEAST;
    proto.producer_name = (char *)(uintptr_t)options->producer;
    write_opsets(w, graph, &proto);
    write_metadata(w, options, &proto);
    proto.graph = write_graph(w, graph);
    if (w->status == STATUS_OK)
        protobuf_c_message_pack_to_buffer(&proto.base, &sink.base);
    if (sink.failed)
        cannot_write(w);
    if (w->status == STATUS_OK && any_changed(graph))
        w->status = error_set(w->err, STATUS_IO,
                              "the model's data file changed while it was read; start again");
    if (!finish_file(file))
        cannot_write(w);
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
    if (!w.arena)
        w.status = error_no_memory(err, "while writing the model");
    else if (tensor_bytes(graph) > TENSORS_LIMIT)
        w.status =
            error_set(err, STATUS_TOO_LARGE, "its tensors exceed the 1.5 GiB of an ONNX file");
    else if (!(file = fopen(path, "wbxe")))
        cannot_write(&w);
    else
        write_model(&w, graph, options, file);
    if (file && w.status != STATUS_OK)
        (void)unlink(path);
    name_map_done(&w.names);
    name_map_done(&w.nodes);
    arena_free(w.arena);
    return w.status == STATUS_OK ? STATUS_OK : error_prefix(err, "%.200s", path);
}
