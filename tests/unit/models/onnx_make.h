/* Makes ONNX files in memory for tests: messages in an arena, packed by protobuf-c. */
#pragma once

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/arena.h"
#include "models/onnx/onnx.h"
#include "proto/onnx.pb-c.h"

struct make {
    struct arena *arena;
    Onnx__ModelProto *model;
    Onnx__GraphProto *graph;
};

/* Appends `item` to a repeated field of pointers. */
#define MAKE_APPEND(make_, list, count, item)                                                      \
    do {                                                                                           \
        void *bigger_ = arena_alloc((make_)->arena, (count) + 1, sizeof(void *));                  \
        if (count)                                                                                 \
            memcpy(bigger_, (list), (count) * sizeof(void *));                                     \
        (list) = bigger_;                                                                          \
        (list)[(count)++] = (item);                                                                \
    } while (0)

#define MAKE_NEW(make_, type, init)                                                                \
    ({                                                                                             \
        type *new_ = arena_alloc((make_)->arena, 1, sizeof *new_);                                 \
        init(new_);                                                                                \
        new_;                                                                                      \
    })

static inline char *make_text(struct make *make, const char *text)
{
    return arena_copy_text(make->arena, text, strlen(text));
}

static inline void make_opset(struct make *make, const char *domain, int64_t version)
{
    Onnx__OperatorSetIdProto *entry =
        MAKE_NEW(make, Onnx__OperatorSetIdProto, onnx__operator_set_id_proto__init);
    entry->domain = make_text(make, domain);
    entry->version = version;
    entry->has_version = 1;
    MAKE_APPEND(make, make->model->opset_import, make->model->n_opset_import, entry);
}

/* An empty graph, IR version 8, opset 13. */
static inline struct make make_model(void)
{
    struct make make = {.arena = arena_create(0)};
    make.model = MAKE_NEW(&make, Onnx__ModelProto, onnx__model_proto__init);
    make.graph = MAKE_NEW(&make, Onnx__GraphProto, onnx__graph_proto__init);
    make.model->graph = make.graph;
    make.model->ir_version = 8;
    make.model->has_ir_version = 1;
    make_opset(&make, "", 13);
    return make;
}

/* A value's type; a dimension below 0 is symbolic ("d0", "d1" …). rank < 0: no shape. */
static inline Onnx__ValueInfoProto *make_value(struct make *make, const char *name, int dtype,
                                               int rank, ...)
{
    Onnx__ValueInfoProto *info = MAKE_NEW(make, Onnx__ValueInfoProto, onnx__value_info_proto__init);
    Onnx__TypeProto__Tensor *type =
        MAKE_NEW(make, Onnx__TypeProto__Tensor, onnx__type_proto__tensor__init);
    info->name = make_text(make, name);
    info->type = MAKE_NEW(make, Onnx__TypeProto, onnx__type_proto__init);
    info->type->tensor_type = type;
    type->elem_type = dtype;
    type->has_elem_type = 1;
    if (rank < 0)
        return info;
    type->shape = MAKE_NEW(make, Onnx__TensorShapeProto, onnx__tensor_shape_proto__init);
    va_list args;
    va_start(args, rank);
    for (int i = 0; i < rank; i++) {
        Onnx__TensorShapeProto__Dimension *dim = MAKE_NEW(
            make, Onnx__TensorShapeProto__Dimension, onnx__tensor_shape_proto__dimension__init);
        int extent = va_arg(args, int);
        char name_text[8] = {'d', (char)('0' + i), '\0'};
        if (extent >= 0) {
            dim->dim_value = extent;
            dim->has_dim_value = 1;
        } else {
            dim->dim_param = make_text(make, name_text);
        }
        MAKE_APPEND(make, type->shape->dim, type->shape->n_dim, dim);
    }
    va_end(args);
    return info;
}

#define MAKE_INPUT(make_, ...)                                                                     \
    MAKE_APPEND(make_, (make_)->graph->input, (make_)->graph->n_input,                             \
                make_value(make_, __VA_ARGS__))
#define MAKE_OUTPUT(make_, ...)                                                                    \
    MAKE_APPEND(make_, (make_)->graph->output, (make_)->graph->n_output,                           \
                make_value(make_, __VA_ARGS__))

/* Names separated by commas; "" between two commas is a name left out. */
static inline void make_names(struct make *make, const char *names, char ***list, size_t *count)
{
    while (*names || *count) {
        size_t length = strcspn(names, ",");
        MAKE_APPEND(make, *list, *count, arena_copy_text(make->arena, names, length));
        if (!names[length])
            return;
        names += length + 1;
    }
}

