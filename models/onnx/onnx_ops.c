/* Nodes: operator, operands and attributes, checked against the operator table (engine/op/ops.h).
 *
 * Easy to get wrong (ONNX IR.md, onnx.proto): an operand named "" is omitted. An operator's version
 * is the opset of its domain that the model (in a function: the function) imports. Old files may
 * lack AttributeProto.type, and values equal to the default. */
#include <stdio.h>
#include <string.h>

#include "engine/base/size.h"
#include "engine/op/ops.h"
#include "models/onnx/onnx_forms.h"
#include "models/onnx/onnx_import.h"

/* ---- attributes ---- */

enum { /* the numbers of AttributeProto.AttributeType that are no enum attr_kind */
       TYPE_UNDEFINED = 0,
       TYPE_TENSORS = 9,
       TYPE_GRAPHS = 10,
       TYPE_SPARSE = 11,
       TYPE_COUNT = 12
};

static const char *const type_names[TYPE_COUNT] = {"no type", "FLOAT",   "INT",    "STRING",
                                                   "TENSOR",  "GRAPH",   "FLOATS", "INTS",
                                                   "STRINGS", "TENSORS", "GRAPHS", "SPARSE_TENSOR"};

/* Returns the declared type; the attribute must have no value of another type. If the file declares
 * no type, returns the type of the value. */
static enum status attribute_type(struct import *import, const Onnx__AttributeProto *proto,
                                  int *ret)
{
    const bool filled[TYPE_COUNT] = {[ATTR_FLOAT] = proto->has_f,
                                     [ATTR_INT] = proto->has_i,
                                     [ATTR_STRING] = proto->has_s,
                                     [ATTR_TENSOR] = proto->t != NULL,
                                     [ATTR_GRAPH] = proto->g != NULL,
                                     [ATTR_FLOATS] = proto->n_floats > 0,
                                     [ATTR_INTS] = proto->n_ints > 0,
                                     [ATTR_STRINGS] = proto->n_strings > 0,
                                     [TYPE_TENSORS] = proto->n_tensors > 0,
                                     [TYPE_GRAPHS] = proto->n_graphs > 0,
                                     [TYPE_SPARSE] = proto->sparse_tensor != NULL};
    int type = proto->type;
    if (type < 0 || type >= TYPE_COUNT)
        return error_set(import->err, STATUS_UNSUPPORTED, "has the unsupported type %d", type);
    for (int t = 1; t < TYPE_COUNT; t++) {
        if (!filled[t])
            continue;
        if (type == TYPE_UNDEFINED)
            type = t;
        else if (type != t)
            return error_set(import->err, STATUS_MODEL, "is declared %s but carries %s",
                             type_names[type], type_names[t]);
    }
    if (type == TYPE_UNDEFINED)
        return error_set(import->err, STATUS_MODEL, "has neither a type nor a value");
    *ret = type;
    return STATUS_OK;
}

static const char *copy_string(struct import *import, struct graph *graph,
                               const ProtobufCBinaryData *bytes)
{
    if (bytes->len && memchr(bytes->data, 0, bytes->len)) {
        (void)error_set(import->err, STATUS_MODEL, "is a string that holds a NUL byte");
        return NULL;
    }
    const char *copy = arena_copy_text(graph->arena, (const char *)bytes->data, bytes->len);
    if (!copy)
        (void)error_no_memory(import->err, "while building the graph");
    return copy;
}

static enum status copy_strings(struct import *import, struct graph *graph,
                                const Onnx__AttributeProto *proto, struct attr *attr)
{
    const char **strings = arena_alloc(graph->arena, proto->n_strings, sizeof *strings);
    TRY(check_memory(strings, "while building the graph", import->err));
    for (size_t i = 0; i < proto->n_strings; i++)
        if (!(strings[i] = copy_string(import, graph, &proto->strings[i])))
            return import->err->status;
    attr->strings = strings;
    return STATUS_OK;
}

/* Adds the values of the enclosing graph that a body reads to the captures of the node that runs
 * the body. */
