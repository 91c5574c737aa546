/* Graphs and bodies: initialisers, inputs, nodes in order, outputs. */
#include <string.h>

#include "models/onnx/onnx_import.h"

static enum status declare_outputs(struct scope *scope, const Onnx__NodeProto *node)
{
    for (size_t i = 0; i < node->n_output; i++) {
        struct value *value;
        const struct shape unknown = SHAPE_NONE;
        if (*node->output[i])
            TRY(scope_declare(scope, node->output[i], DTYPE_NONE, &unknown, &value));
    }
    return STATUS_OK;
}

enum status import_nodes(struct scope *scope, Onnx__NodeProto *const *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        TRY(import_work(scope->import, 1 + nodes[i]->n_input + nodes[i]->n_output));
        TRY(declare_outputs(scope, nodes[i]));
    }
    for (size_t i = 0; i < count; i++)
        TRY(scope->import->make_node(scope, nodes[i], i));
    return STATUS_OK;
}

/* Reads a declared type. Symbolic, missing and negative dimensions are DIM_UNKNOWN. */
static enum status read_type(struct import *import, const Onnx__ValueInfoProto *info,
                             enum dtype *ret_dtype, struct shape *ret_shape)
{
    const Onnx__TypeProto__Tensor *type = info->type ? info->type->tensor_type : NULL;
    if (!type)
        return error_set(import->err, STATUS_UNSUPPORTED,
                         "it is not a tensor (sequences, maps and optional values are not "
                         "supported) or has no type");
    TRY(onnx_dtype(type->elem_type, ret_dtype, import->err));
    *ret_shape = SHAPE_NONE;
    if (!type->shape)
        return STATUS_OK;
    if (type->shape->n_dim > TENSOR_MAX_RANK)
        return error_set(import->err, STATUS_UNSUPPORTED, "rank %zu; lensd handles ranks 0 to %d",
                         type->shape->n_dim, TENSOR_MAX_RANK);
    ret_shape->rank = (int)type->shape->n_dim;
    for (size_t i = 0; i < type->shape->n_dim; i++) {
        const Onnx__TensorShapeProto__Dimension *dim = type->shape->dim[i];
        bool known = dim->has_dim_value && dim->dim_value >= 0 && !dim->dim_param;
        ret_shape->dims[i] = known ? dim->dim_value : DIM_UNKNOWN;
    }
    return STATUS_OK;
}

static enum status name_dims(struct scope *scope, const Onnx__ValueInfoProto *info,
                             struct value *value)
{
    const Onnx__TypeProto__Tensor *type = info->type ? info->type->tensor_type : NULL;
    for (size_t i = 0; type && type->shape && i < type->shape->n_dim && i < TENSOR_MAX_RANK; i++) {
        const char *name = text_or_empty(type->shape->dim[i]->dim_param);
        if (*name &&
            !(value->dim_names[i] = arena_copy_text(scope->graph->arena, name, strlen(name))))
            return error_no_memory(scope->import->err, "while building the graph");
    }
    return STATUS_OK;
}

static enum status import_input(struct scope *scope, const Onnx__ValueInfoProto *info, bool is_body)
{
    struct import *import = scope->import;
    const char *name = text_or_empty(info->name);
    enum dtype dtype = DTYPE_NONE;
    struct shape shape = SHAPE_NONE;
    struct value *value;
    if (!*name)
        return error_set(import->err, STATUS_MODEL, "an input of the graph has no name");
    /* Body inputs get their types from the node that runs the body; the file may omit these
     * types. */
    if (!is_body || (info->type && info->type->tensor_type)) {
        enum status status = read_type(import, info, &dtype, &shape);
        if (status != STATUS_OK)
            return error_prefix(import->err, "input '%.100s'", name);
    }
    TRY(scope_declare(scope, name, dtype, &shape, &value));
    TRY(name_dims(scope, info, value));
    scope->graph->inputs[scope->graph->input_count++] = value;
    return STATUS_OK;
}

/* Inputs that are also initialisers (IR version 3) are constants, not inputs. */
static enum status import_inputs(struct scope *scope, const Onnx__GraphProto *proto, bool is_body)
{
    struct graph *graph = scope->graph;
    struct name_map seen = {0};
    enum status status = STATUS_OK;
    graph->inputs = arena_alloc(graph->arena, proto->n_input, sizeof *graph->inputs);
    TRY(check_memory(graph->inputs, "while building the graph", scope->import->err));
    for (size_t i = 0; status == STATUS_OK && i < proto->n_input; i++) {
        const char *name = text_or_empty(proto->input[i]->name);
        if (name_map_find(&seen, name))
            status = error_set(scope->import->err, STATUS_MODEL,
                               "the graph has two inputs named '%.100s'", name);
        else if (!name_map_put(&seen, name, NULL))
            status = error_no_memory(scope->import->err, "while building the graph");
        else if (!name_map_find(&scope->names, name))
            status = import_input(scope, proto->input[i], is_body);
    }
    name_map_done(&seen);
    return status;
}