/* A node that is in no graph yet. */
static inline Onnx__NodeProto *make_node(struct make *make, const char *op, const char *inputs,
                                         const char *outputs)
{
    Onnx__NodeProto *node = MAKE_NEW(make, Onnx__NodeProto, onnx__node_proto__init);
    node->op_type = make_text(make, op);
    make_names(make, inputs, &node->input, &node->n_input);
    make_names(make, outputs, &node->output, &node->n_output);
    return node;
}

static inline Onnx__NodeProto *make_add_node(struct make *make, const char *op, const char *inputs,
                                             const char *outputs)
{
    Onnx__NodeProto *node = make_node(make, op, inputs, outputs);
    MAKE_APPEND(make, make->graph->node, make->graph->n_node, node);
    return node;
}

static inline Onnx__AttributeProto *make_attr(struct make *make, Onnx__NodeProto *node,
                                              const char *name, int type)
{
    Onnx__AttributeProto *attr = MAKE_NEW(make, Onnx__AttributeProto, onnx__attribute_proto__init);
    attr->name = make_text(make, name);
    attr->type = type;
    attr->has_type = 1;
    if (node)
        MAKE_APPEND(make, node->attribute, node->n_attribute, attr);
    return attr;
}

static inline Onnx__AttributeProto *make_attr_int(struct make *make, Onnx__NodeProto *node,
                                                  const char *name, int64_t value)
{
    Onnx__AttributeProto *attr = make_attr(make, node, name, 2);
    attr->i = value;
    attr->has_i = 1;
    return attr;
}

/* A tensor with `bytes` bytes of raw data. */
static inline Onnx__TensorProto *make_tensor(struct make *make, const char *name, int dtype,
                                             const void *data, size_t bytes, size_t rank,
                                             const int64_t *dims)
{
    Onnx__TensorProto *tensor = MAKE_NEW(make, Onnx__TensorProto, onnx__tensor_proto__init);
    tensor->name = make_text(make, name);
    tensor->data_type = dtype;
    tensor->has_data_type = 1;
    tensor->n_dims = rank;
    tensor->dims = arena_alloc(make->arena, rank, sizeof *tensor->dims);
    for (size_t i = 0; i < rank; i++)
        tensor->dims[i] = dims[i];
    if (data) {
        tensor->has_raw_data = 1;
        tensor->raw_data.len = bytes;
        tensor->raw_data.data = (uint8_t *)arena_copy_text(make->arena, data, bytes);
    }
    return tensor;
}

static inline void make_initializer(struct make *make, Onnx__TensorProto *tensor)
{
    MAKE_APPEND(make, make->graph->initializer, make->graph->n_initializer, tensor);
}

static inline void make_external(struct make *make, Onnx__TensorProto *tensor, const char *key,
                                 const char *value)
{
    Onnx__StringStringEntryProto *entry =
        MAKE_NEW(make, Onnx__StringStringEntryProto, onnx__string_string_entry_proto__init);
    entry->key = make_text(make, key);
    entry->value = make_text(make, value);
    MAKE_APPEND(make, tensor->external_data, tensor->n_external_data, entry);
    tensor->data_location = 1;
    tensor->has_data_location = 1;
}

/* The file's bytes, malloc'ed. */
static inline uint8_t *make_pack(const struct make *make, size_t *ret_size)
{
    *ret_size = onnx__model_proto__get_packed_size(make->model);
    uint8_t *bytes = malloc(*ret_size ? *ret_size : 1);
    if (bytes)
        onnx__model_proto__pack(make->model, bytes);
    return bytes;
}

static inline void make_done(struct make *make)
{
    arena_free(make->arena);
}

/* y = Relu(x), x: float32 [batch, 3]. */
static inline struct make relu_model(void)
{
    struct make make = make_model();
    MAKE_INPUT(&make, "x", 1, 2, -1, 3);
    make_add_node(&make, "Relu", "x", "y");
    MAKE_OUTPUT(&make, "y", 1, 2, -1, 3);
    return make;
}

static inline enum status load(const struct make *make, struct onnx_model *ret, struct error *err)
{
    size_t size;
    uint8_t *bytes = make_pack(make, &size);
    enum status status = onnx_load_memory(bytes, size, 0, ret, err);
    free(bytes);
    return status;
}