static enum status add_captures(const struct scope *body, struct node *node)
{
    const size_t count = node->capture_count + body->captured_count;
    struct value **captures = arena_alloc(body->graph->parent->arena, count, sizeof *captures);
    TRY(check_memory(captures, "while building the graph", body->import->err));
    if (node->capture_count)
        memcpy(captures, node->captures, node->capture_count * sizeof *captures);
    if (body->captured_count)
        memcpy(captures + node->capture_count, body->captured,
               body->captured_count * sizeof *captures);
    node->captures = captures;
    node->capture_count = count;
    return STATUS_OK;
}

/* Imports a body and adds its captures to the captures of the node. On failure nothing is kept. */
static enum status import_body(struct scope *scope, const Onnx__GraphProto *proto,
                               struct node *node, struct graph **ret)
{
    struct import *import = scope->import;
    if (scope->bodies >= IMPORT_MAX_BODIES)
        return error_set(import->err, STATUS_MODEL, "holds a graph nested more than %d levels deep",
                         IMPORT_MAX_BODIES);
    TRY(onnx_charge(import->file, 64 * 1024, import->err)); /* the body's own arena */
    struct graph *body = graph_create(scope->graph->budget);
    TRY(check_memory(body, "while building the graph", import->err));
    body->parent = scope->graph;
    struct scope inner = {.import = import,
                          .graph = body,
                          .outer = scope,
                          .function = NULL,
                          .bindings = scope->bindings,
                          .binding_count = scope->binding_count,
                          .opsets = scope->opsets,
                          .prefix = "",
                          .bodies = scope->bodies + 1,
                          .calls = scope->calls};
    enum status status = import_graph(&inner, proto, true);
    IF_OK(status, add_captures(&inner, node));
    scope_done(&inner);
    if (status != STATUS_OK) {
        graph_free(body);
        return status;
    }
    *ret = body;
    return STATUS_OK;
}

/* Counts a tensor in a function once for each call of the function. */
static enum status tensor_work(const struct scope *scope, const struct tensor *tensor)
{
    return scope->calls ? import_work(scope->import, tensor->bytes / 256) : STATUS_OK;
}

static enum status attribute_value(struct scope *scope, const Onnx__AttributeProto *proto,
                                   struct node *node, struct attr *attr)
{
    struct import *import = scope->import;
    struct graph *graph = scope->graph;
    switch (attr->kind) {
    case ATTR_INT:
        attr->i = proto->i;
        return STATUS_OK;
    case ATTR_FLOAT:
        attr->f = proto->f;
        return STATUS_OK;
    case ATTR_STRING:
        attr->count = proto->has_s ? proto->s.len : 0;
        attr->s = proto->has_s ? copy_string(import, graph, &proto->s) : "";
        return attr->s ? STATUS_OK : import->err->status;
    case ATTR_INTS:
        attr->count = proto->n_ints;
        attr->ints = arena_copy(graph->arena, proto->ints, attr->count, sizeof *proto->ints);
        return check_memory(attr->ints, "while building the graph", import->err);
    case ATTR_FLOATS:
        attr->count = proto->n_floats;
        attr->floats = arena_copy(graph->arena, proto->floats, attr->count, sizeof *proto->floats);
        return check_memory(attr->floats, "while building the graph", import->err);
    case ATTR_STRINGS:
        attr->count = proto->n_strings;
        return copy_strings(import, graph, proto, attr);
    case ATTR_TENSOR:
        if (!proto->t)
            return error_set(import->err, STATUS_MODEL, "has no tensor");
        if (onnx_packed_find(proto->t->data_type)) /* onnx_dtype() writes the error */
            return onnx_dtype(proto->t->data_type, &(enum dtype){DTYPE_NONE}, import->err);
        TRY(onnx_tensor_read(import->file, proto->t, &attr->t, import->err));
        return tensor_work(scope, attr->t);
    case ATTR_GRAPH:
        if (!proto->g)
            return error_set(import->err, STATUS_MODEL, "has no graph");
        return import_body(scope, proto->g, node, &attr->g);
    }
    return STATUS_OK;
}

/* Finds the range of opsets at which lensd supports the operator and, unless `name` is NULL, the
 * attribute `name`; for advice in errors. 0 and 0 if there is none. */
static void opsets_of(const Onnx__NodeProto *node, const char *name, int *first, int *last)
{
    *first = *last = 0;
    for (int opset = 1; opset <= OPSET_MAX; opset++) {
        const struct op_info *spec =
            onnx_spec(plain_domain(node->domain), text_or_empty(node->op_type), opset);
        if (!spec || (name && op_attr_kind(spec, name) < 0))
            continue;
        *first = *first ? *first : opset;
        *last = opset;
    }
}