static enum status import_outputs(struct scope *scope, const Onnx__GraphProto *proto)
{
    struct graph *graph = scope->graph;
    struct import *import = scope->import;
    graph->outputs = arena_alloc(graph->arena, proto->n_output, sizeof *graph->outputs);
    TRY(check_memory(graph->outputs, "while building the graph", import->err));
    for (size_t i = 0; i < proto->n_output; i++) {
        const Onnx__ValueInfoProto *info = proto->output[i];
        const char *name = text_or_empty(info->name);
        struct value *value;
        if (!*name)
            return error_set(import->err, STATUS_MODEL, "output %zu of the graph has no name", i);
        if (scope_resolve(scope, name, &value) != STATUS_OK)
            return error_prefix(import->err, "graph output %zu", i);
        if (!value)
            return error_set(import->err, STATUS_MODEL, "graph output '%.100s' is left out", name);
        if (scope_packed(value))
            return error_set(
                import->err, STATUS_UNSUPPORTED,
                "graph output '%.100s' has data type %s, which lensd reads in constants only", name,
                scope_packed(value));
        /* An output's declared type applies until inference determines it. */
        if (value->producer && value->dtype == DTYPE_NONE && info->type &&
            info->type->tensor_type) {
            if (read_type(import, info, &value->dtype, &value->shape) != STATUS_OK)
                return error_prefix(import->err, "output '%.100s'", name);
            TRY(name_dims(scope, info, value));
        }
        graph->outputs[graph->output_count++] = value;
    }
    return STATUS_OK;
}

static enum status add_constant(struct scope *scope, const char *name,
                                const struct onnx_packed *packed, struct tensor *tensor)
{
    struct value *value;
    TRY(scope_declare(scope, name, tensor->dtype, &tensor->shape, &value));
    value->known = tensor_ref(tensor);
    value->packed = packed ? packed->name : NULL;
    return STATUS_OK;
}

static enum status import_initializer(struct scope *scope, const char *name,
                                      const Onnx__TensorProto *dense,
                                      const Onnx__SparseTensorProto *sparse)
{
    struct import *import = scope->import;
    struct tensor *tensor = NULL;
    if (!*name)
        return error_set(import->err, STATUS_MODEL, "an initializer has no name");
    enum status status = dense ? onnx_tensor_read(import->file, dense, &tensor, import->err)
                               : onnx_sparse_read(import->file, sparse, &tensor, import->err);
    IF_OK(status,
          add_constant(scope, name, dense ? onnx_packed_find(dense->data_type) : NULL, tensor));
    tensor_unref(tensor);
    return status == STATUS_OK ? status : error_prefix(import->err, "initializer '%.100s'", name);
}

static enum status import_initializers(struct scope *scope, const Onnx__GraphProto *proto)
{
    for (size_t i = 0; i < proto->n_initializer; i++)
        TRY(import_initializer(scope, text_or_empty(proto->initializer[i]->name),
                               proto->initializer[i], NULL));
    for (size_t i = 0; i < proto->n_sparse_initializer; i++) {
        const Onnx__SparseTensorProto *sparse = proto->sparse_initializer[i];
        const char *name = sparse->values ? text_or_empty(sparse->values->name) : "";
        TRY(import_initializer(scope, name, NULL, sparse));
    }
    return STATUS_OK;
}

enum status import_graph(struct scope *scope, const Onnx__GraphProto *proto, bool is_body)
{
    struct graph *graph = scope->graph;
    const char *name = text_or_empty(proto->name);
    graph->name = arena_copy_text(graph->arena, name, strlen(name));
    TRY(check_memory(graph->name, "while building the graph", scope->import->err));
    graph->opset = opset_of(&scope->opsets, "");
    TRY(import_initializers(scope, proto));
    TRY(import_inputs(scope, proto, is_body));
    TRY(import_nodes(scope, proto->node, proto->n_node));
    TRY(import_outputs(scope, proto));
    if (!is_body && !proto->n_output)
        return error_set(scope->import->err, STATUS_MODEL, "the graph has no outputs");
    return graph_sort(graph, scope->import->err);
}