static enum status refuse_attribute(struct import *import, const Onnx__NodeProto *node,
                                    const char *name)
{
    int first, last;
    opsets_of(node, name, &first, &last);
    if (!first) {
        (void)error_set(import->err, STATUS_UNSUPPORTED,
                        "is not one that lensd knows for this operator");
        return error_advise(import->err, "re-export the model without it");
    }
    (void)error_set(import->err, STATUS_UNSUPPORTED,
                    "this operator does not have it at the model's opset, only from %d to %d",
                    first, last);
    return error_advise(import->err, "re-export the model with one of those");
}

static enum status import_attribute(struct scope *scope, const struct op_info *info,
                                    const Onnx__NodeProto *node, const char *name,
                                    const Onnx__AttributeProto *proto, struct node *to,
                                    struct attr *attr)
{
    struct import *import = scope->import;
    const int kind = op_attr_kind(info, name);
    int type;
    if (kind < 0)
        return refuse_attribute(import, node, name);
    TRY(attribute_type(import, proto, &type));
    if (type != kind)
        return error_set(import->err, STATUS_MODEL, "is of type %s, expected %s", type_names[type],
                         type_names[kind]);
    *attr = (struct attr){.kind = (enum attr_kind)kind};
    attr->name = arena_copy_text(scope->graph->arena, name, strlen(name));
    TRY(check_memory(attr->name, "while building the graph", import->err));
    enum status status = attribute_value(scope, proto, to, attr);
    if (status != STATUS_OK)
        attr_done(attr); /* the graph frees only attributes of its nodes */
    return status;
}

static enum status one_attribute(struct scope *scope, const struct op_info *info,
                                 const Onnx__NodeProto *of, const Onnx__AttributeProto *proto,
                                 struct node *node, struct attr *attrs)
{
    struct import *import = scope->import;
    const char *name = text_or_empty(proto->name);
    const Onnx__AttributeProto *value;
    if (!strcmp(name, "consumed_inputs")) /* opset 1's hint for in-place work, without meaning */
        return STATUS_OK;
    if (node_attr(node, name))
        return error_set(import->err, STATUS_MODEL, "is given twice");
    TRY(attribute_resolve(scope, proto, &value));
    if (!value)
        return STATUS_OK;
    TRY(import_work(import, 1 + value->n_ints + value->n_floats + value->n_strings));
    TRY(import_attribute(scope, info, of, name, value, node, &attrs[node->attr_count]));
    node->attr_count++; /* from now on the graph owns the attribute */
    return STATUS_OK;
}

/* No operator has more attributes; a list of thousands would make every look-up slow. */
#define MAX_ATTRIBUTES 64

static enum status import_attributes(struct scope *scope, const struct op_info *info,
                                     const Onnx__NodeProto *proto, struct node *node)
{
    struct import *import = scope->import;
    struct graph *graph = scope->graph;
    if (proto->n_attribute > MAX_ATTRIBUTES)
        return error_set(import->err, STATUS_MODEL, "%zu attributes; at most %d are accepted",
                         proto->n_attribute, MAX_ATTRIBUTES);
    struct attr *attrs = arena_alloc(graph->arena, proto->n_attribute, sizeof *attrs);
    TRY(check_memory(attrs, "while building the graph", import->err));
    node->attrs = attrs;
    for (size_t i = 0; i < proto->n_attribute; i++)
        if (one_attribute(scope, info, proto, proto->attribute[i], node, attrs) != STATUS_OK)
            return error_prefix(import->err, "attribute '%.60s'",
                                text_or_empty(proto->attribute[i]->name));
    return STATUS_OK;
}

/* ---- Constant ---- */

/* Returns the attribute of a Constant as a tensor. `name` is the node's name for the attribute. */
static enum status constant_tensor(struct import *import, const char *name, int type,
                                   const Onnx__AttributeProto *proto, struct tensor **ret)
{
    const struct {
        const char *name;
        int type;
        enum dtype dtype;
        size_t count;
        const void *src;
    } forms[] = {{"value", ATTR_TENSOR, DTYPE_NONE, 0, NULL},
                 {"sparse_value", TYPE_SPARSE, DTYPE_NONE, 0, NULL},
                 {"value_float", ATTR_FLOAT, DTYPE_F32, 1, &proto->f},
                 {"value_int", ATTR_INT, DTYPE_I64, 1, &proto->i},
                 {"value_floats", ATTR_FLOATS, DTYPE_F32, proto->n_floats, proto->floats},
                 {"value_ints", ATTR_INTS, DTYPE_I64, proto->n_ints, proto->ints}};
    size_t f = 0;
    while (f < COUNT_OF(forms) && strcmp(forms[f].name, name))
        f++;
    if (f == COUNT_OF(forms))
        return error_set(import->err, STATUS_UNSUPPORTED,
                         "attribute '%.60s' is not one lensd reads (value, sparse_value, "
                         "value_float(s), value_int(s))",
                         name);
    if (type != forms[f].type)
        return error_set(import->err, STATUS_MODEL, "attribute '%s' is of type %s, expected %s",
                         name, type_names[type], type_names[forms[f].type]);
    if (type == ATTR_TENSOR && proto->t)
        return onnx_tensor_read(import->file, proto->t, ret, import->err);
    if (type == TYPE_SPARSE && proto->sparse_tensor)
        return onnx_sparse_read(import->file, proto->sparse_tensor, ret, import->err);
    if (forms[f].dtype == DTYPE_NONE)
        return error_set(import->err, STATUS_MODEL, "attribute '%s' has no tensor", name);
    bool is_list = type == ATTR_FLOATS || type == ATTR_INTS;
    struct shape shape = is_list ? SHAPE((int64_t)forms[f].count) : SHAPE_SCALAR;
    TRY(onnx_charge(import->file, forms[f].count * 8, import->err));
    TRY(tensor_create(NULL, forms[f].dtype, &shape, ret, import->err));
    if ((*ret)->bytes)
        memcpy((*ret)->data, forms[f].src, (*ret)->bytes);
    return STATUS_OK;
}

static enum status import_constant(struct scope *scope, const Onnx__NodeProto *proto)
{
    struct import *import = scope->import;
    const Onnx__AttributeProto *attribute = NULL;
    struct value *value;
    int type;
    if (proto->n_input || proto->n_output != 1 || !*proto->output[0] || proto->n_attribute != 1)
        return error_set(import->err, STATUS_MODEL,
                         "a Constant has no inputs, one output and one attribute");
    TRY(attribute_resolve(scope, proto->attribute[0], &attribute));
    if (!attribute)
        return error_set(import->err, STATUS_MODEL, "the function's call leaves out its value");
    TRY(attribute_type(import, attribute, &type));
    TRY(scope_resolve(scope, proto->output[0], &value));
    /* The second argument is the name in the node, not the name of the function's attribute to
     * which the node refers. */
    struct tensor *tensor;
    TRY(constant_tensor(import, text_or_empty(proto->attribute[0]->name), type, attribute,
                        &tensor));
    value->known = tensor; /* the value takes the reference */
    value->dtype = tensor->dtype;
    value->shape = tensor->shape;
    if (attribute->t && onnx_packed_find(attribute->t->data_type))
        value->packed = onnx_packed_find(attribute->t->data_type)->name;
    return tensor_work(scope, tensor);
}

/* ---- nodes ---- */

/* Returns the number of operands without the operands named "" at the end, which count as absent.
 * Not used for the results of a Split: the number of results is the number of parts. */
static size_t trimmed(char *const *names, size_t count)
{
    while (count && !*names[count - 1])
        count--;
    return count;
}

static enum status build_node(struct scope *scope, const Onnx__NodeProto *proto,
                              const struct op_info *spec, int opset, const char *name,
                              struct node **ret)
{
    struct import *import = scope->import;
    size_t inputs = trimmed(proto->input, proto->n_input);
    size_t outputs =
        spec->op == OP_SPLIT ? proto->n_output : trimmed(proto->output, proto->n_output);
    TRY(onnx_charge(import->file,
                    sizeof(struct node) + (inputs + outputs) * sizeof(void *) + strlen(name),
                    import->err));
    struct node *node = *ret = graph_add_node(scope->graph, spec->op, name, inputs, outputs);
    TRY(check_memory(node, "while building the graph", import->err));
    node->opset = opset;
    for (size_t i = 0; i < outputs; i++) {
        struct value *value;
        TRY(scope_resolve(scope, proto->output[i], &value));
        node_set_output(node, i, value);
    }
    for (size_t i = 0; i < inputs; i++) {
        TRY(scope_resolve(scope, proto->input[i], &node->inputs[i]));
        const char *packed = scope_packed(node->inputs[i]);
        if (packed && spec->op != OP_DEQUANTIZE_LINEAR && spec->op != OP_CAST)
            return error_set(import->err, STATUS_UNSUPPORTED,
                             "operand '%.100s' has data type %s; lensd takes constants of that "
                             "type in DequantizeLinear and Cast only",
                             proto->input[i], packed);
    }
    return import_attributes(scope, spec, proto, node);
}

/* From this opset on ai.onnx has operators that older opsets write as several simpler operators. */
#define FUSED_OPSET 23

static enum status refuse_operator(struct import *import, const Onnx__NodeProto *node,
                                   const char *domain, int opset)
{
    const char *dot = *domain ? "." : "", *op_type = text_or_empty(node->op_type);
    int first, last;
    opsets_of(node, NULL, &first, &last);
    if (!*op_type)
        return error_set(import->err, STATUS_MODEL, "the node has no operator");
    if (first && !opset)
        return error_set(import->err, STATUS_MODEL,
                         "the operator set '%.60s' of %.60s is not imported by the model",
                         *domain ? domain : "ai.onnx", op_type);
    if (first) {
        (void)error_set(import->err, STATUS_UNSUPPORTED,
                        "operator %.60s%s%.60s is not supported at opset %d, only from %d to %d",
                        domain, dot, op_type, opset, first, last);
        return error_advise(import->err, "convert the model with onnx.version_converter, or export "
                                         "it again, with one of those");
    }
    bool is_own =
        *domain && strncmp(domain, "ai.onnx", 7) != 0 && strcmp(domain, "com.microsoft") != 0;
    (void)error_set(import->err, STATUS_UNSUPPORTED,
                    is_own ? "operator %.60s%s%.60s is the exporter's own (opset %d) and is "
                             "not supported by lensd"
                           : "operator %.60s%s%.60s (opset %d) is not supported by lensd",
                    domain, dot, op_type, opset);
    if (is_own)
        return error_advise(import->err,
                            "re-export the model with the standard operators of ai.onnx");
    if (!*domain && opset >= FUSED_OPSET)
        return error_advise(
            import->err,
            "re-export the model with opset %d or older, which writes it as simpler operators",
            FUSED_OPSET - 1);
    return error_advise(import->err, "re-export the model without it (`lensd inspect` lists every "
                                     "operator of the model)");
}

enum status import_node(struct scope *scope, const Onnx__NodeProto *proto, size_t position)
{
    struct import *import = scope->import;
    const char *op_type = text_or_empty(proto->op_type), *domain = plain_domain(proto->domain);
    char name[256];
    if (proto->name && *proto->name)
        snprintf(name, sizeof name, "%s%.160s", scope->prefix, proto->name);
    else
        snprintf(name, sizeof name, "%s%.60s_%zu", scope->prefix, op_type, position);

    int opset = opset_of(&scope->opsets, domain);
    const struct onnx_form *form = opset ? onnx_form_find(domain, op_type, opset) : NULL;
    const struct op_info *spec = opset ? onnx_spec(domain, op_type, opset) : NULL;
    struct node *node;
    enum status status;
    if (spec && spec->op == OP_NONE) {
        status = import_constant(scope, proto);
    } else if (spec) {
        status = build_node(scope, proto, spec, opset, name, &node);
        /* For each operand, a rewrite makes at most two nodes, which count as 7 units of work. */
        if (status == STATUS_OK && form && spec->max_inputs == OP_VARIADIC)
            status = import_work(import, 7 * node->input_count);
        if (status == STATUS_OK && form)
            status = onnx_form_rewrite(form, scope->graph, node, import->err);
    } else {
        const Onnx__FunctionProto *function =
            function_find(import, domain, op_type, text_or_empty(proto->overload));
        if (function) /* an error in a function already names the node */
            return function_call(scope, proto, function, name);
        status = refuse_operator(import, proto, domain, opset);
    }
    return status == STATUS_OK ? status
                               : error_prefix(import->err, "node '%.100s' (%.60s)", name, op_type);
}
